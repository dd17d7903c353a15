"""A GPU that runs blocks: slots, in-order dispatch, replacement gaps, and co-resident blocks that slow each other down.

All times are in cycles of one global clock. Only probe records use the clock of their SM, which has its own origin.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

#: Bounds of the uniformly distributed origin of an SM's clock (cycles); a modelling choice.
CLOCK_ORIGINS = (3_000_000_000_000, 3_002_000_000_000)


@dataclass(frozen=True)
class MachineModel:
    """The simulated GPU."""

    sms: int = 108  # streaming multiprocessors; 108 is an NVIDIA A100
    #: Bounds of the uniformly distributed gap between the end of a block and the start of its successor (cycles). Their
    #: mean is calibrated on the published Scheduling of the fill, 87,713 cycles per SM.
    gap_cycles: tuple[int, int] = (200, 400)
    #: SM clock; 1.41 GHz is the boost clock of an A100. Only the times in event.log depend on it.
    clock_hz: float = 1.41e9

    def clock_origins(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the origin of every SM's clock (cycles)."""
        return rng.integers(*CLOCK_ORIGINS, self.sms, dtype=np.uint64)


@dataclass(frozen=True)
class Contention:
    """Speed of a block that shares its SM, relative to a block alone.

    First come, first served: the oldest block on an SM runs at `older`, all others at `younger`. When it ends, the
    next oldest takes over its speed; a block alone runs at 1. The published timelines (OSDI 2025, Fig. 14C) show this
    pattern: slow until the earlier block ends, then fast. A share `favoured` of the blocks, drawn at random, runs at
    `older` from the start.
    """

    older: float = 1.0
    younger: float = 1.0
    favoured: float = 0.0

    def speed(self, rank: int, resident: int) -> float:
        """Speed of the block that has `rank` older neighbours among `resident` blocks."""
        if resident == 1:
            return 1.0
        return self.younger if rank else self.older


#: Blocks do not slow each other down, or do not share an SM.
ALONE = Contention()


@dataclass(frozen=True)
class BlockTimes:
    """When and where blocks ran."""

    sm: np.ndarray  # int, one for each block
    #: int64, one for each block: cycles since the launch, on the global clock.
    start: np.ndarray
    end: np.ndarray
    #: For each block, the times (cycles since the launch) at which its speed changed, and the work done by then (cycles
    #: alone on an SM), from (start, 0) to (end, total work).
    course: list[list[tuple[float, float]]]

    def since_start(self, work: np.ndarray) -> np.ndarray:
        """Return how long after its start each block has done a given amount of work.

        Parameters
        ----------
        work : ndarray, shape (blocks, points)
            Work of each block (cycles alone on an SM).

        Returns
        -------
        ndarray of float, shape (blocks, points)
            Cycles.
        """
        times = np.empty(work.shape)
        for block, course in enumerate(self.course):
            when, done = zip(*course, strict=True)
            times[block] = np.interp(work[block], done, when) - when[0]
        return times


def run_blocks(
    machine: MachineModel, work: np.ndarray, slots: int, contention: Contention, rng: np.random.Generator
) -> BlockTimes:
    """Run a grid.

    The first wave is distributed round-robin over the SMs. After that, the next block in grid order takes the slot of
    each block that ends, and starts after a gap.

    Parameters
    ----------
    work : ndarray, one for each block
        Cycles that the block takes alone on an SM.
    slots : int
        Blocks that can be resident on an SM at the same time.
    """
    blocks = len(work)
    gaps = rng.integers(machine.gap_cycles[0], machine.gap_cycles[1] + 1, blocks).tolist()
    favoured = rng.random(blocks) < contention.favoured if contention.favoured else np.zeros(blocks, bool)
    work = work.tolist()
    sm, end = [0] * blocks, [0] * blocks
    course: list[list[tuple[float, float]]] = [[] for _ in range(blocks)]
    speed, version = [0.0] * blocks, [0] * blocks
    resident: list[list[int]] = [[] for _ in range(machine.sms)]
    # A start has version -1. A predicted end is void once the block's speed has changed again.
    events: list[tuple[int, int, int, int]] = []

    def settle(block: int, now: int) -> float:
        """Record the work done until now in the block's course."""
        if not course[block]:
            course[block].append((now, 0.0))
        since, done = course[block][-1]
        if now > since:
            # Ends are rounded up to whole cycles, so the work may be done slightly earlier.
            done = min(done + speed[block] * (now - since), work[block])
            course[block].append((now, done))
        return done

    def change_speeds(where: int, now: int) -> None:
        for rank, block in enumerate(resident[where]):
            new = contention.speed(0 if favoured[block] else rank, len(resident[where]))
            if new != speed[block]:
                left = work[block] - settle(block, now)
                speed[block] = new
                version[block] += 1
                # Clocks count whole cycles, and no block ends in the cycle in which it started.
                heappush(events, (now + max(1, -int(-left // new)), block, version[block], where))

    # The first wave starts cycle by cycle; a modelling choice.
    following = min(blocks, machine.sms * slots)
    for block in range(following):
        heappush(events, (block, block, -1, block % machine.sms))
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
    return BlockTimes(np.array(sm), np.array(start, np.int64), np.array(end, np.int64), course)
