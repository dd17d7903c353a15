"""Fetch files out of a package of the package index, with the index's own client.

The package is a zip file (a wheel) like any other: verified, and only the files that were asked for are unpacked.
Nothing of it is installed, imported or run. Which index is asked, and through which proxy, is up to pip's settings.

``<file>.json`` beside the unpacked files says which they are, so that the package is not fetched again for them.
"""

import errno
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from gpuledger import files
from gpuledger.errors import InputError, shown
from gpuledger.ledger.download.entries import Wheel
from gpuledger.ledger.download.partial import own_part
from gpuledger.ledger.download.transfer import Fetched
from gpuledger.ledger.download.unpack import unpack_zip

log = logging.getLogger(__name__)


def fetch_package(wheel: Wheel, folder: Path, *, mirror: Path | None = None, keep: Collection[Path] = ()) -> Fetched:
    """Unpack the wanted files of a package into *folder*, unless they are there.

    The package comes from the folder, if somebody put it there, from ``<mirror>/packages/``, or from the package
    index. It is removed after unpacking, unless it was there before.

    Parameters
    ----------
    folder : path
        Its members keep their paths below it.
    keep : collection of path
        Files that no member may replace.

    Raises
    ------
    InputError
        The index has no such file or cannot be reached, the file is not what is pinned, a member is missing, or the
        file is not safe to unpack.
    """
    target, done = folder / wheel.file, None
    try:
        if (found := wheel.unpacked(folder)) is None:
            folder.mkdir(parents=True, exist_ok=True)
            # Processes take turns.
            with own_part(target):
                found = wheel.unpacked(folder)
                if found is None:
                    with verified_archive(wheel, target, mirror) as (archive, done):
                        unpacked = unpack_zip(archive, folder, keep=(target, *keep), members=wheel.members)
                        found = {path: files.sha256(path) for path in unpacked}
                    _write_listing(wheel, folder, found)
    except OSError as error:
        problem = f"{shown(error.filename or target)} cannot be read or written ({error.strerror or error})"
        raise InputError(wheel.title, "", problem, "free disk space or correct the permissions") from error
    if done:
        size = sum(path.stat().st_size for path in found)
        log.info("unpacked %d files (%d bytes) of %s from the %s", len(found), size, wheel.file, done)
    source = f"{wheel.title}, {wheel.file}"
    return Fetched(target, source, wheel.sha256, wheel.size_bytes, done or "present", tuple(found), kept=False)


def ask_index(wheel: Wheel, timeout_s: float) -> bool:
    """Whether the package index answers and knows the package."""
    command = [*_pip("index"), "versions", wheel.package, *wheel.options, "--only-binary", ":all:", "--pre"]
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode == 0
    return False


def _pip(command: str) -> list[str]:
    return [sys.executable, "-m", "pip", command, "--disable-pip-version-check", "--no-input", "--no-color"]


def _write_listing(wheel: Wheel, folder: Path, found: Mapping[Path, str]) -> None:
    listed = {path.relative_to(folder).as_posix(): [path.stat().st_size, sha256] for path, sha256 in found.items()}
    about = {"package": wheel.title, "sha256": wheel.sha256, "members": list(wheel.members), "files": listed}
    files.write_json(folder / f"{wheel.file}.json", about)


@contextmanager
def verified_archive(wheel: Wheel, target: Path, mirror: Path | None):
    """Yield the verified wheel and where it comes from."""
    if target.is_file():
        if not (fault := _fault(wheel, target)):
            yield target, "folder"
            return
        log.warning("%s %s: the package index is asked for it", target, fault)
    if file := wheel.mirrored(mirror):
        if fault := _fault(wheel, file):
            remedy = "replace it or remove it from the mirror, or correct the entry"
            raise InputError(file, "", f"the mirror's file {fault}", remedy)
        yield file, "mirror"
        return
    scratch = target.with_name(f"{target.name}.pip")
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    scratch.mkdir()
    try:
        yield _from_index(wheel, scratch, target, mirror), "package index"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fault(wheel: Wheel, file: Path) -> str | None:
    if (size := file.stat().st_size) != wheel.size_bytes:
        return f"has {size} bytes, pinned are {wheel.size_bytes}"
    if (sha256 := files.sha256(file)) != wheel.sha256:
        return f"has sha256 {sha256}, pinned is {wheel.sha256}"
    return None


def _from_index(wheel: Wheel, scratch: Path, target: Path, mirror: Path | None) -> Path:
    if wheel.size_bytes > shutil.disk_usage(scratch).free:
        raise OSError(errno.ENOSPC, f"{wheel.size_bytes} more bytes are needed than the disk has free")
    wanted, said, place = scratch / "requirements.txt", scratch / "pip.log", scratch / "wheel"
    wanted.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n", "utf-8")
    command = [*_pip("download"), "--require-hashes", "--requirement", wanted, "--no-deps", "--only-binary", ":all:"]
    # Nothing is installed, so that it does not matter for which Pythons the package is meant.
    command += [*wheel.options, "--ignore-requires-python", "--progress-bar", "off", "--dest", place]
    # pip 25.1 and newer resume a download that breaks off; older ones ignore the variable.
    environment = {"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": str(scratch)}
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            status = _watch(process, scratch, wheel)
        finally:
            process.kill()
            process.wait()
    if status:
        tried = "no mirror is set" if mirror is None else f"the mirror {shown(mirror)} does not have it"
        problem = f"could not be fetched: {tried}; {_why(said.read_text('utf-8', 'replace'), wheel)}"
        remedy = "check the network, pip's settings and the entry, set `mirror:` (traces/README.md), "
        remedy += f"or put the file by hand at {shown(target)}"
        raise InputError(wheel.title, "", problem, remedy)
    if not (place / wheel.file).is_file():
        others = ", ".join(path.name for path in place.iterdir())
        raise InputError(wheel.title, "", f"the package index gave {shown(others)}", "correct `file`")
    if fault := _fault(wheel, place / wheel.file):
        raise InputError(wheel.title, "", f"the package index's file {fault}", "correct the entry")
    return place / wheel.file


def _watch(process: subprocess.Popen, scratch: Path, wheel: Wheel) -> int:
    """Wait for pip, and show on a terminal how much it has: its own progress bar would need its other output too."""
    with tqdm(total=wheel.size_bytes, unit="B", unit_scale=True, desc=wheel.file, disable=None) as bar:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.2)
            with suppress(OSError):
                sizes = (path.stat().st_size for path in scratch.rglob("*.whl"))
                bar.update(max(0, min(max(sizes, default=0), wheel.size_bytes) - bar.n))


def _why(output: str, wheel: Wheel) -> str:
    """Say in a few words why pip failed."""
    if got := re.search(r"Got\s+([0-9a-f]{64})", output):
        return f"the package index has a file with sha256 {got[1]}, pinned is {wheel.sha256}"
    versions = re.search(r"\(from versions: ([^)]*)\)", output)
    if versions and versions[1] not in ("", "none"):
        return f"the package index has no such file; versions with one for these systems: {shown(versions[1])}"
    if re.search(r"Retrying \(|Could not fetch URL|[Cc]onnection", output):
        return "the package index cannot be reached"
    if versions:
        # An index that is asked only once (PIP_RETRIES=0) and does not answer leaves no other word.
        return "no package index that answers knows the package"
    lines = [line for line in output.splitlines() if line.strip()]
    return f"pip: {shown(lines[-1] if lines else 'it failed without a word')}"
