"""Texts of a trace directory: specimens in the words of each release, and round trips."""

import dataclasses
import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import refused

from gpuledger.errors import InputError
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino import BLOCK_SCHED, DMAT_ACCESS, GMEM_BYTES

DATA = Path(__file__).parents[2] / "data" / "neutrino"
ZEROS = (
    "_ZN2at6native29vectorized_elementwise_kernel"
    + "ILi4ENS0_11FillFunctorIN3c104HalfEEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_"
)
FOLDER = "0_bf524e8c48fdebc3962c3b36823d8d68b093ebb6"


def test_event_log_of_the_last_release():
    log = neutrino.read_event_log(DATA / "main_event.log")
    assert (log.pid, log.command, log.benchmark, log.version) == (3183093, "python zeros.py", False, "V3")
    assert log.folders == {ZEROS: FOLDER}
    assert len(log.launches) == 2
    first, second = log.launches.to_dict("records")
    assert first["kernel"] == second["kernel"] == ZEROS
    assert first["function"] == "0x55d0cb2a4c10"
    assert (first["time_ns"], first["line"]) == (1750652293770568192, 9)
    assert first["parameters"] == (0x1000000, 0x10000000000, 0x7F1292000000)
    assert (first["grid"], first["block"], first["shared_bytes"]) == ((32768, 1, 1), (128, 1, 1), 0)
    assert (first["probe_bytes"], first["file_bytes"]) == (2097152, 2097200)
    assert (first["prologue_ms"], first["kernel_ms"], first["epilogue_ms"]) == (234.087418, 0.065536, 2.705856)
    assert first["ratio"] == pytest.approx(sum((234.087418, 0.065536, 2.705856)) / 0.065536, rel=1e-7)
    assert (first["outcome"], first["code"], first["callback"]) == ("succeed", 0, "succeed")
    assert pd.isna(first["counted_bytes"]) and np.isnan(first["original_ms"])
    assert second["grid"] == (65536, 1, 1) and second["prologue_ms"] == 1.25
    assert log.sections.iloc[1].tolist() == [1, 0, "warp", 65536, 4, 16, 4194304]
    assert log.levels_of("elsewhere/10.250001.bin") == ["warp"] and log.launch_of("10.250001.bin") == 1
    assert log.levels_of("0.000001.bin") is None
    assert log.memory["address"].tolist() == [0x7F1292000000] * 2
    assert log.memory["bytes"].tolist() == [33554432, pd.NA]


def test_event_log_of_a_benchmark_of_the_release_before():
    log = neutrino.read_event_log(DATA / "artifact_benchmark_event.log")
    assert (log.pid, log.benchmark, log.version) == (1860576, True, "V2")
    timed, original = log.launches.to_dict("records")
    assert timed["kernel"] == "gemm" and timed["counted_bytes"] == 640
    assert (timed["original_ms"], timed["impact"], timed["kernel_ms"]) == (0.1, 4.0, 0.4)
    assert log.sections.iloc[0].tolist() == [0, 0, "thread", 4, 64, 640, 163840]
    assert (original["outcome"], original["kernel"], original["grid"]) == ("backup", "", (1, 1, 1))
    assert original["parameters"] == () and original["time_ns"] == 1746000000500000000


def test_event_log_survives_bytes_that_follow_names(tmp_path):
    path = tmp_path / "event.log"
    path.write_bytes(
        b"[pid] 3\n[cmd] 3 a b\xff\xfe\x00junk\n[jit] finish 0x1 name gemm\xf0 n_param 1\n"
        b"[jit] read f name gemm n_param 1 n_probe 1 analyze_hook x.py\n[exec] funcmap-find 0x1 success\n"
        b"[exec] 5 param 1 \n[exec] grid 1 1 1 block 32 1 1 shared 0\n[exec] succeed 0\n"
    )
    log = neutrino.read_event_log(path)
    assert log.launches["kernel"].tolist() == ["gemm"] and log.version == "V1" and log.command == "a b"


