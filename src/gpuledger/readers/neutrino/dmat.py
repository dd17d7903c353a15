"""Reader and writer of ``.dmat``: how often each page of memory is accessed at each clock.

Source: Neutrino trace format, as written by the sparsifier of its dmat tool: number of pages, number of clocks, the
pages; then per clock its value, its number of pages, and a (page, count) pair of 12 bytes for each of them.
"""

from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from gpuledger.errors import InputError
from gpuledger.files import replacing
from gpuledger.readers.neutrino.lines import opened

FOREIGN = "give a .dmat that the dmat tool wrote"
CUT = "copy it again, or make it again from its trace"
#: Pages are addresses with the low 16 bits cleared.
PAGE_BYTES = 65536


@dataclass(frozen=True)
class Dmat:
    """A page reference map: one entry per clock and page, sorted by both."""

    pages: np.ndarray  # uint64: addresses of all pages, ascending
    clock: np.ndarray  # uint64, shape (entries,): cycles since the accessing thread entered the kernel
    page: np.ndarray  # uint64, shape (entries,): address of the page
    count: np.ndarray  # uint32, shape (entries,): accesses to the page at that clock, by all threads


def read_dmat(path: str | Path) -> Dmat:
    """Read a ``.dmat``.

    Pages and clocks can be in any order in the file; they are sorted here.
    """
    path = Path(path)
    with opened(path, FOREIGN) as handle:
        length = handle.seek(0, 2)
        handle.seek(0)
        if length < 16:
            raise InputError(path, f"byte {length}", f"{length} bytes are too short for a header", FOREIGN)
        number_of_pages, number_of_clocks = np.fromfile(handle, "<u8", 2).tolist()
        for place, number, name, each, left in (
            (0, number_of_pages, "pages", 8, length - 16),
            # A clock has at least one pair.
            (8, number_of_clocks, "clocks", 28, length - 16 - 8 * number_of_pages),
        ):
            if number * each > left:
                problem = f"truncated, or not a .dmat: {number} {name} do not fit into {length} bytes"
                raise InputError(path, f"byte {place}", problem, CUT)
        if length % 4:
            raise InputError(path, f"byte {length}", "truncated: its length is not a multiple of 4 bytes", CUT)
        try:
            words = np.memmap(handle, "<u4", "r", shape=(length // 4,))
        except (OSError, ValueError) as error:
            raise InputError(path, "", f"cannot be mapped ({error})", "copy it to a local disk") from None
    first = 4 + 2 * number_of_pages
    pages = np.sort(words[4:first].view("<u8"))
    body = words[first:].view(np.ndarray)
    heads = _heads(path, body, number_of_clocks, first)
    sizes = body[heads + 2].astype(np.int64)
    clock = np.repeat(_wide(body, heads), sizes)
    # After each head of four words come the pairs of three words.
    pairs = 3 * np.arange(clock.size) + np.repeat(4 * np.arange(1, heads.size + 1), sizes)
    page, count = _wide(body, pairs), body[pairs + 2]
    order = np.lexsort((page, clock))
    found = Dmat(pages, clock[order], page[order], count[order])
    _check(path, found, number_of_clocks)
    return found


def _heads(path: Path, body: np.ndarray, clocks: int, first: int) -> np.ndarray:
    """Return the word at which each clock starts; only its head says where the next one does."""
    words, at, heads = memoryview(body), 0, array("q")
    for _ in range(clocks):
        left = len(words) - at - 4
        # The number of pages has 64 bits, so that the upper word must be zero.
        if left < 0 or words[at + 3] or 3 * words[at + 2] > left:
            problem = "truncated, or not a .dmat: a clock has more pages than fit into the file"
            raise InputError(path, f"byte {4 * (first + at)}", problem, CUT)
        if not words[at + 2]:
            raise InputError(path, f"byte {4 * (first + at)}", "not a .dmat: a clock without pages", FOREIGN)
        heads.append(at)
        at += 4 + 3 * words[at + 2]
    if at != len(words):
        problem = f"too long, or not a .dmat: {4 * (len(words) - at)} bytes follow the last clock"
        raise InputError(path, f"byte {4 * (first + at)}", problem, CUT)
    return np.asarray(heads, np.int64)


def _wide(words: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the 64-bit numbers that start at these words."""
    return words[at] | words[at + 1].astype(np.uint64) << np.uint64(32)


def _check(path: Path, found: Dmat, number_of_clocks: int) -> None:
    if np.count_nonzero(np.diff(found.clock)) + min(1, found.clock.size) != number_of_clocks:  # they are sorted
        raise InputError(path, "byte 8", "not a .dmat: a clock occurs twice", FOREIGN)
    if not np.array_equal(np.unique(found.page), found.pages):
        raise InputError(path, "byte 16", "not a .dmat: the listed pages are not those accessed", FOREIGN)
    if ((found.clock[1:] == found.clock[:-1]) & (found.page[1:] == found.page[:-1])).any():
        raise InputError(path, "", "not a .dmat: a clock has the same page twice", FOREIGN)


def write_dmat(path: str | Path, clock: ArrayLike, page: ArrayLike, count: ArrayLike) -> None:
    """Write a ``.dmat`` atomically, clocks and pages in ascending order.

    Parameters
    ----------
    clock, page, count : array_like of int, shape (entries,)
        See :class:`Dmat`; each pair of clock and page once.
    """
    columns = []
    for name, values, dtype in (("clock", clock, "<u8"), ("page", page, "<u8"), ("count", count, "<u4")):
        values = np.asarray(values)
        if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
            raise ValueError(f"{name} must be a one-dimensional array of integers")
        if values.size and (int(values.min()) < 0 or int(values.max()) > np.iinfo(dtype).max):
            raise ValueError(f"{name} does not fit into {np.dtype(dtype).itemsize} bytes")
        columns.append(values.astype(dtype))
    if len({values.size for values in columns}) > 1:
        raise ValueError("clock, page and count have different lengths")
    order = np.lexsort((columns[1], columns[0]))
    clocks, pages, counts = (values[order] for values in columns)
    if ((clocks[1:] == clocks[:-1]) & (pages[1:] == pages[:-1])).any():
        raise ValueError("a pair of clock and page occurs twice: add up its counts")
    distinct, start, sizes = np.unique(clocks, return_index=True, return_counts=True)
    # In words of 4 bytes: 4 per clock, 3 per pair.
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
