"""Recorded steps: found, divided and matched, on timelines whose answers are known, and on public recordings."""

import json
import shutil
import sqlite3

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import own_case, reduced
from recordings import Recording

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Dataset
from gpuledger.ledger.parts import split_parts
from gpuledger.ledger.provenance import sources
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import kernels, prefill, read_model
from gpuledger.readers.gpus import read_gpus
from gpuledger.readers.timelines import read_timeline
from gpuledger.studies.kernel_breakdown.comparison_figures import describe_recordings
from gpuledger.studies.kernel_breakdown.timeline.activity import (
    explain_idle,
    length,
    longest_pause,
    merge,
    subtract,
    waiting_times,
)
from gpuledger.studies.kernel_breakdown.timeline.case import _phases
from gpuledger.studies.kernel_breakdown.timeline.export import export_step
from gpuledger.studies.kernel_breakdown.timeline.figures import (
    classes_of,
    draw_errors,
    draw_parts,
    draw_repetitions,
    draw_step,
)
from gpuledger.studies.kernel_breakdown.timeline.match import match_launches, unmatched_kernels
from gpuledger.studies.kernel_breakdown.timeline.shapes import kernels_of_shapes, product_sizes, read_shapes
from gpuledger.studies.kernel_breakdown.timeline.step import find_repetition, find_step
from gpuledger.studies.kernel_breakdown.timeline.tables import (
    communication_table,
    describe_step,
    idle_table,
    kernel_table,
    part_table,
    recorded_kernels,
    repeated,
)
from gpuledger.studies.kernel_breakdown.view import view
from notebooks import run_notebook

US = 1e-6


def reduce(folder, **inputs):
    return reduced(own_case(folder, "kernel_breakdown", {"timeline": "trace.json", **inputs}, "case"))


def layer(recording, scale=1.0):
    for name, duration in (("rms_norm", 2), ("gemm_a", 10), ("flash_fwd", 5), ("ncclDevKernel_AllReduce", 4)):
        recording.kernel(name, duration * scale)


# ------------------------------------------------------------------------------------------------------ the step


def test_a_step_by_annotation_drops_what_was_launched_before(tmp_path):
    recording = Recording()
    for _ in range(3):
        recording.kernel("late", 2.0, launched=False)
    begin = recording.now
    for _ in range(4):
        layer(recording)
    recording.host("user_annotation", "ProfilerStep#3", begin, recording.now - begin)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["step"], result["step_found_by"], result["steps"]) == ("ProfilerStep#3", "annotation", 1)
    assert (result["kernels"], result["dropped_kernels"]) == (16, 3)
    assert result["kernel_time"] == pytest.approx(4 * 21 * US)
    assert result["span"] == pytest.approx((4 * 21 + 15) * US)
    assert result["idle_percent"] == pytest.approx(100 * 15 / 99)
    assert (result["repetitions"], result["kernels_per_repetition"]) == (4, 4)
    assert result["repetition_kernel_time_median"] == pytest.approx(21 * US)
    assert result["exposed_communication_time"] == pytest.approx(16 * US)
    assert result["communication_wait_time"] == pytest.approx(0, abs=1e-12)
    recording.kernel("ncclDevKernel_AllReduce", 44.0)
    recording.host("user_annotation", "ProfilerStep#4", begin - 1, recording.now - begin + 2)
    recording.write(tmp_path)
    result = reduce(tmp_path, step="#4")
    assert result["communication_wait_time"] == pytest.approx(40 * US)
    assert result["communication_mostly_waiting"] == 1
    (row,) = communication_table(result).to_dict("records")
    assert (row["launches"], row["mostly_waiting"]) == (5, 1)
    assert row["waiting_ms"] == pytest.approx(0.04)


def test_a_recording_of_another_gpu_is_told_of(tmp_path):
    recording = Recording()
    layer(recording)
    properties = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    content = {"deviceProperties": properties, "traceEvents": recording.events}
    for device, count in (("NVIDIA A100-SXM4-80GB", 1), ("NVIDIA H100 80GB HBM3", 0), ("a GPU of our own", 0)):
        case = own_case(tmp_path, "kernel_breakdown", {"timeline": "trace.json"}, "case", device={"name": device})
        (tmp_path / "trace.json").write_text(json.dumps(content), "utf-8")
        said = [line for line in reduced(case).warnings if "it was recorded on NVIDIA H100 80GB HBM3, and" in line]
        assert len(said) == count
    inputs = {"timeline": "trace.json", "model": "Llama-3.1-8B", "phases": {"prefill": {"batch": 1, "input": 64}}}
    for gpu, count in (("a100-sxm-80gb", 1), ("h100-sxm", 0)):
        case = own_case(tmp_path, "kernel_breakdown", inputs | {"hardware": [gpu]}, "case")
        said = [line for line in reduced(case).warnings if "is compared with predictions for NVIDIA A100" in line]
        assert len(said) == count


