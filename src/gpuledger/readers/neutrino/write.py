"""Writer of trace files of all versions, byte for byte as the drivers write them.

Source: Neutrino trace format, as written by its driver.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpuledger.files import replacing
from gpuledger.readers.neutrino.layout import (
    ENTRY_BYTES,
    HEADER_BYTES,
    MAX_THREADS,
    VERSIONS,
    WARP_SIZE,
    Geometry,
    Slices,
    Version,
    strides,
)
from gpuledger.readers.neutrino.records import Level


def write_trace(
    path: str | Path,
    *,
    version: Version,
    grid: Sequence[int],
    block: Sequence[int],
    sections: Sequence[tuple[Level, np.ndarray]],
    shared_bytes: int = 0,
) -> None:
    """Write a trace file atomically.

    Parameters
    ----------
    path : path
        Usually ``<seconds>.bin``.
    version : {"V1", "V2", "V3"}
        Layout of the section table.
    grid, block : sequence of three ints
        ``(x, y, z)`` of the launch.
    sections : sequence of (level, array)
        The records of each map, as a structured array of shape (blocks, units, records). At thread level, units are the
        threads of a block. At warp level there are ``threads // 32``, the probes' stride; if a block is less than a
        warp, the shape is (1, 1, records). Slices that no warp can reach are zero.

    Raises
    ------
    ValueError
        A version, level, shape or size that the format cannot express.
    """
    if version not in VERSIONS:
        raise ValueError(f"versions are {', '.join(VERSIONS)}, not {version!r}")
    geometry = _geometry(grid, block)
    if not sections or not 0 <= shared_bytes < 2**32:
        raise ValueError("a trace needs a section, and shared_bytes must fit in 32 bits")
    prepared = [_prepare(geometry, level, np.asarray(array)) for level, array in sections]
    stated = written = HEADER_BYTES + ENTRY_BYTES * len(prepared)
    table = []
    for slices, _ in prepared:
        size, total = slices.bytes_per_unit, slices.bytes_per_unit * slices.units
        if version == "V3":
            if size >= 2**32:
                raise ValueError(f"V3 stores the bytes per unit in 32 bits: {size} is too much")
            table.append((size | slices.warp_size << 32, stated))
            # Like the driver, which rounds down the whole product and so understates partial warps.
            stated += geometry.blocks * geometry.threads * size // slices.warp_size
        else:
            table.append((total if version == "V1" else size, written))
        written += total
    with replacing(path) as temporary, open(temporary, "wb") as handle:
        handle.write(struct.pack("<8I", *geometry.grid, *geometry.block, shared_bytes, len(prepared)))
        handle.write(b"".join(struct.pack("<2Q", *entry) for entry in table))
        for slices, array in prepared:
            np.ascontiguousarray(array).tofile(handle)
            handle.write(bytes(slices.bytes_per_unit * slices.units - array.nbytes))


def _geometry(grid: Sequence[int], block: Sequence[int]) -> Geometry:
    geometry = Geometry(tuple(map(int, grid)), tuple(map(int, block)))
    for name, size in (("grid", geometry.grid), ("block", geometry.block)):
        if len(size) != 3 or not all(1 <= n < 2**32 for n in size):
            raise ValueError(f"a {name} has three sizes of at least 1, not {size}")
    if geometry.threads > MAX_THREADS:
        raise ValueError(f"a block has at most {MAX_THREADS} threads, not {geometry.threads}")
    return geometry


def _prepare(geometry: Geometry, level: str, array: np.ndarray) -> tuple[Slices, np.ndarray]:
    if level not in ("thread", "warp"):
        raise ValueError(f"levels are 'thread' and 'warp', not {level!r}")
    if array.ndim != 3 or array.dtype.hasobject:
        raise ValueError(f"records have the shape (blocks, units, records), not {array.shape} of {array.dtype}")
    size = array.shape[2] * array.dtype.itemsize
    if not size or size % 8:
        raise ValueError(f"the records of a unit must be a multiple of 8 bytes, not {size}")
    warp_size = 1 if level == "thread" else WARP_SIZE
    slices = Slices(level, size, warp_size, geometry.units(level))
    expected = strides(geometry, slices)
    if array.shape[:2] != expected:
        raise ValueError(f"{expected} blocks and units are expected at {level} level, not {array.shape[:2]}")
    dtype = array.dtype.newbyteorder("<")
    return slices, array.astype(dtype, copy=False)
