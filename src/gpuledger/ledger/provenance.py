"""What numbers are, where they come from, and the words that say so beside every one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuledger import files

#: How each kind of dataset is announced. Simulated numbers never pass for measured ones.
KINDS = {
    "published": "published",
    "recorded": "recorded",
    "simulated": "simulated, not measured",
    "downloaded": "downloaded",
    "local": "recorded on this machine",
}


def label(kind: str, device: str | None = None) -> str:
    """Say in a few words what numbers are: ``published``, ``recorded on NVIDIA H200``, …

    A device is left out for published values, which may come from several, and for simulated ones.
    """
    words = KINDS[kind]
    if device and kind == "local":
        return f"recorded on this machine, {device}"
    if device and kind == "recorded":
        return f"recorded on {device}"
    if device and kind == "downloaded":
        return f"downloaded, recorded on {device}"
    return words


def describe_file(path: Path, root: Path, about: Mapping | None = None) -> dict:
    """Name, size in bytes and SHA-256 of an input, with what the dataset says about it."""
    return {
        "file": path.relative_to(root).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": files.sha256(path),
        **(about or {}),
    }


def sources(record: Mapping) -> str:
    """Where the numbers of a ``provenance.json`` stand: the sources of its files, or else of its dataset."""
    named = dict.fromkeys(entry["source"] for entry in record["inputs"] if "source" in entry)
    return "; ".join(named) or record["source"]


def caption(record: Mapping) -> str:
    """One line for below a figure: what the numbers are and who says so.

    Parameters
    ----------
    record : mapping
        A ``provenance.json``.
    """
    label = record["label"]
    return f"{label[0].upper()}{label[1:]}. {sources(record)}"
