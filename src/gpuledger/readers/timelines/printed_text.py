"""Tables that profilers print in a terminal, as CSV.

Columns are at least two blanks apart, or have bars or tabs between them. nvprof ("Profiling Modes" of the CUDA
profiler's user guide) writes the unit behind every time; nsys stats (formats ``column``, ``table`` and ``tsv``) and
rocprofv3 --summary write it into the header. Below the header of nsys, dashes show where each column begins: there, a
cell may be empty. rocprof-compute draws boxes, in which a long name goes on in the next line.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

#: No table of kernels has fewer columns.
_LEAST = 4
_APART = re.compile(r"\s{2,}")
_RULE = re.compile(r"\s*[-+|][-+|=: ]*$")
#: What stands behind a table: an empty line, a message, a block's end, or another table's title or header.
_END = re.compile(r"\s*$|==|```|\s*\*\* |Processing \[|[\s|]*(?:Type\s+)?Time ?\(%\)")
#: People keep tables in comments of programs, and in quotes of letters; vLLM and Ray put processes in front of every
#: line, srun --label and mpirun ranks, Docker Compose containers.
COMMENT = re.compile(
    r"(?m)^[ \t]*(?:(//[/!]?|#|>|\*(?![*/])) ?|\(\w[^()\n]{0,80}?\bpid=\d{1,9}[^()\n]{0,40}\) ?"
    r"|\[\d{1,5},\d{1,5}\]<\w{1,9}>: ?|\d{1,5}: |[\w.-]{1,60} +\| (?=[^|\n]*$))"
)
#: Names of columns, and how a row of a data frame begins that pandas prints with its index.
_NAMES = re.compile(r"\S+(?: \S+)*")
_INDEXED = re.compile(r"\d{1,9} +\S")
#: A label before a rule of dashes, and times in labels.
_LABELLED = re.compile(rb"((?:(?!---)[^\n]){0,200}?[^\s|+:=-][:| ]{0,4}?)(?:\+|\| ?)?-{3,}(?=[-+| :]*(?:\n|$))")
_MOMENT = re.compile(rb"\d{1,4}(?:[-:.,T/]\d{1,9}){1,9}Z?")
_SIZE = re.compile(r"\((\d+) (\d+) (\d+)\)")


def without_labels(line: str, content: bytes) -> tuple[str, bytes]:
    """Return a header and what follows it without what a logger or a launcher puts in front of every line.

    The rule below the header tells how wide that is. A label may differ in its time; lines with others are left out.
    """
    if not (rule := _LABELLED.match(content)) or COMMENT.fullmatch(rule[1].decode("utf-8", "replace")):
        return line, content
    width, own = len(rule[1]), _MOMENT.sub(b"", rule[1])
    rows = (row[width:] for row in content.split(b"\n") if _MOMENT.sub(b"", row[:width]).ljust(len(own)) == own)
    return line.encode()[width:].decode("utf-8", "replace"), b"\n".join(rows)


def header(line: str) -> str:
    """Return a line that may be the header of a printed table as the header of a CSV table; empty of any other."""
    names = _split(COMMENT.sub("", line))
    return as_csv([[part for name in names for part in _axes(name)]]) if len(names) >= _LEAST else ""


def rows(line: str, text: str) -> str:
    """Return the table below a header, up to its end, as rows of a CSV table.

    Parameters
    ----------
    line, text : str
        The header, and what follows it.
    """
    bare = COMMENT.sub("", line)
    return as_csv(_rows(_split(bare), [match.end() for match in _NAMES.finditer(bare)], below(line, text)))


def below(line: str, text: str) -> str:
    """Return the text below a header without what stands in front of both; lines of other processes are left out."""
    if not (sign := COMMENT.match(line)):
        return text
    own, other = sign[0].strip(), "" if sign[1] else None
    rows = (row.lstrip() for row in text.split("\n"))
    cut = (row.removeprefix(own) if row.startswith(own) else other for row in rows)
    return "\n".join(row for row in cut if row is not None)


def as_csv(cells: Iterable[Iterable[Any]]) -> str:
    """Return rows of cells as CSV with Unix line ends."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(cells)
    return file.getvalue()


