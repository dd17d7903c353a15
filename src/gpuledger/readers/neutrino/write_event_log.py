"""Writer of ``event.log``, in the words of any release.

Source: Neutrino trace format, as written by its driver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.files import write_text
from gpuledger.readers.neutrino.event_log import LAUNCHES, EventLog
from gpuledger.readers.neutrino.layout import LaunchShape, Version
from gpuledger.readers.neutrino.records import Level

if TYPE_CHECKING:  # the recorder writes logs on machines without pandas
    import pandas as pd

Rows = list[Mapping[str, Any]]

#: How the releases name the probe engine and the script run on every trace.
ENGINE = {"V1": "jit", "V2": "jit", "V3": "probe"}
HOOK = {"V1": " analyze_hook", "V2": " trace_hook", "V3": ""}
CALLBACK = {"V1": "analyze", "V2": "analyze", "V3": "callback"}


def write_event_log(path: str | Path, log: EventLog, version: Version | None = None) -> None:
    """Write an ``event.log`` atomically.

    Lines about memory come before the launches; kernels are named at their first launch.

    Parameters
    ----------
    log : EventLog
        Its launches may lack columns, and ``line`` is ignored. A kernel without a function or a folder gets one. Each
        table may also be a list of mappings from column to value.
    version : {"V1", "V2", "V3"}, optional
        By default the log's, else V3.

    Raises
    ------
    ValueError
        An unknown version, or a text that contains a line feed or a zero byte.
    """
    version = version or log.version or "V3"
    if version not in ENGINE:
        raise ValueError(f"versions are V1, V2 and V3, not {version!r}")
    lines = _head(log, version) + _memory(_rows(log.memory))
    named: dict[str, str] = {}  # kernels by function
    folders = dict(log.folders)
    groups: dict[int, Rows] = {}
    for section in _rows(log.sections):
        groups.setdefault(section["launch"], []).append(section)
    defaults = {name: default for name, (_, default) in LAUNCHES.items()}
    for index, row in enumerate(_rows(log.launches)):
        launch = defaults | {name: value for name, value in row.items() if not _absent(value)}
        lines += _launch(launch, groups.get(index, []), version, named, folders)
    if any("\n" in line or "\0" in line for line in lines):
        raise ValueError("a text contains a line feed or a zero byte")
    write_text(path, "".join(f"{line}\n" for line in lines))


def log_of_launch(
    shape: LaunchShape, level: Level, units: int, unit_bytes: int, tensors: Rows, command: str, **launch: Any
) -> EventLog:
    """Return the log of a process with one launch, whose probe saved one section; its tables are lists of rows.

    Parameters
    ----------
    level, units, unit_bytes : str, int, int
        Of the section: its threads or warps per block, and the bytes of each.
    tensors : list of mapping
        ``address`` and ``bytes``, as for :func:`gpuledger.readers.neutrino.write_tensor_trace`: what the process
        allocates and hands to the kernel.
    **launch
        Further columns of the launch.
    """
    total = shape.blocks * units * unit_bytes
    section = {"launch": 0, "section": 0, "level": level, "blocks": shape.blocks, "units_per_block": units}
    row = {"grid": shape.grid, "block": shape.block, "parameters": tuple(tensor["address"] for tensor in tensors)}
    row |= {"probe_bytes": total, "outcome": "succeed", "code": 0, **launch}
    memory = [{"call": "cuMemAlloc_v2", "status": 0, **tensor} for tensor in tensors]
    sections = [section | {"bytes_per_unit": unit_bytes, "total_bytes": total}]
    return EventLog([row], sections, memory, benchmark="original_ms" in row, pid=1, command=command)


def _rows(table: pd.DataFrame | Rows) -> Rows:
    return table if isinstance(table, Sequence) else table.to_dict("records")


def _absent(value: object) -> bool:
    """Whether a cell is empty: None, NaN or pandas.NA."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and np.isnan(value))


def _head(log: EventLog, version: Version) -> list[str]:
    init = "[init] " if version == "V3" else "["
    end = "" if version == "V3" else "]"
    lines = [f"{init}pid{end} {log.pid or 0}"]
    lines += [f"{init}cmd{end} {len(log.command)} {log.command}"]
    lines += ["[benchmark] ENABLED L2 Flush Size 256000000"] if log.benchmark else []
    lines += ["[init] success" if version == "V3" else "[info] init success"]
    return lines


