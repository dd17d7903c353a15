"""From served runs to the predicted times of their kernels: a decode step, prompts, and both together."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model import held_back
from gpuledger.models.time_model.accuracy import beyond_plausible
from gpuledger.models.time_model.step import predict, totals
from gpuledger.models.transformer import Model, chunk, decode, join, kernels, prefill
from gpuledger.models.transformer.formats.precision import number_format
from gpuledger.models.transformer.routing import SERVED_LOAD
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.serving_time import sweeps
from gpuledger.studies.serving_time.disaggregated import all_gpus, decode_steps, decoding_share
from gpuledger.studies.serving_time.results import read_results
from gpuledger.studies.serving_time.runs import APART, Expressed, NotExpressedError, express, read_runs


class PredictedRuns(NamedTuple):
    """Runs on one GPU with the times of their kernels, and what became of all others."""

    data: pd.DataFrame  # the rows of :func:`gpuledger.studies.serving_time.reduce`, but for what a fitted term adds
    runs: pd.DataFrame  # every measurement once
    repeated: int  # rows that tell of one of them again
    ignored: int  # rows of other GPUs
    refused: str  # how many runs are not expressed, by reason
    constants: list[str]  # where the constants of the kernels come from, sorted


def predict_runs(case: Case, gpu: Gpu, served: bool = False) -> PredictedRuns:
    """Predict every run of a case's table on one GPU.

    Parameters
    ----------
    served : bool
        Whether to predict only what a choice takes: runs whose prompts are processed on the same GPUs, without
        ``given_ttft_s`` (NaN).

    Raises
    ------
    InputError
        A wrong table; no run that can be expressed; times in another unit.
    """
    configs = case.path("configs") if "configs" in case.inputs else None
    if "results" in case.inputs:
        return predict_table(read_results(case, gpu), gpu, configs, (case.dataset.file, f"{case.place}.results"))
    table, ignored = read_runs(case, gpu)
    runs = sweeps.once(table)
    apart = served & (runs["mode"] == APART)
    found = predict_table(runs, gpu, configs, (case.path("runs"), "column silicon_tpot_ms"), apart, not served)
    return found._replace(repeated=len(table) - len(runs), ignored=ignored)


def predict_table(
    runs: pd.DataFrame,
    gpu: Gpu,
    configs: Path | None,
    where: tuple[str | Path, str],
    left_out: pd.Series | None = None,
    given_ttft: bool = True,
    remedy: str = "add runs that the models can express, name the model by model, or set another gpu",
) -> PredictedRuns:
    """Predict every run of a table, each of which stands there once; as :func:`predict_runs`.

    Parameters
    ----------
    runs : DataFrame
        Of :func:`gpuledger.studies.serving_time.runs.read_runs`, with ``speculative``.
    configs : path, optional
        A folder of models' configurations.
    where : path and str
        Whose times errors are about.
    left_out : Series of bool
        Runs that only decode and are not asked for.
    remedy : str
        What to do if no run can be predicted.
    """
    left_out = pd.Series(False, runs.index) if left_out is None else left_out
    parts, refused, used = _predict(express(configs, gpu), gpu, runs[~left_out], given_ttft)
    refused += Counter({"workers only decode": int(left_out.sum())})
    reasons = "; ".join(f"{count} {reason}" for reason, count in sorted(refused.items(), key=lambda e: (-e[1], e[0])))
    if not parts:
        problem = f"no run on {gpu.name} can be expressed ({reasons or 'none'})"
        raise InputError(where[0], "", problem, remedy)
    data = pd.concat(parts).sort_index().reset_index(drop=True)
    if than := beyond_plausible(data["measured_s"], data["kernels_s"]):
        problem = f"times are, in the median, {than} than the sum of the kernels"
        raise InputError(*where, problem, "write milliseconds, or correct the gpu")
    return PredictedRuns(data, runs, 0, 0, reasons or "none", sorted(used))


def _format_name(model: Model) -> str:
    """Return what the number format of a checkpoint's weights is called, or of the narrowest of them."""
    weights = model.precision.weights
    names = [weights] if isinstance(weights, str) else weights.values()
    name = min(names, key=lambda name: (number_format(name).bits, name))
    return "16-bit" if name in ("bf16", "fp16") else name.replace("_block128", "_block")


