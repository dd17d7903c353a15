"""A case with two recordings of a program, before and after a change: what made its step shorter or longer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, brief
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.parts import join_parts
from gpuledger.readers.kernel_names import are_siblings, without_compilers_number
from gpuledger.readers.timelines import Timeline, read_timeline
from gpuledger.studies.kernel_breakdown.formatting import format_time
from gpuledger.studies.kernel_breakdown.parts import settle_frame
from gpuledger.studies.kernel_breakdown.timeline.activity import divided_times
from gpuledger.studies.kernel_breakdown.timeline.case import PREDICTED, describe_launches
from gpuledger.studies.kernel_breakdown.timeline.shapes import product_sizes, read_shapes
from gpuledger.studies.kernel_breakdown.timeline.step import TimelineStep, find_step

#: The two recordings, in the order of time.
RECORDINGS = ("before", "after")
#: Parts of a step's time that no kernel takes.
IDLE, BETWEEN = "no kernel runs", "between steps"
#: What the times of both steps are, by the last of their parts.
TIMES = {BETWEEN: "from one step to the next", IDLE: "a step's span", "": "the kernels' time"}
#: What kernels of both steps have in common: their operator and its inputs' shapes, only the sizes, of attention its
#: queries; or their name, or, alone in their class, their short name, that without a compiler's number, or their number
#: of launches.
MATCHES = ("operation", "sizes", "queries", "name", "short name", "compiler's name", "launches")
#: The share of kernel time with a recorded operator and shapes from which on kernels are matched by these.
_NAMED = 0.9
#: How many parts a sentence names, and from which share of the largest one on.
_TOLD, _WORTH = 3, 0.1


def reduce_comparison(case: Case) -> CaseResult:
    """Compare the steps of a case's ``timeline`` and ``baseline``.

    Raises
    ------
    InputError
        An unreadable recording, an unknown annotation, or keys that describe a prediction.
    """
    if given := [key for key in ("model", *PREDICTED) if key in case.inputs]:
        problem, remedy = f"'{given[0]}' beside a baseline", "predict in a case of its own, without baseline"
        raise case.error(given[0], problem, remedy)
    result = compare(case.path("timeline"), case.path("baseline"), case.inputs.get("step"))
    if case.dataset.made_here:
        result.add("finding", f"Simulated: {result.finding}", "text")
    return result


def compare(timeline: str | Path, baseline: str | Path, wanted: str | None = None) -> CaseResult:
    """Compare a step of two recordings, the one with the median kernel time in each.

    Parameters
    ----------
    timeline, baseline : path
        After and before the change, of any format that :func:`gpuledger.readers.timelines.read_timeline` reads.
    wanted : str, optional
        A part of the name of the annotation of the step.

    Returns
    -------
    CaseResult
        Data, see :func:`gpuledger.ledger.parts.split_parts`: ``components`` (``component`` and its
        seconds ``before_s, after_s`` in a step: they add up to the time from one step to the next, or to the next one's
        span, or to the kernels' time, whatever both recordings tell), ``compared`` (the same for each kernel, with
        ``matched_by``, one of `MATCHES` or empty), ``spans`` (of every step: ``recording, start_s, end_s, kernel_s``)
        and ``launches`` of both steps.
    """
    timelines = [read_timeline(path) for path in (baseline, timeline)]
    if not all(each.has_times for each in timelines):
        # Of sums, no step can be told: the others are summed up as well.
        timelines = [replace(each, kernels=each.kernels.assign(start_s=np.nan)) for each in timelines]
        wanted = None
    steps = [find_step(each, wanted) for each in timelines]
    rows = [_launches(*pair) for pair in zip(steps, timelines, strict=True)]
    pauses = [_pause_between(step) for step in steps]
    components = _components(rows, steps, pauses)
    compared = _compare_kernels(rows)
    spans = [step.spans.assign(recording=name) for name, step in zip(RECORDINGS, steps, strict=True)]
    launches = [each.assign(recording=name) for name, each in zip(RECORDINGS, rows, strict=True)]
    result = CaseResult(
        join_parts(
            components=settle_frame(components),
            compared=settle_frame(compared),
            spans=settle_frame(pd.concat(spans, ignore_index=True)),
            launches=settle_frame(pd.concat(launches, ignore_index=True)),
        )
    )
    _summarise(result, timelines, steps, components, compared)
    return result


def _launches(step: TimelineStep, timeline: Timeline) -> pd.DataFrame:
    """Return the kernels of a step, with the part of its time that is each one's, ``own_s``."""
    rows = describe_launches(step, timeline)
    rows = rows[rows["kind"] == "kernel"].reset_index(drop=True)
    own = divided_times(rows) if timeline.has_times else rows["duration_s"]
    sizes = [_sizes(*what) for what in zip(rows["name"], rows["operator"], rows["shapes"], strict=True)]
    columns = ["kernel", "name", "kernel_class", "launches", "start_s", "duration_s", "stream", "grid", "block"]
    return rows[[*columns, "operator", "shapes"]].assign(own_s=own, sizes=np.array(sizes, object))


