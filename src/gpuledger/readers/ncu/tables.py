"""Find the tables in a stream of lines, as one Arrow table per block.

Blocks that consist of complete rows go directly to Arrow's CSV parser. All others (with noise, short rows or a new
header) are first repaired with NumPy, by the positions of their delimiters, quotes and line ends.
"""

import contextlib
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from gpuledger.errors import InputError
from gpuledger.readers.ncu.layout import TableLayout, parse_header, parse_units, single
from gpuledger.readers.ncu.repair_rows import RepairedRows
from gpuledger.readers.ncu.sources import byte_blocks

_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_MESSAGE = re.compile(r"==(ERROR|WARNING)==\s*(.*)")
_NAME = re.compile(rb"Kernel Name|Metric Name")
_LINE = re.compile(rb"[^\n]+")
_MESSAGE_LINE = re.compile(rb"(?m)^[^\n]{0,900}==(?:ERROR|WARNING)==[^\n]*")
_KEPT_LINES = 400  # noise kept to find out why a file has no table
_THREADS, _AHEAD = 2, 4
_REMEDY_CUT = "the file is truncated or damaged: copy it or profile again"


@dataclass
class Noise:
    """Lines outside of the tables."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def add(self, text: bytes) -> None:
        """Keep the first lines, and ncu's messages."""
        for found in (_LINE if len(self.kept) < _KEPT_LINES else _MESSAGE_LINE).finditer(text):
            if not (line := found[0][:1000].decode("utf-8", "replace").strip()):
                continue
            if len(self.kept) < _KEPT_LINES:
                self.kept.append(line[:300])
            if match := _MESSAGE.search(line):
                kind = self.errors if match[1] == "ERROR" else self.warnings
                if match[2] not in kind and len(kind) < 100:
                    kind.append(match[2])


