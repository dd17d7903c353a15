"""Triton's profiler proton: JSON in hatchet's form, a tree of scopes with the kernels as leaves; and its traces.

A trace (``data="trace"``) is in Chrome's form: one object with the kernels of each stream, or, in newer versions, one
with all of them and the host's scopes. Sources: triton-lang/triton, ``third_party/proton/csrc/lib/Data``.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, visible
from gpuledger.readers.timelines.events import TraceEvents, moment_and_duration
from gpuledger.readers.timelines.table import Timeline, finish

_UNITS = {"time (ns)": 1e-9, "time (us)": 1e-6, "time (ms)": 1e-3, "time (s)": 1.0}
#: By what proton calls its metrics, the column of a timeline; the digits are the bits of the operands.
_WORK = {f"flops{bits}": "flops" for bits in ("", 4, 8, 16, 32, 64)} | {"bytes": "bytes"}
#: Times and counts from here on cannot be stored.
_LARGEST = 2**63
#: A profile is a summary: far larger ones are something else.
MAX_BYTES = 1 << 28
#: Scopes of a kernel in a trace; those within are left out.
MOST_SCOPES = 100
_MICROSECOND = 1e-6

Scopes = tuple[str, ...]


def read_proton(path: str | Path) -> Timeline:
    """Read a profile of proton: for each kernel and scope the number of launches and their time, not when they ran.

    The FLOP and bytes of a scope are those of its kernel, if it has only one.
    """
    path = Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise InputError(path, "", "a proton profile of more than 256 MiB", "check what the file is")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"not JSON, or cut off ({str(error) or 'nested too deeply'})"
        raise InputError(path, "", problem, "record it again and call proton.finalize()") from None
    names = ("kernel", "launches", "duration_s", "operator", "device")
    columns: dict[str, Any] = {name: [] for name in names}
    stacks: list[Scopes] = []
    work: dict[Scopes, dict[str, float]] = {}
    for stack, metrics, is_kernel in _nodes(content if isinstance(content, list) else [content]):
        work[stack] = _work_in(metrics)
        if not is_kernel:
            continue
        unit = next(key for key in _UNITS if key in metrics)
        time, count = metrics[unit], metrics.get("count", 1)
        for what, value in ((unit, time), ("count", count)):
            if not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
                raise InputError(
                    path, f"frame {stack[-1]!r}, {what}", f"{value!r} is not a number below 2^63", "record it again"
                )
        stacks.append(stack)
        columns["kernel"].append(stack[-1])
        columns["launches"].append(int(count))
        columns["duration_s"].append(time * _UNITS[unit])
        columns["operator"].append("/".join(stack[:-1]))
        columns["device"].append(_integer(metrics.get("device_id")))
    if not columns["kernel"]:
        remedy = "record a GPU with proton.start(backend='cupti') or 'roctracer': others count cycles"
        raise InputError(path, "", f"no kernel has a time ({', '.join(_UNITS)})", remedy)
    columns |= _shares(stacks, columns["launches"], work)
    return finish(path, "Triton proton profile (sums)", columns)


def read_proton_trace(path: str | Path) -> Timeline:
    """Read a trace of proton: the kernels of each stream, and the scopes that launched them.

    Scopes that differ in a number (``step 0``, ``step 1``) are annotations while their kernels run: the outermost of
    which there are several. FLOP and bytes are there in newer versions of proton only.
    """
    path = Path(path)
    left_out = 0
    columns: dict[str, Any] = {name: [] for name in ("kernel", "start_s", "duration_s", "stream")}
    stacks: list[Scopes] = []
    own: list[dict[str, float]] = []
    work: dict[Scopes, dict[str, float]] = {}
    for batch in TraceEvents(path, re.compile('"call_stack"'), lambda event: event.get("cat") in ("kernel", "metric")):
        for event in batch:
            inside = event["args"] if isinstance(event.get("args"), dict) else {}
            stack = inside.get("call_stack")
            stack = (
                tuple(map(str, [*stack[1:MOST_SCOPES], *stack[MOST_SCOPES:][-1:]])) if isinstance(stack, list) else ()
            )
            found = _work_in(inside.get("metrics"))
            if event["cat"] == "metric":
                work[stack] = dict(Counter(work.get(stack, {})) + Counter(found))
                continue
            if (times := moment_and_duration(event)) is None:
                left_out += 1
                continue
            stacks.append(stack or (str(event.get("name", "")),))
            own.append(found)
            row = (str(event.get("name", "")), times[0] * _MICROSECOND, times[1] * _MICROSECOND)
            for name, value in zip(columns, (*row, _integer(event.get("tid"))), strict=True):
                columns[name].append(value)
    columns["operator"] = ["/".join(stack[:-1]) for stack in stacks]
    for name, shares in _shares(stacks, [1] * len(stacks), work).items():
        columns[name] = [work.get(name, share) for work, share in zip(own, shares, strict=True)]
    return finish(path, "trace of Triton's proton", columns, _numbered_scopes(stacks, columns), left_out=left_out)


def _integer(value: Any) -> int:
    return int(value) if str(value).isdecimal() and len(str(value)) < 10 else -1


def _nodes(nodes: list) -> Iterator[tuple[Scopes, dict[str, Any], bool]]:
    """Yield the names from the outermost scope to each node, its metrics, and whether it is a kernel.

    A kernel has a time, and nothing below it.
    """
    waiting = [(node, ()) for node in reversed(nodes)]
    while waiting:
        node, scopes = waiting.pop()
        if not isinstance(node, dict) or not isinstance(node.get("frame"), dict):
            continue
        name = str(node["frame"].get("name", ""))
        stack = scopes if name == "ROOT" else (*scopes, name)
        below, metrics = node.get("children"), node.get("metrics")
        metrics = metrics if isinstance(metrics, dict) else {}
        below = below if isinstance(below, list) else []
        if stack:
            yield stack, metrics, not below and any(unit in metrics for unit in _UNITS)
        waiting += [(child, stack) for child in reversed(below)]


def _work_in(metrics: Any) -> dict[str, float]:
    """Return the FLOP and the bytes among metrics; of several precisions together."""
    found: dict[str, float] = {}
    for key, value in metrics.items() if isinstance(metrics, dict) else ():
        if key in _WORK and isinstance(value, (int, float)) and 0 <= value < _LARGEST:
            found[_WORK[key]] = found.get(_WORK[key], 0.0) + value
    return found


def _shares(
    stacks: Sequence[Scopes], launches: Sequence[int], work: Mapping[Scopes, Mapping[str, float]]
) -> dict[str, list[float]]:
    """Divide the work of each scope that has one kernel only among the launches of that; NaN for others."""
    total: Counter[Scopes] = Counter()
    for stack, count in zip(stacks, launches, strict=True):
        total[stack] += count
    kernels = Counter(stack[:depth] for stack in total for depth in range(1, len(stack) + 1))
    each = {}
    for stack, count in total.items():
        alone = [stack[:depth] for depth in range(len(stack), 0, -1) if kernels[stack[:depth]] == 1]
        for name in ("flops", "bytes"):
            known = [work[scope][name] for scope in alone if name in work.get(scope, {})]
            each[stack, name] = known[0] / max(count, 1) if known else np.nan
    return {
        name: [count * each[stack, name] for stack, count in zip(stacks, launches, strict=True)]
        for name in ("flops", "bytes")
    }


def _numbered_scopes(stacks: Sequence[Scopes], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return, as annotations, the outermost scopes that differ in a number, each while its kernels run."""
    shown = {stack: tuple(map(visible, stack)) for stack in set(stacks)}
    rows = pd.DataFrame({"start_s": columns["start_s"], "end_s": columns["start_s"]})
    rows["stack"] = pd.Series([shown[stack] for stack in stacks], dtype=object)
    rows["end_s"] += np.asarray(columns["duration_s"], float)
    rows = rows.sort_values("start_s", kind="stable", ignore_index=True)
    for depth in range(max(map(len, stacks), default=1) - 1):
        scopes = rows["stack"].map(lambda stack: "/".join(stack[: depth + 1]) if len(stack) > depth + 1 else "")  # noqa: B023
        runs = rows.assign(scope=scopes).groupby((scopes != scopes.shift()).cumsum())
        runs = runs.agg(scope=("scope", "first"), start_s=("start_s", "min"), end_s=("end_s", "max"))
        kinds = runs["scope"].str.replace(r"\d+", "#", regex=True)
        several = (kinds != runs["scope"]) & (kinds.groupby(kinds).transform("size") > 1)
        if several.any():
            runs = runs[several]
            names = runs["scope"].str.rpartition("/")[2]
            return {
                "name": names.to_numpy(object),
                "kind": ["annotation"] * len(runs),
                "start_s": runs["start_s"].to_numpy(),
                "duration_s": (runs["end_s"] - runs["start_s"]).to_numpy(),
            }
    return {}
