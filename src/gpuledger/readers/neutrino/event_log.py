"""Reader of ``event.log``: the driver's actions, launch by launch.

Source: Neutrino trace format, as written by its driver, in any release. Lines that are not about launches, memory or
kernel names are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from gpuledger.errors import InputError
from gpuledger.readers.neutrino.layout import Version
from gpuledger.readers.neutrino.lines import read_lines
from gpuledger.readers.neutrino.records import Level

if TYPE_CHECKING:  # the recorder writes logs on machines without pandas
    import pandas as pd

REMEDY = "give the event.log of a trace directory"
#: Columns of the launches; see :class:`EventLog`.
LAUNCHES: Mapping[str, tuple[str, Any]] = {
    "line": ("int64", 0),
    "time_ns": ("Int64", None),
    "function": ("str", ""),
    "kernel": ("str", ""),
    "grid": ("object", None),
    "block": ("object", None),
    "shared_bytes": ("Int64", None),
    "parameters": ("object", ()),
    "counted_bytes": ("Int64", None),
    "probe_bytes": ("Int64", None),
    "outcome": ("str", ""),
    "code": ("Int64", None),
    "file": ("str", ""),
    "file_bytes": ("Int64", None),
    "prologue_ms": ("float64", float("nan")),
    "kernel_ms": ("float64", float("nan")),
    "epilogue_ms": ("float64", float("nan")),
    "ratio": ("float64", float("nan")),
    "original_ms": ("float64", float("nan")),
    "impact": ("float64", float("nan")),
    "callback": ("str", ""),
}
SECTIONS = {
    "launch": "int64",
    "section": "int64",
    "level": "str",
    "blocks": "int64",
    "units_per_block": "int64",
    "bytes_per_unit": "int64",
    "total_bytes": "int64",
}
MEMORY = {"line": "int64", "call": "str", "status": "int64", "address": "uint64", "bytes": "Int64"}


@dataclass(frozen=True)
class EventLog:
    """A parsed ``event.log``."""

    #: One row per launch: ``line`` of the log; ``time_ns`` since 1970 (in steps of 256); ``function``, the launched
    #: pointer, and its ``kernel`` (empty if the log does not say); ``grid`` and ``block`` as (x, y, z), None if the log
    #: ends before; ``shared_bytes``; ``parameters``, the first 8 bytes of each as an int; ``counted_bytes`` per thread
    #: if records were counted before; ``probe_bytes`` of all buffers; ``outcome``: succeed, failed, backup (the
    #: original was launched instead) or empty if the log ends before; its ``code``; the trace ``file`` as the driver
    #: names it, and ``file_bytes``; ``prologue_ms``, ``kernel_ms``, ``epilogue_ms`` and the ``ratio`` of their sum to
    #: the kernel; in benchmark mode ``original_ms`` and ``impact`` (kernel to original); ``callback``: succeed, failed
    #: or empty.
    launches: pd.DataFrame
    #: One row per section of each launch: ``launch`` (row of `launches`), ``section``, ``level``, ``blocks``,
    #: ``units_per_block`` (threads, or warps including a partial one), ``bytes_per_unit``, ``total_bytes``.
    sections: pd.DataFrame
    #: One row per allocation and release that the driver saw: ``line``, ``call``, ``status``, ``address``, ``bytes``.
    memory: pd.DataFrame
    folders: Mapping[str, str] = field(default_factory=dict)  # by kernel, its folder in ``kernel/``
    version: Version | None = None  # of the traces; None if the log's words fit V1 and V2
    #: Whether the original is timed as well; then the epilogue of V2 and V3 copies and saves nothing.
    benchmark: bool = False
    pid: int | None = None
    command: str = ""  # command line of the process, with a space after each word; unrelated bytes may follow

    def launch_of(self, file: str | Path) -> int | None:
        """Return the row of the launch that saved a trace file of this name; None if there is none."""
        name = Path(file).name
        rows = [row for row, saved in enumerate(self.launches["file"]) if PurePosixPath(saved).name == name]
        return rows[-1] if rows else None

    def levels_of(self, file: str | Path) -> list[Level] | None:
        """Return the level of each section of a trace file; None if the log does not say."""
        launch = self.launch_of(file)
        found = self.sections.loc[self.sections["launch"] == launch, "level"].tolist() if launch is not None else []
        return found or None


def read_event_log(path: str | Path) -> EventLog:
    """Read an ``event.log``.

    Bytes that are not UTF-8 are dropped. A launch during which the process ended has no outcome.
    """
    path = Path(path)
    reader = _Reader()
    known = 0
    for number, line in enumerate(read_lines(path, REMEDY), 1):
        tag, _, rest = line.partition(" ")
        read = reader.tags.get(tag)
        if read is None:
            continue
        known += tag != "[info]"
        try:
            read(number, rest)
        except (ValueError, OverflowError):
            shown = line if len(line) <= 80 else line[:79] + "…"
            problem = f"truncated, or not an event.log: {shown!r} is not a driver line"
            raise InputError(path, f"line {number}", problem, REMEDY) from None
    if not known:
        raise InputError(path, "line 1", "not an event.log: no driver lines found", REMEDY)
    return reader.finish()


UNSIGNED, TRIPLE = r"(\d+)", r"(\d+) (\d+) (\d+)"
SIGNED = r"(-?\d+)"
FLOAT = r"(\S+)"
PATTERNS = {
    name: re.compile(pattern)
    for name, pattern in {
        "find": r"funcmap-(not-find|find) (\S+)(?: (success|fail))?",
        "param": UNSIGNED + r" param((?: [0-9a-f]{1,16})*) ?",
        "grid": f"grid {TRIPLE} block {TRIPLE} shared {UNSIGNED}",
        "section": rf"grid {UNSIGNED} (block|warp) +{UNSIGNED} probe {SIGNED} total {SIGNED}",
        "memory": rf"probe-mem {UNSIGNED}(?: \(bytes\))?",
        "outcome": rf"(succeed|failed) {SIGNED}",
        "save": rf"save (.+) size {UNSIGNED}",
        "times": rf"prologue {FLOAT} kernel {FLOAT} epilogue {FLOAT} ratio {FLOAT}",
        "bench": rf"prologue {FLOAT} kernel {FLOAT} epilogue {FLOAT} original {FLOAT} impact {FLOAT}(?: {SIGNED})?",
        "backup": f"backup {TRIPLE} block {TRIPLE} shared {UNSIGNED}",
        "alloc": rf"(\w*[Aa]lloc\w*) {SIGNED} dptr ([0-9a-f]{{1,16}}) bytesize {UNSIGNED}",
        "free": rf"(\w*[Ff]ree\w*) {SIGNED} dptr ([0-9a-f]{{1,16}})",
    }.items()
}


class _Reader:
    """State of reading: the names of functions so far, and the current launch."""

    def __init__(self):
        self.launches: list[dict[str, Any]] = []
        self.sections: list[tuple] = []
        self.memory: list[tuple] = []
        self.names: dict[str, str] = {}
        self.folders: dict[str, str] = {}
        self.pid: int | None = None
        self.command, self.version, self.benchmark = "", None, False
        # A function launched for the first time, until the probe engine is done with it.
        self.sought = ""
        self.tags: dict[str, Callable[[int, str], None]] = {
            "[init]": self.last_release,
            "[pid]": lambda number, rest: self.start(number, f"pid {rest}"),
            "[cmd]": lambda number, rest: self.start(number, f"cmd {rest}"),
            "[info]": lambda number, rest: None,
            "[mem]": self.allocate,
            "[mod]": self.module,
            "[bin]": lambda number, rest: None,
            "[hash]": lambda number, rest: None,
            "[binmap]": self.first_release,
            "[pass]": self.first_release,
            "[probe]": self.engine,
            "[jit]": self.engine,
            "[exec]": self.execute,
            "[count]": self.count,
            "[benchmark]": self.bench,
            "[callback]": self.callback,
            "[analyze]": self.callback,
        }
        self.verbs: dict[str, Callable[[int, str], None]] = {
            "grid": self.grid,
            "probe-mem": self.probe_memory,
            "succeed": self.outcome,
            "failed": self.outcome,
            "save": self.save,
            "prologue": self.times,
            "backup": self.backup,
            "funcmap-find": self.find,
            "funcmap-not-find": self.find,
        }

    def start(self, number: int, rest: str) -> None:
        what, _, value = rest.partition(" ")
        if what == "pid":
            self.pid = _int(value.strip())
        elif what == "cmd":
            length, _, text = value.partition(" ")
            self.command = text[: _int(length)]

    def last_release(self, number: int, rest: str) -> None:
        self.version = "V3"
        self.start(number, rest)

    def first_release(self, number: int, rest: str) -> None:
        self.version = "V1"

    def allocate(self, number: int, rest: str) -> None:
        if found := PATTERNS["alloc"].fullmatch(rest):
            size = _int(found[4])
        elif found := PATTERNS["free"].fullmatch(rest):
            size = None
        elif re.match(r"(?:cuMemAlloc_v2|cuMemFree_v2|hipMalloc)\b", rest):
            raise ValueError(rest)
        else:
            return
        self.memory.append((number, found[1], _int(found[2]), int(found[3], 16), size))

    def module(self, number: int, rest: str) -> None:
        if found := re.search(r"(?:func|kernel) (\S+) .*?name (.*)", rest):
            self.names[found[1]] = found[2].strip()
        elif (found := re.match(r"cuKernelGetFunction (\S+) (\S+)", rest)) and found[2] in self.names:
            self.names[found[1]] = self.names[found[2]]

    def engine(self, number: int, rest: str) -> None:
        if found := re.match(r"(?:find|finish) (\S+) name (.*?) (?:n_param|bin) ", rest):
            self.names[found[1]] = found[2].strip()
        elif found := re.match(r"rename (.*) (\S+)", rest):
            self.folders[found[1].strip()] = PurePosixPath(found[2]).name
        elif "analyze_hook" in rest:
            self.version = "V1"
        elif "trace_hook" in rest:
            self.version = "V2"

    def launch(self, number: int, *taken: str) -> dict[str, Any]:
        """Return the current launch, or a new one if the current one already has a value for any of `taken`."""
        if not self.launches or any(self.launches[-1][name] not in ("", None, ()) for name in taken):
            self.launches.append({name: default for name, (_, default) in LAUNCHES.items()} | {"line": number})
        return self.launches[-1]

    def execute(self, number: int, rest: str) -> None:
        verb = rest.partition(" ")[0]
        if verb in self.verbs:
            self.verbs[verb](number, rest)
        elif verb.isdigit():
            found = _match("param", rest)
            launch = self.launch(number, "time_ns", "grid", "outcome")
            launch["time_ns"] = _int(found[1])
            launch["parameters"] = tuple(int(text, 16) for text in found[2].split())

    def find(self, number: int, rest: str) -> None:
        found = _match("find", rest)
        # The first launch of a function has both lines, with the probe engine's in between.
        if not (found[1] == "find" and self.sought == found[2]):
            self.launch(number, "line")
        self.sought = found[2] if found[1] == "not-find" else ""
        self.current().update(function=found[2], kernel=self.names.get(found[2], ""))

    def grid(self, number: int, rest: str) -> None:
        if rest.split(" ")[2:3] and rest.split(" ")[2] in ("block", "warp"):
            found = _match("section", rest)
            launch = len(self.launches) - 1
            if launch < 0:
                raise ValueError("a section before any launch")
            before = self.sections[-1] if self.sections else None
            index = before[1] + 1 if before and before[0] == launch else 0
            level = "thread" if found[2] == "block" else "warp"
            self.sections.append((launch, index, level, *map(_int, found.group(1, 3, 4, 5))))
            return
        found = _match("grid", rest)
        self.size(self.launch(number, "grid", "outcome"), found)

    def size(self, launch: dict[str, Any], found: re.Match) -> None:
        numbers = [_int(text) for text in found.groups()]
        launch |= {"grid": tuple(numbers[:3]), "block": tuple(numbers[3:6]), "shared_bytes": numbers[6]}
        launch["kernel"] = self.names.get(launch["function"], "")

    def backup(self, number: int, rest: str) -> None:
        found = _match("backup", rest)
        launch = self.launch(number)
        if launch["outcome"] in ("succeed", "backup"):
            launch = self.launch(number, "outcome")
        self.size(launch, found)
        launch["outcome"] = "backup"

    def current(self) -> dict[str, Any]:
        if not self.launches:
            raise ValueError("a result before any launch")
        return self.launches[-1]

    def probe_memory(self, number: int, rest: str) -> None:
        # This line alone is useful in a log filtered for it.
        self.launch(number, "probe_bytes")["probe_bytes"] = _int(_match("memory", rest)[1])

    def outcome(self, number: int, rest: str) -> None:
        found = _match("outcome", rest)
        self.current().update(outcome=found[1], code=_int(found[2]))

    def save(self, number: int, rest: str) -> None:
        found = _match("save", rest)
        self.current().update(file=found[1], file_bytes=_int(found[2]))

    def times(self, number: int, rest: str) -> None:
        values = map(float, _match("times", rest).groups())
        self.current().update(zip(("prologue_ms", "kernel_ms", "epilogue_ms", "ratio"), values, strict=True))

    def bench(self, number: int, rest: str) -> None:
        if rest.startswith("ENABLED"):
            self.benchmark = True
            return
        names = ("prologue_ms", "kernel_ms", "epilogue_ms", "original_ms", "impact")
        *values, _ = _match("bench", rest).groups()
        self.current().update(zip(names, map(float, values), strict=True))
        self.benchmark = True

    def count(self, number: int, rest: str) -> None:
        found = re.fullmatch(r"size: (-?\d+) ?", rest)
        if not found:
            raise ValueError(rest)
        self.current()["counted_bytes"] = _int(found[1])

    def callback(self, number: int, rest: str) -> None:
        word = rest.strip()
        if word in ("succeed", "failed"):
            self.current()["callback"] = word

    def finish(self) -> EventLog:
        import pandas as pd

        launches = pd.DataFrame(
            {
                name: pd.Series([launch[name] for launch in self.launches], dtype=dtype)
                for name, (dtype, _) in LAUNCHES.items()
            }
        )
        sections = pd.DataFrame(self.sections, columns=list(SECTIONS)).astype(SECTIONS)
        memory = pd.DataFrame(self.memory, columns=list(MEMORY)).astype(MEMORY)
        return EventLog(launches, sections, memory, self.folders, self.version, self.benchmark, self.pid, self.command)


def _match(name: str, text: str) -> re.Match:
    found = PATTERNS[name].fullmatch(text.rstrip()) or PATTERNS[name].fullmatch(text)
    if not found:
        raise ValueError(text)
    return found


def _int(text: str) -> int:
    """Convert a number that fits in 63 bits."""
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(text)
    return int(text)
