"""Find one step in a recorded timeline, and what repeats within the step, such as layers."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.readers.timelines import Timeline

#: Of the launches around a repetition, how many may differ from it.
TOLERANCE = 0.1
#: The longest period that is looked for, in how many launches, and how many candidates for a step's first kernel.
LONGEST_PERIOD, SEARCHED, CANDIDATES = 4096, 50_000, 64
#: Annotations that PyTorch makes by itself, of parts of a step.
_PARTS = r"^(?:nccl:|gloo:|## |Torch-Compiled|Optimizer\.|DistributedDataParallel|FullyShardedDataParallel|FSDP)"
#: What users call the parts of a training step, where one of them is the backward pass.
_PASSES = r"(?i)^(?:forward|fwd|backward|bwd|loss|zero_grad|optim|clip)"
_BACKWARD = r"(?i)^(?:backward|bwd)"
#: Names of annotations that can be steps inside of another annotation.
_STEPS = re.compile(r"(?i)step|iter|batch|execute|generat|decode|prefill|token")


@dataclass(frozen=True)
class TimelineStep:
    """One step of a timeline."""

    #: Its launches on one GPU, copies included: the timeline's columns, times from the start of its first kernel.
    rows: pd.DataFrame
    host: pd.DataFrame  # what the host did while it ran or was being launched, on the same clock
    name: str  # the annotation; empty without one
    found_by: str  # ``annotation``, ``repetition`` or ``whole recording``
    steps: int  # steps in the recording
    #: When each of them runs on that GPU, in order: ``start_s`` of its first kernel, ``end_s`` of its last one, and
    #: ``kernel_s``, the time of its kernels; without rows where the recording has sums only.
    spans: pd.DataFrame
    #: Kernels of the recording that are in none of them: the end of the step before, the start of the next one.
    dropped_kernels: int
    gpus: pd.Series  # the kernel time of the whole recording (s) by the number of the GPU; the step is of `chosen_gpu`

    @property
    def gpu_words(self) -> str:
        """Which of several GPUs it is of, in words; empty if kernels of only one were recorded."""
        return describe_choice(self.gpus) if len(self.gpus) > 1 else ""


def gpu_times(timeline: Timeline) -> pd.Series:
    """Return the kernel time (s) of each GPU of a recording, by its number (-1: not recorded), in order."""
    kernels = timeline.kernels[timeline.kernels["kind"] == "kernel"]
    return kernels.groupby("device")["duration_s"].sum()


def chosen_gpu(times: pd.Series) -> int:
    """Return the number of the GPU with most kernel time, of several the first; see :func:`gpu_times`."""
    return int(times.index[_most(times)][0])


def describe_choice(times: pd.Series) -> str:
    """Say which of several GPUs is analysed, and why: ``device 0, which has most kernel time of 2 GPUs``."""
    gpu, most = f"device {chosen_gpu(times)}", int(_most(times).sum())
    if most == len(times):
        return f"{gpu}, one of {len(times)} GPUs with equal kernel time"
    if most > 1:
        return f"{gpu}, one of {most} with most kernel time of {len(times)} GPUs"
    return f"{gpu}, which has most kernel time of {len(times)} GPUs"


def _most(times: pd.Series) -> np.ndarray:
    # Sums of the same times in another order differ in their last digits.
    return times.to_numpy() >= times.max() * (1 - 1e-9)


def find_step(timeline: Timeline, wanted: str | None = None) -> TimelineStep:
    """Find a step on the GPU that has most kernel time, of several the first.

    Annotated steps come first: the outermost annotations, of the name (numbers apart) that has most kernel time; the
    passes of a training step are parts of one. A kernel belongs to the annotation in which it was launched. Without
    annotations, a step is what repeats between two launches of one kernel, and begins after the longest pause. Of
    several steps, the one with the median kernel time is taken. Without either, the whole recording is the step, from
    the first kernel on that it saw launched.

    Parameters
    ----------
    wanted : str, optional
        The name of an annotation or NVTX range, or a part of it.
    """
    rows = timeline.kernels
    gpus = gpu_times(timeline)
    if len(gpus) > 1:
        warn(timeline.file, "", "kernels of several GPUs", f"only those of {describe_choice(gpus)}, are analysed")
    rows = rows[rows["device"] == chosen_gpu(gpus)].reset_index(drop=True)
    if not timeline.has_times:
        spans = pd.DataFrame(columns=["start_s", "end_s", "kernel_s"], dtype=float)
        return TimelineStep(rows, timeline.host.iloc[:0], "", "whole recording", 1, spans, 0, gpus)
    label, name = _annotated(timeline, rows, wanted)
    found_by = "annotation"
    if label is None:
        label, name, found_by = _repeated(rows), "", "repetition"
    if label is None:
        label, found_by = _launched(rows), "whole recording"
    kernel = (rows["kind"] == "kernel").to_numpy()
    times = rows["duration_s"].where(kernel, 0.0).groupby(label).sum()
    times = times[(times.index >= 0) & (times > 0)].sort_values(kind="stable")
    if times.empty:
        raise InputError(timeline.file, "", "no kernel in it takes any time", "record the activities of the GPU again")
    chosen = times.index[(len(times) - 1) // 2]
    name = name[chosen] if found_by == "annotation" else ""
    own = rows[label == chosen].reset_index(drop=True)
    first = own.loc[own["kind"] == "kernel", "start_s"].min()
    own = own.assign(start_s=own["start_s"] - first, launch_s=own["launch_s"] - first)
    host = timeline.host.assign(start_s=timeline.host["start_s"] - first)
    span = float((own["start_s"] + own["duration_s"]).max())
    during = (host["start_s"] < span) & (host["start_s"] + host["duration_s"] > min(0.0, own["launch_s"].min()))
    dropped = int((kernel & (label < 0)).sum())
    spans = _spans(rows[kernel], label[kernel])
    return TimelineStep(own, host[during].reset_index(drop=True), name, found_by, len(times), spans, dropped, gpus)


def _spans(kernels: pd.DataFrame, label: np.ndarray) -> pd.DataFrame:
    ends = pd.DataFrame({"start_s": kernels["start_s"], "kernel_s": kernels["duration_s"]})
    ends["end_s"] = ends["start_s"] + ends["kernel_s"]
    groups = ends[label >= 0].groupby(label[label >= 0])
    spans = groups.agg(start_s=("start_s", "min"), end_s=("end_s", "max"), kernel_s=("kernel_s", "sum"))
    return spans[spans["kernel_s"] > 0].sort_values("start_s", ignore_index=True, kind="stable")


def _annotated(timeline: Timeline, rows: pd.DataFrame, wanted: str | None) -> tuple[np.ndarray | None, list[str]]:
    """Return for each launch the number of its annotated step (-1: none), and the steps' names."""
    ranges = timeline.host[timeline.host["kind"] == "annotation"]
    if wanted is not None:
        ranges = ranges[ranges["name"].str.contains(wanted, regex=False)]
        if ranges.empty:
            known = timeline.host.loc[timeline.host["kind"] == "annotation", "name"].unique()[:8]
            remedy = f"there are: {', '.join(known)}" if len(known) else "the recording has no annotations"
            raise InputError(timeline.file, "key step", f"no annotation has {wanted!r} in its name", remedy)
    else:
        ranges = ranges[~ranges["name"].str.contains(_PARTS)]
        if ranges["name"].str.contains(_BACKWARD).any():
            ranges = ranges[~ranges["name"].str.contains(_PASSES)]
    launch = rows["launch_s"].to_numpy(float)
    # Without records of launches, the moment at which a kernel ran has to do.
    moment = launch if np.isfinite(launch).any() else rows["start_s"].to_numpy(float)
    time = rows["duration_s"].where((rows["kind"] == "kernel") & np.isfinite(moment), 0.0).to_numpy()
    best, names = _most_busy(ranges, moment, time)
    if best is None:
        return None, []
    inside = best >= 0
    whole = np.ones(len(best), bool)
    if len(np.unique(best[inside])) > 1 and all(_STEPS.search(names[step]) for step in np.unique(best[inside])):
        # What runs before the first step and after the last, such as initialising weights, is no part of the loop.
        whole = (moment >= moment[inside].min()) & (moment <= moment[inside].max())
    if wanted is None and time[inside].sum() <= 0.5 * time[whole].sum():
        return None, []
    if len(np.unique(best[inside])) == 1:
        # One annotation around several steps.
        within = ranges[ranges["name"].str.contains(_STEPS) & ~ranges["name"].isin(names)]
        inner, inner_names = _most_busy(within, np.where(inside, moment, np.nan), time)
        several = inner is not None and len(np.unique(inner[inner >= 0])) > 1
        if several and time[inner >= 0].sum() > 0.8 * time[inside].sum():
            return inner, inner_names
    return best, names


