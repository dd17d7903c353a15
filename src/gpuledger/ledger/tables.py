"""Tables as CSV, Markdown and LaTeX, with provenance in every row or in the caption."""

import hashlib
import html
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from pandas.io.formats.style import Styler

from gpuledger import files
from gpuledger.ledger import latex, provenance
from gpuledger.ledger.case_result import SIGNIFICANT_DIGITS, brief, rounded

#: Rows of a table on a page; files have all of them.
SHOWN_ROWS = 3000
#: Units at the end of a column's name that its header has in brackets.
_UNITS = {"s": "s", "ms": "ms", "us": "µs", "ns": "ns", "percent": "%"}


def write(
    frame: pd.DataFrame,
    record: Mapping | None,
    folder: str | Path | None,
    *,
    caption: str,
    name: str = "table",
    label: str = "",
    headers: Mapping[str, str] | None = None,
    formats: Mapping[str, str | Callable] | None = None,
    people: pd.DataFrame | None = None,
    csv_only: Sequence[str] = (),
) -> Styler:
    """Write a frame as ``<name>.csv``, ``.md`` and ``.tex``.

    In the CSV, a text that a spreadsheet would run as a formula (``=``, ``+``, ``-`` or ``@`` first) begins with an
    apostrophe. Only the CSV has the columns in which no row has a value.

    Parameters
    ----------
    frame : DataFrame
        Column names are snake_case and end with the unit; the index is not written.
    record : mapping or None
        The ``provenance.json`` of the rows, whose label becomes the last column; None if the frame has a column
        ``provenance`` of its own.
    folder : path or None
        None writes nothing.
    caption : str
        Caption of the LaTeX table; what the numbers are and their source are added to it.
    label : str, optional
        LaTeX label of rows of several cases, if not the name.
    headers : mapping, optional
        Column headers in Markdown and LaTeX.
    formats : mapping, optional
        Format strings or functions for Markdown and LaTeX, by column. By default, integers have thousands
        separators and floats four significant digits.
    people : DataFrame, optional
        The rows for Markdown and LaTeX, where another layout than the CSV's reads better.
    csv_only : sequence of str, optional
        Columns that would make the table too wide to read: only the CSV has them, and a page says so.
    """
    headers = headers or {}
    people = frame if people is None else people
    left = [headers.get(name) or _header(name) for name in csv_only if name in people and people[name].notna().any()]
    people = people.drop(columns=list(csv_only), errors="ignore")
    if record is not None:
        frame, people = (rows.assign(provenance=record["label"]) for rows in (frame, people))
    if "provenance" not in frame:
        raise ValueError("every table row must say what its numbers are: give a record or a column 'provenance'")
    shown, numeric = _for_people(people, headers, formats or {})
    # In a paper and on a page, what holds for all rows is said once.
    about = "" if record is None else f"{record['label'][:1].upper()}{record['label'][1:]}."
    paper = shown if record is None else shown.iloc[:, :-1]
    if folder is not None:
        target = Path(folder) / name
        files.write_text(target.with_suffix(".csv"), as_csv(frame))
        files.write_text(target.with_suffix(".md"), _markdown(shown, numeric))
        label = label or name
        if record is not None:
            caption += f" {about} {provenance.sources(record)}."
            label = "-".join([record["dataset"], record["study"], record["case"]] + [name] * (name != "table"))
        files.write_text(target.with_suffix(".tex"), latex.table(paper, caption, f"tab:{label}", numeric))
    if left:
        about = f"{about} Only the CSV has: {'; '.join(left)}.".strip()
    return _styled(paper, numeric[: paper.shape[1]], about)


def show(
    frame: pd.DataFrame, headers: Mapping[str, str] | None = None, formats: Mapping[str, str | Callable] | None = None
) -> Styler:
    """Format a frame as :func:`write` does, for a notebook to show."""
    return _styled(*_for_people(frame, headers or {}, formats or {}))


def _styled(shown: pd.DataFrame, numeric: Sequence[bool], about: str = "") -> Styler:
    right = [column for column, is_number in zip(shown, numeric, strict=True) if is_number]
    # An id from the content: unique on a page, and the same whenever the page is made.
    uuid = hashlib.sha256(shown.to_csv().encode()).hexdigest()[:8]
    styler = shown.head(SHOWN_ROWS).style.hide(axis="index").set_uuid(uuid).format(escape="html")
    styler = styler.format_index(escape="html", axis="columns")
    part = f"The first {SHOWN_ROWS:,} of {len(shown):,} rows." if len(shown) > SHOWN_ROWS else ""
    if caption := f"{part} {html.escape(about)}".strip():
        styler = styler.set_caption(caption)
    return styler.set_properties(subset=right, **{"text-align": "right"}) if right else styler


def as_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV without its index, the same bytes on every machine."""
    inert = rounded(frame, SIGNIFICANT_DIGITS).map(_inert).rename(columns=_inert)
    return inert.to_csv(index=False, lineterminator="\n")


def _inert(cell: object) -> object:
    """Put an apostrophe before a text that a spreadsheet would run as a formula; numbers stay as they are."""
    formula = isinstance(cell, str) and cell.startswith(tuple("=+-@\t\r＝＋－＠"))
    return f"'{cell}" if formula and not _NUMBER.fullmatch(cell) else cell


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def _for_people(frame: pd.DataFrame, headers: Mapping, formats: Mapping) -> tuple[pd.DataFrame, list[bool]]:
    """Return the frame as texts, without columns in which no row has a value, and which of its columns are numeric."""
    shown, numeric = {}, []
    for column in frame:
        style = formats.get(column)
        if style is None:
            style = _default_format
        elif isinstance(style, str):
            style = style.format
        texts = ["" if pd.isna(value) else style(value) for value in frame[column]]
        if any(texts) or not texts:
            shown[headers.get(column) or _header(column)] = texts
            numeric.append(is_numeric_dtype(frame[column]))
    return pd.DataFrame(shown, dtype=str), numeric


def _header(column: str) -> str:
    """Return a column's name for people: ``recorded_median_us`` is the recorded median (µs)."""
    name, _, unit = column.rpartition("_")
    return f"{name.replace('_', ' ')} ({_UNITS[unit]})" if name and unit in _UNITS else column.replace("_", " ")


def _default_format(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{value:,}"
    return brief(value) if isinstance(value, float) else str(value)


def _markdown(shown: pd.DataFrame, numeric: Sequence[bool]) -> str:
    # Kernel names contain <, > and |, which are markup in Markdown.
    escaped = shown.rename(columns=escape_markdown).map(escape_markdown)
    alignment = ["right" if is_number else "left" for is_number in numeric]
    return escaped.to_markdown(index=False, disable_numparse=True, colalign=alignment) + "\n"


def escape_markdown(text: str) -> str:
    """Escape the markup of Markdown, HTML and Jupyter's formulas."""
    text = html.escape(text, quote=False).replace("\n", " ")
    for sign in "\\|*_`[]$":
        text = text.replace(sign, f"\\{sign}")
    return text
