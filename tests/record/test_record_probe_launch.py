"""Launching probed kernels: the real runner on a stand-in for the driver that runs the kernels' sources on the CPU."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from compiled import needs_compiler
from emulation import STATIC_BYTES, EmulatedRunner, run_on_cpu
from fake_driver import FakeDriver

from gpuledger.errors import InputError
from gpuledger.readers.neutrino import PAGE_BYTES
from gpuledger.readers.neutrino.records import saved
from gpuledger.record import cuda, driver
from gpuledger.record.probes import cases, launch, workloads
from gpuledger.record.probes.cases import Sizes
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.steps import record_steps

FILL, GEMM, ATTENTION = workloads.fill(64, 512), workloads.gemm(128), workloads.attention(2, 128)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that runs the sources of the kernels on the CPU; `fails` are probes with which they write nothing."""
    fails = set()
    static = {"gemm": STATIC_BYTES}
    found = FakeDriver(partial(run_on_cpu, fails), lambda image, name: static.get(name, 0))
    found.fails = fails
    return found.install(monkeypatch)


@pytest.fixture
def runner(gpu):
    return Runner(cuda.open_device())


@needs_compiler
@pytest.mark.parametrize(("workload", "probe"), [(FILL, "block_sched"), (GEMM, "dmat"), (ATTENTION, "timeline")])
def test_a_run_brings_back_what_the_probe_saved(runner, workload, probe):
    launched = runner.run(workload, probe)
    assert all(saved(records).any() for records in launched.records.values())
    assert launched.kernel_ms == launched.original_ms == 0.5 and launched.plain.arch == "sm_90"
    assert all(address % PAGE_BYTES == 0 for address in launched.addresses.values())


@needs_compiler
@pytest.mark.parametrize("probe", ["none", "block_sched"])
@pytest.mark.parametrize("workload", [FILL, ATTENTION], ids=lambda workload: workload.name)
def test_a_kernel_that_writes_nothing_is_found_out_with_and_without_its_probe(gpu, runner, workload, probe):
    gpu.fails.add(probe)
    with pytest.raises(InputError, match="result is wrong"):
        runner.run(workload, "block_sched")


@needs_compiler
@pytest.mark.parametrize("workload", [FILL, workloads.gemm(128, 2)], ids=lambda workload: workload.name)
def test_a_timed_launch_follows_a_flush_by_reading_and_the_clock_is_measured_after_it(gpu, runner, workload):
    """Between the events is the launch alone: its function is configured before, which may take the driver longer."""
    launched = runner.run(workload, "gmem_bytes", repeats=2)
    starts = [index for index, what in enumerate(gpu.log) if what == "record"][::2]
    timed = [gpu.log[index - 1 : index + 4] for index in starts]
    launch = f"launch {workload.function}"
    assert timed == [["launch read_all", "record", launch, "record", "launch measure_clock"]] * 6, gpu.log
    assert launched.clock_mhz == 1500, "not the 1980 MHz that the driver names as the maximum"


@needs_compiler
def test_the_first_launch_of_a_probed_kernel_does_not_count(gpu, runner, monkeypatch):
    run, seen = gpu.run, []

    def slow_at_first(image, *launch):
        seen.append(image)
        return run(image, *launch) * (10 if "PROBE_GMEM_BYTES" in image and seen.count(image) == 1 else 1)

    monkeypatch.setattr(gpu, "run", slow_at_first)
    assert runner.run(FILL, "gmem_bytes").kernel_ms == 0.5


def test_an_empty_kernel_and_a_memset_are_timed_like_any_other(gpu, runner):
    assert runner.empty_ns() == 3000 and runner.memset_ns(1000) == 10
    # Once more for each of the two, so that the SM clock rises.
    assert gpu.log.count("launch read_all") - 2 == gpu.log.count("launch measure_clock") == 40


@needs_compiler
def test_each_launch_allocates_its_probe_s_memory_alone(gpu, runner):
    launched = runner.run(workloads.fill(256, 512), "program_progress", repeats=3)
    size = launched.records["program_progress"].nbytes
    assert size == 256 * 128 * 128 * 8 and gpu.most_bytes == size, "never twice at a time"


