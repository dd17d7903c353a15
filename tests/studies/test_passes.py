"""Large traces: reduced in parts, however they are divided, they give what they give in one piece, to the last bit."""

import numpy as np
import pandas as pd
import pytest
from conftest import snakemake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.ledger import passes
from gpuledger.ledger.case_result import reduce_case, reduce_part
from gpuledger.ledger.passes import DividedPasses, PartOfPass, add_counts, at_ranks, by_pass, count_values
from gpuledger.ledger.study import read_studies
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.records import BLOCK_SCHED
from gpuledger.studies import block_scheduling, dmat, warp_scheduling
from gpuledger.studies.block_scheduling import pairing
from gpuledger.studies.dmat import scan
from gpuledger.studies.warp_scheduling import warps

REDUCTIONS = {module.__name__.rpartition(".")[2]: module.reduce for module in (block_scheduling, dmat, warp_scheduling)}
MANY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEEDS, PARTS = st.integers(0, 2**32 - 1), st.integers(1, 7)


def blocks(seed):
    """Records of blocks on few SMs, of which some, or some of whose warps, saved nothing."""
    random = np.random.default_rng(seed)
    number, units = int(random.integers(1, 60)), int(random.integers(1, 4))
    records = np.zeros((number, units), BLOCK_SCHED)
    records["cuid"] = random.choice([0, 1, 5, 400], number)[:, None]
    records["start"] = 1 + np.sort(random.integers(0, 2 ** int(random.integers(5, 40)), number))[:, None]
    records["start"] += random.integers(0, 20, records.shape, dtype=np.uint64)
    records["elapsed"] = random.integers(0, 2 ** int(random.integers(3, 31)), records.shape)
    records[random.random(number) < 0.1] = np.zeros((), BLOCK_SCHED)
    records[random.random(records.shape) < 0.1] = np.zeros((), BLOCK_SCHED)
    return records


def accesses(seed):
    random = np.random.default_rng(seed)
    records = np.zeros((1, 4, int(random.integers(1, 60))), neutrino.DMAT_ACCESS)
    records["clock"] = random.integers(0, 2 ** int(random.integers(3, 40)), records.shape)
    pages = random.integers(0, int(random.integers(1, 300)), records.shape)
    records["addr"] = (0x7F0000000000 + 65536 * pages + random.integers(0, 65536, records.shape)).astype(np.uint64)
    records[random.random(records.shape) < 0.1] = np.zeros((), neutrino.DMAT_ACCESS)
    return records


def make_case(folder, study, records, **inputs):
    if study == "dmat":
        threads, sections = records.shape[1], [("thread", records)]
    else:
        threads, sections = 32 * records.shape[1], [("warp", records[:, :, None])]
    trace = {"grid": (len(records), 1, 1), "block": (threads, 1, 1), "sections": sections}
    neutrino.write_trace(folder / "t.bin", version="V3", **trace)
    return own_case(folder, study, {"trace": "t.bin"} | inputs)


def in_parts(case, folder, number):
    """Reduce a case in parts that are put together in another order than they were made in."""
    reduce, found = REDUCTIONS[case.study], {}
    for step in read_studies()[case.study].scatter["passes"]:
        files = [folder / f"{step}-{part}-of-{number}.bin" for part in range(number)]
        for part, file in enumerate(files):
            reduce_part(case, reduce, {}, found, PartOfPass(step, part, number, file))
        found = by_pass([*(file for earlier in found.values() for file in earlier), *reversed(files)])
    return reduce_case(case, reduce, passes=DividedPasses(found))


def check(case, folder, number):
    try:
        whole = reduced(case)
    except InputError as error:
        with pytest.raises(InputError) as refused:
            in_parts(case, folder, number)
        assert str(refused.value) == str(error)
        return
    apart = in_parts(case, folder, number)
    pd.testing.assert_frame_equal(apart.data, whole.data, check_exact=True)
    assert apart.summary == whole.summary
    assert apart.provenance == whole.provenance


@MANY
@given(SEEDS, PARTS)
@pytest.mark.parametrize("study", ["block_scheduling", "warp_scheduling"])
def test_blocks_in_parts(tmp_path, monkeypatch, study, seed, parts):
    monkeypatch.setattr(pairing, "RUN_BLOCKS", 8)
    monkeypatch.setattr(warps, "RUN_WARPS", 16)
    monkeypatch.setattr(passes, "IN_MEMORY_BYTES", 500)
    check(make_case(tmp_path, study, blocks(seed)), tmp_path, parts)


@MANY
@given(SEEDS, PARTS, st.sampled_from([{}, {"tensors": [{"name": "a", "bytes": 70000}]}, {"compatible": True}]))
def test_accesses_in_parts(tmp_path, monkeypatch, seed, parts, inputs):
    monkeypatch.setattr(scan, "NEAR_CLOCKS", 2**14)
    monkeypatch.setattr(scan, "FIRST_PAGES", 4)
    check(make_case(tmp_path, "dmat", accesses(seed), **inputs), tmp_path, parts)


@given(st.lists(st.lists(st.integers(0, 2**40) | st.integers(0, 5), max_size=20), max_size=6))
def test_counted_values_are_those_of_the_whole(parts):
    counted = add_counts(count_values(np.array(part, np.int64)) for part in parts)
    whole = np.sort(np.array([value for part in parts for value in part], np.int64))
    assert np.repeat(*counted).tolist() == whole.tolist()
    assert at_ranks(counted, np.arange(len(whole))).tolist() == whole.tolist()


def test_a_trace_of_64_gib_is_planned_in_parts(checkout):
    """A sparse file: nothing of it is read."""
    folder = checkout / "traces/mine"
    folder.mkdir()
    make_case(folder, "block_scheduling", np.zeros((1, 1), BLOCK_SCHED))
    with open(folder / "t.bin", "r+b") as file:
        file.truncate(64 * 2**30 + 48)
    done = snakemake(checkout, "-n", "results/mine/block_scheduling/mine/summary.json")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "part 31 of 32" in said
    assert "33 steps: 1 case to reduce, in 32 parts, 0 to draw\n" in said


def test_the_workflow_reduces_in_parts(checkout):
    folder = checkout / "traces/mine"
    folder.mkdir()
    case = make_case(folder, "warp_scheduling", np.ones((4096, 4), BLOCK_SCHED))
    whole = reduce_case(case, warp_scheduling.reduce)
    target = "results/mine/warp_scheduling/mine/summary.json"
    done = snakemake(checkout, "--config", "part_gib=0.0001", "--", target)
    assert done.returncode == 0, done.stderr
    assert "warps of mine/warp_scheduling/mine, part 1 of 2" in done.stdout + done.stderr
    result = type(whole).read((checkout / target).parent)
    assert result.summary == whole.summary
    assert not list((checkout / target).parent.glob("parts/*"))
