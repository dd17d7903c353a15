"""Block scheduling: known answers, the upstream estimator step by step, traces with holes, and every refusal."""

import json
import struct

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Repository
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.block_trace import BlockTrace, read_blocks
from gpuledger.readers.neutrino.records import BLOCK_SCHED
from gpuledger.studies import block_scheduling
from gpuledger.studies.block_scheduling import upstream_estimate
from gpuledger.studies.block_scheduling.pairing import timelines
from gpuledger.studies.block_scheduling.tables import estimates_table, saving, savings_table
from notebooks import run_notebook

#: Start, elapsed cycles, SM of ten blocks; the upstream script prints 895 and 22.
VECTOR_A = [
    (0, 1000, 0),
    (10, 100, 0),
    (130, 100, 0),
    (250, 100, 0),
    (1010, 50, 0),
    (0, 80, 1),
    (5, 200, 1),
    (90, 60, 1),
    (160, 60, 1),
    (230, 40, 1),
]


def array(records, warps=1):
    return np.repeat(np.array(records, BLOCK_SCHED)[:, None], warps, axis=1)


def write(path, records, threads=None, version="V1"):
    """Write records of shape (blocks, warps) as a trace."""
    block = (threads or 32 * records.shape[1], 1, 1)
    sections = [("warp", records[:, :, None])]
    neutrino.write_trace(path, version=version, grid=(len(records), 1, 1), block=block, sections=sections)
    return path


def reduce(folder, records, threads=None, kind="recorded", **inputs):
    case = own_case(folder, "block_scheduling", {"trace": "blocks.bin", **inputs}, kind=kind)
    write(folder / "blocks.bin", records, threads)
    return reduced(case)


def literal_upstream(records):
    """The probe's script as it is described: a list a SM, of which only the first entry is looked at."""
    numbers = sorted({sm for _, _, sm in records})
    sched, work, lists = dict.fromkeys(numbers, 0), dict.fromkeys(numbers, 0), {sm: [] for sm in numbers}
    for start, elapsed, sm in records:
        mine = lists[sm]
        if mine and mine[0][0] + mine[0][1] <= start:
            sched[sm] += start - (mine[0][0] + mine[0][1])
            mine.pop(0)
        mine.append((start, elapsed))
        work[sm] += elapsed
    mean = [int(np.mean([float(found[sm]) for sm in numbers])) for found in (work, sched)]
    return len(records), *mean


def test_upstream_estimator_prints_what_the_script_prints():
    estimate = upstream_estimate(array(VECTOR_A)[:, 0])
    assert estimate.line == "No.block:10 Running:895 Scheduling:22(cycle)"
    assert tuple(estimate)[:3] == literal_upstream(VECTOR_A)
    assert estimate.longest_list == 4


BLOCK = st.tuples(st.integers(0, 500), st.integers(0, 300), st.sampled_from([0, 1, 7, 40_000]))


@given(st.lists(BLOCK, min_size=1, max_size=60))
def test_upstream_estimator_is_the_literal_one(records):
    for order in (records, sorted(records)):
        assert tuple(upstream_estimate(array(order)[:, 0]))[:3] == literal_upstream(order)


def test_vector_a_paired(tmp_path):
    result = reduce(tmp_path / "mine", array(VECTOR_A, 4))
    assert (result["blocks"], result["sms"], result["resident_blocks_max"]) == (10, 2, 2)
    assert result["running_cycles_per_sm"] == 895
    # SM 0: starts 0 10 130 250 1010 and ends 110 230 350 1000 1060. SM 1: 0 5 90 160 230 and 80 150 205 220 270.
    assert result["scheduling_cycles_per_sm"] == np.mean([20 + 20 + 660, 10 + 10 + 25])
    assert (result["neutrino_running_cycles"], result["neutrino_scheduling_cycles"]) == (895, 22)
    assert result["neutrino_line"] == "No.block:10 Running:895 Scheduling:22(cycle)"
    assert all(isinstance(result[f"neutrino_{what}_cycles"], int) for what in ("running", "scheduling"))


