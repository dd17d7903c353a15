"""A folder of ncu output as users have it, from the files to the pages."""

import csv
import json
import re

import pandas as pd
import pytest
from conftest import ROOT, snakemake
from own_cases import own_case, reduced, refused

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Repository
from gpuledger.studies import metric_sweep
from gpuledger.studies.metric_sweep import tables

NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
GEMM = "ampere_sgemm_128x64_tn"
LENGTHS = (64, 128, 256, 512, 1024, 2048)
TIME = "gpu__time_duration.sum"


def launches(length):
    """(kernel, {metric: (unit, value)}): two layer normalizations and a GEMM; values are exact in every unit."""
    norm = {
        "dram__bytes_read.sum": ("Kbyte", 1.536 * length + 32),
        "dram__sectors_read.sum": ("sector", 48 * length + 1000),
        TIME: ("usecond", 2 + length / 64),
    }
    gemm = {
        "dram__bytes_read.sum": ("Kbyte", 96.0 * length),
        "dram__sectors_read.sum": ("sector", 3000 * length),
        TIME: ("usecond", 5 + length / 32),
    }
    return [(NORM, norm), (GEMM, gemm), (NORM, norm)]


def write_long(path, length, asked=()):
    """The details page: the time under its label, counters as asked for with --metrics (`asked`: further ones)."""
    columns = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC"
    with open(path, "w", newline="", encoding="utf-8") as handle:
        handle.write("==PROF== Connected to process 1\n")
        writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
        writer.writerow([*columns.split(","), "Section Name", "Metric Name", "Metric Unit", "Metric Value"])
        for number, (kernel, metrics) in enumerate(launches(length)):
            start = [number, 1, "python", "host", kernel, 1, 7, "(128, 1, 1)", "(8, 1, 1)", 0, "8.0"]
            for name, (unit, value) in metrics.items():
                if name != TIME or TIME in asked:
                    writer.writerow([*start, "Command line profiler metrics", name, unit, f"{value:.6f}"])
            time = f"{metrics[TIME][1]:.0f}" if TIME in asked else f"{metrics[TIME][1]:.6f}"
            writer.writerow([*start, "GPU Speed Of Light Throughput", "Duration", "usecond", time])
            writer.writerow([*start, "GPU Speed Of Light Throughput", "Memory Throughput", "%", "50"])
            writer.writerow([*start, "Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "200"])


def write_wide(path, length):
    """The raw page: a column per metric, the time in nanoseconds."""
    found = launches(length)
    names = list(found[0][1])
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
        about = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
        writer.writerow([*about, "Grid Size", "Device", "CC", "launch__block_size", *names])
        factors = {"dram__bytes_read.sum": 1e-3, "dram__sectors_read.sum": 1, TIME: 1e3}
        writer.writerow([""] * 11 + ["thread", "Mbyte", "sector", "nsecond"])
        for number, (kernel, metrics) in enumerate(found):
            values = [metrics[name][1] * factors[name] for name in names]
            start = [number, 1, "python", "host", kernel, 1, 7, "(128, 1, 1)", "(8, 1, 1)", 0, "8.0", 128]
            writer.writerow([*start, *(f"{value:.9f}" for value in values)])


def make(folder, write=write_long, inputs=None, rows=None):
    (folder / "ncu").mkdir(parents=True)
    for length in LENGTHS:
        write(folder / f"ncu/{length}.csv", length)
    rows = [(f"{length}.csv", 12, 768, length) for length in LENGTHS] if rows is None else rows
    sizes = pd.DataFrame(rows, columns=["file", "n_layer", "hidden_dim", "seq_len"])
    sizes.to_csv(folder / "sizes.csv", index=False)
    case = {"ncu_csv": {"folder": "ncu", "parameters": "sizes.csv"}} | (inputs or {})
    return own_case(folder, "metric_sweep", case, "sweep", kind="local")


def reduce(case):
    result = reduced(case)
    return result, metric_sweep.Sweep.from_frame(result.data)


@pytest.mark.parametrize("write", [write_long, write_wide])
def test_every_dialect_gives_the_same_laws_in_base_units(tmp_path, write):
    result, sweep = reduce(make(tmp_path / "mine", write))
    laws = sweep.laws.set_index(["kernel_class", "metric"])
    assert set(laws.index.get_level_values("kernel_class")) == {"norm", "gemm"}
    assert laws.loc[("norm", "dram__bytes_read.sum"), "formula"] == "1536·seq_len + 32000"
    assert laws.loc[("norm", "dram__sectors_read.sum"), "formula"] == "48·seq_len + 1000"
    assert laws.loc[("gemm", "dram__bytes_read.sum"), "law"] == "proportional"
    # 15.625 ns per token; the label Duration and its name are one metric.
    assert laws.loc[("norm", TIME), "formula"] == "2000·(1 + seq_len/128)"
    assert "Duration" not in set(laws.index.get_level_values("metric"))
    assert sweep.anomalies.empty
    points = sweep.points[sweep.points["metric"].isin(["dram__bytes_read.sum", "dram__sectors_read.sum", TIME])]
    assert set(points["unit"]) == {"byte", "sector", "ns"}
    assert points.query("kernel_class == 'norm'")["launches"].tolist() == [2] * 18
    assert set(sweep.kernels["kernel_name"]) == {NORM, GEMM}
    assert result["bytes_proven_values"] == result["bytes_compared_values"] == 12


def write_rollups(path, length):
    """The raw page of ncu 2025.3: every rollup of a requested counter, and the machine."""
    metrics = {
        "dram__bytes_read.sum": 96 * length,
        "dram__bytes_read.avg": 2 * length,
        "dram__bytes_read.max": 3 * length,
        "dram__bytes_read.min": length,
        "sm__cycles_elapsed.avg.per_second": 1_900_000_000,
        "sm__cycles_elapsed.sum.per_second": 250_800_000_000,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 50,
        "l1tex__t_sector_hit_rate.pct": 25,
        "c2clink__present": 0,
        "device__attribute_warp_size": 32,
        "launch__registers_per_thread": 40,
    }
    if length == 64:  # as an older ncu has it: only what was requested
        del metrics["dram__bytes_read.min"]
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
        writer.writerow(["ID", "Kernel Name", *metrics])
        writer.writerow(["", "", *("byte" if "bytes" in name else "" for name in metrics)])
        writer.writerow([0, GEMM, *metrics.values()])


def test_a_counter_is_analysed_once_and_the_machine_never(tmp_path):
    result, sweep = reduce(make(tmp_path / "mine", write_rollups))
    assert set(sweep.points["metric"]) == {
        "dram__bytes_read.sum",
        "sm__cycles_elapsed.avg.per_second",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "l1tex__t_sector_hit_rate.pct",
    }
    assert (result["columns_left_out_no_counters"], result["columns_left_out_rollups"]) == (3, 4)
    words = tables.describe_columns(result)
    assert "3 describe the device, the launch or the profiler; 4 are means" in words
    assert "add up" not in words
    asked = make(tmp_path / "asked", write_rollups, inputs={"metrics": ["dram__bytes_read.max"]})
    result, sweep = reduce(asked)
    assert set(sweep.points["metric"]) == {"dram__bytes_read.max"} and tables.describe_columns(result) == ""


def test_totals_are_of_counters_that_add_up(tmp_path):
    source = {"folder": "ncu", "parameters": "sizes.csv", "per": "pass"}
    result, sweep = reduce(make(tmp_path / "mine", write_rollups, inputs={"ncu_csv": source}))
    assert set(sweep.points["metric"]) == {"dram__bytes_read.sum"}
    assert result["columns_left_out_not_additive"] == 3


def test_a_rollup_stays_where_a_file_lacks_the_sum(tmp_path):
    def write(path, length):
        write_rollups(path, length)
        if length == 128:
            path.write_text(path.read_text("utf-8").replace("dram__bytes_read.sum", "other__bytes.sum"), "utf-8")

    _, sweep = reduce(make(tmp_path / "mine", write))
    found = set(sweep.points["metric"])
    assert "dram__bytes_read.avg" in found and "sm__cycles_elapsed.sum.per_second" not in found


def test_values_that_are_no_numbers_and_two_gpus_are_warnings(tmp_path):
    def write(path, length):
        write_wide(path, length)
        lines = path.read_text(encoding="utf-8")
        if length == 256:
            path.write_text(lines.replace("0.425216000", "n/a").replace('"8.0"', '"9.0"'), encoding="utf-8")

    result, sweep = reduce(make(tmp_path / "mine", write))
    words = " ".join(result.warnings)
    assert "2 values are no numbers (n/a or nan), the first in 256.csv; they are left out" in words
    assert "different GPUs (compute capability 8.0, compute capability 9.0)" in words
    laws = sweep.laws.set_index(["kernel_class", "metric"])
    assert laws.loc[("norm", "dram__bytes_read.sum"), "points"] == 5


def test_a_negative_counter_is_refused(tmp_path):
    def write(path, length):
        write_wide(path, length)
        if length == 256:
            path.write_text(path.read_text("utf-8").replace("0.425216000", "-0.425216", 1), "utf-8")

    with refused("256.csv, launch 0, dram__bytes_read.sum: a counter of -425216 is negative"):
        reduce(make(tmp_path / "mine", write))
    reduce(make(tmp_path / "others", write, inputs={"metrics": [TIME]}))


@pytest.mark.parametrize("metric", ["Duration", TIME])
def test_files_of_both_pages_and_both_names_of_a_metric_are_one(tmp_path, metric):
    def write(path, length):
        (write_long if length < 500 else write_wide)(path, length)

    _, sweep = reduce(make(tmp_path / "mine", write, inputs={"metrics": [metric]}))
    laws = sweep.laws.set_index(["kernel_class", "metric"])
    assert laws["points"].to_dict() == {("gemm", TIME): 6, ("norm", TIME): 6}
    assert laws.loc[("norm", TIME), "formula"] == "2000·(1 + seq_len/128)"
    assert set(sweep.points["unit"]) == {"ns"}


def test_a_metric_asked_for_by_name_counts_once_with_all_its_digits(tmp_path):
    def write(path, length):
        write_long(path, length, asked=[TIME])

    _, sweep = reduce(make(tmp_path / "mine", write, inputs={"metrics": ["Duration"]}))
    assert sweep.points.query("kernel_class == 'gemm'")["launches"].tolist() == [1] * 6
    assert sweep.points.query("kernel_class == 'norm'")["value"].tolist() == [2000 + 15.625 * n for n in LENGTHS]


def test_a_label_of_two_metrics_chooses_both(tmp_path):
    _, sweep = reduce(make(tmp_path / "mine", inputs={"metrics": ["Memory Throughput"]}))
    metrics = {"dram__bytes.sum.per_second", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"}
    assert set(sweep.points["metric"]) == metrics


def test_a_missing_metric_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(InputError) as raised:
        reduce(make(tmp_path / "mine", inputs={"metrics": ["dram__bytes_written.sum"]}))
    message = str(raised.value)
    assert "dataset.yaml, key studies.metric_sweep.sweep.metrics: no file has the metric" in message
    there = "dram__bytes.sum.per_second, dram__bytes_read.sum, dram__sectors_read.sum, gpu__compute_memory_throughput"
    assert f"did you mean 'dram__bytes_read.sum'? the files have {there}" in message
    assert TIME in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [("65.csv", 12, 768, 64)]}, "sizes.csv, line 2, column file: there is no '65.csv' in ncu"),
        ({"rows": [("64.csv", 12, 768, 64)]}, "the file '1024.csv' is not listed"),
        ({"inputs": {"metrics": ["dram__bytes_red.sum"]}}, "no file has the metric 'dram__bytes_red.sum'"),
        ({"inputs": {"ncu_csv": {"folder": "none", "parameters": "sizes.csv"}}}, "mine/none does not exist"),
        ({"inputs": {"ncu_csv": {"folder": "ncu", "parameters": "none.csv"}}}, "the file does not exist"),
    ],
)
def test_wrong_folders_are_one_line(tmp_path, change, message):
    with refused(message):
        reduce(make(tmp_path / "mine", **change))


