"""Training time: known answers, what a table may leave out, what a source states, and bad input in one line."""

import re
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from own_cases import own_case

from gpuledger.errors import InputError
from gpuledger.ledger import figures
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset
from gpuledger.models.training import TrainingRun, predict_steps
from gpuledger.models.transformer import read_model
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.training_time import reduce
from gpuledger.studies.training_time.explanation import OTHER, explain
from gpuledger.studies.training_time.figures import (
    chosen_runs,
    colours,
    draw_methods,
    draw_parts,
    draw_ratios,
    draw_ratios_of_runs,
    draw_times,
    sizes_finding,
    varied_sizes,
)
from gpuledger.studies.training_time.tables import error_table, of_one_length, run_table

RUN = {"model": "gpt2", "gpu": "h100-sxm", "sequence_tokens": 1024, "micro_batch": 8, "tokens_per_s": 1.2e6}


def a_case(tmp_path, *changed, drop=(), **more):
    pd.DataFrame([{**RUN, **change} for change in changed or [{}]]).drop(columns=list(drop)).to_csv(
        tmp_path / "runs.csv", index=False
    )
    return own_case(tmp_path, "training_time", {"runs": "runs.csv", "gpu": "h100-sxm", **more}, "first")


def reduced(*args, **more):
    return reduce_case(a_case(*args, **more), reduce)


@pytest.fixture(scope="module")
def published():
    dataset = Dataset.load(ROOT / "traces/published/dataset.yaml")
    return {name: reduce_case(dataset.case("training_time", name), reduce) for name in ("mpt_h100", "mpt_a100_40gb")}


def test_a_run_is_predicted_as_the_library_does(tmp_path):
    result = reduced(tmp_path, {"accumulation": 3, "gpus": 4})
    (run,) = result.data.to_dict("records")
    gpu = find_gpu("h100-sxm")
    steps, _ = predict_steps([TrainingRun(read_model("gpt2"), gpu, 1024, 8, 3, 4)], gpu)
    assert run["kernels_s"] == pytest.approx(steps["step_s"][0], rel=1e-5)
    assert run["measured_s"] == pytest.approx(3 * 4 * 8 * 1024 / 1.2e6, rel=1e-5)
    flops = 6 * 124439808 + 12 * 12 * 768 * 1024
    assert run["mfu_percent"] == pytest.approx(100 * flops * 1.2e6 / 4 / 989.4e12, rel=1e-4)
    assert result["step_median_error_percent"] == pytest.approx(
        100 * abs(run["kernels_s"] / run["measured_s"] - 1), rel=1e-3
    )
    assert np.isnan(run["explained_s"]) and "explained" not in result.finding, "one run explains nothing"
    assert result.provenance["kind"] == "predicted"


def test_a_table_may_say_whose_implementation_ran(tmp_path):
    data = reduced(tmp_path, {}, {"implementation": "transformers"}).data
    assert data["implementation"].tolist() == ["fused", "transformers"]
    assert data["elementwise_s"][1] > data["elementwise_s"][0]
    # Moving more bytes draws less power than multiplying: the clock is higher.
    assert data["clock_hz"][1] > data["clock_hz"][0]
    assert data["gemm_s"][1] == data["gemm_s"][0] and data["power_s"][1] < data["power_s"][0]
    assert "implementation" not in reduced(tmp_path).data, "nothing is said where nothing differs"


def test_a_table_needs_no_more_than_shapes_and_a_speed(tmp_path):
    (usual,) = reduced(tmp_path).data.to_dict("records")
    assert (usual["gpus"], usual["accumulation"], usual["recompute"], usual["precision"]) == (8, 1, False, "bf16")
    for same in ({"tokens_per_s_per_gpu": 1.5e5}, {"step_s": 8 * 8 * 1024 / 1.2e6}):
        (run,) = reduced(tmp_path, same, drop=["tokens_per_s"]).data.to_dict("records")
        assert run["measured_s"] == pytest.approx(usual["measured_s"], rel=1e-5)


def test_a_note_of_the_table_does_not_hide_the_source_of_the_dataset(tmp_path):
    a_case(tmp_path)
    about = {"files": {"runs.csv": {"note": "medians"}}, "source": "measured here"}
    case = own_case(tmp_path, "training_time", {"runs": "runs.csv", "gpu": "h100-sxm"}, "first", **about)
    assert reduce_case(case, reduce).provenance["source"].endswith("measured runs: measured here")


def test_two_runs_that_differ_in_recomputation_only_are_told_apart(tmp_path):
    result = reduced(tmp_path, {"recompute": "false"}, {"recompute": "true", "tokens_per_s": 1e6})
    figure, axes = plt.subplots()
    draw_parts(axes, chosen_runs(result.data))
    labels = {label.get_text() for label in axes.get_yticklabels()}
    assert labels == {"gpt2, 1k × 8, 8 GPUs", "gpt2, 1k × 8, 8 GPUs,\nrecomputed"}
    plt.close(figure)