def _most_busy(ranges: pd.DataFrame, moment: np.ndarray, time: np.ndarray) -> tuple[np.ndarray | None, list[str]]:
    """Return each launch's outermost range of the kind with most kernel time (-1: none), and all ranges' names."""
    start = ranges["start_s"].to_numpy(float)
    end = start + ranges["duration_s"].to_numpy(float)
    reach, outer = -np.inf, []
    for row in np.lexsort((-end, start)):
        if end[row] > reach:  # otherwise it is inside of one that began before
            outer.append(row)
            reach = end[row]
    names, start, end = ranges["name"].to_numpy(object)[outer], start[outer], end[outer]
    if not len(names):
        return None, []
    at = np.searchsorted(start, moment, side="right") - 1
    own = np.where((at >= 0) & (moment <= end[at]), at, -1)
    kind = np.array([re.sub(r"\d+", "#", name) for name in names], object)
    by_kind = pd.Series(time[own >= 0]).groupby(kind[own[own >= 0]]).sum()
    if by_kind.empty or by_kind.max() <= 0:
        return None, []
    return np.where((own >= 0) & (kind[own] == by_kind.idxmax()), own, -1), list(names)


def _launched(rows: pd.DataFrame) -> np.ndarray:
    """Return 0 for each launch, and -1 for those at the beginning that the host launched before the recording."""
    known = np.flatnonzero(rows["launch_s"].notna())
    return np.where(np.arange(len(rows)) < (known[0] if len(known) else 0), -1, 0)


