"""Tiles that a GEMM library can choose from, by generation of the matrix units.

They are what the libraries' kernels of a generation have, and the same for every GPU of it.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from gpuledger.readers.gpus import Gpu

#: Ways to split k among blocks whose partial sums are added afterwards.
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class Generation:
    """What GEMM kernels of one generation have in common."""

    #: Tile sizes along m (activations) and n (weights).
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    largest: int  # elements of the largest tile: more do not fit the accumulators
    step_bytes: int  # bytes of an operand's row in one step along k; k is padded to it
    #: By which share long kernels usually take longer, because at full use the matrix units draw more power than boards
    #: allow: what another generation's measurements cannot tell.
    throttled: float
    #: Bytes that an SM gets from DRAM in a cycle at most: what it has in flight over the latency. The bulk copy engine
    #: keeps a third more on its way than threads do that load for themselves (chosen by CUTLASS's fp8 kernels on an
    #: H100 and a B200, which do not split k; beyond it nothing is gained there, and large bf16 products lose).
    flight: float
    #: Rate at which all SMs take in operands out of L2 that no other SM asks for, over that of
    #: :mod:`gpuledger.models.time_model.l2` (chosen on the bf16 tables of an A100, an H100 and a B200).
    stream: float
    #: Multiplications that the matrix units of an SM miss at each tile, for each of its rows and columns: warps that
    #: multiply out of registers wait for the tile's first operands, and write its results themselves (chosen on
    #: bf16 and fp8 of A100 and L40S, by the fitting halves only; not tried on products with a batch).
    turnover: float

    def tiles(self) -> np.ndarray:
        """Return all tiles, the largest first: shape (tiles, 2) of m, n; int64."""
        return _tiles(self)


@cache
def nvjet_tiles(operand_bytes: float) -> np.ndarray:
    """Return the tiles that cuBLAS has for Hopper, the largest first: shape (tiles, 2) of m, n; int64.

    A side is what groups of warps multiply together (64 rows of an operand each), the other any multiple of 8. Columns
    mostly have the first kind of side, and fewer tiles the other way round. The names of kernels that an H200 launched
    for 54,169 shapes say so, and that the largest has 40 Ki elements in 16 bits, half as many in 8 (dataset
    nvidia-h200-gemm; 4 % of them have others, which are left out).
    """
    most = 20 * 1024 * operand_bytes
    eighths = range(8, 257, 8)
    pairs = {(rows, columns) for columns in (64, 128, 192, 256, 320, 512) for rows in eighths}
    pairs |= {(rows, columns) for rows in (64, 128) for columns in eighths[:16]}
    pairs = {(rows, columns) for rows, columns in pairs if rows * columns <= most}
    return np.array(sorted(pairs, key=lambda pair: (-pair[0] * pair[1], pair)), dtype=np.int64)


@cache
def _tiles(generation: Generation) -> np.ndarray:
    pairs = {(a, b) for a in generation.rows for b in generation.columns}
    # A library computes the transposed product as well, if the units take operands of that size from both sides.
    pairs |= {(b, a) for a, b in pairs if a >= min(generation.columns)}
    pairs = {(a, b) for a, b in pairs if a * b <= generation.largest}
    return np.array(sorted(pairs, key=lambda pair: (-pair[0] * pair[1], pair)), dtype=np.int64)


#: Multiplications of one warp out of registers (mma.sync). Tiles as in the names of cuBLAS's kernels for such GPUs
#: (``ampere_bf16_s16816gemm_bf16_128x64_...``); smaller ones exist, but hardly win.
WARP = Generation((32, 64, 128, 256), (64, 128, 256), 128 * 256, 64, 0.0, 30.0, 1.0, 4096.0)
#: Asynchronous multiplications of four warps out of shared memory (wgmma, tcgen05): multiples of 64 by multiples of 8,
#: fetched by the bulk copy engine in rows of 128 bytes; tiles as in the names of cuBLAS's kernels ``nvjet_...``.
WARP_GROUP = Generation(
    (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    (64, 128, 192, 256),
    192 * 256,
    128,
    0.2,
    40.0,
    1.4,
    0.0,
)


def stacked(gpu: Gpu) -> bool:
    """Return whether the DRAM is stacked (HBM); where the data sheet does not say, SMs of such GPUs hold more.

    No GPU of Turing or Ada has HBM.
    """
    if gpu.memory:
        return gpu.memory.upper().startswith("HBM")
    return gpu.architecture not in ("turing", "ada") and not gpu.shared_memory_bytes_per_sm < 160 * 1024


def generation_of(gpu: Gpu) -> Generation:
    """Return the generation of a GPU's matrix units; unknown hardware counts as the older one."""
    # Consumer Blackwell has neither wgmma nor tcgen05, nor HBM, and the 100 KiB of shared memory of the older kind.
    large = stacked(gpu) and not gpu.shared_memory_bytes_per_sm < 200 * 1024
    return WARP_GROUP if gpu.architecture in ("hopper", "blackwell") and large else WARP
