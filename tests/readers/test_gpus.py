"""GPUs: the table agrees with itself and with published figures; users' tables are read in their units or refused."""

import csv

import numpy as np
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.readers import gpus

BUILT_IN = gpus.read_gpus()

#: Bandwidth GB/s, FP32, BF16 or FP16 TFLOP/s, SMs, MHz, as the data sheets print them.
PUBLISHED = {
    "v100-sxm2": (900, 15.7, 125, 80, 1530),
    "v100-pcie": (900, 14.0, 112, 80, 1380),
    "a100-sxm-40gb": (1555, 19.5, 312, 108, 1410),
    "a100-pcie-40gb": (1555, 19.5, 312, 108, 1410),
    "a100-pcie-80gb": (1935, 19.5, 312, 108, 1410),
    "a100-sxm-80gb": (2039, 19.5, 312, 108, 1410),
    "h100-sxm": (3350, 66.9, 989.4, 132, 1980),
    "h100-pcie": (2039, 51.2, 756.5, 114, 1755),
    "h200-sxm": (4800, 66.9, 989.4, 132, 1980),
    "gh200-96gb": (4000, 66.9, 989.4, 132, 1980),
    "h100-nvl": (3938, 60, 835.5, 132, 1785),
    "h20-sxm": (4000, 39.5, 148, 78, 1980),
    "gh200-144gb": (4900, 66.9, 989.4, 132, 1980),
    "b200": (7700, 74.5, 2250, 148, 1965),
    "gb200": (8000, 80, 2500, 152, 2060),
    "gb300": (8000, 80, 2500, 152, 2060),
    "a40": (696, 37.4, 149.7, 84, 1740),
    "rtx-3080": (760, 29.8, 59.5, 68, 1710),
    "rtx-3090": (936, 35.6, 71.2, 82, 1695),
    "rtx-4090": (1008, 82.6, 165.2, 128, 2520),
    "rtx-5070": (672, 32.26, 64.5, 48, 2625),
    "l4": (300, 30.3, 121, 58, 2040),
    "l40s": (864, 91.6, 362.05, 142, 2520),
    "mi300x": (5300, 163.4, 1307.4, 304, 2100),
}
HEADER = ["name", "sms", "lanes_per_sm", "clock_ghz", "dram_tb_per_s", "l2_mb", "fp32_tflop_per_s", "bf16_pflop_per_s"]
ROW = ["my-gpu", 100, 128, 2.0, 4.5, 60, 51.2, 1.5]


