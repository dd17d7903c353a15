"""Panels: how a GPU computes a matrix product, a network's steps from theory to measurement, and single launches."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from gpuledger.ledger import figures
from gpuledger.ledger.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, SKY

#: Colour of each part of a network.
COLOURS = {"gemm": BLUE, "split_k": ORANGE, "reduction": PURPLE, "activation": GREEN, "other": GREY}
#: The FLOPs that a size of layer executes: column of the shares, label, colour.
SHARES = (
    ("useful_percent", "2·M·N·K", PALE),
    ("padding_percent", "padding", ORANGE),
    ("alpha_percent", "alpha", BLUE),
    ("slices_percent", "slices", GREEN),
    ("accumulation_percent", "sums in C", PURPLE),
    ("split_k_sum_percent", "split-K reduction", SKY),
)
#: Where no share of the count (%) is less, the axis is linear: a logarithmic one would press all points to its top.
LEAST_LINEAR = 30.0


def draw_tiles(axes: Axes, m: int, n: int, tile_m: int, tile_n: int) -> None:
    """Draw C in tiles of `tile_m` elements along N and `tile_n` along M (cuBLAS is column-major), padding hatched."""
    across, down = -(-n // tile_m), -(-m // tile_n)
    width, height = across * tile_m, down * tile_n
    axes.set_axis_off()
    axes.add_patch(Rectangle((0, 0), width, height, facecolor="white", edgecolor=ORANGE, hatch="////", linewidth=0))
    axes.add_patch(Rectangle((0, 0), n, m, facecolor=PALE, linewidth=0))
    # Many thin tiles would merge into a black area: then only the outline is drawn.
    if across <= 40 and down <= 40:
        axes.vlines(np.arange(across + 1) * tile_m, 0, height, color=GREY, linewidth=0.5)
        axes.hlines(np.arange(down + 1) * tile_n, 0, width, color=GREY, linewidth=0.5)
    axes.add_patch(Rectangle((0, 0), tile_m, tile_n, fill=False, edgecolor=BLUE, linewidth=1.8))
    axes.add_patch(Rectangle((0, 0), n, m, fill=False, edgecolor=BLACK, linewidth=1.1))
    axes.set_xlim(-0.02 * width, 1.02 * width)
    axes.set_ylim(1.02 * height, -0.02 * height)
    padding = "hatched: padding" if (width, height) != (n, m) else "no padding here"
    words = f"C: M × N = {m:,} × {n:,}\ntile (blue): {tile_n} × {tile_m}\n{padding}"
    axes.text(0, -0.06, words, transform=axes.transAxes, va="top", fontsize=7.5)


def draw_parts_of_k(axes: Axes, k: int, s: int, slices: int) -> None:
    """Draw K divided into `s` parts, one per block, and each part into `slices`, one per group of warps."""
    shown = min(s, 6)
    axes.set_axis_off()
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


def draw_sums(axes: Axes, s: int, slices: int) -> None:
    """Draw how the partial results of an element of C are added up: within a block, then across blocks."""
    rows, columns = min(s, 6), min(slices, 6)
    middle = 1.25 * rows / 2 - 0.125
    start, end = 1.1 * columns + 0.3, 1.1 * columns + 5.4
    arrow = {"arrowstyle": "->", "lw": 0.8}
    axes.set_axis_off()
    for row in range(rows):
        low = 1.25 * row
        for column in range(columns):
            axes.add_patch(Rectangle((1.1 * column, low), 1, 1, facecolor=SKY, edgecolor=BLUE, linewidth=0.7))
        axes.annotate("", (start + 1.5, low + 0.5), (start, low + 0.5), arrowprops=arrow)
        axes.add_patch(Rectangle((start + 1.8, low), 1, 1, facecolor=GREEN, alpha=0.45, linewidth=0))
        axes.annotate("", (start + 4.9, middle), (start + 3, low + 0.5), arrowprops={**arrow, "color": GREY})
    axes.add_patch(Rectangle((end, middle - 0.5), 1, 1, facecolor=PALE, edgecolor=BLACK, linewidth=1.1))
    axes.text(end + 0.5, middle, "C", ha="center", va="center", fontsize=8)
    axes.set_xlim(-0.1, end + 1.2)
    axes.set_ylim(max(1.25 * rows, 2.5), -0.1)
    words = f"each element: {s * slices} partial results × alpha (fmul),\n{s * (slices - 1)} fadd that add up slices"
    words += f",\n{s} fadd that add up parts (split-K)" if s > 1 else ""
    axes.text(0, -0.06, words, transform=axes.transAxes, va="top", fontsize=7.5)


def draw_steps(axes: Axes, steps: pd.DataFrame, total: pd.Series) -> None:
    """Draw one pass from theory to measurement, in millions of FLOPs beyond theory.

    Parameters
    ----------
    steps : DataFrame
        The pass's rows of :func:`gpuledger.studies.flop_reconciliation.tables.steps`.
    total : Series
        The pass's total in :func:`gpuledger.studies.flop_reconciliation.tables.parts_table`.
    """
    text = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
    widths = steps["flops"] / 1e6
    ends = widths.cumsum()
    y = range(1, len(steps) + 1)
    axes.barh(y, widths, left=ends - widths, color=steps["part"].map(COLOURS), height=0.62, zorder=3)
    for at, end, flops in zip(y, ends, steps["flops"], strict=True):
        axes.plot([end, end], [at, at + 1], color=GREY, linewidth=0.7, zorder=2)
        axes.annotate(f"{flops:+,}", (end, at), (4, 0), **text)
    axes.axvline(0, color=BLACK, linewidth=0.9)
    axes.annotate(f"{total['theory_flops']:,} FLOPs", (0, 0), (4, 0), **text)
    last = len(steps) + 1
    measured = int(total["difference_flops"]) / 1e6
    axes.barh(last, measured, color=BLACK, height=0.62, zorder=3)
    wide = "\n" if figures.for_columns else " "
    label = f"{total['measured_flops']:,} FLOPs{wide}({total['difference_percent']:+.2f} %)"
    axes.annotate(label, (measured, last), (4, 0), **text)
    labels = ["theory", *steps["step"], "measured"]
    if pd.notna(total["predicted_flops"]):
        predicted = int(total["predicted_flops"] - total["theory_flops"]) / 1e6
        axes.barh(last + 1, predicted, color="white", edgecolor=BLACK, height=0.62, hatch="////", zorder=3)
        residual = f"{total['residual_flops']:+,}".replace("-", "−") if total["residual_flops"] else "0"
        label = f"{total['predicted_flops']:,} FLOPs{wide}(residual {residual})"
        axes.annotate(label, (predicted, last + 1), (4, 0), **text)
        labels.append("closed form")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def draw_formulas(axes: Axes, data: pd.DataFrame) -> None:
    """Draw 2·M·N·K (hollow: kernels without tiles) and the closed form of every launch as shares of the count (%)."""
    predicted = data[data["flops_predicted"].notna() & data["role"].isin(["gemm", "split_k_reduce"])]
    covered = data[(data["role"] == "gemm") & (data["tiled"] | data["flops_predicted"].notna())]
    tiled = data[(data["role"] == "gemm") & data["tiled"]]
    lowest, highest = 100.0, 100.0
    others = covered[~covered["tiled"]]
    hollow = {"facecolors": "none", "edgecolors": ORANGE, "linewidths": 0.8}
    for frame, column, style in (
        (tiled, "flops_2mnk", {"color": ORANGE, "linewidths": 0}),
        (others, "flops_2mnk", hollow),
        (predicted, "flops_predicted", {"color": BLUE, "linewidths": 0}),
    ):
        counted = frame["flops_counted"].astype("float64")
        share = 100 * frame[column].astype("float64") / counted
        axes.scatter(counted, share, alpha=0.55, s=9, rasterized=True, zorder=3, **style)
        lowest, highest = min(lowest, share.min()), max(highest, share.max())
    linear = lowest > LEAST_LINEAR
    axes.set(xscale="log", yscale="linear" if linear else "log", xlabel="FLOPs that the hardware counted in a launch")
    # Words stand in bands of their own, above and below all points.
    above, below = (0.16, 0.26) if figures.for_columns else (0.15, 0.15)
    low, high = (lowest, highest) if linear else np.log10([lowest, highest])
    high = max(high, low + 0.1)  # where nothing is missed, all are alike
    whole = (high - low) / (1 - above - below)
    ends = np.array([low - below * whole, high + above * whole])
    axes.set_ylim(ends if linear else 10**ends)
    ticks = np.log10(np.outer(10.0 ** np.arange(-3, 6), [1, 3]))
    if linear:
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    ticks = np.unique(ticks[(ticks >= low - 0.03 * whole) & (ticks <= high + 0.03 * whole)])
    axes.yaxis.set_major_locator(FixedLocator(ticks if linear else 10**ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.set_ylabel("formula, as a share of the count")
    axes.grid(axis="y")
    exact = {role: int(mine["exact"].fillna(False).sum()) for role, mine in predicted.groupby("role")}
    words = f"closed form: {exact.get('gemm', 0):,} of {len(covered):,}{' GEMMs' * (not figures.for_columns)} exact"
    if (reductions := int((predicted["role"] == "split_k_reduce").sum())) and not figures.for_columns:
        words += f", {exact.get('split_k_reduce', 0):,} of {reductions:,} split-K reductions"
    bold = {"va": "center", "fontweight": "bold"}
    axes.text(0.995, 1 - above / 2, words, ha="right", color=BLUE, transform=axes.transAxes, **bold)
    worst = tiled.loc[tiled["error_2mnk_percent"].abs().idxmax()]
    share, counted = 100 + worst["error_2mnk_percent"], float(worst["flops_counted"])
    words, at = "2·M·N·K", 0.01
    if share - 1e-9 <= lowest < 90:  # the words are below its point; below another they would seem to be that one's
        size = f"(M, N, K = {worst['m']:,}, {worst['n']:,}, {worst['k']:,})"
        words = f"{words}: at worst {share:.1f} %{chr(10) if figures.for_columns else ' '}{size}"
        first, last = np.log10(axes.get_xlim())
        at = (np.log10(counted) - first) / (last - first)
    elif len(others) and not figures.for_columns:
        words += "; hollow: kernels without tiles"
    right = at > (0.25 if figures.for_columns else 0.5)
    style = {"ha": "right" if right else "left", "color": "#9A6700", "transform": axes.transAxes, **bold}
    at = 0.995 if right and figures.for_columns else min(at + 0.01, 0.995) if right else max(at - 0.01, 0.01)
    axes.text(at, below / 2, words, **style)


def draw_counters(axes: Axes, data: pd.DataFrame) -> None:
    """Draw predicted against counted FADD and FMUL, which are all that can be predicted without shapes."""
    gemm = data[(data["role"] == "gemm") & data["fmul_predicted"].notna()]
    counted, predicted = ((gemm[f"fadd{end}"] + gemm[f"fmul{end}"]).astype("float64") for end in ("", "_predicted"))
    if counted.empty:
        axes.set_axis_off()
        words = "Nothing is predicted: no launch is a tiled fp32 GEMM, the only kernels that this study describes.\n\n"
        words += (
            "The study kernel_profile shows what any kernel did, and predicts matrix instructions on tensor cores:\n\n"
        )
        words += "studies:\n  kernel_profile:\n    mine: {report: …}"
        axes.text(0, 1, words, va="top", fontsize=8, transform=axes.transAxes)
        return
    axes.scatter(counted, predicted, s=12, color=BLUE, linewidths=0, zorder=3)
    ends = [0.5 * counted.min(), 2 * counted.max()]
    axes.plot(ends, ends, color=GREY, linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="fadd + fmul counted (instructions)", ylabel="predicted (instructions)")


def draw_shares(axes: Axes, shares: pd.DataFrame) -> None:
    """Draw what the executed FLOPs of every size of layer consist of.

    Parameters
    ----------
    shares : DataFrame
        See :func:`gpuledger.studies.flop_reconciliation.tables.by_size`.
    """
    left, at = np.zeros(len(shares)), range(len(shares))
    for column, label, colour in SHARES:
        if (shares[column] > 0).any():
            axes.barh(at, shares[column], left=left, color=colour, height=0.74, label=label, zorder=3)
            left += shares[column].to_numpy()
    axes.set_yticks(at, shares["size"])
    axes.tick_params(axis="y", length=0)
    for place, row in zip(at, shares.itertuples(), strict=True):
        x = 1.5 if row.useful_percent > 16 else row.useful_percent + 1.5
        axes.text(x, place, f"{row.useful_percent:.0f} %", va="center", fontsize=7, zorder=4)
        axes.text(101, place, f"{row.launches:,}", va="center", fontsize=7, color=GREY)
    axes.text(1.01, 1.02, "products", fontsize=7, color=GREY, va="bottom", transform=axes.transAxes)
    axes.set_ylim(len(shares) - 0.5, -0.5)
    axes.set_xlabel("share of the executed FLOPs (%)")
    axes.set_ylabel("min(M, N)")


def draw_traffic(axes: Axes, data: pd.DataFrame, l2_reach_bytes: int | None = None) -> None:
    """Draw counted over expected DRAM traffic of every launch, against the size of its matrices.

    Parameters
    ----------
    data : DataFrame
        The data of a case with ``launches``.
    l2_reach_bytes : int, optional
        Where a line is drawn: the part of the L2 that is near an SM.
    """
    gemm = data[(data["role"] == "gemm") & data["dram_ab_bytes"].notna() & (data["dram_bytes"] > 0)]
    size = (gemm["dram_ab_bytes"] + gemm["dram_c_bytes"]).astype("float64") / 2**20
    points = {"s": 8, "linewidths": 0, "rasterized": True, "zorder": 3}
    for column, label, colour, alpha in (
        ("dram_ab_bytes", "A + B", ORANGE, 0.5),
        ("dram_expected_bytes", "A + B, and C where it is read", BLUE, 0.75),
    ):
        ratio = gemm["dram_bytes"] / gemm[column].astype("float64")
        axes.scatter(size, ratio, color=colour, alpha=alpha, label=label, **points)
    axes.axhline(1, color=BLACK, linewidth=0.8, zorder=2)
    if l2_reach_bytes:
        reach = l2_reach_bytes / 2**20
        axes.axvline(reach, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
        axes.annotate(f"L2 near\nan SM:\n{reach:.0f} MiB", (reach, 1), (4, 0), fontsize=7, color="#555555", **place)
    axes.set(xscale="log", yscale="log", xlabel="A, B and C together (MiB)", ylabel="DRAM traffic counted / expected")
    low, high = np.log10(axes.get_ylim())
    steps = [1, 2, 5] if high - low < 3.2 else [1]
    axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axes.yaxis.set_major_formatter("{x:g}×")
    axes.yaxis.set_minor_formatter("")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y")
