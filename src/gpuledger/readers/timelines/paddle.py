"""Traces of PaddlePaddle's profiler (``paddle.profiler``): JSON, plain or gzipped.

They resemble those of torch.profiler. But a name ends with the event's duration in brackets, ``relu dygraph[9.6 us]``,
so that every launch has another one; ``ts`` is in whole microseconds, ``args.start_time`` in thousandths of one, from
the first event on; and a thread has one name for Python and one for C++. Source: Paddle's ``chrometracing_logger.cc``.
"""

import re
from pathlib import Path

from gpuledger.readers.timelines.events import TraceEvents, number
from gpuledger.readers.timelines.kineto import of_events
from gpuledger.readers.timelines.table import Timeline

MARK = re.compile(rb'"span_ind(?:e)?x"\s*:')
#: By the category of an event, Kineto's.
_CATEGORIES = {name: name for name in ("Kernel", "Memcpy", "Memset", "Operator")}
_CATEGORIES |= dict.fromkeys(("CudaRuntime", "MluRuntime"), "Runtime")
_RANGES = ("ProfileStep", "Forward", "Backward", "Optimization", "Dataloader", "PythonUserDefined")
_CATEGORIES |= dict.fromkeys(_RANGES, "user_annotation")
_WANTED = re.compile(rf'"cat"\s*:\s*"(?:{"|".join(_CATEGORIES)})"')
_NAME = re.compile(r"(.*?)(?: dygraph)?\[[\d.]+ [um]s\]", re.DOTALL)
_THREAD = re.compile(r"\((?:Python|C\+\+)\)$")
#: Up to here, ``start_time`` is precise: it was a number of 24 bits (µs).
_PRECISE_US = 2**22


def read_paddle(path: str | Path) -> Timeline:
    """Read a trace of PaddlePaddle's profiler: kernels, operators, and its steps and ranges as annotations.

    In traces of more than four seconds, kernels start at whole microseconds.
    """
    path = Path(path)
    try:
        return _read(path, precise=True)
    except _ImpreciseError:
        return _read(path, precise=False)


class _ImpreciseError(Exception):
    """An event without ``start_time``, or so late that its last digits are lost."""


def _read(path: Path, precise: bool) -> Timeline:
    stream = TraceEvents(path, _WANTED, lambda event: str(event.get("cat")) in _CATEGORIES)
    changed = ([_as_kineto(event, precise) for event in events] for events in stream)
    return of_events(path, "trace of PaddlePaddle's profiler", stream, changed)


def _as_kineto(event: dict, precise: bool) -> dict:
    name, inside = str(event.get("name", "")), event.get("args")
    inside = inside if isinstance(inside, dict) else {}
    told = {"name": match[1] if (match := _NAME.fullmatch(name)) else name, "cat": _CATEGORIES[event["cat"]]}
    told |= {"tid": _THREAD.sub("", str(event.get("tid")))}
    start = number(str(inside.get("start_time", "")).removesuffix(" us"))
    if precise:
        if not 0 <= start <= _PRECISE_US:
            raise _ImpreciseError
        told["ts"] = start
    shapes, types = (inside.get(key) for key in ("input_shapes", "input_dtypes"))
    told["args"] = inside | {
        "correlation": inside.get("correlation id"),
        "Input Dims": _flat(shapes),
        "Input type": _flat(types),
    }
    return event | told


def _flat(by_name: object) -> list:
    """Return what the inputs of an operator have, whatever their names."""
    lists = by_name.values() if isinstance(by_name, dict) else ()
    return [part for values in lists if isinstance(values, list) for part in values]
