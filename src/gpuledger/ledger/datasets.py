"""Datasets: folders in ``traces/`` whose ``dataset.yaml`` declares sources and cases."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Self

from gpuledger import __version__, files, schemas
from gpuledger.errors import HIDDEN, InputError, visible
from gpuledger.ledger import provenance
from gpuledger.ledger.download.names import matches
from gpuledger.ledger.study import read_studies

#: Names that results/ uses for itself.
RESERVED = frozenset({"tables", "logs", "docs", "paper", "index.html", "scorecard.html"})
CONFIG = "config/config.yaml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Dataset:
    """One folder of ``traces/``, described by a valid ``dataset.yaml``."""

    file: Path  # the ``dataset.yaml``
    content: Mapping[str, Any]  # what it says. Each case is only validated when it is opened.

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read and validate a ``dataset.yaml``."""
        file = Path(file)
        name = file.parent.name
        if not NAME.fullmatch(name) or name in RESERVED:
            remedy = f"use letters, digits, '.', '_' and '-', and none of {', '.join(sorted(RESERVED))}"
            raise InputError(file, "", f"a dataset cannot be called {name!r}", f"rename the folder: {remedy}")
        content = visible(schemas.load_yaml(file))
        schemas.check(content, schemas.packaged(__package__, "dataset"), file)
        for study in content["studies"]:
            if study not in read_studies():
                raise InputError(file, "key studies", f"unknown key '{study}'", schemas.nearest(study, read_studies()))
        return cls(file, content)

    @property
    def name(self) -> str:
        """The folder's name, also used in ``results/``."""
        return self.file.parent.name

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def made_here(self) -> bool:
        """Whether its files are simulated, so that the workflow makes them itself."""
        return self.content["kind"] == "simulated"

    @property
    def label(self) -> str:
        """What its numbers are: ``published``, ``recorded on …``, ``simulated, not measured``."""
        return provenance.label(self.content["kind"], self.content.get("device", {}).get("name"))

    def about(self, name: str) -> Mapping[str, str]:
        """Return what ``files:`` says of a file: under its own name, else under the first pattern that matches."""
        listed = self.content.get("files", {})
        key = name if name in listed else next((pattern for pattern in listed if matches(name, pattern)), None)
        return listed[key] if key else {}

    def cases(self, study: str | None = None) -> list[tuple[str, str]]:
        """Return every declared (study, case), of one study or of all, in the order of the file."""
        return [
            (declared, case)
            for declared, cases in self.content["studies"].items()
            if study in (None, declared)
            for case in cases
        ]

    def case(self, study: str, name: str) -> Case:
        """Open one case."""
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
    """One input of one study in one dataset."""

    dataset: Dataset
    study: str
    name: str
    inputs: Mapping[str, Any]  # what ``dataset.yaml`` says of it

    @property
    def schema(self) -> Mapping[str, Any]:
        """The study's JSON schema of `inputs`."""
        return read_studies()[self.study].schema

    @property
    def place(self) -> str:
        """Where ``dataset.yaml`` declares the case."""
        return f"key studies.{self.study}.{self.name}"

    def error(self, key: str, problem: str, remedy: str) -> InputError:
        """Return an error in what ``dataset.yaml`` says of the case under `key`, or in all of it."""
        return InputError(self.dataset.file, f"{self.place}.{key}" if key else self.place, problem, remedy)

    def check_paths(self, file: str | Path, place: str) -> None:
        """Refuse impossible paths, paths outside the dataset's folder and pipes, as errors in `file` at `place`."""
        for key, value, _ in _path_values(self.inputs, self.schema):
            path = PurePosixPath(value)
            odd = re.search(r"[{}\x00-\x1f]", value) or HIDDEN.search(value)
            if not value or odd or len(value.encode()) > 200:
                remedy = "use at most 200 bytes of UTF-8, without braces and control characters"
                raise InputError(file, f"{place}.{key}", f"{value[:60]!r} cannot be a path here", remedy)
            if path.is_absolute() or ".." in path.parts or "\\" in value:
                remedy = "give a path inside the dataset's folder, with forward slashes"
                raise InputError(file, f"{place}.{key}", f"'{value}' leaves the folder", remedy)
            found = self.dataset.folder / value
            # It would be read for ever.
            if found.exists() and not (found.is_file() or found.is_dir()):
                problem = f"'{value}' is a pipe or a device"
                raise InputError(file, f"{place}.{key}", problem, "save what it gives as a file")

    def paths(self) -> list[Path]:
        """Return every input file, present or not; for a folder, the files in it."""
        found = []
        for name, kind in self.files():
            path = self.dataset.folder / name
            found += folder_files(path) if kind != "file" and path.is_dir() else [path]
        return found

    def beside(self, key: str, name: str) -> Path | None:
        """Return the file called `name` that belongs to the input `key` without being declared, or None.

        It lies in a declared folder, in the folder of a declared file, or above that one if it is called ``result``.
        The schema of the input lists such names under ``beside``.
        """
        return _beside(self.dataset.folder / self.inputs[key], name)

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield name and format of every input, and of the files beside declared files."""
        declared = [(value, schema) for _, value, schema in _path_values(self.inputs, self.schema)]
        yield from ((value, schema["format"]) for value, schema in declared)
        known = {value for value, _ in declared}
        for value, schema in declared:
            path = self.dataset.folder / value
            found = (_beside(path, name) for name in schema.get("beside", ()) if path.is_file())
            names = {file.relative_to(self.dataset.folder).as_posix() for file in found if file}
            yield from ((name, "file") for name in sorted(names - known))
            known |= names

    def path(self, key: str) -> Path:
        """Return the path of the input file or folder `key`."""
        if key not in self.inputs:
            raise self.error("", f"the key '{key}' is missing", "add the file's path")
        kind = self.schema.get("properties", {}).get(key, {}).get("format")
        return self.present(self.inputs[key], key, "folder" if kind == "folder" else "file")

    def present(self, name: str, key: str, kind: str = "file") -> Path:
        """Return the path of a file or folder that `key` names."""
        path = self.dataset.folder / name
        if not (path.is_dir() if kind == "folder" else path.exists()):
            raise self.error(key, f"the {kind} {path.as_posix()} does not exist", "put it there, or correct the path")
        return path

    def declaration(self) -> dict:
        """Return the part of ``dataset.yaml`` that the case's results depend on."""
        content = self.dataset.content
        about = {key: value for key, value in content.items() if key not in ("studies", "download", "files")}
        own = {name: self.dataset.about(name) for _, name, _ in _path_values(self.inputs, self.schema)}
        return {**about, "files": {name: said for name, said in own.items() if said}, "case": self.inputs}

    @property
    def label(self) -> str:
        """What the numbers in its files are; a dataset of several devices can have cases of one."""
        content = self.dataset.content
        own = content.get("device", {}).get("name")
        declared = {value for _, value, _ in _path_values(self.inputs, self.schema)}
        devices = {own or self.dataset.about(name).get("device") for name, _ in self._present() if name in declared}
        return provenance.label(content["kind"], devices.pop() if len(devices) == 1 else None)

    def _present(self) -> Iterator[tuple[str, Path]]:
        """Yield every input file or folder that exists, and files beside them: name in the dataset's folder, path."""
        for name, kind in self.files():
            path = self.dataset.folder / name
            if path.is_file() or (kind != "file" and path.is_dir()):
                yield name, path

    def provenance(self) -> dict:
        """Return the content of ``provenance.json``: what the case's numbers are, and which files they come from."""
        content = self.dataset.content
        inputs = []
        for name, path in self._present():
            describe = provenance.describe_file if path.is_file() else _describe_folder
            inputs.append(describe(path, self.dataset.folder, self.dataset.about(name)))
        return {
            "dataset": self.dataset.name,
            "study": self.study,
            "case": self.name,
            "title": content["title"],
            "kind": content["kind"],
            "label": self.label,
            "device": content.get("device"),
            "source": content["source"],
            "license": content["license"],
            "gpuledger": __version__,
            "inputs": inputs,
        }


