"""Reports that ``nsys stats --format json`` writes, as CSV: lists of objects whose keys are the columns of the CSV."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpuledger.errors import warn
from gpuledger.readers.timelines.printed_text import as_csv

#: Where a list of objects begins; nsys prints lines before and between them.
_LIST = re.compile(r'^[\ufeff ]*\[\s*\{\s*"', re.MULTILINE)
_KEY = re.compile(r'"((?:[^"\\\n]|\\.){1,60})"\s*:')
_BETWEEN = re.compile(r"[\s,]*")


def headers(head: str) -> list[str]:
    """Return the keys of each list in a text that may be cut off, as the header of a CSV."""
    starts = [found.start() for found in _LIST.finditer(head)]
    keys = [dict.fromkeys(_KEY.findall(head, *ends)) for ends in pairwise([*starts, len(head)])]
    return [_csv([list(names)]) for names in keys if "ph" not in names]  # events of a trace have a phase


def tables(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """Yield the header and the rows of each list of objects, as CSV.

    Warns
    -----
    InputWarning
        The text ends within a list, or something else than objects is in it.
    """
    at = 0
    while found := _LIST.search(text, at):
        rows, at, whole = _objects(text, text.index("[", found.start()) + 1)
        if not whole:
            warn(path, f"character {at:,}", "the list ends in the middle", "the rows before it are used")
        if rows:
            names = list(dict.fromkeys(name for row in rows for name in row))
            yield _csv([names]), _csv([row.get(name) for name in names] for row in rows)


def _objects(text: str, at: int) -> tuple[list[dict[str, Any]], int, bool]:
    """Return the objects of a list, where they end, and whether the list is closed there."""
    decoder, rows = json.JSONDecoder(), []
    while True:
        at = _BETWEEN.match(text, at).end()
        if not text.startswith("{", at):
            return rows, at, text.startswith("]", at)
        try:
            row, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return rows, at, False
        rows.append(row)


def _csv(rows: Any) -> str:
    # The value of a name may have line ends, which a row of CSV has not.
    return as_csv([" ".join(cell.split()) if isinstance(cell, str) else cell for cell in row] for row in rows)
