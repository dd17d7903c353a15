"""Datasets: folders in ``traces/`` whose ``dataset.yaml`` says what they are and what they can answer.

A *study* is declared by its entry in ``config/config.yaml``; the entry's ``case`` is the JSON schema of what
a dataset says for one case of it. Strings of format ``file`` or ``folder`` in that schema are paths in the
dataset's folder.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from gpuledger import __version__, files, provenance, schemas
from gpuledger.errors import InputError

#: Names that results/ uses for itself.
RESERVED = frozenset({"tables", "logs", "config", "index.html", "scorecard.html"})
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Dataset:
    """One folder of ``traces/``, described by a valid ``dataset.yaml``.

    Attributes
    ----------
    file : Path
        The ``dataset.yaml``.
    content : mapping
        What it says, checked but for the cases (each is checked when it is opened).
    declarations : mapping
        Every known study's entry of the configuration.
    """

    file: Path
    content: Mapping[str, Any]
    declarations: Mapping[str, Mapping]

    @classmethod
    def load(cls, file: str | Path, declarations: Mapping[str, Mapping]) -> Dataset:
        """Read and check a ``dataset.yaml``.

        Raises
        ------
        InputError
            Missing file, wrong YAML, unknown key (with the nearest known one), unknown study, bad name.
        """
        file = Path(file)
        name = file.parent.name
        if not NAME.fullmatch(name) or name in RESERVED:
            remedy = f"use letters, digits, '.', '_' and '-', and none of {', '.join(sorted(RESERVED))}"
            raise InputError(file, "", f"a dataset cannot be called {name!r}", f"rename the folder: {remedy}")
        content = schemas.load_yaml(file)
        schemas.check(content, schemas.packaged("dataset"), file)
        for study in content["studies"]:
            if study not in declarations:
                remedy = schemas.nearest(study, declarations)
                raise InputError(file, "key studies", f"unknown key '{study}'", remedy)
        return cls(file, content, declarations)

    @property
    def name(self) -> str:
        """The folder's name, which is the dataset's name in ``results/``."""
        return self.file.parent.name

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def label(self) -> str:
        """Say what its numbers are: ``published``, ``recorded on …``, ``simulated, not measured``."""
        return provenance.label(self.content["kind"], self.content.get("device", {}).get("name"))

    def cases(self, study: str | None = None) -> list[tuple[str, str]]:
        """Every (study, case) that the dataset declares, of one study or of all, in order."""
        return [
            (declared, case)
            for declared, cases in self.content["studies"].items()
            if study in (None, declared)
            for case in cases
        ]

    def case(self, study: str, name: str) -> Case:
        """Open one case.

        Raises
        ------
        InputError
            An undeclared case, an unknown or missing key, a path that leaves the dataset's folder.
        """
        declared = self.content["studies"].get(study, {})
        if name not in declared:
            remedy = schemas.nearest(name, declared) if declared else f"declare it under studies.{study}"
            raise InputError(self.file, f"key studies.{study}", f"no case '{name}' is declared", remedy)
        case = Case(self, study, name, declared[name])
        schemas.check(case.inputs, case.schema, self.file, f"studies.{study}.{name}")
        for key, value in case.file_values():
            path = PurePosixPath(value)
            place = f"key studies.{study}.{name}.{key}"
            if not value or re.search(r"[{}\x00-\x1f]", value) or len(value.encode()) > 200:
                remedy = "use at most 200 characters, without braces and control characters"
                raise InputError(self.file, place, f"{value[:60]!r} cannot be a path here", remedy)
            if path.is_absolute() or ".." in path.parts or "\\" in value:
                remedy = "give a path inside the dataset's folder, with forward slashes"
                raise InputError(self.file, place, f"'{value}' leaves the folder", remedy)
        return case


@dataclass(frozen=True)
class Case:
    """One input of one study in one dataset.

    Attributes
    ----------
    dataset : Dataset
    study, name : str
    inputs : mapping
        What the dataset says for it, as in ``dataset.yaml``.
    """

    dataset: Dataset
    study: str
    name: str
    inputs: Mapping[str, Any]

    @cached_property
    def schema(self) -> dict:
        return {
            "type": "object",
            "additionalProperties": False,
            **self.dataset.declarations[self.study]["case"],
        }

    @property
    def knobs(self) -> Mapping[str, Any]:
        """What the configuration sets for the study's reduction."""
        return self.dataset.declarations[self.study].get("knobs", {})

    @property
    def place(self) -> str:
        """Where in ``dataset.yaml`` the case stands."""
        return f"key studies.{self.study}.{self.name}"

    def file_values(self) -> list[tuple[str, str]]:
        """Every (key, path as declared) that is a file or a folder, in the order of the declaration."""
        return [(key, value) for key, value, _ in _path_values(self.inputs, self.schema)]

    def paths(self) -> list[Path]:
        """Every input file, present or not; of a folder, the files that are in it."""
        found = []
        for _, value, kind in _path_values(self.inputs, self.schema):
            path = self.dataset.folder / value
            found += folder_files(path) if kind == "folder" and path.is_dir() else [path]
        return found

    def path(self, key: str) -> Path:
        """Path of the input file or folder `key`.

        Raises
        ------
        InputError
            When the case does not declare it, or it is not there.
        """
        if key not in self.inputs:
            raise InputError(self.dataset.file, self.place, f"the key '{key}' is missing", "add the file's path")
        path = self.dataset.folder / self.inputs[key]
        folder = self.schema.get("properties", {}).get(key, {}).get("format") == "folder"
        if not (path.is_dir() if folder else path.exists()):
            problem = f"the {'folder' if folder else 'file'} {path.as_posix()} does not exist"
            remedy = "put it there, or correct the path"
            raise InputError(self.dataset.file, f"{self.place}.{key}", problem, remedy)
        return path

    def provenance(self) -> dict:
        """Return the case's ``provenance.json``: what its numbers are and the exact files they came from."""
        content = self.dataset.content
        about = content.get("files", {})
        return {
            "dataset": self.dataset.name,
            "study": self.study,
            "case": self.name,
            "title": content["title"],
            "kind": content["kind"],
            "label": self.dataset.label,
            "device": content.get("device"),
            "source": content["source"],
            "license": content["license"],
            "knobs": dict(self.knobs),
            "gpuledger": __version__,
            "inputs": [
                (provenance.describe_file if path.is_file() else _describe_folder)(
                    path, self.dataset.folder, about.get(value)
                )
                for _, value, kind in _path_values(self.inputs, self.schema)
                if (path := self.dataset.folder / value).is_file() or (kind == "folder" and path.is_dir())
            ],
        }