def test_memory_usage_run_has_sizes_and_backups(tmp_path):
    lines = ["[init] pid 1"]
    for _ in range(3):
        lines += ["[exec] funcmap-find 0x1 success", "[exec] 5 param ", "[exec] grid 2 1 1 block 32 1 1 shared 0"]
        lines += ["[exec] grid 2 warp  1 probe 16 total 32", "[exec] grid 2 block 32 probe 8 total 512"]
        lines += ["[exec] probe-mem 544 (bytes)", "[exec] backup 2 1 1 block 32 1 1 shared 0"]
    (tmp_path / "event.log").write_text("\n".join(lines))
    log = neutrino.read_event_log(tmp_path / "event.log")
    assert log.launches["probe_bytes"].tolist() == [544] * 3
    assert log.launches["outcome"].tolist() == ["backup"] * 3
    assert log.sections["section"].tolist() == [0, 1] * 3 and log.sections["launch"].tolist() == [0, 0, 1, 1, 2, 2]


TRIPLES = st.tuples(*[st.integers(1, 2**31 - 1)] * 3)
TIMES = st.integers(0, 10**9).map(lambda n: n / 10**6)


@st.composite
def launches(draw):
    kernel = draw(st.sampled_from(["gemm", "_Z3fooPfi", "void softmax<float, 4>(int)", "norm"]))
    outcome = draw(st.sampled_from(["succeed", "failed", "backup", ""]))
    launch = {"time_ns": draw(st.integers(0, 2**63 - 1)), "kernel": kernel, "grid": draw(TRIPLES)}
    launch |= {"block": draw(TRIPLES), "shared_bytes": draw(st.integers(0, 2**17)), "outcome": outcome}
    launch["function"] = f"0x{0x10 + len(kernel):x}"
    launch["parameters"] = tuple(draw(st.lists(st.integers(0, 2**64 - 1), max_size=3)))
    launch["code"] = {"succeed": 0, "failed": 700}.get(outcome)
    if outcome == "succeed":
        launch |= {"file": f"t/result/{draw(TIMES):.6f}.bin", "file_bytes": draw(st.integers(48, 2**40))}
        launch |= {"prologue_ms": draw(TIMES), "kernel_ms": draw(TIMES), "epilogue_ms": draw(TIMES)}
        launch["callback"] = draw(st.sampled_from(["succeed", "failed", ""]))
        if draw(st.booleans()):
            launch |= {"original_ms": draw(TIMES), "impact": draw(TIMES)}
        else:
            launch["ratio"] = draw(TIMES)
    return launch


@settings(max_examples=60, deadline=None)
@given(st.lists(launches(), max_size=4), st.sampled_from(["V1", "V2", "V3"]), st.booleans())
def test_event_log_is_read_as_written(rows, version, benchmark):
    names = list(neutrino.event_log.LAUNCHES)
    frame = pd.DataFrame(
        {
            name: pd.Series([row.get(name, default) for row in rows], dtype=dtype)
            for name, (dtype, default) in neutrino.event_log.LAUNCHES.items()
        }
    )
    sections = pd.DataFrame(
        [(i, j, "warp" if j else "thread", 3, 4, 16, 192) for i in range(len(rows)) for j in range(2)],
        columns=list(neutrino.event_log.SECTIONS),
    ).astype(neutrino.event_log.SECTIONS)
    memory = pd.DataFrame(
        [(5, "cuMemAlloc_v2", 0, 2**63 + 5, 64), (6, "cuMemFree_v2", 0, 2**63 + 5, None)],
        columns=list(neutrino.event_log.MEMORY),
    ).astype(neutrino.event_log.MEMORY)
    log = neutrino.EventLog(frame, sections, memory, {}, version, benchmark, 17, "python x.py ")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "event.log"
        neutrino.write_event_log(path, log)
        found = neutrino.read_event_log(path)
    told = [name for name in names if name != "line"]
    pd.testing.assert_frame_equal(found.launches[told], frame[told])
    pd.testing.assert_frame_equal(found.sections, sections)
    pd.testing.assert_frame_equal(found.memory.drop(columns="line"), memory.drop(columns="line"))
    assert (found.pid, found.command) == (17, "python x.py ")
    assert found.folders == {
        name: f"{i}_{hashlib.sha1(name.encode()).hexdigest()}"
        for i, name in enumerate(dict.fromkeys(row["kernel"] for row in rows))
    }
    assert found.version == (version if rows or version == "V3" else None)


