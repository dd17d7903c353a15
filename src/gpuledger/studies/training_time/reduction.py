"""From measured training runs to predicted steps, their errors, and what each class of kernels takes beyond."""

from collections import Counter

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, rounded
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.models.power import FULL_CLOCK, chip_constants, describe_power
from gpuledger.models.time_model import held_back
from gpuledger.models.time_model.accuracy import beyond_plausible, errors_percent
from gpuledger.models.time_model.constants.table import describe_constants
from gpuledger.models.training import TrainingRun, hfu_percent, mfu_percent, predict_steps, training_memory
from gpuledger.models.training.memory import fits
from gpuledger.models.training.run import IMPLEMENTATIONS
from gpuledger.models.training.utilisation import model_flops_per_token
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.studies.training_time.explanation import Explanation, explain, roofline_s, rule_s
from gpuledger.studies.training_time.runs import express, read_runs

#: Half a unit of the last printed digit of a utilisation (%).
_HALF_DIGIT = 0.005
#: Relative difference by which two printed numbers of a run may differ, of seven and of five digits.
_SAME = 1e-3


def reduce(case: Case) -> CaseResult:
    """Predict the step of every run on one GPU that the models can express.

    Returns
    -------
    CaseResult
        Data: a row per expressed run: ``model, precision, gathered, gpus, sequence_tokens, micro_batch, accumulation,
        recompute, implementation`` (unless all are fused), ``held_back, head_dim, measured_s`` (of a step) and,
        predicted, ``kernels_s`` (with exposed communication) and its parts ``gemm_s, attention_s, elementwise_s,
        weights_s, loss_s, update_s, power_s, exposed_s`` (see :func:`gpuledger.models.training.predict_steps`);
        ``communication_s`` (all of it), ``clock_hz``, ``attention_flop`` (under the mask),
        ``explained_s`` (see :mod:`gpuledger.studies.training_time.explanation`; NaN without), the baselines
        ``roofline_s`` and ``rule_s``, ``memory_bytes``, ``fits``; ``mfu_percent`` as measured.
    """
    gpu = find_gpu(case.inputs["gpu"], file=case.dataset.file, place=f"{case.place}.gpu")
    rows, ignored = read_runs(case, gpu)
    runs, places, refused = express(case, gpu, rows)
    if not runs:
        problem = f"no run on {gpu.name} can be expressed ({_counted(refused)})"
        raise InputError(case.path("runs"), "", problem, "add runs that the models can express, or set another gpu")
    rows = rows.iloc[places].reset_index(drop=True)
    data, kernels = _predict(runs, rows, gpu)
    if than := beyond_plausible(data["measured_s"], data["kernels_s"]):
        problem = f"steps are, in the median, {than} than their kernels"
        raise InputError(case.path("runs"), "", problem, "correct the units of the throughput, or the gpu")
    # Runs in bf16 explain; those in fp8 judge.
    plain = data["precision"] == "bf16"
    fitted, judged = (data[plain & (data["held_back"] == back)] for back in (False, True))
    found = explain(fitted) if len(judged) else None
    data["explained_s"] = found.step_s(data) if found else np.nan
    peaks = {name: value * 1e12 for name, value in case.inputs.get("peaks_tflop_per_s", {}).items()}
    peak = [peaks.get(run.precision) or gpu.peak_flop_per_s(run.precision) for run in runs]
    speed = rows["tokens_per_s"].to_numpy() / rows["gpus"].to_numpy()
    data["mfu_percent"] = [
        mfu_percent(run.model, run.sequence, each, top) for run, each, top in zip(runs, speed, peak, strict=True)
    ]
    data = rounded(data)
    result = CaseResult(data)
    result.add("gpu", gpu.title, "text")
    result.add("runs", len(rows) + sum(refused.values()), "run")
    result.add("other_gpus_runs", ignored, "run")
    result.add("runs_expressed", len(data), "run")
    result.add("not_expressed", _counted(refused), "text")
    _add_errors(result, data, plain, gpu)
    _add_explanation(result, data, found, explain(judged) if found else None)
    _add_masked(result, runs)
    _add_memory(result, data, gpu)
    _add_stated(result, rows, runs, np.array(peak))
    result.add("finding", _finding(result, gpu, found), "text")
    # A file that names no source of its own has the dataset's.
    about = {**case.dataset.content, **case.dataset.content.get("files", {}).get(case.inputs["runs"], {})}
    used = sorted(kernels["constants"].astype(str).unique())
    result.provenance = {
        "kind": "predicted",
        "label": "predicted by a time model, beside measured training runs",
        "source": f"gpuledger's time model; measured runs: {about['source']}",
        "title": f"Training runs on {gpu.title}, and their steps as kernels",
        "inputs": [*describe_data_sheets([gpu], case.dataset.folder), describe_constants(used), *_power(gpu)],
    }
    return result


