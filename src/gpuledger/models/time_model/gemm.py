"""Time of a matrix multiplication from tiles, waves, the traffic of L2 and DRAM, and at most seven constants.

The time of m × k by k × n is the least over all tiles and splits of k (:mod:`gpuledger.models.time_model.tiles`) of

    launch + ‖ chain, DRAM ‖ + split + conversion,    chain = ‖ compute, latency, L2 ‖ + drain

where ‖ ‖ is the 4-norm: what overlaps takes as long as its longest part, a little longer where two are alike.

* compute: the waves of tiles, padding included, at the matrix units' reachable rate (`tensor_share`); where kernels
  keep all units busy for milliseconds, the clock drops.
* latency: steps along k, each of which has to be fetched and waited for (`step_s`); tiles that an SM holds side by side
  hide each other's.
* L2: the rows and columns of tiles on their way into an SM, and the results on theirs out (`l2_bytes_per_clock`); few
  blocks have the way out to themselves.
* DRAM: what L2 does not keep (`dram_share`); a few SMs alone cannot have enough in flight to fill it. What L2 does keep
  passes once at the rate of its slices.
* drain: the results of the tiles that an SM holds at once; its next ones begin after them.
* split: the kernel that adds partial sums, and their traffic.
* conversion: of the activations into the precision, where it is a kernel of its own (`conversion_bytes`; where a
  thread block converts a row, `conversion_row_s`).

Besides the constants there are the numbers below and the tiles. They are structure: no GPU has its own (the drop of the
clock, the step along k and the tiles go by generation). They were chosen on the bf16 shapes of an A100 and an H100
together, with the errors of the held-back halves in sight: those measure the constants, not the structure. A quarter
more or less of one, constants fitted anew, moves the MAPE of the held-back halves by less than 0.9 percentage points
(`_SPLIT`), or 0.2 (the others).

Sources of the single terms: S. Williams et al., Roofline, CACM 52(4), 2009; H. Zhang et al., LLMCompass, ISCA 2024
(tiles and their schedule); NVIDIA, Matrix Multiplication Background User's Guide (tile and wave quantisation);
J. Little, Operations Research 9(3), 1961 (bytes in flight).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants import Constants
from gpuledger.models.time_model.tiles import SPLITS, WARP_GROUP, generation_of
from gpuledger.readers.gpus import Gpu

#: Bytes of an operand's element and of a result's.
OPERAND_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "int8": 1, "fp4": 0.5}
RESULT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4}

#: What can bound the time of a GEMM.
BOUNDS = ("launch", "compute", "latency", "l2", "dram", "conversion")

#: Precisions whose libraries do not split k (DeepGEMM; CUTLASS and cuBLASLt in 4 bits).
UNSPLIT = ("fp8_block", "fp4")

_CHUNK = 4096
_TERMS = ("compute_s", "latency_s", "l2_s", "dram_s", "drain_s", "split_s")


class _Machine(NamedTuple):
    """A GPU with its constants, in base units."""

    launch: float
    dram: float
    flop_per_sm: float
    l2_per_sm: float
    clock: float
    step: float
    l2_bytes: float
    sms: float
    operand: float
    result: float
    step_bytes: float
    least_rows: float
    throttled: float
    weights_in_turn: float
    conversion: float
    conversion_row: float


# Structure: chosen once, by an A100's and an H100's shapes together, and the same for every GPU.
_KEPT, _KEPT_WHOLE = 0.7, 0.9  # share of L2 that keeps data until their next use: in two partitions, in one
_SHARPNESS = 8  # how sharply hits end there: cyclic reuse under LRU, smoothed
_HELD = 2.0 * 128 * 128  # elements of all tiles that an SM computes side by side
_WRITTEN = 3.2  # bytes of operands that take as long as one of a result, when all SMs write
_FLIGHT = 30.0  # bytes that an SM gets from DRAM in a cycle at most: what it has in flight over the latency
_STREAM = 20.0  # bytes that an SM gets out of L2 in a cycle, of data that no other asks for
_SPLIT = 2.9e-6  # what adding the partial sums of a split k costs: a kernel of its own (s)
_LEAST = 128  # k of a block at least, when k is split
_THROTTLED = 0.2  # longer by this share where the clock drops, because all matrix units are busy
_THROTTLED_AFTER = 2e-3  # for about so long (s)
_CONVERTED = 2048  # values of a row that a block converts at once: 256 threads of 8 values


#: Multiplications up to which the search is interpreted in a process: loading its compiled form takes 0.7 s.
_FEW = 3500


def _search(m, n, k, batch, colds, warms, tiles_m, tiles_n, splits, g, time, chosen, terms):
    """Fill the time (s), the best tile and split, and their terms.

    Terms: compute, latency, L2, DRAM, drain, split (s); bytes between L2 and SMs. The same statements run interpreted
    and compiled, with the same bits: powers are written as products, because ``pow`` of C and numba round differently.
    """
    step = g.step_bytes / g.operand
    for i in range(len(m)):
        rows, columns, depth, many, cold, warm = m[i], n[i], k[i], batch[i], colds[i], warms[i]
        best = inf
        for j in range(len(tiles_m)):
            tile_m, tile_n = tiles_m[j], tiles_n[j]
            if tile_m > g.least_rows and tile_m > 2 * rows:
                continue
            whole = ceil(rows / tile_m) * ceil(columns / tile_n) * many
            area = tile_m * tile_n
            held = max(1.0, _HELD / area)
            used_m, used_n = min(tile_m, rows), min(tile_n, columns)
            operands = (used_m + used_n) * g.operand
            result = used_m * used_n * g.result
            for split in splits:
                blocks = whole * split
                if split > 1 and (depth < split * _LEAST or blocks > 4 * g.sms):
                    break
                waves = ceil(blocks / g.sms)
                length = ceil(depth / (split * step)) * step
                compute = waves * area * length * 2.0 / g.flop_per_sm
                latency = ceil(waves / held) * (length / step) * g.step
                active = min(blocks, g.sms)
                written = _WRITTEN * result * active / g.sms
                l2 = waves * (operands * length + written) / g.l2_per_sm
                if compute > best or latency > best or l2 > best:
                    continue
                compute *= 1.0 + g.throttled * compute / (compute + _THROTTLED_AFTER)
                drain = ceil(waves / held) * written / g.l2_per_sm
                dram = cold / min(g.dram, active * _FLIGHT * g.clock) + warm
                extra = 0.0
                if split > 1:
                    extra = _SPLIT + split * rows * columns * many * 4.0 / (active * g.l2_per_sm)
                a, b, c, d = compute * compute, latency * latency, l2 * l2, dram * dram
                chain = sqrt(sqrt(a * a + b * b + c * c)) + drain
                e = chain * chain
                total = sqrt(sqrt(e * e + d * d)) + extra
                if total < best:
                    best = total
                    chosen[i, 0], chosen[i, 1], chosen[i, 2] = tile_m, tile_n, split
                    terms[i, 0], terms[i, 1], terms[i, 2], terms[i, 3] = compute, latency, l2, dram
                    terms[i, 4], terms[i, 5], terms[i, 6] = drain, extra, blocks * (operands * length + result)
        time[i] = best + g.launch


_interpreted = 0


def _search_interpreted(count: int) -> bool:
    """Return whether to interpret the search for so many further multiplications, and count them."""
    global _interpreted
    few = _interpreted + count <= _FEW and not _compiled.cache_info().currsize
    _interpreted += count * few
    return few


@cache
def _compiled() -> Callable:
    from numba import njit

    return njit(cache=True, nogil=True, error_model="numpy")(_search)


def _from_dram(machine: _Machine, flat: Sequence[np.ndarray], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that come from DRAM, and the time (s) in which the rest leaves L2 once."""
    rows, columns, depth, many = flat

    def cold_share(footprint: np.ndarray) -> np.ndarray:
        """Return the share of bytes that come from DRAM when so many are used in turn."""
        ratio = footprint / machine.l2_bytes
        for _ in range(_SHARPNESS.bit_length() - 1):
            ratio = ratio * ratio
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(ratio), 1.0, ratio / (1.0 + ratio))

    others = (depth * machine.operand + columns * machine.result) * rows * many
    cold = cold_share(machine.weights_in_turn * weights + others) * weights + cold_share(weights + others) * others
    return cold, (weights + others - cold) / (_STREAM * machine.sms * machine.clock)


