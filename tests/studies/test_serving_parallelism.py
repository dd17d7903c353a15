"""Choice of parallelism: known answers of frontiers and choosers, runs of a table, bad input in one line."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_cases import own_case, reduced, refused
from support.notebooks import run_notebook
from test_serving_time import RUN

from gpuledger.studies.serving_time import view
from gpuledger.studies.serving_time.across import choose
from gpuledger.studies.serving_time.parallelism import CHOOSERS, WORKLOAD, averages, choices, frontier
from gpuledger.studies.serving_time.tables import choice_table

SERVED = dict(zip(WORKLOAD, ("h200-sxm", "vllm", "a/model", "fp8", 1024, 512), strict=True))


def made_up(*rows, **workload):
    """Points of one workload: parallelism, GPUs, and measured and predicted time (ms) and rate."""
    names = ["parallelism", "gpus", "measured_s", "measured_rate", "predicted_s", "predicted_rate"]
    frame = pd.DataFrame(rows, columns=names).assign(runs=1, requests=range(1, len(rows) + 1), **SERVED | workload)
    frame[["measured_s", "predicted_s"]] /= 1e3
    return frame


#: TP2 is faster, TP1 serves more per GPU; the prediction takes both for 20 % faster than they are, and TP2 for twice as
#: good, but for slow steps.
POINTS = made_up(
    ("TP1", 1, 10, 100, 8, 100),
    ("TP1", 1, 20, 200, 16, 200),
    ("TP1", 1, 40, 300, 32, 300),
    ("TP2", 2, 5, 50, 4, 100),
    ("TP2", 2, 20, 150, 16, 210),
    ("TP2", 2, 40, 160, 32, 220),
)


def case(tmp_path, *changed, gpus=("h200",)):
    rows = [{**RUN, "id": str(at), **change} for at, change in enumerate(changed)]
    (tmp_path / "mine").mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(tmp_path / "mine/runs.csv", index=False)
    return own_case(tmp_path / "mine", "serving_time", {"runs": "runs.csv", "gpus": list(gpus)}, "first")


def sweep(tensor, *times_ms, **more):
    """Runs of 4, 16, 64 … requests in flight."""
    sizes = {"tp_size": tensor, "moe_tp_size": tensor, "silicon_ttft_ms": 100.0}
    return [sizes | {"batch_size": 4.0 * 4**at, "silicon_tpot_ms": each} | more for at, each in enumerate(times_ms)]


def test_between_two_loads_a_frontier_is_straight_and_below_the_lowest_nothing_is_served():
    times, rates = np.array([20.0, 10.0, 30.0]), np.array([200.0, 100.0, 150.0])
    asked = np.array([9.9, 10, 15, 20, 25, 99])
    # More requests that serve less do not count: fewer would be let in.
    assert frontier(times, rates, asked).tolist() == [0, 100, 150, 200, 200, 200]


def test_a_choice_is_judged_by_what_it_serves_when_measured():
    decided = choices(POINTS).set_index("objective_s")
    # At 5 ms only TP2 meets the objective, so that there is nothing to choose.
    assert decided.index.tolist() == [0.01, 0.02, 0.04]
    assert decided["best"].tolist() == ["TP1", "TP1", "TP1"] and decided["chosen"].tolist() == ["TP2", "TP1", "TP1"]
    # TP2 at 10 ms: a third of the way from 50 to 150. Predicted at 10 ms: TP1 125, TP2 155; at 20 ms 225 and 212.5.
    assert decided["predicted"].tolist() == pytest.approx([100 * (50 + 100 / 3) / 100, 100, 100])
    assert decided["fewest"].tolist() == [100, 100, 100]
    assert decided["most"].tolist() == pytest.approx([250 / 3, 75, 160 / 3])
    assert decided["any"].tolist() == pytest.approx([(100 + 250 / 3) / 2, 87.5, (100 + 160 / 3) / 2])
    means = averages(choices(POINTS))
    assert means["best_chosen"] == pytest.approx(200 / 3) and means["best_by_chance"] == 50 and means["unmet"] == 0


def test_a_choice_that_is_too_slow_attains_nothing():
    slow = made_up(("TP1", 1, 30, 300, 5, 900), ("TP2", 2, 10, 90, 10, 90), ("TP4", 4, 12, 50, 12, 50))
    decided = choices(slow).set_index("objective_s")
    assert decided["chosen"].tolist() == ["TP1", "TP1"] and decided["predicted"].tolist() == [0, 100]
    assert averages(choices(slow))["unmet"] == 50
    # None is predicted to be fast enough: that which comes nearest is chosen.
    late = slow.assign(predicted_s=10 * slow["predicted_s"])
    assert choices(late)["chosen"].tolist() == ["TP1", "TP1"]


def test_in_hindsight_the_fewest_gpus_are_those_of_the_parallelisms_that_meet_the_objective():
    tight = made_up(("TP1", 1, 30, 300, 30, 300), ("TP2", 2, 10, 90, 10, 90), ("TP4", 4, 12, 100, 12, 100))
    decided = choices(tight).set_index("objective_s")
    assert decided.index.tolist() == [0.012, 0.03]
    # At 12 ms TP2 and TP4 are fast enough; always the fewest is TP1, which is not.
    assert decided["fewest"].tolist() == [0, 100] and decided["fewest_met"].tolist() == [90, 100]


def test_every_workload_counts_alike():
    other = made_up(("TP1", 1, 10, 100, 10, 1), ("TP2", 2, 10, 80, 10, 2), model="b/other")
    decided = choices(pd.concat([POINTS, other]))
    assert averages(decided)["predicted"] == pytest.approx((averages(choices(POINTS))["predicted"] + 80) / 2)
    table = choice_table(decided).set_index("model")
    assert table.loc["all", "workloads"].tolist() == [2, 2] and table.loc["b/other", "predicted"] == 80


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), *[st.floats(1, 100) for _ in range(4)]), min_size=2, max_size=20
    )
)
def test_shares_are_of_the_best(rows):
    decided = choices(made_up(*((f"TP{gpus}", gpus, *numbers) for gpus, *numbers in rows)))
    for name in CHOOSERS:
        assert decided[name].between(0, 100 * (1 + 1e-12)).all()
    assert (decided["fewest_met"] > 0).all() and (decided["fewest_met"] >= decided["fewest"]).all()
    assert (decided.loc[decided["chosen"] == decided["best"], "predicted"] == 100).all()
    assert ((decided["fewest"] == 100) | (decided["most"] == 100) | (decided["best"] == "TP2")).all()


def test_a_perfect_prediction_chooses_the_best():
    perfect = POINTS.assign(predicted_s=POINTS["measured_s"], predicted_rate=POINTS["measured_rate"])
    assert averages(choices(perfect))["predicted"] == averages(choices(perfect))["best_chosen"] == 100


def test_runs_of_several_parallelisms_become_a_choice(tmp_path):
    result = reduced(case(tmp_path, *sweep(1, 6, 8, 14), *sweep(2, 4, 5, 8), *sweep(1, 6, 8, isl=9999)))
    assert result["workloads"] == 1 and result["runs"] == 6
    data = result.data.set_index(["parallelism", "requests"])
    assert sorted(data.index) == [(f"TP{tensor}", 4**at) for tensor in (1, 2) for at in (1, 2, 3)]
    assert data.loc[("TP2", 16), "gpus"] == 2
    # 16 requests of 512 tokens in 100 ms and 511 steps, on two GPUs.
    rate = 16 * 512 / (0.1 + 511 * 5e-3) / 2
    assert data.loc[("TP2", 16), "measured_rate"] == pytest.approx(rate, rel=1e-5)
    assert result.finding.startswith(
        f"Parallelism chosen by predicted times serves {result['predicted_percent']:.0f} % of the best measured tokens "
    )
    assert result.provenance["kind"] == "predicted"
    assert choose([result]) == [] and len(view.view(result).marks) == result["objectives"]


def test_repeated_runs_are_one_point_and_replicas_serve_all_their_requests(tmp_path):
    experts = {"model_path": "Qwen3-30B-A3B", "moe_tp_size": 1.0}
    shared = sweep(1, 8, **experts) + sweep(1, 9, **experts) + sweep(1, 11, **experts)
    spread = sweep(1, 10, **experts | {"attention_dp_size": 2.0, "moe_ep_size": 2.0})
    data = reduced(case(tmp_path, *shared, *spread)).data.set_index("parallelism")
    assert data.loc["TP1", "runs"] == 3 and data.loc["TP1", "measured_s"] == 9e-3
    assert data.loc["TP1 DP2 EP2", "requests"] == 8
    assert data.loc["TP1 DP2 EP2", "measured_rate"] == pytest.approx(8 * 512 / (0.1 + 511 * 10e-3) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("runs", "gpus", "words"),
    [
        (sweep(1, 6, 8), ["h200"], "was served with two parallelisms in the same time; add runs with other tp_size"),
        # Of different lengths.
        (sweep(1, 6) + sweep(2, 4, isl=512), ["h200"], "was served with two parallelisms"),
        (sweep(1, 6) + sweep(2, 4), ["b200"], "no run on b200"),
        (sweep(1, 6) + sweep(2, 4), ["abacus"], "first.gpus"),
        (sweep(1, 6, mode="disagg"), ["h200"], "can be expressed (1 workers only decode)"),
    ],
)
def test_without_a_choice_there_is_one_line(tmp_path, runs, gpus, words):
    with refused(words):
        reduced(case(tmp_path, *runs, gpus=gpus))


def test_the_page_is_made_of_few_workloads(tmp_path):
    few = reduced(case(tmp_path, *sweep(1, 6, 8, 14), *sweep(2, 4, 5, 8)))
    run_notebook("serving_time_parallelism", few, tmp_path / "few")
    assert (tmp_path / "few/figure.png").exists() and (tmp_path / "few/table.csv").exists()
