"""Kernels of the model: what a block does, how long it takes, and how that was calibrated.

Sources: S. Huang, C. Wu, Neutrino, OSDI 2025 (the paper), and the artifact's and documentation's printed outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from gpuledger.models.simulate.gpu import ALONE, Contention

WARP_SIZE = 32


@dataclass(frozen=True)
class Kernel:
    """A kernel whose blocks all do the same.

    A block has a prologue, a loop and an epilogue. Every iteration takes `compute_cycles` and a wait for memory that
    is drawn from an exponential distribution, both for a block that has its SM to itself.

    Attributes
    ----------
    name : str
        As it would stand in event.log.
    grid, block : (int, int, int)
        ``(x, y, z)`` each.
    slots : int
        Blocks that fit on an SM at once.
    iterations : int
        Of the loop.
    compute_cycles : float
        Of an iteration without its wait (cycles).
    wait_cycles : float
        Mean wait of an iteration (cycles).
    contention : Contention
    cold_share : float
        What blocks of the first wave need beyond the others, as a share: their data are in no cache yet.
    prologue_cycles, epilogue_cycles : float
        Before and after the loop (cycles). The prologue varies uniformly by half of it either way.
    shared_bytes : int
        Dynamic shared memory of a block.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    slots: int
    iterations: int
    compute_cycles: float
    wait_cycles: float
    contention: Contention = ALONE
    cold_share: float = 0.0
    prologue_cycles: float = 0.0
    epilogue_cycles: float = 0.0
    shared_bytes: int = 0

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // WARP_SIZE

    def steps(self, first_wave: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the work of every block, step by step.

        Parameters
        ----------
        first_wave : int
            How many blocks, from the first on, find the caches cold.
        rng : numpy.random.Generator

        Returns
        -------
        ndarray of float, shape (blocks, iterations + 2)
            Cycles alone on an SM: prologue, every iteration, epilogue.
        """
        steps = np.empty((self.blocks, self.iterations + 2))
        steps[:, 0] = self.prologue_cycles * (0.5 + rng.random(self.blocks))
        waits = rng.standard_exponential((self.blocks, self.iterations))
        steps[:, 1:-1] = self.compute_cycles + self.wait_cycles * waits
        steps[:, -1] = self.epilogue_cycles
        steps[:first_wave] *= 1 + self.cold_share
        return steps


#: torch.zeros((4096, 4096), float16): 32,768 blocks of 128 threads (printed log), 16 of them fill the 2,048 threads
#: of an SM. Calibrated on the printed Running 602,241 cycles per SM, hence 1,985 cycles a block; that the waits are
#: short follows from Scheduling 87,713, which the upstream estimator only finds when blocks run equally long.
FILL = Kernel(
    name="_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIN3c104HalfEEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_",
    grid=(32768, 1, 1),
    block=(128, 1, 1),
    slots=16,
    iterations=1,
    compute_cycles=1968.4,
    wait_cycles=20.0,
)

#: The same by a persistent kernel, one block an SM: 4096² elements in 131,072 pieces of 128 over 108 blocks of 8 warps.
#: Calibrated on the published 24,891 ns (paper §4.6), which are 35,096 cycles at 1.41 GHz.
PERSISTENT_FILL = Kernel(
    name="zero_persistent",
    grid=(108, 1, 1),
    block=(256, 1, 1),
    slots=1,
    iterations=1214,
    compute_cycles=26.9,
    wait_cycles=2.0,
)

#: FlashAttention-v2 on (4, 32, 4096, 64): 32 query tiles for each of 128 heads. 8 warps with 255 registers a thread
#: take the register file of an SM, so a block is alone. 32 tiles of 128 keys. Two numbers are fitted to Fig. 14A.
FLASH2_EXCLUSIVE = Kernel(
    name="_attn_fwd",
    grid=(32, 128, 1),
    block=(256, 1, 1),
    slots=1,
    iterations=32,
    compute_cycles=6569.0,
    wait_cycles=462.0,
    shared_bytes=81920,
)

#: The same with tiles of 64 keys and 4 warps: two blocks share an SM. Fitted to Fig. 14B: the work, its spread and the
#: younger block's speed; the shape of the distribution then follows from first come, first served.
FLASH2_SHARED = Kernel(
    name="_attn_fwd",
    grid=(32, 128, 1),
    block=(128, 1, 1),
    slots=2,
    iterations=64,
    compute_cycles=5563.0,
    wait_cycles=137.0,
    contention=Contention(older=1.0, younger=0.765),
    shared_bytes=49152,
)

#: GEMM 4096³ with tiles of 128×256 and 64 steps of 64 in k, 8 warps, 3 stages. Fitted to Fig. 17A.
GEMM_EXCLUSIVE = Kernel(
    name="matmul_kernel",
    grid=(512, 1, 1),
    block=(256, 1, 1),
    slots=1,
    iterations=64,
    compute_cycles=2198.8,
    wait_cycles=83.5,
    shared_bytes=147456,
)

#: GEMM 4096³ with tiles of 128×128, 4 warps: two blocks share an SM. Fitted to Fig. 17B: the work, its spread, both
#: speeds and the share by which the first wave is slower.
GEMM_SHARED = Kernel(
    name="matmul_kernel",
    grid=(1024, 1, 1),
    block=(128, 1, 1),
    slots=2,
    iterations=64,
    compute_cycles=1407.5,
    wait_cycles=74.6,
    contention=Contention(older=0.8818, younger=0.4697),
    cold_share=0.043,
    shared_bytes=81920,
)

#: FLASH2_SHARED on (1, 4, 4096, 64): the timelines need 1 KiB for every thread, so there are 4 heads in place of 128.
FLASH2_PROGRESS = Kernel(
    name="_attn_fwd",
    grid=(32, 4, 1),
    block=(128, 1, 1),
    slots=2,
    iterations=64,
    compute_cycles=FLASH2_SHARED.compute_cycles,
    wait_cycles=FLASH2_SHARED.wait_cycles,
    contention=FLASH2_SHARED.contention,
    shared_bytes=FLASH2_SHARED.shared_bytes,
)
