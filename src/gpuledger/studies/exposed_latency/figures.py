"""Panel: how long a user waits, by workload and probe."""

import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger.figures import BLACK, BLUE, GREEN, SKY, plain
from gpuledger.studies.exposed_latency.reduction import READ_OFF, UNKNOWN

#: Parts of a Neutrino bar from left to right: label and style.
PARTS = {
    "kernel": ("Neutrino: kernel", {"color": GREEN}),
    "epilogue": ("epilogue", {"color": BLUE}),
    "prologue": ("prologue", {"color": BLACK}),
    "other": (
        "both, read off the plot",
        {"color": "white", "edgecolor": BLUE, "hatch": "//////", "linewidth": 0.7},
    ),
    "unknown": ("parts unknown", {"color": SKY}),
}


def draw_latencies(axes: Axes, data: pd.DataFrame) -> None:
    """Draw two bars per workload and probe: Nsight Compute, and the stacked parts of Neutrino.

    A row takes a height of 1, and a gap of 0.5 separates workloads.
    """
    widths = data[["kernel_ratio", "epilogue_ratio", "prologue_ratio"]].copy()
    widths["other_ratio"] = data["other_ratio"].where(data["parts"] == READ_OFF)
    widths["unknown_ratio"] = data["neutrino_ratio"].where(data["parts"] == UNKNOWN)
    widths = widths.fillna(0)
    first = data["workload"] != data["workload"].shift()
    y = -(data.index + 0.5 * (first.cumsum() - 1))
    axes.barh(y + 0.2, data["ncu_ratio"], 0.36, color="#B8B8B8", label="Nsight Compute")
    left = 0 * data["neutrino_ratio"]
    for part, (label, style) in PARTS.items():
        width = widths[f"{part}_ratio"]
        there = width > 0
        if there.any():
            axes.barh(y[there] - 0.2, width[there], 0.36, left=left[there], label=label, **style)
        left = left + width
    for name, shift in (("ncu_ratio", 0.2), ("neutrino_ratio", -0.2)):
        for value, height in zip(data[name], y + shift, strict=True):
            axes.annotate(f"{value:.2f}×", (value, height), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(y, data["probe"].map(plain))
    for row in data.index[first]:
        place = {"transform": axes.get_yaxis_transform(), "va": "bottom", "ha": "right", "fontweight": "bold"}
        axes.text(-0.012, y[row] + 0.42, plain(data["workload"][row]), **place)
    axes.set_ylim(min(y) - 0.6, 1.1)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
