"""Kernel profile: tables against independent sums, every dialect and a baseline, hostile values in one line."""

import csv
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import MIRROR, ROOT
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.ledger import figures, tables
from gpuledger.ledger.datasets import Repository
from gpuledger.readers.kernel_names import labels
from gpuledger.studies import kernel_profile
from gpuledger.studies.kernel_profile import figures as panels
from gpuledger.studies.kernel_profile import kernel_table, tensor_table
from gpuledger.studies.kernel_profile.tables import baseline_table, instruction_table, table_for_people
from gpuledger.studies.kernel_profile.view import view

HEADER = (
    '"ID","Process ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit","Metric Value"'
)
FADD, FFMA = (f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "ffma"))
FMUL = FADD.replace("fadd", "fmul")


def report(*launches):
    """A long page: (kernel, {metric: (unit, value)}) for each launch."""
    lines = [HEADER]
    for number, (kernel, metrics) in enumerate(launches):
        name = kernel.replace('"', '""')
        lines += [
            f'"{number}","1","{name}","(32, 1, 1)","(8, 1, 1)","s","{metric}","{unit}","{value}"'
            for metric, (unit, value) in metrics.items()
        ]
    return "\n".join(lines) + "\n"


def work(time_ns, ffma=0, dram=0, **more):
    metrics = {"gpu__time_duration.sum": ("ns", time_ns), "dram__bytes.sum": ("byte", dram)}
    return metrics | {FADD: ("inst", 1), FMUL: ("inst", 2), FFMA: ("inst", ffma)} | more


@pytest.fixture
def reduce(folder):
    def run(text, baseline=None, **inputs):
        (folder / "r.csv").write_text(text, "utf-8")
        case = {"report": "r.csv", **inputs}
        if baseline is not None:
            (folder / "b.csv").write_text(baseline, "utf-8")
            case["baseline"] = "b.csv"
        return reduced(own_case(folder, "kernel_profile", case, "one"))

    return run


def test_sums_by_full_name(reduce):
    result = reduce(report(("k<1>(a)", work(3000, 10, 64)), ("k<2>(a)", work(500)), ("k<1>(a)", work(1000, 5, 32))))
    table = kernel_table(result.data)
    assert table["kernel"].tolist() == ["k<1>(a)", "k<2>(a)"] and labels(table["kernel"]).tolist() == ["k", "k #2"]
    first = table.iloc[0]
    assert first["launches"] == 2 and first["time_s"] == pytest.approx(4e-6) and first["dram_bytes"] == 96
    assert first["flops"] == first["fp32_flops"] == 2 * 15 + 2 * 3
    assert first["dram_intensity_flop_per_byte"] == pytest.approx(36 / 96)
    assert (result["launches"], result["kernels"]) == (3, 2) and result["time"] == pytest.approx(4.5e-6)
    columns = ["kernel", "launches", "time_s", "flops", "dram_bytes", "achieved_percent", "bound", "occupancy_percent"]
    assert list(table)[: len(columns)] == columns


def test_a_report_of_another_gpu_is_told_of(reduce):
    by_name = report(("gemm", work(1000) | {"device__attribute_display_name": ("", "NVIDIA A100-SXM4-80GB")}))
    head = HEADER.replace('"Grid Size"', '"Grid Size","CC"')
    by_capability = by_name.splitlines()[1:4]
    by_capability = "\n".join([head, *(line.replace('"(8, 1, 1)"', '"(8, 1, 1)","7.5"') for line in by_capability)])
    for text, recorded in ((by_name, "NVIDIA A100-SXM4-80GB"), (by_capability, "a GPU of compute capability 7.5")):
        problem = (
            f"r.csv: it was recorded on {recorded}, not on NVIDIA H100 SXM5; the roofs are those of NVIDIA H100 SXM5"
        )
        assert reduce(text, gpu="h100-sxm").warnings == [problem]
    assert not reduce(by_name, gpu="a100-sxm-80gb").warnings
    assert not reduce(by_capability.replace("7.5", "9.0"), gpu="h100-sxm").warnings


