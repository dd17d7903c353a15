"""Which tensor owns which memory, from the logs beside a launch's trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.readers.neutrino import EventLog

#: Name of memory that belongs to no tensor.
UNKNOWN = "unknown"
#: Most regions to tell apart if nothing names them.
MAX_REGIONS = 12


@dataclass(frozen=True)
class Tensor:
    """A range of memory with a name.

    Attributes
    ----------
    name : str
    address, bytes : int
    shape : tuple of int
        Empty where it is not known.
    """

    name: str
    address: int
    bytes: int
    shape: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.address + self.bytes


@dataclass(frozen=True)
class Map:
    """Memory divided among tensors.

    Attributes
    ----------
    tensors : list of Tensor
    bounds : ndarray of uint64
        Addresses at which the owner may change, ascending.
    owner : ndarray of int64, one more than bounds
        Place in `tensors` of the owner of the memory before the first bound, between bounds, and after the last one;
        -1 for none.
    """

    tensors: list[Tensor]
    bounds: np.ndarray
    owner: np.ndarray

    def at(self, addresses: np.ndarray) -> np.ndarray:
        """Return the owner of each address."""
        return self.owner[np.searchsorted(self.bounds, addresses, "right")]


def divide(tensors: Sequence[Tensor]) -> Map:
    """Divide memory among tensors; where they overlap, the later one in the list owns it."""
    ends = {min(place, 2**64 - 1) for tensor in tensors for place in (tensor.address, tensor.end)}
    bounds = np.array(sorted(ends), np.uint64)
    owner = np.full(bounds.size + 1, -1, np.int64)
    for place, tensor in enumerate(tensors):
        start, end = np.searchsorted(bounds, np.array([tensor.address, min(tensor.end, 2**64 - 1)], np.uint64))
        owner[start + 1 : end + 1] = place
    return Map(list(tensors), bounds, owner)


def newest(trace: pd.DataFrame) -> list[Tensor]:
    """Return the tensor of the newest call for every pointer, newest first."""
    kept = trace.iloc[::-1].drop_duplicates("address")
    columns = (kept[name] for name in ("tensor", "address", "bytes", "shape"))
    return [
        Tensor(name, int(address), int(size), tuple(shape)) for name, address, size, shape in zip(*columns, strict=True)
    ]


def of_launch(trace: pd.DataFrame, log: EventLog | None, file: Path) -> list[Tensor]:
    """Return the tensors that a launch may touch, for :func:`divide`.

    Pointers are reused: for each, the newest call before the launch counts. A tensor's size is that of its storage,
    which may extend past the end of a view, so of two overlapping tensors the one with the higher address owns the
    memory; parameters of the launch take precedence.

    Parameters
    ----------
    trace : DataFrame
        See :func:`gpuledger.readers.neutrino.read_tensor_trace`.
    log : EventLog, optional
    file : path
        The trace of the launch.
    """
    launch = _launch(log, file)
    parameters: set[int] = set()
    if launch is not None:
        parameters = set(launch["parameters"])
        if not pd.isna(launch["time_ns"]) and (before := trace["time_ns"] <= int(launch["time_ns"])).any():
            trace = trace[before]
    return sorted(newest(trace), key=lambda tensor: (tensor.address in parameters, tensor.address))


def of_allocations(log: EventLog, file: Path) -> list[Tensor]:
    """Return a launch's pointers, each up to the next one or the end of its allocation, and other allocations."""
    launch = _launch(log, file)
    lines = log.memory["line"] < (launch["line"] if launch is not None else np.inf)
    alive: dict[int, int] = {}
    for row in log.memory[lines & (log.memory["status"] == 0)].itertuples():
        if pd.isna(row.bytes):
            alive.pop(int(row.address), None)
        else:
            alive[int(row.address)] = int(row.bytes)
    parameters = {}
    for place, value in enumerate(launch["parameters"] if launch is not None else ()):
        parameters.setdefault(value, f"parameter {place}")
    allocations = [Tensor(f"allocation at {address:#x}", address, size) for address, size in sorted(alive.items())]
    inside = [
        Tensor(name, address, whole.end - address)
        for address, name in sorted(parameters.items())
        for whole in allocations
        if whole.address <= address < whole.end
    ]
    return [*allocations, *inside]


def kernel_name(log: EventLog | None, file: Path) -> str:
    """Return the name of the launched kernel, or nothing if the log does not have it."""
    launch = _launch(log, file)
    return "" if launch is None else launch["kernel"]


def regions(pages: np.ndarray, page_bytes: int) -> list[Tensor]:
    """Divide pages at the gaps between them; if there are many, at the largest.

    Parameters
    ----------
    pages : ndarray of uint64
        Addresses, ascending.
    page_bytes : int
    """
    gaps = np.diff(pages)
    least = np.sort(gaps[gaps > page_bytes])[-(MAX_REGIONS - 1) :]
    first = np.concatenate([[0], np.flatnonzero(gaps >= least[0]) + 1]) if least.size else np.zeros(1, np.int64)
    if first.size > MAX_REGIONS:  # many gaps of one size: there is no structure to show
        first = first[:1]
    last = np.concatenate([first[1:] - 1, [pages.size - 1]])
    return [
        Tensor(
            f"pages from {int(pages[start]):#x}", int(pages[start]), int(pages[end]) + page_bytes - int(pages[start])
        )
        for start, end in zip(first, last, strict=True)
    ]


def _launch(log: EventLog | None, file: Path) -> pd.Series | None:
    """Return the launch that saved a trace, or else the last one of the log, as the tool's own script does."""
    if log is None or log.launches.empty:
        return None
    row = log.launch_of(file.with_suffix(".bin").name)
    if row is None:
        given = [place for place, values in enumerate(log.launches["parameters"]) if values]
        row = given[-1] if given else None
    return None if row is None else log.launches.iloc[row]
