"""Turn what ncu prints in a terminal into the CSV that ``--csv`` would have printed.

People keep the terminal's output: the details page (the default), the raw page and ``--print-summary``, of any version.
Every line becomes one line, empty where it holds no metric, so that line numbers stay those of the file.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from gpuledger.readers.ncu.wrapped_text import unwrapped, width_of

_KERNEL = re.compile(
    r"^ *(?P<kernel>\S.*?)(?: (?P<grid>\(\d+, \d+, \d+\))x(?P<block>\(\d+, \d+, \d+\)))?(?:, \d{4}-\w{3}-\d{2} [\d:]+)?"
    r", Context (?P<context>\d+), Stream (?P<stream>\d+)(?:, Device (?P<device>\d+), CC (?P<cc>[\d.]+))?\s*$"
)
_SUMMARY = re.compile(
    r"^ *(?P<kernel>\S.*), Block Size (?P<block>.+?), Grid Size (?P<grid>.+?), Device (?P<device>\d+)"
    r", (?P<invocations>\d+) invocations?\s*$"
)
_SECTION = re.compile(r"^ *Section: ")
_PROCESS = re.compile(r"^ *\[(?P<process>\d+)\] \S.*@\S+\s*$")
_RULE = re.compile(r"^\s*-{3,}(?: -{3,}){2,}\s*$")
_TITLE = re.compile(r"^\s*Metric Name\s+Metric Unit\s+(Metric Value|Minimum\s+Maximum\s+Average)\s*$")
#: What srun --label, mpirun, containers and comments of programs put in front of every line.
_PREFIX = re.compile(
    r"^(?: *\d{1,5}: ?|\[\d{1,5},\d{1,5}\]<\w{1,9}>: ?|[ \t]*(?://[/!]?|#|>|\*(?![*/])) ?|[\w.-]{1,60} +\| )"
)
_INDENTED = re.compile(r" {2}\S")
#: Of a launch's line that a terminal divided.
_MOST_PIECES = 8
_UNCUT = re.compile(r"(?!)")
_LABELLED = re.compile(r"^(.{0,200}?[^\s-]) *-{3,}(?: -{3,}){2,}\s*$")
_MOMENT = re.compile(r"\d{1,4}(?:[-:.,T/]\d{1,9}){1,9}Z?")
_CSV = re.compile(rb'"Metric Name"|"Kernel Name"|,Metric Name,|,Kernel Name,')
_LAUNCH = ("ID", "Process ID", "Kernel Name", "Context", "Stream", "Grid Size", "Block Size", "Device", "CC")
_METRIC = ("Section Name", "Metric Name", "Metric Unit")


def csv_of_text(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Return the blocks as they are, or as CSV if the first one holds a text page of ncu.

    Parameters
    ----------
    blocks : iterable of bytes
        UTF-8 text in whole lines.

    Yields
    ------
    bytes
        Whole lines.
    """
    blocks = iter(blocks)
    first = next(blocks, b"")
    lines = first.decode("utf-8", "replace").splitlines() if b"---" in first and not _CSV.search(first) else []
    if width := width_of(lines):
        blocks = unwrapped(chain([first], blocks), *width)
        first = next(blocks, b"")
        lines = first.decode("utf-8", "replace").splitlines()
    # Those above tables: elsewhere in a program's source stands #include.
    prefixes = {
        match[0].strip() for line in lines if (match := _PREFIX.match(line)) and _RULE.match(line[match.end() :])
    }
    # Lines of several processes between each other are not one page.
    cut = _PREFIX if len(prefixes) == 1 else _UNCUT if prefixes else _label(lines)
    lines = [cut.sub("", line) for line in lines]
    marks = (_KERNEL, _SUMMARY, _SECTION)
    if any(map(_RULE.match, lines)) and any(mark.match(line) for line in lines for mark in marks):
        page = _TextPage(any(map(_SUMMARY.match, lines)), cut)
        return (page.rows(block) for block in chain([first], blocks))
    return chain([first] if first else [], blocks)


