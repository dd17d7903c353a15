"""Service-level objectives: which deployment meets them, and which of those makes a token cheapest."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.deployment.passes import Deployment
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.tabular import seconds_of


@dataclass(frozen=True)
class Objective:
    """Longest allowed time to the first token and per output token, in seconds."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf

    @classmethod
    def parse(cls, text: str, place: str) -> Self:
        """Read ``ttft=1s,tpot=30ms``; *place* names the option in errors."""
        found = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            time_s = seconds_of(value)
            if name not in ("ttft", "tpot") or not time_s > 0 or f"{name}_s" in found:
                raise InputError("command line", place, f"'{part}' is not an objective", "write ttft=1s,tpot=30ms")
            found[f"{name}_s"] = time_s
        return cls(**found)


def cheapest(
    deployments: Sequence[Deployment],
    tables: Sequence[pd.DataFrame],
    objective: Objective,
    prices: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Return, of each deployment, the batch size with the cheapest output token that meets an objective.

    Batches are kept full, so that the prompts of new requests are processed in steps of the others. Queueing and the
    host's work are not included.

    Parameters
    ----------
    tables : sequence of DataFrame
        Of each deployment its :func:`gpuledger.models.deployment.passes`.
    prices : mapping of str to float, optional
        USD per GPU and hour, by GPU.

    Returns
    -------
    DataFrame, the cheapest first (without prices: that with the most tokens per GPU); empty if none meets it
        ``gpu, tensor, pipeline, expert, replicas, gpus, batch, ttft_s, tpot_s, memory_bytes, output_tokens_per_s,
        output_tokens_per_s_per_gpu, usd_per_million_output_tokens`` (NaN without a price) and
        ``joule_per_output_token_at_most`` (all GPUs at their board power all the time).
    """
    found = []
    for deployment, table in zip(deployments, tables, strict=True):
        prompt, steps = table.iloc[0], table.iloc[1:]
        parallel, gpu = deployment.parallel, deployment.gpu
        good = steps[steps["fits"] & (steps["served_tpot_s"] <= objective.tpot_s)]
        if good.empty or not prompt["fits"] or prompt["time_s"] > objective.ttft_s:
            continue
        row = good.loc[good["served_tokens_per_s"].idxmax()]
        found.append(
            {
                "gpu": gpu.name,
                "tensor": parallel.tensor,
                "pipeline": parallel.pipeline,
                "expert": parallel.expert,
                "replicas": parallel.replicas,
                "gpus": parallel.devices,
                "batch": int(row["batch"]),
                "ttft_s": prompt["time_s"],
                "tpot_s": row["served_tpot_s"],
                "memory_bytes": int(row["memory_bytes"]),
                **costs(gpu, parallel.devices, row["served_tokens_per_s"], prices),
            }
        )
    return cheapest_first(found, prices)


def costs(gpu: Gpu, gpus: int, rate: float, prices: Mapping[str, float] | None) -> dict[str, float]:
    """Return what `gpus` GPUs that generate `rate` output tokens per second take for a token; see :func:`cheapest`."""
    price = (prices or {}).get(gpu.name, math.nan)
    return {
        "output_tokens_per_s": rate,
        "output_tokens_per_s_per_gpu": rate / gpus,
        "usd_per_million_output_tokens": price * gpus / 3600 / rate * 1e6,
        "joule_per_output_token_at_most": gpu.board_power_w * gpus / rate,
    }


def cheapest_first(found: list[dict], prices: Mapping[str, float] | None) -> pd.DataFrame:
    """Return rows with :func:`costs` as a table, the cheapest first; without prices that with most tokens per GPU."""
    table = pd.DataFrame(found)
    order, up = ("usd_per_million_output_tokens", True) if prices else ("output_tokens_per_s_per_gpu", False)
    return table if table.empty else table.sort_values(order, ascending=up, kind="stable", ignore_index=True)
