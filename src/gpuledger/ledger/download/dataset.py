"""Fetch what a dataset.yaml lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from gpuledger.errors import InputError
from gpuledger.ledger.download.names import folded, name_fault, shown
from gpuledger.ledger.download.transfer import Fetched, fetch
from gpuledger.ledger.download.unpack import unpack_zip


def fetch_dataset(entries: list[dict], folder: Path, *, mirror: Path | None = None, source_file: Path) -> list[Fetched]:
    """Fetch and unpack the ``download:`` list of one dataset.yaml, in its order.

    Parameters
    ----------
    entries : list of dict
        ``{url, sha256, bytes, unpack: zip, to: file name}``; all but ``url`` may be missing or null. A file
        is named by ``to``, else by the last part of the address.
    folder, mirror : path
        Where files and members of archives go; the mirror folder, if any.
    source_file : path
        The dataset.yaml, named in errors and never overwritten.

    Returns
    -------
    list of Fetched
        One per entry.

    Raises
    ------
    InputError
        An entry is no good (said before anything is fetched), or cannot be fetched or unpacked.
    """
    folder, source_file = Path(folder), Path(source_file)
    names, taken = [], {folded(source_file): source_file}
    for index, entry in enumerate(entries):
        name, problem = _entry_name(entry)
        paths = [folder / f"{name}{end}" for end in ("", ".part", ".part.json")]
        own = {folded(path): path for path in paths}
        if not problem and own.keys() & taken.keys():
            problem = f"the file name {shown(name)} is taken by another entry or by the dataset's own file"
        if problem:
            remedy = "correct the entry; `to:` names its file"
            raise InputError(source_file, f"download[{index}]", problem, remedy)
        names.append(name)
        taken |= own
    done, keep = [], list(taken.values())
    for index, (entry, name) in enumerate(zip(entries, names, strict=True)):
        pins = {"sha256": entry.get("sha256"), "size_bytes": entry.get("bytes")}
        try:
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


def _entry_name(entry: dict) -> tuple[str, str | None]:
    """Return the file name of an entry, and what is wrong with the entry if anything is."""
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
        return "", "an entry needs a `url`"
    if unknown := sorted(set(map(str, entry)) - {"url", "sha256", "bytes", "unpack", "to"}):
        return "", f"unknown key {shown(unknown[0])}"
    if entry.get("unpack") not in (None, "zip"):
        return "", f"unpack {shown(entry['unpack'])} is not known, only zip is"
    name = entry.get("to")
    if name is None:
        name = unquote(entry["url"].partition("#")[0].partition("?")[0].rpartition("/")[2])
    if not isinstance(name, str) or "/" in name:
        return "", f"{shown(name)} is no file name"
    fault = name_fault(name)
    return name, fault and f"the file name {shown(name)} {fault}"