def test_launches_longer_than_an_elapsed_time_can_say_are_warned_of(tmp_path):
    """Blocks of 2**32 + 1000 cycles look as if they took 1000, and the SM as if it was idle in between."""
    wrapped = 2**32 + 1000
    long = array([(0, wrapped % 2**32, 0), (wrapped + 50, wrapped % 2**32, 0)], 2)
    (warning,) = reduce(tmp_path / "long", long).provenance["warnings"]
    assert "an SM ran blocks for 4,294,969,346 cycles, but an elapsed time has 32 bits" in warning
    # The clock itself may be as large as it likes.
    late = array([(10 * wrapped, 1000, 0), (10 * wrapped + 1050, 1000, 0)], 2)
    assert "warnings" not in reduce(tmp_path / "late", late).provenance


@pytest.mark.parametrize("spread", [0, 2, 10, 30])
def test_pairing_returns_the_truth_at_any_spread_and_upstream_at_none(spread):
    found = block_scheduling.spread_experiment([spread], seed=5).iloc[0]
    assert found["paired_cycles"] == found["true_cycles"]
    if spread == 0:
        assert found["upstream_cycles"] == int(found["true_cycles"])
        assert found["upstream_longest_list"] == 16
    elif spread >= 10:
        assert found["upstream_cycles"] > 3 * found["true_cycles"]
        assert found["upstream_longest_list"] > 20


def test_claimed_experiment_is_what_comes_out():
    found = block_scheduling.spread_experiment()
    assert found["upstream_cycles"].tolist() == [83367, 83364, 112080, 279674, 497974]
    assert round(found["true_cycles"][0]) == 83368
    claims = (ROOT / "resources/claims/block_scheduling.yaml").read_text("utf-8")
    assert all(f"{value:,}" in claims for value in (83368, 83367, 83364, 279674, 497974))
    # As long as the paper's blocks, 680,869 cycles for 303.4 blocks of an SM: its Scheduling lies between.
    slower = block_scheduling.spread_experiment([5, 6], run_cycles=2244)["upstream_cycles"]
    assert slower.tolist() == [136143, 182425]
    assert all(f"{value:,}" in (ROOT / "notebooks/block_scheduling.ipynb").read_text("utf-8") for value in slower)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 90)), min_size=1, max_size=40))
def test_slots_are_accounted_for_to_the_cycle(tmp_path_factory, blocks):
    folder = tmp_path_factory.mktemp("blocks") / "mine"
    result = reduce(folder, array([(start + 1, elapsed, 3) for start, elapsed in blocks]))
    sms, gaps, shown = block_scheduling.parts(result.data)
    row = sms.iloc[0]
    parts = ("running_cycles", "scheduling_cycles", "ramp_cycles", "drain_cycles")
    assert sum(row[part] for part in parts) == row["resident_blocks"] * row["span_cycles"]
    times = {time for start, elapsed in blocks for time in (start, start + elapsed)}
    most = max(sum(start <= time < start + elapsed for start, elapsed in blocks) for time in times)
    assert row["resident_blocks"] == max(1, most)
    (line,) = timelines(read_blocks(folder / "blocks.bin"))
    assert (line.gaps >= 0).all()
    if len(line.gaps):
        assert gaps["gaps"].sum() == len(line.gaps) == result["gaps"]
        assert gaps["high_cycles"].iloc[-1] >= line.gaps.max()
        assert gaps["low_cycles"].iloc[0] == line.gaps.min()
    # No two shown blocks of a slot at once, but for blocks that took no time.
    for _, own in shown[shown["start_cycles"] < shown["end_cycles"]].groupby("slot"):
        own = own.sort_values("start_cycles")
        assert (own["start_cycles"].to_numpy()[1:] >= own["end_cycles"].to_numpy()[:-1]).all()


def test_a_block_runs_from_its_first_warp_to_its_last(tmp_path):
    records = array([(100, 50, 0), (200, 50, 0)], 3)
    records["start"][0] = [110, 100, 105]
    records["elapsed"][0] = [50, 10, 70]
    blocks = read_blocks(write(tmp_path / "a.bin", records))
    assert (blocks.start[0], blocks.end[0]) == (100, 175)
    assert blocks.elapsed.shape == (2, 0)
    assert BlockTrace.open(tmp_path / "a.bin").read(0, 2, True).elapsed[0].tolist() == [50, 10, 70]


