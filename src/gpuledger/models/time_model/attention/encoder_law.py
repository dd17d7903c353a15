"""Time of attention in which every token sees every other, as in vision encoders.

    launch + merge + ‖ rounds · block, bytes / bandwidth ‖
    block = block_s + key tiles · ‖ two products at the tensor rate, keys and values out of L2 ‖

‖ ‖ is the 4-norm. A block takes a tile of one head's queries over all keys, and the SM with the most blocks decides:
`rounds` is the whole number of them, at least what a block takes that has its SM for itself. Every tile of queries
fetches all keys and values of its head again, out of L2 as long as those of the heads that are computed at the same
time fit there. :mod:`gpuledger.models.time_model.attention.encoder_tiles` says how a kernel cuts a shape.

There is neither a mask nor a cache: all pairs of tokens count, and nothing is copied. Each head dimension is a kernel
of its own, with tiles and rates of its own, as they are in the libraries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger.models.time_model.attention import encoder_tiles
from gpuledger.models.time_model.constants.fit_law import with_own
from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu


@dataclass(frozen=True)
class EncoderConstants:
    """Constants of one encoder attention kernel of one head dimension on one GPU."""

    launch_s: float  # least time (s)
    block_s: float  # what a block takes beside its key tiles (s)
    #: Share of the data sheet's dense peak; what a kernel computes for dimensions that it only pads counts as idle.
    tensor_share: float
    l2_bytes_per_clock: float  # bytes of keys and values that an SM takes in out of L2 in a cycle
    dram_share: float  # share of the data sheet's DRAM bandwidth
    alone_share: float  # share of its rate that an SM reaches with a single block
    #: Rows and columns of scores of a step, where the pattern does not say.
    query_tile: int = 128
    key_tile: int = 128
    pattern: str = "fixed"  # how shapes are cut: one of `encoder_tiles.PATTERNS`
    #: What the kernel that merges parts takes, and what an SM takes in it for a query of a head (s).
    merge_s: float = 0.0
    merge_row_s: float = 0.0
    #: Blocks of one head at most that share what they fetch, where all heads are computed at the same time; 0 in other
    #: kernels.
    together: float = 0.0
    source: str = field(default="", compare=False)  # what they were fitted to


#: Where fits start, and the bounds within which a constant has its meaning.
START = EncoderConstants(8e-6, 1e-6, 0.6, 40.0, 0.7, 0.8)
RANGES = {
    "launch_s": (1e-6, 1e-4),
    "block_s": (1e-8, 1e-4),
    "tensor_share": (0.01, 1.0),
    "l2_bytes_per_clock": (2.0, 1000.0),
    "dram_share": (0.05, 1.0),
    "alone_share": (0.1, 1.0),
}
# Where what only some patterns have starts, and its bounds.
_MERGE = {"merge_s": (3e-6, 1e-7, 1e-4), "merge_row_s": (1e-9, 1e-12, 1e-6)}
_EXTRA = {"flash 3": _MERGE, "flash 4": _MERGE, "triton": {"together": (2.0, 1.0, 64.0)}}


def starts(of: list[EncoderConstants], kernel: str) -> list[EncoderConstants]:
    """Return where the fits of a kernel start, by its name: a known pattern leaves no tile to choose."""
    pattern = encoder_tiles.pattern_of(kernel)
    return of if pattern == "fixed" else [replace(START, pattern=pattern)]


def started(constants: EncoderConstants) -> tuple[EncoderConstants, dict[str, tuple[float, float]]]:
    """Return where a fit starts, and the bounds of all constants that such a kernel has."""
    return with_own(constants, RANGES, _EXTRA.get(constants.pattern, {}))


def encoder_terms(gpu: Gpu, constants: EncoderConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of attention between all tokens of each request.

    The result has ``time_s`` and the terms ``launch_s, compute_s, l2_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests``; ``tokens``, of each; ``heads``; ``head_dim``; ``value_bytes``, of an element of q, k, v;
        ``peak``, the matrix units' rate (FLOP/s).
    """
    s, c, l2 = shapes, constants, l2_of(gpu)
    rows, keys, parts, merged, resident = encoder_tiles.tiles_of(c.pattern, gpu, s, c.query_tile, c.key_tile)
    heads = s["requests"] * s["heads"]
    tiles, steps = np.ceil(s["tokens"] / rows), np.ceil(s["tokens"] / keys)
    tile_s = 4 * rows * keys * s["head_dim"] * gpu.sms / (c.tensor_share * s["peak"])
    fetch_s = 2 * keys * s["head_dim"] * s["value_bytes"] / (c.l2_bytes_per_clock * gpu.clock_hz)
    block_s = c.block_s * encoder_tiles.share_of_block(c.pattern, s, rows)
    rounds = np.maximum(np.ceil(heads * tiles * parts / gpu.sms), 1 / c.alone_share)
    steps = np.ceil(steps / parts)

    own = s["tokens"] * s["head_dim"] * s["value_bytes"]
    # Blocks start head by head, or (resident known) with the first tile of every head.
    together = np.clip(resident * gpu.sms / heads, 1, np.minimum(max(c.together, 1.0), tiles))
    alive = np.where(resident > 0, heads, np.minimum(heads, np.ceil(gpu.sms / tiles) + 1))
    again = heads * 2 * own * (tiles / together - 1) * l2.cold_share(alive * 2 * own)
    once = heads * 4 * own
    fresh = l2.cold_share(once)
    dram_s = (once * fresh + again) / (c.dram_share * gpu.dram_bytes_per_s) + once * (1 - fresh) / l2.bytes_per_s
    launch_s = c.launch_s + merged * (c.merge_s + heads * s["tokens"] * c.merge_row_s / gpu.sms)
    return {
        "time_s": launch_s + norm(rounds * (block_s + steps * norm(tile_s, fetch_s)), dram_s),
        "launch_s": launch_s,
        "compute_s": rounds * (block_s + steps * tile_s),
        "l2_s": rounds * steps * fetch_s,
        "dram_s": dram_s,
    }
