"""What every rules file uses: the repository, and functions from wildcards to files. It has no rules."""

import fcntl
import gc
import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

# What is imported by now stays: looking through it again and again takes a sixth of a call that has nothing to do.
gc.freeze()
ROOT = Path(workflow.basedir)
# Jobs find the library of this checkout, also in an environment where it is not installed.
sys.path.insert(0, str(ROOT / "src"))
os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT / "src"), os.getenv("PYTHONPATH")])))
# Snakemake would import pandas (0.4 s) to compare params with those of the last run, in case they are tables; here they
# are plain values, and jobs are processes of their own. jsonschema would import these for formats that no schema has.
for name in ("pandas", "isoduration", "rfc3986_validator"):
    sys.modules.setdefault(name, None)

from gpuledger import files, schemas
from gpuledger.errors import InputError
from gpuledger.ledger import download_record
from gpuledger.ledger.datasets import NAME, Repository
from gpuledger.ledger.download.entries import at_hand
from gpuledger.ledger.passes import number_of_parts
from gpuledger.ledger.study import read_studies
from gpuledger.record.plan import LOCAL, make_plan

# A dry run writes and deletes nothing outside .snakemake, where Snakemake keeps what it found.
DRY_RUN = workflow.output_settings.dryrun
# Where a run tells its jobs which datasets it does without.
LEFT_OUT = Path(".snakemake/left_out.json")

try:
    # Snakemake itself would end in a traceback, or without a remedy.
    for folder in (".snakemake", *([] if DRY_RUN else filter(os.path.exists, ["results"]))):
        files.check_writable(folder)
    schemas.check(config, schemas.load_yaml(ROOT / "workflow/schemas/config.schema.yaml"), "config/config.yaml")
    STUDIES = read_studies()
    # Those that can draw their cases of all datasets side by side.
    ACROSS = [study.name for study in STUDIES.values() if study.across]
    REPOSITORY = Repository(Path(), config)
    REPOSITORY.check_config()
    # What of this machine's GPU is recorded, as a dataset of its own.
    record = config.get("record", {})
    RECORDING = make_plan(config.get("gpu", "off"), record.get("python"), record.get("parts"))
except InputError as error:
    raise WorkflowError(str(error)) from None


