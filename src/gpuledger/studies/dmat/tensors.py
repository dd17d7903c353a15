"""Which tensor owns which memory, from the logs beside a launch's trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.readers.neutrino import PAGE_BYTES, EventLog

#: Name of memory that belongs to no tensor.
UNKNOWN = "unknown"
#: Most regions to tell apart if nothing names them.
MAX_REGIONS = 12


@dataclass(frozen=True)
class Tensor:
    """A range of memory with a name."""

    name: str
    address: int
    bytes: int
    shape: tuple[int, ...] = ()  # empty where it is not known

    @property
    def end(self) -> int:
        return self.address + self.bytes


@dataclass(frozen=True)
class Map:
    """Memory divided among tensors."""

    bounds: np.ndarray  # uint64: addresses at which the owner may change, ascending
    #: int64, one more than bounds: of the memory before the first bound, between bounds, and after the last one: its
    #: tensor's place in the list of tensors, -1 for none.
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
    return Map(bounds, owner)


def newest(trace: pd.DataFrame) -> list[Tensor]:
    """Return the tensor of the newest call for every pointer, newest first."""
    kept = trace.iloc[::-1].drop_duplicates("address")
    columns = (kept[name] for name in ("tensor", "address", "bytes", "shape"))
    return [
        Tensor(name, int(address), int(size), tuple(shape)) for name, address, size, shape in zip(*columns, strict=True)
    ]


def declared(case: Case, pages: np.ndarray) -> list[Tensor]:
    """Return the tensors that a case declares, one after another on the touched pages.

    Parameters
    ----------
    case : Case
        Its ``tensors`` have a name and either ``pages`` or ``bytes``, in order of address.
    pages : ndarray of uint64
        Addresses of the touched pages, ascending.
    """
    entries = case.inputs["tensors"]
    ends = np.cumsum([entry.get("bytes") or entry["pages"] * PAGE_BYTES for entry in entries])
    if ends[-1] > pages.size * PAGE_BYTES:
        problem = f"{-(-int(ends[-1]) // PAGE_BYTES):,} pages are declared, and {pages.size:,} are touched"
        remedy = "leave out what the kernel does not touch, and give pages instead of bytes where a part is not touched"
        raise case.error("tensors", problem, remedy)
    found, start = [], 0
    for entry, end in zip(entries, ends.tolist(), strict=True):
        first, last = (int(pages[at // PAGE_BYTES]) + at % PAGE_BYTES for at in (start, end - 1))
        found.append(Tensor(entry["name"], first, last + 1 - first))
        start = end
    return found


def of_launch(trace: pd.DataFrame, log: EventLog | None, file: Path) -> list[Tensor]:
    """Return the tensors that a launch may touch, for :func:`divide`.

    Pointers are reused: for each, the newest call before the launch counts. A tensor's size is that of its storage,
    which may extend past the end of a view, so of two overlapping tensors the one with the higher address owns the
    memory; parameters of the launch take precedence.

    Parameters
    ----------
    trace : DataFrame
        See :func:`gpuledger.readers.neutrino.read_tensor_trace`.
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


def regions(pages: np.ndarray) -> list[Tensor]:
    """Divide pages at the gaps between them; if there are many, at the largest.

    Parameters
    ----------
    pages : ndarray of uint64
        Addresses, ascending.
    """
    gaps = np.diff(pages)
    least = np.sort(gaps[gaps > PAGE_BYTES])[-(MAX_REGIONS - 1) :]
    first = np.concatenate([[0], np.flatnonzero(gaps >= least[0]) + 1]) if least.size else np.zeros(1, np.int64)
    if first.size > MAX_REGIONS:  # many gaps of one size: there is no structure to show
        first = first[:1]
    last = np.concatenate([first[1:] - 1, [pages.size - 1]])
    return [
        Tensor(
            f"pages from {int(pages[start]):#x}", int(pages[start]), int(pages[end]) + PAGE_BYTES - int(pages[start])
        )
        for start, end in zip(first, last, strict=True)
    ]


def find_trace(path: Path) -> Path:
    """Return the trace of accesses in a trace directory; a file is returned unchanged."""
    if not path.is_dir():
        return path
    found: dict[str, Path] = {}
    for folder in (path / "result", path):
        for suffix in (".bin", ".dmat"):  # a .dmat was made from the .bin of its name
            for file in sorted(folder.glob(f"*{suffix}")):
                found.setdefault(file.stem, file)
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            names = [file.relative_to(path).as_posix() for file in found.values()]
            problem = f"{len(names)} launches were traced: {', '.join(names[:5])}{', …' * (len(names) > 5)}"
            raise InputError(path, "", problem, "give the trace of one launch as trace")
    raise InputError(path, "", "no .bin and no .dmat in it", "give a trace directory of the probe dmat, or a trace")


def _launch(log: EventLog | None, file: Path) -> pd.Series | None:
    """Return the launch that saved a trace, or else the last one of the log, as the tool's own script does."""
    if log is None or log.launches.empty:
        return None
    row = log.launch_of(file.with_suffix(".bin").name)
    if row is None:
        given = [place for place, values in enumerate(log.launches["parameters"]) if values]
        row = given[-1] if given else None
    return None if row is None else log.launches.iloc[row]
