"""The roofline for a page's viewer: kernels with time, bound and share of the nearest roof."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.figures import BLACK
from gpuledger.ledger.viewer import Axis, Guide, View
from gpuledger.readers.kernel_names import labels
from gpuledger.studies.kernel_profile.figures import BASELINE, COLOURS, roofline_points
from gpuledger.studies.kernel_profile.tables import baseline_table, kernel_table

_PEAKS = {"tensor": "tensor cores", "fp32": "FP32", "fp64": "FP64"}


def view(result: CaseResult) -> View | None:
    """Return the kernels over their DRAM traffic, a baseline's in black; None if the report lacks FLOPs or bytes."""
    points = roofline_points(kernel_table(result.data)).assign(group=lambda rows: rows["bound"].fillna("unknown"))
    before = baseline_table(result.data)
    if before is not None:
        points = pd.concat([points, roofline_points(before).assign(group=BASELINE)], ignore_index=True)
    points = points[points["dram_bytes"].fillna(0) > 0]
    if points.empty:
        return None
    x = points["dram_intensity_flop_per_byte"].astype(float)
    marks = pd.DataFrame({"x": x, "y": points["flop_per_s"], "group": points["group"]})
    fields = {
        "kernel": labels(points["kernel"], 60),
        "launches": points["launches"],
        "time (µs)": points["time_s"] * 1e6,
        "share of the time (%)": points["share_percent"],
        "limited by": points["limiter"],
        "of the nearest roof (%)": points["achieved_percent"],
        "FLOP/byte": x,
        "TFLOP/s": points["flop_per_s"] / 1e12,
    }
    colors = {name: COLOURS.get(name, "#888888") for name in dict.fromkeys(points["group"])}
    if BASELINE in colors:
        colors[BASELINE] = BLACK
    x_axis, y_axis = Axis("arithmetic intensity (FLOP/byte of DRAM)", True), Axis("FLOP/s", True)
    return View("points", "kernels", marks, fields, colors, x_axis, y_axis, _roofs(result, x))


def _roofs(result: CaseResult, x: pd.Series) -> list[Guide]:
    known = {name: entry["value"] for name, entry in result.summary.items() if name.startswith("roof_")}
    peaks = {name: known[f"roof_{name}_flop_per_s"] for name in _PEAKS if f"roof_{name}_flop_per_s" in known}
    low, high = float(x.min()) / 4, float(x.max()) * 6
    guides = [
        Guide(f"{_PEAKS[name]} {peak / 1e12:.4g} TFLOP/s", (low, high), (peak, peak), COLOURS[name])
        for name, peak in peaks.items()
    ]
    if rate := known.get("roof_dram_bytes_per_s"):
        ridge = max(peaks.values(), default=np.inf) / rate
        ends = np.array([low, min(high, ridge)])
        guides.append(Guide(f"DRAM {rate / 1e12:.4g} TB/s", ends, ends * rate, COLOURS["dram"]))
    return guides
