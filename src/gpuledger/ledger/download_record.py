"""The record of a dataset's downloaded or simulated files: names, sizes, digests and origins."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuledger import files
from gpuledger.ledger.datasets import Dataset
from gpuledger.ledger.download.entries import expected
from gpuledger.ledger.download.names import matches
from gpuledger.ledger.provenance import describe_file

#: What reading a record raises that is missing or damaged, for instance cut short by hand.
BROKEN = (OSError, ValueError, LookupError, TypeError, RecursionError)


def write(record: str | Path, dataset: Dataset, origins: Mapping[Path, str]) -> None:
    """Write the record of the files that were put into a dataset's folder.

    Parameters
    ----------
    record : path
        The JSON file to write: a list of ``file`` (in the dataset's folder), ``bytes``, ``sha256``, ``origin``.
    origins : mapping
        Where each file comes from, by path.
    """
    described = [describe_file(path, dataset.folder, {"origin": origin}) for path, origin in sorted(origins.items())]
    files.write_json(record, described)


def holds(record: str | Path, dataset: Dataset) -> bool:
    """Whether a record still holds: every file exists, has its recorded size and is not newer than the record."""
    record = Path(record)
    written = record.stat().st_mtime_ns
    try:
        states = [((dataset.folder / name).stat(), size) for name, size in _recorded(record).items()]
    except BROKEN:
        return False
    return all(state.st_size == size and state.st_mtime_ns <= written for state, size in states)


def reason(record: str | Path, written: str | Path, dataset: Dataset | None) -> str:
    """Say why a dataset's files must be made; while the record holds, the last reason, which `written` keeps."""
    if dataset is None or not Path(record).is_file():
        return "no record of them"
    if holds(record, dataset) and Path(written).is_file():
        return Path(written).read_text("utf-8")
    return f"the record of {Path(record).stat().st_mtime_ns} no longer holds"


def others(record: str | Path, dataset: Dataset, paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are neither downloaded nor simulated: by the record, or without one by ``download``."""
    if dataset.made_here:
        return []
    try:
        brought = set(_recorded(record)).__contains__
    except BROKEN:  # it is not there, or no record; then it is made once more
        listed = [name for entry in dataset.content["download"] for name in expected(entry, dataset.folder)]
        brought = lambda name: any(name == one or matches(name, one) for one in listed)  # noqa: E731
    return [path for path in paths if not brought(path.relative_to(dataset.folder).as_posix())]


def _recorded(record: str | Path) -> dict[str, int]:
    return {entry["file"]: entry["bytes"] for entry in json.loads(Path(record).read_text("utf-8"))}
