"""What probes cost: the paper's averages, its contradictions, and the one-line errors for bad input."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from own_cases import own_case, reduced, refused

from gpuledger.errors import InputError
from gpuledger.ledger import notebooks, pages, provenance
from gpuledger.ledger.case_result import CaseResult, size_text
from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.readers import neutrino
from gpuledger.studies import exposed_latency, memory_usage
from gpuledger.studies.exposed_latency.figures import draw_latencies
from gpuledger.studies.exposed_latency.tables import latency_table
from gpuledger.studies.kernel_overhead.compared import parts
from gpuledger.studies.kernel_overhead.figures import MOST_COMPARED, draw_compared, draw_operators, lay_out
from gpuledger.studies.kernel_overhead.tables import compared_table, overhead_table
from gpuledger.studies.memory_usage import tables as memory_tables
from gpuledger.studies.memory_usage.figures import draw_workloads
from notebooks import run_notebook


def published(study, case):
    return reduced(Repository.find(ROOT).dataset("published").case(study, case))


def reduce(folder, study, *tables, name="mine"):
    """Reduce a case of one's own, made of tables with the given texts."""
    for position, text in enumerate(tables):
        (folder / f"table{position}.csv").write_text(text, "utf-8")
    inputs = {"table": "table0.csv"}
    if len(tables) > 1:
        inputs = {"tables": {f"w{position}": f"table{position}.csv" for position in range(len(tables))}}
    return reduced(own_case(folder, study, inputs, name))


def refusal(folder, study, *tables):
    with refused() as caught:
        reduce(folder, study, *tables)
    return str(caught.value)


# Kernel overhead


def test_the_papers_averages_are_reproduced():
    result = published("kernel_overhead", "table2")
    means = {
        "lightweight_slowdown_mean": 1.04,
        "dmat_slowdown_mean": 7.12,
        "lightweight_registers_mean": 3.78,
        "dmat_registers_mean": 5.09,
        "registers_mean": 4.11,
    }
    assert {name: round(result[name], 2) for name in means} == means
    assert round(result["lightweight_slowdown_mean"], 4) == 1.0402
    assert round(result["dmat_slowdown_mean"], 4) == 7.1189
    assert result["dmat_registers_mean_with_spilled"] == pytest.approx((5.093333333 * 9 + 28 + 516) / 11)


def test_every_cell_is_a_quantity():
    result = published("kernel_overhead", "table2")
    assert result["max_avgpool_mem_trace_slowdown"] == 7.2559
    assert result["flash_attnv2_mem_trace_slowdown"] == 2.9392
    assert result["batch_layernorm_block_sched_registers"] == 4.58
    assert sum(name.endswith(("_slowdown", "_registers")) for name in result.summary) == 2 * len(result.data)


def test_operators_need_no_group(folder):
    rows = "matmul,block_sched,1.02,3,false\nmatmul,mem_trace,6.1,5,false\n"
    result = reduce(folder, "kernel_overhead", "operator,probe,slowdown_ratio,extra_registers,spilled\n" + rows)
    assert (
        result.finding == "On average, 1 operator takes 1.02× as long with a lightweight probe, 6.10× as long with DMAT"
    )


def test_cells_that_would_share_a_name_are_refused(folder):
    header = "group,operator,probe,slowdown_ratio,extra_registers,spilled\n"
    message = refusal(folder, "kernel_overhead", header + "g,a-b,p,1,0,false\ng,a b,p,1,0,false\n")
    assert "key studies.kernel_overhead.mine: two rows would both be called 'a_b_p'" in message


def test_operators_of_two_groups_may_share_a_name(folder):
    """They are told apart in the summary, the table and the figure; all others keep their names."""
    rows = "Triton,gemm,mem_trace,5,3,false\nTriton,gemm,block_sched,1.5,2,false\n"
    rows += "CUTLASS,gemm,block_sched,1.1,-1,true\nCUTLASS,sum,block_sched,1.2,0,false\n"
    result = reduce(folder, "kernel_overhead", "group,operator,probe,slowdown_ratio,extra_registers,spilled\n" + rows)
    cells = {"gemm_triton_mem_trace": 5, "gemm_triton_block_sched": 1.5, "gemm_cutlass_block_sched": 1.1}
    cells |= {"sum_block_sched": 1.2}
    assert {name: result[f"{name}_slowdown"] for name in cells} == cells
    assert (result["operators"], result["gemm_cutlass_block_sched_registers"]) == (3, -1)
    assert result.finding.startswith("On average, 3 operators take 1.27× as long")
    frame, people = overhead_table(result.data)
    names = [["gemm", "Triton"], ["gemm", "CUTLASS"], ["sum", "CUTLASS"]]
    assert frame[["operator", "group"]].values.tolist() == people[["operator", "group"]].values.tolist() == names
    assert frame["block_sched_slowdown_ratio"].tolist() == [1.5, 1.1, 1.2]
    assert people["mem_trace"].fillna("").tolist() == ["5.0000× +3", "", ""]
    figure, time, _ = lay_out(result.data, parts(result.data)[1])
    draw_operators(time, result.data, "slowdown_ratio")
    assert [label.get_text() for label in time.get_yticklabels()] == ["sum", "gemm (CUTLASS)", "gemm (Triton)"]
    plt.close(figure)


