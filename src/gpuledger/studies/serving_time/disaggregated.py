"""Workers that only decode, while others process the prompts: how many requests decode, and how long a step takes."""

import numpy as np
import pandas as pd

from gpuledger.models.time_model.step import predict, totals
from gpuledger.models.transformer import Model, Parallel, Precision, decode, kernels
from gpuledger.models.transformer.routing import SERVED_LOAD
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.serving_time import sweeps

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


def decode_steps(
    model: Model, precision: Precision | None, parallel: Parallel, part: pd.DataFrame, gpu: Gpu, engine: str
) -> tuple[dict[str, np.ndarray], set[str]]:
    """Predict the decode steps of runs with the same model, engine and parallelism, all at once.

    A client keeps so many requests in flight, but those that wait for their first token decode nowhere. By Little's law
    a share of m · t / (TTFT + m · t) of them decodes, with m tokens of output, the predicted step t and the *measured*
    time to the first token. (Chosen by B200's, H200's and GB200's errors, as what physics asks for: of all the requests
    in flight, a GB200 that was kept waiting four fifths of the time was predicted three times too slow.)

    Parameters
    ----------
    part : DataFrame
        Of :func:`gpuledger.studies.serving_time.runs.read_runs`; none without requests.

    Returns
    -------
    times : dict
        ``decode_s`` (a step), ``full_s`` (one of all the requests in flight) and ``decoding`` (requests of a replica
        that decode at a time, at least 1).
    used : set of str
        Whose constants.
    """
    (new, out), flying = sweeps.mean_lengths(part), part["requests"].to_numpy()
    wait_s, used = part["ttft_s"].to_numpy(), set()

    def step_s(requests: np.ndarray) -> np.ndarray:
        # On average, half of the output is in the cache.
        work = decode(new + out // 2, requests)
        rows = predict(kernels(model, work, parallel, precision, expert_load=SERVED_LOAD), gpu, engine)
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
    return {"decode_s": taken, "full_s": full_s, "decoding": decoding}, used
