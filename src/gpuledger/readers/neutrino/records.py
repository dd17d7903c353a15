"""Record types of probes, and the shipped probe tools.

Source: Neutrino trace format, as written by its driver and its five tools. In a record, the 64-bit fields come before
the 32-bit ones; everything is little-endian and without padding.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Level = Literal["thread", "warp"]

#: Per warp: SM clock at its start (cycles), elapsed cycles (low 32 bits), SM number.
BLOCK_SCHED = np.dtype([("start", "<u8"), ("elapsed", "<u4"), ("cuid", "<u4")])
#: Per thread: bytes of global memory accessed by loads and stores, and by asynchronous copies.
GMEM_BYTES = np.dtype([("sync_bytes", "<u4"), ("async_bytes", "<u4")])
#: Per thread: matrix multiply-accumulate instructions that it took part in (each of the 32 lanes counts each).
TENSOROP_COUNT = np.dtype([("count", "<u8")])
#: Per access to global memory: cycles since its thread entered the kernel, address.
DMAT_ACCESS = np.dtype([("clock", "<u8"), ("addr", "<u8")])
#: Per branch of a thread: SM clock (cycles).
PROGRAM_PROGRESS = np.dtype([("clock", "<u8")])


@dataclass(frozen=True)
class ProbeMap:
    """What a probe saves to one section of a trace."""

    name: str
    level: Level  # whether each thread or each warp has a slice of records
    record_bytes: int
    cap: int | None = 1  # records per slice; None if the driver counts them before the launch
    dtype: np.dtype | None = None  # record type; None if the fields in the probe's text do not add up to `record_bytes`

    def fits(self, level: str, bytes_per_unit: int) -> bool:
        """Return whether it could have saved slices of this size at this level."""
        if self.cap is None:
            return level == self.level and bytes_per_unit % self.record_bytes == 0
        return level == self.level and bytes_per_unit == self.record_bytes * self.cap

    def describe(self) -> str:
        """Return what it saves, in words."""
        size = f"{self.record_bytes * self.cap}" if self.cap else f"a multiple of {self.record_bytes}"
        return f"{size} bytes per {self.level}"


#: What the shipped tools save, by name. Later releases call ``tensorop_count`` ``tensorop``.
TOOLS = {
    name: ProbeMap(name, level, dtype.itemsize, cap, dtype)
    for name, level, dtype, cap in (
        ("block_sched", "warp", BLOCK_SCHED, 1),
        ("gmem_bytes", "thread", GMEM_BYTES, 1),
        ("tensorop_count", "thread", TENSOROP_COUNT, 1),
        ("dmat", "thread", DMAT_ACCESS, None),
        ("program_progress", "thread", PROGRAM_PROGRESS, 128),
    )
}


def saved(records: np.ndarray) -> np.ndarray:
    """Return which slots of a trace hold a record.

    Drivers clear their buffers with zeros; the first one filled clocks with ones instead. The file does not say which,
    so both count as empty. In records of counts (bytes, instructions), zero is a value, not an empty slot.

    Parameters
    ----------
    records : ndarray of a structured dtype, any shape
        See :meth:`Trace.records`.

    Returns
    -------
    ndarray of bool, same shape
    """
    first = records[records.dtype.names[0]]
    mask = np.zeros(records.shape, bool)
    for name in records.dtype.names:
        mask |= records[name] != 0
    return mask & (first != np.iinfo(first.dtype).max)
