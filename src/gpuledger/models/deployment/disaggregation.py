"""Disaggregated serving: some workers process the prompts, others decode, and caches travel from one to the other."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.deployment.objectives import Objective, cheapest, cheapest_first, costs
from gpuledger.models.deployment.passes import Deployment

#: The parts of a split, by the names of columns.
SPLIT = ("tensor", "pipeline", "expert", "replicas")


class _Worker(NamedTuple):
    """What one worker of a deployment can do."""

    deployment: Deployment
    devices: int
    prompt_s: float
    prompts_per_s: float
    prompt_bytes: int  # of memory, on the GPU that holds most
    fits: bool
    transfer_s: float  # of what one GPU holds of a prompt's cache
    steps: pd.DataFrame  # that fit and take at most as long as is allowed, with the ``requests_per_s`` that they end


def disaggregated(
    deployments: Sequence[Deployment],
    tables: Sequence[pd.DataFrame],
    objective: Objective,
    most_gpus: int,
    prices: Mapping[str, float] | None = None,
    network_bytes_per_s: float | None = None,
) -> pd.DataFrame:
    """Return, for each split of the workers that decode, those workers that serve most tokens per GPU.

    A worker is one deployment. Those that process prompts do so one after another; the cache of each then travels to a
    worker that decodes, in steps of full batches without prompts. The slower kind limits the requests per second.
    Queueing and the host's work are not included; caches travel while other prompts are computed.

    Parameters
    ----------
    deployments, tables : sequences
        Splits that either kind of worker may have, and their :func:`gpuledger.models.deployment.passes`.
    most_gpus : int
        GPUs of all workers together, all of one type.
    prices : mapping of str to float, optional
        USD per GPU and hour, by GPU.
    network_bytes_per_s : float, optional
        What a GPU sends to another worker; without it, its links' bandwidth.

    Returns
    -------
    DataFrame, sorted as that of :func:`gpuledger.models.deployment.cheapest`; empty if none meets the objective
        ``gpu``; of both kinds ``prefill_workers, prefill_tensor, prefill_pipeline, prefill_expert, prefill_replicas,
        decode_workers, …``; ``gpus`` (of all workers); ``batch`` (the smallest that keeps up with the prompts),
        ``ttft_s`` (a prompt and the transfer of its cache), ``transfer_s, tpot_s``, ``memory_bytes`` (on the GPU that
        holds most), ``limited_by`` (``prefill`` or ``decode``), the rates and costs of
        :func:`gpuledger.models.deployment.cheapest`, and ``together_output_tokens_per_s_per_gpu``: what one deployment
        that does both serves (NaN where none of them meets the objective).

    Raises
    ------
    InputError
        A GPU without links, and no network.
    """
    found = []
    for gpu in {deployment.gpu.name: deployment.gpu for deployment in deployments}.values():
        link = gpu.link_bytes_per_s if network_bytes_per_s is None else network_bytes_per_s
        if math.isnan(link):
            raise InputError(gpu.name, "links", "its data sheet has none to send caches over", "add --network")
        own = [pair for pair in zip(deployments, tables, strict=True) if pair[0].gpu == gpu]
        together = cheapest(*zip(*own, strict=True), objective)
        rate = math.nan if together.empty else together["output_tokens_per_s_per_gpu"].max()
        workers = [_worker(*pair, link, objective.tpot_s) for pair in own]
        for decoding in workers:
            if best := _best(decoding, workers, objective, most_gpus):
                rates = costs(gpu, best["gpus"], best.pop("requests_per_s") * decoding.deployment.output_tokens, prices)
                found.append(best | rates | {"together_output_tokens_per_s_per_gpu": rate})
    return cheapest_first(found, prices)


def _worker(deployment: Deployment, table: pd.DataFrame, link_bytes_per_s: float, tpot_s: float) -> _Worker:
    prompt, steps = table.iloc[0], table.iloc[1:]
    transfer_s = prompt["cache_bytes"] / link_bytes_per_s
    # Each replica has the caches of its own requests.
    most_caches_per_s = deployment.parallel.replicas / transfer_s if transfer_s else np.inf
    new_tokens = deployment.input_tokens - deployment.cached_tokens
    rate = np.minimum(steps["tokens_per_s"] / deployment.output_tokens, most_caches_per_s)
    return _Worker(
        deployment,
        deployment.parallel.devices,
        prompt["time_s"],
        min(prompt["tokens_per_s"] / new_tokens, most_caches_per_s),
        int(prompt["memory_bytes"]),
        prompt["fits"],
        transfer_s,
        steps.assign(requests_per_s=rate)[steps["fits"] & (steps["tpot_s"] <= tpot_s)],
    )


def _best(decoding: _Worker, workers: Sequence[_Worker], objective: Objective, most_gpus: int) -> dict | None:
    """Return the best partners of workers that decode, and how many of each; None if nothing meets the objective."""
    able = [
        one
        for one in workers
        if one.fits
        and one.prompt_s + max(one.transfer_s, decoding.transfer_s) <= objective.ttft_s
        and one.devices + decoding.devices <= most_gpus
    ]
    steps = decoding.steps
    if steps.empty or not able:
        return None
    # Arrays of shape (numbers of workers that decode, kinds of the others, 2: a few prompts too few or too many).
    fewest = min(one.devices for one in able)
    decoders = np.arange(1, (most_gpus - fewest) // decoding.devices + 1)[:, None, None]
    devices = np.array([one.devices for one in able])[None, :, None]
    prompts = np.array([one.prompts_per_s for one in able])[None, :, None]
    each = steps["requests_per_s"].max()
    room = (most_gpus - decoders * decoding.devices) // devices
    wanted = decoders * each / prompts
    others = np.clip(np.concatenate([np.floor(wanted), np.ceil(wanted)], axis=2), 1, np.maximum(room, 1)).astype(int)
    gpus = others * devices + decoders * decoding.devices
    rates = np.minimum(others * prompts, decoders * each)
    per_gpu = np.where(room >= 1, rates / gpus, 0.0)
    # Twice as many of both kinds serve as much per GPU: the fewest that do.
    at = np.unravel_index(np.where(per_gpu >= per_gpu.max() * (1 - 1e-9), gpus, np.inf).argmin(), per_gpu.shape)
    one, count, rate = able[at[1]], int(decoders[at[0], 0, 0]), float(rates[at])
    step = steps.loc[steps["batch"].where(count * steps["requests_per_s"] >= rate * (1 - 1e-9)).idxmin()]
    transfer_s = max(one.transfer_s, decoding.transfer_s)
    return {
        "gpu": decoding.deployment.gpu.name,
        **_named("prefill", int(others[at]), one),
        **_named("decode", count, decoding),
        "gpus": int(gpus[at]),
        "batch": int(step["batch"]),
        "ttft_s": one.prompt_s + transfer_s,
        "transfer_s": transfer_s,
        "tpot_s": step["tpot_s"],
        "memory_bytes": max(one.prompt_bytes, int(step["memory_bytes"])),
        "limited_by": "prefill" if others[at] * one.prompts_per_s < count * each else "decode",
        "requests_per_s": rate,
    }


def _named(kind: str, count: int, worker: _Worker) -> dict[str, int]:
    split = {name: getattr(worker.deployment.parallel, name) for name in SPLIT}
    return {f"{kind}_{name}": value for name, value in {"workers": count, **split}.items()}
