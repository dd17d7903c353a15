"""Panels of the normalization roofline; the notebook puts them together."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.normalization_roofline.liger import LIGER, TORCH_LAYER
from gpuledger.studies.normalization_roofline.reduction import COPY, roof_bandwidth, share_of

#: Label, colour and marker by kernel; kernels that are not listed get the rest.
STYLES: Mapping[str, tuple[str, str, str]] = {
    "one_pass": ("optimised, one pass", figures.GREEN, "o"),
    "two_pass": ("straightforward, two passes", figures.ORANGE, "s"),
    "torch": ("PyTorch", figures.PURPLE, "D"),
    LIGER: ("Liger", figures.GREEN, "o"),
    TORCH_LAYER: ("PyTorch's layer", figures.BLUE, "d"),
    "liger_layer": ("Liger's layer", figures.SKY, "v"),
}
_REST = [(figures.SKY, "v"), (figures.YELLOW, "P"), (figures.BLACK, "X")]

Styles = Mapping[str, tuple[str, str, str]]


def kernel_styles(rows: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Return label, colour and marker of every kernel in `rows`: those of ``STYLES`` first, then others."""
    present = list(dict.fromkeys(rows["kernel"]))
    others = [name for name in present if name not in STYLES]
    found = {name: style for name, style in STYLES.items() if name in present}
    return found | {name: (name, *_REST[place % len(_REST)]) for place, name in enumerate(others)}


def legend_handles(styles: Styles, rows: pd.DataFrame) -> list[Line2D]:
    """Return legend entries for the kernels, and for filled and open markers if `rows` has both states of the L2."""
    entries = [(label, color, marker, color) for label, color, marker in styles.values()]
    if rows["cache"].nunique() > 1:
        entries += [("L2 cold", figures.GREY, "o", figures.GREY), ("L2 warm", figures.GREY, "o", "none")]
    return [
        Line2D([], [], linestyle="none", marker=marker, color=color, markerfacecolor=face, label=label)
        for label, color, marker, face in entries
    ]


def _points(axes: Axes, x: pd.Series, y: pd.Series, cache: pd.Series, style: tuple[str, str, str], size: float) -> None:
    """Draw points, filled where the L2 was cold."""
    _, color, marker = style
    for state, face in (("warm", "white"), ("cold", color)):
        chosen = (cache == state) & y.notna()
        axes.plot(
            x[chosen], y[chosen], marker, color=color, markerfacecolor=face, markersize=size,
            markeredgewidth=0.9, linestyle="none", zorder=4 if state == "cold" else 3,
        )  # fmt: skip


