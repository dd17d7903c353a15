"""Recording a user's program, with stand-ins for nvidia-smi, ncu, nsys and PyTorch."""

import gzip
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import record_fakes
import yaml
from ncu_values import wide
from record_fakes import calls

from gpuledger.readers import ncu as ncu_reader
from gpuledger.record import __main__ as recorder
from gpuledger.record import command, metrics, plan, profiler

tools = record_fakes.tools
TOY = ["python3", "-m", "gpuledger.record.workloads.toy_network", "--point=forward", "--key=secret"]
TORCH = """
import json, sys, types
class Profile:
    def __init__(self, activities, record_shapes):
        assert activities == ["cpu", "cuda"] and record_shapes
    def start(self):
        self.events = ["started"]
    def stop(self):
        self.events.append("stopped")
    def export_chrome_trace(self, path):
        open(path, "w").write(json.dumps({"traceEvents": self.events, "argv": sys.argv, "kernel": {"cat": "kernel"}}))
profiler = types.SimpleNamespace(profile=Profile, ProfilerActivity=types.SimpleNamespace(CPU="cpu", CUDA="cuda"))
sys.modules["torch.profiler"] = profiler
"""
NSYS = """#!{python} -SE
import sqlite3, sys
output = next(word for word in sys.argv if word.startswith("--output=")).partition("=")[2]
assert "--cuda-graph-trace=node" in sys.argv
database = sqlite3.connect(output + ".sqlite")
database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'secret-host')")
database.execute("CREATE TABLE META_DATA_CAPTURE AS SELECT 'CLI' AS name, '--token=secret-host' AS value")
database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
database.commit()
"""


@pytest.fixture
def uncounted(tools, monkeypatch):
    """No ncu, and a stand-in for PyTorch; returns where it is."""
    (tools / "ncu").unlink()
    monkeypatch.setattr(profiler, "PLACES", ())
    (tools / "torch").mkdir()
    (tools / "torch/__init__.py").write_text(TORCH)
    os.environ["PYTHONPATH"] = str(tools)
    return tools


def timeline_in(folder):
    ((_, case),) = dataset(folder)["studies"]["kernel_breakdown"].items()
    assert case["timeline"].endswith(".json.gz")
    return json.loads(gzip.decompress((folder / case["timeline"]).read_bytes()))


def dataset(folder):
    return yaml.safe_load((folder / "dataset.yaml").read_text("utf-8"))


def test_counters_of_a_program_become_a_dataset(tools, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(plan, "_counters_are_restricted", lambda: False)
    monkeypatch.chdir(tmp_path)
    os.environ["CUDA_VISIBLE_DEVICES"] = "1,2"
    assert recorder.main(["--for", "roofline,stalls", "--", *TOY]) == 0
    folder = tmp_path / "traces/nvidia-h200-toy_network"
    content = dataset(folder)
    assert content["studies"] == {"kernel_profile": {"toy_network": {"report": "kernel_profile/toy_network.csv"}}}
    assert content["device"] == {"name": "NVIDIA H200", "compute_capability": "9.0"}
    assert "Nsight Compute 2025.3.1" in content["source"]
    report = ncu_reader.read(folder / "kernel_profile/toy_network.csv")
    assert wide(report, [metrics.NEEDED[2]]).iloc[:, -1].sum() > 0
    (call,) = calls(tools)
    assert call[-len(TOY) :] == TOY
    asked = call[call.index("--metrics") + 1].split(",")
    assert {"gpu__time_duration.sum", "dram__bytes_op_read.sum", "dram__bytes_write.sum", *metrics.NEEDED} < set(asked)
    assert "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32.sum" in asked
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2", "the program keeps all its GPUs"
    for path in folder.rglob("*"):
        assert not path.is_file() or "secret" not in path.read_text("utf-8"), path


def test_a_dry_run_prints_command_lines_and_runs_nothing(tools, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plan, "_counters_are_restricted", lambda: False)
    monkeypatch.chdir(tmp_path)
    given = ["--range", "step", "--kernel", "gemm|flash", "--skip", "2", "--launches", "50", "--replay", "application"]
    given += ["--clock", "base", "--dry-run"]
    assert recorder.main([*given, "--", "python", "my train.py", "--lr", "1"]) == 0
    counters, timeline = capsys.readouterr().out.strip().splitlines()
    assert counters.startswith(str(tools / "ncu"))
    assert "timeline_of.py" in timeline and timeline.endswith("'my train.py' --lr 1")
    assert recorder.main([*given, "--no-timeline", "--", "python", "my train.py", "--lr", "1"]) == 0
    (line,) = capsys.readouterr().out.strip().splitlines()
    words = shlex.split(line)
    assert words[0] == str(tools / "ncu") and words[-4:] == ["python", "my train.py", "--lr", "1"]
    for option in (
        *("--nvtx --nvtx-include step/", "--kernel-name regex:gemm|flash", "--launch-skip 2 --launch-count 50"),
        *("--clock-control base --cache-control all --replay-mode application", "--target-processes all"),
    ):
        assert option in " ".join(words)
    assert "--profile-from-start" not in words, "a user's program does not call cudaProfilerStart"
    assert calls(tools) == [] and not (tmp_path / "traces").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--launches", "-5"), "'-5' is no number of launches"),
        (("--minutes", "nan"), "'nan' is no time"),
        (("--minutes", "0"), "'0' is no time"),
        (("--kernel", "gemm("), "'gemm(' is no regular expression"),
        (("--kernel", "k{018446744073709551616}"), "is no regular expression (the repetition number is too large)"),
    ],
)
def test_impossible_options_are_refused(capsys, option, words):
    with pytest.raises(SystemExit) as end:
        recorder.main(["=".join(option), "--dry-run", "--", "./a.out"])
    assert end.value.code == 2 and words in capsys.readouterr().err


