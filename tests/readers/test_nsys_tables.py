"""Further tables of ``nsys stats``: sums by launch, by NVTX range and by grid, with known answers in each format."""

import csv
import io
import json
import warnings

import pytest

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputWarning
from gpuledger.readers.timelines import read_timeline

_EACH = {f"{part}{value} (ns)": 1.0 for part in "TAQ" for value in ("Avg", "Med", "Min", "Max", "StdDev")}
_LAUNCHED = {"PID": 77, "TID": 99, "DevId": 1}
EXECUTED = [
    {**_LAUNCHED, "Count": 12, "QCount": 10, **_EACH, "KAvg (ns)": 5001.5, "API Name": "cudaLaunchKernel"}
    | {"Kernel Name": "void gemm<float, 4>(int)"},
    {**_LAUNCHED, "Count": 1, "QCount": 1, **_EACH, "KAvg (ns)": 2000.0, "API Name": "cudaLaunchKernel"}
    | {"Kernel Name": "add(int)"},
]
RANGES = [
    {"NVTX Range": name, "Style": style, "PID": 77, "TID": 99, "NVTX Inst": runs, "Kern Inst": count}
    | {"Total Time (ns)": time, "Avg (ns)": 1.0, "Kernel Name": kernel}
    for name, style, runs, count, time, kernel in (
        ("", "", 0, 1, 90000, "warm_up(int)"),
        ("layer, one", "PushPop", 12, 12, 60018, "void gemm<float, 4>(int)"),
        ("step", "PushPop", 3, 12, 60018, "void gemm<float, 4>(int)"),
        ("loss", "PushPop", 3, 3, 12000, "add(int)"),
        ("layer, one", "PushPop", 12, 3, 12000, "add(int)"),
        ("step", "PushPop", 3, 3, 12000, "add(int)"),
    )
]
SIZES = [
    {"Time (%)": 90.0, "Total Time (ns)": 60018, "Instances": 12, "Avg (ns)": 5001.5, "GridXYZ": "  16    2    1"}
    | {"BlockXYZ": " 128    1    1", "Name": "void gemm<float, 4>(int)"},
    {"Time (%)": 10.0, "Total Time (ns)": 2000, "Instances": 1, "Avg (ns)": 2000.0, "GridXYZ": "16384    1    1"}
    | {"BlockXYZ": " 128    1    1", "Name": "add(int)"},
]
TRACED = [
    {"API Start (ns)": 9100, "API Dur (ns)": 600, "Kernel Start (ns)": 10000, "Kernel Dur (ns)": 5000, "PID": 77}
    | {"TID": 99, "DevId": 1, "API Function": "cudaLaunchKernel", "GridXYZ": "  16    2    1"}
    | {"BlockXYZ": " 128    1    1", "Kernel Name": "void gemm<float, 4>(int)"},
]


def as_csv(rows, mark=","):
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), delimiter=mark, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_columns(rows):
    cells = [list(rows[0]), *[[str(value) for value in row.values()] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [" " + "  ".join(map(str.ljust, row, widths)) for row in cells]
    lines.insert(1, " " + "  ".join("-" * width for width in widths))
    return " ** A Summary (a_sum):\n\n" + "\n".join(lines) + "\n\n"


FORMATS = {"csv": as_csv, "tsv": lambda rows: as_csv(rows, "\t"), "column": as_columns, "json": json.dumps}


@pytest.fixture(params=FORMATS)
def read(tmp_path, request):
    def write_and_read(rows):
        path = tmp_path / f"a.{request.param}"
        path.write_text(f"Processing [a.sqlite] with [a.py]... \n{FORMATS[request.param](rows)}", "utf-8")
        assert "kernel_breakdown" in recognise(path)[0].cases
        return read_timeline(path).kernels.set_index("kernel")

    return write_and_read


def test_times_of_launches_are_no_part_of_the_kernels(read):
    kernels = read(EXECUTED)
    assert kernels["launches"].tolist() == [12, 1]
    assert kernels["duration_s"].tolist() == pytest.approx([60.018e-6, 2e-6])
    assert set(kernels["device"]) == {1}


def test_a_kernel_within_nested_ranges_counts_once(read):
    with pytest.warns(InputWarning, match=r"a row for each NVTX range around them.*those in 'step', which has most"):
        kernels = read(RANGES)
    assert kernels["launches"].to_dict() == {"void gemm<float, 4>(int)": 12, "add(int)": 3}
    assert kernels["duration_s"].sum() == pytest.approx(72.018e-6)
    assert set(kernels["nvtx_range"]) == {"step"}


def test_a_single_range_needs_no_warning(read):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read(RANGES[2:3])) == len(read(RANGES[:1])) == 1


@pytest.mark.parametrize("rows", [SIZES, TRACED], ids=["sums", "trace"])
def test_three_sizes_in_one_column(read, rows):
    kernels = read(rows)
    first = kernels.loc["void gemm<float, 4>(int)"]
    assert (first["grid"], first["block"]) == ("16x2x1", "128x1x1")


@pytest.mark.parametrize("column", ["Count", "KAvg (ns)"])
def test_sums_below_zero_are_left_out(read, column):
    with pytest.warns(InputWarning, match="1 event has no valid time"):
        assert list(read([EXECUTED[0], EXECUTED[1] | {column: -1}]).index) == ["void gemm<float, 4>(int)"]


def test_a_table_that_pandas_saved_again(tmp_path):
    """With its index, in a column without a name."""
    rows = ",Time (%),Total Time (ns),Instances,Avg (ns),Name\n0,75.0,6000,3,2000.0,gemm\n1,25.0,2000,1,2000.0,add\n"
    (tmp_path / "a.csv").write_text(rows)
    kernels = read_timeline(tmp_path / "a.csv").kernels
    assert kernels[["kernel", "launches"]].to_numpy().tolist() == [["gemm", 3], ["add", 1]]
    assert kernels["device"].nunique() == 1, "rows are no GPUs"