def test_the_same_operator_twice_in_a_group_is_refused(folder):
    text = "group,operator,probe,slowdown_ratio,extra_registers,spilled\ng,a,p,1,0,false\n,a,p,1,0,false\n"
    assert reduce(folder, "kernel_overhead", text)["a_p_slowdown"] == 1
    message = refusal(folder, "kernel_overhead", text + "g,a,p,2,0,false\n")
    assert "line 4: a second row for g, a, p; keep one of them" in message


COMPARED = (
    "workload,probe,records_source,records_binary,value_source,value_binary,registers_source,registers_binary\n"
    "a,block_sched,8,8,200,1300.5,6,11\n"
    "a,gmem_bytes,64,32,512,256,-1,2\n"
    "b,tensorop_count,0,0,0,0,0,0\n"
)
COSTS = "operator,probe,slowdown_ratio,extra_registers,spilled\na,block_sched,1.5,3,false\n"


def compare(folder, text):
    """Reduce a case with a table of both kinds of probes."""
    (folder / "costs.csv").write_text(COSTS)
    (folder / "compared.csv").write_text(text, "utf-8")
    return reduced(own_case(folder, "kernel_overhead", {"table": "costs.csv", "compared": "compared.csv"}))


def test_binary_probes_beside_source_level_ones(folder):
    result = compare(folder, COMPARED)
    cells, compared = parts(result.data)
    assert cells[["operator", "slowdown_ratio", "spilled"]].values.tolist() == [["a", 1.5, False]]
    assert compared["records_ratio"].tolist() == [1, 0.5, 1]
    assert compared["value_ratio"].tolist() == [6.5025, 0.5, 1], "two zeros are the same"
    assert (result["compared"], result["compared_with_equal_records"]) == (3, 2)
    assert (result["compared_counts"], result["compared_counts_equal"]) == (2, 1)
    assert result["compared_cycles_ratio_min"] == result["compared_cycles_ratio_max"] == 6.5025
    assert result["compared_registers_binary_mean"] == pytest.approx(13 / 3)
    assert result.summary["a_gmem_bytes_value_binary"] == {"value": 256, "unit": "byte"}
    assert result.finding == (
        "On average, 1 operator takes 1.50× as long with a lightweight probe; binary probes save as many records as "
        "source-level ones in 2 of 3 pairs, count the same in 1 of 2, and see warps take 6.50 to 6.50 times as many "
        "cycles"
    )
    assert compared_table(compared).iloc[0].tolist() == [
        "a", "block_sched", 8, "200 cycles", "+6", 8, "1,300.5 cycles", "+11"
    ]  # fmt: skip


def test_without_such_a_table_the_data_are_the_cells(folder):
    data = reduce(folder, "kernel_overhead", COSTS).data
    cells, compared = parts(data)
    assert cells.equals(data) and compared.empty and "part" not in data


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "a,block_sched",
            "a,dmat",
            "line 2, column probe: 'dmat' is not one of block_sched, gmem_bytes, tensorop_count",
        ),
        ("8,8,200", "8.5,8,200", "line 2, column records_source: '8.5' is not"),
        ("8,8,200", "-8,8,200", "line 2, column records_source: '-8' is not within"),
        ("1300.5", "nan", "line 2, column value_binary: 'nan' is not a"),
        ("1300.5", "inf", "line 2, column value_binary: 'inf' is not a"),
        ("1300.5", "1e19", "line 2, column value_binary: '1e19' is not within"),
        ("1300.5", "", "line 2, column value_binary: '' is empty"),
        ("6,11", "6,1e300", "line 2, column registers_binary"),
        ("a,gmem_bytes", "a,block_sched", "line 3: a second row for a, block_sched"),
        ("b,tensorop_count", "A ,gmem_bytes", "two rows would both be called 'a_gmem_bytes'"),
        ("value_source", "value_cycles", "line 1"),
        (COMPARED.partition("\n")[2], "", "there is no row below the header"),
    ],
)
def test_refused_comparisons(folder, old, new, message):
    with refused() as caught:
        compare(folder, COMPARED.replace(old, new, 1))
    said = str(caught.value)
    assert message in said and "\n" not in said


