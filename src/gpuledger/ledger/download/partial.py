"""Partial files: one process at a time writes one, and another one can resume it."""

import fcntl
import io
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def note_of(part: Path) -> Path:
    """Where it is noted what a later process needs to resume the partial file."""
    return part.with_name(part.name + ".json")


def _is_at(stream: BinaryIO, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


@contextmanager
def own_part(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open the partial file of *target* for this process alone: others wait, then find what this one left."""
    part, private = target.with_name(target.name + ".part"), False
    while True:
        stream = part.open("a+b")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError:  # this file system has no locks: a partial file of its own, which cannot be resumed
            if stream.tell() == 0:
                part.unlink(missing_ok=True)
            stream.close()
            part, private = target.with_name(f"{target.name}.{uuid.uuid4().hex}.part"), True
            stream = part.open("a+b")
        if private or _is_at(stream, part):
            break
        stream.close()  # while this process waited, the file became the target or was removed
    with stream:
        try:
            yield part, stream
        finally:
            if (private or stream.seek(0, io.SEEK_END) == 0) and _is_at(stream, part):
                part.unlink()
                note_of(part).unlink(missing_ok=True)
