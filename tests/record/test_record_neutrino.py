"""Source-level probes beside binary ones, with a stand-in for Neutrino that writes trace directories as it does."""

import csv
import json
import os
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from compiled import needs_compiler
from emulation import EmulatedRunner, run_on_cpu
from fake_driver import FakeDriver
from own_cases import reduced

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Dataset
from gpuledger.record import neutrino, plan
from gpuledger.record.parts import PARTS, Recorded
from gpuledger.record.probes import exposed, plain, traces, workloads
from gpuledger.studies.kernel_overhead.compared import COLUMNS, UNITS

#: Leaves what a process under Neutrino leaves: a trace directory named after its start, from the folder `ready` beside
#: it. `faults` names what goes wrong.
NEUTRINO = """#!{python} -SE
import shutil, sys
from pathlib import Path
here = Path(__file__).parent
faults = (here / "faults").read_text().split()
given = sys.argv[1:]
tool, folder = given[given.index("-p") + 1], Path(given[given.index("--tracedir") + 1])
at = given.index("-m")
assert given[at - 1] == {python!r}
assert given[at + 1 :] == ["gpuledger.record.probes.plain", "gemm", "128"]
if "no-" + tool in faults:
    sys.exit("tool " + tool + " not found")
if "empty" not in faults:
    kind = "benchmark" if "--benchmark" in given else "half" if "half" in faults else "trace"
    probe = "tensorop_count" if tool == "tensorop" else tool
    shutil.copytree(here / "ready" / probe / kind, folder / "Nov22_081500_4242")
"""


@pytest.fixture(scope="module")
def launches():
    """A GEMM with each probe, run on the CPU once."""
    return {probe: EmulatedRunner().run(workloads.gemm(128), probe) for probe in neutrino.PROBES}


