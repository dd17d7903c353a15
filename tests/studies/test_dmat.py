"""Memory access timelines: counts against slow and plain ones, the grid of the traces' own script, every refusal."""

import operator
import shutil
import subprocess
import sys
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, snakemake
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.ledger import claims, figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.readers import neutrino
from gpuledger.studies import dmat
from gpuledger.studies.dmat import scan, tensors
from gpuledger.studies.dmat.bursts import denser_from, find_bursts
from gpuledger.studies.dmat.figures import OWN, PAPER, ROLES, depth_classes, draw_depths, tensor_colors
from gpuledger.studies.dmat.grid import by_tensor
from notebooks import run_notebook

BASE = 0x7F0000000000
PAGE = 65536


def write(folder, clock, address, threads=1, **files):
    """Write a trace whose threads saved these accesses, and files by name; return the case's inputs."""
    records = np.zeros((1, threads, -(-len(clock) // threads)), neutrino.DMAT_ACCESS)
    flat = records.reshape(-1)
    flat["clock"][: len(clock)], flat["addr"][: len(clock)] = clock, address
    (folder / "result").mkdir(exist_ok=True)
    path = folder / "result/0.5.bin"
    neutrino.write_trace(path, version="V3", grid=(1, 1, 1), block=(threads, 1, 1), sections=[("thread", records)])
    inputs = {"trace": "result/0.5.bin"}
    for name, frame in files.items():
        neutrino.write_tensor_trace(folder / name, pd.DataFrame(frame))
        inputs["tensor_trace"] = name
    return inputs


def reduce(folder, inputs, **knobs):
    return reduced(own_case(folder, "dmat", inputs), **knobs)


def as_dmat(folder, clock, address):
    """Write the ``.dmat`` of these accesses, as a sparsifier that counts every slot."""
    frame = pd.DataFrame({"clock": clock, "page": np.asarray(address, np.uint64) // PAGE * PAGE})
    summed = frame.groupby(["clock", "page"]).size().reset_index(name="count")
    neutrino.write_dmat(folder / "t.dmat", summed["clock"], summed["page"], summed["count"])
    return {"trace": "t.dmat"}


def tensor(name, address, size, shape=(1,), time_ns=0):
    return {"tensor": name, "address": address, "bytes": size, "shape": shape, "time_ns": time_ns}


def test_vector(folder):
    """Grid 2, block 3; the first thread saved 4 records, the others 3."""
    records = np.zeros((2, 3, 4), neutrino.DMAT_ACCESS)
    block, thread, k = np.indices((2, 3, 4))
    records["clock"], records["addr"] = 100 * k + thread, BASE + block * PAGE + 8 * thread
    records[(k == 3) & (block + thread > 0)] = 0
    neutrino.write_trace(
        folder / "t.bin", version="V3", grid=(2, 1, 1), block=(3, 1, 1), sections=[("thread", records)]
    )
    result = reduce(folder, {"trace": "t.bin"})
    assert [result[name] for name in ("records", "unsaved_slots", "pages", "clocks", "max_clock")] == [
        19,
        5,
        2,
        10,
        300,
    ]
    assert [result[f"neutrino_{name}"] for name in ("pages", "clocks", "max_clock")] == [3, 10, 300]
    assert list(result.data) == ["tensor", "row", "column", "accesses"]
    assert result["column_cycles"] == 2
    # Clocks 0 and 1 share a column, of two pages; clock 2 has its own; the first thread alone reached 300.
    assert result.data[result.data["column"] < 50].values[:, 1:].tolist() == [
        [0, 0, 2],
        [0, 1, 1],
        [1, 0, 2],
        [1, 1, 1],
    ]
    assert result.data[result.data["column"] == 150].values[:, 1:].tolist() == [[0, 150, 1]]


def random_accesses(rng, number=5000, pages=40, most=3000):
    clock = rng.integers(0, most, number).astype(np.uint64)
    address = BASE + rng.integers(0, pages * PAGE, number).astype(np.uint64)
    return clock, address


@pytest.mark.parametrize("seed", range(6))
def test_own_grid_against_counting_one_by_one(folder, seed):
    """Tensors neither aligned nor as large as a page, with gaps between them."""
    rng = np.random.default_rng(seed)
    clock, address = random_accesses(rng)
    cuts = BASE + np.sort(rng.choice(40 * PAGE, 9, replace=False))
    owned = [tensor(f"t{i}", int(cuts[i]), int(cuts[i + 1] - cuts[i])) for i in range(0, 8, 2)]
    result = reduce(folder, write(folder, clock, address, 8, trace=owned), rows=30, columns=50)
    data = result.data
    assert data["accesses"].sum() == result["records"] == 5000
    assert result["clocks"] == len(set(clock.tolist()))
    assert result["pages"] == len(set((address // PAGE).tolist()))
    width = -(-int(clock.max() + 1) // 50)
    assert result["column_cycles"] == width
    names = np.full(5000, "unknown", object)
    for entry in owned:
        names[(address >= entry["address"]) & (address < entry["address"] + entry["bytes"])] = entry["tensor"]
    expected = pd.Series(1, index=[names, clock // width]).groupby(level=[0, 1]).sum()
    found = data.groupby(["tensor", "column"])["accesses"].sum()
    assert found.to_dict() == expected.to_dict()
    for name, prefix in dmat.reduction.prefixes(data).items():
        mine = clock[names == name]
        assert result[f"{prefix}_accesses"] == len(mine)
        assert result[f"{prefix}_pages"] == len(set((address[names == name] // PAGE).tolist()))
        assert result[f"{prefix}_first_touch"] == pytest.approx(100 * mine.min() / clock.max())
        assert result[f"{prefix}_last_touch"] == pytest.approx(100 * mine.max() / clock.max())
    rows = data.groupby("row")["tensor"].nunique()
    assert rows.index.tolist() == list(range(result["rows"]))
    assert (rows == 1).all()


def test_rows_are_in_the_order_of_addresses(folder):
    pages = np.arange(300)
    result = reduce(folder, write(folder, 10 + pages[::-1], BASE + pages * PAGE))
    assert result["rows"] == 100
    first = result.data.sort_values(["row", "column"], ascending=[True, False])
    # Clocks fall with the address: so do columns with the row.
    assert first["column"].is_monotonic_decreasing


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_and_chunks_gives_the_same(folder, monkeypatch, threads):
    monkeypatch.setattr(scan, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(scan, "FIRST_PAGES", 2)
    monkeypatch.setattr(scan, "NEAR_CLOCKS", 1000)
    clock, address = random_accesses(np.random.default_rng(1), pages=600)
    path = folder / write(folder, clock, address)["trace"]
    section = neutrino.open_trace(path).section(0)
    accesses = scan.RecordedAccesses(path, section.offset, section.bytes, threads)
    survey = accesses.survey()
    assert (survey.records, survey.max_clock, survey.axis_end) == (5000, clock.max(), clock.max())
    assert survey.clocks == np.unique(clock).size
    assert survey.pages.tolist() == np.unique(address // PAGE * PAGE).tolist()
    layout = by_tensor(survey, tensors.divide([]), 10, 20)
    counts = accesses.count(survey, layout.plan)
    expected = np.histogram(clock // layout.plan.width, np.arange(layout.plan.columns + 1))[0]
    assert counts.cells.sum(axis=0).tolist() == expected.tolist()


def test_a_dmat_gives_the_same_as_its_trace(folder):
    clock, address = random_accesses(np.random.default_rng(2), number=3999)
    owned = [tensor("a", BASE, 7 * PAGE, (7, 65536)), tensor("b", BASE + 7 * PAGE, 33 * PAGE)]
    inputs = write(folder, clock, address, 4, trace=owned)  # one slot is left over
    for compatible in (False, True):
        options = {"tensor_trace": "trace", "compatible": compatible}
        if compatible:
            address = address + np.arange(3999, dtype=np.uint64) % 300 * PAGE
            inputs = write(folder, clock, address, 4, trace=owned)
        one = reduce(folder, inputs | options)
        two = reduce(
            folder, as_dmat(folder, np.append(clock, np.uint64(0)), np.append(address, np.uint64(0))) | options
        )
        pd.testing.assert_frame_equal(one.data, two.data)
        assert one.summary == two.summary
        assert one["unsaved_slots"] == 1
        assert one["neutrino_pages"] == one["pages"] + 1


def test_of_a_dmat_a_shared_page_goes_to_the_tensor_with_most_of_it(folder):
    owned = [tensor("small", BASE, 20000), tensor("large", BASE + 20000, 40000)]
    neutrino.write_tensor_trace(folder / "trace", pd.DataFrame(owned))
    inputs = as_dmat(folder, [5, 6], [BASE + 8, BASE + 16]) | {"tensor_trace": "trace"}
    assert reduce(folder, inputs).data["tensor"].unique().tolist() == ["large"]
    inputs = write(folder, [5, 6], [BASE + 8, BASE + 20000], trace=owned)
    assert reduce(folder, inputs).data["tensor"].tolist() == ["small", "large"]


# The grid of the script that comes with the traces


def script_grid(clock, address, owned):
    """Count as that script does, one access after another, zero slots included."""
    pages = sorted(set((address // PAGE * PAGE).tolist()))
    rank = {page: i for i, page in enumerate(pages)}
    step_y, step_x = len(pages) // 99, int(clock.max()) // 159
    groups = [(entry["tensor"], {}) for entry in owned] + [("unknown", {})]
    for when, where in zip(clock.tolist(), address.tolist(), strict=True):
        if when >= 5_000_000:
            continue
        page = where // PAGE * PAGE
        row = 100 - rank[page] // step_y
        cell = (row if row >= 0 else row + 101, when // step_x)
        inside = [
            i for i, entry in enumerate(owned) if entry["bytes"] and 0 <= page - entry["address"] <= entry["bytes"]
        ]
        for i in inside or [len(owned)]:
            cells = groups[i][1]
            cells[cell] = cells.get(cell, 0) + 1
    return [(name, cells) for name, cells in groups if cells][:5]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    pages=st.sampled_from([99, 130, 197, 198, 300]),
    number=st.integers(0, 8),
    unsaved=st.integers(0, 3),
)
def test_compatible_grid_is_that_of_the_script(tmp_path_factory, seed, pages, number, unsaved):
    folder = tmp_path_factory.mktemp("mine")
    rng = np.random.default_rng(seed)
    clock, address = random_accesses(rng, 4000, pages, 60_000)
    address[:pages] = BASE + np.arange(pages) * PAGE
    clock[-1] = 60_000
    owned = [
        tensor(f"t{i}", int(BASE + rng.integers(0, pages) * PAGE + rng.integers(0, 2) * 512), int(size) * 1000)
        for i, size in enumerate(rng.integers(0, 3000, number))
    ]
    owned = list({entry["address"]: entry for entry in owned}.values())
    clock, address = np.append(clock, [0] * unsaved), np.append(address, [0] * unsaved)
    # The script reads the list from its end.
    files = {"trace": owned[::-1]} if owned else {}
    result = reduce(folder, write(folder, clock, address, **files) | {"compatible": True})
    expected = script_grid(clock.astype(np.uint64), address.astype(np.uint64), owned)
    assert list(dict.fromkeys(result.data["tensor"])) == [name for name, _ in expected]
    for name, cells in expected:
        mine = result.data[result.data["tensor"] == name]
        assert dict(zip(zip(mine["row"], mine["column"], strict=True), mine["accesses"], strict=True)) == cells


def test_the_first_page_after_a_tensor_counts_for_it_only_in_the_compatible_grid(folder):
    """The short lines in the output's colour in Fig. 1 are the first page of value."""
    pages = np.arange(200)
    owned = [tensor("output", BASE, 100 * PAGE), tensor("value", BASE + 100 * PAGE, 100 * PAGE)]
    inputs = write(folder, np.where(pages < 100, 900, 10), BASE + pages * PAGE, trace=owned)
    assert reduce(folder, inputs)["output_first_touch"] == 100
    assert reduce(folder, inputs | {"compatible": True})["output_first_touch"] < 2


def test_the_compatible_grid_leaves_out_late_records_and_own_grid_does_not(folder):
    clock = np.append(np.arange(2000) * 10, 6_000_000)
    address = BASE + np.append(np.arange(2000) % 120, 150) * PAGE
    inputs = write(folder, clock, address)
    own, compatible = reduce(folder, inputs), reduce(folder, inputs | {"compatible": True})
    assert own["max_clock"] == compatible["max_clock"] == 6_000_000
    assert (own["records_beyond_axis"], compatible["records_beyond_axis"]) == (1, 1)
    assert (own.data["accesses"].sum(), compatible.data["accesses"].sum()) == (2001, 2000)
    # One outlier of 2,001 clocks does not stretch the axis.
    assert own["columns"] * own["column_cycles"] < 21_000
    assert reduce(folder, as_dmat(folder, clock, address)).data["column"].max() == own.data["column"].max()


@pytest.mark.parametrize("near", [0, 500, 7000, 25_000, 10**6])
def test_outliers_are_found_wherever_the_table_of_clocks_ends(near):
    clock = np.append(np.arange(1990) * 10, [10**6 - 1, 10**13]).astype(np.uint64)
    # Of fewer than 2,000 clocks, one may be an outlier, and two may not.
    for clocks, end in ((clock, 10**6 - 1), (np.delete(clock, -2), 19_890)):
        seen = np.bincount(clocks[clocks < near].astype(np.int64), minlength=near).astype(bool)
        assert scan._end_of_axis(seen, clocks[clocks >= near]) == end


# Small, large and odd traces


@pytest.mark.parametrize(
    ("clock", "pages", "shape"),
    [([7], [0], (1, 8)), ([0, 1], [0, 9], (2, 2)), ([5 * 10**10 * i for i in range(99)], [0, 4, 9] * 33, (3, 160))],
)
def test_small_and_long_traces(folder, clock, pages, shape):
    """Seconds of cycles, as of a long kernel under a probe, ended in an overflow in the figure."""
    result = reduce(folder, write(folder, clock, BASE + np.array(pages) * PAGE))
    assert (result["rows"], result["columns"]) == shape
    assert result.data["accesses"].sum() == len(clock)
    accesses = run_notebook("dmat", result)[0]["accesses"]
    assert all(tick == round(tick) for tick in accesses.get_yticks())  # no thousandths of an access
    shown = [label.get_window_extent() for label in accesses.get_xticklabels()]
    assert all(one.x1 < other.x0 for one, other in pairwise(shown))
    assert dmat.view.view(result).marks["x_end"].max() >= max(clock)


def test_many_tensors(folder):
    rng = np.random.default_rng(3)
    address = BASE + np.repeat(np.arange(400), 5) * 10_000
    owned = [tensor("pages" if i % 2 else f"y{i}", BASE + 10_000 * i, 9_000) for i in range(400)]
    result = reduce(folder, write(folder, rng.integers(0, 9999, 2000), address, trace=owned))
    assert result.data["accesses"].sum() == 2000
    names = result.data["tensor"].unique()
    assert len(names) == 25 and "others" in names and "pages (2)" in names
    variables, _ = run_notebook("dmat", result, folder)
    frame, headers, formats = (variables[name] for name in ("frame", "headers", "formats"))
    assert len(frame) == 25 and set(headers) | set(formats) <= set(frame)


def test_memory_that_belongs_to_no_tensor_is_kept(folder):
    owned = [tensor(name, BASE + i * PAGE, PAGE) for i, name in enumerate("abcdef")]
    address = BASE + np.arange(8) * PAGE
    result = reduce(folder, write(folder, np.arange(8) + 1, address, trace=owned))
    assert result.data["tensor"].tolist() == [*"abcdef", "unknown", "unknown"]
    assert (result["tensors"], result["unmatched_percent"]) == (6, 25)
    alone = reduce(folder, write(folder, np.arange(8) + 1, address + np.array([0] * 4 + [9 * PAGE] * 4)))
    assert (alone["tensors"], alone["tensors_from"]) == (2, "gaps between pages")
    assert alone["pages_from_0x7f0000000000_pages"] == 4


def test_holes(folder):
    owned = [tensor("a", BASE, 2 * PAGE)]
    clock, page = [0, 0, 4, 2, 6], [0, 1, 0, 1, 1]
    result = reduce(folder, write(folder, clock, BASE + np.array(page) * PAGE + 8, trace=owned))
    # Seven columns of two rows, five cells touched, three columns without any.
    assert result["a_holes"] == pytest.approx(100 * 9 / 14)
    assert result["a_empty_columns"] == 3
    assert result["a_reuse"] == 2.5
    assert result.finding == "mine: a touched throughout"
    assert result["pages_bytes"] == 2 * PAGE


def test_throughout_means_in_most_columns(folder):
    clock = np.concatenate([np.arange(0, 1000, 2), np.arange(40), np.arange(960, 1000)])
    address = BASE + np.repeat([0, PAGE, PAGE], [500, 40, 40])
    owned = [tensor("read", BASE, PAGE), tensor("updated", BASE + PAGE, PAGE)]
    result = reduce(folder, write(folder, clock, address, trace=owned))
    assert result.finding == "mine: read touched throughout, updated early, late and rarely in between"


# Memory without names


def maps(folder, sizes, touched, seed=0):
    """Write a .dmat of tensors one after another, without gaps; `touched` gives clocks by tensor for all its pages."""
    rng = np.random.default_rng(seed)
    clock, page, first = [], [], 0
    for size, when in zip(sizes, touched, strict=True):
        clocks = np.asarray(when(rng, size))  # pages × accesses
        clock.append(clocks.ravel())
        page.append(np.repeat(first + np.arange(size), clocks.shape[1]))
        first += size
    return as_dmat(folder, np.concatenate(clock), BASE + np.concatenate(page).astype(np.uint64) * np.uint64(PAGE))


def at(low, high, times=4):
    return lambda rng, size: rng.integers(low, high, (size, times))


def stripes(phase, number=32, times=64):
    """Touched in every stripe, a quarter of a period wide; every eighth page in the same ones."""

    def when(rng, size):
        period = 240_000 // number
        stripe = (rng.integers(0, number // 8, (size, times)) * 8 + np.arange(size)[:, None] % 8) % number
        return ((stripe + phase) * period + rng.integers(0, period // 4, (size, times))).astype(np.int64)

    return when


#: Of the paper's size: 4,112 pages.
SIZES = (1028, 1028, 1028, 1028)
ATTENTION = (at(245_000, 270_000), stripes(0.5), stripes(0.0), at(0, 4000))


def parts_of(result):
    return [result[f"{prefix}_pages"] for prefix in dmat.reduction.prefixes(result.data).values()]


def test_tensors_without_gaps_are_told_apart_by_when_and_how_often_they_are_touched(folder):
    """They were one nameless block."""
    result = reduce(folder, maps(folder, SIZES, ATTENTION))
    assert result["pages"] == 4112 and parts_of(result) == list(SIZES)
    assert result["tensors_from"] == "inferred from how often and when pages are touched"
    assert list(dmat.reduction.prefixes(result.data)) == [f"part {i} (inferred)" for i in (1, 2, 3, 4)]
    # The figure says so too.
    variables, _ = run_notebook("dmat", result)
    assert "tensors: inferred from how often" in variables["timeline"].get_title("left")


@pytest.mark.parametrize(
    ("sizes", "touched"),
    [
        # In another order, and of other sizes.
        ((300, 900, 40, 2000), (at(0, 9000), stripes(0.0), at(200_000, 260_000, 1), at(200_000, 260_000, 9))),
        # Only the number of accesses differs.
        ((500, 700), (at(0, 90_000, 40), at(0, 90_000, 20))),
        # Only the time differs.
        ((600, 800), (at(0, 40_000, 20), at(35_000, 90_000, 20))),
        # Key and value in one way at the same time: divided as the query and the output are large.
        ((1024, 1024, 1024, 1024, 16), (*ATTENTION[:1], stripes(0), stripes(0), ATTENTION[3], at(245_000, 270_000, 1))),
    ],
)
def test_boundaries_are_found_to_the_page(folder, sizes, touched):
    assert parts_of(reduce(folder, maps(folder, sizes, touched))) == list(sizes)


@pytest.mark.parametrize(
    "touched",
    [
        at(0, 90_000, 20),
        stripes(0.3),
        # Page after page: every page is a boundary, and so none is.
        lambda rng, size: np.arange(size)[:, None] * 60 + rng.integers(0, 300, (size, 20)),
        # The first blocks are late, as on a cold cache.
        lambda rng, size: rng.integers(0, 90_000, (size, 20)) + 30_000 * (np.arange(size)[:, None] < 40),
    ],
)
def test_one_tensor_is_not_divided(folder, touched):
    result = reduce(folder, maps(folder, [1500], [touched]))
    assert (result["tensors"], result["tensors_from"]) == (1, "gaps between pages")


def test_a_trace_with_a_record_for_each_access_is_divided_alike(folder):
    clock = np.concatenate([np.tile(np.arange(0, 4000, 100), 60), np.tile(np.arange(5000, 9000, 100), 80)])
    page = np.repeat(np.arange(140), 40)
    assert parts_of(reduce(folder, write(folder, clock, BASE + page * PAGE, 4))) == [60, 80]


@pytest.mark.parametrize("unit", ["pages", "bytes"])
def test_declared_tensors_name_contiguous_pages(folder, unit):
    inputs = maps(folder, SIZES, ATTENTION)
    size = 1028 if unit == "pages" else 1028 * PAGE
    named = [{"name": name, unit: size} for name in ("output", "value", "key", "query")]
    result = reduce(folder, inputs | {"tensors": named})
    assert result["tensors_from"] == "dataset.yaml"
    assert [result[f"{name}_pages"] for name in ("output", "value", "key", "query")] == list(SIZES)
    assert result["query_last_touch"] < 2 and result["output_first_touch"] > 90
    # What is not declared belongs to none; the script's own grid knows them as well.
    assert reduce(folder, inputs | {"tensors": named[:3]})["unmatched_percent"] > 0
    compatible = reduce(folder, inputs | {"tensors": named, "compatible": True})
    assert compatible["query_pages"] == 1028


def test_declared_sizes_divide_pages_at_the_byte_and_skip_gaps(folder):
    address = BASE + np.array([0, 40_000, 60_000, PAGE + 100, 9 * PAGE + 5])
    named = [{"name": "a", "bytes": 50_000}, {"name": "b", "bytes": 2 * PAGE - 50_000}, {"name": "c", "pages": 1}]
    result = reduce(folder, write(folder, np.arange(5) + 1, address) | {"tensors": named})
    assert [result[f"{name}_accesses"] for name in "abc"] == [2, 2, 1]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([{"name": "a", "pages": 3}], r"mine\.tensors: 3 pages are declared, and 2 are touched; leave out"),
        ([{"name": "a"}], r"mine\.tensors\.0: .*; give either pages, or bytes"),
        ([{"name": "a", "pages": 1, "bytes": 5}], "'pages' and 'bytes' do not go together"),
        ([{"name": "a", "page": 1}], "unknown key 'page'; did you mean 'pages'"),
        ([], "tensors: "),
    ],
)
def test_wrong_tensors_are_one_line(folder, tensors, message):
    inputs = write(folder, [5, 6], [BASE, BASE + PAGE])
    with pytest.raises(InputError, match=message):
        reduce(folder, inputs | {"tensors": tensors})


def test_logs_beside_the_trace_are_found(folder):
    inputs = write(folder, [5, 6, 7], [BASE, BASE + PAGE, BASE + 2 * PAGE], trace=[tensor("a", BASE, 3 * PAGE)])
    (folder / "trace").rename(folder / "tensor.trace")
    launch = {"time_ns": 5, "kernel": "attend", "grid": (1, 1, 1), "block": (1, 1, 1), "outcome": "succeed"}
    launch |= {"parameters": (BASE,), "file": "result/0.5.bin", "code": 0, "file_bytes": 96, "probe_bytes": 48}
    frame = pd.DataFrame([launch]).astype({"grid": object, "block": object, "parameters": object})
    columns = ["call", "status", "address", "bytes"]
    log = neutrino.EventLog(frame, pd.DataFrame(columns=["launch"]), pd.DataFrame(columns=columns), version="V3", pid=1)
    neutrino.write_event_log(folder / "event.log", log, "V3")
    del inputs["tensor_trace"]
    for trace in (inputs["trace"], "."):
        result = reduce(folder, {"trace": trace})
        assert (result["tensors_from"], result["kernel"], result["a_pages"]) == ("tensor.trace", "attend", 3)
        files = {entry["file"] for entry in result.provenance["inputs"]}
        assert files == ({"result/0.5.bin", "event.log", "tensor.trace"} if trace != "." else {"."})
    # A declared file comes before one that lies there.
    neutrino.write_tensor_trace(folder / "other", pd.DataFrame([tensor("b", BASE, 3 * PAGE)]))
    result = reduce(folder, inputs | {"tensor_trace": "other"})
    assert "b_pages" in result.summary and "a_pages" not in result.summary


def test_a_trace_directory_is_one_launch(folder):
    write(folder, [5, 6], [BASE, BASE + PAGE])
    inputs = {"trace": "result"}
    assert reduce(folder, inputs)["records"] == 2
    # A .dmat beside its own .bin is the same launch.
    as_dmat(folder, [5, 6], [BASE, BASE + PAGE])
    (folder / "t.dmat").rename(folder / "result/0.5.dmat")
    assert reduce(folder, inputs)["records"] == 2
    (folder / "result/0.7.bin").write_bytes((folder / "result/0.5.bin").read_bytes())
    with pytest.raises(InputError, match=r"2 launches were traced: 0\.5\.bin, 0\.7\.bin; give the trace of one launch"):
        reduce(folder, inputs)
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: no \.bin and no \.dmat in it; give a trace directory"):
        reduce(folder, {"trace": "empty"})


# Rhythm


def test_bursts_are_counted_where_they_stand_out():
    assert find_bursts(np.array([0, 5, 0, 6, 1, 5, 0])) == [1, 3, 5]
    assert find_bursts(np.array([5, 5, 4.5, 5, 0])) == [0], "a dent is no valley"
    assert find_bursts(np.array([0, 100, 0, 5, 0])) == [1], "too few accesses"
    assert find_bursts(np.zeros(5)) == [] == find_bursts(np.array([], float))
    assert find_bursts(np.full(9, 7)) == [0]


def test_a_step_from_sparse_to_dense_is_found():
    sparse = np.concatenate([np.full(60, 10), np.full(80, 14), np.zeros(20)])
    column, ratio = denser_from(sparse)
    assert (column, ratio) == (60, pytest.approx(1.4, abs=0.03))
    assert denser_from(np.full(100, 3)) is None
    assert denser_from(np.concatenate([np.zeros(80), np.full(20, 5)])) is None, "this is where it begins"
    assert denser_from(np.array([1, 2])) is None


@pytest.fixture(scope="module")
def simulated(finished):
    """The four simulated maps, by case."""
    cases = finished / "results/simulated/dmat"
    return {name: CaseResult.read(cases / name) for name in ("fig1", "fig10a", "fig10b", "fig10c")}


def test_simulated_maps_have_the_size_and_the_rhythm_of_the_published_ones(simulated):
    assert {name: result["pages"] for name, result in simulated.items()} == {
        "fig1": 4112, "fig10a": 4112, "fig10b": 4112, "fig10c": 4096,
    }  # fmt: skip
    assert [simulated["fig1"][f"{name}_bursts"] for name in ("key", "value", "output")] == [32, 32, 1]
    assert [simulated["fig10b"][f"{name}_bursts"] for name in ("key", "value", "output")] == [8, 8, 1]
    assert [simulated[case]["output_bursts"] for case in ("fig10a", "fig10c")] == [2, 2]
    # Read off Fig. 11a and 11c.
    for case, first, last in (("fig10a", 73, 84), ("fig10c", 68, 79)):
        assert simulated[case]["output_first_burst"] == pytest.approx(first, abs=5)
        assert simulated[case]["output_last_burst"] == pytest.approx(last, abs=5)
    assert simulated["fig10a"]["key_denser_from"] == pytest.approx(40, abs=4)
    for result in simulated.values():
        assert result.finding.startswith("Simulated ")
        assert result.provenance["label"] == "simulated, not measured"
        assert result["tensors_from"] == "tensor.trace"


def test_scale_free_claims_are_met_by_the_simulation(simulated):
    content = claims.load(ROOT / "resources/claims/dmat.yaml")
    found = simulated.items()
    outcomes = [claims.Outcome("simulated", "dmat", name, one.summary, one.provenance) for name, one in found]
    card = claims.scorecard({"dmat": content}, outcomes).set_index("id")
    named = ["fig1-stripes", "fig10b-stripes", "fig10a-denser"]
    named += [f"{case}-{what}" for case in ("fig10a", "fig10c") for what in ("bursts", "first-burst", "last-burst")]
    for name in named:
        assert card.loc[name, "reproduced"], name
        assert card.loc[name, "verdict"] not in ("differs", "unknown quantity"), name


def test_the_published_block_of_pages_is_told_apart(finished, folder):
    """The simulated maps without their logs: four tensors and the statistics, without gaps."""
    for name in ("fig1", "fig10a", "fig10b", "fig10c"):
        shutil.copy(finished / f"traces/simulated/dmat/{name}/result/0.500000.dmat", folder / "t.dmat")
        result = reduce(folder, {"trace": "t.dmat"})
        assert parts_of(result) == [1024] * 4 + [16] * (name != "fig10c"), name
        assert result["tensors_from"].startswith("inferred")


def test_accesses_are_not_called_pressure(simulated):
    """Threads are aligned at their starts: it is not the load on memory at one moment."""
    variables, _ = run_notebook("dmat", simulated["fig1"])
    assert variables["accesses"].get_ylabel() == "accesses, threads\naligned at start"
    assert "pressure" not in (ROOT / "notebooks/dmat.ipynb").read_text("utf-8").lower()


def test_the_newest_call_before_the_launch_owns_a_pointer(folder):
    trace = pd.DataFrame(
        [
            tensor("old", BASE, PAGE, time_ns=1),
            tensor("right", BASE, PAGE, time_ns=2),
            tensor("view", BASE + 4 * PAGE, 8 * PAGE, time_ns=2),
            tensor("stale", BASE + 6 * PAGE, PAGE, time_ns=2),
            tensor("later", BASE, PAGE, time_ns=9),
        ]
    )
    launches = {"time_ns": [5], "parameters": [(BASE, BASE + 4 * PAGE)], "file": ["r/0.5.bin"], "kernel": ["k"]}
    log = neutrino.EventLog(pd.DataFrame(launches), pd.DataFrame(), pd.DataFrame())
    known = tensors.of_launch(trace, log, folder / "0.5.bin")
    memory = tensors.divide(known)
    owners = [known[i].name if i >= 0 else None for i in memory.at(BASE + np.arange(13) * np.uint64(PAGE))]
    assert owners == ["right", None, None, None, *["view"] * 8, None]
    # Without a log the newest call of all counts, and of two that overlap the one that starts later.
    known = tensors.of_launch(trace, None, folder / "0.5.bin")
    memory = tensors.divide(known)
    owners = [known[i].name for i in memory.at(BASE + np.array([0, 5, 6, 7], np.uint64) * np.uint64(PAGE))]
    assert owners == ["later", "view", "stale", "view"]
    assert tensors.kernel_name(log, folder / "0.5.dmat") == "k"


def test_pointers_of_the_launch_name_memory_where_nothing_else_does(folder):
    memory = pd.DataFrame(
        [
            (1, "cuMemAlloc_v2", 0, BASE, 4 * PAGE),
            (2, "cuMemAlloc_v2", 0, BASE + 8 * PAGE, PAGE),
            (3, "cuMemAlloc_v2", 2, BASE + 16 * PAGE, PAGE),
            (4, "cuMemFree_v2", 0, BASE + 8 * PAGE, None),
        ],
        columns=["line", "call", "status", "address", "bytes"],
    )
    launches = {"line": [9], "parameters": [(BASE + PAGE, 3, BASE + 2 * PAGE)], "file": ["0.5.bin"]}
    found = tensors.of_allocations(
        neutrino.EventLog(pd.DataFrame(launches), pd.DataFrame(), memory), folder / "0.5.bin"
    )
    owned = tensors.divide(found)
    names = [found[i].name if i >= 0 else None for i in owned.at(BASE + np.arange(9) * np.uint64(PAGE))]
    assert names[:5] == ["allocation at 0x7f0000000000", "parameter 0", "parameter 2", "parameter 2", None]
    assert names[8] is None


def test_regions_where_there_are_many_gaps():
    pages = np.cumsum([0, 1, 1, 50, 1, 2, 1, 2, 1, 1000] + [2] * 30) * PAGE
    assert len(tensors.regions(pages.astype(np.uint64))) == 1
    pages = np.cumsum([0, 1, 1, 50, 1, 1, 1, 20, 1, 1000]) * PAGE
    assert [t.bytes // PAGE for t in tensors.regions(pages.astype(np.uint64))] == [3, 4, 2, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_in_use_does_not_grow_with_the_file(folder):
    """A file of 512 MiB, nearly all of it a hole: slots that were never saved."""
    inputs = write(folder, [1, 2], [BASE, BASE + PAGE], threads=2)
    path = folder / inputs["trace"]
    head = np.fromfile(path, "<u4", 8 + 4)
    head[8] = 2**29 // 2
    with open(path, "r+b") as handle:
        handle.write(head.tobytes())
        handle.truncate(48 + 2**29)
    program = (
        "import sys; from pathlib import Path; from gpuledger.studies import dmat\n"
        "survey = dmat.open_accesses(Path(sys.argv[1])).survey()\n"
        "lines = Path('/proc/self/status').read_text().splitlines()\n"
        "print(survey.records, survey.unsaved, *[line.split()[1] for line in lines if line.startswith('VmHWM')])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    records, unsaved, peak = map(int, done.stdout.split())
    assert (records, unsaved) == (2, 2**25 - 2)
    assert peak * 1024 < 400e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": "absent.bin"}, r"key studies\.dmat\.mine\.trace: the file .*absent\.bin does not exist"),
        ({"trace": "trace.txt"}, r"trace\.txt: a file \.txt is not a trace; give a \.bin"),
        ({"compatible": True}, "mine.compatible: the compatible grid divides by zero on 1 pages and 5 cycles; leave"),
        ({"tensor_trace": "trace.txt"}, r"trace\.txt, line 1: .* not a tensor\.trace"),
        ({"event_log": "trace.txt"}, r"trace\.txt, line 1: .* no driver lines found"),
        ({"compatibel": True}, r"unknown key 'compatibel'; did you mean 'compatible'"),
    ],
)
def test_refused(folder, change, message):
    (folder / "trace.txt").write_text("nothing\n", "utf-8")
    inputs = write(folder, [5], [BASE])
    with pytest.raises(InputError, match=message):
        reduce(folder, inputs | change)


def test_refused_traces(folder):
    with pytest.raises(InputError, match="no access was saved: every slot is empty; trace a kernel"):
        reduce(folder, write(folder, [0], [0]))
    with pytest.raises(InputError, match="a grid cannot have 0 rows and 160 columns"):
        reduce(folder, write(folder, [5], [BASE]), rows=0)
    records = np.zeros((1, 1, 1), neutrino.BLOCK_SCHED)
    neutrino.write_trace(folder / "w.bin", version="V3", grid=(1, 1, 1), block=(32, 1, 1), sections=[("warp", records)])
    with pytest.raises(InputError, match="section 0: 16 bytes per warp are not accesses of every thread; give a trace"):
        reduce(folder, {"trace": "w.bin"})


def test_more_pages_than_any_device_has_are_refused(folder, monkeypatch):
    monkeypatch.setattr(scan, "MAX_PAGES", 1000)
    monkeypatch.setattr(scan, "FIRST_PAGES", 4)
    inputs = write(folder, np.arange(3000), BASE + np.arange(3000) * PAGE)
    with pytest.raises(InputError, match="more than 1,000 pages of 64 KiB are touched"):
        reduce(folder, inputs)


# Pictures


def test_the_figure_is_small(folder):
    """That it is the same again is test_house's."""
    clock, address = random_accesses(np.random.default_rng(5), 20_000, 400, 90_000)
    owned = [
        tensor(name, BASE + i * 80 * PAGE, 80 * PAGE, (80, 65536)) for i, name in enumerate(["Out", "V", "K", "Q", "z"])
    ]
    result = reduce(folder, write(folder, clock, address, 4, trace=owned))
    result.write(folder / "reduced")
    run_notebook("dmat", CaseResult.read(folder / "reduced"), folder / "drawn")
    files = sorted((folder / "drawn").glob("figure.*"))
    assert len(files) == 3 and all(file.stat().st_size < 400_000 for file in files)


def test_colours_follow_roles_and_differ():
    chosen = tensor_colors(["Out", "V", "K", "Q", "M", "mask", "unknown"])
    assert chosen["Q"] == figures.BLUE and chosen["K"] == figures.PURPLE and chosen["V"] == figures.GREEN
    assert len(set(chosen.values())) == 7 and chosen["unknown"] == figures.GREY
    paper = tensor_colors(["Out", "V", "K", "Q", "M"], PAPER)
    assert paper == {"Out": "#b26531", "V": "#00bb00", "K": "#812be1", "Q": "#0053d6", "M": "#b31805"}
    many = list(tensor_colors([f"t{i}" for i in range(20)]).values())
    assert set(many) == {*(OWN[role] for role in ROLES), *OWN["further"]} and all(map(operator.ne, many, many[1:]))
    assert depth_classes(pd.Series([1, 2, 3, 4, 5])).tolist() == [0, 1, 2, 3, 4]


def test_depths_have_a_scale_in_accesses():
    accesses = [*range(1, 11), 2000]
    cells = pd.DataFrame({"tensor": ["K"] * 10 + ["Q"], "row": 0, "column": 0, "accesses": accesses})
    figure, axes = plt.subplots()
    draw_depths(axes, CaseResult(cells, {}, {}), {"K": figures.PURPLE, "Q": figures.BLUE})
    assert [text.get_text() for text in axes.texts] == ["2", "4", "6", "8", "10", "K", "2 k", "Q", "hole"]
    plt.close(figure)


def test_a_figure_by_name_says_what_it_needs(unmade):
    done = snakemake(unmade, "-n", "fig10b", "--config", "datasets=[published]")
    assert done.returncode != 0
    assert "no configured dataset has case fig10b of dmat: add " in done.stdout + done.stderr
    done = snakemake(unmade, "-n", "fig10b", "--config", "datasets=[simulated]")
    assert done.returncode == 0 and "simulated/dmat/fig10b" in done.stdout
