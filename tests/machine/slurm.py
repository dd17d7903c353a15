"""The workflow on a Slurm cluster of one node: `make test-slurm` runs this beside tests/machine/one_node_slurm.

One run has a case that succeeds, one whose job is killed, and one with bad input. With GPULEDGER_WHOLE=1 it makes the
whole default target instead of a few cases of it.
"""

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
import yaml
from conftest import ROOT, copy_checkout, snakemake

from results import digests

pytestmark = pytest.mark.skipif(
    find_spec("snakemake_executor_plugin_slurm") is None, reason="pip install -r requirements-slurm.txt"
)

WHOLE = os.environ.get("GPULEDGER_WHOLE") == "1"
CASES = ["published/kernel_overhead/table2", "published/memory_usage/fig11"]
TARGETS = ["all"] if WHOLE else [f"results/{case}/notebook.html" for case in CASES]
BAD = "traces/mine/bad.csv, line 1: "


def fresh_checkout(folder):
    """A checkout with the downloads that are here, and one case of bad input."""
    copy_checkout(folder)
    if WHOLE:
        shutil.copytree(ROOT / "traces", folder / "traces", dirs_exist_ok=True)
    mine = folder / "traces/mine"
    mine.mkdir()
    (mine / "bad.csv").write_text("a,b\n1,2\n")
    content = {"title": "t", "kind": "recorded", "source": "s", "license": "CC0-1.0"}
    content["studies"] = {"kernel_overhead": {"bad": {"table": "bad.csv"}}}
    (mine / "dataset.yaml").write_text(yaml.safe_dump(content))
    return folder


def kill_a_job():
    """Kill every process of the first Slurm job that runs; return what else was running."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        running = subprocess.run(["squeue", "-h", "-t", "R", "-o", "%A"], capture_output=True, text=True).stdout.split()
        if running:
            # It has to be past its start: Slurm itself would begin it again.
            time.sleep(2)
            processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
            subprocess.run(["scancel", "--full", "--signal=KILL", running[0]], check=True)
            return processes
        time.sleep(0.1)
    raise AssertionError("no job began")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder, the exit status, the words and the processes of a run on Slurm."""
    folder = fresh_checkout(tmp_path_factory.mktemp("slurm") / "checkout")
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm", "--keep-going"]
    command += ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5", "--retries", "1"]
    # A job that asks for more than this machine has would wait for ever.
    command += ["--cores", str(min(4, os.cpu_count()))]
    command += [*TARGETS, "results/mine/kernel_overhead/bad/notebook.html"]
    with open(folder / "said", "w+") as said:
        # Such as a shell that a run on this machine left behind has.
        environment = os.environ | {"GPULEDGER_FORK_SERVER": f"/nowhere\n{sys.executable}"}
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=environment)
        processes = kill_a_job()
        status = process.wait()
        said.seek(0)
        return folder, status, said.read(), processes


def test_results_are_those_of_a_run_on_this_machine(run, tmp_path):
    folder, _, said, _ = run
    local = fresh_checkout(tmp_path / "checkout")
    done = snakemake(local, *TARGETS)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = digests(local)
    assert len(expected) > 10
    assert digests(folder) == expected, said[-3000:]


def test_a_killed_job_runs_again(run):
    assert "\nagain: " in run[2]


def test_bad_input_is_its_line_once_and_stops_nothing_else(run):
    _, status, said, _ = run
    assert status == 1
    assert said.count(BAD) == 1
    assert "not made: draw mine/kernel_overhead/bad" in said
    assert "Traceback" not in said and said.count("not made:") == 2


def test_jobs_of_a_cluster_run_by_themselves(run):
    assert "snakemake" in run[3]
    assert "fork_server.py" not in run[3]
