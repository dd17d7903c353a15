"""Triton's profiler proton: JSON in hatchet's form, a tree of scopes with the kernels as leaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.readers.timelines.table import Timeline, finish

_UNITS = {"time (ns)": 1e-9, "time (us)": 1e-6, "time (ms)": 1e-3, "time (s)": 1.0}
#: Times and counts from here on cannot be stored.
_LARGEST = 2**63
#: A profile is a summary: far larger ones are something else.
MAX_BYTES = 1 << 28


def read_proton(path: str | Path) -> Timeline:
    """Read a profile of proton: for each kernel and scope the number of launches and their time, not when they ran."""
    path = Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise InputError(path, "", "a proton profile of more than 256 MiB", "check what the file is")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"not JSON, or cut off ({str(error) or 'nested too deeply'})"
        raise InputError(path, "", problem, "record it again and call proton.finalize()") from None
    columns: dict[str, list] = {name: [] for name in ("kernel", "launches", "duration_s", "operator", "device")}
    nodes = content if isinstance(content, list) else [content]
    for name, scopes, metrics in _kernels(nodes):
        unit = next(key for key in _UNITS if key in metrics)
        time, count = metrics[unit], metrics.get("count", 1)
        for what, value in ((unit, time), ("count", count)):
            if not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
                raise InputError(
                    path, f"frame {name!r}, {what}", f"{value!r} is not a number below 2^63", "record it again"
                )
        columns["kernel"].append(name)
        columns["launches"].append(int(count))
        columns["duration_s"].append(time * _UNITS[unit])
        columns["operator"].append("/".join(scopes))
        columns["device"].append(_integer(metrics.get("device_id")))
    if not columns["kernel"]:
        remedy = "record a GPU with proton.start(backend='cupti') or 'roctracer': others count cycles"
        raise InputError(path, "", f"no kernel has a time ({', '.join(_UNITS)})", remedy)
    return finish(path, "Triton proton profile (sums)", columns)


def _integer(value: Any) -> int:
    return int(value) if str(value).isdecimal() and len(str(value)) < 10 else -1


def _kernels(nodes: list) -> Iterator[tuple[str, tuple[str, ...], dict]]:
    """Yield name, scopes and metrics of every node that has a time and nothing below it."""
    waiting = [(node, ()) for node in reversed(nodes)]
    while waiting:
        node, scopes = waiting.pop()
        if not isinstance(node, dict) or not isinstance(node.get("frame"), dict):
            continue
        name = str(node["frame"].get("name", ""))
        below, metrics = node.get("children"), node.get("metrics")
        if isinstance(below, list) and below:
            within = scopes if name == "ROOT" else (*scopes, name)
            waiting += [(child, within) for child in reversed(below)]
        elif name != "ROOT" and isinstance(metrics, dict) and any(unit in metrics for unit in _UNITS):
            yield name, scopes, metrics
