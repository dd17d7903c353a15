"""The command lines of a recording against an installed ncu and nsys, which read options before looking for a GPU."""

import re
import shlex
import shutil
import subprocess

import pytest
import record_fakes

from gpuledger.record import __main__ as recorder
from gpuledger.record import metrics, plan, profiler

tools = record_fakes.tools
CHIPS = ("ga100", "gh100")
GMMA = "sm__inst_executed_pipe_tensor_op_gmma.sum"
#: What ncu says of options that it cannot use, before it looks for a driver, a GPU and the right to count.
WRONG = r"unrecogni[sz]ed|[Ii]nvalid|--help|did not match"
PROGRAM = ["--for", ",".join(metrics.PURPOSES), "--range", "step", "--kernel", "gemm|flash", "--skip", "2"]
PROGRAM += ["--launches", "50", "--replay", "application", "--clock", "base", "--dry-run"]


@pytest.fixture(scope="module")
def ncu():
    found = shutil.which("ncu")
    if found is None:
        pytest.skip("ncu is not installed: its options are not checked")
    profiler.find_ncu.cache_clear()
    return found


@pytest.fixture(scope="module")
def planned(ncu):
    """By chip, ncu's command lines of all parts and of a program."""
    lines = {}
    for chip in CHIPS:
        with pytest.MonkeyPatch.context() as patch:
            said = []
            patch.setattr("builtins.print", lambda *words, said=said, **_: said.extend(map(str, words)))
            assert recorder.main(["--dry-run", "--chip", chip]) == 0
            assert recorder.main([*PROGRAM, "--chip", chip, "--", "python", "train.py"]) == 0
        commands = [shlex.split(line) for line in said if not line.startswith("#")]
        lines[chip] = [words for words in commands if words[0].endswith("ncu")]
        assert len(lines[chip]) == 1 + 5 + 9 + 1
    return lines


def asked(words):
    return words[words.index("--metrics") + 1].split(",")


@pytest.mark.parametrize("chip", CHIPS)
def test_ncu_accepts_every_option(planned, chip, tmp_path):
    """ncu only looks at metrics when a kernel is launched: they are checked below."""
    own = {tuple(words[1 : words.index("--log-file")]) for words in planned[chip]}
    without = {tuple(word if place == 0 or options[place - 1] != "--metrics" else "gpu__time_duration.sum"
                     for place, word in enumerate(options)) for options in own}  # fmt: skip
    for options in without:
        log = tmp_path / "log.csv"
        command = ["ncu", *options, "--log-file", str(log), "/bin/true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr + (log.read_text() if log.is_file() else "")
        assert "==" in said and not re.search(WRONG, said), said


def test_ncu_refuses_an_option_that_it_does_not_know(ncu):
    done = subprocess.run([ncu, "--nvtx-ranges", "/bin/true"], capture_output=True, text=True, check=False)
    assert done.returncode and re.search(WRONG, done.stdout + done.stderr)


@pytest.mark.parametrize("chip", CHIPS)
def test_ncu_knows_every_metric_with_its_suffix(planned, chip):
    full = {metric for words in planned[chip] for metric in asked(words)}
    command = ["ncu", "--query-metrics-mode", "suffix", "--chips", chip]
    command += ["--metrics", ",".join(sorted(map(metrics.base_name, full)))]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^([a-z]\w+__[\w.]+) ", listed, re.MULTILINE))
    assert len(full) > 60 and full - known == set()
    # Nothing is left out but what this version of ncu lacks: Hopper's matrix instructions.
    assert set(metrics.choose(metrics.SWEEP, profiler.find_ncu(chip).metrics)[1]) <= {GMMA}


def test_ncu_has_the_sections(planned):
    listed = subprocess.run(["ncu", "--list-sections"], capture_output=True, text=True, check=True).stdout
    words = planned["gh100"][-1]
    sections = {words[place + 1] for place, word in enumerate(words) if word == "--section"}
    assert sections == {"LaunchStats", "Occupancy"} <= set(listed.split())


def test_a_chip_that_ncu_does_not_know_is_named(ncu, capsys):
    assert recorder.main(["counters", "--dry-run", "--chip", "zz100"]) == 0
    assert "no metrics for zz100: " in capsys.readouterr().out


def test_nsys_records_a_program_without_kernels_and_what_is_missing_is_said(
    tools, tmp_path, monkeypatch, capfd, caplog
):
    """Real options; the outcome depends on whether this nsys can export, and is one line in either case."""
    program = shutil.which("nsys", path="/usr/bin:/usr/local/bin:/usr/local/cuda/bin")
    if program is None:
        pytest.skip("nsys is not installed: its options are not checked")
    (tools / "nsys").write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin exec {program} "$@"\n')
    (tools / "nsys").chmod(0o755)
    monkeypatch.setattr(plan, "counters_lack", lambda: ("no ncu", "x"))
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", "/bin/echo", "computed on the CPU"]) == 1
    said = capfd.readouterr()
    assert "computed on the CPU" in said.out and "unrecognised" not in said.err
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert re.fullmatch(
        r"echo, nsys: (nsys recorded a timeline but .* no importer|the timeline has no kernels).*; .*", line
    )
    assert not (tmp_path / "out/dataset.yaml").exists()