@needs_compiler
def test_blocks_that_share_an_sm_are_counted_before_it_is_said_of_them(gpu, runner, monkeypatch):
    # 228 KiB of an SM; of each block CUDA keeps 1 KiB and 40 KiB are static.
    for blocks, dynamic in ((1, 227 - 40), (2, 113 - 40)):
        gpu.resident = blocks
        assert runner.run(workloads.gemm(128, blocks), "block_sched").dynamic_bytes == 1024 * dynamic
    with monkeypatch.context() as patch:
        # A driver that keeps 2 KiB of each block.
        patch.setattr(gpu, "resident_blocks", lambda _, threads, size: 228 // (2 + 40 + size // 1024))
        assert runner.run(workloads.gemm(128, 2), "block_sched").dynamic_bytes == 1024 * (112 - 40)
    gpu.resident = 1
    with pytest.raises(InputError, match="runs 1 of its blocks at once, not 2"):
        runner.run(workloads.gemm(128, 2), "block_sched")
    assert runner.resident_blocks(FILL) == 132


@needs_compiler
def test_a_launch_without_shared_memory_is_not_configured_like_the_one_before(gpu, runner):
    """The driver keeps attributes with the function: a carveout that one launch needs must not stay for the next."""
    gpu.resident = 2
    for blocks_per_sm, carveout in ((2, 100), (0, -1), (2, 100)):
        runner.run(workloads.gemm(128, blocks_per_sm), "block_sched")
        assert {found[driver.SHARED_CARVEOUT_PERCENT] for found in gpu.attributes("gemm")} == {carveout}
    assert len(gpu.attributes("gemm")) == 2, "with and without the probe, however often they are loaded"


def test_an_older_gpu_is_told_what_it_lacks(gpu, runner):
    runner = Runner(replace(runner.device, compute_capability="7.5"))
    with pytest.raises(InputError, match=r"gemm_128: .*compute capability 7\.5; record on a GPU of 8\.0"):
        runner.run(GEMM, "dmat")
    assert runner.resident_blocks(FILL) == 264, "zeros need no tensor cores"


def test_the_cost_of_a_probe_that_measures_nothing_is_left_out(monkeypatch, tmp_path):
    launched = []
    monkeypatch.setattr(cases, "write_directory", lambda folder, *_, **__: launched.append(folder.parts[-3:-1]))
    runner = SimpleNamespace(run=lambda *_: None, device=SimpleNamespace(sms=4))
    cases.record_overhead(tmp_path, runner, Sizes())
    operators = {operator for operator, _ in launched}
    assert len(operators) == 3 and len(launched) == 3 * len(cases.COMPARED) - 1
    assert ("fill", "program_progress") not in launched and ("fill", "gmem_bytes") in launched


class Steps:
    """Steps that write a file each, with a log of their calls and a remedy for none."""

    def __init__(self, *names):
        self.calls, self.fails, self.dead, self.device = [], {}, False, EmulatedRunner().device
        self.steps = {name: ("study", lambda *given, name=name: self.record(name, *given)) for name in names}

    def record(self, name, folder, runner, sizes):
        self.calls.append(name)
        (folder / "study" / name).mkdir(parents=True)
        (folder / "study" / name / "half.bin").write_text("half")
        if failure := self.fails.get(name):
            raise failure
        (folder / "study" / name / "half.bin").rename(folder / "study" / name / "whole.bin")
        return {name: {"trace": f"study/{name}/whole.bin", "sizes": list(sizes.batches)}}

    def check_alive(self):
        if self.dead:
            raise InputError("GPU", "emulated", "an illegal memory access", "record again")

    def go(self, folder):
        return record_steps(folder, self, self.steps, Sizes())

    def files(self, folder):
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


REFUSED = InputError("GPU", "b", "out of memory", "free memory")


def test_what_is_recorded_is_kept_when_the_process_ends_and_what_ended_it_comes_last(tmp_path):
    steps = Steps("a", "b", "c")
    steps.fails["b"] = SystemError("stands in for a signal")
    with pytest.raises(SystemError):
        steps.go(tmp_path)
    assert steps.calls == ["a", "b"] and "study/a/whole.bin" in steps.files(tmp_path)
    steps.fails.clear()
    steps.calls.clear()
    assert list(steps.go(tmp_path)["study"]) == ["a", "b", "c"]
    assert steps.calls == ["c", "b"], "a is not made again"
    assert steps.files(tmp_path) == ["study/a/whole.bin", "study/b/whole.bin", "study/c/whole.bin"]


def test_a_step_that_ends_the_process_twice_is_left_out_and_an_interruption_is_none(tmp_path, caplog):
    steps = Steps("a", "b")
    for end in (KeyboardInterrupt(), KeyboardInterrupt(), SystemError("a signal"), SystemError("a signal")):
        steps.fails["b"] = end
        with pytest.raises(type(end)):
            steps.go(tmp_path)
    assert list(steps.go(tmp_path)["study"]) == ["a"] and steps.calls == ["a", "b", "b", "b", "b"]
    assert "b is left out: GPU, b: its process ended 2 times; report it" in caplog.text


def test_a_step_that_hangs_ends_its_process_alone(tmp_path):
    code = "import pathlib, sys, time\nfrom gpuledger.record.recording import ending_after\n"
    code += "with ending_after(60): pathlib.Path(sys.argv[1]).touch()\nwith ending_after(0.01): time.sleep(600)\n"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "before"], check=False)
    assert done.returncode == 1 and (tmp_path / "before").is_file()


