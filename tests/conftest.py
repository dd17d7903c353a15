"""Fixtures: the checkout, copies of it to run the workflow in, and the mirror of public measurements."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: The folder <host>/<path> of public measurements, here or not.
MIRROR = Path(os.environ.get("GPULEDGER_MIRROR") or ROOT.parent / "shared" / "mirror")


@pytest.fixture(scope="session")
def root():
    return ROOT


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


@pytest.fixture
def checkout(tmp_path):
    """A fresh copy of the checkout, without results."""
    return copy_checkout(tmp_path / "checkout")


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A copy of the checkout in which the default target has been made, for tests that only read."""
    folder = copy_checkout(tmp_path_factory.mktemp("finished") / "checkout")
    if os.environ.get("GPULEDGER_MADE"):
        # The default target of this very checkout has just been made, and nothing else.
        for name in ("results", "traces", ".snakemake"):
            shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    done = snakemake(folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def snakemake(folder, *arguments):
    """Run snakemake in a checkout with the environment of the tests."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
