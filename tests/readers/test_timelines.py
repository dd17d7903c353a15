"""Timelines: every format's known answers, files that are cut off anywhere, and values that no profiler writes."""

import gzip
import json
import random
import resource
import sqlite3
import time
import warnings
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_cases import refused

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines import read_timeline, timeline_format
from gpuledger.readers.timelines.events import TraceEvents
from gpuledger.readers.timelines.table import KERNEL_COLUMNS, enclosing


def event(cat, name, ts, dur, pid=1, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def trace():
    """Return a step of two operators, one kernel each, a copy, and a kernel of the step before."""
    shapes = {"Input Dims": [[4, 8], [8, 2]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    sizes = {"grid": [4, 2, 1], "block": [128, 1, 1], "External id": 2}
    far = 10**12  # moments are of the machine's clock, in µs
    events = [
        event("user_annotation", "step#1", far + 10.0, 100.0),
        event("python_function", "model.py: forward", far + 10.0, 100.0),
        event("cpu_op", "aten::linear", far + 11.0, 9.0, **{"External id": 1}),
        event("cpu_op", "aten::mm", far + 12.0, 6.0, **{"External id": 2}, **shapes),
        event("cuda_runtime", "cudaLaunchKernel", far + 14.0, 2.0, correlation=7, **{"External id": 2}),
        event("cpu_op", "my_extension", far + 30.0, 10.0, **{"External id": 3}),
        event("cuda_driver", "cuLaunchKernel", far + 32.0, 2.0, correlation=8),
        event("kernel", "leftover", far + 1.0, 2.5, 0, 7, correlation=3, device=0, stream=7),
        {"ph": "s", "id": 7, "pid": 1, "tid": 1, "ts": far + 14.0, "cat": "ac2g", "name": "ac2g"},
        event("kernel", "gemm", far + 20.5, 4.25, 0, 7, correlation=7, device=0, stream=7, **sizes),
        event("kernel", "mine", far + 40.0, 1.0, 0, 9, correlation=8, device=0, stream=9),
        event("gpu_memcpy", "Memcpy DtoD", far + 50.0, 3.0, 0, 7, device=0, stream=7, bytes=64),
    ]
    properties = [{"id": 0, "name": "NVIDIA Test", "numSms": 4}]
    return {"schemaVersion": 1, "traceEvents": events, "deviceProperties": properties}


def write(path, content, **layout):
    path.write_text(json.dumps(content, **layout), "utf-8")
    return path


def check(timeline):
    kernels = timeline.kernels.set_index("kernel")
    assert list(timeline.kernels) == list(KERNEL_COLUMNS)
    assert timeline.kernels["kernel"].tolist() == ["leftover", "gemm", "mine", "Memcpy DtoD"]
    assert timeline.kernels["kind"].tolist() == ["kernel"] * 3 + ["copy"]
    assert kernels["start_s"].to_numpy() == pytest.approx([0, 19.5e-6, 39e-6, 49e-6], abs=1e-12)
    assert kernels["duration_s"].to_numpy() == pytest.approx([2.5e-6, 4.25e-6, 1e-6, 3e-6], abs=1e-18)
    assert kernels["operator"].to_dict() == {
        **{"leftover": "", "gemm": "aten::mm", "mine": "my_extension"},  # by External id; by the call's place
        "Memcpy DtoD": "",
    }
    gemm = kernels.loc["gemm"]
    assert (gemm["grid"], gemm["block"], gemm["stream"], gemm["device"]) == ("4x2x1", "128x1x1", 7, 0)
    assert (gemm["shapes"], gemm["types"]) == ("[[4, 8], [8, 2]]", "['c10::BFloat16', 'c10::BFloat16']")
    assert kernels["annotation"].tolist() == ["", "step#1", "step#1", ""]
    assert kernels.loc["mine", "launched_by"] == "cuLaunchKernel"
    assert kernels.loc["gemm", "launch_s"] == pytest.approx(13e-6, abs=1e-12)
    assert timeline.devices == ["NVIDIA Test"]
    assert timeline.has_times


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}, {"sort_keys": True}])
def test_kineto_in_any_layout(tmp_path, layout):
    check(read_timeline(write(tmp_path / "trace.json", trace(), **layout)))


def test_kineto_gzipped_as_a_list_and_with_bom(tmp_path):
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump(trace(), file)
    check(read_timeline(tmp_path / "trace.json.gz"))
    (tmp_path / "bom.json").write_text(json.dumps(trace()), "utf-8-sig")
    check(read_timeline(tmp_path / "bom.json"))
    alone = read_timeline(write(tmp_path / "list.json", trace()["traceEvents"]))
    assert len(alone.kernels) == 4 and alone.devices == []


def test_events_of_any_order_of_keys_are_found(tmp_path):
    """Events may begin with different keys, and strings may look like the beginning of an event."""
    shuffled = random.Random(1)
    content = trace()
    for number, entry in enumerate(content["traceEvents"]):
        keys = list(entry)
        shuffled.shuffle(keys)
        content["traceEvents"][number] = {key: entry[key] for key in keys}
    content["traceEvents"][0]["args"]["note"] = ', {"ph": "X", "cat": "kernel"}, ]} \\" {'
    content["traceEvents"][2]["args"]["list"] = [{"ph": "X"}, {"ph": "Y"}, {"cat": "kernel"}]
    check(read_timeline(write(tmp_path / "trace.json", content)))


