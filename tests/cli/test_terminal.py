"""Text and tables in terminals of any width."""

import contextlib
import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.cli.terminal import print_table, say

HEADERS = ["kernel", "time (µs)", "DRAM (GB/s)", "served TPOT (ms)", "limited by"]
ROWS = [["a_kernel_with_a_very_long_name", "12.3", "1,000", "7.90", "DRAM"], ["b", "4.00", "", "1.00", "compute"]]
WORDS = st.lists(st.text("abc()/µ", min_size=1, max_size=9), min_size=1, max_size=4).map(" ".join)


def test_a_name_that_is_cut_already_has_one_cut(printed):
    name = "ampere_fp16_s16816gemm_fp1…ages_32x5_tn"
    shown = printed(60, print_table, ["kernel", "time (µs)"], [[name, "x" * 30]])[1]
    assert shown.count("…") == 1 and shown.startswith("ampere_fp16_s16816gemm_fp1…")


@pytest.fixture
def printed(monkeypatch, capsys):
    def show(columns, action, *arguments, **more):
        monkeypatch.setenv("COLUMNS", str(columns))
        action(*arguments, **more)
        return capsys.readouterr().out.splitlines()

    return show


def test_without_a_terminal_nothing_is_broken_or_left_out(printed):
    rows = [[name * 20, *others] for name, *others in ROWS]
    lines = printed(0, print_table, HEADERS, rows, right=[1], spare=["limited by"])
    assert len(lines) == 3 and "served TPOT (ms)  limited by" in lines[0] and "…" in lines[1]
    assert printed(0, say, "word " * 100) == [("word " * 100)]


def test_a_narrow_terminal_breaks_headers_then_leaves_columns_out(printed):
    wide = printed(200, print_table, HEADERS, ROWS, right=[1, 2, 3], spare=["limited by"])
    assert len(wide) == 3 and "DRAM (GB/s)" in wide[0]
    broken = printed(70, print_table, HEADERS, ROWS, right=[1, 2, 3], spare=["limited by"])
    assert len(broken) == 5 and broken[2].split() == ["kernel", "(µs)", "(GB/s)", "(ms)", "by"]
    assert max(map(len, broken)) <= 70 and broken[3].startswith("a_kernel_with_a_very_long_name  12.3   1,000")
    narrow = printed(46, print_table, HEADERS, ROWS, right=[1, 2, 3], spare=["limited by", "DRAM (GB/s)"])
    assert narrow[3].startswith("a_kernel_with_a_very") and "…  12.3  " in narrow[3] and "DRAM" not in narrow[3]
    said = " ".join(" ".join(narrow[-2:]).split())
    assert said == "Left out, as the terminal is narrow: limited by (--json has them)."


def test_the_tallest_header_may_be_the_one_that_is_left_out(printed):
    headers = ["aaaaaaaa/", "a a", "a", "aaaa", "aaaaaaa", "aaaaaaaaa"]
    assert printed(40, print_table, headers, [[""] * 6], spare=headers[1:])[0].split()[0] == "aaaaaaaa/"


@given(columns=st.integers(40, 160), headers=st.lists(WORDS, min_size=2, max_size=12, unique=True), data=st.data())
def test_a_table_whose_columns_may_be_left_out_fits(columns, headers, data):
    cell = st.text("0123456789", max_size=8)
    rows = data.draw(st.lists(st.lists(cell, min_size=len(headers), max_size=len(headers)), min_size=1, max_size=3))
    before, out = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = str(columns)
    try:
        with contextlib.redirect_stdout(out):
            left_out = print_table(headers, rows, spare=headers[1:])
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert set(left_out) <= set(headers[1:]) and (left_out == []) == ("Left out" not in out.getvalue())
    kept = [header for header in headers if header not in left_out]
    # Every word of what is kept is there.
    assert all(word in out.getvalue() for header in kept[1:] for word in header.split())


def test_sentences_are_broken_between_words_and_indented(printed):
    lines = printed(40, say, "  weights: of what can be split among all the GPUs of a node\nshort")
    assert lines == ["  weights: of what can be split among", "    all the GPUs of a node", "short"]
    assert printed(10, say, "a" * 30) == ["a" * 30]
