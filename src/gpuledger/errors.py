"""What bad input raises, and what unusual input warns of."""

from __future__ import annotations

import warnings
from pathlib import Path

#: Characters of the place and of the problem that a line shows at most.
LONGEST = 450


class InputError(Exception):
    """Bad input, described in one line: file, where in it, what is wrong, what to do.

    Parameters
    ----------
    file : path or str
        The file that holds the bad input.
    place : str
        Where in it, such as ``line 12, column value`` or a key. May be empty.
    problem : str
        What is wrong.
    remedy : str
        What to do about it.
    """

    def __init__(self, file: str | Path, place: str, problem: str, remedy: str):
        self.file, self.place, self.problem, self.remedy = str(file), place, problem, remedy
        super().__init__(_line(file, place, problem, remedy))

    def __reduce__(self):
        return InputError, (self.file, self.place, self.problem, self.remedy)


class InputWarning(UserWarning):
    """Unusual input that is read all the same. A case keeps these in its provenance, and its page shows them."""


def warn(file: str | Path, place: str, problem: str, done: str) -> None:
    """Warn of input that is not as expected but can be used; `done` is what is made of it."""
    warnings.warn(InputWarning(_line(file, place, problem, done)), stacklevel=3)


def _line(file: str | Path, place: str, problem: str, then: str) -> str:
    where = f"{file}, {place}" if place else str(file)
    line = " ".join(f"{_start(where)}: {_start(problem)}; {then}".split())
    # Names from files may hold escape sequences of terminals, or signs that turn the direction of the text.
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)


def _start(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
