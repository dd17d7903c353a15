"""The tile that DeepGEMM has taken on Hopper since 2026, with the fewest estimated cycles; and which tiles stall.

Its host code estimates how long the bytes of all blocks take through L2 and through the shared memory of the SMs,
divides the longer time by the share of SMs that the waves keep busy, and takes the layout of the least: a tile, alone
or in a cluster of two blocks that fetch half of one operand for each other. Facts from deepseek-ai/DeepGEMM,
``csrc/jit_kernels/heuristics/sm90.hpp`` of 2026. SGLang's tables show that its copy chooses so: the shapes that this
rule gives a tile of 128 × 192 or 256 × 128 without a cluster take three to five times as long per step as others.

Why these stall is not in that code. Accumulators and sums of such a tile take 192 registers of each thread, and a step
takes about as long for both tiles: threads may have to put registers aside. How long (`_STALL`) was chosen on an H100's
and an H200's tables, held-back errors in sight. Clusters should fetch less out of L2; counted so, the errors grow.
"""

from functools import cache

import numpy as np

_STEP = 128  # elements along k of a step
_SHARED_BYTES = 232448
_MOST_STAGES = 16
_BARRIERS_BYTES = 256
# Bytes in a cycle: of shared memory of an SM; through L2 for an SM, and for all of them at most.
_SHARED_RATE, _L2_RATE, _L2_MOST = 128, 64, 6153
_LEAST_ROWS = 64  # that the matrix units take at once
# Blocks along m and n of a cluster, in the order of trial.
_CLUSTERS = ((1, 1), (1, 2), (2, 1))
# Elements from which a tile without a cluster stalls, and for how many cycles in a step.
_LARGE, _STALL = 128 * 192, 4500.0
_NEVER = np.iinfo(np.int64).max


@cache
def _layouts() -> tuple[tuple[int, int], ...]:
    """Return rows and columns of the tiles in the order of trial, but for those whose stages do not fit."""
    widths = [width for width in range(16, 193, 16) if width <= _STEP or _loops(width)]
    pairs = [(rows, width) for rows in (64, 128, 16, 32, 256) for width in widths]
    return tuple((rows, width) for rows, width in pairs if min(rows, width) <= 128)


def _loops(width: int) -> bool:
    # Columns beyond a step's scale have their own, which the loop over steps has to unroll.
    beyond = width - _STEP
    return width % beyond == 0 or _STEP % beyond == 0


def tiles_of(m: np.ndarray, n: np.ndarray, k: np.ndarray, sms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all tiles of the rule, how long they stall, and which one each product takes.

    Parameters
    ----------
    m, n, k : ndarray of int64, shape (shapes,)

    Returns
    -------
    tiles : ndarray of float64, shape (tiles, 2)
        Rows and columns: first of all tiles alone, then of all in clusters.
    stalls : ndarray of float64, shape (tiles,)
        Cycles that a step stalls.
    chosen : ndarray of int64, shape (shapes,)
    """
    layouts = _layouts()
    least = np.full((len(_CLUSTERS), len(m)), _NEVER)
    place = np.zeros((len(_CLUSTERS), len(m)), np.int64)
    steps = -(-k // _STEP)
    l2_rate = min(_L2_RATE * sms, _L2_MOST)
    for number, (rows, width) in enumerate(layouts):
        blocks = -(-m // rows) * -(-n // width)
        waves = -(-blocks // sms)
        fits = _enough_stages(rows, width, steps)
        if rows < _LEAST_ROWS:
            fits &= m <= rows
        result = rows * width * 2
        fetched = k * (rows + width)
        shared = (fetched + k * (max(_LEAST_ROWS, rows) + width) + 2 * result) * blocks // (_SHARED_RATE * sms)
        busy = (blocks / (waves * sms)).astype(np.float32)
        for cluster, (high, wide) in enumerate(_CLUSTERS):
            through = (k * (rows // wide + width // high) + result) * blocks // l2_rate
            cycles = (np.maximum(shared, through).astype(np.float32) / busy).astype(np.int64)
            better = fits & (cycles < least[cluster])
            if cluster:
                better &= waves > 1
            least[cluster, better], place[cluster, better] = cycles[better], number
    # The first of equals: alone, if it can be.
    cluster = np.argmin(least, axis=0)
    tiles = np.array(layouts * 2, dtype=float)
    stalls = np.where(tiles.prod(axis=1) >= _LARGE, _STALL, 0.0)
    stalls[len(layouts) :] = 0.0
    return tiles, stalls, place[cluster, np.arange(len(m))] + (cluster > 0) * len(layouts)


def _enough_stages(rows: int, width: int, steps: np.ndarray) -> np.ndarray:
    """Return whether enough steps are on their way at once to hide how long they take."""
    result = -(-rows * width * 2 // 1024) * 1024
    scales = -(-steps * 4 * (1 if _STEP % width == 0 else 2) // 8) * 8
    stage = (rows + width) * _STEP + -(-rows * 4 // 128) * 128
    stages = np.minimum((_SHARED_BYTES - result - _BARRIERS_BYTES - scales) // stage, _MOST_STAGES)
    return stages >= (3 if rows * width >= _LARGE else 4)
