"""A timeline: the kernels that a GPU ran, what launched them, and what the host did meanwhile."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import HIDDEN, InputError, visible, warn

#: Columns of a timeline's kernels, and the value where a recording does not say.
KERNEL_COLUMNS = {
    "kernel": "",
    "kind": "kernel",
    "launches": 1,
    "start_s": np.nan,
    "duration_s": np.nan,
    "stream": -1,
    "device": -1,
    "grid": "",
    "block": "",
    "operator": "",
    "shapes": "",
    "types": "",
    "nvtx_range": "",
    "annotation": "",
    "launch_s": np.nan,
    "launched_by": "",
    "thread": "",
    "flops": np.nan,
    "bytes": np.nan,
}
HOST_COLUMNS = {"name": "", "kind": "", "start_s": np.nan, "duration_s": np.nan, "thread": ""}


@dataclass
class Timeline:
    """What a profiler recorded, in one form whatever wrote it."""

    file: Path
    format: str  # what the file is, in words
    #: One row per launch, by start: ``kernel`` (name), ``kind`` (``kernel``, ``copy`` or ``set``), ``launches`` (1;
    #: more where a report has only sums), ``start_s`` and ``duration_s`` (of the launches together), ``stream``,
    #: ``device``, ``grid`` and ``block`` (``8x1x1``), ``operator``, ``shapes`` and ``types`` (of its inputs, as
    #: recorded), ``nvtx_range`` (the innermost), ``annotation`` (the outermost), ``launch_s`` (when the host launched
    #: it), ``launched_by`` (the runtime call), ``thread`` (of the host), and ``flops`` and ``bytes`` (what the launches
    #: together compute and move, as the program states it). Empty, -1 or NaN: not recorded.
    kernels: pd.DataFrame
    #: What host threads did: ``name``, ``kind`` (``operator``, ``call`` or ``annotation``), ``start_s, duration_s,
    #: thread``.
    host: pd.DataFrame = field(default_factory=lambda: frame({}, HOST_COLUMNS))
    devices: Sequence[str] = ()  # names of the GPUs

    @property
    def has_times(self) -> bool:
        """Whether it says when kernels ran, and not only for how long."""
        return bool(self.kernels["start_s"].notna().all())


def frame(columns: Mapping[str, Sequence], known: Mapping[str, object]) -> pd.DataFrame:
    """Make a table with all of the `known` columns, filled where `columns` lacks one."""
    count = len(next(iter(columns.values()), ()))
    made = {}
    for name, empty in known.items():
        kind = object if isinstance(empty, str) else type(empty)
        values = np.asarray(columns[name], kind) if name in columns else np.full(count, empty, kind)
        if kind is object and name in columns:
            values = _visible(values)
        # As objects, equal names are one text; pandas' own texts would repeat a kernel's long name for every launch.
        made[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(made, copy=False)


def _visible(texts: np.ndarray) -> np.ndarray:
    """Write signs that are no text, such as the halves of characters that JSON may hold, as escapes."""
    hidden = {text: visible(text) for text in set(texts.tolist()) if isinstance(text, str) and HIDDEN.search(text)}
    return np.array([hidden.get(text, text) for text in texts], object) if hidden else texts


def work_rates(rows: pd.DataFrame, by: str | list[str]) -> pd.DataFrame:
    """Return what groups of launches compute and move per second, of those whose work was recorded.

    Returns
    -------
    DataFrame
        By group ``tflop_per_s`` and ``tb_per_s``; without a column for what was never recorded.
    """
    found = {}
    for name, rate in (("flops", "tflop_per_s"), ("bytes", "tb_per_s")):
        known = rows[rows[name].notna() & (rows["duration_s"] > 0)] if name in rows else rows.iloc[:0]
        if len(known):
            sums = known.groupby(by, sort=False)[[name, "duration_s"]].sum()
            found[rate] = 1e-12 * sums[name] / sums["duration_s"]
    return pd.DataFrame(found, index=rows.groupby(by, sort=False).size().index)


def finish(
    file: Path,
    form: str,
    kernels: Mapping[str, Sequence],
    host: Mapping[str, Sequence] | None = None,
    devices: Iterable[str] = (),
    left_out: int = 0,
) -> Timeline:
    """Make a timeline of columns whose times are in seconds of any clock; it begins with its first kernel."""
    table, calls = frame(kernels, KERNEL_COLUMNS), frame(host or {}, HOST_COLUMNS)
    timeless = f"{left_out:,} {'event has' if left_out == 1 else 'events have'} no valid time or duration"
    if not (table["kind"] == "kernel").any():
        problem = "there is no GPU kernel in it" + (f", and {timeless}" if left_out else "")
        raise InputError(file, "", problem, "record the activities of the GPU (CUDA) too")
    if left_out:
        warn(file, "", timeless, "left out")
    first = table["start_s"].min()
    if np.isfinite(first):
        for times, names in ((table, ("start_s", "launch_s")), (calls, ("start_s",))):
            for name in names:
                times[name] = times[name] - first
    # Profilers mostly write them in order: a sorted copy would double the memory for nothing.
    if not table["start_s"].is_monotonic_increasing:
        table = table.sort_values("start_s", kind="stable", ignore_index=True)
    return Timeline(file, form, table, calls, [visible(str(name)) for name in devices])


def sizes(parts: np.ndarray) -> np.ndarray:
    """Write sizes as ``8x1x1``; empty where one is unknown.

    Parameters
    ----------
    parts : numpy.ndarray of float64, shape (launches, 3)
        NaN where not recorded.
    """
    alike = pd.DataFrame(parts).groupby([0, 1, 2], sort=False, dropna=False).ngroup().to_numpy()
    distinct = parts[~pd.Series(alike).duplicated().to_numpy()]
    texts = ["" if np.isnan(part).any() else "x".join(f"{size:.0f}" for size in part) for part in distinct]
    return np.array(texts, object)[alike]


def grid_in_blocks(items: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return the blocks of grids that are recorded as threads (work-items), as AMD's are.

    Parameters
    ----------
    items, block : numpy.ndarray of float64, shape (launches, 3)
        NaN where not recorded.
    """
    return np.ceil(items / np.where(block > 0, block, np.nan))


