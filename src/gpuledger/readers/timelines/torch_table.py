"""The table that torch.profiler's ``key_averages().table()`` prints, as a CSV table of its kernels.

Columns are at least two blanks apart, and every time has its unit (``torch/autograd/profiler_util.py``).
"""

import csv
import io
import re

from gpuledger.readers.tabular import SECONDS

_APART = re.compile(r"\s{2,}")
_TIME = re.compile(r"-?(\d+(?:\.\d+)?)(us|ms|s)")
_TOTAL = re.compile(r"(?m)^Self CUDA time total:\s*(\S+)")
_COLUMNS = ("Name", "Self CUDA", "# of Calls")
#: Ranges that PyTorch marks itself; their rows of the host may be beyond the table's limit.
_RANGE = re.compile(r"ProfilerStep\*|## Call CompiledFxGraph|Torch-Compiled Region")


def header(line: str) -> str:
    """Return the header of the CSV table of a header that torch.profiler printed; empty of any other line."""
    printed = line.lstrip().startswith("Name  ") and set(_COLUMNS) <= set(_APART.split(line.strip()))
    return ",".join(_COLUMNS) if printed else ""


def rows(line: str, text: str) -> tuple[str, str]:
    """Return the kernels below a header as rows of a CSV table, and what is wrong with them (empty: nothing).

    A kernel has no time on the host. Triton's have a second row that has: the call, with the same time on the GPU.
    Ranges that the program marked have two rows, too; there, one counts all that the GPU does meanwhile.
    """
    names = _APART.split(line.strip())
    cells = []
    for row in text.split("\n")[1:]:
        if row.startswith("-----"):
            break
        found = _APART.split(row.strip())
        if len(found) >= names.index("# of Calls") + 1:
            cells.append(dict(zip(names, found, strict=False)))
    calls = [row for row in cells if _seconds(row.get("CPU total", row.get("Self CPU", "")))]
    called, times = {row["Name"] for row in calls}, {(row["Name"], row["Self CUDA"]) for row in calls}
    kernels = [
        row
        for row in cells
        if _seconds(row["Self CUDA"])
        and not _seconds(row.get("CPU total", row.get("Self CPU", "")))
        and not _RANGE.match(row["Name"])
        and (row["Name"] not in called or (row["Name"], row["Self CUDA"]) in times)
    ]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([row[name] for name in _COLUMNS] for row in kernels)
    spent, total = sum(_seconds(row["Self CUDA"]) for row in kernels), _TOTAL.search(text)
    whole = _seconds(total.group(1)) if total else 0.0
    if whole and abs(spent / whole - 1) > 0.02:
        return file.getvalue(), f"its kernels take {1e3 * spent:,.4g} ms, but its total is {1e3 * whole:,.4g} ms"
    return file.getvalue(), ""


def _seconds(cell: str) -> float:
    found = _TIME.fullmatch(cell)
    return float(found.group(1)) * SECONDS[found.group(2)] if found else 0.0