def test_of_several_gpus_the_page_says_which_one_it_is_of(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10 * at, "dur": 5, "args": {"stream": 7, "device": gpu}}
        for gpu, count in ((0, 2), (1, 3))
        for at in range(count)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}), "utf-8")
    result, words = reduce(tmp_path), "device 1, which has most kernel time of 2 GPUs"
    assert (result["analysed_gpu"], result["kernels"]) == (words, 3)
    assert f" All numbers are of {words}." in describe_step(result)
    assert [line for line in result.warnings if f"only those of {words}, are analysed" in line]
    result = reduce(tmp_path, baseline="trace.json")
    assert result["before_analysed_gpu"] == words and f"({words}); " in describe_recordings(result)
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events[:2]}), "utf-8")
    result = reduce(tmp_path)
    assert "analysed_gpu" not in result.summary and "All numbers are of" not in describe_step(result)


def test_the_median_of_several_annotated_steps_is_taken(tmp_path):
    recording = Recording()
    for number, scale in enumerate((3.0, 1.0, 2.0)):
        begin = recording.now
        layer(recording, scale)
        recording.host("user_annotation", f"iteration {number}", begin, recording.now - begin)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["steps"], result["step"], result["dropped_kernels"]) == (3, "iteration 2", 0)
    assert result["kernel_time"] == pytest.approx(42 * US)
    assert reduce(tmp_path, step="iteration 0")["kernel_time"] == pytest.approx(63 * US)
    with pytest.raises(InputError, match="there are: iteration 0, iteration 1, iteration 2"):
        reduce(tmp_path, step="iteration 7")


@pytest.mark.parametrize(("name", "found"), [("decode step", "annotation"), ("evaluation", "whole recording")])
def test_what_initialises_a_program_is_not_part_of_its_steps(tmp_path, name, found):
    """Steps are called so; a name that says nothing may be of something else than the loop."""
    recording = Recording()
    recording.kernel("distribution_elementwise_grid_stride_kernel", 5000.0)
    for _ in range(2):
        begin = recording.now
        recording.kernel("gemm", 20.0)
        recording.host("user_annotation", name, begin, recording.now - begin)
    recording.write(tmp_path)
    assert reduce(tmp_path)["step_found_by"] == found


def test_steps_inside_of_one_annotation_are_found(tmp_path):
    recording = Recording()
    outer = recording.now
    for number in range(3):
        begin = recording.now
        layer(recording)
        recording.host("user_annotation", f"decode step {number}", begin, recording.now - begin)
    recording.host("user_annotation", "benchmark", outer, recording.now - outer)
    recording.write(tmp_path)
    assert reduce(tmp_path)["steps"] == 3


@pytest.mark.parametrize("before", [0, 5])
def test_a_step_by_repetition(tmp_path, before):
    """Without annotations: what repeats, from its longest pause on, without the pieces at both ends."""
    recording = Recording()

    def step(names):
        for number, (name, duration) in enumerate(names):
            recording.kernel(name, duration, pause=50.0 if number == 0 else 1.0)

    own = [("embedding", 3.0), *[("norm_a", 2.0), ("gemm_a", 10.0), ("attention_a", 5.0)] * 6, ("head", 20.0)]
    if before:
        step(own[-before:])
    for _ in range(5):
        step(own)
    step(own[:4])
    step_ = find_step(read_timeline(recording.write(tmp_path)))
    assert step_.found_by == "repetition"
    assert step_.rows["kernel"].tolist() == [name for name, _ in own]
    assert step_.dropped_kernels + step_.steps * len(own) == before + 5 * len(own) + 4
    assert step_.steps >= 4


def test_the_passes_of_a_training_step_are_not_taken_for_steps(tmp_path):
    """The backward pass takes most of the time, and was taken for the step."""
    recording = Recording()
    for name, duration in (("forward", 10.0), ("backward", 40.0), ("optimizer", 5.0)):
        begin = recording.now
        recording.kernel(f"{name}_gemm", duration)
        recording.kernel(f"{name}_copy", 1.0)
        recording.host("user_annotation", name, begin, recording.now - begin)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["step_found_by"], result["kernels"]) == ("whole recording", 6)
    assert result["kernel_time"] == pytest.approx(58 * US)
    assert reduce(tmp_path, step="backward")["kernel_time"] == pytest.approx(41 * US)


def test_without_any_repetition_the_whole_recording_is_the_step(tmp_path):
    recording = Recording()
    recording.kernel("late", 2.0, launched=False)
    for number in range(7):
        recording.kernel(f"kernel_{'abcdefg'[number]}", 1.0 + number)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["step_found_by"], result["kernels"], result["dropped_kernels"]) == ("whole recording", 7, 1)
    assert result["repetitions"] == 0