@pytest.mark.parametrize("values", ["0,5", "5,0", "1e-300,1e18", "3,3"])
def test_both_kinds_are_drawn_whatever_their_values(folder, values):
    result = compare(folder, COMPARED.replace("200,1300.5", values))
    figure, panels = plt.subplots(1, 2)
    draw_compared(*panels, parts(result.data)[1])
    figure.canvas.draw()
    assert panels[0].get_yticklabels()[0].get_text() == "a block_sched"
    plt.close(figure)


def test_more_rows_than_a_panel_has_room_for(folder):
    head, *rows = COMPARED.splitlines()
    many = "\n".join([head, *(rows[0].replace("a,", f"a{number},", 1) for number in range(40))]) + "\n"
    figure, panels = plt.subplots(1, 2)
    draw_compared(*panels, parts(compare(folder, many).data)[1])
    assert len(panels[0].get_yticks()) == MOST_COMPARED
    plt.close(figure)


# What the notebook says of Neutrino's probes on an H200.


def warps(name):
    """Cycles, start and SM of each warp of a trace."""
    (path,) = ROOT.glob(f"traces/{name}/result/*.bin")
    records = neutrino.open_trace(path, levels=["warp"]).records(0, neutrino.BLOCK_SCHED)
    return (
        records["elapsed"].astype(np.int64).ravel(),
        records["start"].astype(np.int64).ravel(),
        records["cuid"].ravel(),
    )


def test_neutrinos_medians_and_those_after_a_flush_are_the_tables_and_the_pages():
    result = reduced(Repository.find(ROOT).dataset("nvidia-h200-neutrino").case("kernel_overhead", "neutrino"))
    page = (ROOT / "notebooks/kernel_overhead.ipynb").read_text("utf-8")
    flushed = {}
    for workload, operator in (("fill", "fill"), ("gemm", "gemm_1024"), ("attention", "attention_512")):
        cycles = warps(f"nvidia-h200-neutrino/neutrino/{workload}/block_sched")[0]
        assert np.median(cycles) == result[f"{workload}_block_sched_value_binary"]
        cycles = warps(f"nvidia-h200-neutrino/kernel_overhead_neutrino/{workload}/{operator}/block_sched")[0]
        flushed[workload] = np.median(cycles)
        flushed[f"{workload}_more"] = 100 * (np.median(cycles) / result[f"{workload}_block_sched_value_source"] - 1)
    assert f"{flushed['fill']:,.0f}" in page and flushed["fill"] == 1346
    assert [f"{flushed[f'{name}_more']:.1f}" for name in ("gemm", "attention")] == ["2.1", "1.9"]
    assert result["compared_with_equal_records"] == result["compared"] == 9
    assert result["compared_counts_equal"] == result["compared_counts"] == 6
    means = [result[f"compared_registers_{kind}_mean"] for kind in ("binary", "source")]
    assert [f"{mean:.1f}" for mean in means] == ["3.8", "1.8"]
    own = warps("nvidia-h200/block_scheduling/zeros_4096")[0]
    assert np.median(own[: 4 * 2048]) == 203


def test_first_fetches_of_instructions_do_not_explain_fills_cycles():
    cycles, start, sm = warps("nvidia-h200-neutrino/neutrino/fill/block_sched")
    later, others = [], []
    for one in np.unique(sm):
        begin, took = start[sm == one], cycles[sm == one]
        end = begin + took
        later += took[begin > end.min() + 100].tolist()
        others += [(((begin <= at) & (end > at)).sum() - 1, span) for at, span in zip(begin, took, strict=True)]
    assert (len(later), np.median(later)) == (632, 1366)
    others = np.array(others)
    few, many = (others[(low <= others[:, 0]) & (others[:, 0] <= high), 1] for low, high in ((0, 3), (32, 47)))
    assert (np.median(few), np.median(many)) == (888, 1477)


# Memory usage