@pytest.mark.parametrize("chunk", [7, 64, 300])
def test_small_chunks_give_the_same(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("gpuledger.readers.timelines.events.CHUNK", chunk)
    monkeypatch.setattr(TraceEvents._more, "__defaults__", (chunk,))
    check(read_timeline(write(tmp_path / "trace.json", trace(), indent=1)))


@given(share=st.floats(0.02, 0.999))
def test_cut_off_anywhere(tmp_path_factory, share):
    """Each prefix gives the kernels that are whole in it, with a warning, or one line."""
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    text = json.dumps(trace())
    cut = text[: int(share * len(text))]
    path.write_text(cut)
    ends = [cut.find("}}", cut.find(f'"name": "{name}"')) for name in ("leftover", "gemm", "mine", "Memcpy DtoD")]
    whole = [
        name
        for name, end in zip(("leftover", "gemm", "mine", "Memcpy DtoD"), ends, strict=True)
        if f'"name": "{name}"' in cut and end >= 0
    ]
    if not set(whole) - {"Memcpy DtoD"}:
        with warnings.catch_warnings(), pytest.raises(InputError):
            warnings.simplefilter("ignore", InputWarning)
            read_timeline(path)
        return
    with pytest.warns(InputWarning, match="the events before it are used"):
        assert read_timeline(path).kernels["kernel"].tolist() == whole


def test_a_cut_gzip_file_gives_what_is_whole(tmp_path):
    content = trace()
    noise = random.Random(2)
    content["traceEvents"] += [event("kernel", f"k{noise.random()}", 10**12 + 100 + i, 1.0) for i in range(5000)]
    data = gzip.compress(json.dumps(content).encode())
    (tmp_path / "trace.json.gz").write_bytes(data[: len(data) // 2])
    with pytest.warns(InputWarning, match=r"damaged or cut off"):
        kernels = read_timeline(tmp_path / "trace.json.gz").kernels
    assert 1000 < len(kernels) < 5004 and kernels["duration_s"].notna().all()


HOSTILE = [None, "", "x", -1, 10**400, 1e308, float("nan"), float("inf"), True, [], {}, [[[]]], {"a": 1}, "9" * 5000]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: str(value)[:12])
def test_hostile_values_in_every_field(tmp_path, value):
    """Whatever stands in a field of an event: a table, or one line."""
    for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"):
        content = trace()
        content["traceEvents"][9][key] = value
        _read_or_refuse(write(tmp_path / "trace.json", content))
    for key in ("External id", "correlation", "device", "stream", "grid", "block"):
        content = trace()
        content["traceEvents"][9]["args"][key] = value
        kernels = read_timeline(write(tmp_path / "trace.json", content)).kernels
        assert len(kernels) == 4 and kernels["duration_s"].notna().all()
    for key in ("External id", "correlation", "Input Dims", "Input type"):
        for number in (3, 4):
            content = trace()
            content["traceEvents"][number]["args"][key] = value
            assert len(read_timeline(write(tmp_path / "trace.json", content)).kernels) == 4
    for key in ("traceEvents", "deviceProperties"):
        _read_or_refuse(write(tmp_path / "trace.json", trace() | {key: value}))
        _read_or_refuse(write(tmp_path / "trace.json", trace() | {key: [value]}))


def _read_or_refuse(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        try:
            kernels = read_timeline(path).kernels
        except InputError as error:
            assert path.name in str(error)
        else:
            assert len(kernels) >= 3 and (kernels["duration_s"] >= 0).all()


def test_events_without_times_are_left_out_and_counted(tmp_path):
    content = trace()
    del content["traceEvents"][9]["ts"]
    content["traceEvents"][10]["dur"] = -1
    with pytest.warns(InputWarning, match="2 events have no valid time"):
        assert len(read_timeline(write(tmp_path / "trace.json", content)).kernels) == 2


def test_kernels_that_have_no_times_are_told_of(tmp_path):
    write(tmp_path / "a.json", {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "dur": 5}]})
    with pytest.raises(InputError, match="no GPU kernel in it, and 1 event has no valid time or duration; record"):
        read_timeline(tmp_path / "a.json")


GARBAGE = {
    "empty": b"",
    "text": b"hello\n",
    "binary": bytes(range(256)) * 8,
    "nested": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "no events": b'{"deviceProperties": []}',
    "events are a number": b'{"traceEvents": 5}',
    "no kernels": b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}',
    "not JSON": b"{traceEvents: []}",
    "gzip": gzip.compress(b"hello"),
    "cut gzip": gzip.compress(b"{" * 1000)[:12],
    "database": b"SQLite format 3\0" + bytes(2000),
    "sheet": b"a,b\n1,2\n",
    "line end in a header": b'Start (ns),"a\nb",Name\n1,2,k\n',
    "endless header": b"Start (ns)," + 100_000 * b" " + b"x,Name\n1,2,k\n",
    "sums of nothing": b"Total Time (ns),Instances,Name\n",
    "unending string": b'{"traceEvents": [{"name": "' + b"a" * 10_000,
    "proton of nothing": b'[{"children": [], "frame": {"name": "ROOT"}, "metrics": {}}]',
    "half of a proton": b'[{"children": [{"children": [], "frame"',
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_gives_may_be_refused(tmp_path, name):
    path = tmp_path / "recording"
    path.write_bytes(GARBAGE[name])
    with warnings.catch_warnings(), refused("; "):
        warnings.simplefilter("ignore", InputWarning)
        read_timeline(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_timeline(tmp_path / "none.json")


# -------------------------------------------------------------------------------------------------- Nsight Systems


def database(path, kernels=((1000, 3500, 7), (9000, 9500, 8)), drop=()):
    texts = {1: "void gemm<float>(int)", 2: "gemm", 3: "cudaLaunchKernel_v7000", 4: "decode"}
    texts[5] = "aten::mm, seq = 3, op_id = 9, sizes = [[4, 8], [8, 2]]"
    sizes = "gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT"
    of_kernels = f"start INT, end INT, deviceId INT, streamId INT, correlationId INT, demangledName INT, {sizes}"
    of_calls = "start INT, end INT, globalTid INT, correlationId INT, nameId INT"
    of_ranges = "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT"
    ranges = [
        (100, 9900, 59, "step 1", None, 11),
        (400, 900, 59, None, 4, 11),
        (450, 800, 59, None, 5, 11),
        (450, 460, 34, "a mark", None, 11),
        (100, 9900, 59, "another thread", None, 12),
    ]
    launches = [(start, end, 0, 7, number, 1, 4, 2, 1, 128, 1, 1) for start, end, number in kernels]
    tables = {
        "StringIds": ("id INTEGER, value TEXT", texts.items()),
        "CUPTI_ACTIVITY_KIND_KERNEL": (of_kernels, launches),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("start INT, end INT, streamId INT, deviceId INT", [(5000, 6000, 7, 0)]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (of_calls, [(500, 700, 11, 7, 3), (8000, 8100, 11, 8, 3)]),
        "NVTX_EVENTS": (of_ranges, ranges),
        "TARGET_INFO_GPU": ("id INT, name TEXT", [(0, "NVIDIA Test")]),
    }
    with sqlite3.connect(path) as base:
        for name, (columns, rows) in tables.items():
            if name in drop:
                continue
            base.execute(f"CREATE TABLE {name} ({columns})")
            base.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * (columns.count(',') + 1))})", rows)
    base.close()
    return path


