"""Panels of predicted against measured time per output token."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator
from pandas.core.groupby import SeriesGroupBy

from gpuledger.ledger import figures
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.models.time_model.constants.table import ENGINES
from gpuledger.studies.serving_time.runs import APART
from gpuledger.studies.serving_time.tables import short_name

#: Colours of models in every figure, by how their names begin; the first that fits counts.
COLOURS = {
    "DeepSeek": figures.GREEN,
    "Qwen3-32B": "#882255",  # wine and olive, of Tol's muted scheme
    "Qwen3.6-35B": "#882255",
    "Qwen": figures.PURPLE,
    "Llama-3.1-8B": figures.SKY,
    "Llama": figures.BLUE,
    "MiniMax": figures.ORANGE,
    "Kimi": figures.BLACK,
    "gpt-oss": "#999933",
    "GLM": figures.GREY,
}
#: With no more runs than this, each has a bar.
FEW_RUNS = 24
#: Band of errors (%) that the panels shade.
BAND_PERCENT = 20
#: With so many rows of runs or their classes, the panel leaves room for one below the times.
MANY_ROWS = 20


def colours(data: pd.DataFrame) -> dict[str, str]:
    """Return the colour of every model, those with most runs first; models without one take what is left."""
    often = data["model"].map(short_name).value_counts(sort=True).sort_index(kind="stable")
    names = often.sort_values(ascending=False, kind="stable").index
    known = {name: next((color for start, color in COLOURS.items() if name.startswith(start)), None) for name in names}
    free = iter([color for color in dict.fromkeys(COLOURS.values()) if color not in known.values()])
    return {name: color or next(free, figures.GREY) for name, color in known.items()}


def draw_times(axes: Axes, data: pd.DataFrame, of_model: dict[str, str]) -> None:
    """Draw predicted against measured time per output token from kernels alone, a mark per run.

    Dots are runs with prompts and decoding on the same GPUs, diamonds those of workers that only decode.
    """
    measured, predicted = 1e3 * data["measured_s"], 1e3 * data["kernels_s"]
    ends = np.array([min(measured.min(), predicted.min()) / 1.2, max(measured.max(), predicted.max()) * 1.2])
    figures.draw_identity(axes, ends, BAND_PERCENT)
    names, apart = data["model"].map(short_name), data["mode"] == APART
    size = 7 if len(data) > FEW_RUNS else 20
    for name, color in of_model.items():
        chosen = (names == name) & ~apart
        many = chosen.sum() > 100
        axes.scatter(measured[chosen], predicted[chosen], s=size, linewidth=0, alpha=0.75, color=color, rasterized=many)
    for name, color in of_model.items():
        chosen = (names == name) & apart
        style = {"s": 15, "marker": "D", "linewidth": 0.5, "edgecolor": figures.BLACK, "color": color}
        axes.scatter(measured[chosen], predicted[chosen], zorder=3, **style)
    if apart.any() and not apart.all():
        marks = {"prompts too": {"marker": "o", "linewidth": 0, "s": size}, "decode only": style | {"color": "none"}}
        for label, mark in marks.items():
            axes.scatter([], [], label=label, **{"color": figures.GREY, "edgecolor": figures.BLACK} | mark)
        axes.legend(loc="upper left", fontsize=6.5, frameon=False, handletextpad=0.2)
    # A square, so that the diagonal is one, at the height of the other panel's first rows.
    axes.set(box_aspect=1, anchor="N")
    axes.set(xlabel="measured time per output token (ms)", ylabel="predicted from\nkernels alone (ms)")
    place = {"transform": axes.transAxes, "ha": "right", "va": "bottom", "fontsize": 6.5, "linespacing": 1.4}
    words = f"band: within {BAND_PERCENT} %"
    if len(data) > FEW_RUNS:
        words += "\ncolours: models" + ", grey: all others" * (list(of_model.values()).count(figures.GREY) > 1)
    axes.text(0.985, 0.015, words, **place)


def draw_over_batch(axes: Axes, data: pd.DataFrame, of_model: dict[str, str]) -> None:
    """Draw predicted over measured time of every run over its requests, with the marks of `draw_times`."""
    axes.axhspan(1 - BAND_PERCENT / 100, 1 + BAND_PERCENT / 100, color=figures.PALE, linewidth=0)
    axes.axhline(1, color=figures.BLACK, linewidth=0.6)
    ratio, apart = data["kernels_s"] / data["measured_s"], data["mode"] == APART
    color = data["model"].map(short_name).map(of_model)
    size = 5 if len(data) > FEW_RUNS else 16
    dots, diamonds = {"s": size, "linewidth": 0, "alpha": 0.75}, {"s": 11, "marker": "D", "linewidth": 0.5, "zorder": 3}
    axes.scatter(data["requests"][~apart], ratio[~apart], color=list(color[~apart]), rasterized=True, **dots)
    diamonds["edgecolor"] = figures.BLACK
    axes.scatter(data["requests"][apart], ratio[apart], color=list(color[apart]), **diamonds)
    axes.set(xscale="log", yscale="log", xlabel="requests in flight, of a replica", ylabel="predicted / measured")
    axes.xaxis.set_major_locator(LogLocator(base=4, numticks=12))
    axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_locator(NullLocator())


def draw_runs(axes: Axes, data: pd.DataFrame, of_model: dict[str, str]) -> None:
    """Draw the error of every run from kernels alone, for cases of few runs, below what a model's runs share."""
    data = data.sort_values(["model", "gpus", "requests", "input_tokens", "output_tokens"], kind="stable")
    axes.axvspan(-BAND_PERCENT, BAND_PERCENT, color=figures.PALE, linewidth=0)
    axes.axvline(0, color=figures.BLACK, linewidth=0.6, zorder=3)
    names: dict[int, str] = {}
    last = -1
    for model, part in data.groupby("model", sort=False):
        shared, own = _name_runs(part)
        words = ", ".join([short_name(model), *shared])
        axes.text(0.01, last + 1, words, fontsize=6.5, va="center", transform=axes.get_yaxis_transform(), zorder=4)
        errors = errors_percent(part["kernels_s"], part["measured_s"])
        for row, (name, error) in enumerate(zip(own, errors, strict=True), last + 2):
            names[row] = name
            axes.barh(row, error, 0.6, color=of_model[short_name(model)], zorder=2)
            place = (3, "left") if error > 0 else (-3, "right")
            style = {"textcoords": "offset points", "va": "center", "fontsize": 6.5, "ha": place[1]}
            axes.annotate(f"{error:+.1f}".replace("-", "−"), (error, row), (place[0], 0), **style)
        last += 1 + len(part)
    axes.set_yticks(list(names), list(names.values()), fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    errors, least = errors_percent(data["kernels_s"], data["measured_s"]), 1.5 * BAND_PERCENT
    low, high = min(errors.min(), 0), max(errors.max(), 0)
    room = 0.45 * (high - low)  # for the numbers
    ends = (min(low - room, -least), max(high + room, least))
    axes.set(ylim=(last + 0.7, -0.7), xlim=ends, xlabel="error of the prediction (%)")


#: What is said of a run, in order, by column.
_SAID = {
    "gpus": lambda count: f"{count} GPU{'s' if count > 1 else ''}",
    "precision": str,
    "parallelism": str,
    "requests": "batch {:,}".format,
    "input_tokens": "{:,} in".format,
    "output_tokens": "{:,} out".format,
}


def _name_runs(part: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return in words what a model's runs share, lengths within 10 %, and of each run its batch and what differs."""
    shared: list[str] = []
    rows: list[list[str]] = [[] for _ in range(len(part))]
    for column, say in _SAID.items():
        if column not in part or (figures.for_columns and column not in ("gpus", "requests")):
            continue
        values = part[column]
        if column == "parallelism" and (values == "TP" + part["gpus"].astype(str)).all():
            continue  # follows from the number of GPUs
        if column != "requests" and values.nunique() == 1:
            shared.append(say(values.iloc[0]))
        elif column.endswith("tokens") and values.max() <= 1.1 * values.min():
            shared.append(say(int(float(f"{values.median():.2g}"))))
        else:
            for row, value in zip(rows, values, strict=True):
                row.append(say(value))
    return shared, [", ".join(row) for row in rows]


def draw_classes(axes: Axes, data: pd.DataFrame, of_model: dict[str, str]) -> None:
    """Draw predicted over measured time of every class of runs: median, and the middle 80 %."""
    # A column has no room for a row per engine.
    model, precision, engine = data["model"].map(short_name), data["precision"], data["engine"]
    mode = data["mode"].rename("mode")
    names = [mode, model, precision] if figures.for_columns else [mode, engine, model, precision]
    groups = (data["kernels_s"] / data["measured_s"]).groupby(names)
    order = groups.median().sort_values(ascending=False, kind="stable").index
    places = pd.Series(range(len(order)), order)
    y = places[list(groups.groups)].to_numpy()
    apart = [key[0] == APART for key in groups.groups]
    draw_ratios(axes, groups, y, [of_model[key[-2]] for key in groups.groups], apart)
    labels = [f"{model} {precision}" for *_, model, precision in groups.groups]
    what = "predicted / measured\n(median, middle 80 %)"
    if not figures.for_columns:
        what = "predicted / measured (median,\nmiddle 80 %; in brackets: runs)"
        runs = groups.size()
        keys = zip(labels, runs.index, strict=True)
        labels = [f"{label} · {ENGINES.get(key[1], key[1])} ({runs[key]:,})" for label, key in keys]
    axes.set_yticks(y, [figures.plain(label) for label in labels], fontsize=6.5)
    axes.set_ylim(-0.7, len(order) - 0.3)
    axes.set_xlabel(what)


def draw_ratios(
    axes: Axes, groups: SeriesGroupBy, y: Sequence[float], color: str | Sequence[str], apart: Sequence[bool] = ()
) -> None:
    """Draw the median and the middle 80 % of each group of ratios of predicted to measured time.

    Parameters
    ----------
    y : sequence of float
        Where each group is drawn.
    color : color, or one for each group
    apart : sequence of bool
        Which groups are of workers that only decode: diamonds.
    """
    low, median, high = (groups.quantile(share) for share in (0.1, 0.5, 0.9))
    axes.axvspan(1 - BAND_PERCENT / 100, 1 + BAND_PERCENT / 100, color=figures.PALE, linewidth=0)
    axes.axvline(1, color=figures.BLACK, linewidth=0.6)
    axes.hlines(y, low, high, color=color, linewidth=1.4)
    every = np.array([color] * len(median) if isinstance(color, str) else color)
    only, y = np.array(apart or [False] * len(median)), np.asarray(y)
    for chosen, style in ((~only, {}), (only, {"marker": "D", "linewidth": 0.5, "edgecolor": figures.BLACK})):
        if chosen.any():
            axes.scatter(median[chosen], y[chosen], color=every[chosen], s=20, zorder=3, **style)
    axes.set(xscale="log", xlim=(min(0.45, low.min() / 1.1), max(2.2, 1.1 * high.max())))
    axes.set_xticks([0.5, 1, 2])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