def gemm_time_s(
    gpu: Gpu,
    constants: Constants,
    m: np.ndarray | int,
    n: np.ndarray | int,
    k: np.ndarray | int,
    batch: np.ndarray | int = 1,
    precision: str = "bf16",
    weights_in_turn: int = 6,
    weight_bytes: np.ndarray | None = None,
) -> np.ndarray:
    """Predict the time of matrix multiplications, m × k by k × n.

    Each time is the least over all tiles of the GPU's generation and all splits of k, as a library with a good
    heuristic would choose.

    Parameters
    ----------
    gpu : Gpu
    constants : Constants
        Of this GPU and precision.
    m, n, k : integer arrays
        Activations' rows (tokens), weights' rows (outputs), their common length; broadcast against each other.
    batch : integer array
        How many multiplications of that shape are in one kernel.
    precision : str
        One of `OPERAND_BYTES`.
    weights_in_turn : int
        Of how many equal weights, used in turn, these are one (the layers of a model; 6 in the measurements that the
        constants were fitted to): what the others leave of L2 decides whether the weights come from there.
    weight_bytes : array, optional
        Bytes of each multiplication's weights in DRAM and L2, all of its batch, where they are stored in fewer bits
        than they are multiplied in: they are widened on their way to the matrix units.

    Returns
    -------
    ndarray of float64
        Seconds, of the broadcast shape.

    Raises
    ------
    ValueError
        A size that is no whole number or below 1, an unknown precision, or one that the GPU has no peak for.
    """
    return _run(gpu, constants, m, n, k, batch, precision, weights_in_turn, weight_bytes)[0]


