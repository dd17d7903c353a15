"""Time of the backward pass of causal attention: its main kernel and those before and after it.

    launch + grouped + max(work of an SM, start of the last head + its first block) + bytes / bandwidth
    work of an SM = heads · head;  head = (steps · tile + key tiles · block_s) / SMs
    first block = block_s + query tiles · tile
    tile = ‖ five products at the tensor rate, scores at the vector units' rate ‖

‖ ‖ is the 4-norm. A block has a tile of one head's keys and walks over the queries that see them, so the first block
of a head is its longest. Blocks start head by head: where they are more than the SMs can hold, the last head starts
when the work of all others is done but for half a block on each SM, and its first block may end after all others. A
scheduler of blocks, simulated in the tests, agrees within 3 % where each SM gets more than ten.

Bytes are those of all kernels, each counted once. Before the main one, results are multiplied with their gradients and
summed; queries' gradients are set to zero, added up and rounded in 32 bits; where query heads share keys, each has
gradients of keys and values of its own, which another kernel sums.

Sources: T. Dao, FlashAttention-2, 2023, Sec. 2.3 and 3.1 (five products, blocks of keys), and its
``csrc/flash_attn/src/flash_bwd_launch_template.h`` (sizes of tiles). cuDNN's tiles are those that its kernels are named
by; that its blocks have twice as many keys, and when the last head starts, was chosen on an H100, held-back errors in
sight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu

#: Products of the backward kernel relative to the forward one's two.
PRODUCTS = 2.5
#: Names of the rules for tiles.
PATTERNS = ("flash 2", "cudnn")
_HEAD = 128  # head dimension above which the rate of the matrix units may differ


@dataclass(frozen=True)
class BackwardConstants:
    """Constants of one backward pass of attention on one GPU."""

    launch_s: float  # least time (s) of all its kernels
    block_s: float  # what a block takes beside its tiles (s)
    tensor_share: float  # share of the data sheet's dense peak
    #: Scores whose probability and gradient an SM computes in a cycle.
    scores_per_clock: float
    moved_factor: float  # time of the kernels around the main one, relative to their bytes at the full bandwidth
    grouped_s: float  # least time (s) of the kernels that sum gradients of keys and values that query heads share
    wide_factor: float = 1.0  # rate of the matrix units for heads of 256 dimensions, relative to 128
    pattern: str = "flash 2"  # one of `PATTERNS`
    source: str = field(default="", compare=False)  # what they were fitted to


#: Where fits start, and the bounds within which a constant has its meaning.
START = BackwardConstants(8e-6, 1e-6, 0.6, 4.0, 1.0, 2e-6)
RANGES = {
    "launch_s": (1e-6, 5e-4),
    "block_s": (1e-8, 1e-4),
    "tensor_share": (0.01, 1.0),
    "scores_per_clock": (0.1, 256.0),
    "moved_factor": (0.01, 100.0),
    "grouped_s": (1e-8, 1e-4),
    "wide_factor": (0.1, 4.0),
}


def starts(of: list[BackwardConstants], kernel: str) -> list[BackwardConstants]:
    """Return where the fits of a kernel start, by its name."""
    return [replace(start, pattern="cudnn" if "cudnn" in kernel else "flash 2") for start in of]


def started(constants: BackwardConstants, shapes: Mapping[str, np.ndarray]) -> tuple[BackwardConstants, dict]:
    """Return where a fit starts, and the bounds of all constants that these shapes tell of."""
    bounds = dict(RANGES)
    if len(np.unique(np.maximum(shapes["head_dim"], _HEAD))) == 1:
        del bounds["wide_factor"]
    if (shapes["heads"] == shapes["kv_heads"]).all():
        del bounds["grouped_s"]
    return constants, bounds


def backward_terms(gpu: Gpu, constants: BackwardConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of the backward pass of causal attention over whole sequences.

    The result has ``time_s`` and the terms ``launch_s, compute_s, block_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests``; ``tokens``, of each; ``heads``, ``kv_heads``; ``head_dim`` (mean of keys' and values');
        ``value_bytes``, of an element; ``peak``, the matrix units' rate (FLOP/s).
    """
    s, c = shapes, constants
    rows, keys = _tiles(c.pattern, s["head_dim"])
    share = c.tensor_share * c.wide_factor ** np.maximum(np.log2(s["head_dim"] / _HEAD), 0)
    products_s = 4 * PRODUCTS * rows * keys * s["head_dim"] * gpu.sms / (share * s["peak"])
    tile_s = norm(products_s, rows * keys / (c.scores_per_clock * gpu.clock_hz))
    key_tiles, query_tiles = np.ceil(s["tokens"] / keys), np.ceil(s["tokens"] / rows)
    # The mask hides the queries before a tile of keys.
    masked = s.get("masked", np.ones_like(s["tokens"]))
    hidden = masked * key_tiles * (key_tiles - 1) / 2 * keys / rows
    steps = np.maximum(key_tiles * query_tiles - hidden, key_tiles)
    heads = s["requests"] * s["heads"]
    compute_s, block_s = heads * steps * tile_s / gpu.sms, heads * key_tiles * c.block_s / gpu.sms
    first_s = c.block_s + query_tiles * tile_s
    head_s = (compute_s + block_s) / heads
    # Where the blocks of the other heads fill the SMs one and a half times, the last one waits for them.
    waiting = np.clip(2 * ((heads - 1) * key_tiles / gpu.sms - 1), 0, 1) * masked
    start_s = waiting * np.maximum((heads - 1) * head_s - head_s * gpu.sms / key_tiles / 2, 0)
    busy_s = np.maximum(compute_s + block_s, start_s + first_s)
    # Without a mask all blocks are as long as the first, and the SM with the most decides.
    busy_s = np.where(masked > 0, busy_s, np.ceil(heads * key_tiles / gpu.sms) * first_s)

    moved, l2 = moved_bytes(s), l2_of(gpu)
    cold = l2.cold_share(moved)
    dram_s = c.moved_factor * moved * (cold / gpu.dram_bytes_per_s + (1 - cold) / l2.bytes_per_s)
    launch_s = c.launch_s + c.grouped_s * (s["heads"] > s["kv_heads"])
    return {
        "time_s": launch_s + busy_s + dram_s,
        "launch_s": launch_s,
        "compute_s": compute_s,
        "block_s": busy_s - compute_s,
        "dram_s": dram_s,
    }


def moved_bytes(shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the bytes that the backward pass reads and writes, of all its kernels."""
    s = shapes
    values = s["requests"] * s["tokens"] * s["head_dim"]
    # Queries, gradients of results, keys and values; gradients of keys and values for every query head.
    return values * s["value_bytes"] * (4 * s["heads"] + 2 * s["kv_heads"]) + around_bytes(shapes)


def around_bytes(shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the bytes of the kernels before and after the main one."""
    s = shapes
    values = s["requests"] * s["tokens"] * s["head_dim"]
    heads, kv_heads, size = s["heads"], s["kv_heads"], s["value_bytes"]
    # Results and their gradients; in 32 bits the zeros of queries' gradients, their sums and what is rounded; rounded.
    own = values * heads * (2 * size + 3 * 4 + size)
    return own + values * size * (2 * heads + 2 * kv_heads) * (heads > kv_heads)


def _tiles(pattern: str, head_dim: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys of a tile."""
    if pattern == "cudnn":
        return np.full_like(head_dim, 64.0), np.full_like(head_dim, 128.0)
    return np.where(head_dim <= 64, 128.0, 64.0), np.where(head_dim <= 128, 128.0, 64.0)
