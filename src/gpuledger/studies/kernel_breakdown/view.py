"""For a page's viewer: the timeline of a recorded step, or the roofline of a predicted one."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.parts import one_part
from gpuledger.ledger.viewer import Axis, Guide, View
from gpuledger.studies.kernel_breakdown.deployment_figures import COLOURS
from gpuledger.studies.kernel_breakdown.roofline import Roofs, roofline_limits, roofline_points
from gpuledger.studies.kernel_breakdown.timeline.figures import colour_of


def view(result: CaseResult) -> View | None:
    """Return launches on their streams, or kernels under roofs; None for a model that has neither, and for sums."""
    launches = one_part(result.data, "launches")
    if len(launches):
        return _timeline(launches) if "start_s" in launches else None
    kernels = one_part(result.data, "kernels")
    return _roofline(kernels, result) if "bound" in kernels else None


def _timeline(rows: pd.DataFrame) -> View:
    first = rows.loc[rows["kind"] == "kernel", "start_s"].min() if "kind" in rows else 0.0
    rows = rows.sort_values("start_s", kind="stable")
    lane = "stream " + rows["stream"].astype(str)
    if "kind" in rows:
        lane = lane.where(rows["kind"] == "kernel", "copies")
    if "recording" in rows:
        lane = rows["recording"] + ", " + lane
    lanes = sorted(set(lane), reverse=True)
    low = lane.map({name: place for place, name in enumerate(lanes)}) + 0.1
    start, duration = 1e3 * (rows["start_s"] - first), 1e6 * rows["duration_s"]
    group = rows["kernel_class"].fillna("other").astype("str")
    end = start + duration / 1e3
    marks = pd.DataFrame({"x": start, "x_end": end, "y": low, "y_end": low + 0.8, "group": group})
    fields = {"kernel": rows["name"], "class": group, "start (ms)": start, "duration (µs)": duration}
    if "predicted_s" in rows:
        fields["predicted (µs)"] = 1e6 * rows["predicted_s"]
    if "repetition" in rows:
        fields["repetition"] = rows["repetition"].where(rows["repetition"] >= 0)
    for name in ("operator", "shapes"):
        if name in rows:
            fields[name] = rows[name].fillna("–").str.slice(0, 80)
    colors = {name: colour_of(name) for name in dict.fromkeys(group)}
    bands = [(name, place, place + 1, "#888888") for place, name in enumerate(lanes)]
    return View(
        "boxes", "launches", marks, fields, colors, Axis("time from the first kernel (ms)"), Axis("", bands=bands)
    )


def _roofline(kernels: pd.DataFrame, result: CaseResult) -> View | None:
    points, roofs = roofline_points(kernels), Roofs.of(result)
    # As in the figure, a kernel that finds all but nothing in DRAM has no point there.
    points = points[points["dram_intensity"] < roofline_limits(points, roofs)["xlim"][1]]
    if points.empty:
        return None
    intensity, rate = points["dram_intensity"], points["flop_per_s"] / 1e12
    shape = [" × ".join(f"{part:,}" for part in row) for row in points[["m", "n", "k"]].itertuples(index=False)]
    fields = {
        "kernel": points["kernel"],
        "phase": points["phase"],
        "m × n × k": shape,
        "launches in a step": points["count"],
        "bound": points["bound"],
        "time of each (µs)": 1e6 * points["time_s"],
        "share of the phase (%)": 100 * points["share"],
        "FLOP/byte": intensity,
        "TFLOP/s": rate,
    }
    low, high = intensity.min() / 2, intensity.max() * 4
    peak = max(roofs.peaks.values())
    guides = [
        Guide(f"{name} {value / 1e12:,.4g} TFLOP/s", (low, high), (value / 1e12,) * 2)
        for name, value in roofs.peaks.items()
    ]
    bandwidths = (("DRAM", roofs.dram_bytes_per_s, False), ("L2 (fitted)", roofs.l2_bytes_per_s, True))
    for name, bandwidth, dashed in bandwidths:
        if np.isfinite(bandwidth):
            ends = np.array([low, min(high, peak / bandwidth)])
            guides.append(Guide(f"{name} {bandwidth / 1e12:.3g} TB/s", ends, ends * bandwidth / 1e12, dashed=dashed))
    marks = pd.DataFrame({"x": intensity, "y": rate, "group": points["group"]})
    colors = {name: COLOURS.get(name, "#888888") for name in dict.fromkeys(points["group"])}
    x, y = Axis("arithmetic intensity (FLOP/byte of DRAM)", True), Axis("performance (TFLOP/s)", True)
    return View("points", "kernels", marks, fields, colors, x, y, guides)
