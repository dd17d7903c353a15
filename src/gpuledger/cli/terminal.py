"""Output: JSON for programs, aligned columns for people."""

import json
import math
import shutil
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import click

from gpuledger.errors import HIDDEN

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")

#: What limits kernels, as people write it, where it is not as it is called.
BOUNDS = {"l2": "L2", "dram": "DRAM"}
#: Columns of a first column that is cut at least, and of what is no terminal.
_LEAST, _PIPE = 24, 160


def print_json(value: object) -> None:
    """Print a value as JSON; NaN, missing values and infinities become null."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    # Names may hold surrogates, which cannot be printed, and signs that move a terminal's cursor or turn its text; JSON
    # has escapes for them.
    click.echo(HIDDEN.sub(lambda sign: json.dumps(sign[0])[1:-1] if sign[0] != "\x7f" else "\\u007f", text))


def say(text: str = "", *, bold: bool = False, err: bool = False) -> None:
    """Print lines of text, broken between words in a terminal, with control characters replaced."""
    lines = map(_one_line, str(text).split("\n"))
    text = "\n".join(lines if err else map(_broken, lines))
    click.echo(click.style(text, bold=True) if bold else text, err=err)


def three_digits(value: float) -> str:
    """Format a number with three significant digits, zeros included: ``1.60``, ``16.0``, ``1,600``; empty if NaN."""
    if value != value:
        return ""
    rounded = float(f"{value:.3g}")
    if not math.isfinite(rounded):
        return "–"
    if rounded and not 1e-4 <= abs(rounded) < 1e15:
        return f"{rounded:.2e}"
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0}f}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if str(value) in ("<NA>", "NaT") else str(value)


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), spare: Sequence[str] = ()
) -> list[str]:
    """Print rows of texts below headers, in the width of the terminal, and return the headers that it leaves out.

    Where they are too wide, headers are broken between words, the first column is cut, and columns are left out.

    Parameters
    ----------
    right : sequence of int
        Columns that are aligned to the right.
    spare : sequence of str
        Headers of columns that may be left out, the first of them first; a line below names those that are.
    """
    terminal, kept = _terminal(), list(range(len(headers)))
    cells = [[_one_line(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    titles = [[header] for header in cells[0]]

    def excess(first: int) -> int:
        return sum(widths[at] for at in kept) + 2 * (len(kept) - 1) - widths[0] + first - (terminal or _PIPE)

    if terminal and excess(widths[0]) > 0:
        words = [max(map(_width, header.split() or [""])) for header in cells[0]]
        columns = zip(words, *([_width(cell) for cell in row] for row in cells[1:]), strict=True)
        widths = [max(column) for column in columns]
        titles = [textwrap.wrap(name, width) or [""] for name, width in zip(cells[0], widths, strict=True)]
    left_out = []
    for name in spare:
        if terminal and excess(min(widths[0], _LEAST)) > 0 and name in headers:
            left_out.append(name)
            kept.remove(list(headers).index(name))
    widths[0] = max(widths[0] - max(excess(widths[0]), 0), min(widths[0], _LEAST))
    titles = [lines if at in kept else [] for at, lines in enumerate(titles)]
    height = max(map(len, titles))
    above = [[""] * (height - len(lines)) + lines for lines in titles]
    for number, row in enumerate([*zip(*above, strict=True), *cells[1:]]):
        shown = []
        for at in kept:
            cell, width = row[at], widths[at]
            # Of a name that is cut already, what follows the cut goes first.
            cell = cell if _width(cell) <= width else f"{cell[: width - 1].partition('…')[0]}…"
            space = " " * (width - _width(cell))
            shown.append(space + cell if at in right else cell + space)
        line = "  ".join(shown).rstrip()
        click.echo(click.style(line, bold=True) if number < height else line)
    if left_out:
        say(f"Left out, as the terminal is narrow: {', '.join(left_out)} (--json has them).")
    return left_out


def print_columns(shown: Mapping[str, Sequence[str]], left: Sequence[str], spare: Sequence[str] = ()) -> list[str]:
    """Print a table given by columns, of which those not in *left* are aligned right; as :func:`print_table`."""
    right = [number for number, name in enumerate(shown) if name not in left]
    return print_table(list(shown), list(zip(*shown.values(), strict=True)), right, spare)


def _terminal() -> int:
    """Return the columns of the terminal; 0: there is none."""
    return shutil.get_terminal_size((0, 0)).columns


def _broken(line: str) -> str:
    """Break a line that is wider than the terminal between words, and indent what follows."""
    terminal = _terminal()
    if not 0 < terminal < _width(line):
        return line
    indent = " " * min(len(line) - len(line.lstrip()) + 2, terminal // 2)
    return textwrap.fill(line, terminal, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _one_line(text: str) -> str:
    """Replace control characters, which could move a terminal's cursor."""
    return "".join(sign if unicodedata.category(sign)[0] != "C" else "�" for sign in str(text))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else not unicodedata.combining(sign) for sign in text)
