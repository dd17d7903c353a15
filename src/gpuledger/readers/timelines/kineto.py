"""Traces of torch.profiler (Kineto): JSON, plain or gzipped."""

import gc
import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.readers.timelines.events import TraceEvents, moment_and_duration, number
from gpuledger.readers.timelines.table import HOST_COLUMNS, KERNEL_COLUMNS, Timeline, enclosing, finish

#: By the category of an event (older versions write them with capitals), what it is here.
DEVICE = {"kernel": "kernel", "Kernel": "kernel", "gpu_memcpy": "copy", "Memcpy": "copy"}
DEVICE |= {"gpu_memset": "set", "Memset": "set"}
HOST = {"cpu_op": "operator", "Operator": "operator", "user_annotation": "annotation"}
#: The same annotations, as Kineto repeats them on the GPU's clock.
_ON_GPU = "gpu_user_annotation"
HOST[_ON_GPU] = _ON_GPU
HOST |= dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "Runtime"), "call")
_CATEGORIES = DEVICE.keys() | HOST.keys()
_WANTED = re.compile(rf'"cat"\s*:\s*"(?:{"|".join(sorted(_CATEGORIES))})"')
_MICROSECOND = 1e-6


def read_kineto(path: str | Path) -> Timeline:
    """Read a trace of torch.profiler, in time and memory that its kernels and operators need.

    A kernel belongs to the operator with its ``External id``, else with that of the runtime call that has its
    ``correlation``, else to the innermost operator around that call. Annotations are those of the host; those of the
    GPU where there are no others, as in traces of which somebody kept the GPU's part.
    """
    path = Path(path)
    # As text: a category may be a list, which has no hash.
    stream = TraceEvents(path, _WANTED, lambda event: str(event.get("cat")) in _CATEGORIES)
    return of_events(path, "trace of torch.profiler (Kineto)", stream, stream)


def of_events(path: Path, title: str, stream: TraceEvents, batches: Iterable[list[dict]]) -> Timeline:
    """Return the timeline of a stream's events, in batches that may have been changed to those of Kineto."""
    rows = _EventColumns()
    collecting = gc.isenabled()
    gc.disable()  # millions of events make no cycles, and looking for some takes a third of the time
    try:
        for events in batches:
            rows.extend(events)
    finally:
        if collecting:
            gc.enable()
    properties = stream.header.get("deviceProperties", stream.header.get("computeProperties"))
    listed = properties if isinstance(properties, list) else []
    names = [str(entry.get("name", "")) for entry in listed if isinstance(entry, dict)]
    columns, calls = rows.columns()
    calls = _without_copies(calls)
    _launches(columns, calls)
    calls = {name: calls[name] for name in HOST_COLUMNS}
    columns = {name: values for name, values in columns.items() if name in KERNEL_COLUMNS}
    return finish(path, title, columns, calls, names, rows.left_out)


