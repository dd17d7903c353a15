"""Times of normalization kernels in the layout of Liger-Kernel's benchmarks."""

import json

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.readers.tabular import read_cells

#: The kernel that the library provides, and the layer of ``torch.nn`` that the file calls "huggingface".
LIGER, TORCH_LAYER = "liger", "torch_nn"
#: Its kernels that normalize rows in single precision, and what they are called.
NORMALIZATIONS = {"layer_norm": "LayerNorm", "group_norm": "GroupNorm"}
#: Bandwidth (GB/s) of Liger's and of PyTorch's LayerNorm by GPU, at a shape that recordings have too: cases of the
#: dataset ``liger``, versions 0.2.1 (A100) and 0.6.0 (H100).
PUBLISHED = {"A100 SXM 80 GB": (1666, 1060), "H100 SXM": (2906, 1750)}
PUBLISHED_SHAPE = (4096, 16384)
_KERNELS = {"liger": LIGER, "huggingface": TORCH_LAYER}
_COLUMNS = (
    *("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_value"),
    *("y_value_50", "extra_benchmark_config_str", "gpu_name", "liger_version"),
)


def read_benchmark(case: Case) -> pd.DataFrame:
    """Read the forward times of one kernel, on one device, with one version of the library.

    Parameters
    ----------
    case : Case
        Its ``benchmark`` is the CSV of all benchmarks. ``kernel``, ``device`` and ``version`` say which of its
        ``kernel_name``, ``gpu_name`` and ``liger_version`` count: the file mixes GPUs and versions.

    Returns
    -------
    DataFrame
        ``kernel`` (``liger``, ``torch_nn``), ``rows``, ``length``, ``cache``, ``time_median_ns``. The cache is cold:
        the benchmark (``triton.testing.do_bench``) overwrites the L2 before every launch.
    """
    path = case.path("benchmark")
    table = read_cells(path, _COLUMNS, dtype=str, keep_default_na=False)
    for name in _COLUMNS:
        if name not in table:
            raise InputError(path, "line 1", f"the column '{name}' is missing", schemas.nearest(name, table.columns))
    table = table[(table["kernel_operation_mode"] == "forward") & (table["metric_name"] == "speed")]
    for key, name in (("kernel", "kernel_name"), ("device", "gpu_name"), ("version", "liger_version")):
        value, known = case.inputs[key], set(table[name])
        if value not in known:
            remedy = schemas.nearest(value, known)
            raise InputError(path, f"column {name}", f"there is no forward time for '{value}'", remedy)
        table = table[table[name] == value]
    frame = pd.DataFrame([_row(path, row) for row in table[table["kernel_provider"].isin(_KERNELS)].itertuples()])
    keys = ["kernel", "rows", "length"]
    if frame.empty or LIGER not in set(frame["kernel"]):
        raise InputError(path, "column kernel_provider", "there is no row of liger", "add its times")
    if frame.duplicated(keys).any():
        twice = frame[frame.duplicated(keys)].iloc[0]
        place = f"{twice['kernel']}, {twice['rows']}×{twice['length']}"
        raise InputError(path, place, "two rows have this kernel and shape", "keep one of them")
    return frame


def _row(path: str, row: tuple) -> dict:
    place = f"line {row.Index + 2}"
    try:
        about, x = json.loads(row.extra_benchmark_config_str), int(row.x_value)
        kind, unit, time = about["dtype"], row.metric_unit, float(row.y_value_50)
        if row.kernel_name == "group_norm":
            # Channels of one sample fall into groups, each of which is normalized like a row.
            shape = about["M"] * x // about["channels_per_group"], about["channels_per_group"] * about["H"]
        else:
            shape = about["M"], x
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise InputError(path, place, f"sizes or time cannot be read ({error!r})", "correct the row") from None
    if kind != "torch.float32" or unit != "ms":
        raise InputError(path, place, f"{kind} in {unit}, not torch.float32 in ms", "choose another kernel") from None
    if not all(isinstance(size, int) and 1 <= size <= 2**31 for size in shape) or not (np.isfinite(time) and time > 0):
        raise InputError(path, place, "a size or the time is not positive", "correct the row") from None
    return {
        "kernel": _KERNELS[row.kernel_provider],
        "rows": shape[0],
        "length": shape[1],
        "cache": "cold",
        # The file has single-precision milliseconds.
        "time_median_ns": round(1e6 * time, 1),
    }
