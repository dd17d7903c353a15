"""Traces of PaddlePaddle's profiler: known answers, in the form that its ``chrometracing_logger.cc`` writes."""

import gzip
import json

import pytest

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError
from gpuledger.readers.timelines import read_timeline, timeline_format
from gpuledger.studies.kernel_breakdown.timeline.case import break_down

#: When the first event begins, in microseconds of its clock.
EPOCH = 1795778187645519


def event(category, name, start, duration, thread="7(C++)", **inside):
    """Return an event: its duration behind its name, its moment twice."""
    inside |= {"start_time": f"{start:.3f} us", "end_time": f"{start + duration:.3f} us"}
    shown = f"{duration:.3f} us" if duration <= 1000 else f"{duration / 1000:.3f} ms"
    told = {"name": f"{name}[{shown}]", "pid": 0 if "stream" in inside else 7, "tid": inside.get("stream", thread)}
    return told | {"ts": int(EPOCH + start), "dur": duration, "ph": "X", "cat": category, "args": inside}


def trace(steps=3, apart=100.0, index="span_indx"):
    """Return steps of a product and an addition, which run longer from step to step, behind a copy."""
    events = []
    for step in range(steps):
        at, number = step * apart, 10 * step
        events.append(event("ProfileStep", f"ProfileStep#{step}", at, 90, thread="7(Python)"))
        events.append(event("Forward", "Linear", at + 1, 60, thread="7(Python)"))
        shapes = {"input_shapes": {"x": [[8, 64]], "y": [[64, 32]]}, "input_dtypes": {"x": ["float"], "y": ["float"]}}
        events.append(event("Operator", "matmul dygraph", at + 2, 20, **shapes, callstack=""))
        events.append(event("CudaRuntime", "cudaLaunchKernel", at + 5, 2.5, **{"correlation id": number + 1}))
        events.append(event("Operator", "add dygraph", at + 30, 20, input_shapes={}, input_dtypes={}))
        events.append(event("CudaRuntime", "cudaLaunchKernel", at + 33, 2.5, **{"correlation id": number + 2}))
        on = {"device": 0, "context": 1, "stream": 7, "grid": [8, 2, 1], "block": [128, 1, 1]}
        events.append(event("CudaRuntime", "cudaMemcpyAsync", at + 1.5, 0.25, **{"correlation id": number + 3}))
        events.append(event("Memcpy", "MEMCPY_HtoD", at + 7, 1, **{"correlation id": number + 3}, stream=7, bytes=4))
        product = {"correlation id": number + 1, **on}
        events.append(event("Kernel", "void gemm<float[4]>(int)", at + 10.25, 12.5 + step, **product))
        events.append(event("Kernel", "add_kernel", at + 40.125, 4.5 + step, **{"correlation id": number + 2}, **on))
    properties = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "smCount": 108}]
    head = {"schemaVersion": "1.0.1", "displayTimeUnit": "ms", index: "0", "deviceProperties": properties}
    return json.dumps(head | {"traceEvents": [*events, {}], "ExtraInfo": {"7": "MainThread"}})


@pytest.mark.parametrize("index", ["span_indx", "span_index"])
@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())])
def test_launches_of_a_kernel_have_one_name_and_its_operator(tmp_path, pack, index):
    path = tmp_path / "host_pid_7.paddle_trace.json"
    path.write_bytes(pack(trace(index=index)))
    assert timeline_format(path) == "paddle"
    assert recognise(path)[0].format.startswith("timeline of PaddlePaddle's profiler")
    timeline = read_timeline(path)
    rows = timeline.kernels
    assert rows["kernel"].tolist() == ["MEMCPY_HtoD", "void gemm<float[4]>(int)", "add_kernel"] * 3
    assert rows["kind"].tolist() == ["copy", "kernel", "kernel"] * 3
    assert rows["operator"].tolist() == ["", "matmul", "add"] * 3
    assert rows["shapes"].tolist() == ["", "[[8, 64], [64, 32]]", ""] * 3
    assert rows["start_s"].to_numpy()[:3] == pytest.approx([0, 3.25e-6, 33.125e-6])
    assert rows["duration_s"].to_numpy()[4:6] == pytest.approx([13.5e-6, 5.5e-6])
    assert rows["grid"].tolist()[1:3] == ["8x2x1", "8x2x1"]
    result = break_down(timeline)
    assert (result["step"], result["steps"], result["kernels"], result["copies"]) == ("ProfileStep#1", 3, 2, 1)


@pytest.mark.parametrize("text", [trace(apart=3e6), trace().replace('"start_time": ', '"began": ', 1)])
def test_whole_microseconds_take_the_place_of_imprecise_times(tmp_path, text):
    (path := tmp_path / "a.paddle_trace.json").write_text(text, "utf-8")
    starts = read_timeline(path).kernels["start_s"].to_numpy()
    assert starts[:3] == pytest.approx([0, 3e-6, 33e-6])


def test_what_is_missing_is_told_of(tmp_path):
    (path := tmp_path / "a.paddle_trace.json").write_text(trace(steps=0), "utf-8")
    with pytest.raises(InputError, match="there is no GPU kernel in it"):
        read_timeline(path)
    text = trace().replace('"input_shapes": {"x": [[8, 64]], ', '"input_shapes": [[8, 64]], "z": {"x": [[8, 64]], ', 1)
    path.write_text(text.replace('"args": {"device"', '"args": [], "z": {"device"', 1), "utf-8")
    assert len(read_timeline(path).kernels) == 9
