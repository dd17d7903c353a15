"""Versions agree, every study has its files, notebooks are thin and stripped, modules are short."""

import ast
import fnmatch
import json
import re
import shutil
import tomllib
from importlib import import_module
from inspect import signature

import matplotlib.pyplot as plt
import nbformat
import pytest
import yaml
from conftest import ROOT, copy_checkout, snakemake

from gpuledger import __version__
from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.ledger.notebooks import ONLY
from gpuledger.ledger.study import read_studies
from gpuledger.models.simulate import simulate_dataset

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    return {re.match(r"[A-Za-z0-9._-]+", name)[0].lower(): name for name in wanted}


def pinned(file="requirements.txt"):
    text = (ROOT / file).read_text("utf-8")
    return {m[1].lower(): m[2] for m in re.finditer(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;\\]+)", text, re.MULTILINE)}


def conda():
    listed = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))["dependencies"]
    packages = dict(re.fullmatch(r"([\w.-]+)(?: =(.+))?", name).groups() for name in listed)
    return {name.replace("_", "-"): version for name, version in packages.items()}


def test_every_dependency_is_pinned_and_the_same_for_conda():
    pins, packages = pinned(), conda()
    assert set(declared()) <= set(pins)
    assert {name: pins[name] for name in declared()} == {
        name: version for name, version in packages.items() if name not in ("python", "pip")
    }
    assert packages["python"] == "3.11", "the oldest Python that pyproject.toml allows"


def test_what_slurm_needs_is_pinned_by_itself():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    assert set(pinned("requirements-slurm.txt")) == set(groups["slurm"])
    assert not set(groups["slurm"]) & set(pinned()), "Snakemake would import them at every call"


def test_short_jobs_across_cases_are_one_job_of_a_cluster():
    grouped = yaml.safe_load((ROOT / "profiles/slurm/profile.yaml").read_text("utf-8"))["groups"]
    rules = "".join(file.read_text("utf-8") for file in (ROOT / "workflow/rules").glob("*.smk"))
    # Snakemake ignores names of rules that are not there.
    assert all(f"rule {name}:" in rules for name in grouped)


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-slurm.txt"])
def test_pins_hold_hashes_and_no_address(file):
    text = (ROOT / file).read_text("utf-8")
    entries = re.split(r"\n(?=[A-Za-z])", text.strip())
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text and "--index" not in text and "--find-links" not in text


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"]
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[1]
    assert __version__ == project == cited == latest


def test_jsonschema_stays_below_the_version_that_slows_every_call():
    assert declared()["jsonschema"] == "jsonschema<4.25"
    assert tuple(map(int, pinned()["jsonschema"].split(".")[:2])) < (4, 25)


@pytest.mark.parametrize("study", read_studies())
def test_every_study_has_its_files(study):
    folder = ROOT / "src/gpuledger/studies" / study
    assert {"study.yaml", "__init__.py", "reduction.py", "figures.py"} <= {path.name for path in folder.iterdir()}
    assert callable(import_module(f"gpuledger.studies.{study}").reduce)
    assert (ROOT / f"notebooks/{study}.ipynb").is_file()
    assert (ROOT / f"resources/claims/{study}.yaml").is_file()


def test_no_file_of_a_study_that_is_not_there():
    assert {path.stem for path in (ROOT / "resources/claims").glob("*.yaml")} == set(read_studies())
    named = {name for study in read_studies().values() for name in (study.name, *study.notebooks.values())}
    assert {path.stem for path in NOTEBOOKS} == named


def test_the_configuration_is_short_and_explained():
    lines = (ROOT / "config/config.yaml").read_text("utf-8").splitlines()
    assert len(lines) < 80
    knobs = lines[lines.index("knobs:") + 1 :]
    assert all("#" in line for line in knobs if line.startswith("    "))


@pytest.mark.parametrize("study", read_studies())
def test_every_knob_is_in_the_configuration_with_its_default_and_in_its_readme(study):
    takes = signature(import_module(f"gpuledger.studies.{study}").reduce).parameters
    # The workflow offers the others.
    defaults = {name: takes[name].default for name in list(takes)[1:] if name not in ("threads", "mirror", "passes")}
    configured = yaml.safe_load((ROOT / "config/config.yaml").read_text("utf-8"))["knobs"].get(study, {})
    assert set(configured) == set(defaults), f"config/config.yaml, knobs.{study}: list what reduce takes, with comments"
    for name, value in configured.items():
        assert (tuple(value) if isinstance(value, list) else value) == defaults[name], name
    readme = (ROOT / "config/README.md").read_text("utf-8")
    missing = [name for name in defaults if not re.search(rf"`{study}\.[^|]*\.?{name}`", readme)]
    assert not missing, f"config/README.md: add `{study}.{missing[0]}` to the table of knobs"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_thin_and_stripped(notebook):
    content = json.loads(notebook.read_text("utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    assert content["metadata"]["language_info"]["name"] == "python"
    assert [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])] == cells[:1]
    assert len(cells) < 15
    assert max(len("".join(cell["source"]).splitlines()) for cell in cells) <= 26
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells))
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda))]


