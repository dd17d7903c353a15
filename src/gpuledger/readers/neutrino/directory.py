"""Trace directories: everything that was recorded of one process.

Source: Neutrino trace format, as written by its driver: ``event.log``, ``result/<seconds>.bin`` per launch,
``kernel/<index>_<sha1 of the name>/`` per kernel, sometimes ``probe.toml`` and ``tensor.trace``.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.readers.neutrino.event_log import EventLog, read_event_log
from gpuledger.readers.neutrino.kernel_info import KernelInfo, read_kernel_info
from gpuledger.readers.neutrino.probe import Probe, read_probe
from gpuledger.readers.neutrino.process_log import ProcessLog, read_process_log
from gpuledger.readers.neutrino.trace import Trace, open_trace

KERNEL = re.compile(r"(\d{1,9})_([0-9a-f]{40})")
SECONDS = re.compile(r"\d{1,12}\.\d{1,9}")


@dataclass(frozen=True)
class Kernel:
    """A folder in ``kernel/``. Its files are read on first use."""

    index: int  # position in the order of first launches
    sha1: str  # SHA-1 of the kernel's name in the driver
    folder: Path

    @cached_property
    def info(self) -> KernelInfo | None:
        """Content of ``kernel.info``; None if it is missing because the kernel could not be probed."""
        return _read(self.folder / "kernel.info", read_kernel_info)

    @cached_property
    def log(self) -> ProcessLog | None:
        """Content of ``process.log``; None if it is missing."""
        return _read(self.folder / "process.log", read_process_log)


@dataclass(frozen=True)
class TraceDirectory:
    """A trace directory. Its files are read on first use, and raise :class:`InputError` then."""

    folder: Path
    kernels: tuple[Kernel, ...]  # in the order of first launches
    results: tuple[Path, ...]  # the trace files, in time order

    @cached_property
    def event_log(self) -> EventLog | None:
        """Content of ``event.log``; None if it is missing."""
        return _read(self.folder / "event.log", read_event_log)

    @cached_property
    def probe(self) -> Probe | None:
        """Content of ``probe.toml``; None for the first release, which does not write it."""
        return _read(self.folder / "probe.toml", read_probe)

    def open(self, result: str | Path, **options: Any) -> Trace:
        """Open one of `results`, with its probe and levels as the directory states them.

        Parameters
        ----------
        result : path
            One of `results`, or its name.
        **options
            Options of :func:`open_trace`; they replace what the directory states.
        """
        if "probe" not in options:
            options["probe"] = self.probe
        if "levels" not in options:
            options["levels"] = self.event_log.levels_of(result) if self.event_log else None
        return open_trace(self.folder / "result" / Path(result).name, **options)


def open_trace_directory(folder: str | Path) -> TraceDirectory:
    """Open a trace directory."""
    folder = Path(folder)
    remedy = "give the folder that holds event.log and result/"
    try:
        if not folder.is_dir():
            problem = "this is no folder" if folder.exists() else "the folder does not exist"
            raise InputError(folder, "", problem, remedy)
        kernels = [
            Kernel(int(found[1]), found[2], path)
            for path in (folder / "kernel").glob("*")
            if (found := KERNEL.fullmatch(path.name)) and path.is_dir()
        ]
        results = [path for path in (folder / "result").glob("*.bin") if path.is_file()]
        holds_log = (folder / "event.log").exists()
    except (OSError, ValueError) as error:
        raise InputError(folder, "", f"cannot be read ({error})", "correct the path or its permissions") from None
    if not (kernels or results or holds_log):
        # Neutrino makes one for each process in the folder that it is given.
        inside = sorted(path.parent.name for path in folder.glob("*/event.log"))[:3]
        remedy = f"give the one of a process in it: {', '.join(inside)}" if inside else remedy
        raise InputError(folder, "", "not a trace directory: no event.log, results or kernels", remedy)
    return TraceDirectory(
        folder,
        tuple(sorted(kernels, key=lambda kernel: (kernel.index, kernel.sha1))),
        tuple(sorted(results, key=_time)),
    )


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    with suppress(OSError):  # which the reader will report
        if not path.exists():
            return None
    return read(path)


def _time(path: Path) -> tuple[float, str]:
    # Names are seconds with six decimals; sorted as text, 10 would come before 9.
    return (float(path.stem) if SECONDS.fullmatch(path.stem) else float("inf"), path.name)