def _power(gpu: Gpu) -> list[dict]:
    found = chip_constants(gpu)
    return [describe_power([found[0].source])] if found else []


def _predict(runs: list[TrainingRun], rows: pd.DataFrame, gpu: Gpu) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row per run with its measured and predicted times and memory, and the kernels of all steps."""
    steps, kernels = predict_steps(runs, gpu)
    names = ["model", "precision", "gathered", "gpus", "sequence_tokens", "micro_batch", "accumulation", "recompute"]
    if (rows["implementation"] != IMPLEMENTATIONS[0]).any():
        names.append("implementation")
    data = rows[names].copy()
    parameters = [run.model.parameters for run in runs]
    data["held_back"] = held_back(rows["sequence_tokens"], rows["micro_batch"], rows["gpus"], np.array(parameters))
    data["head_dim"] = [run.model.layers[0].attention.head_dim for run in runs]
    data["measured_s"] = [run.step_tokens * run.gpus for run in runs] / rows["tokens_per_s"]
    data["kernels_s"] = steps["step_s"]
    data = data.join(steps.drop(columns=["step_s", "tokens_per_s_per_gpu"]))
    attention = kernels[kernels["kind"] == "attention"]
    flop = 2.0 * attention["macs"] * attention["count"]
    data["attention_flop"] = np.bincount(attention["run"], flop, len(runs))
    data["roofline_s"] = roofline_s(kernels, gpu, len(runs))
    data["rule_s"] = rule_s(runs, gpu)
    data["memory_bytes"] = [training_memory(run)["memory_bytes"] for run in runs]
    data["fits"] = fits(data["memory_bytes"], gpu, data["gpus"])
    return data, kernels


def _add_errors(result: CaseResult, data: pd.DataFrame, plain: pd.Series, gpu: Gpu) -> None:
    """Add the errors of kernels alone, of the baselines, and explained those of what explained nothing."""
    for name, column in (("step", "kernels_s"), ("roofline", "roofline_s"), ("rule", "rule_s")):
        error = errors_percent(data[column], data["measured_s"]).abs()
        result.add(f"{name}_median_error_percent", error.median(), "%")
        result.add(f"{name}_mape_percent", error.mean(), "%")
    result.add("step_predicted_over_measured", (data["kernels_s"] / data["measured_s"]).median(), "1")
    if (slowed := data["clock_hz"] < FULL_CLOCK * gpu.clock_hz).any():
        result.add("slowed_runs", int(slowed.sum()), "run")
        result.add("slowed_clock", data["clock_hz"][slowed].median() / 1e6, "MHz")
    result.add("steps_predicted_too_long", int((data["kernels_s"] > data["measured_s"]).sum()), "run")
    # One GPU communicates with none.
    hidden = 1 - data["exposed_s"].sum() / (data["communication_s"].sum() or np.nan)
    result.add("hidden_communication_percent", 100 * hidden, "%")
    for prefix, part in (("", data[plain & data["held_back"]]), ("fp8_", data[~plain])):
        if len(part):
            alone = errors_percent(part["kernels_s"], part["measured_s"]).abs()
            explained = errors_percent(part["explained_s"], part["measured_s"]).abs()
            result.add(f"{prefix}held_back_runs", len(part), "run")
            result.add(f"{prefix}step_median_error_held_back_percent", alone.median(), "%")
            result.add(f"{prefix}explained_median_error_percent", explained.median(), "%")
            result.add(f"{prefix}explained_mape_percent", explained.mean(), "%")


def _add_explanation(
    result: CaseResult, data: pd.DataFrame, found: Explanation | None, others: Explanation | None
) -> None:
    predicted = data["attention_flop"] / data["attention_s"]
    result.add("attention_rate_predicted", predicted.max() / 1e12, "TFLOP/s")
    # What the other half would have said: how well each number is known.
    for suffix, half in (("", found), ("_other_half", others)):
        if half:
            result.add(f"attention_rate{suffix}", half.attention_flop_per_s / 1e12, "TFLOP/s")
            result.add(f"gemm_factor{suffix}", half.gemm, "1")
            result.add(f"other_factor{suffix}", half.other, "1")
    if found:
        plain = data[data["precision"] == "bf16"]
        most = found.beyond_s(plain).idxmax(axis=1) == "attention"
        result.add("attention_largest_gap_percent", 100 * most.mean(), "%")
        by_length = most.groupby(plain["sequence_tokens"]).mean()
        # Of all lengths from here on, in most runs.
        longest = by_length[(by_length > 0.5)[::-1].cummin()[::-1]]
        result.add("attention_largest_gap_from", longest.index.min() if len(longest) else "none", "token")


def _add_masked(result: CaseResult, runs: list[TrainingRun]) -> None:
    """Add the largest share of an MFU that is work which the causal mask hides, and nobody does."""
    counted, done = (
        np.array([model_flops_per_token(run.model, run.sequence, causal) for run in runs]) for causal in (False, True)
    )
    most = int(np.argmax(1 - done / counted))
    result.add("masked_share_of_mfu_percent", 100 * (1 - done / counted)[most], "%")
    result.add("masked_share_sequence", runs[most].sequence, "token")


def _add_memory(result: CaseResult, data: pd.DataFrame, gpu: Gpu) -> None:
    result.add("runs_predicted_not_to_fit", int((~data["fits"]).sum()), "run")
    result.add("largest_memory_percent", 100 * data["memory_bytes"].max() / gpu.dram_bytes, "%")


def _add_stated(result: CaseResult, rows: pd.DataFrame, runs: list[TrainingRun], peak: np.ndarray) -> None:
    """Compare what the table states of each run with what follows from its throughput and its model."""
    if "parameters" in rows:
        own = np.array([run.model.parameters for run in runs])
        result.add("parameters_reproduced", int((rows["parameters"] == own).sum()), "run")
    per_token = np.array([model_flops_per_token(run.model, run.sequence) for run in runs])
    # Throughput is printed without its decimals.
    low, high = (per_token * (rows["tokens_per_s"] + more) / rows["gpus"] for more in (0, 1))
    for name, passes in (("mfu", False), ("hfu", True)):
        if f"{name}_percent" in rows:
            factor = np.array([hfu_percent(1, passes and run.recompute) for run in runs])
            low_percent, high_percent = (100 * factor * flops / peak for flops in (low, high))
            stated = rows[f"{name}_percent"]
            met = (low_percent - _HALF_DIGIT <= stated) & (stated <= high_percent + _HALF_DIGIT)
            result.add(f"{name}_reproduced", int(met.sum()), "run")
    if "model_flop_per_s_per_gpu" in rows:
        factor = rows["model_flop_per_s_per_gpu"] / low
        result.add("model_flops_reproduced", int((np.abs(factor - 1) < _SAME).sum()), "run")
        result.add("model_flops_100_times_too_large", int((np.abs(factor - 100) < 100 * _SAME).sum()), "run")


def _finding(result: CaseResult, gpu: Gpu, found: Explanation | None) -> str:
    count, median = (result[name] for name in ("runs_expressed", "step_median_error_percent"))
    short = result["steps_predicted_too_long"] == 0
    error = f"all too short, by {median:.0f} % in the median" if short else f"with a median error of {median:.0f} %"
    steps = f"{count:,} training step{'s' * (count != 1)}"
    words = f"Kernels alone predict {steps} on {gpu.title}{',' * short} {error}"
    if not found:
        return words
    rate, today = result["attention_rate"], result["attention_rate_predicted"]
    longer = f"GEMMs {found.gemm:.1f} and other kernels {found.other:.1f} times as long"
    left = f"the error is {result['explained_median_error_percent']:.1f} % (held-back half"
    fp8 = result.get("fp8_explained_median_error_percent")
    left += f" of bf16; fp8: {fp8:.1f} %)" if fp8 else ")"
    return f"{words}; with attention at {rate:.0f} TFLOP/s (today's kernels: up to {today:.0f}), {longer}, {left}"


def _counted(refused: Counter) -> str:
    ordered = sorted(refused.items(), key=lambda entry: (-entry[1], entry[0]))
    return "; ".join(f"{count} {reason}" for reason, count in ordered) or "none"
