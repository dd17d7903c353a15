"""A kernel before and after its blocks were made persistent, on one time axis."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.block_scheduling.figures import RUNNING, UNUSED, WAITING, draw_slots
from gpuledger.studies.block_scheduling.reduction import parts

#: A case and its variant with persistent blocks have this ending between them.
PERSISTENT = "_persistent"
#: Cycles of one SM that the detail shows.
DETAIL = 6000


def choose(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the first case that has a persistent variant, and that; both need times."""
    named = {
        (result.provenance["dataset"], result.provenance["case"]): result
        for result in results
        if "kernel_time" in result.summary
    }
    for (dataset, case), before in named.items():
        if (after := named.get((dataset, case + PERSISTENT))) is not None:
            return [before, after]
    return []


def draw(results: Sequence[CaseResult], published: Mapping[str, float]) -> Figure:
    """Draw where both kernels' time goes, beside the published times, and the first cycles of an SM.

    Parameters
    ----------
    published : mapping
        By quantity; ``original_time`` and ``persistent_time`` in ns.
    """
    pair = list(results)
    figure, grid = plt.subplots(3, 1, figsize=(7.0, 4.3), height_ratios=[1.5, 1.6, 0.35])
    times = [published.get("original_time"), published.get("persistent_time")]
    draw_times(grid[0], pair, times)
    for axes, result, name in zip(grid[1:], pair, ("before", "after"), strict=True):
        _, _, blocks = parts(result.data)
        draw_slots(axes, blocks, parts(result.data)[0])
        axes.set(xlim=(0, DETAIL), xlabel="", ylabel=name)
    grid[1].set_title(f"One SM, its first {DETAIL:,} cycles: {pair[0]['resident_blocks_max']} slots before, 1 after")
    grid[1].tick_params(labelbottom=False)
    grid[2].set_xlabel("cycles since the first block on the SM")
    saved = 100 * (1 - pair[1]["kernel_time"] / pair[0]["kernel_time"])
    here = "in the simulation" if pair[0].provenance["kind"] == "simulated" else "as recorded"
    words = f"Persistent blocks save {saved:.0f} % of the time {here}"
    if all(times):
        words = (
            f"Persistent blocks save {100 * (1 - times[1] / times[0]):.0f} % of the time as published "
            f"({times[0]:,.0f} to {times[1]:,.0f} ns), {saved:.0f} % {here}"
        )
    figures.headline(figure, words)
    return figure


def draw_times(axes: Axes, pair: Sequence[CaseResult], published: Sequence[float | None]) -> None:
    """Draw a bar per kernel, its slots' time divided by what they do, with the published time as a mark.

    Parameters
    ----------
    pair : sequence of CaseResult
        Before and after.
    published : sequence of float or None
        Times in ns.
    """
    labels = {RUNNING: "block running", WAITING: "slot waits for a block", UNUSED: "start, end and launch"}
    for row, (result, time) in enumerate(zip(pair, published, strict=True)):
        slots = result["resident_blocks_max"] * result["kernel_cycles"]
        whole = result["kernel_time"] / 1e3
        running, waiting = (result[f"{part}_cycles_per_sm"] / slots * whole for part in ("running", "scheduling"))
        left = 0.0
        for value, color in ((running, RUNNING), (waiting, WAITING), (whole - running - waiting, UNUSED)):
            axes.barh(row, value, left=left, height=0.52, color=color, linewidth=0, label=labels.pop(color, None))
            left += value
        style = {"va": "center", "fontsize": 7.5}
        axes.text(0.3, row, f"{1e3 * whole:,.0f} ns, {result.provenance['kind']}", color="white", **style)
        if time:
            axes.plot([time / 1e3] * 2, [row - 0.36, row + 0.36], color=figures.BLACK, linewidth=2)
            beside = {"xytext": (5, 0), "textcoords": "offset points"}
            axes.annotate(f"{time:,.0f} ns\npublished", (time / 1e3, row), **beside, **style)
    longest = max([result["kernel_time"] for result in pair] + [time for time in published if time]) / 1e3
    axes.set(yticks=[0, 1], yticklabels=["before:\na block per tile", "after:\npersistent blocks"], ylim=(1.5, -0.5))
    axes.set(xlim=(0, 1.14 * longest), xlabel="time (µs), split as the slots spend it")
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2, handlelength=1.2)
