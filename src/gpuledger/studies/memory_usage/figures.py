"""Panel: the memory of every probe by workload."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patheffects import withStroke

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import size_text
from gpuledger.ledger.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, plain
from gpuledger.studies.memory_usage.tables import ORIGINAL, probe_series

COLOURS = (BLUE, GREEN, ORANGE, SKY)
MARKERS = "osDPX"
# Inches between markers of a line whose labels would cover each other.
_NEAR = 0.55


def draw_workloads(axes: Axes, data: pd.DataFrame) -> None:
    """Draw one line per workload, top down: probe memory over original use, with the memory beside each marker.

    The right axis shows the original use. The scale and limits of the x axis are set before.
    """
    originals = data[data["use"] == ORIGINAL]
    rows = {key: -y for y, key in enumerate(zip(originals["model"], originals["batch_size"], strict=True))}
    for y in rows.values():
        axes.axhline(y, color="#eeeeee", linewidth=0.7, zorder=0)
    inch = axes.get_window_extent().width / axes.figure.dpi / np.ptp(np.log10(axes.get_xlim()))
    written: dict[float, list[float]] = {}  # where labels above markers are, by height
    for position, (label, part) in enumerate(probe_series(data).items()):
        dmat = part["probe_class"].iloc[0] == "dmat"
        colour = PURPLE if dmat else COLOURS[position % len(COLOURS)]
        marker = "^" if dmat else MARKERS[position % len(MARKERS)]
        y = [rows[key] - 0.16 for key in zip(part["model"], part["batch_size"], strict=True)]
        label = plain(f"DMAT: {label}" if dmat and label.lower() != "dmat" else label)
        axes.scatter(part["ratio_to_original"], y, label=label, color=colour, s=26, marker=marker, zorder=3)
        # In one column, markers are nearer to each other than their labels are long.
        labelled = [] if figures.for_columns else zip(part["ratio_to_original"], y, part["memory_bytes"], strict=True)
        for x, height, memory in labelled:
            place, others = inch * np.log10(x), written.setdefault(height, [])
            above = all(abs(place - other) > _NEAR for other in others)
            at = {"xytext": (0, 4.5 if above else -4), "textcoords": "offset points", "fontsize": 6.8}
            note = axes.annotate(size_text(memory), (x, height), ha="center", va="bottom" if above else "top", **at)
            others += [place] * above
            # Small text needs more contrast than a marker.
            note.set(
                color=0.72 * np.array(to_rgb(colour)), path_effects=[withStroke(linewidth=2.5, foreground="white")]
            )
    axes.set_yticks(
        list(rows.values()), [plain(f"{model}, batch {batch}" if batch else model) for model, batch in rows]
    )
    axes.set_ylim(min(rows.values()) - 0.5, 0.65)
    axes.tick_params(axis="y", length=0)
    right = axes.secondary_yaxis("right")
    right.set_yticks(list(rows.values()), [size_text(memory) for memory in originals["memory_bytes"]])
    right.set_ylabel("original use")
    right.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)