def _split(line: str, most: int = 0) -> list[str]:
    """Return the cells of a line; with a number of them, the last one may have blanks."""
    if "\t" in line:
        return [cell.strip(' "') for cell in line.strip("\r\n").split("\t")]
    line = line.strip().replace("│", "|")
    if " | " in line:
        return [cell.strip(" `") for cell in line.strip("|").split("|")]
    return _APART.split(line, max(most - 1, 0)) if line else []


def _axes(name: str) -> list[str]:
    return [f"{name[:-5]} {axis}" for axis in "XYZ"] if name in ("Grid Size", "Block Size") else [name]


def _rows(names: list[str], ends: list[int], text: str) -> Iterator[list[str]]:
    """Yield the rows below names, which end at these places."""
    typed, kind = names[0] == "Type", ""
    columns: list[tuple[int, int]] = []
    begun = False
    for row in _whole(text.split("\n")):
        if _RULE.match(row) and not begun:
            columns = [match.span() for match in re.finditer("-+", row)]
        elif _END.match(row) or _RULE.match(row):
            return
        else:
            begun = True
            # Only the first row of a type states it.
            stated = re.match(r"\s*([A-Z][\w ().-]{1,40}):\s+(?=\d)", row) if typed else None
            kind = stated.group(1) if stated else kind
            cells = _split(row[stated.end() :] if stated else row, len(names) - typed)
            if len(columns) == len(names) and len(cells) > 1:
                cells = _cut(row, columns) or cells
            elif not columns and len(ends) == len(names) and (_INDEXED.match(row) or len(cells) < len(names) - typed):
                cells = _aligned(row, ends) or cells
            if len(cells) == len(names) - typed:
                pairs = zip(names[typed:], cells, strict=True)
                yield [kind] * typed + [part for name, cell in pairs for part in _parts(name, cell)]


def _whole(rows: list[str]) -> Iterator[str]:
    """Yield rows; in a box, each with the rows in which its name goes on, without the rules between them."""
    cells: list[str] = []
    for row in [*rows, ""]:
        found = (line := row.strip()).split("│")[1:-1]
        if cells and found and not found[0].strip():
            # A word is divided only if it fills its cell, which has a blank on either side.
            pairs = zip(cells, found, strict=False)
            cells = [f"{cell[:-1].rstrip()}{' ' * cell.endswith('  ')}{more.strip()} " for cell, more in pairs]
        elif not line.startswith("├"):
            if cells:
                yield f"│{'│'.join(cells)}│"
            cells = found
            if not found:
                yield "+" if line.startswith(("╞", "╘")) else row


def _cut(row: str, columns: list[tuple[int, int]]) -> list[str]:
    """Return the cells below the dashes of each column, empty or with blanks; no cells if text stands between them."""
    ends = [0, *(end for _, end in columns)]
    if any(row[end:start].strip() for (start, _), end in zip(columns, ends, strict=False)):
        return []
    return [row[start:end].strip() for start, end in columns[:-1]] + [row[columns[-1][0] :].strip()]


def _aligned(row: str, ends: list[int]) -> list[str]:
    """Return the cells of a row as pandas prints it, ending below their names; no cells if text goes on there.

    Without a name, the index is in front of the first cell.
    """
    if any(row[end : end + 1].strip() for end in ends[:-1]):
        return []
    cells = [row[start:end].strip() for start, end in pairwise([0, *ends[:-1], len(row)])]
    return [*cells[0].split()[-1:], *cells[1:]]


def _parts(name: str, cell: str) -> list[str]:
    if name in ("Grid Size", "Block Size"):
        return list(size.groups()) if (size := _SIZE.fullmatch(cell)) else [""] * 3
    return ["" if cell == "-" else cell]
