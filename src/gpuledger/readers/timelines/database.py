"""SQLite databases that profilers write: open one, and read columns that versions name differently."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.timelines.table import Timeline

_NANOSECOND = 1e-9
_ROWS = 1 << 16


def read_database(path: str | Path, read: Callable[[Path, sqlite3.Connection, set[str]], Timeline]) -> Timeline:
    """Read a database with a function of the file, the open database and the names of its tables and views."""
    path, remedy = Path(path), "record it again, or export it again: nsys export --type sqlite REPORT.nsys-rep"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            base.text_factory = lambda data: data.decode("utf-8", "replace")
            names = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
            return read(path, base, names)
    except sqlite3.Error as error:
        raise InputError(path, "", f"the database cannot be read ({error})", remedy) from None
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(path, "", f"a value in the database is not valid ({error})", remedy) from None


def columns_of(base: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of a table's columns."""
    return {row[1] for row in base.execute(f'PRAGMA table_info("{table}")')}


def select(base: sqlite3.Connection, table: str, wanted: Mapping[str, tuple[str, ...]]) -> pd.DataFrame:
    """Read columns, each under the first of its names that the table has; None where it has none of them.

    Without that table there are no rows.
    """
    there = columns_of(base, table)
    if not there:
        return pd.DataFrame(columns=list(wanted), dtype=object)
    found = {name: next((own for own in names if own in there), None) for name, names in wanted.items()}
    columns = ", ".join("NULL" if own is None else f'"{own}"' for own in found.values())
    cursor = base.execute(f'SELECT {columns} FROM "{table}"')
    parts = [pd.DataFrame(columns=list(found), dtype=object)]
    while rows := cursor.fetchmany(_ROWS):
        columns = zip(found, zip(*rows, strict=True), strict=True)
        parts.append(pd.DataFrame({name: _packed(cells) for name, cells in columns}))
    return stacked(parts[1:] or parts)


def stacked(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Put the rows of several tables below each other; None in columns that a table lacks.

    Columns stay whole numbers where all of their values are, and hold the values as they are otherwise. `pd.concat`
    decides by the types of empty columns, too, and makes fractions of whole numbers beside empty or missing columns:
    then an identifier 2 is 2.0, and nothing is found under it.
    """
    if len(parts) == 1:
        return parts[0].reset_index(drop=True)
    filled = [part for part in parts if len(part)] or parts[:1]
    made = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        columns = [part[name] if name in part else pd.Series([None] * len(part), dtype=object) for part in filled]
        kind = np.int64 if all(column.dtype == np.int64 for column in columns) else object
        made[name] = pd.Series(np.concatenate([column.to_numpy(kind) for column in columns]), dtype=kind)
    return pd.DataFrame(made, copy=False)


def _packed(cells: tuple) -> pd.Series:
    """Return whole numbers as int64, a fifth of what objects take; anything else as it is."""
    return pd.Series(cells, dtype=np.int64 if {type(cell) for cell in cells} == {int} else object)


def interval(rows: pd.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return which rows have valid times (columns start and end, ns), and the times of those in seconds."""
    start, end = (pd.to_numeric(rows[name], errors="coerce").to_numpy(float) for name in ("start", "end"))
    valid = np.isfinite(start) & (end >= start)
    # Differences of whole nanoseconds: a moment in seconds has not enough digits.
    first, last = (rows.loc[valid, name] for name in ("start", "end"))
    if first.dtype == last.dtype == np.int64:
        length = (last - first).to_numpy(float)
    else:
        length = np.array([int(b) - int(a) for a, b in zip(first, last, strict=True)], float)
    return valid, {"start_s": start[valid] * _NANOSECOND, "duration_s": length * _NANOSECOND}


def extents(rows: pd.DataFrame, what: str, axes: str) -> np.ndarray:
    """Return the columns of a grid or a block by axis, such as gridX, as an array of shape (rows, 3); NaN: unknown."""
    return np.column_stack([pd.to_numeric(rows[f"{what}{axis}"], errors="coerce").to_numpy(float) for axis in axes])


def text(column: pd.Series) -> np.ndarray:
    """Return a column as texts, of which equal ones are one object."""
    codes, distinct = pd.factorize(column, use_na_sentinel=False)
    return np.array([str(value) for value in distinct], object)[codes]


def number(column: pd.Series) -> np.ndarray:
    """Return a column of identifiers as whole numbers, -1 where there is none."""
    return pd.to_numeric(column, errors="coerce").fillna(-1).clip(-1, 2**53).astype("int64").to_numpy()
