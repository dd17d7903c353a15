"""Time of a mixture-of-experts layer's fused kernels: routing, permutation and two grouped GEMMs on one rank.

    launch + experts + Σ over the two GEMMs of ‖ compute, L2, DRAM, chain ‖ + bytes moved around them / DRAM bandwidth

* experts: a time for each of the layer's, among which every token's are found, and one for each of the rank's, whose
  rows and tiles are counted up before a GEMM starts.
* Load: how many rows each of the rank's experts gets (:func:`expert_loads`); the rank with the most decides.
* compute and L2: tiles of rows by columns, padding included, each with a time of its own; at least one per SM, and
  whole ones where a rule gives their size (Marlin's blocks go through all work in equal stripes). That size is the
  best; or the one of a rule (`RULES`). The kernels of TensorRT-LLM and FlashInfer for Blackwell take as many rows as
  the power of two above all tokens' choices per expert of the rank: with expert parallelism that is too tall, because
  most choices are other ranks' (``computeSelectedTileN`` in FlashInfer's
  ``csrc/trtllm_fused_moe_kernel_launcher.cu``). Triton's kernels take what vLLM and SGLang ship for these experts on
  this GPU, or their defaults (:mod:`gpuledger.models.time_model.triton_tiles`). Marlin's are the first of 8, 16, 32 and
  64 rows that all tokens' choices per expert of the rank fill to less than 0.9 (``fused_marlin_moe.py`` of vLLM; its 48
  count as 64).
* chain: the steps of a tile along k wait for their operands, `stages` − 1 of them together, and for less long where L2
  has the weights. As many of Triton's tiles as shared memory holds with their steps in flight do so at a time on an SM,
  up to `_RESIDENT`.
* filling: where tiles are too tall, the first GEMM fetches one and the same row for what is missing in them. A GB300's
  layers of 256 experts with 18 rows each in tiles of 256 take 37 % longer than with 192 rows each.
* DRAM: the weights of the experts that have a row, and the rows. What L2 holds since the last use comes from there:
  benchmarks repeat the same layer, so that small layers never leave L2.
* padding: on data-centre Blackwell, engines store weights in mxfp4 for kernels that take multiples of 256 of both sizes
  (vLLM and SGLang, ``quantization/mxfp4.py``, for FlashInfer's kernels).
* moved: permuting, quantising, activating and summing up the rank's rows (`row_bytes` per element of the hidden
  dimension), and what is done for all tokens' choices whether they are the rank's or not (`choice_bytes`); out of L2
  or DRAM as the rows. Triton's kernels and Marlin's do all of it for all choices: the first GEMM's results go through
  memory to an activation kernel and to the second GEMM, whose results are summed up by another kernel, so that both
  GEMMs' columns count. A rank that gets other ranks' choices as well gets no tokens without one of its own.

What was chosen, with held-back errors in sight unless noted; never with an RTX PRO 6000's, which are named last:

* That L2 holds layers, and what it must hold between two uses: by an L40S's, an A100's, an H100's and a B200's tables
  (vLLM's of an RTX PRO 6000 confirm it, 12.4 to 10.1 % in the mean; TensorRT-LLM's in nvfp4 do not, 11.4 to 13.8 %).
* That Triton's tiles of few values along k read more slowly: by the fitting halves of these (bf16: 17.5 to 13.2 %).
* That choices count both GEMMs' columns (mean of 70 kernels 12.1 to 11.7 %), a tile's own time (11.9 to 11.1 %), whole
  tiles, Marlin's rule and the rows that fill up tiles (all 181: 11.0 to 10.6 %; 11.8 to 11.6 %).
* The tiles that engines ship, the wait for operands and how much of it L2 leaves, times for each expert, unaligned
  columns: by an H100's, an H200's, a B200's and a GB300's, and by an A100's what engines ship (184 kernels: 10.7 to
  9.6 %; SGLang's in Triton on a B200 17.9 to 8.8 %; 11.6 to 10.8 %).

Several routings in turn between two uses, as the benchmarks' code has them, fit worse than one; and so does, but for
some kernels of vLLM's, the height for tokens rounded down to a power of two, as FlashInfer's autotuner does.

‖ ‖ is the 4-norm, as in :mod:`gpuledger.models.time_model.gemms.law`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants.fit_law import with_own
from gpuledger.models.time_model.gemms.tiles import WARP_GROUP, generation_of
from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.triton_tiles import RULES as TRITON_RULES
from gpuledger.models.time_model.triton_tiles import triton_tiles
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.tabular import by_value

#: By data type: bytes of a weight with its scales, of an activation, and the precision of the products.
DTYPES: Mapping[str, tuple[float, float, str]] = {
    "bf16": (2, 2, "bf16"),
    "fp8": (1, 1, "fp8"),
    "fp8_block": (1, 1, "fp8"),
    "nvfp4": (0.5625, 0.5625, "fp4"),
    "w4a16_mxfp4": (0.53125, 2, "bf16"),
    "mxfp4_as_bf16": (2, 2, "bf16"),
    "int4_wo": (0.53125, 2, "bf16"),
    "w8a16": (1, 2, "bf16"),
    "w4a8_mxfp4_mxfp8": (0.53125, 1, "fp8"),
    "w4a8_mxfp4_fp8": (0.53125, 1, "fp8"),
    "w4afp8": (0.53125, 1, "fp8"),
}
#: Heights of tiles.
TILES = (8, 16, 32, 64, 128, 256)
#: What decides on the size of tiles: the best; choices per expert up to that height; what engines ship for Triton;
#: Marlin's.
RULES = ("best", "64", "128", "256", *TRITON_RULES, "marlin")
#: Rules whose SMs share work evenly, or nobody knows.
_EVEN = ("best", "marlin")
_COLUMNS = 128
_PADDED = 256
_FULL = 0.9
#: Most tiles of Triton's that an SM computes at a time, and bytes of a weight's row that DRAM likes to send together.
_RESIDENT, _TOGETHER = 8, 128
#: Of the wait for DRAM, what is left when operands come from L2.
_WARM = 0.4
#: Bytes of a row of activations in a step along k, and steps in flight, of kernels but Triton's.
_STEP_BYTES, _STAGES = 128, 2
#: Triton fetches several values at a time if it knows the distance of two rows to be a multiple of this. Weights that
#: were widened are padded.
_ALIGNED, _AS_STORED = 16, ("bf16", "fp8")


@dataclass(frozen=True)
class MoeConstants:
    """Constants of one fused mixture-of-experts kernel on one GPU."""

    launch_s: float  # least time of all of its launches (s)
    dram_share: float  # share of the data sheet's DRAM bandwidth at which weights are read
    tensor_share: float  # share of the data sheet's dense peak
    l2_bytes_per_clock: float  # bytes of tiles' operands that an SM takes in in a cycle
    row_bytes: float  # bytes moved around the GEMMs per row and element of the hidden dimension
    #: Bytes moved around them per token and chosen expert, on this rank or not, and element of the hidden dimension.
    choice_bytes: float
    tiles: str = "best"  # what decides on the size of tiles, one of `RULES`
    #: What is left of `dram_share` in Triton's tiles that fetch less than `_TOGETHER` bytes of a weight's row at a time
    #: (1: all, and with any other rule).
    narrow_share: float = 1.0
    wide_factor: float = 1.0  # how many times `choice_bytes` are moved per column of the first GEMM's result
    #: How many times as long Triton's second GEMM takes where an expert's columns are no multiple of `_ALIGNED`.
    unaligned_factor: float = 1.0
    #: How long a tile waits for operands that it fetches from DRAM (s; 0 for kernels whose tiles begin before others
    #: end).
    fetch_s: float = 0.0
    router_s: float = 0.0  # time for each expert of the layer (s)
    expert_s: float = 0.0  # time for each expert of the rank (s)
    #: What a tile takes beside its steps along k (s): finding its expert, the first fetch, the last write.
    block_s: float = 0.0
    #: Bytes that an SM takes in in a cycle of rows that fill up tiles of the first GEMM, where all of them are the same
    #: row, which one slice of L2 hands out to everybody (0: no time of their own).
    filling_bytes_per_clock: float = 0.0
    source: str = field(default="", compare=False)  # what they were fitted to


#: Rules whose kernels fetch rows one by one; where a fit of that rate starts, and its bounds.
_GATHERING, _FILLING = RULES[1:4], {"filling_bytes_per_clock": (40.0, 4.0, 2000.0)}
_WAITING = {"fetch_s": (3e-7, 1e-9, 5e-6)}
_TRITON = _WAITING | {
    "narrow_share": (1.0, 0.1, 1.5),
    "wide_factor": (1.0, 0.01, 100.0),
    "unaligned_factor": (1.0, 1.0, 100.0),
}
START = MoeConstants(2e-5, 0.75, 0.7, 60.0, 8.0, 2.0, router_s=2e-8, expert_s=2e-8, block_s=1e-7)
RANGES = {
    "launch_s": (2e-6, 1e-3),
    "router_s": (1e-12, 1e-6),
    "expert_s": (1e-12, 1e-6),
    "dram_share": (0.1, 1.0),
    "tensor_share": (0.05, 1.0),
    "l2_bytes_per_clock": (4.0, 512.0),
    "row_bytes": (0.1, 400.0),
    "choice_bytes": (0.01, 400.0),
    "block_s": (1e-10, 1e-4),
}


def started(constants: MoeConstants, kernel: str) -> tuple[MoeConstants, dict[str, tuple[float, float]]]:
    """Return where a fit starts, and the bounds of all constants that such a kernel with such tiles has."""
    own = _TRITON if constants.tiles in TRITON_RULES else {} if "marlin" in kernel else _WAITING
    # CUTLASS's products read rows that another kernel has brought into order.
    own = own | _FILLING if constants.tiles in _GATHERING and "cutlass" not in kernel else own
    return with_own(constants, RANGES, own)


def element_bytes(dtypes: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes of a weight with its scales and of an activation for each of `DTYPES`."""
    weight, activation = (by_value(dtypes, {name: of[place] for name, of in DTYPES.items()}) for place in range(2))
    return weight.to_numpy(dtype=float), activation.to_numpy(dtype=float)