@pytest.mark.parametrize(("gpus", "named"), [(1, False), (8, True)])
def test_a_legend_names_communication_where_there_is_any(tmp_path, gpus, named):
    figure, axes = plt.subplots()
    draw_parts(axes, reduced(tmp_path, {"gpus": gpus}).data)
    assert ("communication" in axes.get_legend_handles_labels()[1]) == named
    plt.close(figure)


def test_rows_of_other_gpus_and_unknown_models_are_counted(tmp_path):
    changed = [{}, {"gpu": "a100-sxm-80gb"}, {"model": "no-such-model"}, {"gpus": 16}, {"micro_batch": 2**30}]
    result = reduced(tmp_path, *changed)
    assert (result["runs"], result["runs_expressed"], result["other_gpus_runs"]) == (4, 1, 1)
    assert "not a model" in result["not_expressed"] and "the network between nodes" in result["not_expressed"]
    assert reduced(tmp_path, *changed, network_gbit_per_s=1600)["runs_expressed"] == 2


@pytest.mark.parametrize(
    ("change", "drop", "match"),
    [
        ({}, ["tokens_per_s"], "line 2: nothing says how fast the run was"),
        ({}, ["micro_batch"], "the column 'micro_batch' is missing"),
        ({"precision": "fp4"}, [], "column precision"),
        ({"recompute": "perhaps"}, [], "column recompute"),
        ({"implementation": "by hand"}, [], "column implementation"),
        ({"sequence_tokens": 0}, [], "column sequence_tokens"),
        ({"gpu": "a100-sxm-80gb"}, [], "no run on h100-sxm"),
        ({"model": "../../etc"}, [], "no run on h100-sxm can be expressed"),
        ({"tokens_per_s": 1.2e3}, [], "times shorter|times longer|than their kernels"),
    ],
)
def test_bad_input_is_one_line(tmp_path, change, drop, match):
    with pytest.raises(InputError, match=match):
        reduced(tmp_path, change, drop=drop)


@given(gemm=st.floats(1, 1.5), rate=st.floats(60e12, 400e12), other=st.floats(1, 3), seed=st.integers(0, 2**32 - 1))
def test_the_explanation_finds_what_made_the_times(gemm, rate, other, seed):
    random = np.random.default_rng(seed)
    names = ["gemm_s", "attention_s", *OTHER, "exposed_s"]
    data = pd.DataFrame(random.uniform(0.1, 1, (40, len(names))), columns=names)
    data["attention_flop"] = data["attention_s"] * 500e12 * random.uniform(0.9, 1, 40)
    data["measured_s"] = gemm * data["gemm_s"] + data["attention_flop"] / rate + other * data[list(OTHER)].sum(axis=1)
    data["measured_s"] += data["exposed_s"]
    # A few runs that are unlike the others do not matter.
    data.loc[:4, "measured_s"] *= 1.3
    found = explain(data)
    assert [found.gemm, found.attention_flop_per_s, found.other] == pytest.approx([gemm, rate, other], rel=0.01)
    assert explain(data.head(5)) is None
    # The same share of every class in all steps: nothing tells them apart.
    assert explain(data.loc[[7] * 40]) is None


@pytest.mark.parametrize("size", ["tokens_per_s", "micro_batch"])
def test_runs_that_are_alike_explain_nothing(tmp_path, size):
    # One shape is in one half only; batches of one shape have all classes of kernels in the same proportion.
    runs = [{"tokens_per_s": 9e5} | {size: RUN[size] + at} for at in range(30)]
    result = reduced(tmp_path, *runs)
    assert result["runs_expressed"] == 30 and "gemm_factor" not in result.summary
    assert ", all too short, by" in result.finding and "held-back" not in result.finding
    assert result.data["explained_s"].isna().all()


def test_published_runs_are_short_of_time_and_explained_by_attention(published):
    for name, rate, error in (("mpt_h100", 188, 5), ("mpt_a100_40gb", 99.5, 5)):
        result = published[name]
        assert result["steps_predicted_too_long"] == result["runs_predicted_not_to_fit"] == 0
        assert result["attention_rate"] == pytest.approx(rate, rel=0.05)
        assert result["attention_rate"] < result["attention_rate_predicted"] / 1.9
        for number in ("attention_rate", "gemm_factor", "other_factor"):
            assert result[f"{number}_other_half"] == pytest.approx(result[number], rel=0.15)
        # Of what is not predicted, attention is the largest part in long sequences, not in most runs.
        assert result["attention_largest_gap_from"] == 8192 and result["attention_largest_gap_percent"] < 50
        assert result["explained_median_error_percent"] < error < result["step_median_error_percent"]
        assert result["step_median_error_percent"] < result["roofline_median_error_percent"]


