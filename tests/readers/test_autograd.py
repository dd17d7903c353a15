"""Traces of torch.autograd.profiler: events without categories, and times of kernels or of operators."""

import gzip
import json
import warnings

import pytest

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines import read_timeline, timeline_format


def trace(path, *operators):
    """Write operators (name, start, duration and, of each kernel, the same) as PyTorch does, without line ends."""
    events = []
    for name, start, duration, *kernels in operators:
        host = {"ts": start, "tid": 0, "pid": "CPU functions"}
        events.append({"name": name, "ph": "X", "dur": duration, **host, "args": {}})
        for kernel, begin, time in kernels:
            device = {"ts": begin, "tid": 1, "pid": "CUDA functions"}
            flow = {"name": name, "id": len(events), "cat": "cpu_to_cuda", "args": {}}
            events += [flow | host | {"ph": "s"}, flow | device | {"ph": "f"}]
            events.append({"name": kernel, "ph": "X", "dur": time, **device, "args": {}})
    path.write_text(json.dumps(events))
    return path


@pytest.mark.parametrize("doubled", [False, True])
def test_kernels_with_names_of_their_own(tmp_path, doubled):
    copy = ("Memcpy HtoD (Pageable -> Device)", 110.5, 4.0)
    operators = [("aten::mm", 10.5, 50.25, ("gemm<float>(int)", 62.0, 40.0)), ("aten::to", 80.0, 5.0, copy)]
    # Of some versions, kernels are among the functions of the CPU, too.
    operators += [("gemm<float>(int)", 62.0, 40.0)] if doubled else []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timeline = read_timeline(trace(tmp_path / "a.json", *operators))
    kernels = timeline.kernels
    assert kernels["kernel"].tolist() == ["gemm<float>(int)", copy[0]] and kernels["kind"].tolist() == [
        "kernel",
        "copy",
    ]
    assert kernels["start_s"].tolist() == pytest.approx([0, 48.5e-6])
    assert kernels["operator"].tolist() == ["aten::mm", "aten::to"] and kernels["device"].tolist() == [1, 1]
    assert timeline.host["name"].tolist() == ["aten::mm", "aten::to"]
    assert timeline_format(tmp_path / "a.json") == "autograd"
    (tmp_path / "a.json.gz").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    for name in ("a.json", "a.json.gz"):
        assert "kernel_breakdown" in recognise(tmp_path / name)[0].cases


def test_times_around_operators_are_told_of_and_counted_once(tmp_path):
    operators = [("addmm", 10.5, 50.25, ("addmm", 12.0, 40.0)), ("mm", 15.5, 20.0, ("mm", 16.0, 30.0))]
    path = trace(tmp_path / "a.json", *operators, ("relu", 70.0, 5.0, ("relu", 71.5, 4.0)))
    with pytest.warns(InputWarning, match="its times are those of operators on the GPU, not of kernels"):
        timeline = read_timeline(path)
    times = dict(timeline.kernels[["kernel", "duration_s"]].to_numpy())
    assert times == pytest.approx({"addmm": 10e-6, "mm": 30e-6, "relu": 4e-6}) and not timeline.has_times


def test_without_a_gpu(tmp_path):
    with pytest.raises(InputError, match="there is no GPU kernel in it"):
        read_timeline(trace(tmp_path / "a.json", ("mm", 10.5, 50.25)))


def test_half_a_character_is_written_as_an_escape(tmp_path):
    """Found by the fuzzer: pandas looks kernels up by their names in UTF-8."""
    path = trace(tmp_path / "a.json", ("\ud800", 10.5, 50.25, ("mm\udfff", 62.0, 40.0)), ("relu", 70.0, 5.0))
    (kernel,) = read_timeline(path).kernels.itertuples()
    assert (kernel.kernel, kernel.operator) == ("mm\\udfff", "\\ud800")
