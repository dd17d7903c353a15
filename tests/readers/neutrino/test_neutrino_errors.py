"""What is no trace is refused with one line that says why; nothing but InputError leaves a reader."""

import random
import resource
import struct
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from damage import PIECES, damaged
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.readers import neutrino

DATA = Path(__file__).parents[2] / "data" / "neutrino"
READERS = {
    "trace": neutrino.open_trace,
    "dmat": neutrino.read_dmat,
    "probe": neutrino.read_probe,
    "kernel_info": neutrino.read_kernel_info,
    "process_log": neutrino.read_process_log,
    "event_log": neutrino.read_event_log,
    "tensor_trace": neutrino.read_tensor_trace,
}
TEXTS = {
    "probe": ["compiled.toml", "written.toml"],
    "kernel_info": ["kernel.info"],
    "process_log": ["process.log"],
    "event_log": ["main_event.log", "artifact_benchmark_event.log"],
    "tensor_trace": ["tensor.trace"],
}


def refusal(reader, path):
    with pytest.raises(InputError) as caught:
        reader(path)
    text = str(caught.value)
    shown = str(path).replace("\0", "\\x00")
    assert text.startswith(shown) and "; " in text
    return text.removeprefix(shown).removeprefix(", ")


def trace(words=(2, 1, 1, 64, 1, 1, 0, 1), table=((16 | 32 << 32, 48),), data=bytes(64)):
    return struct.pack("<8I", *words) + b"".join(struct.pack("<2Q", *entry) for entry in table) + data


GOOD = trace()
MOST = 2**32 - 1
U64 = 2**64 - 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "byte 0: 0 bytes are too short"),
        (GOOD[:31], "byte 31: 31 bytes are too short"),
        (GOOD[:47], "byte 47: 47 bytes are too short"),
        (GOOD[:-1], "byte 111: truncated: 111 bytes, but its header says 112 (V3)"),
        (GOOD[:50], "byte 50: truncated: 50 bytes, but its header says 112 (V3)"),
        (GOOD + b"\0", "byte 112: too long: 113 bytes, but its header says 112 (V3)"),
        (trace(table=((64, 48),))[:-8], "byte 104: truncated: 104 bytes, but its header says 112 (V1)"),
        (trace(table=((16, 48),))[:-8], "byte 104: truncated: 104 bytes, but its header says 112 (V2 at warp"),
        (trace(table=((8, 48),), data=bytes(1000)), "truncated: 1048 bytes, but its header says 1072 (V2 at th"),
        (trace((0, 1, 1, 64, 1, 1, 0, 1)), "byte 0: not a trace: a grid of 0 × 1 × 1"),
        (trace((1, 1, 1, 64, 0, 1, 0, 1)), "byte 12: not a trace: a block of 64 × 0 × 1"),
        (trace((1, 1, 1, 64, 64, 1, 0, 1)), "byte 12: not a trace: blocks of 4096 threads"),
        (trace((MOST,) * 8), "byte 12: not a trace: blocks of"),
        (trace((MOST, MOST, MOST, 1024, 1, 1, MOST, 1)), "byte 112: truncated: 112 bytes, but its header says"),
        (trace((2, 1, 1, 64, 1, 1, 0, 0)), "byte 28: the trace has no section"),
        (trace((2, 1, 1, 64, 1, 1, 0, MOST)), "byte 28: not a trace: 4294967295 sections do not fit"),
        (trace((2, 1, 1, 64, 1, 1, 0, 5000), data=bytes(80000)), "byte 28: not a trace: 5000 sections do not fit"),
        (trace(table=((16, 49),)), "byte 40: not a trace: the first section starts at byte 49, not 48"),
        (trace(table=((16, U64),)), "byte 40: not a trace: the first section starts at byte 18446744073709551615"),
        (trace(table=((0, 48),)), "byte 32: the section table fits no version (V3: a divisor of 0; V1: 0 bytes do"),
        (trace(table=((7 | 3 << 32, 48),)), "byte 32: the section table fits no version (V3: a divisor of 3"),
        (trace(table=((12 | 32 << 32, 48),)), "byte 32: the section table fits no version (V3: 12 bytes"),
        (trace(table=((U64, 48),), data=bytes(63)), "byte 32: the section table fits no version"),
        (
            trace((2, 1, 1, 64, 1, 1, 0, 2), ((U64, 64), (16, 80))),
            "byte 32: the section table fits no version (V3: a divisor of 4294967295; V1: 18446744073709551615 bytes",
        ),
        (
            trace((2, 1, 1, 64, 1, 1, 0, 2), ((16 | 32 << 32, 64), (16 | 32 << 32, 80)), bytes(128)),
            "byte 32: the section table fits no version (V3: the sections are not end to end",
        ),
        (b"\x7fELF" + bytes(200), "byte 0: not a trace: a grid of"),
        (b"PK\x03\x04" * 100, "byte 12: not a trace: blocks of"),
        (b"[exec] grid 1 1 1 block 32 1 1 shared 0\n" * 9, "byte 12: not a trace: blocks of"),
    ],
)
def test_wrong_traces_are_refused(tmp_path, content, reason):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    found = refusal(neutrino.open_trace, path)
    assert found.startswith(reason) or f": {reason}" in found


