"""Small CSV tables with declared columns, where errors name the line and column of a bad cell.

Column names end with the unit (``latency_ms``), so a wrong unit shows as a wrong column.
"""

import csv
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.errors import InputError, unreadable, warn

#: Seconds of each unit of time, with either sign for micro.
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(SECONDS)})\s*", re.ASCII)
#: Columns that a table may have: the time for reading grows with the square of repeated ones.
MOST_COLUMNS = 2000


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str  # name, ending with the unit
    kind: Literal["text", "integer", "number", "flag"] = "text"  # a flag is ``true`` or ``false``
    choices: Sequence[str] = ()  # the allowed texts; empty for any
    #: Inclusive bounds.
    minimum: float = -np.inf
    maximum: float = np.inf
    optional: bool = False  # the column may be absent, and its cells may be empty


def seconds_of(text: str) -> float:
    """Return a time that is written with its unit (s), as ``30ms``; NaN if it is none."""
    match = _TIME.fullmatch(text)
    return float(match[1]) * SECONDS[match[2]] if match else np.nan


def read_csv(path: str | Path, columns: Sequence[Column], key: Sequence[str] = ()) -> pd.DataFrame:
    """Read and validate a table.

    Parameters
    ----------
    path : path
        A comma-separated UTF-8 file with a header line, as :func:`read_cells` reads it.
    columns : sequence of Column
        All allowed columns; those that are not optional are required.
    key : sequence of str
        Columns that together identify a row, those of them that the table has; two rows with the same values are an
        error.

    Returns
    -------
    DataFrame
        The declared columns that are present, in the declared order: ``str``, ``int64``, ``float64``,
        ``bool`` (nullable ``Int64`` and ``float64`` with NaN where optional).

    Raises
    ------
    InputError
        A column that is missing or in a wrong unit; a row of another length; a cell that is empty, not a
        finite number, out of range or not an allowed text; a repeated row; no rows.
    """
    path = Path(path)
    # An empty line is a row without cells here, so that a row's number is that of its line.
    names = [column.name for column in columns]
    raw = read_cells(path, names, dtype=str, keep_default_na=False, skip_blank_lines=False)
    _check_columns(path, list(raw.columns), columns)
    if raw.empty:
        raise InputError(path, "", "there is no row below the header", "add the measurements")
    frame = pd.DataFrame(
        {column.name: _convert(path, raw[column.name], column) for column in columns if column.name in raw}
    )
    if key := [name for name in key if name in frame]:
        repeated = frame.duplicated(key)
        if repeated.any():
            row = int(np.flatnonzero(repeated)[0])
            what = ", ".join(str(frame[name].iloc[row]) for name in key)
            raise InputError(path, f"line {row + 2}", f"a second row for {what}", "keep one of them")
    return frame


def read_cells(path: Path, columns: Iterable[str], **options: object) -> pd.DataFrame:
    """Read a CSV file of which nothing is known but that its first line has the columns' names.

    Parameters
    ----------
    columns : iterable of str
        Names that are looked for; a column is called so in the result if its own name differs only in capitals and in
        spaces around it.
    **options
        Passed to ``pandas.read_csv``.

    Raises
    ------
    InputError
        The file is absent or empty, or a line has more cells than the first: pandas would take the first column of all
        as an index, and each number would be under its neighbour's name.
    """
    columns = list(columns)
    if len(names := header(path)) == 1 and (sign := next((sign for sign in ";\t" if sign in names[0]), None)):
        problem = f"its cells are separated by {'semicolons' if sign == ';' else 'tabs'}"
        raise InputError(path, "line 1", problem, "separate them by commas, with a point for decimals")
    try:
        with warnings.catch_warnings():
            # pandas only warns when it drops surplus cells that are not empty.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(path, index_col=False, encoding="utf-8-sig", **options)
    except (UnicodeDecodeError, OSError) as error:
        raise unreadable(path, error, "save it as UTF-8 text") from None
    except pd.errors.EmptyDataError:
        raise InputError(path, "", "the file is empty", f"give it the columns {', '.join(columns)}") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        problem = f"not a table: {str(error).removeprefix('Error tokenizing data. C error: ')}"
        place, remedy = "", "give every line the same number of cells"
        if isinstance(error, pd.errors.ParserWarning):
            place, problem = _long_line(path, len(names)), "more cells than the first line has names"
            remedy = "remove comments above the header" if "".join(names).startswith("#") else remedy
        raise InputError(path, place, problem, remedy) from None
    others = {name.strip().lower(): name for name in map(str, reversed(table.columns)) if name not in columns}
    wanted = {others[name.lower()]: name for name in columns if name not in table and name.lower() in others}
    return table.rename(columns=wanted)


def _long_line(path: Path, names: int) -> str:
    """Return the first line that has a cell without a name; empty where it cannot be told."""
    with path.open(encoding="utf-8-sig", newline="") as file, suppress(csv.Error):
        rows = csv.reader(file)
        return next((f"line {rows.line_num}" for cells in rows if any(cells[names:])), "")
    return ""