def test_a_dry_run_needs_neither_gpu_nor_tools(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(profiler, "PLACES", ())
    profiler.find_ncu.cache_clear()
    assert recorder.main(["--for", "flops", "--dry-run", "--", "./a.out"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert "Nsight Compute is not installed" in "".join(line for line in lines if line.startswith("#"))
    (line,) = (line for line in lines if not line.startswith("#"))
    assert line.startswith("ncu --csv") and set(metrics.NEEDED) <= set(
        line.split("--metrics ")[1].split()[0].split(",")
    )


def test_a_dry_run_without_ncu_shows_what_would_record_the_timeline(monkeypatch, tmp_path, capsys):
    """It said twice that ncu is missing, and nothing of torch.profiler, which records in its place."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(profiler, "PLACES", ())
    profiler.find_ncu.cache_clear()
    assert recorder.main(["--dry-run", "--", "python", "train.py"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert sum(line.startswith("# ncu: ") for line in lines) == 1
    counters, timeline = (line for line in lines if not line.startswith("#"))
    assert counters.startswith("ncu --csv") and "timeline_of.py" in timeline and timeline.endswith(" train.py")


@pytest.mark.parametrize(
    ("program", "argv"),
    [
        (["script.py", "--lr", "1"], ["script.py", "--lr", "1"]),
        (["-m", "script", "1"], None),
        (["-c", "import sys; assert __name__ == '__main__'; print(sys.argv)", "1"], ["-c", "1"]),
    ],
)
def test_without_counters_pytorch_records_a_timeline(uncounted, tmp_path, monkeypatch, program, argv):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").touch()
    (tmp_path / "script.py").write_text("import beside\nassert __name__ == '__main__'\nopen('ran', 'a').write('1')\n")
    assert recorder.main(["--folder", "out", "--", sys.executable, *program]) == 0
    (name,) = dataset(tmp_path / "out")["studies"]["kernel_breakdown"]
    assert name == ("python" if program[0] == "-c" else "script")
    timeline = timeline_in(tmp_path / "out")
    assert timeline["traceEvents"] == ["started", "stopped"]
    assert argv is None or timeline["argv"] == argv
    assert program[0] == "-c" or (tmp_path / "ran").read_text() == "1"


@pytest.fixture
def counted(uncounted, tmp_path, monkeypatch):
    """Both: counters and the stand-in for PyTorch."""
    record_fakes.install(tmp_path / "again")
    (tmp_path / "again/ncu").rename(uncounted / "ncu")
    for name in ("ncu_version", "ncu_metrics"):
        (tmp_path / "again" / name).replace(uncounted / name)
    monkeypatch.setattr(plan, "_counters_are_restricted", lambda: False)
    monkeypatch.chdir(tmp_path)
    return uncounted


def test_a_python_program_gets_counters_and_a_timeline(counted, tmp_path, capsys):
    """On an H200 without nsys it got counters alone, and kernel_breakdown nothing."""
    program = ["--", sys.executable, "-c", "open('runs', 'a').write('1')"]
    assert recorder.main(["--folder", "out", *program]) == 0
    assert list(dataset(tmp_path / "out")["studies"]) == ["kernel_breakdown", "kernel_profile"]
    assert timeline_in(tmp_path / "out")["traceEvents"] == ["started", "stopped"]
    assert (tmp_path / "runs").read_text() == "1", "the stand-in for ncu does not run the program"
    assert recorder.main(["--folder", "counters", "--no-timeline", *program]) == 0
    assert list(dataset(tmp_path / "counters")["studies"]) == ["kernel_profile"]


def test_the_range_that_is_counted_is_the_step_of_the_timeline(counted, tmp_path, caplog):
    """Without it, the page of an H200's decode steps was about the whole program, which drew random weights first."""
    stub = counted / "torch/__init__.py"
    event = """{"ph": "X", "cat": "user_annotation", "name": "decode (step) ü", "pid": 1}"""
    stub.write_text(stub.read_text().replace('"kernel": {', f'"event": {event}, "kernel": {{'))
    stub.write_text(stub.read_text().replace('"kernel"}})', '"kernel"}}, ensure_ascii=False)'))
    program = ["--", sys.executable, "-c", "pass"]
    for number, (given, step) in enumerate((("decode (step) ü", True), ("decode .step", False), ("decode/", False))):
        assert recorder.main(["--folder", f"out{number}", "--range", given, *program]) == 0
        (case,) = dataset(tmp_path / f"out{number}")["studies"]["kernel_breakdown"].values()
        assert case.get("step") == (given if step else None)
    (said,) = (record.getMessage() for record in caplog.records if "no range" in record.getMessage())
    assert said.startswith("the timeline has no range 'decode .step'; write torch.profiler.record_function('decode .s")


@pytest.mark.parametrize("text", ["('step', NULL)", "(NULL, 7)"], ids=["text", "by number"])
def test_a_range_of_nsys_is_the_step_of_the_timeline(uncounted, tmp_path, monkeypatch, text):
    more = f"""for line in (
    "CREATE TABLE NVTX_EVENTS (text TEXT, textId INTEGER)", "INSERT INTO NVTX_EVENTS VALUES {text}",
    "CREATE TABLE StringIds (id INTEGER, value TEXT)", "INSERT INTO StringIds VALUES (7, 'step')",
):
    database.execute(line)
database.commit()
"""
    (uncounted / "nsys").write_text(NSYS.format(python=sys.executable) + more)
    (uncounted / "nsys").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for name, given in (("out", "step"), ("other", "steps")):
        assert recorder.main(["--folder", name, "--range", given, "--", "./my-program"]) == 0
        (case,) = dataset(tmp_path / name)["studies"]["kernel_breakdown"].values()
        assert case.get("step") == ("step" if given == "step" else None)


@pytest.mark.parametrize("program", [[sys.executable, "-c", "pass"], ["./a.out", "-n", "1"]])
def test_why_there_is_no_timeline_is_said(counted, tmp_path, caplog, program):
    (counted / "torch/__init__.py").unlink()
    (counted / "torch").rmdir()
    os.environ["PYTHONPATH"] = ""
    assert recorder.main(["--folder", "out", "--", *program]) == 0
    assert list(dataset(tmp_path / "out")["studies"]) == ["kernel_profile"]
    why = "install Nsight Systems, or write" if program[0] == "./a.out" else f"{program[0]} has no PyTorch"
    assert f"no timeline: {why}" in caplog.text


def test_a_pytorch_that_would_warn_of_cleared_events_is_told_to_keep_them(uncounted, tmp_path, monkeypatch):
    stub = uncounted / "torch/__init__.py"
    newer = stub.read_text().replace("record_shapes):", "record_shapes, acc_events=False):\n        assert acc_events")
    assert "acc_events" not in stub.read_text() and "assert acc_events" in newer
    stub.write_text(newer)
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", sys.executable, "-c", "pass"]) == 0


def test_a_program_without_kernels_is_one_line(uncounted, tmp_path, monkeypatch, caplog):
    stub = uncounted / "torch/__init__.py"
    stub.write_text(stub.read_text().replace('"cat": "kernel"', '"cat": "cpu_op"'))
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", sys.executable, "-c", "pass"]) == 1
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert "torch.profiler: the timeline has no kernels; check that the program launches kernels on the GPU, in" in line
    assert not (tmp_path / "out/dataset.yaml").exists()


def test_counters_that_turn_out_to_be_forbidden_do_not_cost_the_timeline(counted, tmp_path, capfd):
    (counted / "ncu_fails").write_text(json.dumps({"always": {"log": "==ERROR== ERR_NVGPUCTRPERM\n"}}))
    assert recorder.main(["--folder", "out", "--", sys.executable, "-c", "pass"]) == 1
    assert list(dataset(tmp_path / "out")["studies"]) == ["kernel_breakdown"]
    left_out = json.loads((tmp_path / "out/recording.json").read_text())["left_out"]
    assert "ERR_NVGPUCTRPERM" in left_out["ncu"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Version 2021.1.0.0 (build 1)", "version 2021.1.0.0 is too old"),
        ("==ERROR== Driver could not be loaded.", "instead of a version it prints"),
    ],
)
def test_an_ncu_that_cannot_be_used_does_not_cost_the_timeline(
    uncounted, tmp_path, monkeypatch, caplog, answer, message
):
    (uncounted / "ncu").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (uncounted / "ncu").chmod(0o755)
    monkeypatch.setattr(plan, "_counters_are_restricted", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", sys.executable, "-c", "pass"]) == 0
    assert list(dataset(tmp_path / "out")["studies"]) == ["kernel_breakdown"]
    assert f"no counters: {message}" in caplog.text


def test_nsys_records_the_timeline_where_it_is_installed(uncounted, tmp_path, monkeypatch):
    (uncounted / "nsys").write_text(NSYS.format(python=sys.executable))
    (uncounted / "nsys").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", "./my-program"]) == 0
    case = dataset(tmp_path / "out")["studies"]["kernel_breakdown"]["my_program"]
    assert b"secret-host" not in (tmp_path / "out" / case["timeline"]).read_bytes()
    with sqlite3.connect(tmp_path / "out" / case["timeline"]) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("CUPTI_ACTIVITY_KIND_KERNEL",)]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ('sqlite3.connect(output + ".sqlite").execute("CREATE TABLE StringIds (id INTEGER)")',
         "nsys: the timeline has no kernels; check that"),
        ('open(output + ".qdstrm", "w")', "nsys recorded a timeline but cannot export it: this installation has no"),
        # As of an nsys that does not know --cuda-graph-trace; it says so itself.
        ("sys.exit(3)", "written (status 3); run it without gpuledger and fix its error; if nsys refused an option,"),
    ],
)  # fmt: skip
def test_a_timeline_that_lacks_something_is_one_line(uncounted, tmp_path, monkeypatch, caplog, made, message):
    (uncounted / "nsys").write_text("\n".join([*NSYS.format(python=sys.executable).splitlines()[:3], made]))
    (uncounted / "nsys").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", "./my-program"]) == 1
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert message in line and not (tmp_path / "out/dataset.yaml").exists()


