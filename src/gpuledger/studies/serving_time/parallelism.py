"""Whether the predicted times choose the parallelism that serves most tokens per GPU."""

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, rounded
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.models.time_model.constants.table import describe_constants
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.serving_time.prediction import predict_runs

#: What is served: runs that differ in parallelism and requests only.
WORKLOAD = ["gpu", "engine", "model", "precision", "input_tokens", "output_tokens"]
#: Who chooses, and what that is called.
CHOOSERS = {
    "predicted": "by predicted times",
    "fewest_met": "the fewest fast enough, in hindsight",
    "fewest": "always the fewest GPUs",
    "most": "always the most",
    "any": "a random one",
}


def reduce_choices(case: Case) -> CaseResult:
    """Compare what is served by the parallelism that predicted times choose with what the best measured one serves.

    Parameters
    ----------
    case : Case
        ``runs``, a table of served runs, ``gpus``, and optional ``configs``.

    Returns
    -------
    CaseResult
        Data: a row per workload (`WORKLOAD`), parallelism and number of requests (``requests``, of all replicas; the
        median of ``runs`` runs) of the workloads with several parallelisms: ``parallelism, gpus``; ``measured_s`` and
        ``predicted_s`` per output token, ``measured_rate`` and ``predicted_rate``, output tokens per second and GPU.

    Raises
    ------
    InputError
        No workload has two parallelisms that can be expressed.
    """
    place = f"{case.place}.gpus"
    gpus = [find_gpu(name, file=case.dataset.file, place=place) for name in dict.fromkeys(case.inputs["gpus"])]
    found = {gpu.name: predict_runs(case, gpu, served=True) for gpu in gpus}
    runs = pd.concat([predicted.data.assign(gpu=name) for name, predicted in found.items()], ignore_index=True)
    data = points(runs)
    decided = choices(data)
    if decided.empty:
        problem = "no model, engine and length was served with two parallelisms in the same time"
        raise InputError(case.path("runs"), "", problem, "add runs with other tp_size, or more batch_size")
    result = CaseResult(data)
    result.add("gpus", ", ".join(gpu.title for gpu in gpus), "text")
    result.add("workloads", int(decided.groupby(WORKLOAD).ngroups), "1")
    result.add("objectives", len(decided), "1")
    result.add("runs", int(data["runs"].sum()), "run")
    for name, value in averages(decided).items():
        result.add(f"{name}_percent", value, "%")
    attained = {name: result[f"{name}_percent"] for name in CHOOSERS}
    rules = "; ".join(f"{CHOOSERS[name]}: {value:.0f} %" for name, value in list(attained.items())[1:])
    result.add(
        "finding",
        f"Parallelism chosen by predicted times serves {attained['predicted']:.0f} % of the best measured tokens per "
        f"GPU at the same time per token ({rules})",
        "text",
    )
    result.provenance = {
        "kind": "predicted",
        "label": "chosen by a time model, judged by measured served runs",
        "source": f"gpuledger's time model; measured runs: {case.dataset.content['source']}",
        "title": "Which parallelism predicted times choose for served models",
        "inputs": [
            *describe_data_sheets(gpus, case.dataset.folder),
            describe_constants(sorted({one for predicted in found.values() for one in predicted.constants})),
        ],
    }
    return result


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the medians of each parallelism and number of requests, of workloads with several parallelisms.

    Parameters
    ----------
    runs : DataFrame
        The runs of :func:`gpuledger.studies.serving_time.reduce` whose prompts are processed on the same GPUs, with
        their ``gpu``.

    Returns
    -------
    DataFrame
        The rows of :func:`reduce_choices`.
    """
    frame = runs.assign(requests=runs["requests"] * runs["replicas"], predicted_s=runs["kernels_s"])
    keys, medians = (
        [*WORKLOAD, "gpus", "parallelism", "requests"],
        ["measured_s", "predicted_s", "measured_rate", "predicted_rate"],
    )
    groups = frame.groupby(keys)
    found = rounded(groups[medians].median()).assign(runs=groups.size()).reset_index()
    return found[found.groupby(WORKLOAD)["parallelism"].transform("nunique") > 1].reset_index(drop=True)


def frontier(times_s: np.ndarray, rates: np.ndarray, objective_s: np.ndarray) -> np.ndarray:
    """Return the highest rate of one parallelism within each objective: linear between its points, 0 below them.

    Parameters
    ----------
    times_s, rates : arrays of shape (points,)
        Time per output token (s), and tokens per second and GPU.
    objective_s : array of shape (objectives,)
        The longest time per output token that is allowed (s).
    """
    order = np.argsort(times_s, kind="stable")
    return np.interp(objective_s, times_s[order], np.maximum.accumulate(rates[order]), left=0.0)


def choices(data: pd.DataFrame) -> pd.DataFrame:
    """Return what is chosen for every workload and objective, and how much of the best rate that attains.

    Objectives are the measured times per output token of a workload which at least two of its parallelisms meet.

    Parameters
    ----------
    data : DataFrame
        Of :func:`reduce_choices`.

    Returns
    -------
    DataFrame
        `WORKLOAD`, ``parallelisms`` (that meet the objective), ``objective_s``; ``best`` and ``chosen`` parallelism,
        ``best_rate``; and, in percent of it, what is attained by the parallelism that predicted times choose
        (``predicted``; 0 where it does not meet the objective), by the best of those with the fewest and with the most
        GPUs (``fewest, most``) and by all of them on average (``any``); and, which only measurements tell, by the best
        of those with the fewest GPUs that meet the objective (``fewest_met``).
    """
    parts = []
    for keys, part in data.groupby(WORKLOAD):
        of_each = [own for _, own in part.groupby(["gpus", "parallelism"])]
        names = np.array([own["parallelism"].iloc[0] for own in of_each])
        gpus = np.array([own["gpus"].iloc[0] for own in of_each])
        objective_s = np.unique(part["measured_s"])

        def rates(kind: str, objective_s=objective_s, of_each=of_each) -> np.ndarray:
            times = ((own[f"{kind}_s"].to_numpy(), own[f"{kind}_rate"].to_numpy()) for own in of_each)
            return np.array([frontier(*points, objective_s) for points in times])

        measured, predicted = rates("measured"), rates("predicted")
        # Where no parallelism is predicted to meet the objective, the fastest comes nearest.
        fastest = np.argmin([own["predicted_s"].min() for own in of_each])
        chosen = np.where(predicted.any(axis=0), predicted.argmax(axis=0), fastest)
        best = measured.max(axis=0)
        met = measured > 0
        least = np.where(met, gpus[:, None], gpus.max()).min(axis=0)
        with np.errstate(invalid="ignore"):
            shares = 100 * (measured / best)
        columns = {
            "parallelisms": met.sum(axis=0),
            "objective_s": objective_s,
            "best": names[measured.argmax(axis=0)],
            "chosen": names[chosen],
            "best_rate": best,
            "predicted": shares[chosen, np.arange(len(objective_s))],
            "fewest_met": np.where(gpus[:, None] == least, shares, 0).max(axis=0),
            "fewest": shares[gpus == gpus.min()].max(axis=0),
            "most": shares[gpus == gpus.max()].max(axis=0),
            "any": shares.mean(axis=0),
        }
        parts.append(pd.DataFrame(dict(zip(WORKLOAD, keys, strict=True)) | columns))
    decided = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*WORKLOAD, "parallelisms"])
    return decided[decided["parallelisms"] > 1].reset_index(drop=True)


def averages(decided: pd.DataFrame) -> dict[str, float]:
    """Return means over objectives in percent, every workload counted alike: of each chooser, and how often it is best.

    Returns
    -------
    dict
        `CHOOSERS`: of the best rate. ``best_chosen``: objectives for which predicted times choose the best parallelism;
        ``best_by_chance``: the same of a random one that meets the objective; ``unmet``: where theirs does not meet it.
    """
    counted = decided.assign(
        best_chosen=100.0 * (decided["chosen"] == decided["best"]),
        best_by_chance=100.0 / decided["parallelisms"],
        unmet=100.0 * (decided["predicted"] == 0),
    )
    names = [*CHOOSERS, "best_chosen", "best_by_chance", "unmet"]
    return counted.groupby(WORKLOAD)[names].mean().mean().to_dict()
