"""Figures of metric sweeps: small multiples with laws drawn through points, and a page for one metric."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.models import scaling_laws
from gpuledger.studies.metric_sweep import sweeps
from gpuledger.studies.metric_sweep.laws import drawn_fit
from gpuledger.studies.metric_sweep.measurements import VARIABLES
from gpuledger.studies.metric_sweep.reduction import Sweep
from gpuledger.studies.metric_sweep.summary import left_out_sizes

#: Panels of the first figure, and classes in one of them; a page for one metric shows all.
SHOWN_PANELS, SHOWN_CLASSES = 9, 5
# Inches: a panel, what stands around it, a line of its title and of its laws, the gap below them, headline and legend
# of the figure.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BELOW = 2.75, 1.9, 0.68, 0.17, 0.62
_TITLE, _LINE, _GAP, _HEADLINE, _FOOT = 0.15, 0.13, 0.08, 0.55, 0.36
# Inches that a digit of a tick's label takes.
_DIGIT = 0.07
#: How far beyond the largest size a law is drawn.
BEYOND = 2.0
LEVEL = 0.95

_LOOKS = (
    (figures.BLUE, "o"),
    (figures.ORANGE, "s"),
    (figures.GREEN, "^"),
    (figures.PURPLE, "D"),
    (figures.SKY, "v"),
)
_AXES = {"seq_len": "sequence length (tokens)", "hidden_dim": "hidden size (features)", "n_layer": "layers"}
_PLURAL = {
    "1": "value",
    "unknown": "value (unit unknown)",
    "byte": "bytes",
    "sector": "sectors",
    "inst": "instructions",
}
_PLURAL |= {
    "cycle": "cycles",
    "ns": "time (ns)",
    "%": "share (%)",
    "hz": "frequency (Hz)",
    "byte/s": "bytes per second",
}
_WRONG = {"color": figures.VERMILLION, "linestyle": "none", "zorder": 6}
_SYMBOLS = {
    "unit_switch": ("as given, in another unit", {"marker": "x", "markersize": 6, "markeredgewidth": 1.6}),
    "outlier": ("outlier", {"marker": "*", "markersize": 10}),
    "contradiction": ("contradicted by another counter", {"marker": "+", "markersize": 9, "markeredgewidth": 1.6}),
}


def slug_of(metric: str) -> str:
    """Name of a metric in the name of its figure."""
    return re.sub(r"\W", "_", metric)


def draw(result: CaseResult) -> Figure:
    """Draw the first figure: a panel for each metric and variable, with its classes, as many as fit."""
    sweep = Sweep.from_frame(result.data)
    series = sweeps.main_series(sweeps.all_series(sweep.points))
    panels = [own for _, own in series.groupby(["variable", "metric"], sort=False)]
    panels = sorted(_interesting(panels, sweep), key=_order)
    figure = _figure(panels, sweep, columns=2 if len(panels) <= 4 else 3)
    figures.headline(figure, result.finding)
    return figure


def draw_metric(result: CaseResult, slug: str) -> Figure:
    """Draw the page of one metric: a panel for each class and variable.

    Parameters
    ----------
    result : CaseResult
    slug : str
        The metric's name as :func:`slug_of` writes it.

    Raises
    ------
    InputError
        When no series is of such a metric.
    """
    sweep = Sweep.from_frame(result.data)
    series = sweeps.main_series(sweeps.all_series(sweep.points))
    known = {slug_of(metric): metric for metric in series["metric"].unique()}
    if slug not in known:
        file = f"figure_{slug}"
        raise InputError(file, "", f"no metric is called '{slug}' here", schemas.nearest(slug, sorted(known)))
    mine = series[series["metric"] == known[slug]]
    panels = [own for _, own in mine.groupby(["variable", "kernel_class"], sort=True)]
    panels.sort(key=lambda own: (-VARIABLES.index(own["variable"].iloc[0]), own["kernel_class"].iloc[0]))
    figure = _figure(panels, sweep, columns=min(3, len(panels)), whole=False)
    figures.headline(figure, f"{known[slug]}: {_laws_in_words(sweep.laws, known[slug])}")
    return figure


def _laws_in_words(laws: pd.DataFrame, metric: str) -> str:
    mine = laws[laws["metric"] == metric]
    counts = mine["law"].value_counts()
    words = ", ".join(f"{counts[law]} {law}" for law in scaling_laws.LAWS if law in counts)
    return f"{len(mine)} series, {words}"


def _order(own: pd.DataFrame) -> tuple:
    return (-VARIABLES.index(own["variable"].iloc[0]), own["metric"].iloc[0])


def _interesting(panels: list[pd.DataFrame], sweep: Sweep) -> list[pd.DataFrame]:
    """Keep the panels that fit: those with anomalies, with knees, with many classes and points."""
    wrong = set(sweep.anomalies["metric"])
    bent = set(sweep.laws.loc[sweep.laws["law"].isin(["knee", "staircase"]), "metric"])

    def rank(own: pd.DataFrame) -> tuple:
        metric = own["metric"].iloc[0]
        return (metric not in wrong, metric not in bent, -own["kernel_class"].nunique(), -len(own), *_order(own))

    return sorted(panels, key=rank)[:SHOWN_PANELS]


def _figure(panels: Sequence[pd.DataFrame], sweep: Sweep, columns: int, whole: bool = True) -> Figure:
    """Lay out panels in inches: above each one stands its title and a line or two a class."""
    classes = [_chosen(own, sweep) for own in panels]
    every = sorted({name for names in classes for name in names})
    # A class has one look in all panels, as long as there are looks enough.
    shared = {name: _LOOKS[i] for i, name in enumerate(every)} if whole and len(every) <= len(_LOOKS) else None
    headers = [_header(own, names, sweep, whole) for own, names in zip(panels, classes, strict=True)]
    rows = [range(start, min(start + columns, len(panels))) for start in range(0, len(panels), columns)]
    above = [max(_GAP + sum(_TITLE if not n else _LINE for n in _heights(headers[i])) for i in row) for row in rows]
    width = columns * (_LEFT + _WIDTH + _RIGHT)
    height = _HEADLINE + sum(above) + len(rows) * (_HEIGHT + _BELOW) + _FOOT
    figure = plt.figure(figsize=(width, height))
    figure.set_layout_engine("none")
    drawn: set[str] = set()
    top = height - _HEADLINE
    for row, header in zip(rows, above, strict=True):
        bottom = top - header - _HEIGHT
        for column, i in enumerate(row):
            left = column * (_LEFT + _WIDTH + _RIGHT) + _LEFT
            axes = figure.add_axes((left / width, bottom / height, _WIDTH / width, _HEIGHT / height))
            looks = shared or dict(zip(classes[i], _LOOKS, strict=False))
            # Titles of a row stand at one height.
            drawn |= _panel(axes, panels[i], looks, headers[i], 1 + header / _HEIGHT, sweep)
        top = bottom - _BELOW
    handles = [handle for name, handle in _legend().items() if name in drawn]
    place = {"loc": "lower left", "bbox_to_anchor": (0.12 / width, 0), "bbox_transform": figure.transFigure}
    ncols = min(len(handles), 4 if columns < 3 else 6) if width > 5 else 2
    figure.legend(handles=handles, ncols=ncols, columnspacing=1.6, handletextpad=0.6, borderaxespad=0, **place)
    return figure


def _header(own: pd.DataFrame, classes: Sequence[str], sweep: Sweep, whole: bool) -> tuple[str, dict[str, str]]:
    """Title of a panel, and its laws in words, class by class."""
    title = own["metric"].iloc[0] if whole else own["kernel_class"].iloc[0]
    left_out = own["kernel_class"].nunique() - len(classes)
    title += f" (and {left_out} more classes)" if left_out else ""
    words = {name: _in_words(own[own["kernel_class"] == name], sweep, whole) for name in classes}
    return textwrap.fill(title, 46), words


def _heights(header: tuple[str, dict[str, str]]) -> list[int]:
    """Lines of a header: 0 for each of the title, 1 for each of the laws."""
    title, words = header
    return [0] * (title.count("\n") + 1) + [1] * sum(word.count("\n") + 1 for word in words.values())


def _legend() -> dict[str, Line2D | Patch]:
    line = {"color": figures.BLACK}
    return {
        "point": Line2D([], [], marker="o", linestyle="none", label="measured (median)", **line),
        "spread": Line2D(
            [], [], marker="|", markersize=9, linestyle="none", label="smallest to largest launch", **line
        ),
        "law": Line2D([], [], linewidth=1.3, label="law", **line),
        "beyond": Line2D([], [], linewidth=1.1, linestyle=(0, (4, 2)), label="law, beyond the data", **line),
        "band": Patch(color=figures.GREY, alpha=0.25, linewidth=0, label=f"{100 * LEVEL:.0f} % prediction band"),
        "expected": Line2D([], [], linewidth=1.2, linestyle=":", label="expected formula", **line),
        "knee": Line2D([], [], marker="d", fillstyle="none", markersize=8, linestyle="none", label="knee", **line),
        **{kind: Line2D([], [], label=label, **(_WRONG | style)) for kind, (label, style) in _SYMBOLS.items()},
    }


def _panel(
    axes: Axes,
    own: pd.DataFrame,
    looks: Mapping[str, tuple[str, str]],
    header: tuple[str, dict[str, str]],
    top: float,
    sweep: Sweep,
) -> set[str]:
    """Draw the classes of one metric over one variable, the header from `top` down (1 is the axes' upper end).

    Returns what needs a legend.
    """
    variable, unit = (own[name].iloc[0] for name in ("variable", "unit"))
    drawn, handles = {"point", "law"}, []
    for kernel_class, words in header[1].items():
        colour, marker = looks[kernel_class]
        drawn |= _series(axes, own[own["kernel_class"] == kernel_class], sweep, colour, marker)
        handles.append(Line2D([], [], color=colour, marker=marker, label=figures.plain(words)))
    axes.set_xscale("log", base=2)
    values = np.r_[own["value"], own["value_as_given"]]
    if (values <= 0).any():
        positive = values[values > 0]
        axes.set_yscale("symlog", linthresh=positive.min() if len(positive) else 1)
    else:
        axes.set_yscale("log")
        _value_ticks(axes)
    axes.xaxis.set_major_locator(FixedLocator(_thinned(np.unique(own["size"]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    at = own["at"].mode().iloc[0]
    axes.set_xlabel(f"{_AXES[variable]}; {at}", fontsize=7.6)
    axes.set_ylabel(_PLURAL.get(unit, unit))
    axes.grid(axis="y", which="major")
    style = {"fontsize": 7.2, "handletextpad": 0.5, "handlelength": 1.6, "labelspacing": 0.25, "borderpad": 0}
    box = axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, top), borderaxespad=0, **style)
    box.set_title(figures.plain(header[0]), {"size": 8.4, "weight": "bold"})
    box.set_alignment("left")
    return drawn


def _chosen(own: pd.DataFrame, sweep: Sweep) -> list[str]:
    """Return the classes that a panel shows: those with anomalies first, then the largest values."""
    wrong = sweep.anomalies
    wrong = set(wrong.loc[wrong["metric"].isin(["all", own["metric"].iloc[0]]), "kernel_class"])
    largest = own.groupby("kernel_class")["value"].max()
    ranked = sorted(largest.index, key=lambda name: (name not in wrong, -largest[name], name))
    return sorted(ranked[:SHOWN_CLASSES])


def _in_words(mine: pd.DataFrame, sweep: Sweep, whole: bool) -> str:
    row = _law(mine, sweep)
    words = f"{row['kernel_class']}: {row['formula']}" if whole else row["formula"]
    if row["exact"]:
        words += " (exact)"
    elif not np.isnan(row["error_percent"]):
        words += f" (±{row['error_percent']:.2g} %)"
    # No line ends between a sign and its number.
    return textwrap.fill(re.sub("([≥≤±]) ", "\\1\u00a0", words), 52)


def _law(mine: pd.DataFrame, sweep: Sweep) -> pd.Series:
    laws = sweep.laws
    keys = [laws[name] == mine[name].iloc[0] for name in ("kernel_class", "metric", "variable")]
    return laws[np.logical_and.reduce(keys)].iloc[0]


def _series(axes: Axes, mine: pd.DataFrame, sweep: Sweep, colour: str, marker: str) -> set[str]:
    """Draw points, law, band, knee and anomalies of one class; return what needs a legend."""
    row, drawn = _law(mine, sweep), set()
    out = left_out_sizes(sweep.anomalies, row.to_dict(), mine)
    kept = mine[~mine["size"].isin(out)]
    size, value = kept["size"].to_numpy(float), kept["value"].to_numpy(float)
    axes.plot(size, value, marker, color=colour, zorder=4, markeredgecolor="white", markeredgewidth=0.5)
    spread = kept[kept["maximum"] > kept["minimum"]]
    if len(spread):
        axes.vlines(spread["size"], spread["minimum"], spread["maximum"], color=colour, linewidth=0.8, zorder=3)
        axes.vlines(
            spread["size"], spread["lower_quartile"], spread["upper_quartile"], color=colour, linewidth=2.4, zorder=3
        )
        drawn.add("spread")
    if row["law"] != "undetermined":
        drawn |= _curve(axes, drawn_fit(mine, out), colour)
    expected = sweep.expected
    expected = expected[(expected["kernel_class"] == row["kernel_class"]) & (expected["metric"] == row["metric"])]
    expected = mine.merge(expected[["expected", *VARIABLES]].drop_duplicates(), on=list(VARIABLES))
    if len(expected):
        axes.plot(expected["size"], expected["expected"], ":", color=colour, linewidth=1.2, zorder=2)
        drawn.add("expected")
    return drawn | _anomalies(axes, mine, sweep, out)


def _curve(axes: Axes, fit: scaling_laws.Fit, colour: str) -> set[str]:
    first, last = fit.domain
    drawn = {"beyond"}
    for low, high, style in ((first, last, "-"), (last, BEYOND * last, (0, (4, 2)))):
        x = np.geomspace(low, high, 120)
        if fit.knee is not None and low < fit.knee < high:
            x = np.sort(np.r_[x, fit.knee])
        y, bottom, top = fit.predict(x, LEVEL)
        axes.plot(x, y, color=colour, linewidth=1.2, linestyle=style, zorder=2.5)
        wide = (top - bottom) > 1e-3 * np.abs(y)
        if wide.any():
            floor = 0.05 * np.abs(y)
            axes.fill_between(
                x, np.maximum(bottom, floor), np.maximum(top, floor), color=colour, alpha=0.16, linewidth=0, zorder=1
            )
            drawn.add("band")
    if fit.knee is not None and first <= fit.knee <= last:
        at = fit.predict(np.array([float(fit.knee)]), LEVEL)[0]
        style = {"fillstyle": "none", "markersize": 8, "markeredgewidth": 1.2, "zorder": 5}
        axes.plot([fit.knee], at, "d", color=colour, **style)
        axes.axvline(fit.knee, color=colour, linewidth=0.6, linestyle=":", zorder=1)
        drawn.add("knee")
    return drawn


def _anomalies(axes: Axes, mine: pd.DataFrame, sweep: Sweep, out: Sequence[int]) -> set[str]:
    drawn = set()
    switched = mine[mine["value"] != mine["value_as_given"]]
    if len(switched):
        axes.plot(switched["size"], switched["value_as_given"], **_WRONG, **_SYMBOLS["unit_switch"][1])
        for size, given, mended in switched[["size", "value_as_given", "value"]].itertuples(index=False):
            style = {"arrowstyle": "-|>", "color": figures.VERMILLION, "linewidth": 0.8, "shrinkA": 5, "shrinkB": 4}
            style |= {"connectionstyle": "arc3,rad=0.14"}
            axes.annotate("", (size, mended), (size, given), arrowprops=style | {"linestyle": (0, (3, 2))})
        drawn.add("unit_switch")
    outlying = mine[mine["size"].isin(list(out))]
    if len(outlying):
        axes.plot(outlying["size"], outlying["value"], **_WRONG, **_SYMBOLS["outlier"][1])
        drawn.add("outlier")
    wrong = sweep.anomalies[sweep.anomalies["kind"] == "contradiction"].dropna(subset=list(VARIABLES))
    wrong = wrong.astype(dict.fromkeys(VARIABLES, "int64"))[["kernel_class", "metric", *VARIABLES]].drop_duplicates()
    contradicted = mine.merge(wrong, on=["kernel_class", "metric", *VARIABLES])
    if len(contradicted):
        axes.plot(contradicted["size"], contradicted["value"], **_WRONG, **_SYMBOLS["contradiction"][1])
        drawn.add("contradiction")
    return drawn


def _thinned(sizes: np.ndarray) -> np.ndarray:
    """Sizes whose labels have room side by side: every one or every second, or else as many as there is room for."""
    place = np.log2(sizes)
    inches = place * _WIDTH / (1.1 * (np.ptp(place) + math.log2(BEYOND)))
    labels = [f"{size:,.0f}" for size in sizes]
    width = np.array([_DIGIT * (len(label) - 0.5 * label.count(",")) for label in labels])

    def fits(one: int, other: int) -> bool:
        return inches[other] - inches[one] >= (width[one] + width[other]) / 2 + 0.6 * _DIGIT

    for step in (1, 2):
        kept = range(0, len(sizes), step)
        if all(fits(*pair) for pair in pairwise(kept)):
            return sizes[list(kept)]
    kept = [0]
    for i in range(1, len(sizes)):
        if fits(kept[-1], i):
            kept.append(i)
    return sizes[kept]


def _value_ticks(axes: Axes) -> None:
    """Ticks of a logarithmic axis that people can read: 1, 2 and 5 on a short one, powers of ten on a long one."""
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    axes.yaxis.set_major_locator(FixedLocator([step * 10.0**power for power in powers for step in steps]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_engineering))
    axes.set_ylim(low, high)


def _engineering(value: float, _: object = None) -> str:
    if value <= 0:
        return "0"
    step = min(max(math.floor(math.log10(value) / 3 + 1e-9), -3), 4)
    return f"{value / 1000.0**step:g}{('n', 'µ', 'm', '', 'k', 'M', 'G', 'T')[step + 3]}"
