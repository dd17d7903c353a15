"""Nsight Systems: SQLite exports, and the CSV reports cuda_gpu_trace and cuda_gpu_kern_sum."""

import csv
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.timelines.table import HOST_COLUMNS, Timeline, enclosing, finish

_NANOSECOND = 1e-9
_UNITS = {"ns": 1e-9, "us": 1e-6, "μs": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
#: Event types of NVTX ranges in the table NVTX_EVENTS: pushed and popped, started and ended.
_RANGES = (59, 60)
#: What PyTorch's emit_nvtx writes into the name of an operator's range.
_OPERATOR = re.compile(r"([\w:.]{1,200}), (?:seq|op_id) = .{0,60}?sizes = (\[.*\])", re.DOTALL)
_EXPORT = "export it again: nsys export --type sqlite REPORT.nsys-rep"


def read_sqlite(path: str | Path) -> Timeline:
    """Read a report that ``nsys export --type sqlite`` wrote.

    Raises
    ------
    InputError
        Not such a database, or a damaged one; no kernels.
    """
    path = Path(path)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            base.text_factory = lambda data: data.decode("utf-8", "replace")
            return _database(path, base)
    except sqlite3.Error as error:
        raise InputError(path, "", f"the database cannot be read ({error})", _EXPORT) from None
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(path, "", f"a value in the database is not valid ({error})", _EXPORT) from None


def _database(path: Path, base: sqlite3.Connection) -> Timeline:
    tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    if not tables & {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"}:
        remedy = "record with nsys profile --trace=cuda,nvtx, and export that report"
        raise InputError(path, "", "there is no table CUPTI_ACTIVITY_KIND_KERNEL", remedy)
    parts = [_activities(base, table, kind) for table, kind in _ACTIVITIES.items() if table in tables]
    device = pd.concat(parts, ignore_index=True)
    texts = dict(base.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    columns = {
        "kernel": [texts.get(name, "") if isinstance(name, int) else str(name or "") for name in device["name"]],
        "kind": device["kind"].to_numpy(),
        **{name: device[name].fillna(-1).astype(int).to_numpy() for name in ("stream", "device")},
        **{name: [_size(device.loc[row], name) for row in device.index] for name in ("grid", "block")},
    }
    valid, times = _times(device)
    columns = {name: np.asarray(values)[valid] for name, values in columns.items()} | times
    correlation = device["correlation"].to_numpy()[valid]
    calls, ranges = _calls(base, tables, texts), _ranges(base, tables, texts)
    _launches(columns, correlation, calls, ranges)
    host = pd.concat([calls.assign(kind="call"), ranges.assign(kind="annotation")], ignore_index=True)
    devices: list[str] = []
    if "TARGET_INFO_GPU" in tables and "name" in _columns(base, "TARGET_INFO_GPU"):
        devices = [name for (name,) in base.execute("SELECT name FROM TARGET_INFO_GPU")]
    kept = {name: host[name].to_numpy() for name in HOST_COLUMNS}
    return finish(path, "Nsight Systems SQLite export", columns, kept, devices, int((~valid).sum()))


_ACTIVITIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "kernel",  # whole graphs, where their kernels were not recorded one by one
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "set",
}


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in base.execute(f"PRAGMA table_info({table})")}


def _select(base: sqlite3.Connection, table: str, wanted: Mapping[str, tuple[str, ...]]) -> pd.DataFrame:
    """Read columns, each under the first of its names that the table has; None where it has none of them."""
    there = _columns(base, table)
    found = {name: next((own for own in names if own in there), "NULL") for name, names in wanted.items()}
    query = f"SELECT {', '.join(found.values())} FROM {table}"
    return pd.DataFrame(base.execute(query).fetchall(), columns=list(found), dtype=object)


def _activities(base: sqlite3.Connection, table: str, kind: str) -> pd.DataFrame:
    wanted = {
        "start": ("start",),
        "end": ("end",),
        "name": ("demangledName", "shortName", "graphId"),
        "stream": ("streamId",),
        "device": ("deviceId",),
        "correlation": ("correlationId",),
        **{f"{what}{axis}": (f"{what}{axis}",) for what in ("grid", "block") for axis in "XYZ"},
    }
    rows = _select(base, table, wanted).assign(kind=kind)
    if table.endswith("GRAPH_TRACE"):
        rows["name"] = [f"CUDA graph {number}" for number in rows["name"]]
    if kind != "kernel":
        rows["name"] = {"copy": "Memcpy", "set": "Memset"}[kind]
    return rows


def _times(rows: pd.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return which rows have valid times, and the times of those in seconds."""
    start, end = (pd.to_numeric(rows[name], errors="coerce").to_numpy(float) for name in ("start", "end"))
    valid = np.isfinite(start) & (end >= start)
    # Differences of whole nanoseconds: a moment in seconds has not enough digits.
    length = np.array([int(b) - int(a) for a, b in rows.loc[valid, ["start", "end"]].to_numpy()], float)
    return valid, {"start_s": start[valid] * _NANOSECOND, "duration_s": length * _NANOSECOND}


def _size(row: pd.Series, what: str) -> str:
    parts = [row[f"{what}{axis}"] for axis in "XYZ"]
    return "" if any(part is None or pd.isna(part) for part in parts) else "x".join(str(int(part)) for part in parts)


def _calls(base: sqlite3.Connection, tables: set[str], texts: Mapping[int, str]) -> pd.DataFrame:
    wanted = {"start": ("start",), "end": ("end",), "thread": ("globalTid",), "name": ("nameId",)}
    wanted |= {"correlation": ("correlationId",)}
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    rows = _select(base, table, wanted) if table in tables else pd.DataFrame(columns=list(wanted), dtype=object)
    return _host(rows, [texts.get(name, "") for name in rows["name"]])


def _ranges(base: sqlite3.Connection, tables: set[str], texts: Mapping[int, str]) -> pd.DataFrame:
    wanted = {"start": ("start",), "end": ("end",), "thread": ("globalTid",), "type": ("eventType",)}
    wanted |= {"text": ("text",), "name": ("textId",)}
    rows = _select(base, "NVTX_EVENTS", wanted) if "NVTX_EVENTS" in tables else pd.DataFrame(columns=list(wanted))
    rows = rows[rows["type"].isin(_RANGES)].reset_index(drop=True)
    return _host(rows, [text or texts.get(name, "") for text, name in zip(rows["text"], rows["name"], strict=True)])


def _host(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    valid, times = _times(rows)
    thread = rows["thread"].astype(str)
    return rows.assign(name=names, thread=thread)[valid].reset_index(drop=True).assign(**times)


def _launches(columns: dict[str, Any], correlation: np.ndarray, calls: pd.DataFrame, ranges: pd.DataFrame) -> None:
    """Add who launched each kernel: call, thread, NVTX ranges, and the operator where a range names one."""
    first = calls.drop_duplicates("correlation").set_index("correlation")
    found = first.reindex(correlation)
    columns["launch_s"] = found["start_s"].to_numpy(float)
    columns["thread"] = found["thread"].astype(object).fillna("").to_numpy()
    columns["launched_by"] = found["name"].astype(object).fillna("").to_numpy()
    at = (columns["launch_s"], columns["thread"])
    parsed = [_OPERATOR.match(name) for name in ranges["name"]]
    is_operator = np.array([match is not None for match in parsed], bool)
    columns["operator"], columns["shapes"], columns["nvtx_range"], columns["annotation"] = (
        np.full(len(correlation), "", object) for _ in range(4)
    )
    for rows in (np.flatnonzero(is_operator), np.flatnonzero(~is_operator)):
        own = ranges.loc[rows]
        start = own["start_s"].to_numpy(float)
        inner, outer = enclosing(start, start + own["duration_s"].to_numpy(float), own["thread"].to_numpy(), *at)
        for kernel in np.flatnonzero(inner >= 0):
            row = rows[inner[kernel]]
            if is_operator[row]:
                columns["operator"][kernel], columns["shapes"][kernel] = parsed[row].groups()
            else:
                columns["nvtx_range"][kernel] = ranges["name"][row]
                columns["annotation"][kernel] = ranges["name"][rows[outer[kernel]]]


def read_report(path: str | Path) -> Timeline:
    """Read the CSV of ``nsys stats --report cuda_gpu_trace`` or ``cuda_gpu_kern_sum``; the latter has only sums.

    Raises
    ------
    InputError
        Not such a report; a cell that is not a number; no kernels.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _report(path, csv.reader(line.replace("\0", "") for line in file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, "", f"cannot be read ({error})", "give a trace, an SQLite export or a CSV") from None
    except csv.Error as error:
        raise InputError(path, "", f"not a CSV table ({error})", "export the report with --format csv") from None


def _report(path: Path, lines: Iterator[list[str]]) -> Timeline:
    header: list[str] = []
    for header in lines:  # nsys stats prints lines about its progress before the table
        if "Name" in header and any(cell.startswith(("Start", "Total Time")) for cell in header):
            break
    else:
        remedy = "give a JSON trace, an SQLite export, or the CSV of nsys stats --report cuda_gpu_trace"
        raise InputError(path, "", "neither a timeline nor a report of Nsight Systems", remedy)
    # Cut, as searching takes quadratic time.
    words = [re.match(r"(.*?)\s*(?:\((\S*)\))?\Z", cell[:100], re.DOTALL).groups("") for cell in header]
    place = {name: number for number, (name, _) in enumerate(words)}
    units = {name: unit.removesuffix("ec") for name, unit in words}  # older versions write nsec
    rows = [(lines.line_num, row) for row in lines if len(row) == len(header)]

    def column(name: str, needed: bool = False) -> np.ndarray:
        cells = [row[place[name]].replace(",", "") if name in place else "" for _, row in rows]
        values = pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce").to_numpy(float)
        if needed and not np.isfinite(values).all():
            line, row = rows[int(np.flatnonzero(~np.isfinite(values))[0])]
            problem = f"{row[place[name]]!r} is not a number" if name in place else "the column is missing"
            raise InputError(path, f"line {line}, column {name}", problem, "export the report again")
        return values * _UNITS.get(units.get(name, ""), 1.0)

    names = np.array([row[place["Name"]] for _, row in rows], object)
    kind = np.array([_kind(name) for name in names], object)
    if "Start" not in place:
        columns = {"launches": column("Instances", needed=True).astype(int), "duration_s": column("Total Time", True)}
        return finish(path, "Nsight Systems CSV report (sums)", {"kernel": names, "kind": kind, **columns})

    def size(what: str) -> list[str]:
        parts = np.column_stack([column(f"{what}{axis}") for axis in "XYZ"])
        return ["" if np.isnan(part).any() else "x".join(f"{value:.0f}" for value in part) for part in parts]

    devices = [row[place["Device"]] for _, row in rows] if "Device" in place else [""] * len(rows)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(devices))}
    columns = {
        "kernel": names,
        "kind": kind,
        "start_s": column("Start", needed=True),
        "duration_s": column("Duration", needed=True),
        "stream": np.nan_to_num(column("Strm"), nan=-1).astype(int),
        "device": [numbers[name] for name in devices],
        "grid": size("Grd"),
        "block": size("Blk"),
    }
    return finish(path, "Nsight Systems CSV report", columns, devices=[re.sub(r" \(\d+\)$", "", n) for n in numbers])


def _kind(name: str) -> str:
    found = re.match(r"\[CUDA mem(cpy|set)", name)
    return {"cpy": "copy", "set": "set"}[found.group(1)] if found else "kernel"
