"""Blocks of a launch, as the probe ``block_sched`` recorded them: SM, start and end of each.

Source: Neutrino trace format, probe ``block_sched``. For each warp it records the SM's clock at its start, its elapsed
cycles and its SM's number.
"""

import warnings
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from gpuledger.errors import InputError
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.records import BLOCK_SCHED
from gpuledger.readers.neutrino.trace import TraceWarning

#: Bytes that are read at a time: a chunk and what is computed from it fit in the cache.
CHUNK_BYTES = 2**20
#: No device has SM numbers from this one on.
MAX_SM = 2**16 - 1
ONES = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class TracedBlocks:
    """When the blocks of a launch ran, in grid order."""

    path: Path  # the trace
    first: np.ndarray  # BLOCK_SCHED, (blocks,): record of each block's first warp, unchanged
    #: uint32, (blocks, warps): elapsed cycles of each warp, 0 for a warp without a record; shape (blocks, 0) unless
    #: asked for.
    elapsed: np.ndarray
    sm: np.ndarray  # int32: SM of each block; -1 if none of its warps has a record
    #: int64: start of a block's earliest and end of its latest warp, in cycles of its SM's clock. Clocks of different
    #: SMs cannot be compared.
    start: np.ndarray
    end: np.ndarray
    #: The block size is not a multiple of 32, so a block's last warp overwrites the next block's first record. First
    #: records were ignored in blocks that have others.
    shared: bool

    def __len__(self) -> int:
        return len(self.sm)

    @property
    def recorded(self) -> np.ndarray:
        """Boolean mask of the blocks that have a record."""
        return self.sm >= 0


@dataclass(frozen=True)
class SmTimeline:
    """Starts and ends of the blocks of one SM, each sorted, in cycles."""

    sm: int
    starts: np.ndarray
    ends: np.ndarray
    #: Largest number of blocks that ran at the same time. A block that ends when another starts makes room for it.
    resident: int

    @property
    def gaps(self) -> np.ndarray:
        """How long each slot was empty before the next block started in it, in cycles.

        With at most R resident blocks, start k + R takes the slot that end k freed, so the gap is
        ``starts[k + R] - ends[k]``. It is never negative.
        """
        return self.starts[self.resident :] - self.ends[: len(self.ends) - self.resident]


