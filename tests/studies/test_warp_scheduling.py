"""When warps finish: the paper's tails, speeds that rise, pickles that are more than data, and every refusal."""

import json
import os
import pickle
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import own_case, reduced, refused

from gpuledger.errors import InputError
from gpuledger.ledger import claims
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.ledger.notebooks import is_about
from gpuledger.models.simulate import simulate_dataset
from gpuledger.readers import neutrino
from gpuledger.studies import warp_scheduling
from gpuledger.studies.warp_scheduling import figures as panels
from gpuledger.studies.warp_scheduling import progress
from gpuledger.studies.warp_scheduling.export import export_warps
from gpuledger.studies.warp_scheduling.tables import points_table
from notebooks import run_notebook

POINTS = "completed_percent,elapsed_cycles\n0,100\n50,110\n100,150\n"


def reduce(folder, text, **options):
    (folder / "points.csv").write_text(text, "utf-8")
    return reduced(own_case(folder, "warp_scheduling", {"cdf": "points.csv", **options}))


@pytest.mark.parametrize(
    ("case", "percent", "fastest", "slowest"),
    [
        ("fig13a", 8.19, 218032, 235884),
        ("fig13b", 24.69, 363950, 453824),
        ("fig17a", 2.74, 144227, 148176),
        ("fig17b", 50.93, 110294, 166469),
    ],
)
def test_published_tails(case, percent, fastest, slowest):
    opened = Repository.find(ROOT).dataset("published").case("warp_scheduling", case)
    result = reduced(opened)
    assert round(100 * result["tail_ratio"], 2) == percent
    assert (result["cycles_p0"], result["cycles_p100"]) == (fastest, slowest)
    assert [result[f"cycles_p{p}"] for p in (0, 25, 50, 75, 95, 100)] == result.data["elapsed_cycles"].tolist()
    assert all(isinstance(result[f"cycles_p{p}"], int) for p in (0, 25, 50, 75, 95, 100))
    assert result.summary["warps"] == {"value": "not published", "unit": "warp"}


def test_what_the_paper_finds_is_on_the_pages_of_its_numbers_and_on_no_others():
    """A section whose code shows nothing is left out: this one may have none."""
    cells = nbformat.read(ROOT / "notebooks/warp_scheduling.ipynb", as_version=4).cells
    (about,) = [cell for cell in cells if cell.source.startswith("## What the paper finds")]
    assert [is_about(about, case) for case in ("published/fig13a", "mine/first")] == [True, False]
    below = cells[cells.index(about) + 1]
    assert below.cell_type == "markdown" and below.source.startswith("## ")


def test_known_answer(folder):
    result = reduce(folder, POINTS, kernel="k", blocks="shared", device="d")
    assert result["cycles_p25"] == 105  # on the straight line between the points
    assert result["cycles_p75"] == 130
    assert result["cycles_p95"] == 146
    assert result["tail_ratio"] == 0.5
    assert result["slowest_above_median_percent"] == pytest.approx(100 * 40 / 110)
    assert result["fastest_below_median_percent"] == pytest.approx(100 * 10 / 110)
    assert result["middle_half_percent"] == pytest.approx(100 * 25 / 110)
    assert result["after_p95_percent"] == pytest.approx(100 * 4 / 150)
    assert result.finding == "k, shared blocks: slowest warp 50.0 % behind the fastest"
    assert (result["kernel"], result["blocks"], result["device"]) == ("k", "shared", "d")
    _, headers, formats = points_table(warp_scheduling.parts(result.data)[0])
    assert set(headers) == set(warp_scheduling.parts(result.data)[0])
    assert formats["over_fastest_ratio"](0.5) == "+50.00"