def _beside(path: Path, name: str) -> Path | None:
    folders = [path] if path.is_dir() else [path.parent, path.parent.parent][: 1 + (path.parent.name == "result")]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def folder_files(folder: Path) -> list[Path]:
    """List every file in a folder and its subfolders, sorted. Links to folders are not followed."""
    found = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if path.is_file())


def _describe_folder(path: Path, root: Path, about: Mapping | None = None) -> dict:
    """Describe a folder: name, number of files, bytes, and a SHA-256 of its files' lines ``path size SHA-256``."""
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


def _path_values(value: Any, schema: Mapping, key: str = "") -> Iterator[tuple[str, str, Mapping]]:
    """Yield the key, declared path and schema of every file and folder in `value`.

    The format ``path`` is that of a file or a folder.
    """
    if schema.get("format") in ("file", "folder", "path") and isinstance(value, str):
        yield key, value, schema
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
    """A checkout: its datasets and its configuration."""

    root: Path  # the folder with ``Snakefile``, ``config/`` and ``traces/``
    config: Mapping[str, Any]  # its configuration, with what the command line changes

    @classmethod
    def find(cls, start: str | Path = ".") -> Self:
        """Find the checkout that `start` lies in, with its own ``config/config.yaml``."""
        start = Path(start).resolve()
        for root in (start, *start.parents):
            if (root / "Snakefile").is_file() and (root / "traces").is_dir():
                return cls(root, schemas.load_yaml(root / "config" / "config.yaml"))
        raise InputError(start, "", "no Snakefile and traces/ here or above", "start in a checkout of gpuledger")

    def check_config(self) -> None:
        """Check that the studies and cases in ``knobs`` and ``overrides`` exist."""
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
        """Return what the configuration sets for the study's reduction."""
        return _typed(self.config.get("knobs", {}).get(study, {}))

    def dataset_names(self) -> list[str]:
        """List the folders of ``traces/`` that hold a ``dataset.yaml``, valid or not; sorted."""
        names = (file.parent.name for file in (self.root / "traces").glob("*/dataset.yaml"))
        return sorted(name for name in names if NAME.fullmatch(name))

    def dataset(self, name: str) -> Dataset:
        """Load one dataset."""
        file = self.root / "traces" / name / "dataset.yaml"
        if not file.is_file():
            raise InputError(file, "", f"there is no dataset '{name}'", schemas.nearest(name, self.dataset_names()))
        found = file.stat()
        return _loaded(file, found.st_mtime_ns, found.st_size)

    def case(self, dataset: str, study: str, name: str) -> Case:
        """Open one case, with the configuration's ``overrides`` of what the dataset declares."""
        case = self.dataset(dataset).case(study, name)
        changed = self.config.get("overrides", {}).get(f"{dataset}/{study}/{name}")
        return case if changed is None else overridden(case, changed)


@lru_cache
def _loaded(file: Path, _modified_ns: int, _size: int) -> Dataset:
    """Load a dataset once, however many of its cases the workflow asks about."""
    return Dataset.load(file)


def overridden(case: Case, changed: Mapping[str, Any]) -> Case:
    """Return the case with the keys changed that ``overrides`` in the configuration gives."""
    place = f"overrides.{case.dataset.name}/{case.study}/{case.name}"
    inputs = {**case.inputs, **_typed(changed)}
    schemas.check(inputs, case.schema, CONFIG, place)
    case = replace(case, inputs=inputs)
    case.check_paths(CONFIG, f"key {place}")
    return case


def _typed(value: Any) -> Any:
    """Convert texts to numbers and truth values: ``snakemake --config`` passes all values inside a mapping as text."""
    if isinstance(value, Mapping):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    number = re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", value)
    return float(value) if number else {"true": True, "false": False}.get(value, value)
