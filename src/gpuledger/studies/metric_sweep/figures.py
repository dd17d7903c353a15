"""Panels of a metric sweep's figures; the notebook composes them."""

import math
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger import figures
from gpuledger.ledger.label_placement import spread
from gpuledger.models import scaling_laws
from gpuledger.studies.metric_sweep import sweeps
from gpuledger.studies.metric_sweep.laws import fit_series, law_of, outlying_sizes
from gpuledger.studies.metric_sweep.measurements import PLACE, VARIABLES
from gpuledger.studies.metric_sweep.reduction import Sweep

#: Most panels in a figure, panels beside a map of all laws unless more are wrong, and most classes in a panel.
SHOWN_PANELS, SHOWN_WITH_MAP, SHOWN_CLASSES = 4, 2, 5
#: Characters of a line of a panel's title, and of its metric, at most.
TITLE, METRIC = 44, 54
#: How far beyond the largest size a law is drawn, and the level of its prediction band.
BEYOND, LEVEL = 2.0, 0.95
#: Colours and markers of classes.
LOOKS = ((figures.BLUE, "o"), (figures.ORANGE, "s"), (figures.GREEN, "^"), (figures.PURPLE, "D"), (figures.SKY, "v"))
_SIZES = {"seq_len": "sequence length (tokens)", "hidden_dim": "hidden size (features)", "n_layer": "layers"}
_QUANTITIES = {
    "1": "value",
    "unknown": "value (unit unknown)",
    "byte": "bytes",
    "sector": "sectors",
    "inst": "instructions",
    "cycle": "cycles",
    "ns": "time (ns)",
    "%": "share (%)",
    "hz": "frequency (Hz)",
    "byte/s": "bytes per second",
}
_WRONG = {"color": figures.VERMILLION, "linestyle": "none", "zorder": 6}
_SYMBOLS = {
    "unit_switch": ("in another unit", {"marker": "x", "markersize": 6, "markeredgewidth": 1.6}),
    "outlier": ("outlier", {"marker": "*", "markersize": 10}),
    "contradiction": ("contradicted by another counter", {"marker": "+", "markersize": 9, "markeredgewidth": 1.6}),
}


def file_name(metric: str) -> str:
    """Return the name of a metric in file names, with ``_`` for all other signs."""
    return re.sub(r"\W", "_", metric)


def choose_panels(sweep: Sweep) -> tuple[list[pd.DataFrame], bool]:
    """Choose the most interesting panels, one per metric and variable.

    Metrics with anomalies that a panel can show come first, then those with knees, then those whose classes have most
    different laws; of equals those with most classes and points. Of a metric's classes, those with anomalies come
    first, then those with a law, then those with the largest values.

    Returns
    -------
    panels : list of DataFrame
        Their series, in order of variable and metric.
    more : bool
        Whether there are more than that. Then these are of different metrics and, as far as possible, variables.
    """
    series = sweeps.main_series(sweeps.all_series(sweep.points))
    wrong = set(sweep.anomalies.loc[sweep.anomalies["kind"].isin(_SYMBOLS), "metric"])
    laws = sweep.laws.groupby(["variable", "metric"])["law"]

    groups = series.groupby(["variable", "metric"], sort=False)
    about = groups.agg(classes=("kernel_class", "nunique"), points=("size", "size"))
    about["laws"] = laws.nunique()
    about["straight"] = ~laws.agg(lambda own: own.isin(["knee", "staircase"]).any())
    about = about.reset_index()
    about["order"] = about["variable"].map({name: -place for place, name in enumerate(VARIABLES)})
    about["right"] = ~about["metric"].isin(wrong)
    ranks = {"right": True, "straight": True, "laws": False, "classes": False, "points": False, "order": True}
    ranked = about.sort_values([*ranks, "metric"], ascending=[*ranks.values(), True])
    more = len(ranked) > SHOWN_PANELS
    if more:
        # Every metric once, where it is most interesting; and a panel of every variable before a second of one.
        ranked = ranked.drop_duplicates("metric")
        ranked = ranked.assign(repeated=ranked.groupby("variable").cumcount())
        ranked = ranked.sort_values(["right", "repeated"], kind="stable")
        ranked = ranked.head(min(SHOWN_PANELS, max(SHOWN_WITH_MAP, int((~ranked["right"]).sum()))))
    keys = ranked.sort_values(["order", "metric"])[["variable", "metric"]].itertuples(index=False, name=None)
    return [_choose_classes(groups.get_group(key), sweep) for key in keys], more


