"""Profiles and traces of Triton's proton: known answers, and values that it does not write."""

import json
import math

import pytest

from gpuledger.errors import InputError
from gpuledger.readers.timelines import read_timeline, timeline_format
from gpuledger.readers.timelines.table import work_rates
from gpuledger.studies.kernel_breakdown.timeline.step import find_step


def write(path, content):
    path.write_text(json.dumps(content, separators=(",", ":")), "utf-8")
    return path


def proton():
    leaf = {"children": [], "frame": {"name": "matmul_kernel", "type": "function"}}
    leaves = [leaf | {"metrics": {"count": 3, "time (ns)": 9000.0, "device_id": "0", "device_type": "CUDA"}}]
    leaves.append(
        {**leaf, "frame": {"name": "softmax", "type": "function"}, "metrics": {"count": 1, "time (ns)": 1000}}
    )
    scope = {"children": leaves, "frame": {"name": "layer", "type": "function"}, "metrics": {}}
    root = {"children": [scope], "frame": {"name": "ROOT", "type": "function"}, "metrics": {"count": 0, "time (ns)": 0}}
    return [root, {"CUDA": {"0": {"arch": "90", "num_sms": 132}}}]


def test_proton(tmp_path):
    timeline = read_timeline(write(tmp_path / "proton.hatchet", proton()))
    assert timeline.kernels["kernel"].tolist() == ["matmul_kernel", "softmax"]
    assert timeline.kernels["launches"].tolist() == [3, 1]
    assert timeline.kernels["duration_s"].tolist() == pytest.approx([9e-6, 1e-6])
    assert set(timeline.kernels["operator"]) == {"layer"}
    assert not timeline.has_times


@pytest.mark.parametrize("metrics", [{"cycles": 5}, {}])
def test_proton_without_times(tmp_path, metrics):
    kernel = {"children": [], "frame": {"name": "k"}, "metrics": metrics}
    nothing = {"children": [], "frame": {"name": "ROOT"}, "metrics": {"count": 0, "time (ns)": 0}}
    for root in (nothing, nothing | {"children": [kernel]}):
        with pytest.raises(InputError, match=r"no kernel has a time \(time \(ns\).*others count cycles"):
            read_timeline(write(tmp_path / "a.hatchet", [root, {}]))


@pytest.mark.parametrize("value", [None, "x", -1, [], float("nan"), float("inf"), 10**400])
def test_proton_with_hostile_metrics(tmp_path, value):
    for key in ("time (ns)", "count"):
        content = proton()
        content[0]["children"][0]["children"][0]["metrics"][key] = value
        with pytest.raises(InputError, match="is not a number"):
            read_timeline(write(tmp_path / "proton.hatchet", content))


def test_work_of_a_scope_is_its_kernels_where_it_has_one_only(tmp_path):
    content = proton()
    layer = content[0]["children"][0]
    alone = {"frame": {"name": "one"}, "metrics": {"bytes": 64, "flops16": 6e9, "flops8": 4e9, "quality": 1}}
    matmul = layer["children"][0]
    layer["metrics"] = {"bytes": 128}  # of both kernels
    layer["children"].append(alone | {"children": [matmul]})
    layer["children"][1] = layer["children"][1] | {"metrics": {"time (ns)": 1000, "bytes": 3000}}
    kernels = read_timeline(write(tmp_path / "proton.hatchet", content)).kernels
    assert kernels["operator"].tolist() == ["layer", "layer", "layer/one"]
    assert kernels["bytes"].tolist() == pytest.approx([math.nan, 3000, 64], nan_ok=True)
    assert kernels["flops"].tolist() == pytest.approx([math.nan, math.nan, 1e10], nan_ok=True)
    rates = work_rates(kernels, "operator")
    assert rates.loc["layer", "tb_per_s"] == pytest.approx(0.003)
    assert rates.loc["layer/one"].to_dict() == pytest.approx({"tflop_per_s": 1e10 / 9e-6 / 1e12, "tb_per_s": 64 / 9e6})
    assert list(work_rates(kernels.head(1), "operator")) == []


def proton_kernel(step, scope, name, start, duration, stream=7, **more):
    stack = ["ROOT", step, scope, name]
    event = {"args": {"call_stack": stack, **more}, "cat": "kernel", "dur": duration, "name": name}
    return event | {"ph": "X", "tid": stream, "ts": start}