def _predict(
    of_run: Callable, gpu: Gpu, runs: pd.DataFrame, given_ttft: bool
) -> tuple[list[pd.DataFrame], Counter, set[str]]:
    """Return the expressed runs with the times of their kernels, how many are not for which reason, and constants."""
    refused, groups = Counter(), {}
    for index, run in zip(runs.index, runs.to_dict("records"), strict=True):
        try:
            own = of_run(run)
        except NotExpressedError as reason:
            refused[str(reason)] += 1
            continue
        cache = own.precision.cache if own.precision else ""
        key = run["engine"], own.model.name, run["quantised"], cache, own.parallel, own.prompts, run["mode"]
        groups.setdefault(key, (own, []))[1].append(index)
    parts, used = [], set()
    for (engine, *_, mode), (own, indices) in groups.items():
        part, model, parallel = runs.loc[indices], own.model, own.parallel
        if mode == APART:
            times, sources = decode_steps(own, part, gpu, engine)
            times |= {"prompts_s": 0.0, "kernels_s": times["decode_s"], "prompt_s": np.nan}
            times["given_ttft_s"] = times["decode_s"]
            requests, gpus = part["concurrency"], all_gpus(own, part)
            prompts_on = [f"{count} × {own.prompts.label}" if own.prompts else "" for count in part["prefill_workers"]]
        else:
            times, sources = _passes(own, part, gpu, engine, given_ttft)
            requests, gpus, prompts_on = part["requests"] * parallel.replicas, parallel.devices, ""
        out = sweeps.mean_lengths(part)[1]
        tokens = requests * out / gpus
        used |= sources
        parts.append(
            part[["id", "engine", "model", "precision", "mode", "input_tokens", "output_tokens", "requests"]].assign(
                precision=part["precision"].replace("", _format_name(model)),
                gpus=parallel.devices,
                parallelism=parallel.label,
                replicas=parallel.replicas,
                workers=part["workers"],
                prompts_on=prompts_on,
                all_gpus=gpus,
                layers=model.layer_count,
                held_back=held_back(*(part[name] for name in ("requests", "input_tokens", "output_tokens", "tensor"))),
                measured_s=part["tpot_s"],
                measured_rate=tokens / (part["ttft_s"] + (out - 1) * part["tpot_s"]),
                predicted_rate=tokens / times.pop("served_s"),
                **times,
                ttft_s=part["ttft_s"],
            )
        )
    return parts, refused, used


def _passes(
    run: Expressed, part: pd.DataFrame, gpu: Gpu, engine: str, given_ttft: bool
) -> tuple[dict[str, np.ndarray], set[str]]:
    """Return the predicted times of runs with the same model, engine and parallelism, all at once."""
    (new, out), requests = sweeps.mean_lengths(part), part["requests"].to_numpy()
    # A batch whose prompts are processed together, before all of its tokens.
    batch = part["one_batch"].to_numpy(bool)
    # On average, half of the output is in the cache.
    context, used = new + out // 2, set()

    def steps_s(decoding: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the times of a decode step, of a prompt, and what the prompt adds to a step of the others."""
        prompts = prefill(new, np.where(batch, requests, 1))
        work = join([decode(context, decoding), prompts, chunk(new, 0, np.maximum(decoding - 1, 0), context)])
        rows = predict(kernels(run.model, work, run.parallel, run.precision, expert_load=SERVED_LOAD), gpu, engine)
        used.update(rows["constants"].astype(str).unique())
        step_s, prompt_s, both_s = totals(rows, rows["shape"].to_numpy(), work.shapes)["time_s"].reshape(3, -1)
        return step_s, prompt_s, np.maximum(both_s - step_s, 0)

    step_s, prompt_s, added_s = steps_s(requests)
    # While a request generates its output, each of the others ends once, and the next one's prompt is processed.
    others = np.where(batch, 0, requests - 1).clip(0) / out * _met(requests, part["prompts"].to_numpy())
    times = {"decode_s": step_s, "full_s": step_s, "prompts_s": others * added_s, "prompt_s": prompt_s}
    times |= {"kernels_s": step_s + times["prompts_s"]}
    times |= {"served_s": prompt_s + (out - 1) * times["kernels_s"], "given_ttft_s": np.nan, "decoding": requests}
    if not given_ttft:
        return times, used
    wait_s = np.where(batch, 0.0, part["ttft_s"].fillna(0.0))
    share = decoding_share(step_s, others * added_s, out, wait_s)
    step_s, _, added_s = steps_s(np.maximum(np.rint(share * requests).astype(np.int64), 1))
    share = decoding_share(step_s, others * added_s, out, wait_s)
    given_s = np.where(part["ttft_s"].isna(), np.nan, step_s + share * others * added_s)
    return times | {"given_ttft_s": given_s}, used


def _met(requests: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Return which share of the other requests' prompts a request meets in the mean, in a run of so many prompts.

    The first ones begin at once, and each of the last ones, B of P, meets only the prompts after its own: half of the
    others in the mean. A run of unknown length (0) has no end.
    """
    return np.where(prompts > 0, 1 - requests / (2 * np.maximum(prompts, np.maximum(requests, 1))), 1.0)
