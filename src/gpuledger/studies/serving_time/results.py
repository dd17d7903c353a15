"""Served runs from a benchmark's result files, and what the user says about the server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.ledger.datasets import Case
from gpuledger.readers.gpus import Gpu, gpu_named
from gpuledger.readers.served_results import ServedRun, read_served
from gpuledger.studies.serving_time.runs import APART, PREFILL, TOGETHER

DEGREES = ("tensor", "pipeline", "replicas", "expert")
#: What a user adds to a case where a result does not say it.
_REMEDIES = {"engine": "add engine: vllm, sglang or trtllm", "tensor": "add parallel: {tensor: …}"}
_REMEDIES["model"] = "add model: its name on the hub, or one of resources/models"
_MISSING = {"engine": "which engine served", "tensor": "over how many GPUs the model was split"}
_MISSING["model"] = "which model was served"


def read_results(case: Case, gpu: Gpu) -> pd.DataFrame:
    """Read the runs of every entry of ``results`` on a GPU.

    Returns
    -------
    DataFrame
        As :func:`gpuledger.studies.serving_time.runs.read_runs`, with ``speculative``: whether tokens were drafted.

    Raises
    ------
    InputError
        No result; what :func:`table_of` refuses.
    """
    parts = []
    for at, entry in enumerate(case.inputs["results"]):
        place = f"results[{at}]"
        runs = runs_on(gpu, case.present(entry["files"], f"{place}.files", "path"))
        parts.append(table_of(runs, entry, (case.dataset.file, f"{case.place}.{place}"), _REMEDIES))
    return pd.concat(parts, ignore_index=True)


def runs_on(gpu: Gpu, path: Path) -> list[ServedRun]:
    """Read the runs in a file or folder; those that say that they are of another GPU are left out, with a warning.

    Raises
    ------
    InputError
        No result, or none of this GPU.
    """
    runs = read_served(path)
    named = {name: gpu_named(name) for name in {run.gpu for run in runs if run.gpu}}
    others = {name for name, found in named.items() if found is None or found.name != gpu.name}
    if not others:
        return runs
    own = [run for run in runs if run.gpu not in others]
    named = ", ".join(sorted(others))[:80]
    words = f"{len(runs) - len(own)} of {len(runs)} runs are of other GPUs than {gpu.name} ({named})"
    if not own:
        raise InputError(path, "hw", words, "name the GPU of the runs")
    warn(path, "", words, "left out")
    return own


def table_of(
    runs: Sequence[ServedRun], stated: Mapping[str, Any], where: tuple[Any, str], remedies: Mapping[str, str]
) -> pd.DataFrame:
    """Return runs as a table for :func:`gpuledger.studies.serving_time.prediction.predict_table`.

    Parameters
    ----------
    stated : mapping
        What the user says of the server: optional ``engine, model, precision, cache`` and ``parallel``, a mapping of
        `DEGREES`. It goes before what the results say, except for degrees, which must agree.
    where : path and str
        Where that stands.
    remedies : mapping
        What to add where neither says the ``engine``, the ``model`` or the degree ``tensor``.

    Raises
    ------
    InputError
        An engine, a model or a number of GPUs that neither says, or a degree that they say differently.
    """
    return pd.DataFrame([_row(run, stated, where, remedies) for run in runs])


def _row(run: ServedRun, stated: Mapping[str, Any], where: tuple[Any, str], remedies: Mapping[str, str]) -> dict:
    degrees = {}
    for name in DEGREES:
        told, found = stated.get("parallel", {}).get(name, 0), getattr(run, name)
        if told and found and told != found:
            problem = f"{name} is {told}, but {run.place} says {found}"
            raise InputError(*where, problem, "correct or remove it")
        degrees[name] = told or found
    engine, precision = stated.get("engine", run.engine), stated.get("precision", run.quantised)
    model = stated.get("model", run.model)
    for name, known in (("engine", engine), ("model", model), ("tensor", degrees["tensor"])):
        if not known:
            raise InputError(*where, f"{run.place} does not say {_MISSING[name]}", remedies[name])
    replicas, ranks = max(degrees["replicas"], 1), max(degrees["expert"], 1)
    sharing = replicas * run.copies * max(run.workers, 1)
    requests = -(-run.in_flight // sharing)
    return {
        "id": run.place,
        "engine": engine,
        "model": model,
        "precision": precision,
        "mode": APART if run.workers else TOGETHER,
        "quantised": "nvfp4" if precision == "fp4" else precision,
        "cache": stated.get("cache", run.cache),
        "input_tokens": run.input_tokens,
        "output_tokens": run.output_tokens,
        "prompts": -(-run.prompts // sharing),
        "requests": requests,
        "one_batch": run.one_batch,
        **_sizes(max(run.workers, 1), degrees["tensor"], degrees["pipeline"], replicas, ranks),
        **{PREFILL + name: size for name, size in _sizes(*(run.prefill or (0,) * 5)).items()},
        # What is not shared evenly is rounded up.
        "concurrency": requests * replicas * run.workers,
        "ttft_s": run.ttft_s,
        "tpot_s": run.tpot_s,
        "source": "",
        "export": False,
        "speculative": run.speculative,
    }


def _sizes(workers: int, tensor: int, pipeline: int, replicas: int, ranks: int) -> dict[str, int]:
    """Return workers' sizes by the names of :func:`gpuledger.studies.serving_time.runs.read_runs`."""
    replicas, ranks = max(replicas, 1), max(ranks, 1)
    # Without expert parallelism all GPUs share each expert.
    shards = max(tensor * replicas // ranks, 1)
    names = ("workers", "tensor", "pipeline", "replicas", "expert_shards", "expert_ranks")
    return dict(zip(names, (workers, tensor, max(pipeline, 1), replicas, shards, ranks), strict=True))