def _sizes(name: str, operator: str, shapes: str) -> str:
    """Return a product's sizes as m×n×k, the shapes of another operator's inputs, without either the kernel's name."""
    found = product_sizes(operator, shapes)
    return shapes or name if found is None else "×".join(map(str, found[found[0] == 1 :]))


def _pause_between(step: TimelineStep) -> float:
    """Return the median time from the end of a step to the start of the next one; NaN of a single step."""
    start, end = step.spans["start_s"].to_numpy(), step.spans["end_s"].to_numpy()
    return float(np.median(start[1:] - end[:-1])) if len(start) > 1 else np.nan


def _components(rows: Sequence[pd.DataFrame], steps: Sequence[TimelineStep], pauses: Sequence[float]) -> pd.DataFrame:
    """Return the parts of both steps: a row per class of kernels, largest change first, and the times without one."""
    by_class = [each.groupby("kernel_class")["own_s"].sum() for each in rows]
    table = pd.DataFrame(dict(zip(RECORDINGS, by_class, strict=True))).fillna(0.0)
    table = table.loc[(table["after"] - table["before"]).abs().sort_values(ascending=False, kind="stable").index]
    if all(len(step.spans) for step in steps):
        spans = [(each["start_s"] + each["duration_s"]).max() - each["start_s"].min() for each in rows]
        table.loc[IDLE] = [max(span - each["own_s"].sum(), 0.0) for span, each in zip(spans, rows, strict=True)]
        if np.isfinite(pauses).all():
            table.loc[BETWEEN] = pauses
    return table.add_suffix("_s").rename_axis("component").reset_index()