def _memory(memory: Rows) -> list[str]:
    lines = []
    for row in memory:
        size = "" if _absent(row["bytes"]) else f" bytesize {row['bytes']}"
        lines.append(f"[mem] {row['call']} {row['status']} dptr {row['address']:x}{size}")
    return lines


def _launch(
    launch: dict, sections: Rows, version: Version, named: dict[str, str], folders: dict[str, str]
) -> list[str]:
    lines = []
    kernel = launch["kernel"]
    known = (function for function, name in named.items() if name == kernel)
    function = launch["function"] or next(known, f"0x{0x1000 + 16 * len(named):x}")
    # After its module is unloaded, a pointer can be reused for another kernel.
    if named.get(function) != kernel:
        named[function] = kernel
        lines += [f"[exec] funcmap-not-find {function}"]
        lines += _naming(kernel, function, len(launch["parameters"]), folders, version) if kernel else []
    lines += [f"[exec] funcmap-find {function} {'fail' if launch['outcome'] == 'backup' else 'success'}"]
    if launch["time_ns"] is not None:
        values = "".join(f"{value:x} " for value in launch["parameters"])
        lines += [f"[exec] {launch['time_ns']} param {values}"]
    size = ""
    if launch["grid"] is not None:
        x, y, z = launch["grid"]
        size = f"{x} {y} {z} block {' '.join(map(str, launch['block']))} shared {launch['shared_bytes'] or 0}"
        lines += [f"[exec] grid {size}"]
    if launch["counted_bytes"] is not None:
        lines += [f"[count] size: {launch['counted_bytes']} "]
    for row in sections:
        per = f"{'block' if row['level'] == 'thread' else 'warp '} {row['units_per_block']}"
        lines += [f"[exec] grid {row['blocks']} {per} probe {row['bytes_per_unit']} total {row['total_bytes']}"]
    if launch["probe_bytes"] is not None:
        lines += [f"[exec] probe-mem {launch['probe_bytes']} (bytes)"]
    if launch["outcome"] in ("succeed", "failed") or launch["code"] is not None:
        word = "failed" if launch["outcome"] in ("failed", "backup") else "succeed"
        lines += [f"[exec] {word} {launch['code'] or 0}"]
    if launch["file"]:
        lines += [f"[exec] save {launch['file']} size {launch['file_bytes']}"]
    lines += _times(launch)
    if launch["callback"]:
        lines += [f"[{CALLBACK[version]}] {launch['callback']}"]
    if launch["outcome"] == "backup" and size:
        lines += [f"[exec] backup {size}"]
    return lines


def _naming(kernel: str, function: str, parameters: int, folders: dict[str, str], version: Version) -> list[str]:
    folder = folders.setdefault(kernel, f"{len(folders)}_{hashlib.sha1(kernel.encode()).hexdigest()}")
    tag = f"[{ENGINE[version]}]"
    read = f"{tag} read {folder}/kernel.info name {kernel} n_param {parameters} n_probe 1{HOOK[version]} "
    return [f"{tag} rename {kernel} {folder}", read, f"{tag} finish {function} name {kernel} n_param {parameters}"]


def _times(launch: dict) -> list[str]:
    prologue, kernel, epilogue = (launch[f"{name}_ms"] for name in ("prologue", "kernel", "epilogue"))
    if _absent(kernel):
        return []
    spent = f"prologue {prologue:f} kernel {kernel:f} epilogue {epilogue:f}"
    original = launch["original_ms"]
    with np.errstate(divide="ignore", invalid="ignore"):
        if not _absent(original):
            impact = launch["impact"] if not _absent(launch["impact"]) else np.float64(kernel) / original
            return [f"[benchmark] {spent} original {original:f} impact {impact:f} 0"]
        whole = prologue + kernel + epilogue
        ratio = launch["ratio"] if not _absent(launch["ratio"]) else whole / np.float64(kernel)
        return [f"[exec] {spent} ratio {ratio:f}"]
