"""Panels of the normalization roofline; the notebook puts them together."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.patheffects import withStroke

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.label_placement import spread
from gpuledger.studies.normalization_roofline.liger import LIGER, TORCH_LAYER
from gpuledger.studies.normalization_roofline.reduction import COPY, roof_bandwidth, share_of

#: Label, colour and marker by kernel; kernels that are not listed get the rest.
STYLES: Mapping[str, tuple[str, str, str]] = {
    "one_pass": ("optimised, one pass", figures.GREEN, "o"),
    "two_pass": ("straightforward, two passes", figures.ORANGE, "s"),
    "torch": ("PyTorch's operators", figures.PURPLE, "D"),
    LIGER: ("Liger", figures.GREEN, "o"),
    TORCH_LAYER: ("PyTorch's layer", figures.BLUE, "d"),
    "liger_layer": ("Liger's layer", figures.SKY, "v"),
}
_REST = [(figures.SKY, "v"), (figures.YELLOW, "P"), (figures.BLACK, "X")]
#: Keeps words legible where lines cross them.
_HALO = [withStroke(linewidth=2.5, foreground="white")]

Styles = Mapping[str, tuple[str, str, str]]


def kernel_styles(rows: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Return label, colour and marker of every kernel in `rows`: those of ``STYLES`` first, then others."""
    present = list(dict.fromkeys(rows["kernel"]))
    others = [name for name in present if name not in STYLES]
    found = {name: style for name, style in STYLES.items() if name in present}
    return found | {name: (name, *_REST[place % len(_REST)]) for place, name in enumerate(others)}


def _points(axes: Axes, x: pd.Series, y: pd.Series, cache: pd.Series, style: tuple[str, str, str], size: float) -> None:
    """Draw points, filled where the L2 was cold."""
    _, color, marker = style
    for state, face in (("warm", "white"), ("cold", color)):
        chosen = (cache == state) & y.notna()
        axes.plot(
            x[chosen], y[chosen], marker, color=color, markerfacecolor=face, markersize=size,
            markeredgewidth=0.9, linestyle="none", zorder=4 if state == "cold" else 3,
        )  # fmt: skip


def draw_roofline(axes: Axes, result: CaseResult, rows: pd.DataFrame, styles: Styles) -> None:
    """Draw roofs and what each kernel and shape reaches.

    Parameters
    ----------
    rows : DataFrame
        Rows of the result's data to draw as points.
    styles : mapping
        By kernel; see :func:`kernel_styles`.
    """
    low, high = 0.01, 200  # FLOP/byte
    start = 1.3 * low  # of the roofs' labels
    intensity = np.geomspace(low, high, 200)
    peak = result.get("fp32_roof") or result.get("data_sheet_fp32_peak") or np.inf
    roof, sheet = roof_bandwidth(result), result.get("data_sheet_bandwidth")
    if sheet and "dram_roof" in result.summary:
        limit = result.get("data_sheet_fp32_peak") or np.inf
        style = {"color": figures.GREY, "linewidth": 0.9, "linestyle": "-.", "zorder": 1}
        axes.plot(intensity, np.minimum(limit, sheet * intensity) / 1e12, label="data sheet", **style)
        blank = {"frameon": True, "framealpha": 1, "edgecolor": "none", "fancybox": False}
        axes.legend(loc="lower right", fontsize=7, handlelength=1.8, borderaxespad=0.2, **blank)
    roofs = [("DRAM", roof, figures.BLACK, "-")]
    if "l2_roof" in result.summary:
        roofs.insert(0, ("L2", result["l2_roof"], figures.BLUE, (0, (5, 1.5))))
    for name, bandwidth, color, line in roofs:
        axes.plot(intensity, np.minimum(peak, bandwidth * intensity) / 1e12, color=color, linestyle=line, zorder=2)
        aside, side = (1.25, "bottom") if name == "L2" else (0.8, "top")
        height = aside * start * bandwidth / 1e12
        # The roof's direction at this point, in data units; drawing turns it with the axes.
        turned = {"rotation": np.degrees(np.arctan2(height, start)), "rotation_mode": "anchor", "va": side}
        words = f"{name} {bandwidth / 1e12:.2g} TB/s"
        axes.text(start, height, words, color=color, fontsize=7, transform_rotates_text=True, **turned)
    if np.isfinite(peak):
        place = {"textcoords": "offset points", "fontsize": 7}
        roof_label = f"FP32 {peak / 1e12:.1f} TFLOP/s"
        axes.annotate(roof_label, (high, peak / 1e12), (-2, 3), ha="right", path_effects=_HALO, **place)
        balance = peak / roof
        axes.axvline(balance, color=figures.GREY, linewidth=0.8, linestyle=":")
        place |= {"xycoords": ("data", "axes fraction"), "color": "#666666"}
        axes.annotate(f"balance\n{balance:.1f}", (balance, 0.12), (3, 0), **place)
    for kernel, style in styles.items():
        own = rows[rows["kernel"] == kernel]
        _points(axes, own["intensity_flop_per_byte"], own["achieved_flop_per_s"] / 1e12, own["cache"], style, 3.5)
    bottom = min(0.5 * rows["achieved_flop_per_s"].min(), 0.6 * start * roof) / 1e12
    top = 2.5 * (peak if np.isfinite(peak) else high * roof) / 1e12
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP/byte)", ylabel="performance (TFLOP/s)")
    _plain(axes.xaxis, [0.01, 0.1, 1, 10, 100])
    axes.set(xlim=(low, high), ylim=(bottom, top))


