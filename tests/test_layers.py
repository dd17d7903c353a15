"""Imports go down only: ground floor < ledger, readers < models < studies, record < cli."""

import ast
import json
import re
from functools import cache

import pytest
from conftest import ROOT

from gpuledger.ledger.study import read_studies

SOURCE = ROOT / "src"
LIBRARY = SOURCE / "gpuledger"
GROUND = {"errors", "files", "logs", "regexes", "schemas"}
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


@cache
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


def modules_behind(*texts):
    """Return the modules below gpuledger that some Python code imports, wherever in it, and what they import."""
    found, ahead = set(), list(texts)
    while ahead:
        for names in imports(ahead.pop()):
            # An imported name is a module, or something in one; its packages are loaded before it.
            for length in range(1, len(names) + 1):
                path = LIBRARY.joinpath(*names[:length])
                file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                if file.exists() and file not in found:
                    found.add(file)
                    ahead.append(file.read_text("utf-8"))
    return {file.relative_to(LIBRARY).with_suffix("").as_posix().removesuffix("/__init__") for file in found}


def uncounted(loaded, parts):
    """Return the modules that a digest of the `parts` of the library does not count."""
    # The ledger, the ground floor and the module of all studies always count; other packages of layers hold nothing.
    always = GROUND | {"readers", "models", "studies"}
    return {
        name for name in loaded - always if not f"{name}/".startswith(tuple(f"{part}/" for part in ("ledger", *parts)))
    }


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_code_lists_what_a_study_loads(study):
    names = [study.name, *study.notebooks.values()]
    notebooks = [json.loads((ROOT / f"notebooks/{name}.ipynb").read_text("utf-8")) for name in names]
    cells = [
        "".join(cell["source"]) for notebook in notebooks for cell in notebook["cells"] if cell["cell_type"] == "code"
    ]
    modules = [path.read_text("utf-8") for path in (LIBRARY / "studies" / study.name).rglob("*.py")]
    loaded = modules_behind(*cells, *modules)
    assert not uncounted(loaded, [f"studies/{study.name}", *study.code]), f"{study.name}/study.yaml: add to code"
    needless = {part for part in study.code if not any(f"{name}/".startswith(f"{part}/") for name in loaded)}
    assert not needless, f"{study.name}/study.yaml: remove from code"


def test_traces_are_simulated_again_when_their_code_changes():
    rule = (ROOT / "workflow/rules/datasets.smk").read_text("utf-8")
    parts = re.findall(r'"([^"]+)"', re.search(r"^rule simulate_dataset:.*?digest_of\((.*?)\)", rule, re.M | re.S)[1])
    loaded = modules_behind("import gpuledger.models.simulate, gpuledger.models.simulate.timeline")
    assert not uncounted(loaded, parts)
    assert not {part for part in parts if not any(f"{name}/".startswith(f"{part}/") for name in loaded)}
