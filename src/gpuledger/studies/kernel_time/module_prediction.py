"""Predictions for whole attention blocks: the sum of their kernels, of which the attention itself may be fitted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger.models.time_model.attention import sparse_law
from gpuledger.models.time_model.attention.sparse_kernels import sparse_parts
from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.models.time_model.kernel_rows import KernelRows
from gpuledger.models.time_model.kernels import KernelConstants, kernel_times
from gpuledger.models.transformer import Model, decode, prefill
from gpuledger.models.transformer.kernels import FUSIONS
from gpuledger.models.transformer.launches.attention import attention_kernels
from gpuledger.models.transformer.model import Layers
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_time.module_measurements import block_of, precision_of
from gpuledger.studies.kernel_time.prediction import LEAST_SHAPES

#: Kernels that a benchmark leaves out. SGLang's gives random values as the compressed queries and keys
#: (``dummy_qkv_latent_func`` in AIConfigurator's ``collector/sglang/collect_mla_module.py``).
LEFT_OUT = {("sglang", "dsa"): ("qkv_a_proj",)}
#: Models and the layers that were measured, by the model's name and the block's.
Measured = Mapping[tuple[str, str], tuple[Model, Layers]]
#: Attention itself.
_ATTENTION = ("sparse_attention", "decode_sparse_attention")
#: A fit to a table uses at most about so many blocks, and choosing among discrete properties so many.
FIT_BLOCKS, CHOICE_BLOCKS = 1200, 300
#: A weight that is used again and again: the benchmark repeats one layer.
_ONE_LAYER = 1
#: Blocks whose kernels take so many times what the host takes at least show them.
_BEYOND_HOST = 1.2


class PredictedBlocks(NamedTuple):
    """Predicted parts of measured blocks."""

    rest_s: np.ndarray  # the other kernels' time (s)
    #: The attention's, with the constants that come with the checkout; 0 where a block attends to everything.
    attention_s: np.ndarray
    operation: str  # of the attention
    shapes: Mapping[str, np.ndarray]  # the attention's, for its law
    sparse: np.ndarray  # where the attention is to selected keys
    roofline_s: np.ndarray  # sum of the rooflines of all kernels (s)
    #: FLOP, and bytes that each kernel reads and writes once.
    flop: np.ndarray
    moved: np.ndarray
    #: New and cached tokens of all requests.
    tokens: np.ndarray
    cached: np.ndarray
    #: Group of the blocks that the host launches kernel by kernel; empty for those replayed from a graph.
    launched: np.ndarray
    ranks: np.ndarray  # comparisons of equal scores by the SM that has most of them (:func:`_ranks`)

    def at(self, chosen: np.ndarray) -> "PredictedBlocks":
        """Return some of the blocks, by a mask."""
        shapes = {name: values[chosen[self.sparse]] for name, values in self.shapes.items()}
        rest = {name: getattr(self, name)[chosen] for name in self._fields if name not in ("operation", "shapes")}
        return PredictedBlocks(operation=self.operation, shapes=shapes, **rest)


def fusions_of(gpu: Gpu, engine: str) -> frozenset[str]:
    """Return what an engine fuses, and how it treats short prompts (TensorRT-LLM's differs before Blackwell)."""
    if engine == "trtllm":
        short = "index_always" if gpu.architecture == "blackwell" else "sparse_prompts"
        return FUSIONS | {"rope_kv", short}
    return FUSIONS | {"sparse_prompts"} if engine == "vllm" else FUSIONS


def predict_blocks(gpu: Gpu, models: Measured, rows: pd.DataFrame) -> PredictedBlocks:
    """Predict the kernels of the blocks of one phase, framework and cache.

    Parameters
    ----------
    rows : DataFrame
        As :func:`gpuledger.studies.kernel_time.module_measurements.read_modules` gives them.
    """
    parts = list(_parts(gpu, models, rows.reset_index(drop=True)))
    kernels = pd.concat(parts, ignore_index=True)
    block, time_s = kernels["block"].to_numpy(), kernels["time_s"].to_numpy()
    own = kernels["kernel"].isin(_ATTENTION).to_numpy()
    count = len(rows)
    attention = np.bincount(block, time_s * own, count)
    flop = 2.0 * kernels["macs"].to_numpy()
    moved = sum(kernels[f"{name}_bytes"].to_numpy(float) for name in ("weight", "read", "write", "cache"))
    roofline = np.maximum(flop / kernels["peak"].to_numpy(), moved / gpu.dram_bytes_per_s)
    operation, shapes = _ATTENTION_OF[rows["operator"].iloc[0]], {}
    if own.any():
        order = np.argsort(block[own], kind="stable")
        operation, _, shapes, _ = sparse_parts(KernelRows.of(kernels[own].iloc[order]), gpu)
    return PredictedBlocks(
        np.bincount(block, time_s, count) - attention,
        attention,
        operation,
        shapes,
        np.bincount(block, own, count) > 0,
        np.bincount(block, roofline, count),
        np.bincount(block, flop, count),
        np.bincount(block, moved, count),
        (rows["requests"] * rows["tokens"]).to_numpy(),
        (rows["requests"] * rows["context"]).to_numpy(),
        np.where(rows["eager"], rows["group"], ""),
        _ranks(gpu, models, rows),
    )


#: Of the selection among equal scores: up to how many entries an engine's kernel takes this way, how many of them it
#: ranks, and from how many new tokens of a request on, and up to how many, it is that kernel.
_RANKED = {"trtllm": (2048, 2048, 1, 2**31), "vllm": (2048, 2048, 2, 2**31), "sglang": (2**15 - 1, 1024, 1, 1)}


def _ranks(gpu: Gpu, models: Measured, rows: pd.DataFrame) -> np.ndarray:
    """Return how many pairs of equal scores the busiest SM compares, of blocks that select compressed entries.

    The benchmarks' weights are made up so that all scores are equal: every entry of a token could be its last, and the
    kernels rank all of them in pairs. Trained weights leave a few. (AIConfigurator subtracts what SGLang's selection
    takes longer for it, ``dsv4_csa_topk_calib``; other engines' was not measured.)
    """
    ranks = np.zeros(len(rows))
    most, cap, least_new, most_new = _RANKED[rows["framework"].iloc[0]]
    tokens, context = (rows[name].to_numpy() for name in ("tokens", "context"))
    prompts = (rows["operator"] == "prefill block").to_numpy()
    for (name, block), part in rows.reset_index(drop=True).groupby(["model", "block"]):
        if block != "dsv4_csa":
            continue
        attention, at = models[name, block][1].attention, part.index.to_numpy()
        past, new = context[at], tokens[at]
        low, high = (np.clip(edge / attention.ratio, attention.indexer.selected, most) for edge in (past, past + new))
        # Sum of the squares over the entries from low to high, `ratio` tokens each, those beyond the cap alike.
        squares = [np.minimum(edge, cap) ** 3 / 3 + np.maximum(edge - cap, 0) * cap**2 for edge in (low, high)]
        each = attention.ratio * (squares[1] - squares[0]) / new
        counts = part["requests"].to_numpy() * new
        fits = (new >= least_new) & (new <= most_new) & ~(prompts[at] & (most_new == 1))
        ranks[at] = np.where(fits, np.ceil(counts / gpu.sms) * each, 0.0)
    return ranks


#: Operation of the law of attention by phase.
_ATTENTION_OF = {"prefill block": "attention", "decode block": "decode attention"}


def _parts(gpu: Gpu, models: Measured, rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the kernels of the blocks that share everything but lengths; ``block`` is the place of a kernel's block."""
    engine = rows["framework"].iloc[0]
    decoding = rows["operator"].iloc[0] == "decode block"
    shared = ["model", "block", "group", "cache", "selects", "heads"]
    for (name, kind, gemm, cache, selects, heads), part in rows.groupby(shared, sort=True):
        model, group = models[name, kind]
        requests, new, past = (part[size].to_numpy() for size in ("requests", "tokens", "context"))
        work = decode(past, requests) if decoding else prefill(new + past, requests, past)
        layers, precision = block_of(group, int(heads), bool(selects)), precision_of(gemm, cache)
        kernels = attention_kernels(model, layers, work, precision, fusions_of(gpu, engine))
        kernels = kernels[~kernels["kernel"].isin(LEFT_OUT.get((engine, kind), ()))]
        narrow = (kernels["precision"] == "fp4") & ("fp4" not in gpu.precisions)
        kernels = kernels.assign(precision=kernels["precision"].astype(str).mask(narrow, "bf16"))
        constants = KernelConstants(engine, weights_in_turn=_ONE_LAYER)
        kernels = kernel_times(kernels.reset_index(drop=True), gpu, constants)
        peaks = {one: gpu.peak_flop_per_s(one) for one in kernels["precision"].unique()}
        # One kind of kernel of attention, few tokens behind a long context included.
        names = kernels["kernel"].astype(str)
        if not decoding:
            names = names.replace({"decode_sparse_attention": "sparse_attention"})
        block = part.index.to_numpy()[kernels["shape"].to_numpy()]
        yield kernels.assign(block=block, kernel=names, peak=kernels["precision"].map(peaks).astype(float))


@dataclass(frozen=True)
class BlockConstants(sparse_law.SparseConstants):
    """Constants of the attention in blocks, and of the blocks themselves."""

    #: What a block takes besides the kernels that are predicted (s): conversions, copies and fills of its engine; per
    #: new token; and per cached one.
    besides_s: float = 0.0
    token_s: float = 0.0
    cached_s: float = 0.0
    rank_s: float = 0.0  # a comparison of two equal scores (s)


#: The attention's own launch (s), as that of the other kernels: what else does not grow is a block's.
_LAUNCH_S = 4e-6
#: Bounds of what blocks take besides, where fits start, and where a token takes its own time: prompts.
_BESIDES = {"besides_s": (1e-7, 3e-4), "token_s": (1e-11, 3e-7), "cached_s": (1e-13, 1e-8), "rank_s": (1e-12, 1e-9)}
_BEGIN = {"besides_s": 2e-5, "token_s": 1e-8, "cached_s": 1e-10, "rank_s": 3e-11}


def fit_blocks(gpu: Gpu, blocks: PredictedBlocks, measured_s: np.ndarray) -> BlockConstants:
    """Fit what the kernels' constants do not say of blocks with one kernel of attention.

    Its attention is fitted where enough blocks attend to selected keys and the host does not hide them.
    """
    shipped = block_times(gpu, blocks)
    hosts = fit_hosts(shipped, measured_s, blocks.launched)
    # By what is predicted: of what was measured, the host's slow calls would be chosen.
    shown = shipped > _BEYOND_HOST * least_times(blocks, hosts)
    sparse = shown & blocks.sparse
    fits_attention = sparse.sum() >= LEAST_SHAPES
    names = ["besides_s"]
    if blocks.operation == "attention":
        names += ["token_s", "cached_s"]
    if blocks.ranks.any():
        names += ["rank_s"]
    bounds = {name: _BESIDES[name] for name in names}
    begin = BlockConstants(_LAUNCH_S, 0.0, 0.0, **{name: _BEGIN[name] for name in names})
    starts = [begin]
    if fits_attention:
        bounds |= {name: of for name, of in sparse_law.bounds_of(blocks.operation).items() if name != "launch_s"}
        starts = [replace(begin, **_own(start)) for start in sparse_law.starts(blocks.operation)]
    if shown.sum() < LEAST_SHAPES:
        return BlockConstants(_LAUNCH_S, 0.0, 0.0)

    def fitted(start: BlockConstants, count: int) -> tuple[float, BlockConstants]:
        part = np.zeros(len(measured_s), dtype=bool)
        part[np.flatnonzero(shown)[:: max(1, shown.sum() // count)]] = True
        few, measured = blocks.at(part), measured_s[part]
        found = fit_law(lambda tried: block_times(gpu, few, tried), start, bounds, measured)
        return round(float(np.abs(np.log(block_times(gpu, few, found) / measured)).mean()), 6), found

    best = min((fitted(start, CHOICE_BLOCKS) for start in starts), key=lambda pair: pair[0])[1]
    return replace(fitted(best, FIT_BLOCKS)[1], source=f"fitted to {len(measured_s)} measured attention blocks")


def attention_constants(constants: BlockConstants) -> sparse_law.SparseConstants:
    """Return those of the attention alone."""
    own = {f.name: getattr(constants, f.name) for f in fields(sparse_law.SparseConstants)}
    return sparse_law.SparseConstants(**own)


def _own(start: sparse_law.SparseConstants) -> dict:
    return {f.name: getattr(start, f.name) for f in fields(start) if f.name not in ("launch_s", "source")}


def block_times(gpu: Gpu, blocks: PredictedBlocks, constants: BlockConstants | None = None) -> np.ndarray:
    """Return the times of the blocks' kernels (s): with these constants, or those that come with the checkout."""
    if constants is None:
        return blocks.rest_s + blocks.attention_s
    times = blocks.rest_s + constants.besides_s + constants.token_s * blocks.tokens + constants.cached_s * blocks.cached
    times = times + constants.rank_s * blocks.ranks
    if constants.tensor_share and blocks.sparse.any():
        own = sparse_law.sparse_terms(gpu, constants, blocks.shapes, blocks.operation)["time_s"]
        times[blocks.sparse] += own
    else:
        times += blocks.attention_s
    return times


def fit_hosts(kernels_s: np.ndarray, measured_s: np.ndarray, launched: np.ndarray) -> dict[str, float]:
    """Return the least time that the host takes for a block (s, three digits), by group of those that it launches.

    Parameters
    ----------
    kernels_s, measured_s : arrays
        Of the blocks' kernels, and of the blocks.
    launched : array of str
        As in :class:`PredictedBlocks`.
    """
    hosts = {}
    for group in sorted(set(launched) - {""}):
        kernels, measured = kernels_s[launched == group], measured_s[launched == group]
        tried = np.unique([float(f"{value:.3g}") for value in np.quantile(measured, np.linspace(0, 1, 201))])
        errors = [round(float(np.abs(np.log(np.maximum(kernels, least) / measured)).mean()), 6) for least in tried]
        hosts[group] = float(tried[int(np.argmin(errors))])
    return hosts


def least_times(blocks: PredictedBlocks, hosts: Mapping[str, float]) -> np.ndarray:
    """Return the least times of blocks (s) that the host allows."""
    return np.array([hosts.get(group, 0.0) for group in blocks.launched])
