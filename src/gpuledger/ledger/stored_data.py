"""Data of a result with more rows than belong into memory: a Parquet file that is read by column, or part by part."""

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Self
from weakref import finalize

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gpuledger.errors import REMEDIES, InputError

#: Rows that are held in memory as a data frame; a table with more has parts of `PART_ROWS`.
MOST_ROWS = 1 << 17
PART_ROWS = 1 << 15
_STORED = b"gpuledger.stored"


class StoredData:
    """A table in a file, whose columns are read when they are asked for, as those of a data frame are.

    Parameters
    ----------
    file : binary file
        Parquet, as `collect` or `copy` wrote it, and nobody else's. Texts are read as categories.
    """

    def __init__(self, file: BinaryIO):
        self._source = file
        finalize(self, file.close)
        schema = pq.read_schema(file)
        texts = [field.name for field in schema if pa.types.is_large_string(field.type)]
        self._file = pq.ParquetFile(file, read_dictionary=texts)
        self._plain = pq.ParquetFile(file)

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    def __getitem__(self, column: str) -> pd.Series:
        return self._file.read([column]).to_pandas()[column]

    def parts(self) -> Iterator[pd.DataFrame]:
        """Yield the rows in order, as many at a time as belong into memory."""
        first = 0
        for group in range(self._plain.num_row_groups):
            frame = self._plain.read_row_group(group).to_pandas()
            yield frame.set_index(pd.RangeIndex(first, first + len(frame)))
            first += len(frame)

    def map(self, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Self:
        """Return a table whose parts are changed."""
        return StoredData(_written(map(change, self.parts())))

    def copy(self, path: str | Path) -> None:
        """Write the table to a file."""
        self._source.seek(0)
        with open(path, "wb") as target:
            shutil.copyfileobj(self._source, target, 1 << 20)


Columns = pd.DataFrame | StoredData
"""What has columns by name."""


def read(path: str | Path) -> Columns:
    """Read a result's data as it was written: whole, or in parts."""
    stored = _STORED in (pq.read_schema(path).metadata or {})
    return StoredData(Path(path).open("rb")) if stored else pd.read_parquet(path)


def parts(data: Columns) -> Iterator[pd.DataFrame]:
    """Yield the rows of either kind of data."""
    return data.parts() if isinstance(data, StoredData) else iter([data])


def collect(frames: Iterable[pd.DataFrame]) -> Columns:
    """Put parts of a table together, in memory as long as these are no more than `MOST_ROWS` rows.

    Raises
    ------
    InputError
        The folder of temporary files has no room for them.
    """
    frames, held, rows = iter(frames), [], 0
    while rows <= MOST_ROWS and (more := next(frames, None)) is not None:
        held.append(more)
        rows += len(more)
    if rows <= MOST_ROWS:
        return pd.concat(held, ignore_index=True)
    held.reverse()
    return StoredData(_written(chain((held.pop() for _ in range(len(held))), frames)))


def _written(frames: Iterable[pd.DataFrame]) -> BinaryIO:
    """Write a temporary file of parts, which is gone when it is closed."""
    frames = _of_equal_length(frames)
    frame = next(frames)
    # A part may have no text where another one has.
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    for at, field in enumerate(schema):
        if pa.types.is_null(field.type) or pa.types.is_string(field.type):
            schema = schema.set(at, field.with_type(pa.large_string()))
    schema = schema.with_metadata({**schema.metadata, _STORED: b"in parts"})
    try:
        file = tempfile.TemporaryFile(prefix="gpuledger-")  # noqa: SIM115
        with pq.ParquetWriter(file, schema) as writer:
            while frame is not None:
                rows = pa.Table.from_pandas(frame, schema, preserve_index=False)
                writer.write_table(rows.replace_schema_metadata(schema.metadata), len(frame))
                frame = next(frames, None)
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        problem = f"there is no room for temporary files ({error.strerror})"
        remedy = "free disk space there, or set TMPDIR to a folder with more" if error.errno == errno.ENOSPC else ""
        raise InputError(tempfile.gettempdir(), "", problem, remedy or REMEDIES[error.errno]) from error
    return file


def _of_equal_length(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Cut and join parts so that each has `PART_ROWS` rows but for the last one."""
    held: list[pd.DataFrame] = []
    for frame in frames:
        held.append(frame)
        while sum(map(len, held)) >= PART_ROWS:
            joined = pd.concat(held, ignore_index=True)
            yield joined.iloc[:PART_ROWS]
            held = [joined.iloc[PART_ROWS:].copy()]
    if rest := [frame for frame in held if len(frame)]:
        yield pd.concat(rest, ignore_index=True)
