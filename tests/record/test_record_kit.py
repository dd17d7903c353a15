"""The kit for machines with a GPU: unpacked elsewhere, in a Python with NumPy and little else, without network."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import record_fakes
from conftest import PATIENCE_S, ROOT

from gpuledger.ledger.datasets import Dataset
from gpuledger.record import kit

TORCH = """
__version__ = "2.11.0"
version = type("version", (), {"cuda": "13.0"})
def zeros(size, device):
    assert device == "cuda"
"""
NSYS = """#!{python} -SE
import sqlite3, sys
output = next(word for word in sys.argv if word.startswith("--output=")).partition("=")[2]
sqlite3.connect(output + ".sqlite").execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A kit, packed, carried elsewhere and unpacked."""
    folder = tmp_path_factory.mktemp("kit")
    assert kit.main([str(folder / "gpu-kit")]) == 0
    subprocess.run(["tar", "czf", "kit.tgz", "gpu-kit"], cwd=folder, check=True)
    (folder / "elsewhere").mkdir()
    subprocess.run(["tar", "xzf", "../kit.tgz"], cwd=folder / "elsewhere", check=True)
    shutil.rmtree(folder / "gpu-kit")
    return folder / "elsewhere/gpu-kit"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A virtual environment with NumPy and a stand-in for PyTorch."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in Path(np.__file__).parents[1].glob("numpy*"):
        (site / package.name).symlink_to(package)
    (site / "torch.py").write_text(TORCH)
    (site / "nvidia/cu13/lib").mkdir(parents=True)
    (site / "nvidia/cu13/lib/libnvrtc.so.13").touch()
    return folder / "bin/python"


def record(made, python, tools, *arguments, cwd="/"):
    """Run the kit's script with stand-ins for the tools and, where that is permitted, without network."""
    cut = ["unshare", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*cut, "true"], capture_output=True, check=False).returncode:
        cut = []
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHON": str(python), "HOME": os.environ.get("HOME", "/")}
    command = [*cut, made / "record.sh", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def tools(tmp_path):
    return record_fakes.install(tmp_path / "bin")


def test_a_kit_is_small_and_whole(made):
    assert len((made / "README").read_text().splitlines()) == 5
    assert sum(path.stat().st_size for path in made.rglob("*")) < 1_500_000 < kit.MOST_BYTES
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=made, check=True)
    assert not list(made.rglob("__pycache__")) and not (made / "src/gpuledger/studies").exists()
    pins = (made / "wheels.txt").read_text()
    assert pins.startswith("numpy==") and pins.count("--hash=sha256:") > 5 and pins.count("==") == 1


