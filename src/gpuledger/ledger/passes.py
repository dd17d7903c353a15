"""Passes over an input that may be larger than memory: in one process, or in parts that are computed apart.

A pass over some units of an input (blocks, records) yields *partials*: dictionaries of arrays. However the units are
divided among partials, merging them gives the same result, so that a reduction written with :meth:`Passes.run` gives
the same bytes in one process and in many.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import ceil, prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from gpuledger import files
from gpuledger.ledger.datasets import Case, folder_files
from gpuledger.ledger.study import read_studies

#: A remainder of a file up to this size gets no part of its own.
HEADER_BYTES = 2**16
#: Partials of one process beyond this go to a temporary file.
IN_MEMORY_BYTES = 2**26
Partial = Mapping[str, np.ndarray]


class Stored:
    """An array in a file, of which only the slices that are asked for are read."""

    def __init__(self, handle: IO[bytes]):
        np.lib.format.read_magic(handle)
        shape, _, self.dtype = np.lib.format.read_array_header_1_0(handle)
        self.handle, self.offset, self.shape = handle, handle.tell(), shape
        handle.seek(prod(shape) * self.dtype.itemsize, os.SEEK_CUR)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        row = prod(self.shape[1:]) * self.dtype.itemsize
        read = os.pread(self.handle.fileno(), (stop - start) * row, self.offset + start * row)
        return np.frombuffer(read, self.dtype).reshape(stop - start, *self.shape[1:])


class Passes:
    """Passes over all units at once, in this process."""

    def run(
        self,
        name: str,
        units: int,
        work: Callable[[int, int], Iterable[Partial]],
        merge: Callable[[Sequence[Partial]], Any],
    ) -> Any:
        """Run one pass.

        Parameters
        ----------
        name : str
            One of the ``passes`` in ``study.yaml``.
        units : int
            How many units the input has.
        work : callable
            Takes the first unit and the one after the last, and yields partials.
        merge : callable
            Makes the result of the partials, whose arrays are in memory or :class:`Stored`: ``array[:]`` is an ndarray.
        """
        kept, size = [], 0
        with TemporaryFile() as scratch:
            for partial in work(0, units):
                size += sum(array.nbytes for array in partial.values())
                if size > IN_MEMORY_BYTES:
                    scratch.seek(at := scratch.seek(0, os.SEEK_END))
                    _append(scratch, partial)
                    scratch.flush()
                    scratch.seek(at)
                    partial = _next(scratch)
                kept.append(partial)
            return merge(kept)


class Finished(Exception):  # noqa: N818, it is not an error
    """The part of a pass that was asked for is computed."""


@dataclass(frozen=True)
class PartOfPass:
    """Which part of which pass is to be computed, and where it goes."""

    name: str
    number: int
    of: int
    path: Path


@dataclass(frozen=True)
class DividedPasses(Passes):
    """Passes whose parts are computed apart."""

    parts: Mapping[str, Sequence[Path]] = field(default_factory=dict)  # by pass, the files of its parts
    wanted: PartOfPass | None = None  # the part to compute; without it, every pass has its parts

    def run(self, name, units, work, merge):
        if self.wanted is not None and name not in self.parts:
            number, of = self.wanted.number, self.wanted.of
            # Another pass comes where this input does not need the wanted one.
            needed = name == self.wanted.name
            self.write(work(units * number // of, units * (number + 1) // of) if needed else [])
            raise Finished
        with ExitStack() as stack:
            handles = [stack.enter_context(open(path, "rb")) for path in self.parts[name]]
            return merge([partial for handle in handles for partial in _read(handle)])

    def write(self, partials: Iterable[Partial]) -> None:
        """Write the part that is wanted."""
        with files.replacing(self.wanted.path) as temporary, open(temporary, "wb") as handle:
            for partial in partials:
                _append(handle, partial)


def number_of_parts(case: Case, part_bytes: float) -> int:
    """Return in how many parts to reduce a case, so that none reads more than `part_bytes` of its large input.

    Only a ``.bin`` that is there counts, as the study's ``scatter`` names it; everything else is one part.
    """
    name = case.inputs.get(read_studies()[case.study].scatter.get("input"))
    path = case.dataset.folder / (name or "")
    found = [path] if not path.is_dir() else folder_files(path) if name else []
    sizes = [file.stat().st_size for file in found if file.suffix == ".bin" and file.is_file()]
    return max(1, ceil((max(sizes, default=0) - HEADER_BYTES) / part_bytes))


def by_pass(parts: Iterable[str]) -> dict[str, list[Path]]:
    """Group the files of parts, ``<pass>-<number>-of-<parts>.bin``, by pass."""
    found: dict[str, list[Path]] = {}
    for path in map(Path, parts):
        found.setdefault(path.name.partition("-")[0], []).append(path)
    return found


def _append(handle: IO[bytes], partial: Partial) -> None:
    np.save(handle, np.array(list(partial)))
    for array in partial.values():
        np.save(handle, array)


def _next(handle: IO[bytes]) -> dict[str, Stored]:
    return {name: Stored(handle) for name in np.load(handle).tolist()}


def _read(handle: IO[bytes]) -> Iterator[dict[str, Stored]]:
    length = os.fstat(handle.fileno()).st_size
    while handle.tell() < length:
        yield _next(handle)


def count_values(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values, ascending, and how often each occurs.

    Parameters
    ----------
    values : ndarray of integers, not negative
    """
    if len(values) and values.max() < max(2**16, len(values)):
        counts = np.bincount(values)
        found = np.flatnonzero(counts)
        return found, counts[found]
    found, counts = np.unique(values, return_counts=True)
    return found.astype(np.int64), counts


def add_counts(counted: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Add up what :func:`count_values` returned for parts of an array."""
    waiting, size, folded = [], 0, 0
    for values, counts in counted:
        waiting.append((values[:], counts[:]))
        size += len(values)
        if size > 2 * folded + 2**20:
            waiting = [_fold(waiting)]
            size = folded = len(waiting[0][0])
    return _fold(waiting)


def _fold(counted: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    empty = np.empty(0, np.int64)
    values, counts = (
        np.concatenate([empty, *column]) for column in (zip(*counted, strict=True) if counted else ((), ()))
    )
    order = values.argsort(kind="stable")
    values = values[order]
    first = np.flatnonzero(np.diff(values, prepend=-1))
    return values[first], np.add.reduceat(counts[order], first) if len(first) else empty


def at_ranks(counted: tuple[np.ndarray, np.ndarray], ranks: np.ndarray) -> np.ndarray:
    """Return the values at these places (from 0) of the sorted array whose values were counted."""
    values, counts = counted
    return values[np.searchsorted(np.cumsum(counts), ranks, side="right")]