def test_sqlite(tmp_path):
    path = database(tmp_path / "report.sqlite")
    timeline = read_timeline(path)
    kernels = timeline.kernels
    assert timeline_format(path) == "sqlite" and timeline.devices == ["NVIDIA Test"]
    assert kernels["kernel"].tolist() == ["void gemm<float>(int)", "Memcpy", "void gemm<float>(int)"]
    assert kernels["start_s"].to_numpy() == pytest.approx([0, 4e-6, 8e-6])
    assert kernels["duration_s"].tolist() == pytest.approx([2.5e-6, 1e-6, 0.5e-6])
    assert kernels.loc[0, ["grid", "block", "stream"]].tolist() == ["4x2x1", "128x1x1", 7]
    assert kernels["operator"].tolist() == ["aten::mm", "", ""]
    assert kernels.loc[0, "shapes"] == "[[4, 8], [8, 2]]"
    assert kernels["nvtx_range"].tolist() == ["decode", "", "step 1"]
    assert kernels["annotation"].tolist() == ["step 1", "", "step 1"]
    assert kernels.loc[0, "launched_by"] == "cudaLaunchKernel_v7000"


@pytest.mark.parametrize(
    "table",
    ["StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "TARGET_INFO_GPU"],
)
def test_sqlite_without_a_table(tmp_path, table):
    kernels = read_timeline(database(tmp_path / "report.sqlite", drop=[table])).kernels
    assert (kernels["kind"] == "kernel").sum() == 2
    assert kernels.loc[kernels["kind"] == "kernel", "duration_s"].sum() == pytest.approx(3e-6)


def test_sqlite_of_whole_graphs(tmp_path):
    path = database(tmp_path / "report.sqlite", drop=["CUPTI_ACTIVITY_KIND_KERNEL"])
    with sqlite3.connect(path) as base:
        columns = "start INT, end INT, deviceId INT, streamId INT, correlationId INT, graphId INT"
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns})")
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1000, 4000, 0, 7, 7, 12)")
    base.close()
    kernels = read_timeline(path).kernels
    assert kernels["kernel"].tolist() == ["CUDA graph 12", "Memcpy"]
    assert kernels["duration_s"].iloc[0] == pytest.approx(3e-6)


@pytest.mark.parametrize(
    "table", ["CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"]
)
def test_an_empty_table_of_sqlite_is_as_one_that_is_not_there(tmp_path, table):
    drop = {table, "CUPTI_ACTIVITY_KIND_MEMCPY"}  # a name of a copy would keep the others' columns as they are
    without = read_timeline(database(tmp_path / "without.sqlite", drop=drop)).kernels
    path = database(tmp_path / "empty.sqlite", drop=drop)
    with sqlite3.connect(path) as base:
        columns = "start INT, end INT, deviceId INT, streamId INT, correlationId INT, graphId INT"
        base.execute(f"CREATE TABLE {table} ({columns})")
    base.close()
    assert read_timeline(path).kernels.equals(without)
    assert without["kernel"].iloc[0] == "void gemm<float>(int)"


@pytest.mark.filterwarnings("ignore:.*2 processes use a GPU 0")
def test_sqlite_of_several_processes_that_number_calls_alike(tmp_path):
    path = database(tmp_path / "report.sqlite", kernels=[(1000, 1500, 7), (2000, 2500, 7)])
    first, second = ((1 << 48) + (number << 24) for number in (71, 72))
    with sqlite3.connect(path) as base:
        base.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD globalPid INT")
        base.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = iif(start = 1000, {first}, {second})")
        base.execute(f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = {first + 71}")
        base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1800, 1900, {second + 72}, 7, 3)")
    base.close()
    kernels = read_timeline(path).kernels.query("kind == 'kernel'")
    assert kernels["thread"].tolist() == [str(first + 71), str(second + 72)]
    assert kernels["launch_s"].tolist() == pytest.approx([-0.5e-6, 0.8e-6])


