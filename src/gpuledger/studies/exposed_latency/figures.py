"""Panel: how long a user waits, by workload and probe."""

import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger.figures import BLACK, BLUE, GREEN, SKY, plain
from gpuledger.studies.exposed_latency.reduction import READ_OFF, UNKNOWN
from gpuledger.studies.exposed_latency.tables import ratio_text

#: Bars beside one another show no ratio that is so much larger than another.
_WIDE = 100.0
_NCU = "#B8B8B8"
#: Parts of a probe's bar from left to right: label and style.
PARTS = {
    "kernel": ("{}: kernel", {"color": GREEN}),
    "epilogue": ("epilogue", {"color": BLUE}),
    "prologue": ("prologue", {"color": BLACK}),
    "other": ("both, read off the plot", {"color": "white", "edgecolor": BLUE, "hatch": "//////", "linewidth": 0.7}),
    "unknown": ("parts unknown", {"color": SKY}),
}


def is_wide(data: pd.DataFrame) -> bool:
    """Whether the ratios span more than two decades: then the axis is logarithmic."""
    ratios = data[["ncu_ratio", "probed_ratio"]].to_numpy()
    return bool(ratios.max() > _WIDE * ratios.min())


def draw_latencies(axes: Axes, data: pd.DataFrame, tool: str) -> None:
    """Draw Nsight Compute and probes, by workload and probe: bars, or dots on a logarithmic axis (:func:`is_wide`).

    A row takes a height of 1, and a gap of 0.5 separates workloads.

    Parameters
    ----------
    tool : str
        Whose probes they are.
    """
    first = data["workload"] != data["workload"].shift()
    y = -(data.index + 0.5 * (first.cumsum() - 1))
    if is_wide(data):
        _draw_dots(axes, data, y, tool)
    else:
        _draw_bars(axes, data, y, tool)
    axes.set_yticks(y, data["probe"].map(plain))
    for row in data.index[first]:
        place = {"transform": axes.get_yaxis_transform(), "va": "bottom", "ha": "right", "fontweight": "bold"}
        axes.text(-0.012, y[row] + 0.42, plain(data["workload"][row]), **place)
    axes.set_ylim(min(y) - 0.6, 1.1)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _draw_bars(axes: Axes, data: pd.DataFrame, y: pd.Series, tool: str) -> None:
    """Draw two bars per row: Nsight Compute, and the stacked parts of a probe."""
    widths = data[["kernel_ratio", "epilogue_ratio", "prologue_ratio"]].copy()
    widths["other_ratio"] = data["other_ratio"].where(data["parts"] == READ_OFF)
    widths["unknown_ratio"] = data["probed_ratio"].where(data["parts"] == UNKNOWN)
    widths = widths.fillna(0)
    axes.barh(y + 0.2, data["ncu_ratio"], 0.36, color=_NCU, label="Nsight Compute")
    left = 0 * data["probed_ratio"]
    for part, (label, style) in PARTS.items():
        width = widths[f"{part}_ratio"]
        there = width > 0
        if there.any():
            label = plain(label.format(tool))
            axes.barh(y[there] - 0.2, width[there], 0.36, left=left[there], label=label, **style)
        left = left + width
    for name, shift in (("ncu_ratio", 0.2), ("probed_ratio", -0.2)):
        _write(axes, data[name], y + shift)


def _draw_dots(axes: Axes, data: pd.DataFrame, y: pd.Series, tool: str) -> None:
    """Draw three dots per row: the probed kernel alone, all of the wait for the probe, and Nsight Compute."""
    axes.set_xscale("log")
    axes.hlines(y, data["probed_ratio"], data["ncu_ratio"], color=_NCU, linewidth=0.8, zorder=1)
    style = {"linestyle": "none", "markersize": 6, "zorder": 3}
    axes.plot(data["ncu_ratio"], y, "s", color="#777777", label="Nsight Compute", **style)
    if data["kernel_ratio"].notna().any():
        words = plain(f"{tool}: kernel alone")
        axes.plot(data["kernel_ratio"], y, "o", color=GREEN, fillstyle="none", label=words, **style)
    axes.plot(data["probed_ratio"], y, "o", color=BLUE, label=plain(f"{tool}: all of the wait"), **style)
    for name in ("ncu_ratio", "probed_ratio"):
        _write(axes, data[name], y, beside=(4, 1.5), va="bottom")


def _write(
    axes: Axes, ratios: pd.Series, y: pd.Series, beside: tuple[float, float] = (3, 0), va: str = "center"
) -> None:
    for value, height in zip(ratios, y, strict=True):
        axes.annotate(ratio_text(value), (value, height), beside, textcoords="offset points", va=va, fontsize=7)