@pytest.mark.parametrize("twice", [0, 2])
def test_layers_of_a_single_step_are_not_taken_for_steps(tmp_path, twice):
    """Nor where two kernels of a layer follow one another twice."""
    recording = Recording()
    recording.kernel("embedding", 3.0)
    for _ in range(6):
        layer(recording)
        for _ in range(twice):
            recording.kernel("reduce_parts", 2.0)
            recording.kernel("gemm_small", 3.0)
    recording.kernel("gemm_head", 20.0)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["step_found_by"], result["kernels"]) == ("whole recording", 26 + 6 * 2 * twice)
    assert result["repetitions"] == 6


@given(
    period=st.integers(2, 9),
    repeats=st.integers(3, 12),
    before=st.integers(0, 5),
    after=st.integers(0, 5),
    odd=st.booleans(),
)
def test_layers_are_found_whatever_surrounds_them(period, repeats, before, after, odd):
    tokens = [f"first {number}" for number in range(before)]
    tokens += [f"layer {number}" for number in range(period)] * repeats
    tokens += [f"last {number}" for number in range(after)] + ["odd"] * odd
    first, found, count = find_repetition(np.array(tokens, object))
    assert (first, found, count) == (before, period, repeats)


def test_the_finding_says_that_kernels_ran_at_once(tmp_path):
    """Or their time and the idle one would seem to be more than the step."""
    recording = Recording()
    recording.kernel("gemm_a", 60.0)
    recording.kernel("gemm_b", 50.0, stream=20, start=recording.now - 40.0)
    recording.kernel("gemm_c", 10.0, pause=20.0)
    recording.write(tmp_path)
    words = "3 kernels run for 120 µs, some at once, of a step of 100 µs, which is idle for 20 %"
    assert reduce(tmp_path).finding.startswith(words)


def test_what_repeats_by_chance_is_no_layer():
    tokens = [f"kernel {number}" for number in range(41)]
    tokens[20:24] = ["a", "b", "a", "b"]
    assert find_repetition(np.array(tokens, object)) == (0, 0, 0)
    assert find_repetition(np.array(tokens[10:40], object)) == (10, 2, 2)


# --------------------------------------------------------------------------------------------------- what runs when


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12)


def _as_intervals(pairs):
    start = np.array([a for a, _ in pairs], float)
    return merge(start, start + np.array([b for _, b in pairs], float))


@given(one=spans, other=spans)
def test_intervals_agree_with_counting_units(one, other):
    units = [{t for a, b in pairs for t in range(a, a + b)} for pairs in (one, other)]
    first, second = _as_intervals(one), _as_intervals(other)
    assert length(first) == len(units[0])
    rest = subtract(first, second)
    assert length(rest) == len(units[0] - units[1])
    assert (rest[1:, 0] > rest[:-1, 1]).all()


def test_idle_time_is_what_the_host_did(tmp_path):
    recording = Recording()
    recording.kernel("norm", 10.0)  # 101 … 111
    recording.kernel("gemm", 10.0, pause=29.0)  # 140 … 150
    recording.host("cpu_op", "aten::slow", 115.0, 20.0)
    recording.host("cuda_runtime", "cudaDeviceSynchronize", 120.0, 5.0)
    recording.host("cuda_runtime", "cudaMalloc", 130.0, 2.0)
    recording.events.append(
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 118.0, "dur": 4.0, "args": {"stream": 7, "device": 0}}
    )
    step = find_step(read_timeline(recording.write(tmp_path)))
    idle = explain_idle(step.rows, step.host)
    spent = (idle.groupby("activity")["duration_s"].sum() / US).round(6).to_dict()
    # Of 29 µs: the copy, then the rest of the synchronisation, the launch of the next kernel, and so on.
    assert spent == {
        **{"copying on the GPU": 4.0, "waiting for the GPU": 3.0, "runtime: launches": 0.5},
        **{"runtime: other calls": 2.0, "operators": 11.0, "other work on the host": 8.5},
    }
    assert idle["duration_s"].sum() == pytest.approx(29 * US)
    assert set(idle.loc[idle["activity"] == "operators", "call"]) == {"aten::slow"}


def test_pauses_within_a_graph_are_not_the_hosts(tmp_path):
    rows = pd.DataFrame(
        {"kind": "kernel", "kernel": "k", "start_s": [0.0, 3.0, 10.0], "duration_s": 2.0, "thread": "1/1"}
    )
    rows = rows.assign(launched_by=["cudaGraphLaunch", "cudaGraphLaunch", "cudaLaunchKernel"], launch_s=[-4, -4, 6.0])
    host = pd.DataFrame(columns=["name", "kind", "start_s", "duration_s", "thread"])
    idle = explain_idle(rows, host.astype({"name": "str", "kind": "str", "start_s": float, "duration_s": float}))
    assert idle[["activity", "duration_s"]].to_numpy().tolist() == [
        ["between kernels of a graph", 1.0],
        ["other work on the host", 5.0],
    ]


