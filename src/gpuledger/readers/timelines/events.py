"""Events of a JSON trace (Chrome trace format) of any size: split without parsing, filtered, then parsed."""

import codecs
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError, unreadable, warn

#: Bytes that are read at a time, and the most characters that one value may have.
CHUNK, MAX_VALUE = 1 << 22, 1 << 26
_SPACE = re.compile(r"[\s,]*")
_FIRST_KEY = re.compile(r'\s*\{\s*("(?:[^"\\]|\\.){0,200}")\s*:')
_REMEDY = "export the trace again; a trace is one JSON object with a list traceEvents"


def moment_and_duration(event: dict) -> tuple[float, float] | None:
    """Return an event's ``ts`` and ``dur`` (µs), or None if one is not a valid time."""
    start, duration = event.get("ts"), event.get("dur")
    if type(start) is not float or type(duration) is not float:
        start, duration = number(start), number(duration)
    return (start, duration) if -1e300 < start < 1e300 and 0 <= duration < 1e300 else None


def number(value: Any) -> float:
    """Return a number, also from a text, as a float; NaN for anything else."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return math.nan
    # Integers beyond the range of a float are not moments.
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else math.nan


class TraceEvents:
    """The events of a trace, in batches, and what it says beside them.

    Iterating yields lists of the events (dicts) to keep. Only text that may be one of them is parsed: in a trace with
    Python stacks most is something else. A file that ends too early or breaks off in the middle gives the events
    before that place, with a warning.

    Parameters
    ----------
    path : path
        A JSON file, plain or gzipped: an object with ``traceEvents``, or several one after the other; or a list of
        events.
    wanted : regular expression
        Found in the text of every event to keep.
    keep : callable
        Tells of an event whether to keep it.

    Attributes
    ----------
    header : dict
        All other keys of the object, complete after the iteration.

    Raises
    ------
    InputError
        While iterating: the file cannot be read, is not JSON, or has no list of events.
    """

    def __init__(self, path: str | Path, wanted: re.Pattern[str], keep: Callable[[dict], bool]):
        self.path = Path(path)
        self.header: dict[str, Any] = {}
        self._wanted, self._keep = wanted, keep
        self._decoder = json.JSONDecoder()
        self._text, self._position, self._before = "", 0, 0
        self._ended, self._fault = False, ""

    def __iter__(self) -> Iterator[list[dict]]:
        try:
            with self.path.open("rb") as raw:
                self._file = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
                self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
                yield from self._document()
        except OSError as error:
            raise unreadable(self.path, error, "check the file") from None
        if self._fault:
            warn(self.path, f"character {self._place:,}", self._fault, "the events before it are used")

    @property
    def _place(self) -> int:
        return self._before + self._position

    def _more(self, least: int = CHUNK) -> bool:
        """Append to the text; return False at the end of the file."""
        if self._ended:
            return False
        self._before += self._position
        parts, length = [self._text[self._position :]], 0
        self._position = 0
        while length < least and not self._ended:
            try:
                data = self._file.read1(CHUNK)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                data, self._fault = b"", f"the compressed file is damaged or cut off ({error})"
            self._ended = not data
            parts.append(self._decode(data, final=not data))
            length += len(parts[-1])
        self._text = "".join(parts)
        return True

    def _next(self) -> str:
        """Return the next character that is neither blank nor a comma; empty at the end."""
        while True:
            self._position = _SPACE.match(self._text, self._position).end()
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """Parse one value; raise EOFError if the file ends within it, ValueError if it is not JSON."""
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                # A value that is cut off fails at the end of the text, or where a string begins that does not end.
                if not self._ended and len(self._text) - self._position > MAX_VALUE:
                    raise ValueError("a value is longer than 64 MiB, or not JSON") from None
                cut = error.pos >= len(self._text) - 16 or error.msg.startswith("Unterminated string")
                if not cut:
                    raise ValueError(f"not JSON ({error.msg})") from None
                if not self._more(max(CHUNK, len(self._text) - self._position)):
                    raise EOFError from None
                continue
            except RecursionError:
                raise ValueError("values are nested too deeply") from None
            # A number may go on behind the end of the text.
            if end < len(self._text) or not self._more():
                self._position = end
                return value

    def _document(self) -> Iterator[list[dict]]:
        found = False
        try:
            first = self._next()
            if first == "[":
                self._position += 1
                found = True
                yield from self._events()
                return
            if first != "{":
                raise InputError(self.path, "", "not a JSON trace", _REMEDY)
            while self._next() == "{":
                self._position += 1
                while (sign := self._next()) != "}":
                    if not sign:
                        raise EOFError
                    key = self._value()
                    if not isinstance(key, str) or self._next() != ":":
                        raise ValueError("not JSON (a key was expected)")
                    self._position += 1
                    if self._next() == "[" and key == "traceEvents":
                        self._position += 1
                        found = True
                        yield from self._events()
                    else:
                        self.header[key] = self._value()
                self._position += 1
        except EOFError:
            self._fault = self._fault or "the file ends in the middle of the trace"
        except ValueError as error:
            self._fault = str(error)
        if not found:
            raise InputError(self.path, "", self._fault or "there is no list traceEvents", _REMEDY)

    def _events(self) -> Iterator[list[dict]]:
        """Yield batches of events up to the end of the list."""
        self._next()
        if not (key := _FIRST_KEY.match(self._text, self._position)) and self._more():
            key = _FIRST_KEY.match(self._text, self._position)
        # A quoted key behind a brace and a comma cannot be inside a string, where quotes are escaped.
        border = re.compile(rf",\s*\{{\s*{re.escape(key.group(1))}\s*:") if key else None
        while True:
            if border is not None:
                while self._position < len(self._text) or self._more():
                    starts = [match.start() for match in border.finditer(self._text, self._position)]
                    if not starts or len(self._text) - self._position > MAX_VALUE:
                        break
                    batch = self._parsed([self._position, *starts])
                    if batch is None:
                        # Something else than events between the borders: one value after the other.
                        yield from self._singly(starts[-1])
                        if self._closed():
                            return
                    else:
                        self._position = starts[-1]
                        yield batch
                    if not self._more():
                        break
            yield from self._singly(len(self._text))
            if self._closed():
                return

    def _parsed(self, starts: list[int]) -> list[dict] | None:
        text, wanted = self._text, self._wanted
        pieces = [text[start:stop] for start, stop in pairwise(starts) if wanted.search(text, start, stop)]
        joined = "".join(pieces).lstrip(", \n\t\r")
        try:
            return self._kept(json.loads(f"[{joined}]"))
        except (ValueError, RecursionError):
            return None

    def _kept(self, events: list) -> list[dict]:
        return [event for event in events if isinstance(event, dict) and self._keep(event)]

    def _singly(self, stop: int) -> Iterator[list[dict]]:
        """Parse value by value up to `stop` (a place in the text) or the end of the list."""
        last, events, fault = self._before + stop, [], None
        try:
            while self._place < last and self._next() not in ("]", ""):
                events.append(self._value())
        except (EOFError, ValueError) as error:
            fault = error
        # Also when the next event is cut off: those before it are whole.
        yield self._kept(events)
        if fault is not None:
            raise fault

    def _closed(self) -> bool:
        sign = self._next()
        if not sign:
            raise EOFError
        if sign == "]":
            self._position += 1
            return True
        return False
