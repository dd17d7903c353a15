"""Figures of FLOP reconciliation: how a GPU cuts up a matrix product, and what that does to FLOPs and traffic."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, SKY, VERMILLION

#: Colour of each part of a network.
COLOURS = {"gemm": BLUE, "split_k": ORANGE, "reduction": PURPLE, "activation": GREEN}
#: The parts of the FLOPs that a size of layer executes: column of the shares, words, colour.
PARTS = (
    ("useful_percent", "2·M·N·K", PALE),
    ("padding_percent", "padding", ORANGE),
    ("alpha_percent", "alpha", BLUE),
    ("slices_percent", "slices", GREEN),
    ("accumulation_percent", "sums in C", PURPLE),
    ("split_k_sum_percent", "split-K reduction", VERMILLION),
)


def draw_product(m: int, n: int, k: int, tile_m: int, tile_n: int, s: int, slices: int) -> Figure:
    """Draw how a GPU computes C = A·B: C in tiles, K in parts and slices, and what is added up.

    Parameters
    ----------
    m, n, k : int
        The product.
    tile_m, tile_n : int
        Elements of a tile along N and along M (cuBLAS is column-major).
    s, slices : int
        Parts of K by blocks, and slices of a part by the warps of a block.

    Returns
    -------
    Figure
    """
    figure, (tiles, cut, add) = plt.subplots(1, 3, figsize=(7.0, 2.35), width_ratios=[1, 1.15, 1.35])
    _draw_tiles(tiles, m, n, tile_m, tile_n)
    _draw_cut(cut, k, s, slices)
    _draw_sums(add, s, slices)
    plt.close(figure)
    return figure


def _bare(axes: Axes, title: str) -> None:
    axes.set_axis_off()
    axes.set_title(title, fontsize=8.5)


def _draw_tiles(axes: Axes, m: int, n: int, tile_m: int, tile_n: int) -> None:
    across, down = -(-n // tile_m), -(-m // tile_n)
    width, height = across * tile_m, down * tile_n
    _bare(axes, "1  C is computed in tiles")
    axes.add_patch(Rectangle((0, 0), width, height, facecolor="white", edgecolor=ORANGE, hatch="////", linewidth=0))
    axes.add_patch(Rectangle((0, 0), n, m, facecolor=PALE, linewidth=0))
    # Many thin tiles would be one black area: then only the outline is drawn.
    if across <= 40 and down <= 40:
        axes.vlines(np.arange(across + 1) * tile_m, 0, height, color=GREY, linewidth=0.5)
        axes.hlines(np.arange(down + 1) * tile_n, 0, width, color=GREY, linewidth=0.5)
    axes.add_patch(Rectangle((0, 0), tile_m, tile_n, fill=False, edgecolor=BLUE, linewidth=1.8))
    axes.add_patch(Rectangle((0, 0), n, m, fill=False, edgecolor=BLACK, linewidth=1.1))
    axes.set_xlim(-0.02 * width, 1.02 * width)
    axes.set_ylim(1.02 * height, -0.02 * height)
    padding = "hatched: padding" if (width, height) != (n, m) else "here without padding"
    words = f"C: M × N = {m:,} × {n:,}\ntile (blue): {tile_n} × {tile_m}\n{padding}"
    axes.text(0, -0.06, words, transform=axes.transAxes, va="top", fontsize=7.5)


def _draw_cut(axes: Axes, k: int, s: int, slices: int) -> None:
    _bare(axes, "2  K is cut in parts and slices")
    shown = min(s, 6)
    for part in range(shown):
        low = 1.25 * part
        for piece in range(slices):
            at = (piece / slices, low)
            axes.add_patch(Rectangle(at, 1 / slices, 1, facecolor=GREEN, alpha=0.25 + 0.12 * (piece % 4), linewidth=0))
        axes.add_patch(Rectangle((0, low), 1, 1, fill=False, edgecolor=BLACK, linewidth=0.9))
        number = part + 1 if part < shown - 1 else s
        before = "⋮ " if s > shown and part == shown - 1 else ""
        axes.text(1.04, low + 0.5, f"{before}block {number}", va="center", fontsize=7.5)
    axes.set_xlim(-0.02, 1.5)
    axes.set_ylim(max(1.25 * shown, 2.5), -0.1)
    parts = f"S = {s} {'blocks share' if s > 1 else 'block computes'} a tile"
    pieces = f"L = {slices} {'slices' if slices > 1 else 'slice'} in each block"
    axes.text(0, -0.06, f"K = {k:,}\n{parts}\n{pieces}", transform=axes.transAxes, va="top", fontsize=7.5)


def _draw_sums(axes: Axes, s: int, slices: int) -> None:
    _bare(axes, "3  What comes out is added up")
    rows, columns = min(s, 6), min(slices, 6)
    middle = 1.25 * rows / 2 - 0.125
    for row in range(rows):
        low = 1.25 * row
        for column in range(columns):
            axes.add_patch(Rectangle((1.1 * column, low), 1, 1, facecolor=SKY, edgecolor=BLUE, linewidth=0.7))
        start = 1.1 * columns + 0.3
        axes.annotate("", (start + 1.5, low + 0.5), (start, low + 0.5), arrowprops={"arrowstyle": "->", "lw": 0.8})
        axes.add_patch(Rectangle((start + 1.8, low), 1, 1, facecolor=GREEN, alpha=0.45, linewidth=0))
        axes.annotate(
            "", (start + 4.9, middle), (start + 3, low + 0.5), arrowprops={"arrowstyle": "->", "lw": 0.8, "color": GREY}
        )
    end = 1.1 * columns + 5.4
    axes.add_patch(Rectangle((end, middle - 0.5), 1, 1, facecolor=PALE, edgecolor=BLACK, linewidth=1.1))
    axes.text(end + 0.5, middle, "C", ha="center", va="center", fontsize=8)
    axes.set_xlim(-0.1, end + 1.2)
    axes.set_ylim(max(1.25 * rows, 2.5), -0.1)
    words = f"an output: {s * slices} partial results × alpha (fmul),\n{s * (slices - 1)} fadd that add up slices"
    words += f",\n{s} fadd that add up parts (split-K)" if s > 1 else ""
    axes.text(0, -0.06, words, transform=axes.transAxes, va="top", fontsize=7.5)


def draw_launches(result: CaseResult, shares: pd.DataFrame) -> Figure:
    """Draw predicted against counted FLOPs, where the excess comes from, and the traffic of DRAM.

    Parameters
    ----------
    result : CaseResult
        A case with ``launches`` and shapes.
    shares : DataFrame
        See :func:`gpuledger.studies.flop_reconciliation.by_size`.

    Returns
    -------
    Figure
        With the last panel only where DRAM traffic was counted.
    """
    data = result.data
    if shares.empty:
        figure, axes = plt.subplots(figsize=(7.0, 2.9))
        _draw_counters(axes, data)
        return figure
    traffic = bool(data.loc[data["role"] == "gemm", "dram_bytes"].notna().any())
    figure = plt.figure(figsize=(7.0, 6.1))
    grid = figure.add_gridspec(2, 2, height_ratios=[1.05, 1], width_ratios=[1.1, 1])
    _draw_formulas(figure.add_subplot(grid[0, :]), data)
    _draw_shares(figure.add_subplot(grid[1, 0] if traffic else grid[1, :]), shares)
    if traffic:
        _draw_traffic(figure.add_subplot(grid[1, 1]), data, result)
    return figure


def _draw_formulas(axes: Axes, data: pd.DataFrame) -> None:
    tiled = data[(data["role"] == "gemm") & data["tiled"]]
    predicted = data[data["flops_predicted"].notna() & data["role"].isin(["gemm", "split_k_reduce"])]
    points = {"s": 9, "linewidths": 0, "rasterized": True}
    for frame, column, colour, alpha in (
        (tiled, "flops_2mnk", ORANGE, 0.55),
        (predicted, "flops_predicted", BLUE, 0.55),
    ):
        counted = frame["flops_counted"].astype("float64")
        share = 100 * frame[column].astype("float64") / counted
        axes.scatter(counted, share, color=colour, alpha=alpha, zorder=3, **points)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter("{:g} %".format))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([0.3, 1, 3, 10, 30, 100])
    axes.set_ylim(0.16, 260)
    axes.grid(axis="y")
    axes.set_xlabel("FLOPs that the hardware counted in a launch")
    axes.set_ylabel("formula, as a share of the count")
    axes.set_title("A  The closed form is on the line, 2·M·N·K is not")
    exact = {role: int(mine["exact"].fillna(False).sum()) for role, mine in predicted.groupby("role")}
    words = f"closed form: {exact.get('gemm', 0):,} of {len(tiled):,} GEMMs exact"
    if reductions := int((predicted["role"] == "split_k_reduce").sum()):
        words += f", {exact.get('split_k_reduce', 0):,} of {reductions:,} split-K reductions"
    axes.text(0.995, 125, words, transform=axes.get_yaxis_transform(), ha="right", color=BLUE, fontweight="bold")
    worst = tiled.loc[tiled["error_2mnk_percent"].abs().idxmax()]
    share = 100 + worst["error_2mnk_percent"]
    words = f"2·M·N·K: at worst {share:.1f} %\n(M, N, K = {worst['m']:,}, {worst['n']:,}, {worst['k']:,})"
    at = (float(worst["flops_counted"]), share)
    axes.annotate(words, at, (8, 3), textcoords="offset points", va="center", color="#9A6700", fontweight="bold")


def _draw_counters(axes: Axes, data: pd.DataFrame) -> None:
    """FADD and FMUL alone: all that can be predicted without shapes."""
    gemm = data[(data["role"] == "gemm") & data["fmul_predicted"].notna()]
    counted, predicted = ((gemm[f"fadd{end}"] + gemm[f"fmul{end}"]).astype("float64") for end in ("", "_predicted"))
    if counted.empty:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing is predicted", ha="center", va="center", color=GREY)
        return
    axes.scatter(counted, predicted, s=12, color=BLUE, linewidths=0, zorder=3)
    ends = [0.5 * counted.min(), 2 * counted.max()]
    axes.plot(ends, ends, color=GREY, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("fadd + fmul counted (instructions)")
    axes.set_ylabel("predicted (instructions)")


def _draw_shares(axes: Axes, shares: pd.DataFrame) -> None:
    left, at = np.zeros(len(shares)), range(len(shares))
    for column, words, colour in PARTS:
        if not (shares[column] > 0).any():
            continue
        axes.barh(at, shares[column], left=left, color=colour, height=0.74, label=words, zorder=3)
        left += shares[column].to_numpy()
    labels = [f"{size}" for size in shares["size"]]
    axes.set_yticks(at, labels)
    axes.tick_params(axis="y", length=0)
    for place, row in zip(at, shares.itertuples(), strict=True):
        inside = row.useful_percent > 16
        text = f"{row.useful_percent:.0f} %"
        axes.text(1.5 if inside else row.useful_percent + 1.5, place, text, va="center", fontsize=7, zorder=4)
        axes.text(101, place, f"{row.launches:,}", va="center", fontsize=7, color=GREY)
    axes.text(101, -0.95, "layers", fontsize=7, color=GREY, va="center")
    axes.set_xlim(0, 100)
    axes.set_ylim(len(shares) - 0.5, -0.5)
    axes.set_xlabel("share of the executed FLOPs (%)")
    axes.set_ylabel("min(M, N)")
    axes.set_title("B  Small layers drown in padding", pad=30)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.01),
        ncols=3,
        fontsize=7,
        handlelength=1,
        columnspacing=1,
        borderpad=0,
    )


def _draw_traffic(axes: Axes, data: pd.DataFrame, result: CaseResult) -> None:
    gemm = data[(data["role"] == "gemm") & data["dram_ab_bytes"].notna() & (data["dram_bytes"] > 0)]
    size = (gemm["dram_ab_bytes"] + gemm["dram_c_bytes"]).astype("float64") / 2**20
    points = {"s": 8, "linewidths": 0, "rasterized": True}
    for column, words, colour, alpha in (
        ("dram_ab_bytes", "A + B", ORANGE, 0.5),
        ("dram_expected_bytes", "A + B, and C where it is read", BLUE, 0.75),
    ):
        ratio = gemm["dram_bytes"] / gemm[column].astype("float64")
        axes.scatter(size, ratio, color=colour, alpha=alpha, label=words, zorder=3, **points)
    axes.axhline(1, color=BLACK, linewidth=0.8, zorder=2)
    if "l2_reach_bytes" in result.summary:
        reach = result["l2_reach_bytes"] / 2**20
        axes.axvline(reach, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
        axes.annotate(f"L2 near\nan SM:\n{reach:.0f} MiB", (reach, 1), (4, 0), fontsize=7, color="#555555", **place)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 5, 10, 20, 50, 100, 200])
    axes.yaxis.set_major_formatter(FuncFormatter("{:g}×".format))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter("{:g}".format))
    axes.grid(axis="y")
    axes.set_xlabel("A, B and C together (MiB)")
    axes.set_ylabel("DRAM traffic counted / expected")
    axes.set_title("C  Traffic is A + B while L2 holds it", pad=30)
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.01), ncols=1, fontsize=7, handletextpad=0.1, borderpad=0
    )
    _opaque(legend.legend_handles)


def _opaque(handles: Sequence) -> None:
    for handle in handles:
        handle.set_alpha(1)
        handle.set_sizes([18])


def draw_network(steps: pd.DataFrame, parts: pd.DataFrame) -> Figure:
    """Draw the steps from theory to measurement of both passes.

    Parameters
    ----------
    steps, parts : DataFrame
        See :func:`gpuledger.studies.flop_reconciliation.steps` and
        :func:`gpuledger.studies.flop_reconciliation.parts_table`.

    Returns
    -------
    Figure
    """
    totals = parts[parts["part"] == "total"].set_index("pass")
    heights = [len(rows) + 3 for _, rows in steps.groupby("pass", sort=False)]
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(7.0, 0.27 * sum(heights) + 1.1), height_ratios=heights)
    text = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
    for panel, (name, rows) in zip(axes, steps.groupby("pass", sort=False), strict=True):
        total = totals.loc[name]
        ends = rows["flops"].cumsum() / 1e6
        y = range(1, len(rows) + 1)
        widths = rows["flops"] / 1e6
        panel.barh(y, widths, left=ends - widths, color=rows["part"].map(COLOURS), height=0.62, zorder=3)
        for at, end, flops in zip(y, ends, rows["flops"], strict=True):
            panel.plot([end, end], [at, at + 1], color=GREY, linewidth=0.7, zorder=2)
            panel.annotate(f"{flops:+,}", (end, at), (4, 0), **text)
        panel.axvline(0, color=BLACK, linewidth=0.9)
        panel.annotate(f"{total['theory_flops']:,} FLOPs", (0, 0), (4, 0), **text)
        last = len(rows) + 1
        measured = int(total["difference_flops"]) / 1e6
        panel.barh(last, measured, color=BLACK, height=0.62, zorder=3)
        label = f"{total['measured_flops']:,} FLOPs ({total['difference_percent']:+.2f} %)"
        panel.annotate(label, (measured, last), (4, 0), **text)
        labels = ["theory", *rows["step"], "measured"]
        if total.notna()["predicted_flops"]:
            predicted = int(total["predicted_flops"] - total["theory_flops"]) / 1e6
            panel.barh(last + 1, predicted, color="white", edgecolor=BLACK, height=0.62, hatch="////", zorder=3)
            label = f"{total['predicted_flops']:,} FLOPs (residual {total['residual_flops']:+,})"
            panel.annotate(label, (predicted, last + 1), (4, 0), **text)
            labels.append("predicted")
        panel.set_yticks(range(len(labels)), labels)
        panel.set_ylim(len(labels) - 0.4, -0.6)
        panel.tick_params(axis="y", length=0)
        panel.spines["left"].set_visible(False)
        panel.grid(axis="x")
        panel.set_title(f"{name} pass")
    axes[1].set_xlabel("FLOPs beyond theory (millions)")
    axes[1].set_xlim(0, 1.95 * float(totals["difference_flops"].max()) / 1e6)
    return figure
