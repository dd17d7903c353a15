"""FlashInfer's nvfp4 GEMM in CuTe DSL, for data centre Blackwell: its tiles, and the conversion before it.

Without autotuning, the host scores every tile by how well it fills waves and matrix, times a guess of its rate, for the
power of two at or below m, and takes the best. An SM computes 128 rows, alone or as half of a pair; few rows of a
multiple of eight are computed as columns of the transposed product. Facts from flashinfer-ai/flashinfer:
``flashinfer/gemm/kernels/utils.py`` (``_compute_tactic_for_m``, before pull request 3667 of 2026) and
``dense_blockscaled_gemm_sm100.py``. SGLang's benchmark may have tuned instead; its times fit these tiles better than
the fastest ones.

One block on each SM works off tiles, down the rows first. Its shared memory is a ring of a tile's steps, in which rows
beyond the matrix take room that nothing is fetched into: fewer bytes are in flight.

vLLM converts activations in blocks of up to 512 threads of 16 values each, so longer rows take whole passes of 8192. It
pads the scales to groups of 64 values: where a shorter row is no multiple of them, a second pass writes the padding
(``csrc/quantization/fp4``). FlashInfer has a second kernel for 1024 rows and more of a multiple of 512 values: a block
moves 16 rows by bulk copies of 512 columns, one after the other, two blocks an SM
(``csrc/nv_internal/cpp/kernels/quantization.cu``).

`FLIGHT` and `_COPY_ROWS` were chosen on the tables of vLLM and SGLang of a B200 and a GB200, errors of the
held-back halves in sight; both GPUs asked for the same.
"""

from typing import NamedTuple

import numpy as np

#: Sides of a tile along the rows and columns of the kernel; two SMs share 256 rows.
_SIDES = (
    (128, 8), (128, 16), (128, 32), (128, 64), (256, 64), (128, 128),
    (256, 128), (128, 192), (256, 192), (128, 256), (256, 256),
)  # fmt: skip
_HEIGHT, _WIDTH = np.array(_SIDES).T
_AREA = _HEIGHT * _WIDTH
# The guess of a tile's rate: the root of its area, times the fourth root of its shorter over its longer side.
_RATE = np.sqrt(_AREA / 256.0**2) * np.sqrt(np.sqrt(np.minimum(_HEIGHT, _WIDTH) / np.maximum(_HEIGHT, _WIDTH)))
_LARGE = 128 * 128  # elements beyond which a tile suffers from short k
_WIDEST = 64  # narrower tiles are for products of no more columns
_MOST_ROWS = 4096  # the largest m that is scored
_TRANSPOSED = (8, 16)  # scored m of the transposed product
_STEP = 256  # values along k
#: Elements of a row that a block of the conversion has threads for, by dispatch table.
_THREADED = {"vllm-nvfp4": 8192, "sglang-nvfp4": 4096}
_PADDED = 64  # values of a row that vLLM's conversion pads scales to
_COPIED = (1024, 512)  # rows at least and a divisor of k, for the conversion by bulk copies
_COPY_HEIGHT, _COPY_BLOCKS = 16, 2
_COPY_ROWS = 5.5  # a bulk copy and its conversion, over `conversion_row_s`
# How much longer results take to leave where rows are padded: many with k of 32 take half as long again as with 64. The
# code does not explain it (chosen on vLLM's tables of B200, GB200, B300 and GB300, held-back errors in sight).
_LEAVING = 4.0
#: Dispatch tables that these tiles hold for.
NAMES = tuple(_THREADED)
#: Bytes that an SM gets from DRAM in a cycle at most, where whole tiles lie within the matrix.
FLIGHT = 60.0


class Persistent(NamedTuple):
    """What is known of a kernel whose blocks work off tiles one after the other; arrays of shape (shapes,)."""

    flight: np.ndarray  # float64: bytes that an SM gets from DRAM in a cycle at most
    rows: np.ndarray  # float64: how often a conversion takes `conversion_row_s`
    columns: np.ndarray  # float64: values of a row that threads are busy with
    copied: np.ndarray  # bool: whether bulk copies overlap with the conversion of rows


