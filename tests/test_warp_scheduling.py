"""When warps finish: the paper's tails, and every refusal with its one line."""

import pytest
import yaml
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from gpuledger import warp_scheduling
from gpuledger.datasets import Dataset, Repository
from gpuledger.errors import InputError
from gpuledger.reduced import reduce_case

STUDIES = yaml.safe_load((ROOT / "config/config.yaml").read_text("utf-8"))["studies"]
POINTS = "completed_percent,elapsed_cycles\n0,100\n50,110\n100,150\n"


def reduce(folder, text, **options):
    content = {"title": "t", "kind": "recorded", "source": "s", "license": "facts"}
    content["studies"] = {"warp_scheduling": {"mine": {"cdf": "points.csv", **options}}}
    (folder / "points.csv").write_text(text, "utf-8")
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content), "utf-8")
    dataset = Dataset.load(folder / "dataset.yaml", STUDIES)
    return reduce_case(dataset.case("warp_scheduling", "mine"), warp_scheduling.reduce_warps)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


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
    reduced = reduce_case(opened, warp_scheduling.reduce_warps)
    assert round(100 * reduced["tail_ratio"], 2) == percent
    assert (reduced["cycles_p0"], reduced["cycles_p100"]) == (fastest, slowest)
    assert [reduced[f"cycles_p{p}"] for p in (0, 25, 50, 75, 95, 100)] == reduced.data["elapsed_cycles"].tolist()
    assert all(isinstance(reduced[f"cycles_p{p}"], int) for p in (0, 25, 50, 75, 95, 100))
    assert reduced.summary["warps"] == {"value": "not published", "unit": "warp"}


def test_known_answer(folder):
    reduced = reduce(folder, POINTS, kernel="k", blocks="shared", device="d")
    assert reduced["cycles_p25"] == 105  # on the straight line between the points
    assert reduced["cycles_p75"] == 130
    assert reduced["cycles_p95"] == 146
    assert reduced["tail_ratio"] == 0.5
    assert reduced["slowest_above_median_percent"] == pytest.approx(100 * 40 / 110)
    assert reduced["fastest_below_median_percent"] == pytest.approx(100 * 10 / 110)
    assert reduced["middle_half_percent"] == pytest.approx(100 * 25 / 110)
    assert reduced["after_p95_percent"] == pytest.approx(100 * 4 / 150)
    assert reduced.finding == "k, shared blocks: slowest warp 50.0 % behind the fastest"
    assert (reduced["kernel"], reduced["blocks"], reduced["device"]) == ("k", "shared", "d")
    _, headers, formats = warp_scheduling.points_table(reduced.data)
    assert set(headers) == set(reduced.data)
    assert formats["over_fastest_ratio"](0.5) == "+50.00"


def test_warps_that_all_take_equally_long_have_no_tail(folder):
    reduced = reduce(folder, "completed_percent,elapsed_cycles\n0,7\n100,7\n")
    assert reduced["tail_ratio"] == 0
    assert reduced.finding.startswith("mine: slowest warp 0.0 %")


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
    with pytest.raises(InputError) as caught:
        reduce(folder, POINTS.replace(old, new, 1))
    assert message in str(caught.value)
    assert "points.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


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
    reduced = reduce(folder, "\n".join(["completed_percent,elapsed_cycles", *lines]) + "\n")
    found = [reduced[f"cycles_p{percent}"] for percent in warp_scheduling.PERCENTILES]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (cycles[0], cycles[-1])
    assert reduced["tail_ratio"] == pytest.approx(cycles[-1] / cycles[0] - 1)