def test_a_log_made_from_few_columns_can_be_written(tmp_path):
    few = pd.DataFrame({"kernel": ["gemm", "gemm"], "probe_bytes": [5, 6]})
    empty = [
        pd.DataFrame(columns=list(columns)) for columns in (neutrino.event_log.SECTIONS, neutrino.event_log.MEMORY)
    ]
    neutrino.write_event_log(tmp_path / "event.log", neutrino.EventLog(few, *empty))
    found = neutrino.read_event_log(tmp_path / "event.log").launches
    assert found["probe_bytes"].tolist() == [5, 6] and found["kernel"].tolist() == ["gemm"] * 2
    with pytest.raises(ValueError, match="versions"):
        neutrino.write_event_log(tmp_path / "e", neutrino.EventLog(few, *empty), "V9")
    with pytest.raises(ValueError, match="line feed"):
        neutrino.write_event_log(tmp_path / "e", neutrino.EventLog(few.assign(kernel="a\nb"), *empty))


def test_process_log(tmp_path):
    log = neutrino.read_process_log(DATA / "process.log")
    assert log.kernel == ZEROS and log.objdump == "via cuobjdump -ptx" and not log.failure and not log.skipped
    assert (log.builds["probed"].registers, log.builds["pruned"].registers) == (18, 12)
    assert log.builds["probed"].constant_bytes - log.builds["pruned"].constant_bytes == 8
    assert (log.additional_registers, log.additional_spill_bytes) == (6, 0)
    neutrino.write_process_log(tmp_path / "process.log", log)
    assert neutrino.read_process_log(tmp_path / "process.log") == log


def test_process_log_of_a_newer_ptxas_with_spills_and_a_failure(tmp_path):
    path = tmp_path / "process.log"
    path.write_text(
        "['', 'softmax']\n['gemm']\n[decompile] via cuobjdump -elf\ngemm\n"
        "/usr/bin/ptxas -arch=sm_90a -m64 --verbose my dir/probed.ptx -o my dir/probed.bin\n"
        "    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 360 bytes cmem[0]\n"
        "Compile time = 3.4 ms\n"
        "ptxas -arch=sm_90a -m64 --verbose pruned.ptx -o pruned.bin\nptxas fatal   : no\n"
        "Traceback (most recent call last):\n  File x\nCalledProcessError: ptxas\n\n"
    )
    log = neutrino.read_process_log(path)
    assert (log.filter_out, log.filter_in) == (("softmax",), ("gemm",))
    assert log.builds["probed"] == neutrino.Build("sm_90a", 255, 16, 24, 32, 360, 4096)
    assert log.builds["pruned"].registers is None and log.additional_registers is None
    assert log.additional_spill_bytes is None and log.failure == "CalledProcessError: ptxas"
    neutrino.write_process_log(tmp_path / "again.log", log)
    assert neutrino.read_process_log(tmp_path / "again.log") == log
    path.write_text("None\nNone\n[objdump] bin is ptx\ngemm is not in ['softmax']\n")
    log = neutrino.read_process_log(path)
    assert (log.kernel, log.skipped, log.builds) == ("gemm", True, {})


def test_kernel_info(tmp_path):
    info = neutrino.read_kernel_info(DATA / "kernel.info")
    assert (info.kernel, info.parameters, info.maps) == (ZEROS, 3, (("warp", 16),))
    assert info.hook == "/neutrino/tools/block_sched.py" and len(info.parameter_types) == 3
    path = tmp_path / "kernel.info"
    dynamic = neutrino.KernelInfo("gemm", 2, (("thread", None), ("warp", 16)))
    for content in (info, dynamic, dataclasses.replace(dynamic, hook=""), dataclasses.replace(dynamic, maps=())):
        neutrino.write_kernel_info(path, content)
        assert neutrino.read_kernel_info(path) == content


