"""What bad input raises, and what unusual input warns of."""

import errno
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Characters of a line, and of the place and of the problem in it, at most; of these two in a line that is too long.
LONGEST_LINE, LONGEST, SHORTER = 1000, 450, 200

#: Control characters but tabs and line ends, and signs that hide text or turn its direction.
HIDDEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(value: Any) -> Any:
    """Write `HIDDEN` characters as escapes such as ``\\u202e``, in a text or in the texts of mappings and lists."""
    if isinstance(value, str):
        return HIDDEN.sub(lambda sign: sign[0].encode("unicode_escape").decode(), value)
    if isinstance(value, Mapping):
        return {visible(key): visible(inner) for key, inner in value.items()}
    return [visible(inner) for inner in value] if isinstance(value, list) else value


def shown(name: object) -> str:
    """Return *name* as messages show it: quoted, escaped, not too long."""
    text = repr(str(name))
    return text if len(text) <= 300 else f"{text[:200]}…{text[-80:]}"


class InputError(Exception):
    """Bad input, described in one line: file, where in it, what is wrong, what to do.

    Parameters
    ----------
    file : path or str
        The file that holds the bad input.
    place : str
        Where in it, such as ``line 12, column value`` or a key. May be empty.
    """

    def __init__(self, file: str | Path, place: str, problem: str, remedy: str):
        self.file, self.place, self.problem, self.remedy = str(file), place, problem, remedy
        super().__init__(_line(file, place, problem, remedy))

    def __reduce__(self):
        return InputError, (self.file, self.place, self.problem, self.remedy)


#: What to do when the machine, not the input, is at fault.
REMEDIES = {
    errno.ENOSPC: "free disk space, and run the same command again",
    errno.EDQUOT: "free disk space of your quota, and run the same command again",
    errno.EROFS: "work in a folder that can be written",
    errno.EACCES: "correct the permissions, or work in a folder of your own",
    errno.EPERM: "correct the permissions, or work in a folder of your own",
}


def of_the_machine(error: OSError) -> InputError:
    """Describe a full disk or a folder that cannot be written in one line; `error` is one of `REMEDIES`."""
    return InputError(error.filename or "this folder", "", error.strerror or str(error), REMEDIES[error.errno])


def unreadable(file: str | Path, error: Exception, remedy: str) -> InputError:
    """Describe a file that is missing or, with its `remedy`, cannot be read, as `error` has it."""
    if isinstance(error, FileNotFoundError):
        return InputError(file, "", "the file does not exist", "put it there, or correct the path")
    return InputError(file, "", f"cannot be read ({error})", remedy)


class InputWarning(UserWarning):
    """Unusual input that is read all the same. A case keeps these in its provenance, and its page shows them."""


def warn(file: str | Path, place: str, problem: str, done: str) -> None:
    """Warn of input that is not as expected but can be used; `done` is what is made of it."""
    warnings.warn(InputWarning(_line(file, place, problem, done)), stacklevel=3)


def _line(file: str | Path, place: str, problem: str, then: str) -> str:
    where = f"{file}, {place}" if place else str(file)
    line = _joined(where, problem, then, LONGEST)
    # The remedy is worth more than the rest of what is wrong.
    return line if len(line) <= LONGEST_LINE else f"{_joined(where, problem, then, SHORTER)[: LONGEST_LINE - 1]}…"


def _joined(where: str, problem: str, then: str, longest: int) -> str:
    where, problem = (text if len(text) <= longest else f"{text[:longest]}…" for text in (where, problem))
    line = " ".join(f"{where}: {problem}; {then[:LONGEST_LINE]}".split())
    # Names from files may hold escape sequences of terminals, or signs that turn the direction of the text.
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)