def test_warps_that_all_take_equally_long_have_no_tail(folder):
    result = reduce(folder, "completed_percent,elapsed_cycles\n0,7\n100,7\n")
    assert result["tail_ratio"] == 0
    assert result.finding.startswith("mine: slowest warp 0.0 %")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("50,110", "50,90", "line 3, column elapsed_cycles: 90 falls after 100; a CDF never falls"),
        ("50,110", "0,110", "line 3, column completed_percent: 0 does not rise after 0; sort the points"),
        ("50,110\n100,150", "100,150\n50,110", "line 4, column completed_percent: 50 does not rise after 100"),
        ("0,100\n", "", "line 2, column completed_percent: the points start at 50 %, not at 0 %; add the fastest"),
        ("\n100,150", "", "line 3, column completed_percent: the points end at 50 %, not at 100 %; add the slowest"),
        ("50,110", "150,110", "line 3, column completed_percent: '150' is not within 0 to 100"),
        ("50,110", "50,110.5", "line 3, column elapsed_cycles: '110.5' is not a whole number"),
        ("0,100\n", "0,0\n", "line 2, column elapsed_cycles: '0' is not within 1"),
        ("elapsed_cycles", "elapsed_us", "wrong unit: column 'elapsed_us' where 'elapsed_cycles' is needed"),
    ],
)
def test_refused_points(folder, old, new, message):
    assert old in POINTS
    with refused("points.csv", message):
        reduce(folder, POINTS.replace(old, new, 1))


def test_unknown_kind_of_blocks(folder):
    with pytest.raises(InputError, match=r"key studies\.warp_scheduling\.mine\.blocks: 'both' is not one of exclusive"):
        reduce(folder, POINTS, blocks="both")


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=12))
def test_percentiles_never_fall_and_stay_within_the_points(tmp_path_factory, cycles):
    cycles.sort()
    step = 100 / (len(cycles) - 1)
    percents = [0, *(round(step * i, 6) for i in range(1, len(cycles) - 1)), 100]
    lines = [f"{percent},{value}" for percent, value in zip(percents, cycles, strict=True)]
    folder = tmp_path_factory.mktemp("mine")
    result = reduce(folder, "\n".join(["completed_percent,elapsed_cycles", *lines]) + "\n")
    found = [result[f"cycles_p{percent}"] for percent in warp_scheduling.PERCENTILES]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (cycles[0], cycles[-1])
    assert result["tail_ratio"] == pytest.approx(cycles[-1] / cycles[0] - 1)


# Traces: distribution, speeds, transitions.

ALONE, BESIDE = 100, 150
FLOP, CLOCK = 1e6, 1000


def course(start, iterations, older_end):
    """Clocks of a block whose iterations take BESIDE cycles until the older block ends, and ALONE after that."""
    clocks, now = [], start + 10
    for _ in range(iterations):
        clocks.append(now)
        now += BESIDE if now < older_end else ALONE
    return clocks


def two_by_two(pairs=6, iterations=40, noise=0, seed=0):
    """Make blocks of two SMs with two slots: first come, first served. Return records of both probes."""
    random = np.random.default_rng(seed)
    rows = []
    for sm in (3, 77):
        ends, origin = [0, 0], 10**12 * sm
        for number in range(2 * pairs):
            slot = number % 2
            start = origin + max(ends[slot] - origin, 0) + 7 * (number + 1)
            clocks = np.array(course(start, iterations, ends[1 - slot]))
            clocks[1:] += random.integers(0, noise + 1, iterations - 1)
            ends[slot] = int(clocks[-1]) + ALONE
            rows.append((start, ends[slot], sm, clocks))
    blocks = np.zeros((len(rows), 2, 1), neutrino.BLOCK_SCHED)
    clocks = np.zeros((len(rows), 64, 128), neutrino.PROGRAM_PROGRESS)
    for row, (start, end, sm, own) in enumerate(rows):
        blocks[row] = (start, end - start, sm)
        clocks["clock"][row, :, :iterations] = own
    return blocks, clocks


def write_case(folder, warps=None, clocks=None, **options):
    inputs = {}
    for key, level, records in (("trace", "warp", warps), ("progress", "thread", clocks)):
        if records is not None:
            path = folder / f"{key}.bin"
            grid, sections = (len(records), 1, 1), [(level, records)]
            neutrino.write_trace(path, version="V2", grid=grid, block=(64, 1, 1), sections=sections)
            inputs[key] = path.name
    if clocks is not None:
        inputs |= {"flop_per_iteration": FLOP, "clock_mhz": CLOCK}
    return own_case(folder, "warp_scheduling", inputs | options)


