"""The two loops over records, compiled: what is there, and how often each cell of a grid is touched.

A record is two words, clock and address. Both loops leave out slots that were never saved: all zeros, or a clock of
all ones. They hold no lock, so that several threads can run them, each on its own chunk and with its own counts.
"""

import numpy as np
from numba import njit

PAGE_BITS = np.uint64(16)
ONES = np.uint64(2**64 - 1)
ZERO, ONE = np.uint64(0), np.uint64(1)
#: Fibonacci hashing: 2⁶⁴ over the golden ratio. Runs of pages spread evenly, whatever their distance.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)

#: Where :func:`survey` counts.
SAVED, ZEROS, LARGEST, PAGES, FAR = range(5)
#: Where :func:`fold` counts.
LATE = 0


@njit(nogil=True, cache=True)
def survey(words, start, seen, far, table, shift, counts):  # pragma: no cover, compiled
    """Count what a chunk holds: records, clocks and pages.

    Parameters
    ----------
    words : ndarray of uint64
        The chunk: clock, address, clock, address, ….
    start : int
        First record to look at.
    seen : ndarray of uint8
        Set to 1 at every clock that occurs. It may be shared between threads, because all write the same.
    far : ndarray of uint64
        Takes the clocks that lie beyond `seen`.
    table : ndarray of uint64
        Hash table of page numbers (address over 65,536), all ones where there is none.
    shift : uint64
        64 less the binary logarithm of the table's size.
    counts : ndarray of uint64
        See ``SAVED`` and following.

    Returns
    -------
    int
        The first record that was not looked at, because the table is half full; the number of records when all were.
    """
    size = len(words) // 2
    mask = np.uint64(len(table) - 1)
    most = np.uint64(len(table) // 2)
    near = np.uint64(len(seen))
    saved, zeros, largest = counts[SAVED], counts[ZEROS], counts[LARGEST]
    pages, far_clocks = counts[PAGES], counts[FAR]
    stop = size
    for i in range(start, size):
        clock, address = words[2 * i], words[2 * i + 1]
        if clock == ZERO and address == ZERO:
            zeros += ONE
            continue
        if clock == ONES:
            continue
        page = address >> PAGE_BITS
        slot = (page * GOLDEN) >> shift
        while table[slot] != page and table[slot] != ONES:
            slot = (slot + ONE) & mask
        if table[slot] != page:
            if pages == most:
                stop = i
                break
            table[slot] = page
            pages += ONE
        saved += ONE
        if clock < near:
            if seen[clock] == 0:
                seen[clock] = 1
        else:
            far[far_clocks] = clock
            far_clocks += ONE
        if clock > largest:
            largest = clock
    counts[SAVED], counts[ZEROS], counts[LARGEST] = saved, zeros, largest
    counts[PAGES], counts[FAR] = pages, far_clocks
    return stop


@njit(nogil=True, cache=True)
def enter(pages, values, table, lines, shift):  # pragma: no cover, compiled
    """Enter pages, each with a value, into an empty hash table and the list beside it."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(pages)):
        slot = (pages[i] * GOLDEN) >> shift
        while table[slot] != ONES:
            slot = (slot + ONE) & mask
        table[slot] = pages[i]
        lines[slot] = values[i]


@njit(nogil=True, cache=True)
def fold(words, table, lines, shift, cut_last, cut_line, width, limit, drop, cells, columns, first, last, counts):
    """Count the accesses of a chunk in each cell of a grid.

    Parameters
    ----------
    words, table, shift
        As for :func:`survey`, with every page entered.
    lines : ndarray of int64
        By place in the table: the line that counts the page, or -1 - k when it has several parts, of which the first is
        part k.
    cut_last : ndarray of uint64
        By part: its last address.
    cut_line : ndarray of int64
        By part: its line.
    width : uint64
        Clocks of a column.
    limit : uint64
        Records from this clock on are late.
    drop : bool
        Leave late records out; otherwise they count in the last column, as does all that lies beyond it.
    cells : ndarray of int64
        Counts, line by line.
    columns : uint64
        Cells of a line.
    first, last : ndarray of uint64
        By line: smallest and largest clock.
    counts : ndarray of uint64
        See ``LATE``.
    """
    mask = np.uint64(len(table) - 1)
    end = columns - ONE
    late = counts[LATE]
    for i in range(len(words) // 2):
        clock, address = words[2 * i], words[2 * i + 1]
        if (clock == ZERO and address == ZERO) or clock == ONES:
            continue
        if clock >= limit:
            late += ONE
            if drop:
                continue
        page = address >> PAGE_BITS
        slot = (page * GOLDEN) >> shift
        while table[slot] != page:
            slot = (slot + ONE) & mask
        entry = lines[slot]
        if entry < 0:
            part = -1 - entry
            while cut_last[part] < address:
                part += 1
            entry = cut_line[part]
        line = np.uint64(entry)
        cells[line * columns + min(clock // width, end)] += 1
        if clock < first[line]:
            first[line] = clock
        if clock > last[line]:
            last[line] = clock
    counts[LATE] = late
