"""Panels of what is served by the parallelism that predicted times choose, and by the best measured one."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from gpuledger.ledger import figures
from gpuledger.models.time_model.constants.table import ENGINES
from gpuledger.studies.serving_time.parallelism import CHOOSERS, WORKLOAD, averages
from gpuledger.studies.serving_time.tables import short_name

#: Colours of parallelisms, from the fewest GPUs to the most.
COLOURS = (figures.BLUE, figures.GREEN, figures.ORANGE, figures.PURPLE, figures.SKY, figures.BLACK, figures.GREY)
#: Marks of who chooses.
MARKS = {
    "predicted": {"marker": "o", "color": figures.BLUE, "s": 22, "zorder": 4},
    "fewest_met": {"marker": "x", "color": figures.ORANGE, "s": 13, "linewidth": 1.0},
    "fewest": {"marker": "<", "color": figures.GREY, "s": 13},
    "most": {"marker": ">", "color": figures.GREY, "s": 13},
    "any": {"marker": "|", "color": figures.GREY, "s": 26, "linewidth": 1.0},
}


def typical_workload(data: pd.DataFrame, decided: pd.DataFrame) -> pd.DataFrame:
    """Return the points of one workload: of those with the most objectives, that whose mean is the median one."""
    means = decided.groupby(WORKLOAD)["predicted"].agg(["size", "mean"])
    often = means[means["size"] >= means["size"].quantile(0.75)]
    key = (often["mean"] - means["mean"].median()).abs().idxmin()
    return data.set_index(WORKLOAD).loc[[key]].reset_index()


def draw_frontiers(axes: Axes, points: pd.DataFrame, decided: pd.DataFrame) -> None:
    """Draw tokens per second and GPU over tokens per second of a request, by parallelism, and two strips of choices.

    Parameters
    ----------
    points : DataFrame
        Of one workload, as :func:`typical_workload` returns it.
    decided : DataFrame
        Of :func:`gpuledger.studies.serving_time.parallelism.choices`.
    """
    of_each = dict(zip(points.groupby(["gpus", "parallelism"], sort=True).groups, COLOURS * 9, strict=False))
    color = {name: colour for (_, name), colour in of_each.items()}
    for (_, name), own in points.groupby(["gpus", "parallelism"]):
        own = own.sort_values("requests", kind="stable")
        style = {"color": color[name], "linewidth": 1.1}
        axes.plot(1 / own["measured_s"], own["measured_rate"], marker="o", markersize=3, label=name, **style)
        axes.plot(1 / own["predicted_s"], own["predicted_rate"], linestyle=(0, (3, 2)), **style)
    axes.set(xscale="log", yscale="log", ylabel="output tokens per s and GPU")
    axes.set_xlabel("tokens per s of a request")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter(NullFormatter())
    own = decided.merge(points[WORKLOAD].drop_duplicates()).sort_values("objective_s", ascending=False, kind="stable")
    speed = 1 / own["objective_s"].to_numpy()
    edges = np.concatenate([speed[:1], np.sqrt(speed[1:] * speed[:-1]), speed[-1:]])
    low, high = np.log(axes.get_ylim())
    for at, column, words in ((-0.10, "chosen", "chosen"), (-0.18, "best", "best")):
        y = np.exp(low + at * (high - low))
        for left, right, name in zip(edges[:-1], edges[1:], own[column], strict=True):
            axes.plot([left, right], [y, y], color=color[name], linewidth=4, solid_capstyle="butt")
        style = {"textcoords": "offset points", "va": "center", "ha": "right", "fontsize": 6.5}
        axes.annotate(words, (edges[0], y), (-3, 0), **style)
    axes.set_ylim(np.exp(low - 0.24 * (high - low)), np.exp(high))
    axes.set_xlim(min(axes.get_xlim()[0], edges[0] / 1.75), None)
    axes.legend(fontsize=6.5, loc="upper right", handlelength=1.2, borderpad=0.2, labelspacing=0.25)
    first = points.iloc[0]
    engine = ENGINES.get(first["engine"], first["engine"])
    lengths = f"{first['input_tokens']:,} tokens in, {first['output_tokens']:,} out"
    title = f"{short_name(first['model'])} {first['precision']}, {engine}, {first['gpu']}\n{lengths}; dashed: predicted"
    axes.set_title(figures.plain(title), fontsize=7, loc="left")


def draw_shares(axes: Axes, decided: pd.DataFrame) -> None:
    """Draw how often each chooser attains at least so much of the best rate, every workload counted alike."""
    weight = 1 / decided.groupby(WORKLOAD)["predicted"].transform("size")
    styles = {"predicted": (figures.BLUE, "-", 1.6), "fewest_met": (figures.ORANGE, "-", 1.0)}
    styles |= {"fewest": (figures.GREY, "-", 1.0), "most": (figures.GREY, (0, (4, 2)), 1.0)}
    styles |= {"any": (figures.GREY, (0, (1, 1.5)), 1.0)}
    for name, (colour, line, width) in styles.items():
        order = decided[name].sort_values(ascending=False, kind="stable").index
        share = 100 * weight[order].cumsum() / weight.sum()
        x = np.concatenate([[0], share])
        y = np.concatenate([decided.loc[order[:1], name], decided.loc[order, name]])
        # The legend has the marks of `draw_classes`, too, which has no room for one of its own; the line has none.
        # A long name would reach into the lines.
        words = CHOOSERS[name].replace(", ", ",\n")
        legend = {"label": words, "marker": MARKS[name]["marker"], "markersize": 4, "markevery": []}
        axes.plot(x, y, color=colour, linestyle=line, linewidth=width, drawstyle="steps-pre", **legend)
    axes.set(xlim=(0, 100), ylim=(0, 103), xlabel="share of the objectives (%)", ylabel="at least so much of best (%)")
    axes.legend(fontsize=6.5, loc="lower left", handlelength=2.6, borderpad=0.2, labelspacing=0.25)


def draw_classes(axes: Axes, decided: pd.DataFrame) -> None:
    """Draw what each chooser attains on average, by model, precision, engine and GPU; the best class first."""
    # A column has no room for a row per model.
    keys = ["engine", "gpu"] if figures.for_columns else ["model", "precision", "engine", "gpu"]
    groups = decided.replace({"engine": ENGINES}).assign(model=decided["model"].map(short_name)).groupby(keys)
    table = pd.DataFrame({key: averages(part) for key, part in groups}).T.sort_values("predicted", kind="stable")
    for name, style in MARKS.items():
        axes.scatter(table[name], range(len(table)), label=CHOOSERS[name], **({"zorder": 2} | style))
    count = {key: part.groupby(WORKLOAD).ngroups for key, part in groups}
    names = [f"{' '.join(key)} ({count[key]})" for key in table.index]
    axes.set_yticks(range(len(table)), [figures.plain(name) for name in names], fontsize=6)
    axes.axvline(averages(decided)["predicted"], color=figures.BLUE, linewidth=0.6, linestyle=(0, (4, 2)))
    axes.set(xlim=(0, 103), ylim=(-0.8, len(table) - 0.2), xlabel="% of the best, mean")
    axes.grid(axis="y", color=figures.PALE, linewidth=0.4)