def test_levels_of_another_number_of_sections_are_refused(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(GOOD)
    assert "2 levels are given" in refusal(lambda path: neutrino.open_trace(path, levels=["warp"] * 2), path)


def test_records_that_are_not_there_or_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(GOOD)
    found = neutrino.open_trace(path)
    assert "byte 28: no section 1: the trace has 1" in refusal(lambda path: found.records(1), path)
    wide = np.dtype([("a", "<u8", 3)])
    assert "section 0: 16 bytes per warp" in refusal(lambda path: found.records(dtype=wide), path)
    for dtype in (object, "S0"):
        with pytest.raises(ValueError, match="records have"):
            found.records(dtype=dtype)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused(tmp_path, name):
    for path in (tmp_path, tmp_path / "absent", tmp_path / "a\0b", tmp_path / ("x" * 300)):
        refusal(READERS[name], path)
    (tmp_path / "empty").touch()
    refusal(READERS[name], tmp_path / "empty")
    (tmp_path / "zeros").write_bytes(bytes(100))
    if name != "dmat":
        refusal(READERS[name], tmp_path / "zeros")


@pytest.mark.parametrize("name", READERS)
def test_foreign_files_are_refused(tmp_path, name):
    path = tmp_path / "x"
    for content in (b"%PDF-1.7\n" * 40, b"\x89PNG\r\n\x1a\n" * 40, Path(__file__).read_bytes(), b"\xff" * 999):
        path.write_bytes(content)
        refusal(READERS[name], path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[exec] grid 32768 1 1 blo", "line 2"),
        ("[exec] grid 1 1 1 block 32 1 1 shared", "line 2"),
        ("[exec] grid 1 1 1 block 32 1 1 shared 99999999999999999999", "line 2"),
        ("[exec] grid 5 warp  4 probe 16 total 320", "line 2"),
        ("[exec] probe-mem 20 (byt", "line 2"),
        ("[exec] prologue 1 kernel x epilogue 3 ratio 4", "line 2"),
        ("[exec] 5 parm 1", "line 2"),
        ("[count] size: many", "line 2"),
        ("[pid] x", "line 2"),
        ("[mem] cuMemAlloc_v2 0 dptr", "line 2"),
        ("[benchmark] prologue 1", "line 2"),
        ("[callback] succeed", "line 2"),
    ],
)
def test_malformed_lines_are_refused(tmp_path, line, reason):
    path = tmp_path / "event.log"
    path.write_text(f"[init] pid 1\n{line}\n")
    found = refusal(neutrino.read_event_log, path)
    assert found.startswith(f"{reason}: truncated, or not an event.log: '{' '.join(line.split())}'")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[call]  1  torch.Size([4])  8", "line 1: truncated, or not a tensor.trace: 4 fields, but [call] has 8"),
        ("[call]  1  torch.Size([4, x])  8  9  a  f  l:1", "line 1: 'torch.Size([4, x])' is not a torch.Size"),
        ("[call]  1  torch.Size([4])  -8  9  a  f  l:1", "line 1: '-8' is not a decimal size"),
        ("[call]  1  torch.Size([4])  8  7f12  a  f  l:1", "line 1: '7f12' is not a decimal address"),
        ("[call]  1  torch.Size([4])  8  18446744073709551616  a  f  l:1", "is not a decimal address"),
        ("call  1", "line 1: truncated, or not a tensor.trace: no [call] or [ret] at its start"),
    ],
)
def test_wrong_tensors_are_refused(tmp_path, line, reason):
    path = tmp_path / "tensor.trace"
    path.write_text(line + "\n")
    assert reason in refusal(neutrino.read_tensor_trace, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gemm\n", "line 2: truncated, or not a kernel.info: the number of parameters is missing"),
        ("gemm\nx\n", "line 2: 'x' is not the number of parameters"),
        ("gemm\n1\n", "line 3: truncated, or not a kernel.info: the number of maps is missing"),
        ("gemm\n1\n2\n1,16\n", "line 3: truncated, or not a kernel.info: 2 maps, but 1 lines follow"),
        ("gemm\n1\n999999999\n", "line 3: truncated, or not a kernel.info: 999999999 maps, but 0 lines follow"),
        ("gemm\n1\n1\n2,16\n", "line 4: '2,16' is not a level"),
        ("gemm\n1\n1\n1,\n", "line 4: '1,' is not a level"),
    ],
)
def test_wrong_kernel_infos_are_refused(tmp_path, text, reason):
    path = tmp_path / "kernel.info"
    path.write_text(text)
    assert reason in refusal(neutrino.read_kernel_info, path)


