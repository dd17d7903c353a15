"""Table of the normalization roofline."""

import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.normalization_roofline.liger import PUBLISHED, PUBLISHED_SHAPE
from gpuledger.studies.normalization_roofline.reduction import COPY, share_of


def kernel_table(result: CaseResult) -> tuple[pd.DataFrame, dict[str, str], dict[str, str]]:
    """Return one row per kernel, shape and state of the L2, with headers and formats for people."""
    rows = result.data[result.data["kernel"].notna()]
    spreads = [name for name in ("time_p5_ns", "time_p95_ns") if name in rows]
    frame = rows[["kernel", "rows", "length", "cache", "time_median_ns", *spreads]].copy()
    frame[["rows", "length"]] = frame[["rows", "length"]].astype("int64")
    frame["bandwidth_gb_per_s"] = rows["bandwidth_byte_per_s"] / 1e9
    frame["achieved_gflop_per_s"] = rows["achieved_flop_per_s"] / 1e9
    last = [f"{share_of(rows)}_share_percent", "speedup_ratio", "bound"]
    frame[last] = rows[last]
    headers = {
        "time_median_ns": "median time (ns)",
        "time_p5_ns": "5 % (ns)",
        "time_p95_ns": "95 % (ns)",
        "bandwidth_gb_per_s": "bandwidth (GB/s)",
        "achieved_gflop_per_s": "GFLOP/s",
        "copy_share_percent": "speed of a copy (%)",
        "data_sheet_share_percent": "data sheet's bandwidth (%)",
        "speedup_ratio": "time / optimised (×)",
    }
    return frame, headers, {last[0]: "{:.1f}", "speedup_ratio": "{:.2f}"}


def beside_liger(result: CaseResult) -> str:
    """Compare measured kernels in fp32 with the published speeds of Liger-Kernel at the shape that both have."""
    count, length = PUBLISHED_SHAPE
    rows = result.data[result.data["kernel"].notna() & (result.data["kernel"] != COPY)]
    rows = rows[(rows["rows"] == count) & (rows["length"] == length) & (rows["cache"] == "cold")]
    measured = "library" not in result.summary and result.provenance["kind"] != "simulated"
    if not measured or rows.empty or (rows["moved_bytes"] != 8 * count * length).any():
        return ""
    own = [f"{row.kernel} {row.bandwidth_byte_per_s / 1e9:,.0f}" for row in rows.itertuples()]
    published = [f"{gpu}: Liger {liger:,}, PyTorch's layer {torch:,}" for gpu, (liger, torch) in PUBLISHED.items()]
    return (
        f"At {count}×{length} in fp32, L2 cold, the kernels here move {', '.join(own)} GB/s. Liger-Kernel's benchmark "
        f"has, in GB/s, for LayerNorm with weights ({'; '.join(published)}); see the dataset `liger`."
    )