MEMORY = "model,batch_size,use,memory,unit\nm,1,original,1,GB\nm,1,block_sched,4,KB\nm,1,mem_trace,2,GB\n"


def test_published_memory():
    result = published("memory_usage", "fig11")
    words = "At the median, lightweight probes need 0.16 % of the workload's memory (at most 17 %), DMAT needs 32 %"
    assert result.finding == f"{words} (at most 13×)"
    rows = result.data.set_index(["model", "batch_size", "use"])
    assert rows["memory_bytes"]["Llama3-1B", 32, "block_sched"] == 224 * 1024
    assert rows["memory_bytes"]["ResNet", 32, "mem_trace"] == round(7.08 * 2**30)
    assert (rows.xs("original", level="use")["ratio_to_original"] == 1).all()
    assert result["workloads"] == 8
    assert result["lightweight_ratio_max"] == pytest.approx(98 / 562)
    assert result["lightweight_ratio_max_of"] == "ResNet, batch size 32"
    assert result["lightweight_above_tenth"] == 1
    assert result["dmat_above_original"] == 1
    assert result["dmat_ratio_max"] == pytest.approx(7.08 * 1024 / 562)
    assert result["gmem_to_block_sched_median"] == 16
    assert result["llama3_share_falls_with_size"] == "yes"
    assert result["resnet_bs32_original_memory"] == 562 * 2**20


def test_units_are_binary_and_bytes_are_taken_as_they_are(folder):
    words = reduce(folder, "memory_usage", MEMORY)
    lines = ("m,1,original,1073741824", "m,1,block_sched,4096", "m,1,mem_trace,2147483648")
    numbers = reduce(folder, "memory_usage", "\n".join(["model,batch_size,use,memory_bytes", *lines]) + "\n")
    assert words.data.equals(numbers.data)
    assert words.summary == numbers.summary
    assert words["lightweight_ratio_max"] == pytest.approx(2**-18)
    assert words["dmat_above_original"] == 1


def test_a_share_that_grows_with_the_model_is_said(folder):
    rows = ["llm-1B,8,original,100", "llm-1B,8,p,1", "llm-3B,8,original,300", "llm-3B,8,p,9"]
    result = reduce(folder, "memory_usage", "\n".join(["model,batch_size,use,memory_bytes", *rows]) + "\n")
    assert result["llm_share_falls_with_size"] == "no"
    assert "dmat_ratio_max" not in result.summary


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4,KB", "4,kB", "line 3, column unit: 'kB' is not one of KB, MB, GB, KiB, MiB, GiB; correct it"),
        ("4,KB", "4,TB", "line 3, column unit: 'TB' is not one of KB, MB, GB"),
        ("4,KB", "4,", "line 3, column unit: '' is empty"),
        ("4,KB", "0,KB", "line 3, column memory: '0' is not within"),
        ("4,KB", "4 KB,KB", "line 3, column memory: '4 KB' is not a number"),
        ("m,1,original,1,GB\n", "", "line 2: no row 'original' for m, batch size 1; add the memory"),
        ("m,1,block_sched", "m,2,block_sched", "line 3: no row 'original' for m, batch size 2"),
        ("mem_trace", "block_sched", "line 4: a second row for m, 1, block_sched"),
        ("block_sched,4,KB\nm,1,mem_trace,2,GB", "", "line 3, column use: '' is empty"),
        ("m,1,block_sched,4,KB\nm,1,mem_trace,2,GB\n", "", "column use: there is no probe; add rows"),
        ("memory,unit", "memory_mb,unit", "line 1"),
        ("model,batch_size", "model,memory_bytes", "line 1: the column 'batch_size' is missing"),
    ],
)
def test_refused_memory(folder, old, new, message):
    assert old in MEMORY
    said = refusal(folder, "memory_usage", MEMORY.replace(old, new, 1))
    assert message in said
    assert "table0.csv" in said


def test_an_absent_table_is_refused_by_its_name(folder):
    header = "model,batch_size,use,memory,unit\n"
    assert "there is no row below the header" in refusal(folder, "memory_usage", header)
    reduce(folder, "memory_usage", MEMORY)
    (folder / "table0.csv").unlink()
    dataset = Dataset.load(folder / "dataset.yaml")
    with pytest.raises(InputError, match=r"table0\.csv does not exist; put it there"):
        memory_usage.reduce(dataset.case("memory_usage", "mine"))


