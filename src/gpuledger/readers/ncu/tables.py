"""Tables in a stream of lines: noise taken out, ragged rows filled, one Arrow table per block.

Blocks of nothing but whole rows go straight to Arrow's CSV parser. Any other block (noise, ragged rows, a new
header) is first straightened with NumPy, on the positions of its delimiters, quotes and line ends.
"""

from __future__ import annotations

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
from gpuledger.readers.ncu.layout import Layout, parse_header, parse_units, single
from gpuledger.readers.ncu.repair_rows import Straightener
from gpuledger.readers.ncu.sources import byte_blocks

_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_MESSAGE = re.compile(r"==(ERROR|WARNING)==\s*(.*)")
_KEPT_LINES = 400  # noise kept to say why a file has no table
_THREADS, _AHEAD = 2, 4
_REMEDY_CUT = "the file is cut short or damaged: copy it or profile again"


@dataclass
class Noise:
    """What stood around the tables."""

    lines: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def add(self, lines: list[bytes]) -> None:
        """Count lines, and keep the tool's own messages."""
        for raw in lines:
            line = raw[:1000].decode("utf-8", "replace").strip()
            if not line:
                continue
            self.lines += 1
            if len(self.kept) < _KEPT_LINES:
                self.kept.append(line[:300])
            if match := _MESSAGE.search(line):
                kind = self.errors if match[1] == "ERROR" else self.warnings
                if match[2] not in kind and len(kind) < 100:
                    kind.append(match[2])


class TableScanner:
    """Iterator over the tables of a file, block by block.

    Parameters
    ----------
    path : path or str
        File that `gpuledger.readers.ncu.sources.byte_blocks` opens.

    Attributes
    ----------
    noise : Noise
    tables : int
        Headers met so far.
    """

    def __init__(self, path: str | Path):
        self.path, self.noise, self.tables = path, Noise(), 0
        self._layout: Layout | None = None
        self._want_units = False
        self._before = 0  # bytes before the block at hand
        self._processes: set[str] = set()

    def __iter__(self) -> Iterator[tuple[int, Layout, pa.Table]]:
        """Yield (number of the table, layout, rows): columns named by position, strings and dictionaries of them."""
        stream, ahead, carry, ended = byte_blocks(self.path), deque(), b"", False
        # Arrow parses the next blocks while these rows are sorted in and the file is read and unpacked.
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

    def _tables_in(self, block: bytes, parsed: Future | None, last: bool) -> Iterator[tuple[int, Layout, pa.Table]]:
        """Yield the tables in a block, and return the bytes at its end that need what follows."""
        rows = parsed.result() if parsed else self._parse_whole(block, self._layout) if self._in_rows else None
        if rows is not None and self._with_number_keys(rows) is rows:
            yield self.tables, self._layout, rows
            return b""
        used = 0
        for rows, used in self._parse_mixed(block, last):  # noqa: B007
            if rows is not None and rows.num_rows:
                yield self.tables, self._layout, rows
        return block[used:]

    # A block of whole rows only

    def _parse_whole(self, block: bytes, layout: Layout) -> pa.Table | None:
        """Rows of a block, or None when anything in it is not a whole row."""
        if block.count(b'"') % 2:  # Arrow takes a quote that is open at the end for closed
            return None
        with contextlib.suppress(pa.ArrowInvalid):
            return self._parse(block, layout, lambda row: "error")
        return None

    def _parse(self, block: bytes, layout: Layout, on_bad_row) -> pa.Table:
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
            parse_options=pa_csv.ParseOptions(delimiter=layout.delimiter, invalid_row_handler=on_bad_row),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(types), column_types=types, strings_can_be_null=False, check_utf8=False
            ),
        ).combine_chunks()

    def _with_number_keys(self, rows: pa.Table) -> pa.Table:
        """The rows that have a whole number as ID and process."""
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

    # A block with noise, ragged rows or headers in it

    def _parse_mixed(self, block: bytes, last: bool) -> Iterator[tuple[pa.Table | None, int]]:
        """Yield (rows or None, bytes used so far), table by table."""
        start = 0
        while start < len(block):
            header = self._find_header(block, start)
            end = header[0] if header else len(block)
            if self._layout is None:
                self.noise.add(block[start:end].split(b"\n"))
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

    def _find_header(self, block: bytes, start: int) -> tuple[int, int, Layout] | None:
        """Next header line: where it begins and ends, and its layout."""
        for match in re.finditer(rb"Kernel Name|Metric Name", block[start:]) if _has_header(block, start) else ():
            at = start + match.start()
            begin = block.rfind(b"\n", start, at) + 1 or start
            end = block.find(b"\n", at) + 1 or len(block)
            line = block[begin:end].decode("utf-8", "replace").strip("\n\r\ufeff ")
            if (glued := line.find('"ID","')) > 0 and line[0] != '"':
                line = line[glued:]  # after what the program printed without a line end
            if layout := parse_header(self.path, line, lambda begin=begin: self._line_number(block, begin)):
                return begin, end, layout
        return None

    def _line_number(self, block: bytes, at: int) -> int:
        """Line of a position in a block; only errors need it, so the lines before are counted when one is raised."""
        lines, before = 0, self._before
        for earlier in byte_blocks(self.path) if before else ():
            lines += earlier.count(b"\n", 0, before)
            before -= len(earlier)
            if before <= 0:
                break
        return lines + block.count(b"\n", 0, at) + 1

    def _parse_piece(self, block: bytes, start: int, end: int, last: bool) -> tuple[pa.Table | None, int]:
        """Rows of the table at hand within a block, and where its unused rest begins."""
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
        straight = Straightener(self._layout, piece, last)
        self._refuse_damage(straight, block)
        self.noise.add(straight.noise)
        try:
            rows = self._parse(straight.rows, self._layout, lambda row: "error") if straight.rows else None
        except pa.ArrowInvalid as error:
            place = f"after line {self._line_number(block, start)}"
            raise InputError(self.path, place, f"a row is no CSV ({error})", _REMEDY_CUT) from error
        if rows is not None:
            every, rows = rows, self._with_number_keys(rows)
            self.noise.lines += every.num_rows - rows.num_rows
        return rows, start + straight.used

    def _refuse_damage(self, straight: Straightener, block: bytes) -> None:
        """A line that begins as a row does but is none is a row cut short: to skip it would lose data."""
        layout = self._layout
        for line, problem in straight.suspects:
            fields = line.decode("utf-8", "replace").split(layout.delimiter)
            process = layout.columns.get("process_id")
            knows = process is not None and process < len(fields) - 1 and not layout.quoted and self._processes
            if knows and fields[process].strip().strip('"') not in self._processes:
                self.noise.add([line])  # numbers that the program printed
                continue
            place = f"line {self._line_number(block, max(block.find(line), 0))}"
            raise InputError(self.path, place, f"the row is incomplete: {problem}", _REMEDY_CUT)


def _has_header(block: bytes, start: int) -> bool:
    return block.find(b"Kernel Name", start) >= 0 or block.find(b"Metric Name", start) >= 0
