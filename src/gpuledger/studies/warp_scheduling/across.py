"""When warps finish, of all cases: exclusive and shared blocks of each kernel in one panel."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuledger.ledger import figures
from gpuledger.ledger.across import Chosen
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.warp_scheduling.reduction import parts

COLOURS = {"exclusive": figures.BLUE, "shared": figures.ORANGE}
#: The most kernels in one figure.
MOST = 4


def choose(results: Sequence[CaseResult]) -> Chosen:
    """Return the cases of the kernels that are drawn, first those with both kinds of blocks."""
    cases = _cases(results)
    kernels = sorted(_kernels(cases), key=lambda kernel: (not _compared(cases, kernel), kernel))
    chosen = [result for result in results if _kernel(result) in kernels[:MOST]]
    return Chosen(chosen, len(kernels[:MOST]), len(kernels), "kernels")


def draw(results: Chosen) -> Figure:
    """Draw the distributions against the fastest warp: traces as lines, points of a table as markers.

    Parameters
    ----------
    results : Chosen
        Of :func:`choose`; one of each kernel, kind of blocks and provenance is drawn.
    """
    cases = _cases(results)
    kernels = _kernels(cases)
    rows, columns = -(-len(kernels) // 2), min(len(kernels), 2)
    figure, grid = plt.subplots(rows, columns, figsize=(7.0, 0.5 + 2.4 * rows), sharey=True, squeeze=False)
    for unused in grid.flat[len(kernels) :]:
        unused.remove()
    for axes, kernel in zip(grid.flat, kernels, strict=False):
        for (of, blocks, _), result in sorted(cases.items(), key=lambda case: case[0]):
            if of == kernel:
                draw_against_fastest(axes, result, COLOURS.get(blocks, figures.GREY))
        axes.set_title(figures.plain(kernel))
        axes.set(xlim=(0, None), ylim=(0, 104), xlabel="behind the fastest warp (%)")
        axes.grid(axis="both", linewidth=0.5)
        _name_curves(axes, {key: result for key, result in cases.items() if key[0] == kernel})
    for axes in grid[:, 0]:
        axes.set_ylabel("warps finished (%)")
    marks = {"linestyle": "none", "marker": "o", "markersize": 5, "color": "#666666", "markeredgecolor": "white"}
    last = grid.flat[len(kernels) - 1]
    last.plot([], [], color="#666666", label="every warp of a trace")
    last.plot([], [], label="points of a table", **marks)
    last.legend(loc="lower right")
    figures.headline(figure, _finding(cases, kernels) + results.words)
    return figure


def _kernel(result: CaseResult) -> str:
    return result.get("kernel", result.provenance["case"])


def _cases(results: Sequence[CaseResult]) -> dict[tuple[str, str, str], CaseResult]:
    """Return one case of each kernel, kind of blocks and provenance: the first."""
    return {
        (_kernel(result), result.get("blocks", "all"), result.provenance["kind"]): result
        for result in reversed(results)
    }


def _kernels(cases: Mapping[tuple[str, str, str], CaseResult]) -> list[str]:
    return sorted({kernel for kernel, _, _ in cases})


def draw_against_fastest(axes: Axes, result: CaseResult, color: str) -> None:
    """Draw how far behind the fastest warp the others finish, as a line, or as markers where only points are known."""
    points = parts(result.data)[0]
    behind, finished = 100 * points["over_fastest_ratio"], points["completed_percent"]
    if "elapsed" not in result.summary:
        axes.plot(behind, finished, "o", color=color, markeredgecolor="white", markersize=5.5, zorder=5, clip_on=False)
    else:
        axes.plot(behind, finished, color=color, linewidth=1.4, zorder=3)


def _compared(cases: Mapping[tuple[str, str, str], CaseResult], kernel: str) -> bool:
    return {"exclusive", "shared"} <= {blocks for of, blocks, _ in cases if of == kernel}


def _name_curves(axes: Axes, cases: Mapping[tuple[str, str, str], CaseResult]) -> None:
    """Write beside the curves what they are, with their tails by provenance."""
    style = {"transform": axes.transAxes, "va": "center", "ha": "right", "fontsize": 7.2, "fontweight": "bold"}
    for place, blocks in enumerate(sorted({blocks for _, blocks, _ in cases})):
        tails = {kind: 100 * result["tail_ratio"] for (_, of, kind), result in cases.items() if of == blocks}
        words = [f"{blocks} blocks, tail", *(f"{tail:.1f} % {kind}" for kind, tail in sorted(tails.items()))]
        axes.text(0.98, 0.72 - 0.24 * place, "\n".join(words), color=COLOURS.get(blocks), **style)


def _finding(cases: Mapping[tuple[str, str, str], CaseResult], kernels: Sequence[str]) -> str:
    """Return the tails of shared and exclusive blocks of each kernel, by published numbers where there are some."""
    steps = []
    for kernel in kernels:
        # Published ones come last, and so replace others.
        own = sorted(cases.items(), key=lambda case: case[0][2] == "published")
        tails = {blocks: 100 * result["tail_ratio"] for (of, blocks, _), result in own if of == kernel}
        if _compared(cases, kernel):
            steps.append(f"{tails['shared']:.0f} instead of {tails['exclusive']:.0f} % ({kernel})")
    if not steps:
        return "How far warps finish behind the fastest"
    return f"Warps of blocks that share an SM have a tail of {' and of '.join(steps)}"