def hold_folder():
    """Hold this folder until the process ends, and clear what a killed run left: Snakemake's locks, temporary files.

    The hold is shared among runs. It ends with its process however that dies, so whoever holds the folder alone knows
    that the locks in it are stale. Where the file system has no such holds, `snakemake --unlock` is still needed.
    """
    hold, alone = None, False
    with suppress(OSError):
        hold = os.open(".snakemake/held", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    locks = Path(".snakemake/locks")
    if alone and locks.is_dir() and any(locks.iterdir()):
        shutil.rmtree(locks)
        # Names as gpuledger.files.replacing makes them: a dot, eight characters, the suffix of the result.
        for path in Path("results").rglob(".????????.*"):
            path.unlink(missing_ok=True)
        logger.info("an earlier run was interrupted: its lock and temporary files are removed")
    if hold is not None:
        with suppress(OSError):
            fcntl.flock(hold, fcntl.LOCK_SH)


if workflow.is_main_process and not DRY_RUN:
    hold_folder()

for key in ("datasets", "datasets_online"):
    for name in config.get(key, []):
        if name not in REPOSITORY.dataset_names() and not (name == LOCAL and RECORDING.parts):
            remedy = schemas.nearest(name, REPOSITORY.dataset_names())
            raise WorkflowError(f"config/config.yaml, key {key}: there is no traces/{name}/dataset.yaml; {remedy}")
# Those of the default target, in order.
DATASETS = list(dict.fromkeys([*config["datasets"], *config.get("datasets_online", [])]))
if RECORDING.parts and LOCAL not in DATASETS:
    DATASETS.append(LOCAL)
for part, reason in RECORDING.left_out.items():
    logger.info(f"{LOCAL} is without {part}: {reason}")


wildcard_constraints:
    dataset=NAME.pattern,
    study="|".join(STUDIES),
    case=NAME.pattern,


def await_recording():
    """Wait for the recording of this machine's GPU, which says itself what it can answer."""
    if RECORDING.parts:
        checkpoints.record_gpu.get()


@cache
def dataset_named(name):
    """The dataset, or None when its dataset.yaml is missing or wrong: its jobs will say what is wrong."""
    try:
        return REPOSITORY.dataset(name)
    except InputError:
        return None


@cache
def case_named(*path):
    """A case by (dataset, study, case); several functions ask about each."""
    return REPOSITORY.case(*path)


def every_dataset():
    """The configured datasets, checked: nothing is made across cases while one of them is wrong."""
    return [f"results/{name}/dataset.json" for name in DATASETS]


@cache
def left_out():
    """Datasets that cannot be fetched now, with the reason: the default target does without them.

    That is so for those of `datasets_online` and for those that come from the package index. The network is asked only
    when something is about to be made of them, not by a dry run, and not for files that are here or in the mirror.
    A job that plans by itself, on another node of a cluster say, does without the same ones as the run that sent it.
    """
    if not workflow.is_main_process:
        with suppress(OSError, ValueError):
            return json.loads(LEFT_OUT.read_text("utf-8"))
    missing = {}
    # The recording of this machine's GPU may not be there yet, and is not downloaded.
    for dataset in filter(None, (dataset_named(name) for name in DATASETS if name != LOCAL)):
        entries = dataset.content.get("download", [])
        packaged = any("package" in entry for entry in entries)
        online = dataset.name not in config["datasets"]
        if (packaged or online) and not at_hand(entries, dataset.folder, config.get("mirror")):
            missing[dataset.name] = entries
    found = {name: "a dry run does not ask the network" for name in missing if name not in config["datasets"]}
    if missing and workflow.is_main_process and workflow.executor_plugin and not workflow.dryrun:
        # Imported here: it takes longer than all the rest of a call that has nothing to do.
        from gpuledger.ledger.download.reach import out_of_reach

        found = out_of_reach(missing)
    if workflow.is_main_process and workflow.executor_plugin and not workflow.dryrun:
        LEFT_OUT.write_text(json.dumps(found), "utf-8")
    for name, reason in found.items():
        logger.info(f"{name} is left out: {reason}; its tracked results stay")
    return found


@cache
def declared_cases(study=None, case=None):
    """Every (dataset, study, case) of the configured datasets, of one study or case or of all."""
    return [
        (dataset.name, *declared)
        for dataset in filter(None, map(dataset_named, DATASETS))
        for declared in dataset.cases(study)
        if case in (None, declared[1])
    ]


@cache
def is_left_out(dataset):
    """Whether the default target does without a dataset; asks only about those that may be fetched."""
    return bool(REPOSITORY.dataset(dataset).content.get("download")) and dataset in left_out()


def every_case_file(name, study=None, case=None):
    """Input function: a file, by its name, of every case of the configured datasets but those left out.

    Of one study, given or in the wildcards, or of all; of one case or of all.
    """

    def inputs(wildcards):
        await_recording()
        declared = declared_cases(study or getattr(wildcards, "study", None), case)
        return [f"results/{'/'.join(path)}/{name}" for path in declared if not is_left_out(path[0])]

    return inputs


def every_figure_across(wildcards):
    """Input function: the figures across datasets of the studies that have a case in the configured ones."""
    cases = {study: every_case_file("summary.json", study)(wildcards) for study in ACROSS}
    return [f"results/across/{study}/figure.pdf" for study, summaries in cases.items() if summaries]


def every_file_of_paper(kind):
    """Input function: figures or tables of every case, as their studies declare them."""

    def inputs(wildcards):
        found = []
        for study in STUDIES.values():
            if kind == "tables":
                names = [f"{table}.tex" for table in study.tables]
            else:
                names = [f"{figure}.pdf" for figure in study.figures] + ["figure_column.pdf"]
            for name in names:
                found += every_case_file(name, study.name)(wildcards)
        return found

    return inputs


def every_summary(wildcards):
    """The summaries of every case, also of datasets that are left out, as far as they have been made or are tracked.

    Tables across cases are the same with and without a network.
    """
    await_recording()
    summaries = [f"results/{'/'.join(path)}/summary.json" for path in declared_cases(getattr(wildcards, "study", None))]
    return [file for file in summaries if not is_left_out(file.split("/")[1]) or os.path.exists(file)]


def cases_to_download():
    """Every case that some dataset of traces/ has once it is downloaded: by study/case, the datasets' names."""
    found = {}
    for dataset in filter(None, map(dataset_named, REPOSITORY.dataset_names())):
        for path in dataset.cases() if dataset.content.get("download") else []:
            found.setdefault("/".join(path), []).append(dataset.name)
    return found


def every_download(wildcards):
    """Input function: the records of what the datasets of the key `datasets` fetch, of those left out too."""
    datasets = filter(None, map(dataset_named, config["datasets"]))
    return [f"results/{dataset.name}/files.json" for dataset in datasets if dataset.content.get("download")]


def pages_of_target(study, case=None):
    """Input function of a target that is named after a study or a case: pages, or one line that says who would have any."""

    def inputs(wildcards):
        if not declared_cases(study, case):
            known = [dataset for dataset in map(dataset_named, REPOSITORY.dataset_names()) if dataset]
            able = [each.name for each in known if any(case in (None, own) for _, own in each.cases(study))]
            remedy = f"add {' or '.join(able)} to datasets" if able else "declare it in the dataset.yaml of one of them"
            what = f"case {case}" if case else "a case"
            raise WorkflowError(f"no configured dataset has {what} of {study}: {remedy}")
        return every_case_file("notebook.html", study, case)(wildcards)

    return inputs


def case_files(wildcards):
    """Input function of a reduction: the case's files that are there, and what the study reads beside them.

    A missing file or a wrong declaration is left for the job to report, so that it stops this case only; what nobody
    declared is not planned. Files that are downloaded or simulated are represented by their record. A change of
    dataset.yaml counts by `declaration`.
    """
    if wildcards.dataset == LOCAL:
        await_recording()
    patterns = STUDIES[wildcards.study].resources
    found = {
        "dataset": ancient(f"traces/{wildcards.dataset}/dataset.yaml"),
        "resources": sorted(file.as_posix() for pattern in patterns for file in Path().glob(pattern)),
    }
    try:
        case = case_named(wildcards.dataset, wildcards.study, wildcards.case)
    except InputError as error:
        dataset, declared = dataset_named(wildcards.dataset), (wildcards.study, wildcards.case)
        if not Path(found["dataset"]).is_file() or (dataset and declared not in dataset.cases()):
            raise WorkflowError(str(error)) from None
        return found
    paths = case.paths()
    if case.dataset.made_here or case.dataset.content.get("download"):
        found["record"] = f"results/{wildcards.dataset}/files.json"
        paths = download_record.others(found["record"], case.dataset, paths)
    parts = parts_of(wildcards, STUDIES[wildcards.study].scatter.get("passes", []))
    return found | {"files": [path.as_posix() for path in paths if os.path.exists(path)], "parts": parts}


def parts_of(wildcards, passes):
    """The parts of these passes over a case's trace; none if it is reduced in one piece."""
    case = case_named(wildcards.dataset, wildcards.study, wildcards.case)
    of = number_of_parts(case, config.get("part_gib", 2) * 2**30) if passes else 1
    folder = f"results/{wildcards.dataset}/{wildcards.study}/{wildcards.case}/parts"
    return [f"{folder}/{step}-{part}-of-{of}.bin" for step in passes for part in range(of) if of > 1]


def files_of_part(wildcards):
    """Input function of a part of a pass: the case's files, and the parts of the passes before it."""
    passes = STUDIES[wildcards.study].scatter["passes"]
    return case_files(wildcards) | {"parts": parts_of(wildcards, passes[: passes.index(wildcards.step)])}


def notebook_of(study, wildcards):
    """Input function: the notebook of a case; a wrong declaration is left for the reduction to report."""
    try:
        inputs = case_named(wildcards.dataset, study.name, wildcards.case).inputs
    except InputError:
        inputs = {}
    return f"notebooks/{study.notebook(inputs)}.ipynb"


@cache
def neighbours_in(name):
    """By <study>/<case> of a dataset, the cases before and after it; None at the ends."""
    dataset = dataset_named(name)
    found = ["/".join(path) for path in dataset.cases()] if dataset else []
    pairs = zip([None, *found], found, [*found[1:], None])
    return {case: {"previous": previous, "next": following} for previous, case, following in pairs}


def neighbours(study, wildcards):
    """The cases before and after one in its dataset."""
    return neighbours_in(wildcards.dataset).get(f"{study}/{wildcards.case}", {})


def declaration(study, wildcards):
    """What dataset.yaml and the configuration say of a case: a change of it makes this case again, and no other."""
    try:
        case = case_named(wildcards.dataset, study, wildcards.case)
    except InputError as error:
        return str(error)
    return json.dumps(case.declaration(), sort_keys=True)


def why_again(wildcards):
    """Why a dataset's files have to be put in place once more, or the reason of the last time where they are there.

    As a param it runs the job again when a file is gone or has changed, although no job has them as outputs:
    Snakemake deletes outputs before it makes them.
    """
    folder = Path(f"results/{wildcards.dataset}")
    return download_record.reason(folder / "files.json", folder / "files.reason", dataset_named(wildcards.dataset))


def to_download(wildcards):
    """What a dataset.yaml lists as its downloads."""
    dataset = dataset_named(wildcards.dataset)
    return json.dumps(dataset.content.get("download") if dataset else None, sort_keys=True)


def simulated_datasets():
    """Datasets whose files are made here."""
    return [name for name in REPOSITORY.dataset_names() if (found := dataset_named(name)) and found.made_here]


@cache
def library_digests():
    """By its path below src/gpuledger, the digest of every file of the library."""
    library = ROOT / "src" / "gpuledger"
    files = sorted(Path(folder, name) for folder, _, names in os.walk(library) for name in names)
    return {
        file.relative_to(library).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        # Compiled modules and loops, which the first run makes.
        if "__pycache__" not in file.parts
    }


@cache
def digest_of(*parts):
    """A digest of library code: of the folders and modules below src/gpuledger, and of what everything uses.

    Snakemake does not see imports. Among a job's params, the digest runs it again when its code has changed.
    """
    digests = library_digests()
    folders = tuple(f"{part}/" for part in ("ledger", *parts))
    modules = {f"{part}.py" for part in parts}
    used = [file for file in digests if "/" not in file or file.startswith(folders) or file in modules]
    return hashlib.sha256("\n".join(f"{file} {digests[file]}" for file in used).encode()).hexdigest()[:16]


def code_of(study):
    """Digest of the code that a study runs: its folder and what study.yaml lists as `code`, or all that it may import."""
    parts = STUDIES[study].code or ("readers", "models")
    return digest_of("studies/__init__", f"studies/{study}", *parts)
