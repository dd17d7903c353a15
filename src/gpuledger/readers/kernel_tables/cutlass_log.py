"""What cutlass_profiler prints: a block per kernel and problem, and the table of its CSV file at the end.

Source: "CUTLASS Profiler" of CUTLASS's documentation.
"""

import io
import re
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError, unreadable

#: How the table of GEMMs begins, behind tags or not, and of which lines a block consists.
HEADER = re.compile(r"(?m)^(?:[^\n,]*,){0,40}?Problem,Provider,OperationKind,(?=[^\n]*\bm,n,k\b)")
_BLOCK = re.compile(r"(?m)^[ \t]*Problem ID:")
_FIELD = re.compile(r"(?m)^[ \t]*(Provider|OperationKind|Operation|Disposition|Status|Runtime):[ \t]+(.*?)[ \t]*$")
_ARGUMENT = re.compile(r"--(\w+)=(\S+)")
_GEMM = re.compile(r"(?m)^[ \t]*OperationKind: gemm\b|^[ \t]*Operation: \w*gemm")
_MOST_BYTES = 1 << 30


def is_log(head: str) -> bool:
    """Tell whether a text begins like what cutlass_profiler prints of GEMMs."""
    return bool(_BLOCK.search(head) and _GEMM.search(head)) or bool(HEADER.search(head))


def read_log(path: Path) -> pd.DataFrame:
    """Return the rows of the table in a log, or what its blocks say under the same names; their lines are in the index.

    The index is that of a CSV whose header is the first line: the line without two.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(path, "", "larger than 1 GiB", "give the CSV that --output=FILE writes")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, "give the CSV that --output=FILE writes") from None
    if table := HEADER.search(text):
        rows = re.split(r"\n\s*\n|\n=====", text[table.start() :], maxsplit=1)[0]
        try:
            cells = pd.read_csv(io.StringIO(rows), index_col=False, low_memory=False)
        except (pd.errors.ParserError, ValueError) as error:
            problem = f"its table of results is damaged ({error})"
            raise InputError(path, "", problem, "remove it, or repair it") from None
        return cells.set_index(cells.index + text.count("\n", 0, table.start()))
    starts = [0, *(found.start() for found in _BLOCK.finditer(text)), len(text)]
    found, line = {}, -1
    for before, start, end in zip(starts, starts[1:], starts[2:], strict=False):
        block, line = text[start:end], line + text.count("\n", before, start)
        fields = {name: value.lower().replace(" ", "_") for name, value in _FIELD.findall(block)}
        row = dict(_ARGUMENT.findall(block)) | fields
        if "Runtime" in row:
            row["Runtime"], _, unit = row["Runtime"].partition("_")
            if unit.strip("_") not in ("", "ms"):
                raise InputError(path, "", f"a runtime is in {unit.strip('_')}, not in ms", "give the CSV")
        found[line] = row
    cells = pd.DataFrame.from_dict(found, orient="index")
    if "OperationKind" not in cells and "Operation" in cells:  # as in CUTLASS 2.0
        cells["OperationKind"] = cells["Operation"].astype(str).str.extract(r"(conv|gemm)", expand=False)
    return cells