def of_two_processes(path, seen, gpus=((0, "NVIDIA A"), (1, "NVIDIA B"), (2, "NVIDIA B"))):
    """Write a report of processes 71 and 72, which both call their GPU 0; `seen`: rows of TARGET_INFO_CUDA_DEVICE."""
    database(path, kernels=[(1000, 1500, 7), (2000, 2500, 8)], drop=["TARGET_INFO_GPU", "CUPTI_ACTIVITY_KIND_MEMCPY"])
    first, second = ((1 << 48) + (number << 24) for number in (71, 72))
    with sqlite3.connect(path) as base:
        base.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD globalPid INT")
        base.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = iif(start = 1000, {first}, {second})")
        base.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
        base.executemany("INSERT INTO TARGET_INFO_GPU VALUES (?, ?)", gpus)
        if seen:
            base.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INT, cudaId INT NOT NULL, pid INT, uuid TEXT)")
            base.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?, ?)", seen)
    base.close()
    return path


@pytest.mark.parametrize(
    ("seen", "numbers"),
    [
        ([(1, 0, 71, "GPU-b"), (2, 0, 72, "GPU-c"), (0, 0, 70, "GPU-a")], [1, 2]),
        ([(1, 0, 71, "GPU-b"), (1, 0, 72, "GPU-b")], [1, 1]),
        ([(1, 0, 71, None), (2, 0, 72, None)], [1, 2]),
        ([(None, 0, 71, "GPU-b"), (None, 0, 72, "GPU-c")], [0, 1]),
        ([(1, 0, 71, "MIG-b"), (1, 0, 72, "MIG-c")], [0, 1]),
    ],
)
def test_sqlite_of_processes_that_number_their_gpus_alike(tmp_path, seen, numbers):
    timeline = read_timeline(of_two_processes(tmp_path / "report.sqlite", seen))
    assert timeline.kernels["device"].tolist() == numbers
    known = [gpu for gpu, *_ in seen[:2] if gpu]
    assert timeline.devices == (["NVIDIA B"] * len(set(known)) if known else ["NVIDIA A", "NVIDIA B", "NVIDIA B"])


@pytest.mark.parametrize("seen", [[], [(1, 0, 71, "GPU-b")]])
def test_sqlite_that_does_not_tell_gpus_of_processes_apart(tmp_path, seen):
    with pytest.warns(InputWarning, match="2 processes use a GPU 0, and nothing says whether it is the same one"):
        timeline = read_timeline(of_two_processes(tmp_path / "report.sqlite", seen))
    assert timeline.kernels["device"].tolist() == [0, 0]
    # One process, as most reports are of.
    with sqlite3.connect(tmp_path / "report.sqlite") as base:
        base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 72 << 24")
    base.close()
    assert read_timeline(tmp_path / "report.sqlite").kernels["device"].tolist() == [0, 0]


@pytest.mark.parametrize("column", ["deviceId", "streamId", "correlationId", "demangledName", "gridX", "blockZ"])
def test_null_in_a_column_of_whole_numbers_is_of_its_row_alone(tmp_path, column):
    path = database(tmp_path / "report.sqlite")
    whole = read_timeline(path).kernels
    with sqlite3.connect(path) as base:
        base.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = NULL WHERE correlationId = 8")
        # A call of which the profiler did not say what it launched.
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (8200, 8300, 11, NULL, 3)")
    base.close()
    kernels = read_timeline(path).kernels
    assert kernels.iloc[:2].equals(whole.iloc[:2])
    changed = [name for name in kernels if not kernels[name].equals(whole[name])]
    empty = {
        **{"deviceId": {"device": -1}, "streamId": {"stream": -1}, "demangledName": {"kernel": ""}},
        **{"gridX": {"grid": ""}, "blockZ": {"block": ""}},
        "correlationId": {"nvtx_range": "", "annotation": "", "launch_s": None, "launched_by": "", "thread": ""},
    }[column]
    assert changed == [name for name in kernels if name in empty]
    assert all(kernels[name].iloc[2] == value for name, value in empty.items() if value is not None)


def test_sqlite_damaged_or_of_something_else(tmp_path):
    path = database(tmp_path / "other.sqlite", drop=["CUPTI_ACTIVITY_KIND_KERNEL"])
    with pytest.raises(InputError, match="CUPTI_ACTIVITY_KIND_KERNEL"):
        read_timeline(path)
    data = database(tmp_path / "whole.sqlite").read_bytes()
    for share in (0.3, 0.6, 0.9):
        path.write_bytes(data[: int(share * len(data))])
        _may_be_refused(path)
    for at in range(100, len(data), 1531):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        _may_be_refused(path)