def reduced_of(case):
    result = reduced(case)
    result.write(case.dataset.folder / "out")
    again = CaseResult.read(case.dataset.folder / "out")
    run_notebook("warp_scheduling", again)
    return again


@given(st.lists(st.integers(1, 2**32 - 1), min_size=2, max_size=60).filter(lambda found: len(found) % 2 == 0))
def test_a_trace_gives_percentiles_that_some_warp_took(tmp_path_factory, cycles):
    folder = tmp_path_factory.mktemp("mine")
    blocks = np.zeros((len(cycles) // 2, 2, 1), neutrino.BLOCK_SCHED)
    blocks["start"], blocks["elapsed"] = 5, np.reshape(cycles, (-1, 2, 1))
    result = reduced(write_case(folder, blocks))
    assert result["warps"] == len(cycles)
    ordered = sorted(cycles)
    for percent in warp_scheduling.PERCENTILES:
        value = result[f"cycles_p{percent}"]
        assert value in ordered
        assert sum(cycle <= value for cycle in ordered) * 100 >= percent * len(ordered)
        assert sum(cycle < value for cycle in ordered) * 100 <= percent * len(ordered)
    assert result["tail_ratio"] == pytest.approx(ordered[-1] / ordered[0] - 1)
    assert warp_scheduling.parts(result.data)[0]["elapsed_cycles"].is_monotonic_increasing


def test_a_trace_is_drawn_and_tabled(folder):
    blocks, _ = two_by_two()
    result = reduced_of(write_case(folder, blocks))
    assert result["warps"] == blocks.size
    frame, headers, _ = points_table(warp_scheduling.parts(result.data)[0])
    assert frame["completed_percent"].tolist() == list(warp_scheduling.PERCENTILES)
    assert set(headers) == set(frame)


def test_warps_of_one_sm_are_exported_as_recorded(folder):
    blocks, clocks = two_by_two()
    result = reduced_of(write_case(folder, blocks, clocks))
    warps = warp_scheduling.first_warps(result.data)
    own = blocks[blocks["cuid"][:, 0, 0] == 3]["elapsed"][:, :, 0]
    assert set(warps["sm"]) == {3} and len(warps) == own.size
    assert warps["start_cycles"].min() == 0
    assert sorted(warps["elapsed_cycles"]) == sorted(own.ravel().tolist())
    export_warps(warps, warp_scheduling.parts(result.data)[2]).write({"label": "recorded"}, folder)
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X" and event["cat"] == "warp"]
    assert len(slices) == len(warps)
    # A cycle is written as a nanosecond.
    assert sum(event["dur"] for event in slices) == pytest.approx(1e-3 * warps["elapsed_cycles"].sum())


@pytest.mark.parametrize("noise", [0, 8])
def test_transitions_are_found_where_the_older_block_ends(folder, noise):
    blocks, clocks = two_by_two(noise=noise)
    result = reduced_of(write_case(folder, blocks, clocks))
    _, found, lines = warp_scheduling.parts(result.data)
    # The first block of an SM has none before it; every other one starts slow and becomes fast.
    assert result["blocks_followed"] == len(blocks)
    assert result["blocks_with_older"] == result["sped_up_blocks"] == result["tied_blocks"] == len(blocks) - 2
    assert result["sped_up_without_older"] == 0
    assert result["tied_percent"] == 100
    assert result["tied_by_chance_percent"] < 20
    assert result["progress_kink"] == "yes"
    scale = FLOP * CLOCK * 1e-6
    assert result["block_speed_slow_tflops"] == pytest.approx(scale / BESIDE, rel=0.02)
    assert result["block_speed_fast_tflops"] == pytest.approx(scale / ALONE, rel=0.02)
    assert result["speed_gain_percent"] == pytest.approx(50, abs=4)
    distance = (found["transition_cycles"] - found["older_end_cycles"]).abs().dropna()
    assert (distance <= BESIDE + noise).all()
    assert set(found["sm"]) == {3, 77}
    assert lines["block"].nunique() == 8
    for _, own in lines.groupby("block"):
        assert own["progress_percent"].iloc[[0, -1]].tolist() == [0, 100]
        assert own["elapsed_cycles"].iloc[0] == 10
    assert result.finding == (
        f"mine: {len(blocks) - 2} of {len(blocks)} blocks speed up once, by {result['speed_gain_percent']:.0f} %, "
        "100 % of them as the older block on their SM ends"
    )


def test_clocks_alone_give_transitions_without_ties(folder):
    blocks, clocks = two_by_two()
    result = reduced_of(write_case(folder, clocks=clocks))
    assert result["sped_up_blocks"] == len(blocks) - 2
    assert "tied_blocks" not in result.summary
    assert result["warps"] == len(blocks)
    assert "first to the last branch" in result["elapsed"]


@pytest.mark.parametrize(("iterations", "most"), [(6, 2e-3), (32, 1e-4)])
def test_few_blocks_seem_to_speed_up_by_chance(iterations, most):
    random = np.random.default_rng(1)
    steps = random.normal(1000, 200, (100_000, iterations)).clip(1).round().astype(np.int64)
    clocks = np.pad(1 + steps.cumsum(axis=1), [(0, 0), (1, 0)], constant_values=1)
    counts = np.full(len(clocks), iterations + 1)
    followed = progress.Clocks(Path("mine.bin"), np.arange(len(clocks)), clocks, counts, 0, 0)
    assert progress.find_transitions(followed, 0)["found"].mean() < most


def test_steady_and_noisy_blocks_do_not_speed_up(folder):
    random = np.random.default_rng(0)
    clocks = np.zeros((300, 64, 128), neutrino.PROGRAM_PROGRESS)
    steps = random.exponential(100, (300, 100)) + 1000
    clocks["clock"][:, :, :100] = (10**6 + np.cumsum(steps, axis=1)).astype(np.uint64)[:, None, :]
    result = reduced_of(write_case(folder, clocks=clocks))
    assert (result["sped_up_blocks"], result["progress_kink"]) == (0, "no")
    assert result.finding == "mine: none of 300 blocks speeds up on its way"


def test_equal_times_and_speeds_are_drawn_within_their_panels(folder):
    """A constant speed was a line under the axis, and 5,010 stood at three ticks."""
    clocks = np.zeros((4, 64, 128), neutrino.PROGRAM_PROGRESS)
    clocks["clock"][:, :, :60] = 5000 + 100 * np.arange(60, dtype=np.uint64)
    axes = run_notebook("warp_scheduling", reduced_of(write_case(folder, clocks=clocks)))[0]["axes"]
    low, high = axes["C"].get_ylim()
    speed = FLOP * CLOCK / 100 / 1e6
    assert low < 0.99 * speed and 1.005 * speed < high
    blocks = np.zeros((4, 2, 1), neutrino.BLOCK_SCHED)
    blocks["start"], blocks["elapsed"] = 5, 5010
    axes = run_notebook("warp_scheduling", reduced_of(write_case(folder / "equal", blocks)))[0]["axes"]
    assert [tick for tick in axes["A"].get_xticks() if abs(tick - 5010) < 1] == [5010]


def test_overrun_and_empty_records_are_left_out(folder):
    blocks, clocks = two_by_two()
    clocks["clock"][0, 0] = 0
    clocks["clock"][1, 0, 5] = 1
    clocks["clock"][2, 0, 7] = 0
    clocks["clock"][3, 0, 40:] = clocks["clock"][3, 0, 39] + np.arange(1, 89, dtype=np.uint64)
    result = reduced_of(write_case(folder, clocks=clocks))
    assert result["blocks_left_out"] == 3
    assert result["blocks_followed"] == len(blocks) - 3
    assert result["blocks_with_full_records"] == 1


def test_ties_of_blocks_in_a_grid_with_holes(folder):
    blocks, clocks = two_by_two()
    clocks["clock"][0, 0] = 0
    result = reduced_of(write_case(folder, blocks, clocks))
    assert result["tied_blocks"] == result["sped_up_blocks"] == len(blocks) - 2


def refused_case(case, *words):
    with refused(*words):
        reduced(case)


def test_refused_traces(folder):
    blocks, clocks = two_by_two()
    later = blocks.copy()
    later["start"] += np.uint64(10**9)
    refused_case(write_case(folder, later, clocks), "progress.bin: the clocks of block 0 do not lie", "of one launch")
    refused_case(
        write_case(folder, blocks[:4], clocks), "clocks of block 23, where the launch of trace.bin has 4 blocks"
    )
    falling = clocks.copy()
    falling["clock"][:, 0, 3] = 1
    refused_case(write_case(folder, clocks=falling), "of 24 blocks 24 saved clocks, and none has clocks that rise")
    refused_case(write_case(folder, clocks=np.zeros_like(clocks)), "of 24 blocks 0 saved clocks")
    case = write_case(folder, blocks, clocks, trace="progress.bin")
    refused_case(case, "no section has starts and ends of warps")
    case = write_case(folder, blocks, clocks, progress="trace.bin")
    refused_case(case, "no section holds clocks of branches: 16 bytes for each warp")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"progress": "a.bin", "clock_mhz": 1}, "the key 'flop_per_iteration' is missing; add it: FLOP of a block"),
        ({"progress": "a.bin", "flop_per_iteration": 1}, "the key 'clock_mhz' is missing; add it: the SMs' clock"),
        ({"cdf": "a.csv", "trace": "b.bin"}, "the keys 'cdf' and 'trace' do not go together"),
        ({"pickle": "a.pkl", "flop_per_iteration": 1, "clock_mhz": 0}, "clock_mhz"),
    ],
)
def test_refused_declarations(folder, inputs, message):
    with refused(message):
        own_case(folder, "warp_scheduling", inputs)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Simulated cases of FlashAttention-v2 with shared blocks, by name."""
    folder = tmp_path_factory.mktemp("traces") / "simulated"
    folder.mkdir()
    content = yaml.safe_load((ROOT / "traces/simulated/dataset.yaml").read_text("utf-8"))
    cases = content["studies"]["warp_scheduling"]
    content["studies"] = {"warp_scheduling": {name: cases[name] for name in ("fig13b", "fig13cd")}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content), "utf-8")
    dataset = Dataset.load(folder / "dataset.yaml")
    simulate_dataset(dataset)
    return {name: reduced(dataset.case(study, name)) for study, name in dataset.cases()}


def test_fig13b_and_fig13cd_are_one_launch(simulated):
    """Their 95th percentiles were 433,638 and 450,366 cycles when each was a launch of its own."""
    names = ["warps", "tail_ratio", *(f"cycles_p{percent}" for percent in warp_scheduling.PERCENTILES)]
    one, other = ({name: result[name] for name in names} for result in simulated.values())
    assert one == other


def test_headlines_of_simulations_say_that_they_are(simulated):
    assert simulated["fig13b"].finding.startswith("Simulated FlashAttention-v2, shared blocks: ")
    # That blocks speed up as the older one ends was put in.
    assert simulated["fig13cd"].finding.startswith("By construction, ")


def test_published_speeds_stand_beside_ours(simulated):
    _, shown = run_notebook("warp_scheduling", simulated["fig13cd"])
    (table,) = (text for text in shown if text.startswith("| speed of a block"))
    content = claims.load(ROOT / "resources/claims/warp_scheduling.yaml")["claims"]
    value = {claim["id"]: claim["value"] for claim in content}
    slow, fast = value["fa2-block-speed-slow"], value["fa2-block-speed-fast"]
    assert f"| {slow} | {fast} | {100 * (fast / slow - 1):.0f} |" in table
    assert "| here (simulated, not measured) | 0.4 | 0.52 | 30 |" in table


@pytest.mark.parametrize(
    ("about", "beside"),
    [
        ({"kernel": "FlashAttention-2 (own kernel)", "blocks": "shared"}, True),
        ({"kernel": "FlashAttention-2 (own kernel)", "blocks": "exclusive"}, False),
        ({"kernel": "GEMM 4096³", "blocks": "shared"}, False),
        ({}, False),
    ],
)
def test_published_speeds_stand_beside_the_kernel_that_they_are_of(folder, about, beside):
    result = reduced(write_case(folder, clocks=two_by_two()[1], **about))
    variables, shown = run_notebook("warp_scheduling", result)
    titles = " ".join(variables["axes"]["C"].get_title(loc) for loc in ("left", "center", "right"))
    assert ("published, of an A100: 1.8 to 2.2 (+22 %)" in titles) == beside
    assert any("read off Fig. 14C" in text for text in shown) == beside


def test_source_pictures_of_progress_are_drawn_apart(simulated):
    """The source makes 13c, 13d and a detail of 13d of one trace."""
    variables, _ = run_notebook("warp_scheduling", simulated["fig13cd"])
    axes = variables["axes"]
    assert set(axes) == set("CDdE")
    low, high = axes["d"].get_xlim()
    assert high - low < 0.3 * (axes["D"].get_xlim()[1])
    shown = variables["blocks"][variables["blocks"]["shown"].astype(bool)]["transition_cycles"].dropna()
    # Shown transitions are spread over the run, and the detail has some of them.
    assert shown.max() > 3 * shown.min() and shown.between(low, high).any()


# Pickles: data is read, everything else is refused without being called.


def clock_rows():
    return two_by_two()[1]["clock"][:, 0, :40].astype(np.int64)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "layout",
    [
        lambda rows: rows,
        lambda rows: np.asfortranarray(rows.astype(">u8")),
        lambda rows: rows[:, None, :],
        lambda rows: rows.tolist(),
        lambda rows: list(rows),
        lambda rows: tuple(map(tuple, rows.tolist())),
        lambda rows: {f"block {number}": row for number, row in enumerate(rows)},
        lambda rows: OrderedDict((number, list(row)) for number, row in enumerate(rows)),
    ],
)
def test_pickled_clocks_give_what_the_trace_gives(folder, protocol, layout):
    (folder / "tmp.pkl").write_bytes(pickle.dumps(layout(clock_rows()), protocol))
    inputs = {"pickle": "tmp.pkl", "flop_per_iteration": FLOP, "clock_mhz": CLOCK}
    result = reduced(own_case(folder, "warp_scheduling", inputs))
    assert result["sped_up_blocks"] == len(clock_rows()) - 2


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(PLAIN, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_come_back(tmp_path_factory, value, protocol):
    path = tmp_path_factory.mktemp("pickles") / "a.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    assert warp_scheduling.load_plain(path) == value


def test_arrays_and_scalars_come_back(tmp_path):
    values = [np.arange(6).astype(kind).reshape(2, 3) for kind in ("<i8", ">u4", "<f4", "?", "f8")]
    value = {"arrays": values, "empty": np.zeros((0, 3)), "scalars": [np.int64(3), np.float32(2)], "set": {1, 2}}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(value, protocol))
        found = warp_scheduling.load_plain(tmp_path / "a.pkl")
        for own, expected in zip(found["arrays"], values, strict=True):
            assert own.dtype == expected.dtype
            assert np.array_equal(own, expected)
        assert found["empty"].shape == (0, 3)
        assert (found["scalars"], found["set"]) == ([3, 2], {1, 2})


class Harm:
    """What a hostile pickle does: call something with something."""

    def __init__(self, function, *arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


def proof(folder):
    return folder / "harmed"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.mkdir, eval, exec, getattr, open, np.load, np.save, Path, pickle.loads, print])
def test_pickles_that_call_something_are_refused(folder, protocol, function):
    argument = f"__import__('os').mkdir({str(proof(folder))!r})" if function in (eval, exec) else str(proof(folder))
    for value in (Harm(function, argument), [clock_rows(), {"a": Harm(function, argument)}]):
        (folder / "tmp.pkl").write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(InputError, match=r"tmp\.pkl.*which is not data; give plain lists"):
            warp_scheduling.load_plain(folder / "tmp.pkl")
    assert not proof(folder).exists()


OBJECTS = {
    "objects": np.array([{}, []], object),
    "records": np.zeros(2, [("a", "i4")]),
    "dates": np.zeros(2, "datetime64[s]"),
    "texts": np.array(["a"]),
    "masked": np.ma.masked_array([1, 2], [True, False]),
    "frame": pd.DataFrame({"a": [1]}),
    "complex": 1j,
    "range": range(3),
    "class": Path,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_pickles_of_other_objects_are_refused(folder, name):
    for protocol in (2, 5):
        (folder / "tmp.pkl").write_bytes(pickle.dumps(OBJECTS[name], protocol))
        with refused():
            warp_scheduling.load_plain(folder / "tmp.pkl")


TUPLES = b"\x80\x04)" + b"2\x86" * 60
INT64 = b"cnumpy\ndtype\nX\x02\x00\x00\x00i8K\x00K\x01\x87R"
FROM_BYTES = b"\x80\x04cnumpy.core.numeric\n_frombuffer\n"
CRAFTED = {
    "doubled tuples in a frozenset": b"\x80\x04(" + TUPLES[2:] + b"\x91.",
    "doubled tuples in a set": b"\x80\x04\x8f(" + TUPLES[2:] + b"\x90.",
    "doubled tuples as a key": b"\x80\x04}" + TUPLES[2:] + b"Ns.",
    "doubled tuples among keys": b"\x80\x04}(" + TUPLES[2:] + b"Nu.",
    "doubled tuples as a key of old": b"(" + TUPLES[2:] + b"Nd.",
    "doubled tuples in a list made a set": b"\x80\x04cbuiltins\nset\n](" + TUPLES[2:] + b"e\x85R.",
    "a large integer as a key": b"\x80\x04}" + b"\x8a\xff" + b"\x01" * 255 + b"Ns.",
    "more than a million operations": b"\x80\x04]" + b"N0" * 500_001 + b".",
    "not a pickle": b"\x89PNG",
    "empty": b"",
    "cut short": pickle.dumps([1, 2, 3])[:-3],
    "persistent object": b"Pabc\n.",
    "instance": b"(ios\nmkdir\n.",
    "extension": b"\x80\x02\x82\x01.",
    "memo that asks for 16 GiB": b"\x80\x02]r\xff\xff\xff\x7f.",
    "bytes that are not there": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.",
    "a list in itself is no clock": b"\x80\x02]q\x00h\x00a.",
    "array larger than its bytes": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    b"(K\x01J\xff\xff\xff\x7f\x85cnumpy\ndtype\n(U\x02i8K\x00K\x01tR\x89U\x01atb.",
    "state of a function": b"\x80\x02cnumpy\ndtype\n}U\x0c__defaults__)sb.",
    "attributes of a function": b"\x80\x02cnumpy\ndtype\nN}U\x05_makeNs\x86b.",
    "a function as data": b"\x80\x02cnumpy\ndtype\n.",
    "bytes by another codec": b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00rottR.",
    "doubled tuples as a type": b"\x80\x04cnumpy\ndtype\n" + TUPLES[2:] + b"\x85R.",
    "doubled tuples as a shape": FROM_BYTES + b"(C\x08" + bytes(8) + INT64 + TUPLES[2:] + b"tR.",
    "doubled tuples as a byte order": INT64.join([b"\x80\x04", b"(K\x03"]) + TUPLES[2:] + b"NNNK\x00K\x00K\x00tb.",
    "doubled tuples as a codec": b"\x80\x04c_codecs\nencode\nX\x01\x00\x00\x00a" + TUPLES[2:] + b"\x86R.",
    "doubled tuples put into an array": FROM_BYTES
    + b"(\x96\x08"
    + bytes(15)
    + INT64
    + b"K\x01\x85tRK\x00"
    + TUPLES[2:]
    + b"s.",
    "a shape whose product takes for ever": FROM_BYTES
    + b"(C\x08"
    + bytes(8)
    + INT64
    + b"\x8b\xa0\x86\x01\x00"
    + b"\x01" * 100_000
    + b"\x940("
    + b"h\x00" * 300_000
    + b"ttR.",
    "deep nesting": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_pickles_are_refused_in_one_line(folder, name):
    (folder / "tmp.pkl").write_bytes(CRAFTED[name])
    case = own_case(folder, "warp_scheduling", {"pickle": "tmp.pkl", "flop_per_iteration": 1, "clock_mhz": 1})
    refused_case(case, "tmp.pkl")


COPIED = {
    "one list made a thousand sets": b"\x80\x04]\x94("
    + b"".join(b"J" + n.to_bytes(4, "little") for n in range(10_000))
    + b"e0cbuiltins\nset\n\x940("
    + b"h\x01h\x00\x85R" * 1000
    + b"t.",
    "one text encoded a thousand times": b"\x80\x04X\x00\x00\x10\x00"
    + b"a" * 2**20
    + b"\x940c_codecs\nencode\n\x940("
    + b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R" * 1000
    + b"t.",
    "attributes of a dict": b"\x80\x04ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00aNsb.",
    "a table of billions of clocks": b"\x80\x04](" + b"K\x01" * 10_000 + b"e\x940(" + b"h\x00" * 10_000 + b"t.",
}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one list made a thousand sets", "it makes too many copies of its lists or texts"),
        ("one text encoded a thousand times", "it makes too many copies of its lists or texts"),
        ("attributes of a dict", "it sets parts of an object of type OrderedDict"),
        ("a table of billions of clocks", "10,000 blocks of up to 10,000 clocks are more than the 67,108,864 that"),
    ],
)
def test_short_pickles_do_not_fill_the_memory(tmp_path, name, message):
    (tmp_path / "a.pkl").write_bytes(COPIED[name])
    with pytest.raises(InputError, match=message):
        progress.read_pickled_progress(tmp_path / "a.pkl")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "it holds an empty dict, not the clocks of blocks"),
        ({"speed": [1.5, 2.5]}, "it holds a dict of 1 (one is 'speed'), the first a list of 2, the first a float, not"),
        ([[3, 2, 1]], "of 1 blocks 1 saved clocks, and none has clocks that rise"),
        (np.zeros((2, 2)), "it holds an array of shape (2, 2) and type float64, not the clocks"),
        ("x", "it holds a str, not the clocks of blocks"),
        ([[1, -2]], "it holds a list of 1, the first a list of 2, the first a int"),
    ],
)
def test_pickles_of_unknown_layout_are_described(folder, value, message):
    (folder / "tmp.pkl").write_bytes(pickle.dumps(value))
    case = own_case(folder, "warp_scheduling", {"pickle": "tmp.pkl", "flop_per_iteration": 1, "clock_mhz": 1})
    refused_case(case, message)


@settings(max_examples=200)
@given(st.binary(max_size=60), st.integers(0, 300), st.sampled_from([0, 2, 4, 5]))
def test_damaged_pickles_are_refused(tmp_path_factory, noise, at, protocol):
    content = pickle.dumps([np.arange(4), {"a": [1, 2]}, {3}], protocol)
    path = tmp_path_factory.mktemp("pickles") / "a.pkl"
    path.write_bytes(content[:at] + noise + content[at + len(noise) :])
    with suppress(InputError):
        warp_scheduling.load_plain(path)


def test_the_detail_shows_most_transitions_and_words_stand_beside_the_points():
    """Two early transitions and three late ones: their median is where nothing happens."""
    times = np.array([1000.0, 1500.0, 5000.0, 9000.0, 9300.0, 9600.0])
    blocks = pd.DataFrame({"shown": True, "transition_cycles": times})
    lines = pd.DataFrame({"elapsed_cycles": np.arange(0, 10_001, 100), "progress_percent": np.arange(101)})
    _, axes = plt.subplots()
    panels.zoom_to_transitions(axes, blocks, lines)
    low, high = axes.get_xlim()
    assert low < 9000 and high > 9600 and high - low == pytest.approx(2000)
    result = CaseResult(pd.DataFrame())
    result.add("tied_percent", 50.0, "%")
    result.add("tied_by_chance_percent", 10.0, "%")
    for ended, faster, side in (([9000, 8000], [1000, 8000], "left"), ([1000, 8000], [9000, 8000], "right")):
        _, axes = plt.subplots()
        panels.draw_ties(axes, pd.DataFrame({"older_end_cycles": ended, "transition_cycles": faster}), result)
        assert axes.texts[0].get_ha() == side
    plt.close("all")
