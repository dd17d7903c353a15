"""Measured times of GEMMs."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.cutlass import read_cutlass
from gpuledger.readers.kernel_tables.cutlass_log import is_log
from gpuledger.readers.kernel_tables.deepgemm_log import is_deepgemm, read_deepgemm
from gpuledger.readers.kernel_tables.mamf import is_mamf, read_mamf
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable, median_of_equal
from gpuledger.readers.tabular import by_value

#: The unit of rates that may stand in for times of GEMMs.
RATE = "TFLOP/s"
_HEAD = 1 << 16

#: What benchmarks call a GEMM's type: the precision of its multiplications here, and the group that it is judged in.
#: Other kernels do ``fp8_static`` and ``fp8_ootb`` than ``fp8``; with ``_wo`` only the weights are in fewer bits.
DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), ("bf16", "16-bit")),
    **dict.fromkeys(("float16", "fp16", "half"), ("fp16", "16-bit")),
    **dict.fromkeys(("fp8", "float8_e4m3fn"), ("fp8", "fp8")),
    **{name: ("fp8", name) for name in ("fp8_static", "fp8_ootb")},
    "fp8_block": ("fp8_block", "fp8_block"),
    "int8": ("int8", "int8"),
    "sq": ("int8", "int8_smoothquant"),
    **{name: ("fp4", name) for name in ("nvfp4", "fp4")},
    **{name: ("bf16", name) for name in ("int8_wo", "int4_wo")},
    **dict.fromkeys(("float32", "fp32"), ("fp32", "fp32")),
    "tf32": ("tf32", "tf32"),
}
_KNOWN = ", ".join(DTYPES)


def read_gemms(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read measured GEMMs.

    Parameters
    ----------
    path : path
        A Parquet or CSV file with the columns ``gemm_dtype, m, n, k, latency`` and, if it likes, ``kernel_source``
        and ``framework`` (others are ignored). With the unit ``TFLOP/s`` the column ``rate`` takes the latency's place.
        Or what cutlass_profiler writes or prints, what DeepGEMM's tests print, or the log of mamf-finder.py.
    unit : str
        Of the times: ``s``, ``ms``, ``us`` or ``ns``; or `RATE`.

    Returns
    -------
    frame : DataFrame
        ``group, framework, kernel, precision, m, n, k, measured_s``; one row per kernel and shape (the median
        of equal ones).
    skipped : list of str
        Types that no model knows; their rows are left out.
    """
    if own := _reader_of(path):
        found, skipped = own(path, unit)
        if unknown := sorted(set(found["gemm_dtype"]) - set(DTYPES)):
            raise InputError(path, "", f"no row of a known type (found {', '.join(unknown)})", f"known are: {_KNOWN}")
        precision, group = (
            found["gemm_dtype"].map({name: of[place] for name, of in DTYPES.items()}) for place in (0, 1)
        )
        return found.drop(columns="gemm_dtype").assign(framework="", precision=precision, group=group), skipped
    rates = unit == RATE
    name = "rate" if rates else "latency"
    wanted, optional = ["gemm_dtype", "m", "n", "k", name], ["kernel_source", "framework"]
    table = MeasuredTable(path, wanted, optional, unit)
    times = table.positive_numbers(name) if rates else table.seconds()
    sizes = {size: table.whole_numbers(size) for size in ("m", "n", "k")}
    dtypes = by_value(table.texts("gemm_dtype"), lambda names: names.str.strip().str.lower().str.removeprefix("torch."))
    skipped = sorted(set(dtypes.unique()) - set(DTYPES))
    if not dtypes.isin(list(DTYPES)).any():
        problem = f"no row of a known type (found {', '.join(skipped)})"
        raise InputError(path, "column gemm_dtype", problem, f"known are: {_KNOWN}")
    frame = pd.DataFrame({"group": by_value(dtypes, {name: group for name, (_, group) in DTYPES.items()})})
    for name, source in (("framework", "framework"), ("kernel", "kernel_source")):
        frame[name] = table.cells[source].fillna("").astype(str) if source in table else ""
    frame["precision"] = by_value(dtypes, {name: precision for name, (precision, _) in DTYPES.items()})
    flop = 2.0 * sizes["m"] * sizes["n"] * sizes["k"]
    frame = frame.assign(**sizes, measured_s=flop / (times * 1e12) if rates else times)
    return median_of_equal(frame.dropna(subset=["precision"])), skipped


def _reader_of(path: Path) -> Callable[[Path, str], tuple[pd.DataFrame, list[str]]] | None:
    """Return what reads a file that begins like what a benchmark of GEMMs writes or prints; None of a plain table."""
    if path.suffix == ".parquet" or not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD).decode("utf-8", "replace")
    own = ((is_log, read_cutlass), (is_mamf, read_mamf), (is_deepgemm, read_deepgemm))
    return next((read for tells, read in own if tells(head)), None)