def test_sm_numbers_may_have_holes_and_blocks_may_be_missing(tmp_path):
    dense = [(start, elapsed, sm) for start, elapsed, sm in VECTOR_A]
    sparse = [(start, elapsed, 5 if sm else 131) for start, elapsed, sm in VECTOR_A]
    first, second = (reduce(tmp_path / name, array(records)) for name, records in (("a", dense), ("b", sparse)))
    same = [name for name in first.summary if name != "finding"]
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    holes = array([*sparse[:4], (0, 0, 0), *sparse[4:]], 2)
    holes[2, 1] = (0, 0, 0)
    third = reduce(tmp_path / "c", holes)
    assert (third["blocks"], third["blocks_without_record"], third["sms"]) == (11, 1, 2)
    assert third["scheduling_cycles_per_sm"] == first["scheduling_cycles_per_sm"]
    ones = holes.copy()
    ones["start"][4] = 2**64 - 1
    assert reduce(tmp_path / "d", ones)["blocks_without_record"] == 1


def test_all_versions_and_chunks_are_the_same(tmp_path, monkeypatch):
    records = array(VECTOR_A, 2)
    found = [
        read_blocks(write(tmp_path / f"{version}.bin", records, version=version)) for version in ("V1", "V2", "V3")
    ]
    monkeypatch.setattr("gpuledger.readers.neutrino.block_trace.CHUNK_BYTES", 100)
    found.append(read_blocks(tmp_path / "V1.bin"))
    for blocks in found:
        assert blocks.sm.tolist() == [sm for *_, sm in VECTOR_A]
        assert blocks.end.tolist() == [start + elapsed for start, elapsed, _ in VECTOR_A]
        assert blocks.first.tolist() == VECTOR_A


def test_partial_warps_leave_the_first_record_out(tmp_path):
    records = array([(100, 50, 0), (200, 50, 1), (300, 50, 0)], 2)
    # The last, partial warp of a block writes where the next block's first warp does.
    records[1, 0] = records[0, 1]
    result = reduce(tmp_path / "mine", records, threads=80)
    assert (result["blocks"], result["sms"]) == (3, 2)
    assert "left out" in result["partial_warps"]


def test_summary_of_a_launch_with_clock_and_times(tmp_path):
    times = {"original": 34493, "memset": 24630, "persistent": 24891}
    result = reduce(tmp_path / "mine", array(VECTOR_A), kernel="k", clock_mhz=1000, times_ns=times)
    assert result["kernel_time"] == result["kernel_cycles"] == 1060
    assert result["persistent_saving_percent"] == pytest.approx(27.8375, abs=1e-3)
    assert result["memset_saving_percent"] == pytest.approx(28.5942, abs=1e-3)
    assert result["slot_to_kernel_percent"] <= 100
    assert result.finding.startswith("k: slots wait for their next block for 29.4 % of the time")
    frame, headers, formats = estimates_table(result)
    assert set(headers) | set(formats) <= set(frame)
    _, shown = run_notebook("block_scheduling", result)
    assert any("the SM that took longest took 1,060" in text for text in shown)
    # Predicted from the gaps and measured, beside each other.
    share = result["gap_free_saving_percent"]
    assert result["gap_free_time"] == pytest.approx(34493 * (1 - share / 100))
    assert any(f"predict that a kernel without them takes {share:.1f} % less" in text for text in shown)
    assert any("Measured, the persistent kernel takes 27.8 % less." in text for text in shown)
    frame, headers, formats = savings_table(result)
    assert frame["kernel"].tolist() == ["the kernel", "without its gaps", "memset", "persistent"]
    assert frame["time_ns"].tolist() == [34493, result["gap_free_time"], 24630, 24891] and set(headers) == set(frame)


def test_launching_is_nothing_that_a_kernel_without_gaps_saves(tmp_path):
    times = {"original": 10_000, "persistent": 8000, "empty": 4000}
    result = reduce(tmp_path / "mine", array(VECTOR_A), kernel="k", times_ns=times)
    assert result["gap_free_time"] == pytest.approx(10_000 - 60 * result["gap_free_saving_percent"])
    assert "empty_saving_percent" not in result.summary and "empty" not in savings_table(result)[0]["kernel"].tolist()
    assert savings_table(reduce(tmp_path / "untimed", array(VECTOR_A)))[0].empty


