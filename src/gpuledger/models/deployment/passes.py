"""The passes of a deployment: one prompt's prefill, and decode steps of many batch sizes in one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.deployment.memory import fits, memory_bytes
from gpuledger.models.time_model.step import BOUNDS, check_peaks, predict
from gpuledger.models.transformer import Model, Parallel, Precision, Workload, decode, join, kernels, prefill
from gpuledger.readers.gpus import Gpu


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs and the requests that it serves.

    Attributes
    ----------
    model : Model
    gpu : Gpu
    input_tokens, output_tokens : int
        Of every request.
    parallel : Parallel
    precision : Precision or None
        None: that of the checkpoint.
    engine : str
        See :func:`gpuledger.models.time_model.step.predict`.
    """

    model: Model
    gpu: Gpu
    input_tokens: int
    output_tokens: int
    parallel: Parallel = field(default_factory=Parallel)
    precision: Precision | None = None
    engine: str = ""

    def __post_init__(self):
        longest, total = self.model.max_positions, self.input_tokens + self.output_tokens
        if longest and total > longest:
            problem = f"a context of {total:,} tokens, but {self.model.name} supports {longest:,}"
            remedy = "shorten input or output, or use a config.json with a larger max_position_embeddings"
            raise InputError(self.model.name, "input + output", problem, remedy)


def passes(deployment: Deployment, batches: Sequence[int]) -> pd.DataFrame:
    """Predict the prefill of one prompt and decode steps of many batch sizes.

    A decode step is that in the middle of the output: every request has ``input + output // 2`` tokens in its cache.
    Its memory is that of the last step, when the caches are fullest. A prefill processes one whole prompt at once.

    Parameters
    ----------
    deployment : Deployment
    batches : sequence of int
        Requests in a decode step: of each pipeline stage, and of each replica where experts are spread over more
        devices than share a matrix.

    Returns
    -------
    DataFrame, one row per pass, the prefill first
        ``gpu, phase, batch, time_s`` (pipeline stages in sequence), ``tokens_per_s`` (of all GPUs together, all
        stages busy), ``tokens_per_s_per_gpu``, ``memory_bytes`` (on the GPU that holds most), ``fits``, ``bound``
        (what limits kernels for the largest share of the time), ``communication_percent``; and the parts of the
        memory, ``weight_bytes, cache_bytes, activation_bytes``.

    Raises
    ------
    InputError
        The model cannot be split like this, the GPU's data sheet lacks a peak or a link, sizes beyond 64 bits.
    """
    model, gpu, parallel = deployment.model, deployment.gpu, deployment.parallel
    batch = np.asarray(batches, np.int64)
    middle = deployment.input_tokens + deployment.output_tokens // 2
    work = join([prefill(deployment.input_tokens), decode(np.full(len(batch), middle), batch)])
    rows = kernels(model, work, parallel, deployment.precision)
    check_peaks(rows, gpu)
    rows = predict(rows, gpu, deployment.engine)
    whole, slowest, bound, communication = _sums(rows, work)
    last = deployment.input_tokens + deployment.output_tokens - 1
    full = join([prefill(deployment.input_tokens), decode(np.full(len(batch), last), batch)])
    launched = kernels(model, full, parallel, deployment.precision)
    memory = memory_bytes(model, parallel, deployment.precision, full, launched)
    # Stages that are all busy work on one batch each, and every stage caches its layers' part of all of them.
    more = (parallel.pipeline - 1) * memory["cache_bytes"]
    memory["cache_bytes"] += more
    memory["memory_bytes"] += more
    rate = work.tokens * parallel.replicas / slowest
    found = pd.DataFrame(
        {
            "gpu": gpu.name,
            "phase": ["prefill", *["decode"] * len(batch)],
            "batch": np.r_[1, batch],
            "time_s": whole,
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / parallel.devices,
            "memory_bytes": memory["memory_bytes"],
            "fits": fits(memory["memory_bytes"].to_numpy(), gpu),
            "bound": bound,
            "communication_percent": communication,
        }
    )
    return found.join(memory[["weight_bytes", "cache_bytes", "activation_bytes"]])


def _sums(rows: pd.DataFrame, work: Workload) -> tuple[np.ndarray, np.ndarray, list[str], np.ndarray]:
    """Return each shape's time, that of its slowest stage (s), its most frequent bound, and communication (%)."""
    shape, stage = rows["shape"].to_numpy(), rows["stage"].to_numpy()
    time = rows["time_s"].to_numpy() * rows["count"].to_numpy()

    def table(codes: np.ndarray, width: int) -> np.ndarray:
        return np.bincount(shape * width + codes, time, work.shapes * width).reshape(work.shapes, width)

    by_stage = table(stage, int(stage.max()) + 1)
    by_bound = table(rows["bound"].cat.codes.to_numpy().astype(np.int64), len(BOUNDS))
    whole = by_stage.sum(axis=1)
    exchanged = table((rows["kind"] == "collective").to_numpy().astype(np.int64), 2)[:, 1]
    return whole, by_stage.max(axis=1), [BOUNDS[i] for i in by_bound.argmax(axis=1)], 100 * exchanged / whole
