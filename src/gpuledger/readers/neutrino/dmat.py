"""Reader and writer of ``.dmat``: which page of memory is touched at which clock, and how often.

Source: Neutrino trace format, as written by the sparsifier of its dmat tool: number of pages, number of clocks, the
pages; then for each clock its value, the number of its pages, and a (page, count) pair of 12 bytes for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from gpuledger.errors import InputError
from gpuledger.files import replacing
from gpuledger.readers.neutrino.lines import opened

FOREIGN = "give a .dmat that the dmat tool wrote"
CUT = "copy it again, or make it anew from its trace"
#: Pages are addresses with their low 16 bits cleared.
PAGE_BYTES = 65536


@dataclass(frozen=True)
class Dmat:
    """A page reference map, as one entry for each clock and page, ordered by them.

    Attributes
    ----------
    pages : ndarray of uint64
        Addresses of all pages, ascending.
    clock : ndarray of uint64, one for each entry
        Cycles since the accessing thread entered the kernel.
    page : ndarray of uint64, one for each entry
        Address of the page touched.
    count : ndarray of uint32, one for each entry
        Accesses of all threads at that clock to that page.
    """

    pages: np.ndarray
    clock: np.ndarray
    page: np.ndarray
    count: np.ndarray

    @property
    def records(self) -> int:
        """Number of accesses."""
        return int(self.count.sum(dtype=np.uint64))

    @property
    def clocks(self) -> np.ndarray:
        """The distinct clocks, ascending."""
        return np.unique(self.clock)

    @property
    def max_clock(self) -> int:
        return int(self.clock[-1]) if self.clock.size else 0


def read_dmat(path: str | Path) -> Dmat:
    """Read a ``.dmat``.

    Pages and clocks come in any order in the file; here they ascend.

    Parameters
    ----------
    path : path

    Returns
    -------
    Dmat

    Raises
    ------
    InputError
        The file is missing, cut short or too long, or its counts and its content disagree: it is no ``.dmat``.
    """
    path = Path(path)
    with opened(path, FOREIGN) as handle:
        length = handle.seek(0, 2)
        handle.seek(0)
        if length < 16:
            raise InputError(path, f"byte {length}", f"{length} bytes are too few for a header", FOREIGN)
        number_of_pages, number_of_clocks = np.fromfile(handle, "<u8", 2).tolist()
        for place, number, name, each, left in (
            (0, number_of_pages, "pages", 8, length - 16),
            # A clock has at least one pair.
            (8, number_of_clocks, "clocks", 28, length - 16 - 8 * number_of_pages),
        ):
            if number * each > left:
                problem = f"{number} {name} do not fit into {length} bytes: cut short, or no .dmat"
                raise InputError(path, f"byte {place}", problem, CUT)
        if length % 4:
            raise InputError(path, f"byte {length}", "its length is not a multiple of 4 bytes: cut short", CUT)
        try:
            words = np.memmap(handle, "<u4", "r", shape=(length // 4,))
        except (OSError, ValueError) as error:
            raise InputError(path, "", f"cannot be mapped ({error})", "copy it to a local disk") from None
    first = 4 + 2 * number_of_pages
    pages = np.sort(words[4:first].view("<u8"))
    body = words[first:].view(np.ndarray)
    scan, fill = _loops()
    pairs, stop, state = scan(body, number_of_clocks)
    place = f"byte {4 * (first + stop)}"
    if state == 1:
        raise InputError(path, place, "a clock has more pages than the file has room for: cut short, or no .dmat", CUT)
    if state == 2:
        raise InputError(path, place, "a clock has no page: no .dmat", FOREIGN)
    if stop != body.size:
        problem = f"{4 * (body.size - stop)} bytes follow the last clock: too long, or no .dmat"
        raise InputError(path, place, problem, CUT)
    clock, page = np.empty(pairs, np.uint64), np.empty(pairs, np.uint64)
    count = np.empty(pairs, np.uint32)
    fill(body, number_of_clocks, clock, page, count)
    order = np.lexsort((page, clock))
    found = Dmat(pages, clock[order], page[order], count[order])
    _check(path, found, number_of_clocks)
    return found


def _check(path: Path, found: Dmat, number_of_clocks: int) -> None:
    if found.clocks.size != number_of_clocks:
        raise InputError(path, "byte 8", "a clock is there twice: no .dmat", FOREIGN)
    if not np.array_equal(np.unique(found.page), found.pages):
        raise InputError(path, "byte 16", "the pages listed are not those touched: no .dmat", FOREIGN)
    if ((found.clock[1:] == found.clock[:-1]) & (found.page[1:] == found.page[:-1])).any():
        raise InputError(path, "", "a clock has the same page twice: no .dmat", FOREIGN)


def write_dmat(path: str | Path, clock: ArrayLike, page: ArrayLike, count: ArrayLike) -> None:
    """Write a ``.dmat``, clocks and pages in ascending order, whole or not at all.

    Parameters
    ----------
    path : path
    clock, page, count : array_like of integers, one-dimensional and of one length
        As in :class:`Dmat`: each pair of clock and page once.

    Raises
    ------
    ValueError
        Different lengths, values that do not fit, a pair that is there twice.
    """
    columns = []
    for name, values, dtype in (("clock", clock, "<u8"), ("page", page, "<u8"), ("count", count, "<u4")):
        values = np.asarray(values)
        if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
            raise ValueError(f"{name} is a list of whole numbers")
        if values.size and (int(values.min()) < 0 or int(values.max()) > np.iinfo(dtype).max):
            raise ValueError(f"{name} does not fit into {np.dtype(dtype).itemsize} bytes")
        columns.append(values.astype(dtype))
    if len({values.size for values in columns}) > 1:
        raise ValueError("clock, page and count have different lengths")
    order = np.lexsort((columns[1], columns[0]))
    clocks, pages, counts = (values[order] for values in columns)
    if ((clocks[1:] == clocks[:-1]) & (pages[1:] == pages[:-1])).any():
        raise ValueError("a pair of clock and page is there twice: add up its counts")
    distinct, start, sizes = np.unique(clocks, return_index=True, return_counts=True)
    # In words of 4 bytes: 4 for every clock, 3 for every pair.
    body = np.zeros(4 * distinct.size + 3 * pages.size, "<u4")
    heads = 4 * np.arange(distinct.size) + 3 * start
    cells = 4 * (np.repeat(np.arange(distinct.size), sizes) + 1) + 3 * np.arange(pages.size)
    for where, values in ((heads, distinct), (heads + 2, sizes.astype("<u8")), (cells, pages)):
        body[where], body[where + 1] = values & 0xFFFFFFFF, values >> np.uint64(32)
    body[cells + 2] = counts
    listed = np.unique(pages)
    with replacing(path) as temporary, open(temporary, "wb") as handle:
        np.array([listed.size, distinct.size], "<u8").tofile(handle)
        listed.astype("<u8").tofile(handle)
        body.tofile(handle)


@cache
def _loops():
    """Compile the two loops over a file's body; each clock's length is known only from its head."""
    # Importing it takes half a second, and most readers of traces do without.
    from numba import njit

    @njit
    def scan(body, clocks):  # pragma: no cover, compiled
        """Return the number of pairs, the word after the last clock, and what is wrong (0: nothing)."""
        at, pairs = 0, 0
        for _ in range(clocks):
            if at + 4 > body.size:
                return pairs, at, 1
            number, high = body[at + 2], body[at + 3]
            if high != 0 or number > (body.size - at - 4) // 3:
                return pairs, at, 1
            if number == 0:
                return pairs, at, 2
            at += 4 + 3 * np.int64(number)
            pairs += np.int64(number)
        return pairs, at, 0

    @njit
    def fill(body, clocks, clock, page, count):  # pragma: no cover, compiled
        at, entry = 0, 0
        for _ in range(clocks):
            value = np.uint64(body[at]) | np.uint64(body[at + 1]) << np.uint64(32)
            number = np.int64(body[at + 2])
            at += 4
            for _ in range(number):
                clock[entry] = value
                page[entry] = np.uint64(body[at]) | np.uint64(body[at + 1]) << np.uint64(32)
                count[entry] = body[at + 2]
                at += 3
                entry += 1

    return scan, fill
