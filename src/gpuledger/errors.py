"""The one exception that bad input raises."""

from __future__ import annotations

from pathlib import Path


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
        where = f"{self.file}, {place}" if place else self.file
        super().__init__(" ".join(f"{where}: {problem}; {remedy}".split()))

    def __reduce__(self):
        return InputError, (self.file, self.place, self.problem, self.remedy)