class _EventColumns:
    """Events as columns: numbers in arrays, texts once each."""

    def __init__(self):
        self.texts: dict[Any, str] = {}
        self.left_out = 0
        self.device = {name: array(code) for name, code in _NUMBERS.items()} | {name: [] for name in _DEVICE_TEXTS}
        self.host = {name: array(code) for name, code in _NUMBERS.items()} | {name: [] for name in _HOST_TEXTS}

    def extend(self, events: list[dict]) -> None:
        for event in events:
            if event.get("ph", "X") != "X":
                continue
            times = moment_and_duration(event)
            if times is None:
                self.left_out += 1
                continue
            inside = event.get("args")
            if type(inside) is not dict:
                inside = {}
            category = event["cat"]
            add = self._add_device if category in DEVICE else self._add_host
            columns = add(event, category, inside)
            columns["start"].append(times[0])
            columns["duration"].append(times[1])
            for name, key, old in (("external", "External id", "external id"), ("correlation", "correlation", "")):
                value = inside.get(key)
                if value is None:
                    value = inside.get(old)
                columns[name].append(value if type(value) is int and -1 < value < _LARGEST else _integer(value))

    def _add_device(self, event: dict, category: str, inside: dict) -> dict[str, Any]:
        rows = self.device
        rows["name"].append(self._once(event.get("name", "")))
        rows["kind"].append(DEVICE[category])
        rows["device"].append(_integer(inside.get("device", event.get("pid"))))
        rows["stream"].append(_integer(inside.get("stream", event.get("tid"))))
        for name in ("grid", "block"):
            rows[name].append(self._once(_size(inside.get(name))))
        return rows

    def _add_host(self, event: dict, category: str, inside: dict) -> dict[str, Any]:
        rows = self.host
        rows["name"].append(self._once(event.get("name", "")))
        # Older versions counted the steps of the profiler among the operators.
        step = category == "Operator" and str(event.get("name")).startswith("ProfilerStep#")
        rows["kind"].append("annotation" if step else HOST[category])
        rows["thread"].append(self._once(f"{event.get('pid')}/{event.get('tid')}"))
        rows["shapes"].append(self._once(inside.get("Input Dims") or inside.get("Input dims") or ""))
        rows["types"].append(self._once(inside.get("Input type") or ""))
        return rows

    def _once(self, value: Any) -> str:
        text = value if type(value) is str else str(value)
        return self.texts.setdefault(text, text)

    def columns(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return, once, what ran on the device and what the host did; seconds from the first event on the device."""
        # Microseconds of a clock of weeks lose their last digits as seconds.
        first = min(self.device["start"], default=0.0)
        found = []
        for rows in (self.device, self.host):
            # One column after the other: each is let go of when it is converted.
            columns = {name: _column(rows.pop(name)) for name in list(rows)}
            columns["start_s"] = (columns.pop("start") - first) * _MICROSECOND
            columns["duration_s"] = columns.pop("duration") * _MICROSECOND
            found.append(columns)
        found[0]["kernel"] = found[0].pop("name")
        return found[0], found[1]


_NUMBERS = {"start": "d", "duration": "d", "external": "q", "correlation": "q"}
_DEVICE_TEXTS = ("name", "kind", "device", "stream", "grid", "block")
_HOST_TEXTS = ("name", "kind", "thread", "shapes", "types")
_LARGEST = 2**62


def _column(values: Any) -> np.ndarray:
    return np.frombuffer(values, values.typecode) if isinstance(values, array) else np.array(values, object)


def _integer(value: Any) -> int:
    found = number(value)
    return int(found) if abs(found) < 2**62 else -1


def _size(value: Any) -> str:
    if isinstance(value, list) and value:
        return "x".join(str(_integer(part)) for part in value[:3])
    return ""


def _without_copies(calls: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Leave out the annotations on the GPU, or take them for the host's where that has none."""
    kind = calls["kind"]
    on_gpu = kind == _ON_GPU
    if (kind == "annotation").any():
        return {name: values[~on_gpu] for name, values in calls.items()}
    return calls | {"kind": np.where(on_gpu, "annotation", kind)}


def _launches(columns: dict[str, Any], calls: dict[str, np.ndarray]) -> None:
    """Add who launched each kernel: call, thread, operator, annotation."""
    kind, start, external = calls["kind"], calls["start_s"], calls["external"]
    end = start + calls["duration_s"]
    call = _find(columns["correlation"], calls["correlation"], kind == "call")
    launch, thread = _take(start, call, np.nan), _take(calls["thread"], call, "")
    columns |= {"launch_s": launch, "thread": thread, "launched_by": _take(calls["name"], call, "")}

    own = columns["external"]
    operator = _find(np.where(own >= 0, own, _take(external, call, -1)), external, kind == "operator")
    rows = np.flatnonzero(kind == "operator")
    around, _ = enclosing(start[rows], end[rows], calls["thread"][rows], launch, thread)
    operator = np.where(operator >= 0, operator, _take(rows, around, -1))
    for name, source in (("operator", "name"), ("shapes", "shapes"), ("types", "types")):
        columns[name] = _take(calls[source], operator, "")

    rows = np.flatnonzero(kind == "annotation")
    _, outer = enclosing(start[rows], end[rows], calls["thread"][rows], launch, thread)
    columns["annotation"] = _take(calls["name"][rows], outer, "")


def _take(values: np.ndarray, rows: np.ndarray, missing: Any) -> np.ndarray:
    """Return the values of rows, and `missing` where a row is -1."""
    if not len(values):
        return np.full(len(rows), missing, object if isinstance(missing, str) else type(missing))
    return np.where(rows >= 0, values[rows], missing)


def _find(wanted: np.ndarray, keys: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the row of the first allowed key that equals each wanted one (not negative); -1 where there is none."""
    rows = np.flatnonzero(allowed & (keys >= 0))
    table = pd.Series(rows, index=keys[rows])
    table = table[~table.index.duplicated()]
    return table.reindex(wanted).fillna(-1).to_numpy(np.int64)