def test_a_python_program_gets_another_timeline_where_nsys_cannot_export(uncounted, tmp_path, monkeypatch):
    stub = [*NSYS.format(python=sys.executable).splitlines()[:3], 'open(output + ".qdstrm", "w")']
    (uncounted / "nsys").write_text("\n".join(stub))
    (uncounted / "nsys").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", sys.executable, "-c", "pass"]) == 1
    assert timeline_in(tmp_path / "out")["traceEvents"] == ["started", "stopped"]


@pytest.fixture
def sigint():
    """A way to set what Ctrl-C does, until the test ends: the tests may run in the background themselves."""
    handler = signal.getsignal(signal.SIGINT)
    yield lambda wanted: signal.signal(signal.SIGINT, wanted)
    signal.signal(signal.SIGINT, handler)


def test_ctrl_c_keeps_what_is_whole(uncounted, tmp_path, monkeypatch, sigint):
    sigint(signal.default_int_handler)
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n")

    def interrupt():
        while not Path("begun").is_file():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert recorder.main(["--folder", "out", "--", sys.executable, "slow.py"]) == 130
    thread.join()
    content = dataset(tmp_path / "out")
    path = content["studies"]["kernel_breakdown"]["slow"]["timeline"]
    assert timeline_in(tmp_path / "out")["traceEvents"] == ["started", "stopped"]
    assert content["files"][path]["note"] == "Ended by Ctrl-C: what was recorded until then."


