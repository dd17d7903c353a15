"""Opening and decoding the files of a trace directory, with one clear error if that fails."""

import os
from pathlib import Path
from typing import BinaryIO

from gpuledger.errors import InputError, unreadable

#: No text file of a trace directory is nearly as large.
MAX_TEXT_BYTES = 2**30


def opened(path: Path, remedy: str) -> BinaryIO:
    """Open a regular file for reading bytes."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(path, "", "not a file", remedy)
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise unreadable(path, error, "correct the path or its permissions") from None


def read_bytes(path: Path, remedy: str) -> bytes:
    """Return the content of a text file."""
    with opened(path, remedy) as handle:
        try:
            # Not MAX_TEXT_BYTES: Python asks for memory for as many bytes as may come.
            content = handle.read(min(os.fstat(handle.fileno()).st_size, MAX_TEXT_BYTES) + 1)
        except OSError as error:
            raise unreadable(path, error, "copy it again") from None
    if not content:
        raise InputError(path, "", "the file is empty", remedy)
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(path, "", f"not a text file of a trace directory: more than {MAX_TEXT_BYTES} bytes", remedy)
    return content


def read_lines(path: Path, remedy: str) -> list[str]:
    """Return the lines of a file, separated by line feeds only, without NUL bytes.

    Bytes that are not UTF-8 are dropped: drivers copy names without their terminator, so any byte may follow them.
    """
    text = read_bytes(path, remedy).decode("utf-8", "ignore").removeprefix("\ufeff").replace("\0", "")
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
