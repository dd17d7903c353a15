"""What the probes ``block_sched`` and ``program_progress`` would record for a kernel."""

from dataclasses import dataclass

import numpy as np

from gpuledger.models.simulate.kernels import SimulatedKernel
from gpuledger.models.simulate.machine import BlockTimes, MachineModel, run_blocks
from gpuledger.readers.neutrino import BLOCK_SCHED, PROGRAM_PROGRESS, TOOLS

#: Warps of a block start this far apart, and end within this window (cycles); modelling choices.
WARP_START_CYCLES = 4
WARP_END_CYCLES = 12


@dataclass(frozen=True)
class Run:
    """A finished kernel."""

    machine: MachineModel
    kernel: SimulatedKernel
    timeline: BlockTimes
    #: float, shape (blocks, iterations + 2): work done at the end of every step (cycles alone on an SM); see
    #: :meth:`SimulatedKernel.steps`.
    done: np.ndarray
    origins: np.ndarray  # uint64, one for each block: clock of the block's SM at the launch (cycles)

    @property
    def cycles(self) -> int:
        """From the launch to the end of the last block."""
        return int(self.timeline.end.max())


def run_kernel(machine: MachineModel, kernel: SimulatedKernel, rng: np.random.Generator) -> Run:
    """Run a kernel alone on a machine."""
    done = np.cumsum(kernel.steps(min(kernel.blocks, machine.sms * kernel.slots), rng), axis=1)
    timeline = run_blocks(machine, done[:, -1], kernel.slots, kernel.contention, rng)
    return Run(machine, kernel, timeline, done, machine.clock_origins(rng)[timeline.sm])


def block_sched_records(run: Run, rng: np.random.Generator) -> np.ndarray:
    """Return the records of ``block_sched``: start, elapsed cycles and SM of every warp.

    Warps of a block start one after another and end within a few cycles, because the barriers of every iteration keep
    them together.

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
    """Return the records of ``program_progress``: the SM's clock at the branch that ends each iteration.

    They are saved once per warp, because the threads of a warp branch together; Neutrino's probe would save them for
    each thread, 32 times as much. Slots beyond the last iteration are zero, as the driver clears the buffer.

    Returns
    -------
    ndarray of PROGRAM_PROGRESS, shape (blocks, warps, 128)
    """
    kernel, timeline = run.kernel, run.timeline
    branches = timeline.start[:, None] + timeline.since_start(run.done[:, 1:-1]).astype(np.int64)
    late = rng.integers(0, WARP_END_CYCLES + 1, (kernel.blocks, kernel.warps, kernel.iterations))
    # A warp cannot branch after its end.
    times = np.minimum(branches[:, None, :] + late, timeline.end[:, None, None] - WARP_END_CYCLES)
    clocks = run.origins[:, None, None] + times.astype(np.uint64)
    records = np.zeros((kernel.blocks, kernel.warps, TOOLS["program_progress"].cap), PROGRAM_PROGRESS)
    records["clock"][:, :, : kernel.iterations] = clocks
    return records