def test_a_trace_of_proton_is_called_one_and_its_numbered_scopes_are_steps(tmp_path):
    steps = [(f"step {number}", 100.0 * number) for number in range(3)]
    kernels = [
        event
        for step, start in steps
        for event in (proton_kernel(step, "add", "k", start, 10.0), proton_kernel(step, "mul", "g", start + 12, 30.0))
    ]
    kernels.append(proton_kernel("step 0", "mul", "g", 50.0, 5.0))
    other = [proton_kernel("step 1", "copy", "c", 120.0, 8.0, stream=20)]
    # One object for each stream.
    lines = [
        json.dumps({"displayTimeUnit": "us", "traceEvents": events}, separators=(",", ":"))
        for events in (kernels, other)
    ]
    (tmp_path / "a.chrome_trace").write_text("\n".join(lines) + "\n", "utf-8")
    assert timeline_format(tmp_path / "a.chrome_trace") == "proton trace"
    timeline = read_timeline(tmp_path / "a.chrome_trace")
    assert timeline.format == "trace of Triton's proton"
    assert timeline.kernels["stream"].tolist() == [7, 7, 7, 7, 7, 20, 7, 7]
    assert timeline.kernels["operator"][:2].tolist() == ["step 0/add", "step 0/mul"]
    assert timeline.kernels[["flops", "bytes"]].isna().all(axis=None)
    step = find_step(timeline)
    assert (step.found_by, step.steps, step.dropped_kernels) == ("annotation", 3, 0)
    assert timeline.host["name"].tolist() == ["step 0", "step 1", "step 2"]


def test_scopes_without_numbers_are_no_steps(tmp_path):
    kernels = [proton_kernel("train", f"part {number % 2}", "k", 100.0 * number, 10.0) for number in range(4)]
    kernels.append(
        {"cat": "kernel", "ph": "X", "name": "alone", "ts": 900.0, "dur": 1.0, "args": {"call_stack": ["ROOT"]}}
    )
    timeline = read_timeline(write(tmp_path / "a.chrome_trace", {"traceEvents": kernels}))
    assert timeline.host["name"].tolist() == ["part 0", "part 1", "part 0", "part 1"]
    timeline = read_timeline(write(tmp_path / "b.chrome_trace", {"traceEvents": kernels[-1:]}))
    assert timeline.kernels["kernel"].tolist() == ["alone"] and timeline.host.empty


def test_newer_traces_of_proton_have_metrics_of_kernels_and_scopes(tmp_path):
    process = {"args": {"name": "Trace"}, "name": "process_name", "ph": "M", "pid": 0, "tid": 0}
    scope = {"cat": "metric", "ph": "X", "name": "add", "ts": 0.0, "dur": 5.0, "tid": 1}
    scopes = [scope | {"args": {"call_stack": ["ROOT", "s", "add"], "metrics": {"bytes": 100}}} for _ in range(2)]
    kernels = [proton_kernel("s", "add", "k", 10.0 * number, 5.0) for number in range(2)]
    kernels.append(proton_kernel("s", "mul", "g", 30.0, 5.0, metrics={"flops": 7, "bytes": "many"}))
    content = {"displayTimeUnit": "us", "traceEvents": [process, *scopes, *kernels]}
    timeline = read_timeline(write(tmp_path / "a.chrome_trace", content))
    assert timeline.kernels["bytes"].tolist() == pytest.approx([100, 100, math.nan], nan_ok=True)
    assert timeline.kernels["flops"].tolist() == pytest.approx([math.nan, math.nan, 7], nan_ok=True)


def test_a_stack_without_end_takes_no_time_without_end(tmp_path):
    deep = {"cat": "kernel", "ph": "X", "name": "k", "ts": 0.0, "dur": 1.0}
    deep |= {"args": {"call_stack": ["ROOT", *map(str, range(50_000)), "k"]}}
    operator = read_timeline(write(tmp_path / "a.chrome_trace", {"traceEvents": [deep]})).kernels["operator"][0]
    assert operator.split("/") == [str(number) for number in range(99)]


def test_half_a_character_in_a_scope_is_written_as_an_escape(tmp_path):
    """Found by the fuzzer: pandas and pyarrow take no text with one."""
    kernels = [proton_kernel("\ud800", f"part {number % 2}", "k", 100.0 * number, 10.0) for number in range(4)]
    timeline = read_timeline(write(tmp_path / "a.chrome_trace", {"traceEvents": kernels}))
    assert timeline.host["name"].tolist() == ["part 0", "part 1", "part 0", "part 1"]
    assert "\\ud800" in timeline.kernels["operator"].iloc[0]
