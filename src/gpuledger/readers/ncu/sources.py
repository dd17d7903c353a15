"""Read the bytes of a table: from a text file, a compressed one, or a report by means of ``ncu``."""

import codecs
import contextlib
import gzip
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gpuledger.errors import InputError
from gpuledger.readers.colours import without_colours
from gpuledger.readers.ncu.text_pages import csv_of_text

BLOCK_BYTES = 1 << 20
LINE_BYTES = 32 << 20  # no table has longer lines, but a decompression bomb of zeros is one line
UNPACKED_BYTES = 4 << 30
UNPACKED_RATIO = 200  # per compressed byte, above 128 MiB: tables reach about 100, a bomb 1000
NCU_SECONDS = 1800

_REMEDY_ARCHIVE = "compress the CSV again, alone, or read the CSV itself"


def _latin_1(error: UnicodeError) -> tuple[str, int]:
    return error.object[error.start : error.end].decode("latin-1"), error.end


# A program's output may be in any encoding, and Latin-1 locales group digits with byte A0.
codecs.register_error("gpuledger.latin-1", _latin_1)


def byte_blocks(path: str | Path, scaled: bool = False) -> Iterator[bytes]:
    """Read a file of any supported kind as blocks of UTF-8 text, of whole lines except for the last.

    Parameters
    ----------
    path : path or str
        .csv, .txt, .log; the same compressed as .gz, or as the only member of a .zip; or a report (.ncu-rep).
    scaled : bool
        Of a report, what ncu prints in scaled units: six decimals. Base units have whole counts, but two decimals.

    Yields
    ------
    bytes
        About 1 MiB each, without a byte-order mark, with LF line ends.
    """
    with contextlib.ExitStack() as stack:
        try:
            stream, limit = _open(Path(path), stack, scaled)
            yield from csv_of_text(_whole_lines(path, stream, limit))
        except InputError:
            raise
        except OSError as error:
            if error.filename is None:  # about the content, not about opening the file
                raise _damaged(path, error) from error
            raise InputError(path, "", error.strerror or str(error), "check the path and the permissions") from error
        except Exception as error:  # zipfile and zlib raise a dozen types for damaged data
            raise _damaged(path, error) from error


def _damaged(path: str | Path, error: Exception) -> InputError:
    return InputError(path, "", f"the archive is damaged ({error})", "download or copy the file again")


def is_report(path: str | Path) -> bool:
    """Return whether a file is a binary report of ncu."""
    if Path(path).suffix.lower() == ".ncu-rep":
        return True
    with Path(path).open("rb") as file:
        return file.read(4) == b"NVR\0"


def _open(path: Path, stack: contextlib.ExitStack, scaled: bool) -> tuple[BinaryIO, int | None]:
    if is_report(path):
        return _import_report(path, stack, scaled), None
    file = stack.enter_context(path.open("rb"))
    magic = file.read(4)
    file.seek(0)
    limit = min(UNPACKED_BYTES, max(path.stat().st_size * UNPACKED_RATIO, 128 << 20))
    if magic[:2] == b"\x1f\x8b":
        return stack.enter_context(gzip.open(file)), limit
    if magic in (b"PK\3\4", b"PK\5\6"):
        return _open_member(path, stack.enter_context(zipfile.ZipFile(file)), stack), limit
    return file, None


