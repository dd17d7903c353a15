"""The elapsed times of all warps of a launch, and its first warps on one SM, for traces of any size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuledger.ledger.passes import Partial, add_counts, count_values
from gpuledger.readers.neutrino.block_trace import BlockTrace

#: Warps whose starts and ends are kept for the exported timeline.
KEPT_WARPS = 256
#: Warps that are read at a time.
RUN_WARPS = 2**21


@dataclass(frozen=True)
class Warps:
    """What the warps of a launch say."""

    #: The distinct elapsed times, ascending, in cycles, and how many warps took each.
    elapsed: tuple[np.ndarray, np.ndarray]
    #: The first warps of the SM whose number is lowest: ``sm, block, warp, start_cycles, elapsed_cycles``.
    first: pd.DataFrame


def read_runs(trace: BlockTrace, first: int, end: int) -> Iterator[Partial]:
    """Yield elapsed times, and the first blocks of the SM whose number is lowest, run by run."""
    step = max(1, RUN_WARPS // trace.warps)
    for at in range(first, end, step):
        blocks = trace.read(at, min(at + step, end), warps=True)
        values, counts = count_values(blocks.elapsed[blocks.elapsed > 0])
        sms = blocks.sm[blocks.recorded]
        own = np.flatnonzero(blocks.sm == sms.min()) if len(sms) else np.empty(0, np.int64)
        own = own[np.argsort(blocks.start[own], kind="stable")][: _kept_blocks(trace.warps)]
        start, elapsed = trace.read_warps(at + own)
        yield {
            "elapsed": values,
            "warps": counts,
            "sm": blocks.sm[own],
            "block": at + own,
            "block_start": blocks.start[own],
            "start": start,
            "warp_elapsed": elapsed,
        }


def put_together(partials: Sequence[Partial]) -> Warps | None:
    """Put runs together; None if no block has a record."""
    names = ("sm", "block", "block_start", "start", "warp_elapsed")
    sm, block, begin, start, elapsed = (np.concatenate([partial[name][:] for partial in partials]) for name in names)
    if not len(sm):
        return None
    order = np.lexsort((block, begin, sm))
    own = order[sm[order] == sm.min()][: _kept_blocks(start.shape[1])]
    place, warp = np.nonzero(elapsed[own])
    frame = pd.DataFrame(
        {
            "sm": int(sm.min()),
            "block": block[own][place],
            "warp": warp,
            # From the SM's first block on: the origin of its clock means nothing.
            "start_cycles": start[own][place, warp] - begin[own].min(),
            "elapsed_cycles": elapsed[own][place, warp],
        }
    )
    frame = frame.sort_values(["start_cycles", "block", "warp"], kind="stable", ignore_index=True)
    return Warps(add_counts((partial["elapsed"], partial["warps"]) for partial in partials), frame)


def _kept_blocks(warps: int) -> int:
    return max(1, KEPT_WARPS // max(warps, 1))
