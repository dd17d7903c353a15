"""The passes of a deployment: one prompt's prefill, and decode steps of many batch sizes in one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.deployment.memory import PARTS, fits, memory_bytes, memory_rows
from gpuledger.models.deployment.speculation import Speculation
from gpuledger.models.power import mean_power_w
from gpuledger.models.time_model.step import BOUNDS, check_peaks, judged, other_constants, predict
from gpuledger.models.transformer import (
    Images,
    Model,
    Parallel,
    Precision,
    Workload,
    chunk,
    decode,
    join,
    kernels,
    prefill,
)
from gpuledger.models.transformer.launches.vision import VISION
from gpuledger.readers.gpus import Gpu

#: What limits a pass whose kernels wait for the host.
HOST = "host"


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs and the requests that it serves."""

    model: Model
    gpu: Gpu
    #: Of every request; the tokens of its images count among the input.
    input_tokens: int
    output_tokens: int
    parallel: Parallel = field(default_factory=Parallel)
    precision: Precision | None = None  # None: that of the checkpoint
    engine: str = ""  # see :func:`gpuledger.models.time_model.step.predict`
    cached_tokens: int = 0  # tokens at the beginning of every prompt that a prefix cache already holds
    speculation: Speculation | None = None
    expert_load: float | str = 0.0  # see :func:`gpuledger.models.transformer.kernels`
    #: Time that the host takes for a launch (s): without CUDA graphs a pass takes at least that for each of its
    #: launches. 0: CUDA graphs, the host is never late.
    host_s: float = 0.0
    images: Images | None = None  # Of every prompt, encoded before it. Of a prefix cache's tokens, none are theirs.

    def __post_init__(self):
        longest, total = self.model.max_positions, self.input_tokens + self.output_tokens
        if longest and total > longest:
            problem = f"a context of {total:,} tokens, but {self.model.name} supports {longest:,}"
            remedy = "shorten input or output, or use a config.json with a larger max_position_embeddings"
            raise InputError(self.model.name, "input + output", problem, remedy)

    @property
    def new_tokens(self) -> int:
        """New tokens of a request in a decode step: one, and those that were drafted."""
        return 1 + (self.speculation.drafted if self.speculation else 0)

    def workload(self, batches: np.ndarray, context: int) -> Workload:
        """Return the prefill of one prompt, and a decode step of each batch size behind *context* tokens."""
        prompt = prefill(self.input_tokens, cached_tokens=self.cached_tokens, images=self.images)
        return join([prompt, decode(np.full(len(batches), context), batches, self.new_tokens)])

    def kernels(self, workload: Workload) -> pd.DataFrame:
        """Return the kernels of a workload; see :func:`gpuledger.models.transformer.kernels`."""
        return kernels(self.model, workload, self.parallel, self.precision, expert_load=self.expert_load)

    def predict(self, workload: Workload) -> pd.DataFrame:
        """Return the predicted kernels of a workload, those of drafts included."""
        rows = self.kernels(workload)
        check_peaks(rows, self.gpu)
        rows = predict(rows, self.gpu, self.engine)
        if not self.speculation:
            return rows
        return self.speculation.join(rows, self._draft.predict(self.speculation.passes(workload)))

    @property
    def _draft(self) -> Deployment:
        """Return the same GPUs with the model that drafts, in one stage; another model in its own precision."""
        draft, parallel = self.speculation.draft, replace(self.parallel, pipeline=1)
        precision = self.precision if draft.drafts else None
        return replace(self, model=draft, parallel=parallel, precision=precision, speculation=None, images=None)


