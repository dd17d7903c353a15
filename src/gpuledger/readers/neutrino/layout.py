"""Layout of a trace: the three versions of its section table, told apart by arithmetic.

Source: Neutrino trace format, as written by its driver. Files do not state their version. All start with a header of
eight 32-bit words (grid, block, dynamic shared memory, number of sections) and a table with 16 bytes per section:

* V1: 64-bit total bytes of the section, 64-bit offset;
* V2: 64-bit bytes per thread or warp (it does not say which), 64-bit offset;
* V3: 32-bit bytes per thread or warp, 32-bit divisor (1: thread, 32: warp), 64-bit offset.

A version fits if its sections, placed end to end, fill the file exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from gpuledger.readers.neutrino.records import Level

HEADER_BYTES = 32
ENTRY_BYTES = 16
WARP_SIZE = 32
#: No device launches larger blocks.
MAX_THREADS = 1024
#: The first build of V2 wrote -1 for slices whose length is only known at launch time.
DYNAMIC = 2**64 - 1

Version = Literal["V1", "V2", "V3"]


class LaunchShape:
    """Base of classes that have the ``grid`` and ``block`` of a launch, ``(x, y, z)`` each."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return prod(self.block)


@dataclass(frozen=True)
class Geometry(LaunchShape):
    """Grid and block of a launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    def units(self, level: str, warp_size: int = WARP_SIZE) -> int:
        """Return the number of slices that the driver allocates; a partial warp has one too."""
        return self.blocks * (self.threads if level == "thread" else -(-self.threads // warp_size))


@dataclass(frozen=True)
class Section:
    """One section of a trace: the records of one map of the probe."""

    index: int  # position in the section table
    level: Level  # whether each thread or each warp has a slice of the section, called a unit
    bytes_per_unit: int
    units: int  # slices in the file, including those that no warp can reach (see `ragged`)
    #: Byte at which the section starts. The table of V3 files with several sections states less, if one is at warp
    #: level and blocks are not a multiple of 32 threads.
    offset: int
    #: Shape of the section; (1, 1) if all blocks share one slice.
    blocks: int
    units_per_block: int
    warp_size: int = 1  # threads that share a slice; 1 at thread level
    #: At warp level, whether blocks are not a multiple of 32 threads. The probe strides by full warps, so the partial
    #: warp of one block and the first warp of the next write to the same slice, and either may survive. Blocks of less
    #: than a warp all write to the first slice.
    ragged: bool = False
    assumed: bool = False  # the file fits both levels, and nothing says which one it is
    name: str = ""  # name of the probe's map, or empty
    dtype: np.dtype | None = None  # record type, if a probe states it

    @property
    def bytes(self) -> int:
        """Bytes of the whole section in the file."""
        return self.units * self.bytes_per_unit


class Slices(NamedTuple):
    """One interpretation of a section."""

    level: Level
    bytes_per_unit: int
    warp_size: int
    units: int


class Misfit(Exception):  # noqa: N818, it is caught at once
    """Why a file is not of a version.

    Attributes
    ----------
    announced : dict of int to str
        By the length that the file should have: what it would be then.
    section : int
        The section that does not fit.
    """

    def __init__(self, reason: str, announced: dict[int, str] | None = None, section: int = 0):
        super().__init__(reason)
        self.announced, self.section = announced or {}, section


def strides(geometry: Geometry, slices: Slices) -> tuple[int, int]:
    """Return (blocks, slices per block) as the probe addresses them."""
    if slices.level == "thread":
        return geometry.blocks, geometry.threads
    per_block = geometry.threads // slices.warp_size
    return (geometry.blocks, per_block) if per_block else (1, 1)


def _totals(geometry: Geometry, table: Sequence[tuple[int, int]], length: int) -> tuple[list, list]:
    start, choices = HEADER_BYTES + ENTRY_BYTES * len(table), []
    for index, (total, offset) in enumerate(table):
        units = {level: geometry.units(level) for level in ("thread", "warp")}
        # Records are multiples of 8 bytes: they have an even number of 32-bit fields.
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
            raise Misfit(f"V2: {size} bytes per thread or warp", section=index)
        elif index < len(table) - 1:
            raise Misfit(f"V2: the next section starts at byte {end}, which fits no level", section=index)
        else:
            ends = {offset + size * n: f"V2 at {level} level" for level, n in units.items()}
            raise Misfit("V2: another length", ends, index)
    return choices, [offset for _, offset in table]


def _early_dynamic(geometry: Geometry, table: Sequence[tuple[int, int]], length: int) -> tuple[list, list]:
    if len(table) > 1:
        # The offsets of later sections assume a length of -1.
        raise Misfit("V2: a section of unstated length next to others cannot be read")
    size, rest = divmod(length - table[0][1], geometry.units("thread"))
    if rest or not size or size % 8:
        raise Misfit("V2: a section of unstated length does not divide among the threads")
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
            raise Misfit(f"V3: {size} bytes per thread or warp", section=index)
        level = "thread" if divisor == 1 else "warp"
        units = geometry.units(level, divisor)
        product = geometry.blocks * geometry.threads * size // divisor
        choices.append([Slices(level, size, divisor, units)])
        short.append([Slices(level, size, divisor, product // size)])
        written.append(written[-1] + units * size)
        stated.append(stated[-1] + product)
    offsets = [offset for _, offset in table]
    # The driver rounds down once over the product of grid, block and size, but writes a slice for each partial warp.
    if written[-1] == length and offsets in (written[:-1], stated[:-1]):
        return choices, written[:-1]
    if stated[-1] == length and offsets == stated[:-1] and all(slices[0].units for slices in short):
        return short, offsets
    if offsets not in (written[:-1], stated[:-1]):
        raise Misfit("V3: the sections are not end to end")
    raise Misfit("V3: another length", {written[-1]: "V3"})


#: By version, how its section table is read. Takes the first 64 bits and the offset of each section, and the file's
#: bytes; returns the possible interpretations of each section, thread level first, and where it starts, or raises
#: `Misfit` if the sections do not fill the file.
#: In the order of trying: a V3 entry can hardly be mistaken for another, and V1 and V2 are the same bytes if the launch
#: has a single thread or warp.
VERSIONS: dict[Version, Callable[[Geometry, Sequence[tuple[int, int]], int], tuple[list[list[Slices]], list[int]]]] = {
    "V3": _with_divisor,
    "V1": _totals,
    "V2": _per_unit,
}
