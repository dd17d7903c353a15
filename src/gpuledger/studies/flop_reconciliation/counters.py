"""Read the counters of a recording, launch by launch, and check them."""

from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers import ncu
from gpuledger.readers.ncu import flops
from gpuledger.readers.ncu.values import Values

COUNTERS = ("fadd", "fmul", "ffma")
_METRIC = r"^(?:sm|smsp)__sass_thread_inst_executed_op_(?:[fdh](?:add|mul)|[fdh]fma)2?_pred_on\.sum$"


def read_counters(path: str | Path) -> tuple[ncu.Report, pd.DataFrame]:
    """Read a recording and count its FLOPs.

    Parameters
    ----------
    path : path
        Output of Nsight Compute in any format, with the counters fadd, fmul and ffma, as sums or per cycle.

    Returns
    -------
    report : gpuledger.readers.ncu.Report
    counters : DataFrame, shape (launches, 5)
        ``fadd, fmul, ffma`` (instructions), ``flops`` (of all kinds that were collected; ``<NA>`` for a tensor-core
        kernel without a tensor-core counter) as Int64, and ``note`` on how they were counted.
    """
    report = ncu.read(path)
    unread = report.metrics["metric"].astype(str).str.match(_METRIC) & report.metrics["value"].isna()
    for row in report.metrics[unread].head(1).to_dict("records"):
        place, problem = f"launch {row['launch']}, {row['metric']}", f"{row.get('text')!r} is not a number"
        raise InputError(path, place, problem, "record it again, or correct the value")
    recorded = Values(report)
    wide = recorded.counters(r"__sass_thread_inst|tensor")
    found = {name: flops.counter(wide, name, file=path) for name in COUNTERS}
    for name, values in found.items():
        if values is None or values.isna().any():
            at = "" if values is None else f"launch {values.index[int(values.isna().to_numpy().argmax())]}"
            remedy = f"collect smsp__sass_thread_inst_executed_op_{name}_pred_on.sum for every launch"
            raise InputError(path, at, f"the counter {name} was not collected", remedy)
    counted = flops.count_flops(wide, report.launches["kernel"].astype(str), file=path)
    note = counted["note"]
    if any(name in counter for counter in recorded.derived for name in COUNTERS):
        note = note.where(note == "", note + "; ") + "counts from rates per cycle: not better than their digits"
    return report, pd.DataFrame({**found, "flops": counted["total_flops"], "note": note})
