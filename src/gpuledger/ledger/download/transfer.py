"""Fetch a file: verified, resumed after an interruption, whole or not at all.

A file that is already there is verified and kept. Otherwise it comes from the mirror folder, or else from the network.
A file in the mirror that differs from its pins is an error: somebody set the mirror on purpose, so either the mirror or
the pin is wrong, and going to the network would hide which. A wrong file in place is only replaced by a right one.

Bytes arrive in ``<file>.part`` (locked: processes take turns; ``<file>.part.json`` holds what a later process
needs to resume) and get their final name when they are complete, verified and on disk.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import SplitResult, urlsplit

import requests
import urllib3
from tqdm import tqdm

from gpuledger.errors import InputError, shown
from gpuledger.ledger.download.entries import mirrored
from gpuledger.ledger.download.partial import note_of, own_part
from gpuledger.ledger.download.session import BLOCK_S, DownloadSession, watched

CHUNK_BYTES = 1 << 18
MAX_FILE_BYTES = 64 * 2**30  # bound of a file whose size is not pinned
MAX_STREAM_BYTES = 2 * 2**30  # bound of one whose size the server does not say either
BACKOFF_S, MAX_PAUSE_S = 0.5, 60
RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
Digest = type(hashlib.sha256())
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fetched:
    """A file that was fetched, and the files unpacked from it."""

    path: Path
    source: str  # its address, or the package that it belongs to
    sha256: str
    size_bytes: int
    origin: str  # where it came from this time: ``present``, ``folder``, ``mirror``, ``network`` or ``package index``
    members: tuple[Path, ...] = ()  # the files unpacked from it
    kept: bool = True  # whether it is part of the dataset itself, beside what was unpacked from it

    @property
    def origins(self) -> dict[Path, str]:
        """Where every file that it brought comes from."""
        own = {self.path: self.source} if self.kept else {}
        return own | dict.fromkeys(self.members, f"{self.source} (member)")


class _FailedError(Exception):
    """Trying again would not help."""


class _BrokenOffError(Exception):
    """Trying again may help, after ``pause`` seconds if the server asked for that."""

    def __init__(self, reason: str, pause: str = ""):
        super().__init__(reason)
        self.pause = int(pause) if re.fullmatch(r"\d{1,9}", pause) else 0


class _StaleError(Exception):
    """The partial file is useless: begin again at zero."""


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size_bytes: int | None = None,
    mirror: Path | None = None,
    timeout_s: float = 30,
    retries: int = 4,
) -> Fetched:
    """Bring the file at *url* to *target*, from there, from the mirror or from the network.

    A progress bar shows on a terminal; a log line says what was fetched in any case.

    Parameters
    ----------
    url : str
        An http or https address.
    target : path
        The final name of the file. Nothing incomplete or wrong is ever put there.
    sha256, size_bytes : str and int, optional
        Pins. Without a pinned checksum any whole file will do, one that is there already too.
    mirror : path, optional
        A folder laid out as ``<host>/<path>``. An address with a query is at ``<host>/<path>?<query>``, or
        without the query when the checksum is pinned.
    timeout_s, retries : float and int
        Longest silence of the server; how often one that breaks off or is busy is tried again, in all.

    Returns
    -------
    Fetched
        With the checksum and size of the file, pinned or not.

    Raises
    ------
    InputError
        The address or a pin is invalid, the file cannot be fetched, or it differs from its pins.
    """
    address, target = _checked_url(url, target), Path(target)
    transfer = _Transfer(url, address, target, sha256 and sha256.lower(), size_bytes, timeout_s)
    try:
        if found := transfer.present():
            return found
        target.parent.mkdir(parents=True, exist_ok=True)
        with own_part(target) as (part, stream):
            transfer.part, transfer.stream = part, stream
            if found := transfer.present():  # another process may have fetched it meanwhile
                return found
            tried = transfer.from_mirror(Path(mirror)) if mirror is not None else "no mirror is set"
            if tried:
                transfer.from_network(tried, retries)
            digest, size = _digest(stream)
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(part, target)
            note_of(part).unlink(missing_ok=True)
    except OSError as error:
        problem = f"{shown(error.filename or target)} cannot be read or written ({error.strerror or error})"
        raise InputError(target, url, problem, "free disk space or correct the permissions") from error
    done = Fetched(target, url, digest.hexdigest(), size, "network" if tried else "mirror")
    log.info("fetched %s from the %s: %d bytes, sha256 %s", target.name, done.origin, size, done.sha256)
    return done


def _checked_url(url: str, file: Path) -> SplitResult:
    try:
        if not isinstance(url, str) or not url.isprintable() or " " in url:
            raise ValueError("is not an address")
        address = urlsplit(url)
        _ = address.port  # reading it checks it
        if address.scheme not in ("http", "https"):
            raise ValueError(f"has the scheme {shown(address.scheme)}")
        if address.username is not None:
            url = f"{address.scheme}://…@{address.hostname}"  # no password in a message
            raise ValueError("holds a user name, which does not belong in a public file")
        if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f]*:[0-9a-f:.]+", address.hostname or ""):
            raise ValueError("has no plain host name (one in other letters is written as xn--…)")
        return address
    except ValueError as error:
        remedy = "give a plain http or https address"
        raise InputError(file, "url", f"{shown(url)}: {error}", remedy) from error


def _digest(stream: BinaryIO) -> tuple[Digest, int]:
    stream.seek(0)
    return hashlib.file_digest(stream, "sha256"), stream.tell()


@dataclass
class _Transfer:
    """One file on its way: where from, where to, what is pinned."""

    url: str
    address: SplitResult
    target: Path
    sha256: str | None
    size: int | None
    timeout_s: float
    part: Path | None = None
    stream: BinaryIO | None = None

    def fault(self, digest: Digest, size: int) -> str | None:
        if self.size not in (None, size):
            return f"has {size} bytes, pinned are {self.size}"
        if self.sha256 not in (None, digest.hexdigest()):
            return f"has sha256 {digest.hexdigest()}, pinned is {self.sha256}"
        return None

    def present(self) -> Fetched | None:
        if not self.target.is_file():
            if self.target.exists():
                raise InputError(self.target, self.url, "something other than a file has this name", "move it away")
            return None
        with self.target.open("rb") as stream:
            digest, size = _digest(stream)
        if fault := self.fault(digest, size):
            log.warning("%s %s: it is fetched again", self.target, fault)
            return None
        return Fetched(self.target, self.url, digest.hexdigest(), size, "present")

    def from_mirror(self, mirror: Path) -> str:
        """Copy the mirror's file; the empty string when that is done, else why there is none."""
        if not mirror.is_dir():
            log.warning("the mirror %s is not a folder", mirror)
            return f"the mirror {shown(mirror)} is not a folder"
        if (file := mirrored(self.address, mirror, pinned=bool(self.sha256))) is None:
            return f"the mirror {shown(mirror)} does not have it"
        with file.open("rb") as source:
            if fault := self.fault(*_digest(source)):
                remedy = "replace it or remove it from the mirror, or correct the pin"
                raise InputError(file, "", f"the mirror's file of {self.url} {fault}", remedy)
            self.empty()
            source.seek(0)
            shutil.copyfileobj(source, self.stream, CHUNK_BYTES)
        if fault := self.fault(*_digest(self.stream)):
            self.empty()
            raise InputError(file, "", f"it changed while it was copied and {fault}", "try again")
        return ""

    def empty(self) -> None:
        self.stream.seek(0)
        self.stream.truncate()
        note_of(self.part).unlink(missing_ok=True)

    def from_network(self, tried: str, retries: int) -> None:
        # urllib3 counts attempts and spaces them; its own loop would not see a body that breaks off.
        budget = urllib3.Retry(total=max(retries, 0), backoff_factor=BACKOFF_S, backoff_max=MAX_PAUSE_S)
        try:
            with DownloadSession() as session:
                while True:
                    try:
                        return self.attempt(session)
                    except _StaleError:
                        self.empty()
                    except _BrokenOffError as error:
                        try:
                            budget = budget.increment("GET", self.url, error=error)
                        except urllib3.exceptions.MaxRetryError:
                            raise _FailedError(f"{error} ({len(budget.history) + 1} attempts)") from error
                        time.sleep(min(error.pause or budget.get_backoff_time(), MAX_PAUSE_S))
        except _FailedError as error:
            problem = f"could not be fetched: {tried}; network: {error}"
            remedy = (
                "check connection, address and pins, set `mirror:` (traces/README.md), or put the file there by hand"
            )
            raise InputError(self.target, self.url, problem, remedy) from error

    def attempt(self, session: requests.Session) -> None:
        """Ask once for what is missing from the partial file and verify the whole."""
        digest, begun = _digest(self.stream)
        if begun and self.sha256 and not self.fault(digest, begun):
            return  # a process ended between the last byte and the final name
        validator = self.noted_validator()
        headers = {"Accept-Encoding": "identity", "User-Agent": "gpuledger"}
        if begun:
            if not (validator or self.sha256) or (self.size is not None and begun >= self.size):
                raise _StaleError
            headers |= {"Range": f"bytes={begun}-"} | ({"If-Range": validator} if validator else {})
        try:
            timeouts = (min(self.timeout_s, 10), self.timeout_s)
            with session.get(self.url, headers=headers, stream=True, timeout=timeouts) as response:
                whole = self.announced(response, begun, validator)
                if response.status_code == 200:  # the first attempt, no ranges here, or the file has changed
                    begun, digest = 0, hashlib.sha256()
                    self.empty()
                    note = json.dumps({"url": self.url, "validator": _validator(response)})
                    note_of(self.part).write_text(note, encoding="utf-8")
                size = self.receive(response, digest, begun, whole)
        except (requests.exceptions.SSLError, UnicodeError) as error:  # a certificate does not heal
            raise _FailedError(_reason(error)) from error
        except (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError) as error:
            raise _BrokenOffError(_reason(error)) from error
        except requests.RequestException as error:
            raise _FailedError(_reason(error)) from error
        if size < (wanted := whole if whole is not None else self.size or 0):
            raise _BrokenOffError(f"the server ended after {size} of {wanted} bytes")
        if fault := self.fault(digest, size):
            self.empty()
            if begun:  # the part from an earlier attempt may be what is wrong
                raise _StaleError
            raise _FailedError(f"what the server sent {fault}")
        if whole is None and self.size is None and self.sha256 is None:
            log.warning("%s: the server gave no length and nothing is pinned: it may be incomplete", self.url)

    def announced(self, response: requests.Response, begun: int, validator: str | None) -> int | None:
        """Judge the head of an answer; return the size of the whole file if it says so."""
        status, whole = response.status_code, response.raw.length_remaining
        hops = [answer.url.lower() for answer in [*response.history, response]]
        if hops[0].startswith("https:") and not self.sha256 and any(hop.startswith("http:") for hop in hops):
            raise _FailedError("it redirects to http; without a pinned sha256 that is not trusted")
        if begun and status in (206, 416):
            pattern = r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)"
            sent = re.fullmatch(pattern, response.headers.get("Content-Range", "")) if status == 206 else None
            changed = validator and _validator(response) not in (None, validator)
            if not sent or int(sent[1]) != begun or changed:
                raise _StaleError
            whole = int(sent[2]) + 1 if sent[3] == "*" else int(sent[3])
        elif status in RETRY_STATUS:
            raise _BrokenOffError(f"the server answered {status}", response.headers.get("Retry-After", ""))
        elif status != 200:
            raise _FailedError(f"the server answered {status} {shown(response.reason)}")
        length = response.headers.get("Content-Length", "0")
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", length):
            raise _FailedError(f"the server says {shown(length)} for the number of bytes")
        if whole is not None and self.size not in (None, whole):
            raise _FailedError(f"the server offers {whole} bytes, pinned are {self.size}")
        if self.size is None and (whole or 0) > MAX_FILE_BYTES:
            raise _FailedError(f"the server offers {whole} bytes; so large a file needs its size pinned")
        return whole

    def receive(self, response: requests.Response, digest: Digest, size: int, whole: int | None) -> int:
        expected = self.size if whole is None else whole
        limit = MAX_STREAM_BYTES if expected is None else expected
        if expected is not None and expected - size > shutil.disk_usage(self.part.parent).free:
            raise OSError(errno.ENOSPC, f"{expected - size} more bytes are needed than the disk has free")
        # None: silent unless the output is a terminal.
        look = {"unit": "B", "unit_scale": True, "desc": self.target.name, "disable": None}
        stream = self.stream
        with tqdm(total=expected, initial=size, **look) as bar, watched(response, stream.tell) as slow:
            for block in response.raw.stream(CHUNK_BYTES, decode_content=False):
                size += len(block)
                if size > limit:
                    self.empty()
                    raise _FailedError(f"the server sends more than {limit} bytes")
                self.stream.write(block)
                digest.update(block)
                bar.update(len(block))
        if slow.is_set():
            raise _BrokenOffError(f"the server sent less than {CHUNK_BYTES} bytes in {BLOCK_S} s")
        return size

    def noted_validator(self) -> str | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(note_of(self.part).read_text(encoding="utf-8"))
            return note["validator"] if note["url"] == self.url else None
        return None


def _validator(response: requests.Response) -> str | None:
    """Return what If-Range may hold: weak tags do not promise the same bytes."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _reason(error: BaseException) -> str:
    """Return the innermost cause of a nested network error in a few words."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), BaseException):
        error = inner
    return f"{type(error).__name__} {shown(str(error).rpartition(': ')[2])}"