@pytest.fixture
def once_begun(monkeypatch):
    """Time runs from when the program has made the file `begun`: a busy machine may take longer to start it."""
    wait = subprocess.Popen.wait

    def wait_once_begun(process, timeout=None):
        while process.poll() is None and not Path("begun").is_file():
            time.sleep(0.02)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_once_begun)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def test_time_that_is_up_ends_a_program(uncounted, once_begun, tmp_path, monkeypatch, sigint, handler):
    sigint(handler)
    monkeypatch.chdir(tmp_path)
    program = "import time\ntry:\n    open('begun', 'w')\n    time.sleep(600)\nfinally:\n    open('asked', 'w')"
    assert recorder.main(["--folder", "out", "--minutes", "0.001", "--", sys.executable, "-c", program]) == 0
    assert Path("asked").is_file(), "it was killed without being asked to end"
    assert "after its time" in json.dumps(dataset(tmp_path / "out")["files"])


#: What ncu's log says of a program that ends, beside what is counted.
CONNECTED = "==PROF== Connected to process 4242 (/usr/bin/python3.12)\n==PROF== Disconnected from process 4242\n"
NOTHING = "==WARNING== No kernels were profiled.\n"
RETURNED = "==ERROR== The application returned an error code (3).\n"
FIX = "; run it without gpuledger and fix its error"


