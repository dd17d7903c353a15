"""What each launch did, from whatever a page prints: known answers for every dialect, and impossible values refused."""

import warnings

import pytest

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers import ncu
from gpuledger.readers.ncu.quantities import launch_quantities, missing_options

LONG = (
    '"ID","Process ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def row(name, unit, value, launch=0, kernel="k<float>(int)", section="Command line profiler metrics"):
    return f'"{launch}","1","{kernel}","(32, 1, 1)","(8, 1, 1)","{section}","{name}","{unit}","{value}"'


@pytest.fixture
def quantities(tmp_path):
    def read(*rows, header=LONG):
        (tmp_path / "r.csv").write_text("\n".join([header, *rows]) + "\n", "utf-8")
        return launch_quantities(ncu.read(tmp_path / "r.csv"))

    return read


FLOPS = [row(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum", "inst", n) for op, n in (("fadd", 5), ("fmul", 7))]


def test_sums_from_rates_per_cycle(quantities):
    """FFMA: 12.5 a cycle for 4,000 cycles; time: 4,000 cycles at 2 GHz; DRAM: 100 GB/s for 2 µs."""
    ffma = row("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed", "inst/cycle", "12.5")
    clock = row("sm__cycles_elapsed.avg.per_second", "cycle/nsecond", 2)
    found = quantities(
        *FLOPS,
        ffma,
        row("sm__cycles_elapsed.avg", "cycle", "4,000"),
        clock,
        row("dram__bytes.sum.per_second", "Gbyte/s", 100),
    ).iloc[0]
    assert found["fp32_flops"] == 5 + 7 + 2 * 50_000
    assert found["time_s"] == pytest.approx(2e-6) and found["clock_hz"] == 2e9
    assert found["dram_bytes"] == pytest.approx(200_000)


@pytest.mark.parametrize("text", ["abc", "1,5.2", "1.2.3"])
def test_a_text_where_a_number_should_be_is_warned_of(quantities, text):
    times = [row("gpu__time_duration.sum", "ns", value, launch) for launch, value in enumerate((7, text, text))]
    with pytest.warns(InputWarning, match=f"launch 1, gpu__time_duration.sum: '{text}' is not a number") as caught:
        assert quantities(*times)["time_s"].isna().tolist() == [False, True, True]
    assert len(caught) == 1


@pytest.mark.parametrize("text", ["n/a", "(!) n/a", "nan", "-nan(ind)", "no data"])
def test_what_ncu_prints_without_a_number_is_not_warned_of(quantities, text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantities(row("gpu__time_duration.sum", "ns", 7), row("dram__bytes.sum", "byte", text))


def test_share_of_a_recorded_peak_gives_the_sum(quantities):
    rows = [
        row("dram__bytes.sum.pct_of_peak_sustained_elapsed", "%", 50),
        row("dram__bytes.sum.peak_sustained", "byte/cycle", 80),
        row("dram__cycles_elapsed.avg", "cycle", 1000),
        row("dram__cycles_elapsed.avg.per_second", "Ghz", 7.5),
    ]
    found = quantities(*rows).iloc[0]
    assert found["dram_bytes"] == 40_000 and found["dram_percent"] == 50
    assert found["dram_peak_bytes_per_s"] == 600e9


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("dram__bytes.sum", "Kbyte", "1.5")], 1500),
        ([("dram__bytes_read.sum", "byte", "100"), ("dram__bytes_write.sum", "Kbyte", "2")], 2100),
        ([("dram__bytes_op_read.sum", "byte", "3"), ("dram__bytes_op_write.sum", "byte", "4")], 7),
        ([("dram__sectors.sum", "sector", "10")], 320),
        ([("dram__sectors_read.sum", "sector", "1"), ("dram__sectors_write.sum", "sector", "2")], 96),
    ],
)
def test_dram_traffic_under_its_names(quantities, rows, expected):
    assert quantities(*(row(*entry) for entry in rows)).loc[0, "dram_bytes"] == expected


