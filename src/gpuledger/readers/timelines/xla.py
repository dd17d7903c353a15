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
_KINDS = {"kernel_details": "kernel", "cuda_graph_exec_id": "kernel", "memcpy_details": "copy", "Memset_details": "set"}
#: Calls of the driver, the runtime and NCCL. Launches are called like their kernels, and have a number to find these.
_CALL, _LAUNCH = re.compile(r"(?:cu|cuda|hip|nccl)[A-Z]"), "correlation_id"
_COLUMNS = {"process": "", "thread": "", "name": "", "kind": "", "start": np.nan, "duration": np.nan}
_COLUMNS |= {"operator": "", "details": "", "correlation": ""}
#: GEMMs hold their tiles in shared memory.
_GEMM, _NOTHING_SHARED = re.compile(r"(?:gemm_fusion|triton_gemm)_"), "static_shared:0 dynamic_shared:0"
_MICROSECOND = 1e-6
#: The most events that the profiler exports, the earliest ones (openxla's xplane_to_trace_events.cc).
MOST_EVENTS = 1_000_000


def read_xla(path: str | Path) -> Timeline:
    """Read a trace of XLA's profiler.

    What ran on a stream of a GPU are kernels, copies and sets. ``operator`` is the framework's operation, else XLA's.
    Annotations are the steps that a viewer of the profile shows on a GPU. JAX's own export has them on the host only;
    there they end before the GPU's, and a kernel belongs to the one that launched it. Without either, they are programs
    that ran on the GPU more than once (``jit_train_step``; what follows itself without an annotated step between is
    shown as one). With annotations of the GPU, ``launch_s`` is left out.

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
            if name.startswith("$"):  # calls of Python functions
                continue
            if times := moment_and_duration(event):
                events.append((process, thread, *_named(name, inside), *times, *_facts(inside)))
            else:
                left_out += 1
    if exported >= MOST_EVENTS:
        done = "later ones are missing: profile fewer steps, or set TF_PROFILER_TRACE_VIEWER_MAX_EVENTS"
        warn(path, "", f"{exported:,} events, as many as the profiler exports", done)
    rows = frame(dict(zip(_COLUMNS, zip(*events, strict=True), strict=False)), _COLUMNS)
    return _timeline(path, rows, names, left_out)


def _named(name: str, inside: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of an event, and what it is by its arguments."""
    if "step_num" in inside:
        return f"{name} {inside['step_num']}", "step"
    if kind := next((kind for key, kind in _KINDS.items() if key in inside), ""):
        # Where cuBLAS multiplies in place of a fusion, what is left of that is a loop under the fusion's name.
        left = _GEMM.match(name) and _NOTHING_SHARED in str(inside.get("kernel_details"))
        return (f"loop_epilogue ({name})" if left else name), kind
    if _CALL.match(name):
        return name, "call"
    return (f"launch of {name}", "call") if _LAUNCH in inside else (name, "operator")


def _facts(inside: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return an event's operation, its sizes, and what links it to its launch."""
    # A path of the framework (jit(f)/dot_general); without it, XLA writes the name of its own annotation there.
    framework = str(inside.get("tf_op", "")).rstrip(":")
    # Numbered operations are one of the same kind each.
    operator = framework if "/" in framework else re.sub(r"(?:\.\d{1,9}){1,4}$", "", str(inside.get("hlo_op", "")))
    # A whole graph, in which the profiler does not know them.
    operator = "" if operator.startswith("command_buffer") else operator
    return operator, str(inside.get("kernel_details", "")), str(inside.get(_LAUNCH, ""))


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
    # A set that the host records into a graph has the arguments of one that runs.
    events["kind"] = events["kind"].mask(device.isna() & events["kind"].isin(_KINDS.values()), "call")
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
    marks, launch = shown & line.str.startswith(_STEPS), called["start_s"].to_numpy(float)
    if not marks.any() and np.isfinite(launch).any():
        marks = events["kind"] == "step"
        columns |= {"launch_s": launch} if marks.any() else {}
    if not marks.any():
        marks = shown & line.str.startswith(_PROGRAMS)
        marks &= events["name"].groupby(events["name"].where(marks, "")).transform("size") > 1
    host = events.assign(kind=events["kind"].where(~marks, "annotation"))
    host = host[marks | (device.isna() & (events["kind"] != "step"))]
    host = {name: host[name].to_numpy() for name in ("name", "kind", "start_s", "duration_s", "thread")}
    titles = [found.group(2) for name in names.values() if (found := _DEVICE.search(name)) and found.group(2)]
    return finish(path, "trace of XLA's profiler (JAX)", columns, host, titles, left_out)
