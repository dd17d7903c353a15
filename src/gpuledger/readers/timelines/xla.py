"""Traces of XLA's profiler, which JAX and TensorFlow write: ``<host>.trace.json.gz``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import warn
from gpuledger.readers.timelines.events import TraceEvents, moment_and_duration
from gpuledger.readers.timelines.table import Timeline, finish, frame, sizes

#: Names of processes and threads, as openxla's cupti_collector.cc and the trace viewer write them.
_DEVICE, _STREAM = re.compile(r"/device:GPU:(\d{1,9})\s*(.{0,200})"), r"^Stream #(\d{1,9})"
#: Threads of a device that the profiler derives from its streams: annotated steps (``train 3``), and programs that ran.
_STEPS, _PROGRAMS = "Steps", "XLA Modules"
#: By the argument that only they have, what events on a stream are; others are notes about memory.
_KINDS = {"kernel_details": "kernel", "cuda_graph_exec_id": "kernel", "memcpy_details": "copy", "memset_details": "set"}
#: Calls of the driver, the runtime and NCCL.
_CALL = re.compile(r"(?:cu|cuda|hip|nccl)[A-Z]")
_COLUMNS = {"process": "", "thread": "", "name": "", "start": np.nan, "duration": np.nan}
_COLUMNS |= {"kind": "", "operator": "", "details": "", "correlation": ""}
_MICROSECOND = 1e-6
#: The most events that the profiler exports, the earliest ones (openxla's xplane_to_trace_events.cc).
MOST_EVENTS = 1_000_000


def read_xla(path: str | Path) -> Timeline:
    """Read a trace of XLA's profiler.

    What ran on a stream of a GPU are kernels, copies and sets. ``operator`` is the framework's operation, else XLA's.
    Annotations are the steps that the profiler shows on a GPU, else programs that ran there more than once
    (``jit_train_step``; what follows itself without an annotated step between is shown as one). Both are on the GPU's
    clock, so ``launch_s`` is left out.

    Raises
    ------
    InputError
        Not a JSON trace; no kernels.

    Warns
    -----
    InputWarning
        As many events as the profiler exports at most.
    """
    path = Path(path)
    names: dict[tuple[str, str], str] = {}
    events, exported, left_out = [], 0, 0
    for batch in TraceEvents(path, re.compile('"ph"'), lambda event: event.get("ph") in ("M", "X")):
        for event in batch:
            inside = event["args"] if isinstance(event.get("args"), dict) else {}
            process, thread, name = str(event.get("pid")), str(event.get("tid")), str(event.get("name"))
            if event["ph"] == "M":
                if name in ("process_name", "thread_name"):
                    names[process, thread if name == "thread_name" else ""] = str(inside.get("name", ""))
                continue
            exported += 1
            # Calls of Python functions; the host's side of an annotated step, which ends long before the GPU's.
            if name.startswith("$") or "step_num" in inside:
                continue
            if times := moment_and_duration(event):
                events.append((process, thread, name, *times, *_facts(name, inside)))
            else:
                left_out += 1
    if exported >= MOST_EVENTS:
        done = "later ones are missing: profile fewer steps, or set TF_PROFILER_TRACE_VIEWER_MAX_EVENTS"
        warn(path, "", f"{exported:,} events, as many as the profiler exports", done)
    rows = frame(dict(zip(_COLUMNS, zip(*events, strict=True), strict=False)), _COLUMNS)
    return _timeline(path, rows, names, left_out)


def _facts(name: str, inside: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return what an event is by its arguments, its operation, its sizes, and what links it to its launch."""
    kind = next((kind for key, kind in _KINDS.items() if key in inside), "call" if _CALL.match(name) else "operator")
    # A path of the framework (jit(f)/dot_general); without it, XLA writes the name of its own annotation there.
    framework = str(inside.get("tf_op", "")).rstrip(":")
    # Numbered operations are one of the same kind each.
    operator = framework if "/" in framework else re.sub(r"(?:\.\d{1,9}){1,4}$", "", str(inside.get("hlo_op", "")))
    return kind, operator, str(inside.get("kernel_details", "")), str(inside.get("correlation_id", ""))


def _timeline(path: Path, events: pd.DataFrame, names: Mapping[tuple[str, str], str], left_out: int) -> Timeline:
    """Tell by the names of processes and threads where an event was."""
    place = [names.get((process, ""), "") for process in events["process"]]
    device = pd.Series(place, dtype=object).str.extract(_DEVICE)[0]
    line = [names.get(key, "") for key in zip(events["process"], events["thread"], strict=True)]
    line = pd.Series(line, dtype=object)
    stream = line.str.extract(_STREAM, expand=False)
    # Microseconds of a clock of weeks lose their last digits as seconds.
    events["start_s"] = (events["start"] - events["start"].min()) * _MICROSECOND
    events["duration_s"] = events["duration"] * _MICROSECOND
    events["thread"] = events["process"] + "/" + events["thread"]
    own = device.notna() & stream.notna() & events["kind"].isin(_KINDS.values())
    ran, called = events[own], events[(events["kind"] == "call") & (events["correlation"] != "")]
    called = called.drop_duplicates("correlation").set_index("correlation").reindex(ran["correlation"])
    sizes_of = ran["details"].str.extract
    columns = {
        **{name: ran[name].to_numpy() for name in ("kind", "operator", "start_s", "duration_s")},
        "kernel": ran["name"].to_numpy(),
        "stream": stream[own].astype(int).to_numpy(),
        "device": device[own].astype(int).to_numpy(),
        "thread": called["thread"].fillna("").to_numpy(object),
        "launched_by": called["name"].fillna("").to_numpy(object),
        **{
            name: sizes(sizes_of(rf"\b{name}:(\d{{1,10}}),(\d{{1,10}}),(\d{{1,10}})").astype(float).to_numpy())
            for name in ("grid", "block")
        },
    }
    # Of the GPU that ran most: those of others overlap with them, and only one is analysed.
    most = ran["duration_s"].groupby(device[own]).sum()
    shown = device == (most.idxmax() if len(most) else "")
    marks = shown & line.str.startswith(_STEPS)
    if not marks.any():
        marks = shown & line.str.startswith(_PROGRAMS)
        marks &= events["name"].groupby(events["name"].where(marks, "")).transform("size") > 1
    host = events.assign(kind=events["kind"].where(~marks, "annotation"))[marks | device.isna()]
    host = {name: host[name].to_numpy() for name in ("name", "kind", "start_s", "duration_s", "thread")}
    titles = [found.group(2) for name in names.values() if (found := _DEVICE.search(name)) and found.group(2)]
    return finish(path, "trace of XLA's profiler (JAX)", columns, host, titles, left_out)