def test_details_page_with_labels(quantities):
    speed, launch, occupancy = "GPU Speed Of Light Throughput", "Launch Statistics", "Occupancy"
    rows = [
        row("Duration", "us", "31.87", section=speed),
        row("Memory Throughput", "%", "66", section=speed),
        row("DRAM Throughput", "%", "65", section=speed),
        row("Compute (SM) Throughput", "%", "12", section=speed),
        row("Memory Throughput", "Gbyte/second", "100", section="Memory Workload Analysis"),
        row("Registers Per Thread", "register/thread", "40", section=launch),
        row("Waves Per SM", "", "0.5", section=launch),
        row("Achieved Occupancy", "%", "33", section=occupancy),
        *(
            row(f"Block Limit {what}", "block", n, section=occupancy)
            for what, n in (("SM", 32), ("Registers", 5), ("Warps", 5))
        ),
        row("Stall Long Scoreboard", "inst", "6", section="Warp State Statistics"),
        row("Stall Wait", "inst", "2", section="Warp State Statistics"),
        row("Stall Selected", "inst", "9", section="Warp State Statistics"),
    ]
    found = quantities(*rows).iloc[0]
    assert found["time_s"] == pytest.approx(31.87e-6) and found["dram_bytes"] == pytest.approx(31.87e-6 * 100e9)
    assert (found["dram_percent"], found["sm_percent"], found["registers"], found["waves"]) == (65, 12, 40, 0.5)
    assert found["occupancy_limiter"] == "registers, warps" and found["occupancy_percent"] == 33
    assert found["stalls"] == "long scoreboard 75 %, wait 25 %"


def test_raw_page_and_pivoted_table_agree(quantities):
    raw = quantities(
        '"","","","byte","us"',
        '"0","1","a<b>(c)","100","2"',
        header='"ID","Process ID","Kernel Name","dram__bytes.sum","gpu__time_duration.sum"',
    )
    pivoted = quantities('"a<b>(c)",100,2000', header="Kernel Name,dram__bytes.sum,gpu__time_duration.sum")
    for column in ("kernel", "dram_bytes", "time_s"):
        assert raw.loc[0, column] == pivoted.loc[0, column]


def test_summary_counts_its_launches(quantities):
    header = (
        '"Process ID","Kernel Name","Invocations","Section Name","Metric Name","Metric Unit",'
        '"Minimum","Maximum","Average"'
    )
    found = quantities('"1","k","3","s","gpu__time_duration.sum","us","1","3","2"', header=header)
    assert found.loc[0, ["launches", "time_s"]].tolist() == [3, 2e-6]


def test_nothing_fails_for_want_of_a_counter(quantities):
    found = quantities(row("gpu__time_duration.sum", "ns", 5))
    assert found["flops"].isna().all() and found["dram_bytes"].isna().all()
    missing = missing_options(found)
    assert "time_s" not in missing and missing["dram_bytes"].startswith("--section MemoryWorkloadAnalysis")


def test_tensor_counter_alone_says_nothing_of_cuda_cores(quantities):
    found = quantities(row("sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", 0))
    assert found["tensor_flops"].tolist() == [0] and found["flops"].isna().all()


def test_shares_and_samples_over_time_are_no_counters(quantities):
    """What a user lists by hand, and the timelines that ``--set full`` of ncu 2025 adds."""
    share = row("sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active", "%", "12.5")
    sampled = row("TPC.TriageCompute.sm__inst_executed_pipe_tensor_realtime.sum.per_cycle_elapsed", "", "33 (1; 2; 3)")
    found = quantities(row("gpu__time_duration.sum", "us", 2), share, sampled).iloc[0]
    assert found["tensor_percent"] == 12.5 and found["flops_note"] == "not collected"
    assert found[["flops", "tensor_flops", "tensor_instructions"]].isna().all()


def test_wgmma_that_no_counter_of_operations_saw_leaves_the_flops_unknown(quantities):
    """On Hopper op_hmma counts mma.sync only: its zero says nothing of a kernel that executed wgmma."""
    ffma = row("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", 3)
    mma = row("sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32.sum", "", 0)
    wgmma = "sm__inst_executed_pipe_tensor_op_gmma.sum"
    found = quantities(*FLOPS, ffma, mma, row(wgmma, "inst", 64)).iloc[0]
    assert found["fp32_flops"] == 18 and found[["tensor_flops", "flops"]].isna().all()
    assert "wgmma" in found["flops_note"]
    found = quantities(*FLOPS, ffma, mma, row(wgmma, "inst", 0)).iloc[0]
    assert found["tensor_flops"] == 0 and found["flops"] == 18
    counted = row("sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32.sum", "", 4096)
    found = quantities(*FLOPS, ffma, mma, counted, row(wgmma, "inst", 64)).iloc[0]
    assert found["tensor_flops"] == 4096 and found["flops"] == 18 + 4096
    assert quantities(row(wgmma, "inst", 64)).iloc[0][["tensor_flops", "flops"]].isna().all()


