"""Tables: every bad cell is named by line and column."""

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_cases import refused

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.tabular import Column, by_value, read_csv

COLUMNS = (
    Column("name"),
    Column("kind", choices=("a", "b")),
    Column("count", "integer", minimum=0),
    Column("latency_ms", "number", optional=True),
    Column("spilled", "flag"),
)
GOOD = "name,kind,count,latency_ms,spilled\nx,a,3,1.5,true\ny,b,4,,false\n"


def read(tmp_path, text, **options):
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_csv(path, COLUMNS, **options)


@pytest.mark.parametrize(("sign", "words"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_named(tmp_path, sign, words):
    with pytest.raises(InputError, match=f"line 1: its cells are separated by {words}; separate them by commas"):
        read(tmp_path, GOOD.replace(",", sign))


def test_types(tmp_path):
    frame = read(tmp_path, "\ufeff" + GOOD.replace("\n", "\r\n"))
    assert frame["count"].tolist() == [3, 4]
    assert frame["count"].dtype == np.int64
    assert frame["spilled"].tolist() == [True, False]
    assert frame["latency_ms"].isna().tolist() == [False, True]


def test_capitals_and_spaces_of_names_do_not_matter(tmp_path):
    capital = GOOD.replace("name,kind,count,latency_ms", "Name, KIND ,count,Latency_ms")
    assert read(tmp_path, GOOD).equals(read(tmp_path, capital))
    # A column that is declared is never taken for another one.
    (tmp_path / "t.csv").write_text("name,Name\n1,2\n")
    both = read_csv(tmp_path / "t.csv", [Column("NAME"), Column("name")])
    assert both.to_dict("list") == {"NAME": ["2"], "name": ["1"]}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("3,1.5", "three,1.5", "line 2, column count: 'three' is not a number; write digits"),
        ("3,1.5", "3.5,1.5", "line 2, column count: '3.5' is not a whole number"),
        ("3,1.5", "-3,1.5", "line 2, column count: '-3' is not within 0 to inf"),
        ("3,1.5", "90071992547409930,1.5", "line 2, column count: '90071992547409930' is not a whole number"),
        ("3,1.5", ",1.5", "line 2, column count: '' is empty; fill it in"),
        ("1.5", "1.5 ms", "line 2, column latency_ms: '1.5 ms' is not a number"),
        ("1.5", "inf", "line 2, column latency_ms: 'inf' is not a number"),
        ("1.5", "nan", "line 2, column latency_ms: 'nan' is not a number"),
        ("y,b", "y,c", "line 3, column kind: 'c' is not one of a, b"),
        ("false", "no", "line 3, column spilled: 'no' is not true or false"),
        ("count,", "", "line 2: more cells than the first line has names; give every line the same number of cells"),
        ("name,", "# mine\nname,", "line 2: more cells than the first line has names; remove comments above"),
        ("name,kind,count", "name,kind,number", "line 1: the column 'count' is missing"),
        ("kind,count", "sort,number", "line 1: the columns 'kind', 'count' are missing; add or rename them"),
    ],
)
def test_one_line_for_what_is_wrong(tmp_path, old, new, message):
    with refused("t.csv", message):
        read(tmp_path, GOOD.replace(old, new, 1))


def test_columns_that_are_not_declared_are_ignored_with_a_warning(tmp_path):
    more = "\n".join(line + (",latency_us" if line.startswith("name") else ",7") for line in GOOD.splitlines()) + "\n"
    with pytest.warns(InputWarning) as caught:
        frame = read(tmp_path, more)
    assert frame.equals(read(tmp_path, GOOD))
    (warning,) = caught
    assert "line 1: unknown column 'latency_us'; it is ignored (did you mean 'latency_ms'?)" in str(warning.message)


def test_wrong_unit_of_a_required_column_is_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time_us\n3\n")
    with pytest.raises(InputError, match="wrong unit: column 'time_us' where 'time_ms' is needed; convert the values"):
        read_csv(path, [Column("time_ms", "number")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the file is empty; give it the columns"),
        (b"name,kind,count,latency_ms,spilled\n", "no row below the header"),
        (b"\xff\xfe\x00", "cannot be read|missing|empty|not a table"),
        (GOOD.encode() + b"z,a,1,2,true,more\n", "not a table"),
    ],
)
def test_files_that_are_no_tables(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_repeated_key(tmp_path):
    with pytest.raises(InputError, match="line 4: a second row for x, a; keep one"):
        read(tmp_path, GOOD + "x,a,5,,true\n", key=["name", "kind"])


@given(st.binary(max_size=300))
def test_any_bytes_give_a_table_or_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "t.csv"
    path.write_bytes(content)
    with suppress(InputError):
        read_csv(path, COLUMNS)


@given(st.lists(st.sampled_from(["fp8", "bf16", "other", None])), st.booleans())
def test_by_value_is_what_every_cell_would_give(cells, backwards):
    column = pd.Series(cells, dtype="str", name="dtype")
    column = column[::-1] if backwards else column
    known = {"fp8": 1, "bf16": 2}
    assert [*by_value(column, known).fillna(0)] == [known.get(cell, 0) for cell in column]
    upper = by_value(column, lambda names: names.str.upper())
    pd.testing.assert_series_equal(upper, column.str.upper(), check_dtype=False)
