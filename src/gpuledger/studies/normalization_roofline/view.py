"""The roofline for a page's viewer: kernels and shapes, each with its time, bandwidth and bound."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import Axis, Guide, View
from gpuledger.studies.normalization_roofline.figures import kernel_styles
from gpuledger.studies.normalization_roofline.reduction import COPY, roof_bandwidth


def view(result: CaseResult) -> View | None:
    """Return every kernel and shape below the roofs of DRAM and L2."""
    rows = result.data[result.data["kernel"].notna() & (result.data["kernel"] != COPY)]
    if rows.empty:
        return None
    styles = kernel_styles(rows)
    name = rows["kernel"].map({kernel: style[0] for kernel, style in styles.items()})
    intensity, rate = rows["intensity_flop_per_byte"], rows["achieved_flop_per_s"] / 1e12
    shape = [f"{count:,.0f} × {length:,.0f}" for count, length in zip(rows["rows"], rows["length"], strict=True)]
    fields = {
        "kernel": name,
        "rows × length": shape,
        "L2": rows["cache"],
        "bound": rows["bound"],
        "time (µs)": rows["time_median_ns"] / 1e3,
        "bandwidth (GB/s)": rows["bandwidth_byte_per_s"] / 1e9,
        "FLOP/byte": intensity,
        "TFLOP/s": rate,
    }
    peak = next((result[name] for name in ("fp32_roof", "data_sheet_fp32_peak") if name in result.summary), np.inf)
    roofs = [("DRAM", roof_bandwidth(result), "#222222", False)]
    if "l2_roof" in result.summary:
        roofs.append(("L2", result["l2_roof"], "#0072B2", True))
    low, high = intensity.min() / 4, intensity.max() * 200
    guides = []
    for words, bandwidth, color, dashed in roofs:
        ends = np.array([low, min(high, peak / bandwidth)])
        guides.append(Guide(f"{words} {bandwidth / 1e12:.3g} TB/s", ends, ends * bandwidth / 1e12, color, dashed))
    if np.isfinite(peak):
        guides.append(Guide(f"FP32 {peak / 1e12:.4g} TFLOP/s", (low, high), (peak / 1e12, peak / 1e12)))
    marks = pd.DataFrame({"x": intensity, "y": rate, "group": name})
    colors = {style[0]: style[1] for style in styles.values()}
    x, y = Axis("arithmetic intensity (FLOP/byte)", True), Axis("performance (TFLOP/s)", True)
    return View("points", "kernels and shapes", marks, fields, colors, x, y, guides)