def test_words_for_memory():
    assert size_text(round(15.27 * 2**30)) == "15.27 GiB"
    assert size_text(759 * 2**20) == "759 MiB"
    assert size_text(2**10) == "1 KiB"
    assert size_text(1023) == "1023 B"
    assert memory_tables.share_text(0.174377) == "17.4 %"
    assert memory_tables.share_text(12.9002) == "12.9×"
    assert memory_tables.share_text(3.2e-5) == "0.0032 %"


def test_probes_of_equal_memory_are_one_series():
    data = published("memory_usage", "fig11").data
    assert list(memory_tables.probe_series(data)) == ["block_sched", "gmem_bytes = tensorop_count", "mem_trace"]
    frame, people = memory_tables.memory_table(data)
    assert len(frame) == len(people) == 8
    assert people["mem_trace"][0] == "7.08 GiB (12.9×)"
    assert people["original"][0] == "562 MiB"


def test_tables_as_other_tools_write_them(folder):
    """pandas writes True, and 1024 ** 3 bytes are a GiB."""
    rows = "operator,probe,slowdown_ratio,extra_registers,spilled\na,dmat,2,3,False\nb,dmat,3,9,TRUE\n"
    assert reduce(folder, "kernel_overhead", rows)["dmat_spilled"] == 1
    binary = MEMORY.replace("KB", "KiB").replace("GB", "GiB")
    assert reduce(folder, "memory_usage", binary).data.equals(reduce(folder, "memory_usage", MEMORY).data)


def test_a_profile_before_the_kernel_has_ended_is_a_warning(folder):
    result = reduce(folder, "exposed_latency", "probe,original_us,ncu_us,neutrino_us\np,10,20,3\n")
    (words,) = result.warnings
    assert "line 2: a probe shows its profile after 30 % of the kernel's own time; it is kept" in words


def test_a_workload_may_lack_a_probe(folder):
    data = reduce(folder, "memory_usage", MEMORY + "n,1,original,1,GB\nn,1,block_sched,8,KB\n").data
    frame, people = memory_tables.memory_table(data)
    assert people["mem_trace"].isna().tolist() == [False, True]
    assert frame["mem_trace_bytes"].isna().tolist() == [False, True]
    assert list(memory_tables.probe_series(data)) == ["block_sched", "mem_trace"]


# Exposed latency

TIMES = (
    "probe,original_ms,ncu_ms,neutrino_ms,prologue_ms,kernel_ms,epilogue_ms\n"
    "block_sched,10,40,20,1,12,7\n"
    "gmem_bytes,10,50,25,2,13,10\n"
)


def test_published_latency():
    result = published("exposed_latency", "fig12")
    data = result.data.set_index(["workload", "probe"])
    conv = data.loc["conv"]
    assert (conv["parts"] == "given").all()
    others = result.data[result.data["workload"] != "conv"]
    assert (others["parts"] == "read off").all()
    assert others["epilogue_ratio"].isna().all()
    assert conv["kernel_ratio"].round(2).tolist() == [1.05, 1.20, 1.17]
    assert conv["epilogue_ratio"].round(2).tolist() == [0.30, 4.17, 4.06]
    assert result["prologue_max_percent"] == pytest.approx(1.6594, abs=1e-4)
    assert result["prologue_min_percent"] == pytest.approx(0.8547, abs=1e-4)
    assert result["attn_block_sched_ncu_ratio"] == 2.31
    assert result["speedup_min"] == pytest.approx(2.31 / 1.39)
    assert result["speedup_geometric_mean"] == pytest.approx(
        result["ncu_geometric_mean"] / result["probed_geometric_mean"]
    )


def test_stacked_parts_are_as_high_as_the_total():
    data = published("exposed_latency", "fig12").data
    stacked = data["kernel_ratio"] + data["other_ratio"]
    assert np.allclose(stacked, data["probed_ratio"], rtol=1e-12)


def test_read_off_values_are_marked_in_the_table():
    people = latency_table(published("exposed_latency", "fig12").data, "Neutrino")
    assert people.loc[people["workload"] == "attn", "kernel"].tolist() == ["≈1.27×", "≈1.28×", "≈1.41×"]
    assert people.loc[people["workload"] == "conv", "kernel"].tolist() == ["1.05×", "1.20×", "1.17×"]


@pytest.mark.parametrize("unit", ["_ns", "_us", "_s", ""])
def test_one_unit_is_as_good_as_another(folder, unit):
    expected = reduce(folder, "exposed_latency", TIMES)
    assert reduce(folder, "exposed_latency", TIMES.replace("_ms", unit)).data.equals(expected.data)
    assert expected.data["workload"].tolist() == ["table0", "table0"]
    assert expected.data["kernel_ratio"].tolist() == [1.2, 1.3]
    assert expected.data["prologue_ratio"].tolist() == [0.1, 0.2]
    assert expected["table0_speedup_geometric_mean"] == pytest.approx(2)


