"""The figure and the table of a reduced case."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.normalization_roofline.reduction import COPY, OPTIMISED, roof_bandwidth

#: How kernels are called and drawn; others get what is left.
STYLES: Mapping[str, tuple[str, str, str]] = {
    OPTIMISED: ("optimised, one pass", figures.GREEN, "o"),
    "two_pass": ("straightforward, two passes", figures.ORANGE, "s"),
    "torch": ("PyTorch", figures.PURPLE, "D"),
}
_LEFT = [(figures.SKY, "v"), (figures.VERMILLION, "^"), (figures.YELLOW, "P"), (figures.BLACK, "X")]
_AIM_PERCENT = 90


def style_of(kernel: str, kernels: list[str]) -> tuple[str, str, str]:
    """Return a kernel's name for people, colour and marker."""
    if kernel in STYLES:
        return STYLES[kernel]
    return (kernel, *_LEFT[[name for name in kernels if name not in STYLES].index(kernel) % len(_LEFT)])


def draw(result: CaseResult) -> Figure:
    """Draw the roofline (A), bandwidth over size (B) and the share of a copy's speed by shape (C)."""
    data = result.data
    rows = data[data["kernel"].notna() & (data["kernel"] != COPY)]
    kernels = [name for name in [*STYLES, *rows["kernel"].unique()] if name in set(rows["kernel"])]
    kernels = list(dict.fromkeys(kernels))
    figure = plt.figure(figsize=(7.2, 6.6))
    grid = figure.add_gridspec(2, 2, height_ratios=[1.25, 1], width_ratios=[1, 1.25])
    roofline, size, share = (figure.add_subplot(grid[place]) for place in ((0, 0), (0, 1), (1, slice(None))))
    _draw_roofline(roofline, result, rows, kernels)
    _draw_size(size, result, rows, kernels)
    _draw_share(share, rows, kernels)
    entries = [_handle(*style_of(name, kernels)) for name in kernels]
    entries += [
        _handle("L2 cold", figures.GREY, "o"),
        Line2D([], [], marker="o", color="none", markeredgecolor=figures.GREY, label="L2 warm"),
    ]
    share.legend(handles=entries, loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=5, handletextpad=0.2)
    figures.headline(figure, result.finding)
    return figure


def _handle(label: str, colour: str, marker: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker=marker, color=colour, label=label)


def _points(axes: Axes, x: pd.Series, y: pd.Series, cache: pd.Series, colour: str, marker: str, size: float) -> None:
    """Draw points, filled where the L2 was cold."""
    for state, face in (("warm", "white"), ("cold", colour)):
        chosen = (cache == state) & y.notna()
        axes.plot(
            x[chosen], y[chosen], marker, color=colour, markerfacecolor=face, markersize=size,
            markeredgewidth=0.9, linestyle="none", zorder=4 if state == "cold" else 3,
        )  # fmt: skip


def _draw_roofline(axes: Axes, result: CaseResult, rows: pd.DataFrame, kernels: list[str]) -> None:
    low, high = 0.08, 200
    intensity = np.geomspace(low, high, 200)
    peak = _value(result, "fp32_roof") or _value(result, "data_sheet_fp32_peak") or np.inf
    roof = roof_bandwidth(result)
    sheet = _value(result, "data_sheet_bandwidth")
    if sheet and "dram_roof" in result.summary:
        limit = _value(result, "data_sheet_fp32_peak") or np.inf
        axes.plot(
            intensity, np.minimum(limit, sheet * intensity) / 1e12, color=figures.GREY, linewidth=0.9, linestyle=":",
            label="data sheet", zorder=1,
        )  # fmt: skip
        axes.legend(loc="lower right", fontsize=7, handlelength=1.8)
    roofs = [("DRAM", roof, figures.BLACK, "-")]
    if "l2_roof" in result.summary:
        roofs.insert(0, ("L2", result["l2_roof"], figures.BLUE, (0, (5, 1.5))))
    for name, bandwidth, colour, line in roofs:
        axes.plot(intensity, np.minimum(peak, bandwidth * intensity) / 1e12, color=colour, linestyle=line, zorder=2)
        above = {"L2": 1.0, "DRAM": 0.0}[name]
        axes.annotate(
            f"{name} {bandwidth / 1e12:.1f} TB/s", (0.1, 0.1 * bandwidth / 1e12), (0, 5 if above else -5), rotation=45,
            textcoords="offset points", transform_rotates_text=True, rotation_mode="anchor", color=colour, fontsize=7,
            va="bottom" if above else "top",
        )  # fmt: skip
    if np.isfinite(peak):
        axes.annotate(
            f"FP32 {peak / 1e12:.1f} TFLOP/s", (high, peak / 1e12), (-2, 3), textcoords="offset points", ha="right",
            fontsize=7,
        )  # fmt: skip
        balance = peak / roof
        axes.axvline(balance, color=figures.GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"balance\n{balance:.1f}", (balance, 0.12), (3, 0), xycoords=("data", "axes fraction"), fontsize=7,
            textcoords="offset points", color="#666666",
        )  # fmt: skip
    for kernel in kernels:
        _, colour, marker = style_of(kernel, kernels)
        chosen = rows[rows["kernel"] == kernel]
        x, y = chosen["intensity_flop_per_byte"], chosen["achieved_flop_per_s"] / 1e12
        _points(axes, x, y, chosen["cache"], colour, marker, 3.5)
    bottom = 0.5 * rows["achieved_flop_per_s"].min() / 1e12
    top = 2.5 * (peak if np.isfinite(peak) else high * roof) / 1e12
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top))
    axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="performance (TFLOP/s)")
    axes.set_title("A  Roofline")
    _plain(axes.xaxis, [0.1, 1, 10, 100])


