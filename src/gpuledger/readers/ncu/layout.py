"""Header lines: the page that a table is from, and the meaning of its columns."""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from gpuledger.errors import InputError

ATTRIBUTES = {
    "ID": "id",
    "Process ID": "process_id",
    "Kernel Name": "kernel",
    "Context": "context",
    "Stream": "stream",
    "Grid Size": "grid",
    "Block Size": "block",
    "Device": "device",
    "CC": "compute_capability",
    "Invocations": "invocations",
}
"""Columns that identify a row's launch, and their names in this package."""

_METRIC = {"Section Name": "section", "Body Item Label": "label", "Metric Name": "metric", "Metric Unit": "unit"}
_VALUES = {
    "long": {"Metric Value": "value"},
    "summary": {"Average": "value", "Minimum": "minimum", "Maximum": "maximum"},
}
# On a wide page, every column other than these is a metric.
_NO_METRIC = {
    *ATTRIBUTES,
    *_METRIC,
    *("Process Name", "Host Name", "Kernel Time", "Device Name", "Kernel Mangled Name", "Range Name"),
    *("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"),
}
_NO_METRIC_NAME = re.compile(r"^(?:Unnamed: \d+|\s*)$|:(?:Push/Pop|Start/Stop)_Range:")  # index of a data frame, NVTX
#: As programs name the columns of a pivoted table: ``dram__bytes.sum [Mbyte]``.
_WITH_UNIT = re.compile(r"([a-z0-9]{2,10}__[^\s()\[\]]{1,200}) ?[\[(]([^\s()\[\]]{1,30})[\])]")
_METRIC_NAME = re.compile(r"[a-z0-9]{2,10}__[a-z0-9_]+\.(?:sum|avg|max|min|ratio|pct)\b")
_KNOWN = {"Metric Value", "Minimum", "Maximum", "Average", *ATTRIBUTES, *_METRIC}
_LEAST = {"Kernel Name", "Metric Name", "Metric Value"}
_REMEDY = "export it again with ncu --csv --page raw (or details)"


@dataclass(frozen=True)
class TableLayout:
    """Columns of one table."""

    page: str  # {"long", "wide", "summary"}
    names: tuple[str, ...]  # the header's fields
    columns: dict[str, int]  # position of each field: those of `ATTRIBUTES`, section, label, metric, unit, value
    metrics: tuple[tuple[int, str], ...]  # positions and names of a wide page's metric columns
    units: tuple[str, ...]  # their units, from the units row; all ``""`` until it is read or if there is none
    delimiter: str
    quoted: bool  # whether rows begin with a quote, as ncu writes them; other programs that save a table may drop it
    needed: int  # minimum number of fields of a complete row: rows may end after the value

    @property
    def key_column(self) -> int | None:
        """A column with a whole number in every row, which distinguishes rows from noise."""
        return self.columns.get("id", self.columns.get("process_id"))


def split_line(line: str, delimiter: str) -> list[str]:
    """Split one line into fields, taking an odd quote literally."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a field beyond csv's limit is neither in a header nor in a units row
        return []


def parse_header(path: str | Path, line: str, line_number: Callable[[], int]) -> TableLayout | None:
    """Return the layout that a header line describes, or None if the line is not the header of a metric table."""
    for delimiter in ",;\t":
        names = tuple(name.strip() for name in split_line(line, delimiter))
        if "Metric Name" in names and (len(_KNOWN.intersection(names)) > 3 or set(names) >= _LEAST):
            page = "summary" if "Average" in names or "Invocations" in names else "long"
        elif "Kernel Name" in names and ("ID" in names or any(map(_METRIC_NAME.match, names))):
            page = "wide"  # without ID: pivoted by another program, a column per metric
        else:
            continue
        return _layout(path, line_number, page, names, delimiter, line.lstrip().startswith('"'))
    return None


def _layout(
    path: str | Path, line_number: Callable[[], int], page: str, names: tuple[str, ...], delimiter: str, quoted: bool
) -> TableLayout:
    wanted = {**ATTRIBUTES, **_METRIC, **_VALUES.get(page, {})} if page != "wide" else ATTRIBUTES
    for name in wanted:
        if names.count(name) > 1:
            raise InputError(path, f"line {line_number()}", f"the header has the column {name!r} twice", _REMEDY)
    columns = {field: names.index(name) for name, field in wanted.items() if name in names}
    required = {"long": ("Kernel Name", "Metric Value"), "summary": ("Average",)}
    for name in required.get(page, ()):
        if name not in names:
            had = ", ".join(name for name in names if name)[:300]
            raise InputError(path, f"line {line_number()}", f"the table has no column {name!r} (it has {had})", _REMEDY)
    metrics: tuple[tuple[int, str], ...] = ()
    if page == "wide":
        metrics = tuple(
            (column, name)
            for column, name in enumerate(names)
            if name not in _NO_METRIC and not _NO_METRIC_NAME.search(name)
        )
        if not metrics:
            raise InputError(path, f"line {line_number()}", "the table has no metric column", _REMEDY)
    needed = len(names) if page == "wide" else 1 + max(columns[field] for field in columns if field in _ROW_FIELDS)
    parts = [_WITH_UNIT.fullmatch(name) for _, name in metrics]
    units = tuple(found[2] if found else "" for found in parts)
    metrics = tuple((at, found[1] if found else name) for (at, name), found in zip(metrics, parts, strict=True))
    return TableLayout(page, names, columns, metrics, units, delimiter, quoted, needed)


_ROW_FIELDS = {"id", "process_id", "kernel", "metric", "unit", "value", "minimum", "maximum"}


def parse_units(layout: TableLayout, line: str) -> TableLayout | None:
    """Return the layout with the units of a wide page's second line, or None if that line is a row of values."""
    fields = [field.strip() for field in split_line(line, layout.delimiter)]
    if layout.page != "wide" or len(fields) < len(layout.names):
        return None
    if any(fields[layout.columns[name]] for name in ("id", "kernel") if name in layout.columns):
        return None
    units = tuple(fields[column] for column, _ in layout.metrics)
    return replace(layout, units=units)


def single(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array, with one dictionary."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            return column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return column