def test_probes_are_those_of_whom_the_case_says(folder):
    """The columns of Neutrino's artifact, and the same without its name."""
    theirs, mine = (reduce(folder, "exposed_latency", text) for text in (TIMES, TIMES.replace("neutrino", "probed")))
    assert theirs.data.equals(mine.data) and theirs["finding"] == mine["finding"]
    assert theirs["finding"].startswith("A user waits 2.0 times as long for Nsight Compute as for Neutrino (")
    inputs = {"table": "table0.csv", "probed_with": "gpuledger's probes"}
    own = reduced(own_case(folder, "exposed_latency", inputs, "mine"))
    assert "as for gpuledger's probes (" in own["finding"] and own["probed_with"] == "gpuledger's probes"
    assert "Neutrino" not in str(own.summary)
    assert list(latency_table(own.data, "gpuledger's probes"))[3] == "gpuledger's probes"


def test_ratios_of_more_than_two_decades_are_dots_on_a_logarithmic_axis(folder):
    for text, wide in ((TIMES, False), (TIMES.replace("10,40,20", "10,112142.4,20"), True)):
        result = reduce(folder, "exposed_latency", text)
        figure, axes = plt.subplots()
        draw_latencies(axes, result.data, "probes of mine")
        assert axes.get_xscale() == ("log" if wide else "linear") and bool(axes.patches) == (not wide)
        labels = axes.get_legend_handles_labels()[1]
        assert "Nsight Compute" in labels and sum(label.startswith("probes of mine: ") for label in labels) == 1 + wide
        written = {note.get_text() for note in axes.texts}
        assert {"2.00×", "2.50×", "11,214×" if wide else "4.00×"} <= written
        plt.close(figure)


def test_one_table_for_every_workload(folder):
    result = reduce(folder, "exposed_latency", TIMES, TIMES.replace("_ms", ""))
    assert result.data["workload"].tolist() == ["w0", "w0", "w1", "w1"]
    assert result["w1_gmem_bytes_probed_ratio"] == 2.5


def test_parts_may_be_unknown(folder):
    result = reduce(folder, "exposed_latency", "probe,original_us,ncu_us,neutrino_us\np,1,4,2\n")
    assert result.data["parts"].tolist() == ["unknown"]
    assert result.data[["kernel_ratio", "other_ratio"]].isna().all(axis=None)
    assert "prologue_max_percent" not in result.summary
    assert latency_table(result.data, "mine")["ncu"].tolist() == ["4.00×"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2,13,10", "2,13000,10", "line 3, column neutrino_ms: a part exceeds the total; correct the row"),
        ("ncu_ms", "ncu_s", "line 1: wrong unit: column 'ncu_s' where 'ncu_ms' is needed; convert the values to ms"),
        ("original_ms", "original_min", "line 1: unknown unit in the column 'original_min'; use one of ns, us, ms, s"),
        ("epilogue_ms", "epilog_ms", "line 1: the column 'epilogue_ms' is missing"),
        ("block_sched,10", "block_sched,0", "line 2, column original_ms: '0' is not within"),
        ("gmem_bytes,10", "block_sched,10", "line 3: a second row for block_sched"),
        ("40,20,1", "40,,1", "line 2, column neutrino_ms: '' is empty"),
        ("40,20,1", "-40,20,1", "line 2, column ncu_ms: '-40' is not within"),
    ],
)
def test_refused_times(folder, old, new, message):
    assert old in TIMES
    assert message in refusal(folder, "exposed_latency", TIMES.replace(old, new, 1))


def test_parts_that_miss_their_total_are_kept_with_a_warning(folder):
    result = reduce(folder, "exposed_latency", TIMES.replace("1,12,7", "1,12,8"))
    (warning,) = result.warnings
    assert warning == (
        "table0.csv, line 2, column neutrino_ms: prologue + kernel + epilogue are 105 % of their total; they are kept"
    )
    assert result.provenance["warnings"] == [warning]
    assert result.data[["kernel_ratio", "epilogue_ratio"]].loc[0].tolist() == [1.2, 0.8]
    assert result.data["probed_ratio"].tolist() == [2, 2.5]
    shares = "probe,ncu_ratio,neutrino_ratio,prologue_share,kernel_share,epilogue_share\np,4,2,0.1,0.5,0.3\n"
    result = reduce(folder, "exposed_latency", shares)
    assert "are 90 % of their total" in result.warnings[0]
    assert result.data["kernel_ratio"].tolist() == [1]


