"""What the kernels of ``cuda_sources/normalization.cu`` offer, and what their results must be; needs no GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Lanes of a row, slots of 16 bytes of a lane, threads of a block, as ``normalization.cu`` has them.
CONFIGURATIONS = (
    *((lanes, 1, 256) for lanes in (4, 8, 16)),
    *((32, slots, 256) for slots in (1, 2, 4, 8)),
    *((128, slots, 128) for slots in (2, 4, 8)),
    *((lanes, slots, lanes) for lanes in (256, 512, 1024) for slots in (4, 8)),
)
STREAMING = (1024, 4, 1024)
#: What each round of that one keeps in shared memory, as far as there is any (bytes).
KEPT_BYTES = 16 * STREAMING[0] * STREAMING[1]


@dataclass(frozen=True)
class Configuration:
    """A kernel and how it divides rows among threads.

    Attributes
    ----------
    kernel : str
        Name in the source.
    threads : int
        Of a block.
    block_rows : int
        Rows that a block has at a time.
    """

    kernel: str
    threads: int
    block_rows: int

    def blocks(self, rows: int, at_most: int | None = None) -> int:
        """Blocks that give every row a place of its own, or `at_most` that take turns."""
        return max(1, min(math.ceil(rows / self.block_rows), at_most or 2**31 - 1))


TWO_PASS = Configuration("two_pass", 256, 1)


def configurations(length: int) -> list[Configuration]:
    """Return the configurations of the optimised kernel that suit a length, those with the fewest lanes first.

    A configuration suits when its registers hold the row, and not twice as many as the smallest that does; longer rows
    are read twice.
    """
    aligned = length % 4 == 0
    suffix = "_aligned" if aligned else ""
    capacities = {(lanes, slots, threads): 4 * lanes * slots for lanes, slots, threads in CONFIGURATIONS}
    enough = {key: held for key, held in capacities.items() if held - (0 if aligned else 3) >= length}
    if not enough:
        lanes, slots, threads = STREAMING
        return [Configuration(f"streaming_{lanes}x{slots}{suffix}", threads, 1)]
    return [
        Configuration(f"one_pass_{lanes}x{slots}{suffix}", threads, threads // lanes)
        for (lanes, slots, threads), held in sorted(enough.items())
        if held < 2 * min(enough.values())
    ]


def reference(x: Any) -> Any:
    """Normalize rows in double precision: what kernels are compared with.

    Parameters
    ----------
    x : ndarray, shape (rows, length)
        Of NumPy or CuPy.

    Returns
    -------
    ndarray of float64, of the same shape
        Zeros for rows of equal values, NaN for rows with a NaN or an infinity.
    """
    wide = x.astype("float64")
    with np.errstate(invalid="ignore"):
        deviation = wide - wide.mean(axis=1, keepdims=True)
        # Equal values: their mean may differ from them in the last digit.
        deviation *= x.max(axis=1, keepdims=True) != x.min(axis=1, keepdims=True)
        std = (deviation * deviation).mean(axis=1, keepdims=True) ** 0.5
        return deviation / (std + (std == 0))


def tolerance(length: int) -> float:
    """Largest error of a result y, relative to max(1, \\|y\\|), that rounding explains.

    The difference to the row's first value is rounded to 2^-24 of itself, and it can be √length standard deviations;
    sums in a tree add a few roundings more.
    """
    return 2.0**-24 * (16 + 2 * math.sqrt(length))


def largest_error(y: Any, expected: Any) -> float:
    """Largest error of a result relative to max(1, \\|expected\\|); infinite where only one of the two is NaN."""
    if bool(((y != y) != (expected != expected)).any()):
        return math.inf
    error = abs(y.astype("float64") - expected)
    scale = abs(expected)
    relative = error / (scale + (1 - scale) * (scale < 1))
    relative[relative != relative] = 0  # NaN in both
    return float(relative.max())


def hostile_rows(length: int, seed: int = 0) -> np.ndarray:
    """Return rows that are hard to normalize: ndarray of float32, shape (kinds, length).

    Normal, far from zero, an outlier at the front and at the end, huge, tiny, denormal, of both signs up to the largest
    number, constant (also huge and 0), two values one rounding apart, NaN, infinite.
    """
    rng = np.random.default_rng([seed, length])
    normal = rng.standard_normal(length).astype(np.float32)
    big = np.finfo(np.float32).max
    rows = np.array(
        [
            normal,
            normal + np.float32(1e6),
            normal * np.float32(1e30),
            normal * np.float32(1e-30),
            normal * np.float32(1e-42),
            np.where(normal < 0, -big, big),
            np.where(normal < 0, np.float32(big) / 2, big),
            normal,
            normal,
            np.full(length, 0.1),
            np.full(length, big),
            np.zeros(length),
            np.where(normal < 0, np.float32(1), np.nextafter(np.float32(1), np.float32(2))),
            normal,
            normal,
        ],
        np.float32,
    )
    rows[7, 0] = rows[8, -1] = 1e6
    rows[13, length // 2] = np.nan
    rows[14, length - 1] = np.inf
    return rows