def test_hfma2_constants_are_no_matrix_instructions(quantities):
    """One warp instruction of which three threads were active, in an elementwise kernel; half as many in a GEMM."""
    hfma = "sm__sass_thread_inst_executed_op_hfma_pred_on.sum"
    few = [
        row("sm__inst_executed_pipe_tensor.sum", "inst", 1, kernel="elementwise_kernel"),
        row(hfma, "inst", 3, kernel="elementwise_kernel"),
    ]
    assert (
        quantities(*few, *(r.replace("k<float>(int)", "elementwise_kernel") for r in FLOPS)).loc[0, "tensor_flops"] == 0
    )
    name = "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn"
    many = [row("sm__inst_executed_pipe_tensor.sum", "inst", 110, kernel=name), row(hfma, "inst", 320, kernel=name)]
    assert quantities(*many).loc[0, "tensor_instructions"] == 100


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            row("gpu__time_duration.sum", "byte", 5),
            r"launch 0, gpu__time_duration.sum: the unit is 'byte' where ns is expected",
        ),
        (row("Duration", "parsec", 5), r"launch 0, gpu__time_duration.sum: the unit is 'parsec' where ns is expected"),
        (row("gpu__time_duration.sum", "ns", -5), r"-5 is negative"),
        (row("dram__bytes.sum", "inst", 5), r"the unit is 'inst' where byte is expected"),
        (row("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "5.5"), r"5.5 is not a count"),
    ],
)
def test_impossible_values_are_one_line(quantities, entry, said):
    with pytest.raises(InputError, match=said):
        quantities(entry)


def test_a_row_per_metric_is_named_for_what_it_is(tmp_path):
    (tmp_path / "p.csv").write_text("Metric Name,f,g\ndram__bytes.sum,100,20\n")
    with pytest.raises(InputError, match="pivoted table"):
        ncu.read(tmp_path / "p.csv")


def test_tables_without_units_are_in_base_units(quantities):
    values = {"gpu__time_duration.sum": "12,512", "dram__bytes.sum": "1500000", "launch__registers_per_thread": "32"}
    expected = {"time_s": 12.512e-6, "dram_bytes": 1.5e6, "registers": 32}
    without = LONG.replace('"Metric Unit",', "")
    least = '"Kernel Name","Metric Name","Metric Value"'
    for header, rows in (
        (LONG, [row(name, "", value) for name, value in values.items()]),
        (LONG, [row(name, "nan", value) for name, value in values.items()]),
        (without, [row(name, "", value).replace(',"",', ",") for name, value in values.items()]),
        (least, [f'"k","{name}","{value}"' for name, value in values.items()]),
    ):
        found = quantities(*rows, header=header).iloc[0]
        assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_values_that_lost_their_scaled_unit_are_left_out(quantities):
    rows = [
        row("gpu__time_duration.sum", "", 12.51),
        row("Duration", "", 2.5, launch=1),
        row("DRAM Throughput", "", 51.5),
    ]
    with pytest.warns(
        InputWarning, match=r"gpu__time_duration.sum: 12.51 has no unit, and cannot be in ns; taken as not"
    ):
        found = quantities(*rows)
    assert found["time_s"].isna().all() and found["dram_percent"].iloc[0] == 51.5
    with pytest.warns(InputWarning, match=r"2.5 has no unit"):
        assert quantities(row("Duration", "", 2.5))["time_s"].isna().all()
    # Means of several launches are fractions, too.
    mean = row("gpu__time_duration.sum", "", 999.5), row("gpu__time_duration.sum", "", 2512.5, launch=1)
    assert quantities(*mean)["time_s"].tolist() == pytest.approx([999.5e-9, 2512.5e-9])


@pytest.mark.parametrize("unit", [" [{}]", " ({})", "[{}]"])
def test_units_in_the_names_of_columns(quantities, unit):
    names = (
        f"{name}{unit.format(of)}" for name, of in (("gpu__time_duration.sum", "us"), ("dram__bytes.sum", "Mbyte"))
    )
    found = quantities("0,k,12.51,1.5", header=f",Kernel Name,{','.join(names)}").iloc[0]
    assert (found["time_s"], found["dram_bytes"]) == pytest.approx((12.51e-6, 1.5e6))