def test_columns_that_are_not_needed_are_ignored_with_a_warning(folder):
    plain = reduce(folder, "exposed_latency", TIMES)
    assert (plain.warnings, "warnings" in plain.provenance) == ([], False)
    lines = TIMES.splitlines()
    text = "\n".join([lines[0] + ",kernel_name,comment", *(f"{line},k,,"[:-1] for line in lines[1:])]) + "\n"
    result = reduce(folder, "exposed_latency", text)
    assert result.data.equals(plain.data)
    assert len(result.warnings) == 2
    assert result.warnings[1].startswith("table0.csv, line 1: unknown column 'comment'; it is ignored")


def test_warnings_are_kept_and_shown_on_figure_and_page(folder):
    result = reduce(folder, "exposed_latency", TIMES.replace("1,12,7", "1,12,8").replace("2,13,10", "2,13,13"))
    result.write(folder / "reduced")
    assert CaseResult.read(folder / "reduced").warnings == result.warnings
    caption = provenance.caption(result.provenance)
    assert "Warning: table0.csv, line 2" in caption and caption.endswith("(and 1 more)")
    notebook = ROOT / "notebooks/exposed_latency.ipynb"
    notebooks.execute(notebook, folder / "out.ipynb", {"results": str(folder / "reduced"), "save_to": str(folder)})
    pages.render(folder / "out.ipynb", folder / "page.html", ROOT / "workflow/templates", "T", result.provenance)
    assert (folder / "page.html").read_text("utf-8").count('<p class="warning">Warning: table0.csv, line') == 2
    assert "Warning: table0.csv" in (folder / "figure.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("p,4,2,,0.1,,0.3", "line 2, column prologue_share: only some of the parts are given; give all three"),
        ("p,4,2,2,,,", "line 2, column other_ratio: prologue and epilogue exceed the probe's ratio"),
        ("p,4,2,,10,50,40", "line 2, column prologue_share: '10' is not within 0 to 1"),
    ],
)
def test_refused_ratios(folder, row, message):
    header = "probe,ncu_ratio,neutrino_ratio,other_ratio,prologue_share,kernel_share,epilogue_share\n"
    assert message in refusal(folder, "exposed_latency", f"{header}{row}\n")


def test_a_case_names_a_table(folder):
    reduce(folder, "exposed_latency", TIMES)
    text = (folder / "dataset.yaml").read_text("utf-8").replace("table: table0.csv", "{}").replace("mine:\n", "mine: ")
    (folder / "dataset.yaml").write_text(text, "utf-8")
    dataset = Dataset.load(folder / "dataset.yaml")
    with pytest.raises(
        InputError, match=r"exposed_latency\.mine: all required keys are missing; give either table, or tables"
    ):
        exposed_latency.reduce(dataset.case("exposed_latency", "mine"))


PART = st.floats(1e-3, 1e3)


@given(parts=st.lists(st.tuples(PART, PART, PART), min_size=1, max_size=4), scale=st.sampled_from([1e-3, 1.0, 1e6]))
def test_ratios_do_not_depend_on_the_unit_of_time(tmp_path_factory, parts, scale):
    folder = tmp_path_factory.mktemp("mine")
    frames = []
    for factor in (1.0, scale):
        lines = ["probe,original,ncu,neutrino,prologue,kernel,epilogue"]
        for position, part in enumerate(parts):
            times = [factor * time for time in (1.0, 3.0, sum(part), *part)]
            lines.append(",".join([f"p{position}", *map(repr, times)]))
        frames.append(reduce(folder, "exposed_latency", "\n".join(lines) + "\n").data)
    numbers = [frame.select_dtypes("number").to_numpy() for frame in frames]
    assert np.allclose(*numbers, rtol=1e-9)
    assert np.allclose(frames[0]["kernel_ratio"] + frames[0]["other_ratio"], frames[0]["probed_ratio"], rtol=1e-9)


