"""Simulated kernels: what a block does, how long it takes, and how that was calibrated.

Sources: S. Huang, C. Wu, Neutrino, OSDI 2025 (the paper), and outputs printed in the artifact and the documentation.
"""

from dataclasses import dataclass, replace

import numpy as np

from gpuledger.models.simulate.machine import ALONE, Contention
from gpuledger.readers.neutrino import LaunchShape

WARP_SIZE = 32


@dataclass(frozen=True)
class SimulatedKernel(LaunchShape):
    """A kernel whose blocks all do the same work.

    A block has a prologue, a loop and an epilogue. An iteration takes `compute_cycles` plus an exponentially
    distributed wait for memory; both are for a block alone on its SM.
    """

    name: str  # as in event.log
    #: ``(x, y, z)`` each.
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    slots: int  # blocks that fit on an SM at the same time
    iterations: int  # iterations of the loop
    compute_cycles: float  # time of an iteration without its wait (cycles)
    wait_cycles: float  # mean wait of an iteration (cycles)
    contention: Contention = ALONE
    cold_share: float = 0.0  # relative extra time of the first wave, whose data are not cached yet
    #: Time before and after the loop (cycles). The prologue varies uniformly by ±50 %.
    prologue_cycles: float = 0.0
    epilogue_cycles: float = 0.0
    shared_bytes: int = 0  # dynamic shared memory per block

    @property
    def warps(self) -> int:
        """Warps per block."""
        return self.threads // WARP_SIZE

    def steps(self, first_wave: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the work of every step of every block.

        Parameters
        ----------
        first_wave : int
            Number of blocks, from the first on, that start with cold caches.

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


#: torch.zeros((4096, 4096), float16): 32,768 blocks of 128 threads (printed log), 16 of which fill the 2,048 threads
#: of an SM. Calibrated on the printed Running 602,241 cycles per SM, that is 1,985 cycles per block. The waits must be
#: short, because the upstream estimator only finds Scheduling 87,713 if blocks run equally long.
FILL = SimulatedKernel(
    name="_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIN3c104HalfEEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_",
    grid=(32768, 1, 1),
    block=(128, 1, 1),
    slots=16,
    iterations=1,
    compute_cycles=1968.4,
    wait_cycles=20.0,
)

#: The same by a persistent kernel with one block per SM: 4096² elements in 131,072 pieces of 128 over 108 blocks of 8
#: warps. Calibrated on the published 24,891 ns (paper, Sec. 4.6), which is 35,096 cycles at 1.41 GHz.
PERSISTENT_FILL = SimulatedKernel(
    name="zero_persistent",
    grid=(108, 1, 1),
    block=(256, 1, 1),
    slots=1,
    iterations=1214,
    compute_cycles=26.9,
    wait_cycles=2.0,
)

#: FlashAttention-v2 on (4, 32, 4096, 64): 32 query tiles for each of 128 heads, 32 tiles of 128 keys. 8 warps with 255
#: registers per thread use the whole register file, so a block has its SM to itself. Fitted to Fig. 14A: two numbers.
FLASH2_EXCLUSIVE = SimulatedKernel(
    name="_attn_fwd",
    grid=(32, 128, 1),
    block=(256, 1, 1),
    slots=1,
    iterations=32,
    compute_cycles=6569.0,
    wait_cycles=462.0,
    shared_bytes=81920,
)

#: The same with tiles of 64 keys and 4 warps, so that two blocks share an SM. Fitted to Fig. 14B: the work, its spread
#: and the younger block's speed. The shape of the distribution then follows from first come, first served.
FLASH2_SHARED = replace(
    FLASH2_EXCLUSIVE,
    block=(128, 1, 1),
    slots=2,
    iterations=64,
    compute_cycles=5563.0,
    wait_cycles=137.0,
    contention=Contention(older=1.0, younger=0.765),
    shared_bytes=49152,
)

#: GEMM 4096³ with tiles of 128×256 and 64 steps of 64 in k, 8 warps, 3 stages. Fitted to Fig. 17A.
GEMM_EXCLUSIVE = SimulatedKernel(
    name="matmul_kernel",
    grid=(512, 1, 1),
    block=(256, 1, 1),
    slots=1,
    iterations=64,
    compute_cycles=2198.8,
    wait_cycles=83.5,
    shared_bytes=147456,
)

#: The same with tiles of 128×128 and 4 warps, so that two blocks share an SM. Fitted to Fig. 17B: the work, its spread,
#: both speeds and the share by which the first wave is slower.
GEMM_SHARED = replace(
    GEMM_EXCLUSIVE,
    grid=(1024, 1, 1),
    block=(128, 1, 1),
    slots=2,
    compute_cycles=1407.5,
    wait_cycles=74.6,
    contention=Contention(older=0.8818, younger=0.4697),
    cold_share=0.043,
    shared_bytes=81920,
)