def test_a_launch_without_a_gap_draws(tmp_path):
    result = reduce(tmp_path / "mine", array([(5, 10, sm) for sm in range(4)]), kind="simulated")
    assert (result["gaps"], result["scheduling_cycles_per_sm"], result["lost_percent"]) == (0, 0, 0)
    assert "neutrino_scheduling_over_paired_ratio" not in result.summary
    _, shown = run_notebook("block_scheduling", result)
    assert any("simulated, not measured" in text for text in shown)


def test_equal_gaps_have_one_tick(tmp_path):
    """They had four, of which three said the same."""
    result = reduce(tmp_path / "mine", array([(300 * i, 100, 0) for i in range(10)]))
    gaps = run_notebook("block_scheduling", result)[0]["axes"]["B"]
    assert all(tick == round(tick) for tick in gaps.get_xticks())


def test_the_note_beside_the_median_covers_no_bar(tmp_path):
    """Gaps that are all about as frequent, with a long one: the note has three lines, which bars went through."""
    chance, start, blocks = np.random.default_rng(5), 0, []
    for gap in [*chance.integers(300, 700, 2000), 3000]:
        blocks.append((start, 100, 0))
        start += 100 + int(gap)
    result = reduce(tmp_path / "mine", array([*blocks, (start, 100, 0)]))
    axes = run_notebook("block_scheduling", result, tmp_path)[0]["axes"]["B"]
    axes.figure.draw_without_rendering()
    note = axes.texts[0].get_window_extent()
    bars = [bar.get_window_extent() for bar in axes.patches]
    assert "longer" in axes.texts[0].get_text() and len(bars) > 5
    assert not any(bar.x0 < note.x1 and bar.x1 > note.x0 and bar.y1 > note.y0 for bar in bars)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 200), st.integers(1, 4), st.integers(0, 400))
def test_any_launch_is_written_read_and_drawn(tmp_path_factory, blocks, sms, spread):
    folder = tmp_path_factory.mktemp("blocks") / "mine"
    random = np.random.default_rng(blocks)
    records = [
        (int(random.integers(0, 50 * blocks)), 100 + spread * int(random.integers(0, 9)), i % sms)
        for i in range(blocks)
    ]
    result = reduce(folder, array(records))
    result.write(folder)
    again = CaseResult.read(folder)
    assert again.summary == result.summary
    run_notebook("block_scheduling", again)


def refused(path, *words):
    with pytest.raises(InputError) as caught:
        read_blocks(path)
    message = str(caught.value)
    assert all(word in message for word in (path.name, *words)), message


def test_refused_traces(tmp_path):
    bad = tmp_path / "bad.bin"
    refused(bad, "does not exist")
    records = array(VECTOR_A, 2)
    records["cuid"][3, 1] = 9
    refused(write(bad, records), "section 0, block 3", "its warps ran on SMs 0 and 9")
    records["cuid"][3] = 2**31
    refused(write(bad, records), "block 3", "SM number 2147483648, which no device has")
    records = array(VECTOR_A, 2)
    records["start"][5, 0] = 2**63 + 1
    refused(write(bad, records), "block 5", "a clock of 9223372036854775809 cycles")
    refused(write(bad, array([(0, 0, 0)] * 3)), "no warp saved a record")
    shared = np.zeros((1, 1, 1), BLOCK_SCHED)
    neutrino.write_trace(bad, version="V1", grid=(4, 1, 1), block=(16, 1, 1), sections=[("warp", shared)])
    refused(bad, "all blocks of 16 threads wrote to one record")
    counts = np.ones((2, 32, 1), neutrino.TENSOROP_COUNT)
    neutrino.write_trace(bad, version="V3", grid=(2, 1, 1), block=(32, 1, 1), sections=[("thread", counts)])
    refused(bad, "no section has starts and ends of warps: 8 bytes per thread", "block_sched")
    whole = write(tmp_path / "whole.bin", array(VECTOR_A)).read_bytes()
    bad.write_bytes(whole[:-5])
    refused(bad, "")
    bad.write_bytes(struct.pack("<8I", 2**31, 2**31, 1, 32, 1, 1, 0, 1) + whole[32:])
    refused(bad, "")