def expert_loads(
    tokens: np.ndarray | int, chosen: np.ndarray | int, experts: int, ranks: int, power: float | None = None
) -> np.ndarray:
    """Expect the rows of each expert of the rank with the most.

    Parameters
    ----------
    tokens, chosen : int arrays of shape (launches,), or int
        Tokens, and experts that each chooses.
    experts, ranks : int
        Experts in all, ranks that they are spread over.
    power : float, optional
        Loads follow a power law with this exponent, as AIConfigurator's benchmarks draw them (``power_law_logits_v3``
        in ``collector/helper.py``): between 1 and 0.8 · tokens, or between 0.01 and 2 with at most one choice per
        expert, scaled and rounded. Here they are the law's quantiles. Without it all are alike.

    Returns
    -------
    ndarray of shape (launches, experts / ranks) or (experts / ranks,), float64
        Whole numbers.
    """
    tokens, rows = (np.asarray(of)[..., None] for of in np.broadcast_arrays(tokens, np.multiply(tokens, chosen)))
    place, own = np.arange(experts), max(1, experts // ranks)
    if power is None:
        return (rows // experts + (place < rows % experts)).astype(float)[..., ::ranks][..., :own]
    # Quantiles of the law, rounded; no expert has more rows than there are tokens.
    many = rows > experts
    low, high = np.where(many, 1.0, 0.01) ** (1 - power), np.where(many, 0.8 * tokens, 2.0) ** (1 - power)
    loads = ((high - low) * (place + 0.5) / experts + low) ** (1 / (1 - power))
    loads = np.minimum(np.rint(loads * rows / loads.sum(axis=-1, keepdims=True)), tokens)
    # Rows that are missing go to the emptiest experts, one after the other; too many are taken from the fullest.
    loads = np.sort(loads)
    missing = rows - loads.sum(axis=-1, keepdims=True)
    below = np.cumsum(loads, axis=-1)
    count = ((place + 1) * loads - below <= missing).sum(axis=-1, keepdims=True).clip(1)
    level, more = np.divmod(missing + np.take_along_axis(below, count - 1, axis=-1), count)
    filled = np.where(place < count, level + (place < more), loads)
    taken, last = np.divmod(-missing, experts)
    loads = np.where(missing >= 0, filled, loads - taken - (place >= experts - last))
    loads = np.sort(loads)[..., ::-1]
    # The fullest expert, and of the others every so many-th: an average share of them.
    return np.concatenate([loads[..., :1], loads[..., 1:][..., ::ranks]], axis=-1)[..., :own]


def load_table(shapes: pd.DataFrame) -> pd.DataFrame:
    """Return experts of the rank, rows, experts with a row, and tiles of each height of every launch.

    Parameters
    ----------
    shapes : DataFrame
        ``tokens, chosen, experts, ranks`` (integers) and ``power`` (NaN: all alike); optional ``foreign``, whether a
        rank computes all choices of the tokens that have one of its experts among them, not only its own.

    Returns
    -------
    DataFrame
        ``own, rows, active, arrived`` (tokens that reach the kernel: of `foreign` ones those with an expert of the
        rank), ``tiles_8, … tiles_256``, with the index of `shapes`.
    """
    keys = ["experts", "ranks", "power", "tokens", "chosen", "foreign"]
    shapes = shapes if "foreign" in shapes else shapes.assign(foreign=False)
    code = shapes.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    different = shapes[keys].iloc[np.unique(code, return_index=True)[1]].reset_index(drop=True)
    found = np.empty((len(different), 4 + len(TILES)))
    for (experts, ranks, power), part in different.groupby(keys[:3], dropna=False):
        tokens, chosen, foreign = (part[name].to_numpy() for name in keys[3:])
        loads = expert_loads(tokens, chosen, experts, ranks, None if np.isnan(power) else power)
        rows = loads.sum(axis=1)
        # Even loads hand a token to as many ranks as there are; others choose independently.
        independent = tokens * (1 - np.prod(1 - loads / tokens[:, None], axis=1))
        concerned = np.minimum(tokens, rows) if np.isnan(power) else independent
        more = np.where(foreign, np.maximum(concerned * chosen - rows, 0), 0)
        tiles = [np.ceil(loads / height).sum(axis=1) + np.ceil(more / height) for height in TILES]
        active = np.maximum((loads > 0).sum(axis=1), 1e-9)
        arrived = np.where(foreign, np.rint(concerned), tokens)
        found[part.index] = np.column_stack([np.full(len(part), loads.shape[1]), rows + more, active, arrived, *tiles])
    names = ["own", "rows", "active", "arrived", *(f"tiles_{height}" for height in TILES)]
    return pd.DataFrame(found[code], columns=names, index=shapes.index)


def moe_terms(gpu: Gpu, constants: MoeConstants, shapes: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Predict the time of mixture-of-experts layers on one rank.

    The result has ``time_s`` and the terms ``launch_s, compute_s, l2_s, dram_s, chain_s, moved_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``tokens, chosen, experts, hidden, inter`` (of the rank), ``gates`` (GEMMs side by side in the first: 2 with a
        gate), the columns of :func:`load_table` and, optional, ``foreign`` (as there), ``layers`` that follow each
        other, each with its own weights, and ``height`` of the tiles that were chosen, one of `TILES` (0: by the
        kernel's rule).
    dtype : str
        One of `DTYPES`.
    """
    s, c = shapes, constants
    weight, activation, precision = DTYPES[dtype]
    height, columns, taken, depth, resident, stages = _sizes(gpu, c.tiles, s, dtype)
    if len(height) == 1:
        tiles = np.array([s[f"tiles_{tile}"] for tile in TILES])[np.searchsorted(TILES, height), np.arange(height.size)]
    else:
        tiles = np.array([s[f"tiles_{tile}"] for tile in TILES])
    rate, bandwidth = c.tensor_share * gpu.peak_flop_per_s(precision) / gpu.sms, c.dram_share * gpu.dram_bytes_per_s
    bandwidth = bandwidth * np.where(depth * weight < _TOGETHER, c.narrow_share, 1.0)
    total, terms = 0.0, dict.fromkeys(("compute_s", "l2_s", "dram_s", "chain_s"), 0.0)
    hidden, inter = (_stored(gpu, dtype, s[name]) for name in ("hidden", "inter"))
    wide, l2 = s["gates"] * inter, l2_of(gpu)
    values = s["rows"] * (hidden * (activation + 2) + inter * activation + wide * 2)
    used = s["active"] * (wide + inter) * hidden * weight + values
    # Rows are used again at once, weights after the layers in between.
    soon, again = l2.cold_share(used), l2.cold_share(s.get("layers", 1.0) * used)
    for n, k in ((wide, hidden), (hidden, inter)):
        blocks = tiles * np.ceil(n / columns) / gpu.sms
        steps = np.ceil(k / depth)
        whole = steps * depth if c.tiles in TRITON_RULES else k  # along k, padding included
        filled = 0.0
        if c.filling_bytes_per_clock and k is hidden:
            missing = np.maximum(height - s["rows"] / np.maximum(tiles, 1e-9), 0)
            filled = blocks * missing * k * activation / (c.filling_bytes_per_clock * gpu.clock_hz)
        wait_s = c.fetch_s * (_WARM + (1 - _WARM) * again) / np.maximum(stages - 1, 1)
        chain = np.maximum(np.ceil(blocks / resident), 1) * steps * wait_s
        blocks = np.maximum(blocks if c.tiles in _EVEN else np.ceil(blocks), 1)
        compute = blocks * (2 * height * columns * whole / rate + c.block_s)
        operands = blocks * (height + columns) * whole * max(weight, activation)
        operands = operands / (c.l2_bytes_per_clock * gpu.clock_hz) + filled
        weights, rows = s["active"] * n * k * weight, s["rows"] * (2 * n + activation * k)
        cold = again * weights + soon * rows
        dram = cold / bandwidth + (weights + rows - cold) / l2.bytes_per_s
        slower = np.where(inter % _ALIGNED, c.unaligned_factor, 1.0) if k is inter and dtype in _AS_STORED else 1.0
        total = total + slower * (compute**4 + operands**4 + dram**4 + chain**4) ** 0.25
        for name, term in zip(terms, (compute, operands, dram, chain), strict=True):
            terms[name] = terms[name] + term
    total = np.where(taken, total, np.inf)
    best = total.argmin(axis=0), np.arange(total.shape[1])
    terms = {name: np.broadcast_to(term, total.shape)[best] for name, term in terms.items()}
    # A rank that computes other ranks' choices gets no tokens but those.
    choices = np.where(s.get("foreign", 0.0), s["rows"], s["tokens"] * s["chosen"])
    around = c.choice_bytes * choices * (s["hidden"] + c.wide_factor * s["gates"] * s["inter"])
    around = c.row_bytes * s["rows"] * s["hidden"] + around
    moved_s = around * (soon / gpu.dram_bytes_per_s + (1 - soon) / l2.bytes_per_s)
    launch_s = c.launch_s + c.router_s * s["experts"] + c.expert_s * s["own"]
    return {"time_s": launch_s + total[best] + moved_s, "launch_s": launch_s, **terms, "moved_s": moved_s}


def _sizes(gpu: Gpu, rule: str, shapes: Mapping[str, np.ndarray], dtype: str) -> tuple[np.ndarray, ...]:
    """Return rows and columns of tiles, which launch may take them, depth, how many are on an SM, steps in flight.

    Arrays of shape (sizes, launches) or what broadcasts to it: of one size where a rule or a recording gives it.
    """
    tokens = shapes["tokens"]
    known = shapes.get("height", np.zeros_like(tokens))
    if rule in TRITON_RULES:
        name = "bf16" if dtype == "mxfp4_as_bf16" else dtype
        tile = triton_tiles(rule, gpu, name, shapes["own"], shapes["inter"], shapes.get("arrived", tokens))
        rows = np.where(known > 0, known, tile.rows)
        weight, activation, _ = DTYPES[dtype]
        held = tile.stages * tile.depth * (rows * activation + tile.columns * weight)
        resident = np.clip(np.nan_to_num(gpu.shared_memory_bytes_per_sm / held), 1, _RESIDENT)
        every = np.ones((1, len(tokens)), dtype=bool)
        return rows[None], tile.columns, every, tile.depth, np.floor(resident), tile.stages
    height = np.array(TILES, dtype=float)[:, None]
    taken = np.ones((len(TILES), len(tokens)), dtype=bool)
    if rule == "marlin":
        load = tokens * shapes["chosen"] / shapes["own"]
        taken = height == np.select([load < _FULL * size for size in (8, 16, 32)], (8, 16, 32), 64)
    elif rule != "best":
        wanted = np.clip(tokens * shapes["chosen"] / shapes["own"], TILES[0], float(rule))
        taken = height == 2 ** np.ceil(np.log2(wanted))
    taken = np.where(known > 0, height == known, taken)
    if (taken.sum(axis=0) == 1).all():
        height, taken = height[taken.argmax(axis=0), 0][None], np.ones_like(taken[:1])
    depth = _STEP_BYTES / (DTYPES[dtype][1] if DTYPES[dtype][1] >= 1 else 0.5)
    return height, np.full(1, _COLUMNS), taken, np.full(1, depth), np.ones(1), np.full(1, _STAGES)


def _stored(gpu: Gpu, dtype: str, size: np.ndarray) -> np.ndarray:
    """Return a size as kernels have it, padding included."""
    four_bits = dtype.endswith("a16_mxfp4") or "a8_mxfp4" in dtype
    padded = four_bits and gpu.architecture == "blackwell" and generation_of(gpu) is WARP_GROUP
    return np.ceil(size / _PADDED) * _PADDED if padded else size
