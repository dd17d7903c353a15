"""Traces that torch.autograd.profiler itself writes (``export_chrome_trace``), mostly of before PyTorch 1.8.

Events have no category. What ran on the GPU is of the process "CUDA functions", with the number of the GPU as thread;
two events of a flow, named after the operator, lead there. Source: ``EventList.export_chrome_trace`` in PyTorch's
``torch/autograd/profiler.py`` (``profiler_util.py``).
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import visible, warn
from gpuledger.readers.timelines.events import TraceEvents, moment_and_duration, number
from gpuledger.readers.timelines.table import Timeline, finish

HOST, DEVICE = "cpu functions", "cuda functions"
MARK = re.compile(rb'"pid"\s*:\s*"(?:CPU|CUDA) [Ff]unctions"')
_WANTED = re.compile(r'"ph"\s*:\s*"[Xf]"')
_MICROSECOND = 1e-6


def read_autograd(path: str | Path) -> Timeline:
    """Read a trace of torch.autograd.profiler.

    With Kineto inside, kernels have their own names. Without it, their times were measured around operators, which have
    others inside: then a row is an operator with its own time, and has no moment.

    Warns
    -----
    InputWarning
        Times are those of operators.
    """
    path = Path(path)
    rows: dict[str, list[tuple]] = {HOST: [], DEVICE: []}
    flows: dict[tuple[float, str], str] = {}
    left_out = 0
    for batch in TraceEvents(path, _WANTED, lambda event: str(event.get("pid")).lower() in rows):
        for event in batch:
            process = str(event["pid"]).lower()
            thread, name = (visible(str(event.get(key))) for key in ("tid", "name"))
            if event.get("ph") == "f":
                flows[number(event.get("ts")), thread] = name
            elif event.get("ph") == "X" and (times := moment_and_duration(event)):
                rows[process].append((name, thread, *times))
            elif event.get("ph") == "X":
                left_out += 1
    names = ["name", "thread", "start", "duration"]
    host, device = (pd.DataFrame(rows[process], columns=names) for process in (HOST, DEVICE))
    operators = [flows.get(key, "") for key in zip(device["start"], device["thread"], strict=True)]
    times = {"start_s": device["start"], "duration_s": device["duration"]}
    first = device["start"].min() if len(device) else 0.0
    # Some versions list kernels among the functions of the CPU, too.
    ran = pd.MultiIndex.from_frame(device[["name", "start"]])
    host = host[~pd.MultiIndex.from_frame(host[["name", "start"]]).isin(ran)]
    if len(device) and (device["name"] == operators).mean() > 0.5:
        warn(
            path, "", "its times are those of operators on the GPU, not of kernels", "each operator's own time is used"
        )
        operators = device["name"]
        times = {"start_s": np.full(len(device), np.nan), "duration_s": _own_times(device)}
    columns = {
        "kernel": device["name"],
        "kind": device["name"].map(_kind),
        "start_s": (times["start_s"] - first) * _MICROSECOND,
        "duration_s": times["duration_s"] * _MICROSECOND,
        "device": pd.to_numeric(device["thread"], errors="coerce").fillna(-1).clip(-1, 2**31).astype("int64"),
        "operator": operators,
    }
    called = {
        "name": host["name"],
        "kind": ["operator"] * len(host),
        "start_s": (host["start"] - first) * _MICROSECOND,
        "duration_s": host["duration"] * _MICROSECOND,
        "thread": host["thread"],
    }
    return finish(path, "trace of torch.autograd.profiler", columns, called, left_out=left_out)


def _kind(name: str) -> str:
    return {"Memcpy": "copy", "Memset": "set"}.get(name[:6], "kernel")


def _own_times(device: pd.DataFrame) -> np.ndarray:
    """Return the time of each interval without those of the intervals inside of it, on the same GPU."""
    start, end = device["start"].to_numpy(), (device["start"] + device["duration"]).to_numpy()
    own, around, current = device["duration"].to_numpy().copy(), [], None
    threads = pd.factorize(device["thread"])[0]
    for row in np.lexsort((-end, start, threads)):
        if threads[row] != current:
            current, around = threads[row], []
        while around and end[around[-1]] <= start[row]:
            around.pop()
        if around:
            own[around[-1]] -= min(end[row], end[around[-1]]) - start[row]
        around.append(row)
    return np.maximum(own, 0.0)
