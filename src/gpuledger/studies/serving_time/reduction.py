"""From served runs to predicted times per output token, their errors, and one term per engine for the rest."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, rounded
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.models.time_model.constants.table import describe_constants
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.studies.serving_time.gain import WORKLOAD, agreed, gains
from gpuledger.studies.serving_time.parallelism import reduce_choices
from gpuledger.studies.serving_time.prediction import predict_runs
from gpuledger.studies.serving_time.runs import APART

#: Runs of an engine that its term is fitted to at least.
LEAST_RUNS = 20
#: With at most this many requests, the first token does not wait long for other requests.
FEW_REQUESTS = 4
#: Such runs of an engine that the term of its first token is fitted to at least.
LEAST_FEW = 5


def reduce(case: Case) -> CaseResult:
    """Predict the time per output token of every run that the models can express.

    Parameters
    ----------
    case : Case
        ``runs``, a table of served runs, and ``gpu``, or ``gpus`` to ask which parallelism the predictions would choose
        (:func:`gpuledger.studies.serving_time.parallelism.reduce_choices`); or ``results`` of a benchmark and ``gpu``
        (:func:`gpuledger.studies.serving_time.results.read_results`); optional ``configs``, a folder of the models'
        configurations.

    Returns
    -------
    CaseResult
        Of one GPU. Data: a row per expressed run: ``id, engine, model, precision, mode`` (``agg``, or
        ``disagg``: prompts are processed by other workers than those that decode), ``input_tokens,
        output_tokens, requests`` (in flight, of a replica), ``decoding`` (of them, at a time), ``gpus,
        parallelism`` (as TP4 EP4), ``replicas``; in disaggregated runs also ``workers`` (that decode, each on so many
        GPUs) and ``prompts_on`` (as 2 × TP4; empty: not given); ``all_gpus`` (of all workers), ``layers, held_back``;
        ``measured_rate, predicted_rate`` (output tokens per second and GPU, by Little's law; the prediction without any
        measured time), ``measured_s`` (per output token) and, predicted,
        ``decode_s`` (a decode step), ``full_s`` (of all requests in flight), ``prompts_s`` (other requests'
        prompts, per step; 0 with workers that only decode), ``kernels_s`` (a step and prompts),
        ``given_ttft_s`` (the same of as many requests and prompts as the measured time to the first token
        leaves), ``predicted_s`` (with the engine's term); of the first token ``ttft_s`` and, predicted where
        all is on the same GPUs, ``prompt_s`` (its prompt's kernels) and ``first_token_s`` (with the engine's
        term; NaN with more than `FEW_REQUESTS`). Both modes have quantities and engines' terms of their own.
    """
    if "gpus" in case.inputs:
        return reduce_choices(case)
    gpu = find_gpu(case.inputs["gpu"], file=case.dataset.file, place=f"{case.place}.gpu")
    data, runs, repeated, ignored, refused, used = predict_runs(case, gpu)
    apart = data["mode"] == APART
    terms = _fit(data[~apart], "measured_s", "kernels_s", data["layers"], LEAST_RUNS)
    decode_terms = _fit(data[apart], "measured_s", "kernels_s", data["layers"], LEAST_RUNS)
    added = data["engine"].map(terms).mask(apart, data["engine"].map(decode_terms))
    data["predicted_s"] = data["kernels_s"] + data["layers"] * added.astype(float).fillna(0.0)
    few = _few(data)
    first_terms = _fit(few, "ttft_s", "prompt_s", pd.Series(1, few.index), LEAST_FEW)
    data["first_token_s"] = few["prompt_s"] + few["engine"].map(first_terms).astype(float).fillna(0.0)
    data = rounded(data)
    result = CaseResult(data)
    result.add("gpu", gpu.title, "text")
    result.add("runs", len(runs), "run")
    result.add("repeated_rows", repeated, "run")
    result.add("other_gpus_runs", ignored, "run")
    result.add("runs_expressed", len(data), "run")
    result.add("disagg_runs", int((runs["mode"] == APART).sum()), "run")
    result.add("disagg_runs_expressed", int(apart.sum()), "run")
    result.add("not_expressed", refused, "text")
    fitted = {"host_per_layer": terms, "ttft_host": first_terms, "disagg_host_per_layer": decode_terms}
    for name, found in fitted.items():
        for engine, term in sorted(found.items()):
            result.add(f"{name}_{engine}", term, "s")
    if not apart.all():
        _add_errors(result, data[~apart])
        _add_first_tokens(result, data[~apart])
    if apart.any():
        _add_errors(result, data[apart], "disagg_")
        full = errors_percent(data["full_s"], data["measured_s"])[apart].abs()
        result.add("disagg_tpot_median_error_all_in_flight_percent", full.median(), "%")
        _add_gains(result, gains(data))
    result.add("finding", _finding(result, gpu), "text")
    result.provenance = {
        "kind": "predicted",
        "label": "predicted by a time model, beside measured served runs",
        "source": f"gpuledger's time model; measured runs: {case.dataset.content['source']}",
        "title": f"Served runs on {gpu.title}, and their steps as kernels",
        "inputs": [*describe_data_sheets([gpu], case.dataset.folder), describe_constants(used)],
    }
    return result


def _fit(data: pd.DataFrame, measured: str, predicted: str, times: pd.Series, least: int) -> dict[str, float]:
    """Return what each engine adds to a time, so many `times`: what minimises the mean relative error of one half."""
    terms = {}
    for engine, part in data[~data["held_back"]].groupby("engine"):
        if len(part) < least:
            continue
        # The minimum of a sum of times · |term - missing| / measured is a weighted median.
        of_part = times[part.index]
        missing = ((part[measured] - part[predicted]) / of_part).to_numpy()
        order = np.argsort(missing, kind="stable")
        weight = np.cumsum((of_part / part[measured]).to_numpy()[order])
        terms[engine] = float(f"{max(0.0, missing[order][np.searchsorted(weight, weight[-1] / 2)]):.3g}")
    return terms


def _few(data: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose first token can be judged: of few requests, and not after a transfer from other GPUs."""
    return data[(data["requests"] <= FEW_REQUESTS) & (data["mode"] != APART) & data["ttft_s"].notna()]


def _add_errors(result: CaseResult, data: pd.DataFrame, prefix: str = "") -> None:
    """Add the errors of times per output token, with and without a fitted term."""
    back = data[data["held_back"]]
    alone = errors_percent(data["kernels_s"], data["measured_s"]).abs()
    fitted = errors_percent(back["predicted_s"], back["measured_s"]).abs()
    result.add(f"{prefix}held_back_runs", len(back), "run")
    result.add(f"{prefix}tpot_median_error_unfitted_percent", alone.median(), "%")
    result.add(f"{prefix}tpot_mape_unfitted_percent", alone.mean(), "%")
    result.add(f"{prefix}tpot_median_error_unfitted_held_back_percent", alone[data["held_back"]].median(), "%")
    result.add(f"{prefix}tpot_median_error_percent", fitted.median(), "%")
    result.add(f"{prefix}tpot_mape_percent", fitted.mean(), "%")
    if not prefix:
        given = errors_percent(data["given_ttft_s"], data["measured_s"])
        result.add("tpot_median_error_given_ttft_percent", given.abs().median(), "%")
    result.add(f"{prefix}tpot_predicted_over_measured", (data["kernels_s"] / data["measured_s"]).median(), "1")
    rates = data[["predicted_rate", "measured_rate"]].dropna()
    rate = errors_percent(rates["predicted_rate"], rates["measured_rate"])
    result.add(f"{prefix}rate_runs", len(rates), "run")
    result.add(f"{prefix}rate_median_error_percent", rate.abs().median(), "%")
    result.add(f"{prefix}rate_mape_percent", rate.abs().mean(), "%")


def _add_gains(result: CaseResult, found: pd.DataFrame) -> None:
    """Add what GPUs of their own for prompts gain where both modes were served; every workload counts alike."""
    if found.empty:
        return
    better = found["measured"] > 1
    each = found.assign(better=100.0 * better, agreed=100.0 * agreed(found)).groupby(WORKLOAD)
    result.add("disagg_gain_workloads", each.ngroups, "1")
    result.add("disagg_gain_objectives", len(found), "1")
    for name in ("measured", "predicted"):
        result.add(f"disagg_gain_{name}", each[name].median().median(), "1")
    result.add("disagg_better_percent", each["better"].mean().mean(), "%")
    result.add("disagg_better_predicted_percent", each["agreed"].mean().mean(), "%")


def _add_first_tokens(result: CaseResult, data: pd.DataFrame) -> None:
    """Add what only runs with prompts have: their steps without them, their first tokens, and repeated runs.

    By Little's law, as many requests as are in flight begin in the time that one of them takes. Where their prompts'
    kernels alone are predicted to take longer, not all of them were computed, or the prediction errs by so much.
    """
    served = data["ttft_s"] + (data["output_tokens"] - 1) * data["measured_s"]
    result.add("runs_faster_than_prompts", int((data["requests"] * data["prompt_s"] > served).sum()), "run")
    decode = errors_percent(data["decode_s"], data["measured_s"]).abs()
    result.add("tpot_median_error_decode_only_percent", decode.median(), "%")
    few = _few(data)
    result.add("ttft_runs", len(few), "run")
    few_back = few[few["held_back"]]
    first = {"_unfitted": (few, "prompt_s"), "": (few_back, "first_token_s")}
    for name, (part, predicted) in first.items():
        error = errors_percent(part[predicted], part["ttft_s"]).abs().median()
        result.add(f"ttft_median_error{name}_percent", error, "%")
    keys = ["engine", "model", "precision", "input_tokens", "output_tokens", "requests", "gpus"]
    repeated = data.groupby(keys)["measured_s"]
    spread = errors_percent(repeated.transform("median"), data["measured_s"]).abs()[repeated.transform("size") > 1]
    result.add("repeats_mape_percent", spread.mean(), "%")


def _finding(result: CaseResult, gpu: Gpu) -> str:
    count, apart, runs = (result[name] for name in ("runs_expressed", "disagg_runs_expressed", "runs"))
    words = f"Kernels alone predict the time per output token of {count:,} of {runs:,} served runs on {gpu.title}"
    if not apart:
        return f"{words} with a median error of {_error_words(result, '')}"
    alone = _error_words(result, "disagg_")
    if apart == count:
        return f"{words}, whose workers only decode, with a median error of {alone}"
    both = f"{count - apart:,} with a median error of {_error_words(result, '')}"
    return f"{words}: {both}, and {apart:,} whose workers only decode with {alone}"


def _error_words(result: CaseResult, prefix: str) -> str:
    median, mean = (result[f"{prefix}tpot_{name}_unfitted_percent"] for name in ("median_error", "mape"))
    return f"{median:.1f} % (mean {mean:.1f} %)"
