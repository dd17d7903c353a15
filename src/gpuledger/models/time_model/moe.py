"""Time of a mixture-of-experts layer's fused kernels: routing, permutation and two grouped GEMMs on one rank.

    launch + Σ over the two GEMMs of ‖ compute, L2, DRAM ‖ + bytes moved around them / DRAM bandwidth

* Load: how many rows each of the rank's experts gets (:func:`expert_loads`); the rank with the most decides.
* compute and L2: tiles of rows by 128 columns, padding included; at least one tile per SM. The tiles' height is the
  best or, as in the kernels of TensorRT-LLM and FlashInfer for Blackwell, the power of two above all tokens' choices
  per expert of the rank, at most `tallest`: with expert parallelism that is too tall, because most choices are other
  ranks' (``computeSelectedTileN`` in FlashInfer's ``csrc/trtllm_fused_moe_kernel_launcher.cu``).
* DRAM: the weights of the experts that have a row, and the rows.
* padding: on data-centre Blackwell, engines store weights in mxfp4 for kernels that take multiples of 256 of both sizes
  (vLLM and SGLang, ``quantization/mxfp4.py``, for FlashInfer's kernels).
* moved: permuting, quantising, activating and summing up the rank's rows (`row_bytes` per element of the hidden
  dimension), and what is done for all tokens' choices whether they are the rank's or not (`choice_bytes`).

‖ ‖ is the 4-norm, as in :mod:`gpuledger.models.time_model.gemm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pandas as pd

from gpuledger.models.time_model.tiles import WARP_GROUP, generation_of
from gpuledger.readers.gpus import Gpu

#: By data type: bytes of a weight with its scales, of an activation, and the precision of the products.
DTYPES: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "bf16": (2, 2, "bf16"),
        "fp8": (1, 1, "fp8"),
        "fp8_block": (1, 1, "fp8"),
        "nvfp4": (0.5625, 0.5625, "fp4"),
        "w4a16_mxfp4": (0.53125, 2, "bf16"),
        "int4_wo": (0.53125, 2, "bf16"),
        "w4a8_mxfp4_mxfp8": (0.53125, 1, "fp8"),
        "w4a8_mxfp4_fp8": (0.53125, 1, "fp8"),
        "w4afp8": (0.53125, 1, "fp8"),
    }
)
#: Heights of tiles.
TILES = (8, 16, 32, 64, 128, 256)
_COLUMNS = 128
_PADDED = 256


@dataclass(frozen=True)
class MoeConstants:
    """Constants of one fused mixture-of-experts kernel on one GPU.

    Attributes
    ----------
    launch_s : float
        Least time of all of its launches (s).
    dram_share : float
        Share of the data sheet's DRAM bandwidth at which weights are read.
    tensor_share : float
        Share of the data sheet's dense peak.
    l2_bytes_per_clock : float
        Bytes of tiles' operands that an SM takes in in a cycle.
    row_bytes : float
        Bytes moved around the GEMMs per row and element of the hidden dimension.
    choice_bytes : float
        The same per token and chosen expert, on this rank or not.
    tallest : int
        The largest height of a tile that choices per expert decide on; 0: the best height.
    source : str
        What they were fitted to.
    """

    launch_s: float
    dram_share: float
    tensor_share: float
    l2_bytes_per_clock: float
    row_bytes: float
    choice_bytes: float
    tallest: int = 0
    source: str = field(default="", compare=False)


START = MoeConstants(2e-5, 0.75, 0.7, 60.0, 8.0, 2.0)
BOUNDS = {
    "launch_s": (2e-6, 1e-3),
    "dram_share": (0.1, 1.0),
    "tensor_share": (0.05, 1.0),
    "l2_bytes_per_clock": (4.0, 512.0),
    "row_bytes": (0.1, 400.0),
    "choice_bytes": (0.01, 400.0),
}


def expert_loads(tokens: int, chosen: int, experts: int, ranks: int, power: float | None = None) -> np.ndarray:
    """Expect the rows of each expert of the rank with the most.

    Parameters
    ----------
    tokens, chosen, experts, ranks : int
        Tokens, experts that each chooses, experts in all, ranks that they are spread over.
    power : float, optional
        Loads follow a power law with this exponent, drawn between 1 and 0.8 · tokens; without it all are alike.

    Returns
    -------
    ndarray of shape (experts / ranks,), float64
        Below one: how likely it is that the expert gets a row at all.
    """
    rows, own = tokens * chosen, max(1, experts // ranks)
    if power is None:
        whole = rows // experts
        loads = np.full(experts, float(whole))
        loads[: rows - whole * experts] += 1
        return loads[::ranks][:own]
    # Quantiles of the law. No expert has more rows than there are tokens.
    most = max(0.8 * tokens, 1.0001) ** (1 - power)
    loads = ((most - 1) * (np.arange(experts) + 0.5) / experts + 1) ** (1 / (1 - power))
    for _ in range(2):
        loads = np.minimum(loads * rows / loads.sum(), tokens)
    loads = loads[::-1]
    # The fullest expert, and of the others every so many-th: an average share of them.
    return np.concatenate([loads[:1], loads[1:][::ranks]])[:own]


def load_table(shapes: pd.DataFrame) -> pd.DataFrame:
    """Return experts of the rank, rows, experts with a row, and tiles of each height of every launch.

    Parameters
    ----------
    shapes : DataFrame
        ``tokens, chosen, experts, ranks`` (integers) and ``power`` (NaN: all alike).

    Returns
    -------
    DataFrame
        ``own, rows, active, tiles_8, … tiles_256``, with the index of `shapes`.
    """
    keys = ["tokens", "chosen", "experts", "ranks", "power"]
    code = shapes.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    first = np.unique(code, return_index=True)[1]
    found = []
    for tokens, chosen, experts, ranks, power in shapes[keys].iloc[first].itertuples(index=False):
        loads = expert_loads(tokens, chosen, experts, ranks, None if np.isnan(power) else power)
        tiles = [np.where(loads < 1, loads, np.ceil(np.round(loads) / height)).sum() for height in TILES]
        found.append((len(loads), loads.sum(), max(np.minimum(loads, 1).sum(), 1e-9), *tiles))
    names = ["own", "rows", "active", *(f"tiles_{height}" for height in TILES)]
    return pd.DataFrame(np.array(found)[code], columns=names, index=shapes.index)


def moe_terms(gpu: Gpu, constants: MoeConstants, shapes: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Predict the time of mixture-of-experts layers on one rank.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``tokens, chosen, hidden, inter`` (of the rank), ``gates`` (GEMMs side by side in the first: 2 with a gate)
        and the columns of :func:`load_table`.
    dtype : str
        One of `DTYPES`.

    Returns
    -------
    dict of str to ndarray
        ``time_s`` and the terms ``launch_s, compute_s, l2_s, dram_s, moved_s``.
    """
    s, c = shapes, constants
    weight, activation, precision = DTYPES[dtype]
    height = np.array(TILES, dtype=float)[:, None]
    tiles = np.array([s[f"tiles_{tile}"] for tile in TILES])
    rate, bandwidth = c.tensor_share * gpu.peak_flop_per_s(precision) / gpu.sms, c.dram_share * gpu.dram_bytes_per_s
    total, terms = 0.0, dict.fromkeys(("compute_s", "l2_s", "dram_s"), 0.0)
    hidden, inter = (_stored(gpu, dtype, s[name]) for name in ("hidden", "inter"))
    for n, k in ((s["gates"] * inter, hidden), (hidden, inter)):
        blocks = np.maximum(tiles * np.ceil(n / _COLUMNS) / gpu.sms, 1)
        compute = blocks * 2 * height * _COLUMNS * k / rate
        l2 = blocks * (height + _COLUMNS) * k * max(weight, activation) / (c.l2_bytes_per_clock * gpu.clock_hz)
        dram = (s["active"] * n * k * weight + s["rows"] * (2 * n + activation * k)) / bandwidth
        total = total + (compute**4 + l2**4 + dram**4) ** 0.25
        for name, term in zip(terms, (compute, l2, dram), strict=True):
            terms[name] = terms[name] + term
    if c.tallest:
        wanted = np.clip(s["tokens"] * s["chosen"] / s["own"], TILES[0], c.tallest)
        total = np.where(height == 2 ** np.ceil(np.log2(wanted)), total, np.inf)
    best = total.argmin(axis=0), np.arange(total.shape[1])
    terms = {name: np.broadcast_to(term, total.shape)[best] for name, term in terms.items()}
    elements = c.row_bytes * s["rows"] + c.choice_bytes * s["tokens"] * s["chosen"]
    moved_s = elements * s["hidden"] / gpu.dram_bytes_per_s
    launch_s = np.full(len(moved_s), c.launch_s)
    return {"time_s": launch_s + total[best] + moved_s, "launch_s": launch_s, **terms, "moved_s": moved_s}


def _stored(gpu: Gpu, dtype: str, size: np.ndarray) -> np.ndarray:
    """Return a size as kernels have it, padding included."""
    padded = "mxfp4" in dtype and gpu.architecture == "blackwell" and generation_of(gpu) is WARP_GROUP
    return np.ceil(size / _PADDED) * _PADDED if padded else size
