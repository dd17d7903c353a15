"""Traces of XLA's profiler (JAX): known answers, in the form in which xprof 2.24 exports planes that were made up."""

import json
import warnings

import pandas as pd
import pytest

from gpuledger.errors import InputWarning
from gpuledger.readers.kernel_names import classify, short_name
from gpuledger.readers.timelines import read_timeline, timeline_format
from gpuledger.studies.kernel_breakdown.timeline.step import find_step


def write(path, content):
    path.write_text(json.dumps(content, separators=(",", ":")), "utf-8")
    return path


def xla_trace(gpus=1, shown="programs"):
    """Return four steps of six layers, with Python's functions.

    Above them, the profiler shows each program (`shown`), one ``program`` for all of them, or ``steps``.
    """
    far, events = 5e6, []

    def name(process, what, text, thread=None):
        events.append({"ph": "M", "pid": process, "tid": thread, "name": f"{what}_name", "args": {"name": text}})

    def ran(process, thread, what, start, duration, **inside):
        known = {"ph": "X", "pid": process, "tid": thread, "ts": far + start, "dur": duration, "name": what}
        events.append({"args": inside, **known} if inside else known)

    for gpu in range(1, gpus + 1):
        name(gpu, "process", f"/device:GPU:{gpu - 1}")
        for thread, text in (
            (15, "Stream #15(Compute)"),
            (16, "Stream #16(MemcpyH2D)"),
            (1, "XLA Modules - from #15"),
            (2, "XLA Ops - from #15"),
            (3735928559, "Steps"),
        ):
            name(gpu, "thread", text, thread)
    name(701, "process", "/host:CPU")
    name(701, "thread", "python", 42)
    for step in range(4):
        start = 1000.0 * step
        for gpu in range(1, gpus + 1):
            if shown != "program" or step == 0:
                ran(gpu, 1, "jit_train_step(77)", start, 500.0 if shown != "program" else 3500.0)
            if shown == "steps":
                ran(gpu, 3735928559, f"train {step}", start, 500.0, step_name=f"train {step}")
            for layer in range(6):
                at, details = start + 80 * layer, "regs:96 static_shared:0 grid:108,2,1 block:128,1,1 occ_pct:12.5"
                framework = {"tf_op": f"jit(train_step)/layer_{layer}/dot_general:", "hlo_op": f"dot.{layer}"}
                ran(gpu, 15, f"gemm_fusion_dot_{layer}", at, 50.25, kernel_details=details, **framework)
                own = {"hlo_op": f"loop_add_fusion.{layer}", "tf_op": "XlaModule:", "correlation_id": "7"}
                ran(gpu, 15, f"loop_add_fusion_{layer}", at + 55, 10.5, kernel_details="", **own)
                ran(gpu, 2, f"dot.{layer}", at, 50.25)
            ran(gpu, 16, "MemcpyH2D", start + 10, 4.0, memcpy_details="size:4096")
            ran(gpu, 15, "MemoryFree", start + 470, 4.0)
        if shown == "steps":
            ran(701, 42, f"train {step}", start - 20, 30.0, step_num=str(step))
        ran(701, 42, "cuLaunchKernelEx", start - 10, 3.0, correlation_id=7)
        ran(701, 42, "$train.py:12 loop", start + 500, 300.0)
        ran(701, 42, "cuStreamSynchronize", start + 505, 200.0, correlation_id="9")
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}


def test_a_trace_of_jax_has_its_kernels_programs_and_host_calls(tmp_path):
    path = write(tmp_path / "host.trace.json", xla_trace())
    timeline = read_timeline(path)
    assert timeline_format(path) == "xla"
    kernels = timeline.kernels
    assert kernels["kind"].value_counts().to_dict() == {"kernel": 48, "copy": 4}
    first = kernels.iloc[0]
    assert (first["kernel"], first["operator"]) == ("gemm_fusion_dot_0", "jit(train_step)/layer_0/dot_general")
    assert (first["grid"], first["block"], first["stream"], first["device"]) == ("108x2x1", "128x1x1", 15, 0)
    assert (first["start_s"], first["duration_s"]) == pytest.approx((0.0, 50.25e-6), abs=1e-12)
    assert kernels["operator"][2] == "loop_add_fusion"
    assert kernels["grid"][2] == "" and kernels["launch_s"].isna().all()
    host = timeline.host.groupby("kind")["name"].unique().map(list).to_dict()
    assert host == {"annotation": ["jit_train_step(77)"], "call": ["cuLaunchKernelEx", "cuStreamSynchronize"]}
    assert kernels.loc[[0, 2], "launched_by"].tolist() == ["", "cuLaunchKernelEx"]
    assert kernels["thread"][2] == "701/42"


def test_programs_of_jax_are_the_steps_and_numbers_of_fusions_do_not_hide_layers(tmp_path):
    with pytest.warns(InputWarning, match="device 0, one of 2 GPUs with equal kernel time, are analysed"):
        step = find_step(read_timeline(write(tmp_path / "host.trace.json", xla_trace(gpus=2))))
    assert (step.name, step.found_by, step.steps, step.dropped_kernels) == ("jit_train_step(77)", "annotation", 4, 0)
    assert len(step.rows) == 13
    assert [short_name(name) for name in step.rows["kernel"][[0, 2]]] == ["gemm_fusion_dot", "loop_add_fusion"]


