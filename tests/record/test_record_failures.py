"""What tools say when they fail, as recorded from them, and what a user is told."""

import json
import platform
import sys

import pytest
import record_fakes
from own_cases import refused
from record_fakes import calls, made

from gpuledger.errors import InputError
from gpuledger.record import device, failures, profiler, session

tools = record_fakes.tools
# Outputs of ncu 2022 to 2026, nvidia-smi and PyTorch 2 as they are printed in public reports of the failures.
RECORDED = {
    "permission": (
        "==PROF== Connected to process 9012 (/usr/local/bin/my-benchmark)\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
        "the target device 0. For instructions on enabling permissions and to get more information see "
        "https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
        "==PROF== Disconnected from process 9012\n==WARNING== No kernels were profiled.\n",
        "not permitted (ERR_NVGPUCTRPERM)",
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    "busy_counters": (
        "==ERROR== An error was reported by the driver\n\n==ERROR== Profiling failed because a driver resource was "
        "unavailable. Ensure that no other tool (like DCGM) is concurrently collecting profiling data. See "
        "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for more details.\n"
        '==ERROR== Failed to profile "risk_battle_kernel" in process 7508\n',
        "another tool holds the GPU's counters",
        "dcgmi profstart/--pause",
    ),
    "library": (
        "==ERROR== An error was reported by the counter measurement library:\n==ERROR== Failed to initialize the "
        "profiler: LibraryNotLoaded. Check that a compatible driver library is loaded.\n==PROF== Trying to shutdown "
        "target application\n==ERROR== The application returned an error code (9).\n",
        "LibraryNotLoaded",
        "fits the driver",
    ),
    "mig_clocks": (
        "==ERROR== Cannot lock GPU clock frequencies on MIG! Try locking the clocks externally (e.g. using 'nvidia-smi "
        "--lock-gpu-clocks=tdp,tdp') or profile without fixed frequencies (see '--clock-control').\n",
        "does not let ncu lock its clocks",
        "clock_control: none",
    ),
    "driver_too_old_for_ncu": (
        "==ERROR== Cuda driver is not compatible with Nsight Compute.\n==ERROR== Failed to load Nsight Compute CUDA "
        "modules.\n",
        "ncu and the driver are incompatible",
        "update the driver",
    ),
    "lock": (
        "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this process has write "
        "permissions on this file. See https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for more "
        'details.\n==ERROR== Failed to profile "vectorized_elementwise_kernel" in process 2323392\n'
        "==PROF== Trying to shutdown target application\n==ERROR== The application returned an error code (9).\n",
        "its lock file /tmp/nsight-compute-lock",
        "TMPDIR",
    ),
    "other_cuda": (
        "==ERROR== Failed to prepare kernel for profiling\n==ERROR== Unknown Error on device 0.\n"
        '==ERROR== Failed to profile "distribution_elementwise_grid..." in process 3929334\n'
        "==ERROR== The application returned an error code (9).\n",
        "cannot profile on this GPU",
        "CUDA version of PyTorch",
    ),
    "no_memory_to_replay": (
        "==WARNING== Backing up device memory in system memory. Kernel replay might be slow.\n==ERROR== UnknownError\n"
        '==ERROR== Failed to profile "scale_f32" in process 1322774\n==ERROR== No kernels were profiled.\n',
        "cannot profile on this GPU",
        "CUDA version of PyTorch",
    ),
    "unknown_metric": (
        "==PROF== Connected to process 20101 (/usr/bin/python3.10)\n"
        "==ERROR== Failed to find metric regex:^flop_count_sp\\.(sum|min|max|avg|pct|ratio|max_rate)$\n",
        "does not know the metric regex:^flop_count_sp",
        "newer ncu",
    ),
    "no_driver": (
        "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).\n"
        "==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n",
        "no working NVIDIA driver",
        "nvidia-smi",
    ),
    "no_driver_query": ("==ERROR== Driver could not be loaded.\n", "no working NVIDIA driver", "nvidia-smi"),
    "smi_driver": (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "NVIDIA driver is installed and running.\n",
        "no working NVIDIA driver",
        "nvidia-smi",
    ),
    "smi_mismatch": (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n",
        "different versions",
        "reboot",
    ),
    "smi_nvml": ("Failed to initialize NVML: Unknown Error\n", "management library", "--gpus"),
    "smi_no_device": ("No devices were found\n", "finds no GPU", "CUDA_VISIBLE_DEVICES"),
    "memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.64 "
        "GiB of which 1.25 GiB is free.\n==ERROR== The application returned an error code (1).\n",
        "memory is full",
        "more memory",
    ),
    "busy_device": (
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n",
        "another process has exclusive use of the GPU",
        "CUDA_VISIBLE_DEVICES",
    ),
    "torch_missing": ("ModuleNotFoundError: No module named 'torch'\n", "PyTorch is not installed", "record.python"),
    "nvrtc_missing": (
        "gpuledger.errors.InputError: GPU: NVRTC is not installed; install PyTorch with CUDA\n",
        "NVRTC, CUDA's run-time compiler, is not installed",
        "CUDA toolkit",
    ),
    "other_missing": ("ModuleNotFoundError: No module named 'pandas'\n", "has no pandas", "docs/GPU.md"),
    "torch_cpu": ("AssertionError: Torch not compiled with CUDA enabled\n", "without CUDA", "CUDA build"),
    "torch_driver": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU "
        "driver\n",
        "driver is too old for this PyTorch",
        "update the driver",
    ),
    "torch_no_driver": (
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a "
        "driver\n",
        "no working NVIDIA driver",
        "nvidia-smi",
    ),
    "torch_architecture": (
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\n",
        "no kernels for this GPU",
        "install a PyTorch",
    ),
    "program": (
        "==ERROR== 'nosuchprogram' does not exist or is not an executable. Please make sure to specify the absolute "
        "path to 'nosuchprogram' if the executable is not in the local directory.\n",
        "cannot start the workload's Python",
        "record.python",
    ),
    "option": (
        "unrecognised option '--nosuch'\n\nUse --help for further details.\n",
        "does not support the option --nosuch",
        "update Nsight Compute",
    ),
    "value": (
        "the argument for option '--clock-control' is invalid\n\nUse --help for further details.\n",
        "does not support the option --clock-control",
        "correct `record`",
    ),
    "no_kernels": (
        "==PROF== Connected to process 1 (/usr/bin/python3.12)\n==PROF== Disconnected from process 1\n"
        "==WARNING== No kernels were profiled.\n",
        "no kernels were profiled",
        "runs on the GPU",
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_known_failures_are_named_with_the_fix(name):
    said, problem, remedy = RECORDED[name]
    found = failures.explain(said)
    assert problem in found[0]
    assert remedy in found[1]
    assert "\n" not in "".join(found)


def test_every_known_failure_has_been_seen():
    first = {
        next(number for number, (pattern, *_) in enumerate(failures.KNOWN) if pattern.search(said))
        for said, *_ in RECORDED.values()
    }
    assert first == set(range(len(failures.KNOWN)))


def test_unknown_failures_are_quoted():
    assert failures.explain("Traceback\nZeroDivisionError: division by zero") is None
    said = "working\nRuntimeError: it rained\n==ERROR== The application returned an error code (1).\nbye"
    assert failures.last_words(said) == "RuntimeError: it rained"
    assert failures.last_words("") == "it printed nothing"


@pytest.mark.parametrize("name", ["permission", "busy_counters", "library", "other_cuda", "no_kernels", "memory"])
def test_a_failing_ncu_leaves_one_line_and_no_file(tools, tmp_path, name):
    said, problem, remedy = RECORDED[name]
    log, printed = ("", said) if name == "memory" else (said, "")
    status = 0 if name == "no_kernels" else 1
    answer = {"log": log, "printed": printed, "status": status}
    (tools / "ncu_fails").write_text(json.dumps({"always": answer}))
    _, failed = made(tools, tmp_path / "out", ["counters"])
    message = str(failed["counters"])
    assert problem in message
    assert remedy in message
    assert "toy_network_setup.csv, ncu: " in message
    assert "\n" not in message
    assert not list((tmp_path / "out").rglob("*.csv"))
    assert not (tmp_path / "out/dataset.yaml").exists()


@pytest.mark.parametrize(
    ("name", "tried"), [("permission", 1), ("busy_counters", 1), ("library", 1), ("lock", 1), ("other_cuda", 3)]
)
def test_an_ncu_that_may_not_count_is_not_asked_by_every_part(tools, tmp_path, name, tried):
    """Each part took the time of a start of PyTorch to hear the same again."""
    said, problem, _ = RECORDED[name]
    (tools / "ncu_fails").write_text(json.dumps({"always": {"log": said, "status": 1}}))
    target, failed = made(tools, tmp_path / "out")
    assert list(failed) == list(record_fakes.COUNTED) and len(calls(tools)) == tried
    assert all(problem in target.left_out[part] for part in failed)


def test_an_ncu_that_cannot_be_used_is_looked_at_once(tools, tmp_path):
    (tools / "ncu").write_text(f"#!/bin/sh\necho $* >> {tools}/asked\necho '==ERROR== Driver could not be loaded.'\n")
    _, failed = made(tools, tmp_path / "out")
    assert list(failed) == list(record_fakes.COUNTED)
    assert (tools / "asked").read_text() == "--version\n"


def test_an_error_beside_a_table_is_an_error(tools, tmp_path):
    table = '"ID","Kernel Name","a__b.sum"\n"","","inst"\n"0","k","1"\n==ERROR== LaunchFailed\n'
    (tools / "ncu_fails").write_text(json.dumps({"always": {"log": table, "status": 0}}))
    with pytest.raises(InputError, match="cannot profile"):
        profiler.profile(profiler.find_ncu(), ["a__b.sum"], ["x"], profiler.Control(), {"": tmp_path / "t.csv"})
    assert not (tmp_path / "t.csv").exists()


def test_a_hanging_ncu_is_ended(tools, tmp_path):
    ncu = profiler.find_ncu()
    (tools / "ncu").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    with pytest.raises(InputError, match=r"not finished after"):
        profiler.profile(ncu, ["a__b.sum"], ["x"], profiler.Control(), {"": tmp_path / "t.csv"}, seconds=0.2)


@pytest.mark.parametrize("name", ["torch_missing", "torch_cpu", "torch_driver", "torch_no_driver", "busy_device"])
def test_a_pytorch_that_cannot_use_the_gpu_says_so_before_anything_is_recorded(tools, tmp_path, name):
    said, problem, remedy = RECORDED[name]
    (tools / "said").write_text(json.dumps([{"python": "3.12.3", "nvrtc": "13.0"}, {"torch": said}]))
    (tools / "torch-python").write_text(f"#!/bin/sh\n/bin/cat {tools}/said\n")
    _, failed = made(tools, tmp_path / "out", ["counters"])
    assert problem in str(failed["counters"])
    assert remedy in str(failed["counters"])
    assert calls(tools) == []
    # Parts that need NVRTC alone can still be recorded.
    found = session.find_tools(str(tools / "torch-python"), {"nvrtc"})
    assert found.used(["nvrtc"]) == {"python": "3.12.3", "nvrtc": "13.0"}


def test_the_question_to_a_python_is_one_that_it_understands():
    found = session.find_tools(sys.executable, {"torch", "nvrtc"})
    assert found.versions["python"] == platform.python_version()
    for name in {"torch", "nvrtc"} & set(found.errors):
        assert "Error" in found.errors[name]
    with pytest.raises(InputError, match="instead of its versions"):
        session.find_tools("/bin/echo", set())


def test_parts_without_pytorch_do_not_wait_for_its_start(tmp_path, monkeypatch):
    """On an H200 it took 6 to 10 s of each call."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('it was started')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "it was started" in session.find_tools(sys.executable, {"torch", "ncu"}).errors["torch"]
    asked = session.find_tools(sys.executable, {"nvrtc", "ncu"})
    assert "torch" not in asked.errors and ("nvrtc" in asked.errors or "nvrtc" in asked.versions)


def test_a_setting_that_changes_what_is_measured_is_not_passed_on(monkeypatch):
    """An image may set either, as NVIDIA's and those for debugging do."""
    code = "import os; print(*map(os.environ.get, ('NVIDIA_TF32_OVERRIDE', 'CUDA_LAUNCH_BLOCKING')))"
    for name in ("NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING"):
        monkeypatch.setenv(name, "1")
    assert session.run_captured([sys.executable, "-c", code], "here", 60) == "0 0\n"


def test_a_python_that_dies_without_a_word_is_said_to(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\nkill -SEGV $$\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(InputError, match=r"record\.python: its process ended with status -11; fix the cause"):
        session.find_tools(str(tmp_path / "python"), {"torch"})


def test_a_python_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot be started .*record.python of config/config.yaml"):
        session.find_tools(str(tmp_path / "python"), {"torch"})


@pytest.mark.parametrize("name", ["smi_driver", "smi_mismatch", "smi_nvml", "smi_no_device"])
def test_a_failing_driver_is_named(tools, name):
    said, problem, remedy = RECORDED[name]
    (tools / "smi_fails").write_text(said)
    with refused(problem, remedy):
        device.find_device()
