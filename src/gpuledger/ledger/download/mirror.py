"""Collect what datasets download in a mirror folder, for machines without a network.

    python -m gpuledger.ledger.download.mirror FOLDER [DATASET ...]

Without names, of the datasets that config.yaml makes. What is in the folder already is verified and kept.
"""

import argparse
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Repository
from gpuledger.ledger.download.entries import MIRRORED, Wheel, file_name, name_fault
from gpuledger.ledger.download.package import verified_archive
from gpuledger.ledger.download.transfer import fetch


def fill(mirror: Path, entries: Sequence[Mapping], source_file: Path) -> list[Path]:
    """Put the files of a ``download:`` list where `fetch_dataset` looks for them in a mirror.

    Parameters
    ----------
    entries : sequence of mapping
        See `gpuledger.ledger.download.dataset.fetch_dataset`.
    source_file : path
        The dataset.yaml, named in errors.
    """
    done = []
    for index, entry in enumerate(entries):
        try:
            file_name(entry)
            target = Path(mirror, _place(entry))
        except ValueError as error:
            raise InputError(source_file, f"download[{index}]", str(error), "correct the entry") from None
        target.parent.mkdir(parents=True, exist_ok=True)
        if "package" in entry:
            with verified_archive(Wheel.of(entry), target, None) as (archive, _):
                if archive != target:
                    with files.replacing(target) as temporary:
                        shutil.move(archive, temporary)
        else:
            fetch(entry["url"], target, sha256=entry.get("sha256"), size_bytes=entry.get("bytes"))
        done.append(target)
    return done


def _place(entry: Mapping) -> str:
    if "package" in entry:
        return f"{MIRRORED}/{entry['file']}"
    address = urlsplit(entry["url"])
    # Queries share a path; where a checksum tells their files apart, the path is enough.
    query = f"?{address.query}" if address.query and not entry.get("sha256") else ""
    place = f"{address.hostname}{unquote(address.path)}{query}"
    if fault := name_fault(place):
        raise ValueError(f"the address's path {fault}")
    return place


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill a mirror, say what is in it, and return an exit status: 0, or 2 if a dataset is not complete."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("dataset", nargs="*")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    repository, status = Repository.find(), 0
    config = repository.config
    for name in options.dataset or [*config["datasets"], *config.get("datasets_online", [])]:
        try:
            dataset = repository.dataset(name)
            done = fill(options.folder, dataset.content.get("download", []), dataset.file)
            print(f"{name}: {len(done)} files, {sum(path.stat().st_size for path in done) / 1e6:,.1f} MB")
        except InputError as error:
            # The others may do without it.
            print(error, file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    sys.exit(main())
