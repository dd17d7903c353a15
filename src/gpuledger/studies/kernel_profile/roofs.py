"""Roofs, and how near each launch comes to them."""

import re

import numpy as np
import pandas as pd

from gpuledger.ledger.stored_data import Columns
from gpuledger.readers.gpus import Gpu, find_gpu, gpu_named

#: Below this share of every roof, NVIDIA's own rule (SpeedOfLight) calls a kernel bound by latency.
LATENCY_PERCENT = 60
#: Resources whose share of their peak is known, and how they are called.
RESOURCES = {
    "dram": "DRAM",
    "l2": "L2",
    "l1": "L1",
    "memory": "memory",
    "sm": "SM throughput",
    "fp64": "FP64",
    "fp32": "FP32",
    "tensor": "tensor cores",
}
_TYPES = (  # of matrix operands, by what kernel names say
    (re.compile(r"(?i)tf32"), "tf32"),
    (re.compile(r"(?i)e4m3|e5m2|fp8|f8f6f4"), "fp8"),
    (re.compile(r"(?i)bf16|bfloat16"), "bf16"),
    (re.compile(r"(?i)f64|dgemm|double"), "fp64"),
    (re.compile(r"(?i)i8|s8|int8"), "int8"),
)


def gpu_of(named: str | None, device: str | None, places: tuple[str, str]) -> Gpu | None:
    """Return the data sheet of a GPU that a case names, or of the device that its dataset names, if there is one."""
    if named:
        return find_gpu(named, file=places[0], place=places[1])
    return gpu_named(device) if device else None


def common_roofs(launches: Columns) -> dict[str, float | str]:
    """Return what all launches of a recording say of its roofs: ``dram, l2`` (byte/s) and the ``matrix`` type."""
    percent, rates = {}, {}
    for name in ("dram", "l2"):
        percent[name] = launches[f"{name}_percent"]
        rates[name] = launches[f"{name}_bytes"] / launches["time_s"] / percent[name] * 100
    return {
        # Traffic over time over the share of the peak, where the share has two digits.
        "dram": rates["dram"][percent["dram"] >= 10].median(),
        # No data sheet has the bandwidth of L2. ncu's share is that of its busiest part: the highest bound is the
        # nearest.
        "l2": rates["l2"][percent["l2"] >= 2].max(),
        "matrix": _matrix_type(launches),
    }


def find_roofs(launches: pd.DataFrame, gpu: Gpu | None, common: dict[str, float | str]) -> pd.DataFrame:
    """Return the roofs of launches: what the report records, else what the data sheet says.

    Parameters
    ----------
    launches : DataFrame
        From `gpuledger.readers.ncu.quantities.launch_quantities`.
    common : dict
        From `common_roofs`, of all launches.

    Returns
    -------
    DataFrame
        By launch ``dram, l2`` (byte/s) and ``fp32, fp64, tensor`` (FLOP/s); NaN: unknown. Peaks of computing are at
        the clock of the launch, where it is known.
    """
    sheet = {} if gpu is None else dict(gpu.flops)
    scale = 1.0 if gpu is None else (launches["clock_hz"] / gpu.clock_hz).clip(upper=1).fillna(1.0)
    found = pd.DataFrame({"dram": launches["dram_peak_bytes_per_s"], "l2": launches["l2_peak_bytes_per_s"]})
    found["dram"] = found["dram"].fillna(common["dram"])
    if gpu is not None:
        found["dram"] = found["dram"].fillna(gpu.dram_bytes_per_s)
    found["l2"] = found["l2"].fillna(common["l2"])
    for name in ("fp32", "fp64"):
        found[name] = launches[f"{name}_peak_flop_per_s"].fillna((sheet.get(name) or np.nan) * scale)
    found["tensor"] = (sheet.get(common["matrix"]) or sheet.get("fp16") or np.nan) * scale
    return found


def _matrix_type(launches: Columns) -> str:
    """Return the type of the matrix operands of the kernel with most tensor work."""
    work = launches["tensor_flops"].fillna(0)
    if not (work > 0).any():
        return "fp16"
    name = launches["kernel"].iat[int(work.astype("int64").argmax())][:4096]
    return next((kind for pattern, kind in _TYPES if pattern.search(name)), "fp16")


def shares(launches: pd.DataFrame, roofs: pd.DataFrame) -> pd.DataFrame:
    """Return how near launches come to each roof (percent), columns as in `RESOURCES`.

    ncu's own share comes first; otherwise work over time over the roof. Its share of all memory together stands for the
    levels that the report lacks.
    """
    time = launches["time_s"].where(launches["time_s"] > 0)
    found = {}
    for name in RESOURCES:
        found[name] = launches.get(f"{name}_percent", pd.Series(np.nan, launches.index))
        if name in roofs:
            work = launches[f"{name}_{'bytes' if name in ('dram', 'l2') else 'flops'}"].astype("float64")
            found[name] = found[name].fillna(100 * (work / time / roofs[name]))
    result = pd.DataFrame(found)
    result["memory"] = result["memory"].where(result[["dram", "l2", "l1"]].isna().any(axis=1))
    return result