def header(path: str | Path) -> list[str]:
    """Return the column names in the first line, without capitals; empty where :func:`read_csv` will raise."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            names = [name.strip().lower() for name in next(csv.reader(file), [])]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    check_width(path, names)
    return names


def check_width(path: str | Path, names: Sequence[str]) -> None:
    """Refuse more columns than `MOST_COLUMNS`."""
    if len(names) > MOST_COLUMNS:
        problem = f"{len(names):,} columns are more than the {MOST_COLUMNS:,} that are read"
        raise InputError(path, "line 1", problem, "keep those that are needed")


def _check_columns(path: Path, found: list[str], columns: Sequence[Column]) -> None:
    known = {column.name for column in columns}
    missing = [column for column in columns if column.name not in found and not column.optional]
    for column in missing:
        stem, _, unit = column.name.rpartition("_")
        same_stem = [name for name in found if stem and name.rpartition("_")[0] == stem and name not in known]
        if same_stem:
            problem = f"wrong unit: column '{same_stem[0]}' where '{column.name}' is needed"
            raise InputError(path, "line 1", problem, f"convert the values to {unit} and rename the column")
    if missing:
        all_of = ", ".join(f"'{column.name}'" for column in missing)
        problem, it = (f"the columns {all_of} are", "them") if len(missing) > 1 else (f"the column {all_of} is", "it")
        near = schemas.nearest(missing[0].name, found)
        raise InputError(path, "line 1", f"{problem} missing", f"add or rename {it} ({near})")
    for name in found:
        if name not in known:
            warn(path, "line 1", f"unknown column '{name}'", f"it is ignored ({schemas.nearest(name, known)})")


def _convert(path: Path, cells: pd.Series, column: Column) -> pd.Series:
    cells = cells.fillna("").str.strip()
    # Masks are arrays: as Series, those of a few rows would take longer than to read the table.
    nul = cells.str.contains("\0", regex=False).to_numpy(bool)
    _refuse(path, cells, column, nul, "holds a NUL byte", "save it as text")
    empty = (cells == "").to_numpy(bool)
    if not column.optional:
        _refuse(path, cells, column, empty, "is empty", "fill it in")
    if column.kind == "text":
        if column.choices:
            # Capitals matter: kB is not KB.
            problem = f"is not one of {', '.join(column.choices)}"
            _refuse(path, cells, column, ~cells.isin(column.choices).to_numpy(bool) & ~empty, problem, "correct it")
        return cells
    if column.kind == "flag":
        lower = cells.str.lower()
        bad = ~lower.isin(["true", "false"]).to_numpy(bool)
        _refuse(path, cells, column, bad, "is not true or false", "correct it")
        return lower == "true"
    numbers = pd.to_numeric(cells, errors="coerce").to_numpy("float64", na_value=np.nan)
    bad = ~np.isfinite(numbers) & ~empty
    _refuse(path, cells, column, bad, "is not a number", "write digits, with a point for decimals")
    if column.kind == "integer":
        # Beyond 2**53, floats cannot distinguish neighbouring integers.
        bad = ((numbers % 1 != 0) | (np.abs(numbers) > 2**53)) & ~empty
        _refuse(path, cells, column, bad, "is not a whole number", "write all digits, without a unit")
    bad = ((numbers < column.minimum) | (numbers > column.maximum)) & ~empty
    bounds = f"{column.minimum:g} to {column.maximum:g}"
    _refuse(path, cells, column, bad, f"is not within {bounds}", "check the value and its unit")
    found = pd.Series(numbers, cells.index, name=cells.name)
    if column.kind == "integer":
        return found.astype("Int64") if empty.any() else found.astype("int64")
    return found


def refuse_row(path: Path, bad: pd.Series, column: str, problem: str, remedy: str) -> None:
    """Raise an InputError about the first bad row of a table, if there is one."""
    if bad.any():
        raise InputError(path, f"line {int(np.flatnonzero(bad)[0]) + 2}, column {column}", problem, remedy)


def _refuse(path: Path, cells: pd.Series, column: Column, bad: np.ndarray, problem: str, remedy: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        cell = repr(cells.iloc[row])
        raise InputError(path, f"line {row + 2}, column {column.name}", f"{cell} {problem}", remedy)


def by_value(cells: pd.Series, change: Mapping | Callable[[pd.Series], pd.Series]) -> pd.Series:
    """Look up or compute a column of few different values once for each value, not for each cell.

    Parameters
    ----------
    cells : Series
        With an index of any kind.
    change : mapping or callable
        From values; what a mapping lacks becomes NaN. A callable gets the different values as a Series.

    Returns
    -------
    Series
        With the index and name of ``cells``.
    """
    codes, values = pd.factorize(cells, use_na_sentinel=False)
    values = pd.Series(values, name=cells.name)
    changed = values.map(change) if isinstance(change, Mapping) else change(values)
    return changed.take(codes).set_axis(cells.index)


def numbers_of(rows: pd.DataFrame, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return columns of rows as numbers."""
    return {name: rows[name].to_numpy(dtype=float) for name in names}
