"""Rows of all tables in one compact form: runs (consecutive rows of one launch) and their values, as numbers.

A value takes some 20 bytes here, whatever it takes in the file, and texts are kept once each.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gpuledger.errors import InputError
from gpuledger.readers.ncu.decimal_sign import DecimalSign
from gpuledger.readers.ncu.launches import COUNT_METRICS
from gpuledger.readers.ncu.layout import ATTRIBUTES, TableLayout, single
from gpuledger.readers.ncu.numbers import loses_digits, parse_numbers, scale_numbers
from gpuledger.readers.ncu.units import base_unit

FIELDS = tuple(ATTRIBUTES.values())
KEYS = ("section", "label", "metric", "unit")
_VALUES = ("value", "minimum", "maximum")
#: A launch takes about as much memory as so many values, however few it has.
LAUNCH_VALUES = 8
#: A part of a wide page, where no launch's rows can lie apart, is so many times smaller.
WIDE_PARTS = 4


@dataclass(frozen=True)
class MetricRows:
    """Metric rows of some launches."""

    runs: dict[str, list[str]]  # by launch column, one entry per run; ``""`` if the table has no such column
    #: Integers, shape (runs,), equal for runs with the same launch columns below the same header; of a wide page, where
    #: each run is a launch, all differ.
    identities: np.ndarray
    #: Arrays of shape (rows,): run (int32, ascending), key (int32, a row of `keys`), value (float64, NaN for text),
    #: text (int32, a place in `texts`, or -1), for summaries minimum and maximum.
    columns: dict[str, np.ndarray]
    keys: pd.DataFrame  # section, label, metric, unit (base units) of each key
    texts: list[str]  # distinct values that are not just a number that float64 holds exactly


class Collector:
    """Collects the Arrow tables of `TableScanner` as runs and rows.

    A *run* is a sequence of consecutive rows with the same launch columns (ID, process, kernel, context, stream,
    grid, block, device). On a wide page each row is a run.

    Parameters
    ----------
    sign : DecimalSign
        Told of every value before it is read.

    Attributes
    ----------
    page : str
        ``""`` before the first row.
    """

    def __init__(self, path: str | Path, sign: DecimalSign):
        self.page, self._path, self._sign = "", path, sign
        self._runs: dict[str, list[str]] = {name: [] for name in FIELDS}
        self._table_of_run: list[int] = []
        self._parts: list[dict[str, np.ndarray]] = []
        self._length = 0
        self._keys: dict[tuple[str, ...], int] = {}
        self._texts: dict[str, int] = {}
        self._metrics = 1  # columns of the last wide page
        self._first_keys: dict[int, int] = {}  # by the identity of a run that was given away

    def __len__(self) -> int:
        return self._length

    def add(self, table: int, layout: TableLayout, rows: pa.Table) -> None:
        """Add rows of one table.

        Raises
        ------
        InputError
            If the table is of another page than those before it, or its values of another locale.
        """
        if self.page and layout.page != self.page:
            pages = " and ".join(sorted({self.page, layout.page}))
            problem = f"the file mixes {pages} pages"
            raise InputError(self._path, "", problem, "keep the output of each page in its own file")
        self.page = layout.page
        (self._add_wide if layout.page == "wide" else self._add_long)(table, layout, rows)

    def give(self, values: int | None = None) -> MetricRows | None:
        """Give away the rows collected so far; with a number, those of whole launches if there are so many, or None.

        Raises
        ------
        InputError
            Rows of a launch lie so far apart that some were given away before.
        """
        runs = len(self._table_of_run)
        if values is not None and self.page == "wide":
            # Each run is a launch. Counting them, not values, cuts alike however the values are printed.
            wanted = max(values // WIDE_PARTS // max(self._metrics, LAUNCH_VALUES), 1)
            if runs < wanted:
                return None
            runs = wanted
        elif values is not None:
            runs -= 1  # the last run may go on
            if runs < 1 or max(len(self), LAUNCH_VALUES * runs) < values:
                return None
        columns = {name: np.concatenate([part.pop(name) for part in self._parts]) for name in [*self._parts[0]]}
        at = int(np.searchsorted(columns["run"], np.int32(runs)))
        given = {name: column[:at] for name, column in columns.items()}
        left = {name: column[at:].copy() for name, column in columns.items()}
        left["run"] -= runs
        numbers = np.arange(runs) if self.page == "wide" else self._identities(runs, given, values is not None)
        attributes = {name: texts[:runs] for name, texts in self._runs.items()}
        self._runs = {name: texts[runs:] for name, texts in self._runs.items()}
        self._table_of_run = self._table_of_run[runs:]
        self._parts, self._length = [left], len(left["run"])
        return MetricRows(
            attributes, numbers, given, pd.DataFrame(list(self._keys), columns=[*KEYS]), list(self._texts)
        )

    def _identities(self, runs: int, given: dict[str, np.ndarray], parted: bool) -> np.ndarray:
        """Number the first runs by their launch columns and header, and refuse launches that are in several parts."""
        identities = list(zip(self._table_of_run, *self._runs.values(), strict=True))[:runs]
        if parted:
            self._refuse_torn_launches(identities, given)
        known: dict[tuple, int] = {}
        return np.array([known.setdefault(identity, len(known)) for identity in identities], np.int64)

    def _refuse_torn_launches(self, identities: list[tuple], given: dict[str, np.ndarray]) -> None:
        """Raise if a run given earlier goes on; one that begins with the same metric is of another launch."""
        begins = np.flatnonzero(np.diff(given["run"], prepend=-1))
        first_keys = given["key"][begins].tolist()
        for identity, key in zip(identities, first_keys, strict=True):
            if self._first_keys.get(hash(identity), key) != key:
                problem = f"metrics of launch {identity[1] or identity[3]} lie apart, in a file too large to hold"
                raise InputError(self._path, "", problem, "sort its rows by ID")
        self._first_keys.update(zip(map(hash, identities), first_keys, strict=True))

    def _add_long(self, table: int, layout: TableLayout, rows: pa.Table) -> None:
        metric = single(rows[str(layout.columns["metric"])])
        named = [bool(text.strip()) for text in metric.dictionary.to_pylist()]
        if not all(named):  # rule rows have no metric
            rows = rows.filter(pc.take(pa.array(named), metric.indices))
        if not rows.num_rows:
            return
        columns = {name: single(rows[str(layout.columns[name])]) for name in FIELDS if name in layout.columns}
        starts = np.zeros(rows.num_rows, bool)
        starts[0] = True
        for column in columns.values():
            codes = column.indices.to_numpy()
            starts[1:] |= codes[1:] != codes[:-1]
        attributes = {}
        for name, column in columns.items():
            attributes[name] = _texts(column, column.indices.to_numpy()[starts])
        before = len(self._table_of_run)
        run = np.cumsum(starts, dtype=np.int32) - 1 + before
        same_table = before and self._table_of_run[-1] == table
        if same_table and all(self._runs[name][-1] == attributes[name][0] for name in columns):
            run -= 1  # the previous block ended within this run
            attributes = {name: texts[1:] for name, texts in attributes.items()}
        new = int(run[-1]) + 1 - before
        for name in FIELDS:
            self._runs[name] += attributes.get(name) or [""] * new
        self._table_of_run += [table] * new
        key, power = self._long_keys(layout, rows)
        printed = {name: single(rows[str(layout.columns[name])]) for name in _VALUES if name in layout.columns}
        self._add_values(printed, run, key, power)

    def _long_keys(self, layout: TableLayout, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the key of each row, and the power of ten that converts its value to the base unit."""
        code = np.zeros(rows.num_rows, np.int64)
        names, places = [np.array([""], dtype=object)] * len(KEYS), [code] * len(KEYS)
        for at, name in enumerate(KEYS):
            if name in layout.columns:
                column = single(rows[str(layout.columns[name])])
                names[at] = np.array([text.strip() for text in column.dictionary.to_pylist()], dtype=object)
                places[at] = column.indices.to_numpy()
                code = pd.factorize(code * len(names[at]) + places[at])[0]
        first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
        return self._keys_of(
            code, zip(*(texts[place[first]] for texts, place in zip(names, places, strict=True)), strict=True)
        )

    def _keys_of(self, code: np.ndarray, printed: Iterable[tuple[str, ...]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys and powers of codes, given what each code stands for."""
        found = []
        for section, label, metric, unit in printed:
            base, power = base_unit(unit)
            found.append((self._keys.setdefault((section, label, metric, base), len(self._keys)), power))
        keys, powers = np.array(found, np.int32).reshape(-1, 2).T
        return keys[code], powers[code]

    def _add_wide(self, table: int, layout: TableLayout, rows: pa.Table) -> None:
        launches, self._metrics = rows.num_rows, len(layout.metrics)
        if not launches:
            return
        for name in FIELDS:
            if name in layout.columns:
                # Equal texts are one object: of most columns there are few.
                column = single(rows[str(layout.columns[name])].dictionary_encode())
                self._runs[name] += _texts(column, column.indices.to_numpy())
            else:
                self._runs[name] += [""] * launches
        run = np.repeat(np.arange(launches, dtype=np.int32) + len(self._table_of_run), self._metrics)
        self._table_of_run += [table] * launches
        metrics = [("", "", name.strip(), unit) for (_, name), unit in zip(layout.metrics, layout.units, strict=True)]
        key, power = self._keys_of(np.tile(np.arange(self._metrics), launches), metrics)
        columns = [rows[str(column)] for column, _ in layout.metrics]
        printed = pa.concat_arrays([chunk for column in columns for chunk in column.chunks])
        # From column by column to launch by launch.
        self._add_values({"value": printed}, run, key, power, lambda codes: codes.reshape(-1, launches).T.ravel())

    def _add_values(
        self,
        printed: dict[str, pa.Array],
        run: np.ndarray,
        key: np.ndarray,
        power: np.ndarray,
        arrange: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> None:
        """Read the values of rows: of a summary average, minimum and maximum, else one of each."""
        texts = pc.fill_null(pc.utf8_trim_whitespace(pa.concat_arrays([*printed.values()])), "").dictionary_encode()
        places = [arrange(part) for part in np.split(texts.indices.to_numpy(), len(printed))]
        texts = texts.dictionary
        counted = np.array([self._counts(metric, unit) for _, _, metric, unit in self._keys])[key] & (power == 0)
        of_counts = np.unique(np.concatenate([place[counted] for place in places]))
        self._sign.add(texts, texts.take(pa.array(of_counts)))
        numbers, plain, cleaned = parse_numbers(texts, self._sign.now)
        self._sign.check(texts.filter(cleaned.is_null()))
        keep = ~plain
        for place in np.flatnonzero((np.abs(numbers) >= 2**53) & plain):
            keep[place] = loses_digits(cleaned[int(place)].as_py(), numbers[place])
        codes = np.full(len(texts), -1, np.int32)
        codes[keep] = [
            self._texts.setdefault(text, len(self._texts)) for text in texts.filter(pa.array(keep)).to_pylist()
        ]
        columns = {"run": run, "key": key, "text": codes[places[0]]}
        for name, place in zip(printed, places, strict=True):
            columns[name] = numbers[place]
            scaled = np.flatnonzero((power != 0) & ~np.isnan(columns[name]))
            if len(scaled):
                exact = cleaned.take(pa.array(place[scaled]))
                columns[name][scaled] = scale_numbers(exact, columns[name][scaled], power[scaled])
        if self.page == "summary":  # of several tables, some may lack one of these columns
            columns = dict.fromkeys(_VALUES, np.full(len(run), np.nan)) | columns
        if self.page == "wide":  # a cell left empty is no row
            filled = pc.not_equal(texts, "").to_numpy(zero_copy_only=False)[places[0]]
            columns = {name: column[filled] for name, column in columns.items()}
        self._parts.append(columns)
        self._length += len(columns["run"])

    def _counts(self, metric: str, unit: str) -> bool:
        """Whether all values are whole, as there is no fraction of a block, nor of all instructions of a launch."""
        summed = metric.endswith(".sum") and unit != "ns" and not {"/", "%"} & set(unit) and self.page != "summary"
        return metric in COUNT_METRICS or summed


def _texts(column: pa.DictionaryArray, codes: np.ndarray) -> list[str]:
    return np.array(column.dictionary.to_pylist(), dtype=object)[codes].tolist()
