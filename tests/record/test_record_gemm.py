"""The part gemm: its shapes, rows from a profiler's events, and a resumed recording with a stand-in for PyTorch."""

import csv
import json
import sys
import types

import pytest

from gpuledger.errors import InputError
from gpuledger.record import gemm
from gpuledger.record.gemm import CHUNK, LONG_FLOP, MOST_FLOP, REFERENCE, TABLE, Call, calls_of, rows_of, shapes

NAME = "nvjet_sm90_tst_128x64_64x6_2x1_v_bz_TNT"
REDUCTION = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)"


def events(calls, operator="aten::mm", split=lambda call: False, lost=()):
    """Make up what the profiler sees: kernels take as many µs as m, reductions 2, in reverse order."""
    found = []
    for at, call in enumerate(calls):
        found.append({"cat": "cpu_op", "name": operator, "ts": at, "args": {"External id": at + 7}})
        about = {"External id": at + 7, "grid": [4, 3, 1], "block": [384, 1, 1]}
        about |= {"registers per thread": 168, "shared memory": 1000}
        if at not in lost:
            found.append({"cat": "kernel", "name": NAME, "dur": call.m + call.turn / 10, "args": about})
        if split(call):
            found.append({"cat": "kernel", "name": REDUCTION, "dur": 2.0, "args": about | {"registers per thread": 32}})
    return found[::-1]


def test_shapes_are_the_same_in_each_call_and_each_once():
    found = shapes()
    assert found == shapes() and len(found) == len(set(found)) <= 3000
    assert all(2 * m * n * k <= MOST_FLOP for m, n, k in found)
    # Llama-3.1-8B: its queries, keys and values on one GPU, and an eighth of its gates and up-projections.
    assert {(1, 6144, 4096), (1025, 3584, 4096), (4096, 32768, 32)} <= set(found)


def test_large_products_are_launched_once_and_the_reference_again_and_again():
    large, small = (4096, 28672, 4096), (64, 64, 64)
    assert LONG_FLOP < 2 * 4096 * 28672 * 4096
    calls = calls_of([small, large])
    assert calls == [Call(*REFERENCE, -1)] * 2 + [Call(*small, turn) for turn in range(3)] + [Call(*large, 0)]
    calls = calls_of([(m, 64, 64) for m in range(1, 41)])
    assert [at for at, call in enumerate(calls) if call.turn < 0] == [0, 1, 62, 63]


def test_a_row_has_the_kernel_and_the_times_of_its_launches():
    calls = calls_of([(3, 64, 64), (9, 64, 512)])
    found = rows_of(events(calls, split=lambda call: call.k == 512), calls, "bfloat16", before=5)
    assert [row["order"] for row in found] == [5, 6]
    first, second = found
    expected = {"gemm_dtype": "bfloat16", "m": 3, "n": 64, "k": 64, "kernel": NAME, "grid_x": 4, "grid_y": 3}
    assert first.items() >= expected.items() and first["registers"] == 168 and first["threads"] == 384
    # Durations in ns; the second launch is the latency (ms), with its reduction.
    assert (first["first_ns"], first["third_ns"], first["latency"]) == (3000, 3200, "0.003100")
    assert second["latency"] == "0.011100" and second["second_reduction_ns"] == 2000
    assert second["reference_ns"] == 1000 * REFERENCE[0] - 100 and "first_reduction_ns" not in first


def test_a_launch_that_the_profiler_lost_leaves_out_its_shape_alone():
    calls = calls_of([(3, 64, 64), (9, 64, 64), (5, 64, 64)])
    # Behind two launches of the reference product, the fourth is the second one of 3 × 64 × 64.
    found = rows_of(events(calls, lost=(3,)), calls, "bfloat16", 0)
    assert [row["m"] for row in found] == [9, 5]


def test_operators_that_are_not_the_calls_are_one_line():
    calls = calls_of([(3, 64, 64)])
    with pytest.raises(InputError, match="4 operators aten::mm for 5 calls"):
        rows_of(events(calls[:-1]), calls, "bfloat16", 0)


