"""Passes over the records of a trace: its pages and clocks, then its accesses by cell of a grid.

A trace may be far larger than memory. It is read in chunks, by as many threads as there are processors, each into a
buffer of its own that stays in its cache; nothing is mapped and nothing grows with the file. Two passes are needed,
because the grid depends on the largest clock and on all pages; both together take about as long as reading the file.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpuledger.errors import InputError
from gpuledger.ledger.passes import Partial, Passes
from gpuledger.readers.neutrino.dmat import PAGE_BYTES, Dmat
from gpuledger.studies.dmat import loops

RECORD_BYTES = 16
CHUNK_BYTES = 2**20
MAX_THREADS = 8
#: Clocks up to this one (95 ms at 1.4 GHz) have a byte each in a table; memory is used only for those that occur.
NEAR_CLOCKS = 2**27
#: Room for as many pages is made at first.
FIRST_PAGES = 2**12
#: 512 GiB: no device has as much memory, so that a file with more is none of its traces.
MAX_PAGES = 2**23
#: A clock counts as an outlier when it is 4 times as large as the one before, and not one in 1,000 lies beyond it.
GAP, RARE = 4, 1000


@dataclass(frozen=True)
class Survey:
    """What a trace holds."""

    records: int  # accesses that were saved
    unsaved: int  # slots that are zero: not saved, though the sparsifier of the traces' own tool counts them
    clocks: int  # distinct clocks of the records
    max_clock: int
    axis_end: int  # the largest clock but for outliers (see ``GAP`` and ``RARE``)
    pages: np.ndarray  # uint64: addresses of the pages of 64 KiB that were touched, ascending
    zero_clock: bool  # whether a saved record has clock 0


@dataclass(frozen=True)
class Plan:
    """How accesses are counted in cells."""

    #: int64: by page of the survey: its line in the counts, or -1 - k when tensors share the page; k is its first part.
    lines_of: np.ndarray
    #: Shape of the counts.
    lines: int
    columns: int
    width: int  # clocks of a column
    limit: int  # records from this clock on are late
    drop_late: bool = False  # leave them out, or count them in the last column
    #: uint64: by part, in order of addresses: its last address.
    cut_last: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    cut_line: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # int64: by part: its line


@dataclass(frozen=True)
class Counts:
    """Accesses by cell."""

    cells: np.ndarray  # int64, (lines, columns)
    #: uint64: by line, the smallest and largest clock; a line without accesses has all ones and 0.
    first: np.ndarray
    last: np.ndarray
    late: int  # records from the plan's limit on


@dataclass(frozen=True)
class RecordedAccesses:
    """Accesses of a trace, one record each, left in their file."""

    path: Path
    #: Where the records are.
    offset: int
    bytes: int
    threads: int
    #: Where parts of the passes were computed apart; by default all is done here.
    passes: Passes = field(default_factory=Passes)

    def survey(self) -> Survey:
        """Find pages and clocks, in one pass."""
        return self.passes.run("survey", self.bytes // RECORD_BYTES, self._survey_part, self._put_together)

    def _survey_part(self, first: int, end: int) -> Iterator[Partial]:
        seen = np.zeros(NEAR_CLOCKS, np.uint8)
        workers = self._each_chunk(first, end, lambda: _Surveyor(self.path, seen))
        for worker in workers:
            worker.settle()
        largest = max(worker.counts[loops.LARGEST] for worker in workers)
        yield {
            "records": sum(worker.counts[[loops.SAVED, loops.ZEROS]] for worker in workers),
            "largest": np.array([largest]),
            "seen": np.packbits(seen[: min(int(largest) + 1, NEAR_CLOCKS)]),
            "far": np.unique(np.concatenate([worker.far for worker in workers])),
            "pages": np.unique(np.concatenate([worker.pages for worker in workers])),
        }

    def _put_together(self, partials: Sequence[Partial]) -> Survey:
        saved, zeros = sum(partial["records"][:] for partial in partials).tolist()
        largest = max(int(partial["largest"][:][0]) for partial in partials)
        packed = np.zeros(max(len(partial["seen"]) for partial in partials), np.uint8)
        for partial in partials:
            packed[: len(partial["seen"])] |= partial["seen"][:]
        seen = np.unpackbits(packed).view(bool)
        far, pages = (
            np.unique(np.concatenate([partial[name][:] for partial in partials])) for name in ("far", "pages")
        )
        if pages.size > MAX_PAGES:
            raise _too_many_pages(self.path)
        return Survey(
            records=saved,
            unsaved=zeros,
            clocks=np.count_nonzero(seen) + far.size,
            max_clock=largest,
            axis_end=_end_of_axis(seen, far),
            pages=pages * np.uint64(PAGE_BYTES),
            zero_clock=bool(seen[0]),
        )

    def count(self, survey: Survey, plan: Plan, name: str = "count") -> Counts:
        """Count accesses by cell, in one pass of this name."""

        def work(first: int, end: int) -> Iterator[Partial]:
            table = _hash_table(survey.pages // np.uint64(PAGE_BYTES), plan.lines_of)
            workers = self._each_chunk(first, end, lambda: _Folder(plan, table))
            yield {
                "cells": sum(worker.cells for worker in workers).reshape(plan.lines, plan.columns),
                "first": np.minimum.reduce([worker.first for worker in workers]),
                "last": np.maximum.reduce([worker.last for worker in workers]),
                "late": sum(worker.counts for worker in workers),
            }

        return self.passes.run(name, self.bytes // RECORD_BYTES, work, _add_up)

    def _each_chunk(self, first: int, end: int, make: Callable) -> list:
        """Let workers take all chunks of a range of records, each the next one that is left; return the workers."""
        offset, length = self.offset + first * RECORD_BYTES, (end - first) * RECORD_BYTES
        number = -(-length // CHUNK_BYTES)
        turn = itertools.count()

        def work(worker):
            buffer = np.empty(CHUNK_BYTES // 8, "<u8")
            view = memoryview(buffer).cast("B")
            with open(self.path, "rb", buffering=0) as handle:
                while (chunk := next(turn)) < number:
                    size = min(CHUNK_BYTES, length - chunk * CHUNK_BYTES)
                    handle.seek(offset + chunk * CHUNK_BYTES)
                    self._fill(handle, view[:size])
                    worker.take(buffer[: size // 8])
            return worker

        # Compiled and loaded once, before threads would all do it.
        first = make()
        first.take(np.empty(0, "<u8"))
        threads = max(1, min(self.threads, number))
        workers = [first, *(make() for _ in range(threads - 1))]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, workers))

    def _fill(self, handle, view: memoryview) -> None:
        done = 0
        while done < len(view):
            read = handle.readinto(view[done:])
            if not read:
                raise InputError(self.path, "", "the file shrank while it was read", "wait until it is complete")
            done += read


def _add_up(partials: Sequence[Partial]) -> Counts:
    return Counts(
        sum(partial["cells"][:] for partial in partials),
        np.minimum.reduce([partial["first"][:] for partial in partials]),
        np.maximum.reduce([partial["last"][:] for partial in partials]),
        sum(int(partial["late"][:][loops.LATE]) for partial in partials),
    )


def _too_many_pages(path: Path) -> InputError:
    problem = f"more than {MAX_PAGES:,} pages of 64 KiB are touched: no trace of memory accesses"
    return InputError(path, "", problem, "give a trace of the probe dmat")


class _Surveyor:
    """One thread's part of a survey."""

    def __init__(self, path: Path, seen: np.ndarray):
        self.path, self.seen = path, seen
        self._make_room(np.empty(0, np.uint64), FIRST_PAGES)
        self.counts = np.zeros(5, np.uint64)
        self.chunk_far = np.empty(CHUNK_BYTES // RECORD_BYTES, np.uint64)
        self.far, self.waiting = np.empty(0, np.uint64), []

    @property
    def pages(self) -> np.ndarray:
        return self.table[self.table != loops.ONES]

    def take(self, words: np.ndarray) -> None:
        start = 0
        while True:
            start = loops.survey(words, start, self.seen, self.chunk_far, self.table, self.shift, self.counts)
            if start == len(words) // 2:
                break
            self._make_room(self.pages, 2 * self.pages.size)
        if self.counts[loops.FAR]:
            self.waiting.append(np.unique(self.chunk_far[: int(self.counts[loops.FAR])]))
            self.counts[loops.FAR] = 0
            if sum(part.size for part in self.waiting) > max(self.far.size, 2**20):
                self.settle()

    def settle(self) -> None:
        """Make the clocks that lie far away distinct."""
        self.far, self.waiting = np.unique(np.concatenate([self.far, *self.waiting])), []

    def _make_room(self, pages: np.ndarray, room: int) -> None:
        if pages.size >= MAX_PAGES:
            raise _too_many_pages(self.path)
        self.table, _, self.shift = _hash_table(pages, np.zeros(pages.size, np.int64), room)


class _Folder:
    """One thread's part of a count."""

    def __init__(self, plan: Plan, table: tuple[np.ndarray, np.ndarray, np.uint64]):
        self.plan = *table, plan.cut_last, plan.cut_line, np.uint64(plan.width), np.uint64(plan.limit), plan.drop_late
        self.columns = np.uint64(plan.columns)
        self.cells = np.zeros(plan.lines * plan.columns, np.int64)
        self.first = np.full(plan.lines, 2**64 - 1, np.uint64)
        self.last = np.zeros(plan.lines, np.uint64)
        self.counts = np.zeros(1, np.uint64)

    def take(self, words: np.ndarray) -> None:
        loops.fold(words, *self.plan, self.cells, self.columns, self.first, self.last, self.counts)


def processors() -> int:
    """Return how many threads it is worth to use."""
    # Not every system can say which of its processors a process may use.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_THREADS, usable)


def _hash_table(pages: np.ndarray, values: np.ndarray, room: int = 0) -> tuple[np.ndarray, np.ndarray, np.uint64]:
    """Return a hash table of page numbers, at most half full, the list of values beside it, and the shift of hashes."""
    bits = max(4, max(int(pages.size), room).bit_length() + 1)
    table, lines, shift = np.full(2**bits, loops.ONES), np.zeros(2**bits, np.int64), np.uint64(64 - bits)
    loops.enter(pages, values, table, lines, shift)
    return table, lines, shift


@dataclass(frozen=True)
class SummedAccesses:
    """Accesses of a ``.dmat``, summed up by clock and page."""

    dmat: Dmat

    def _saved(self) -> np.ndarray:
        return (self.dmat.clock != 0) | (self.dmat.page != 0)

    def survey(self) -> Survey:
        """Find pages and clocks."""
        saved = self._saved()
        clock, count = self.dmat.clock[saved], self.dmat.count.astype(np.int64)
        clocks = np.unique(clock)
        largest = int(clocks[-1]) if clocks.size else 0
        return Survey(
            records=int(count[saved].sum()),
            unsaved=int(count[~saved].sum()),
            clocks=clocks.size,
            max_clock=largest,
            axis_end=_end_of_axis(np.zeros(0, bool), clocks),
            pages=np.unique(self.dmat.page[saved]),
            zero_clock=bool(clocks.size and clocks[0] == 0),
        )

    def count(self, survey: Survey, plan: Plan, name: str = "count") -> Counts:
        """Count accesses by cell. Of a page that tensors share, all belong to the one with most of it."""
        largest = _largest_parts(survey.pages, plan)
        saved = self._saved()
        clock, page = self.dmat.clock[saved], self.dmat.page[saved]
        count = self.dmat.count[saved]
        late = clock >= np.uint64(min(plan.limit, 2**64 - 1))
        lost = int(count[late].sum(dtype=np.int64))
        if plan.drop_late:
            clock, page, count = clock[~late], page[~late], count[~late]
        line = largest[np.searchsorted(survey.pages, page)]
        column = np.minimum(clock // np.uint64(plan.width), np.uint64(plan.columns - 1)).astype(np.int64)
        cells = np.zeros(plan.lines * plan.columns, np.int64)
        np.add.at(cells, line * plan.columns + column, count.astype(np.int64))
        first, last = np.full(plan.lines, 2**64 - 1, np.uint64), np.zeros(plan.lines, np.uint64)
        np.minimum.at(first, line, clock)
        np.maximum.at(last, line, clock)
        return Counts(cells.reshape(plan.lines, plan.columns), first, last, lost)


Accesses = RecordedAccesses | SummedAccesses


def _end_of_axis(seen: np.ndarray, far: np.ndarray) -> int:
    """Return the largest clock but for outliers, of those `seen` (a flag each) and those beyond, `far`, ascending."""
    clocks, end = np.count_nonzero(seen) + far.size, 0
    while True:
        reach = min(GAP * end, 2**64 - 1)
        within, beyond = seen[end + 1 : reach + 1], seen[reach + 1 :]
        near, later = far[(far > end) & (far <= reach)], far[far > reach]
        if near.size:
            end = int(near[-1])
        elif within.any():
            end += within.size - int(within[::-1].argmax())
        elif (np.count_nonzero(beyond) + later.size) * RARE < max(clocks, 1):
            return end
        else:
            end = reach + 1 + int(beyond.argmax()) if beyond.any() else int(later[0])


def _largest_parts(pages: np.ndarray, plan: Plan) -> np.ndarray:
    target = plan.lines_of.copy()
    for place in np.flatnonzero(target < 0):
        part, start, best = -1 - target[place], int(pages[place]), 0
        while start < int(pages[place]) + PAGE_BYTES:
            end = int(plan.cut_last[part]) + 1
            if end - start > best:
                best, target[place] = end - start, plan.cut_line[part]
            start, part = end, part + 1
    return target
