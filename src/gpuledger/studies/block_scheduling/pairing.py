"""Pair the ends of blocks with the starts that take their slots, SM by SM, for traces of any size.

Blocks are read in runs, each grouped by SM; then the runs of one SM after another are put together. Memory holds one
run, or the blocks of one SM.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from gpuledger.ledger.passes import Partial, add_counts, count_values
from gpuledger.readers.neutrino.block_trace import BlockTrace, SmTimeline, TracedBlocks, timeline
from gpuledger.studies.block_scheduling.upstream import Estimate, by_key, combine, first_in_list

RUN_BLOCKS = 2**19


@dataclass(frozen=True)
class Pairs:
    """What the blocks of a launch say."""

    #: Blocks of the launch, and those with a record.
    blocks: int
    recorded: int
    sms: pd.DataFrame  # see :func:`gpuledger.studies.block_scheduling.reduction.parts`
    gaps: tuple[np.ndarray, np.ndarray]  # the distinct gaps, ascending, in cycles, and how often each occurs
    typical: SmTimeline  # of the SM whose share of lost time is the median
    #: int64: of the blocks of that SM, in grid order.
    start: np.ndarray
    end: np.ndarray
    estimate: Estimate  # of the upstream script
    first_warps_cycles: int  # elapsed cycles of every block's first warp, summed


def group(trace: BlockTrace, first: int, end: int, threads: int) -> Iterator[Partial]:
    """Yield runs of blocks, grouped by SM, and their first warps, grouped by the SM that their record names."""
    with ThreadPoolExecutor(threads) as pool:
        # As many runs at a time as there are threads: what waits to be written takes memory.
        for at in range(first, end, threads * RUN_BLOCKS):
            starts = range(at, min(at + threads * RUN_BLOCKS, end), RUN_BLOCKS)
            yield from pool.map(lambda at: group_run(trace.read(at, min(at + RUN_BLOCKS, end)), at), starts)


def group_run(blocks: TracedBlocks, at: int) -> Partial:
    """Group blocks of which the first is block number `at`."""
    order, named, named_counts = by_key(blocks.first["cuid"])
    first, sms, counts = blocks.first.take(order), named, named_counts
    if not np.array_equal(blocks.sm, blocks.first["cuid"]):
        # As 16-bit numbers, the -1 of blocks without a record comes last.
        order = by_key(blocks.sm.astype(np.uint16))[0][: np.count_nonzero(blocks.recorded)]
        sms, counts = count_values(blocks.sm[order])
    return {
        "at": np.array([at, len(blocks)]),
        "sm": sms,
        "blocks": counts,
        "start": blocks.start.take(order),
        "end": blocks.end.take(order),
        "named": named,
        "named_blocks": named_counts,
        "first": first,
    }


def pair(partials: Sequence[Partial], threads: int) -> Pairs | None:
    """Put runs together; None if no block has a record."""
    partials = sorted(partials, key=lambda partial: partial["at"][:][0])
    own = _Groups(partials, "sm", "blocks", ("start", "end"))
    first = _Groups(partials, "named", "named_blocks", ("first",))
    if not own.keys:
        return None
    with ThreadPoolExecutor(threads) as pool:
        lists = list(pool.map(lambda sm: first_in_list(*first.read(sm)), first.keys))
        rows, gaps = zip(*pool.map(lambda sm: _pair(sm, *own.read(sm)), own.keys), strict=True)
    sms = pd.DataFrame(rows)
    order = (sms["scheduling_cycles"] / sms["running_cycles"].clip(lower=1)).argsort(kind="stable")
    typical = own.keys[order.iloc[len(order) // 2]]
    start, end = own.read(typical)
    blocks = sum(int(partial["at"][:][1]) for partial in partials)
    return Pairs(
        blocks,
        int(sms["blocks"].sum()),
        sms,
        add_counts(gaps),
        timeline(typical, start, end),
        start,
        end,
        combine(lists, blocks),
        sum(running for running, _, _ in lists),
    )


def timelines(blocks: TracedBlocks) -> Iterator[SmTimeline]:
    """Yield the timeline of every SM that ran a block, in the order of their numbers."""
    groups = _Groups([group_run(blocks, 0)], "sm", "blocks", ("start", "end"))
    yield from (timeline(sm, *groups.read(sm)) for sm in groups.keys)


class _Groups:
    """Columns of runs by key, each key's rows in grid order."""

    def __init__(self, partials: Sequence[Partial], key: str, counts: str, columns: Sequence[str]):
        self.columns, self.places = columns, {}
        for partial in partials:
            bounds = [0, *np.cumsum(partial[counts][:]).tolist()]
            for found, rows in zip(partial[key][:].tolist(), pairwise(bounds), strict=True):
                self.places.setdefault(found, []).append((partial, slice(*rows)))
        self.keys = sorted(self.places)

    def read(self, key: int) -> list[np.ndarray]:
        """Return the columns of one key."""
        return [np.concatenate([partial[name][rows] for partial, rows in self.places[key]]) for name in self.columns]


def _pair(sm: int, start: np.ndarray, end: np.ndarray) -> tuple[dict[str, int], tuple[np.ndarray, np.ndarray]]:
    line = timeline(sm, start, end)
    starts, ends, resident, gaps = line.starts, line.ends, line.resident, line.gaps
    row = {
        "sm": sm,
        "blocks": len(starts),
        "resident_blocks": resident,
        "running_cycles": int(ends.sum() - starts.sum()),
        "scheduling_cycles": int(gaps.sum()),
        "span_cycles": int(ends[-1] - starts[0]),
        "ramp_cycles": int((starts[:resident] - starts[0]).sum()),
        "drain_cycles": int((ends[-1] - ends[-resident:]).sum()),
    }
    return row, count_values(gaps)