def _label(lines: list[str]) -> re.Pattern[str]:
    """Return what else a logger puts in front of tables: one label, but for its time."""
    labels = {tuple(_MOMENT.split(match[1])) for line in lines if (match := _LABELLED.match(line))}
    return re.compile("^" + _MOMENT.pattern.join(map(re.escape, labels.pop()))) if len(labels) == 1 else _UNCUT


def _launch(lines: list[str]) -> re.Match[str] | None:
    """Return what the last of these lines says of a launch, with those above it if it is the rest of them."""
    own = _said(lines[-1])
    if own and lines[-1].startswith("  "):
        return own
    indented = [at for at, line in enumerate(lines[:-1]) if _INDENTED.match(line)]
    # Pasted without its indentation, a name begins where its brackets are closed.
    starts = indented[-1:] or ([] if own and _is_closed(own["kernel"]) else range(len(lines) - 2, -1, -1))
    for start in starts:
        for sign in ("", " "):
            found = _said(sign.join(lines[start:]))
            if found and _is_closed(found["kernel"]):
                return found
    return own


def _said(line: str) -> re.Match[str] | None:
    launch = _KERNEL.match(line) if ", Context " in line else None
    return launch or (_SUMMARY.match(line) if ", Block Size " in line else None)


def _is_closed(name: str) -> bool:
    return name.count("(") == name.count(")")


class _TextPage:
    def __init__(self, summary: bool, cut: re.Pattern[str]):
        self._cut = cut
        self._values = ("Minimum", "Maximum", "Average") if summary else ("Metric Value",)
        self._launch: dict[str, str] = {}
        # Without the line of the process, as what somebody cut out and pasted into a page, there is one.
        self._process, self._section, self._count = "0", "", 0
        #: Where the columns begin, while the lines are rows of a table.
        self._columns: list[int] = []
        self._begun = False
        #: Lines that follow each other and are none of these: a terminal may have divided the name of a kernel.
        self._above: list[str] = []

    def rows(self, block: bytes) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for line in block.decode("utf-8", "replace").split("\n")[: None if block[-1:] != b"\n" else -1]:
            row = self._row(self._cut.sub("", line))
            if not self._begun:  # no metric comes before its launch: the header can take the first line
                extra = ("Invocations",) if len(self._values) > 1 else ()
                writer.writerow([*_LAUNCH, *extra, *_METRIC, *self._values])
                self._begun = True
            elif row:
                writer.writerow(row)
            else:
                out.write(line + "\n" if line.startswith("==") else "\n")
        return out.getvalue().encode()

    def _row(self, line: str) -> list[str] | None:
        """Return the fields of a metric's line; note what other lines say about the lines that follow."""
        above, self._above = self._above, []
        if _RULE.match(line):
            self._columns = [] if self._columns else [match.start() for match in re.finditer("-+", line)]
        elif _TITLE.match(line) or not line.strip():
            self._columns = []
        elif self._columns:
            name, *fields = [line[a:b].strip() for a, b in zip(self._columns, [*self._columns[1:], None], strict=True)]
            if name and self._launch and len(fields) == 1 + len(self._values):
                return [*self._launch.values(), self._section, name, *fields]
        elif _SECTION.match(line):
            self._section = line.strip().removeprefix("Section: ")
        elif match := _PROCESS.match(line):
            self._process = match["process"]
        elif match := _launch([*above, line]):
            self._begin(match.groupdict())
        elif not line.startswith(("==", "```")):
            self._above = [*above[1 - _MOST_PIECES :], line]
        return None

    def _begin(self, said: dict[str, str | None]) -> None:
        fields = ("kernel", "context", "stream", "grid", "block", "device", "cc")
        launch = [said.get(name) or "" for name in fields]
        if len(self._values) > 1:
            launch.append(said["invocations"])
            number = "0"  # a summary repeats the kernel's line above every section
        else:
            number, self._count = str(self._count), self._count + 1
        self._launch = dict(enumerate([number, self._process, *launch]))
