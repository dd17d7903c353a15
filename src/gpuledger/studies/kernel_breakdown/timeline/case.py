"""A case with a recorded timeline: where one step's time went and, with a model, what was predicted for it."""

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, InputWarning, warn
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.parts import join_parts
from gpuledger.models.time_model.constants.table import PYTORCH
from gpuledger.models.time_model.moe import TILES
from gpuledger.models.time_model.step import predict
from gpuledger.models.training.run import TrainingRun
from gpuledger.models.training.step import predict_kernels
from gpuledger.models.transformer.model import Model
from gpuledger.readers.gpu_identity import another_gpu
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_names import classify, parse, short_name
from gpuledger.readers.timelines import Timeline, read_timeline
from gpuledger.studies.kernel_breakdown.formatting import format_time
from gpuledger.studies.kernel_breakdown.parts import name_parts, settle_frame
from gpuledger.studies.kernel_breakdown.scenario import Scenario, read_scenario
from gpuledger.studies.kernel_breakdown.timeline.activity import (
    ACTIVITIES,
    busy,
    explain_idle,
    length,
    longest_pause,
    mostly_waits,
    subtract,
    waiting_times,
    without_kernel,
)
from gpuledger.studies.kernel_breakdown.timeline.match import match_launches, unmatched_kernels
from gpuledger.studies.kernel_breakdown.timeline.step import TimelineStep, find_repetition, find_step
from gpuledger.studies.kernel_breakdown.timeline.training import compare_purposes, purposes, read_training

#: Keys of a case that describe a prediction.
PREDICTED = ("hardware", "phases", "training", "parallel", "precision", "fused", "expert_load")
#: Names of products of a mixture of experts that state their tiles.
_EXPERTS = re.compile(r"^bmm_\w{0,200}_transOut_\w{0,200}_dynBatch")
#: Attention as PyTorch calls it: its own copy of FlashAttention, and cuDNN's, which engines do not use.
_OF_PYTORCH = "pytorch_flash::|^cudnn_generated_.*_sdpa_"
_GENERATION = re.compile(r"generation_(\d{1,6})\((?:sq\d+sk)?(\d{1,12})")
_PREFILL = re.compile(r"context_(\d{1,6})\((?:sq)?(\d{1,9})")


def reduce_timeline(
    case: Case, mirror: str | Path | None = None
) -> tuple[CaseResult, Scenario | None, pd.DataFrame | None]:
    """Break a recorded step down.

    Returns
    -------
    CaseResult
        Data, see :mod:`gpuledger.studies.kernel_breakdown.parts`: ``launches`` (every launch of the
        step), ``idle`` (times without a kernel) and, with a model, ``unmatched`` (its kernels that were not run).
    Scenario or None
        What was predicted.
    DataFrame or None
        Its kernels, as predicted.

    Raises
    ------
    InputError
        An unreadable recording, an unknown annotation; a model without hardware, or without a phase to predict.
    """
    timeline = read_timeline(case.path("timeline"))
    _check_device(case, timeline)
    step = find_step(timeline, case.inputs.get("step"))
    if "training" in case.inputs:
        scenario, run = read_training(case, mirror)
        result, predicted = _break_down(timeline, step, scenario, run)
    else:
        scenario = _scenario(case, step, mirror)
        result, predicted = _break_down(timeline, step, scenario)
    if case.dataset.made_here:
        result.add("finding", f"Simulated: {result.finding}", "text")
    return result, scenario, predicted


def break_down(timeline: Timeline) -> CaseResult:
    """Break a step of a timeline down, as `reduce_timeline` does without a model."""
    return _break_down(timeline, find_step(timeline), None)[0]


