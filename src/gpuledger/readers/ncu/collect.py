"""Rows of all tables in one form: runs (consecutive rows of one launch) and their metric rows."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuledger.readers.ncu.layout import ATTRIBUTES, Layout, single

FIELDS = tuple(ATTRIBUTES.values())
_KEYS = ("section", "label", "metric", "unit")


class Collector:
    """Collects the Arrow tables of `TableScanner` as runs and rows.

    A *run* is a sequence of consecutive rows with the same launch columns (ID, process, kernel, context, stream,
    grid, block, device). On a wide page each row is a run.

    Attributes
    ----------
    runs : dict of str to list of str
        By launch column, one entry per run; ``""`` if the table has no such column.
    """

    def __init__(self):
        self.runs: dict[str, list[str]] = {name: [] for name in FIELDS}
        self.table_of_run: list[int] = []
        self.pages: set[str] = set()
        self._parts: list[pa.Table] = []

    def __len__(self) -> int:
        return len(self.table_of_run)

    def add(self, table: int, layout: Layout, rows: pa.Table) -> None:
        """Add rows of one table."""
        self.pages.add(layout.page)
        (self._add_wide if layout.page == "wide" else self._add_long)(table, layout, rows)

    def rows(self) -> pa.Table | None:
        """Return all metric rows, once: run (int32), section, label, metric, unit (dictionaries), value (string), and
        for summaries minimum and maximum (string)."""
        parts, self._parts = self._parts, []
        if not parts:
            return None
        return pa.concat_tables(parts, promote_options="default").unify_dictionaries().combine_chunks()

    def identities(self) -> np.ndarray:
        """Return a number per run, equal for runs with the same launch columns below the same header."""
        known: dict[tuple, int] = {}
        runs = zip(self.table_of_run, *self.runs.values(), strict=True)
        return np.array([known.setdefault(run, len(known)) for run in runs], np.int64)

    def _add_long(self, table: int, layout: Layout, rows: pa.Table) -> None:
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
            texts = np.array(column.dictionary.to_pylist(), dtype=object)
            attributes[name] = texts[column.indices.to_numpy()[starts]].tolist()
        run = np.cumsum(starts, dtype=np.int32) - 1 + len(self)
        same_table = bool(self.table_of_run) and self.table_of_run[-1] == table
        if same_table and all(self.runs[name][-1] == attributes[name][0] for name in columns):
            run -= 1  # the previous block ended within this run
            attributes = {name: texts[1:] for name, texts in attributes.items()}
        new = int(run[-1]) + 1 - len(self)
        for name in FIELDS:
            self.runs[name] += attributes.get(name) or [""] * new
        self.table_of_run += [table] * new
        part = {"run": pa.array(run)}
        for name in _KEYS:
            if name in layout.columns:
                part[name] = single(rows[str(layout.columns[name])])
            else:
                part[name] = _constant("", rows.num_rows)
        for name in ("value", "minimum", "maximum"):
            if name in layout.columns:
                part[name] = rows[str(layout.columns[name])].combine_chunks()
        self._parts.append(pa.table(part))

    def _add_wide(self, table: int, layout: Layout, rows: pa.Table) -> None:
        launches, metrics = rows.num_rows, len(layout.metrics)
        if not launches:
            return
        for name in FIELDS:
            texts = rows[str(layout.columns[name])].to_pylist() if name in layout.columns else [""] * launches
            self.runs[name] += texts
        first = len(self)
        self.table_of_run += [table] * launches
        columns = [rows[str(column)] for column, _ in layout.metrics]
        values = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
        # From column by column to launch by launch.
        order = (np.arange(metrics) * launches + np.arange(launches)[:, None]).ravel()
        values = single(values.take(pa.array(order)))
        filled = pc.not_equal(pc.utf8_trim_whitespace(values), "").to_numpy(zero_copy_only=False)
        index = np.tile(np.arange(metrics, dtype=np.int32), launches)[filled]
        names = pa.array([name for _, name in layout.metrics], pa.string()).dictionary_encode()
        units = pa.array(layout.units, pa.string()).dictionary_encode()
        part = {
            "run": pa.array(np.repeat(np.arange(launches, dtype=np.int32), metrics)[filled] + first, pa.int32()),
            "section": _constant("", len(index)),
            "label": _constant("", len(index)),
            "metric": names.take(pa.array(index)),
            "unit": units.take(pa.array(index)),
            "value": values.filter(pa.array(filled)),
        }
        self._parts.append(pa.table(part))


def _constant(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text], pa.string()))