def open_case(file: str | Path, study: str, name: str, declarations: Mapping[str, Mapping]) -> Case:
    """Open one case of the dataset described by `file`; errors as in :class:`Dataset`."""
    return Dataset.load(file, declarations).case(study, name)


def folder_files(folder: Path) -> list[Path]:
    """Every file in a folder and the folders in it, sorted. Links to folders are not followed."""
    found = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if path.is_file())


def _describe_folder(path: Path, root: Path, about: Mapping | None = None) -> dict:
    """Name, number of files, bytes and one SHA-256 of a folder: of the lines ``path size SHA-256`` of its files."""
    lines, size_bytes = [], 0
    for file in folder_files(path):
        size = file.stat().st_size
        size_bytes += size
        lines.append(f"{file.relative_to(path).as_posix()} {size} {files.sha256(file)}\n")
    return {
        "file": path.relative_to(root).as_posix(),
        "files": len(lines),
        "bytes": size_bytes,
        "sha256": hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest(),
        **(about or {}),
    }


def _path_values(value: Any, schema: Mapping, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield key, path as declared, and format of every file and folder."""
    kind = schema.get("format")
    if kind in ("file", "folder") and isinstance(value, str):
        yield key, value, kind
    elif isinstance(value, Mapping):
        for name, part in value.items():
            inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if isinstance(inner, Mapping):
                yield from _path_values(part, inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for position, part in enumerate(value):
            yield from _path_values(part, schema["items"], f"{key}[{position}]")


@dataclass(frozen=True)
class Repository:
    """A checkout: its datasets and what its configuration declares.

    Attributes
    ----------
    root : Path
        The folder with ``Snakefile``, ``config/`` and ``traces/``.
    config : mapping
        The configuration in force.
    """

    root: Path
    config: Mapping[str, Any]

    @classmethod
    def find(cls, start: str | Path = ".") -> Repository:
        """Find the checkout that `start` lies in, with its own ``config/config.yaml``.

        Raises
        ------
        InputError
            When no folder above `start` holds a ``Snakefile`` and ``traces/``.
        """
        start = Path(start).resolve()
        for root in (start, *start.parents):
            if (root / "Snakefile").is_file() and (root / "traces").is_dir():
                return cls(root, schemas.load_yaml(root / "config" / "config.yaml"))
        remedy = "start in a checkout of gpuledger"
        raise InputError(start, "", "no Snakefile and traces/ here or above", remedy)

    @property
    def studies(self) -> Mapping[str, Mapping]:
        return self.config["studies"]

    def dataset_names(self) -> list[str]:
        """Every folder of ``traces/`` with a ``dataset.yaml``, valid or not, that has a possible name; sorted."""
        names = (file.parent.name for file in (self.root / "traces").glob("*/dataset.yaml"))
        return sorted(name for name in names if NAME.fullmatch(name))

    def dataset(self, name: str) -> Dataset:
        """Load one dataset.

        Raises
        ------
        InputError
            When it is not there (the nearest name is given) or not valid.
        """
        file = self.root / "traces" / name / "dataset.yaml"
        if not file.is_file():
            remedy = schemas.nearest(name, self.dataset_names())
            raise InputError(file, "", f"there is no dataset '{name}'", remedy)
        return Dataset.load(file, self.studies)
