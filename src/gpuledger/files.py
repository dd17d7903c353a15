"""Atomic writes and content digests."""

import csv
import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from gpuledger.errors import REMEDIES, InputError

_PACKAGE = Path(__file__).resolve().parent
#: The checkout; of a library that was installed from a wheel, the folder in it with what commands need of a checkout.
ROOT = _PACKAGE.parents[1] if (_PACKAGE.parents[1] / "resources").is_dir() else _PACKAGE / "checkout"
#: Reference data: GPU data sheets, time constants, models, claims.
RESOURCES = ROOT / "resources"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there when the block succeeds.

    If the block raises, `path` stays as it was and no temporary file remains. The temporary path has the same
    suffix, because writers choose their format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=path.suffix, delete=False) as handle:
        temporary = Path(handle.name)
    try:
        yield temporary
        # NamedTemporaryFile makes private files; results get the permissions that the umask allows.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


#: Free space that a run needs at least; results of the tracked datasets take less.
LEAST_FREE_BYTES = 64 * 2**20


def check_writable(folder: str | Path) -> None:
    """Check that files can be made in a folder, which is made if it is missing."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix="."):
            pass
        if (free := shutil.disk_usage(folder).free) < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"the disk has {free:,} bytes free", str(folder))
    except OSError as error:
        problem = f"no file can be made here ({error.strerror})"
        raise InputError(folder, "", problem, REMEDIES.get(error.errno, "give a folder that can be written")) from None


def write_text(path: str | Path, text: str) -> None:
    """Write `text` atomically, as UTF-8 with Unix line ends."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as JSON with sorted keys, so that equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV with Unix line ends; a cell that a row lacks is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def sha256(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
