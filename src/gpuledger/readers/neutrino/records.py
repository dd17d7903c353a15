"""What one record of each shipped probe tool holds.

Source: Neutrino trace format, as written by its driver and its five tools. Inside a record all 64-bit fields come
before all 32-bit ones; everything is little-endian and without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Level = Literal["thread", "warp"]

#: Of every warp: SM clock at its start (cycles), cycles until its end (low 32 bits), number of its SM.
BLOCK_SCHED = np.dtype([("start", "<u8"), ("elapsed", "<u4"), ("cuid", "<u4")])
#: Of every thread: bytes of global memory accessed by loads and stores, and by asynchronous copies.
GMEM_BYTES = np.dtype([("sync_bytes", "<u4"), ("async_bytes", "<u4")])
#: Of every thread: how many matrix multiply-accumulate instructions it took part in (all 32 lanes count each).
TENSOROP_COUNT = np.dtype([("count", "<u8")])
#: Of every access to global memory: cycles since its thread entered the kernel, address.
DMAT_ACCESS = np.dtype([("clock", "<u8"), ("addr", "<u8")])
#: Of every branch of a thread: SM clock (cycles).
PROGRAM_PROGRESS = np.dtype([("clock", "<u8")])


@dataclass(frozen=True)
class Tool:
    """A shipped probe tool: what it saves, how often.

    Attributes
    ----------
    level : {"thread", "warp"}
        What saves one slice of records.
    dtype : numpy.dtype
        One record.
    cap : int or None
        Records of a slice; None where the driver counts them before the launch.
    """

    level: Level
    dtype: np.dtype
    cap: int | None

    def fits(self, level: str, bytes_per_unit: int) -> bool:
        """Whether the tool can have written slices of `bytes_per_unit` bytes at this level."""
        size = self.dtype.itemsize
        whole = bytes_per_unit % size == 0 if self.cap is None else bytes_per_unit == size * self.cap
        return level == self.level and whole


#: The shipped tools by name. ``tensorop`` is the later name of ``tensorop_count``.
TOOLS = {
    "block_sched": Tool("warp", BLOCK_SCHED, 1),
    "gmem_bytes": Tool("thread", GMEM_BYTES, 1),
    "tensorop_count": Tool("thread", TENSOROP_COUNT, 1),
    "dmat": Tool("thread", DMAT_ACCESS, None),
    "program_progress": Tool("thread", PROGRAM_PROGRESS, 128),
}


def saved(records: np.ndarray, sentinels: Sequence[Literal["zero", "ones"]] = ("zero", "ones")) -> np.ndarray:
    """Tell the slots of a trace that were saved from those that were not.

    Drivers clear their buffers with zeros; the very first one filled clocks with ones instead. Nothing in the
    file says which, so by default both count as not saved. ``sentinels=()`` counts every slot and
    ``sentinels=("ones",)`` counts zeros, as the tools' own scripts do.

    Parameters
    ----------
    records : ndarray of a structured dtype, any shape
        As given by :meth:`Trace.records`. Of records that count (bytes, instructions) zero is a value, not a gap.
    sentinels : sequence of {"zero", "ones"}
        ``zero``: every field is 0. ``ones``: the first field has all bits set.

    Returns
    -------
    ndarray of bool, the shape of `records`
    """
    unknown = set(sentinels) - {"zero", "ones"}
    if unknown:
        raise ValueError(f"sentinels are 'zero' and 'ones', not {sorted(unknown)}")
    mask = np.ones(records.shape, bool)
    if "zero" in sentinels:
        mask[...] = False
        for name in records.dtype.names:
            mask |= records[name] != 0
    if "ones" in sentinels:
        first = records[records.dtype.names[0]]
        mask &= first != np.iinfo(first.dtype).max
    return mask
