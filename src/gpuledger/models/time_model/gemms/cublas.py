"""What cuBLAS does in 16 bits beyond taking the fastest tile.

Read off the tables in bf16, where three engines agree, in sight of held-back errors. None of this is known of products
with a batch.

* An L40S leaves k whole below 8192 in products of fewer than 2^21 multiplications, and in narrow ones, though a split
  would take half or a third. The first of the two holds on an RTX PRO 6000, whose errors were computed and decided
  nothing; it splits narrow products from 2048 on.
* Up to 8 rows with 768 to 4096 columns, and up to 16 with 768 and 1024, take twice as long for each step along k on
  data centre Blackwell, until k is beyond 2048 and the columns (fewer than 1024 columns: until it is 2048): by 131 ns
  instead of 66 for 64 values, on B200, GB200, B300 and GB300. Which kernel that is is not known.

Other habits belong to the version that engines of 2025 and 2026 bring (`NAME`), because older measurements show others:

* An A100 keeps tiles of 256 x 128 and a whole k where there are more of them than SMs and k is 128 to 6143. Three older
  sets of measurements do not (the projections of operators-vidur: 7.6 % without, 11.6 with).
* It gives up to 16 rows with 2048 columns and more and k of 512 to 1023 tiles of 256 columns and leaves k whole (up to
  7 rows: from 513 on); and results of up to 48 Ki elements of more than 16 rows take as long with any smaller k as
  with 256.
* Where warps multiply out of registers (A100, L40S), a single row of up to 2^21 products may have a kernel for vectors,
  four columns a block and 512 values of k a step: k of 1024 and up to 256 columns take 2.0 µs on an L40S, where the
  tiles would take 4. Chosen by the fitting halves of these GPUs' bf16 tables.
* On data centre Blackwell sides of tiles of more than 24 elements have multiples of 32.
* On an H200, whose kernels' names were recorded (dataset nvidia-h200-gemm), up to 7 rows with 513 to 1536 columns get
  tiles of 64 rows and 8 columns (16 above 1024) and a whole k, as long as two parts would have fewer than 20 steps of
  128 bytes each; so do up to 15 rows with up to 768 columns, but for 8. Most of what is copied lies outside of the
  matrix, and takes up to three times as long as other tiles would. An H100 is not known to do so: its times are short.
"""

from typing import NamedTuple

import numpy as np

from gpuledger.readers.gpus import Gpu

#: The name of the free choice with the habits of the version that engines of 2025 and 2026 bring.
NAME = "cublas"
#: k from which even a few multiplications are split.
LONG = 8192.0
_FEW_ROWS = 16
# Generations whose warps multiply out of registers.
_BY_WARPS = ("sm80", "sm89", "sm120")
# On an H200, known by the bandwidth of its DRAM, what few rows with more than `_NARROW` columns have: up to so many
# columns, tiles of 64 rows and so many columns, in clusters of so many. And bytes of a row that two parts need.
_FAST_DRAM, _NARROW, _TURNED, _PARTS = 4.5e12, 512, ((768, 8, 4), (1024, 8, 2), (1536, 16, 4)), 2 * 20 * 128
# On an A100: k from which, and up to which, large tiles are kept; k of the few rows with 256 columns; elements of the
# results, and the k that they have at least.
_KEPT, _WIDE, _SMALL, _LEAST = (128, 6144), (512, 1024), 48 * 1024, 256.0
# The kernel for vectors, as a tile: 4 columns, 512 values along k a step, 64 blocks on an SM; and its most products.
_VECTOR, _VECTOR_MOST = (1, 4, 512, 1, 1, 64, 0), 2**21
_SLOW_CYCLES = 110.0  # that a step of few rows takes longer on data centre Blackwell


class Whole(NamedTuple):
    """Which products of a free choice leave k whole, however few blocks that makes; by default none.

    All have several rows, k below `LONG`, and no batch.
    """

    few: float = 0.0  # those of fewer multiplications than this
    narrow: float = 0.0  # those of up to so many rows or columns, and of more than 16 times this number of the other


#: By what kernels are compiled for.
WHOLE = {"sm89": Whole(few=2.0**21, narrow=64.0), "sm120": Whole(few=2.0**21)}


