"""The table that torch.profiler's ``key_averages().table()`` prints, as a CSV table of its kernels.

Columns are at least two blanks apart, and every time has its unit (``torch/autograd/profiler_util.py``).
"""

import csv
import re

from gpuledger.readers.tabular import SECONDS
from gpuledger.readers.timelines.printed_text import COMMENT, as_csv, below

_APART = re.compile(r"\s{2,}")
_RULE = re.compile(r"[\s|]*[-:]{3}[-:\s|]*")
_TIME = re.compile(r"-?(\d+(?:\.\d+)?)(us|ms|s)")
#: The time on the GPU, which PyTorch calls CUDA, XPU, HPU, ...
_SELF = re.compile(r"Self (?!CPU\b)\w+")
_TOTAL = re.compile(rf"(?m)^[\s|]*{_SELF.pattern} time total:\s*(\S+)")
_COLUMNS = ("Name", "Self CUDA", "# of Calls")
#: Ranges that PyTorch marks itself; their rows of the host may be beyond the table's limit.
_RANGE = re.compile(r"ProfilerStep\*|## Call CompiledFxGraph|Torch-Compiled Region")
#: Names of kernels of C++ have more signs; a range's name may be a kernel's.
_PLAIN = re.compile(r"[\w .:/#-]+")
_LONGEST = 1 << 16  # of rows, below the limit of csv
#: Times are printed with so many digits that their sum is off by far less.
_EXACT = 0.02


def _sign_of(header: str) -> str:
    """Return what separates cells: blanks (empty), bars as in Markdown, or commas or tabs, as people save tables."""
    return "|" if " | " in header else next((sign for sign in "\t," if re.search(rf'Name"?{sign}', header)), "")


def _cells(line: str, sign: str) -> list[str]:
    if sign == "|":
        return [cell.strip(" `") for cell in line.strip().strip("|").split("|")]
    line = line.strip("\r\n")
    return next(csv.reader([line], delimiter=sign), []) if sign else _APART.split(line.strip().strip("|").strip())


def header(line: str) -> str:
    """Return the header of the CSV table of a header that torch.profiler printed; empty of any other line."""
    line = COMMENT.sub("", line.replace("\0", ""))
    try:
        names = _cells(line, _sign_of(line)) or [""]
    except csv.Error:
        return ""
    # Behind what a logger puts in front of it.
    names = names[names.index("Name") :] if "Name" in names[:3] else names
    printed = names[0] == "Name" and "# of Calls" in names and any(map(_SELF.fullmatch, names))
    return ",".join(_COLUMNS) if printed else ""


def rows(line: str, text: str) -> tuple[str, str]:
    """Return the kernels below a header as rows of a CSV table, and what is wrong with them (empty: nothing).

    A kernel has no time on the host. Triton's have a second row that has: the call, with the same time on the GPU.
    Ranges that the program marked have two rows, too; there, one counts all that the GPU does meanwhile. If the other
    is beyond the table's limit, kernels take longer than the total with them: they are left out, longest first.
    """
    header, text = COMMENT.sub("", line.replace("\0", "")), below(line, text)
    names = _cells(header, sign := _sign_of(header))
    own = next(filter(_SELF.fullmatch, names))
    cells = []
    for row in text.split("\n"):
        if _RULE.fullmatch(row) or (sign == "|" and not row.strip()):
            if cells:
                break
            continue
        found = _cells(row.replace("\0", "")[:_LONGEST], sign)
        if len(found) > max(map(names.index, ("Name", own, "# of Calls"))):
            cells.append(dict(zip(names, found, strict=False)))
    calls = [row for row in cells if _seconds(row.get("CPU total", row.get("Self CPU", "")))]
    called, times = {row["Name"] for row in calls}, {(row["Name"], row[own]) for row in calls}
    of_gpu = [
        row for row in cells if _seconds(row[own]) and not _seconds(row.get("CPU total", row.get("Self CPU", "")))
    ]
    kernels = [
        row
        for row in of_gpu
        if not _RANGE.match(row["Name"]) and (row["Name"] not in called or (row["Name"], row[own]) in times)
    ]
    whole, problem = _whole(cells, own, text), ""
    spent = sum(_seconds(row[own]) for row in kernels)
    for row in sorted(kernels, key=lambda row: -_seconds(row[own])):
        if spent > whole * (1 + _EXACT) > 0 and _PLAIN.fullmatch(row["Name"]):
            kernels.remove(row)
            spent -= _seconds(row[own])
            problem += f"{row['Name']} must be a range that the program marked, and is left out; "
    # In older versions the total counts ranges, too.
    totals = (spent, sum(_seconds(row[own]) for row in of_gpu))
    if whole and min(abs(total / whole - 1) for total in totals) > _EXACT:
        problem += f"its kernels take {1e3 * spent:,.4g} ms, but its total is {1e3 * whole:,.4g} ms"
    return as_csv([row["Name"], row[own], row["# of Calls"]] for row in kernels), problem.removesuffix("; ")


def _whole(cells: list[dict[str, str]], own: str, text: str) -> float:
    """Return the total that is printed below a table, or else the one that its longest row's share tells."""
    behind = re.split(r"\n[\s|]*Name  ", text, maxsplit=1)[0]
    if total := _TOTAL.search(behind):
        return _seconds(total.group(1))
    longest = max(cells, key=lambda row: _seconds(row[own]), default={})
    share = re.fullmatch(r"(\d+\.\d+)%", longest.get(f"{own} %", ""))
    return 100 * _seconds(longest[own]) / float(share.group(1)) if share and float(share.group(1)) else 0.0


def _seconds(cell: str) -> float:
    found = _TIME.fullmatch(cell)
    return float(found.group(1)) * SECONDS[found.group(2)] if found else 0.0