@dataclass(frozen=True)
class BlockTrace:
    """A ``block_sched`` trace of any version, of which ranges of blocks can be read."""

    path: Path
    #: The section that holds the records, and its first byte.
    section: int
    offset: int
    #: Blocks of the launch and warps of each.
    blocks: int
    warps: int
    shared: bool  # see :class:`TracedBlocks`

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a trace."""
        path = Path(path)
        trace = neutrino.open_trace(path)
        section = next(
            (s for s in trace.sections if (s.level, s.bytes_per_unit) == ("warp", BLOCK_SCHED.itemsize)), None
        )
        if section is None:
            what = ", ".join(f"{s.bytes_per_unit} bytes per {s.level}" for s in trace.sections)
            remedy = "give a trace of the probe block_sched, which saves 16 bytes per warp"
            raise InputError(path, "byte 32", f"no section has starts and ends of warps: {what}", remedy)
        if section.blocks != trace.blocks:
            problem = f"all blocks of {trace.threads} threads wrote to one record"
            raise InputError(
                path, f"section {section.index}", problem, "probe a kernel with blocks of at least 32 threads"
            )
        units = section.units_per_block
        return cls(path, section.index, section.offset, section.blocks, units, trace.threads % 32 != 0)

    def read(self, first: int, end: int, warps: bool = False) -> TracedBlocks:
        """Read a range of blocks, of which none may have a record.

        A record of zeros (or ones, in traces of the first driver) belongs to a warp that saved nothing.

        Parameters
        ----------
        first, end : int
            The first block, and the one after the last.
        warps : bool
            Whether to keep the elapsed cycles of every warp.

        Raises
        ------
        InputError
            Warps of one block on two SMs; impossible clocks or SM numbers.
        """
        blocks = end - first
        ignored = 1 if self.shared and self.warps > 1 else 0
        firsts, elapsed = np.empty(blocks, BLOCK_SCHED), np.empty((blocks, self.warps if warps else 0), np.uint32)
        sm, start, ends = np.empty(blocks, np.int32), np.empty(blocks, np.int64), np.empty(blocks, np.int64)
        for at, records in self._chunks(first, end):
            part = slice(at, at + len(records))
            firsts[part] = records[:, 0]
            if warps:
                elapsed[part] = np.where(records["start"] == ONES, 0, records["elapsed"])
            sm[part], start[part], ends[part], wrong = _summarise(records, ignored)
            if wrong >= 0:
                place = f"section {self.section}, block {first + at + wrong}"
                raise _refusal(self.path, place, records[wrong, ignored:])
        return TracedBlocks(self.path, firsts, elapsed, sm, start, ends, self.shared)

    def without_records(self) -> InputError:
        """Return the error for a trace in which no warp saved a record."""
        remedy = "check that the probe was attached to this kernel"
        return InputError(self.path, f"section {self.section}", "no warp saved a record", remedy)

    def read_warps(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read when the warps of a few blocks started and how long they took.

        Parameters
        ----------
        rows : int array of shape (chosen,)
            Blocks, in grid order.

        Returns
        -------
        start, elapsed : int64 arrays of shape (chosen, warps)
            Cycles of the SM's clock; `elapsed` is 0 for a warp without a record.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TraceWarning)  # `shared` says so
            records = neutrino.open_trace(self.path).records(self.section, BLOCK_SCHED)[rows, :, 0]
        known = records["start"] < 2**63
        return tuple(np.where(known, records[name], 0).astype(np.int64) for name in ("start", "elapsed"))

    def _chunks(self, first: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (place in the range, records of shape (blocks, warps)) for one group of blocks after another."""
        size = self.warps * BLOCK_SCHED.itemsize
        buffer = np.empty((max(1, CHUNK_BYTES // size), self.warps), BLOCK_SCHED)
        with self.path.open("rb", buffering=0) as handle:
            handle.seek(self.offset + first * size)
            for at in range(0, end - first, len(buffer)):
                records = buffer[: end - first - at]
                if handle.readinto(records.reshape(-1).view(np.uint8)) != records.nbytes:
                    problem, remedy = "the file shrank while it was read", "wait until it is complete"
                    raise InputError(self.path, f"block {first + at}", problem, remedy)
                yield at, records


def read_blocks(path: str | Path) -> TracedBlocks:
    """Read all blocks of a ``block_sched`` trace; see :meth:`BlockTrace.open` and :meth:`BlockTrace.read`."""
    trace = BlockTrace.open(path)
    blocks = trace.read(0, trace.blocks)
    if blocks.sm.max() < 0:
        raise trace.without_records()
    return blocks


def _summarise(records: np.ndarray, ignored: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return SM (-1: no record), start and end of each block, and the first block with an impossible record (-1: none).

    Parameters
    ----------
    records : ndarray of BLOCK_SCHED, (blocks, warps)
    ignored : int
        Warps at the beginning of each block to leave out.
    """
    # One row per warp: reducing rows is several times as fast as reducing the few warps of each block. Two words per
    # record, the second with the SM's number in its high half, so that its extremes are those of the number.
    words = records.view(np.int64)[:, 2 * ignored :].T.copy()
    clock, rest = words[0::2], words[1::2]
    start, lowest = clock.min(axis=0), rest.min(axis=0)
    empty = np.zeros(len(records), bool)
    if start.min() <= 0:  # some warps may have no record
        absent = (clock == -1) | ((clock == 0) & (rest == 0))
        empty = absent.all(axis=0)
        # Others fill in what is neither the smallest nor the largest of a block that has a record.
        clock[absent] = rest[absent] = np.iinfo(np.int64).max
        start, lowest = clock.min(axis=0), rest.min(axis=0)
        clock[absent] = rest[absent] = 0
    highest = rest.max(axis=0) >> 32
    rest &= 2**32 - 1
    rest += clock
    wrong = ((start < 0) | (lowest < 0) | (highest >= MAX_SM) | (lowest >> 32 != highest)) & ~empty
    start[empty] = 0
    return np.where(empty, -1, highest), start, rest.max(axis=0), int(wrong.argmax()) if wrong.any() else -1


def timeline(sm: int, starts: np.ndarray, ends: np.ndarray) -> SmTimeline:
    """Return the timeline of one SM, from the starts and ends of its blocks in any order."""
    # Both are nearly in order already, which only this kind makes use of.
    starts, ends = np.sort(starts, kind="stable"), np.sort(ends, kind="stable")
    # The fewest slots with which no gap is negative; blocks that took no time were resident all the same.
    enough = range(1, len(starts))
    found = bisect_left(enough, True, key=lambda slots: bool((ends[:-slots] <= starts[slots:]).all()))
    return SmTimeline(sm, starts, ends, 1 + found)


def _refusal(path: Path, place: str, warps: np.ndarray) -> InputError:
    remedy = "copy the file again, or check which probe wrote it"
    if (impossible := (warps["start"] >= 2**63) & (warps["start"] != ONES)).any():
        return InputError(path, place, f"a clock of {warps['start'][impossible].min()} cycles", remedy)
    numbers = np.unique(warps["cuid"]).tolist()
    if numbers[-1] >= MAX_SM:
        return InputError(path, place, f"SM number {numbers[-1]}, which no device has", remedy)
    problem = f"its warps ran on SMs {' and '.join(map(str, numbers))}, but a block runs on one"
    return InputError(path, place, problem, remedy)
