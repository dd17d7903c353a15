"""Timelines as Chrome trace JSON, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuledger import files

#: A cycle of a GPU's clock, where a trace has only cycles.
CYCLE_S = 1e-9


class PerfettoTrace:
    """A timeline of slices on tracks, grouped by process, with arrows between slices.

    The format counts in µs and viewers show whatever fits. Clocks in cycles are written with 1 cycle as 1 ns; their
    process says so.
    """

    def __init__(self):
        self._events: list[dict] = []
        self._tracks: dict[tuple[str, str], tuple[int, int]] = {}
        self._flows = 0
        self._open: dict[tuple[str, str], list[float]] = {}

    def _track(self, process: str, track: str) -> dict[str, int]:
        if (process, track) not in self._tracks:
            processes = list(dict.fromkeys(name for name, _ in self._tracks))
            pid = processes.index(process) + 1 if process in processes else len(processes) + 1
            tid = len(self._tracks) + 1
            self._tracks[process, track] = pid, tid
            for what, name in (("process_name", process), ("thread_name", track)):
                self._events.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}})
            self._events.append(
                {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
            )
        pid, tid = self._tracks[process, track]
        return {"pid": pid, "tid": tid}

    def add(
        self, process: str, track: str, name: str, start_s: float, duration_s: float, category: str = "", **details: Any
    ) -> str:
        """Add a slice; `details` are shown when it is selected, those that are empty or missing are left out.

        Slices of a track come in order of their starts. Viewers only show slices that are apart or nested, so one that
        overlaps another goes to a track of its own, "<track> (2)".

        Returns
        -------
        str
            The track that it is on, for :meth:`connect`.
        """
        number, wanted = 1, track
        while not self._fits(process, track, start_s, start_s + duration_s):
            number += 1
            track = f"{wanted} ({number})"
        event = {
            "ph": "X",
            "name": name or "unnamed",
            "cat": category or "slice",
            **self._track(process, track),
            "ts": _microseconds(start_s),
            "dur": _microseconds(duration_s),
        }
        shown = {key: _plain(value) for key, value in details.items()}
        shown = {key: value for key, value in shown.items() if value not in ("", None)}
        self._events.append({**event, "args": shown} if shown else event)
        return track

    def _fits(self, process: str, track: str, start_s: float, end_s: float) -> bool:
        ends = self._open.setdefault((process, track), [])
        while ends and ends[-1] <= start_s + 1e-12:
            ends.pop()
        if ends and end_s > ends[-1] + 1e-12:
            return False
        ends.append(end_s)
        return True

    def connect(self, name: str, start: tuple[str, str, float], end: tuple[str, str, float]) -> None:
        """Draw an arrow between two slices, each given as (process, track, a moment in it in s)."""
        self._flows += 1
        for phase, (process, track, moment) in (("s", start), ("f", end)):
            event = {"ph": phase, "id": self._flows, "name": name, "cat": "flow", **self._track(process, track)}
            self._events.append({**event, "ts": _microseconds(moment), **({"bp": "e"} if phase == "f" else {})})

    def write(self, record: Mapping, folder: str | Path | None, name: str = "trace.json") -> None:
        """Write the trace with its provenance, the same bytes every time.

        Parameters
        ----------
        record : mapping
            The ``provenance.json`` of its numbers.
        folder : path or None
            None writes nothing.
        """
        if folder is None:
            return
        about = {key: record[key] for key in ("dataset", "study", "case", "label", "source") if key in record}
        content = {"displayTimeUnit": "ns", "otherData": about, "traceEvents": self._events}
        files.write_text(Path(folder) / name, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")


def _microseconds(seconds: float) -> float:
    # Picoseconds are finer than any clock; more digits are noise.
    return round(1e6 * float(seconds), 6)


def _plain(value: Any) -> Any:
    """Return a value that JSON has; None for a missing one."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    number = float(value)
    return float(f"{number:.10g}") if np.isfinite(number) else None