def test_a_step_that_fails_twice_leaves_the_others_whole_and_no_file(tmp_path, caplog):
    steps = Steps("a", "b", "c")
    steps.fails["b"] = REFUSED
    assert list(steps.go(tmp_path)["study"]) == ["a", "c"]
    assert steps.calls == ["a", "b", "c", "b"] and steps.files(tmp_path) == ["study/a/whole.bin", "study/c/whole.bin"]
    assert "b is left out: GPU, b: out of memory; free memory" in caplog.text


def test_a_gpu_that_takes_no_more_work_ends_the_call_and_the_next_one_does_the_rest(tmp_path):
    steps = Steps("a", "b", "c")
    steps.fails["b"], steps.dead = REFUSED, True
    with pytest.raises(InputError, match="illegal memory access"):
        steps.go(tmp_path)
    assert steps.calls == ["a", "b"]
    assert list(steps.go(tmp_path)["study"]) == ["a", "c"] and steps.calls == ["a", "b", "c", "b"]


def test_nothing_recorded_is_an_error_and_other_sources_begin_anew(tmp_path):
    steps = Steps("b")
    steps.fails["b"] = REFUSED
    with pytest.raises(InputError, match="out of memory"):
        steps.go(tmp_path)
    assert steps.files(tmp_path) == []
    parts = tmp_path / "parts"
    parts.mkdir()
    made = {"begun": 1, "cases": {"study": {"b": {"trace": "gone"}}}, "failures": [], "stamp": {"sources": "others"}}
    (parts / "b.json").write_text(json.dumps(made))
    steps.fails.clear()
    assert steps.go(tmp_path)["study"]["b"]["trace"] == "study/b/whole.bin"


def test_fp16_results_of_the_recorded_sizes_are_well_within_the_tolerance():
    random = np.random.default_rng(3)
    for workload in (workloads.gemm(1024), workloads.attention(2, 4096)):
        tensors = {t.name: random.standard_normal(t.shape, np.float32).astype(np.float16) for t in workload.tensors}
        wide = {name: array.astype(np.float64) for name, array in tensors.items()}
        if "c" in tensors:
            tensors["c"] = (wide["a"] @ wide["b"].T).astype(np.float16)
        else:
            scores = wide["query"] @ wide["key"].transpose(0, 2, 1) / 8
            weights = np.exp(scores - scores.max(-1, keepdims=True)).astype(np.float16).astype(np.float64)
            out = weights @ wide["value"] / weights.sum(-1, keepdims=True)
            tensors["out"] = out.astype(np.float16)
        assert workload.largest_error(tensors) < launch.TOLERANCE / 5
