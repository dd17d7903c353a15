"""Two recordings of a program beside each other: parts that add up, partners, and what is said of the change."""

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import own_case, reduced, refused
from recordings import Recording

from gpuledger.ledger.parts import split_parts
from gpuledger.models.simulate.timeline import write_timeline
from gpuledger.studies.kernel_breakdown.comparison import BETWEEN, IDLE
from gpuledger.studies.kernel_breakdown.comparison_figures import (
    changes,
    compared_table,
    component_table,
    span_headline,
)
from gpuledger.studies.kernel_breakdown.timeline.activity import busy, divided_times, length
from notebooks import run_notebook

US = 1e-6


def record(folder, name, *kernels, steps=3, pause=1.0, between=20.0, **options):
    """Write `steps` steps of kernels (name, µs[, operator, shapes]) with pauses inside and between them."""
    recording = Recording()
    for _ in range(steps):
        for at, (kernel, duration, *operator) in enumerate(kernels):
            operator = dict(zip(("operator", "shapes"), operator, strict=False))
            recording.kernel(kernel, duration, pause=pause if at else between, **operator, **options)
    return recording.write(folder, name)


def compared(after, before):
    """Compare two files of a folder as a dataset's case."""
    return reduced(own_case(after.parent, "kernel_breakdown", {"timeline": after.name, "baseline": before.name}))


def parts(result):
    table = split_parts(result.data)["components"].set_index("component")
    return {name: (row["before_s"] / US, row["after_s"] / US) for name, row in table.iterrows()}


def partners(result):
    table = split_parts(result.data)["compared"]
    return {
        row["before_kernels"] or row["after_kernels"]: (row["after_kernels"], row["matched_by"])
        for _, row in table.iterrows()
    }


def test_components_are_those_of_known_steps(tmp_path):
    before = record(tmp_path, "b.json", ("gemm_a", 30), ("rms_norm", 4), ("flash_fwd", 10))
    after = record(tmp_path, "a.json", ("gemm_a", 12), ("rms_norm", 4), ("flash_fwd", 11), pause=3, between=25)
    result = compared(after, before)
    assert parts(result) == {
        "gemm": pytest.approx((30, 12)),
        "attention": pytest.approx((10, 11)),
        "norm": pytest.approx((4, 4)),
        IDLE: pytest.approx((2, 6)),
        BETWEEN: pytest.approx((20, 25)),
    }
    assert (result["before_time"], result["after_time"]) == pytest.approx((66 * US, 58 * US))
    assert result["time_is"] == "from one step to the next"
    assert (result["pairs_of_steps"], result["pairs_shorter_percent"]) == (1, 100)
    assert result.finding == (
        "A step takes 58.0 µs instead of 66.0 µs (−12.1 %): "
        "GEMMs −18.0 µs, between steps +5.00 µs, no kernel runs +4.00 µs"
    )
    table = component_table(result)
    assert table["change_ms"].iloc[-1] == pytest.approx(-0.008)
    assert changes(result).sum() == pytest.approx(-8 * US)


def test_exchanging_the_recordings_turns_every_change(tmp_path):
    one = record(tmp_path, "b.json", ("gemm_a", 30), ("rms_norm", 4), ("flash_fwd", 10))
    other = record(tmp_path, "a.json", ("gemm_b", 12), ("quantize_fp8", 2), ("rms_norm", 5), pause=2)
    there, back = changes(compared(one, other)), changes(compared(other, one))
    pd.testing.assert_series_equal(there.sort_index(), -back.sort_index())


def test_a_recording_against_itself_has_no_change(tmp_path):
    path = write_timeline(tmp_path / "decode.json")
    result = compared(path, path)
    assert result.finding.endswith(
        "(+0 %); steps of one recording differ as much: the one after is the shorter in 50 % of pairs"
    )
    assert (result["before_matched_percent"], result["after_matched_percent"]) == (100, 100)
    assert not changes(result).any()
    run_notebook("kernel_breakdown_comparison", result, tmp_path / "out")


