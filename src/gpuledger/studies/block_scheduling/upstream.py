"""The estimator of the probe's own script, bug for bug, so that its published output can be compared.

Source: Neutrino artifact, tool ``block_sched``. It keeps a list of blocks for each SM. Each block, in grid order, is
compared only with the *first* of the list: if that one has ended, the time since counts as scheduling and it leaves
the list; if not, nothing leaves, although a block further back may have ended long ago. The first warp stands for its
block.
"""

from typing import NamedTuple

import numpy as np

from gpuledger.ledger.passes import count_values


class Estimate(NamedTuple):
    """What the script prints, and the length of its longest list."""

    #: ``No.block``, ``Running`` and ``Scheduling``; cycles are means over SMs, truncated to integers.
    blocks: int
    running_cycles: int
    scheduling_cycles: int
    #: Most blocks that it believed to be on one SM at once. If that is far above the number of resident blocks, it has
    #: lost track of which have ended.
    longest_list: int

    @property
    def line(self) -> str:
        """The line that the script prints."""
        return f"No.block:{self.blocks} Running:{self.running_cycles} Scheduling:{self.scheduling_cycles}(cycle)"


def upstream_estimate(first: np.ndarray) -> Estimate:
    """Estimate as the probe's script does.

    The script indexes its sums by SM number, so it fails unless the numbers are 0 to n - 1. Here any numbers work;
    where the script runs, the result is the same.

    Parameters
    ----------
    first : ndarray of BLOCK_SCHED
        Record of the first warp of each block, in grid order. As in the script, warps without a record count as zeros
        on SM 0.
    """
    order, _, counts = by_key(first["cuid"])
    lists = np.split(first[order], np.cumsum(counts)[:-1])
    return combine([first_in_list(own) for own in lists], len(first))


def combine(lists: list[tuple[int, int, int]], blocks: int) -> Estimate:
    """Return the estimate from what :func:`first_in_list` returned for each SM."""
    running, scheduling, longest = (np.array(column) for column in zip(*lists, strict=True))
    # Integers here, floats in the script: both are exact below 2**53.
    return Estimate(blocks, int(running.mean()), int(scheduling.mean()), int(longest.max()))


def by_key(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group by key.

    Parameters
    ----------
    keys : ndarray of integers, not negative

    Returns
    -------
    order : ndarray of int
        Places, group by group; within a group, in the order of the array.
    keys, counts : ndarray of int
        Of each group, keys ascending.
    """
    # Sorting 16-bit numbers takes linear time.
    small = keys.astype(np.uint16) if not len(keys) or keys.max() < 2**16 else keys
    return small.argsort(kind="stable"), *count_values(keys)


def first_in_list(first: np.ndarray) -> tuple[int, int, int]:
    """Return running cycles, scheduling cycles and the length of the longest list, of the first warps of one SM."""
    start, elapsed = first["start"].astype(np.int64), first["elapsed"].astype(np.int64)
    end, blocks = start + elapsed, np.arange(len(start))
    # Block k leaves the list when a block starts that comes after it, finds k - 1 gone and starts no earlier than k
    # ends. If starts are in order, that is the first one which starts no earlier ...
    taker = np.maximum(np.maximum.accumulate(start).searchsorted(end), blocks + 1)
    # ... but no block lets two leave.
    delay = np.maximum.accumulate(taker - blocks)
    gone = int((delay + blocks).searchsorted(len(start)))
    taker = (delay + blocks)[:gone]
    idle = start[taker] - end[:gone]
    if (idle < 0).any():
        return int(elapsed.sum()), *_one_by_one(start.tolist(), end.tolist())
    longest = max(len(start) - gone, int(delay[:gone].max(initial=1)))
    return int(elapsed.sum()), int(idle.sum()), longest


def _one_by_one(start: list[int], end: list[int]) -> tuple[int, int]:
    """Return scheduling cycles and the length of the longest list where starts are too much out of order."""
    cycles = gone = longest = 0
    for block, now in enumerate(start):
        if gone < block and end[gone] <= now:
            cycles += now - end[gone]
            gone += 1
        longest = max(longest, block + 1 - gone)
    return cycles, longest
