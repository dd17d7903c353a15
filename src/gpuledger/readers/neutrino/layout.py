"""Where the sections of a trace lie: the three versions of the section table, told apart by arithmetic.

Source: Neutrino trace format, as written by its driver. No file names its version. All have a header of eight 32-bit
words (grid, block, dynamic shared memory, number of sections) and a table of 16 bytes for each section:

* V1: 64-bit total bytes of the section, 64-bit offset;
* V2: 64-bit bytes for each thread or warp, 64-bit offset; which of the two is not said;
* V3: 32-bit bytes for each thread or warp, 32-bit divisor (1: thread, 32: warp), 64-bit offset.

A version fits when its sections, laid end to end, fill the file exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from gpuledger.readers.neutrino.records import Level

HEADER_BYTES = 32
ENTRY_BYTES = 16
WARP_SIZE = 32
#: A first build of V2 wrote -1 for slices whose length is only known at the launch.
DYNAMIC = 2**64 - 1

Version = Literal["V1", "V2", "V3"]
#: The order in which they are tried: a V3 entry can hardly be anything else, and where there is one unit in all,
#: V1 and V2 are the same bytes.
VERSIONS = ("V3", "V1", "V2")


class Geometry(NamedTuple):
    """Grid and block of a launch, ``(x, y, z)`` each."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads(self) -> int:
        return prod(self.block)

    def units(self, level: str, warp_size: int = WARP_SIZE) -> int:
        """Number of slices that the driver allocates: a partial warp counts as one."""
        return self.blocks * (self.threads if level == "thread" else -(-self.threads // warp_size))


@dataclass(frozen=True)
class Section:
    """One section of a trace: what one map of the probe saved.

    Attributes
    ----------
    index : int
        Its place in the section table.
    level : {"thread", "warp"}
        What saved one slice of it.
    bytes_per_unit : int
        Bytes of the slice of one thread or warp.
    units : int
        Slices in the file, those that no warp can reach (see `ragged`) included.
    offset : int
        Byte at which it starts.
    stated_offset : int
        Byte at which it starts by the table. Differs from `offset` in V3 files with several sections, warp level
        and blocks that are not whole warps: the driver states less than it writes.
    blocks, units_per_block : int
        How the slices are strided. (1, 1) where all blocks share one slice.
    warp_size : int
        Threads that share one slice; 1 at thread level.
    ragged : bool
        Warp level and blocks that are not whole warps: the probe strides by whole warps, so that the last, partial warp
        of a block and the first warp of the next one write the same slice; which one is kept is chance. Blocks of
        less than a warp all write the first slice.
    assumed : bool
        The file fits both levels, and nobody said which it is.
    name : str
        Name of the map in the probe, or nothing.
    dtype : numpy.dtype or None
        The record, where a probe says it.
    """

    index: int
    level: Level
    bytes_per_unit: int
    units: int
    offset: int
    stated_offset: int
    blocks: int
    units_per_block: int
    warp_size: int = 1
    ragged: bool = False
    assumed: bool = False
    name: str = ""
    dtype: np.dtype | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the whole section in the file."""
        return self.units * self.bytes_per_unit


class Slices(NamedTuple):
    """One way to read a section."""

    level: Level
    bytes_per_unit: int
    warp_size: int
    units: int


class Misfit(Exception):  # noqa: N818, it is caught at once
    """Why the file is not of a version.

    Attributes
    ----------
    announced : dict of int to str
        Lengths that the file would have, with what it would then be.
    section : int
        The section that does not fit.
    """

    def __init__(self, reason: str, announced: dict[int, str] | None = None, section: int = 0):
        super().__init__(reason)
        self.announced, self.section = announced or {}, section


def strides(geometry: Geometry, slices: Slices, warp_stride: str) -> tuple[int, int]:
    """Return (blocks, slices of a block) as the probe addresses them."""
    if slices.level == "thread":
        return geometry.blocks, geometry.threads
    per_block = geometry.threads // slices.warp_size
    if warp_stride == "ceil" and slices.units == geometry.units("warp", slices.warp_size):
        per_block = -(-geometry.threads // slices.warp_size)
    return (geometry.blocks, per_block) if per_block else (1, 1)


def lay_out(
    version: str, geometry: Geometry, table: Sequence[tuple[int, int]], length: int
) -> tuple[list[list[Slices]], list[int]]:
    """Read a section table as one version.

    Parameters
    ----------
    version : {"V1", "V2", "V3"}
    geometry : Geometry
    table : sequence of (int, int)
        First 64 bits and offset of every section.
    length : int
        Bytes of the file.

    Returns
    -------
    choices : list of list of Slices
        Of every section each way to read it, at thread level first.
    offsets : list of int
        Where each section starts.

    Raises
    ------
    Misfit
        When the sections of this version do not fill the file.
    """
    return {"V1": _totals, "V2": _per_unit, "V3": _with_divisor}[version](geometry, table, length)


def _totals(geometry: Geometry, table: Sequence[tuple[int, int]], length: int) -> tuple[list, list]:
    start, choices = HEADER_BYTES + ENTRY_BYTES * len(table), []
    for index, (total, offset) in enumerate(table):
        units = {level: geometry.units(level) for level in ("thread", "warp")}
        # A record is a multiple of 8 bytes: the number of its 32-bit fields is even.
        fitting = [
            Slices(level, total // n, 1 if level == "thread" else WARP_SIZE, n)
            for level, n in units.items()
            if total and total % (8 * n) == 0
        ]
        if not fitting:
            raise Misfit(f"V1: {total} bytes do not divide among threads or warps", section=index)
        if offset != start:
            raise Misfit(f"V1: a section starts at byte {offset}, not at {start}", section=index)
        choices.append(fitting)
        start += total
    if start != length:
        raise Misfit("V1: another length", {start: "V1"})
    return choices, [offset for _, offset in table]


def _per_unit(geometry: Geometry, table: Sequence[tuple[int, int]], length: int) -> tuple[list, list]:
    if any(size == DYNAMIC for size, _ in table):
        return _early_dynamic(geometry, table, length)
    choices = []
    ends = [offset for _, offset in table[1:]] + [length]
    for index, ((size, offset), end) in enumerate(zip(table, ends, strict=True)):
        units = {level: geometry.units(level) for level in ("thread", "warp")}
        fitting = [
            Slices(level, size, 1 if level == "thread" else WARP_SIZE, n)
            for level, n in units.items()
            if size and size % 8 == 0 and offset + size * n == end
        ]
        if fitting:
            choices.append(fitting)
        elif not size or size % 8:
            raise Misfit(f"V2: {size} bytes for each thread or warp", section=index)
        elif index < len(table) - 1:
            raise Misfit(f"V2: the next section starts at byte {end}, which fits no level", section=index)
        else:
            ends = {offset + size * n: f"V2 at {level} level" for level, n in units.items()}
            raise Misfit("V2: another length", ends, index)
    return choices, [offset for _, offset in table]


def _early_dynamic(geometry: Geometry, table: Sequence[tuple[int, int]], length: int) -> tuple[list, list]:
    if len(table) > 1:
        # What follows it is stated relative to a length of -1.
        raise Misfit("V2: a section of unstated length beside others cannot be read")
    size, rest = divmod(length - table[0][1], geometry.units("thread"))
    if rest or not size or size % 8:
        raise Misfit("V2: a section of unstated length that does not divide among the threads")
    return [[Slices("thread", size, 1, geometry.units("thread"))]], [table[0][1]]


def _with_divisor(geometry: Geometry, table: Sequence[tuple[int, int]], length: int) -> tuple[list, list]:
    start = HEADER_BYTES + ENTRY_BYTES * len(table)
    written, stated = [start], [start]
    choices, short = [], []
    for index, (entry, _) in enumerate(table):
        size, divisor = entry & 0xFFFFFFFF, entry >> 32
        if divisor not in (1, WARP_SIZE, 64):
            raise Misfit(f"V3: a divisor of {divisor}", section=index)
        if not size or size % 8:
            raise Misfit(f"V3: {size} bytes for each thread or warp", section=index)
        level = "thread" if divisor == 1 else "warp"
        units = geometry.units(level, divisor)
        product = geometry.blocks * geometry.threads * size // divisor
        choices.append([Slices(level, size, divisor, units)])
        short.append([Slices(level, size, divisor, product // size)])
        written.append(written[-1] + units * size)
        stated.append(stated[-1] + product)
    offsets = [offset for _, offset in table]
    # The driver states one rounding down over grid, block and size, but writes a slice for each partial warp.
    if written[-1] == length and offsets in (written[:-1], stated[:-1]):
        return choices, written[:-1]
    if stated[-1] == length and offsets == stated[:-1] and all(slices[0].units for slices in short):
        return short, offsets
    if offsets not in (written[:-1], stated[:-1]):
        raise Misfit("V3: the sections do not stand end to end")
    raise Misfit("V3: another length", {written[-1]: "V3"})
