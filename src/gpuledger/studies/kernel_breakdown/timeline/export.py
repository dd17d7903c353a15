"""A recorded step, or predicted passes, as a Chrome trace."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.parts import split_parts
from gpuledger.ledger.trace_json import PerfettoTrace
from gpuledger.studies.kernel_breakdown.parts import made


def export_step(result: CaseResult) -> PerfettoTrace:
    """Make a trace of a step: its streams, what launched each kernel, and the predicted durations beside them.

    A recording of sums only gives an empty trace.
    """
    trace, parts = PerfettoTrace(), split_parts(result.data)
    rows, kind = parts["launches"], made(result)
    gpu, beside, cpu = f"GPU, {kind}", f"GPU, predicted durations at {kind} starts", f"host, {kind}"
    if result["span"] == "unknown":
        return trace
    rows = rows.assign(**{name: "" for name in ("role", "shapes", "operator", "grid", "block") if name not in rows})
    known = rows["predicted_s"] if "predicted_s" in rows else pd.Series(np.nan, rows.index)
    tracks: dict[int, str] = {}
    for row, predicted in zip(rows.itertuples(), known, strict=True):
        track = f"stream {row.stream}" if row.kind == "kernel" else "copies"
        about = {"kernel": row.kernel, "operator": row.operator, "shapes": row.shapes, "grid": row.grid}
        about |= {"block": row.block, "class": row.kernel_class, "model_kernel": row.role, "predicted_s": predicted}
        about |= {"repetition": row.repetition if row.repetition >= 0 else None}
        tracks[row.Index] = trace.add(gpu, track, row.name, row.start_s, row.duration_s, row.kernel_class, **about)
        if predicted == predicted:
            name = row.role or row.name
            trace.add(beside, track, name, row.start_s, predicted, row.kernel_class, **{f"{kind}_s": row.duration_s})
    host = parts.get("host", pd.DataFrame())
    if len(host):
        host = host.sort_values(["start_s", "duration_s"], ascending=[True, False], kind="stable")
    for row in host.itertuples():
        trace.add(cpu, f"thread {row.thread}", row.name, row.start_s, row.duration_s, row.kind)
    if "launch_s" in rows and "thread" in rows:
        launched = rows[rows["launch_s"].notna() & (rows["thread"].fillna("") != "")]
        for row in launched.itertuples():
            end = (gpu, tracks[row.Index], row.start_s)
            trace.connect("launch", (cpu, f"thread {row.thread}", row.launch_s), end)
    return trace


def export_passes(kernels: pd.DataFrame) -> PerfettoTrace:
    """Make a trace of predicted passes: a track for each phase and GPU, in it a slice per kernel for all its launches.

    Parameters
    ----------
    kernels : DataFrame
        The kernels of :mod:`gpuledger.studies.kernel_breakdown.parts`, in the order of the model;
        ``time_s`` is that of all launches. The predictions say nothing of the order of single launches.
    """
    trace = PerfettoTrace()
    for (hardware, phase), rows in kernels.groupby(["hardware", "phase"], sort=False):
        starts = rows["time_s"].cumsum() - rows["time_s"]
        for row, start in zip(rows.itertuples(), starts, strict=True):
            about = {"launches": row.count, "bound": row.bound, "macs": row.macs, "dram_bytes": row.dram_bytes}
            trace.add(f"{hardware}, predicted", phase, row.kernel, start, row.time_s, row.group, **about)
    return trace
