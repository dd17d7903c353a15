"""Figures, tables and words of warp scheduling."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.warp_scheduling.distribution import PERCENTILES
from gpuledger.studies.warp_scheduling.reduction import parts

#: Early transitions dark, late ones light, told apart in grey and by readers with any colour vision.
SCALE = mpl.colormaps["viridis"]


def draw(result: CaseResult) -> Figure:
    """Draw the distribution of elapsed times or, where there are clocks of branches, speed and progress of blocks."""
    points, blocks, lines = parts(result.data)
    if blocks.empty:
        return _distribution(result, points)
    tied = "older_end_cycles" in blocks and "transition_cycles" in blocks
    figure = plt.figure(figsize=(7.0, 5.6))
    axes = figure.subplot_mosaic([["C", "C"], ["D", "E"]] if tied else [["C"], ["D"]], height_ratios=[1.15, 1])
    _speeds(axes["C"], blocks, lines)
    _progress(axes["D"], blocks, lines)
    if tied:
        _ties(axes["E"], blocks, result)
    figures.headline(figure, result.finding)
    return figure


def _distribution(result: CaseResult, data: pd.DataFrame) -> Figure:
    fastest, p95, slowest = (result[f"cycles_p{percent}"] for percent in (0, 95, 100))
    spread = max(slowest - fastest, 1)
    measured = "elapsed" in result.summary
    figure, axes = plt.subplots(figsize=(5.4, 3.4))
    axes.axvspan(p95, slowest, color=figures.VERMILLION, alpha=0.13, linewidth=0, label="the last 5 % of the warps")
    labelled = data[((len(data) <= 8) & (not measured)) | data["completed_percent"].isin(PERCENTILES)]
    if measured:
        axes.plot(data["elapsed_cycles"], data["completed_percent"], color=figures.BLUE, label="every warp")
        axes.plot(labelled["elapsed_cycles"], labelled["completed_percent"], "o", color=figures.BLUE, zorder=4)
    else:
        kind = result.provenance["kind"]
        points = data["elapsed_cycles"], data["completed_percent"]
        axes.plot(*points, "--", color=figures.BLUE, linewidth=1.1, label="interpolated")
        axes.plot(*points, "o", color=figures.BLUE, label=f"{kind} points", zorder=4)
    for percent, cycles in labelled[["completed_percent", "elapsed_cycles"]].itertuples(index=False):
        late = cycles > fastest + 0.6 * spread
        offset, side = ((-6, 4 if percent == 100 else 1), "right") if late else ((7, -2), "left")
        note = axes.annotate(
            f"{percent:g} %: {cycles:,.0f}", (cycles, percent), offset, textcoords="offset points", fontsize=7.2
        )
        note.set(ha=side, va="bottom" if late else "top", path_effects=[withStroke(linewidth=2.5, foreground="white")])
    tail = {"color": figures.VERMILLION, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (slowest, -19), (fastest, -19), arrowprops={"arrowstyle": "<->", **tail})
    words = f"tail: {slowest - fastest:,} cycles, {100 * result['tail_ratio']:.2f} % of the fastest"
    style = {"ha": "center", "va": "bottom", "fontweight": "bold", "color": figures.VERMILLION}
    axes.text((fastest + slowest) / 2, -17, words, **style)
    axes.set(xlim=(fastest - 0.08 * spread, slowest + 0.08 * spread), ylim=(-25, 112), yticks=range(0, 101, 25))
    axes.set(xlabel="elapsed time of a warp (cycles; the axis does not start at 0)", ylabel="warps finished (%)")
    axes.spines["left"].set_bounds(0, 100)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.grid(axis="y")
    figures.headline(figure, result.finding, legend=axes, columns=3)
    return figure


def _colours(blocks: pd.DataFrame) -> dict[int, tuple | str]:
    """Colour of every shown block: by the time of its transition, grey where it has none."""
    shown = blocks[blocks["shown"].astype(bool)]
    if "transition_cycles" not in shown:
        return dict.fromkeys(shown["block"], figures.GREY)
    rank = shown["transition_cycles"].astype(float).rank(method="first")
    most = max(rank.max() - 1, 1)
    return {
        block: figures.GREY if np.isnan(place) else SCALE(0.85 * (place - 1) / most)
        for block, place in zip(shown["block"], rank, strict=True)
    }


def _moments(blocks: pd.DataFrame) -> dict[int, tuple[float, float, float]]:
    """Return, for every shown block, when its older one ended, when it became faster, and the speed half way up."""
    columns = ("older_end_cycles", "transition_cycles", "slow_tflops", "fast_tflops")
    shown = blocks[blocks["shown"].astype(bool)].set_index("block").reindex(columns=columns).astype(float)
    return {row.Index: (*row[1:3], (row[3] + row[4]) / 2) for row in shown.itertuples()}


def _speeds(axes: Axes, blocks: pd.DataFrame, lines: pd.DataFrame) -> None:
    colours, moments = _colours(blocks), _moments(blocks)
    top = lines["speed_tflops"].max()
    ended = {"marker": "v", "markersize": 6, "linestyle": "none", "clip_on": False, "zorder": 5}
    rises = {"marker": "o", "markersize": 6, "linestyle": "none", "zorder": 6, "markeredgecolor": "white"}
    labels = {"ended": "the older block on its SM ends", "rises": "transition found"}
    for block, own in lines.groupby("block", sort=False):
        colour, (older, transition, speed) = colours[block], moments[block]
        axes.plot(own["elapsed_cycles"], own["speed_tflops"], color=colour, linewidth=1.1, alpha=0.95)
        if not np.isnan(older + transition):
            axes.plot([older], [1.03 * top], color=colour, label=labels.pop("ended", None), **ended)
            axes.plot([older, older], [0, 1.02 * top], color=colour, linewidth=0.7, linestyle=":")
        if not np.isnan(transition):
            axes.plot([transition], [speed], color=colour, label=labels.pop("rises", None), **rises)
    low, high = lines["speed_tflops"].min(), top
    axes.set_ylim(max(0, low - 0.12 * (high - low)), high + 0.1 * max(high - low, 0.01 * high))
    axes.set_xlim(0, None)
    axes.set(
        xlabel="cycles since the block's start", ylabel="speed of a block (TFLOP/s)\n(the axis does not start at 0)"
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(f"C  Speed of {len(colours)} of {len(blocks):,} blocks, iteration by iteration", loc="left")
    if len(labels) < 2:
        legend = axes.legend(loc="lower right", ncols=2, handletextpad=0.2, borderaxespad=0.3)
        for handle in legend.legend_handles:
            handle.set_color(figures.BLACK)


def _progress(axes: Axes, blocks: pd.DataFrame, lines: pd.DataFrame) -> None:
    colours, moments = _colours(blocks), _moments(blocks)
    for block, own in lines.groupby("block", sort=False):
        axes.plot(own["elapsed_cycles"], own["progress_percent"], color=colours[block], linewidth=1.2)
        transition = moments[block][1]
        if not np.isnan(transition):
            at = np.interp(transition, own["elapsed_cycles"].astype(float), own["progress_percent"])
            axes.plot([transition], [at], "o", color=colours[block], markeredgecolor="white", markersize=5, zorder=5)
    axes.set(xlim=(0, None), ylim=(0, 100), yticks=range(0, 101, 25))
    axes.set(xlabel="cycles since the block's start", ylabel="iterations done (%)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=4)
    axes.set_title("D  Progress", loc="left")


def _ties(axes: Axes, blocks: pd.DataFrame, result: CaseResult) -> None:
    up = blocks[blocks["transition_cycles"].notna() & blocks["older_end_cycles"].notna()]
    ended, faster = (up[column].astype(float) for column in ("older_end_cycles", "transition_cycles"))
    most = 1.05 * max(ended.max(), faster.max(), 1)
    axes.plot([0, most], [0, most], color=figures.GREY, linewidth=0.8, zorder=1)
    axes.plot(ended, faster, "o", color=figures.VERMILLION, markersize=3.2, alpha=0.6, markeredgewidth=0, zorder=2)
    axes.set(xlim=(0, most), ylim=(0, most), xlabel="older block ends (cycles)", ylabel="speed rises (cycles)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.locator_params(nbins=4)
    words = f"{result['tied_percent']:.0f} % on the line\n(by chance {result['tied_by_chance_percent']:.0f} %)"
    axes.text(0.97, 0.05, words, transform=axes.transAxes, ha="right", va="bottom", fontsize=7.5)
    axes.set_title(f"E  All {len(up):,} transitions", loc="left")


def points_table(data: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return the points with headers and formats for people; of a measured distribution, those at ``PERCENTILES``."""
    points = parts(data)[0]
    if len(points) > 100:
        points = points[points["completed_percent"].isin(PERCENTILES)]
    headers = {
        "completed_percent": "warps finished (%)",
        "elapsed_cycles": "elapsed time (cycles)",
        "over_fastest_ratio": "over the fastest (%)",
    }
    formats = {"completed_percent": "{:g}", "over_fastest_ratio": lambda ratio: f"{100 * ratio:+.2f}"}
    return points, headers, formats