def test_text_about_one_case_is_tagged_with_a_case_that_exists():
    """And what calls itself a finding in the data of a case is about no other."""
    declared = {}
    for name in Repository.find(ROOT).dataset_names():
        for study, case in Repository.find(ROOT).dataset(name).cases():
            declared.setdefault(study, []).append(f"{name}/{case}")
    studies = {
        name: study.name for study in read_studies().values() for name in (study.name, *study.notebooks.values())
    }
    for notebook in NOTEBOOKS:
        for cell in nbformat.read(notebook, as_version=4).cells:
            tags = [tag for tag in cell.metadata.get("tags", []) if tag.startswith(ONLY)]
            known = declared.get(studies[notebook.stem], [])
            assert all(fnmatch.filter(known, tag.removeprefix(ONLY)) for tag in tags), (notebook.stem, tags)
            assert not tags or cell.cell_type == "markdown"
            one = re.search(r"^## Findings? .*\b(in|with)\b", cell.source, re.MULTILINE)
            assert tags or cell.cell_type == "code" or not one, (notebook.stem, one[0])


def test_modules_stay_short():
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "workflow").rglob("*.py"), *(ROOT / "workflow").rglob("*.smk")]
    too_long = {path.name: n for path in paths if (n := len(path.read_text("utf-8").splitlines())) > 420}
    assert not too_long


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return copy_checkout(tmp_path_factory.mktemp("clone"))


def keep_one_gpu(file, case, kept="a100_sxm"):
    """Judge one GPU's tables: those of all take a minute and a half, and the default target judges them."""
    content = yaml.safe_load(file.read_text("utf-8"))
    gpus = content["studies"]["kernel_time"][case]["gpus"]
    content["studies"]["kernel_time"][case]["gpus"] = {kept: gpus[kept]}
    file.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_by_itself_gives_the_bytes_of_the_workflow(clone, finished, notebook, tmp_path, request):
    """Without reduced data, in a clone: figures and tables where `save_to` says, and nothing elsewhere."""
    content = nbformat.read(notebook, as_version=4)
    cells = [cell for cell in content.cells if cell.cell_type == "code"]
    values = {}
    exec(cells[0].source, values)
    dataset, saved = values["dataset"], tmp_path / "saved"
    configured = yaml.safe_load((ROOT / "config/config.yaml").read_text("utf-8"))
    words = f"{notebook.name}: its first cell names {dataset!r}, which is not among the datasets of config/config.yaml"
    assert dataset in configured["datasets"] + configured["datasets_online"], words
    downloaded = yaml.safe_load((clone / f"traces/{dataset}/dataset.yaml").read_text("utf-8")).get("download", [])
    if downloaded and (ROOT / f"results/{dataset}/files.json").is_file():
        # What a run here has downloaded and verified.
        shutil.copytree(ROOT / f"traces/{dataset}", clone / f"traces/{dataset}", dirs_exist_ok=True)
    elif downloaded:
        mirror = request.getfixturevalue("mirror")
        packages = [entry["file"] for entry in downloaded if "package" in entry]
        missing = [name for name in packages if not (mirror / "packages" / name).exists()]
        if missing:
            pytest.skip(f"the mirror does not hold {missing[0]}, and no index of packages can be reached from here")
        fetched = snakemake(clone, f"results/{dataset}/files.json", "--config", f"mirror={mirror}")
        assert fetched.returncode == 0, fetched.stderr[-3000:]
    if notebook.stem == "kernel_time_tables":
        keep_one_gpu(clone / f"traces/{dataset}/dataset.yaml", values["case"])
    before = sorted(clone.rglob("*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(clone / "notebooks")
        values["save_to"] = saved
        for cell in cells[1:]:
            exec(cell.source, values)
    plt.close("all")
    made = {path for path in clone.rglob("*") if "__pycache__" not in path.parts} - set(before)
    assert not [path for path in made if "traces" not in path.parts], "only simulated traces may be made"
    assert {"figure.pdf", "figure.svg", "figure.png", "table.csv"} <= {path.name for path in saved.iterdir()}
    if not downloaded:
        study = re.search(r'open_case\("(\w+)"', "".join(cell.source for cell in cells))[1]
        folder = finished / "results" / dataset / study / values["case"]
        values["result"].write(saved)
        assert [path.name for path in saved.iterdir() if path.read_bytes() != (folder / path.name).read_bytes()] == []


def test_all_traces_are_simulated_with_the_same_bytes(clone, finished):
    """In the clone by the notebooks above; here where they have not been run."""
    folder = clone / "traces/simulated"
    if not any(folder.rglob("*.bin")):
        simulate_dataset(Dataset.load(folder / "dataset.yaml"))
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert set(files) == {
        path.relative_to(finished / "traces/simulated")
        for path in (finished / "traces/simulated").rglob("*")
        if path.is_file()
    }
    for name in files:
        assert (folder / name).read_bytes() == (finished / "traces/simulated" / name).read_bytes(), name
