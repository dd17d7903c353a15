"""GEMMs that cutlass_profiler timed."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.cutlass_log import HEADER, read_log
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable

#: Columns that tell its CSV from others, and those that are read besides sizes.
COLUMNS = ("Provider", "OperationKind", "m", "n", "k", "A", "B", "Runtime")
_OTHERS = ("Operation", "Disposition", "Status", "batch_count", "op_class", "accum")
#: Its operands' types, as :mod:`.gemms` calls them.
_TYPES = {"f16": "float16", "bf16": "bfloat16", "tf32": "tf32", "s8": "int8", "e4m3": "fp8", "e5m2": "fp8"}
#: What it says of results that were right, or that nobody asked it to check.
_GOOD = ("passed", "not_verified")


def read_cutlass(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read the fastest of cutlass_profiler's kernels for each type and shape: it tries hundreds.

    Returns
    -------
    frame : DataFrame
        ``gemm_dtype, kernel, m, n, k, measured_s``. The kernel is empty, or says that sums are in 16 bits.
    skipped : list of str
        What the rows are that were left out.
    """
    if unit != "ms":
        raise InputError(path, "column Runtime", f"cutlass_profiler's times are in ms, not in {unit}", "give unit: ms")
    with path.open("rb") as file:
        written = HEADER.match(file.readline(4096).decode("utf-8-sig", "replace"))
    table = MeasuredTable(path, COLUMNS, _OTHERS, unit, cells=None if written else read_log(path))
    cells = table.cells.assign(types=_types(table.cells))
    left, skipped = pd.Series(True, cells.index), set()
    for name, good in (
        ("OperationKind", cells["OperationKind"].eq("gemm")),
        ("Status", _column(cells, "Status", "success").eq("success")),
        ("Disposition", _column(cells, "Disposition", _GOOD[0]).isin(_GOOD)),
        ("batch_count", pd.to_numeric(_column(cells, "batch_count", 1), errors="coerce").eq(1)),
        ("types", cells["types"].isin([*_TYPES.values(), "float32"])),
    ):
        skipped |= {f"{name} {value}" for value in _column(cells, name, "").loc[left & ~good].astype(str)}
        left &= good
    table.cells = cells[left]
    if table.cells.empty:
        problem = f"no row is a GEMM of a known type that went well (found {', '.join(sorted(skipped))})"
        raise InputError(path, "", problem, f"known are operands in f32 and {', '.join(_TYPES)}, one product a row")
    frame = pd.DataFrame({"gemm_dtype": table.cells["types"].to_numpy()})
    short = _column(table.cells, "accum", "f32").eq("f16").to_numpy()
    frame["kernel"] = np.where(short, "sums in 16 bits", "")
    for size in ("m", "n", "k"):
        frame[size] = table.whole_numbers(size)
    frame["measured_s"] = table.seconds("Runtime")
    fastest = frame.groupby([*frame.columns.drop("measured_s")], as_index=False, sort=False)["measured_s"].min()
    return fastest, sorted(skipped)


def _column(cells: pd.DataFrame, name: str, otherwise: object) -> pd.Series:
    return cells[name] if name in cells else pd.Series(otherwise, cells.index)


def _types(cells: pd.DataFrame) -> pd.Series:
    """Return the types of the multiplications; those of operands in f32 are in the kernel's name."""
    left, right = (cells[name].astype(str).str.partition(":")[0] for name in "AB")
    names, units = (_column(cells, name, "").astype(str) for name in ("Operation", "op_class"))
    types = left.map(_TYPES)
    single = left.eq("f32")
    types[single & units.eq("simt")] = "float32"
    types[single & units.ne("simt") & names.str.contains("tf32")] = "tf32"
    return types.where(left.eq(right), left + " x " + right).fillna(left)
