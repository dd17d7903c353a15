"""The estimator of the probe's own script, as it computes, so that its published lines can be compared.

Source: Neutrino artifact, tool ``block_sched``. It keeps a list of blocks for each SM. Each block, in the order of the
grid, is compared with the *first* of the list alone: when that one has ended, the time since counts as scheduling and
it leaves the list; when not, nothing leaves, though a block further back may have ended long ago. Of a block it takes
the first warp.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from gpuledger.readers.neutrino.block_trace import MAX_SM

_LOW = 0xFFFFFFFF


class Estimate(NamedTuple):
    """What the script prints, and how long the longest of its lists grew.

    Attributes
    ----------
    blocks, running_cycles, scheduling_cycles : int
        ``No.block``, ``Running`` and ``Scheduling``: cycles are means over SMs without their decimals.
    longest_list : int
        Blocks that it took to be on one SM at once, at most. Far above the number that can be resident, it has
        lost track of which have ended.
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

    The script indexes its sums by the SM's number and so needs the numbers 0 to n - 1; with others it stops. Here any
    numbers will do, and where the script runs the result is the same.

    Parameters
    ----------
    first : ndarray of BLOCK_SCHED
        Record of the first warp of each block, in the order of the grid, of a trace that could be read. Warps without
        a record count, as in the script, as zeros on SM 0.
    """
    words = np.ascontiguousarray(first).view("<i8").reshape(len(first), 2)
    seen, running, scheduling, longest = _first_in_list(words)
    # Whole numbers: sums of floats in the script are exact below 2**53.
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
