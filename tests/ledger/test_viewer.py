"""Views: what a page carries for looking closer is complete or says what it leaves out, and small, and only data."""

import base64
import json

import numpy as np
import pandas as pd
import pytest

from gpuledger.ledger import viewer
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import Axis, Guide, View
from gpuledger.studies import open_case

NASTY = "</script><script>alert(1)</script>"


def view(count=10, **columns):
    rows = np.arange(count)
    marks = pd.DataFrame({"x": 1000.5 * rows, "y": rows % 3, "group": NASTY} | columns)
    fields = {"kernel": np.where(rows % 2, "gemm", NASTY), "time (µs)": np.sqrt(rows + 0.5)}
    axes = Axis("time (µs)"), Axis("row", log=True)
    return View("points", "kernels", marks, fields, {NASTY: "#000000"}, *axes, [Guide("roof", (1, np.inf), (2, 3))])


def unpacked(column):
    """A column as the script reads it."""
    if isinstance(column, list):
        return column
    codes = np.frombuffer(base64.b64decode(column["at"]), "<u2" if column["wide"] else "u1")
    return [column["of"][code] for code in codes]


@pytest.mark.parametrize("count", [10, 1000])
def test_columns_come_back_as_they_were_and_no_name_ends_the_element(count):
    text = viewer.embed(view(count))
    content = json.loads(text)
    assert "<" not in text and content["groups"][0][0] == NASTY
    assert unpacked(content["marks"]["x"]) == [float(f"{1000.5 * row:.6g}") for row in range(count)]
    assert unpacked(content["marks"]["y"]) == [row % 3 for row in range(count)]
    assert unpacked(content["fields"]["kernel"]) == ["gemm" if row % 2 else NASTY for row in range(count)]
    assert content["said"] == f"all {count:,} kernels of the reduced data"
    assert content["guides"][0]["x"] == [1, None]


def test_of_too_many_marks_the_heaviest_stay_and_the_page_says_so():
    count = 20_000
    weight = np.zeros(count)
    weight[[7, 12_345]] = 1
    text = viewer.embed(view(count, weight=weight), limit=60_000)
    content = json.loads(text)
    kept = unpacked(content["marks"]["x"])
    assert len(text.encode()) <= 60_000 and 2_000 < len(kept) < count
    assert {float(f"{1000.5 * row:.6g}") for row in (7, 12_345)} <= set(kept)
    assert content["said"].startswith(f"{len(kept):,} of 20,000 kernels: the ") and kept == sorted(kept)


@pytest.mark.parametrize(
    ("study", "dataset", "case", "kind", "asked"),
    [
        ("warp_scheduling", "published", "fig13a", "lines", "behind the fastest (%)"),
        ("kernel_time", "published", "square_a100", "points", "bound"),
        ("serving_time", "published", "llama_70b_h100", "points", "requests at once"),
        ("training_time", "published", "mpt_h100", "points", "recomputation"),
    ],
)
def test_studies_answer_what_readers_ask(study, dataset, case, kind, asked):
    found = viewer.of_case(study, open_case(study, dataset, case))
    content = json.loads(viewer.embed(found))
    assert content["kind"] == kind and asked in content["fields"]
    columns = [content["group"], *content["marks"].values(), *content["fields"].values()]
    assert {len(unpacked(column)) for column in columns} == {len(found.marks)}


def test_cells_of_a_memory_timeline_know_their_tensor_and_pages():
    data = pd.DataFrame({"tensor": ["q", "q", "k"], "row": [0, 1, 2], "column": [0, 1, 1], "accesses": [5, 6, 7]})
    result = CaseResult(data)
    for name, value in {"column_cycles": 100, "compatible": "no", "rows": 3, "q_pages": 5, "k_pages": 1}.items():
        result.add(name, value, "1")
    found = viewer.of_case("dmat", result)
    # Page r of 5 is in row floor(2r/5) of 2.
    assert list(zip(found.fields["tensor"], found.fields["pages"], found.fields["accesses"], strict=True)) == [
        ("q", "0 to 2 of 5", 5),
        ("q", "3 to 4 of 5", 6),
        ("k", "0 of 1", 7),
    ]
    assert found.fields["clock (cycles)"] == ["0 to 100", "100 to 200", "100 to 200"]
    assert [band[:3] for band in found.y.bands] == [("q", 0, 2), ("k", 2, 3)]


def test_blocks_of_an_sm_and_the_gaps_before_them_are_spans():
    block = {"part": "block", "sm": 4, "slot": 0}
    data = pd.DataFrame(
        [
            block | {"start_cycles": 0, "end_cycles": 50},
            block | {"start_cycles": 60, "end_cycles": 90, "free_cycles": 50},
        ]
    )
    found = viewer.of_case("block_scheduling", CaseResult(data))
    spans = set(zip(found.fields["what"], found.marks["x"], found.marks["x_end"], strict=True))
    assert spans == {("block running", 0, 50), ("block running", 60, 90), ("slot waits for a block", 50, 60)}


def test_studies_without_a_view_have_none():
    assert viewer.of_case("kernel_overhead", CaseResult(pd.DataFrame())) is None
