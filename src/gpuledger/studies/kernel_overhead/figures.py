"""Panels: one column of the table by operator, and labels for axes of ratios."""

import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, plain

COLOURS = (BLUE, GREEN, ORANGE, SKY)
MARKERS = "osD^vP"
#: Classes of probes in the order of the legend.
CLASSES = ("lightweight", "iteration", "dmat")


def draw_operators(axes: Axes, data: pd.DataFrame, column: str, hollow: str | None = None) -> None:
    """Draw a column of the data: one line per operator, one marker per probe.

    Parameters
    ----------
    column : str
        What is drawn along x.
    hollow : str, optional
        A column of flags: markers are hollow where it is true.
    """
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


def label_ratios(axes: Axes) -> None:
    """Label 1, 2 and 5 of every decade on a logarithmic x axis, or every third of them if they are many."""
    low, high = axes.get_xlim()
    ticks = [tick for power in range(-3, 7) for tick in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    ticks = ticks if len(ticks) < 8 else ticks[::3]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