def _may_be_refused(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        with suppress(InputError):
            read_timeline(path)


@pytest.mark.parametrize("value", [None, "x", -5, 2**62, 1.5, b"\0"])
def test_sqlite_with_hostile_times(tmp_path, value):
    path = database(tmp_path / "report.sqlite", kernels=[(1000, 3500, 7), (9000, value, 8), (value, 9500, 9)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        kernels = read_timeline(path).kernels
    assert (kernels["duration_s"] >= 0).all()
    assert np.isclose(kernels["duration_s"], 2.5e-6).sum() == 1


TRACE_CSV = """Processing [report.sqlite] with [cuda_gpu_trace.py]...

Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Bytes (MB),Device,Ctx,Strm,Name
1000,2500,7,4,2,1,128,1,1,,NVIDIA Test (0),1,7,"void gemm<float, 4>(int)"
5000,1000,8,,,,,,,0.5,NVIDIA Test (0),1,7,[CUDA memcpy Host-to-Device]
9000,500,9,1,1,1,32,1,1,,NVIDIA Test (0),1,13,add
"""


def test_csv_of_every_launch(tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE_CSV)
    timeline = read_timeline(tmp_path / "trace.csv")
    assert timeline.kernels["kernel"].iloc[0] == "void gemm<float, 4>(int)"
    assert timeline.kernels["start_s"].to_numpy() == pytest.approx([0, 4e-6, 8e-6])
    assert timeline.kernels["kind"].tolist() == ["kernel", "copy", "kernel"]
    assert timeline.kernels["stream"].tolist() == [7, 7, 13]
    assert timeline.kernels["grid"].tolist() == ["4x2x1", "", "1x1x1"]
    assert timeline.devices == ["NVIDIA Test"]
    assert timeline.kernels["device"].tolist() == [0, 0, 0]
    # The number is the GPU's own, whichever ran first.
    (tmp_path / "second.csv").write_text(TRACE_CSV.replace("NVIDIA Test (0)", "NVIDIA Test (3)", 1))
    assert sorted(read_timeline(tmp_path / "second.csv").kernels["device"]) == [0, 0, 3]
    (tmp_path / "ms.csv").write_text(TRACE_CSV.replace("(ns)", "(ms)"))
    assert read_timeline(tmp_path / "ms.csv").kernels["duration_s"].iloc[0] == pytest.approx(2.5)
    old = TRACE_CSV.replace("Start (ns)", "Start(nsec)").replace("Duration (ns)", "Duration(nsec)")
    (tmp_path / "old.csv").write_text(old)
    assert read_timeline(tmp_path / "old.csv").kernels["duration_s"].iloc[0] == pytest.approx(2.5e-6)
    (tmp_path / "unit.csv").write_text(TRACE_CSV.replace("Duration (ns)", "Duration (parsec)"))
    with pytest.raises(InputError, match="column Duration: its unit is none of ns, us, ms and s"):
        read_timeline(tmp_path / "unit.csv")
    (tmp_path / "bad.csv").write_text(TRACE_CSV.replace("9000,500", "9000,fast"))
    with pytest.raises(InputError, match=r"row 3 below the header, column Duration: 'fast' is not a number"):
        read_timeline(tmp_path / "bad.csv")


def test_csv_of_several_reports(tmp_path):
    sums = "Time (%),Total Time (ns),{},Avg (ns),Name\n"
    text = (
        "Processing [a.sqlite] with [api.py]... \n" + sums.format("Num Calls") + "80.0,800,8,100.0,cudaMalloc\n"
        "\nProcessing [a.sqlite] with [kern.py]... \n" + sums.format("Instances") + "60.0,6000,2,3000.0,a\n"
        "40.0,4000,4,1000.0,b\n\nTime (%),Total Time (ns),Count,Avg (ns),Operation\n100.0,5,5,1.0,[CUDA memcpy HtoD]\n"
    )
    (tmp_path / "all.csv").write_text(text, newline="")
    (tmp_path / "windows.csv").write_text(text.replace("\n", "\r\n"), newline="")
    for name in ("all.csv", "windows.csv"):
        kernels = read_timeline(tmp_path / name).kernels
        assert kernels[["kernel", "launches"]].to_numpy().tolist() == [["a", 2], ["b", 4]]


def test_csv_of_launches_from_the_call_to_the_kernel(tmp_path):
    (tmp_path / "exec.csv").write_text(
        "API Start (ns),API Dur (ns),Kernel Start (ns),Kernel Dur (ns),Total Dur (ns),PID,TID,DevId,API Function,"
        "GridXYZ,BlockXYZ,Kernel Name\n100,10,115,40,55,1,1,0,cudaLaunchKernel,1,32,a\n"
        "200,10,215,41,56,1,1,0,cudaLaunchKernel,1,32,b\n"
    )
    whole = (tmp_path / "exec.csv").read_text()
    for text in whole, whole.replace("\n", ",\n"):  # as a program writes it that ends every cell with a comma
        (tmp_path / "exec.csv").write_text(text)
        timeline = read_timeline(tmp_path / "exec.csv")
        assert timeline.kernels["kernel"].tolist() == ["a", "b"] and timeline.devices == []
    assert timeline.kernels["start_s"].to_numpy() == pytest.approx([0, 100e-9])
    assert timeline.kernels["duration_s"].to_numpy() == pytest.approx([40e-9, 41e-9])


def test_csv_of_sums_of_everything_on_the_gpu(tmp_path):
    (tmp_path / "gpu_sum.csv").write_text(
        "Time (%),Total Time (ns),Instances,Avg (ns),Category,Operation\n90.0,9000,9,1000.0,CUDA_KERNEL,a\n"
        "10.0,1000,1,1000.0,MEMORY_OPER,[CUDA memcpy HtoD]\n"
    )
    kernels = read_timeline(tmp_path / "gpu_sum.csv").kernels
    assert kernels[["kernel", "launches"]].to_numpy().tolist() == [["a", 9]]


@pytest.mark.parametrize(
    "head",
    [
        "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl",  # ranges of the host
        "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name",  # calls
    ],
)
def test_what_the_host_did_does_not_pass_for_kernels(tmp_path, head):
    row = ",".join("5" if "(" in name else "step" for name in head.split(","))
    (tmp_path / "host.csv").write_text(f"{head}\n{row}\n")
    with pytest.raises(InputError, match="neither a timeline nor a report"):
        read_timeline(tmp_path / "host.csv")


def test_annotations_on_the_gpu_count_where_there_are_no_others(tmp_path):
    events = [event("kernel", "gemm", 10 * number, 5, pid=0, tid=7) for number in range(4)]
    marks = [event("gpu_user_annotation", f"step {number}", 20 * number, 15, pid=0, tid=7) for number in range(2)]
    (tmp_path / "gpu.json").write_text(json.dumps({"traceEvents": events + marks}))
    assert read_timeline(tmp_path / "gpu.json").host["name"].tolist() == ["step 0", "step 1"]
    marks.append(event("user_annotation", "on the host", 0, 100))
    (tmp_path / "both.json").write_text(json.dumps({"traceEvents": events + marks}))
    assert read_timeline(tmp_path / "both.json").host["name"].tolist() == ["on the host"]


def test_kineto_of_2021(tmp_path):
    """Of the samples of its plug-in for TensorBoard: names with capitals, identifiers without, texts for threads."""
    events = [
        event("Operator", "ProfilerStep#2", 0, 100, tid="11", **{"External id": 1}),
        event("Operator", "aten::add_", 10, 20, tid="12", **{"External id": 98}),
        event("Runtime", "cudaLaunchKernel", 40, 5, tid="11", correlation=467, **{"external id": 98}),
        event("Kernel", "add", 50, 1, 0, "stream 7", device=0, stream=7, correlation=467, **{"external id": 98}),
    ]
    path = write(tmp_path / "a.json", {"computeProperties": [{"name": "Tesla V100"}], "traceEvents": events})
    timeline = read_timeline(path)
    assert timeline.devices == ["Tesla V100"]
    assert timeline.kernels.loc[0, ["operator", "annotation", "stream"]].tolist() == ["aten::add_", "ProfilerStep#2", 7]


def test_a_database_of_nvprof_is_named(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.nvvp")) as base:
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (start INT)")
        base.commit()
    with pytest.raises(InputError, match=r"a database of nvprof is not read; export it: nvprof --import-profile"):
        read_timeline(tmp_path / "a.nvvp")


def test_rows_of_another_width_are_told_of(tmp_path):
    (tmp_path / "cut.csv").write_text(TRACE_CSV + "9900,5\n")
    with pytest.warns(InputWarning, match=r"cut\.csv: 1 of \d rows have another number of cells than the header"):
        read_timeline(tmp_path / "cut.csv")


def test_csv_of_nvprof(tmp_path):
    (tmp_path / "trace.csv").write_text(
        "==12== NVPROF is profiling process 12, command: ./a.out\n==12== Profiling result:\n"
        '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Size","Device","Stream","Name"\n'
        "ms,us,,,,,,,MB,,,\n"
        '214.33,1.216,,,,,,,0.004,"Tesla V100-SXM2-16GB (0)","7","[CUDA memcpy HtoD]"\n'
        '214.40,605.0,32,2,1,256,1,1,,"Tesla V100-SXM2-16GB (0)","7","sgemm(float*, int) [120]"\n'
    )
    timeline = read_timeline(tmp_path / "trace.csv")
    assert timeline.devices == ["Tesla V100-SXM2-16GB"]
    assert timeline.kernels["kind"].tolist() == ["copy", "kernel"]
    kernel = timeline.kernels.iloc[1]
    assert (kernel["kernel"], kernel["grid"], kernel["block"]) == ("sgemm(float*, int)", "32x2x1", "256x1x1")
    assert (kernel["start_s"], kernel["duration_s"]) == pytest.approx((0.07e-3, 605e-6))
    (tmp_path / "sums.csv").write_text(
        '==12== Profiling result:\n"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,ms,,us,us,us,\n'
        '"GPU activities",60.5,6.05,10,605.0,600.0,610.0,"sgemm(float*, int)"\n'
        '"API calls",99.0,100.0,3,33333.0,1.0,99999.0,"cudaMalloc"\n==12== Generated result file: a.nvvp\n'
    )
    kernels = read_timeline(tmp_path / "sums.csv").kernels
    assert kernels[["kernel", "launches"]].to_numpy().tolist() == [["sgemm(float*, int)", 10]]
    assert kernels["duration_s"].tolist() == pytest.approx([6.05e-3])


NVPROF_TEXT = """==12== NVPROF is profiling process 12, command: ./a.out
==12== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   67.08%  8.6348ms        14  616.77us     512ns  3.1952ms  [CUDA memcpy HtoD]
                   32.67%  4.2060ms        14  300.43us  4.5440us  1.3851ms  void reduce<int, 2>(int*, unsigned int)
                    0.15%  1.00250s         1  1.00250s  1.00250s  1.00250s  add
      API calls:   99.00%  286.81ms         1  286.81ms  286.81ms  286.81ms  cudaDeviceReset
"""


def test_what_nvprof_prints(tmp_path):
    (tmp_path / "sums.txt").write_text(NVPROF_TEXT)
    # Before CUDA 9 types had tables of their own.
    old = "\n".join(line[17:] if line.startswith(" ") else line for line in NVPROF_TEXT.splitlines()[:-1])
    calls = old.splitlines()[2] + "\n 99.00%  286.81ms         1  286.81ms  286.81ms  286.81ms  cudaDeviceReset\n"
    (tmp_path / "old.txt").write_text(f"{old}\n\n==12== API calls:\n{calls}")
    for name in ("sums.txt", "old.txt"):
        timeline = read_timeline(tmp_path / name)
        kernels = timeline.kernels[timeline.kernels["kind"] == "kernel"]
        assert kernels[["kernel", "launches"]].to_numpy().tolist() == [
            ["void reduce<int, 2>(int*, unsigned int)", 14],
            ["add", 1],
        ]
        assert kernels["duration_s"].tolist() == pytest.approx([4.206e-3, 1.0025])
        assert timeline.kernels["kind"].tolist() == ["copy", "kernel", "kernel"]
    (tmp_path / "calls.txt").write_text(f"==12== API calls:\n{calls}")
    with pytest.raises(InputError, match="statistics of calls or domains, not of kernels; profile with nvprof"):
        read_timeline(tmp_path / "calls.txt")


def test_the_trace_that_nvprof_prints(tmp_path):
    (tmp_path / "trace.txt").write_text(
        "==31== Profiling result:\n"
        "   Start  Duration            Grid Size      Block Size     Regs*    SSMem*           Device   Context  Name\n"
        "182.84ms  23.136us                    -               -         -         -  Tesla P100-PCIE         1  "
        "[CUDA memcpy HtoD]\n"
        "182.89ms  1.9769ms            (512 1 1)       (128 2 1)        31        0B  Tesla P100-PCIE         1  "
        "draw(int*, unsigned long) [118]\n"
        "1.18287s         -                    -               -         -         -                -         -  "
        "[Unified Memory CPU page faults]\n\nRegs: Number of registers used per CUDA thread.\n"
    )
    timeline = read_timeline(tmp_path / "trace.txt")
    assert timeline.kernels["kernel"].tolist() == ["[CUDA memcpy HtoD]", "draw(int*, unsigned long)"]
    assert timeline.kernels["start_s"].tolist() == pytest.approx([0, 50e-6])
    assert timeline.kernels["duration_s"].tolist() == pytest.approx([23.136e-6, 1.9769e-3])
    assert timeline.kernels[["grid", "block"]].to_numpy().tolist() == [["", ""], ["512x1x1", "128x2x1"]]
    assert timeline.devices == ["Tesla P100-PCIE"]


def test_unified_memory_is_no_kernel(tmp_path):
    (tmp_path / "trace.csv").write_text(
        '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Device","Stream","Name"\n'
        "s,ms,,,,,,,,,\n"
        '1.204081,,,,,,,,,,"[Unified Memory CPU page faults]"\n'
        '1.801239,0.276608,,,,,,,"TITAN Xp (0)",,"[Unified Memory GPU page faults]"\n'
        '1.801299,0.287308,506,1,1,192,1,1,"TITAN Xp (0)","7","fill(int, float*)"\n'
        '1.802441,0.007360,,,,,,,"TITAN Xp (0)",,"[Unified Memory Memcpy HtoD]"\n'
    )
    kernels = read_timeline(tmp_path / "trace.csv").kernels
    assert kernels[["kernel", "kind"]].to_numpy().tolist() == [
        ["fill(int, float*)", "kernel"],
        ["[Unified Memory Memcpy HtoD]", "copy"],
    ]
    (tmp_path / "calls.csv").write_text(
        '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,us,,us,us,us,\n"API calls",99,7,1,7,7,7,"mine"\n'
    )
    with pytest.raises(InputError, match="there is no GPU kernel in it"):
        read_timeline(tmp_path / "calls.csv")


def printed_by_torch(rows, total="9.000ms"):
    columns = ("Name", "Self CPU %", "Self CPU", "CPU total", "Self CUDA", "Self CUDA %", "CUDA total", "# of Calls")
    rule = "  ".join(["-" * 30] * len(columns))
    cells = [(name, "1.00%", cpu, cpu, cuda, "1.00%", cuda, calls) for name, cpu, cuda, calls in rows]
    lines = ["  ".join(f"{cell:>30}" for cell in row) for row in (columns, *cells)]
    return "\n".join(
        [rule, lines[0], rule, *lines[1:], rule, f"Self CPU time total: 1s\nSelf CUDA time total: {total}\n"]
    )


def test_the_table_that_torch_profiler_prints(tmp_path):
    rows = [
        ("ProfilerStep*", "0.000us", "12.000ms", "1"),
        ("aten::mm", "20.000us", "5.000ms", "2"),
        ("void cutlass::Kernel<cutlass_80_tensorop_f16_s16816g...", "0.000us", "5.000ms", "2"),
        ("triton_poi_fused_add_0", "30.000us", "2.500ms", "4"),
        ("triton_poi_fused_add_0", "0.000us", "2.500ms", "4"),
        ("my range", "-3.000us", "0.000us", "1"),
        ("my range", "0.000us", "11.000ms", "1"),
        ("Memcpy HtoD (Pageable -> Device)", "0.000us", "1.500ms", "3"),
        ("cudaLaunchKernel", "2.000ms", "0.000us", "6"),
    ]
    path = tmp_path / "profiler_out_0.txt"
    # What follows is of another table.
    path.write_text(f"INFO: step 3\n{printed_by_torch(rows)}\n{printed_by_torch(rows[:3])}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_timeline(path).kernels
    assert found["kind"].astype(str).tolist() == ["kernel", "kernel", "copy"]
    assert found["launches"].tolist() == [2, 4, 3]
    assert found["duration_s"].tolist() == pytest.approx([5e-3, 2.5e-3, 1.5e-3])
    path.write_text(printed_by_torch(rows, total="1.800s"))
    with pytest.warns(InputWarning, match=r"its kernels take 9 ms, but its total is 1,800 ms; shares are of"):
        read_timeline(path)


@given(st.text("0123456789.%()-= unmsUTyp\n:", max_size=300))
def test_any_text_below_a_printed_header(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("nvprof") / "a.txt"
    with warnings.catch_warnings(), suppress(InputError):
        warnings.simplefilter("ignore", InputWarning)
        torch = "Name    Self CPU    Self CUDA    # of Calls"
        trace = "   Start  Duration            Grid Size      Block Size  Name"
        for header in NVPROF_TEXT.splitlines()[2], trace, torch:
            path.write_text(f"{header}\n{text}\n    0.15%  1.00250s         1  1.00250s  1.00250s  1.00250s  add\n")
            assert read_timeline(path).kernels["launches"].ge(0).all()


def test_csv_of_sums(tmp_path):
    (tmp_path / "sums.csv").write_text(
        'Time (%),Total Time (ns),Instances,Avg (ns),Name\n80.0,8000,4,2000,"gemm<int, 2>"\n20.0,2000,1,2000,add\n'
    )
    # PowerShell redirects what nsys stats prints to UTF-16.
    (tmp_path / "redirected.csv").write_text((tmp_path / "sums.csv").read_text("utf-8"), "utf-16")
    for name in ("sums.csv", "redirected.csv"):
        timeline = read_timeline(tmp_path / name)
        assert not timeline.has_times
        assert timeline.kernels["launches"].tolist() == [4, 1]
        assert timeline.kernels["duration_s"].tolist() == pytest.approx([8e-6, 2e-6])


# ------------------------------------------------------------------------------------------------------- properties


def _cross(one, other):
    (a, b), (c, d) = one, other[:2]
    return not (b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d))


@given(
    intervals=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 1)), max_size=12),
    moments=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1)), max_size=8),
)
def test_enclosing_intervals_are_those_that_a_search_finds(intervals, moments):
    # Nested or apart, as calls on one thread are.
    kept = []
    for start, length, thread in intervals:
        new = (start, start + length, thread)
        crossing = any(t == thread and _cross((s, e), new) for s, e, t in kept)
        if not crossing and length and new not in kept:
            kept.append(new)
    start, end, thread = (np.array([row[k] for row in kept], float) for k in range(3))
    at, on = (np.array([row[k] for row in moments], float) + 0.5 * (k == 0) for k in range(2))
    inner, outer = enclosing(start, end, thread, at, on)
    for number, (moment, own) in enumerate(zip(at, on, strict=True)):
        around = [row for row in range(len(kept)) if thread[row] == own and start[row] <= moment <= end[row]]
        lengths = [end[row] - start[row] for row in around]
        assert (inner[number] >= 0) == (outer[number] >= 0) == bool(around)
        if around:
            assert end[inner[number]] - start[inner[number]] == min(lengths)
            assert end[outer[number]] - start[outer[number]] == max(lengths)


