"""Timelines alone in a zip archive, as people attach them to issues."""

import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines.table import Timeline

MAGIC = b"PK\x03\x04"
#: Traces shrink to a twentieth.
_MOST_BYTES, _CHUNK = 64 << 30, 1 << 20
_REMEDY = "zip the timeline again, alone, or give it as it is"


def beginning(path: Path, length: int) -> bytes:
    """Return how the file in an archive begins; empty if that cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_member(path, archive)) as file:
            return file.read(length)
    except Exception:  # as below; whoever reads it says what is wrong
        return b""


def read_zipped(path: Path, read: Callable[[Path], Timeline]) -> Timeline:
    """Unpack the only file of an archive into a temporary folder, and read it."""
    with tempfile.TemporaryDirectory(prefix="gpuledger-") as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inner = _unpacked(path, Path(folder))
        try:
            timeline = replace(read(inner), file=path)
        except InputError as error:
            raise InputError(path, error.place, error.problem, error.remedy) from None
    for warning in caught:
        said = str(warning.message).replace(str(inner), str(path))
        warnings.warn(InputWarning(said) if warning.category is InputWarning else warning.message, stacklevel=2)
    return timeline


def _unpacked(path: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as archive:
            member = _member(path, archive)
            inner = folder / f"timeline{PurePosixPath(member.filename).suffix[:20]}"
            with archive.open(member) as source, inner.open("wb") as target:
                _copy(path, source, target)
    except InputError:
        raise
    except Exception as error:  # zipfile and zlib raise a dozen types for damaged data
        raise InputError(path, "", f"the archive is damaged ({error})", _REMEDY) from None
    return inner


def _copy(path: Path, source: BinaryIO, target: BinaryIO) -> None:
    """Copy at most so many bytes; what the archive says of its size may be wrong."""
    left = min(_MOST_BYTES, max(200 * path.stat().st_size, 128 << 20), shutil.disk_usage(target.name).free // 2)
    while chunk := source.read(_CHUNK):
        left -= len(chunk)
        if left < 0:
            raise InputError(path, "", "the archive unpacks to more than fits", "unpack it by hand if that is right")
        target.write(chunk)


def _member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [
        member
        for member in archive.infolist()
        if not member.is_dir() and not member.filename.startswith("__MACOSX/") and ".DS_Store" not in member.filename
    ]
    if len(members) != 1:
        raise InputError(path, "", f"the archive holds {len(members)} files, not one", _REMEDY)
    return members[0]