def draw_roofline(
    axes: Axes, result: CaseResult, rows: pd.DataFrame, styles: Styles, xlim: tuple[float, float] = (0.08, 200)
) -> None:
    """Draw roofs and what each kernel and shape reaches.

    Parameters
    ----------
    rows : DataFrame
        Rows of the result's data to draw as points.
    styles : mapping
        By kernel; see :func:`kernel_styles`.
    xlim : (float, float)
        Arithmetic intensities (FLOP/byte).
    """
    low, high = xlim
    intensity = np.geomspace(low, high, 200)
    peak = _value(result, "fp32_roof") or _value(result, "data_sheet_fp32_peak") or np.inf
    roof, sheet = roof_bandwidth(result), _value(result, "data_sheet_bandwidth")
    if sheet and "dram_roof" in result.summary:
        limit = _value(result, "data_sheet_fp32_peak") or np.inf
        style = {"color": figures.GREY, "linewidth": 0.9, "linestyle": ":", "zorder": 1}
        axes.plot(intensity, np.minimum(limit, sheet * intensity) / 1e12, label="data sheet", **style)
        axes.legend(loc="lower right", fontsize=7, handlelength=1.8)
    roofs = [("DRAM", roof, figures.BLACK, "-")]
    if "l2_roof" in result.summary:
        roofs.insert(0, ("L2", result["l2_roof"], figures.BLUE, (0, (5, 1.5))))
    for name, bandwidth, color, line in roofs:
        axes.plot(intensity, np.minimum(peak, bandwidth * intensity) / 1e12, color=color, linestyle=line, zorder=2)
        offset, side = (5, "bottom") if name == "L2" else (-5, "top")
        axes.annotate(
            f"{name} {bandwidth / 1e12:.1f} TB/s", (0.1, 0.1 * bandwidth / 1e12), (0, offset), rotation=45,
            textcoords="offset points", transform_rotates_text=True, rotation_mode="anchor", color=color, fontsize=7,
            va=side,
        )  # fmt: skip
    if np.isfinite(peak):
        place = {"textcoords": "offset points", "fontsize": 7}
        axes.annotate(f"FP32 {peak / 1e12:.1f} TFLOP/s", (high, peak / 1e12), (-2, 3), ha="right", **place)
        balance = peak / roof
        axes.axvline(balance, color=figures.GREY, linewidth=0.8, linestyle=":")
        place |= {"xycoords": ("data", "axes fraction"), "color": "#666666"}
        axes.annotate(f"balance\n{balance:.1f}", (balance, 0.12), (3, 0), **place)
    for kernel, style in styles.items():
        own = rows[rows["kernel"] == kernel]
        _points(axes, own["intensity_flop_per_byte"], own["achieved_flop_per_s"] / 1e12, own["cache"], style, 3.5)
    # The roof's label starts at 0.1 FLOP/byte.
    bottom = min(0.5 * rows["achieved_flop_per_s"].min(), 0.06 * roof) / 1e12
    top = 2.5 * (peak if np.isfinite(peak) else high * roof) / 1e12
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top))
    axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="performance (TFLOP/s)")
    _plain(axes.xaxis, [0.1, 1, 10, 100])


def draw_bandwidth(axes: Axes, result: CaseResult, rows: pd.DataFrame, styles: Styles) -> None:
    """Draw bandwidth over size, beside copies, roofs and the launch floor; parameters as of :func:`draw_roofline`."""
    left, right = rows["moved_bytes"].min() / 2 / 1e6, 2 * rows["moved_bytes"].max() / 1e6
    roof, near = roof_bandwidth(result) / 1e12, (_value(result, "l2_roof") or 0) / 1e12
    bottom, top = 0.5 * rows["bandwidth_byte_per_s"].min() / 1e12, 2.2 * max(roof, near)
    if floor_ns := _value(result, "launch_floor"):
        sizes = np.geomspace(left, right, 100)
        # MB/ns are PB/s: the apparent bandwidth of a kernel that does nothing.
        at_floor = 1e3 * sizes / floor_ns
        axes.fill_between(sizes, np.minimum(at_floor, top), top, color="#EFEFEF", zorder=0, linewidth=0)
        axes.plot(sizes, at_floor, color=figures.GREY, linewidth=1, linestyle="-.")
        words = f"out of reach: a launch\ntakes {floor_ns / 1e3:.1f} µs"
        axes.annotate(words, (0.03, 0.86), xycoords="axes fraction", fontsize=7, color="#555555")
    place = {"textcoords": "offset points", "fontsize": 7}
    axes.axhline(roof, color=figures.BLACK, zorder=1)
    axes.annotate(f"DRAM\n{roof:.1f}", (right, roof), (3, 3), color=figures.BLACK, va="top", **place)
    if near:
        axes.axhline(near, color=figures.BLUE, linestyle=(0, (5, 1.5)), zorder=1)
        axes.annotate(f"L2\n{near:.1f}", (right, near), (3, -2), color=figures.BLUE, va="bottom", **place)
    for cache, line in (("cold", "-"), ("warm", (0, (1.2, 1.2)))):
        copies = _copies(result.data, cache)
        copies = copies[copies["moved_bytes"].between(1e6 * left, 1e6 * right)].sort_values("moved_bytes")
        if len(copies):
            x, y = copies["moved_bytes"] / 1e6, copies["bandwidth_byte_per_s"] / 1e12
            axes.plot(x, y, color="#999999", linestyle=line, linewidth=1.1, label=f"copy, {cache}", zorder=2)
    for kernel, style in styles.items():
        own = rows[rows["kernel"] == kernel]
        _points(axes, own["moved_bytes"] / 1e6, own["bandwidth_byte_per_s"] / 1e12, own["cache"], style, 4)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    axes.set(xlabel="input and output (MB)", ylabel="bandwidth (TB/s)")
    _plain(axes.xaxis, [1, 10, 100, 1000])
    _plain(axes.yaxis, [0.1, 0.2, 0.5, 1, 2, 5, 10])
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=7, handlelength=1.8)