def _choose_classes(panel: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    wrong = sweep.anomalies
    wrong = set(wrong.loc[wrong["metric"].isin(["all", panel["metric"].iloc[0]]), "kernel_class"])
    largest = panel.groupby("kernel_class")["value"].max()
    lawless = {name for name, own in panel.groupby("kernel_class") if law_of(sweep.laws, own)["law"] == "undetermined"}
    ranked = sorted(largest.index, key=lambda name: (name not in wrong, name in lawless, -largest[name], name))
    return panel[panel["kernel_class"].isin(ranked[:SHOWN_CLASSES])]


def panels_of_metric(sweep: Sweep, name: str) -> list[pd.DataFrame]:
    """Return the series of one metric, one panel per variable and class.

    Parameters
    ----------
    name : str
        The metric as :func:`file_name` writes it.
    """
    series = sweeps.main_series(sweeps.all_series(sweep.points))
    known = {file_name(metric): metric for metric in series["metric"].unique()}
    if name not in known:
        raise InputError(
            f"figure_{name}", "", f"no metric is called '{name}' here", schemas.nearest(name, sorted(known))
        )
    groups = series[series["metric"] == known[name]].groupby(["variable", "kernel_class"], sort=True)
    return sorted((panel for _, panel in groups), key=lambda panel: -VARIABLES.index(panel["variable"].iloc[0]))


def choose_looks(
    panels: Sequence[pd.DataFrame], looks: Sequence[tuple[str, str]] = LOOKS
) -> list[dict[str, tuple[str, str]]]:
    """Return colour and marker of each class, panel by panel; the same in all panels if there are enough looks."""
    classes = [sorted(panel["kernel_class"].unique()) for panel in panels]
    every = sorted({name for names in classes for name in names})
    if len(every) <= len(looks):
        return [dict(zip(every, looks, strict=False))] * len(panels)
    return [dict(zip(names, looks, strict=False)) for names in classes]


def draw_law(axes: Axes, panel: pd.DataFrame, sweep: Sweep, looks: Mapping[str, tuple[str, str]]) -> set[str]:
    """Draw one metric over one variable: points, laws, prediction bands and anomalies of its classes.

    Parameters
    ----------
    panel : DataFrame
        Series of one metric and variable; see :func:`choose_panels`.
    looks : mapping of str to (colour, marker)
        By class.

    Returns
    -------
    set of str
        What was drawn, for :func:`legend_handles`.
    """
    drawn = {"point", "law", *(["median"] if panel["launches"].max() > 1 else [])}
    for kernel_class, own in panel.groupby("kernel_class", sort=True):
        drawn |= _draw_series(axes, own, sweep, *looks[str(kernel_class)])
    axes.set_xscale("log", base=2)
    values = np.r_[panel["value"], panel["value_as_given"]]
    if (values <= 0).any():
        positive = values[values > 0]
        least = positive.min() if len(positive) else 1.0
        axes.set_yscale("symlog", linthresh=least)
        # Counters are never negative; a law that crosses zero, and its band, may be.
        axes.set_ylim(-0.15 * least, 2 * max(values.max(), least))
    else:
        axes.set_yscale("log")
        _mark_values(axes)
    axes.xaxis.set_major_locator(_ThinnedSizes(np.unique(panel["size"])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    variable, unit = (panel[name].iloc[0] for name in ("variable", "unit"))
    at = panel["at"].mode().iloc[0].replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    axes.set_xlabel(f"{_SIZES[variable]}\n{at}", fontsize=7.2)
    axes.set_ylabel(_QUANTITIES.get(unit, unit))
    axes.grid(axis="y", which="major")
    return drawn


def write_laws(axes: Axes, title: str, laws: Mapping[str, str], looks: Mapping[str, tuple[str, str]]) -> None:
    """Write a panel's title and, class by class, its laws into axes of their own above the panel."""
    axes.set_axis_off()
    handles = [
        Line2D([], [], color=looks[name][0], marker=looks[name][1], label=figures.plain(law))
        for name, law in laws.items()
    ]
    style = {"fontsize": 7.2, "handletextpad": 0.5, "handlelength": 1.6, "labelspacing": 0.25}
    box = axes.legend(handles=handles, loc="upper left", borderpad=0, borderaxespad=0, **style)
    box.set_title(figures.plain(title), {"size": 8.4, "weight": "bold"})
    box.set_alignment("left")
    # Long laws may extend beyond the panel; they must not narrow it.
    box.set_in_layout(False)


def name_panel(axes: Axes, panel: pd.DataFrame, sweep: Sweep) -> None:
    """Write what a panel shows above it, and below that its metric, in lines no longer than the panel."""
    metric = figures.plain(panel["metric"].iloc[0])
    # A name has no blanks; one that is wider than the panel would make the panel narrower.
    lines = textwrap.wrap(metric.replace(".", " ."), METRIC, break_long_words=True)
    lines = [line.replace(" .", ".") for line in lines]
    axes.set_title(panel_finding(panel, sweep) + "\n" * len(lines), fontsize=8.4)
    axes.text(0, 1.02, "\n".join(lines), transform=axes.transAxes, fontsize=7, color="#666666")


def panel_finding(panel: pd.DataFrame, sweep: Sweep) -> str:
    """Return what a panel shows, in a few words: its anomalies, or else its knees, or else its laws."""
    wrong = sweep.anomalies
    wrong = wrong[(wrong["metric"] == panel["metric"].iloc[0]) & wrong["kernel_class"].isin(panel["kernel_class"])]
    switched = panel[panel["value"] != panel["value_as_given"]]
    if len(switched):
        fell = (switched["value"] > switched["value_as_given"]).all()
        return f"{_number(len(switched), 'drop' if fell else 'jump')}: only the unit changed"
    for kind, words in (("outlier", "off the law"), ("contradiction", "contradicted by another counter")):
        if count := int((wrong["kind"] == kind).sum()):
            return f"{_number(count, 'value')} {words}"
    laws = [law_of(sweep.laws, own) for _, own in panel.groupby("kernel_class", sort=True)]
    bent = [f"{law['kernel_class']} near {law['knee']:,.0f}" for law in laws if not np.isnan(law["knee"])]
    if bent:
        return textwrap.fill(figures.plain(f"{'A knee' if len(bent) == 1 else 'Knees'}: {', '.join(bent)}"), TITLE)
    exact = sum(bool(law["exact"]) for law in laws)
    counts = pd.Series([law["law"] for law in laws]).value_counts()
    lawless = int(counts.pop("undetermined")) if "undetermined" in counts else 0
    kinds = ", ".join(f"{count} {law}" for law, count in counts.items()) or "No"
    kinds += f" law{'s' * (len(laws) - lawless != 1)}"
    if exact == len(laws):
        return f"{kinds}, {'both' if exact == 2 else 'all'} exact" if exact > 1 else f"{kinds}, exact"
    kinds += f", {exact} of them exact" if exact else ""
    return textwrap.fill(kinds + (f"; {lawless} without a law" if lawless and len(counts) else ""), TITLE)


def headline_of(shown: Sequence[pd.DataFrame], finding: str) -> str:
    """Return the headline of a figure: that values look wrong only because their unit changed, or else the finding."""
    switched = pd.concat([panel[panel["value"] != panel["value_as_given"]] for panel in shown])
    if switched.empty:
        return finding
    ratios = switched["value"] / switched["value_as_given"]
    factors = np.maximum(ratios, 1 / ratios).round()
    times = "a thousand" if (factors == 1000).all() else f"up to {factors.max():,.0f}"
    wrong = "small" if (ratios > 1).all() else "large" if (ratios < 1).all() else "small or large"
    unit = {"byte": "byte count"}.get(switched["unit"].iloc[0], "value")
    look, whose = ("looks", "its") if len(switched) == 1 else ("look", "their")
    return f"{_number(len(switched), unit)} {look} {times} times too {wrong} only because {whose} unit changed"


def _number(count: int, name: str) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
    return f"{words[count] if count < len(words) else f'{count:,}'} {name}{'s' * (count != 1)}"


def label_ends(axes: Axes, panel: pd.DataFrame, sweep: Sweep, looks: Mapping[str, tuple[str, str]]) -> None:
    """Name the classes and their laws at the ends of the lines, and make room for that on the right."""
    low, high = np.log2(panel["size"].min()), np.log2(BEYOND * panel["size"].max())
    axes.set_xlim(2 ** (low - 0.05 * (high - low)), 2 ** (high + 0.4 * (high - low)))
    ends = []
    for name, own in panel.groupby("kernel_class", sort=True):
        row, last = law_of(sweep.laws, own), float(own.loc[own["size"].idxmax(), "value"])
        if row["law"] != "undetermined":
            fit = fit_series(own, outlying_sizes(sweep.anomalies, own))
            last = max(float(fit.predict(fit.domain[1] * BEYOND)[0]), 0.0)
        law = f"{row['law']}{', exact' if row['exact'] else ''}"
        if row["law"] == "undetermined":
            law = "no law" if row["points"] >= scaling_laws.MINIMUM_POINTS else "too few sizes"
        height = axes.transAxes.inverted().transform(axes.transData.transform((own["size"].max(), last)))[1]
        ends.append((height, str(name) if figures.for_columns else f"{name}\n{law}", str(name)))
    ends.sort(reverse=True)
    right = axes.get_xaxis_transform()
    for place, (_, words, name) in zip(spread([height for height, *_ in ends]), ends, strict=True):
        at = 2 ** (high + 0.03 * (high - low)), place
        style = {"color": looks[name][0], "fontsize": 7, "fontweight": "bold", "va": "center", "linespacing": 1.05}
        axes.text(*at, figures.plain(words), transform=right, **style)


def legend_handles(drawn: Collection[str]) -> list[Artist]:
    """Return legend entries for what :func:`draw_law` has drawn."""
    black = {"color": figures.BLACK}
    spread = {"marker": "|", "markersize": 9, "linestyle": "none"}
    knee = {"marker": "d", "fillstyle": "none", "markersize": 8, "linestyle": "none"}
    handles = {
        "point": Line2D(
            [], [], marker="o", linestyle="none", label=f"measured{' (median)' * ('median' in drawn)}", **black
        ),
        "spread": Line2D([], [], label="smallest to largest launch", **spread, **black),
        "law": Line2D([], [], linewidth=1.3, label="law", **black),
        "beyond": Line2D([], [], linewidth=1.1, linestyle=(0, (4, 2)), label="law, beyond the data", **black),
        "band": Patch(color=figures.GREY, alpha=0.25, linewidth=0, label=f"{100 * LEVEL:.0f} % prediction band"),
        "expected": Line2D([], [], linewidth=1.2, linestyle=":", label="expected formula", **black),
        "knee": Line2D([], [], label="knee", **knee, **black),
        **{kind: Line2D([], [], label=label, **(_WRONG | style)) for kind, (label, style) in _SYMBOLS.items()},
    }
    return [handle for name, handle in handles.items() if name in drawn]


def _draw_series(axes: Axes, series: pd.DataFrame, sweep: Sweep, colour: str, marker: str) -> set[str]:
    """Draw points, law, band, knee and anomalies of one class; return what needs a legend."""
    row, drawn = law_of(sweep.laws, series), set()
    out = outlying_sizes(sweep.anomalies, series)
    kept = series[~series["size"].isin(out)]
    size, value = kept["size"].to_numpy(float), kept["value"].to_numpy(float)
    axes.plot(size, value, marker, color=colour, zorder=4, markeredgecolor="white", markeredgewidth=0.5)
    spread = kept[kept["maximum"] > kept["minimum"]]
    if len(spread):
        line = {"color": colour, "zorder": 3}
        axes.vlines(spread["size"], spread["minimum"], spread["maximum"], linewidth=0.8, **line)
        axes.vlines(spread["size"], spread["lower_quartile"], spread["upper_quartile"], linewidth=2.4, **line)
        drawn.add("spread")
    if row["law"] != "undetermined":
        drawn |= _draw_curve(axes, fit_series(series, out), colour)
    expected = sweep.expected
    expected = expected[(expected["kernel_class"] == row["kernel_class"]) & (expected["metric"] == row["metric"])]
    expected = series.merge(expected[["expected", *VARIABLES]].drop_duplicates(), on=list(VARIABLES))
    if len(expected):
        axes.plot(expected["size"], expected["expected"], ":", color=colour, linewidth=1.2, zorder=2)
        drawn.add("expected")
    return drawn | _draw_anomalies(axes, series, sweep, out)


def _draw_curve(axes: Axes, fit: scaling_laws.Fit, colour: str) -> set[str]:
    first, last = fit.domain
    drawn = {"beyond"}
    for low, high, style in ((first, last, "-"), (last, BEYOND * last, (0, (4, 2)))):
        x = np.geomspace(low, high, 120)
        if fit.knee is not None and low < fit.knee < high:
            x = np.sort(np.r_[x, fit.knee])
        y, bottom, top = (np.maximum(values, 0.0) for values in fit.predict(x, LEVEL))
        axes.plot(x, y, color=colour, linewidth=1.2, linestyle=style, zorder=2.5)
        wide = (top - bottom) > 1e-3 * np.abs(y)
        if wide.any():
            floor = 0.05 * np.abs(y)
            band = np.maximum(bottom, floor), np.maximum(top, floor)
            axes.fill_between(x, *band, color=colour, alpha=0.16, linewidth=0, zorder=1)
            drawn.add("band")
    if fit.knee is not None and first <= fit.knee <= last:
        style = {"fillstyle": "none", "markersize": 8, "markeredgewidth": 1.2, "zorder": 5}
        axes.plot([fit.knee], fit.predict(fit.knee)[0], "d", color=colour, **style)
        axes.axvline(fit.knee, color=colour, linewidth=0.6, linestyle=":", zorder=1)
        drawn.add("knee")
    return drawn


def _draw_anomalies(axes: Axes, series: pd.DataFrame, sweep: Sweep, out: Sequence[int]) -> set[str]:
    drawn = set()
    switched = series[series["value"] != series["value_as_given"]]
    if len(switched):
        axes.plot(switched["size"], switched["value_as_given"], **_WRONG, **_SYMBOLS["unit_switch"][1])
        for size, given, repaired in switched[["size", "value_as_given", "value"]].itertuples(index=False):
            style = {"arrowstyle": "-|>", "color": figures.VERMILLION, "linewidth": 0.8, "shrinkA": 5, "shrinkB": 4}
            style |= {"connectionstyle": "arc3,rad=0.14", "linestyle": (0, (3, 2))}
            axes.annotate("", (size, repaired), (size, given), arrowprops=style)
        drawn.add("unit_switch")
    outlying = series[series["size"].isin(list(out))]
    if len(outlying):
        axes.plot(outlying["size"], outlying["value"], **_WRONG, **_SYMBOLS["outlier"][1])
        drawn.add("outlier")
    wrong = sweep.anomalies[sweep.anomalies["kind"] == "contradiction"].dropna(subset=list(VARIABLES))
    wrong = wrong.astype(dict.fromkeys(VARIABLES, "int64"))[PLACE].drop_duplicates()
    contradicted = series.merge(wrong, on=PLACE)
    if len(contradicted):
        axes.plot(contradicted["size"], contradicted["value"], **_WRONG, **_SYMBOLS["contradiction"][1])
        drawn.add("contradiction")
    return drawn


def thin_ticks(sizes: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the sizes whose labels fit side by side, at these places in inches: all, every second, or what fits."""
    digit = 0.07  # inches
    labels = [f"{size:,.0f}" for size in sizes]
    width = np.array([digit * (len(label) - 0.5 * label.count(",")) for label in labels])

    def fit(one: int, other: int) -> bool:
        return at[other] - at[one] >= (width[one] + width[other]) / 2 + 0.6 * digit

    for step in (1, 2):
        kept = range(0, len(sizes), step)
        if all(fit(*pair) for pair in pairwise(kept)):
            return sizes[list(kept)]
    kept = [0]
    for i in range(1, len(sizes)):
        if fit(kept[-1], i):
            kept.append(i)
    return sizes[kept]


class _ThinnedSizes(FixedLocator):
    """Ticks at as many of the measured sizes as have room for their labels, in axes as wide as they are drawn."""

    def __call__(self) -> np.ndarray:
        axes = self.axis.axes
        places = axes.get_xaxis_transform().transform(np.c_[self.locs, np.zeros(len(self.locs))])
        return thin_ticks(self.locs, places[:, 0] / axes.figure.dpi)


def _mark_values(axes: Axes) -> None:
    """Put ticks at 1, 2 and 5 on a short logarithmic axis, at powers of ten on a long one."""
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    axes.yaxis.set_major_locator(FixedLocator([step * 10.0**power for power in powers for step in steps]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(low, high)