def passes(deployment: Deployment, batches: Sequence[int]) -> pd.DataFrame:
    """Predict the prefill of one prompt and decode steps of many batch sizes.

    A decode step is that in the middle of the output: every request has ``input + output // 2`` tokens in its cache.
    Its memory is that of the last step, when the caches are fullest. A prefill processes one whole prompt at once.
    With speculative decoding, a step includes drafting and adds ``tokens_per_step`` tokens to a request.

    Served, every batch is kept full: while a request generates its output, each of the others ends once, and the prompt
    of the one that takes its place is processed in a step of the others (with drafts: between two steps). The study
    ``serving_time`` judges such times.

    Parameters
    ----------
    batches : sequence of int
        Requests in a decode step: of each pipeline stage, and of each replica where experts are spread over more
        devices than share a matrix.

    Returns
    -------
    DataFrame, one row per pass, the prefill first
        ``gpu, phase, batch, time_s`` (pipeline stages in sequence), ``tokens_per_s`` (of all GPUs together, all
        stages busy), ``tokens_per_s_per_gpu``, ``memory_bytes`` (on the GPU that holds most), ``fits``, ``bound``
        (what limits kernels for the largest share of the time; ``host``: launches), ``communication_percent``;
        ``tokens_per_step`` (of a request), ``tpot_s`` (time per output token of a request, all stages busy; NaN for a
        prefill), ``bubble_percent`` (idle share of the pipeline stages, because they take unequally long);
        ``served_tpot_s`` (with the prompts of other requests) and ``served_tokens_per_s`` (output tokens of all GPUs
        together; both NaN for a prefill);
        ``judged_percent, kernel_error_percent, other_constants`` (see :mod:`gpuledger.models.time_model.step`);
        ``vision_time_s``, what of the time is the vision tower's kernels'; ``power_w``, what a GPU draws in the mean
        (see :func:`gpuledger.models.power.mean_power_w`); and the parts of the memory, ``weight_bytes, cache_bytes,
        activation_bytes``.

    Raises
    ------
    InputError
        The model cannot be split like this, the GPU's data sheet lacks a peak or a link, sizes beyond 64 bits.
    """
    gpu, parallel, own = deployment.gpu, deployment.parallel, deployment.speculation
    batch = np.asarray(batches, np.int64)
    context = deployment.input_tokens + deployment.output_tokens // 2
    work = deployment.workload(batch, context)
    whole, slowest, exchanged, bound, known = _sums(deployment, work)
    last = deployment.input_tokens + deployment.output_tokens - 1
    memory = memory_of(deployment, deployment.workload(batch, last))
    each = np.r_[1.0, np.full(len(batch), own.tokens_per_step if own else 1.0)]
    tokens = np.r_[work.tokens[0], each[1:] * batch]
    rate = tokens * parallel.replicas / slowest
    tpot_s, requests = parallel.pipeline * slowest[1:] / each[1:], batch * parallel.pipeline
    prompt_s = _added_by_prompt(deployment, batch, context, slowest) / deployment.output_tokens
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
            "communication_percent": 100 * exchanged / whole,
            "tokens_per_step": each,
            "tpot_s": np.r_[np.nan, tpot_s],
            "served_tpot_s": np.r_[np.nan, tpot_s + (requests - 1) * prompt_s],
            "served_tokens_per_s": np.r_[np.nan, requests * parallel.replicas / (tpot_s + requests * prompt_s)],
            "bubble_percent": 100 * (1 - whole / (parallel.pipeline * slowest)),
            **known,
        }
    )
    return found.join(memory[list(PARTS)])


def _added_by_prompt(deployment: Deployment, batch: np.ndarray, context: int, slowest_s: np.ndarray) -> np.ndarray:
    """Return by how long another request's prompt delays a step of each batch size (s), in the slowest stage.

    Parameters
    ----------
    slowest_s : float array of shape (1 + batches,)
        What the slowest stage takes for a prompt alone, and for a step of each batch size.
    """
    if deployment.speculation:
        return np.full(len(batch), slowest_s[0])
    new, cached = deployment.input_tokens - deployment.cached_tokens, deployment.cached_tokens
    both = chunk(new, cached, np.maximum(batch - 1, 0), context, deployment.images)
    return np.maximum(_sums(deployment, both)[1] - slowest_s[1:], 0)