def test_unknown_kernels_and_empty_output_are_named(tmp_path):
    case = make(tmp_path / "strange", lambda path, length: path.write_text("==PROF== Disconnected\n"))
    with pytest.raises(InputError, match="==PROF== messages"):
        reduce(case)
    case = make(tmp_path / "zebra")
    one = tmp_path / "zebra/ncu/64.csv"
    one.write_text(one.read_text().replace(GEMM, "zebra_v7"))
    result, sweep = reduce(case)
    assert "other" in set(sweep.points["kernel_class"])
    (warning,) = result.warnings
    assert warning.startswith("ncu: no class is known for 1 kernel: zebra_v7; they count as class other")


def test_a_folder_of_ncu_output_becomes_pages_and_a_page_for_one_metric(checkout):
    make(checkout / "traces/mine")
    folder = checkout / "results/mine/metric_sweep/sweep"
    targets = ["anomalies.csv", "table.csv", "figure_dram__bytes_read_sum.pdf", "notebook.html"]
    done = snakemake(checkout, *(f"results/mine/metric_sweep/sweep/{name}" for name in targets))
    assert done.returncode == 0, done.stderr[-3000:]
    kinds = [f"{name}.{suffix}" for name in ("table", "anomalies") for suffix in ("csv", "md", "tex")]
    kinds += [f"{name}.{kind}" for name in ("figure", "figure_dram__bytes_read_sum") for kind in ("pdf", "svg", "png")]
    assert [name for name in (*targets, *kinds) if not (folder / name).is_file()] == []
    # Nothing about the numbers of others.
    page = (folder / "notebook.html").read_text("utf-8")
    assert not any(words in page for words in ("H200", "published data", "The notes", "GPT-2"))
    laws = pd.read_csv(folder / "table.csv")
    columns = ["kernel_class", "metric", "variable", "law", "formula", "points", "error_percent", "provenance"]
    assert list(laws.columns) == columns
    assert laws["points"].tolist() == [6] * 10
    header = (folder / "anomalies.csv").read_text("utf-8").strip()
    assert header == "kernel_class,metric,kind,where,evidence,provenance"
    assert json.loads((folder / "summary.json").read_text("utf-8"))["anomalies"] == {"value": 0, "unit": "1"}


