"""The simulated GPU: it keeps its own rules, is the same every time, and hits the numbers that it was fitted to."""

import csv
import functools

import numpy as np
import pytest
import yaml
from conftest import ROOT, snakemake
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.ledger.datasets import Dataset
from gpuledger.models import simulate
from gpuledger.models.simulate.cases import CASES
from gpuledger.models.simulate.kernels import SimulatedKernel
from gpuledger.models.simulate.machine import Contention, MachineModel, run_blocks
from gpuledger.models.simulate.scheduling import block_sched_records, run_kernel
from gpuledger.readers import neutrino

DECLARED = yaml.safe_load((ROOT / "traces/simulated/dataset.yaml").read_text("utf-8"))["studies"]
PUBLISHED = ROOT / "traces/published/warp_scheduling"


def upstream(first):
    """Running and Scheduling as Neutrino's script prints them; `first` has (start, elapsed, sm) of each block."""
    sms = len({sm for _, _, sm in first})
    resident, running, scheduling = [[] for _ in range(sms)], [0.0] * sms, [0.0] * sms
    for start, elapsed, sm in first:
        running[sm] += elapsed
        if resident[sm]:
            before, took = resident[sm][0]
            if before + took <= start:
                scheduling[sm] += start - (before + took)
                resident[sm].pop(0)
        resident[sm].append((start, elapsed))
    return int(np.mean(running)), int(np.mean(scheduling))


@pytest.fixture(scope="module")
def launches():
    """Simulate a launch once."""
    return functools.cache(simulate.simulate_launch)


def test_upstream_estimator_of_these_tests_is_the_published_one():
    blocks = [(0, 1000, 0), (10, 100, 0), (130, 100, 0), (250, 100, 0), (1010, 50, 0)]
    blocks += [(0, 80, 1), (5, 200, 1), (90, 60, 1), (160, 60, 1), (230, 40, 1)]
    assert upstream(blocks) == (895, 22)


def test_fill_gives_the_printed_cycles(launches):
    launch = launches("block_scheduling", "zeros_4096")
    assert launch.records.shape == (32768, 4, 1)
    running, scheduling = upstream(launch.records[:, 0, 0].tolist())
    assert running == pytest.approx(602241, rel=0.01)
    assert scheduling == pytest.approx(87713, rel=0.01)
    assert np.unique(launch.records["cuid"]).tolist() == list(range(108))


def test_persistent_fill_schedules_nothing_and_takes_the_published_time(launches):
    launch = launches("block_scheduling", "zeros_4096_persistent")
    running, scheduling = upstream(launch.records[:, 0, 0].tolist())
    assert scheduling == 0
    assert launch.cycles / launch.machine.clock_hz == pytest.approx(24891e-9, rel=0.01)
    assert running <= launch.cycles


@pytest.mark.parametrize(
    ("case", "points"), [("fig13a", "fig14a"), ("fig13b", "fig14b"), ("fig17a", "fig17a"), ("fig17b", "fig17b")]
)
def test_warps_follow_the_published_distribution(launches, case, points):
    rows = csv.DictReader((PUBLISHED / f"{points}.csv").read_text("utf-8").splitlines())
    percent, cycles = np.array([(row["completed_percent"], row["elapsed_cycles"]) for row in rows], float).T
    elapsed = launches("warp_scheduling", case).records["elapsed"]
    assert np.percentile(elapsed, percent) == pytest.approx(cycles, rel=0.01)