def memory_of(deployment: Deployment, work: Workload) -> pd.DataFrame:
    """Return what each shape of a workload needs on the GPU that holds most, all stages busy, drafts included.

    Returns
    -------
    DataFrame, one row per shape
        As :func:`gpuledger.models.deployment.memory.memory_bytes`.
    """
    memory = memory_bytes(deployment.model, deployment.parallel, deployment.precision, work, deployment.kernels(work))[
        list(PARTS)
    ]
    # Stages that are all busy work on one batch each, and every stage caches its layers' part of all of them.
    memory["cache_bytes"] *= deployment.parallel.pipeline
    if deployment.speculation:
        memory += memory_of(deployment._draft, work)[list(PARTS)].assign(activation_bytes=0)
    return memory.assign(memory_bytes=memory.sum(axis=1))


def memory_table(deployment: Deployment, batch: int) -> pd.DataFrame:
    """List what fills the GPU that holds most at the end of the output of *batch* requests.

    Returns
    -------
    DataFrame
        See :func:`gpuledger.models.deployment.memory.memory_rows`; with speculative decoding, also what drafts.
    """
    last = deployment.input_tokens + deployment.output_tokens - 1
    work = decode(last, batch, deployment.new_tokens)
    split = deployment.model, deployment.parallel, deployment.precision
    rows = deployment.kernels(work)
    table = memory_rows(*split, work, rows, deployment.gpu, deployment.parallel.pipeline)
    if not deployment.speculation:
        return table
    return with_drafts(table, memory_of(deployment._draft, work).iloc[0], deployment.speculation)


def with_drafts(table: pd.DataFrame, needed: pd.Series, speculation: Speculation) -> pd.DataFrame:
    """Insert into the parts of the memory what drafts need, and add it to their sum."""
    name = speculation.draft.name
    parts = {"part": ["weights for drafts", "KV cache for drafts"], "formula": name}
    drafts = pd.DataFrame({**parts, "bytes": [needed["weight_bytes"], needed["cache_bytes"]]})
    own = int((table["part"] == "activations").argmax()) + 1
    table = pd.concat([table.iloc[:own], drafts, table.iloc[own:]], ignore_index=True)
    table.loc[len(table) - 1, "bytes"] = table["bytes"].iloc[:-1].sum()
    return table


def _sums(deployment: Deployment, work: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str], dict]:
    """Return each shape's time, that of its slowest stage, that of communication (s), its bound, and what is judged."""
    rows = deployment.predict(work)
    shape, stage, count = (rows[name].to_numpy() for name in ("shape", "stage", "count"))
    time = rows["time_s"].to_numpy() * count

    def table(codes: np.ndarray, width: int, weights: np.ndarray = time) -> np.ndarray:
        return np.bincount(shape * width + codes, weights, work.shapes * width).reshape(work.shapes, width)

    stages = int(stage.max()) + 1
    by_stage = table(stage, stages)
    waiting = deployment.host_s * table(stage, stages, count)
    by_bound = table(rows["bound"].cat.codes.to_numpy().astype(np.int64), len(BOUNDS))
    exchanged = table((rows["kind"] == "collective").to_numpy().astype(np.int64), 2)[:, 1]
    late = waiting.sum(axis=1) > by_stage.sum(axis=1)
    bound = [HOST if host else BOUNDS[i] for host, i in zip(late, by_bound.argmax(axis=1), strict=True)]
    by_stage = np.maximum(by_stage, waiting)
    known = judged(rows, shape, work.shapes) | {"other_constants": other_constants(rows, shape, work.shapes)}
    known["vision_time_s"] = table((rows["layers"] == VISION).to_numpy().astype(np.int64), 2)[:, 1]
    known["power_w"] = mean_power_w(rows, deployment.gpu, shape, work.shapes)
    return by_stage.sum(axis=1), by_stage.max(axis=1), exchanged, bound, known