def _break_down(
    timeline: Timeline, step: TimelineStep, scenario: Scenario | None, run: TrainingRun | None = None
) -> tuple[CaseResult, pd.DataFrame | None]:
    rows = describe_launches(step, timeline)
    result = CaseResult(pd.DataFrame())
    model = run.model if run is not None else scenario.model if scenario is not None else None
    _add_times(result, timeline, step, rows, model)
    parts: dict[str, pd.DataFrame] = {}
    predicted = None
    if scenario is not None and (other := another_gpu(scenario.gpus[0], timeline.devices)):
        problem = f"it was recorded on {other}, and is compared with predictions for {scenario.gpus[0].title}"
        warn(timeline.file, "", problem, "name the recording's GPU in hardware")
    if run is not None:
        predicted = predict_kernels([run], run.gpu)
        rows = rows.assign(purpose=purposes(rows, run))
        parts["purposes"] = settle_frame(compare_purposes(rows, predicted, run.gpu))
        _add_purposes(result, parts["purposes"], run)
    elif scenario is not None:
        kernels = scenario.kernels(scenario.workload(next(iter(scenario.phases))))
        predicted = predict(kernels, scenario.gpus[0], _framework(rows), _expert_tile(rows))
        # A recording is of one device, hence of one pipeline stage; which one is not known.
        predicted = predicted[predicted["stage"] == predicted["stage"].min()]
        own = rows[rows["kind"] == "kernel"]
        found = match_launches(own, predicted, scenario.model, scenario.gpus[0], scenario.precision.activations)
        rows = rows.join(found)
        parts["unmatched"] = settle_frame(unmatched_kernels(predicted, found))
        _add_prediction(result, rows[rows["kind"] == "kernel"], predicted, scenario)
    if timeline.has_times:
        recorded = bool(timeline.host["kind"].isin(("call", "operator")).any())
        parts["idle"] = settle_frame(explain_idle(step.rows, step.host, recorded))
        _add_idle(result, parts["idle"], longest_pause(step.rows))
    result.data = join_parts(launches=settle_frame(rows), host=settle_frame(step.host), **parts)
    result.add("finding", _finding(result, rows[rows["kind"] == "kernel"]), "text")
    return result, predicted


def _check_device(case: Case, timeline: Timeline) -> None:
    """Warn of a recording of another GPU than the dataset says that it is of."""
    declared = case.dataset.content.get("device", {}).get("name")
    with suppress(InputError):
        if declared and (other := another_gpu(find_gpu(declared), timeline.devices)):
            problem = f"it was recorded on {other}, and {case.dataset.file} says on {declared}"
            warn(timeline.file, "", problem, "correct the device there")


def describe_launches(step: TimelineStep, timeline: Timeline) -> pd.DataFrame:
    """Add ``kernel_class``, ``name`` (short), ``repetition`` (-1: none) and ``waiting_s`` to the launches of a step."""
    # Few programs state the work of their kernels.
    rows = step.rows.drop(columns=[name for name in ("flops", "bytes") if step.rows[name].isna().all()])
    with warnings.catch_warnings():
        # Some of a recording's many kernels are unclassified; the table shows them as such.
        warnings.simplefilter("ignore", InputWarning)
        classes = classify(rows["kernel"].where(rows["kernel"].str.strip() != "", "unnamed"), file=timeline.file)
    rows = rows.assign(
        kernel_class=classes.where(rows["kind"] == "kernel", "memory " + rows["kind"]),
        name=rows["kernel"].map({name: short_name(name) for name in rows["kernel"].unique()}),
        repetition=-1,
    )
    rows["waiting_s"] = waiting_times(rows)
    if timeline.has_times:
        # On the stream that runs most: another one's launches come in between at any moment.
        kernel = (rows["kind"] == "kernel").to_numpy()
        stream = rows["stream"].to_numpy() == rows.loc[kernel, "stream"].mode().iat[0]
        own = np.flatnonzero(kernel & stream)
        # Variants of attention alternate from layer to layer.
        label = rows["kernel_class"].where(rows["kernel_class"] == "attention", rows["kernel_class"] + rows["name"])
        # Names of XLA's operations state their layer.
        operator = rows["operator"].str.replace(r"\d+", "#", regex=True)
        first, period, repeats = find_repetition((label + operator).to_numpy()[own])
        inside = own[first : first + period * repeats]
        rows.iloc[inside, rows.columns.get_loc("repetition")] = np.arange(len(inside)) // max(period, 1)
    return rows