def draw_bandwidth(axes: Axes, result: CaseResult, rows: pd.DataFrame, styles: Styles) -> None:
    """Draw bandwidth over size, beside copies, roofs and the launch floor; parameters as of :func:`draw_roofline`."""
    left, right = rows["moved_bytes"].min() / 2 / 1e6, 2 * rows["moved_bytes"].max() / 1e6
    roof, near = roof_bandwidth(result) / 1e12, (result.get("l2_roof") or 0) / 1e12
    bottom, top = 0.5 * rows["bandwidth_byte_per_s"].min() / 1e12, 2.2 * max(roof, near)
    if floor_ns := result.get("launch_floor"):
        sizes = np.geomspace(left, right, 100)
        # MB/ns are PB/s: the apparent bandwidth of a kernel that does nothing.
        at_floor = 1e3 * sizes / floor_ns
        axes.fill_between(sizes, np.minimum(at_floor, top), top, color="#EFEFEF", zorder=0, linewidth=0)
        axes.plot(sizes, at_floor, color=figures.GREY, linewidth=1, linestyle="-.")
        # Along the line, in what is out of reach.
        start = 1.15 * left
        turned = {"rotation": np.degrees(np.arctan2(1e3 * start / floor_ns, start)), "rotation_mode": "anchor"}
        turned |= {"transform_rotates_text": True, "path_effects": _HALO, "fontsize": 7, "color": "#555555"}
        if 2e3 * start / floor_ns < top:
            words = f"a launch takes {floor_ns / 1e3:.1f} µs"
            axes.text(start, 1.25e3 * start / floor_ns, words, va="bottom", **turned)
    place = {"textcoords": "offset points", "fontsize": 7}
    axes.axhline(roof, color=figures.BLACK, zorder=1)
    axes.annotate(f"DRAM\n{roof:.2g}", (right, roof), (3, 3), color=figures.BLACK, va="top", **place)
    if near:
        axes.axhline(near, color=figures.BLUE, linestyle=(0, (5, 1.5)), zorder=1)
        axes.annotate(f"L2\n{near:.2g}", (right, near), (3, -2), color=figures.BLUE, va="bottom", **place)
    for cache, line in (("cold", "-"), ("warm", (0, (1.2, 1.2)))):
        copies = _copies(result.data, cache)
        copies = copies[copies["moved_bytes"].between(1e6 * left, 1e6 * right)]
        copies = copies.sort_values("moved_bytes", kind="stable")
        if len(copies):
            x, y = copies["moved_bytes"] / 1e6, copies["bandwidth_byte_per_s"] / 1e12
            axes.plot(x, y, color="#999999", linestyle=line, linewidth=1.1, label=f"copy, {cache}", zorder=2)
    for kernel, style in styles.items():
        own = rows[rows["kernel"] == kernel]
        _points(axes, own["moved_bytes"] / 1e6, own["bandwidth_byte_per_s"] / 1e12, own["cache"], style, 4)
    axes.set(xscale="log", yscale="log", xlabel="input and output (MB)", ylabel="bandwidth (TB/s)")
    # Of less than two decades, powers of ten would be too few.
    steps = (1, 2, 5) if right < 100 * left else (1,)
    _plain(axes.xaxis, [step * power for power in (1, 10, 100, 1000) for step in steps])
    _plain(axes.yaxis, [0.1, 0.2, 0.5, 1, 2, 5, 10])
    # After the ticks, which would widen the limits to hold them all.
    axes.set(xlim=(left, right), ylim=(bottom, top))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=7, handlelength=1.8)


def _copies(data: pd.DataFrame, cache: str) -> pd.DataFrame:
    """Return the sweep of copies among the ceilings, or else the copies of the kernels' shapes."""
    own = data[data["cache"] == cache]
    swept = own[own["ceiling"] == "copy"] if "ceiling" in own else own[:0]
    return swept if len(swept) else own[own["kernel"] == COPY]


