"""Datasets: folders in ``traces/`` whose ``dataset.yaml`` says what they are and what they can answer."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from gpuledger import __version__, files, schemas
from gpuledger.errors import InputError
from gpuledger.ledger import provenance
from gpuledger.ledger.download.names import matches
from gpuledger.ledger.study import read_studies

#: Names that results/ uses for itself.
RESERVED = frozenset({"tables", "logs", "index.html", "scorecard.html"})
CONFIG = "config/config.yaml"
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
    """

    file: Path
    content: Mapping[str, Any]

    @classmethod
    def load(cls, file: str | Path) -> Dataset:
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
            if study not in read_studies():
                remedy = schemas.nearest(study, read_studies())
                raise InputError(file, "key studies", f"unknown key '{study}'", remedy)
        return cls(file, content)

    @property
    def name(self) -> str:
        """The folder's name, which is the dataset's name in ``results/``."""
        return self.file.parent.name

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def made_here(self) -> bool:
        """Whether its files are simulated, and so made by this checkout itself."""
        return self.content["kind"] == "simulated"

    @property
    def label(self) -> str:
        """Say what its numbers are: ``published``, ``recorded on …``, ``simulated, not measured``."""
        return provenance.label(self.content["kind"], self.content.get("device", {}).get("name"))

    def about(self, name: str) -> Mapping[str, str]:
        """Return what ``files:`` says of a file: under its own name, else under the first pattern that matches."""
        listed = self.content.get("files", {})
        key = name if name in listed else next((pattern for pattern in listed if matches(name, pattern)), None)
        return listed[key] if key else {}

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
        case.check_paths(self.file, case.place)
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

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON schema of `inputs`, by its study."""
        return read_studies()[self.study].schema

    @property
    def place(self) -> str:
        """Where in ``dataset.yaml`` the case stands."""
        return f"key studies.{self.study}.{self.name}"

    def check_paths(self, file: str | Path, place: str) -> None:
        """Refuse paths that cannot be, or that leave the dataset's folder, as an error in `file` at `place`."""
        for key, value, _ in _path_values(self.inputs, self.schema):
            path = PurePosixPath(value)
            if not value or re.search(r"[{}\x00-\x1f]", value) or len(value.encode()) > 200:
                remedy = "use at most 200 characters, without braces and control characters"
                raise InputError(file, f"{place}.{key}", f"{value[:60]!r} cannot be a path here", remedy)
            if path.is_absolute() or ".." in path.parts or "\\" in value:
                remedy = "give a path inside the dataset's folder, with forward slashes"
                raise InputError(file, f"{place}.{key}", f"'{value}' leaves the folder", remedy)

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

    def declaration(self) -> dict:
        """Return what ``dataset.yaml`` says that the case's results depend on."""
        content = self.dataset.content
        about = {key: value for key, value in content.items() if key not in ("studies", "download", "files")}
        own = {name: self.dataset.about(name) for _, name, _ in _path_values(self.inputs, self.schema)}
        return {**about, "files": {name: said for name, said in own.items() if said}, "case": self.inputs}

    def provenance(self) -> dict:
        """Return the case's ``provenance.json``: what its numbers are and the exact files they came from."""
        content = self.dataset.content
        inputs = [
            (provenance.describe_file if path.is_file() else _describe_folder)(
                path, self.dataset.folder, self.dataset.about(value)
            )
            for _, value, kind in _path_values(self.inputs, self.schema)
            if (path := self.dataset.folder / value).is_file() or (kind == "folder" and path.is_dir())
        ]
        # A dataset of several devices can have cases of one.
        devices = {content.get("device", {}).get("name") or entry.get("device") for entry in inputs}
        return {
            "dataset": self.dataset.name,
            "study": self.study,
            "case": self.name,
            "title": content["title"],
            "kind": content["kind"],
            "label": provenance.label(content["kind"], devices.pop() if len(devices) == 1 else None),
            "device": content.get("device"),
            "source": content["source"],
            "license": content["license"],
            "gpuledger": __version__,
            "inputs": inputs,
        }


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
    """A checkout: its datasets and its configuration.

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

    def check_config(self) -> None:
        """Check that ``knobs`` and ``overrides`` name studies and cases that there are.

        Raises
        ------
        InputError
            With the nearest known name.
        """
        for study in self.config.get("knobs", {}):
            if study not in read_studies():
                raise InputError(CONFIG, "key knobs", f"unknown key '{study}'", schemas.nearest(study, read_studies()))
        for name in self.config.get("overrides", {}):
            dataset, study, case = name.split("/")
            found = self.dataset(dataset)
            known = ["/".join((dataset, *declared)) for declared in found.cases()]
            if (study, case) not in found.cases():
                raise InputError(CONFIG, "key overrides", f"there is no case '{name}'", schemas.nearest(name, known))

    def knobs(self, study: str) -> Mapping[str, Any]:
        """What the configuration sets for the study's reduction."""
        return self.config.get("knobs", {}).get(study, {})

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
        return Dataset.load(file)

    def case(self, dataset: str, study: str, name: str) -> Case:
        """Open one case as the configuration has it: with its ``overrides`` in place of what the dataset declares.

        Raises
        ------
        InputError
            As :meth:`dataset` and :meth:`Dataset.case`; a wrong override.
        """
        case = self.dataset(dataset).case(study, name)
        changed = self.config.get("overrides", {}).get(f"{dataset}/{study}/{name}")
        return case if changed is None else overridden(case, changed)


def overridden(case: Case, changed: Mapping[str, Any]) -> Case:
    """Return the case with some of its keys changed, as ``overrides`` in the configuration asks.

    Raises
    ------
    InputError
        A wrong key or value.
    """
    place = f"overrides.{case.dataset.name}/{case.study}/{case.name}"
    if not isinstance(changed, Mapping):
        remedy = "give keys of the case and their values"
        raise InputError(CONFIG, f"key {place}", f"{changed!r} is not a mapping", remedy)
    inputs = {**case.inputs, **_numbers(changed)}
    schemas.check(inputs, case.schema, CONFIG, place)
    case = replace(case, inputs=inputs)
    case.check_paths(CONFIG, f"key {place}")
    return case


def _numbers(value: Any) -> Any:
    """Make whole numbers of digits: ``snakemake --config`` hands over every value inside a mapping as text."""
    if isinstance(value, Mapping):
        return {key: _numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
