"""``gpuledger new-dataset`` and ``new-study``: drafts to go on from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.terminal import say
from gpuledger.errors import InputError

if TYPE_CHECKING:
    from gpuledger.cli.found import Found
    from gpuledger.readers.gpus import Gpu

PLACES = {
    "study.yaml": "src/gpuledger/studies/{name}/study.yaml",
    "__init__.py": "src/gpuledger/studies/{name}/__init__.py",
    "reduction.py": "src/gpuledger/studies/{name}/reduction.py",
    "figures.py": "src/gpuledger/studies/{name}/figures.py",
    "notebook.py": "notebooks/{name}.ipynb",
    "claims.yaml": "resources/claims/{name}.yaml",
    "test.py": "tests/studies/test_{name}.py",
}


def as_yaml(content: object) -> str:
    """Return YAML in the order of the content; a value that is left to fill in becomes ``null``, with a comment."""
    import yaml

    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return re.sub(r"^( *(?:- )?\w+: null)$", r"\1  # fill it in", text, flags=re.MULTILINE)


@click.command(
    "new-dataset",
    short_help="Draft a dataset.yaml.",
    epilog="Example: gpuledger new-dataset traces/my_run --gpu h100-sxm",
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--gpu", help="GPU that the files were recorded on, where a study needs to know it.")
def new_dataset(folder: Path, gpu: str | None) -> None:
    """Draft FOLDER/dataset.yaml by looking at the files in FOLDER."""
    from gpuledger import files
    from gpuledger.cli.recognise import recognise
    from gpuledger.ledger.datasets import NAME, Dataset
    from gpuledger.readers.gpus import find_gpu

    target = folder / "dataset.yaml"
    if not folder.is_dir():
        raise InputError(folder, "", "there is no such folder", "make one, and put the files into it")
    if target.exists():
        raise InputError(target, "", "it is there already", "remove it, or add to it by hand")
    name = folder.resolve().name
    if not NAME.fullmatch(name):
        remedy = "rename the folder: letters, digits, '.', '_' and '-'"
        raise InputError(folder, "", f"a dataset cannot be called {name!r}", remedy)
    device = find_gpu(gpu, file="command line", place="--gpu") if gpu else None
    entries = recognise(folder)
    named = {entry.device for entry in entries if entry.studies}
    title = device.title if device is not None else named.pop() if len(named) == 1 else ""
    if not title and len(named := named - {""}) == 1:
        say(f"some files name the GPU {named.pop()}: give --gpu if all were recorded on it", err=True)
    content: dict[str, Any] = {"title": name, "kind": "recorded", **({"device": {"name": title}} if title else {})}
    content |= {"source": "source not stated", "license": "not stated", "studies": {}}
    studies = _declare(entries, content, target, device)
    if not studies:
        raise InputError(folder, "", "no case can be made of its files", "see above, and gpuledger inspect FOLDER")
    files.write_text(target, as_yaml(content))
    try:
        Dataset.load(target.absolute())
    except InputError:
        target.unlink()
        raise
    say(target)
    say("write title, source and license into it: figures and pages name the source", err=True)
    left = {(study, case): _left(inputs) for study, cases in studies.items() for case, inputs in cases.items()}
    for (study, case), keys in left.items():
        for key in keys:
            say(f"fill in studies.{study}.{case}.{key}: the file does not say it", err=True)
    if folder.resolve().parent.name == "traces":
        study, case = min(left, key=lambda case: len(left[case]))
        when = "when that is filled in" if left[study, case] else "for example"
        say(f"next, {when}: snakemake --cores 4 results/{name}/{study}/{case}/notebook.html", err=True)


def _declare(entries: list[Found], content: dict[str, Any], target: Path, device: Gpu | None) -> dict[str, Any]:
    """Add a case for each file that a study can use to a draft of `target`; say what is left out or assumed."""
    from gpuledger import schemas
    from gpuledger.cli.unread import OTHER
    from gpuledger.ledger.datasets import Case, Dataset
    from gpuledger.ledger.study import read_studies

    studies = content["studies"]
    for entry in entries:
        place = entry.path.relative_to(target.parent)
        if not entry.studies:
            reason = "".join(f" ({problem})" for problem in entry.problems[:1] if problem != OTHER)
            say(f"left out {place}: {entry.format}{reason}", err=True)
        elif entry.problems:
            say(f"look at {place}: {entry.problems[0].removeprefix(f'{entry.path}: ')}", err=True)
        for study in entry.studies:
            inputs = _complete(entry.cases[study], place, entry.path.is_dir(), device.name if device else None)
            if inputs is None:
                say(f"left out {place} of {study}: say on which GPU it was recorded (--gpu)", err=True)
                continue
            try:
                Case(Dataset(target.absolute(), content), study, "draft", inputs).check_paths(target, "")
            except InputError:
                problem = "a dataset.yaml cannot hold this path; rename it: at most 200 bytes of UTF-8"
                say(f"left out {str(place)[:60]!r}: {problem}, without {{ }} \\ and control characters", err=True)
                break
            try:
                # What is left to fill in is checked when it is there.
                if not _left(inputs):
                    schemas.check(inputs, read_studies()[study].schema, entry.path)
            except InputError as error:
                say(f"left out {place} of {study}: {error.place}: {error.problem}", err=True)
                continue
            cases = studies.setdefault(study, {})
            # Llama-3.1-8B.json is a case Llama_3_1_8B, report.csv.gz a case report.
            cases[_unused(re.sub(r"(\.[A-Za-z][\w-]*)+$", "", place.name), cases)] = inputs
            if "hardware" in inputs and device is None:
                say(f"look at {place}: predicted for {inputs['hardware'][0]}, no GPU is named (--gpu)", err=True)
            if inputs.get("unit") == "ms":
                say(f"look at {place}: its times are taken to be in ms; correct unit: if they are not", err=True)
    if "serving_time" in studies:
        _join(studies["serving_time"], [entry.path.relative_to(target.parent) for entry in entries])
    return studies


def _join(cases: dict[str, Any], places: list[Path]) -> None:
    """Make one case of each folder that holds nothing but results of a server's benchmark, all of one deployment."""
    folders: dict[Path, list[str]] = {}
    for name, inputs in cases.items():
        for entry in inputs.get("results", []):
            folders.setdefault(Path(entry["files"]).parent, []).append(name)
    for folder, names in folders.items():
        declared = [{**cases[name], "results": [cases[name]["results"][0] | {"files": f"{folder}/"}]} for name in names]
        others = sum(folder in place.parents for place in places) - len(names)
        if folder.name and len(names) > 1 and not others and declared.count(declared[0]) == len(names):
            for name in names:
                del cases[name]
            cases[_unused(folder.name, cases)] = declared[0]


