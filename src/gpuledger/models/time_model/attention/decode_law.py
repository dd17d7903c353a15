"""Time of fused attention kernels for one new token of each request, or a few, in parts of the KV cache.

Blocks walk over a part of a sequence's cache:

    launch + ‖ work of an SM, longest block; bytes from DRAM and L2; compute ‖ + combine (more than one part)
    block = (block_s + row_s · query rows, + several_s with several heads), in part proportional to the head dimension,
            + steps of 64 tokens · (step_s + cache bytes of a step / rate of an SM)

‖ ‖ is the 4-norm. What differs between kernels beyond their constants is discrete: whether the query heads of a KV
head share a block (`packing`), how many fit one (`query_tile`), and how a cache is split (`pattern`, see
:mod:`gpuledger.models.time_model.attention.decode_splits`).

TensorRT-LLM has two decode kernels under one name. XQA packs the 2 to 32 heads that share a KV head and computes with
matrix units on padded rows. It runs where a quarter of the SMs has a block, and wherever the cache alone is in 8 bits.
Its parts follow from the whole context, even where a window hides most of it, except in Hopper's kernel for an 8-bit
cache, whose parts are no more than the tiles in the window. One block merges the parts of its sequence. On an L40S with
an 8-bit cache the times say that nothing is split (``whole``); no rule was found for that. All else is computed by a
kernel for single heads without matrix units, which has a launch, a rate and a combination of its own (``single_``). It
is split until each SM has a block, into parts of at least one round of 1,024 threads. FlashInfer and SGLang's Triton
backend have such a second kernel, too. TensorRT-LLM's kernels of latent attention before and after Hopper have a law of
their own, :mod:`gpuledger.models.time_model.attention.decode_latent`.

What host code does not say (which terms grow with the head dimension, which kernels wait longer for DRAM than for L2,
and the numbers below) was chosen by residuals of the fitting halves of an A100, an L40S, an H100 and a B200, some also
of an H200 or a GB200, held-back errors in sight; an RTX PRO 6000 took no part. That blocks of Triton's kernels hide
latency, which was chosen by a B200, an H100 and an L40S, it confirms (12.7, 12.1 and, with the segments' tiles, 10.5 to
10.7, 7.9 and 7.8 %).

Sources: T. Dao, FlashAttention-2, 2023 (packed heads only for one token and without a window); T. Dao et al.,
Flash-Decoding, 2023 (parts of a sequence, combined by a second kernel).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger.models.time_model.attention import decode_latent, decode_splits
from gpuledger.models.time_model.constants.fit_law import with_own
from gpuledger.models.time_model.gemms.tiles import WARP_GROUP, generation_of
from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu

#: Which query heads of a KV head share a block. "enough blocks": TensorRT-LLM's rule; "whole": XQA splits nothing.
PACKING = ("never", "one token", "no window", "up to 32", "always", "enough blocks", "enough blocks, whole")

_PARTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128], dtype=float)[:, None]
_XQA_MERGED = 26  # bytes that the block that merges XQA's parts takes in in a cycle (by an H100, an A100 and an L40S)
# Rows of queries that Hopper's XQA pads a block to, and values of them up to which an SM runs two blocks.
_XQA_PADDED, _XQA_ROWS = 8, 2048
# In FlashAttention-4, a block goes through the list of requests to find its own: time per request (s).
_SEARCH_S = 1e-8
# FlashAttention-3 as vLLM calls it, and the patterns with the best number of parts, one tile more for a window's edge.
_ORDERED = "flash 3 ordered"
_FREE = ("best", "flash 3", _ORDERED)
# Triton kernels, of which an SM runs several blocks.
_TRITON = ("splits", "segments")
# SGLang writes keys of 192 and values of 128 dimensions into the cache by kernels of their own (s).
UNEQUAL_DIM, UNEQUAL_S = 160, 6e-6
_DECODE_SHARE = 0.6  # share of the peak
# Of latent attention: rows that warp groups multiply at a time (wgmma's), and the share of the peak that they reach, as
# in `decode_latent`.
_ROWS, _LATENT_SHARE = 64, 0.9


@dataclass(frozen=True)
class DecodeConstants:
    """Constants of one decode kernel on one GPU."""

    launch_s: float  # least time (s)
    block_s: float  # what a block takes beside reading its part of the cache, for a head dimension of 128 (s)
    cache_bytes_per_clock: float  # bytes of the cache that an SM takes in in a cycle
    dram_share: float  # share of the data sheet's DRAM bandwidth
    combine_s: float  # the kernel that combines the parts of a sequence (s)
    #: How much longer that is in a block with several query heads: rows of queries are padded to a matrix tile (s).
    #: With the pattern "whole", how much longer a step takes next to a block of the other SM of a pair; with "splits"
    #: and "segments", what is left of `step_s` where an SM has other blocks.
    several_s: float
    row_s: float  # what each query row of a block adds: its query in, its result out (s)
    packing: str = "always"  # one of `PACKING`
    query_tile: int = 64  # query heads that fit one block
    pattern: str = "best"  # how a cache is split: one of `decode_splits.PATTERNS`
    step_s: float = 0.0  # latency (s) of one step of 64 tokens (with the pattern "latent", 128), whatever its bytes
    #: Where a block of its own combines the parts of a query head: what each part takes (s); `combine_s` is then the
    #: block's. With the pattern "whole", how much longer a step takes with two blocks on an SM. In FlashAttention-3
    #: that was ordered to split, what its second kernel takes for a query row, whether in parts or not.
    split_s: float = 0.0
    #: Bytes moved per value of the cache to widen it before (0: the kernel reads it as it is).
    conversion_bytes: float = 0.0
    #: Of a kernel for single heads: how much longer it takes at least (s), its `cache_bytes_per_clock` and its
    #: `combine_s`; 0 where there is no such kernel. The first is also what FlashAttention-2's copies of queries and
    #: results take, how much later a kernel of TensorRT-LLM starts that has no version for Hopper, and how much longer
    #: a block of FlashAttention-3 takes that was ordered to split.
    single_s: float = 0.0
    single_bytes_per_clock: float = 0.0
    single_combine_s: float = 0.0
    source: str = field(default="", compare=False)  # what they were fitted to


#: Where fits start, and the bounds within which a constant has its meaning.
START = DecodeConstants(6e-6, 2e-6, 10.0, 0.8, 2e-6, 1e-6, 1e-7, step_s=1e-7)
RANGES = {
    "launch_s": (1e-6, 5e-4),
    "block_s": (1e-8, 1e-4),
    "cache_bytes_per_clock": (0.5, 200.0),
    "dram_share": (0.1, 1.0),
    "combine_s": (1e-8, 1e-4),
    "several_s": (1e-9, 1e-4),
    "row_s": (1e-10, 1e-5),
    "step_s": (1e-10, 1e-5),
}
# Start and bounds of what only some kernels have.
_SINGLE = {
    "single_s": (2e-6, 1e-8, 5e-5),
    "single_bytes_per_clock": (10.0, 0.5, 200.0),
    "single_combine_s": (4e-6, 1e-8, 1e-4),
}
_MERGED = {"split_s": (1e-7, 1e-10, 1e-5)}
_HIDDEN = {"several_s": (1e-8, *RANGES["several_s"])}
_LATENT = {"split_s": (1e-10, 1e-5), "cache_bytes_per_clock": (0.5, 1000.0)}
_EXTRA = {
    _ORDERED: _MERGED | {"single_s": _SINGLE["single_s"]},
    "tiles": {"single_s": _SINGLE["single_s"]},
    "flashinfer": _SINGLE,
    "segments": _MERGED | _HIDDEN,
    "splits": _MERGED | _HIDDEN | {name: _SINGLE[name] for name in ("single_s", "single_bytes_per_clock")},
    "splits per SM": _MERGED,
    "widened": {"conversion_bytes": (6.0, 1.0, 30.0)},
}


def started(constants: DecodeConstants) -> tuple[DecodeConstants, dict[str, tuple[float, float]]]:
    """Return where a fit starts, and the bounds of all constants that such a kernel has."""
    if constants.pattern in decode_latent.STARTS:
        values = decode_latent.STARTS[constants.pattern]
        start = replace(constants, **dict.fromkeys(RANGES, 0.0))
        bounds = {name: (RANGES | _LATENT)[name] for name in values}
        return replace(start, packing="always", **values), bounds
    own = _SINGLE if _ruled(constants) else _EXTRA.get(constants.pattern, {})
    return with_own(constants, RANGES, own)


def decode_terms(gpu: Gpu, constants: DecodeConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of attention of one new token of each request, or of a few.

    The result has ``time_s`` and the terms ``launch_s, block_s, compute_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        As for :func:`gpuledger.models.time_model.attention.prefill_law.prefill_terms`. Several tokens of a request
        share the blocks that read its cache.
    """
    s, c = shapes, constants
    if c.pattern in decode_latent.STARTS:
        return decode_latent.latent_terms(gpu, c, s)
    tokens, context = s["tokens"], s["context"] + s["tokens"]
    seen = np.minimum(context, np.where(s["window"] > 0, s["window"] + tokens - 1, np.inf))
    packed = np.minimum(packed_heads(c.packing, s, gpu), c.query_tile)
    rereads = np.ceil(packed * tokens / c.query_tile)
    blocks = s["requests"] * s["heads"] / packed * rereads
    tile = decode_splits.tile_of(c.pattern, s)
    ruled = _ruled(c)
    xqa = decode_splits.xqa(gpu, s) & ruled
    hopper = decode_splits.hopper_xqa(gpu, s) & ruled
    single = ~xqa & ruled | decode_splits.single_heads(c.pattern, s)
    # TensorRT-LLM's kernels compute on powers of two.
    padded = 2 ** np.ceil(np.log2(s["head_dim"])) if ruled else s["head_dim"]
    tile = np.where(single & ruled, decode_splits.SINGLE_STEP / padded, tile)
    # The edge of a window lies within one more tile.
    steps = np.ceil(seen / tile) + (context > seen) * (c.pattern in _FREE)
    if ruled:
        split = 1 if c.packing.endswith("whole") else decode_splits.xqa_parts(gpu, s)
        parts = np.where(single, decode_splits.single_parts(gpu, s), split)[None]
    else:
        parts = decode_splits.parts_of(c.pattern, gpu, s, blocks)
        parts = _PARTS if parts is None else parts[None]
    # A segment is of the whole context; parts beyond a window hold nothing.
    part_steps = np.minimum(np.ceil((np.ceil(context / tile) if c.pattern == "segments" else steps) / parts), steps)
    busy = np.minimum(parts, steps / part_steps if parts is not _PARTS and not ruled else steps)
    value_bytes = s["value_bytes"] if c.pattern == "widened" else s["cache_bytes"]
    values = s["cache_values"] / s["kv_heads"] * value_bytes
    rate = np.where(single, c.single_bytes_per_clock, c.cache_bytes_per_clock) * gpu.clock_hz
    # TensorRT-LLM's kernel for single heads takes as long for a quarter of a step as for a whole one.
    held = np.where(single & ruled & (4 * seen >= tile), tile, np.minimum(tile, seen))
    part_s = part_steps * (c.step_s + values * padded / s["head_dim"] * held / rate)
    several_s = c.several_s * ((packed > 1) & (ruled | ~single)) * (c.pattern not in _TRITON)
    # TensorRT-LLM's older kernels start alike for all head dimensions, and FlashAttention-2's tiles are as large for
    # all.
    share = np.where(hopper, 0.5, 0.25 if ruled else 0.0 if c.pattern == "tiles" else 0.5)
    fixed_s = c.block_s + c.row_s * np.minimum(packed * tokens, c.query_tile) + several_s
    fixed_s = fixed_s * (1 - share + share * padded / 128)
    launched = decode_splits.launched_of(c.pattern, gpu) or parts
    alone = _XQA_PADDED * np.ceil(packed / _XQA_PADDED) * s["head_dim"] > _XQA_ROWS
    crowded = np.where(hopper & alone, 2, 1)
    # Other blocks of an SM hide some of a step's latency.
    hidden_s = part_steps * np.maximum(c.step_s - c.several_s, 0) if c.pattern in _TRITON else 0.0
    work_s = crowded * blocks * (launched * fixed_s + busy * (part_s - hidden_s))
    once = s["requests"] * s["kv_heads"] * seen * values
    # A load waits twice as long for DRAM as for L2; where many blocks wait at a time, that does not matter.
    waits = c.pattern in (*_FREE, "splits") and not c.packing.endswith("whole")
    late = 1 + l2_of(gpu).cold_share(once) * waits
    block_s = norm(work_s / gpu.sms, fixed_s + late * part_s)
    queries = s["heads"] * tokens
    once = once + s["requests"] * 2 * queries * s["head_dim"] * s["value_bytes"]
    # Latent attention, whose keys and values are the same bytes; elsewhere few queries share a cache.
    latent = s["cache_values"] < 2 * s["head_dim"] * s["kv_heads"]
    whole = latent & (generation_of(gpu) is WARP_GROUP)
    rows = np.where(whole, _ROWS * np.ceil(queries / _ROWS), queries)
    share = np.where(whole, _LATENT_SHARE, _DECODE_SHARE)
    compute_s = s["requests"] * rows * 4 * s["head_dim"] * seen / (share * s["peak"])
    # What blocks share comes from L2 again, except of heads that do not fit one block: pairs of blocks share loads,
    # but not SGLang's. The rate of TensorRT-LLM's kernel for single heads holds that.
    pairs = 1 if c.query_tile < 64 else np.ceil(packed_heads(c.packing, s, gpu) / c.query_tile)
    used = np.where(single & ruled, once, blocks / pairs * seen * values)
    dram_s = _memory_s(gpu, c.dram_share, once, np.maximum(once, used))
    # Partial results are float32, written and read once.
    written = busy if c.pattern == "segments" else parts
    partial_s = written * s["requests"] * queries * s["head_dim"] * 8 / l2_of(gpu).bytes_per_s
    if c.pattern in ("splits", "splits per SM", "segments"):
        merge_s = c.combine_s + c.split_s * busy
        merge_s = norm(merge_s, s["requests"] * queries * merge_s / gpu.sms)
        partial_s = partial_s * (parts > 1) + merge_s * ((parts > 1) | (c.pattern != "segments"))
    else:
        merge_s = xqa * parts * packed * s["head_dim"] * 4 / (_XQA_MERGED * gpu.clock_hz)
        partial_s = (parts > 1) * (np.where(single, c.single_combine_s, c.combine_s) + partial_s + merge_s)
    total = norm(block_s, dram_s, compute_s) + partial_s
    if c.pattern == _ORDERED:
        combined_s = blocks * c.single_s + s["requests"] * queries * c.split_s
        total = total + decode_splits.ordered(s) * combined_s / gpu.sms
    if c.pattern == "graph":
        searching = blocks * parts + (parts > 1) * s["requests"] * queries * s["head_dim"] / 128
        total = total + searching * s["requests"] * _SEARCH_S / gpu.sms
    if c.conversion_bytes:
        converted = c.conversion_bytes * s["requests"] * seen * s["cache_values"]
        total = total + converted / (c.dram_share * gpu.dram_bytes_per_s)
    if parts is _PARTS:
        total = np.where((parts == 1) | ((steps >= parts) & (blocks * parts <= 4 * gpu.sms)), total, np.inf)
    best = total.argmin(axis=0), np.arange(total.shape[1])
    later = single | decode_splits.copies(c.pattern, s, packed) | hopper & (s["head_dim"] <= 64)
    unequal_s = UNEQUAL_S * (s["head_dim"] == UNEQUAL_DIM) * (c.pattern in ("splits", "flash 3"))
    launch_s = c.launch_s + c.single_s * later + unequal_s
    terms = {"launch_s": launch_s, "block_s": block_s[best], "compute_s": compute_s, "dram_s": dram_s}
    return {"time_s": launch_s + total[best], **terms}


def _ruled(constants: DecodeConstants) -> bool:
    """Whether the kernel has TensorRT-LLM's rules."""
    return constants.packing.startswith("enough")


def packed_heads(packing: str, shapes: Mapping[str, np.ndarray], gpu: Gpu) -> np.ndarray:
    """Return the query heads that share a block, of each launch."""
    group = shapes["heads"] / shapes["kv_heads"]
    shared = {
        "never": group < 0,
        "one token": shapes["tokens"] == 1,
        "no window": shapes["window"] == 0,
        "up to 32": group <= 32,
        "always": group > 0,
        "enough blocks": decode_splits.xqa(gpu, shapes),
    }[packing.removesuffix(", whole")]
    return np.where(shared, group, 1.0)


def _memory_s(gpu: Gpu, dram_share: float, once: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Time of bytes that come from DRAM as far as L2 does not keep them, and of all that is used out of L2."""
    l2 = l2_of(gpu)
    cold = once * l2.cold_share(once)
    return cold / (dram_share * gpu.dram_bytes_per_s) + (used - cold) / l2.bytes_per_s
