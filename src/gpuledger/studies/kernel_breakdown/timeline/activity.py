"""What runs when in a step: overlap, exposed communication, waiting, and what the host does while no kernel runs."""

import re

import numpy as np
import pandas as pd

from gpuledger.readers.timelines.table import enclosing

#: Runtime calls that wait for the GPU.
_WAITS = re.compile(r"(?i)synchronize|WaitEvent|StreamWait|EventQuery")
_COPIES = re.compile(r"(?i)memcpy|memset")
_LAUNCHES, _GRAPHS = re.compile(r"(?i)launch"), re.compile("GraphLaunch")
#: What the host may do while no kernel runs, in order of precedence.
ACTIVITIES = (
    *("copying on the GPU", "waiting for the GPU", "runtime: copies", "runtime: launches", "runtime: other calls"),
    *("operators", "between kernels of a graph", "other work on the host", "host not recorded"),
)
#: How much longer than the shortest launch of the same size a collective has to take to count as one that waits.
WAITING = 2.0
#: The shortest pause, in seconds.
SHORTEST = 1e-12


def merge(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Merge intervals that touch or overlap.

    Parameters
    ----------
    start, end : float arrays of shape (intervals,)

    Returns
    -------
    float array of shape (merged, 2)
        Disjoint, ascending.
    """
    keep = end > start
    order = np.argsort(start[keep], kind="stable")
    start, reach = start[keep][order], np.maximum.accumulate(end[keep][order])
    if not len(start):
        return np.empty((0, 2))
    new = np.r_[True, start[1:] > reach[:-1]]
    return np.column_stack([start[new], reach[np.r_[new[1:], True]]])


def length(intervals: np.ndarray) -> float:
    """Sum the lengths of disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def subtract(intervals: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the parts of disjoint, ascending intervals that no other one covers."""
    if not len(intervals) or not len(others):
        return intervals
    edges = np.unique(np.concatenate([intervals.ravel(), others.ravel()]))
    middle = (edges[:-1] + edges[1:]) / 2
    keep = _covers(intervals, middle) & ~_covers(others, middle)
    return merge(edges[:-1][keep], edges[1:][keep])


def _covers(intervals: np.ndarray, at: np.ndarray) -> np.ndarray:
    row = np.searchsorted(intervals[:, 0], at, side="right") - 1
    return (row >= 0) & (at < intervals[np.maximum(row, 0), 1])


def busy(rows: pd.DataFrame) -> np.ndarray:
    """Merge the times at which the launches of a table ran."""
    start = rows["start_s"].to_numpy(float)
    return merge(start, start + rows["duration_s"].to_numpy(float))


def divided_times(rows: pd.DataFrame) -> np.ndarray:
    """Divide the time at which kernels run among them, so that their parts add up to it.

    A moment belongs to the kernels that compute in it, in equal parts, and to communication if none computes.

    Parameters
    ----------
    rows : DataFrame
        Kernels with ``start_s, duration_s, kernel_class``.

    Returns
    -------
    float array of shape (kernels,)
        Seconds; the kernel's whole duration if it runs alone.
    """
    start = rows["start_s"].to_numpy(float)
    end = start + rows["duration_s"].to_numpy(float)
    edges, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    first, last = place[: len(start)], place[len(start) :]
    communicates = (rows["kernel_class"] == "communication").to_numpy()
    parts, taken = np.zeros(len(start)), np.zeros(len(edges), bool)
    for own in (~communicates, communicates):
        change = np.bincount(first[own], minlength=len(edges)) - np.bincount(last[own], minlength=len(edges))
        running = np.cumsum(change)
        # Of what runs from an edge to the next one, each kernel's part, summed from the first edge on.
        each = np.where((running > 0) & ~taken, np.diff(edges, append=edges[-1:]) / np.maximum(running, 1), 0.0)
        until = np.r_[0.0, np.cumsum(each)]
        parts[own] = until[last[own]] - until[first[own]]
        taken |= running > 0
    return parts


def without_kernel(rows: pd.DataFrame) -> np.ndarray:
    """Return the times in the span of a step's kernels at which none runs: disjoint, ascending intervals.

    A kernel of no length can be the first or the last, and the span begins or ends with it. What is shorter than a
    picosecond is the rounding of moments.
    """
    kernels = rows[rows["kind"] == "kernel"]
    start = kernels["start_s"].to_numpy(float)
    span = merge(start.min(keepdims=True), (start + kernels["duration_s"].to_numpy(float)).max(keepdims=True))
    found = subtract(span, busy(kernels))
    return found[found[:, 1] - found[:, 0] > SHORTEST]


def longest_pause(rows: pd.DataFrame) -> np.ndarray | None:
    """Return the start and end of the longest time without a kernel, the first of equal ones."""
    found = without_kernel(rows)
    return found[np.round(found[:, 1] - found[:, 0], 12).argmax()] if len(found) else None


def explain_idle(rows: pd.DataFrame, host: pd.DataFrame, recorded: bool = True) -> pd.DataFrame:
    """Find the times at which no kernel runs, and what goes on then.

    Parameters
    ----------
    rows : DataFrame
        The launches of a step, copies included.
    host : DataFrame
        What the host did; only threads that launched something of the step count.
    recorded : bool
        Whether the recording has calls or operators of the host at all: without, nothing is known of it.

    Returns
    -------
    DataFrame
        Disjoint intervals within the step's span, ascending: ``start_s, duration_s, activity`` (of `ACTIVITIES`) and
        ``call`` (the runtime call or operator in the middle of it, or empty).
    """
    left = without_kernel(rows)
    threads = set(rows["thread"]) - {""}
    own = host[host["thread"].isin(threads)] if threads else host
    call, name = own["kind"] == "call", own["name"]
    waits, copies, launches = (name.str.contains(pattern) for pattern in (_WAITS, _COPIES, _LAUNCHES))
    doing = {
        "copying on the GPU": rows[rows["kind"] != "kernel"],
        "waiting for the GPU": own[call & waits],
        "runtime: copies": own[call & ~waits & copies],
        "runtime: launches": own[call & ~waits & ~copies & launches],
        "runtime: other calls": own[call & ~waits & ~copies & ~launches],
        "operators": own[own["kind"] == "operator"],
        "between kernels of a graph": _graphs(rows),
    }
    parts = []
    for activity, table in doing.items():
        rest = subtract(left, busy(table))
        parts.append(_interval_table(activity, subtract(left, rest), table))
        left = rest
    parts.append(_interval_table(ACTIVITIES[-2] if recorded else ACTIVITIES[-1], left, own.iloc[:0]))
    found = pd.concat(parts, ignore_index=True).sort_values("start_s", kind="stable", ignore_index=True)
    return found[found["duration_s"] > SHORTEST].reset_index(drop=True)


def _graphs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return when each graph ran, from its first launch to its last: the host has launched all of them at once."""
    graphs = rows[rows["launched_by"].str.contains(_GRAPHS)]
    ends = graphs.assign(end_s=graphs["start_s"] + graphs["duration_s"]).groupby(["thread", "launch_s"])
    spans = ends.agg(name=("launched_by", "first"), start_s=("start_s", "min"), end_s=("end_s", "max"))
    return spans.assign(duration_s=spans["end_s"] - spans["start_s"])


def _interval_table(activity: str, intervals: np.ndarray, events: pd.DataFrame) -> pd.DataFrame:
    start, name = events["start_s"].to_numpy(float), events.get("name", events.get("kernel")).to_numpy(object)
    end = start + events["duration_s"].to_numpy(float)
    middle, one = intervals.mean(axis=1), np.zeros(len(events))
    inner, _ = enclosing(start, end, one, middle, np.zeros(len(middle)))
    call = [name[row] if row >= 0 else "" for row in inner]
    times = {"start_s": intervals[:, 0], "duration_s": intervals[:, 1] - intervals[:, 0]}
    return pd.DataFrame({**times, "activity": activity, "call": np.array(call, object)})


def mostly_waits(rows: pd.DataFrame) -> pd.Series:
    """Return which launches wait for more of their time than they move data, from ``waiting_s`` and ``duration_s``."""
    return rows["waiting_s"] > (1 - 1 / WAITING) * rows["duration_s"]


def waiting_times(rows: pd.DataFrame) -> pd.Series:
    """Estimate how long each communication kernel waits for other GPUs.

    A collective cannot end before the last GPU has arrived. The shortest of at least three launches of one kernel
    with the same shapes and grid is taken for the transfer, what is longer for waiting.

    Returns
    -------
    Series
        Seconds, by the index of `rows`; 0 for other kernels, and where there are fewer launches to compare with.
    """
    own = rows[(rows["kernel_class"] == "communication") & (rows["kind"] == "kernel")]
    groups = own.groupby(["kernel", "shapes", "grid"])["duration_s"]
    waiting = (own["duration_s"] - groups.transform("min")).where(groups.transform("size") >= 3, 0.0)
    return waiting.reindex(rows.index, fill_value=0.0)