@pytest.mark.parametrize("name", ["compiled", "written"])
def test_both_kinds_of_probe_state_the_same_record(name):
    [entry] = neutrino.read_probe(DATA / f"{name}.toml").maps
    assert (entry.level, entry.record_bytes, entry.cap, entry.dtype) == ("warp", 16, 1, BLOCK_SCHED)


def probe_of(tmp_path, text):
    path = tmp_path / "probe.toml"
    path.write_text(text)
    return neutrino.read_probe(path)


def test_counted_records_and_other_spellings(tmp_path):
    save = 'before = "SAVE.u64 {%clock, ADDR};"'
    written = probe_of(tmp_path, f'dynamic = true\n[a]\nposition = "ld.global"\ndatamodel = "thread:16:count"\n{save}')
    assert written.maps[0].cap is None and written.maps[0].dtype == DMAT_ACCESS
    old = '[map.m]\nlevel = "thread"\nsize = "8"\ncap = "dynamic"\n'
    compiled = probe_of(tmp_path, old + '[map.m.data]\nsync_bytes = "u32"\nasync_bytes = "u32"\n')
    assert compiled.maps[0].dtype == GMEM_BYTES and compiled.maps[0].cap is None
    capped = probe_of(tmp_path, '[a]\nposition="bra"\ndatamodel="thread:8:128"\nbefore="SAVE.u64 {%c};"')
    assert capped.maps[0].cap == 128 and capped.maps[0].dtype.names == ("c",)
    twice = probe_of(tmp_path, '[a]\nposition="bra"\ndatamodel="thread:16"\nbefore="SAVE.u64 {%c, %c};"')
    assert len(twice.maps[0].dtype.names) == 2
    unclear = probe_of(tmp_path, '[a]\nposition="bra"\ndatamodel="thread:64"\nbefore="SAVE.u64 {%c};"')
    assert unclear.maps[0].dtype is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ": the file is empty"),
        ("a = \n", "line 1: not TOML"),
        ("[a\n", "line 1: not TOML"),
        ('x = """', "not TOML"),
        ("a = 1\n", "not a probe"),
        ('[a]\nposition = "ld"\ndatamodel = "block:16"\n', "key a.datamodel: 'block' is not thread or warp"),
        ('[a]\nposition = "ld"\ndatamodel = "warp"\n', "key a.datamodel: 'warp' is not level:bytes"),
        ('[a]\nposition = "ld"\ndatamodel = "warp:x"\n', "key a.datamodel: 'x' is not an integer"),
        ('[a]\nposition = "ld"\ndatamodel = "warp:0"\n', "key a.datamodel: 0 is not an integer of at least 1"),
        ('[a]\nposition = "ld"\ndatamodel = "warp:999999999:999999"\n', "is not at most 4294967296 bytes"),
        ('[a]\nposition = "ld"\ndatamodel = "warp:16"\nbefore = 3\n', "key a.before: 3 is not a string"),
        ("map = 3\n", "key map: 3 is not a table"),
        ('[map.m]\nlevel = "warp"\n', "key map.m.size: None is not an integer"),
        ('[map.m]\nlevel = "warp"\nsize = 8\nregs = {a = "f32"}\n', "key map.m.regs.a: 'f32' is not u64 or u32"),
        ('x = "' + "9" * 5 + "\n", "not TOML"),
        ("x = " + "9" * 5000 + "\n", "not TOML"),
        ('[a]\nposition = "ld"\ndatamodel = 0x' + "f" * 5000 + "\n", "a number of thousands of digits is not a string"),
        ("x = " + "[" * 3000 + "\n", "not TOML"),
    ],
)
def test_wrong_probes_are_refused(tmp_path, text, reason):
    with refused(reason):
        probe_of(tmp_path, text)


