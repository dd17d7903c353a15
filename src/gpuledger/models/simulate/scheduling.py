"""What the probes ``block_sched`` and ``program_progress`` would record of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger.models.simulate.gpu import Gpu, Timeline, run_blocks
from gpuledger.models.simulate.kernels import WARP_SIZE, Kernel
from gpuledger.readers.neutrino import BLOCK_SCHED, PROGRAM_PROGRESS, TOOLS

#: Warps of a block start and end within so many cycles of one another; a choice of the model.
WARP_START_CYCLES = 4
WARP_END_CYCLES = 12


@dataclass(frozen=True)
class Run:
    """A kernel that has run.

    Attributes
    ----------
    gpu : Gpu
    kernel : Kernel
    timeline : Timeline
    done : ndarray of float, shape (blocks, iterations + 2)
        Work done at the end of every step (cycles alone on an SM); see :meth:`Kernel.steps`.
    origins : ndarray of uint64, one for each block
        What the clock of its SM showed at the launch (cycles).
    """

    gpu: Gpu
    kernel: Kernel
    timeline: Timeline
    done: np.ndarray
    origins: np.ndarray

    @property
    def cycles(self) -> int:
        """From the launch to the end of the last block."""
        return int(self.timeline.end.max())


def run_kernel(gpu: Gpu, kernel: Kernel, rng: np.random.Generator) -> Run:
    """Run a kernel on a machine that has nothing else to do."""
    done = np.cumsum(kernel.steps(min(kernel.blocks, gpu.sms * kernel.slots), rng), axis=1)
    timeline = run_blocks(gpu, done[:, -1], kernel.slots, kernel.contention, rng)
    return Run(gpu, kernel, timeline, done, gpu.clock_origins(rng)[timeline.sm])


def block_sched_records(run: Run, rng: np.random.Generator) -> np.ndarray:
    """Return what ``block_sched`` records: start, elapsed cycles and SM of every warp.

    A block runs from its first warp's start to its last warp's end. Its warps start one after another and end
    within a few cycles, because barriers in every iteration hold them together.

    Returns
    -------
    ndarray of BLOCK_SCHED, shape (blocks, warps, 1)
    """
    shape = (run.kernel.blocks, run.kernel.warps)
    early = rng.integers(0, WARP_END_CYCLES + 1, shape)
    early -= early.min(axis=1, keepdims=True)
    start = run.timeline.start[:, None] + WARP_START_CYCLES * np.arange(run.kernel.warps)
    records = np.zeros(shape, BLOCK_SCHED)
    records["start"] = run.origins[:, None] + start.astype(np.uint64)
    records["elapsed"] = run.timeline.end[:, None] - early - start
    records["cuid"] = run.timeline.sm[:, None]
    return records[:, :, None]


def progress_records(run: Run, rng: np.random.Generator) -> np.ndarray:
    """Return what ``program_progress`` records: the SM's clock at the branch that ends each iteration.

    Threads of a warp branch together. Slots beyond the last iteration stay zero, as the driver clears them.

    Returns
    -------
    ndarray of PROGRAM_PROGRESS, shape (blocks, threads, 128)
    """
    kernel, timeline = run.kernel, run.timeline
    branches = timeline.start[:, None] + timeline.since_start(run.done[:, 1:-1]).astype(np.int64)
    late = rng.integers(0, WARP_END_CYCLES + 1, (kernel.blocks, kernel.warps, kernel.iterations))
    # No warp branches after its own end.
    times = np.minimum(branches[:, None, :] + late, timeline.end[:, None, None] - WARP_END_CYCLES)
    clocks = run.origins[:, None, None] + times.astype(np.uint64)
    records = np.zeros((kernel.blocks, kernel.threads, TOOLS["program_progress"].cap), PROGRAM_PROGRESS)
    records["clock"][:, :, : kernel.iterations] = np.repeat(clocks, WARP_SIZE, axis=1)
    return records