@pytest.fixture
def installed(tmp_path, monkeypatch, launches):
    """A stand-in for Neutrino on the PATH, and a GPU that is emulated; returns the file for faults."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "neutrino").write_text(NEUTRINO.format(python=sys.executable))
    (folder / "neutrino").chmod(0o755)
    (folder / "faults").touch()
    for probe, launched in launches.items():
        ready = folder / "ready" / probe
        traces.write_directory(ready / "trace", launched)
        traces.write_directory(ready / "benchmark", launched, trace="", benchmark=True)
        fewer = launched.records[probe].copy()
        fewer[:, fewer.shape[1] // 2 :] = 0
        traces.write_directory(ready / "half", replace(launched, records={probe: fewer}))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(neutrino.cuda, "open_device", lambda: None)
    runner = SimpleNamespace(run=lambda workload, probe: launches[probe])
    monkeypatch.setattr(neutrino, "Runner", lambda device: runner)
    monkeypatch.setattr(neutrino, "SIZES", {"gemm": 128})
    return folder / "faults"


def as_dataset(folder, made: Recorded):
    content = {"title": "t", "kind": "recorded", "source": "s", "license": "facts", "studies": made.cases}
    (folder / "dataset.yaml").write_text(json.dumps(content))
    return Dataset.load(folder / "dataset.yaml")


@needs_compiler
def test_both_kinds_of_probes_are_compared_and_traces_drop_in_as_they_are(installed, tmp_path):
    installed.write_text("no-tensorop_count")  # renamed in later releases
    folder = tmp_path / "traces"
    made = neutrino.record_neutrino(folder)
    rows = {(row["workload"], row["probe"]): row for row in made.about["compared"]}
    assert len(rows) == 3
    for (workload, probe), row in rows.items():
        assert row["records_source"] == row["records_binary"], (workload, probe)
        assert row["registers_source"] == row["registers_binary"] == 46 - 40
    # Three matrices of fp16, each once; 128³ by products of 16·8·16, each counted by 32 lanes.
    assert rows["gemm", "gmem_bytes"]["value_binary"] == rows["gemm", "gmem_bytes"]["value_source"] == 3 * 2 * 128**2
    assert rows["gemm", "tensorop_count"]["value_binary"] == 32 * 128**3 / (16 * 8 * 16)
    assert rows["gemm", "block_sched"]["records_source"] == 8 and rows["gemm", "block_sched"]["value_binary"] > 0
    with open(folder / neutrino.TABLE, newline="") as table:
        assert [row["probe"] for row in csv.DictReader(table)] == [*neutrino.PROBES]
    dataset = as_dataset(folder, made)
    assert sorted(dataset.cases()) == [
        ("block_scheduling", "neutrino_gemm"), ("kernel_overhead", "neutrino")
    ]  # fmt: skip
    assert not [path for path in folder.rglob("*") if "4242" in path.name], "the number of a process"
    assert {path.parent.parent.name for path in folder.rglob("*.bin")} == {"block_sched"}, "records that studies read"
    blocks = reduced(dataset.case("block_scheduling", "neutrino_gemm"))
    assert blocks["blocks"] == 1
    costs = reduced(dataset.case("kernel_overhead", "neutrino"))
    assert costs["registers_mean"] == 6 and costs["operators"] == 1
    assert costs["compared"] == costs["compared_with_equal_records"] == 3
    assert costs["gemm_gmem_bytes_value_binary"] == rows["gemm", "gmem_bytes"]["value_binary"]


def test_the_table_is_the_one_that_the_study_reads():
    assert [field.name for field in fields(neutrino.Compared)] == [column.name for column in COLUMNS]
    assert [*neutrino.PROBES] == [*UNITS]


def test_what_is_kept_of_a_trace_directory_says_nothing_of_the_machine(tmp_path):
    made = tmp_path / "out" / "Nov_22_08_15_00_4242"
    for name in ("kernel/0_ab/probed.ptx", "kernel/0_ab/kernel.info", "result/0.5.bin"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(b"k\n1\n1\n0,8\n/home/me/tools/hook.py\n")
    python = f"{sys.executable} /home/me/neutrino/probe/cuda.py"
    (made / "event.log").write_bytes(
        f"[pid] 4242\n[cmd] 9 {sys.executable} -m mine \xff\n[jit] subproc {python} {made}/kernel/0_ab k\n".encode(
            "latin-1"
        )
        + f"[exec] save {made}/result/0.5.bin size 1\n".encode()
    )
    (made / "kernel/0_ab/process.log").write_text(
        f'k\nptxas -arch=sm_90 {made}/kernel/0_ab/probed.ptx\n  File "/home/me/p.py", 1/2 of\n'
        "# Neutrino Auto-Generated Code for Trace Reading\nimport struct\n"
    )
    kept = neutrino.keep_logs(neutrino.neutrino.open_trace_directory(made), made.parent, traces=True)
    assert [path.relative_to(made.parent).as_posix() for path in sorted(made.parent.rglob("*")) if path.is_file()] == [
        "event.log", "kernel/0_ab/kernel.info", "kernel/0_ab/process.log", "result/0.5.bin"
    ]  # fmt: skip
    called = Path(sys.executable).name
    assert (kept.folder / "event.log").read_bytes().decode("latin-1").splitlines() == [
        "[pid] 0", f"[cmd] 9 {called} -m mine \xff", f"[jit] subproc {called} cuda.py kernel/0_ab k",
        "[exec] save result/0.5.bin size 1",
    ]  # fmt: skip
    log = (kept.folder / "kernel/0_ab/process.log").read_text()
    assert log == 'k\nptxas -arch=sm_90 kernel/0_ab/probed.ptx\n  File "p.py", 1/2 of\n'
    assert (kept.folder / "kernel/0_ab/kernel.info").read_text().endswith("\nhook.py\n")


@needs_compiler
def test_records_that_are_missing_are_told(installed, tmp_path, caplog):
    installed.write_text("half")
    made = neutrino.record_neutrino(tmp_path / "traces")
    rows = {row["probe"]: row for row in made.about["compared"]}
    assert rows["block_sched"]["records_binary"] == rows["block_sched"]["records_source"] / 2
    assert "gemm, block_sched: 8 records with the source-level probe, 4 with Neutrino's" in caplog.text


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("no-block_sched", r"block_sched: tool block_sched not found"),
        ("empty", r"neutrino, -p block_sched: wrote 0 trace directories"),
    ],
)
@needs_compiler
def test_a_neutrino_that_fails_is_one_line(installed, tmp_path, faults, message):
    installed.write_text(faults)
    with pytest.raises(InputError, match=message):
        neutrino.run_neutrino(tmp_path / "out", "block_sched", "gemm", 128)


@needs_compiler
def test_a_trace_without_registers_says_so(installed, launches, tmp_path):
    directory = neutrino.run_neutrino(tmp_path / "out", "block_sched", "gemm", 128)
    (log,) = directory.folder.glob("kernel/*/process.log")
    log.write_text("None\n[objdump] bin is ptx\ngemm\n")
    own = launches["block_sched"].records["block_sched"]
    with pytest.raises(InputError, match=r"no process\.log states registers"):
        neutrino.compare("gemm", "block_sched", own, 6, traces.neutrino.open_trace_directory(directory.folder))


def test_without_neutrino_the_part_is_left_out_and_nothing_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert plan.lacking(PARTS["neutrino"], "some python") == plan._NO_NEUTRINO
    assert [name for name, part in PARTS.items() if part.optional] == ["neutrino"]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that runs the kernels' sources on the CPU."""
    return FakeDriver(partial(run_on_cpu, set())).install(monkeypatch)


@needs_compiler
def test_a_plain_launch_is_loaded_as_ptx_and_checked(gpu, monkeypatch):
    plain.main("fill", "64")
    assert gpu.log == ["use 0", "memset", "launch fill"], "one launch, for one trace"
    assert gpu.images == ["fill.cu compute_90 " + gpu.images[0].partition("compute_90 ")[2]]
    monkeypatch.setattr(workloads.ProbeWorkload, "largest_error", lambda *_: 1.0)
    with pytest.raises(InputError, match="result is wrong"):
        plain.main("fill", "64")


@needs_compiler
def test_the_program_that_a_user_waits_for_is_profiled_at_its_second_launch(gpu, tmp_path):
    exposed.main("fill", "64", str(tmp_path / "wait"))
    assert float((tmp_path / "wait").read_text()) > 0
    assert [what for what in gpu.log if what.startswith(("launch", "profiler"))] == [
        "launch fill", "profiler on", "launch fill", "profiler off"
    ]  # fmt: skip