def origin(result: CaseResult) -> str:
    """Say what the numbers of this case come from."""
    if result.provenance["kind"] == "simulated":
        return (
            "**These numbers are simulated, not measured.** They show that the method finds what was put in. Where "
            "they come near a published number, the model was given parameters that lead there: that is no evidence."
        )
    if "elapsed" not in result.summary:
        return (
            "Only points of the distribution are known here. The dashed line joins them; between them the curve runs "
            "in its own way. In panel B of the published Fig. 14, for one, it stays near 10 % until shortly before its "
            "25 % point, below the line."
        )
    return f"The numbers are {result.provenance['label']}: {result.provenance['source']}."


def in_words(result: CaseResult) -> str:
    """Say what was found in this case."""
    p0, p50, p100 = (f"{result[f'cycles_p{percent}']:,.0f}" for percent in (0, 50, 100))
    tail = f"{100 * result['tail_ratio']:.2f} %"
    tail = f"Warps took from {p0} (fastest) over {p50} (median) to {p100} cycles (slowest): a tail of {tail}."
    if "block_speed_median_tflops" not in result.summary:
        return tail
    half = f"{result['block_speed_median_tflops']:.3g} TFLOP/s"
    speed = f"Of {result['blocks_followed']:,} blocks, half ran at {half} or more."
    if not result["sped_up_blocks"]:
        return f"{speed} None became faster on its way. {tail}"
    speed += (
        f" {result['sped_up_blocks']:,} became faster once, from {result['block_speed_slow_tflops']:.3g} to "
        f"{result['block_speed_fast_tflops']:.3g} TFLOP/s (medians)."
    )
    if "tied_blocks" in result.summary:
        speed += (
            f" In {result['tied_blocks']:,} of them the last older block on the SM ended within a few iterations of "
            f"it; by chance that would be so in {result['tied_by_chance_percent']:.1f} %. Of the blocks without an "
            f"older one beside them, {result['sped_up_without_older']:,} became faster."
        )
    return f"{speed} {tail}"
