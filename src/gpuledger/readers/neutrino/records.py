"""Record types of the shipped probe tools.

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
class Tool:
    """A shipped probe tool: what it saves and how often.

    Attributes
    ----------
    level : {"thread", "warp"}
        Whether each thread or each warp has a slice of records.
    dtype : numpy.dtype
        Record type.
    cap : int or None
        Records per slice; None if the driver counts them before the launch.
    """

    level: Level
    dtype: np.dtype
    cap: int | None

    def fits(self, level: str, bytes_per_unit: int) -> bool:
        """Return whether the tool could have written slices of this size at this level."""
        size = self.dtype.itemsize
        whole = bytes_per_unit % size == 0 if self.cap is None else bytes_per_unit == size * self.cap
        return level == self.level and whole


#: Shipped tools by name. Later releases call ``tensorop_count`` ``tensorop``.
TOOLS = {
    "block_sched": Tool("warp", BLOCK_SCHED, 1),
    "gmem_bytes": Tool("thread", GMEM_BYTES, 1),
    "tensorop_count": Tool("thread", TENSOROP_COUNT, 1),
    "dmat": Tool("thread", DMAT_ACCESS, None),
    "program_progress": Tool("thread", PROGRAM_PROGRESS, 128),
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