def _draw_size(axes: Axes, result: CaseResult, rows: pd.DataFrame, kernels: list[str]) -> None:
    data = result.data
    left, right = rows["moved_bytes"].min() / 2 / 1e6, 2 * rows["moved_bytes"].max() / 1e6
    roof, near = roof_bandwidth(result) / 1e12, (_value(result, "l2_roof") or 0) / 1e12
    floor_ns = _value(result, "launch_floor")
    sizes = np.geomspace(left, right, 100)
    bottom = 0.5 * rows["bandwidth_byte_per_s"].min() / 1e12
    top = 2.2 * max(roof, near)
    if floor_ns:
        # MB/ns are PB/s: how fast a kernel would seem that does nothing but be launched.
        at_floor = 1e3 * sizes / floor_ns
        axes.fill_between(sizes, np.minimum(at_floor, top), top, color="#EFEFEF", zorder=0, linewidth=0)
        axes.plot(sizes, at_floor, color=figures.GREY, linewidth=1, linestyle="-.")
        place = {"xycoords": "axes fraction", "fontsize": 7, "color": "#555555"}
        axes.annotate(f"out of reach: a launch\ntakes {floor_ns / 1e3:.1f} µs", (0.03, 0.86), **place)
    axes.axhline(roof, color=figures.BLACK, zorder=1)
    if near:
        axes.axhline(near, color=figures.BLUE, linestyle=(0, (5, 1.5)), zorder=1)
    place = {"textcoords": "offset points", "fontsize": 7}
    if near:
        axes.annotate(f"L2\n{near:.1f}", (right, near), (3, -2), color=figures.BLUE, va="bottom", **place)
    axes.annotate(f"DRAM\n{roof:.1f}", (right, roof), (3, 3), color=figures.BLACK, va="top", **place)
    for cache, line in (("cold", "-"), ("warm", (0, (1.2, 1.2)))):
        copies = data[(data["kernel"] == COPY) & (data["cache"] == cache)]
        if "ceiling" in data:
            swept = data[(data["ceiling"] == "copy") & (data["cache"] == cache)]
            copies = swept if len(swept) else copies
        copies = copies[copies["moved_bytes"].between(1e6 * left, 1e6 * right)].sort_values("moved_bytes")
        label = f"copy, {cache}"
        axes.plot(
            copies["moved_bytes"] / 1e6, copies["bandwidth_byte_per_s"] / 1e12, color="#999999", linestyle=line,
            linewidth=1.1, label=label, zorder=2,
        )  # fmt: skip
    for kernel in kernels:
        _, colour, marker = style_of(kernel, kernels)
        chosen = rows[rows["kernel"] == kernel]
        x, y = chosen["moved_bytes"] / 1e6, chosen["bandwidth_byte_per_s"] / 1e12
        _points(axes, x, y, chosen["cache"], colour, marker, 4)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    axes.set(xlabel="input and output (MB)", ylabel="bandwidth (TB/s)")
    axes.set_title("B  Launch, L2 or DRAM?")
    _plain(axes.xaxis, [1, 10, 100, 1000])
    _plain(axes.yaxis, [0.1, 0.2, 0.5, 1, 2, 5, 10])
    axes.legend(loc="lower right", fontsize=7, handlelength=1.8)