def test_nothing_is_said_of_a_host_that_was_not_recorded(tmp_path):
    recording = Recording()
    recording.kernel("norm", 10.0, launched=False)
    recording.kernel("gemm", 10.0, pause=90.0, launched=False)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["idle_mostly"], result["longest_idle_in"]) == ("host not recorded", "host not recorded")
    assert result.finding.endswith("idle for 82 % (90.0 µs of it in one pause); 50 % of the kernel time is gemm")


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_pause_beside_a_kernel_of_no_length_counts_everywhere(tmp_path, place):
    """The share of the span counted it, the sum of the pauses and the mark of the longest did not."""
    recording = Recording()
    lengths = [0.0, 10.0, 20.0] if place == "first" else [20.0, 10.0, 0.0]
    for duration, pause in zip(lengths, [1.0, 30.0, 2.0] if place == "first" else [1.0, 2.0, 30.0], strict=True):
        recording.kernel("gemm", duration, pause=pause)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["span"], result["idle_time"]) == (pytest.approx(62 * US), pytest.approx(32 * US))
    assert result["idle_percent"] == pytest.approx(100 * 32 / 62)
    start, end = longest_pause(split_parts(result.data)["launches"])
    assert end - start == pytest.approx(30 * US)
    run_notebook("kernel_breakdown_timeline", result)


def test_the_longest_pause_is_the_one_that_is_marked(tmp_path):
    """Its number was that of the longest single call: 20 µs here, where the mark spans 29."""
    recording = Recording()
    recording.kernel("norm", 10.0)  # 101 … 111
    recording.kernel("gemm", 10.0, pause=29.0)  # 140 … 150
    recording.host("cpu_op", "aten::slow", 115.0, 20.0)
    recording.kernel("gemm", 10.0, pause=25.0)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    start, end = longest_pause(split_parts(result.data)["launches"])
    assert result["longest_idle"] == pytest.approx(end - start) == pytest.approx(29 * US)
    assert result["longest_idle_in"] == "aten::slow"
    assert "is idle for 64 % (29.0 µs of it in one pause, mostly in aten::slow)" in result.finding


def test_overlap_of_streams_and_exposed_communication(tmp_path):
    recording = Recording()
    recording.kernel("gemm", 10.0, start=200.0)
    recording.kernel("ncclDevKernel_AllReduce", 10.0, stream=9, start=205.0)
    recording.kernel("gemm", 4.0, start=220.0)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert result["overlap_time"] == pytest.approx(5 * US)
    assert result["exposed_communication_time"] == pytest.approx(5 * US)
    assert result["communication_time"] == pytest.approx(10 * US)
    assert result["idle_percent"] == pytest.approx(100 * 5 / 24)
    assert result["streams"] == 2


def test_collectives_that_wait_are_told_from_those_that_move_data():
    rows = pd.DataFrame(
        {
            "kernel": ["nccl"] * 4 + ["other"] * 2 + ["gemm"],
            "kernel_class": ["communication"] * 6 + ["gemm"],
            "kind": "kernel",
            "shapes": ["a"] * 3 + ["b"] + ["a"] * 3,
            "grid": "8x1x1",
            "duration_s": [10 * US, 200 * US, 12 * US, 500 * US, 10 * US, 90 * US, 5 * US],
        }
    )
    # Only three launches of one kernel and size can be compared.
    assert waiting_times(rows).tolist() == pytest.approx([0, 190 * US, 2 * US, 0, 0, 0, 0])


# ------------------------------------------------------------------------------------------------------ matching


def test_sizes_of_products():
    assert product_sizes("aten::mm", "[[4, 8], [8, 2]]") == (1, 4, 2, 8)
    assert product_sizes("aten::addmm", "[[2], [4, 8], [8, 2], [], []]") == (1, 4, 2, 8)
    assert product_sizes("aten::addmm", "[[4, 2], [4, 8], [8, 2], [], []]") == (1, 4, 2, 8)
    assert product_sizes("aten::linear", "[[3, 4, 8], [2, 8], []]") == (1, 12, 2, 8)
    assert product_sizes("aten::bmm", "[[5, 4, 8], [5, 8, 2]]") == (5, 4, 2, 8)
    assert product_sizes("aten::mm", "[[4, 8], [7, 2]]") is None
    assert product_sizes("aten::add", "[[4, 8], [8, 2]]") is None


