"""The estimator of the probe's own script, bug for bug, so that its published output can be compared.

Source: Neutrino artifact, tool ``block_sched``. It keeps a list of blocks for each SM. Each block, in grid order, is
compared only with the *first* of the list: if that one has ended, the time since counts as scheduling and it leaves
the list; if not, nothing leaves, although a block further back may have ended long ago. The first warp stands for its
block.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from gpuledger.readers.neutrino.block_trace import MAX_SM

_LOW = 0xFFFFFFFF


class Estimate(NamedTuple):
    """What the script prints, and the length of its longest list.

    Attributes
    ----------
    blocks, running_cycles, scheduling_cycles : int
        ``No.block``, ``Running`` and ``Scheduling``; cycles are means over SMs, truncated to integers.
    longest_list : int
        Most blocks that it believed to be on one SM at once. If that is far above the number of resident blocks, it
        has lost track of which have ended.
    """

    blocks: int
    running_cycles: int
    scheduling_cycles: int
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
    words = np.ascontiguousarray(first).view("<i8").reshape(len(first), 2)
    seen, running, scheduling, longest = _first_in_list(words)
    # Integers here, floats in the script: both are exact below 2**53.
    return Estimate(len(words), int(running[seen].mean()), int(scheduling[seen].mean()), int(longest))


@numba.njit(cache=True, nogil=True)
def _first_in_list(words):
    seen, running, scheduling = np.zeros(MAX_SM, np.bool_), np.zeros(MAX_SM, np.int64), np.zeros(MAX_SM, np.int64)
    head, tail, length = np.zeros(MAX_SM, np.int64), np.zeros(MAX_SM, np.int64), np.zeros(MAX_SM, np.int64)
    following = np.empty(len(words), np.int32)
    longest = 0
    for block in range(len(words)):
        start, elapsed, sm = words[block, 0], words[block, 1] & _LOW, (words[block, 1] >> 32) & _LOW
        running[sm] += elapsed
        if seen[sm]:
            following[tail[sm]] = block
        else:
            seen[sm], head[sm] = True, block
        tail[sm] = block
        length[sm] += 1
        first = head[sm]
        idle = start - (words[first, 0] + (words[first, 1] & _LOW))
        if first != block and idle >= 0:
            scheduling[sm] += idle
            head[sm] = following[first]
            length[sm] -= 1
        longest = max(longest, length[sm])
    return seen, running, scheduling, longest
