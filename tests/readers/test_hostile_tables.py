"""Tables and logs that fuzzing found to end in a traceback, or to take minutes or gigabytes: each gives one line."""

import io
import random
import zipfile

import pandas as pd
import pytest
from damage import damaged

from gpuledger.errors import InputError
from gpuledger.readers.gpus import TABLE, read_gpus
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable
from gpuledger.readers.ncu.launches import _integers
from gpuledger.readers.neutrino.event_log import read_event_log
from gpuledger.readers.neutrino.kernel_info import read_kernel_info
from gpuledger.readers.neutrino.probe import read_probe
from gpuledger.readers.served_results import read_served
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.schemas import nearest


def test_a_header_of_100_000_columns_is_refused_before_it_is_compared(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",".join(["a"] * 100_000) + "\n" + ",".join(["1"] * 100_000) + "\n")
    parquet = tmp_path / "a.parquet"
    pd.DataFrame(1, [0], [f"a{number}" for number in range(2001)]).to_parquet(parquet, index=False)
    with pytest.raises(InputError, match=r"2,001 columns are more than the 2,000 that are read"):
        MeasuredTable(parquet, ["a"])
    for read in (lambda: read_csv(path, [Column("a")]), lambda: MeasuredTable(path, ["a"]), lambda: read_gpus(path)):
        with pytest.raises(InputError, match=r"line 1: 100,000 columns are more than the 2,000 that are read"):
            read()


@pytest.mark.parametrize("convert", [MeasuredTable.whole_numbers, MeasuredTable.positive_numbers])
def test_an_integer_with_hundreds_of_digits_is_no_number_here(tmp_path, convert):
    path = tmp_path / "a.csv"
    path.write_text(f"m\n1\n{'9' * 400}\n")
    with pytest.raises(InputError, match=r"a\.csv, line 3, column m: '9{400}' is not a"):
        convert(MeasuredTable(path, ["m"]), "m")


def test_separator_signs_around_a_number_are_white_space(tmp_path):
    path = tmp_path / "kernel.info"
    path.write_text("k\n\x1c1\n\x1d1\x1e\n0,16\n")
    assert read_kernel_info(path).parameters == 1
    assert _integers(pd.Series(["\x1c12", "x"])).tolist() == [12, pd.NA]


def test_a_release_without_its_allocation(tmp_path):
    path = tmp_path / "event.log"
    path.write_text("[pid] 1\n[mem] cuMemFree_v2 0 dptr 7f00\n")
    memory = read_event_log(path).memory
    assert memory["bytes"].tolist() == [pd.NA] and memory["address"].tolist() == [0x7F00]


def parquet():
    buffer = io.BytesIO()
    pd.DataFrame({"m": [1, 2, 3], "name": ["a", "b", "c"]}).to_parquet(buffer)
    return buffer.getvalue()


def workbook():
    from openpyxl import Workbook

    book, buffer = Workbook(), io.BytesIO()
    book.active.append(["name", "sms"])
    book.save(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "make", "read"),
    [("a.parquet", parquet, lambda path: MeasuredTable(path, ["m"], None)), ("a.xlsx", workbook, read_gpus)],
)
def test_damage_gives_one_line_or_a_table(tmp_path, name, make, read):
    content, path, refused, chance = make(), tmp_path / name, 0, random.Random(1)
    for _ in range(100):
        path.write_bytes(damaged(content, chance))
        try:
            read(path)
        except InputError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("sheet", ["<worksheet><sheetData><row r='x'><c t='s'><v>9</v></c></row>", "<a/>", ""])
def test_a_damaged_sheet(tmp_path, sheet):
    path = tmp_path / "a.xlsx"
    with zipfile.ZipFile(io.BytesIO(workbook())) as book, zipfile.ZipFile(path, "w") as damaged:
        for name in book.namelist():
            damaged.writestr(name, sheet if "sheet1" in name else book.read(name))
    with pytest.raises(InputError, match=r"a\.xlsx"):
        read_gpus(path)


def test_a_workbook_that_unpacks_to_gigabytes_is_not_read(tmp_path):
    path = tmp_path / "a.xlsx"
    path.write_bytes(workbook())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as book:
        book.writestr("xl/sharedStrings.xml", b" " * (17 * 2**20))
    with pytest.raises(InputError, match=r"it unpacks to 17,8\d\d,\d\d\d bytes, more than the 16,777,216"):
        read_gpus(path)


def test_a_workbook_holds_its_own_true_and_false(tmp_path):
    table = pd.read_csv(TABLE, nrows=2)
    assert table["hypothetical"].dtype == bool
    table.to_excel(tmp_path / "gpus.xlsx", index=False)
    assert list(read_gpus(tmp_path / "gpus.xlsx")) == table["name"].tolist()


def test_a_key_of_thousands_of_parts_is_refused(tmp_path):
    path = tmp_path / "probe.toml"
    for text in (
        "a" + ".a" * 20_000 + "=1",
        "[a" + " . b" * 20_000 + "]",
        "[" + "'long name here'.".replace(" ", "-") * 9000,
    ):
        path.write_text(text)
        with pytest.raises(InputError, match="nested too deeply"):
            read_probe(path)


def test_a_name_as_long_as_its_file_is_compared_with_none(tmp_path):
    assert nearest("x" * 10**6 + "m", ["m", "x" * 10**6]).startswith("known are: m, xxx")
    path = tmp_path / "a.csv"
    path.write_text("\0" * 10**6)
    with pytest.raises(InputError, match="the column 'm' is missing") as raised:
        MeasuredTable(path, ["m"])
    assert len(str(raised.value)) <= 1000


def test_a_file_of_too_many_served_runs_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"request_throughput": 1}\n' * 10_001)
    with pytest.raises(InputError, match=r"more than 10,000 runs; divide it"):
        read_served(path)