def test_large_traces_are_streamed(tmp_path):
    """A trace of mostly Python stacks is read in bounded memory and at a good rate."""
    stack = json.dumps(event("python_function", "x" * 300, 1.5, 1.0))
    path = tmp_path / "large.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for number in range(40):
            file.write(f"{','.join([stack] * 2000)},{json.dumps(event('kernel', 'k', float(number), 0.5))},")
        file.write(f"{stack}]}}")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert len(read_timeline(path).kernels) == 40
    spent = time.process_time() - began
    assert path.stat().st_size > 3e7
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB: a few chunks
    assert path.stat().st_size / spent > 20e6  # bytes per CPU second, also on a slow machine


TRACES = "raw.githubusercontent.com/AMD-AGI/TraceLens/171dd74721ca1ec45709e5805b68ae1f65e27811/tests/traces"
RECORDED = {
    "b200/eager_trace.json.gz": ("NVIDIA B200", 768, 0.010862916),
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": ("NVIDIA H100 80GB HBM3", 1465, None),
    "inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz": ("AMD Instinct MI300X", 555, 0.009765437),
}


@pytest.mark.parametrize("name", RECORDED)
def test_public_recordings_by_an_independent_sum(mirror, name):
    path = mirror / TRACES / name
    device, count, total = RECORDED[name]
    timeline = read_timeline(path)
    own = timeline.kernels[timeline.kernels["kind"] == "kernel"]
    with gzip.open(Path(path), "rt") as file:
        every = [entry for entry in json.load(file)["traceEvents"] if entry.get("cat") == "kernel"]
    assert timeline.devices[0] == device
    assert len(own) == len(every) == count
    assert own["duration_s"].sum() == pytest.approx(1e-6 * sum(entry["dur"] for entry in every), rel=1e-12)
    assert total is None or own["duration_s"].sum() == pytest.approx(total, rel=1e-6)
    if device == "NVIDIA B200":
        assert (own["operator"] != "").sum() == 766


def test_half_a_character_in_a_name_is_written_as_an_escape(tmp_path):
    half = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k\\ud800", "ts": 1, "dur": 2, "args": {}}]}'
    (tmp_path / "t.json").write_text(half, "utf-8")
    assert read_timeline(tmp_path / "t.json").kernels["kernel"].tolist() == [r"k\ud800"]
