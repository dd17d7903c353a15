"""Panels: one column of the table by operator, both kinds of probes, and labels for axes of ratios."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gpuledger.ledger.case_result import brief
from gpuledger.ledger.figures import BLACK, BLUE, GREEN, ORANGE, PALE, PURPLE, SKY, plain
from gpuledger.studies.kernel_overhead.compared import UNITS
from gpuledger.studies.kernel_overhead.tables import operator_labels

COLOURS = (BLUE, GREEN, ORANGE, SKY)
MARKERS = "osD^vP"
#: Classes of probes in the order of the legend.
CLASSES = ("lightweight", "iteration", "dmat")
#: Rows of both kinds of probes that a panel shows; tables have all of them.
MOST_COMPARED = 24


def lay_out(data: pd.DataFrame, compared: pd.DataFrame) -> tuple[Figure, Axes, Axes]:
    """Make a figure for costs by operator; below them, both kinds of probes are drawn if they are compared.

    Returns
    -------
    figure : Figure
    time, registers : Axes
        Empty panels with a common y axis.
    """
    height = 0.27 * operator_labels(data).nunique() + 1.4
    if compared.empty:
        figure, (time, registers) = plt.subplots(1, 2, sharey=True, figsize=(7.0, height), width_ratios=[1.5, 1])
        return figure, time, registers
    below = 0.2 * min(len(compared), MOST_COMPARED) + 1.1
    ratios = {"width_ratios": [1.5, 1], "height_ratios": [height, below]}
    figure, (upper, lower) = plt.subplots(2, 2, sharey="row", figsize=(7.0, height + below), **ratios)
    draw_compared(*lower, compared)
    return figure, *upper


def draw_operators(axes: Axes, data: pd.DataFrame, column: str, hollow: str | None = None) -> None:
    """Draw a column of the data: one line per operator, one marker per probe.

    Parameters
    ----------
    column : str
        What is drawn along x.
    hollow : str, optional
        A column of flags: markers are hollow where it is true.
    """
    data = data.assign(operator=operator_labels(data))
    operators = list(dict.fromkeys(data["operator"]))[::-1]
    classes = dict(zip(data["probe"], data["probe_class"], strict=True))
    probes, named = sorted(classes, key=lambda probe: CLASSES.index(classes[probe])), set()
    for position, probe in enumerate(probes):
        rows = data[data["probe"] == probe]
        shift = 0.54 * (0.5 - position / max(1, len(probes) - 1))
        rows = rows.assign(y=[operators.index(name) + shift for name in rows["operator"]])
        kind = classes[probe]
        colour = PURPLE if kind == "dmat" else COLOURS[position % len(COLOURS)]
        # The first probe of its class names the class.
        called = {"dmat": "DMAT", "iteration": "per iteration"}.get(kind, kind)
        label = probe if kind in named or probe == kind else f"{called}: {probe}"
        named.add(kind)
        style = {"s": 24, "marker": MARKERS[position % len(MARKERS)], "zorder": 3}
        filled = ~rows[hollow] if hollow else slice(None)
        axes.scatter(rows[filled][column], rows[filled]["y"], label=plain(label), color=colour, **style)
        if hollow:
            axes.scatter(rows[~filled][column], rows[~filled]["y"], facecolor="none", edgecolor=colour, **style)
    axes.grid(axis="x")
    for line in range(len(operators) - 1):
        axes.axhline(line + 0.5, color="#eeeeee", linewidth=0.7, zorder=0)
    axes.set_yticks(range(len(operators)), [plain(name) for name in operators])
    axes.set_ylim(-0.5, len(operators) - 0.5)
    axes.tick_params(axis="y", length=0)


def draw_compared(ratios: Axes, registers: Axes, compared: pd.DataFrame) -> None:
    """Draw binary probes against source-level ones: ratios of records and values, and both additional registers.

    Parameters
    ----------
    ratios, registers : Axes
        Two panels with a common y axis, which is labelled here.
    compared : DataFrame
        The second part of the data; see :func:`gpuledger.studies.kernel_overhead.compared.parts`.
    """
    rows = compared.head(MOST_COMPARED)
    y = np.arange(len(rows))[::-1]
    style = {"s": 26, "zorder": 3, "linewidth": 1.1}
    for name, label, look in (
        ("records_ratio", "records", {"marker": "o", "facecolor": "none", "edgecolor": BLACK, "s": 60}),
        ("value_ratio", "value", {"marker": "D", "color": BLUE, "s": 16}),
    ):
        shown = np.isfinite(rows[name]) & (rows[name] > 0)
        ratios.scatter(rows[name][shown], y[shown], label=label, **(style | look))
    ratios.axvline(1, color=BLACK, linewidth=0.9)
    ratios.set(xscale="log", xlabel="binary / source-level probe (×)", ylim=(-0.6, len(rows) - 0.4))
    drawn = rows[["records_ratio", "value_ratio"]].to_numpy()
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    ratios.set_xlim(0.8 * drawn.min(initial=1), max(3.0, 1.25 * drawn.max(initial=1)))
    label_ratios(ratios)
    ratios.set_yticks(y, [plain(f"{row.workload} {row.probe}") for row in rows.itertuples()])
    middle = np.sqrt(np.prod(ratios.get_xlim()))
    for row, at in zip(rows.itertuples(), y, strict=True):
        # Right of both marks, or left of the value's if that is far to the right.
        x = row.value_ratio if np.isfinite(row.value_ratio) and row.value_ratio > 0 else 1.0
        x = x if x > middle or not 0 < row.records_ratio <= middle else max(x, row.records_ratio)
        side = {"xytext": (7, 0), "ha": "left"} if x <= middle else {"xytext": (-7, 0), "ha": "right"}
        ratios.annotate(_values(row), (x, at), textcoords="offset points", va="center", fontsize=7, **side)
    for source, binary, at in zip(rows["registers_source"], rows["registers_binary"], y, strict=True):
        registers.plot([source, binary], [at, at], color=PALE, linewidth=2, zorder=1)
    marks = {"s": 34, "zorder": 3, "marker": "s"}
    registers.scatter(rows["registers_source"], y, facecolor="none", edgecolor=BLACK, label="source-level", **marks)
    registers.scatter(rows["registers_binary"], y, color=BLUE, label="binary", **(marks | {"s": 14}))
    registers.axvline(0, color=BLACK, linewidth=0.9)
    registers.set_xlabel("extra registers per thread")
    registers.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for axes in (ratios, registers):
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, handletextpad=0.2, columnspacing=1, borderpad=0.2)


def _values(row: tuple) -> str:
    """Return the values of a row of both kinds of probes: ``202 → 1,280 cycles``."""
    source, binary = brief(row.value_source, 5), brief(row.value_binary, 5)
    unit = f"{UNITS[row.probe]}s"
    return f"{source} {unit}" if source == binary else f"{source} → {binary} {unit}"


def label_ratios(axes: Axes) -> None:
    """Label 1, 2 and 5 of every decade on a logarithmic x axis, or every third of them if they are many."""
    low, high = axes.get_xlim()
    ticks = [tick for power in range(-3, 7) for tick in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    ticks = ticks if len(ticks) < 8 else ticks[::3]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
