"""Output: JSON for programs, aligned columns for people."""

import json
import math
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import click

from gpuledger.errors import HIDDEN

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def print_json(value: object) -> None:
    """Print a value as JSON; NaN, missing values and infinities become null."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    # Names may hold surrogates, which cannot be printed, and signs that move a terminal's cursor or turn its text; JSON
    # has escapes for them.
    click.echo(HIDDEN.sub(lambda sign: json.dumps(sign[0])[1:-1] if sign[0] != "\x7f" else "\\u007f", text))


def say(text: str = "", *, bold: bool = False, err: bool = False) -> None:
    """Print lines of text, with the control characters of names and messages replaced."""
    text = "\n".join(map(_one_line, str(text).split("\n")))
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


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print rows of texts below headers; the first column is cut where the terminal is too narrow.

    Parameters
    ----------
    right : sequence of int
        Columns that are aligned to the right.
    """
    cells = [[_one_line(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size((160, 40)).columns
    widths[0] = max(widths[0] - max(excess, 0), min(widths[0], 24))
    for number, row in enumerate(cells):
        shown = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cell = cell if _width(cell) <= width else f"{cell[: width - 1]}…"
            space = " " * (width - _width(cell))
            shown.append(space + cell if column in right else cell + space)
        line = "  ".join(shown).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def _one_line(text: str) -> str:
    """Replace control characters, which could move a terminal's cursor."""
    return "".join(sign if unicodedata.category(sign)[0] != "C" else "�" for sign in str(text))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else not unicodedata.combining(sign) for sign in text)