@settings(max_examples=30)
@given(st.text(max_size=40) | st.from_regex(r"[\[\], 0-9-]{0,30}", fullmatch=True))
def test_any_text_for_shapes_is_refused_or_read(text):
    found = read_shapes(text)
    assert isinstance(found, tuple)
    product_sizes("aten::mm", text)
    rows = pd.DataFrame(
        {"kernel_class": ["elementwise", "gemm"], "operator": "aten::mm", "shapes": text, "types": text}
    )
    priced = kernels_of_shapes(rows, "bf16")
    assert (priced[["m", "n", "k"]] >= 1).all(axis=None)


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "read", "write"),
    [
        ("aten::copy_", "[[10, 4], [10, 4], []]", "['float', 'c10::BFloat16', 'Scalar']", 80, 160),
        ("aten::mul", "[[10, 4], [10, 1]]", "['c10::BFloat16', 'c10::BFloat16']", 100, 80),
        ("aten::cat", "[[[10, 4], [10, 4]], []]", "['TensorList', 'Scalar']", 160, 160),
        ("aten::fill_", "[[10, 4], []]", "['c10::BFloat16', 'Scalar']", 0, 80),
        ("aten::mean", "[[10, 4], [], [], []]", "['float', '', '', '']", 160, 40),
        ("aten::index_select", "[[1000, 4], [], [10]]", "['c10::BFloat16', 'Scalar', 'long int']", 80, 80),
        ("aten::gather", "[[1000, 4], [], [10, 4]]", "['c10::BFloat16', 'Scalar', 'long int']", 80, 80),
        (
            "aten::index_copy_", "[[16, 8, 2048, 128], [], [1], [16, 8, 1, 128]]",
            "['c10::BFloat16', 'Scalar', 'long int', 'c10::BFloat16']", 32768, 32768,
        ),
        (
            "aten::index_put_", "[[1000, 4], [[10]], [10, 4], []]",
            "['c10::BFloat16', 'TensorList', 'c10::BFloat16', 'Scalar']", 80, 80,
        ),
    ],
)  # fmt: skip
def test_traffic_of_operators(operator, shapes, types, read, write):
    rows = pd.DataFrame({"kernel_class": ["copy"], "operator": [operator], "shapes": [shapes], "types": [types]})
    assert kernels_of_shapes(rows, "bf16")[["read_bytes", "write_bytes"]].iloc[0].tolist() == [read, write]


def test_each_launch_of_an_operator_that_is_split_has_its_share():
    """2³⁰ values of 4 bytes: four launches, as an index reaches one byte less than half of them."""
    shapes = "[[1024, 1024, 1024], [1024, 1024, 1024], []]"
    rows = pd.DataFrame({"kernel_class": ["copy", "softmax"], "operator": "aten::copy_", "shapes": shapes})
    found = kernels_of_shapes(rows.assign(types="['float', 'c10::BFloat16', 'Scalar']"), "bf16")
    moved = found[["n", "read_bytes", "write_bytes"]].to_numpy().tolist()
    assert moved == [[2**28, 2**29, 2**30], [2**30, 2**31, 2**32]]


def llama_step(shapes):
    """Return the launches of a fused Llama's prefill of 64 tokens, as a recording names them, and its prediction."""
    model, gpu = read_model("Llama-3.1-8B"), read_gpus()["h100-sxm"]
    predicted = predict(kernels(model, prefill(64)), gpu)
    sizes = {row.kernel: (row.m, row.n, row.k) for row in predicted.itertuples()}
    launches = [("embedding_kernel", "embedding", "")]
    for _ in range(32):
        launches += [("rms_norm", "norm", ""), ("nvjet_a", "gemm", "qkv_proj"), ("rotary_embedding", "rope", "")]
        launches += [("reshape_and_cache", "cache", ""), ("flash_fwd_splitkv", "attention", "")]
        launches += [("flash_fwd_splitkv_combine", "attention", ""), ("nvjet_a", "gemm", "out_proj")]
        launches += [("fused_add_rms_norm", "norm", ""), ("nvjet_b", "gemm", "gate_up_proj")]
        launches += [("silu_and_mul", "elementwise", ""), ("nvjet_b", "gemm", "down_proj")]
    launches += [("rms_norm", "norm", ""), ("nvjet_c", "gemm", "lm_head"), ("mystery", "other", "")]
    rows = pd.DataFrame(launches, columns=["kernel", "kernel_class", "truth"])
    rows["operator"] = np.where((rows["truth"] != "") & shapes, "aten::mm", "")
    rows["shapes"] = [
        str([[sizes[name][0], sizes[name][2]], [sizes[name][2], sizes[name][1]]]) if name and shapes else ""
        for name in rows["truth"]
    ]
    return rows.assign(types="", duration_s=3e-6), predicted, model, gpu