def _framework(rows: pd.DataFrame) -> str:
    """Return whose kernels were recorded where their names tell; empty otherwise."""
    return PYTORCH if rows["kernel"].str.contains(_OF_PYTORCH).any() else ""


def _expert_tile(rows: pd.DataFrame) -> int:
    """Return the rows of tiles that the names of a mixture of experts' products state; 0 without any."""
    # TensorRT-LLM's and FlashInfer's: the number of a product's rows is only known on the device, and the result is
    # transposed, so that a tile's columns are the tokens.
    names = [parse(name) for name in rows.loc[rows["kernel"].str.contains(_EXPERTS), "kernel"]]
    sizes = [name.tile_n for name in names if name.tile_n in TILES]
    return max(set(sizes), key=sizes.count) if sizes else 0


def _scenario(case: Case, step: TimelineStep, mirror: str | Path | None) -> Scenario | None:
    """Read what to predict: the phase that the case declares, else the one that the annotation states."""
    if "model" not in case.inputs:
        if given := [key for key in PREDICTED if key in case.inputs]:
            problem, remedy = f"'{given[0]}' without a model", "add model, or leave it out"
            raise case.error(given[0], problem, remedy)
        return None
    if "hardware" not in case.inputs:
        raise case.error("", "a model without hardware", "add hardware: [GPU id]")
    phases = case.inputs.get("phases") or _phases(step.name)
    if len(phases) != 1:
        problem = "several phases for one step" if phases else "the recording does not say what the step computes"
        remedy = "declare one: phases: {prefill: {batch: 1, input: 1024}} or {decode: {batch: 1, context: 1024}}"
        raise case.error("phases", problem, remedy)
    return read_scenario(replace(case, inputs={**case.inputs, "phases": phases}), mirror)


def _phases(name: str) -> dict[str, Any]:
    """Read the annotation of a serving engine: requests in context and generation, with their tokens."""
    context, generation = _PREFILL.search(name), _GENERATION.search(name)
    prompts, tokens = map(int, context.groups()) if context else (0, 0)
    requests, keys = map(int, generation.groups()) if generation else (0, 0)
    if prompts and tokens >= prompts and not requests:
        return {"prefill": {"batch": prompts, "input": round(tokens / prompts)}}
    if requests and keys > requests and not prompts:
        # The keys of all requests, those of their new tokens included.
        return {"decode": {"batch": requests, "context": max(round(keys / requests - 1), 1)}}
    return {}