def test_nearest_roof_and_latency(reduce):
    """Half of 2 TB/s for one kernel, nearly all for the other; the data sheet's roof where the report has none."""
    near, far = work(1000, 0, 1_900_000), work(1000, 0, 1_000_000)
    result = reduce(report(("near", near), ("far", far)), gpu="a100-sxm-80gb")
    table = kernel_table(result.data).set_index("kernel")
    assert table["bound"].to_dict() == {"near": "dram", "far": "latency"}
    assert table["achieved_percent"].to_dict() == pytest.approx({"near": 100 * 1.9 / 2.039, "far": 100 * 1.0 / 2.039})
    stated = work(1000, 0, 1_000_000, **{"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", 81)})
    table = kernel_table(reduce(report(("k", stated))).data)
    assert table.loc[0, ["achieved_percent", "nearest_roof"]].tolist() == [81, "DRAM"]


def test_ncus_memory_throughput_stands_for_levels_that_are_missing(reduce):
    shares = {"sm__throughput": 65, "gpu__compute_memory_throughput": 91.5}
    levels = {"gpu__dram_throughput": 20, "lts__throughput": 90, "l1tex__throughput": 50}
    for more, bound, achieved in (({}, "memory", 91.5), (levels, "l2", 90)):
        percent = {f"{name}.avg.pct_of_peak_sustained_elapsed": ("%", share) for name, share in (shares | more).items()}
        (row,) = kernel_table(reduce(report(("k", work(9, **percent)))).data).itertuples()
        assert (row.bound, row.achieved_percent) == (bound, achieved)


def test_baseline_kernel_by_kernel(reduce):
    after = report(("same", work(1000)), ("same", work(1000)), ("renamed<2>", work(500)), ("new", work(10)))
    before = report(("same", work(4000)), ("renamed<1>", work(1500)), ("gone", work(7)), ("lost", work(3)))
    result = reduce(after, before)
    table = kernel_table(result.data).set_index("kernel")
    assert table["baseline_time_s"].dropna().to_dict() == pytest.approx(
        {"same": 4e-6, "renamed<2>": 1.5e-6, "gone": 7e-9, "lost": 3e-9}
    )
    assert table.loc["same", ["launches", "baseline_launches", "speedup"]].tolist() == [2, 1, pytest.approx(2)]
    shown = table_for_people(kernel_table(result.data)).set_index("kernel")
    assert shown.loc[["same", "gone"], "launches before"].tolist() == [1, 1] and pd.isna(
        shown["launches before"]["new"]
    )
    data = result.data[result.data["recording"] == "report"]
    assert data["baseline_time_s"].fillna(-1).tolist() == pytest.approx([4e-6, -1, -1, -1])
    assert table.loc["gone", "launches"] == 0 and pd.isna(table.loc["new", "baseline_time_s"])
    assert result["baseline_time"] == pytest.approx(5.51e-6) and result["launches"] == 4
    assert result.finding == (
        "4 launches of 3 kernels take 2.51 µs, 2.2× as fast as the baseline (5.51 µs), but not for the same "
        "launches (1 only here, 2 only in the baseline, 1 launched another number of times): launch by launch, the "
        "kernels in both take 2.5 µs, 3.8× as fast as there (9.5 µs)"
    )
    assert [result[f"common_{name}"] for name in ("time", "baseline_time")] == pytest.approx([2.5e-6, 9.5e-6])


def test_base_units_that_are_assumed_are_told_of(reduce):
    result = reduce(report(("k", {"gpu__time_duration.sum": ("", 2512)})))
    assert result["time"] == pytest.approx(2.512e-6)
    assert result.warnings == ["r.csv: no metric has a unit; base units are assumed (ns, byte)"]
    assert not reduce(report(("k", {"launch__waves_per_multiprocessor": ("", 0.5)}))).warnings


@pytest.mark.parametrize(
    ("before", "after", "partner"),
    [
        (["a", "rms_norm_v1"], ["a", "rms_norm_v2"], "rms_norm_v1"),
        (["rms_norm1", "rms_norm2"], ["rms_norm2", "rms_norm3"], None),
        (["a", "rms_norm"], ["a", "flash_fwd"], None),
        (["a", "mine_naive"], ["a", "mine_tiled"], "mine_naive"),
        (["_fwd_kernel_0d1d2d34", "a", "b"], ["c", "d", "_fwd_kernel_0d1d23d4d"], "_fwd_kernel_0d1d2d34"),
        (["triton_red_fused_sum_3", "a", "b"], ["c", "d", "triton_red_fused_sum_12"], "triton_red_fused_sum_3"),
    ],
)
def test_what_may_replace_a_kernel(reduce, before, after, partner):
    result = reduce(*(report(*((name, work(10)) for name in names)) for names in (after, before)))
    table = kernel_table(result.data).set_index("kernel")
    found = table.loc[after[-1], "baseline_kernel"]
    assert found == partner if partner else pd.isna(found)
    shown = table_for_people(kernel_table(result.data)).set_index("kernel")
    assert ("kernel before" in shown) == bool(partner)