def test_the_figure_says_how_much_of_the_launch_it_shows(tmp_path):
    """Its title promised every slot and every gap of a timeline that is cut after nine blocks."""
    records = array([(100 * i, 90, 0) for i in range(40)])
    title = run_notebook("block_scheduling", reduce(tmp_path / "long", records))[0]["axes"]["A"].get_title("left")
    # 40 blocks, of which those that start within nine periods are shown.
    assert title == "One SM, the first 800 of 3,990 cycles"
    title = run_notebook("block_scheduling", reduce(tmp_path / "short", records[:3]))[0]["axes"]["A"].get_title("left")
    assert title == "One SM"


def test_cycles_in_the_headline_fit_into_the_kernel(tmp_path):
    """The cycles of 16 slots were summed: 86,096 cycles "an SM" in a kernel of 45,035."""
    records = array([(1000 * i + 10 * slot, 700, 0) for i in range(20) for slot in range(16)])
    result = reduce(tmp_path / "mine", records)
    assert result["scheduling_cycles_per_sm"] == 16 * 19 * 300 > result["kernel_cycles"]
    assert result["scheduling_cycles_per_slot"] == 19 * 300 < result["slot_cycles"] <= result["kernel_cycles"]
    assert result.finding.endswith("of the time (5,700 of 19,700 cycles per slot)")
    assert result["lost_percent"] == pytest.approx(100 * 5700 / 19700)
    _, headers, _ = estimates_table(result)
    assert "slot-cycles" in headers["scheduling_cycles"] and "slot-cycles" in headers["running_cycles"]


def test_evaluators_are_told_which_share_the_page_shows():
    """The paper's "about 20 %" pointed to a page headed 12.5 %."""
    (row,) = (line for line in (ROOT / "docs/ARTIFACT.md").read_text("utf-8").splitlines() if "`sec45`" in line)
    summary = json.loads((ROOT / "results/simulated/block_scheduling/zeros_4096/summary.json").read_text("utf-8"))
    for quantity in ("lost_percent", "neutrino_lost_percent"):
        assert f"{summary[quantity]['value']:.1f} %" in row
    assert f"{summary['lost_percent']['value']:.1f} %" in summary["finding"]["value"]


def test_unknown_variant_of_times(tmp_path):
    with pytest.raises(InputError, match=r"the key 'original' is missing"):
        reduce(tmp_path / "mine", array(VECTOR_A), times_ns={"memset": 1})


def test_the_difference_of_the_estimators_is_explained(tmp_path):
    # Alike blocks that end in order: all of the difference comes from first warps, which end 6 cycles early.
    records = array([(1000 * i + 10 * sm, 900, sm) for i in range(50) for sm in range(3)], 2)
    records["elapsed"][:, 0] -= 6
    result = reduce(tmp_path / "mine", records)
    assert (result["scheduling_cycles_per_sm"], result["neutrino_scheduling_cycles"]) == (49 * 100, 49 * 106)
    assert result["neutrino_excess_by_first_warps"] == 49 * 6
    assert result["neutrino_excess_by_oldest_only"] == 0
    _, shown = run_notebook("block_scheduling", result)
    assert any("about +294 come from taking first warps for blocks and +0 from" in text for text in shown)
    alone = reduce(tmp_path / "alone", array(VECTOR_A))
    assert alone["neutrino_excess_by_first_warps"] == 0
    assert alone["neutrino_excess_by_oldest_only"] == pytest.approx(22 - 372.5)


def test_what_the_notebook_says_of_the_h200_is_what_was_recorded():
    case = Repository.find(ROOT).dataset("nvidia-h200").case("block_scheduling", "zeros_4096")
    said = (ROOT / "notebooks/block_scheduling.ipynb").read_text("utf-8")
    took = case.inputs["times_ns"]
    words = (
        "takes {original:.1f} µs for the same tensor, a memset {memset:.1f} and a persistent kernel {persistent:.1f}"
    )
    assert words.format(**{name: time_ns / 1e3 for name, time_ns in took.items()}) in said
    sentence = saving(reduced(case))
    for percent in ("79.2 %", "54.8 %"):
        assert percent in sentence and percent in said
    for name in ("memset", "persistent"):
        assert f"{2**25 / took[name] / 1e3:.1f}" == "3.2" and "32 MiB at 3.2 TB/s" in said