def test_tensor_trace(tmp_path):
    tensors = neutrino.read_tensor_trace(DATA / "tensor.trace")
    assert tensors["tensor"].tolist() == ["query", "lse", "scale", "empty"]
    assert tensors["address"].tolist() == [140007813677056, 140007880785920, 140007890000000, 0]
    assert tensors["shape"].tolist() == [(4, 32, 4096, 64), (4, 32, 4096), (), (2, 0)]
    assert tensors["item_bytes"].tolist() == [2, 4, pd.NA, pd.NA]
    assert tensors["event"].tolist() == ["call", "call", "call", "ret"]
    assert tensors["location"][1] == "/a  b/attention.py:7" and tensors["function"][3] == "empty"
    neutrino.write_tensor_trace(tmp_path / "tensor.trace", tensors)
    assert (tmp_path / "tensor.trace").read_bytes() == (DATA / "tensor.trace").read_bytes()
    few = tensors[["tensor", "address", "bytes", "shape"]]
    neutrino.write_tensor_trace(tmp_path / "few.trace", few)
    pd.testing.assert_frame_equal(neutrino.read_tensor_trace(tmp_path / "few.trace")[list(few)], few)
    for wrong in ("a  b", "", " a", "a\nb"):
        with pytest.raises(ValueError, match="cannot be written as fields"):
            neutrino.write_tensor_trace(tmp_path / "few.trace", few.assign(tensor=wrong))


@pytest.fixture
def directory(tmp_path):
    """A trace directory with two launches; one kernel was left out."""
    (tmp_path / "result").mkdir()
    for name in (FOLDER, "1_" + "a" * 40, "other"):
        (tmp_path / "kernel" / name).mkdir(parents=True)
    log = neutrino.read_event_log(DATA / "main_event.log")
    neutrino.write_event_log(tmp_path / "event.log", log)
    for name in ("process.log", "kernel.info"):
        (tmp_path / "kernel" / FOLDER / name).write_bytes((DATA / name).read_bytes())
    (tmp_path / "probe.toml").write_bytes((DATA / "compiled.toml").read_bytes())
    for name, blocks in (("10.250001", 65536), ("0.611403", 32768)):
        neutrino.write_trace(
            tmp_path / "result" / f"{name}.bin",
            version="V1",
            grid=(blocks, 1, 1),
            block=(128, 1, 1),
            sections=[("warp", np.zeros((blocks, 4, 1), BLOCK_SCHED))],
        )
    return tmp_path


def test_trace_directory(directory):
    found = neutrino.open_trace_directory(directory)
    assert [path.name for path in found.results] == ["0.611403.bin", "10.250001.bin"]
    assert [kernel.index for kernel in found.kernels] == [0, 1]
    assert found.kernels[0].sha1 == hashlib.sha1(ZEROS.encode()).hexdigest()
    assert found.kernels[0].log.additional_registers == 6 and found.kernels[0].info.kernel == ZEROS
    assert found.kernels[1].log is None and found.kernels[1].info is None
    assert len(found.probe.maps) == 1
    trace = found.open(found.results[1])
    assert trace.sections[0].level == "warp" and not trace.sections[0].assumed
    launch = found.event_log.launches.loc[found.event_log.launch_of(trace.path)]
    assert launch["grid"] == trace.grid and launch["file_bytes"] == trace.path.stat().st_size


def test_a_trace_of_another_launch_or_probe_is_refused(directory):
    found = neutrino.open_trace_directory(directory)
    with pytest.raises(InputError, match="section 0: V1: the section is at warp level, not at thread level"):
        found.open("0.611403.bin", levels=["thread"])
    gmem = probe_of(directory, '[map.m]\nlevel = "thread"\nsize = 8\n')
    with pytest.raises(InputError, match="but the probe's map 'm' has 8 bytes per thread"):
        found.open("0.611403.bin", probe=gmem, levels=None)
    two = dataclasses.replace(gmem, maps=gmem.maps * 2)
    with pytest.raises(InputError, match="byte 28: 1 sections, but the probe"):
        found.open("0.611403.bin", probe=two)
    with pytest.raises(InputError, match="does not exist"):
        found.open("9.bin")


def test_folders_that_are_no_trace_directory(tmp_path):
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "a\0b"):
        with pytest.raises(InputError, match=r"not a trace directory|does not exist|cannot be read"):
            neutrino.open_trace_directory(folder)
    (tmp_path / "Nov20_101112_4711").mkdir()
    (tmp_path / "Nov20_101112_4711/event.log").touch()
    with pytest.raises(InputError, match="give the one of a process in it: Nov20_101112_4711"):
        neutrino.open_trace_directory(tmp_path)
