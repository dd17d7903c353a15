"""Launches as torch.profiler sees them, and the tables that they fill chunk by chunk, so that a call can be resumed."""

import csv
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuledger import files
from gpuledger.errors import InputError

#: Sizes of a product that recordings launch among others: it takes longer where the clock is lower.
REFERENCE = (512, 4096, 4096)
#: The first PyTorch whose attention takes fewer heads of keys than of queries, and cuDNN's kernels.
OLDEST_TORCH = (2, 5)


def torch_with_attention() -> Any:
    """Import PyTorch, of a version whose attention is recorded."""
    torch = import_module("torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise InputError("PyTorch", f"version {torch.__version__}", "it is too old", f"use {oldest} or newer")
    return torch


def why_refused(error: RuntimeError) -> str:
    """Return the first sentence of an error of PyTorch: of a full memory, the next ones name processes."""
    return re.split(r"\.\s|\n", str(error))[0][:200]


def profiled(torch: Any, launch: Callable[[], None]) -> list[dict]:
    """Call `launch`, wait for its kernels, and return the events that PyTorch's profiler saw."""
    profiler = torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]) as recorder:
        launch()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="gpuledger-") as scratch:
        path = Path(scratch, "events.json")
        recorder.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    if not any(event.get("cat") == "kernel" for event in events):
        remedy = "record again; see whether another profiler runs"
        raise InputError("torch.profiler", "", "it shows no kernels of what was launched", remedy)
    return events


def duration_ns(event: Mapping[str, Any]) -> int:
    """Return how long an event took (ns)."""
    return round(1000 * event["dur"])


def whole_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, none if it does not exist; a last line that was cut off is removed from it."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        files.write_text(path, "".join(whole))
    return list(csv.DictReader(whole))


def append_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a table, which is made if it does not exist or is empty; a cell that a row lacks is empty."""
    new = not path.is_file() or path.stat().st_size == 0
    with path.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        if new:
            table.writeheader()
        table.writerows(rows)
