"""Fixtures: the checkout, copies of it to run the workflow in, and the mirror of public measurements."""

import functools
import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "workflow" / "scripts"))
import fork_server  # noqa: E402

# What is printed does not hang on the terminal that runs the tests; distributed ones get 80 columns.
os.environ.pop("COLUMNS", None)
#: How long to wait for what takes a second on an idle machine: a busy one is no failure.
PATIENCE_S = 300
#: What a run of Snakemake imports.
SNAKEMAKE = ["snakemake.cli", "snakemake.profiles", "snakemake.report.html_reporter"]
SNAKEMAKE += ["begun", "short_pauses", "jsonschema", "nbformat.v4", "numpy", "smart_open", "dpath"]
#: The folder <host>/<path> of public measurements, here or not.
MIRROR = Path(os.environ.get("GPULEDGER_MIRROR") or ROOT.parent / "shared" / "mirror")
#: The files of a case whose study names no figures or tables.
CONTRACT = [
    *("data.parquet", "summary.json", "provenance.json", "table.csv", "table.md", "table.tex"),
    *("figure.pdf", "figure.svg", "figure.png", "notebook.ipynb", "notebook.html"),
]

# No test fails because a machine is busy. CI draws the same examples every time; `explore` draws other ones.
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


#: The test modules that take longest beside the tests that run the workflow: none should be last.
LONGEST = {"test_dmat", "test_record", "test_kernel_breakdown", "test_fetch_dataset", "test_neutrino_osdi25"}


def pytest_collection_modifyitems(items):
    """Begin with what takes longest."""
    items.sort(key=lambda item: ("workflow" not in item.path.parts, item.path.stem not in LONGEST))


def pytest_collection_finish():
    """Do not search what all tests have imported for garbage, again and again."""
    gc.freeze()


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture
def folder(tmp_path):
    """The folder of a dataset of one's own."""
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


@pytest.fixture
def source(tmp_path):
    """The dataset.yaml of a dataset that is to be downloaded, in a folder of its own."""
    file = tmp_path / "set" / "dataset.yaml"
    file.parent.mkdir()
    file.write_text("kind: downloaded\n")
    return file


@pytest.fixture(scope="session")
def mirror():
    """The folder <host>/<path> of public measurements, where it is at hand."""
    if not MIRROR.is_dir():
        pytest.skip("the mirror of public measurements is not here: set GPULEDGER_MIRROR to its folder")
    return MIRROR


def copy_checkout(target):
    """Copy what git would carry of the working tree, without the results, as a fresh clone of it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if name.startswith("results/") or not source.is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name)
    return target


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """A fresh copy of the checkout, without results, to be copied."""
    return copy_checkout(tmp_path_factory.mktemp("fresh") / "checkout")


@pytest.fixture
def checkout(tmp_path, fresh):
    """A fresh copy of the checkout, without results."""
    # By `cp`: it takes a fifth of the time that Python needs for a thousand small files.
    subprocess.run(["cp", "-a", fresh, tmp_path / "checkout"], check=True)
    return tmp_path / "checkout"


@pytest.fixture(scope="session")
def unmade(tmp_path_factory):
    """A fresh copy of the checkout for dry runs, which write nothing there, and to change nothing in."""
    return copy_checkout(tmp_path_factory.mktemp("unmade") / "checkout")


@pytest.fixture(scope="session")
def finished(tmp_path_factory, worker_id):
    """A copy of the checkout in which everything that needs no network has been made, for tests that only read.

    It is made once, by the first of several test processes that asks for it.
    """
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    folder = shared / "finished" / "checkout"
    with FileLock(shared / "finished.lock"):
        if not (shared / "finished" / "made").is_file():
            copy_checkout(folder)
            configuration = folder / "config/config.yaml"
            content = configuration.read_text("utf-8")
            content = content.replace(", aiconfigurator]", "]")
            content = re.sub(r"^datasets_online: .*$", "datasets_online: []", content, flags=re.MULTILINE)
            configuration.write_text(content, "utf-8")
            if all((ROOT / name).exists() for name in ("results/index.html", ".snakemake/metadata")):
                # The default target has been made here. Of its datasets, Snakemake makes again what has changed since.
                datasets = yaml.safe_load(content)["datasets"]
                for name in [name for name in datasets if (ROOT / "results" / name).is_dir()]:
                    shutil.copytree(ROOT / "results" / name, folder / "results" / name, dirs_exist_ok=True)
                for name in ("traces/simulated", ".snakemake"):
                    shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
            done = snakemake(folder)
            assert done.returncode == 0, done.stderr[-4000:]
            (shared / "finished" / "made").touch()
    return folder


@pytest.fixture
def own(finished, tmp_path):
    """A copy of `finished` to change, which tests in other processes read."""
    folder = tmp_path / "checkout"
    # Without what their runs write meanwhile, temporary files in results/ among it.
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns(".snakemake", "__pycache__", ".????????"))
    shutil.copytree(finished / ".snakemake/metadata", folder / ".snakemake/metadata")
    return folder


@functools.cache
def job_server():
    """Start the workflow's job server once for this process and return what names it to a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "tests/support"), prepend=os.pathsep)
        fork_server.start()
    return os.environ.pop(fork_server.VARIABLE)


def snakemake(folder, *arguments, forked=True, **environment):
    """Run snakemake in a checkout with the environment of the tests; `environment` is on top of it.

    Neither the network nor a package index can be reached, but servers of this machine can. A run is a fork of a
    process that has imported Snakemake and the library, which takes longer than most runs. With ``forked=False`` it
    is a process of its own: where the checkout's library differs, or what is imported depends on the environment.
    """
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith("PIP_")}
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1", "no_proxy": "127.0.0.1"}
    offline |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = kept | offline | environment
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    if not forked:
        run = functools.partial(subprocess.run, capture_output=True, text=True, timeout=6 * PATIENCE_S, check=False)
        return run(command, cwd=folder, env=environment)
    given = json.dumps({"arguments": command[3:], "server": job_server()})
    environment |= {"RUN_SNAKEMAKE": given, fork_server.VARIABLE: ""}
    script = str(ROOT / "tests/support/run_snakemake.py")
    job = {"modules": SNAKEMAKE, "once": [], "script": script, "folder": str(folder), "path": sys.path}
    job |= {"environment": environment}
    with (
        socket.socket(socket.AF_UNIX) as server,
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        server.settimeout(6 * PATIENCE_S)
        server.connect(job_server().partition("\n")[0])
        socket.send_fds(server, [b"."], [file.fileno() for file in (nothing, out, err)])
        server.sendall(json.dumps(job).encode() + b"\n")
        status = int(server.makefile().readline())
        said = [(file.seek(0), file.read())[1] for file in (out, err)]
    return subprocess.CompletedProcess(command, status, *said)


@pytest.fixture
def config(tmp_path):
    """Write a model's config.json, given as an object or as text, and return its path."""

    def write(content, name="config.json"):
        file = tmp_path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return file

    return write