def _add_times(
    result: CaseResult, timeline: Timeline, step: TimelineStep, rows: pd.DataFrame, model: Model | None
) -> None:
    kernels, others = rows[rows["kind"] == "kernel"], rows[rows["kind"] != "kernel"]
    total = float(kernels["duration_s"].sum())
    result.add("recording", timeline.format, "text")
    result.add("recorded_device", ", ".join(dict.fromkeys(name for name in timeline.devices if name)) or None, "text")
    if step.gpu_words:
        result.add("analysed_gpu", step.gpu_words, "text")
    result.add("step", step.name or None, "text")
    result.add("step_found_by", step.found_by, "text")
    result.add("steps", step.steps, "step")
    result.add("kernels", int(kernels["launches"].sum()), "kernel")
    result.add("dropped_kernels", step.dropped_kernels, "kernel")
    result.add("kernel_time", total, "s")
    result.add("copies", int(others["launches"].sum()), "launch")
    result.add("copy_time", float(others["duration_s"].sum()), "s")
    communication = kernels[kernels["kernel_class"] == "communication"]
    result.add("communication_time", float(communication["duration_s"].sum()), "s")
    result.add("communication_wait_time", float(communication["waiting_s"].sum()), "s")
    result.add("communication_mostly_waiting", int(mostly_waits(communication).sum()), "kernel")
    if not timeline.has_times:
        for quantity, unit in (("span", "s"), ("idle_percent", "%"), ("overlap_time", "s")):
            result.add(quantity, None, unit)
        return
    span = float((kernels["start_s"] + kernels["duration_s"]).max() - kernels["start_s"].min())
    running = busy(kernels)
    result.add("span", span, "s")
    result.add("idle_percent", 100 * length(without_kernel(kernels)) / span if span else 0.0, "%")
    result.add("overlap_time", max(0.0, round(total - length(running), 12)), "s")
    result.add("streams", int(kernels["stream"].nunique()), "stream")
    computing = busy(kernels[kernels["kernel_class"] != "communication"])
    result.add("exposed_communication_time", length(subtract(busy(communication), computing)), "s")
    inside = kernels[kernels["repetition"] >= 0].groupby("repetition")
    # One of more than half of a model's layers is a layer, not two of them; of any other program that is not known.
    layers = model.layer_count if model else 0
    result.add("repetitions", len(inside), "layer" if layers / 2 < len(inside) <= layers else "repetition")
    if len(inside):
        result.add("kernels_per_repetition", int(inside.size().iloc[0]), "kernel")
        result.add("repetition_kernel_time_median", float(inside["duration_s"].sum().median()), "s")


def _add_idle(result: CaseResult, idle: pd.DataFrame, longest: np.ndarray | None) -> None:
    result.add("idle_time", float(idle["duration_s"].sum()), "s")
    if longest is not None:
        by = idle.groupby("activity")["duration_s"].sum().sort_values(ascending=False, kind="stable")
        result.add("idle_mostly", by.index[0], "text")
        result.add("longest_idle", float(longest[1] - longest[0]), "s")
        # The host may do one thing after the other in a pause.
        inside = idle[(idle["start_s"] + idle["duration_s"] / 2).between(*longest)]
        what = inside["call"].where(inside["call"] != "", inside["activity"])
        times = inside["duration_s"].groupby(what, sort=False).sum().round(12)
        result.add("longest_idle_in", times.idxmax(), "text")


def _add_prediction(result: CaseResult, kernels: pd.DataFrame, predicted: pd.DataFrame, scenario: Scenario) -> None:
    matched = kernels["matched_by"] != ""
    time = kernels["duration_s"]
    for name in ("model", "shapes"):
        share = 100 * float(time[kernels["matched_by"] == name].sum() / time.sum())
        result.add(f"matched_by_{name}_percent", share, "%")
    result.add("matched_percent", 100 * float(time[matched].sum() / time.sum()), "%")
    result.add("matched_kernel_time", float(time[matched].sum()), "s")
    result.add("predicted_kernel_time", float(kernels["predicted_s"].sum()), "s")
    result.add("model_kernel_time", float((predicted["time_s"] * predicted["count"]).sum()), "s")
    groups = kernels[matched].groupby(name_parts(kernels)[matched])[["duration_s", "predicted_s"]].sum()
    excess = groups["duration_s"] - groups["predicted_s"]
    if len(excess):
        worst = excess.abs().idxmax()
        result.add("most_mispredicted", worst, "text")
        result.add("most_mispredicted_percent", 100 * float(excess[worst] / time.sum()), "%")
    phase, given = next(iter(scenario.phases.items()))
    result.add("phase", phase, "text")
    if isinstance(given, dict):
        for key, value in given.items():
            if key != "images":
                result.add(key, value, "request" if key == "batch" else "token")


