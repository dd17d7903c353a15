"""Workers that only decode, while others process the prompts: how long a step takes, and what all of them serve."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from gpuledger.models.time_model.step import predict, totals
from gpuledger.models.transformer import Parallel, decode, kernels, prefill
from gpuledger.models.transformer.routing import SERVED_LOAD
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.serving_time import sweeps
from gpuledger.studies.serving_time.runs import PREFILL, Expressed

#: Rounds in which the requests that decode and their step are brought into agreement.
_ROUNDS = 8


def decoding_share(step_s: np.ndarray, prompts_s: np.ndarray, out: np.ndarray, wait_s: np.ndarray) -> np.ndarray:
    """Return the share of its time that a request decodes, by Little's law, where prompts join the steps of that time.

    Parameters
    ----------
    step_s, prompts_s : numpy.ndarray
        A decode step, and what the prompts of all other requests would add to it.
    out : numpy.ndarray
        Output tokens.
    wait_s : numpy.ndarray
        Measured time to the first token.
    """
    # share = own / (own + wait) with own = steps + share · prompts: a quadratic with one root from 0 to 1.
    steps_s, prompts_s = out * step_s, out * prompts_s
    rest_s = steps_s + wait_s - prompts_s
    return np.round(2 * steps_s / (rest_s + np.sqrt(rest_s**2 + 4 * steps_s * prompts_s)), 9)


def decode_steps(run: Expressed, part: pd.DataFrame, gpu: Gpu, engine: str) -> tuple[dict[str, np.ndarray], set[str]]:
    """Predict the decode steps of runs with the same model, engine and parallelism, all at once, and what is served.

    A client keeps so many requests in flight, but those that wait for their first token decode nowhere. By Little's law
    a share of m · t / (TTFT + m · t) of them decodes, with m tokens of output, the predicted step t and the *measured*
    time to the first token. (Chosen by B200's, H200's and GB200's errors, as what physics asks for: of all the requests
    in flight, a GB200 that was kept waiting four fifths of the time was predicted three times too slow.)

    Parameters
    ----------
    part : DataFrame
        Of :func:`gpuledger.studies.serving_time.runs.read_runs`; none without requests. Without a time to the first
        token, all requests in flight decode.

    Returns
    -------
    times : dict
        ``decode_s`` (a step), ``full_s`` (one of all the requests in flight), ``decoding`` (requests of a replica
        that decode at a time, at least 1) and ``served_s`` (see :func:`_served_s`; NaN where the workers that process
        the prompts are not known).
    used : set of str
        Whose constants.
    """
    (new, out), flying = sweeps.mean_lengths(part), part["requests"].to_numpy()
    wait_s, used = part["ttft_s"].fillna(0.0).to_numpy(), set()

    def step_s(requests: np.ndarray) -> np.ndarray:
        # On average, half of the output is in the cache.
        work = decode(new + out // 2, requests)
        rows = predict(kernels(run.model, work, run.parallel, run.precision, expert_load=SERVED_LOAD), gpu, engine)
        used.update(rows["constants"].astype(str).unique())
        # Whether half a request more decodes must not hang on the last bits.
        return np.round(totals(rows, rows["shape"].to_numpy(), work.shapes)["time_s"], 9)

    decoding, full_s = flying, step_s(flying)
    taken = full_s
    for _ in range(_ROUNDS):
        before, share = decoding, decoding_share(taken, np.zeros(len(taken)), out, wait_s)
        decoding = np.maximum(np.rint(flying * share).astype(np.int64), 1)
        if (decoding == before).all():
            break
        taken = step_s(decoding)
    times = {"decode_s": taken, "full_s": full_s, "decoding": decoding, "served_s": np.full(len(part), np.nan)}
    if run.prompts:
        work = prefill(new)
        rows = predict(kernels(run.model, work, run.prompts, run.precision, expert_load=SERVED_LOAD), gpu, engine)
        prompt_s = totals(rows, rows["shape"].to_numpy(), work.shapes)["time_s"]
        each = _replicas(part, PREFILL, run.prompts) / _replicas(part, "", run.parallel)
        times["served_s"] = _served_s(step_s, flying, out, prompt_s, prompt_s / each)
    return times, used


def all_gpus(run: Expressed, part: pd.DataFrame) -> np.ndarray:
    """Return the GPUs of all workers of either kind; NaN where those that process the prompts are not known."""
    if not run.prompts:
        return np.full(len(part), np.nan)
    kinds = ((PREFILL, run.prompts), ("", run.parallel))
    return sum(_replicas(part, kind, own) * own.devices // own.replicas for kind, own in kinds)


def _replicas(part: pd.DataFrame, kind: str, parallel: Parallel) -> np.ndarray:
    """Return the replicas of all workers of a kind (`PREFILL`, or "")."""
    # Those of a dense model are servers of their own, which its parallelism does not know.
    return (part[f"{kind}workers"] * np.maximum(part[f"{kind}replicas"], parallel.replicas)).to_numpy()


def _served_s(
    step_s: Callable[[np.ndarray], np.ndarray],
    flying: np.ndarray,
    out: np.ndarray,
    prompt_s: np.ndarray,
    each_s: np.ndarray,
) -> np.ndarray:
    """Return the time from a request to its last token, by Little's law and without any measured time.

    A request takes a prompt, if none waits, and its decode steps, each with as many requests as decode on average; and
    no more decode than prompts are processed. Waits among prompts and transfers of caches are left out.

    Parameters
    ----------
    step_s : callable
        A decode step of so many requests of a replica (s).
    flying, each_s : numpy.ndarray
        Of each replica that decodes: requests in flight, and the time from one processed prompt to the next (s).
    """
    decoding = flying.astype(float)
    for _ in range(2 * _ROUNDS):
        decode_s = out * step_s(np.maximum(np.rint(decoding), 1).astype(np.int64))
        served_s = np.maximum(prompt_s + decode_s, flying * each_s)
        # Half of the way each time: where steps grow with their requests, the whole way may lead to and fro.
        before, decoding = decoding, (decoding + flying * decode_s / served_s) / 2
        if np.abs(decoding - before).max() < 0.05:
            break
    return served_s
