"""Panels of warp scheduling; the notebook puts them together."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.warp_scheduling.distribution import PERCENTILES

CYCLES = "{x:,.0f}"


def draw_distribution(
    axes: Axes,
    points: pd.DataFrame,
    result: CaseResult,
    color: str = figures.BLUE,
    tail_color: str = figures.VERMILLION,
) -> None:
    """Draw the distribution of the warps' elapsed times, with the tail marked.

    Parameters
    ----------
    points : DataFrame
        See :func:`gpuledger.studies.warp_scheduling.parts`. Of a trace they are drawn as a line, published ones as
        markers.
    """
    fastest, p95, slowest = (result[f"cycles_p{percent}"] for percent in (0, 95, 100))
    spread = max(slowest - fastest, 1)
    measured = "elapsed" in result.summary
    axes.axvspan(p95, slowest, color=tail_color, alpha=0.13, linewidth=0, label="the last 5 % of the warps")
    labelled = points[((len(points) <= 8) & (not measured)) | points["completed_percent"].isin(PERCENTILES)]
    curve = points["elapsed_cycles"], points["completed_percent"]
    if measured:
        axes.plot(*curve, color=color, label="every warp")
        axes.plot(labelled["elapsed_cycles"], labelled["completed_percent"], "o", color=color, zorder=4)
    else:
        axes.plot(*curve, "--", color=color, linewidth=1.1, label="interpolated")
        axes.plot(*curve, "o", color=color, label=f"{result.provenance['kind']} points", zorder=4)
    for percent, cycles in labelled[["completed_percent", "elapsed_cycles"]].itertuples(index=False):
        late = cycles > fastest + 0.6 * spread
        offset, side = ((-6, 4 if percent == 100 else 1), "right") if late else ((7, -2), "left")
        note = axes.annotate(
            f"{percent:g} %: {cycles:,.0f}", (cycles, percent), offset, textcoords="offset points", fontsize=7.2
        )
        note.set(ha=side, va="bottom" if late else "top", path_effects=[withStroke(linewidth=2.5, foreground="white")])
    arrow = {"arrowstyle": "<->", "color": tail_color, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (slowest, -19), (fastest, -19), arrowprops=arrow)
    words = f"tail: {100 * result['tail_ratio']:.2f} % of the fastest"
    if not figures.for_columns:
        words = words.replace(":", f": {slowest - fastest:,} cycles,")
    style = {"ha": "center", "va": "bottom", "fontweight": "bold", "color": tail_color}
    axes.text((fastest + slowest) / 2, -17, words, **style)
    axes.set(xlim=(fastest - 0.08 * spread, slowest + 0.08 * spread), ylim=(-25, 112), yticks=range(0, 101, 25))
    axes.set(xlabel="elapsed time of a warp (cycles; the axis does not start at 0)", ylabel="warps finished (%)")
    axes.spines["left"].set_bounds(0, 100)
    axes.xaxis.set_major_formatter(CYCLES)
    axes.locator_params(axis="x", nbins=6, integer=True, min_n_ticks=1)
    axes.grid(axis="y")


def block_colors(blocks: pd.DataFrame, scale: Colormap | str = "viridis") -> dict[int, tuple | str]:
    """Choose the colour of every shown block, by its number; blocks without a transition are grey.

    Parameters
    ----------
    blocks : DataFrame
        See :func:`gpuledger.studies.warp_scheduling.parts`.
    scale : colormap
        Early transitions get its beginning, late ones its end, in order of time.
    """
    shown = blocks[blocks["shown"].astype(bool)]
    if "transition_cycles" not in shown:
        return dict.fromkeys(shown["block"], figures.GREY)
    rank = shown["transition_cycles"].astype(float).rank(method="first")
    most, colors = max(rank.max() - 1, 1), mpl.colormaps.get_cmap(scale)
    return {
        block: figures.GREY if np.isnan(place) else colors(0.85 * (place - 1) / most)
        for block, place in zip(shown["block"], rank, strict=True)
    }


def _moments(blocks: pd.DataFrame) -> dict[int, tuple[float, float, float]]:
    """Return, for every shown block, the end of its older block, its transition, and the speed half way up."""
    columns = ("older_end_cycles", "transition_cycles", "slow_tflops", "fast_tflops")
    shown = blocks[blocks["shown"].astype(bool)].set_index("block").reindex(columns=columns).astype(float)
    return {row.Index: (*row[1:3], (row[3] + row[4]) / 2) for row in shown.itertuples()}


def draw_speeds(axes: Axes, blocks: pd.DataFrame, lines: pd.DataFrame, colors: Mapping[int, tuple | str]) -> None:
    """Draw the speed of the shown blocks, iteration by iteration.

    Parameters
    ----------
    blocks, lines : DataFrame
        See :func:`gpuledger.studies.warp_scheduling.parts`.
    colors : mapping
        By block; see :func:`block_colors`.
    """
    moments = _moments(blocks)
    low, top = lines["speed_tflops"].min(), lines["speed_tflops"].max()
    ended = {"marker": "v", "markersize": 6, "linestyle": "none", "clip_on": False, "zorder": 5}
    rises = {"marker": "o", "markersize": 6, "linestyle": "none", "zorder": 6, "markeredgecolor": "white"}
    labels = {"ended": "the older block on its SM ends", "rises": "transition found"}
    for block, own in lines.groupby("block", sort=False):
        color, (older, transition, speed) = colors[block], moments[block]
        axes.plot(own["elapsed_cycles"], own["speed_tflops"], color=color, linewidth=1.1, alpha=0.95)
        if not np.isnan(older + transition):
            axes.plot([older], [1.03 * top], color=color, label=labels.pop("ended", None), **ended)
            axes.plot([older, older], [0, 1.02 * top], color=color, linewidth=0.7, linestyle=":")
        if not np.isnan(transition):
            axes.plot([transition], [speed], color=color, label=labels.pop("rises", None), **rises)
    spread = max(top - low, 0.1 * top)  # equal speeds are a line within the panel, not its edge
    axes.set_ylim(max(0, low - 0.3 * spread), top + 0.1 * spread)
    axes.set_xlim(0, None)
    axes.set_xlabel("cycles since the block's start")
    axes.set_ylabel("speed of a block (TFLOP/s)\n(the axis does not start at 0)")
    axes.xaxis.set_major_formatter(CYCLES)
    if len(labels) < 2:
        blank = {"frameon": True, "edgecolor": "none", "framealpha": 1}
        legend = axes.legend(loc="lower right", ncols=2, handletextpad=0.2, borderaxespad=0.3, **blank)
        for handle in legend.legend_handles:
            handle.set_color(figures.BLACK)


def draw_progress(axes: Axes, blocks: pd.DataFrame, lines: pd.DataFrame, colors: Mapping[int, tuple | str]) -> None:
    """Draw how far the shown blocks are over time; parameters as for :func:`draw_speeds`."""
    moments = _moments(blocks)
    for block, own in lines.groupby("block", sort=False):
        axes.plot(own["elapsed_cycles"], own["progress_percent"], color=colors[block], linewidth=1.2)
        transition = moments[block][1]
        if not np.isnan(transition):
            at = np.interp(transition, own["elapsed_cycles"].astype(float), own["progress_percent"])
            axes.plot([transition], [at], "o", color=colors[block], markeredgecolor="white", markersize=5, zorder=5)
    axes.set(xlim=(0, None), ylim=(0, 100), yticks=range(0, 101, 25))
    axes.set(xlabel="cycles since the block's start", ylabel="iterations done (%)")
    axes.xaxis.set_major_formatter(CYCLES)
    axes.locator_params(axis="x", nbins=3)


def zoom_to_transitions(axes: Axes, blocks: pd.DataFrame, lines: pd.DataFrame) -> None:
    """Limit a panel of progress to that fifth of the run in which most of the shown blocks' transitions are.

    Of equals it is the latest.
    """
    times = blocks.loc[blocks["shown"].astype(bool), "transition_cycles"].dropna().astype(float)
    times = times.sort_values(ascending=False).to_numpy()
    reach = 0.1 * float(lines["elapsed_cycles"].max())
    within = (times <= times[:, None]) & (times >= times[:, None] - 2 * reach)
    middle = float(times[within[within.sum(axis=1).argmax()]].mean())
    near = lines.loc[lines["elapsed_cycles"].between(middle - reach, middle + reach), "progress_percent"]
    axes.set(xlim=(middle - reach, middle + reach), ylim=(near.min(), near.max()))
    axes.xaxis.set_major_locator(MaxNLocator(2))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def draw_ties(axes: Axes, transitions: pd.DataFrame, result: CaseResult) -> None:
    """Draw when blocks speed up against when the older blocks on their SMs end.

    Parameters
    ----------
    transitions : DataFrame
        Rows of blocks that have both ``older_end_cycles`` and ``transition_cycles``.
    """
    ended, faster = (transitions[column].astype(float) for column in ("older_end_cycles", "transition_cycles"))
    most = 1.05 * max(ended.max(), faster.max(), 1)
    axes.plot([0, most], [0, most], color=figures.GREY, linewidth=0.8, zorder=1)
    # As an image where there are many: thousands of points would make a slow PDF.
    points = {"markersize": 3.2, "alpha": 0.6, "markeredgewidth": 0, "zorder": 2, "rasterized": len(ended) > 500}
    axes.plot(ended, faster, "o", color=figures.BLUE, **points)
    axes.set(xlim=(0, most), ylim=(0, most), xlabel="older block ends (cycles)", ylabel="speed rises (cycles)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(CYCLES)
    axes.locator_params(nbins=3)
    words = f"{result['tied_percent']:.0f} % on the line\n(by chance {result['tied_by_chance_percent']:.0f} %)"
    # In that corner beside the line in which there are fewer points.
    high = (ended < 0.5 * most) & (faster > 0.6 * most)
    low = (ended > 0.5 * most) & (faster < 0.4 * most)
    place = (0.03, 0.97, "left", "top") if high.sum() < low.sum() else (0.97, 0.05, "right", "bottom")
    axes.text(*place[:2], words, transform=axes.transAxes, ha=place[2], va=place[3], fontsize=7.5)
