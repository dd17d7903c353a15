"""Blocks of a launch: on which SM each ran, from when to when, as the probe ``block_sched`` recorded it.

Source: Neutrino trace format, probe ``block_sched``: of every warp, the SM's clock at its start, the cycles until its
end and the number of its SM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np

from gpuledger.errors import InputError
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.records import BLOCK_SCHED

#: Bytes of a trace that are looked at together: a mapped file would count as memory, and take longer.
CHUNK_BYTES = 8 * 1024**2
#: No device numbers its SMs beyond this; larger ones are records of something else.
MAX_SM = 2**16
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class Blocks:
    """When the blocks of a launch ran, in the order of the grid.

    Attributes
    ----------
    path : Path
        The trace.
    first : ndarray of BLOCK_SCHED, (blocks,)
        Record of the first warp of each block, as it stands in the trace.
    elapsed : ndarray of uint32, (blocks, warps)
        Cycles from the start to the end of every warp, 0 where it saved nothing; (blocks, 0) unless asked for.
    sm : ndarray of int32
        The SM of each block; -1 where no warp of it has a record.
    start, end : ndarray of int64
        Start of a block's earliest and end of its latest warp, in cycles of its SM's clock. Clocks of two SMs are not
        comparable.
    shared : bool
        Blocks are not whole warps, so that a block's last warp overwrites the first record of the next block:
        first records were left out where there are others.
    """

    path: Path
    first: np.ndarray
    elapsed: np.ndarray
    sm: np.ndarray
    start: np.ndarray
    end: np.ndarray
    shared: bool

    def __len__(self) -> int:
        return len(self.sm)

    @property
    def recorded(self) -> np.ndarray:
        """Which blocks have a record, as booleans."""
        return self.sm >= 0


@dataclass(frozen=True)
class Timeline:
    """Starts and ends of the blocks of one SM, each sorted, in cycles.

    Attributes
    ----------
    sm : int
    starts, ends : ndarray of int64
    resident : int
        Largest number of blocks that ran at once; a block that ends when another starts makes way for it.
    """

    sm: int
    starts: np.ndarray
    ends: np.ndarray
    resident: int

    @property
    def gaps(self) -> np.ndarray:
        """How long the slot of each block that was not among the first had been empty, in cycles.

        With at most R blocks at once, the block that starts as number k + R finds k blocks gone before the one whose
        slot it takes: its gap is ``starts[k + R] - ends[k]``, which is never negative.
        """
        return self.starts[self.resident :] - self.ends[: len(self.ends) - self.resident]


def read_blocks(path: str | Path, warps: bool = False) -> Blocks:
    """Read a trace of ``block_sched``, in any version.

    A record of zeros (or of ones, as a first driver left them) is a warp that saved nothing.

    Parameters
    ----------
    path : path
    warps : bool
        Whether to keep the elapsed cycles of every warp.

    Raises
    ------
    InputError
        See :func:`gpuledger.readers.neutrino.open_trace`; no section of such records; blocks that share one record;
        warps of a block on two SMs; clocks and SM numbers that no device has.
    """
    path = Path(path)
    trace = neutrino.open_trace(path)
    section = next((s for s in trace.sections if (s.level, s.bytes_per_unit) == ("warp", BLOCK_SCHED.itemsize)), None)
    if section is None:
        what = ", ".join(f"{s.bytes_per_unit} bytes for each {s.level}" for s in trace.sections)
        remedy = "give a trace of the probe block_sched, which saves 16 bytes for each warp"
        raise InputError(path, "byte 32", f"no section holds starts and ends of warps: {what}", remedy)
    if section.blocks != trace.blocks:
        problem = f"blocks of {trace.threads_per_block} threads all wrote one record"
        raise InputError(path, f"section {section.index}", problem, "probe a kernel with blocks of at least 32 threads")
    blocks, units = section.blocks, section.units_per_block
    with_partial_warps = trace.threads_per_block % 32 != 0
    left_out = 1 if with_partial_warps and units > 1 else 0
    first, elapsed = np.empty((blocks, 2), np.int64), np.empty((blocks, units if warps else 0), np.uint32)
    sm, start, end = np.empty(blocks, np.int32), np.empty(blocks, np.int64), np.empty(blocks, np.int64)
    missing = 0
    for at, words in _chunks(path, section.offset, blocks, units):
        part = slice(at, at + len(words))
        wrong, more = _collapse(words, left_out, first[part], elapsed[part], sm[part], start[part], end[part])
        if wrong >= 0:
            raise _refusal(path, f"section {section.index}, block {at + wrong}", words[wrong, left_out:])
        missing += more
    if missing == blocks:
        remedy = "check that the probe was attached to this kernel"
        raise InputError(path, f"section {section.index}", "no warp saved a record", remedy)
    return Blocks(path, first.view(BLOCK_SCHED)[:, 0], elapsed, sm, start, end, with_partial_warps)


def _chunks(path: Path, offset: int, blocks: int, units: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the records of some blocks after others, as pairs of 64-bit words, with the number of the first block."""
    size = units * BLOCK_SCHED.itemsize
    buffer = np.empty((max(1, CHUNK_BYTES // size), units, 2), np.int64)
    with path.open("rb", buffering=0) as handle:
        handle.seek(offset)
        for at in range(0, blocks, len(buffer)):
            words = buffer[: blocks - at]
            if handle.readinto(words.reshape(-1).view(np.uint8)) != words.nbytes:
                raise InputError(path, f"block {at}", "the file shrank while it was read", "wait until it is complete")
            yield at, words


def timelines(blocks: Blocks) -> Iterator[Timeline]:
    """Yield the timeline of every SM that ran a block, by its number."""
    counts = np.bincount(blocks.sm + 1)[1:]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    starts, ends = np.empty(bounds[-1], np.int64), np.empty(bounds[-1], np.int64)
    _scatter(blocks.sm, blocks.start, blocks.end, bounds[:-1].copy(), starts, ends)
    for sm in np.flatnonzero(counts):
        part = slice(bounds[sm], bounds[sm + 1])
        starts[part].sort()
        ends[part].sort()
        yield Timeline(int(sm), starts[part], ends[part], int(_most_resident(starts[part], ends[part])))


def _refusal(path: Path, place: str, warps: np.ndarray) -> InputError:
    cut = "copy the file again, or check which probe wrote it"
    if (warps[:, 0] < -1).any():
        return InputError(path, place, f"a clock of {warps[:, 0].min().astype(np.uint64)} cycles", cut)
    numbers = sorted({int(word >> 32) & _LOW for word in warps[:, 1]})
    if numbers[-1] >= MAX_SM:
        return InputError(path, place, f"SM number {numbers[-1]}, which no device has", cut)
    problem = f"its warps ran on SMs {' and '.join(map(str, numbers))}, but a block runs on one"
    return InputError(path, place, problem, cut)


@numba.njit(cache=True, nogil=True)
def _collapse(words, left_out, firsts, elapsed, sm, start, end):
    """Fill what is known of every block; return the first wrong block (-1: none) and how many have no record."""
    missing = 0
    for block in range(words.shape[0]):
        number, first, last = -1, 0, 0
        firsts[block, 0], firsts[block, 1] = words[block, 0, 0], words[block, 0, 1]
        for warp in range(elapsed.shape[1]):
            elapsed[block, warp] = words[block, warp, 1] & _LOW if words[block, warp, 0] != -1 else 0
        for warp in range(left_out, words.shape[1]):
            clock, rest = words[block, warp, 0], words[block, warp, 1]
            if clock == -1 or (clock == 0 and rest == 0):
                continue
            own = (rest >> 32) & _LOW
            if clock < 0 or own >= MAX_SM or (number >= 0 and own != number):
                return block, missing
            finish = clock + (rest & _LOW)
            if number < 0:
                number, first, last = own, clock, finish
            else:
                first, last = min(first, clock), max(last, finish)
        sm[block], start[block], end[block] = number, first, last
        missing += number < 0
    return -1, missing


@numba.njit(cache=True, nogil=True)
def _scatter(sm, start, end, position, starts, ends):
    for block in range(len(sm)):
        if sm[block] >= 0:
            place = position[sm[block]]
            starts[place], ends[place] = start[block], end[block]
            position[sm[block]] += 1


@numba.njit(cache=True, nogil=True)
def _most_resident(starts, ends):
    """Return the largest number of blocks at once, from sorted starts and ends; a block counts for at least one."""
    gone, most = 0, 1
    for begun in range(len(starts)):
        while gone < len(ends) and ends[gone] <= starts[begun]:
            gone += 1
        most = max(most, begun + 1 - gone)
    return most
