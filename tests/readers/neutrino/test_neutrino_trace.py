"""Traces of every version: the format's known answers, and what is written is read back, unchanged and unmoved."""

import struct
import tempfile
import warnings
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino import BLOCK_SCHED, DMAT_ACCESS, GMEM_BYTES, PROGRAM_PROGRESS, TENSOROP_COUNT

VERSIONS = ("V1", "V2", "V3")
ENTRIES = {"V1": "0000200000000000", "V2": "1000000000000000", "V3": "1000000020000000"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0.611403.bin"


def raw(grid, block, table, data=b"", shared=0):
    """A trace file, put together without the writer."""
    return struct.pack("<8I", *grid, *block, shared, len(table)) + b"".join(table) + data


def write(path, version="V3", grid=(2, 1, 1), block=(64, 1, 1), sections=None, **options):
    sections = sections or [("warp", np.zeros((prod(grid), prod(block) // 32, 1), BLOCK_SCHED))]
    neutrino.write_trace(path, version=version, grid=grid, block=block, sections=sections, **options)
    return sections


@pytest.mark.parametrize("version", VERSIONS)
def test_published_trace_of_zeros_has_the_stated_bytes(path, version):
    records = np.zeros((32768, 4, 1), BLOCK_SCHED)
    records["start"] = np.arange(32768)[:, None, None]
    write(path, version, (32768, 1, 1), (128, 1, 1), [("warp", records)])
    content = path.read_bytes()
    assert len(content) == 2097200
    head = "0080000001000000010000008000000001000000010000000000000001000000"
    assert content[:48].hex() == head + ENTRIES[version] + "3000000000000000"
    trace = neutrino.open_trace(path)
    assert (trace.version, trace.grid, trace.block, trace.shared_bytes) == (version, (32768, 1, 1), (128, 1, 1), 0)
    assert (trace.blocks, trace.threads) == (32768, 128)
    [section] = trace.sections
    assert (section.level, section.bytes_per_unit, section.units, section.offset) == ("warp", 16, 131072, 48)
    assert not section.assumed and not section.ragged and section.bytes == 2097152
    assert np.array_equal(trace.records(), records)


def test_records_are_views_of_the_mapped_file(path):
    write(path)
    records = neutrino.open_trace(path).records()
    assert isinstance(records, np.memmap) and not records.flags.writeable and not records.flags.owndata
    assert records.dtype == BLOCK_SCHED and np.shares_memory(records, records["cuid"])


def test_order_is_that_of_linear_block_and_thread_indices(path):
    grid, block = (3, 2, 2), (4, 2, 3)
    data = bytearray(12 * 24 * 16)
    for bx, by, bz, tx, ty, tz in np.ndindex(*grid, *block):
        unit = ((grid[1] * bz + by) * grid[0] + bx) * 24 + (block[1] * tz + ty) * block[0] + tx
        code = int(f"{bx}{by}{bz}{tx}{ty}{tz}")
        struct.pack_into("<2Q", data, 16 * unit, code, 7)
    path.write_bytes(raw(grid, block, [struct.pack("<IIQ", 16, 1, 48)], bytes(data), shared=5))
    trace = neutrino.open_trace(path)
    records = trace.records()
    assert trace.shared_bytes == 5 and records.dtype == DMAT_ACCESS and records.shape == (12, 24, 1)
    by_axis = records["clock"].reshape(2, 2, 3, 3, 2, 4)
    assert all(
        by_axis[bz, by, bx, tz, ty, tx] == int(f"{bx}{by}{bz}{tx}{ty}{tz}")
        for bx, by, bz, tx, ty, tz in np.ndindex(*grid, *block)
    )


LEVELS = st.sampled_from(["thread", "warp"])
DTYPES = st.sampled_from([BLOCK_SCHED, GMEM_BYTES, TENSOROP_COUNT, DMAT_ACCESS, PROGRAM_PROGRESS])


@st.composite
def traces(draw):
    """Grid, block and sections; blocks of any number of threads, sentinels and sparse SM numbers among the values."""
    grid = tuple(draw(st.integers(1, 4)) for _ in range(3))
    block = draw(
        st.tuples(st.integers(1, 70), st.integers(1, 3), st.integers(1, 2))
        | st.sampled_from([(1, 1, 1), (32, 1, 1), (16, 2, 1), (31, 1, 1), (33, 1, 1), (64, 2, 1), (8, 8, 2)])
    )
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sections = []
    for _ in range(draw(st.integers(1, 3))):
        level, dtype, count = draw(LEVELS), draw(DTYPES), draw(st.integers(1, 3))
        units = (prod(grid), prod(block) if level == "thread" else prod(block) // 32)
        records = np.empty((*(units if units[1] else (1, 1)), count), dtype)
        for name in dtype.names:
            top = np.iinfo(dtype[name]).max
            values = chance.integers(0, top, records.shape, dtype[name].str[1:], endpoint=True)
            values = chance.choice([0, 5, 131], records.shape) if name == "cuid" else values
            kind = chance.integers(0, 4, records.shape)
            records[name] = np.where(kind == 0, 0, np.where(kind == 1, top, values))
        sections.append((level, records))
    return grid, block, sections


def probe_of(sections):
    return neutrino.Probe(
        tuple(
            neutrino.ProbeMap(f"map{i}", level, records.itemsize, records.shape[2], records.dtype)
            for i, (level, records) in enumerate(sections)
        )
    )


def quiet(trace, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", neutrino.TraceWarning)
        return trace.records(*arguments)


@settings(max_examples=150, deadline=None)
@given(traces(), st.sampled_from(VERSIONS))
def test_what_is_written_is_read(content, version):
    grid, block, sections = content
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.000000.bin"
        write(path, version, grid, block, sections, shared_bytes=49152)
        trace = neutrino.open_trace(path, probe=probe_of(sections))
        # With one unit in all, V1 and V2 are the same bytes.
        assert trace.version == version or (version == "V2" and all(entry.units == 1 for entry in trace.sections))
        assert (trace.grid, trace.block, trace.shared_bytes) == (grid, block, 49152)
        for index, (level, records) in enumerate(sections):
            entry = trace.sections[index]
            assert (entry.level, entry.name) == (level, f"map{index}")
            partial = prod(block) % 32 != 0 and (prod(grid) > 1 or prod(block) > 32)
            assert entry.ragged == (level == "warp" and partial)
            found = quiet(trace, index)
            assert found.tobytes() == records.tobytes() and found.shape == records.shape
            assert quiet(trace, index, records.dtype).tobytes() == records.tobytes()
        forced = neutrino.open_trace(path, levels=[level for level, _ in sections])
        assert [entry.level for entry in forced.sections] == [level for level, _ in sections]
        # Written anew from what was read, the same bytes.
        again = [(level, np.asarray(quiet(trace, index))) for index, (level, _) in enumerate(sections)]
        write(Path(folder) / "2.bin", version, grid, block, again, shared_bytes=49152)
        assert (Path(folder) / "2.bin").read_bytes() == path.read_bytes()


@settings(max_examples=80, deadline=None)
@given(traces(), st.sampled_from(VERSIONS))
def test_without_a_probe_the_version_is_told_and_doubt_is_said(content, version):
    grid, block, sections = content
    # Grids of one unit, and the rare sizes that fit two versions, cannot be told apart by anybody.
    assume(prod(grid) > 1 and prod(block) > 31)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.bin"
        write(path, version, grid, block, sections)
        trace = neutrino.open_trace(path)
        assert trace.version == version
        for entry, (level, _) in zip(trace.sections, sections, strict=True):
            assert entry.level == level or entry.assumed
            assert version == "V1" or not entry.assumed


def test_a_total_that_fits_threads_and_warps_is_read_as_of_threads_unless_said(path):
    records = np.zeros((2, 2, 16), BLOCK_SCHED)
    write(path, "V1", sections=[("warp", records)])
    assumed = neutrino.open_trace(path)
    assert assumed.sections[0].assumed and assumed.records(dtype=GMEM_BYTES).shape == (2, 64, 1)
    said = neutrino.open_trace(path, levels=["warp"])
    assert not said.sections[0].assumed and said.records(dtype=BLOCK_SCHED).shape == records.shape
    assert neutrino.open_trace(path, probe=probe_of([("warp", records)])).records().shape == records.shape


def test_later_sections_of_v3_are_where_they_were_written_not_where_the_table_says(path):
    # Blocks of 40 threads: a slice for the partial warp is written, but 40/32 of one is stated.
    table = [struct.pack("<IIQ", 16, 32, 64), struct.pack("<IIQ", 8, 1, 64 + 2 * 40 * 16 // 32)]
    warps, threads = np.arange(8, dtype="<u8"), np.arange(100, 180, dtype="<u8")
    path.write_bytes(raw((2, 1, 1), (40, 1, 1), table, warps.tobytes() + threads.tobytes()))
    trace = neutrino.open_trace(path)
    assert [entry.offset for entry in trace.sections] == [64, 128]
    assert trace.records(1, TENSOROP_COUNT)["count"].ravel().tolist() == threads.tolist()
    with pytest.warns(neutrino.TraceWarning, match="partial warps"):
        assert trace.records(0)["start"].ravel().tolist() == [0, 2]
    # A driver that states what it writes is read the same, and so is one that writes what it states.
    table[1] = struct.pack("<IIQ", 8, 1, 128)
    path.write_bytes(raw((2, 1, 1), (40, 1, 1), table, warps.tobytes() + threads.tobytes()))
    assert neutrino.open_trace(path).records(1, TENSOROP_COUNT)["count"].ravel().tolist() == threads.tolist()
    table[1] = struct.pack("<IIQ", 8, 1, 104)
    path.write_bytes(raw((2, 1, 1), (40, 1, 1), table, warps.tobytes()[:40] + threads.tobytes()))
    assert neutrino.open_trace(path).records(1, TENSOROP_COUNT)["count"].ravel().tolist() == threads.tolist()


def test_blocks_of_less_than_a_warp_share_one_record(path):
    records = np.ones((1, 1, 1), BLOCK_SCHED)
    write(path, grid=(5, 1, 1), block=(20, 1, 1), sections=[("warp", records)])
    assert path.stat().st_size == 48 + 5 * 16
    trace = neutrino.open_trace(path)
    assert trace.blocks == 5 and trace.sections[0].blocks == 1 and trace.sections[0].ragged
    with pytest.warns(neutrino.TraceWarning, match="all blocks write to one record"):
        assert np.array_equal(trace.records(), records)


def test_first_builds_of_v2_do_not_state_the_length_of_counted_slices(path):
    data = np.arange(2 * 3 * 8, dtype="<u8").tobytes()
    path.write_bytes(raw((2, 1, 1), (3, 1, 1), [struct.pack("<QQ", 2**64 - 1, 48)], data))
    trace = neutrino.open_trace(path)
    assert trace.version == "V2" and trace.records().shape == (2, 3, 4) and trace.records().dtype == DMAT_ACCESS


@pytest.mark.parametrize(
    ("level", "count", "written", "dtype"),
    [
        ("warp", 1, BLOCK_SCHED, BLOCK_SCHED),
        ("thread", 3, DMAT_ACCESS, DMAT_ACCESS),
        ("thread", 1, GMEM_BYTES, None),
        ("thread", 1, TENSOROP_COUNT, None),
        ("thread", 128, PROGRAM_PROGRESS, None),
        ("thread", 64, DMAT_ACCESS, None),
        ("warp", 2, BLOCK_SCHED, None),
    ],
)
def test_records_are_told_by_the_only_tool_that_writes_such_slices(path, level, count, written, dtype):
    write(path, sections=[(level, np.zeros((2, 64 if level == "thread" else 2, count), written))])
    trace = neutrino.open_trace(path)
    if dtype is not None:
        assert trace.records().dtype == dtype and trace.records().shape[2] == count
    else:
        with pytest.raises(InputError, match=r"give its probe\.toml or the dtype"):
            trace.records()
    assert trace.records(dtype=written).shape[2] == count


def test_saved_slots_are_told_from_both_sentinels():
    records = np.array([(0, 0), (2**64 - 1, 0), (0, 5), (7, 0), (2**64 - 1, 2**64 - 1)], DMAT_ACCESS)
    assert neutrino.saved(records).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(
    "change",
    [
        {"version": "V4"},
        {"grid": (0, 1, 1)},
        {"grid": (1, 1)},
        {"block": (1025, 1, 1)},
        {"sections": []},
        {"shared_bytes": -1},
        {"sections": [("block", np.zeros((2, 64, 1), BLOCK_SCHED))]},
        {"sections": [("warp", np.zeros((2, 3, 1), BLOCK_SCHED))]},
        {"sections": [("warp", np.zeros((2, 2), BLOCK_SCHED))]},
        {"sections": [("thread", np.zeros((2, 64, 1), "<u4"))]},
    ],
)
def test_a_writer_refuses_what_the_format_does_not_have(path, change):
    usual = {
        **{"version": "V3", "grid": (2, 1, 1), "block": (64, 1, 1)},
        "sections": [("warp", np.zeros((2, 2, 1), BLOCK_SCHED))],
    }
    with pytest.raises(ValueError):
        neutrino.write_trace(path, **usual | change)
    assert not path.exists()


def test_big_endian_records_are_written_little_endian(path):
    records = np.arange(128, dtype=">u8").view([("count", ">u8")]).reshape(2, 64, 1)
    write(path, sections=[("thread", records)])
    assert neutrino.open_trace(path).records(dtype=TENSOROP_COUNT)["count"].ravel().tolist() == list(range(128))