def tiles_of(m: np.ndarray, n: np.ndarray, k: np.ndarray, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all tiles of the rule, and which one each product takes.

    Parameters
    ----------
    m, n, k : ndarray of int64, shape (shapes,)

    Returns
    -------
    tiles : ndarray of float64, shape (tiles, 7)
        As :class:`gpuledger.models.time_model.gemms.dispatch.Candidates` has them.
    chosen : ndarray of int64, shape (shapes,)
    """
    # frexp gives the exponent exactly, unlike a logarithm.
    scored = np.minimum(1 << (np.frexp(m.astype(float))[1].astype(np.int64) - 1), _MOST_ROWS)
    transposed = (m % 8 == 0) & (scored >= _TRANSPOSED[0]) & (scored <= _TRANSPOSED[1]) & (n > scored)
    rows, columns = np.where(transposed, n, scored), np.where(transposed, scored, n)
    down, across = -(-rows[:, None] // _HEIGHT), -(-columns[:, None] // _WIDTH)
    waves = -(-down * across // sms)
    short = np.where(k <= 1024, 0.5, np.where(k <= 2048, 0.8, 1.0))[:, None]
    score = down * _RATE / (_AREA * waves) * np.where(_AREA > _LARGE, short, 1.0)
    score[(columns[:, None] > _WIDTH) & (_WIDTH < _WIDEST)] = 0.0
    # The first of equals.
    best = np.argmax(score >= (1 - 1e-9) * score.max(axis=1, keepdims=True), axis=1)
    blocks = np.take_along_axis(across, best[:, None], axis=1)[:, 0]
    four = (blocks % 4 == 0) | (blocks > 10)
    cluster = np.where(rows <= _HEIGHT[best], np.where(four, 2, np.where(blocks % 2 == 0, 1, 0)), 0)
    upright = np.array([(128, b, a // 128, c) for c in (1, 2, 4) for a, b in _SIDES], dtype=float)
    tiles = np.vstack([upright, upright[:, [1, 0, 3, 2]]])
    ones = np.ones((len(tiles), 1))
    tiles = np.hstack([tiles[:, :2], _STEP * ones, tiles[:, 2:], ones, 0 * ones])
    return tiles, (3 * transposed + cluster) * len(_SIDES) + best


def persistent(
    name: str, m: np.ndarray, n: np.ndarray, k: np.ndarray, tile_m: np.ndarray, tile_n: np.ndarray, sms: int
) -> tuple[Persistent, np.ndarray, np.ndarray]:
    """Return what is known of the kernel and its conversion, its passes, and how much longer results leave.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    m, n, k, tile_m, tile_n : ndarray, shape (shapes,)
    """
    used = (np.minimum(tile_m, m) + np.minimum(tile_n, n)) / (tile_m + tile_n)
    abreast = np.maximum(1.0, np.floor(sms / np.ceil(m / tile_m)))
    # The transposed product goes down n, and has its few activations at hand.
    passes = np.where(tile_m < tile_n.clip(max=128), 1.0, np.ceil(np.ceil(n / tile_n) / abreast))
    threaded = _THREADED[name]
    columns = np.where(k > threaded, np.ceil(k / threaded) * threaded, k)
    padded = (k % _PADDED > 0) & (k < threaded) & (name == "vllm-nvfp4")
    rows = np.ceil(m / sms) * np.where(padded, 2.0, 1.0)
    copied = (m >= _COPIED[0]) & (k % _COPIED[1] == 0) & (name == "sglang-nvfp4")
    copies = _COPY_ROWS * np.ceil(m / (_COPY_HEIGHT * _COPY_BLOCKS * sms)) * (k // _COPIED[1])
    known = Persistent(FLIGHT * used, np.where(copied, copies, rows), columns, copied)
    return known, passes, np.where(padded, _LEAVING, 1.0)
