"""What ``nsys stats --format json`` writes: the rows of its reports as lists of objects."""

import gzip
import json
import warnings

import pytest

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines import read_timeline, timeline_format

SUMS = [
    {"Time (%)": 75.0, "Total Time (ns)": 6000, "Instances": 3, "Avg (ns)": 2e3, "Name": "void gemm<float, 2>(T1 *)"},
    {"Time (%)": 25.0, "Total Time (ns)": 2000, "Instances": 1, "Avg (ns)": 2e3, "Name": "[](int){} #1"},
]
CALLS = [{"Time (%)": 90.0, "Total Time (ns)": 90000, "Num Calls": 3, "Name": "cudaMalloc"}]
TRACE = [
    {"Start (ns)": 9000, "Duration (ns)": 500, "GrdX": 4, "GrdY": 2, "GrdZ": 1, "BlkX": 64, "BlkY": 1, "BlkZ": 1}
    | {"Bytes (MB)": None, "Device": "NVIDIA Test (1)", "Strm": 7, "Name": "gemm"},
    {"Start (ns)": 5000, "Duration (ns)": 250, "GrdX": None, "GrdY": None, "GrdZ": None, "BlkX": None, "BlkY": None}
    | {"BlkZ": None, "Bytes (MB)": 0.004, "Device": "NVIDIA Test (1)", "Strm": 7, "Name": "[CUDA memcpy HtoD]"},
]


@pytest.fixture
def read(tmp_path):
    def write_and_read(text, **how):
        (tmp_path / "a.json").write_text(text, **how)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert "kernel_breakdown" in recognise(tmp_path / "a.json")[0].cases
            return read_timeline(tmp_path / "a.json")

    return write_and_read


def test_sums_alone_and_behind_other_reports(read):
    printed = "".join(
        f"Processing [a.sqlite] with [{name}.py]... \n{json.dumps(rows, indent=4)}\n"
        for name, rows in (("cuda_api_sum", CALLS), ("cuda_gpu_kern_sum", SUMS))
    )
    expected = [["void gemm<float, 2>(T1 *)", 3], ["[](int){} #1", 1]]
    for text in (json.dumps(SUMS), json.dumps(SUMS, indent=2), printed):
        kernels = read(text).kernels
        assert kernels[["kernel", "launches"]].to_numpy().tolist() == expected
        assert kernels["duration_s"].tolist() == pytest.approx([6e-6, 2e-6])
    # As PowerShell redirects it.
    assert len(read(printed, encoding="utf-16").kernels) == 2


def test_reports_may_be_compressed(tmp_path):
    rows = "Time (%),Total Time (ns),Instances,Name\n75.0,6000,3,gemm\n"
    for text in (json.dumps(SUMS), rows):
        (tmp_path / "a.gz").write_bytes(packed := gzip.compress(text.encode()))
        assert read_timeline(tmp_path / "a.gz").kernels["launches"].iloc[0] == 3
        assert "kernel_breakdown" in recognise(tmp_path / "a.gz")[0].cases
        (tmp_path / "a.gz").write_bytes(packed[:-9])
        with pytest.raises(InputError, match="cannot be read"):
            read_timeline(tmp_path / "a.gz")


def test_every_launch(read, tmp_path):
    timeline = read(json.dumps(TRACE))
    assert timeline.kernels["kind"].tolist() == ["copy", "kernel"] and timeline.devices == ["NVIDIA Test"]
    assert timeline.kernels["start_s"].tolist() == pytest.approx([0, 4e-6])
    assert timeline.kernels["grid"].tolist() == ["", "4x2x1"]
    assert timeline_format(tmp_path / "a.json") == "report"


def test_a_list_that_is_cut_off_gives_its_first_rows(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(SUMS)[:-9])
    with pytest.warns(InputWarning, match="character 119: the list ends in the middle; the rows before it are used"):
        assert read_timeline(tmp_path / "a.json").kernels["launches"].tolist() == [3]