def _copies(data: pd.DataFrame, cache: str) -> pd.DataFrame:
    """Return the sweep of copies among the ceilings, or else the copies of the kernels' shapes."""
    own = data[data["cache"] == cache]
    swept = own[own["ceiling"] == "copy"] if "ceiling" in own else own[:0]
    return swept if len(swept) else own[own["kernel"] == COPY]


def draw_share(axes: Axes, rows: pd.DataFrame, styles: Styles, aim_percent: float | None = 90) -> None:
    """Draw each kernel's speed, shape by shape, relative to a copy of the same bytes or else to the data sheet.

    Parameters
    ----------
    styles : mapping
        By kernel; see :func:`kernel_styles`.
    aim_percent : float, optional
        Where a line marks the aim; None for none.
    """
    shares = rows[f"{share_of(rows)}_share_percent"]
    copied = share_of(rows) == "copy"
    short, label = ("copy", "speed of a copy (%)") if copied else ("data\nsheet", "data sheet's bandwidth (%)")
    shapes = rows[["rows", "length", "moved_bytes"]].drop_duplicates().astype("int64")
    shapes = shapes.sort_values(["moved_bytes", "length"])
    places = {shape: place for place, shape in enumerate(zip(shapes["rows"], shapes["length"], strict=True))}
    bound = rows[(rows["bound"] == "launch") & (rows["cache"] == "cold")]
    for at in {places[shape] for shape in zip(bound["rows"], bound["length"], strict=True)}:
        axes.axvspan(at - 0.45, at + 0.45, color="#EFEFEF", zorder=0, linewidth=0)
        axes.annotate("launch-\nbound", (at, 0), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    x = pd.Series([places[shape] for shape in zip(rows["rows"], rows["length"], strict=True)], rows.index, dtype=float)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    axes.axhline(100, color=figures.BLACK, linewidth=1)
    axes.annotate(short, (1, 100), (2, 0), **place)
    if aim_percent is not None:
        axes.axhline(aim_percent, color=figures.GREEN, linewidth=0.9, linestyle=":")
        axes.annotate(f"{aim_percent:g} %", (1, aim_percent), (2, -3), color=figures.GREEN, **place)
    for number, (kernel, style) in enumerate(styles.items()):
        own = rows[rows["kernel"] == kernel]
        at = x[own.index] + 0.16 * (number - (len(styles) - 1) / 2)
        axes.vlines(at, *_spread(own, shares[own.index]), color=style[1], linewidth=0.9, zorder=2)
        _points(axes, at, shares[own.index], own["cache"], style, 4.5)
    labels = [f"{count:,}\n×{length:,}" for count, length in places]
    axes.set_xticks(range(len(labels)), labels, fontsize=7 if len(labels) < 11 else 6)
    axes.set(xlim=(-0.6, len(labels) - 0.4), ylim=(0, max(108, 1.05 * shares.max())))
    axes.set(
        xlabel="rows × length, by size",
        ylabel=label,
    )
    axes.grid(axis="y")


def _spread(rows: pd.DataFrame, shares: pd.Series) -> list[pd.Series]:
    """Return the shares at the 95th and the 5th percentile of the time."""
    times = (rows[name] if name in rows else rows["time_median_ns"] for name in ("time_p95_ns", "time_p5_ns"))
    return [shares * rows["time_median_ns"] / time for time in times]


def _plain(axis: Axis, ticks: list[float]) -> None:
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_minor_locator(plt.NullLocator())


def _value(result: CaseResult, name: str) -> float | None:
    return result[name] if name in result.summary else None