class TableScanner:
    """Iterates over the tables of a file, block by block.

    Parameters
    ----------
    path : path or str
        File that `gpuledger.readers.ncu.sources.byte_blocks` opens.

    Attributes
    ----------
    tables : int
        Headers found so far.
    """

    def __init__(self, path: str | Path, scaled: bool = False):
        self.path, self.noise, self.tables = path, Noise(), 0
        self._scaled = scaled
        self._layout: TableLayout | None = None
        self._want_units = False
        self._before = 0  # bytes before the current block
        self._processes: set[str] = set()

    def __iter__(self) -> Iterator[tuple[int, TableLayout, pa.Table]]:
        """Yield (number of the table, layout, rows); columns are named by position, strings or dictionaries."""
        stream, ahead, carry, ended = byte_blocks(self.path, self._scaled), deque(), b"", False
        # Arrow parses the next blocks while the file is read and these rows are collected.
        with ThreadPoolExecutor(_THREADS) as pool:
            while True:
                while not ended and len(ahead) < (_AHEAD if self._in_rows else 2):
                    block = next(stream, None)
                    ended = block is None
                    if not ended:
                        layout = self._layout if self._in_rows else None
                        ahead.append((block, layout, layout and pool.submit(self._parse_whole, block, layout)))
                if not ahead:
                    return
                block, layout, parsed = ahead.popleft()
                if carry or layout is not self._layout or not self._in_rows:
                    parsed, block = None, carry + block
                carry = yield from self._tables_in(block, parsed, last=ended and not ahead)
                self._before += len(block) - len(carry)

    @property
    def _in_rows(self) -> bool:
        return self._layout is not None and not self._want_units

    def _tables_in(
        self, block: bytes, parsed: Future | None, last: bool
    ) -> Iterator[tuple[int, TableLayout, pa.Table]]:
        """Yield the tables in a block, and return the bytes at its end that need the next block."""
        rows = parsed.result() if parsed else self._parse_whole(block, self._layout) if self._in_rows else None
        if rows is not None and self._with_number_keys(rows) is rows:
            yield self.tables, self._layout, rows
            return b""
        used = 0
        for rows, used in self._parse_mixed(block, last):  # noqa: B007
            if rows is not None and rows.num_rows:
                yield self.tables, self._layout, rows
        return block[used:]

    # Blocks of complete rows

    def _parse_whole(self, block: bytes, layout: TableLayout) -> pa.Table | None:
        """Return the rows of a block, or None if anything in it is not a complete row."""
        if block.count(b'"') % 2:  # Arrow would close a quote left open at the end
            return None
        with contextlib.suppress(pa.ArrowInvalid):
            return self._parse(block, layout)
        return None

    def _parse(self, block: bytes, layout: TableLayout) -> pa.Table:
        columns = [*layout.columns.values(), *(column for column, _ in layout.metrics)]
        plain = {layout.columns.get(name) for name in ("value", "minimum", "maximum")}
        types = {
            str(column): pa.string() if column in plain or layout.page == "wide" else _DICTIONARY for column in columns
        }
        if (key := layout.key_column) is not None:
            types[str(key)] = _DICTIONARY
        return pa_csv.read_csv(
            pa.py_buffer(block),
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=[str(i) for i in range(len(layout.names))]
            ),
            parse_options=pa_csv.ParseOptions(delimiter=layout.delimiter),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(types), column_types=types, strings_can_be_null=False, check_utf8=False
            ),
        ).combine_chunks()

    def _with_number_keys(self, rows: pa.Table) -> pa.Table:
        """Return the rows with whole numbers as ID and process."""
        layout = self._layout
        for name in ("id", "process_id"):
            if name not in layout.columns or not rows.num_rows:
                continue
            column = single(rows[str(layout.columns[name])].dictionary_encode())
            texts = column.dictionary.to_pylist()
            number = [text.strip().isdecimal() and len(text) < 19 for text in texts]
            if not all(number):
                rows = rows.filter(pc.take(pa.array(number), column.indices))
            if name == "process_id" and len(self._processes) < 10_000:
                self._processes.update(text for text, yes in zip(texts, number, strict=True) if yes)
        return rows

    # Blocks with noise, short rows or headers

    def _parse_mixed(self, block: bytes, last: bool) -> Iterator[tuple[pa.Table | None, int]]:
        """Yield (rows or None, bytes processed so far), table by table."""
        start = 0
        while start < len(block):
            header = self._find_header(block, start)
            end = header[0] if header else len(block)
            if self._layout is None:
                self.noise.add(block[start:end])
                used = end
            else:
                rows, used = self._parse_piece(block, start, end, last or header is not None)
                yield rows, used
            if header is None:
                yield None, used
                return
            _, start, self._layout = header
            self.tables += 1
            self._want_units = self._layout.page == "wide"
            yield None, start

    def _find_header(self, block: bytes, start: int) -> tuple[int, int, TableLayout] | None:
        """Find the next header line: its start, end and layout."""
        end = start
        while match := _NAME.search(block, end):
            # Each line is looked at once, however often it has such a name.
            begin = block.rfind(b"\n", start, match.start()) + 1 or start
            end = block.find(b"\n", match.start()) + 1 or len(block)
            line = block[begin:end].decode("utf-8", "replace").strip("\n\r\ufeff ")
            if (glued := line.find('"ID","')) > 0 and line[0] != '"':
                line = line[glued:]  # the program printed something before it on the same line
            if layout := parse_header(self.path, line, lambda begin=begin: self._line_number(block, begin)):
                return begin, end, layout
        return None

    def _line_number(self, block: bytes, at: int) -> int:
        """Return the line of a position in a block, counted from the file's start when an error needs it."""
        lines, before = 0, self._before
        for earlier in byte_blocks(self.path, self._scaled) if before else ():
            lines += earlier.count(b"\n", 0, before)
            before -= len(earlier)
            if before <= 0:
                break
        return lines + block.count(b"\n", 0, at) + 1

    def _parse_piece(self, block: bytes, start: int, end: int, last: bool) -> tuple[pa.Table | None, int]:
        """Return the rows of the current table within a block, and where the unprocessed rest begins."""
        if self._want_units:
            begin = start
            while begin < end and block[begin : begin + 1] == b"\n":
                begin += 1
            stop = block.find(b"\n", begin, end) + 1 or end
            if stop > begin:
                self._want_units = False
                if layout := parse_units(self._layout, block[begin:stop].decode("utf-8", "replace").strip("\n")):
                    self._layout, start = layout, stop
        piece = block[start:end]
        if not piece.strip():
            return None, end
        repaired = RepairedRows(self._layout, piece, last)
        self._refuse_damage(repaired, block)
        self.noise.add(b"\n".join(repaired.noise))
        try:
            rows = self._parse(repaired.rows, self._layout) if repaired.rows else None
        except pa.ArrowInvalid as error:
            place = f"after line {self._line_number(block, start)}"
            raise InputError(self.path, place, f"a row is not CSV ({error})", _REMEDY_CUT) from error
        if rows is not None:
            rows = self._with_number_keys(rows)
        return rows, start + repaired.used

    def _refuse_damage(self, repaired: RepairedRows, block: bytes) -> None:
        """Raise for a line that starts like a row but is not one: a truncated row, whose data would be lost."""
        layout = self._layout
        for line, problem in repaired.suspects:
            fields = line.decode("utf-8", "replace").split(layout.delimiter)
            process = layout.columns.get("process_id")
            knows = process is not None and process < len(fields) - 1 and not layout.quoted and self._processes
            if knows and fields[process].strip().strip('"') not in self._processes:
                self.noise.add(line)  # numbers that the program printed
                continue
            place = f"line {self._line_number(block, max(block.find(line), 0))}"
            raise InputError(self.path, place, f"the row is incomplete: {problem}", _REMEDY_CUT)