def test_a_kit_plans_without_site_packages_and_network(made, python, tools):
    done = record(made, python, tools, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (total,) = (line for line in lines if "min planned" in line)
    assert float(total.split()[1]) <= 25
    left_out = [line.split()[1] for line in lines if "left out here" in line]
    assert left_out == ["neutrino"], done.stdout
    assert sum(line.startswith(f"{tools}/ncu") for line in lines) == 6 + 9


def test_a_kit_records_a_dataset(made, python, tools, tmp_path):
    copy = shutil.copytree(made, tmp_path / "kit")
    done = record(copy, python, tools, "counters")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counters recorded" in done.stdout and "counters recorded" in (copy / "record.log").read_text()
    subprocess.run(["tar", "xzf", copy / "recorded.tgz", "-C", tmp_path], check=True)
    dataset = Dataset.load(tmp_path / "traces/nvidia-h200/dataset.yaml")
    assert dataset.cases() == [("flop_reconciliation", "toy_network")]
    (tools / "ncu_fails").write_text(json.dumps({"always": {"log": "==ERROR== ERR_NVGPUCTRPERM\n"}}))
    done = record(copy, python, tools, "sweep_gpt2")
    assert done.returncode == 1 and "ERR_NVGPUCTRPERM" in done.stdout, "the script's status is the recorder's"


def test_a_kit_goes_on_where_another_machine_stopped(made, tools, tmp_path):
    """What comes back of a call is one archive, and the next machine has nothing else of it."""
    recorder = tmp_path / "python"
    recorder.write_text(
        f"#!{sys.executable} -SE\nimport pathlib, sys\n"
        "for name in ('whole.csv', '.probes.partial/made/step'):\n"
        "    path = pathlib.Path('traces/gpu', name)\n    path.parent.mkdir(parents=True, exist_ok=True)\n"
        "    with path.open('a') as file: file.write('made\\n')\n"
        "    print(name, path.read_text().count('made'))\n"
        "sys.exit(3)\n"
    )
    recorder.chmod(0o755)
    for call in (1, 2):
        copy = shutil.copytree(made, tmp_path / f"kit_{call}")
        if call == 2:
            shutil.copy(tmp_path / "kit_1/recorded.tgz", copy)
            (copy / "recorded.tgz").chmod(0o444)
        done = record(copy, recorder, tools)
        assert done.returncode == 3 and done.stdout.split("\n")[:2] == [
            f"whole.csv {call}", f".probes.partial/made/step {call}"
        ]  # fmt: skip
    assert (copy / "record.log").read_text().count("whole.csv") == 2
    said = subprocess.run(["tar", "tzf", copy / "recorded.tgz"], capture_output=True, text=True, check=True).stdout
    assert "traces/gpu/.probes.partial/made/step" in said and not (copy / ".packed").exists()


def test_a_program_is_recorded_where_it_is_called(made, python, tools, tmp_path):
    (tmp_path / "mine").mkdir()
    (tools / "nsys").write_text(NSYS.format(python=sys.executable))
    (tools / "nsys").chmod(0o755)
    target = ["python3", "-m", "gpuledger.record.workloads.toy_network", "--point=forward"]
    done = record(made, python, tools, "--for", "flops", "--", *target, cwd=tmp_path / "mine")
    assert done.returncode == 0, done.stdout + done.stderr
    dataset = Dataset.load(tmp_path / "mine/traces/nvidia-h200-toy_network/dataset.yaml")
    assert sorted(dataset.cases()) == [("kernel_breakdown", "toy_network"), ("kernel_profile", "toy_network")]
    assert (tmp_path / "mine/recorded.tgz").is_file() and not (made / "traces").exists()


def test_a_folder_that_is_no_kit_is_kept(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    assert kit.main([str(tmp_path / "mine")]) == 1
    assert "is not a recording kit; name another folder" in capsys.readouterr().err
    (tmp_path / "mine/record.sh").touch()
    (tmp_path / "mine/recorded.tgz").touch()
    assert kit.main([str(tmp_path / "mine")]) == 1
    assert "the kit holds a recording; move it away" in capsys.readouterr().err
    assert (tmp_path / "mine/recorded.tgz").is_file()


def test_a_kit_that_is_too_large_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kit, "MOST_BYTES", 100_000)
    assert kit.main([str(tmp_path / "kit")]) == 1
    assert "MB, more than 0.1; make it without wheels" in capsys.readouterr().err


def test_make_offers_it():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "gpu-kit " in said
    said = subprocess.run(["make", "-n", "gpu-kit", "FOLDER=x", "WHEELS=1"], cwd=ROOT, capture_output=True, text=True)
    assert "-m gpuledger.record.kit x --wheels" in said.stdout


def test_ctrl_c_ends_the_recorder_and_packs_what_is_complete(made, tmp_path):
    recorder = tmp_path / "python"
    recorder.write_text(
        f"#!{sys.executable} -SE\nimport pathlib, time\npathlib.Path('traces').mkdir()\n"
        "try:\n    print('recording', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n    raise SystemExit(130) from None\n"
    )
    recorder.chmod(0o755)
    folder = shutil.copytree(made, tmp_path / "kit")
    # As in a terminal, also where the tests run in the background of a script, which ignores SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [folder / "record.sh"], env={"PATH": "/usr/bin:/bin", "PYTHON": str(recorder)}, text=True,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, handler)
    assert process.stdout.readline() == "recording\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S)[0] == "interrupted\n"
    assert process.returncode == 130
    assert (folder / "record.log").read_text().endswith("recording\ninterrupted\n")
    assert (folder / "recorded.tgz").is_file()
