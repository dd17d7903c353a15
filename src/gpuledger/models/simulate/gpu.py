"""A GPU that runs blocks: slots, dispatch in order, replacement gaps, and co-resident blocks that slow each other.

Everything is in cycles of one clock; only what a probe records is in the clock of its SM, which has its own origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np


@dataclass(frozen=True)
class Gpu:
    """The machine.

    Attributes
    ----------
    sms : int
        Streaming multiprocessors; 108 is an NVIDIA A100.
    gap_cycles : (int, int)
        Bounds of the gap between the end of a block and the start of the one that takes its slot, uniform (cycles).
        Their mean is calibrated on the published Scheduling of the fill, 87,713 cycles per SM.
    launch_interval_cycles : int
        Between the starts of two blocks of the first wave (cycles); a choice of the model.
    clock_hz : float
        SM clock; 1.41 GHz is the boost clock of an A100. Only the times in event.log depend on it.
    clock_origin_cycles, clock_spread_cycles : int
        Every SM counts from an origin of its own, uniform in [origin, origin + spread) (cycles); a choice.
    """

    sms: int = 108
    gap_cycles: tuple[int, int] = (200, 400)
    launch_interval_cycles: int = 1
    clock_hz: float = 1.41e9
    clock_origin_cycles: int = 3_000_000_000_000
    clock_spread_cycles: int = 2_000_000_000

    def clock_origins(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the origin of every SM's clock (cycles)."""
        low = self.clock_origin_cycles
        return rng.integers(low, low + self.clock_spread_cycles, self.sms, dtype=np.uint64)


@dataclass(frozen=True)
class Contention:
    """How fast a block runs beside others, relative to having its SM to itself.

    First come, first served: the block that is longest on an SM runs at `older`, every other one at `younger`. When
    it ends, the next one is the oldest and runs at `older`; the last one alone runs at 1. The published timelines
    (OSDI 2025, Fig. 14C) show just this: slow until the earlier block ends, then fast.
    """

    older: float = 1.0
    younger: float = 1.0

    def speed(self, rank: int, resident: int) -> float:
        """Speed of the block with `rank` others before it, of `resident` in all."""
        if resident == 1:
            return 1.0
        return self.younger if rank else self.older


#: Blocks do not slow each other, or there are none beside them.
ALONE = Contention()


@dataclass(frozen=True)
class Timeline:
    """When blocks ran, and where.

    Attributes
    ----------
    sm : ndarray of int, one for each block
    start, end : ndarray of int64, one for each block
        In cycles since the launch, on one clock.
    course : list of lists of (float, float)
        For each block, the times (cycles since the launch) at which its speed changed, and the work done until then
        (cycles alone on an SM); from (start, 0) to (end, all of it).
    """

    sm: np.ndarray
    start: np.ndarray
    end: np.ndarray
    course: list[list[tuple[float, float]]]

    def since_start(self, work: np.ndarray) -> np.ndarray:
        """Cycles from a block's start until it has done some work.

        Parameters
        ----------
        work : ndarray, shape (blocks, points)
            Work done by each block (cycles alone on an SM).

        Returns
        -------
        ndarray of float, of the same shape
        """
        times = np.empty(work.shape)
        for block, course in enumerate(self.course):
            when, done = zip(*course, strict=True)
            times[block] = np.interp(work[block], done, when) - when[0]
        return times


def run_blocks(gpu: Gpu, work: np.ndarray, slots: int, contention: Contention, rng: np.random.Generator) -> Timeline:
    """Run a grid.

    The first wave goes round the SMs; after that, whenever a block ends, the next block in the order of the grid is
    given its slot and starts after a gap.

    Parameters
    ----------
    gpu : Gpu
    work : ndarray, one for each block
        Cycles that the block needs alone on an SM.
    slots : int
        Blocks that can be resident on an SM at once.
    contention : Contention
    rng : numpy.random.Generator

    Returns
    -------
    Timeline
    """
    blocks = len(work)
    gaps = rng.integers(gpu.gap_cycles[0], gpu.gap_cycles[1] + 1, blocks).tolist()
    work = work.tolist()
    sm, end = [0] * blocks, [0] * blocks
    course: list[list[tuple[float, float]]] = [[] for _ in range(blocks)]
    speed, version = [0.0] * blocks, [0] * blocks
    resident: list[list[int]] = [[] for _ in range(gpu.sms)]
    # A start has version -1. An end counts only if no change of speed came after it was foreseen.
    events: list[tuple[int, int, int, int]] = []

    def settle(block: int, now: int) -> float:
        """Enter the work done until now into the block's course."""
        if not course[block]:
            course[block].append((now, 0.0))
        since, done = course[block][-1]
        if now > since:
            # An end is rounded up to a whole cycle: the work may be done a little before.
            done = min(done + speed[block] * (now - since), work[block])
            course[block].append((now, done))
        return done

    def change_speeds(where: int, now: int) -> None:
        for rank, block in enumerate(resident[where]):
            new = contention.speed(rank, len(resident[where]))
            if new != speed[block]:
                left = work[block] - settle(block, now)
                speed[block] = new
                version[block] += 1
                # Whole cycles, as clocks count; a probe sees no less.
                heappush(events, (now + max(1, -int(-left // new)), block, version[block], where))

    following = min(blocks, gpu.sms * slots)
    for block in range(following):
        heappush(events, (block * gpu.launch_interval_cycles, block, -1, block % gpu.sms))
    while events:
        now, block, found, where = heappop(events)
        if found == -1:
            sm[block] = where
            resident[where].append(block)
        elif found == version[block]:
            resident[where].remove(block)
            end[block] = now
            course[block].append((now, work[block]))
            if following < blocks:
                heappush(events, (now + gaps[following], following, -1, where))
                following += 1
        else:
            continue
        change_speeds(where, now)
    start = [int(steps[0][0]) for steps in course]
    return Timeline(np.array(sm), np.array(start, np.int64), np.array(end, np.int64), course)
