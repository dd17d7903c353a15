"""A table of measured times as it was found: its columns are checked and converted one by one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.readers import tabular

#: No kernel takes more than an hour (s).
MOST_S = 3600.0
#: Columns of what a GPU drew meanwhile, and of what it may draw (W).
POWERS = ("power", "power_limit")


class MeasuredTable:
    """Columns of a Parquet or CSV file; a cell that is not what a column should hold is an error in one line.

    Parameters
    ----------
    path : path
    wanted, optional : sequence of str
        Columns that are read; of the optional ones those that are present (None: all).
    unit : str
        Of the times: a key of :data:`gpuledger.readers.tabular.SECONDS`.
    powers : bool
        Whether the columns ``power`` and ``power_limit`` (W) are wanted as well.
    cells : DataFrame, optional
        The table, where the file holds it in another form.
    """

    def __init__(
        self,
        path: Path,
        wanted: Sequence[str],
        optional: Sequence[str] | None = (),
        unit: str = "s",
        powers: bool = False,
        cells: pd.DataFrame | None = None,
    ):
        self.path, self.unit, self.powers = path, unit, powers
        self.cells = _read(path, [*wanted, *(POWERS if powers else ())], optional, cells)

    def __contains__(self, name: str) -> bool:
        return name in self.cells

    def require(self, *names: str) -> None:
        """Refuse the table if it lacks one of the optional columns."""
        for name in names:
            if name not in self:
                raise InputError(self.path, "line 1", f"the column '{name}' is missing", "add it")

    def refuse(self, bad: np.ndarray | pd.Series, name: str, problem: str, remedy: str) -> None:
        """Raise an InputError about the first bad cell of a column, if there is one."""
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            cell = self.cells[name].iloc[row]
            # Of a CSV the line, after the header; of a Parquet file the row. Rows may have been left out before.
            row = int(self.cells.index[row])
            place = f"row {row + 1}" if self.path.suffix == ".parquet" else f"line {row + 2}"
            # Words such as n/a are read as empty cells.
            said = "a cell that is empty or says n/a" if np.ndim(cell) == 0 and pd.isna(cell) else f"'{cell}'"
            raise InputError(self.path, f"{place}, column {name}", f"{said} {problem}", remedy)

    def texts(self, name: str) -> pd.Series:
        """Return a column as texts; an empty cell is an error."""
        self.refuse(self.cells[name].isna(), name, "is no name", "fill it in")
        return self.cells[name].astype(str)

    def numbers(self, name: str) -> np.ndarray:
        """Return a column as numbers; NaN where a cell is none."""
        cells = self.cells[name]
        try:
            return pd.to_numeric(cells, errors="coerce").to_numpy(dtype=float)
        except OverflowError:  # an integer with hundreds of digits
            return pd.to_numeric(cells.astype(str), errors="coerce").to_numpy(dtype=float)

    def whole_numbers(self, name: str, least: int = 1, most: int = 2**20) -> np.ndarray:
        """Return a column as integers; a cell that is none within the bounds is an error."""
        numbers = self.numbers(name)
        # Products of three sizes stay exact integers below 2^63.
        bad = ~((numbers >= least) & (numbers <= most) & (np.floor(numbers) == numbers))
        self.refuse(bad, name, f"is not a whole number from {least} to 2^{most.bit_length() - 1}", "correct it")
        return numbers.astype(np.int64)

    def positive_numbers(self, name: str, known: np.ndarray | bool = True) -> np.ndarray:
        """Return a column as numbers; a cell among the `known` ones that is not positive is an error."""
        numbers = self.numbers(name)
        bad = known & ~(np.isfinite(numbers) & (numbers > 0))
        self.refuse(bad, name, "is not a positive number", "remove the row")
        return numbers

    def seconds(self, name: str = "latency", known: np.ndarray | bool = True) -> np.ndarray:
        """Return a column of times in seconds; checked as by :meth:`positive_numbers`."""
        times = self.positive_numbers(name, known) * tabular.SECONDS[self.unit]
        self.refuse(known & (times > MOST_S), name, f"{self.unit} are more than an hour", "correct it")
        return times

    def known_rows(self, frame: pd.DataFrame, dtype: str) -> tuple[pd.DataFrame, list[str]]:
        """Leave out rows whose ``precision`` no law knows (NaN); also return which types those are in column `dtype`.

        Of equal rows the median of ``measured_s`` is left. With powers, all rows are left, in the order of the table,
        with ``power_w`` and ``limit_w`` (NaN: not measured).
        """
        unknown = frame["precision"].isna().to_numpy()
        skipped = sorted(self.cells[dtype][unknown].astype(str).unique())
        if unknown.all():
            problem = f"no row of a known type (found {', '.join(skipped)})"
            raise InputError(self.path, f"column {dtype}", problem, "add some")
        if self.powers:
            measured = self.cells["power"].notna().to_numpy()
            power, limit = (self.positive_numbers(name, measured) for name in POWERS)
            return frame.assign(power_w=power, limit_w=limit)[~unknown].reset_index(drop=True), skipped
        return median_of_equal(frame[~unknown] if unknown.any() else frame), skipped


def median_of_equal(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for all that are equal but for ``measured_s``, with its median."""
    keys = [name for name in frame if name != "measured_s"]
    # One number for all keys of a row: pandas' groups of many columns take three times as long.
    code, most = np.zeros(len(frame), dtype=np.int64), 1
    for name in keys:
        codes, values = pd.factorize(frame[name], sort=True, use_na_sentinel=False)
        if most * len(values) >= 2**62:
            different, code = np.unique(code, return_inverse=True)
            most = len(different)
        code, most = code * len(values) + codes, most * len(values)
    _, first, group, count = np.unique(code, return_index=True, return_inverse=True, return_counts=True)
    medians = frame["measured_s"].to_numpy()[first]
    repeated = count[group] > 1
    medians[count > 1] = frame["measured_s"][repeated].groupby(group[repeated]).median()
    return frame[keys].iloc[first].reset_index(drop=True).assign(measured_s=medians)


def _read(
    path: Path, wanted: Sequence[str], optional: Sequence[str] | None, table: pd.DataFrame | None
) -> pd.DataFrame:
    parquet = path.suffix == ".parquet" and table is None
    try:
        if table is not None:
            pass
        elif parquet:
            tabular.check_width(path, names := pq.read_schema(path).names)
            chosen = [name for name in names if optional is None or name in wanted or name in optional]
            table = pd.read_parquet(path, columns=chosen)
        else:
            table = tabular.read_cells(path, [*wanted, *(optional or ())], low_memory=False)
    except InputError:
        raise
    except Exception as error:  # a damaged Parquet file raises almost anything
        raise InputError(path, "", f"not a Parquet or CSV table ({error})", "check the file") from None
    for name in wanted:
        if name not in table:
            remedy = schemas.nearest(name, names if parquet else list(map(str, table.columns)))
            raise InputError(path, "line 1", f"the column '{name}' is missing", f"add or rename it ({remedy})")
        if not parquet and f"{name}.1" in table:
            # So pandas calls the second column of a name.
            raise InputError(path, "line 1", f"two columns are called '{name}'", "keep one of them")
    if table.empty:
        raise InputError(path, "", "there is no row", "add the measurements")
    return table if optional is None else table[[*wanted, *(name for name in optional if name in table)]].copy()