def test_what_the_notebook_says_of_the_h200_is_what_was_recorded():
    dataset = Repository.find(ROOT).dataset("nvidia-h200")
    result, sweep = reduce(dataset.case("metric_sweep", "gpt2"))
    laws = sweep.laws.set_index(["kernel_class", "metric", "variable"])["formula"]
    said = (ROOT / "notebooks/metric_sweep.ipynb").read_text("utf-8")
    said = re.sub(r'\\n",\s+"\s*', " ", said[said.index("Findings in GPT-2 forward on an H200") :])
    layers = sweep.laws[(sweep.laws["variable"] == "n_layer") & (sweep.laws["law"] != "undetermined")]
    changed = layers[layers["law"] != "constant"]
    assert f"{len(layers) - len(changed)} of {len(layers)} counters with a law are constant" in said
    assert set(changed["law"]) == {"saturating"} and len(changed) == 3 and "other three are shares and rates" in said
    reads = sweep.laws[(sweep.laws["metric"] == "dram__sectors_read.sum") & (sweep.laws["variable"] == "seq_len")][
        "law"
    ]
    linear = reads.isin(["proportional", "affine"]).sum()
    assert (linear, (reads != "undetermined").sum()) == (4, 5) and "in four of five classes" in said
    read, stored = "dram__sectors_read.sum", "smsp__sass_inst_executed_op_global_st.sum"
    assert laws["fmha", read, "seq_len"].startswith("288.25·seq_len") and "288.25 sectors per token" in said
    assert laws["layer_norm", read, "seq_len"].startswith("96·seq_len") and "layer normalization 96" in said
    assert laws["fmha", stored, "hidden_dim"] == "768 for hidden_dim ≤ 768, then hidden_dim" and "`768` stores" in said
    assert (
        result["gemm_dram__sectors_read_sum_by_hidden_dim_law"] == "quadratic" and "square of the hidden size" in said
    )
    times = sweep.laws[(sweep.laws["metric"] == TIME) & (sweep.laws["variable"] == "seq_len")]
    steady = times.loc[times["law"].isin(["proportional", "affine"]), "kernel_class"]
    assert set(steady) == {"gemm", "elementwise"} and "time in two (GEMM, elementwise)" in said
    knees = sweep.laws.set_index(["kernel_class", "metric", "variable"])["knee"]
    assert f"near {knees['fmha', TIME, 'seq_len']:.0f} tokens" in said
    _, totals = reduce(dataset.case("metric_sweep", "gpt2_totals"))
    layers = totals.laws[(totals.laws["variable"] == "n_layer") & (totals.laws["law"] != "undetermined")]["law"]
    assert f"{layers.isin(['proportional', 'affine']).sum()} of {len(layers)} are linear" in said