def test_shared_blocks_speed_up_once_when_the_earlier_block_ends(launches):
    launch = launches("warp_scheduling", "fig13cd")
    clocks = launch.records["clock"]
    assert clocks.shape == (4096, 4, 128)
    used = clocks[:, 0, : launch.kernel.iterations].astype(np.int64)
    assert not clocks[:, :, launch.kernel.iterations :].any()
    cycles = np.diff(used, axis=1)
    assert (cycles > 0).all()
    ratio = cycles[:, :4].mean(axis=1) / cycles[:, -4:].mean(axis=1)
    # The first of each SM's first two blocks has been the oldest from its start; all others have waited.
    assert ratio[:108] == pytest.approx(np.ones(108), abs=0.1)
    assert np.median(ratio[108:]) == pytest.approx(1 / 0.765, rel=0.02)
    assert ratio[108:].min() > 1.1
    # Fig. 14B and 14C are one launch: their percentiles cannot disagree.
    assert launch.beside.records.tobytes() == launches("warp_scheduling", "fig13b").records.tobytes()
    blocks = launch.beside.records[:, 0, 0]
    assert (used[:, 0] > blocks["start"]).all()
    assert (used[:, -1] <= blocks["start"] + blocks["elapsed"]).all()


def test_the_same_every_time(launches):
    for case in (("block_scheduling", "zeros_4096"), ("warp_scheduling", "fig17b")):
        assert simulate.simulate_launch(*case).records.tobytes() == launches(*case).records.tobytes()
    assert simulate.simulate_launch("dmat", "fig10c").records.equals(launches("dmat", "fig10c").records)


@settings(max_examples=40)
@given(
    blocks=st.integers(1, 60),
    sms=st.integers(1, 5),
    slots=st.integers(1, 4),
    older=st.floats(0.3, 1.0),
    younger=st.floats(0.1, 1.0),
    gap=st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple),
    seed=st.integers(0, 99),
)
def test_slots_gaps_order_and_work(blocks, sms, slots, older, younger, gap, seed):
    rng = np.random.default_rng(seed)
    work = rng.uniform(50, 500, blocks)
    contention = Contention(older=older, younger=younger * older)
    timeline = run_blocks(MachineModel(sms=sms, gap_cycles=gap), work, slots, contention, rng)
    assert (timeline.sm[: sms * slots] == np.arange(min(blocks, sms * slots)) % sms).all()
    handed_over = []
    for sm in range(sms):
        start, end = np.sort(timeline.start[timeline.sm == sm]), np.sort(timeline.end[timeline.sm == sm])
        # Never more than the slots: block k + slots starts after block k of the sorted ends.
        gaps = start[slots:] - end[: max(0, len(start) - slots)]
        assert (gaps >= 0).all()
        assert gaps.sum() <= gap[1] * len(gaps)
        assert gaps.sum() >= gap[0] * len(gaps)
        handed_over.append(len(gaps))
    assert sum(handed_over) == max(0, blocks - sms * slots)
    # Later blocks are given a slot later: starts are in order but for the gap.
    later = timeline.start[sms * slots :]
    assert (np.diff(later) >= -(gap[1] - gap[0])).all()
    took = timeline.end - timeline.start
    assert (took >= np.floor(work)).all()
    assert (took <= np.ceil(work / min(contention.younger, contention.older)) + slots).all()
    done = timeline.since_start(np.stack([np.zeros(blocks), work], axis=1))
    assert not done[:, 0].any()
    # Times are rounded up to whole cycles.
    assert (done[:, 1] <= took).all()
    assert (done[:, 1] > took - 2).all()


def test_alone_a_block_takes_its_work():
    rng = np.random.default_rng(0)
    work = rng.uniform(1, 100, 50)
    timeline = run_blocks(MachineModel(sms=3), work, 4, Contention(), rng)
    assert np.array_equal(timeline.end - timeline.start, np.ceil(work))


def test_a_block_spans_its_warps():
    kernel = SimulatedKernel("k", (20, 1, 1), (96, 1, 1), slots=2, iterations=3, compute_cycles=200.0, wait_cycles=10.0)
    machine, rng = MachineModel(sms=2), np.random.default_rng(1)
    run = run_kernel(machine, kernel, rng)
    timeline = run.timeline
    records = block_sched_records(run, rng)[:, :, 0]
    starts, ends = records["start"].min(axis=1), (records["start"] + records["elapsed"]).max(axis=1)
    assert np.array_equal(ends - starts, timeline.end - timeline.start)
    origins = starts - timeline.start.astype(np.uint64)
    assert all(len(np.unique(origins[timeline.sm == sm])) == 1 for sm in range(2))
    assert run.done.shape == (20, 5)