def test_registers_of_no_build_are_refused(tmp_path):
    path = tmp_path / "process.log"
    path.write_text("None\nptxas info    : Used 18 registers\n")
    assert refusal(neutrino.read_process_log, path).startswith("line 2: registers or spills before any ptxas command")


def read_or_refuse(name, content):
    """Read `content`, and the records where it is a trace; nothing but InputError may leave, no large array be made."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", neutrino.TraceWarning)
        path = Path(folder) / "x"
        path.write_bytes(content)
        try:
            found = READERS[name](path)
            if name == "trace":
                for entry in found.sections:
                    assert entry.offset + entry.bytes <= len(content)
                    records = found.records(entry.index, "<u4")
                    assert records.nbytes <= entry.bytes and records.sum(dtype="u8") >= 0
                    found.records(entry.index)
        except InputError as error:
            assert str(error).startswith(str(path))


WORDS = st.sampled_from([0, 1, 2, 3, 31, 32, 33, 64, 1024, 2**16, 2**31, MOST]) | st.integers(0, MOST)
SIZES = st.sampled_from([0, 1, 8, 16, 64, 16 | 1 << 32, 16 | 32 << 32, 16 | 64 << 32, U64, 2**63]) | st.integers(0, U64)


@settings(max_examples=400, deadline=None)
@given(st.tuples(*[st.integers(1, 3) | WORDS] * 8), st.lists(st.tuples(SIZES, SIZES), max_size=3), st.integers(0, 300))
def test_any_header_is_read_or_refused(words, table, data):
    read_or_refuse("trace", trace(words, table, bytes(data)))


@settings(max_examples=400, deadline=None)
@given(
    st.tuples(*[st.integers(1, 3)] * 3),
    st.tuples(st.integers(1, 70), st.integers(1, 2), st.just(1)),
    st.lists(SIZES, min_size=1, max_size=3),
    st.integers(0, 4000),
    st.booleans(),
)
@example((1, 1, 1), (2, 1, 1), [8 | 32 << 32], 0, True)
@example((20, 1, 1), (2, 1, 1), [8 | 32 << 32], 10, True)
def test_plausible_headers_are_read_or_refused(grid, block, sizes, data, stated):
    start, table = 32 + 16 * len(sizes), []
    for size in sizes:
        table.append((size, start))
        start += grid[0] * grid[1] * grid[2] * block[0] * block[1] * (size & MOST) // (size >> 32 or 1)
        start %= 2**64
    content = trace((*grid, *block, 0, len(table)), table, b"")
    read_or_refuse("trace", content + bytes(start - len(content) if stated and start < 10**6 else data))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(READERS)), st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(name, content):
    read_or_refuse(name, content)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts])
def test_damaged_texts_are_read_or_refused(name, text):
    content, chance = (DATA / text).read_bytes(), random.Random(text)
    for _ in range(100):
        read_or_refuse(name, damaged(content, chance, [*PIECES, b" ", b"  ", b"[exec] ", b"{"]))


def test_an_absurd_header_takes_no_memory(tmp_path):
    path = tmp_path / "x.bin"
    # As long as announced, but a hole: nothing of it may be read to open it.
    with path.open("wb") as handle:
        handle.write(trace((2**20, 1, 1, 1024, 1, 1, 0, 1), ((16 | 1 << 32, 48),), b""))
        handle.truncate(48 + 2**34)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = neutrino.open_trace(path)
    assert found.records().shape == (2**20, 1024, 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
