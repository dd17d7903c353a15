"""Repair the rows of a table: take out noise, fill short rows, join fields that span several lines."""

import csv
import re

import numpy as np

from gpuledger.readers.ncu.layout import TableLayout

_NEWLINE, _QUOTE, _ZERO, _NINE = b'\n"09'
_JOINED_LINES = 200  # lines that one quoted field may span


class RepairedRows:
    """Rows of one table within a block, repaired so that a strict CSV parser accepts them.

    Parameters
    ----------
    layout : TableLayout
        The table's columns.
    piece : bytes
        Lines after its header, up to the next header or the end of the block.
    last : bool
        Whether the table ends here, so that a quote left open is never closed.

    Attributes
    ----------
    rows : bytes
        Lines of exactly ``len(layout.names)`` fields.
    noise : list of bytes
        Lines that are not rows.
    suspects : list of (bytes, str)
        Lines that start like a row but are not one, and what is wrong with each.
    used : int
        Bytes of the piece that were processed; the rest needs the next block.
    """

    def __init__(self, layout: TableLayout, piece: bytes, last: bool):
        self._layout, self._delimiter = layout, ord(layout.delimiter)
        self._row_start = _row_start(layout)
        self.used, self.noise, self.suspects = len(piece), [], []
        unfinished = not piece.endswith(b"\n")
        self._tokenize(piece + b"\n" if unfinished else piece)
        if not self._good.all():
            piece = self._unglue(self._join(piece, last))
            self._tokenize(piece if piece.endswith(b"\n") else piece + b"\n")
        self._sort_out(unfinished and last)
        self.rows = self._rows()

    def _tokenize(self, text: bytes) -> None:
        layout = self._layout
        letters = np.frombuffer(text, np.uint8)
        special = np.flatnonzero((letters == _NEWLINE) | (letters == _QUOTE) | (letters == self._delimiter))
        kind = letters[special]
        newline = kind == _NEWLINE
        quotes = np.cumsum(kind == _QUOTE, dtype=np.int32)
        ends = special[newline]
        quotes_at_end = quotes[newline]
        line = np.cumsum(newline, dtype=np.int32) - newline
        quotes_before = np.concatenate(([0], quotes_at_end[:-1])).astype(np.int32)
        separates = (kind == self._delimiter) & (((quotes - quotes_before[line]) & 1) == 0)
        self._letters, self._ends = letters, ends
        self._starts = np.concatenate(([0], ends[:-1] + 1))
        self._empty = ends == self._starts
        self._fields = np.bincount(line[separates], minlength=len(ends)) + 1
        self._odd = ((quotes_at_end - quotes_before) & 1).astype(bool)
        first, until = letters[self._starts], kind[np.searchsorted(special, self._starts)]
        # Behind a number and something else, such as srun's "0: ", a quoted row begins later in the line.
        numbered = (first >= _ZERO) & (first <= _NINE) & ((until == self._delimiter) | (not layout.quoted))
        begins = (first == _QUOTE) | numbered | (layout.key_column != 0)
        self._excess = self._trailing_delimiters()
        fields = self._fields - self._excess
        self._good = begins & ~self._odd & (fields >= layout.needed) & (fields <= len(layout.names))

    def _trailing_delimiters(self) -> np.ndarray:
        """Count the surplus empty fields at each line's end: metric rows end with the value and a comma."""
        too_many = np.clip(self._fields - len(self._layout.names), 0, None)
        excess = np.zeros_like(too_many)
        for step in range(1, min(int(too_many.max(initial=0)), 64) + 1):
            trailing = self._letters[np.maximum(self._ends - step, 0)] == self._delimiter
            excess += (too_many >= step) & (excess == step - 1) & trailing
        return excess

    def _join(self, piece: bytes, last: bool) -> bytes:
        """Join the lines of a quoted field that spans several (texts of rules), unless there are rows between them."""
        odd = np.flatnonzero(self._odd)
        if not len(odd):
            return piece
        joined, done = bytearray(piece), -1
        for begin in odd:
            if begin <= done or not self._row_start.match(self._line(begin)):
                continue
            later = int(np.searchsorted(odd, begin, side="right"))
            end = int(odd[later]) if later < len(odd) and odd[later] <= begin + _JOINED_LINES else None
            if end is None:
                reaches_end = len(self._ends) - begin <= _JOINED_LINES
                if not last and reaches_end and not self._good[begin + 1 :].any():
                    self.used = int(self._starts[begin])
                    return bytes(joined[: self.used])
                continue
            if self._good[begin + 1 : end].any() or self._row_start.match(self._line(end)):
                continue
            text = piece[self._starts[begin] : self._ends[end]].replace(b"\n", b" ")
            if self._layout.needed <= self._count(text) <= len(self._layout.names) + 1:
                joined[self._starts[begin] : self._ends[end]] = text
                done = end
        return bytes(joined)

    def _count(self, text: bytes) -> int:
        try:
            return len(next(csv.reader([text.decode("utf-8", "replace")], delimiter=self._layout.delimiter), []))
        except csv.Error:
            return 0

    def _unglue(self, piece: bytes) -> bytes:
        """Separate a row from what the program printed before it on the same line."""
        parts, done = [], 0
        for index in np.flatnonzero(~self._good & ~self._empty) if self._layout.quoted else ():
            begin, end = int(self._starts[index]), int(self._ends[index])
            match = self._row_start.search(piece[begin:end])
            if match and match.start() and self._layout.needed <= self._count(piece[begin + match.start() : end]):
                self.noise.append(piece[begin : begin + match.start()])
                parts.append(piece[done:begin])
                done = begin + match.start()
        return b"".join([*parts, piece[done:]])

    def _line(self, index: int) -> bytes:
        return self._letters[self._starts[index] : self._ends[index]].tobytes()

    def _sort_out(self, unfinished: bool) -> None:
        """Sort the lines that are not rows into noise and truncated rows."""
        final = len(self._ends) - 1
        for index in np.flatnonzero(~self._good & ~self._empty):
            line = self._line(index)
            cut = unfinished and index == final and line[:1].isdigit()
            if cut or self._row_start.match(line) or (index == final and self._odd[index] and line[:1] == b'"'):
                fields, names = self._fields[index], len(self._layout.names)
                problem = "its fields do not fit" if fields == names else f"it has {fields} fields, not {names}"
                self.suspects.append((line, "a quote is open" if self._odd[index] else problem))
            else:
                self.noise.append(line)

    def _rows(self) -> bytes:
        good, names = self._good, len(self._layout.names)
        if not good.any():
            return b""
        missing = np.where(good, np.clip(names - self._fields, 0, None), 0)
        if good.all() and not missing.any() and not self._excess.any():
            return self._letters.tobytes()
        keep = np.repeat(good, self._ends - self._starts + 1)
        for step in range(1, int(self._excess.max()) + 1):
            keep[self._ends[self._excess >= step] - step] = False
        letters = self._letters
        if missing.any():
            places = np.repeat(self._ends, missing)
            letters = np.insert(letters, places, self._delimiter)
            keep = np.insert(keep, places, True)
        return letters[keep].tobytes()


def _row_start(layout: TableLayout) -> re.Pattern[bytes]:
    """Return the pattern of a row's start, so that a truncated row is not taken for noise."""
    mark = re.escape(layout.delimiter).encode()
    quote = b'"' if layout.quoted else b""
    number = quote + rb"\d+" + quote + mark
    columns = layout.columns
    if columns.get("id") == 0:
        return re.compile(number * 2 if columns.get("process_id") == 1 else number + quote)
    return re.compile(number + quote) if columns.get("process_id") == 0 else re.compile(rb"(?!)")
