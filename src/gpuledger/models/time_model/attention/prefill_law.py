"""Time of fused attention kernels over whole prompts, in tiles of queries that walk over tiles of keys.

    launch + ‖ work of an SM, last block; bytes of q, k, v, o / bandwidth ‖ₚ + copy of keys and values + merge
    last block = late_share · work of an SM before the last head + longest block
    longest block = block_s + key tiles · ‖ two products at the tensor rate, exponentials at the special units' rate ‖

‖ ‖ is the 4-norm, ‖ ‖ₚ the norm with the exponent `overlap`: 1 where a block waits for its queries and results, as in
kernels with one block per SM, up to 4 where other blocks of the SM compute meanwhile. How shapes are cut into tiles is
said by :mod:`gpuledger.models.time_model.attention.prefill_tiles`. Blocks start head by head, and those of a causal
head take from one step to all: where they are more than the SMs hold, the last head's longest block starts late, and
ends after all others. This counts more and more as the blocks of the other heads fill the SMs from once to twice. The
copy into the cache is a kernel with a block per token, or per token and query head.

L2 keeps what a launch reads and writes, each byte counted once: what is moved twice, as the new keys, is not larger.

That the copy has a factor of its own and a time per token, that memory overlaps by a fitted exponent, and that wide
heads have a rate of their own was chosen by residuals of the fitting halves of an A100, an L40S, an H100 and a B200,
not by held-back errors; an RTX PRO 6000 took no part and confirms it (18.0 to 12.2 % in the mean of 15 kernels). That
the blocks of TensorRT-LLM's copy are those of query heads only, none for keys and values, was chosen on the same four,
held-back errors in sight; on an RTX PRO 6000 it and the tiles in fp8 take the errors from 14.5 to 11.4 %. That the
last head starts late was found in PyTorch's kernels on an H100 (of cuDNN's, errors fall from 9.3 to 3.7 %); its form
was chosen on an A100, an H100, an L40S and a B200, held-back errors in sight.

Sources: T. Dao, FlashAttention-2, 2023 (tiles, one block per head and query tile); J. Shah et al., FlashAttention-3,
2024, Sec. 3.2 (exponentials bound small head dimensions).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpuledger.models.time_model.attention import prefill_tiles
from gpuledger.models.time_model.attention.decode_law import UNEQUAL_DIM, UNEQUAL_S, packed_heads
from gpuledger.models.time_model.constants.fit_law import with_own
from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu

_HEAD, _WIDE = 128, 256  # head dimensions above which the rate of the matrix units may differ, and once more


@dataclass(frozen=True)
class PrefillConstants:
    """Constants of one prefill kernel on one GPU."""

    launch_s: float  # least time (s), with the kernel that writes the cache
    block_s: float  # what a block takes beside its key tiles (s)
    tensor_share: float  # share of the data sheet's dense peak
    exp_per_clock: float  # exponentials that an SM computes in a cycle
    dram_share: float  # share of the data sheet's DRAM bandwidth
    packing: str = "never"  # one of :data:`gpuledger.models.time_model.attention.decode_law.PACKING`
    query_tile: int = 128  # rows of scores of a block
    #: What a step over keys takes longer behind a window (s), in a kernel that visits all keys to find those that the
    #: window hides: SGLang's Triton backend. 0: they are skipped.
    step_s: float = 0.0
    #: How shapes are cut: one of :data:`gpuledger.models.time_model.attention.prefill_tiles.PATTERNS`; "fixed" and
    #: "tensorrt" use `packing` and `query_tile`, and so do those of FlashAttention-3.
    pattern: str = "fixed"
    wide_factor: float = 1.0  # rate of the matrix units for heads of 256 dimensions, relative to 128
    #: Rate for heads of 512 dimensions relative to 256, over that of 256 to 128: their results alone fill the tensor
    #: memory of a Blackwell SM.
    widest_factor: float = 1.0
    #: Exponent of the norm of computing and moving q, k, v and o: 1 one after the other, 4 hardly longer than the
    #: longer of both.
    overlap: float = 1.0
    #: What copying new keys and values into the cache takes, relative to its bytes at the full bandwidth. Quantising or
    #: widening them belongs to it.
    copy_factor: float = 1.0
    #: What that kernel takes on an SM for a new token, however short (s); TensorRT-LLM's for each of its query heads.
    row_s: float = 0.0
    #: How much later launches start that FlashAttention-2 copies packed heads for, or that FlashAttention-3 computes by
    #: its kernel for more than 64 rows, or that have a window in SGLang's Triton backend (s); 0 in other kernels.
    single_s: float = 0.0
    #: Of the other heads' work, the share that is done before the last head's longest block starts: 0 where the longest
    #: blocks come first, 1 where they come head by head.
    late_share: float = 0.0
    source: str = field(default="", compare=False)  # what they were fitted to


#: Where fits start, and the bounds within which a constant has its meaning.
START = PrefillConstants(8e-6, 1e-6, 0.7, 16.0, 0.7, overlap=1.5, copy_factor=2.0, row_s=1e-7, late_share=0.5)
RANGES = {
    "launch_s": (1e-6, 5e-4),
    "block_s": (1e-8, 1e-4),
    "tensor_share": (0.01, 1.0),
    "exp_per_clock": (0.1, 256.0),
    "dram_share": (0.05, 1.0),
    "wide_factor": (0.1, 4.0),
    "widest_factor": (0.1, 4.0),
    "overlap": (1.0, 4.0),
    "copy_factor": (0.01, 100.0),
    "row_s": (1e-10, 1e-5),
    "late_share": (0.01, 1.0),
}
# Where what only some kernels have starts, and its bounds.
_EXTRA = {"step_s": (1e-7, 1e-10, 1e-5), "single_s": (2e-6, 1e-8, 5e-5)}


def started(
    constants: PrefillConstants, kernel: str, head_dims: np.ndarray
) -> tuple[PrefillConstants, dict[str, tuple[float, float]]]:
    """Return where a fit starts, and the bounds of all constants that heads of these sizes tell of such a kernel."""
    bounds = dict(RANGES)
    for name, least in (("wide_factor", _HEAD), ("widest_factor", _WIDE)):
        if len(np.unique(np.maximum(head_dims, least))) == 1:
            del bounds[name]
    own = ["step_s"] * (kernel == "triton") + ["single_s"] * (kernel == "triton" or "flash " in constants.pattern)
    return with_own(constants, bounds, {name: _EXTRA[name] for name in own})


def prefill_terms(gpu: Gpu, constants: PrefillConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of causal attention over whole prompts.

    The result has ``time_s`` and the terms ``launch_s, compute_s, block_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests``; ``tokens`` (new, of each); ``context`` (tokens before them); ``heads``, ``kv_heads``;
        ``head_dim`` (mean of keys' and values'); ``cache_values``, the elements that the cache holds of a token, of all
        KV heads; ``copied_values``, those of them that the kernel also copies there of a new token (default: all);
        ``window`` (0: none); ``value_bytes`` and ``cache_bytes``, of an element of q, k, v and of the cache;
        ``peak``, the matrix units' rate (FLOP/s).
    """
    s, c = shapes, constants
    rows, keys, packed, parts = prefill_tiles.tiles_of(c.pattern, gpu, s, packed_heads(c.packing, s, gpu), c.query_tile)
    share = c.tensor_share * c.wide_factor ** np.maximum(np.log2(s["head_dim"] / _HEAD), 0)
    share = share * c.widest_factor ** np.maximum(np.log2(s["head_dim"] / _WIDE), 0)
    tile_flop_s = 4 * rows * keys * s["head_dim"] * gpu.sms / (share * s["peak"])
    tile_s = norm(tile_flop_s, rows * keys / (c.exp_per_clock * gpu.clock_hz))
    # Heads that do not fit one block; FlashInfer's blocks end within a token.
    whole = c.pattern != "flashinfer"
    tokens = np.maximum(1, np.floor(rows / packed)) if whole else rows / packed
    heads = s["requests"] * s["heads"] / packed * (np.ceil(packed / rows) if whole else 1)
    tiles = np.ceil(s["tokens"] / tokens)
    seen = s["context"] + s["tokens"]
    longest = np.minimum(seen, np.where(s["window"] > 0, s["window"] + tokens, np.inf))
    # Query tiles up to the window see more and more keys, the others as many as the window holds. Without a mask, all
    # see all.
    masked = s.get("masked", np.ones_like(seen))
    ramp = np.clip(np.ceil((longest - s["context"]) / tokens), 0, tiles) * masked
    growing = ramp * np.maximum((s["context"] + (ramp + 1) / 2 * tokens) / keys, 1)
    steps = np.maximum(growing + (tiles - ramp) * np.ceil(longest / keys), tiles)
    # To find that a window hides a tile, a kernel that visits all computes their masks.
    masked_s = c.step_s * (s["window"] > 0)
    visited = tiles * np.maximum((s["context"] + (tiles + 1) / 2 * tokens) / keys, 1)
    work_s = steps * tile_s + visited * masked_s
    compute_s, block_s = heads * work_s / gpu.sms, heads * tiles * parts * c.block_s / gpu.sms
    together = prefill_tiles.sms_of_block(c.pattern, gpu, s)
    one_s = c.block_s + np.ceil(longest / parts / keys) * tile_s / together + np.ceil(seen / keys) * masked_s

    # One SM has at least so many blocks, and none is shorter than the first: behind a context, and without a mask, all
    # are about equally long. (Those of whole prompts under a mask, which constants are fitted to, differ.)
    first = np.where(masked > 0, np.minimum(s["context"] + np.minimum(tokens, s["tokens"]), longest), longest)
    least_s = c.block_s + np.ceil(first / parts / keys) * tile_s / together
    rounds = np.ceil(heads * tiles * parts / gpu.sms) * ((s["context"] > 0) | (masked == 0))
    busy_s = np.maximum(compute_s + block_s, rounds * least_s)

    new, l2 = s["requests"] * s["tokens"], l2_of(gpu)
    moved = new * 2 * s["head_dim"] * (s["heads"] + s["kv_heads"]) * s["value_bytes"]
    moved = moved + s["requests"] * s["context"] * s["cache_values"] * s["cache_bytes"]
    # Another kernel copies the new keys and values into the cache.
    copied = s.get("copied_values", s["cache_values"])
    cold = l2.cold_share(moved + new * copied * s["cache_bytes"])

    def memory_s(byte_count: np.ndarray, bandwidth_share: float) -> np.ndarray:
        return byte_count * (cold / (bandwidth_share * gpu.dram_bytes_per_s) + (1 - cold) / l2.bytes_per_s)

    dram_s = memory_s(moved, c.dram_share)
    copy_s = c.copy_factor * memory_s(new * copied * (s["value_bytes"] + s["cache_bytes"]), 1.0)
    copy_s = copy_s + new * prefill_tiles.copying_blocks(c.pattern, s) * (copied > 0) * c.row_s / gpu.sms
    # Partial results are float32 with their sums, written and read once.
    merged = (parts > 1) * parts * new * s["heads"] * (s["head_dim"] + 1) * 8
    # What the blocks of all heads but one take, where they fill the SMs more than once.
    waiting = np.clip((heads - 1) * tiles * parts / gpu.sms - 1, 0, 1)
    late_s = c.late_share * waiting * (heads - 1) / heads * (compute_s + block_s) * masked
    together_s = norm(norm(busy_s, late_s + one_s), dram_s, power=c.overlap)
    launch_s = c.launch_s + c.single_s * prefill_tiles.late(c.pattern, s, packed)
    sglang = c.step_s > 0 or c.pattern == "sglang flash 3"
    launch_s = launch_s + UNEQUAL_S * (s["head_dim"] == UNEQUAL_DIM) * sglang
    dram_s = dram_s + copy_s + merged / gpu.dram_bytes_per_s
    return {
        "time_s": launch_s + together_s + copy_s + merged / gpu.dram_bytes_per_s,
        "launch_s": launch_s,
        "compute_s": compute_s,
        "block_s": block_s,
        "dram_s": dram_s,
    }