def test_totals_of_the_same_kernels_are_compared_without_more_words(reduce):
    result = reduce(report(("a", work(10)), ("b", work(20))), report(("b", work(30)), ("a", work(30))))
    assert result.finding.endswith("2× as fast as the baseline (60 ns)")
    assert result["common_time"] == pytest.approx(result["time"])
    assert "launches before" not in table_for_people(kernel_table(result.data))


@pytest.mark.parametrize(
    ("before", "ending"),
    [
        (report(("a", work(0))), "take 30 ns; 67 % go to b"),
        (
            report(("a", work(0)), ("c", work(5)), ("d", work(1))),
            "(1 only here, 2 only in the baseline): what is in both has no times to compare",
        ),
        (report(("a", {FADD: ("inst", 1)}), ("c", work(5)), ("d", work(1))), "what is in both has no times to compare"),
    ],
)
def test_times_that_nothing_can_be_divided_by(reduce, before, ending):
    result = reduce(report(("a", work(10)), ("b", work(20))), before)
    assert ending in result.finding


def test_a_baseline_without_times_is_said(reduce):
    untimed = {key: value for key, value in work(1).items() if "time" not in key}
    result = reduce(report(("k", work(2000))), report(("k", untimed)))
    assert result.finding == "1 launch of k takes 2 µs; the baseline has no times to compare"


def test_a_baseline_is_hollow_beside_the_new_one(reduce):
    before, after = work(4000, 100, 64), work(1000, 100, 32)
    result = reduce(report(("k", after), ("new", after)), report(("k", before)), gpu="a100-sxm-80gb")
    table, earlier = kernel_table(result.data), baseline_table(result.data)
    figure, (left, right) = plt.subplots(2)
    points = panels.roofline_points(table)
    panels.draw_baseline(left, points, panels.roofline_points(earlier))
    (line,) = left.lines
    flops = 2 * 100 + 3
    assert np.column_stack(line.get_data()) == pytest.approx(
        np.array([[flops / 64, flops / 4e-6], [flops / 32, flops / 1e-6]])
    )
    assert left.collections[0].get_facecolor().size == 0
    marks = view(result).marks
    assert marks.loc[marks["group"] == "baseline", ["x", "y"]].to_numpy() == pytest.approx(
        np.array([[flops / 64, flops / 4e-6]])
    )
    panels.draw_shares(right, table, earlier)
    row = list(table["kernel"]).index("k")
    bars = {bar.get_width() for bar in right.patches if round(bar.get_y() + bar.get_height() / 2) == row}
    assert {earlier["dram_percent"][0], table["dram_percent"][row]} <= bars
    plt.close(figure)


def test_a_baseline_that_shares_no_kernel(reduce):
    result = reduce(report(("a", work(10)), ("b", work(20))), report(("c", work(5)), ("d", work(5)), ("e", work(1))))
    table = kernel_table(result.data)
    assert (
        table["launches"].tolist() == [1, 1, 0, 0, 0]
        and table["baseline_kernel"].isna().tolist() == [True] * 2 + [False] * 3
    )
    assert result.finding.endswith(
        "but not for the same launches (2 only here, 3 only in the baseline): no kernel is in both"
    )


def test_kernels_of_which_some_launches_have_no_time(reduce):
    untimed = {FADD: ("inst", 1), FMUL: ("inst", 1), FFMA: ("inst", 1)}
    result = reduce(report(("a", work(10)), ("a", untimed), ("b", work(20)), ("b", untimed)))
    assert kernel_table(result.data)["time_s"].isna().all() and result["time"] == pytest.approx(30e-9)
    assert "nan" not in result.finding


def test_missing_stays_empty_with_the_option_that_collects_it(reduce):
    result = reduce(report(("k", {"gpu__time_duration.sum": ("us", 5)})))
    row = kernel_table(result.data).iloc[0]
    assert row[["flops", "dram_bytes", "achieved_percent", "bound", "occupancy_percent"]].isna().all()
    assert result["missing_dram_bytes"].startswith("ncu --section MemoryWorkloadAnalysis")
    assert (result["tensor_launches"], result["tensor_predicted"], result["tensor_exact"]) == (0, 0, 0)
    # A sum of which one launch has no value is not a sum.
    lacking = {"gpu__time_duration.sum": ("ns", 1)}
    assert kernel_table(reduce(report(("k", work(1, 1, 32)), ("k", lacking))).data)["dram_bytes"].isna().all()