def test_what_the_source_states_follows_from_its_throughput(published):
    for result, wrong in ((published["mpt_h100"], 0), (published["mpt_a100_40gb"], 78)):
        runs = result["runs"]
        assert [result[f"{name}_reproduced"] for name in ("parameters", "mfu", "hfu")] == [runs] * 3
        assert (result["model_flops_reproduced"], result["model_flops_100_times_too_large"]) == (runs - wrong, wrong)


def test_a_stated_utilisation_that_does_not_follow_is_found(tmp_path):
    flops = 6 * 124439808 + 12 * 12 * 768 * 1024
    right = 100 * flops * 1.2e6 / 8 / 989.4e12
    changed = [{"mfu_percent": round(right, 2)}, {"mfu_percent": round(right, 2) + 0.02}]
    assert reduced(tmp_path, *changed)["mfu_reproduced"] == 1
    other = reduced(tmp_path, *changed, peaks_tflop_per_s={"bf16": 312})
    assert other["mfu_reproduced"] == 0


def test_panels_and_tables_hold_all_runs(published):
    data = published["mpt_h100"].data
    figures.use_style()
    _, axes = plt.subplots(6)
    of_model = colours(data)
    draw_times(axes[0], data, of_model)
    assert sum(len(marks.get_offsets()) for marks in axes[0].collections[1:]) == len(data)
    for panel, size in zip(axes[1:4], ("sequence_tokens", "tokens", "gpus"), strict=True):
        draw_ratios(panel, data, size, size)
    assert [len(panel.lines) for panel in axes[1:4]] == [4, 4, 4], "medians of kernels alone and of two baselines"
    assert set(np.log2(axes[2].lines[1].get_xdata()) % 1) == {0}, "of sizes rounded to powers of two"
    for panel in axes[1:4]:
        low, high = panel.get_ylim()
        assert all(low < min(line.get_ydata()) and max(line.get_ydata()) < high for line in panel.lines)
    # Numbers of GPUs are compared at one length of sequence: the long ones ran on eight GPUs.
    alike = of_one_length(data)
    assert alike["sequence_tokens"].unique() == [2048] and set(alike["gpus"]) == set(data["gpus"])
    assert len(axes[3].collections[-1].get_offsets()) == len(alike) < len(data)
    some = chosen_runs(data)
    draw_parts(axes[4], some)
    ends = [bar.get_x() + bar.get_width() for bar in axes[4].containers[-1]]
    assert ends == pytest.approx([100] * len(some)), "all of the measured time"
    draw_methods(axes[5], data)
    assert len(axes[5].patches) == 4
    plt.close("all")
    assert "at 512 tokens and" in sizes_finding(data)
    table = error_table(data)
    assert table["runs"][0] == len(run_table(data)) == 62
    assert table[table["by"] == "model"]["runs"].sum() == 62


def test_one_run_makes_a_figure(tmp_path):
    result = reduced(tmp_path)
    assert result.finding.startswith("Kernels alone predict 1 training step on")
    data = result.data
    _, axes = plt.subplots(4)
    draw_times(axes[3], data, colours(data))
    assert axes[3].get_legend() is None and any(label.get_text() for label in axes[3].get_xticklabels())
    draw_ratios_of_runs(axes[0], data)
    draw_parts(axes[1], chosen_runs(data))
    draw_methods(axes[2], data)
    assert len(axes[2].patches) == 3, "nothing is explained"
    plt.close("all")
    assert re.fullmatch(r"Kernels alone predict \d+ % of the .* roofline \d+ %, 40 % MFU \d+ %", sizes_finding(data))
    assert len(error_table(data)) == 6


def test_a_size_that_all_runs_share_has_no_panel(tmp_path):
    """A panel of it would have a single column of dots; few runs have rows, with all of their predictions."""
    runs = reduced(tmp_path, {"gpus": 4}, {"gpus": 8}).data
    assert varied_sizes(runs) == {"gpus": "GPUs"}
    _, axes = plt.subplots()
    draw_ratios_of_runs(axes, runs)
    assert [len(marks.get_offsets()) for marks in axes.collections] == [2, 2, 2]
    ends = sorted(place for marks in axes.collections for place, _ in marks.get_offsets())
    assert axes.get_xlim()[0] == 0 < ends[0] <= ends[-1] < axes.get_xlim()[1]
    plt.close("all")


def test_axes_of_close_times_have_ticks_that_do_not_touch(tmp_path):
    data = reduced(tmp_path).data
    figures.use_style()
    figure, axes = plt.subplots(figsize=(3.3, 3))
    draw_times(axes, data.assign(kernels_s=0.95 * data["measured_s"]), colours(data))
    figure.canvas.draw()
    places = [text.get_window_extent() for text in axes.get_xticklabels() if text.get_text()]
    assert len(places) >= 2
    assert all(one.x1 < other.x0 for one, other in pairwise(sorted(places, key=lambda place: place.x0)))
    plt.close("all")