def test_every_declared_case_is_simulated_into_a_trace_directory(tmp_path):
    folder = tmp_path / "simulated"
    folder.mkdir()
    text = (ROOT / "traces/simulated/dataset.yaml").read_text("utf-8")
    (folder / "dataset.yaml").write_text(text.replace("  dmat:\n", "  dmat:\n    own: {trace: own.bin}\n"))
    dataset = Dataset.load(folder / "dataset.yaml")
    assert dataset.label == "simulated, not measured"
    written = simulate.simulate_dataset(dataset)
    declared = {path for study, case in dataset.cases() for path in dataset.case(study, case).paths()}
    # A case that the model does not have is left alone; a model and a GPU are names, not files.
    names = {folder / name for name in ("Llama-3.1-8B", "h100-sxm")}
    assert declared - set(written) - names == {folder / "own.bin"}
    assert set(dataset.content["files"]) <= {path.relative_to(folder).as_posix() for path in written}
    assert set(written.values()) == {"simulated by gpuledger, not measured"}
    assert max(path.stat().st_size for path in written) < 40e6
    for trace in (path for path in written if path.suffix == ".bin"):
        directory = neutrino.open_trace_directory(trace.parent.parent)
        launch = directory.event_log.launches.iloc[directory.event_log.launch_of(trace)]
        found = directory.open(trace)
        assert (found.version, found.grid, found.block) == ("V3", launch["grid"], launch["block"])
        assert launch["file_bytes"] == trace.stat().st_size
        assert directory.event_log.command.startswith("simulated")


def test_cases_and_declarations_agree():
    without_launches = ("normalization_roofline", "kernel_breakdown")
    launches = {study: cases for study, cases in DECLARED.items() if study not in without_launches}
    assert {(study, case) for study, cases in launches.items() for case in cases} == set(CASES)
    assert simulate.ASSUMPTIONS.startswith("**These traces are simulated, not measured.**")


def test_the_workflow_simulates_what_is_missing_and_no_more(checkout):
    folder = checkout / "traces/simulated"
    assert [path.name for path in folder.iterdir()] == ["dataset.yaml"]
    content = yaml.safe_load((folder / "dataset.yaml").read_text("utf-8"))
    content["studies"] = {"block_scheduling": content["studies"]["block_scheduling"]}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content))
    target = "results/simulated/block_scheduling/zeros_4096_persistent/summary.json"
    done = snakemake(checkout, target)
    assert done.returncode == 0, done.stderr[-3000:]
    record = (checkout / "results/simulated/files.json").read_bytes()
    assert b"simulated by gpuledger, not measured" in record
    label = '"label": "simulated, not measured"'
    assert label in (checkout / target).with_name("provenance.json").read_text("utf-8")
    done = snakemake(checkout, "-n", target)
    assert "Nothing to be done" in done.stdout + done.stderr
    # A trace that is gone is made again when something is to be made of it, the same as before.
    (folder / "block_scheduling/zeros_4096/result/0.500000.bin").unlink()
    done = snakemake(checkout, "--forcerun", "reduce_case", "--", target)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (checkout / "results/simulated/files.json").read_bytes() == record
    assert (folder / "block_scheduling/zeros_4096/result/0.500000.bin").is_file()
    # So is a log, although no job has it as its output.
    (folder / "block_scheduling/zeros_4096/event.log").unlink()
    done = snakemake(checkout, "results/simulated/files.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (checkout / "results/simulated/files.json").read_bytes() == record
    assert (folder / "block_scheduling/zeros_4096/event.log").is_file()
    assert "Nothing to be done" in (done := snakemake(checkout, "-n", target)).stdout + done.stderr