def test_labels_of_memory_that_are_near_stand_above_and_below(folder):
    near = "model,batch_size,use,memory,unit\nm,1,original,4,MiB\nm,1,a,16,MiB\nm,1,b,20,MiB\nm,1,c,4,KiB\n"
    data = reduce(folder, "memory_usage", near).data
    _, axes = plt.subplots(figsize=(7, 1.5))
    axes.set(xscale="log", xlim=(1e-4, 100))
    draw_workloads(axes, data)
    sides = {note.get_text(): note.get_va() for note in axes.texts}
    assert sides == {"16 MiB": "bottom", "20 MiB": "top", "4 KiB": "bottom"}
    plt.close("all")


@pytest.mark.parametrize(("most", "scale"), [(8, "linear"), (600, "symlog")])
def test_an_axis_of_registers_is_as_wide_as_they_need(folder, most, scale):
    rows = f"operator,probe,slowdown_ratio,extra_registers,spilled\na,p,1,2,false\na,dmat,2,{most},false\n"
    variables, _ = run_notebook("kernel_overhead", reduce(folder, "kernel_overhead", rows))
    axes = variables["registers"]
    assert axes.get_xscale() == scale and ("grey" in axes.get_xlabel()) == (scale == "symlog")
    assert "spilled" not in axes.get_xlabel()
    colours = [tuple(points.get_facecolor()[0]) for points in variables["time"].collections]
    assert len(set(colours)) == 2


def test_a_record_per_iteration_is_not_lightweight(folder):
    rows = "operator,probe,slowdown_ratio,extra_registers,spilled\na,block_sched,1.01,2,false\n"
    rows += "a,program_progress,1.5,2,false\na,dmat,6,3,false\n"
    result = reduce(folder, "kernel_overhead", rows)
    assert result["lightweight_slowdown_mean"] == 1.01 and result["iteration_slowdown_mean"] == 1.5
    assert "1.01× as long with a lightweight probe, 1.50× as long with a record per iteration" in result["finding"]
    variables, _ = run_notebook("kernel_overhead", result)
    labels = variables["time"].get_legend_handles_labels()[1]
    assert labels == ["lightweight: block_sched", "per iteration: program_progress", "dmat"]
    memory = (
        "model,batch_size,use,memory,unit\nm,1,original,4,MiB\nm,1,block_sched,4,KiB\nm,1,program_progress,16,MiB\n"
    )
    result = reduce(folder, "memory_usage", memory)
    assert result["lightweight_ratio_max"] < 0.01 and result["iteration_ratio_max"] == 4
    assert result["finding"].endswith(
        "lightweight probes need 0.098 % of the workload's memory, records per iteration need 4×"
    )


def test_what_the_notebooks_say_of_the_h200_is_what_was_recorded():
    recorded = Repository.find(ROOT).dataset("nvidia-h200")
    said = (ROOT / "notebooks/exposed_latency.ipynb").read_text("utf-8")
    case = recorded.case("exposed_latency", "probes")
    times = pd.read_csv(case.path("table")).set_index(["workload", "probe"])
    assert f"{times['ncu_ms'].min():.0f} to {times['ncu_ms'].max():.0f} ms for each" in said
    result = reduced(case)
    assert f"ratios of {result['ncu_min']:,.0f} to {result['ncu_max']:,.0f} say" in said
    assert f"short, {times['original_ms'].min():.2f} to {times['original_ms'].max():.2f} ms" in said
    ours = times.loc[["gemm", "attention"], "probed_ms"]
    assert f"take {ours.min():.2f} to {ours.max():.2f} ms" in said
    copied = times.loc["fill"].loc[["gmem_bytes", "tensorop_count"]]
    shares = 100 * copied["epilogue_ms"] / copied["probed_ms"]
    assert shares.between(98, 99).all() and "98 to 99 % of the" in said
    assert f"({times.loc[('fill', 'block_sched'), 'kernel_ms'] / times['original_ms'].min():.2f} for `fill`)" in said
    said = (ROOT / "notebooks/kernel_overhead.ipynb").read_text("utf-8")
    result = reduced(recorded.case("kernel_overhead", "table2"))
    costs = (100 * (result[f"lightweight_slowdown_{which}"] - 1) for which in ("min", "max"))
    assert "cost {:.1f} to {:.1f} %".format(*costs) in said
    for operator in ("attention_512", "gemm_2048"):
        assert f"{100 * (result[f'{operator}_program_progress_slowdown'] - 1):.0f} % of `{operator}`" in said
    dmat = [result[f"{operator}_dmat_slowdown"] for operator in ("attention_512", "gemm_2048", "fill")]
    assert "a factor of {:.1f} and {:.1f} there, and {:.2f} for".format(*dmat) in said