@pytest.mark.parametrize(
    ("log", "status", "message"),
    [
        (CONNECTED, 1, f"python, ncu: the program ended with status 1 before a kernel was counted{FIX}"),
        ("", 1, f"the program ended with status 1 before a kernel was counted{FIX}"),
        (CONNECTED + RETURNED + NOTHING, 1, f"the program ended with status 3 before a kernel was counted{FIX}"),
        (CONNECTED + NOTHING, 0, "no kernels were profiled; check that the workload runs on the GPU"),
        (CONNECTED, 0, "ncu wrote no table; check ncu's options"),
        ("==ERROR== It rained.\n" + RETURNED, 1, "ncu failed (status 1): ==ERROR== It rained.; fix the cause"),
        ("==ERROR== ERR_NVGPUCTRPERM\n" + RETURNED + NOTHING, 1, "not permitted (ERR_NVGPUCTRPERM); as an"),
    ],
)
def test_a_program_that_failed_under_ncu_is_told_from_ncu(counted, tmp_path, caplog, log, status, message):
    """On an H100, one whose memory was full was told to check ncu's options."""
    (counted / "ncu_fails").write_text(json.dumps({"always": {"log": log, "status": status}}))
    assert recorder.main(["--folder", "out", "--no-timeline", "--", sys.executable, "-c", "pass"]) == 1
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert message in line and "\n" not in line and not (tmp_path / "out/dataset.yaml").exists()


def test_an_ncu_that_was_killed_is_not_a_program_that_failed(counted, tmp_path, caplog):
    ncu = (counted / "ncu").read_text()
    (counted / "ncu").write_text(
        ncu.replace("    sys.exit(failure", "    os.kill(os.getpid(), 9)\n    sys.exit(failure")
    )
    (counted / "ncu_fails").write_text(json.dumps({"always": {"log": ""}}))
    assert recorder.main(["--folder", "out", "--no-timeline", "--", sys.executable, "-c", "pass"]) == 1
    assert "python, ncu: ncu failed (status -9): it printed nothing" in caplog.text


def test_a_program_that_failed_before_its_kernels_is_not_told_to_launch_some(uncounted, tmp_path, monkeypatch, caplog):
    stub = uncounted / "torch/__init__.py"
    stub.write_text(stub.read_text().replace('"cat": "kernel"', '"cat": "cpu_op"'))
    monkeypatch.chdir(tmp_path)
    assert recorder.main(["--folder", "out", "--", sys.executable, "-c", "raise SystemExit(3)"]) == 1
    assert f"the timeline has no kernels: the program ended with status 3{FIX}" in caplog.text


