"""Memory access timelines of several kernels beside one another, on one axis of clocks."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gpuledger.ledger import figures
from gpuledger.ledger.across import Chosen
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.dmat.figures import depth_handles, draw_grid, tensor_colors

#: The most timelines in one figure.
MOST = 4


def choose(results: Sequence[CaseResult]) -> Chosen:
    """Return the timelines that are drawn: measured ones first, then simulated ones."""
    chosen = sorted(results, key=lambda result: result.provenance["kind"] == "simulated")[:MOST]
    return Chosen(chosen, len(chosen), len(results), "timelines")


def _name(result: CaseResult) -> str:
    return str(result.get("kernel", result.provenance["case"]))


def draw(results: Chosen) -> Figure:
    """Draw timelines, their tensors in the same colours, with one axis and one legend; results of :func:`choose`."""
    tensors = list(dict.fromkeys(tensor for result in results for tensor in result.data["tensor"].unique()))
    colors = tensor_colors(tensors)
    figure, grid = plt.subplots(1, len(results), figsize=(7.0, 2.9), sharex=True, squeeze=False)
    for axes, result in zip(grid[0], results, strict=True):
        draw_grid(axes, result, colors)
        axes.set_title(
            _name(result).replace(", ", ",\n").replace("memory-efficient ", "memory-efficient\n"), fontsize=8
        )
        axes.set(yticks=[], xlabel="thousand cycles")
        axes.axvline(float(result["max_clock"]), color=figures.BLACK, linewidth=0.7, linestyle=":")
    most = max(float(result["max_clock"]) for result in results)
    step = next(step for power in range(1, 19) for step in (10**power, 2 * 10**power, 5 * 10**power) if most < 4 * step)
    ticks = range(0, int(most) + 1, step)
    grid[0, 0].set_xlim(0, 1.02 * most)
    grid[0, 0].set_xticks(ticks, [f"{tick / 1000:g}" for tick in ticks])
    grid[0, 0].set_ylabel("pages by address")
    tensors = [Patch(color=color, linewidth=0, label=tensor) for tensor, color in colors.items()]
    last = Line2D([], [], color=figures.BLACK, linestyle=":", linewidth=0.9, label="last access")
    keys = [*tensors, last, *depth_handles()]
    figure.legend(handles=keys, loc="outside lower left", ncols=6, handlelength=1, fontsize=6.8, columnspacing=1)
    lasts = {result["max_clock"]: result for result in results}
    fastest, slowest = lasts[min(lasts)], lasts[max(lasts)]
    later = f"{max(lasts) / max(min(lasts), 1):,.1f} times as late in a thread as that of {_name(fastest)}"
    words = f"the last access of {_name(slowest)} comes " + (
        f"after {max(lasts):,} cycles" if len(lasts) == 1 else later
    )
    if any(result.provenance["kind"] == "simulated" for result in (fastest, slowest)):
        words = f"Simulated: {words}"
    figures.headline(figure, words[0].upper() + words[1:] + results.words)
    return figure
