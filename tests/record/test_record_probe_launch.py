"""Launching probed kernels: the real runner on a stand-in for CuPy that runs the kernels' sources on the CPU."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from emulation import EmulatedGpu, needs_compiler

from gpuledger.errors import InputError
from gpuledger.readers.neutrino import PAGE_BYTES
from gpuledger.readers.neutrino.records import saved
from gpuledger.record import cuda
from gpuledger.record.probes import launch, workloads
from gpuledger.record.probes.cases import Sizes
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.steps import record_steps

DEVICE = cuda.CudaDevice(0, "emulated GPU", "9.0", 4, 1 << 20, 1 << 30, 1_000_000_000)
FILL, GEMM, ATTENTION = workloads.fill(64, 512), workloads.gemm(128), workloads.attention(2, 128)


@pytest.fixture
def gpu(monkeypatch):
    found = EmulatedGpu()
    monkeypatch.setattr(cuda, "cupy", lambda: found)
    monkeypatch.setattr(cuda, "load_module", found.load_module)
    return found


@needs_compiler
@pytest.mark.parametrize(("workload", "probe"), [(FILL, "block_sched"), (GEMM, "dmat"), (ATTENTION, "timeline")])
def test_a_run_brings_back_what_the_probe_saved(gpu, workload, probe):
    launched = Runner(DEVICE).run(workload, probe)
    assert all(saved(records).any() for records in launched.records.values())
    assert launched.kernel_ms == launched.original_ms == 0.5 and launched.architecture == "sm_90"
    assert all(address % PAGE_BYTES == 0 for address in launched.addresses.values())


@needs_compiler
@pytest.mark.parametrize("probe", ["none", "block_sched"])
@pytest.mark.parametrize("workload", [FILL, ATTENTION], ids=lambda workload: workload.name)
def test_a_kernel_that_writes_nothing_is_found_out_with_and_without_its_probe(gpu, workload, probe):
    gpu.fails[probe] = "nothing"
    with pytest.raises(InputError, match="result is wrong"):
        Runner(DEVICE).run(workload, "block_sched")


@needs_compiler
def test_the_flush_is_the_last_thing_before_a_timed_launch(gpu):
    Runner(DEVICE).run(FILL, "gmem_bytes", repeats=2)
    timed = [gpu.log[i - 1 : i + 3] for i, what in enumerate(gpu.log) if what == "record"][::2]
    assert [what[2] for what in timed] == ["launch none", "launch gmem_bytes"] * 2
    assert all((what[0], what[1], what[3]) == ("flush", "record", "record") for what in timed), gpu.log


@needs_compiler
def test_each_launch_allocates_its_probe_s_memory_alone(gpu):
    runner = Runner(DEVICE)
    launched = runner.run(workloads.fill(256, 512), "program_progress", repeats=3)
    size = launched.records["program_progress"].nbytes
    assert size == 256 * 128 * 128 * 8 and gpu.most_bytes == size, "never twice at a time"
    assert gpu.log.count("free") == 3, "nor from a pool: a user's launch finds none"


@needs_compiler
def test_blocks_that_share_an_sm_are_counted_before_it_is_said_of_them(gpu):
    runner = Runner(DEVICE)
    # 228 KiB of an SM; of each block CUDA keeps 1 KiB and 40 KiB are static.
    for blocks, dynamic in ((1, 227 - 40), (2, 113 - 40)):
        gpu.resident = blocks
        assert runner.run(workloads.gemm(128, blocks), "block_sched").dynamic_bytes == 1024 * dynamic
    gpu.resident = 1
    with pytest.raises(InputError, match="runs 1 of its blocks at once, not 2"):
        runner.run(workloads.gemm(128, 2), "block_sched")
    assert runner.resident_blocks(FILL) == DEVICE.sms


def test_an_older_gpu_is_told_what_it_lacks(gpu):
    runner = Runner(replace(DEVICE, compute_capability="7.5"))
    with pytest.raises(InputError, match=r"gemm_128: .*compute capability 7\.5; record on a GPU of 8\.0"):
        runner.run(GEMM, "dmat")
    assert runner.resident_blocks(FILL) == 8, "zeros need no tensor cores"


def test_shared_memory_is_asked_for_before_the_launch_and_preferred_to_l1(monkeypatch):
    asked = []
    occupancy = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda *what: asked.append(what) or 2)
    monkeypatch.setattr(cuda, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(driver=occupancy)))
    about = {"num_regs": 40, "local_size_bytes": 0, "shared_size_bytes": 1024, "max_threads_per_block": 1024}
    function = SimpleNamespace(**about, kernel=SimpleNamespace(ptr=77))
    kernel = cuda.LoadedKernel("gemm", function)
    kernel.allow_shared(0)
    assert function.max_dynamic_shared_size_bytes == 0 and not hasattr(function, "preferred_shared_memory_carveout")
    kernel.allow_shared(190 * 1024)
    assert function.max_dynamic_shared_size_bytes == 190 * 1024 and function.preferred_shared_memory_carveout == 100
    assert kernel.blocks_per_sm(256, 1024) == 2 and asked == [(77, 256, 1024)]


class Steps:
    """Steps that write a file each, with a log of their calls and a remedy for none."""

    def __init__(self, *names):
        self.calls, self.fails, self.dead, self.device = [], {}, False, DEVICE
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
    steps.fails["b"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        steps.go(tmp_path)
    assert steps.calls == ["a", "b"] and "study/a/whole.bin" in steps.files(tmp_path)
    steps.fails.clear()
    steps.calls.clear()
    assert list(steps.go(tmp_path)["study"]) == ["a", "b", "c"]
    assert steps.calls == ["c", "b"], "a is not made again"
    assert steps.files(tmp_path) == ["study/a/whole.bin", "study/b/whole.bin", "study/c/whole.bin"]


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
