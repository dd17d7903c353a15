"""Configurations of the kernels in ``cuda_sources/normalization.cu`` and their expected results; needs no GPU."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Lanes per row, slots of 16 bytes per lane, threads per block, as instantiated in ``normalization.cu``.
CONFIGURATIONS = (
    *((lanes, 1, 256) for lanes in (4, 8, 16)),
    *((32, slots, 256) for slots in (1, 2, 4, 8)),
    *((128, slots, 128) for slots in (2, 4, 8)),
    *((lanes, slots, lanes) for lanes in (256, 512, 1024) for slots in (4, 8)),
    *((4, 4, 256), (8, 2, 256), (8, 4, 256), (16, 2, 256)),  # more of a short row under way in each thread
)
#: Likewise, of each block of a cluster, which holds a row together from compute capability 9.0 on; blocks of a cluster.
CLUSTERED = (512, 8, 512)
CLUSTERS = (2, 4, 8)
STREAMING = (1024, 4, 1024)
#: Blocks of a cluster that keeps a row together in shared memory.
CLUSTER = 8
#: By type of elements: its number in the source, the type of arrays, and the bits of a significand.
ELEMENTS = {"fp32": (0, np.float32, 24), "fp16": (1, np.float16, 11), "bf16": (2, np.int16, 8)}
#: Bytes that each round of the streaming kernels keeps in shared memory, as far as there is room.
KEPT_BYTES = 16 * STREAMING[0] * STREAMING[1]


@dataclass(frozen=True)
class Configuration:
    """A kernel and how it divides rows among threads."""

    kernel: str  # name in the source
    threads: int  # threads per block
    block_rows: int  # rows that a block, or a cluster, processes at a time
    cluster: int = 1  # blocks that process a row together

    def blocks(self, rows: int, at_most: int | None = None) -> int:
        """Number of blocks that process all rows at once, limited to `at_most`; a multiple of the cluster."""
        together = min(math.ceil(rows / self.block_rows), (at_most or 2**31 - 1) // self.cluster)
        return self.cluster * max(1, together)

    def kept_bytes(self, length: int, room: int, element: str = "fp32") -> int:
        """Dynamic shared memory of each block: what its part of a row needs, as far as there is `room`; else 0."""
        if not self.kernel.startswith(("streaming", "clustered")):
            return 0
        rounds = math.ceil(16 * (length // values_of_slot(element)) / KEPT_BYTES / self.cluster)
        return min(rounds, room // KEPT_BYTES) * KEPT_BYTES


def values_of_slot(element: str) -> int:
    """Values in 16 bytes, which the kernels load and store at a time."""
    return 16 // np.dtype(ELEMENTS[element][1]).itemsize


TWO_PASS = Configuration("two_pass", 256, 1)


def configurations(length: int, clusters: bool = False, element: str = "fp32") -> list[Configuration]:
    """Return the configurations of the optimised kernel that suit a row length, those with the fewest lanes first.

    A configuration is suitable if its registers hold a row, and less than twice as much as the smallest one that does;
    with `clusters`, those of several blocks may do so together. Of longer rows, a block or cluster keeps what its
    shared memory holds, and reads the rest twice.
    """
    values = values_of_slot(element)
    suffix = "" if length % values else "_aligned"
    held = {("one_pass", *configuration, 1): configuration[0] * configuration[1] for configuration in CONFIGURATIONS}
    if clusters:
        held |= {(f"cluster{n}", *CLUSTERED, n): CLUSTERED[0] * CLUSTERED[1] * n for n in CLUSTERS}
    enough = {key: values * slots for key, slots in held.items() if values * slots >= length}
    if not enough:
        lanes, slots, threads = STREAMING
        names = {"streaming": 1} | ({"clustered": CLUSTER} if clusters else {})
        return [Configuration(f"{name}_{lanes}x{slots}{suffix}", threads, 1, n) for name, n in names.items()]
    return [
        Configuration(f"{name}_{lanes}x{slots}{suffix}", threads, threads // lanes, blocks)
        for (name, lanes, slots, threads, blocks), most in sorted(enough.items(), key=lambda item: item[0][1:])
        if most < 2 * min(enough.values())
    ]


def reference(x: Any) -> Any:
    """Normalize rows in double precision, as the reference for the kernels.

    Parameters
    ----------
    x : ndarray, shape (rows, length)
        Single precision.

    Returns
    -------
    ndarray of float64, shape (rows, length)
        Zeros for rows of equal values, NaN for rows with a NaN or an infinity.
    """
    wide = x.astype("float64")
    with np.errstate(invalid="ignore"):
        deviation = wide - wide.mean(axis=1, keepdims=True)
        # The mean of equal values may differ from them in the last digit.
        deviation *= x.max(axis=1, keepdims=True) != x.min(axis=1, keepdims=True)
        std = (deviation * deviation).mean(axis=1, keepdims=True) ** 0.5
        return deviation / (std + (std == 0))


def to_elements(values: np.ndarray, element: str) -> np.ndarray:
    """Round single precision to a type of elements; bf16, which NumPy lacks, is returned as bits."""
    if element != "bf16":
        return values.astype(ELEMENTS[element][1])
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16).view(np.int16)


def from_elements(values: np.ndarray, element: str) -> np.ndarray:
    """Return elements in single precision."""
    if element != "bf16":
        return values.astype(np.float32)
    return (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def tolerance(length: int, element: str = "fp32") -> float:
    """Largest error of a result y, relative to max(1, \\|y\\|), that rounding can cause.

    The difference from the row's first value can be √length standard deviations, where that value is an outlier. Two of
    the four roundings of that size are the difference's and its mean's subtraction; two are the mean's own: its sum is
    a tree, whose roundings mostly cancel (at most 2.53 of 4 on an H200, and on a CPU, up to 131,072 values). Elements
    of 16 bits round the result once more.
    """
    bits = ELEMENTS[element][2]
    return 2.0**-24 * (16 + 4 * math.sqrt(length)) + (2.0**-bits if bits < 24 else 0)


def largest_error(y: Any, expected: Any) -> float:
    """Largest error of a result relative to max(1, \\|expected\\|); infinite if only one of them is NaN."""
    if bool(((y != y) != (expected != expected)).any()):
        return math.inf
    error = abs(y.astype("float64") - expected)
    scale = abs(expected)
    relative = error / (scale + (1 - scale) * (scale < 1))
    relative[relative != relative] = 0  # NaN in both
    return float(relative.max())


def hostile_rows(length: int, seed: int = 0) -> np.ndarray:
    """Return rows that are difficult to normalize: ndarray of float32, shape (kinds, length).

    Normal, far from zero, huge, tiny, denormal, of both signs up to the largest number, an outlier at the front and at
    the end, constant (also huge and 0), two adjacent floating-point numbers, NaN, infinite.
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
