"""SQLite exports of Nsight Systems."""

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.timelines.database import extents, interval, number, select, stacked, text
from gpuledger.readers.timelines.nsys_gpus import true_gpus
from gpuledger.readers.timelines.table import HOST_COLUMNS, Timeline, enclosing, finish, sizes

#: Event types of NVTX ranges in the table NVTX_EVENTS: pushed and popped, started and ended.
_RANGES = (59, 60)
#: A table that only databases of nvprof have (.nvvp, .prof), and what to do with these.
NVPROF = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
EXPORT_NVPROF = "export it: nvprof --import-profile FILE --csv --print-gpu-trace --log-file trace.csv"
#: What PyTorch's emit_nvtx writes into the name of an operator's range.
_OPERATOR = re.compile(r"([\w:.]{1,200}), (?:seq|op_id) = .{0,60}?sizes = (\[.*\])", re.DOTALL)


def read_nsys(path: Path, base: sqlite3.Connection, tables: set[str]) -> Timeline:
    """Read a report that ``nsys export --type sqlite`` wrote."""
    if NVPROF in tables:
        raise InputError(path, "", "a database of nvprof is not read", EXPORT_NVPROF)
    if not tables & {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"}:
        remedy = "record with nsys profile --trace=cuda,nvtx, and export that report"
        raise InputError(path, "", "there is no table CUPTI_ACTIVITY_KIND_KERNEL", remedy)
    texts = dict(base.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    columns, numbers, left_out = _kernels(base, tables, texts)
    columns["device"], devices = true_gpus(path, base, numbers)
    calls, ranges = _calls(base, texts), _ranges(base, texts)
    _launches(columns, numbers, calls, ranges)
    host = pd.concat(
        [
            rows[[name for name in HOST_COLUMNS if name in rows]].assign(kind=kind)
            for rows, kind in ((calls, "call"), (ranges, "annotation"))
        ],
        ignore_index=True,
    )
    del calls, ranges
    return finish(
        path, "Nsight Systems SQLite export", columns, {name: host[name].to_numpy() for name in host}, devices, left_out
    )


def _kernels(
    base: sqlite3.Connection, tables: set[str], texts: Mapping[int, str]
) -> tuple[dict[str, np.ndarray], pd.DataFrame, int]:
    """Return the columns of kernels, copies and sets, the numbers of their processes, GPUs and calls, and how many have
    no valid times.
    """
    parts = [_activities(base, table, kind) for table, kind in _ACTIVITIES.items() if table in tables]
    device = stacked(parts)
    del parts
    valid, times = interval(device)
    columns = {
        "kernel": np.array(
            [texts.get(name, "") if isinstance(name, int) else str(name or "") for name in device["name"]], object
        ),
        "kind": device["kind"].to_numpy(object),
        "stream": number(device["stream"]),
        **{name: sizes(extents(device, name, "XYZ")) for name in ("grid", "block")},
    }
    columns = {name: values[valid] for name, values in columns.items()} | times
    return columns, device.loc[valid, ["process", "device", "correlation"]], int((~valid).sum())


_ACTIVITIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "kernel",  # whole graphs, where their kernels were not recorded one by one
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "set",
}


def _activities(base: sqlite3.Connection, table: str, kind: str) -> pd.DataFrame:
    wanted = {
        "start": ("start",),
        "end": ("end",),
        "name": ("demangledName", "shortName", "graphId"),
        "stream": ("streamId",),
        "device": ("deviceId",),
        "correlation": ("correlationId",),
        "process": ("globalPid",),
        **{f"{what}{axis}": (f"{what}{axis}",) for what in ("grid", "block") for axis in "XYZ"},
    }
    rows = select(base, table, wanted).assign(kind=kind)
    if table.endswith("GRAPH_TRACE"):
        rows["name"] = [f"CUDA graph {number}" for number in rows["name"]]
    if kind != "kernel":
        rows["name"] = {"copy": "Memcpy", "set": "Memset"}[kind]
    return rows


def _calls(base: sqlite3.Connection, texts: Mapping[int, str]) -> pd.DataFrame:
    wanted = {"start": ("start",), "end": ("end",), "thread": ("globalTid",), "name": ("nameId",)}
    rows = select(base, "CUPTI_ACTIVITY_KIND_RUNTIME", wanted | {"correlation": ("correlationId",)})
    return _host(rows, [texts.get(name, "") for name in rows["name"]])


def _ranges(base: sqlite3.Connection, texts: Mapping[int, str]) -> pd.DataFrame:
    wanted = {"start": ("start",), "end": ("end",), "thread": ("globalTid",), "type": ("eventType",)}
    rows = select(base, "NVTX_EVENTS", wanted | {"text": ("text",), "name": ("textId",)})
    rows = rows[rows["type"].isin(_RANGES)].reset_index(drop=True)
    return _host(rows, [text or texts.get(name, "") for text, name in zip(rows["text"], rows["name"], strict=True)])


def _host(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    valid, times = interval(rows)
    return rows.assign(name=names, thread=text(rows["thread"]))[valid].reset_index(drop=True).assign(**times)


def _launches(columns: dict[str, Any], numbers: pd.DataFrame, calls: pd.DataFrame, ranges: pd.DataFrame) -> None:
    """Add who launched each kernel: call, thread, NVTX ranges, and the operator where a range names one."""
    made, wanted = number(calls["correlation"]), number(numbers["correlation"])
    if numbers["process"].notna().any():
        # Every process numbers its calls from 1; a thread's number begins with its process, above 24 bits.
        made = made + ((number(calls["thread"]) >> 24) << 32)
        wanted = wanted + ((number(numbers["process"]) >> 24) << 32)
    # A call without a number (NULL) has launched none of the kernels without one.
    known = calls["correlation"].notna().to_numpy()
    first = calls[known].set_index(made[known])
    found = first[~first.index.duplicated()].reindex(wanted)
    columns["launch_s"] = found["start_s"].to_numpy(float)
    columns["thread"] = found["thread"].astype(object).fillna("").to_numpy()
    columns["launched_by"] = found["name"].astype(object).fillna("").to_numpy()
    at = (columns["launch_s"], columns["thread"])
    names = ranges["name"].to_numpy(object)
    parsed = {name: match.groups() for name in set(names) if (match := _OPERATOR.match(name))}
    is_operator = np.array([name in parsed for name in names], bool)
    for what in ("operator", "shapes", "nvtx_range", "annotation"):
        columns[what] = np.full(len(numbers), "", object)
    for rows in (np.flatnonzero(is_operator), np.flatnonzero(~is_operator)):
        own = ranges.iloc[rows]
        start = own["start_s"].to_numpy(float)
        inner, outer = enclosing(start, start + own["duration_s"].to_numpy(float), own["thread"].to_numpy(), *at)
        within = inner >= 0
        innermost, outermost = (names[rows[found[within]]] for found in (inner, outer))
        if len(rows) and is_operator[rows[0]]:
            columns["operator"][within] = [parsed[name][0] for name in innermost]
            columns["shapes"][within] = [parsed[name][1] for name in innermost]
        else:
            columns["nvtx_range"][within], columns["annotation"][within] = innermost, outermost
