"""Reader and writer of ``process.log``: how the probe engine built a kernel, and what ptxas reported.

Source: Neutrino trace format, as written by its probe engine: filters of kernel names, how the code was found, the
name; then, for each of ``probed``, ``pruned`` and (with counted records) ``countd``, the ptxas command and its verbose
output.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from gpuledger.errors import InputError
from gpuledger.files import write_text
from gpuledger.readers.neutrino.lines import read_lines

REMEDY = "give the process.log of a folder in kernel/"
FILTER = re.compile(r"None|\[.*\]")
QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
OBJDUMP = re.compile(r"\[(?:objdump|decompile)\] ?(.*)")
USED = re.compile(r"\bUsed (\d{1,6}) registers(.*)")
SPILLS = re.compile(r"(\d{1,12}) bytes stack frame, (\d{1,12}) bytes spill stores, (\d{1,12}) bytes spill loads")
CONSTANT = re.compile(r"(\d{1,12}) bytes cmem\[0\]")
SHARED = re.compile(r"(\d{1,12}) bytes smem")


@dataclass(frozen=True)
class Build:
    """What ptxas reported about one build of a kernel; None for what it did not report."""

    arch: str  # such as ``sm_80``
    registers: int | None = None  # per thread
    #: Sums over the functions of the build.
    stack_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    constant_bytes: int | None = None  # in bank 0, which holds the parameters: each map of a probe adds 8
    shared_bytes: int | None = None  # static shared memory


@dataclass(frozen=True)
class ProcessLog:
    """A parsed ``process.log``."""

    kernel: str  # name of the kernel; empty if the engine did not get that far
    builds: Mapping[str, Build] = field(default_factory=dict)  # by name: ``probed``, ``pruned``, ``countd``
    #: Parts of kernel names to exclude and include.
    filter_out: tuple[str, ...] = ()
    filter_in: tuple[str, ...] = ()
    objdump: str = ""  # how the code was found, such as ``via cuobjdump -ptx``
    skipped: bool = False  # whether the filters excluded the kernel
    failure: str = ""  # last line of the engine's traceback; empty if it did not fail

    @property
    def additional_registers(self) -> int | None:
        """Registers of the probed build minus those of the pruned one; None if either is missing."""
        both = [self.builds[which].registers for which in ("probed", "pruned") if which in self.builds]
        return both[0] - both[1] if len(both) == 2 and None not in both else None

    @property
    def additional_spill_bytes(self) -> int | None:
        """Bytes of spill stores and loads that probing adds; None if a build or its numbers are missing."""
        both = [self.builds[which] for which in ("probed", "pruned") if which in self.builds]
        if len(both) < 2 or any(None in (build.spill_store_bytes, build.spill_load_bytes) for build in both):
            return None
        probed, pruned = (build.spill_store_bytes + build.spill_load_bytes for build in both)
        return probed - pruned


def read_process_log(path: str | Path) -> ProcessLog:
    """Read a ``process.log``.

    A kernel that could not be built has fewer builds, or builds without registers; see `failure`.
    """
    path = Path(path)
    lines = read_lines(path, REMEDY)
    filters = []
    while len(filters) < min(2, len(lines)) and FILTER.fullmatch(lines[len(filters)].strip()):
        texts = (single or double for single, double in QUOTED.findall(lines[len(filters)]))
        filters.append(tuple(text for text in texts if text))
    log = ProcessLog("", {}, *filters)
    builds: dict[str, Build] = {}
    which, expect_name, last = "", False, ""
    for number, line in enumerate(lines, 1):
        if expect_name and line.strip():
            name, skipped = re.subn(r" (?:is not in|filtered out from) \[.*$", "", line.strip())
            log, expect_name = replace(log, kernel=name, skipped=bool(skipped)), False
        elif found := OBJDUMP.fullmatch(line.strip()):
            log, expect_name = replace(log, objdump=found[1]), True
        elif called := _call(line):
            which, arch = called
            builds[which] = Build(arch)
        elif found := USED.search(line):
            build = _of(path, number, builds, which)
            builds[which] = replace(
                build,
                registers=max(build.registers or 0, int(found[1])),
                constant_bytes=_first(CONSTANT, found[2]),
                shared_bytes=_first(SHARED, found[2]),
            )
        elif found := SPILLS.search(line):
            build = _of(path, number, builds, which)
            names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            sums = {name: (getattr(build, name) or 0) + int(n) for name, n in zip(names, found.groups(), strict=True)}
            builds[which] = replace(build, **sums)
        last = line.strip() or last
    if not builds and not filters and not log.objdump:
        raise InputError(path, "line 1", "not a process.log: no filters and no ptxas command", REMEDY)
    failed = any(line.startswith("Traceback (most recent call last)") for line in lines)
    return replace(log, builds=builds, failure=last if failed else "")


def write_process_log(path: str | Path, log: ProcessLog) -> None:
    """Write a ``process.log`` atomically, in the order and words of the engine."""
    lines = [str(list(names)) if names else "None" for names in (log.filter_out, log.filter_in)]
    lines += [f"[objdump] {log.objdump or 'bin is ptx'}"]
    lines += [f"{log.kernel} is not in {list(log.filter_in)}" if log.skipped else log.kernel]
    for which, build in log.builds.items():
        lines += [f"ptxas -arch={build.arch} -m64 --verbose ./{which}.ptx -o ./{which}.bin"]
        lines += [f"ptxas info    : Compiling entry function '{log.kernel}' for '{build.arch}'"]
        spills = (build.stack_bytes, build.spill_store_bytes, build.spill_load_bytes)
        if None not in spills:
            text = "    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads"
            lines += [f"ptxas info    : Function properties for {log.kernel}", text.format(*spills)]
        if build.registers is not None:
            shared = "" if build.shared_bytes is None else f", {build.shared_bytes} bytes smem"
            constant = "" if build.constant_bytes is None else f", {build.constant_bytes} bytes cmem[0]"
            lines += [f"ptxas info    : Used {build.registers} registers{shared}{constant}"]
        lines += [""]
    if log.failure:
        lines += ["Traceback (most recent call last):", log.failure]
    write_text(path, "\n".join(lines) + "\n")


def _call(line: str) -> tuple[str, str] | None:
    """Return the stem of the file and the architecture of a ptxas command."""
    program, *words = line.split() or [""]
    arch = [word.removeprefix("-arch=") for word in words if word.startswith("-arch=")]
    files = [word for word in words if word.endswith(".ptx")]
    if PurePosixPath(program).name != "ptxas" or not arch or not files:
        return None
    return PurePosixPath(files[0]).stem, arch[0]


def _of(path: Path, number: int, builds: Mapping[str, Build], which: str) -> Build:
    if which not in builds:
        problem = "registers or spills before any ptxas command: not a process.log, or its beginning is missing"
        raise InputError(path, f"line {number}", problem, REMEDY)
    return builds[which]


def _first(pattern: re.Pattern, text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None
