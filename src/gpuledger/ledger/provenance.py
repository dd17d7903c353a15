"""What numbers are and where they come from, in the words shown next to them."""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path

from gpuledger import files

#: Kinds whose labels and figures are in colour, and with which their labels begin. A study that predicts says so.
NOT_MEASURED = ("simulated", "predicted")
#: What the numbers of each kind of dataset are called.
KINDS = {
    "published": "published",
    "recorded": "recorded",
    "simulated": "simulated, not measured",
    "downloaded": "downloaded",
    "local": "recorded on this machine",
}


def label(kind: str, device: str | None = None) -> str:
    """Return what numbers are, in a few words: ``published``, ``recorded on NVIDIA H200``, …

    The device is left out for published values, which may come from several, and for simulated ones.
    """
    on = {"local": "recorded on this machine, ", "recorded": "recorded on ", "downloaded": "downloaded, recorded on "}
    return on[kind] + device if device and kind in on else KINDS[kind]


def describe_file(path: Path, root: Path, about: Mapping | None = None) -> dict:
    """Describe an input file: name, size, SHA-256, and what the dataset says about it."""
    return {
        "file": path.relative_to(root).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": files.sha256(path),
        **(about or {}),
    }


#: GPUs that a caption lists by name.
_MOST_NAMES = 12


def describe_data_sheets(gpus: Iterable, folder: Path) -> list[dict]:
    """Describe the tables that GPUs were read from: the built-in one, or a user's own in the dataset's `folder`."""
    titles: dict[Path, list[str]] = {}
    for gpu in gpus:
        titles.setdefault(gpu.file, []).append(gpu.title)
    rows = []
    for table, names in titles.items():
        root = folder if table.is_relative_to(folder) else files.ROOT
        said = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} GPUs"
        about = {"source": f"data sheets of {said} ({table.relative_to(root).as_posix()})"}
        rows.append(describe_file(table, root, about))
    return rows


def sources(record: Mapping) -> str:
    """Return the sources that a ``provenance.json`` names: those of its files, or else of its dataset.

    What a source and the one before it begin with, up to a comma, is said once.
    """
    named = list(dict.fromkeys(entry["source"] for entry in record["inputs"] if "source" in entry))
    words, before = "", []
    for source in named:
        parts = source.split(", ")
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, parts[:-1], strict=False)))
        words += (", " if same else "; ") + ", ".join(parts[same:])
        before = parts
    return words[2:] or record["source"]


def caption_parts(record: Mapping) -> tuple[str, str]:
    """Return the sentence that says what numbers are, and after it their sources and warnings about the input."""
    label, warnings = record["label"], record.get("warnings", [])
    words = sources(record)
    if warnings:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        words += f". Warning: {warnings[0]}{more}"
    words = f"D{words[1:]}" if words.startswith("data sheets") else words
    return f"{label[0].upper()}{label[1:]}.", words


def caption(record: Mapping) -> str:
    """Return the line below a figure: what its numbers are, where they come from, and warnings about the input."""
    return " ".join(caption_parts(record))
