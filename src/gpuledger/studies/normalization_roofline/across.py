"""Normalization kernels of every dataset: the share of the data sheet's bandwidth over size."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.normalization_roofline.liger import LIGER, TORCH_LAYER

#: Panels: title, the kernels in them, and their colour.
PANELS = {
    "optimised kernels": (("one_pass", LIGER), figures.GREEN),
    "PyTorch's kernels": (("torch", TORCH_LAYER), figures.BLUE),
}
MARKERS = "osD^vP"


def choose(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the cases with a data sheet, and with times of such kernels after the L2 was emptied."""
    every = [name for names, _ in PANELS.values() for name in names]
    return [
        result
        for result in results
        if "data_sheet_bandwidth" in result.summary
        and (result.data["kernel"].isin(every) & (result.data["cache"] == "cold")).any()
    ]


def draw(results: Sequence[CaseResult]) -> Figure:
    """Draw optimised kernels beside PyTorch's: a line per case, dashed and hollow where the times are simulated."""
    figure, grid = plt.subplots(1, len(PANELS), figsize=(7.0, 3.1), sharey=True)
    largest = {}
    for axes, (title, (kernels, color)) in zip(grid, PANELS.items(), strict=True):
        for place, result in enumerate(results):
            largest[title, place] = draw_shares_of(axes, result, kernels, color, MARKERS[place % len(MARKERS)])
        axes.axhline(100, color=figures.BLACK, linewidth=0.9)
        axes.set(xscale="log", ylim=(0, 112), xlabel="input and output (MB, log scale)", title=title)
        axes.grid(axis="y")
    grid[0].set_ylabel("% of data-sheet bandwidth")
    legend = figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=7)
    for handle in legend.legend_handles:
        # Markers are cases, in either panel.
        handle.set(color=figures.GREY, markeredgecolor=figures.GREY)
    simulated = [result.provenance["kind"] == "simulated" for result in results]
    reach = []
    for title in PANELS:
        # What was simulated counts only where nothing was measured.
        places = [place for place in range(len(results)) if all(simulated) or not simulated[place]]
        found = [f"{share:.0f}" for share in sorted(largest[title, place] or 0 for place in places) if share]
        reach += [f"{title} reach {' to '.join(dict.fromkeys((found[0], found[-1])))} %"] if found else []
    words = f"At the largest sizes{' simulated' * all(simulated)} {', '.join(reach)} of the bandwidth"
    figures.headline(figure, words)
    return figure


def draw_shares_of(axes: Axes, result: CaseResult, kernels: Sequence[str], color: str, marker: str) -> float | None:
    """Draw one case's shares over size, with a cold L2; return the share at the largest size, None if it has none."""
    rows = result.data
    rows = rows[rows["kernel"].isin(kernels) & (rows["cache"] == "cold")].sort_values("moved_bytes", kind="stable")
    if rows.empty:
        return None
    share = 100 * rows["bandwidth_byte_per_s"] / float(result["data_sheet_bandwidth"])
    simulated = result.provenance["kind"] == "simulated"
    label = f"{result['gpu']}, {result.provenance['case']} ({result.provenance['kind']})"
    look = {"color": color, "marker": marker, "markersize": 4.5, "linewidth": 1}
    look |= {"linestyle": "--", "markerfacecolor": "white"} if simulated else {}
    # Several shapes may move as many bytes.
    medians = share.groupby(rows["moved_bytes"].to_numpy()).median()
    axes.plot(medians.index / 1e6, medians, label=label, **look)
    return float(medians.iloc[-1])