def gemm_plan(gpu: Gpu, constants: Constants, *sizes: np.ndarray | int, **options) -> pd.DataFrame:
    """Predict how matrix multiplications run, and where their time goes.

    Takes the arguments of :func:`gemm_time_s` and raises its errors.

    Returns
    -------
    DataFrame
        One row a multiplication, in the order of the flattened shapes: ``time_s``; ``tile_m``, ``tile_n``,
        ``split_k``; ``blocks``; ``waves`` (blocks of the busiest SM); ``bound`` (one of `BOUNDS`, the longest
        term) and the terms, which overlap but for the launch, ``drain_s`` and ``split_s``: ``launch_s``,
        ``compute_s``, ``latency_s``, ``l2_s``, ``dram_s``, ``drain_s``, ``split_s``, ``conversion_s``; ``flop``
        (useful), ``padded_flop`` (with the padding of tiles), ``l2_bytes`` (between L2 and SMs) and ``dram_bytes``.
    """
    time, flat, machine, chosen, terms, cold = _run(gpu, constants, *sizes, **options, plan=True)
    rows, columns, depth, many = flat
    tile_m, tile_n, split = chosen.T
    blocks = -(-rows // tile_m) * -(-columns // tile_n) * many * split
    step = machine.step_bytes / machine.operand
    plan = {"time_s": time.reshape(-1), "tile_m": tile_m, "tile_n": tile_n, "split_k": split, "blocks": blocks}
    plan["waves"] = -(-blocks // gpu.sms)
    launch, conversion = np.full(len(blocks), machine.launch), _conversion_s(machine, flat)
    plan["bound"] = np.array(BOUNDS)[np.column_stack([launch, terms[:, :4], conversion]).argmax(axis=1)]
    plan["launch_s"] = launch
    plan |= dict(zip(_TERMS, terms.T[:6], strict=True))
    plan["conversion_s"] = conversion
    plan["flop"] = 2.0 * rows * columns * depth * many
    plan["padded_flop"] = 2.0 * blocks * tile_m * tile_n * np.ceil(depth / (split * step)) * step
    return pd.DataFrame(plan | {"l2_bytes": terms[:, 6], "dram_bytes": cold})


def _run(
    gpu: Gpu,
    constants: Constants,
    m: np.ndarray | int,
    n: np.ndarray | int,
    k: np.ndarray | int,
    batch: np.ndarray | int = 1,
    precision: str = "bf16",
    weights_in_turn: int = 6,
    weight_bytes: np.ndarray | None = None,
    plan: bool = False,
):
    if precision not in OPERAND_BYTES:
        raise ValueError(f"unknown precision '{precision}'; one of {', '.join(OPERAND_BYTES)}")
    if weights_in_turn < 1:
        raise ValueError("weights_in_turn must be at least 1")
    arrays = np.broadcast_arrays(*(np.asarray(size) for size in (m, n, k, batch)))
    if any(array.dtype.kind not in "iu" for array in arrays) or any((array < 1).any() for array in arrays):
        raise ValueError("m, n, k and batch must be whole numbers of at least 1")
    flat = [np.ascontiguousarray(array, dtype=np.int64).reshape(-1) for array in arrays]
    machine = _machine(gpu, constants, precision, weights_in_turn)
    if weight_bytes is None:
        weight_bytes = machine.operand * flat[1] * flat[2] * flat[3]
    else:
        stored = np.broadcast_to(np.asarray(weight_bytes, dtype=float), arrays[0].shape)
        weight_bytes = np.ascontiguousarray(stored).reshape(-1)
    tiles = generation_of(gpu).tiles().astype(float).T
    splits = np.array(SPLITS[:1] if precision in UNSPLIT else SPLITS, dtype=float)
    count = len(flat[0])
    sizes = [array.astype(float) for array in flat]
    cold, warm = _from_dram(machine, sizes, weight_bytes)
    time, chosen = np.empty(count), np.empty((count, 3), np.int64)
    # Only a plan needs the terms of all; a time gets by with those of one chunk a thread.
    terms = np.empty((count if plan else min(count, _CHUNK), 7))
    if _search_interpreted(count):
        lists = [array.tolist() for array in (*sizes, cold, warm, *tiles, splits)]
        _search(*lists, machine, time, chosen, terms)
    else:
        search, tiles = _compiled(), np.ascontiguousarray(tiles)

        def chunk(start: int) -> None:
            part = slice(start, start + _CHUNK)
            own = terms[part] if plan else np.empty((_CHUNK, 7))
            each = (array[part] for array in (*sizes, cold, warm))
            search(*each, *tiles, splits, machine, time[part], chosen[part], own)

        with ThreadPoolExecutor() as pool:
            list(pool.map(chunk, range(0, count, _CHUNK)))
    time += _conversion_s(machine, flat)
    return time.reshape(arrays[0].shape), flat, machine, chosen, terms, cold


def _machine(gpu: Gpu, constants: Constants, precision: str, weights_in_turn: int) -> _Machine:
    generation = generation_of(gpu)
    peak = gpu.peak_flop_per_s("fp8" if precision == "fp8_block" else precision)
    # Only the data centre GPUs' L2 is in two partitions.
    whole = gpu.architecture in ("ada", "blackwell") and generation is not WARP_GROUP
    return _Machine(
        launch=constants.launch_s,
        dram=constants.dram_share * gpu.dram_bytes_per_s,
        flop_per_sm=constants.tensor_share * peak / gpu.sms,
        l2_per_sm=constants.l2_bytes_per_clock * gpu.clock_hz,
        clock=gpu.clock_hz,
        step=constants.step_s,
        l2_bytes=gpu.l2_bytes * (_KEPT_WHOLE if whole else _KEPT),
        sms=float(gpu.sms),
        operand=float(OPERAND_BYTES[precision]),
        result=float(RESULT_BYTES.get(precision, 2)),
        step_bytes=float(generation.step_bytes),
        least_rows=float(min(generation.rows)),
        throttled=_THROTTLED if generation.throttles else 0.0,
        weights_in_turn=float(weights_in_turn),
        conversion=float(constants.conversion_bytes),
        conversion_row=float(constants.conversion_row_s),
    )


def _conversion_s(machine: _Machine, flat: list[np.ndarray]) -> np.ndarray:
    rows, _, depth, many = flat
    passes = (1 + np.ceil(depth / _CONVERTED)) / 2
    by_row = machine.conversion_row * np.maximum(1, rows * many / machine.sms) * passes
    return machine.conversion * rows * depth * many / machine.dram + by_row
