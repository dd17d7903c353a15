"""Reader of trace files of all versions, memory-mapped.

Source: Neutrino trace format, as written by its driver.
"""

import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.neutrino import layout
from gpuledger.readers.neutrino.layout import (
    ENTRY_BYTES,
    HEADER_BYTES,
    Geometry,
    LaunchShape,
    Misfit,
    Section,
    Slices,
    Version,
)
from gpuledger.readers.neutrino.lines import opened
from gpuledger.readers.neutrino.probe import Probe
from gpuledger.readers.neutrino.records import TOOLS, Level, ProbeMap

#: Probes have a handful of maps.
MAX_SECTIONS = 4096
FOREIGN = "give a .bin file from the result folder of a trace directory"
CUT = "copy it again, or wait until it is complete"


class TraceWarning(InputWarning):
    """A trace holds fewer records than its header promises."""


@dataclass(frozen=True)
class Trace(LaunchShape):
    """A memory-mapped trace file."""

    path: Path
    #: Layout of the section table. V1 and V2 are the same if the launch has a single thread or warp; then V1.
    version: Version
    grid: tuple[int, int, int]  # ``(x, y, z)`` of the launch
    block: tuple[int, int, int]
    shared_bytes: int  # dynamic shared memory of the launch
    sections: list[Section]  # one per map of the probe, in their order
    bytes: np.ndarray = field(repr=False, compare=False)  # the whole file, as a read-only `numpy.memmap`

    def section(self, index: int) -> Section:
        """Return one section, or raise :class:`InputError` if the file has fewer."""
        if not 0 <= index < len(self.sections):
            problem = f"no section {index}: the trace has {len(self.sections)}"
            raise InputError(self.path, "byte 28", problem, "give the trace of the probe that saves it")
        return self.sections[index]

    def record_type(self, section: int = 0) -> np.dtype:
        """Return the record type of a section: as the probe states it, else that of the only tool with such slices.

        Raises
        ------
        InputError
            If no shipped tool writes such slices, or several do: 8 bytes per thread can be memory traffic or an
            instruction count, 1024 bytes can be 64 accesses or 128 branches.
        """
        entry = self.section(section)
        if entry.dtype is not None:
            return entry.dtype
        fitting = {name: tool for name, tool in TOOLS.items() if tool.fits(entry.level, entry.bytes_per_unit)}
        if len(fitting) == 1:
            return next(iter(fitting.values())).dtype
        made = f"{entry.bytes_per_unit} bytes per {entry.level}"
        who = f"could come from {' or '.join(fitting)}" if fitting else "come from no shipped tool"
        remedy = "give its probe.toml or the dtype of its records"
        raise InputError(self.path, f"section {section}", f"{made} {who}", remedy)

    def records(self, section: int = 0, dtype: DTypeLike | None = None) -> np.ndarray:
        """Return a view of the records of one section.

        Blocks are in linear order, x fastest, then y, then z, and so are the threads of a block. The records of a unit
        are in the order in which it saved them; unused slots are zero (see :func:`gpuledger.readers.neutrino.saved`).

        Parameters
        ----------
        section : int
            Position in the section table.
        dtype : dtype, optional
            Record type; by default :meth:`record_type`.

        Returns
        -------
        numpy.memmap, (blocks, units per block, records per unit)
            Read-only. At warp level a block has ``threads // 32`` units, the probe's stride; blocks of less than a warp
            share one unit, and the shape is (1, 1, records). Both cause a `TraceWarning` if warps overwrite each other.
        """
        entry = self.section(section)
        dtype = self.record_type(section) if dtype is None else np.dtype(dtype)
        if dtype.hasobject or not dtype.itemsize:
            raise ValueError(f"records have a fixed size and no Python objects, unlike {dtype}")
        count, rest = divmod(entry.bytes_per_unit, dtype.itemsize)
        if rest:
            problem = f"{entry.bytes_per_unit} bytes per {entry.level} are not a multiple of {dtype.itemsize}"
            raise InputError(self.path, f"section {section}", problem, "give the probe.toml that it was made with")
        if entry.ragged:
            shared = (
                "all blocks write to one record" if entry.blocks < self.blocks else "partial warps overwrite others"
            )
            message = f"{self.path}, section {section}: blocks of {self.threads} threads; {shared}"
            warnings.warn(message, TraceWarning, stacklevel=2)
        used = entry.blocks * entry.units_per_block * entry.bytes_per_unit
        data = self.bytes[entry.offset : entry.offset + used]
        return data.view(dtype).reshape(entry.blocks, entry.units_per_block, count)


def open_trace(path: str | Path, *, probe: Probe | None = None, levels: Sequence[Level] | None = None) -> Trace:
    """Open a trace file.

    Its length is checked against its header before it is mapped.

    Parameters
    ----------
    path : path
        A ``result/*.bin``.
    probe : Probe, optional
        What its sections are. Without it, a section of version V1 or V2 that fits both levels is read at thread level
        and marked as `assumed`.
    levels : sequence of {"thread", "warp"}, optional
        The level of each section, which the event log states.
    """
    path = Path(path)
    with opened(path, FOREIGN) as handle:
        length = handle.seek(0, 2)
        geometry, shared_bytes, table = _read_header(path, handle, length)
        maps = _maps(path, probe, len(table))
        if levels is not None and len(levels) != len(table):
            problem = f"{len(table)} sections, but {len(levels)} levels are given"
            raise InputError(path, "byte 28", problem, "give the level of each section")
        found, sections = _resolve(path, geometry, table, length, levels, maps)
        try:
            mapped = np.memmap(handle, np.uint8, "r", shape=(length,))
        except (OSError, ValueError) as error:  # it shrank, or its file system does not map files
            raise InputError(path, "", f"cannot be mapped ({error})", "copy it to a local disk") from None
    return Trace(path, found, geometry.grid, geometry.block, shared_bytes, sections, mapped)