@pytest.fixture
def endless(counted, once_begun):
    """ncu counts a program that never ends, in no time; returns where ncu is."""
    (counted / "ncu").rename(counted / "ncu-counts")
    (counted / "ncu").write_text(f"""#!/bin/sh
{counted}/ncu-counts "$@"
case $1 in --csv) > begun; exec /bin/sleep 600 ;; esac
""")
    (counted / "ncu").chmod(0o755)
    return counted


def test_no_timeline_is_begun_without_time_for_it(endless, tmp_path, caplog, sigint):
    """On an H100, it was begun, had to be killed, and the program was told to fix its error."""
    sigint(signal.default_int_handler)
    given = ["--folder", "out", "--minutes", "0.001", "--", sys.executable, "-c", "open('runs', 'a').write('1')"]
    assert recorder.main(given) == 1
    assert not Path("runs").exists()
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert line == (
        "python, torch.profiler: --minutes 0.001 left no time for the timeline; give more, and let the program end "
        "within them"
    )
    content = dataset(tmp_path / "out")
    assert list(content["studies"]) == ["kernel_profile"] and "after its time" in json.dumps(content["files"])
    assert "left no time" in json.loads((tmp_path / "out/recording.json").read_text())["left_out"]["kineto"]


def test_both_runs_share_the_time(counted, tmp_path, monkeypatch):
    given, run_whole, now = [], command.run_whole, [1000.0]

    def run_slowly(words, seconds, environment):
        given.append(seconds)
        now[0] += 40
        return run_whole(words, None, environment)

    monkeypatch.setattr(command, "run_whole", run_slowly)
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    assert recorder.main(["--folder", "out", "--minutes", "1", "--", sys.executable, "-c", "pass"]) == 0
    assert given == [60, 20]


@pytest.mark.parametrize("asked", ["ignored", "too early for a kernel"])
def test_a_program_that_ran_out_of_time_is_not_told_to_fix_its_error(
    uncounted, once_begun, tmp_path, monkeypatch, caplog, sigint, asked
):
    sigint(signal.default_int_handler)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_GRACE_S", 0.5)
    stub = uncounted / "torch/__init__.py"
    stub.write_text(stub.read_text().replace('"cat": "kernel"', '"cat": "cpu_op"'))
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if asked == "ignored" else ""
    program = f"{ignore}import time; open('begun', 'w'); time.sleep(600)"
    assert recorder.main(["--folder", "out", "--minutes", "0.001", "--", sys.executable, "-c", program]) == 1
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    why = "no timeline was written before" if asked == "ignored" else "the timeline has no kernels:"
    assert line == (
        f"python, torch.profiler: {why} the program was ended after its time; give it more time, or fewer steps to do"
    )


def test_a_run_under_ncu_that_ended_before_its_first_kernel_says_so(endless, tmp_path, caplog, sigint):
    sigint(signal.default_int_handler)
    (endless / "ncu_fails").write_text(json.dumps({"always": {"log": CONNECTED + NOTHING, "status": 0}}))
    given = ["--folder", "out", "--no-timeline", "--minutes", "0.001", "--", "./a.out"]
    assert recorder.main(given) == 1
    assert "a_out, ncu: no kernel was counted before the program was ended after its time; give it more" in caplog.text


def test_a_table_that_is_cut_off_keeps_its_whole_rows():
    table = '"ID","Kernel Name","a__b.sum"\n"","","inst"\n"0","k","12"\n"1","k"'
    text, counted = profiler.publishable(table, ["a__b.sum"], "x.csv", whole=False)
    assert counted.launches == 1 and text.endswith('"0","k","12"\n')


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--"], "there is none; write it after --"),
        (["--for", "flosp", "--", "x"], "unknown purpose 'flosp'; choose from flops, roofline"),
        (["--", "./a.out"], "neither counters nor a timeline can be recorded"),
        (["--", "python"], "install Nsight Systems, or write the command as: python SCRIPT"),
        (["--", "python", "-u", "x.py"], "install Nsight Systems"),
    ],
)
def test_what_cannot_be_recorded_is_said_in_one_line(uncounted, tmp_path, monkeypatch, capsys, given, message):
    monkeypatch.chdir(tmp_path)
    assert recorder.main(given) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "traces").exists()
