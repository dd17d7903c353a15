"""Reader and writer of ``kernel.info``: what the probe engine tells the driver about a kernel.

Source: Neutrino trace format, as written by its probe engine: name, number of parameters, number of maps, a line
``level,bytes`` per map; in some releases then the path of a script, and a line ``parameter,type`` per parameter.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.files import write_text
from gpuledger.readers.neutrino.lines import read_lines
from gpuledger.readers.neutrino.records import Level

REMEDY = "give the kernel.info of a folder in kernel/"
PARAMETER = re.compile(r"([^,/\\]+),([^,/\\]+)")
LEVELS: tuple[Level, Level] = ("thread", "warp")


@dataclass(frozen=True)
class KernelInfo:
    """A parsed ``kernel.info``."""

    kernel: str  # name of the entry function
    parameters: int  # number of parameters of the unprobed kernel
    #: Per section: level, and bytes of a slice, which is None if they are counted before the launch.
    maps: tuple[tuple[Level, int | None], ...]
    #: Script that is run on every trace. Empty if the line is empty, as in a release without scripts; None if there is
    #: no such line.
    hook: str | None = None
    parameter_types: tuple[tuple[str, str], ...] = ()  # name and type of each parameter; only one release lists them


def read_kernel_info(path: str | Path) -> KernelInfo:
    """Read a ``kernel.info``."""
    path = Path(path)
    lines = read_lines(path, REMEDY)

    def number(line: int, what: str) -> int:
        if line > len(lines):
            raise InputError(path, f"line {line}", f"truncated, or not a kernel.info: {what} is missing", REMEDY)
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*", lines[line - 1])
        if not found:
            raise InputError(path, f"line {line}", f"{_short(lines[line - 1])} is not {what}", REMEDY)
        return int(found[1])

    parameters, count = number(2, "the number of parameters"), number(3, "the number of maps")
    if 3 + count > len(lines):
        problem = f"truncated, or not a kernel.info: {count} maps, but {len(lines) - 3} lines follow"
        raise InputError(path, "line 3", problem, REMEDY)
    maps = []
    for line, text in enumerate(lines[3 : 3 + count], 4):
        found = re.fullmatch(r"\s*([01])\s*,\s*(-1|[0-9]{1,10})\s*", text)
        if not found:
            raise InputError(path, f"line {line}", f"{_short(text)} is not a level (0 or 1) and bytes", REMEDY)
        maps.append((LEVELS[int(found[1])], None if found[2] == "-1" else int(found[2])))
    rest = lines[3 + count :]
    hook = rest.pop(0) if rest and not PARAMETER.fullmatch(rest[0]) else None
    types = tuple((found[1], found[2]) for text in rest if (found := PARAMETER.fullmatch(text)))
    return KernelInfo(lines[0].strip(), parameters, tuple(maps), hook, types)


def write_kernel_info(path: str | Path, info: KernelInfo) -> None:
    """Write a ``kernel.info`` atomically."""
    lines = [info.kernel, str(info.parameters), str(len(info.maps))]
    lines += [f"{LEVELS.index(level)},{-1 if size is None else size}" for level, size in info.maps]
    lines += [] if info.hook is None else [info.hook]
    lines += [f"{name},{kind}" for name, kind in info.parameter_types]
    write_text(path, "\n".join(lines) + "\n")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