def _read_header(path: Path, handle, length: int) -> tuple[Geometry, int, list[tuple[int, int]]]:
    if length < HEADER_BYTES + ENTRY_BYTES:
        raise InputError(path, f"byte {length}", f"{length} bytes are too short for a header and a section", FOREIGN)
    handle.seek(0)
    *sizes, shared_bytes, number = struct.unpack("<8I", handle.read(HEADER_BYTES))
    geometry = Geometry(tuple(sizes[:3]), tuple(sizes[3:]))
    for place, name, size in ((0, "grid", geometry.grid), (12, "block", geometry.block)):
        if 0 in size:
            problem = f"not a trace: a {name} of {size[0]} × {size[1]} × {size[2]}"
            raise InputError(path, f"byte {place}", problem, FOREIGN)
    if geometry.threads > layout.MAX_THREADS:
        problem = f"not a trace: blocks of {geometry.threads} threads, where devices allow {layout.MAX_THREADS}"
        raise InputError(path, "byte 12", problem, FOREIGN)
    if number == 0:
        raise InputError(path, "byte 28", "the trace has no section", "use a probe that saves records")
    start = HEADER_BYTES + ENTRY_BYTES * number
    if number > MAX_SECTIONS or start > length:
        raise InputError(path, "byte 28", f"not a trace: {number} sections do not fit into {length} bytes", FOREIGN)
    table = list(struct.iter_unpack("<2Q", handle.read(ENTRY_BYTES * number)))
    if table[0][1] != start:
        problem = f"not a trace: the first section starts at byte {table[0][1]}, not {start}"
        raise InputError(path, "byte 40", problem, FOREIGN)
    return geometry, shared_bytes, table


def _maps(path: Path, probe: Probe | None, number: int) -> Sequence[ProbeMap | None]:
    if probe is None:
        return [None] * number
    if len(probe.maps) != number:
        problem = f"{number} sections, but the probe {probe.path.name} has {len(probe.maps)} maps"
        raise InputError(path, "byte 28", problem, "give the probe.toml that it was made with")
    return probe.maps


def _resolve(
    path: Path,
    geometry: Geometry,
    table: list[tuple[int, int]],
    length: int,
    levels: Sequence[Level] | None,
    maps: Sequence[ProbeMap | None],
) -> tuple[Version, list[Section]]:
    misfits, disagreements = [], []
    for version, lay_out in layout.VERSIONS.items():
        try:
            choices, offsets = lay_out(geometry, table, length)
        except Misfit as misfit:
            misfits.append(misfit)
            continue
        try:
            chosen = [
                _choose(index, ways, levels[index] if levels else None, maps[index])
                for index, ways in enumerate(choices)
            ]
        except Misfit as misfit:
            disagreements.append((f"section {misfit.section}", f"{version}: {misfit}"))
            continue
        sections = [
            Section(
                index,
                slices.level,
                slices.bytes_per_unit,
                slices.units,
                offset,
                *(strides := layout.strides(geometry, slices)),
                warp_size=slices.warp_size,
                ragged=strides[0] * strides[1] != geometry.units(slices.level, slices.warp_size),
                assumed=assumed,
                name=wanted.name if wanted else "",
                dtype=wanted.dtype if wanted else None,
            )
            for index, ((slices, assumed), offset, wanted) in enumerate(zip(chosen, offsets, maps, strict=True))
        ]
        return version, sections
    if disagreements:
        place, problem = disagreements[0]
        raise InputError(path, place, problem, "give the probe.toml and levels that it was made with")
    raise _refusal(path, length, misfits)


def _refusal(path: Path, length: int, misfits: list[Misfit]) -> InputError:
    announced = {size: what for misfit in misfits for size, what in misfit.announced.items()}
    if not announced:
        place = HEADER_BYTES + ENTRY_BYTES * misfits[0].section
        problem = f"the section table fits no version ({'; '.join(map(str, misfits))})"
        return InputError(path, f"byte {place}", problem, FOREIGN)
    # Of the possible lengths, the nearest one was probably meant.
    meant = min(announced, key=lambda size: abs(log(size / length)))
    state = "truncated" if length < meant else "too long"
    problem = f"{state}: {length} bytes, but its header says {meant} ({announced[meant]})"
    return InputError(path, f"byte {min(length, meant)}", problem, CUT)


def _choose(index: int, ways: list[Slices], level: str | None, wanted: ProbeMap | None) -> tuple[Slices, bool]:
    left = [way for way in ways if level in (None, way.level)]
    if not left:
        raise Misfit(f"the section is at {ways[0].level} level, not at {level} level", section=index)
    if wanted is not None:
        left = [way for way in left if wanted.fits(way.level, way.bytes_per_unit)]
        if not left:
            made = " or ".join(f"{way.bytes_per_unit} bytes per {way.level}" for way in ways)
            raise Misfit(f"{made}, but the probe's map '{wanted.name}' has {wanted.describe()}", section=index)
    return left[0], len(left) > 1