def enclosing(
    start: np.ndarray, end: np.ndarray, thread: np.ndarray, at: np.ndarray, at_thread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the innermost and the outermost interval of the same thread around each moment.

    Parameters
    ----------
    start, end : float arrays of shape (intervals,)
    thread : array of shape (intervals,)
    at : float array of shape (moments,)
    at_thread : array of shape (moments,)

    Returns
    -------
    innermost, outermost : int64 arrays of shape (moments,)
        Rows of the intervals; -1 where there is none.
    """
    innermost = np.full(len(at), -1, np.int64)
    outermost = innermost.copy()
    codes = pd.factorize(np.concatenate([np.asarray(thread, object), np.asarray(at_thread, object)]))[0]
    own, asked = codes[: len(start)], codes[len(start) :]
    intervals, moments = np.lexsort((-end, start, own)), np.lexsort((at, asked))
    position, stack, current = 0, [], -1
    for moment in moments:
        if np.isnan(at[moment]):
            continue
        if asked[moment] != current:
            current, stack = asked[moment], []
        while position < len(intervals):
            row = intervals[position]
            if (own[row], start[row]) > (current, at[moment]):
                break
            if own[row] == current:
                while stack and end[stack[-1]] <= start[row]:
                    stack.pop()
                stack.append(row)
            position += 1
        while stack and end[stack[-1]] < at[moment]:
            stack.pop()
        if stack:
            innermost[moment] = stack[-1]
            outermost[moment] = next(row for row in stack if end[row] >= at[moment])
    return innermost, outermost