def test_known_shapes_predict_without_the_counter(reduce):
    name = "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn"
    tensor = {"sm__inst_executed_pipe_tensor.sum": ("inst", 8 * 128 * 3)}
    shape = {"launch": 0, "m": 128, "n": 256, "k": 170}
    result = reduce(report((name, work(100, **tensor))), shapes=[shape])
    row = tensor_table(result.data).iloc[0]
    assert (row["steps_source"], row["predicted_instructions"], row["exact"]) == ("shape", 3072, True)
    assert kernel_table(result.data).loc[0, "tensor_flops"] == 3072 * 4096
    assert (result["tensor_launches"], result["tensor_predicted"], result["tensor_exact"]) == (1, 1, 1)
    with pytest.raises(InputError, match="the report has no launch 9"):
        reduce(report((name, work(100))), shapes=[shape | {"launch": 9}])


def test_operations_of_the_tensor_path_stand_for_instructions(reduce):
    """And the raw page names the GPU, whose data sheet gives the roof: 312 TFLOP/s."""
    name = "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn"
    operations = {"sm__ops_path_tensor_src_fp16_dst_fp32.sum": ("", 8 * 128 * 5 * 4096)}
    operations["device__attribute_display_name"] = ("", "NVIDIA A100-SXM4-80GB")
    result = reduce(report((name, work(1000, **operations))))
    row = tensor_table(result.data).iloc[0]
    assert (row["steps"], row["predicted_instructions"], row["exact"]) == (5, 5120, True)
    assert "resources/gpus.csv" in [entry["file"] for entry in result.provenance["inputs"]]
    tensor = kernel_table(result.data).loc[0, "tensor_percent"]
    assert tensor == pytest.approx(100 * 5120 * 4096 / 1e-6 / 312e12)


def test_half_split_k_reduction_is_explained(reduce):
    gemm = "void cutlass::Kernel<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x1_tn_align8>(T1::Params)"
    counts = {FADD: ("inst", 500), FMUL: ("inst", 100)}
    text = report(
        (gemm, work(9, **{"sm__inst_executed_pipe_tensor.sum": ("inst", 128)})),
        ("splitKreduce_kernel", work(9) | counts),
    )
    assert tensor_table(reduce(text).data)["explanation"].iloc[1].endswith("the sum of 4 parts and a bias")


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"gpu__time_duration.sum": ("ns", -1)}, "is negative"),
        ({"gpu__time_duration.sum": ("byte", 1)}, "the unit is 'byte' where ns is expected"),
        ({FADD: ("inst", 1.5), FMUL: ("inst", 1), FFMA: ("inst", 1)}, "is not a count"),
    ],
)
def test_hostile_values_are_one_line(reduce, metrics, said):
    with pytest.raises(InputError, match=said):
        reduce(report(("k", metrics)))


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a$b_{c}^d\\e%f&g#", 'k|l, "m"', "→" * 3000, "a(" * 500])
def test_hostile_names_survive_tables_and_figures(reduce, tmp_path, name):
    result = reduce(report((name, work(2000, 5, 64)), ("other", work(10, 1, 1))), gpu="h100-sxm")
    table = kernel_table(result.data)
    assert table["kernel"].iloc[0] == name
    record = result.provenance
    tables.write(table, record, tmp_path, caption="c", people=table_for_people(table))
    assert "<script>" not in (tmp_path / "table.md").read_text("utf-8")
    figures.use_style()
    for draw in (panels.draw_times, panels.draw_shares):
        figure, axes = plt.subplots()
        draw(axes, table)
        figure.draw_without_rendering()
        plt.close(figure)


def test_a_share_beyond_the_panel_is_written_within(reduce):
    """As with the data sheet of a slower GPU than the recorded one."""
    table = kernel_table(reduce(report(("k", work(1000, 0, 20_000_000))), gpu="a100-sxm-80gb").data)
    figure, axes = plt.subplots()
    panels.draw_shares(axes, table)
    (said,) = [text for text in axes.texts if text.get_text() == "981 %"]
    inside = said.get_window_extent().x1 < axes.get_window_extent().x1
    plt.close(figure)
    assert inside


