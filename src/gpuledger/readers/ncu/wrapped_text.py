"""Text of ncu whose lines a terminal divided at its width, as people copy it: each becomes whole again.

Older versions print tables of 121 columns; a console of 120 puts the last digit of every value into the next line.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain

_DASHES = re.compile(r"\s*-[- ]*$")
_RULE = re.compile(r"\s*-{3,}(?: -{3,}){2,}\s*$")
_TITLE = re.compile(r"\s*Metric Name\s")
#: What cannot be the rest of a line.
_OWN = re.compile(r"$|\s*Section: ")
_DIGITS = re.compile(r"[\s\d.,]*\d$")
#: Of a rule.
_MOST_PIECES = 8
#: Rests that are told by their length alone.
_SHORT = 10


def width_of(lines: list[str]) -> tuple[int, int] | None:
    """Return where lines were divided, and how many columns of a table were left over; None if none was divided.

    Rules tell it: one that was divided is followed by its rest.
    """
    for at, line in enumerate(lines):
        pieces = [line]
        for rest in lines[at + 1 : at + _MOST_PIECES] if "---" in line and _DASHES.match(line) else ():
            if len(pieces[-1]) < len(line) or not _DASHES.match(rest) or len(rest) > len(line):
                break
            pieces.append(rest)
        whole = len(pieces) > 1 and all(map(_RULE.match, pieces[:2])) and len(pieces[1]) == len(line)
        if len(pieces) > 1 and not whole and _RULE.match("".join(pieces)):
            return len(line), sum(map(len, pieces[1:]))
    return None


def unwrapped(blocks: Iterable[bytes], width: int, left: int) -> Iterator[bytes]:
    """Yield blocks of whole lines, as many as before: empty ones follow where the next empty one is.

    Parameters
    ----------
    blocks : iterable of bytes
        UTF-8 text in whole lines.
    width, left : int
        What `width_of` returns.
    """
    whole, last, owed = "", "", 0
    name, end = -1, 0  # where names begin in a table, and where its lines end
    for block in chain(blocks, [b"\n"]):
        out: list[str] = []
        for line in block.decode("utf-8", "replace").removesuffix("\n").split("\n"):
            line = line.rstrip("\r")
            of_table = name >= 0 and line.strip() and not line[: name + 1].strip()
            if (name < 0 or len(whole) < end) and (of_table or _is_rest(line, last, width, left)):
                whole, owed = whole.ljust(-(-len(whole) // width) * width) + line, owed + 1
            else:
                out.append(whole)
                if _RULE.match(whole):
                    name, end = (-1, 0) if name >= 0 else (len(whole) - len(whole.lstrip()), len(whole))
                elif not whole or _TITLE.match(whole):
                    name, end = -1, 0
                out += [""] * owed if not line else []
                whole, owed = line, owed if line else 0
            last = line
        yield "".join(f"{line}\n" for line in out).encode()


def _is_rest(line: str, last: str, width: int, left: int) -> bool:
    """Tell whether a line is the rest of the one above."""
    if _DASHES.match(last) or _DASHES.match(line):
        return bool(_DASHES.match(last) and _DASHES.match(line)) and len(last) == width
    # Blanks at a line's end may be gone, such as those in front of a single digit.
    digits = len(line) <= left < _SHORT and _DIGITS.match(line)
    return not _OWN.match(line) and (len(last) == width or (bool(last.strip()) and bool(digits)))