class Profile:
    """Stand-in for torch.profiler.profile, which writes events of the products called within it."""

    def __init__(self, torch):
        self.torch, self.before = torch, len(torch.called)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.calls = self.torch.called[self.before :]

    def export_chrome_trace(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events(self.calls, self.torch.operator)}, file)


class Tensor:
    """Stand-in for a tensor, of which only the shape is known."""

    def __init__(self, *shape):
        self.shape = shape

    def __getitem__(self, part):
        return Tensor(part.stop)

    def view(self, *shape):
        assert shape[0] * shape[1] == self.shape[0]
        return Tensor(*shape)

    def t(self):
        return Tensor(*self.shape[::-1])

    def to(self, dtype):
        return self

    def mul_(self, factor):
        return self


def fake_torch(monkeypatch, capability=(9, 0)):
    torch = types.ModuleType("torch")
    torch.called, torch.operator = [], ""

    def product(x, w, out, operator="aten::mm", **options):
        assert x.shape[1] == w.shape[0] and out.shape == (x.shape[0], w.shape[1])
        torch.operator = operator
        torch.called.append(Call(x.shape[0], w.shape[1], x.shape[1], 0))

    torch.mm = product
    torch._scaled_mm = lambda x, w, **more: product(x, w, more["out"], "aten::_scaled_mm")
    torch.bfloat16, torch.float8_e4m3fn, torch.manual_seed = "bf16", "fp8", lambda seed: None
    torch.randn = torch.empty = lambda size, device, dtype: Tensor(size)
    torch.ones = lambda size, device: Tensor()
    torch.cuda = types.SimpleNamespace(
        get_device_name=lambda number: "NVIDIA H200",
        get_device_capability=lambda number: capability,
        synchronize=lambda: None,
    )
    activity = types.SimpleNamespace(CPU=0, CUDA=1)
    torch.profiler = types.SimpleNamespace(ProfilerActivity=activity, profile=lambda activities: Profile(torch))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def read(folder):
    with (folder / TABLE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_all_shapes_are_recorded_in_both_types(monkeypatch, tmp_path):
    torch = fake_torch(monkeypatch)
    recorded = gemm.record_gemm(tmp_path)
    rows = read(tmp_path)
    assert [row["order"] for row in rows] == [str(number) for number in range(2 * len(shapes()))]
    assert {(row["gemm_dtype"], int(row["m"]), int(row["n"]), int(row["k"])) for row in rows} == {
        (dtype, *shape) for dtype in gemm.OPERATORS for shape in shapes()
    }
    assert recorded.cases["gemm_tiles"] == {"cublas": {"launches": TABLE, "gpu": "NVIDIA H200"}}
    assert recorded.cases["kernel_time"]["gemm"]["unit"] == "ms" and TABLE in recorded.notes
    made = len(torch.called)
    assert gemm.record_gemm(tmp_path) == recorded and len(torch.called) == made, "nothing is recorded again"


def test_an_older_gpu_records_16_bits_alone(monkeypatch, tmp_path):
    fake_torch(monkeypatch, (8, 0))
    gemm.record_gemm(tmp_path)
    assert {row["gemm_dtype"] for row in read(tmp_path)} == {"bfloat16"}


def test_a_recording_that_ended_in_the_middle_goes_on(monkeypatch, tmp_path):
    torch = fake_torch(monkeypatch, (8, 0))
    profile, chunks = torch.profiler.profile, []

    def ending(activities):
        chunks.append(1)
        if len(chunks) == 3:
            raise KeyboardInterrupt
        return profile(activities)

    torch.profiler.profile = ending
    with pytest.raises(KeyboardInterrupt):
        gemm.record_gemm(tmp_path)
    assert len(read(tmp_path)) == 2 * CHUNK
    with (tmp_path / TABLE).open("a", encoding="utf-8") as file:
        file.write("bfloat16,1,64")  # a line of which the end was never written
    torch.profiler.profile = profile
    gemm.record_gemm(tmp_path)
    rows = read(tmp_path)
    assert sorted((int(row["m"]), int(row["n"]), int(row["k"])) for row in rows) == sorted(shapes())
    assert [int(row["order"]) for row in rows] == list(range(len(shapes())))
