"""What the entries of a ``download:`` list mean: the files that they bring, and where those may be already."""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

from gpuledger import files
from gpuledger.errors import shown
from gpuledger.ledger.download.names import name_fault

#: Where a mirror folder keeps the files of packages.
MIRRORED = "packages"
_PACKAGE = ("package", "version", "file", "sha256", "bytes", "members")


@dataclass(frozen=True)
class Wheel:
    """One file of one version of a package, and the members of it that are wanted."""

    #: As the index names them. The file is a wheel; its name says for which systems and Pythons it is made, so that the
    #: same file is fetched on all of them.
    package: str
    version: str
    file: str
    sha256: str
    size_bytes: int
    members: tuple[str, ...]  # paths inside the wheel; ``*`` and ``?`` stand for letters of one name
    options: tuple[str, ...]  # pip's options that select the file

    @classmethod
    def of(cls, entry: Mapping) -> Self:
        """Read an entry of ``download:``; a ValueError says what the schema of ``dataset.yaml`` leaves open."""
        if missing := [key for key in _PACKAGE if entry.get(key) is None]:
            raise ValueError(f"a package needs `{missing[0]}`")
        package, version, file, sha256, size_bytes, members = (entry[key] for key in _PACKAGE)
        if any(map(name_fault, members)):
            raise ValueError("members is not a list of paths inside the package")
        part = r"[A-Za-z0-9_.+!]+"
        found = re.fullmatch(
            rf"(?P<name>{part})-(?P<version>{part})(-\d[A-Za-z0-9_.]*)?"
            rf"-(?P<python>{part})-(?P<abi>{part})-(?P<platform>{part})\.whl",
            file,
        )
        python = found and re.fullmatch(r"([a-z]{2})(\d)(\d*)", found["python"].split(".")[-1])
        if not python or name_fault(file):
            raise ValueError(f"file {shown(file)} is not the name of a wheel")
        if (_plain(found["name"]), found["version"]) != (_plain(package), version.replace("-", "_")):
            raise ValueError(f"file {shown(file)} is not one of {package} {version}")
        options = ["--implementation", python[1], "--python-version", ".".join(filter(None, python.groups()[1:]))]
        for key in ("abi", "platform"):
            options += [text for tag in found[key].split(".") for text in (f"--{key}", tag)]
        return cls(package, version, file, sha256, size_bytes, tuple(members), tuple(options))

    @property
    def title(self) -> str:
        return f"{self.package} {self.version}"

    def mirrored(self, mirror: Path | None) -> Path | None:
        """Its file in the mirror folder, if it is there."""
        file = mirror and Path(mirror) / MIRRORED / self.file
        return file if file and file.is_file() else None

    def unpacked(self, folder: Path, *, verify: bool = True) -> dict[Path, str] | None:
        """SHA-256 by path of the wanted files, if all of them are in the folder, as far as size and `verify` tell."""
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            listing = json.loads((folder / f"{self.file}.json").read_text("utf-8"))
            if (listing["sha256"], listing["members"]) != (self.sha256, list(self.members)):
                return None
            found = {}
            for name, (size, sha256) in listing["files"].items():
                path = folder / name
                if name_fault(name) or path.stat().st_size != size or (verify and files.sha256(path) != sha256):
                    return None
                found[path] = sha256
            return found or None
        return None


def file_name(entry: dict) -> str:
    """Return the name of an entry's file; a ValueError says what the schema of ``dataset.yaml`` leaves open."""
    if "package" in entry:
        return Wheel.of(entry).file
    name = entry.get("to")
    if name is None:
        name = unquote(entry["url"].partition("#")[0].partition("?")[0].rpartition("/")[2])
    if "/" in name:
        raise ValueError(f"{shown(name)} is not a file name; `to:` names the file")
    if fault := name_fault(name):
        raise ValueError(f"the file name {shown(name)} {fault}; `to:` names the file")
    return name


def expected(entry: dict, folder: Path) -> Iterator[str]:
    """Return what an entry brings into the dataset's folder: names and, for a package, patterns of names.

    The members of a missing or damaged archive are known once it has been downloaded. A wrong entry brings nothing:
    downloading it says what is wrong.
    """
    if "package" in entry:
        yield from entry["members"]
        return
    with suppress(ValueError, OSError, zipfile.BadZipFile):
        yield (name := file_name(entry))
        if entry.get("unpack"):
            with zipfile.ZipFile(folder / name) as archive:
                yield from archive.namelist()


def at_hand(entries: Sequence[Mapping], folder: Path, mirror: str | Path | None = None) -> bool:
    """Whether all that a ``download:`` list names is in the folder or in the mirror, as far as names and sizes tell.

    A wrong entry counts as at hand: fetching it says what is wrong.
    """
    return all(_at_hand(entry, Path(folder), Path(mirror) if mirror else None) for entry in entries)


def _at_hand(entry: Mapping, folder: Path, mirror: Path | None) -> bool:
    try:
        place = folder / file_name(entry)
        if "package" in entry:
            wheel = Wheel.of(entry)
            if wheel.unpacked(folder, verify=False):
                return True
            found = wheel.mirrored(mirror)
        else:
            found = mirror and mirrored(urlsplit(entry["url"]), mirror, pinned=bool(entry.get("sha256")))
    except ValueError:
        return True
    sizes = [path.stat().st_size for path in (place, found) if path and path.is_file()]
    return bool(sizes) and (entry.get("bytes") is None or entry["bytes"] in sizes)


def mirrored(address: SplitResult, mirror: Path, *, pinned: bool) -> Path | None:
    """Where the mirror folder has the file at an address; None if it has not."""
    host, query, names = address.hostname, address.query, []
    for path in dict.fromkeys((unquote(address.path), address.path)):
        names += [f"{host}{path}?{query}"] if query else []
        if not query or pinned:  # queries share a path: only a checksum tells their files apart
            names.append(f"{host}{path}")
    return next((mirror / name for name in names if not name_fault(name) and (mirror / name).is_file()), None)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