@pytest.mark.parametrize("shapes", [True, False])
def test_every_launch_finds_its_kernel(shapes):
    """By shapes, and by order alone as in a replayed graph; also the two kernels of a split attention."""
    rows, predicted, model, gpu = llama_step(shapes)
    found = match_launches(rows, predicted, model, gpu, "bf16")
    known = rows["truth"] != ""
    assert found.loc[known, "role"].tolist() == rows.loc[known, "truth"].tolist()
    others = {"embedding": "embedding", "rope": "rope", "cache": "kv_write", "attention": "attention"}
    for kernel_class, role in others.items():
        assert set(found.loc[rows["kernel_class"] == kernel_class, "role"]) == {role}
    assert found.loc[rows["kernel"] == "silu_and_mul", "role"].eq("ffn_act").all()
    norms = found.loc[rows["kernel_class"] == "norm", "role"].tolist()
    assert norms == ["attn_norm", "ffn_norm"] * 32 + ["final_norm"]
    assert found["matched_by"].tolist() == ["model"] * (len(rows) - 1) + [""]
    assert np.isnan(found["predicted_s"].iloc[-1])
    # Every kernel of the model is there, so the times add up to those of its pass.
    assert found["predicted_s"].sum() == pytest.approx((predicted["time_s"] * predicted["count"]).sum())
    assert unmatched_kernels(predicted, found).empty


def test_a_product_of_other_sizes_is_priced_by_its_own():
    rows, predicted, model, gpu = llama_step(True)
    at = rows.index[rows["truth"] == "qkv_proj"][5]
    rows.loc[at, "shapes"] = "[[64, 512], [512, 512]]"
    found = match_launches(rows, predicted, model, gpu, "bf16")
    assert found.loc[at, ["role", "matched_by"]].tolist() == ["", "shapes"]
    assert 0 < found.loc[at, "predicted_s"] < found.loc[rows["truth"] == "qkv_proj", "predicted_s"].median()
    assert (found.loc[rows["truth"] == "down_proj", "role"] == "down_proj").all()


def test_phases_are_read_from_serving_engines_annotations():
    assert _phases("execute_context_1(888_788544)_generation_0(0)") == {"prefill": {"batch": 1, "input": 888}}
    name = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)"
    assert _phases(name) == {"decode": {"batch": 32, "context": 1024}}
    assert _phases("ProfilerStep#4") == {} == _phases("")


def test_what_cannot_be_predicted_is_one_line(tmp_path):
    recording = Recording()
    layer(recording)
    recording.write(tmp_path)
    with pytest.raises(InputError, match=r"phases: the recording does not say what the step computes; declare one"):
        reduce(tmp_path, model="Llama-3.1-8B", hardware=["h100-sxm"])
    with pytest.raises(InputError, match="a model without hardware"):
        reduce(tmp_path, model="Llama-3.1-8B")
    with pytest.raises(InputError, match="'hardware' without a model"):
        reduce(tmp_path, hardware=["h100-sxm"])


@pytest.mark.parametrize(("times", "word"), [(30, "layer"), (16, "repetition")])
def test_only_repetitions_that_a_models_layers_explain_are_called_layers(tmp_path, times, word):
    """Half as many may be pairs of its 32 layers; without a model nothing says that they are layers."""
    recording = Recording()
    begin = recording.now
    for _ in range(times):
        layer(recording)
    recording.host("user_annotation", "step", begin, recording.now - begin)
    recording.write(tmp_path)
    phases = {"decode": {"batch": 1, "context": 64}}
    result = reduce(tmp_path, model="Llama-3.1-8B", hardware=["h100-sxm"], phases=phases)
    assert (result["repetitions"], repeated(result)) == (times, word)
    assert ("its layers" in describe_step(result)) == (word == "layer")
    alone = reduce(tmp_path)
    assert repeated(alone) == "repetition"
    assert view(alone).fields["repetition"].max() == times - 1
    assert f"In it 4 kernels repeat {times} times, 21.0 µs each" in describe_step(alone)


# ------------------------------------------------------------------------------------------- results and exports


def test_no_bar_of_a_layer_ends_at_the_edge():
    """With a class that only other layers have, the last bar of a stack has no height, and no margin above it."""
    rows = pd.DataFrame(
        {"repetition": [0, 1, -1], "kernel_class": ["other", "gemm", "gemm"], "duration_s": [US, US, 9 * US]}
    )
    _, axes = plt.subplots()
    draw_repetitions(axes, rows, "repetition")
    assert axes.get_ylim() == pytest.approx((0, 1.05 * 9))


