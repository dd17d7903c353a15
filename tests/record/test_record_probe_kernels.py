"""The probed CUDA kernels: what they compute and what their probes save, run on the CPU from the same source."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from compiled import needs_compiler
from emulation import SIGNATURES, VARIANT, EmulatedRunner, repeatable

from gpuledger.readers.neutrino.records import saved
from gpuledger.record import cuda
from gpuledger.record.probes import workloads
from gpuledger.record.probes.launch import PROBES

NVCC = shutil.which("nvcc")
pytestmark = needs_compiler
FILL, PERSISTENT = workloads.fill(64, 512), workloads.fill_persistent(6, 64, 512)
GEMM, ATTENTION = workloads.gemm(128), workloads.attention(2, 192)


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("workload", [FILL, PERSISTENT, GEMM, ATTENTION], ids=lambda workload: workload.name)
def test_a_kernel_computes_what_its_mathematics_says_in_any_order_of_its_threads(workload, backwards):
    tensors, _ = EmulatedRunner(backwards=backwards).execute(workload, "none")
    assert workload.largest_error(tensors) < 2e-3
    written = next(tensor.name for tensor in workload.tensors if tensor.written)
    wrong = {**tensors, written: tensors[written][::-1] + np.float16(1)}
    assert workload.largest_error(wrong) > 0.1, "the check sees results that are wrong"


def test_gemm_takes_shapes_of_several_tiles():
    tensors, _ = EmulatedRunner().execute(workloads.gemm(256), "none")
    assert workloads.gemm(256).largest_error(tensors) < 2e-3


@pytest.mark.parametrize("workload", [FILL, GEMM], ids=lambda workload: workload.name)
def test_every_warp_says_when_it_ran_and_where(workload):
    records = EmulatedRunner().run(workload, "block_sched").records["block_sched"]
    assert records.shape == (workload.blocks, workload.threads // 32, 1)
    assert (records["start"] > 0).all() and (records["elapsed"] > 0).all()
    assert np.array_equal(records["cuid"][:, 0, 0], np.arange(workload.blocks) % workload.grid[0] % 4)


def test_bytes_are_those_of_the_tensors():
    records = EmulatedRunner().run(FILL, "gmem_bytes").records["gmem_bytes"]
    assert records["sync_bytes"].sum() == FILL.tensors[0].size_bytes and not records["async_bytes"].any()
    records = EmulatedRunner().run(GEMM, "gmem_bytes").records["gmem_bytes"]
    assert records["sync_bytes"].sum() == 2 * 128 * 128, "c, once"
    assert records["async_bytes"].sum() == 2 * 2 * 128 * 128, "a and b, once: there is one tile"


def test_tensor_operations_are_those_of_the_mathematics():
    for workload in (GEMM, ATTENTION):
        records = EmulatedRunner().run(workload, "tensorop_count").records["tensorop_count"]
        # An instruction is 16×8×16 multiply-accumulates of a warp; every lane counts it.
        assert records["count"].sum() * 2 * 16 * 8 * 16 == 32 * workload.flop, workload.name


def test_accesses_are_counted_first_and_all_saved():
    runner = EmulatedRunner()
    launched = runner.run(ATTENTION, "dmat")
    # Queries, three times keys and values, 4 copies each; 16 stores of 4 bytes.
    assert launched.records["dmat"].shape == (6, 128, 4 + 3 * 8 + 16)
    assert saved(launched.records["dmat"]).all()
    touched = np.zeros(3, int)
    for index, (name, copies) in enumerate((("query", 1), ("key", 3), ("out", 1))):
        start = launched.addresses[name]
        inside = (launched.records["dmat"]["addr"] >= start) & (
            launched.records["dmat"]["addr"] < start + 2 * 2 * 192 * 64
        )
        touched[index] = inside.sum() * (4 if name == "out" else 16) - copies * 2 * 2 * 192 * 64
    assert not touched.any(), "bytes by tensor: keys are read once by every one of three blocks of a head"
    assert (np.diff(launched.records["dmat"]["clock"].astype(np.int64), axis=-1) > 0).all()


def test_progress_has_a_clock_for_every_turn_of_the_loop():
    records = EmulatedRunner().run(ATTENTION, "program_progress").records["program_progress"]
    assert records.shape[-1] == 128
    assert (saved(records).sum(axis=-1) == 3).all() and (np.diff(records["clock"][..., :3].astype(int)) > 0).all()


@pytest.mark.skipif(NVCC is None, reason="no nvcc to compile CUDA sources with")
@pytest.mark.parametrize("source", ["fill.cu", "gemm.cu", "attention.cu"])
def test_nvcc_compiles_every_kernel_with_every_probe(source, tmp_path):
    """At once: most of the time goes into the compiler's own headers. Kernels are told apart by their names."""
    for name, text in repeatable(source).items():
        (tmp_path / name).write_text(text, "utf-8")
    kernels = [name for name, (place, *_) in SIGNATURES.items() if place == source]
    text = '#include "instructions.cuh"\n'
    for number, probe in enumerate(PROBES):
        renamed = "".join(f"#undef {name}\n#define {name} {probe}_{name}\n" for name in kernels)
        text += renamed + VARIANT.format(probe=number, source=source)
    (tmp_path / "all.cu").write_text(text, "utf-8")
    command = [NVCC, "--ptx", "-std=c++17", "-arch=compute_80", "-I", str(cuda.SOURCES), "-o", "all.ptx", "all.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    _, *parts = re.split(r"^\.visible \.entry (\w+)\(", (tmp_path / "all.ptx").read_text("utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    assert set(found) == {f"{probe}_{name}" for probe in PROBES for name in kernels}
    for name in kernels:
        plain = found[f"none_{name}"]
        assert "clock64" not in plain, "without a probe there is none"
        assert "clock64" in found[f"dmat_{name}"]
        if source != "fill.cu":
            assert "mma.sync.aligned.m16n8k16" in plain and "cp.async.cg" in plain


def test_a_timeline_has_starts_and_ends_around_the_clocks_of_the_same_launch():
    records = EmulatedRunner().run(ATTENTION, "timeline").records
    clocks, warps = records["warp_progress"]["clock"], records["block_sched"][..., 0]
    assert clocks.shape == (6, 4, 64) and warps.shape == (6, 4) and not clocks[..., 3:].any()
    assert (clocks[..., 0] > warps["start"]).all() and (np.diff(clocks[..., :3].astype(int)) > 0).all()
    assert (clocks[..., 2] < warps["start"] + warps["elapsed"]).all()
