"""A study made by `make study` works as it is, with nothing else touched, and CONTRIBUTING.md describes it."""

import os
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from conftest import ROOT, copy_checkout, snakemake

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.study import read_study


@pytest.fixture(scope="module")
def with_study(tmp_path_factory):
    checkout = copy_checkout(tmp_path_factory.mktemp("with_study"))
    # Compiled as well: these runs import the copy.
    shutil.copytree(ROOT / "src", checkout / "src", dirs_exist_ok=True)
    command = [sys.executable, "-m", "gpuledger.cli", "new-study", "launch_latency"]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)
    return checkout


def test_a_new_study_answers_a_dataset(with_study):
    folder = with_study / "traces/mine"
    folder.mkdir()
    (folder / "launches.csv").write_text("time_us\n2.4\n2.5\n2.6\n9.0\n")
    described = re.search(r"^```yaml\n(studies:\n.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S)
    content = {"title": "t", "kind": "recorded", "source": "measured by me", "license": "CC0-1.0"}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content) + described[1])
    claim = {"id": "time", "case": "first", "quantity": "time_median", "value": 2.5, "unit": "us"}
    claim |= {"tolerance": 0.1, "source": "where it is printed"}
    (with_study / "resources/claims/launch_latency.yaml").write_text(yaml.safe_dump({"claims": [claim]}))
    targets = ("launch_latency", "results/tables/scorecard.csv")
    alone = ("datasets=[mine]", "datasets_online=[]")
    done = snakemake(with_study, *targets, "--config", *alone, forked=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = with_study / "results/mine/launch_latency/first"
    assert (results / "figure.pdf").is_file()
    assert "It takes 2.55 µs in the median" in (results / "summary.json").read_text("utf-8")
    card = (with_study / "results/tables/scorecard.csv").read_text("utf-8")
    assert re.search(r"launch_latency,time,.*,2.55,0.02,within tolerance", card)


def test_the_test_of_a_new_study_passes(with_study, tmp_path):
    # In a folder of its own: where pytest chooses one, it first removes those of earlier runs, which can take long.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "temporary")]
    command += ["tests/studies/test_launch_latency.py"]
    environment = {"PYTHONPATH": str(with_study / "src"), "PATH": ""}
    done = subprocess.run(command, cwd=with_study, env=environment, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout[-2000:]


def test_a_new_study_passes_the_tests_of_all_studies(with_study):
    """A knob, for example, would have to stand in the configuration."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/workflow/test_house.py"]
    command += ["-k", "launch_latency and not by_itself"]
    environment = {"PYTHONPATH": str(with_study / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=with_study, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]  # 5 if no test was selected


def test_a_summary_without_a_finding_says_what_it_is():
    with pytest.raises(KeyError, match="adds no quantity 'finding': the case's result in one sentence"):
        CaseResult(pd.DataFrame()).finding  # noqa: B018


def test_no_file_of_a_study_is_written_over(with_study):
    done = subprocess.run(
        [sys.executable, "-m", "gpuledger.cli", "new-study", "launch_latency"],
        cwd=with_study,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip().endswith("it is there already; choose another name, or remove it")


def test_a_wrong_schema_in_a_study_is_one_line(tmp_path):
    (file := tmp_path / "study.yaml").write_text(
        "title: t\nquestion: q\ncase: {properties: {table: {type: strin}}}\n", "utf-8"
    )
    with pytest.raises(InputError, match=r"study\.yaml, key case\.properties\.table\.type: 'strin'"):
        read_study(file)