def _add_purposes(result: CaseResult, table: pd.DataFrame, run: TrainingRun) -> None:
    """Add what kernels of each purpose take, recorded and predicted."""
    result.add("model_kernel_time", float(table["predicted_s"].sum()), "s")
    for row in table.itertuples():
        name = row.purpose.lower()
        result.add(f"{name}_time", row.recorded_s, "s")
        result.add(f"{name}_predicted_time", row.predicted_s, "s")
        # A few kernels say nothing of their purpose.
        if row.shaped_s > 0.5 * row.recorded_s:
            result.add(f"{name}_with_shapes_time", row.shaped_s, "s")
            result.add(f"{name}_predicted_from_shapes_time", row.shapes_s, "s")
    excess = table["recorded_s"] - table["predicted_s"]
    worst = int(excess.abs().idxmax())
    result.add("most_mispredicted", table["purpose"][worst], "text")
    result.add("most_mispredicted_percent", 100 * float(excess[worst] / table["recorded_s"].sum()), "%")
    result.add("phase", "training", "text")
    for name, value, unit in (("sequence", run.sequence, "token"), ("batch", run.micro_batch, "request")):
        result.add(name, value, unit)
    result.add("recompute", "yes" if run.recompute else "no", "text")
    result.add("gathered", run.gathered, "text")
    result.add("implementation", run.implementation, "text")


def describe_pause(result: Mapping) -> str:
    """Return in words the pause that makes most of a step idle, and what went on then; empty if no pause does."""
    if not float(result["idle_percent"]) > 40 or not float(result["longest_idle"]) > float(result["idle_time"]) / 2:
        return ""
    longest = format_time(float(result["longest_idle"]))
    return f"{longest} of it in one pause{pause_activity(result)}"


def pause_activity(result: Mapping) -> str:
    """Return what went on in the longest pause, to end a sentence with; empty if that was not recorded."""
    activity = str(result["longest_idle_in"])
    return "" if activity == ACTIVITIES[-1] else f", mostly in {activity[:60]}"


def _finding(result: CaseResult, rows: pd.DataFrame) -> str:
    kernels, time = int(result["kernels"]), format_time(float(result["kernel_time"]))
    run = "kernel runs" if kernels == 1 else "kernels run"
    words = [f"{kernels:,} {run} for {time}"]
    if result["span"] != "unknown":
        span, idle = format_time(float(result["span"])), float(result["idle_percent"])
        # Times of kernels that run at once would not fit into what is not idle.
        at_once = ", some at once," if float(result["overlap_time"]) > 0.01 * float(result["span"]) else ""
        words = [f"{kernels:,} {run} for {time}{at_once} of a step of {span}, which is idle for {idle:.0f} %"]
        if pause := describe_pause(result):
            words[0] += f" ({pause})"
    if "most_mispredicted" in result.summary:
        excess = float(result["most_mispredicted_percent"])
        error = f"too {'short' if excess > 0 else 'long'} by {abs(excess):.0f} % of the kernel time"
    if "recompute" in result.summary:
        predicted, copies = (float(result[name]) for name in ("model_kernel_time", "copy_time"))
        both = format_time(float(result["kernel_time"]) + copies)
        with_copies = f"with copies they take {both}, and " if copies else ""
        words.append(f"{with_copies}the model of training predicts {format_time(predicted)}")
        words[-1] += f", worst for {result['most_mispredicted']} ({error})"
    elif "most_mispredicted" in result.summary:
        predicted, matched = format_time(float(result["predicted_kernel_time"])), float(result["matched_percent"])
        covered = "" if round(matched) == 100 else f" for the {matched:.0f} % of the kernel time that it covers"
        words.append(f"the time model predicts {predicted}{covered}, worst for {result['most_mispredicted']} ({error})")
    elif "matched_percent" in result.summary:
        words.append("the time model covers none of them")
    elif rows["kernel_class"].nunique() > 1:
        classes = rows.groupby("kernel_class")["duration_s"].sum()
        words.append(f"{100 * classes.max() / classes.sum():.0f} % of the kernel time is {classes.idxmax()}")
    return "; ".join(words)
