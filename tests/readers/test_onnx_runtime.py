"""Profiles of ONNX Runtime: known answers, in the form in which it writes a profile that was made up."""

import gzip
import json

import pytest

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines import read_timeline, timeline_format
from gpuledger.studies.kernel_breakdown.timeline.case import break_down
from gpuledger.studies.kernel_breakdown.timeline.tables import describe_step


def line(cat, name, ts, dur, **args):
    """Return an event as ONNX Runtime writes it: blanks before colons, numbers of ``args`` as texts."""
    start = f'{{"cat" : "{cat}","pid" :7,"tid" :{-1 if cat == "Kernel" else 9},"dur" :{dur},"ts" :{ts},"ph" : "X",'
    return f'{start}"name" :"{name}","args" : {json.dumps(args)}}}'


def profile(kernels=True):
    """Return three runs of a product and an addition, with a copy before them."""
    lines = [line("Session", "model_loading_uri", 1, 500), line("Session", "session_initialization", 600, 900)]
    product = {"grid_x": "8", "grid_y": "2", "grid_z": "1", "block_x": "128", "block_y": "1", "block_z": "1"}
    nowhere = dict.fromkeys(product, "-1")
    for run in range(3):
        at = 2000 + 100 * run
        for name, operator, place in (("mm_1", "MatMul", 5), ("add_2", "Add", 30)):
            lines.append(line("Node", f"{name}_kernel_time", at + place, 15, op_name=operator, provider="CUDA"))
        if kernels:
            lines.append(line("Kernel", "MemcpyHostToDevice", at + 2, 3, op_name="", stream="7", **nowhere))
            lines.append(line("Kernel", "sm90_gemm_bf16", at + 10, 12, op_name="MatMul", stream="7", **product))
            lines.append(line("Kernel", "add_kernel", at + 40, 4, op_name="Add", stream="7", **product))
        lines += [line("Session", "SequentialExecutor::Execute", at + 1, 60), line("Session", "model_run", at, 70)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


@pytest.mark.parametrize("pack", [lambda text: text.encode(), lambda text: gzip.compress(text.encode())])
def test_a_profile_is_called_what_it_is_and_has_operators_copies_and_runs(tmp_path, pack):
    path = tmp_path / "onnxruntime_profile.json"
    path.write_bytes(pack(profile()))
    assert timeline_format(path) == "onnx"
    timeline = read_timeline(path)
    rows = timeline.kernels.iloc[:3]
    assert rows["kind"].tolist() == ["copy", "kernel", "kernel"]
    assert rows["operator"].tolist() == ["", "MatMul", "Add"]
    assert rows["grid"].tolist() == ["", "8x2x1", "8x2x1"]
    assert rows["block"].tolist() == ["", "128x1x1", "128x1x1"]
    assert rows["start_s"].to_numpy() == pytest.approx([0, 8e-6, 38e-6])
    assert rows["duration_s"].to_numpy() == pytest.approx([3e-6, 12e-6, 4e-6])
    assert set(timeline.host["name"]) == {"MatMul", "Add", "model_run"}
    result = break_down(timeline)
    assert (result["step"], result["steps"], result["kernels"], result["copies"]) == ("model_run", 3, 2, 1)
    assert describe_step(result).startswith("Profile of ONNX Runtime. The step is found by its annotation `model_run`.")


def test_a_profile_without_kernels_or_times_is_told_of(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(profile(kernels=False), "utf-8")
    with pytest.raises(InputError, match="there is no GPU kernel in it"):
        read_timeline(path)
    hostile = profile().replace('"dur" :12', '"dur" :null', 1).replace('"stream": "7"', '"stream": "inf"', 1)
    path.write_text(hostile, "utf-8")
    with pytest.warns(InputWarning, match="1 event has no valid time or duration"):
        assert len(read_timeline(path).kernels) == 8


def test_half_a_character_is_written_as_an_escape(tmp_path):
    """Found by the fuzzer: pandas and pyarrow take no text with one."""
    (path := tmp_path / "profile.json").write_text(profile().replace("add_kernel", "\\ud800").replace("Add", "\\ud801"))
    rows = read_timeline(path).kernels.iloc[:3]
    assert rows["kernel"].tolist()[2] == "\\ud800" and rows["operator"].tolist()[2] == "\\ud801"
