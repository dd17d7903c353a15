"""Every dialect of Nsight Compute's CSV, each as a small file written by hand."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from ncu_values import wide

from gpuledger.readers import ncu

DATA = Path(__file__).parents[2] / "data" / "ncu"
AXPY = "axpy(float, const float *, float *, int)"
SUM = "void <unnamed>::sum<(int)4, float>(float *)"
DRAM, TIME = "dram__bytes.sum", "gpu__time_duration.sum"
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
)


def row(metric, value, unit="byte", launch=0, process=1, kernel="k", section="s"):
    return (
        f'"{launch}","{process}","app","127.0.0.1","{kernel}","1","7","(32, 1, 1)","(2, 1, 1)","0","8.0",'
        f'"{section}","{metric}","{unit}","{value}"\n'
    )


@pytest.fixture
def read(tmp_path):
    def write_and_read(content: str | bytes, name: str = "x.csv", **options):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return ncu.read(path, **options)

    return write_and_read


def table(report):
    """Metrics as tuples, the kernel left out; missing values are None."""
    columns = report.metrics.drop(columns="kernel").astype(object)
    return [tuple(None if value != value else value for value in values) for values in columns.to_numpy()]


def test_long_page_amid_program_output():
    report = ncu.read(DATA / "long_base.txt")
    section, percent = "Command line profiler metrics", "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    assert table(report) == [
        (0, section, DRAM, "byte", 12_582_912, None),
        (0, section, TIME, "ns", 31_872, None),
        (0, section, percent, "%", 9.31, None),
        (1, section, DRAM, "byte", 4_198_400, None),
        (1, section, TIME, "ns", 8_000, None),
        (1, section, percent, "", None, "n/a"),
    ]
    assert list(report.metrics["kernel"]) == [AXPY] * 3 + [SUM] * 3
    assert (report.page, report.errors) == ("long", ())
    launches = report.launches.astype(object)
    assert launches.index.name == "launch"
    assert launches.loc[1].to_dict() == {
        "id": 1,
        "kernel": SUM,
        "process_id": 4242,
        "context": 1,
        "stream": 7,
        "grid": "(64, 2, 1)",
        "block": "(256, 1, 1)",
        "device": "0",
        "compute_capability": "8.6",
        "grid_blocks": 128,
        "block_threads": 256,
    }


def test_types():
    report = ncu.read(DATA / "long_base.txt")
    types = report.metrics.dtypes.astype(str).to_dict()
    assert types == {
        "launch": "int64",
        "value": "float64",
        **dict.fromkeys(("kernel", "section", "metric", "unit", "text"), "category"),
    }


def test_wide_keeps_whole_numbers_exact_and_na_as_nan():
    report = ncu.read(DATA / "long_base.txt")
    found = wide(report, [TIME, "sm__throughput.avg.pct_of_peak_sustained_elapsed"])
    assert list(found.index) == [0, 1]
    assert found[TIME].tolist() == [31872, 8000]
    np.testing.assert_array_equal(found.iloc[:, 1], [9.31, np.nan])


def test_details_page_with_labels_ragged_rows_and_rules():
    report = ncu.read(DATA / "details_labels.csv")
    assert table(report) == [
        (0, "GPU Speed Of Light Throughput", "DRAM Frequency", "hz", 7.54e9, None),
        (0, "GPU Speed Of Light Throughput", "Memory Throughput", "%", 91.2, None),
        (0, "GPU Speed Of Light Throughput", "Duration", "ns", 31870, None),
        (0, "Roofline", "SM Frequency", "hz", 2.15e9, None),  # under two body items, with one value
        (0, "Memory Workload Analysis", "Memory Throughput", "byte/s", 345.14e9, None),
        (0, "Memory Workload Analysis", "Mem Busy", "%", None, "n/a"),
    ]


def test_a_label_with_two_units_is_two_metrics():
    memory, dram = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "dram__bytes.sum.per_second"
    assert wide(ncu.read(DATA / "details_labels.csv"), [memory, dram]).loc[0].tolist() == [91.2, 345.14e9]


def test_details_page_of_2022_with_old_units_byte_order_mark_and_crlf():
    report = ncu.read(DATA / "details_2022.csv")
    assert [(metric, unit, value) for _, _, metric, unit, value, _ in table(report)] == [
        ("DRAM Frequency", "hz", 7.54e9),
        ("Duration", "ns", 31870),
        ("Elapsed Cycles", "cycle", 42011),
        ("Memory Throughput", "byte/s", 133.82e9),
        ("Dynamic Shared Memory Per Block", "byte/block", 1020),
    ]


def test_cuda_11_page_has_grid_and_block_as_metrics():
    report = ncu.read(DATA / "cuda11.csv")
    assert report.launches["grid_blocks"].tolist() == [1024, 12]
    assert report.launches["block_threads"].tolist() == [256, 128]
    assert report.launches["grid"].tolist() == [None, None]
    assert list(report.launches["kernel"]) == ["sgemm_64x32_tn", "void add(int, float*)"]
    found = wide(report, [TIME, "sm__cycles_elapsed.avg.per_second"])
    np.testing.assert_array_equal(found, [[45920, 1120178006.84], [3008, np.nan]])


def test_raw_page_with_units_row_text_and_empty_cells():
    report = ncu.read(DATA / "raw.csv")
    assert report.page == "wide"
    assert table(report) == [
        (0, "", DRAM, "byte", 12_582_912, None),
        (0, "", TIME, "ns", 31_872, None),
        (0, "", "launch__func_cache_config", "", None, "CachePreferNone"),
        (0, "", "launch__grid_size", "", 1024, None),
        (0, "", "sm__cycles_elapsed.avg.per_second", "hz", 1.215e9, None),
        (1, "", DRAM, "byte", 290_000, None),
        (1, "", TIME, "ns", 1_234_500, None),
        (1, "", "launch__func_cache_config", "", None, "CachePreferNone"),
        (1, "", "launch__grid_size", "", 12, None),
        (1, "", "launch__kernel_name", "", None, "n/a"),
        (1, "", "sm__cycles_elapsed.avg.per_second", "hz", 1.2e9, None),
    ]
    assert report.launches["grid"].tolist() == ["(1024, 1, 1)", "(3, 2, 2)"]
    assert report.launches["block_threads"].tolist() == [256, 256]
    assert report.launches["stream"].tolist() == [7, 13]


def test_raw_page_without_units_row_and_with_few_columns(read):
    report = read('"ID","Kernel Name","gpu__time_duration.sum","metric_a"\n0,"k",5.0,1.0\n1,"l",6.0,2.0\n')
    assert wide(report, ["metric_a"])["metric_a"].tolist() == [1, 2]


def test_summaries_may_lack_the_smallest_or_the_largest_value(tmp_path):
    header, *rows = (DATA / "summary.csv").read_text("utf-8").splitlines()
    short = [line.rsplit(",", 3) for line in (header, rows[0])]
    tables = [header, *rows, *(",".join((about, *values[1:])) for about, *values in short)]
    (path := tmp_path / "summaries.csv").write_text("\n".join(tables) + "\n", "utf-8")
    metrics = ncu.read(path).metrics
    assert metrics["value"].tolist() == [74.92, 2000.0, 20.0, 74.92]
    assert metrics["maximum"].tolist() == [79.38, 3000.0, 30.0, 79.38]
    assert metrics["minimum"].tolist()[:3] == [73.56, 1500.0, 10.0]
    assert np.isnan(metrics["minimum"].iloc[3])


def test_summary_page():
    report = ncu.read(DATA / "summary.csv")
    assert report.page == "summary"
    columns = ["launch", "metric", "unit", "value", "minimum", "maximum"]
    assert report.metrics[columns].astype(object).to_numpy().tolist() == [
        [0, "Achieved Occupancy", "%", 74.92, 73.56, 79.38],
        [0, "Duration", "ns", 2000, 1500, 3000],
        [1, "Achieved Occupancy", "%", 20, 10, 30],
    ]
    assert report.launches["invocations"].tolist() == [14, 2]
    assert report.launches["id"].isna().all()


def test_german_numbers_are_decided_by_the_file():
    report = ncu.read(DATA / "german.csv")
    assert report.metrics["value"].tolist() == [27_595_520, 117_344, 65.77]  # 117.344 ns is no fraction


def test_french_numbers():
    report = ncu.read(DATA / "french.csv")
    assert report.metrics["value"].tolist() == [30_221, 7540]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_encodings(read, encoding):
    report = read((HEADER + row("a", "30\u00a0221") + row("b", "7,54", "%")).encode(encoding))
    assert report.metrics["value"].tolist() == [30221, 7.54]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_tables_saved_again_by_a_spreadsheet(read, delimiter):
    names = HEADER.strip().replace('"', "").split(",")
    values = ["0", "1", "app", "h", "k", "1", "7", "(32, 1, 1)", "(2, 1, 1)", "0", "8.0", "s", "m", "byte", "1.250,5"]
    report = read(delimiter.join(names) + "\n" + delimiter.join(values) + "\n")
    assert report.metrics["value"].tolist() == [1250.5]


def test_output_without_line_end_before_header_and_row(read):
    report = read("loading" + HEADER + row("a", "1.5") + "epoch 1 " + row("b", "2.5") + "bye")
    assert report.metrics["value"].tolist() == [1.5, 2.5]


def test_rule_text_over_several_lines(read):
    header = HEADER.strip() + ',"Rule Name","Rule Type","Rule Description"\n'
    rule = row("", "", "").strip() + ',"SOL","OPT","First line,\nsecond ""line"",\n\nlast"\n'
    report = read(header + row("a", "1.5") + rule + row("b", "2.5"))
    assert report.metrics["metric"].tolist() == ["a", "b"]


@pytest.mark.parametrize("packed", ["zip", "gz"])
def test_archives(tmp_path, packed):
    path = tmp_path / f"x.csv.{packed}"
    if packed == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__MACOSX/._raw.csv", b"\0")
            archive.write(DATA / "raw.csv", "deep/raw.csv")
    else:
        path.write_bytes(gzip.compress((DATA / "raw.csv").read_bytes()))
    assert table(ncu.read(path)) == table(ncu.read(DATA / "raw.csv"))


def test_instances_behind_a_value(read):
    report = read(HEADER + row("a", "1,234 (1; 2; 3)", "inst") + row("b", "0.5", "%"))
    assert table(report)[0][4:] == (1234, "1,234 (1; 2; 3)")


def test_whole_numbers_beyond_float64_keep_their_digits(read):
    report = read(HEADER + row("a", "9007199254740993") + row("b", "9007199254740994"))
    assert report.metrics["text"].astype(object).tolist()[0] == "9007199254740993"
    assert wide(report, ["b"]).loc[0, "b"] == 9007199254740994


# Launch identity


def launches_of(report):
    return report.metrics["launch"].tolist()


def test_runs_behind_one_another_under_one_header(read):
    run = row("a", "1.5") + row("b", "2.5") + row("a", "3.5", launch=1)
    assert launches_of(read(HEADER + run + run)) == [0, 0, 1, 2, 2, 3]


def test_runs_of_one_launch_with_the_same_process(read):
    run = row("a", "1.5") + row("b", "2.5") + row("c", "2.5")
    assert launches_of(read(HEADER + run * 3)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_header_begins_new_launches(read):
    run = HEADER + row("a", "1.5")
    report = read(run + row("b", "2.5") + "==PROF== again\n" + run)
    assert launches_of(report) == [0, 0, 1]


def test_rows_sorted_by_metric_are_still_of_their_launches(read):
    rows = [row(metric, "1.5", launch=launch) for metric in "abc" for launch in range(3)]
    assert launches_of(read(HEADER + "".join(rows))) == [0, 1, 2] * 3


def test_a_metric_printed_twice_makes_no_new_launch(read):
    report = read(HEADER + row("a", "1.5") + row("b", "2.5") + row("b", "2.5") + row("a", "1.5", launch=1))
    assert launches_of(report) == [0, 0, 0, 1]


def test_processes_part_launches(read):
    report = read(HEADER + row("a", "1.5", process=1) + row("a", "1.5", process=2))
    assert report.launches["process_id"].tolist() == [1, 2]


@pytest.mark.parametrize("sign", ["0: ", "17:", "[1,0]<stdout>: ", "2026-01-31T10:00:00.000Z ", "app-1  | ", "# "])
def test_what_launchers_put_in_front_of_every_line(read, sign):
    text = HEADER + row("a", "1.5") + row("b", "2.5") + row("a", "3.5", launch=1)
    report = read("".join(f"{sign}{line}\n" for line in text.splitlines()))
    assert report.metrics["value"].tolist() == [1.5, 2.5, 3.5] and launches_of(report) == [0, 0, 1]


def test_rows_without_id_part_where_the_first_metric_comes_again(read):
    header = '"Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    rows = '"k","a","byte","1"\n"k","b","byte","2"\n'
    assert launches_of(read(header + rows * 2)) == [0, 0, 1, 1]


def test_many_blocks(read):
    """Launches cross the reader's blocks; noise and a second table stand somewhere behind the first block."""
    kernel = "k" * 3000
    rows = [row(f"m{i % 7}", str(i), launch=i // 7, kernel=kernel) for i in range(1400)]
    rows.insert(900, "==PROF== noise\n")
    report = read(HEADER + "".join(rows) + HEADER + row("m0", "0.5"))
    assert launches_of(report) == [i // 7 for i in range(1400)] + [200]
    assert report.metrics["value"].tolist() == [*range(1400), 0.5]


def test_reports_state_grid_and_block_as_metrics(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(
        '"ID","Kernel Name","launch__block_dim_x","launch__block_dim_y","launch__block_dim_z",'
        '"launch__grid_dim_x","launch__grid_dim_y","launch__grid_dim_z"\n'
        '"","","block","block","block","","",""\n'
        '"0","k","256","2","1","12","3","4"\n'
    )
    launches = ncu.read(path).launches
    assert launches[["grid", "block"]].values.tolist() == [["(12, 3, 4)", "(256, 2, 1)"]]
    assert launches[["grid_blocks", "block_threads"]].values.tolist() == [[144, 512]]