def test_table_and_summary_add_up_and_the_notebook_runs(tmp_path):
    recording = Recording()
    for _ in range(3):
        layer(recording)
    recording.kernel("add", 3.0, operator="aten::add", shapes=[[64, 4096], [64, 4096]])
    recording.write(tmp_path)
    result = reduce(
        tmp_path, model="Llama-3.1-8B", hardware=["h100-sxm"], phases={"prefill": {"batch": 1, "input": 64}}
    )
    table, rows = kernel_table(result)["frame"], recorded_kernels(result)
    assert list(table) == ["kernel_class", "operator", "count", "time_s", "predicted_s"]
    assert table["count"].sum() == result["kernels"]
    assert table["time_s"].sum() == pytest.approx(result["kernel_time"])
    assert table["predicted_s"].sum() == pytest.approx(result["predicted_kernel_time"])
    assert 0 < result["matched_percent"] <= 100
    assert part_table(result)["recorded_ms"].sum() == pytest.approx(1e3 * result["kernel_time"])
    assert "predicted times: by a time model" in result.provenance["label"]
    assert sources(result.provenance).startswith("s; data sheets of"), "who recorded it is said, too"
    errors = rows.groupby("part")[["predicted_s", "duration_s"]].sum().diff(axis=1)["duration_s"].abs()
    assert result["most_mispredicted"] == errors.idxmax(), "the figure has a bar for it"
    assert str(ROOT) not in json.dumps(result.provenance)
    _, axes = plt.subplots()
    draw_step(axes, result, True)
    assert axes.get_xlim()[1] > max(bar.get_x() + bar.get_width() for bar in axes.patches)
    # What is simulated is nowhere called recorded.
    _, axes = plt.subplots()
    for kind, other in (("recorded", "simulated"), ("simulated", "recorded")):
        result.provenance["kind"] = kind
        draw_step(axes, result, True)
        assert [label.get_text() for label in axes.get_yticklabels()] == [kind, "predicted"]
        draw_errors(axes, result, rows, list(rows["part"].unique()))
        words = [axes.get_xlabel(), str(kernel_table(result)["headers"]), kernel_table(result)["caption"]]
        words += [" ".join(part_table(result)), str(vars(export_step(result)))]
        assert all(kind in text and other not in text for text in words)
    variables, _ = run_notebook("kernel_breakdown_timeline", result, tmp_path / "out")
    assert variables["predicted"]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"figure.pdf", "figure_time.svg", "figure_bound.png", "table.csv", "trace.json"} <= written


def test_a_model_that_covers_no_kernel_is_said(tmp_path):
    recording = Recording()
    for _ in range(3):
        recording.kernel("my_own_kernel", 4.0)
    recording.write(tmp_path)
    result = reduce(
        tmp_path, model="Llama-3.1-8B", hardware=["h100-sxm"], phases={"prefill": {"batch": 1, "input": 64}}
    )
    assert result["matched_percent"] == 0 and result.finding.endswith("; the time model covers none of them")
    run_notebook("kernel_breakdown_timeline", result)


def test_sums_without_times(tmp_path):
    """A report of sums has no span and no pauses, but kernels and their times."""
    text = 'Time (%),Total Time (ns),Instances,Name\n80.0,8000,4,"ampere_sgemm_64x64"\n20.0,2000,1,add_kernel\n'
    (tmp_path / "trace.json").write_text(text)
    result = reduce(tmp_path)
    assert (result["kernels"], result["span"], result["idle_percent"]) == (5, "unknown", "unknown")
    assert result["kernel_time"] == pytest.approx(10e-6)
    assert kernel_table(result)["frame"]["count"].tolist() == [4, 1]
    run_notebook("kernel_breakdown_timeline", result)


@pytest.mark.parametrize("kernels", [1, 5])
def test_a_step_without_a_pause(tmp_path, kernels):
    """A single kernel, or a graph whose kernels follow one another at once."""
    recording = Recording()
    for number in range(kernels):
        recording.kernel(f"kernel_{'abcde'[number]}", 4.0, pause=0.0)
    recording.write(tmp_path)
    result = reduce(tmp_path)
    assert (result["kernels"], result["idle_time"], result["idle_percent"]) == (kernels, 0, 0)
    assert idle_table(result).empty
    run_notebook("kernel_breakdown_timeline", result)


def test_the_exported_trace_opens_and_flows_meet_slices(tmp_path):
    recording = Recording()
    begin = recording.now
    for _ in range(3):
        layer(recording)
    recording.kernel("gemm_b", 5.0, start=recording.now - 2.0)  # overlaps the kernel before it
    recording.host("user_annotation", "step", begin, recording.now - begin)
    recording.write(tmp_path)
    export_step(reduce(tmp_path)).write({"label": "recorded", "case": "case"}, tmp_path, "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    events = content["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"stream 7", "stream 7 (2)", "thread 1/1"} == set(named.values())
    assert content["otherData"]["label"] == "recorded"
    # On each track slices are apart or nested.
    for track in named:
        own = sorted((e["ts"], -e["dur"], e["ts"] + e["dur"]) for e in slices if e["tid"] == track)
        ends = []
        for begin, _, end in own:
            while ends and ends[-1] <= begin + 1e-6:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-6
            ends.append(end)
    flows = [event for event in events if event["ph"] in "sf"]
    assert len(flows) == 2 * 13
    for flow in flows:
        assert any(e["tid"] == flow["tid"] and e["ts"] <= flow["ts"] <= e["ts"] + e["dur"] for e in slices)


