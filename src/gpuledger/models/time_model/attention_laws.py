"""Time of fused attention kernels: prefill in tiles of queries, decode in parts of the KV cache.

Prefill, for blocks that hold `query_tile` rows of scores and walk over tiles of keys:

    launch + ‖ work of an SM, longest block ‖ + bytes of q, k, v, o and the cache's copy / bandwidth
    block = block_s + key tiles · ‖ two products at the tensor rate, exponentials at the special units' rate ‖

Decode, for blocks that walk over a part of a sequence's cache, over the best number of parts:

    launch + ‖ work of an SM, longest block; bytes from DRAM and L2; compute ‖ + combine (more than one part)
    block = (block_s + row_s · query rows, + several_s with several heads) · (1 + head_dim / 128) / 2
            + cache bytes of the part / rate of an SM

‖ ‖ is the 4-norm. What differs between kernels beyond their constants is discrete: whether the query heads of a KV
head share a block (`packing`), and the rows of a block (`query_tile`).

TensorRT-LLM has two decode kernels under one name, and rules instead of the best number of parts
(``decoderXQARunner.cpp``, ``decoderXQAImplJIT/kernelUtils.cpp`` and ``decoderMaskedMultiheadAttentionLaunch.h`` in
``cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention``, ``mha_sm90.cu`` in ``cpp/kernels/xqa``):

* XQA packs the 2 to 32 heads that share a KV head and computes with matrix units on padded rows. It runs where a
  quarter of the SMs has a block, and wherever the cache alone is in 8 bits. Its parts follow from the whole context,
  even where a window hides most of it, except in Hopper's kernel for an 8-bit cache, which counts tiles in the window.
  One block merges the parts of its sequence. On an L40S with an 8-bit cache the times say that nothing is split
  (``whole``); no rule was found for that.
* All else is computed by a kernel for single heads without matrix units, which has a launch, a rate and a combination
  of its own (``single_``). It is split until each SM has a block, into parts of at least one round of 1,024 threads.

Sources: T. Dao, FlashAttention-2, 2023 (tiles, one block per head and query tile; packed heads only for one token and
without a window); J. Shah et al., FlashAttention-3, 2024, Sec. 3.2 (exponentials bound small head dimensions); T. Dao
et al., Flash-Decoding, 2023 (parts of a sequence, combined by a second kernel).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpuledger.models.time_model.l2 import l2_of
from gpuledger.readers.gpus import Gpu

#: Which query heads of a KV head share a block. "enough blocks": TensorRT-LLM's rule; "whole": XQA splits nothing.
PACKING = ("never", "one token", "no window", "up to 32", "always", "enough blocks", "enough blocks, whole")

_KEYS = 128  # keys of a step in prefill
_PART = 64  # tokens of a step in decode
_GROUP = 64  # query heads that fit one block in decode
_PARTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128], dtype=float)[:, None]
# XQA: heads and tokens of a part, blocks of an SM from which there is enough work, and at most; parts of all requests;
# bytes that the block that merges the parts takes in in a cycle (chosen by an H100, an A100 and an L40S).
_XQA_HEADS, _XQA_PART, _XQA_LEAST, _XQA_MOST, _XQA_PARTS, _XQA_MERGED = 32, 128, 0.25, 8, 6000, 26
# Hopper's XQA for an 8-bit cache: tokens of a tile, and tiles of a part.
_HOPPER_TILE, _HOPPER_TILES = 64, 2
_SINGLE_ROUND = 65536  # values of keys that 1,024 threads of the kernel for single heads read in one round
_DECODE_SHARE = 0.6  # share of the peak where many heads read one cache (MLA)


@dataclass(frozen=True)
class PrefillConstants:
    """Constants of one prefill kernel on one GPU.

    Attributes
    ----------
    launch_s : float
        Least time (s), with the kernel that writes the cache.
    block_s : float
        What a block takes beside its key tiles (s).
    tensor_share : float
        Share of the data sheet's dense peak.
    exp_per_clock : float
        Exponentials that an SM computes in a cycle.
    dram_share : float
        Share of the data sheet's DRAM bandwidth.
    packing : str
        One of `PACKING`.
    query_tile : int
        Rows of scores of a block.
    source : str
        What they were fitted to.
    """

    launch_s: float
    block_s: float
    tensor_share: float
    exp_per_clock: float
    dram_share: float
    packing: str = "never"
    query_tile: int = 128
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class DecodeConstants:
    """Constants of one decode kernel on one GPU.

    Attributes
    ----------
    launch_s : float
        Least time (s).
    block_s : float
        What a block takes beside reading its part of the cache, for a head dimension of 128 (s).
    cache_bytes_per_clock : float
        Bytes of the cache that an SM takes in in a cycle.
    dram_share : float
        Share of the data sheet's DRAM bandwidth.
    combine_s : float
        The kernel that combines the parts of a sequence (s).
    several_s : float
        How much longer that is in a block with several query heads: rows of queries are padded to a matrix tile (s).
    row_s : float
        What each query row of a block adds: its query in, its result out (s).
    packing : str
        One of `PACKING`.
    single_s, single_bytes_per_clock, single_combine_s : float
        Of TensorRT-LLM's kernel for single heads: how much longer it takes at least (s), its `cache_bytes_per_clock`
        and its `combine_s`; 0 where there is no such kernel.
    source : str
        What they were fitted to.
    """

    launch_s: float
    block_s: float
    cache_bytes_per_clock: float
    dram_share: float
    combine_s: float
    several_s: float
    row_s: float
    packing: str = "always"
    single_s: float = 0.0
    single_bytes_per_clock: float = 0.0
    single_combine_s: float = 0.0
    source: str = field(default="", compare=False)


#: Where fits start, and the bounds within which a constant has its meaning.
PREFILL_START = PrefillConstants(8e-6, 1e-6, 0.7, 16.0, 0.7)
PREFILL_BOUNDS = {
    "launch_s": (1e-6, 5e-4),
    "block_s": (1e-8, 1e-4),
    "tensor_share": (0.05, 1.0),
    "exp_per_clock": (1.0, 256.0),
    "dram_share": (0.05, 1.0),
}
DECODE_START = DecodeConstants(6e-6, 2e-6, 10.0, 0.8, 2e-6, 1e-6, 1e-7)
DECODE_BOUNDS = {
    "launch_s": (1e-6, 5e-4),
    "block_s": (1e-8, 1e-4),
    "cache_bytes_per_clock": (0.5, 200.0),
    "dram_share": (0.1, 1.0),
    "combine_s": (1e-8, 1e-4),
    "several_s": (1e-9, 1e-4),
    "row_s": (1e-10, 1e-5),
}
#: The same of the kernel for single heads, where `packing` says that there is one.
SINGLE_START = {"single_s": 2e-6, "single_bytes_per_clock": 10.0, "single_combine_s": 4e-6}
SINGLE_BOUNDS = {"single_s": (1e-8, 5e-5), "single_bytes_per_clock": (0.5, 200.0), "single_combine_s": (1e-8, 1e-4)}


def prefill_terms(gpu: Gpu, constants: PrefillConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of causal attention over whole prompts.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests``; ``tokens`` (new, of each); ``context`` (tokens before them); ``heads``, ``kv_heads``;
        ``head_dim`` (mean of keys' and values'); ``cache_values``, the elements that the cache holds of a token, of all
        KV heads; ``copied_values``, those of them that the kernel also copies there of a new token (default: all);
        ``window`` (0: none); ``value_bytes`` and ``cache_bytes``, of an element of q, k, v and of the cache;
        ``peak``, the matrix units' rate (FLOP/s).

    Returns
    -------
    dict of str to ndarray
        ``time_s`` and the terms ``launch_s, compute_s, block_s, dram_s``.
    """
    s, c = shapes, constants
    tile_flop_s = 4 * c.query_tile * _KEYS * s["head_dim"] * gpu.sms / (c.tensor_share * s["peak"])
    tile_s = _norm(tile_flop_s, c.query_tile * _KEYS / (c.exp_per_clock * gpu.clock_hz))
    packed = _packed(c.packing, s, gpu)
    tokens = np.maximum(1, np.floor(c.query_tile / packed))
    heads = s["requests"] * s["heads"] / packed * np.ceil(packed / c.query_tile)
    tiles = np.ceil(s["tokens"] / tokens)
    seen = s["context"] + s["tokens"]
    longest = np.minimum(seen, np.where(s["window"] > 0, s["window"] + tokens, np.inf))
    # Query tiles up to the window see more and more keys, the others as many as the window holds.
    ramp = np.clip(np.ceil((longest - s["context"]) / tokens), 0, tiles)
    growing = ramp * np.maximum((s["context"] + (ramp + 1) / 2 * tokens) / _KEYS, 1)
    steps = np.maximum(growing + (tiles - ramp) * np.ceil(longest / _KEYS), tiles)
    compute_s, block_s = heads * steps * tile_s / gpu.sms, heads * tiles * c.block_s / gpu.sms
    one_s = c.block_s + np.ceil(longest / _KEYS) * tile_s
    moved = s["requests"] * s["tokens"] * 2 * s["head_dim"] * (s["heads"] + s["kv_heads"]) * s["value_bytes"]
    # Another kernel copies the new keys and values into the cache.
    copied = s.get("copied_values", s["cache_values"]) * (s["value_bytes"] + s["cache_bytes"])
    moved = moved + s["requests"] * s["tokens"] * copied
    moved = moved + s["requests"] * s["context"] * s["cache_values"] * s["cache_bytes"]
    dram_s = _memory_s(gpu, c.dram_share, moved, moved)
    launch_s = np.full(len(dram_s), c.launch_s)
    time_s = launch_s + _norm(compute_s + block_s, one_s) + dram_s
    return {"time_s": time_s, "launch_s": launch_s, "compute_s": compute_s, "block_s": block_s, "dram_s": dram_s}