def _draw_share(axes: Axes, rows: pd.DataFrame, kernels: list[str]) -> None:
    shapes = rows[["rows", "length", "moved_bytes"]].drop_duplicates().astype("int64")
    shapes = shapes.sort_values(["moved_bytes", "length"])
    places = {shape: place for place, shape in enumerate(zip(shapes["rows"], shapes["length"], strict=True))}
    bound = rows[(rows["bound"] == "launch") & (rows["cache"] == "cold")]
    for at in {places[shape] for shape in zip(bound["rows"], bound["length"], strict=True)}:
        axes.axvspan(at - 0.45, at + 0.45, color="#EFEFEF", zorder=0, linewidth=0)
        axes.annotate("launch-\nbound", (at, 0), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    x = pd.Series([places[shape] for shape in zip(rows["rows"], rows["length"], strict=True)], rows.index, dtype=float)
    axes.axhline(100, color=figures.BLACK, linewidth=1)
    axes.axhline(_AIM_PERCENT, color=figures.GREEN, linewidth=0.9, linestyle=":")
    axes.annotate("copy", (1, 100), (2, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center")
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    axes.annotate(f"{_AIM_PERCENT} %", (1, _AIM_PERCENT), (2, -3), color=figures.GREEN, **place)
    for number, kernel in enumerate(kernels):
        _, colour, marker = style_of(kernel, kernels)
        chosen = rows[rows["kernel"] == kernel]
        at = x[chosen.index] + 0.16 * (number - (len(kernels) - 1) / 2)
        spread = _spread(chosen)
        axes.vlines(at, *spread, color=colour, linewidth=0.9, zorder=2)
        _points(axes, at, chosen["copy_share_percent"], chosen["cache"], colour, marker, 4.5)
    labels = [f"{r:,}\n×{n:,}" for r, n in places]
    axes.set_xticks(range(len(labels)), labels, fontsize=7 if len(labels) < 11 else 6)
    axes.set(xlim=(-0.6, len(labels) - 0.4), ylim=(0, max(108, 1.05 * rows["copy_share_percent"].max())))
    axes.set(xlabel="rows × length, by size", ylabel="speed of a copy (%)")
    axes.set_title("C  Share of the speed of a copy of the same bytes")
    axes.grid(axis="y")


def _spread(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The share of a copy's speed at the 95th and the 5th percentile of the time."""
    ends = []
    for column in ("time_p95_ns", "time_p5_ns"):
        times = rows[column] if column in rows else rows["time_median_ns"]
        ends.append(rows["copy_share_percent"] * rows["time_median_ns"] / times)
    return ends[0], ends[1]


def _plain(axis: plt.Axes, ticks: list[float]) -> None:
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_minor_locator(plt.NullLocator())


def _value(result: CaseResult, name: str) -> float | None:
    return result[name] if name in result.summary else None


def table(result: CaseResult) -> tuple[pd.DataFrame, dict[str, str], dict[str, str]]:
    """Return the rows as a table, with headers and formats for people."""
    rows = result.data[result.data["kernel"].notna()]
    spreads = [name for name in ("time_p5_ns", "time_p95_ns") if name in rows]
    frame = rows[["kernel", "rows", "length", "cache", "time_median_ns", *spreads]].copy()
    frame[["rows", "length"]] = frame[["rows", "length"]].astype("int64")
    frame["bandwidth_gb_per_s"] = rows["bandwidth_byte_per_s"] / 1e9
    frame["achieved_gflop_per_s"] = rows["achieved_flop_per_s"] / 1e9
    for name in ("copy_share_percent", "speedup_ratio", "bound"):
        frame[name] = rows[name]
    headers = {
        "time_median_ns": "median time (ns)",
        "time_p5_ns": "5 % (ns)",
        "time_p95_ns": "95 % (ns)",
        "bandwidth_gb_per_s": "bandwidth (GB/s)",
        "achieved_gflop_per_s": "GFLOP/s",
        "copy_share_percent": "speed of a copy (%)",
        "speedup_ratio": "time / optimised (×)",
    }
    formats = dict.fromkeys(("time_median_ns", *spreads, "bandwidth_gb_per_s", "achieved_gflop_per_s"), "{:,.0f}")
    return frame, headers, formats | {"copy_share_percent": "{:.1f}", "speedup_ratio": "{:.2f}"}
