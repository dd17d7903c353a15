"""What nvprof prints in a terminal, as the CSV that it writes with ``--csv``.

Columns are at least two blanks apart, the name is the last of them, and every time has its unit. "Profiling Modes" of
the CUDA profiler's user guide shows both tables.
"""

import csv
import io
import re
from collections.abc import Iterator

_HEADER = re.compile(
    r"\s*(?:Type\s+)?Time\(%\)\s+Time\s+Calls\s+Avg\s+Min\s+Max\s+Name\s*$|\s*Start\s+Duration\s+Grid Size\s"
)
_APART = re.compile(r"\s{2,}")
_SIZE = re.compile(r"\((\d+) (\d+) (\d+)\)")


def header(line: str) -> str:
    """Return a header that nvprof printed as the header of a CSV table; empty of any other line."""
    return ",".join(_columns(line)) if _HEADER.match(line) else ""


def rows(line: str, text: str) -> str:
    """Return the table below a header, up to its end, as rows of a CSV table.

    Parameters
    ----------
    line, text : str
        The header, and what follows it.
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(_cells(line, text))
    return file.getvalue()


def _columns(line: str) -> Iterator[str]:
    for name in _APART.split(line.strip()):
        yield from (f"{name[:-5]} {axis}" for axis in "XYZ") if name in ("Grid Size", "Block Size") else [name]


def _cells(line: str, text: str) -> Iterator[list[str]]:
    names = _APART.split(line.strip())
    typed, kind = names[0] == "Type", ""
    for row in text.split("\n"):
        if not row.strip() or row.startswith("=="):
            return
        # Only the first row of a type states it.
        stated = re.match(r"\s*([A-Z][\w ().-]{1,40}):\s+(?=\d)", row) if typed else None
        kind = stated.group(1) if stated else kind
        cells = _APART.split(row[stated.end() :].strip() if stated else row.strip(), len(names) - 1 - typed)
        if len(cells) == len(names) - typed:
            yield [kind] * typed + [
                part for name, cell in zip(names[typed:], cells, strict=True) for part in _parts(name, cell)
            ]


def _parts(name: str, cell: str) -> list[str]:
    if name in ("Grid Size", "Block Size"):
        return list(size.groups()) if (size := _SIZE.fullmatch(cell)) else [""] * 3
    return ["" if cell == "-" else cell]