def _repeated(rows: pd.DataFrame) -> np.ndarray | None:
    """Return for each launch the number of its step, or None where nothing repeats."""
    names = rows["kernel"] + rows["grid"]
    codes, _ = pd.factorize(names)
    counts = np.bincount(codes)
    # The first kernel of a step is among the rarest; more than two whole steps are needed to know one.
    candidates = [code for code in np.argsort(counts, kind="stable") if counts[code] >= 3][:CANDIDATES]
    best = None
    for code in candidates:
        places = np.flatnonzero(codes == code)
        lengths = np.diff(places)
        length = np.bincount(lengths).argmax()
        whole = places[:-1][lengths == length]
        if len(whole) < 2 or length < 2:
            continue
        segments = codes[whole[:, None] + np.arange(length)]
        typical = segments[len(segments) // 2]
        same = (segments == typical).mean(axis=1) >= 1 - TOLERANCE
        covered = int(same.sum()) * length
        # A layer repeats, too: its kernels cover less than the steps that they are in.
        if same.sum() >= 2 and (best is None or covered > best[0] * 1.02):
            best = covered, whole[same], length
    if best is None or best[0] < 0.5 * len(codes):
        return None
    _, starts, length = best
    period = codes[starts[0] : starts[0] + length]
    ends = codes[: starts[0]], codes[starts[-1] + length :]
    _, part, parts = find_repetition(period)
    inside = parts >= 3 or part * parts > 0.5 * length
    if all(np.setdiff1d(end, period).size for end in ends) and not inside:
        # Kernels of their own before and after, and hardly anything that repeats inside: layers of a single step.
        return None
    return _cut(rows, starts, int(length))


def _cut(rows: pd.DataFrame, starts: np.ndarray, length: int) -> np.ndarray:
    """Number the steps, turned so that each begins after its longest pause."""
    begin = rows["start_s"].to_numpy(float)
    end = np.maximum.accumulate(begin + rows["duration_s"].to_numpy(float))
    pause = np.r_[0.0, np.maximum(begin[1:] - end[:-1], 0.0)]
    inside = starts[1:] if starts[0] == 0 else starts
    turn = int(np.median(pause[inside[:, None] + np.arange(length)], axis=0).argmax())
    label = np.full(len(rows), -1, np.int64)
    consecutive = set(starts.tolist())
    for number, start in enumerate(starts):
        first = start + turn
        # A turned step needs the beginning of the next one.
        if turn and start + length not in consecutive and first + length > len(rows):
            continue
        label[first : first + length] = number
    return label


def find_repetition(tokens: np.ndarray) -> tuple[int, int, int]:
    """Find the part of a sequence that repeats.

    Parameters
    ----------
    tokens : array of shape (launches,)
        What each launch is, in order of time.

    Returns
    -------
    first, period, repeats : int
        Where the repetition begins, launches in one of it, and how many there are; ``repeats`` is 0 without one, or
        if what repeats is less than a tenth of all, which may be chance.
    """
    codes = pd.factorize(np.asarray(tokens, object)[:SEARCHED])[0]
    found: list[tuple[int, int, int]] = []
    for period in range(2, min(len(codes) // 2, LONGEST_PERIOD) + 1):
        same = codes[period:] == codes[:-period]
        edges = np.flatnonzero(np.diff(np.r_[0, same.astype(np.int8), 0]))
        runs = edges[1::2] - edges[::2]
        if not len(runs):
            continue
        longest = int(runs.argmax())
        repeats = int(runs[longest]) // period + 1
        if repeats >= 2:
            found.append((repeats * period, period, int(edges[2 * longest])))
    most = max((covered for covered, _, _ in found), default=0)
    if most < 0.1 * len(codes) or not found:
        return 0, 0, 0
    # The shortest period that covers nearly as much: twelve layers, not six pairs of them.
    covered, period, first = next(entry for entry in found if entry[0] >= 0.9 * most)
    return first, period, covered // period
