"""Unpack untrusted zip files."""

import errno
import io
import os
import shutil
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from gpuledger.errors import InputError, shown
from gpuledger.ledger.download.names import folded, matches, name_fault

CHUNK_BYTES = 1 << 18
MAX_UNPACKED_BYTES, MAX_MEMBERS = 32 * 2**30, 100_000
#: What is unpacked may be so much larger than the archive, or as large as the second number.
MAX_RATIO, ALWAYS_BYTES = 200, 256 * 2**20
# What zipfile raises at damaged or unsupported input, and what the disk does.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError)


def unpack_zip(
    archive: Path, folder: Path, *, keep: Collection[Path] = (), members: Sequence[str] | None = None
) -> list[Path]:
    """Unpack a zip file into *folder*: all that is wanted of it or, if any member is bad, nothing.

    Links, encrypted members, compression other than deflate, and names that would leave the folder or collide with
    one another (also when case is ignored) are refused, whether they are wanted or not.

    Parameters
    ----------
    archive, folder : path
        The zip file; where its members go, beside or instead of what is there.
    keep : collection of path
        Files that no member may replace. The archive itself is one of them.
    members : sequence of str, optional
        The wanted members: paths, in which ``*`` and ``?`` stand for letters of one name. All by default.

    Raises
    ------
    InputError
        The archive is corrupt or too large, holds a member that is refused, or lacks one that is wanted.
    """
    archive, folder = Path(archive), Path(folder)
    kept = {folded(path) for path in (archive, *keep)}
    try:
        with _BoundedReader(io.FileIO(archive)) as stream:
            stream.limit = 2**16 + 2**10 * MAX_MEMBERS
            with zipfile.ZipFile(stream) as opened:
                found = _checked_members(archive, opened)
                if members is not None:
                    found = _wanted(archive, found, members)
                for name in found:
                    if fault := _place_fault(name, folder, kept):
                        remedy = "rename the member, or what is there"
                        raise InputError(archive, f"member {shown(name)}", fault, remedy)
                _extract(opened, found, folder)
    except ZIP_ERRORS as error:
        problem = f"cannot be unpacked ({type(error).__name__} {shown(error)})"
        remedy = "free disk space, or remove the file so that it is fetched again"
        raise InputError(archive, "", problem, remedy) from error
    return [folder / name for name in found]


class _BoundedReader(io.BufferedReader):
    """A file that refuses large reads: zipfile takes the list of members at once, however long it is."""

    limit = 0

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > self.limit:
            raise zipfile.BadZipFile("the list of members is too long")
        return super().read(size)


def _checked_members(archive: Path, opened: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by name once every member has been found harmless."""
    infos = opened.infolist()
    total = sum(info.file_size for info in infos)
    if len(infos) > MAX_MEMBERS or total > MAX_UNPACKED_BYTES:
        problem = f"{len(infos)} members of {total} bytes in all, more than {MAX_MEMBERS} or {MAX_UNPACKED_BYTES}"
        raise InputError(archive, "", problem, "unpack it by hand if you trust it")
    packed = archive.stat().st_size
    if total > max(MAX_RATIO * packed, ALWAYS_BYTES):
        problem = f"its {packed:,} bytes unpack to {total:,}, more than {MAX_RATIO} times as many"
        raise InputError(archive, "", problem, "unpack it by hand if you trust it")
    files, seen = {}, {}
    for info in infos:
        fault = _member_fault(info)
        name = info.filename.removesuffix("/")
        for depth in range(1, 0 if fault else name.count("/") + 2):  # each folder on the way, then the member
            path = "/".join(name.split("/")[:depth])
            kind = "folder" if path != name or info.is_dir() else "file"
            known = seen.setdefault(unicodedata.normalize("NFC", path.casefold()), (path, kind, info))
            if known[:2] != (path, kind) or (kind == "file" and known[2] is not info):
                fault = f"collides with {shown(known[0])}"
        if fault:
            remedy = "the archive is not safe to unpack: repack it without this member"
            raise InputError(archive, f"member {shown(info.orig_filename)}", fault, remedy)
        if not info.is_dir():
            files[name] = info
    return files


def _wanted(archive: Path, found: dict[str, zipfile.ZipInfo], patterns: Sequence[str]) -> dict[str, zipfile.ZipInfo]:
    for pattern in patterns:
        if not any(matches(name, pattern) for name in found):
            near = get_close_matches(pattern, found, n=1)
            remedy = f"did you mean {shown(near[0])}?" if near else "look up its paths and correct the entry"
            raise InputError(archive, f"member {shown(pattern)}", "the archive has no such member", remedy)
    return {name: info for name, info in found.items() if any(matches(name, pattern) for pattern in patterns)}


def _member_fault(info: zipfile.ZipInfo) -> str | None:
    for name in (info.orig_filename, info.filename):  # zipfile cuts names at NUL
        if fault := name_fault(name.removesuffix("/")):
            return fault
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    if info.is_dir() != (kind == stat.S_IFDIR) and (kind or info.file_size):
        return "is a file and a folder at once"
    if info.flag_bits & 0x41:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others expand without bound
        return "is compressed by another method than deflate"
    return None


def _place_fault(name: str, folder: Path, kept: set[str]) -> str | None:
    place = folder / name
    if folded(place) in kept:
        return "would replace a file of the dataset that is not its own"
    if not place.parent.resolve().is_relative_to(folder.resolve()):
        return "would leave the folder through a link in it"
    above = place.parents[: name.count("/") + 1]
    if place.is_dir() or any(path.exists() and not path.is_dir() for path in above):
        return "a folder is in the place of a file, or a file in that of a folder"
    return None


def _extract(opened: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], folder: Path) -> None:
    """Write the members beside their places, on the same disk, and move them once all are whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = not folder.exists()
    beside = folder.parent if fresh else folder
    need, free = sum(info.file_size for info in members.values()), shutil.disk_usage(beside).free
    if need > free:
        raise OSError(errno.ENOSPC, f"{need} bytes are needed, {free} are free")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".unpacking", dir=beside) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        for name, info in members.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            size = 0
            with opened.open(info) as source, (new / name).open("xb") as sink:
                while block := source.read(CHUNK_BYTES):
                    size += len(block)
                    if size > info.file_size:
                        break
                    sink.write(block)
                sink.flush()
                os.fsync(sink.fileno())
            if size != info.file_size:
                raise zipfile.BadZipFile(f"{name} is not as long as the archive says")
        if fresh:
            with suppress(OSError):  # another process made the folder meanwhile
                os.rename(new, folder)
                return
        for name in members:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(new / name, folder / name)