def _complete(inputs: dict[str, Any], place: Path, is_folder: bool, gpu: str | None) -> dict[str, Any] | None:
    """Return a case's inputs with paths from the dataset's folder; None if neither the file nor the user says the GPU.

    Other values that are not known stay None.
    """
    inside = place if is_folder else place.parent
    done = {}
    for key, value in inputs.items():
        if key == "gpu":
            value = value or gpu  # what the file says goes first
            if value is None:
                return None
        elif key == "hardware" and gpu:
            value = [gpu]
        elif isinstance(value, str) and (is_folder or value == place.name):
            value = (inside / value).as_posix()
        elif key == "results":
            value = [{**entry, "files": (inside / entry["files"]).as_posix()} for entry in value]
        done[key] = value
    return done


def _left(value: object) -> list[str]:
    """Return the keys under which a case's inputs are left to fill in, such as ``results.0.parallel.tensor``."""
    if not isinstance(value, (dict, list)):
        return []
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        key
        for name, part in parts
        for key in ([str(name)] if part is None else [f"{name}.{inner}" for inner in _left(part)])
    ]


def _unused(name: str, taken: dict[str, Any]) -> str:
    """Return a case's name like this one that no other has."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:60] or "case"
    number, found = 2, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


@click.command(
    "new-study", short_help="Make the files of a new study.", epilog="Example: gpuledger new-study launch_latency"
)
@click.argument("name")
def new_study(name: str) -> None:
    """Make the files of a new study called NAME, which already work and pass their test."""
    for path in make_study(name):
        say(path)


def make_study(name: str) -> list[Path]:
    """Make the files of a new study in the checkout that the working folder is in; return their paths in it."""
    import nbformat
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from gpuledger.ledger.datasets import Repository

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        remedy = "use lower-case letters, digits and _, such as launch_latency"
        raise InputError("command line", "", f"{name!r} cannot name a study", remedy)
    root = Repository.find().root
    targets = {template: root / place.format(name=name) for template, place in PLACES.items()}
    for path in targets.values():
        if path.exists():
            raise InputError(path.relative_to(root), "", "it is there already", "choose another name, or remove it")
    loader = FileSystemLoader(root / "workflow/templates/study")
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    for template, path in targets.items():
        text = templates.get_template(f"{template}.j2").render(name=name, title=name.replace("_", " ").capitalize())
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".ipynb":
            nbformat.write(_notebook(text), path)
        else:
            path.write_text(text, "utf-8")
    return [path.relative_to(root) for path in targets.values()]


def _notebook(text: str) -> Any:
    """Return cells written as ``# %%`` blocks as a notebook."""
    import nbformat

    cells = []
    for head, body in re.findall(r"^# %%([^\n]*)\n(.*?)(?=^# %%|\Z)", text, re.MULTILINE | re.DOTALL):
        if "[markdown]" in head:
            cells.append(nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            metadata = {"tags": ["parameters"]} if "parameters" in head else {}
            cells.append(nbformat.v4.new_code_cell(body.strip(), metadata=metadata))
    for number, cell in enumerate(cells):
        cell.id = str(number)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