def test_the_bars_have_a_headline_of_their_own(reduce):
    near, far = work(3000, 5, 5_700_000), work(1000, 5, 1_000_000)
    text = report(("near", near), ("far", far))
    sheet = kernel_table(reduce(text, gpu="a100-sxm-80gb").data)
    assert panels.time_headline(sheet, "") == "Kernels near DRAM take 75 % of the time, limited by latency 25 %"
    assert panels.time_headline(kernel_table(reduce(text).data), "") == "2 of 2 kernels take 100 % of the time"
    untimed = [{key: value for key, value in work(1, ffma).items() if "time" not in key} for ffma in (500, 1)]
    found = kernel_table(reduce(report(("k", untimed[0]), ("l", untimed[1]))).data)
    assert panels.time_headline(found, "") == "1 of 2 kernels executes 100 % of the FLOPs"
    assert panels.time_headline(found.head(1), "the finding") == "the finding"


def test_no_time_draws_operations(reduce):
    metrics = {key: value for key, value in work(1, 5).items() if "time" not in key}
    result = reduce(report(("k", metrics)))
    assert result["time"] == "unknown" and "no times were recorded" in result.finding
    figure, axes = plt.subplots()
    panels.draw_times(axes, kernel_table(result.data))
    assert axes.get_xlabel() == "executed FLOP, and share of all" and axes.patches[0].get_width() == 13
    plt.close(figure)


def test_neither_times_nor_operations_draw_launches(reduce):
    registers = {"launch__registers_per_thread": ("register/thread", 32)}
    table = kernel_table(reduce(report(("k", registers), ("l", registers), ("k", registers), ("k", registers))).data)
    figure, axes = plt.subplots()
    panels.draw_times(axes, table)
    assert axes.get_xlabel() == "launches, and share of all"
    assert [bar.get_width() for bar in axes.patches] == [3, 1]
    assert [text.get_text() for text in axes.texts] == ["75 %", "25 %"]
    plt.close(figure)


def test_launches_without_a_time_are_said(reduce):
    untimed = work("n/a", 5)
    found = reduce(report(("k", work(2000, 5)), ("l", untimed))).finding
    assert found.startswith("2 launches of 2 kernels (1 of them without a time) take 2 µs; 100 % go to k")
    # The other launch of l is in the sum, but not in a share.
    found = reduce(report(("k", work(2000, 5)), ("l", untimed), ("l", work(6000, 5)))).finding
    assert found.startswith("3 launches of 2 kernels (1 of them without a time) take 8 µs; k")


def test_published_toy_network():
    """The counters of the source document: forward 2,727,606,586 FLOP, backward 5,134,952,944, beside the set-up's."""
    repository = Repository.find(ROOT)
    result = reduced(repository.case("published", "kernel_profile", "toy_network"))
    table = kernel_table(result.data)
    setup = table["kernel"].str.contains("distribution_elementwise")
    assert int(table.loc[~setup, "flops"].sum()) == 2_727_606_586 + 5_134_952_944
    assert table["time_s"].isna().all() and "missing_time_s" in result.summary
    counted = instruction_table(result.data)
    assert list(counted["kernel"]) == list(table["kernel"])
    assert (2 * counted["fma"] + counted["multiply"] + counted["add"]).tolist() == table["flops"].tolist()
    said = "98 % of the FP32 instructions are FMAs: the kernels reach 99 % of the FP32 peak at most"
    assert panels.instruction_headline(counted) == said


def test_recorded_attention_is_exact():
    paths = sorted(MIRROR.glob("raw.githubusercontent.com/leleucas/*/*/attention/**/bert_flashattn_nsight.csv"))
    if not paths:
        pytest.skip("not in the mirror; set GPULEDGER_MIRROR to a folder that has it")
    result = kernel_profile.profile(paths[0])
    assert (result["tensor_launches"], result["tensor_predicted"], result["tensor_exact"]) == (3, 3, 3)
    totals = defaultdict(lambda: defaultdict(float))
    with open(paths[0], newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            value = row["Metric Value"].replace(",", "")
            totals[row["Kernel Name"], row["ID"]][row["Metric Name"]] = float(value) if value[:1].isdigit() else 0.0
    table = kernel_table(result.data).set_index("kernel")
    for kernel in table.index:
        own = [metrics for (name, _), metrics in totals.items() if name == kernel]
        assert table.loc[kernel, "launches"] == len(own)
        assert table.loc[kernel, "dram_bytes"] == sum(metrics["dram__bytes.sum"] for metrics in own)
        seconds = sum(m["sm__cycles_elapsed.avg"] / m["sm__cycles_elapsed.avg.per_second"] for m in own)
        assert table.loc[kernel, "time_s"] == pytest.approx(seconds)