class Choice(NamedTuple):
    """Which tiles each shape may take: as :class:`gpuledger.models.time_model.gemms.dispatch.Candidates` has them."""

    tiles: np.ndarray
    first: np.ndarray
    last: np.ndarray
    least_k: np.ndarray | float = 0.0


def choice(
    generation: str,
    newer: bool,
    tiles: np.ndarray,
    sizes: tuple[np.ndarray, np.ndarray, np.ndarray],
    single: np.ndarray | bool,
    gpu: Gpu,
    operand_bytes: float = 2.0,
) -> Choice:
    """Return the tiles that cuBLAS chooses from in 16 bits, and on Hopper in fp8.

    Parameters
    ----------
    generation : str
        What kernels are compiled for, such as ``sm80``.
    newer : bool
        Whether it is known to be the version of `NAME`.
    tiles : float array of shape (tiles, 7)
        All of the generation, the largest first.
    sizes : three int64 arrays of shape (shapes,)
        m, n, k.
    single : bool array of shape (shapes,), or bool
        Whether it is no batch of products.
    operand_bytes : float
        1 of Hopper's products in fp8.
    """
    m, n, k = sizes
    first = np.zeros(len(m), np.int64)
    if generation == "sm100":
        if newer:
            sides = tiles[:, :2]
            tiles = tiles[((sides <= 24) | (sides % 32 == 0)).all(axis=1)]
        last = np.full(len(m), len(tiles))
        slow = _slow(m, n, k) & single
        first = np.where(slow, last + (m > 8), first)
        tiles = np.vstack([tiles, [(rows, 64, 64, 1, 1, 1, _SLOW_CYCLES) for rows in (8, 16)]])
        return Choice(tiles, first, np.where(slow, first + 1, last))
    last = np.full(len(m), len(tiles))
    if newer and generation == "sm90" and gpu.dram_bytes_per_s > _FAST_DRAM:
        which = np.where(single, _turned(m, n, k * operand_bytes), -1)
        turned = [(64, columns, tiles[0, 2], 1, across, 1, 0) for _, columns, across in _TURNED]
        found = which >= 0, last + which
        return Choice(np.vstack([tiles, turned]), np.where(*found, first), np.where(found[0], found[1] + 1, last))
    if newer and generation in _BY_WARPS:
        tiles = np.vstack([tiles, _VECTOR])
        last += (m == 1) & (n * k <= _VECTOR_MOST) & single
    if not (newer and generation == "sm80"):
        return Choice(tiles, first, last)
    named = [int(np.flatnonzero((tiles[:, :2] == size).all(axis=1))[0]) for size in ((256, 128), (128, 256), (32, 256))]
    counts = [-(-m // tiles[at, 0]) * -(-n // tiles[at, 1]) for at in named[:2]]
    kept = (np.minimum(*counts) > gpu.sms) & (np.minimum(m, n) > 64) & (k >= _KEPT[0]) & (k < _KEPT[1]) & single
    few = (m > 1) & (m <= _FEW_ROWS) & (n >= 2048) & (k >= _WIDE[0] + (m < 8)) & (k < _WIDE[1]) & single
    small = (m > _FEW_ROWS) & (m * n <= _SMALL) & single
    first = np.where(few, named[2], np.where(kept, np.where(counts[0] <= counts[1], *named[:2]), first))
    return Choice(tiles, first, np.where(kept | few, first + 1, last), np.where(small, _LEAST, 0.0))


def _turned(m: np.ndarray, n: np.ndarray, row_bytes: np.ndarray) -> np.ndarray:
    """Return which of `_TURNED` products have on an H200, -1 for none."""
    which = np.searchsorted([most for most, _, _ in _TURNED], n)
    rows = (m < 8) | ((m < 16) & (m != 8) & (which == 0))
    return np.where(rows & (n > _NARROW) & (which < len(_TURNED)) & (row_bytes <= _PARTS), which, -1)


def _slow(m: np.ndarray, n: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return which products of few rows get a kernel whose steps take twice as long."""
    rows = (m <= _FEW_ROWS) & (n >= 768) & (n <= np.where(m <= 8, 4096, 1024))
    return rows & (k <= np.maximum(n, 2048)) & ((n >= 1024) | (k < 2048))