def draw_share(axes: Axes, rows: pd.DataFrame, styles: Styles, aim_percent: float | None = 90) -> None:
    """Draw each kernel's speed, shape by shape, relative to a copy of the same bytes or else to the data sheet.

    Above each shape stands how many times as fast as PyTorch's layer, or else its operators, the best kernel is (cold).

    Parameters
    ----------
    styles : mapping
        By kernel; see :func:`kernel_styles`.
    aim_percent : float, optional
        Where a line marks the aim; None for none.
    """
    rows = rows.assign(share=rows[f"{share_of(rows)}_share_percent"])
    copied = share_of(rows) == "copy"
    short, label = ("copy", "speed of a copy (%)") if copied else ("data\nsheet", "data sheet's bandwidth (%)")
    shapes = rows[["rows", "length", "moved_bytes"]].drop_duplicates().astype("int64")
    shapes = shapes.sort_values(["moved_bytes", "length"])
    places = {shape: place for place, shape in enumerate(zip(shapes["rows"], shapes["length"], strict=True))}
    rows["place"] = [float(places[shape]) for shape in zip(rows["rows"], rows["length"], strict=True)]
    cold = rows[rows["cache"] == "cold"]
    for at in set(cold.loc[cold["bound"] == "launch", "place"]):
        axes.axvspan(at - 0.45, at + 0.45, color="#EFEFEF", zorder=0, linewidth=0)
        # Below the points, or above all where they are low.
        bottom = bool(rows.loc[rows["place"] == at, "share"].min() > 20)
        style = {"textcoords": "offset points", "ha": "center", "va": "bottom" if bottom else "top", "fontsize": 7}
        place = {"xy": (at, 0 if bottom else 1), "xycoords": ("data", "axes fraction")}
        axes.annotate("launch-\nbound", xytext=(0, 3 if bottom else -3), **place, **style)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    axes.axhline(100, color=figures.BLACK, linewidth=1)
    axes.annotate(short, (1, 100), (2, 0), **place)
    if aim_percent is not None:
        axes.axhline(aim_percent, color=figures.GREEN, linewidth=0.9, linestyle=":")
        axes.annotate(f"aim {aim_percent:g} %", (1, aim_percent), (2, -3), color=figures.GREEN, **place)
    for kernel, style in styles.items():
        own = rows[rows["kernel"] == kernel].sort_values("place", kind="stable")
        line = own[own["cache"] == "cold"]
        axes.plot(line["place"], line["share"], color=style[1], linewidth=1.1, alpha=0.6, zorder=2)
        axes.vlines(own["place"], *_spread(own, own["share"]), color=style[1], linewidth=0.9, zorder=2)
        _points(axes, own["place"], own["share"], own["cache"], style, 4.5)
    top = max(115, 1.1 * rows["share"].max())
    # Beside the last shape, below the names of the lines across.
    ends = {name: own.loc[own["place"].idxmax(), "share"] / top for name, own in rows.groupby("kernel")}
    ends = dict(sorted(((name, ends[name]) for name in styles), key=lambda item: -item[1]))
    ceiling = (100 if aim_percent is None else aim_percent) / top - 0.1
    for name, height in zip(ends, spread([*ends.values()], 0.11, 0.03, ceiling), strict=True):
        beside = {"textcoords": "offset points", "va": "center", "fontweight": "bold", "fontsize": 7.5}
        words = figures.plain(styles[name][0].replace(", ", ",\n"))
        axes.annotate(words, (1, height), (3, 0), xycoords="axes fraction", color=styles[name][1], **beside)
    said = ["rows × length, by size"]
    shares = cold.pivot_table(index="place", columns="kernel", values="share")
    slow = next((name for name in (TORCH_LAYER, "torch") if name in shares), None)
    if figures.for_columns and len(places) > 8:  # no room for a number above each
        slow = None
    if slow is not None:
        ratios, highest = shares.drop(columns=slow).max(axis=1) / shares[slow], rows.groupby("place")["share"].max()
        for at, ratio in ratios.dropna().items():
            above = {"textcoords": "offset points", "va": "bottom", "ha": "center", "fontsize": 7}
            axes.annotate(f"{ratio:.1f}×", (at, max(highest[at], 100 if highest[at] > 80 else 0)), (0, 5), **above)
        said.append(f"numbers: times as fast as {styles[slow][0]}")
    if rows["cache"].nunique() > 1:
        said.append("hollow: L2 warm")
    labels = [f"{count:,}\n×{length:,}" for count, length in places]
    axes.set_xticks(range(len(labels)), labels, fontsize=7 if len(labels) < 11 else 5.7)
    axes.set(xlim=(-0.6, len(labels) - 0.4), ylim=(0, top))
    axes.set(xlabel="; ".join(said), ylabel=label)
    axes.grid(axis="y")


def _spread(rows: pd.DataFrame, shares: pd.Series) -> list[pd.Series]:
    """Return the shares at the 95th and the 5th percentile of the time."""
    times = (rows[name] if name in rows else rows["time_median_ns"] for name in ("time_p95_ns", "time_p5_ns"))
    return [shares * rows["time_median_ns"] / time for time in times]


def _plain(axis: Axis, ticks: list[float]) -> None:
    axis.set_ticks(ticks, [f"{tick:,g}" for tick in ticks])
    axis.set_minor_locator(plt.NullLocator())