@pytest.mark.parametrize(
    ("shown", "name", "found_by"), [("steps", "train 1", "annotation"), ("program", "", "repetition")]
)
def test_steps_are_what_the_user_annotated_and_programs_that_run_together_none(tmp_path, shown, name, found_by):
    step = find_step(read_timeline(write(tmp_path / "host.trace.json", xla_trace(shown=shown))))
    assert (step.name, step.found_by, len(step.rows)) == (name, found_by, 13)
    assert "jit_train_step(77)" not in set(step.host["name"])


def exported_by_jax(step_mark="train"):
    """Return four steps as JAX 0.11 exports them: no lines that a viewer derives, steps on the host, graphs."""
    events = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 14, "name": "thread_name", "args": {"name": "Stream #14(Memset,Compute)"}},
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
    ]

    def ran(process, thread, name, start, duration, **inside):
        times = {"ph": "X", "pid": process, "tid": thread, "ts": start, "dur": duration, "name": name}
        events.append(times | ({"args": inside} if inside else {}))

    for step in range(4):
        start, number = 1000.0 * step, str(64 + step)
        # The host has launched a step before the GPU has run the one before.
        ran(701, 7, step_mark, start - 600, 100.0, step_num=str(step))
        ran(701, 7, "command_buffer::execute", start - 590, 60.0)
        ran(701, 7, "cuGraphLaunch (CudaGraph:3)", start - 580, 40.0, correlation_id=number, cuda_graph_id="3")
        ran(701, 7, "nvjet_tst_NNT", start - 530, 5.0, correlation_id=f"9{number}")
        ran(701, 7, "Memset", start - 540, 2.0, Memset_details="kind:unknown num_bytes:4 async:1", correlation_id="5")
        graph = {"correlation_id": number, "hlo_op": "command_buffer_1", "tf_op": "XlaModule:"}
        shared = "regs:168 static_shared:0 dynamic_shared:{} grid:2,66,1 block:384,1,1 occ_pct:18.75"
        ran(1, 14, "Memset 0", start, 1.0, Memset_details="kind:unknown num_bytes:4 async:0", **graph)
        ran(1, 14, "nvjet_tst_NNT", start + 2, 300.0, kernel_details=shared.format(2048), **graph)
        ran(1, 14, "gemm_fusion_dot_50", start + 302, 40.0, kernel_details=shared.format(0), **graph)
        own = graph | {"correlation_id": f"9{number}"}
        ran(1, 14, "gemm_fusion_dot_33", start + 350, 200.0, kernel_details=shared.format(4096), **own)
    return {"traceEvents": events}


def test_jax_exports_steps_on_the_host_only_and_a_kernel_belongs_to_the_one_that_launched_it(tmp_path):
    timeline = read_timeline(write(tmp_path / "host.trace.json", exported_by_jax()))
    assert timeline.kernels["kind"].tolist() == ["set", "kernel", "kernel", "kernel"] * 4
    assert set(timeline.kernels["operator"]) == {""}
    assert timeline.kernels["launched_by"][:4].tolist() == [
        *["cuGraphLaunch (CudaGraph:3)"] * 3,
        "launch of nvjet_tst_NNT",
    ]
    assert set(timeline.host["kind"]) == {"annotation", "call", "operator"}
    step = find_step(timeline)
    assert (step.name, step.found_by, step.steps, step.dropped_kernels) == ("train 1", "annotation", 4, 0)
    assert step.rows["launch_s"][1] == pytest.approx(-582e-6)


def test_what_is_left_of_a_fusion_whose_product_cublas_computes_is_elementwise(tmp_path):
    kernels = read_timeline(write(tmp_path / "host.trace.json", exported_by_jax())).kernels["kernel"][1:4]
    assert kernels.tolist() == ["nvjet_tst_NNT", "loop_epilogue (gemm_fusion_dot_50)", "gemm_fusion_dot_33"]
    assert classify(kernels).tolist() == ["gemm", "elementwise", "gemm"]


def test_as_many_events_as_jax_exports_are_pointed_out(tmp_path, monkeypatch):
    content = xla_trace()
    # Calls of Python's functions count, too.
    exported = sum(event["ph"] == "X" for event in content["traceEvents"])
    monkeypatch.setattr("gpuledger.readers.timelines.xla.MOST_EVENTS", exported)
    with pytest.warns(InputWarning, match=f"{exported} events, as many as the profiler exports"):
        read_timeline(write(tmp_path / "host.trace.json", content))
    monkeypatch.setattr("gpuledger.readers.timelines.xla.MOST_EVENTS", exported + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_timeline(write(tmp_path / "host.trace.json", content))


def test_kernels_that_xla_generates_have_a_class():
    names = [
        *("gemm_fusion_dot_3", "triton_softmax_2", "loop_multiply_fusion_1"),
        *("wrapped_convert", "input_reduce_fusion_4", "loop_slice_fusion_1", "loop_dynamic_update_slice_fusion"),
    ]
    classes = ["gemm", "softmax", "elementwise", "elementwise", "reduce", "copy", "copy"]
    assert classify(pd.Series(names)).tolist() == classes
    assert [short_name(name) for name in ("fusion_7", "loop_add_fusion", "ampere_sgemm_128x64_nn")] == [
        "fusion",
        "loop_add_fusion",
        "ampere_sgemm_128x64_nn",
    ]