def test_a_database_is_broken_down_like_a_trace(tmp_path):
    with sqlite3.connect(tmp_path / "trace.json") as base:
        base.execute("CREATE TABLE StringIds (id INT, value TEXT)")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "rms_norm"), (2, "ampere_sgemm"), (3, "launch")])
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
            " (start INT, end INT, deviceId INT, streamId INT, correlationId INT, demangledName INT)"
        )
        rows = [(1000 * n, 1000 * n + 600, 0, 7, n, 1 + n % 2) for n in range(12)]
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", rows)
    base.close()
    result = reduce(tmp_path)
    assert result["kernels"] == 2
    assert 2 * result["steps"] + result["dropped_kernels"] == 12
    assert result["kernel_time"] == pytest.approx(0.6e-6 * result["kernels"])


# --------------------------------------------------------------------------------------------- public recordings

#: What the recordings hold, counted independently, and the least share of the kernel time that has to be matched.
PUBLIC = {
    "b200_888": {"kernels": 768, "dropped": 0, "time": 0.0108629, "layers": 36, "matched": 95},
    "h100_16x559": {"kernels": 1029, "dropped": 436, "time": 0.0317601, "layers": 24, "matched": 95},
    "mi300x_decode": {"kernels": 555, "dropped": 0, "time": 0.0097654, "layers": 36, "matched": 85},
}


@pytest.fixture(scope="module")
def tracelens(mirror, tmp_path_factory):
    folder = tmp_path_factory.mktemp("public") / "tracelens"
    folder.mkdir()
    shutil.copyfile(ROOT / "traces/tracelens/dataset.yaml", folder / "dataset.yaml")
    dataset = Dataset.load(folder / "dataset.yaml")
    for entry in dataset.content["download"]:
        source = mirror / entry["url"].removeprefix("https://")
        shutil.copyfile(source, folder / source.name)
    return dataset


@pytest.mark.parametrize("name", PUBLIC)
def test_public_recordings(tracelens, name):
    known = PUBLIC[name]
    result = reduced(tracelens.case("kernel_breakdown", name))
    assert (result["kernels"], result["dropped_kernels"]) == (known["kernels"], known["dropped"])
    assert result["kernel_time"] == pytest.approx(known["time"], rel=1e-5)
    assert (result["repetitions"], repeated(result)) == (known["layers"], "layer")
    assert result["step_found_by"] == "annotation"
    assert result["matched_percent"] >= known["matched"]
    rows = recorded_kernels(result)
    counts = rows[rows["matched_by"] == "model"].groupby("role").size()
    projections = counts[counts.index.str.endswith("_proj")]
    assert set(projections) == {known["layers"]}, "each projection once a layer"
    idle = split_parts(result.data)["idle"]
    assert idle["duration_s"].sum() == pytest.approx(result["span"] * result["idle_percent"] / 100, rel=1e-6)


def test_attention_of_pytorch_is_predicted_by_pytorchs_kernels():
    dataset = Dataset.load(ROOT / "traces/nvidia-h100-decode/dataset.yaml")
    rows = recorded_kernels(reduced(dataset.case("kernel_breakdown", "graph")))
    attention = rows[rows["role"] == "decode_attention"]
    assert attention["kernel"].str.contains("cudnn").any()
    # The engines' kernels were predicted a fifth too long.
    assert attention["predicted_s"].sum() == pytest.approx(attention["duration_s"].sum(), rel=0.08)


def test_kernels_that_take_no_time_are_refused_in_one_line(tmp_path):
    recording = Recording()
    recording.kernel("k", 0.0)
    recording.write(tmp_path)
    with pytest.raises(InputError, match="no kernel in it takes any time; record the activities"):
        reduce(tmp_path)
    (tmp_path / "trace.json").unlink()
    recording.kernel("k", 3.0)
    recording.write(tmp_path)
    assert reduce(tmp_path).finding.startswith("2 kernels run for 3.00 µs")


def test_a_legend_names_classes_that_have_a_bar():
    parts = [f"gemm {number}" for number in range(20)] + ["norm"]
    classes = ["gemm"] * 20 + ["norm"]
    rows = pd.DataFrame({"part": parts, "kernel_class": classes, "duration_s": np.arange(21, 0, -1) / 1e3})
    figure, axes = plt.subplots()
    shown = draw_parts(axes, rows.assign(predicted_s=np.nan))
    plt.close(figure)
    assert classes_of(rows, shown) == ["gemm", "others"]