def _open_member(path: Path, archive: zipfile.ZipFile, stack: contextlib.ExitStack) -> BinaryIO:
    members = [
        member
        for member in archive.infolist()
        # macOS adds these.
        if not member.is_dir()
        and not member.filename.startswith("__MACOSX/")
        and PurePosixPath(member.filename).name != ".DS_Store"
    ]
    if len(members) != 1:
        raise InputError(path, "", f"the archive holds {len(members)} files, not one", _REMEDY_ARCHIVE)
    member = members[0]
    name = PurePosixPath(member.filename.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or re.match("[A-Za-z]:", str(name)):
        raise InputError(path, f"member {member.filename!r}", "the name leaves the archive's folder", _REMEDY_ARCHIVE)
    if member.flag_bits & 1:
        raise InputError(path, f"member {member.filename!r}", "the member is encrypted", _REMEDY_ARCHIVE)
    if member.file_size > UNPACKED_BYTES:
        raise _too_large(path, UNPACKED_BYTES)
    return stack.enter_context(archive.open(member))


def _too_large(path: str | Path, limit: int) -> InputError:
    problem = f"the archive unpacks to more than {limit >> 20} MiB"
    return InputError(path, "", problem, "decompress it by hand if that size is right")


def _whole_lines(path: str | Path, stream: BinaryIO, limit: int | None) -> Iterator[bytes]:
    decoder, tail, total, first = None, b"", 0, True
    while True:
        data = stream.read(BLOCK_BYTES)
        total += len(data)
        if limit is not None and total > limit:
            raise _too_large(path, limit)
        last = not data
        if first:
            decoder, first = _utf_16_decoder(data), False
            if data.startswith(b"NVR\0"):
                raise InputError(path, "", "the archive holds a report, not a CSV", "unpack it and give the .ncu-rep")
            data = data.removeprefix(codecs.BOM_UTF8)
        if decoder is not None:  # PowerShell redirects to UTF-16
            data = decoder.decode(data, last).encode("utf-8", "replace")
        if last and not tail and not data:
            return
        data = tail + data
        cut = len(data) if last else data.rfind(b"\n") + 1
        tail = data[cut:]
        if len(tail) > LINE_BYTES:
            raise InputError(path, "", f"a line is longer than {LINE_BYTES >> 20} MiB", "give a CSV of Nsight Compute")
        if cut:
            yield _clean(data[:cut])
        if last:
            return


def _utf_16_decoder(start: bytes) -> codecs.IncrementalDecoder | None:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return codecs.getincrementaldecoder("utf-16")("replace")
    if start[1:4:2] == b"\0\0" and b"\0" not in start[:4:2]:
        return codecs.getincrementaldecoder("utf-16-le")("replace")
    return None


def _clean(block: bytes) -> bytes:
    if not block.isascii():
        block = block.decode("utf-8", "gpuledger.latin-1").encode()
    if b"\r" in block:
        block = re.sub(rb"\r+\n", b"\n", block)
    return without_colours(block)


def _import_report(path: Path, stack: contextlib.ExitStack, scaled: bool) -> BinaryIO:
    """Return the output of ``ncu --import`` in the C locale."""
    program = shutil.which("ncu")
    if program is None:
        raise InputError(
            path,
            "",
            "reading a report needs ncu, and none is on the PATH",
            "install Nsight Compute (reading needs no GPU), or export the report where it is installed: "
            "LC_ALL=C ncu --import REPORT --csv --page raw --print-units base",
        )
    command = [program, "--import", str(path.resolve()), "--csv", "--page", "raw", "--print-units"]
    command.append("auto" if scaled else "base")
    output = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=NCU_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(path, "", f"ncu took more than {NCU_SECONDS} s", "export the report to CSV by hand") from error
    except OSError as error:
        raise InputError(path, "", f"{program} does not start ({error})", "repair its installation") from error
    output.seek(0)
    said = output.read(1 << 16)
    if done.returncode != 0 or b"==ERROR==" in said[: said.find(b'"ID"') + 1 or len(said)]:
        raise _import_failed(path, program, done.returncode, said.decode("utf-8", "replace"))
    output.seek(0)
    return output


def _import_failed(path: Path, program: str, status: int, said: str) -> InputError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    message = (errors or lines or [f"exit status {status}"])[0][:200]
    installed = _version_of(program)
    if re.search(r"version|newer|not supported|unsupported|incompatible|compatib", message, re.IGNORECASE):
        problem = f"the installed ncu{installed} is older than the report ({message})"
        remedy = "install an Nsight Compute at least as new as the one that wrote the report"
    else:
        problem = f"ncu{installed} could not read the report ({message})"
        remedy = "check that the file is complete, and that ncu is at least as new as the one that wrote the report"
    return InputError(path, "", problem, remedy)


def _version_of(program: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        ).stdout
        if match := re.search(rb"Version\s+([0-9.]+)", said):
            return " " + match[1].decode()
    return ""
