"""Profiles of ONNX Runtime (``enable_profiling``): a JSON list of events.

The category is ``Session``, ``Node``, ``Kernel`` or ``Api``. A kernel names the operator of its node (``op_name``); a
copy has the category of a kernel, and a grid of -1. Times are whole microseconds. Source: ``profiler.cc``,
``cupti_manager.cc`` and ``roctracer_manager.cc`` of ONNX Runtime.
"""

import re
from pathlib import Path

import pandas as pd

from gpuledger.errors import visible
from gpuledger.readers.timelines.events import TraceEvents, moment_and_duration, number
from gpuledger.readers.timelines.table import Timeline, finish, sizes

MARK = re.compile(rb'"cat"\s*:\s*"(?:Session|Node)"')
_CATEGORIES = ("Kernel", "Node", "Session")
_WANTED = re.compile(rf'"cat"\s*:\s*"(?:{"|".join(_CATEGORIES)})"')
#: One call of the session: its steps.
_RUN = "model_run"
_OPERATOR = "_kernel_time"
_MEMORY = re.compile(r"(?i)^mem(cpy|set)")
_SHAPE = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
_MICROSECOND = 1e-6


def read_onnx_runtime(path: str | Path) -> Timeline:
    """Read a profile of ONNX Runtime: kernels with their operators, and on the host nodes and runs of the session."""
    path = Path(path)
    kernels: list[tuple] = []
    host: list[tuple] = []
    left_out = 0
    for batch in TraceEvents(path, _WANTED, lambda event: str(event.get("cat")) in _CATEGORIES):
        for event in batch:
            name, inside = visible(str(event.get("name", ""))), event.get("args")
            inside = inside if isinstance(inside, dict) else {}
            operator, thread = visible(str(inside.get("op_name") or "")), visible(str(event.get("tid")))
            times = moment_and_duration(event)
            if times is None:
                left_out += 1
            elif event["cat"] == "Kernel":
                stream, *shape = (number(inside.get(key)) for key in ("stream", *_SHAPE))
                kernels.append((name, operator, stream, *times, *shape))
            elif event["cat"] == "Node" and name.endswith(_OPERATOR):
                host.append((operator or name.removesuffix(_OPERATOR), "operator", thread, *times))
            elif name == _RUN:
                host.append((name, "annotation", thread, *times))
    rows = pd.DataFrame(kernels, columns=["kernel", "operator", "stream", "start_s", "duration_s", *_SHAPE])
    calls = pd.DataFrame(host, columns=["name", "kind", "thread", "start_s", "duration_s"])
    for table in (rows, calls):
        table[["start_s", "duration_s"]] *= _MICROSECOND
    memory = rows["kernel"].str.extract(_MEMORY, expand=False).str.lower().map({"cpy": "copy", "set": "set"})
    shape = rows[_SHAPE].where(rows[_SHAPE] >= 0).to_numpy(float)
    rows = rows.drop(columns=_SHAPE).assign(
        kind=memory.fillna("kernel"),
        stream=rows["stream"].where(rows["stream"].abs() < 2**62, -1).astype(int),
        grid=sizes(shape[:, :3]),
        block=sizes(shape[:, 3:]),
    )
    return finish(path, "profile of ONNX Runtime", dict(rows.items()), dict(calls.items()), (), left_out)