def decode_terms(gpu: Gpu, constants: DecodeConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of attention of one new token of each request, or of a few.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        As for :func:`prefill_terms`. Several tokens of a request share the blocks that read its cache.

    Returns
    -------
    dict of str to ndarray
        ``time_s`` and the terms ``launch_s, block_s, compute_s, dram_s``.
    """
    s, c = shapes, constants
    tokens, seen = s["tokens"], s["context"] + s["tokens"]
    seen = np.minimum(seen, np.where(s["window"] > 0, s["window"] + tokens - 1, np.inf))
    packed = _packed(c.packing, s, gpu)
    rereads = np.ceil(packed * tokens / _GROUP)
    heads = s["requests"] * s["heads"] / packed * rereads
    steps = np.ceil(seen / _PART)
    values = s["cache_values"] / s["kv_heads"] * s["cache_bytes"]
    rows_s = c.row_s * np.minimum(packed * tokens, _GROUP) + c.several_s * (packed > 1)
    fixed_s = (c.block_s + rows_s) * (1 + s["head_dim"] / 128) / 2
    ruled = c.packing.startswith("enough")
    xqa = _xqa(gpu, s) & ruled
    single = ~xqa & ruled
    rate = np.where(single, c.single_bytes_per_clock, c.cache_bytes_per_clock)
    combine_s = np.where(single, c.single_combine_s, c.combine_s)
    step_s = values * np.minimum(_PART, seen) / (rate * gpu.clock_hz)
    part_s = np.ceil(steps / _PARTS) * step_s
    # Parts beyond the window hold nothing.
    work_s = heads * (_PARTS * fixed_s + np.minimum(_PARTS, steps) * part_s)
    block_s = _norm(work_s / gpu.sms, fixed_s + part_s)
    queries = s["heads"] * tokens
    once = s["requests"] * (s["kv_heads"] * seen * values + 2 * queries * s["head_dim"] * s["value_bytes"])
    compute_s = s["requests"] * queries * 4 * s["head_dim"] * seen / (_DECODE_SHARE * s["peak"])
    # The query heads of one token that fit no block together read the cache from L2 again; those of several tokens too.
    # The rate of the kernel for single heads holds that.
    again = rereads / np.ceil(packed / _GROUP)
    used = np.where(single, once, s["requests"] * s["heads"] / packed * again * seen * values)
    dram_s = _memory_s(gpu, c.dram_share, once, np.maximum(once, used))
    # Partial results are float32, written and read once.
    partial_s = _PARTS * s["requests"] * queries * s["head_dim"] * 8 / l2_of(gpu).bytes_per_s
    merge_s = xqa * _PARTS * packed * s["head_dim"] * 4 / (_XQA_MERGED * gpu.clock_hz)
    total = _norm(block_s, dram_s, compute_s) + np.where(_PARTS > 1, combine_s + partial_s + merge_s, 0)
    allowed = (_PARTS == 1) | ((steps >= _PARTS) & (heads * _PARTS <= 4 * gpu.sms))
    if ruled:
        parts = np.where(single, _single_parts(gpu, s), 1 if c.packing.endswith("whole") else _xqa_parts(gpu, s))
        nearest = np.abs(np.log(_PARTS / parts)).argmin(axis=0)
        allowed = np.arange(len(_PARTS))[:, None] == nearest
    total = np.where(allowed, total, np.inf)
    best = total.argmin(axis=0), np.arange(total.shape[1])
    launch_s = c.launch_s + np.where(single, c.single_s, 0)
    terms = {"launch_s": launch_s, "block_s": block_s[best], "compute_s": compute_s, "dram_s": dram_s}
    return {"time_s": launch_s + total[best], **terms}


def _packed(packing: str, shapes: Mapping[str, np.ndarray], gpu: Gpu) -> np.ndarray:
    """Query heads that share a block, of each launch."""
    group = shapes["heads"] / shapes["kv_heads"]
    shared = {
        "never": group < 0,
        "one token": shapes["tokens"] == 1,
        "no window": shapes["window"] == 0,
        "up to 32": group <= 32,
        "always": group > 0,
        "enough blocks": _xqa(gpu, shapes),
    }[packing.removesuffix(", whole")]
    return np.where(shared, group, 1.0)


def _xqa(gpu: Gpu, shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether TensorRT-LLM takes its kernel XQA, of each launch."""
    blocks = shapes["requests"] * shapes["kv_heads"] * np.maximum(shapes["context"] // _XQA_PART, 1)
    group = shapes["heads"] / shapes["kv_heads"]
    return (group > 1) & (group <= _XQA_HEADS) & (_narrow(shapes) | (blocks >= _XQA_LEAST * gpu.sms))


def _narrow(shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether the cache has fewer bits than the queries: XQA is preferred then."""
    return shapes["cache_bytes"] < shapes["value_bytes"]


def _xqa_parts(gpu: Gpu, shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Parts of a sequence in XQA, of each launch."""
    parts = np.maximum(shapes["context"] // _XQA_PART, 1)
    parts = np.minimum(parts, np.round(np.sqrt(8 * parts)))
    waves = shapes["requests"] * shapes["kv_heads"] * parts / gpu.sms
    parts = np.floor(parts / np.maximum(waves / _XQA_MOST, 1))
    if gpu.architecture == "hopper":
        seen = np.minimum(shapes["context"] + 1, np.where(shapes["window"] > 0, shapes["window"], np.inf))
        most = np.floor(np.ceil(seen / _HOPPER_TILE) / _HOPPER_TILES)
        parts = np.where(_narrow(shapes), np.minimum(parts, most), parts)
    return np.maximum(np.minimum(parts, _XQA_PARTS // shapes["requests"]), 1)


def _single_parts(gpu: Gpu, shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Parts of a sequence in the kernel for single heads, of each launch."""
    wave = np.ceil(gpu.sms / (shapes["requests"] * shapes["heads"]))
    tokens = _SINGLE_ROUND / 2 ** np.ceil(np.log2(shapes["head_dim"]))
    return np.minimum(wave, np.ceil((shapes["context"] + 1) / tokens))


def _memory_s(gpu: Gpu, dram_share: float, once: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Time of bytes that come from DRAM as far as L2 does not keep them, and of all that is used out of L2."""
    l2 = l2_of(gpu)
    cold = once * l2.cold_share(once)
    return cold / (dram_share * gpu.dram_bytes_per_s) + (used - cold) / l2.bytes_per_s


def _norm(*terms: np.ndarray) -> np.ndarray:
    return sum(term**4 for term in terms) ** 0.25
