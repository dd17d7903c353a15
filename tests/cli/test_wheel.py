"""The command line from a wheel, on a machine without a checkout."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from gpuledger.files import ROOT

REPORT = ROOT / "tests/data/ncu/raw.csv"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the unpacked wheel, made from a copy of what the build needs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("src", "resources", "notebooks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools import build_meta; build_meta.build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder


def run(place, *arguments, module="gpuledger.cli", status=0):
    path = {"PYTHONPATH": str(place / "site")} if place != ROOT else {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=place, env=os.environ | path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_a_wheel_predicts_what_a_checkout_predicts(installed):
    asked = ("predict", "Qwen3-8B", "--gpu", "l40s", "--json")
    found = run(installed, *asked)
    assert json.loads(found) and found == run(ROOT, *asked)


def test_a_wheel_inspects_profiles_and_drafts(installed, tmp_path):
    shutil.copy(REPORT, tmp_path / "report.csv")
    assert "2 launches of 2 kernels" in run(installed, "inspect", tmp_path / "report.csv")
    run(installed, "new-dataset", tmp_path)
    assert "kernel_profile" in (tmp_path / "dataset.yaml").read_text("utf-8")
    run(installed, "profile", tmp_path / "report.csv", "--save", tmp_path / "profile")
    assert (tmp_path / "profile/figure.pdf").is_file() and (tmp_path / "profile/notebook.ipynb").is_file()


def test_what_needs_a_checkout_says_so_in_a_line(installed, tmp_path):
    for said in (
        run(installed, "new-study", "launch_latency", status=2),
        run(installed, tmp_path / "kit", module="gpuledger.record.kit", status=1),
    ):
        assert "checkout" in said and said.count("\n") == 1