def table(path, header=HEADER, rows=(ROW,)):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def changed(column, value):
    return [value if name == column else cell for name, cell in zip(HEADER, ROW, strict=True)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    gpu = BUILT_IN[name]
    bandwidth, fp32, tensor, sms, mhz = PUBLISHED[name]
    assert gpu.dram_bytes_per_s == bandwidth * 1e9
    assert gpu.flops["fp32"] == pytest.approx(fp32 * 1e12)
    assert (gpu.flops["bf16"] or gpu.flops["fp16"]) == pytest.approx(tensor * 1e12)
    assert (gpu.sms, gpu.clock_hz) == (sms, mhz * 1e6)
    assert gpu.source and not gpu.hypothetical


@pytest.mark.parametrize("gpu", BUILT_IN.values(), ids=lambda gpu: gpu.name)
def test_fp32_peak_is_what_sms_lanes_and_clock_make(gpu):
    assert gpu.source and gpu.title and gpu.l2_bytes > 0
    if gpu.flops["fp32"]:
        # Data sheets round; nothing is off by more than the rounding of V100 PCIe's 14.0.
        assert gpu.flops["fp32"] == pytest.approx(gpu.sms * gpu.lanes_per_sm * 2 * gpu.clock_hz, rel=0.01)


def test_hypothetical_gpus_of_the_notebook():
    ax, jgs = BUILT_IN["nvl-ax"], BUILT_IN["jgs"]
    assert ax.hypothetical and jgs.hypothetical
    assert ax.flops["bf16"] / 2 == 163.84e12 and ax.flops["fp32"] is None
    assert ax.dram_bytes_per_s == 342 * 1024**3 and ax.l2_bytes == 36 * 1024**2
    assert jgs.flops["fp32"] / 2 == 192 * 1.5e9 * 8192 and jgs.dram_bytes_per_s == 30 * 1024**4


def test_no_two_gpus_share_a_name():
    names = [name for gpu in BUILT_IN.values() for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name, found",
    [
        ("h200-sxm", "h200-sxm"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H20", "h20-sxm"),
        ("a100-sxm", "a100-sxm-80gb"),
        ("a100_sxm", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("B200", "b200"),
        ("NVIDIA B200", "b200"),
        ("b200_sxm", "b200"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
    ],
)
def test_gpus_are_found_by_the_names_that_people_drivers_and_benchmarks_use(name, found):
    assert gpus.find_gpu(name).name == found


def test_unknown_gpu_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"dataset\.yaml, key gpu: unknown GPU 'h300-sxm'; did you mean 'h200-sxm'"):
        gpus.find_gpu("h300-sxm", file="dataset.yaml", place="key gpu")


def test_users_units_are_read(tmp_path):
    gpu = gpus.read_gpus(table(tmp_path / "mine.csv"))["my-gpu"]
    assert gpu.clock_hz == 2e9 and gpu.dram_bytes_per_s == 4.5e12 and gpu.l2_bytes == 60e6
    assert gpu.flops["bf16"] == 1.5e15 and gpu.flops["fp8"] is None
    assert np.isnan(gpu.dram_bytes) and np.isnan(gpu.link_bytes_per_s)


def test_a_gb_is_a_power_of_ten(tmp_path):
    """Names of products call GiB of memory GB; only those keep it whose makers put it into the device's own name."""
    assert BUILT_IN["h200-sxm"].dram_capacity == "151.4 GB (141 GiB)"
    assert gpus.read_gpus(table(tmp_path / "mine.csv"))["my-gpu"].dram_capacity == "unknown"
    assert not [gpu.title for gpu in BUILT_IN.values() if gpu.title.endswith(" GB")]


def test_excel_is_read_as_the_csv_that_it_would_be(tmp_path):
    book = openpyxl.Workbook()
    for row in (HEADER, ROW, [None] * 4):
        book.active.append(row)
    book.save(tmp_path / "mine.xlsx")
    # Unknown values are NaN, which equal nothing: compared as text.
    assert repr(gpus.read_gpus(tmp_path / "mine.xlsx")) == repr(gpus.read_gpus(table(tmp_path / "mine.csv")))


@given(factor=st.sampled_from(["kb", "mb", "gb", "kib", "mib", "gib"]), size=st.integers(2**17, 2**33))
def test_any_unit_of_bytes_means_what_it_says(tmp_path_factory, factor, size):
    value = size / (1024 if "ib" in factor else 1000) ** ("kmg".index(factor[0]) + 1)
    header = [f"l2_{factor}" if name == "l2_mb" else name for name in HEADER]
    path = table(tmp_path_factory.mktemp("gpus") / "mine.csv", header, [changed("l2_mb", value)])
    base, power = (1024, factor[:-2]) if "ib" in factor else (1000, factor[:-1])
    assert gpus.read_gpus(path)["my-gpu"].l2_bytes == pytest.approx(value * base ** ("kmg".index(power) + 1))
    assert gpus.read_gpus(path)["my-gpu"].l2_bytes == pytest.approx(size)


WRONG = {
    "missing unit": ({"l2_mb": "l2"}, ROW, r"line 1, column l2: the unit is missing; write it as 'l2_mib'"),
    "unknown unit": (
        {"dram_tb_per_s": "dram_gbps"},
        ROW,
        r"line 1, column dram_gbps: unknown unit 'gbps'; write it as 'dram_gb_per_s'",
    ),
    "missing column": ({"clock_ghz": "title"}, ROW, r"line 1: the column 'clock_mhz' is missing"),
    "unknown column": ({"l2_mb": "cores"}, ROW, r"line 1, column cores: unknown column 'cores'"),
    "not a number": ({}, changed("sms", "many"), r"line 2, column sms: 'many' is not a number"),
    "negative": ({}, changed("dram_tb_per_s", -1), r"line 2, column dram_tb_per_s: '-1' is not within"),
    "empty": ({}, changed("l2_mb", ""), r"line 2, column l2_mb"),
    "no peak": ({}, ["my-gpu", 100, 128, 2.0, 4.5, 60, "", ""], r"line 2, GPU my-gpu: it has no peak"),
    "identity": (
        {},
        changed("fp32_tflop_per_s", 1979),
        r"line 2, GPU my-gpu: the FP32 peak of my-gpu, 1979 TFLOP/s, is not 100 SMs × 128 lanes × 2 × 2000 MHz",
    ),
    "GB/s under TB/s": (
        {},
        changed("dram_tb_per_s", 4500),
        r"GPU my-gpu: the peak over dram_tb_per_s is \S+ FLOP/byte",
    ),
    "TFLOP/s under PFLOP/s": (
        {},
        changed("bf16_pflop_per_s", 1500),
        r"the peak over dram_tb_per_s is .* not within 1 …",
    ),
    "MB under GB": ({"l2_mb": "l2_gb"}, ROW, r"GPU my-gpu: l2_gb is 6e\+10 bytes, not within"),
}


@pytest.mark.parametrize("renamed, row, message", WRONG.values(), ids=WRONG)
def test_wrong_tables_are_refused_in_one_line(tmp_path, renamed, row, message):
    header = [renamed.get(name, name) for name in HEADER]
    with pytest.raises(InputError, match=rf"mine\.csv.*{message}"):
        gpus.read_gpus(table(tmp_path / "mine.csv", header, [row]))


def test_errors_in_excel_name_the_row_and_the_file(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(HEADER)
    book.active.append(changed("sms", "many"))
    book.save(tmp_path / "mine.xlsx")
    with pytest.raises(InputError, match=r"mine\.xlsx, row 2, column sms: 'many' is not a number"):
        gpus.read_gpus(tmp_path / "mine.xlsx")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"name,sms\n"], ids=["empty", "zip", "csv"])
def test_what_is_no_excel_file_is_refused(tmp_path, content):
    (tmp_path / "mine.xlsx").write_bytes(content)
    with pytest.raises(InputError, match="not an Excel file"):
        gpus.read_gpus(tmp_path / "mine.xlsx")


def test_an_identity_exception_says_why_and_is_let_through(tmp_path):
    header, row = [*HEADER, "identity_exception"], [*changed("fp32_tflop_per_s", 100), "dual issue"]
    assert gpus.read_gpus(table(tmp_path / "mine.csv", header, [row]))["my-gpu"].flops["fp32"] == 100e12


def test_a_name_that_stands_twice_is_refused(tmp_path):
    header, other = [*HEADER, "aliases"], [*changed("name", "other"), "my_gpu"]
    with pytest.raises(InputError, match="line 3: a second GPU is named 'my_gpu'"):
        gpus.read_gpus(table(tmp_path / "mine.csv", header, [[*ROW, ""], other]))


def test_roofline():
    gpu = BUILT_IN["h100-sxm"]
    assert gpus.roofline_time_s(gpu, 989.4e12, 1.0) == pytest.approx(1.0)
    assert gpus.roofline_time_s(gpu, 1.0, 3.35e12) == pytest.approx(1.0)


def test_a_precision_that_is_missing_runs_in_a_wider_one_or_not_at_all():
    assert BUILT_IN["a100-sxm-80gb"].peak_flop_per_s("fp8") == 312e12
    assert BUILT_IN["v100-sxm2"].peak_flop_per_s("bf16") == 125e12
    with pytest.raises(ValueError, match="no peak for fp64"):
        BUILT_IN["l4"].peak_flop_per_s("fp64")