def test_simulated_fp8_gives_back_what_was_put_in(tmp_path):
    paths = [write_timeline(tmp_path / f"{name}.json") for name in ("decode_fp8", "decode")]
    result = compared(*paths)
    gemm, added = parts(result)["gemm"], parts(result)["quantize"]
    # 2 µs of every launch are not traffic; the LM head is as before. Durations scatter by 2 %.
    layers, head = gemm[0] - 2 * 129, 525336576 / 3.35e6 / 0.75
    assert gemm[1] - 2 * 129 == pytest.approx((layers - head) / 2 + head, rel=0.02)
    assert added[0] == 0 and added[1] == pytest.approx(128 * 2.05, rel=0.02)
    by = split_parts(result.data)["compared"].set_index("sizes")["matched_by"]
    assert by["8×14336×4096"] == "sizes" and by["8×64128×4096"] == "operation"
    assert result["after_kernels"] - result["before_kernels"] == 128
    run_notebook("kernel_breakdown_comparison", result, tmp_path / "out")
    assert {"figure.pdf", "figure_time.pdf", "figure_bound.pdf", "table.csv", "trace.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }


@pytest.mark.parametrize(("duration", "words"), [(30, "takes as long as"), (40, "is longer than"), (20, "is shorter")])
def test_one_pair_of_steps_is_said_in_words(tmp_path, duration, words):
    before = record(tmp_path, "b.json", ("gemm_a", 30), ("rms_norm", 4), steps=3)
    after = record(tmp_path, "a.json", ("gemm_a", duration), ("rms_norm", 4), steps=3)
    result = compared(after, before)
    result.summary["pairs_of_steps"]["value"] = 1
    assert words in span_headline(result)


def test_attention_of_the_same_queries_is_compared_whatever_its_keys_and_mask(tmp_path):
    queries, heads = [2, 32, 64, 64], [2, 8, 64, 64]
    name, other = "aten::_cudnn_attention_forward", "aten::_flash_attention_forward"
    before = [
        ("sdpa_fprop", 5, name, [queries, heads, heads, []]),
        ("flash_fwd", 4, other, [queries, heads, heads]),
    ]
    after = [
        ("sdpa_fprop", 16, name, [queries, queries, queries, [2, 1, 64, 64]]),
        ("flash_fwd", 4, other, [[2, 32, 32, 64], heads, heads]),
    ]
    result = compared(record(tmp_path, "a.json", *after), record(tmp_path, "b.json", *before))
    table = split_parts(result.data)["compared"]
    (own,) = table[table["matched_by"] == "queries"].to_dict("records")
    assert (own["before_s"], own["after_s"]) == pytest.approx((5 * US, 16 * US))
    # Of other queries it is another operation.
    assert (table["matched_by"] == "").sum() == 2 == len(table) - 1


def test_partners_by_operation_and_by_sizes_never_by_other_sizes(tmp_path):
    square, other = [[8, 64], [64, 64]], [[8, 64], [64, 32]]
    before = record(
        tmp_path,
        "b.json",
        ("old_gemm", 9, "aten::mm", square),
        ("gemm_x", 5, "aten::mm", other),
        ("rms_norm", 3, "aten::norm", [[8, 64]]),
    )
    after = record(
        tmp_path,
        "a.json",
        ("new_gemm", 7, "aten::_scaled_mm", square),
        ("gemm_y", 6, "aten::mm", [[8, 64], [64, 16]]),
        ("rms_norm", 3, "aten::norm", [[8, 64]]),
    )
    assert partners(compared(after, before)) == {
        "old_gemm": ("new_gemm", "sizes"),
        "gemm_x": ("", ""),
        "gemm_y": ("gemm_y", ""),
        "rms_norm": ("rms_norm", "operation"),
    }


def test_partners_by_name_where_operators_are_not_recorded(tmp_path):
    before = record(
        tmp_path,
        "b.json",
        ("gemm_tile_a", 9),
        ("void rms_norm<float>(int)", 3),
        ("flash_fwd", 5),
        ("act_one", 2),
        ("act_two", 2),
    )
    after = record(
        tmp_path,
        "a.json",
        ("gemm_tile_b", 7),
        ("void rms_norm<half>(int)", 3),
        ("flash_fwd", 5),
        ("act_three", 2),
        ("act_four", 3),
    )
    found = partners(compared(after, before))
    assert found["gemm_tile_a"] == ("gemm_tile_b", "launches")
    assert found["rms_norm"] == ("rms_norm", "short name")
    assert found["flash_fwd"] == ("flash_fwd", "name")
    # Two of a class with as many launches may be either's partner: none is named.
    assert found["act_one"] == found["act_two"] == ("", "")


def test_kernels_of_one_family_do_not_replace_each_other(tmp_path):
    stages = [("rms_norm1", 3), ("rms_norm2", 4)]
    before = record(tmp_path, "b.json", ("gemm_a", 9), *stages, ("softmax_v1", 6), ("triton_poi_fused_add_0", 2))
    other = [("rms_norm2", 4), ("rms_norm3", 5), ("softmax_v2", 3), ("triton_poi_fused_add_1", 1)]
    result = compared(record(tmp_path, "a.json", ("gemm_a", 9), *other), before)
    found = partners(result)
    assert found["rms_norm1"] == ("", "") and found["rms_norm3"] == ("rms_norm3", "")
    assert found["rms_norm2"] == ("rms_norm2", "name")
    # Alone, a number may be a version; the compiler counts from anew in every program.
    assert found["softmax_v1"] == ("softmax_v2", "launches")
    assert found["triton_poi_fused_add_0"] == ("triton_poi_fused_add_1", "compiler's name")
    shown = set(compared_table(result)["kernel"])
    assert {"softmax_v1 → softmax_v2", "rms_norm1", "rms_norm2", "rms_norm3"} <= shown
    # Tiles at the end of a name are of one product.
    before = record(tmp_path, "b.json", ("cutlass_gemm_align4", 9), ("cutlass_gemm_align2", 8), ("flash_fwd", 5))
    after = record(tmp_path, "a.json", ("cutlass_gemm_align4", 9), ("cutlass_gemm_align8", 5), ("flash_fwd", 5))
    assert partners(compared(after, before))["cutlass_gemm_align2"] == ("cutlass_gemm_align8", "launches")


def test_single_steps_are_compared_by_their_span(tmp_path):
    before, after = (
        record(tmp_path, f"{name}.json", ("gemm_a", time), ("rms_norm", 4), steps=1)
        for name, time in (("b", 9), ("a", 7))
    )
    result = compared(after, before)
    assert result["time_is"] == "a step's span" and BETWEEN not in parts(result)
    assert (result["before_time"], result["after_time"]) == pytest.approx((14 * US, 12 * US))
    assert "pairs_of_steps" not in result.summary
    variables, _ = run_notebook("kernel_breakdown_comparison", result, tmp_path / "out")
    assert variables["headline"] == "One step was recorded: how much steps differ is not known"


def test_sums_are_compared_with_the_sums_of_a_timeline(tmp_path):
    sums = tmp_path / "sums.csv"
    rows = ["Time (%),Total Time (ns),Instances,Avg (ns),Name", "70,60000,3,20000,gemm_a", "30,12000,3,4000,rms_norm"]
    sums.write_text("\n".join(rows) + "\n", "utf-8")
    result = compared(sums, record(tmp_path, "b.json", ("gemm_a", 30), ("rms_norm", 4)))
    assert result["time_is"] == "the kernels' time"
    assert parts(result) == {"gemm": pytest.approx((90, 60)), "norm": pytest.approx((12, 12))}
    assert result.finding == "All kernels take 72.0 µs instead of 102 µs (−29.4 %): GEMMs −30.0 µs"
    assert compared_table(result)["before_launch_us"].iloc[0] == pytest.approx(30)
    variables, _ = run_notebook("kernel_breakdown_comparison", result, tmp_path / "out")
    assert variables["headline"] == "The recordings have sums only, no steps"


def test_a_change_within_the_difference_of_steps_is_said_to_be_so(tmp_path):
    files = []
    for name, first in (("b", (30, 50, 40, 35)), ("a", (45, 31, 36, 38))):
        recording = Recording()
        for time in first:
            recording.kernel("gemm_a", time, pause=20)
            recording.kernel("rms_norm", 4)
        files.append(recording.write(tmp_path, f"{name}.json"))
    result = compared(files[1], files[0])
    spans = [split_parts(result.data)["spans"].query("recording == @name") for name in ("before", "after")]
    times = [np.diff(each["start_s"]) for each in spans]
    assert [len(each) for each in times] == [2, 2]
    pairs = [a > b for a in times[0] for b in times[1]]
    assert result["pairs_shorter_percent"] == pytest.approx(100 * np.mean(pairs))
    assert f"the one after is the shorter in {100 * np.mean(pairs):.0f} % of pairs" in result.finding


def test_a_case_is_labelled_and_takes_no_prediction(tmp_path):
    record(tmp_path, "a.json", ("gemm_a", 12), ("rms_norm", 4))
    record(tmp_path, "b.json", ("gemm_a", 30), ("rms_norm", 4))
    inputs = {"timeline": "a.json", "baseline": "b.json"}
    assert reduced(own_case(tmp_path, "kernel_breakdown", inputs)).finding.startswith("A step takes")
    with refused("dataset.yaml", "kernel_breakdown.mine.model", "'model' beside a baseline", "in a case of its own"):
        reduced(own_case(tmp_path, "kernel_breakdown", {**inputs, "model": "gpt2"}))
    with refused("b.json", "no annotation has 'x' in its name"):
        reduced(own_case(tmp_path, "kernel_breakdown", {**inputs, "step": "x"}))
    with refused("baseline", "timeline"):
        own_case(
            tmp_path,
            "kernel_breakdown",
            {
                **{"baseline": "b.json", "model": "gpt2", "hardware": ["h200"]},
                "phases": {"decode": {"batch": 1, "context": 9}},
            },
        )


moments = st.integers(0, 40)
KERNELS = st.lists(
    st.tuples(moments, st.integers(0, 20), st.sampled_from(("gemm", "norm", "communication"))), min_size=1, max_size=12
)


@given(KERNELS)
@settings(deadline=None)
def test_divided_times_add_up_and_computing_comes_first(kernels):
    rows = pd.DataFrame(kernels, columns=["start_s", "duration_s", "kernel_class"]).astype(
        {"start_s": float, "duration_s": float}
    )
    own = divided_times(rows)
    assert own.sum() == pytest.approx(length(busy(rows)))
    computes = (rows["kernel_class"] != "communication").to_numpy()
    assert own[computes].sum() == pytest.approx(length(busy(rows[computes])))
    assert (own >= -1e-12).all() and (own <= rows["duration_s"] + 1e-12).all()


@pytest.mark.parametrize("name", ["llama_decode_fp8"])
def test_the_simulated_case_says_that_it_is_simulated(name):
    from gpuledger.ledger.datasets import Dataset

    case = Dataset.load(ROOT / "traces/simulated/dataset.yaml").case("kernel_breakdown", name)
    assert case.dataset.made_here and set(case.inputs) == {"timeline", "baseline"}
