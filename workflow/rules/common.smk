"""What every rules file uses: the repository, and functions from wildcards to files. No rule stands here."""

import json
import os
import re
import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

ROOT = Path(workflow.basedir)
# Jobs find the library of this checkout, also in an environment where it is not installed.
sys.path.insert(0, str(ROOT / "src"))
os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT / "src"), os.getenv("PYTHONPATH")])))

from gpuledger import fetched, schemas
from gpuledger.datasets import Repository
from gpuledger.errors import InputError
from gpuledger.record.plan import LOCAL, make_plan

try:
    schemas.check(config, schemas.load_yaml(ROOT / "workflow/schemas/config.schema.yaml"), "config/config.yaml")
    # What of this machine's GPU is recorded, as a dataset of its own; nothing where there is none.
    GPU = make_plan(config.get("gpu", "auto"), config.get("record", {}).get("python"))
except InputError as error:
    raise WorkflowError(str(error)) from None

REPOSITORY = Repository(Path(), config)
for name in config["datasets"]:
    if name not in REPOSITORY.dataset_names() and not (name == LOCAL and GPU.parts):
        remedy = schemas.nearest(name, REPOSITORY.dataset_names())
        raise WorkflowError(f"config/config.yaml, key datasets: there is no traces/{name}/dataset.yaml; {remedy}")
if GPU.parts and LOCAL not in config["datasets"]:
    config["datasets"] = [*config["datasets"], LOCAL]
for part, reason in GPU.left_out.items():
    logger.info(f"{LOCAL} is without {part}: {reason}")


wildcard_constraints:
    dataset=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    study="|".join(config["studies"]),
    case=r"[A-Za-z0-9][A-Za-z0-9._-]*",


def await_recording():
    """Wait for the recording of this machine's GPU, which says itself what it can answer."""
    if GPU.parts:
        checkpoints.record_gpu.get()


@cache
def dataset_named(name):
    """The dataset, or None when its dataset.yaml is missing or wrong: its jobs will say what is wrong."""
    try:
        return REPOSITORY.dataset(name)
    except InputError:
        return None


@cache
def declared_cases(study=None, case=None):
    """Every (dataset, study, case) of the configured datasets, of one study or case or of all."""
    datasets = [dataset_named(name) for name in config["datasets"]]
    return [
        (dataset.name, *declared)
        for dataset in datasets
        if dataset
        for declared in dataset.cases(study)
        if case in (None, declared[1])
    ]


@cache
def record_of_files(name):
    """The record of the files that the dataset fetches: what its reductions wait for.

    A record that is no longer true is removed: what has to be made again has the files verified, or fetched,
    before. The files themselves are outputs of no rule, because Snakemake deletes outputs before it makes them.
    """
    record = Path(f"results/{name}/files.json")
    if record.is_file() and not fetched.holds(record, REPOSITORY.dataset(name)):
        record.unlink()
    return record.as_posix()


def case_files(study):
    """Input function of the study's reduction: the dataset.yaml, and the case's files that are there.

    A missing file or a wrong declaration is left for the job to report, so that it stops this case only. Files
    that are fetched are represented by their record.
    """

    def inputs(wildcards):
        if wildcards.dataset == LOCAL:
            await_recording()
        found = {"dataset": f"traces/{wildcards.dataset}/dataset.yaml", "settings": settings(study)}
        try:
            dataset = REPOSITORY.dataset(wildcards.dataset)
            paths = dataset.case(study, wildcards.case).paths()
        except InputError as error:
            if not Path(found["dataset"]).is_file():
                raise WorkflowError(str(error)) from None
            return found
        if dataset.name == "simulated":
            return found | {"simulated": record_of_files(dataset.name)}
        if dataset.content.get("download"):
            found["fetched"] = record_of_files(wildcards.dataset)
            paths = fetched.others(found["fetched"], dataset, paths)
        return found | {"files": [path.as_posix() for path in paths if os.path.exists(path)]}

    return inputs


def every_case_page(study=None, case=None):
    """Input function: the pages of every case of the configured datasets, of one study or case or of all."""
    return every_case_file("notebook.html", study, case)


def pages_of_target(study, case):
    """Input function of a target that is named after one case: its pages, or one line that says who would have it."""

    def inputs(wildcards):
        pages = every_case_page(study, case)(wildcards)
        if not pages:
            known = [dataset for dataset in map(dataset_named, REPOSITORY.dataset_names()) if dataset]
            able = [dataset.name for dataset in known if (study, case) in dataset.cases(study)]
            remedy = f"add {' or '.join(able)} to datasets" if able else "declare it in the dataset.yaml of one of them"
            raise WorkflowError(f"no configured dataset has case {case} of {study}: {remedy}")
        return pages

    return inputs


def every_case_file(name, study=None, case=None):
    """Input function: a file, by its name, of every case of the configured datasets.

    Of one study, given or in the wildcards, or of all; of one case or of all.
    """

    def inputs(wildcards):
        await_recording()
        declared = declared_cases(study or getattr(wildcards, "study", None), case)
        return [f"results/{'/'.join(path)}/{name}" for path in declared]

    return inputs


@cache
def settings(study):
    """A file with the study's entry of the configuration in force."""
    return setting_file(study, config["studies"][study])


def setting_file(name, value):
    """A file with settings, written when they have changed.

    An input in place of `params`: with those Snakemake imports pandas, which takes longer than all the rest of a
    call that has nothing to do.
    """
    file = Path(f"results/config/{name}.json")
    content = json.dumps(value, indent=2, sort_keys=True)
    if not file.is_file() or file.read_text("utf-8") != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")
    return file.as_posix()


def every_dataset():
    """The configured datasets, checked: nothing is made across cases while one of them is wrong."""
    return [f"results/{name}/dataset.json" for name in config["datasets"]]


# `import a.b`, `from a.b import c, d` and `from .b import (c, d)`, anywhere in a file. Parsing the files would take
# longer than all the rest of a call that has nothing to do.
IMPORT = re.compile(r"^\s*(?:from\s+(\.*)([\w.]*)\s+import\s+(\([^)]*\)|[^\n]+)|import\s+([^\n]+))", re.MULTILINE)


@cache
def imports_of(path):
    """The library files that a Python file or a notebook names: modules that it imports, the figures' style."""
    path = Path(path)
    source = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(source)["cells"]
        source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names = set()
    for dots, module_name, imported, whole in IMPORT.findall(source):
        # A relative import counts its dots from the file's own package.
        base = path.parts[1 : len(path.parts) - len(dots)] if dots else ()
        stem = ".".join([*base, *filter(None, [module_name])])
        names |= {stem, *(f"{stem}.{name}" for name in re.findall(r"\w+", imported))} if not whole else set()
        names |= set(re.findall(r"[\w.]+", whole))
    found = {f"src/gpuledger/{style}" for style in re.findall(r'"(\w+\.mplstyle)"', source)}
    for name in (name for name in names if name.startswith("gpuledger.")):
        stem = Path("src", *name.split("."))
        found |= {file.as_posix() for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()}
    return found


@cache
def imported_modules(path):
    """The library files that a file needs, through one another too.

    Snakemake does not see imports: they are named as inputs, so that a changed module runs its rules again.
    """
    found, waiting = set(), {path}
    while waiting:
        named = imports_of(waiting.pop()) - found
        found |= named
        waiting |= {name for name in named if name.endswith(".py")}
    return sorted(found)


def code(script):
    """The library modules of a script in workflow/scripts."""
    return imported_modules(f"workflow/scripts/{script}.py")