def _compare_kernels(rows: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Sum up the launches of each kernel and put those of both steps side by side, largest change first."""
    known = [each.loc[(each["operator"] != "") & (each["shapes"] != ""), "own_s"].sum() for each in rows]
    named = all(time >= _NAMED * each["own_s"].sum() for time, each in zip(known, rows, strict=True))
    keys = ["kernel_class", "operator", "sizes"] if named else ["kernel_class", "kernel"]
    before, after = [_sum_up(each, keys) for each in rows]
    if named:
        before, after = [each.assign(queries=_queries(each)) for each in (before, after)]
    both = before.join(_match_rows(before, after, keys, named), how="left")
    both = both.merge(after, how="outer", left_on="row", right_index=True, suffixes=("_before", "_after"))
    both = both.reset_index(drop=True)
    found = pd.DataFrame({"kernel_class": both["kernel_class_before"].fillna(both["kernel_class_after"])})
    found["sizes"] = both["sizes_before"].fillna(both["sizes_after"]) if named else ""
    found["kernel"] = "" if named else both["kernel_after"].fillna(both["kernel_before"])
    found["matched_by"] = both["matched_by"].fillna("")
    for name in RECORDINGS:
        found[f"{name}_operator"] = both[f"operator_{name}"].fillna("") if named else ""
        found[f"{name}_kernels"] = both[f"name_{name}"].fillna("")
        found[f"{name}_launches"] = both[f"launches_{name}"].fillna(0).astype("int64")
        found[f"{name}_s"] = both[f"own_s_{name}"].fillna(0.0)
        found[f"{name}_launch_s"] = both[f"duration_s_{name}"] / both[f"launches_{name}"]
    most = pd.DataFrame({"change": (found["after_s"] - found["before_s"]).abs(), "time": found["before_s"]})
    order = most.sort_values(["change", "time"], ascending=False, kind="stable").index
    return found.loc[order].reset_index(drop=True)


def _sum_up(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    groups = rows.groupby(list(keys), sort=False)
    sums = {"launches": ("launches", "sum"), "own_s": ("own_s", "sum"), "duration_s": ("duration_s", "sum")}
    return groups.agg(**sums, name=("name", lambda names: ", ".join(dict.fromkeys(names)))).reset_index()


def _queries(table: pd.DataFrame) -> list[str]:
    """Return the shape of attention's first input, and other kernels' sizes.

    Keys and values of fewer heads, or a mask, are another way to attend from the same queries.
    """
    sizes = zip(table["kernel_class"], table["sizes"], strict=True)
    return [str(next(iter(read_shapes(text)), text)) if name == "attention" else text for name, text in sizes]


def _match_rows(before: pd.DataFrame, after: pd.DataFrame, keys: Sequence[str], named: bool) -> pd.DataFrame:
    """Find the partner of each row: of the same keys, else the only one of its class that is left with what looser
    rules ask for. An operation of other sizes is another one, whichever kernel computes it.

    Returns
    -------
    DataFrame
        ``row`` (of `after`) and ``matched_by``, by the rows of `before` that have a partner.
    """
    loose = (["kernel_class", "sizes"], ["kernel_class", "operator", "queries"])
    if not named:
        loose = (["kernel_class", "name"], ["kernel_class", "numberless"], ["kernel_class", "launches"])
        before, after = (
            table.assign(numberless=table["name"].map(without_compilers_number)) for table in (before, after)
        )
    rules = dict(zip(MATCHES[:3] if named else MATCHES[3:], (keys, *loose), strict=True))
    found: dict[int, tuple[int, str]] = {}
    taken: set[int] = set()
    for match, columns in rules.items():
        places = []
        for table, gone in ((before, found.keys()), (after, taken)):
            rest = table.loc[[row for row in table.index if row not in gone], list(columns)].drop_duplicates(keep=False)
            keyed = zip(rest.itertuples(index=False, name=None), rest.index, strict=True)
            places.append(dict(keyed))
        for key in places[0].keys() & places[1].keys():
            pair = [table.at[place[key], "name"] for table, place in zip((before, after), places, strict=True)]
            if match == "launches" and any(are_siblings(*pair, table["name"]) for table in (before, after)):
                continue
            found[places[0][key]] = places[1][key], match
            taken.add(places[1][key])
    return pd.DataFrame.from_dict(found, orient="index", columns=["row", "matched_by"]).astype({"row": "Int64"})


def _summarise(
    result: CaseResult,
    timelines: Sequence[Timeline],
    steps: Sequence[TimelineStep],
    components: pd.DataFrame,
    compared: pd.DataFrame,
) -> None:
    for name, timeline, step in zip(RECORDINGS, timelines, steps, strict=True):
        result.add(f"{name}_recording", timeline.format, "text")
        device = ", ".join(dict.fromkeys(each for each in timeline.devices if each))
        result.add(f"{name}_device", device or None, "text")
        if step.gpu_words:
            result.add(f"{name}_analysed_gpu", step.gpu_words, "text")
        result.add(f"{name}_step_found_by", step.found_by, "text")
        result.add(f"{name}_steps", step.steps, "step")
        result.add(f"{name}_time", float(components[f"{name}_s"].sum()), "s")
        result.add(f"{name}_kernels", int(compared[f"{name}_launches"].sum()), "kernel")
    parts = set(components["component"])
    told = BETWEEN if BETWEEN in parts else IDLE if IDLE in parts else ""
    what = TIMES[told]
    result.add("time_is", what, "text")
    both = compared["matched_by"] != ""
    for name in RECORDINGS:
        time = compared[f"{name}_s"]
        result.add(f"{name}_matched_percent", 100 * float(time[both].sum() / time.sum()), "%")
    times = [step_times(step.spans, what) for step in steps]
    if min(len(step.spans) for step in steps) > 1:
        shorter = np.sign(np.round(times[0][:, None] - times[1], 12))  # 1: the step after the change is shorter
        result.add("pairs_of_steps", shorter.size, "pair")
        result.add("pairs_shorter_percent", 50 * float(shorter.mean() + 1), "%")
    result.add("finding", _finding(result, components), "text")


def step_times(spans: pd.DataFrame, time_is: str) -> np.ndarray:
    """Return the times of a recording's steps, in seconds and in order: to the next step, or their spans."""
    start = spans["start_s"].to_numpy(float)
    return np.diff(start) if time_is == TIMES[BETWEEN] else spans["end_s"].to_numpy(float) - start


def _finding(result: CaseResult, components: pd.DataFrame) -> str:
    before, after = float(result["before_time"]), float(result["after_time"])
    take = "All kernels take" if result["time_is"] == TIMES[""] else "A step takes"
    change = components.set_index("component").eval("after_s - before_s")
    change = change.loc[change.abs().sort_values(ascending=False, kind="stable").index]
    words = f"{take} {format_time(after)} instead of {format_time(before)}"
    if before > 0:
        words += f" ({signed(100 * (after - before) / before)} %)"
    large = change[(change.abs() >= _WORTH * change.abs().max()) & (change != 0)].head(_TOLD)
    if len(large):
        words += ": " + ", ".join(f"{in_words(name)} {signed_time(time)}" for name, time in large.items())
    if "pairs_shorter_percent" in result.summary:
        share = float(result["pairs_shorter_percent"])
        if 5 < share < 95:
            words += f"; steps of one recording differ as much: the one after is the shorter in {share:.0f} % of pairs"
    return words


def in_words(component: str) -> str:
    """Return what a sentence or an axis calls a component."""
    names = {"gemm": "GEMMs", "moe": "experts", "norm": "norms", "elementwise": "element-wise kernels"}
    names |= {"quantize": "quantisation", "copy": "copies", "fill": "fills", "reduce": "reductions"}
    return names.get(component, component)


def signed(value: float) -> str:
    """Write a number of three digits with its sign."""
    return f"{'−' if value < 0 else '+'}{brief(abs(value), 3)}"


def signed_time(seconds: float) -> str:
    """Write a change of time with its sign and unit."""
    return f"{'−' if seconds < 0 else '+'}{format_time(abs(seconds))}"
