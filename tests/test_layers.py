"""Imports go down only: ground floor < ledger, readers < models < studies, record < cli."""

import ast
import json
import subprocess
import sys

import pytest
from conftest import ROOT

from gpuledger.ledger.study import read_studies

SOURCE = ROOT / "src"
LIBRARY = SOURCE / "gpuledger"
GROUND = {"errors", "files", "logs", "schemas"}
#: What each layer may import of the others; nothing for the ground floor.
ALLOWED = {
    **{name: set() for name in GROUND},
    "ledger": set(),
    "readers": set(),
    "models": {"ledger", "readers"},
    "record": {"ledger", "readers", "models"},
    "studies": {"ledger", "readers", "models"},
    "cli": {"ledger", "readers", "models", "studies", "record"},
}
MODULES = sorted(LIBRARY.rglob("*.py"))


def imports(text):
    """Return the modules below gpuledger that Python code imports, as tuples of names; Snakemake it does not."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert "snakemake" not in {name.split(".")[0] for name in found}
    parts = {tuple(name.split(".")[1:]) for name in found if name.split(".")[0] == "gpuledger"}
    return {names for names in parts if names[0] != "__version__"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_imports_go_down_only(module):
    place = module.relative_to(LIBRARY).with_suffix("").parts
    layer = place[0]
    if layer == "__init__":
        assert not imports(module.read_text("utf-8"))
        return
    allowed = GROUND | ALLOWED[layer] | {layer}
    for names in imports(module.read_text("utf-8")):
        assert names[0] in allowed, f"{'/'.join(place)} imports {'.'.join(names)}"
        if layer == "studies" and names[0] == "studies":
            assert names[1] == place[1], f"{'/'.join(place)} imports the study {names[1]}"


def test_every_module_has_its_layer():
    assert {path.stem for path in LIBRARY.iterdir() if path.name != "__pycache__"} == {"__init__", *ALLOWED}


def test_no_two_classes_have_the_same_name():
    classes = {}
    for module in MODULES:
        for node in ast.parse(module.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(module.relative_to(LIBRARY).as_posix())
    assert {name: modules for name, modules in classes.items() if len(modules) > 1} == {}


STUDIES = [study for study in read_studies().values() if study.code]


def imports_of(study):
    """Return the imports of a study's modules and its notebooks, as code."""
    folder = LIBRARY / "studies" / study.name
    modules = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in folder.rglob("*.py")]
    notebooks = [ROOT / f"notebooks/{name}.ipynb" for name in (study.name, *study.notebooks.values())]
    cells = [cell for path in notebooks for cell in json.loads(path.read_text("utf-8"))["cells"]]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    lines = [ast.unparse(node) for node in ast.parse(code).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines += [f"import {module.removesuffix('.__init__')}" for module in modules]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def loaded():
    """By study, the modules below gpuledger that it loads; in forks of a process with what all of them import."""
    program = (
        "import json, os, sys, pandas, pyarrow.parquet, matplotlib.pyplot, IPython.display\n"
        "import numba, requests, scipy.special, tqdm, yaml\n"
        "for study, lines in json.load(sys.stdin).items():\n"
        "    if os.fork() == 0:\n"
        "        exec(lines, {})\n"
        "        print(study, *(name for name in sys.modules if name.startswith('gpuledger.')), flush=True)\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0, study"
    )
    asked = json.dumps({study.name: imports_of(study) for study in STUDIES})
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout
    lists = [line.split() for line in said.splitlines()]
    return {study: {"/".join(name.split(".")[1:]) for name in names} for study, *names in lists}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_code_lists_what_a_study_loads(study, loaded):
    loaded = loaded[study.name]
    # Packages of layers hold nothing; the ledger and the ground floor always count.
    counted = [f"studies/{study.name}", "ledger", *study.code]
    missing = {
        name
        for name in loaded - GROUND - {"readers", "models", "studies"}
        if not any(name == part or name.startswith(f"{part}/") for part in counted)
    }
    assert not missing, f"{study.name}/study.yaml: add to code"
    needless = {part for part in study.code if not any(f"{name}/".startswith(f"{part}/") for name in loaded)}
    assert not needless, f"{study.name}/study.yaml: remove from code"
