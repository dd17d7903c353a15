"""Figures across datasets, of small made-up results: what they say, and that every case is in them."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from gpuledger.ledger import across, figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.parts import join_parts
from gpuledger.ledger.study import read_studies
from gpuledger.studies.block_scheduling import across as block_scheduling
from gpuledger.studies.dmat import across as dmat
from gpuledger.studies.kernel_breakdown import across as kernel_breakdown
from gpuledger.studies.kernel_profile import across as kernel_profile
from gpuledger.studies.kernel_time import across as kernel_time
from gpuledger.studies.normalization_roofline import across as normalization
from gpuledger.studies.serving_time import across as serving_time
from gpuledger.studies.warp_scheduling import across as warp_scheduling


@pytest.fixture(autouse=True)
def style():
    figures.use_style()
    yield
    plt.close("all")


def result(frame, dataset, case, kind, **quantities):
    """A result of a case, with the provenance that figures across datasets read."""
    record = {"dataset": dataset, "case": case, "kind": kind, "label": kind}
    return CaseResult(frame, {name: {"value": value, "unit": "1"} for name, value in quantities.items()}, record)


def words(figure):
    return " ".join(" ".join(text.get_text() for text in figure.findobj(plt.Text)).split())


def test_every_study_that_draws_across_is_found():
    modules = [block_scheduling, dmat, kernel_breakdown, kernel_profile, kernel_time, normalization, serving_time]
    modules.append(warp_scheduling)
    names = [module.__name__.split(".")[-2] for module in modules]
    assert [study.name for study in read_studies().values() if study.across] == names


def test_a_record_names_every_label_and_dataset_once():
    rows = [
        {"dataset": "a", "kind": "published", "label": "published"},
        {"dataset": "b", "kind": "predicted", "label": "predicted, compared with times (downloaded, recorded on X)"},
        {"dataset": "b", "kind": "predicted", "label": "predicted, compared with times (downloaded, recorded on Y)"},
    ]
    record = across.record_of("kernel_time", rows)
    assert record["label"] == "published; predicted, compared with times"
    assert (record["kind"], record["source"]) == ("predicted", "Datasets a, b")


def test_published_tails_of_warps_are_the_headline():
    tails = {("exclusive", "published"): 0.0819, ("shared", "published"): 0.2469, ("shared", "simulated"): 0.3}
    cases = []
    for (blocks, kind), tail in tails.items():
        points = {"completed_percent": [0.0, 100.0], "elapsed_cycles": [10, 12], "over_fastest_ratio": [0.0, tail]}
        about = {"kernel": "GEMM", "blocks": blocks, "tail_ratio": tail}
        cases.append(result(join_parts(point=pd.DataFrame(points)), kind, "a", kind, **about))
    text = words(warp_scheduling.draw(warp_scheduling.choose(cases)))
    assert "a tail of 25 instead of 8 % (GEMM)" in text
    assert "24.7 % published 30.0 % simulated" in text


def test_cases_without_a_kernel_s_name_are_called_as_they_are():
    """The figures ended in a KeyError, and with them every figure across datasets."""
    points = {"completed_percent": [0.0, 100.0], "elapsed_cycles": [10, 12], "over_fastest_ratio": [0.0, 0.2]}
    mine = [
        result(join_parts(point=pd.DataFrame(points)), "d", f"mine_{i}", "recorded", tail_ratio=0.2) for i in range(9)
    ]
    text = words(warp_scheduling.draw(warp_scheduling.choose(mine)))
    assert "all blocks, tail 20.0 % recorded" in text and "mine_3" in text and "mine_4" not in text
    cells = pd.DataFrame({"tensor": ["a", "a"], "row": [0, 1], "column": [0, 9], "accesses": [1, 2]})
    grid = {"rows": 2, "columns": 10, "compatible": "no"}
    short = result(cells, "d", "short", "recorded", max_clock=0, column_cycles=1, **grid)
    long = result(cells, "d", "long", "recorded", max_clock=9 * 10**12, column_cycles=10**12, **grid)
    assert "The last access of long comes 9,000,000,000,000.0 times as late in a thread as that of short" in words(
        dmat.draw(dmat.choose([short, long]))
    )
    assert "The last access of long comes after 9,000,000,000,000 cycles" in words(dmat.draw(dmat.choose([long])))


def test_figures_without_room_for_all_say_how_many_there_are():
    points = {"completed_percent": [0.0, 100.0], "elapsed_cycles": [10, 12], "over_fastest_ratio": [0.0, 0.2]}
    cells = pd.DataFrame({"tensor": ["a"], "row": [0], "column": [0], "accesses": [1]})
    grid = {"rows": 1, "columns": 1, "compatible": "no", "column_cycles": 1, "max_clock": 5}
    for module, frame, about, what in (
        (warp_scheduling, join_parts(point=pd.DataFrame(points)), {"tail_ratio": 0.2}, "kernels"),
        (dmat, cells, grid, "timelines"),
    ):
        cases = [result(frame, "d", f"mine_{i}", "recorded", **about) for i in range(9)]
        assert f"(4 of 9 {what} drawn)" in words(module.draw(module.choose(cases)))
        assert "drawn" not in words(module.draw(module.choose(cases[:4])))


def test_what_cannot_be_compared_is_left_out():
    frame = pd.DataFrame({"kernel": ["one_pass"], "cache": ["warm"]})
    alone = result(frame, "d", "zeros", "recorded", kernel_time=1.0, data_sheet_bandwidth=1.0)
    untimed = result(frame, "d", "zeros_persistent", "recorded")
    assert block_scheduling.choose([alone, untimed]) == [] == normalization.choose([alone, untimed])
    assert "no case has what this figure puts side by side" in words(across.without_cases())
    simulated = [result(frame, "s", str(i), "simulated") for i in range(4)]
    assert dmat.choose([*simulated, alone]) == [alone, *simulated[:3]]


def test_before_and_after_share_a_time_axis_with_published_times():
    sms = pd.DataFrame({"part": "sm", "sm": [0], "blocks": [2], "resident_blocks": [1]})
    times = {"sm": [0, 0], "slot": [0, 0], "start_cycles": [0, 60], "end_cycles": [50, 100]}
    frame = pd.concat([sms, pd.DataFrame({"part": "block", **times})], ignore_index=True).convert_dtypes()
    about = {"resident_blocks_max": 1, "kernel_cycles": 110, "running_cycles_per_sm": 90.0, "kernel": "zeros"}
    before = result(frame, "s", "zeros", "simulated", kernel_time=100.0, scheduling_cycles_per_sm=10.0, **about)
    after = result(frame, "s", "zeros_persistent", "simulated", kernel_time=75.0, scheduling_cycles_per_sm=0.0, **about)
    figure = block_scheduling.draw([before, after], {"original_time": 200, "persistent_time": 100})
    assert "save 50 % of the time as published (200 to 100 ns), 25 % in the simulation" in words(figure)
    bars = [patch.get_width() for patch in figure.axes[0].patches]
    assert sum(bars[:3]) == pytest.approx(0.1) and bars[1] == pytest.approx(0.1 * 10 / 110)


def test_timelines_share_an_axis_of_clocks():
    cases = []
    for name, clock in (("one", 1000), ("two", 1500)):
        cells = {"tensor": ["query", "key", "key"], "row": [0, 1, 1], "column": [0, 0, 3], "accesses": [1, 2, 3]}
        about = {"kernel": name, "rows": 2, "columns": 4, "column_cycles": clock // 4, "max_clock": clock}
        cases.append(result(pd.DataFrame(cells), "s", name, "simulated", compatible="no", **about))
    figure = dmat.draw(dmat.choose(cases))
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 1530.0)}
    assert "Simulated: the last access of two comes 1.5 times as late in a thread as that of one" in words(figure)


def test_errors_of_every_gpu_are_side_by_side():
    frame = pd.DataFrame({"operator": "gemm", "group": "16-bit", "held_back": [True, True, False]})
    frame = frame.assign(measured_s=1.0, predicted_s=[1.1, 0.9, 9.0], roofline_s=0.5, derate_s=np.nan, derated_s=0.8)
    frame = frame.assign(lookup_s=1.05)
    cases = [result(frame, "d", gpu, "predicted", gpu=gpu) for gpu in ("a100", "h100")]
    figure = kernel_time.draw(cases)
    assert "On 2 GPUs the time model's mean error is 10 %, the roofline's 50 %" in words(figure)
    assert "a look-up is better in 2 of 2" in words(figure)
    assert "gemm, 16-bit (a100: 2)" in words(figure)


def test_measured_and_simulated_normalization_kernels_are_told_apart():
    cases = []
    for kind, kernel, bandwidth in (("downloaded", "liger", 8e11), ("simulated", "one_pass", 9e11)):
        rows = {
            **{"kernel": [kernel, "torch"], "cache": "cold", "moved_bytes": 1e8},
            "bandwidth_byte_per_s": [bandwidth, 4e11],
        }
        about = {"data_sheet_bandwidth": 1e12, "gpu": "H100"}
        cases.append(result(pd.DataFrame(rows), kind, kind, kind, **about))
    figure = normalization.draw(cases)
    said = "optimised kernels reach 80 %, PyTorch's kernels reach 40 % of the bandwidth"
    assert said in words(figure), "what was simulated is no measurement"
    assert "sizes simulated optimised kernels reach 90" in words(normalization.draw(cases[1:]))
    assert [line.get_linestyle() for line in figure.axes[0].lines[:2]] == ["-", "--"]


def test_served_runs_of_every_gpu_and_engine_are_side_by_side():
    cases = []
    sizes = {"mode": "agg", "model": "m", "input_tokens": 8, "output_tokens": 8, "requests": 1, "gpus": 1}
    for gpu, ratio in (("NVIDIA A", 0.9), ("NVIDIA B", 1.3)):
        runs = pd.DataFrame({"engine": ["vllm", "vllm", "sglang"], "measured_s": 1.0, "kernels_s": ratio, **sizes})
        cases.append(result(runs, "d", gpu, "predicted", gpu=gpu))
    figure = serving_time.draw(cases)
    assert "per output token of 6 served runs on 2 GPUs with median errors of 10 to 30 %" in words(figure)
    same = result(runs.tail(1).assign(measured_s=1.00002), "e", "typed", "predicted", gpu=gpu)
    assert "of 6 served runs" in words(serving_time.draw([*cases, same])), "the same run in two datasets counts once"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["SGLang (d: 1)", "vLLM (d: 2)"] * 2
    (dots,) = (mark for mark in figure.axes[0].collections if len(mark.get_offsets()) == 4)
    assert list(dots.get_offsets()[:, 0]) == [0.9, 0.9, 1.3, 1.3]
    # Workers that only decode are told apart; a single run says little beside twenty.
    many = pd.concat([runs] * 7).assign(requests=range(21))
    apart = many.assign(mode="disagg", kernels_s=1.05)
    both = result(pd.concat([many, apart]), "d", "c", "predicted", gpu="NVIDIA C")
    figure = serving_time.draw([*cases, both])
    said = words(figure)
    assert "of 21 served runs on 1 GPU with median errors of 30 % per GPU, and of 21 runs whose workers" in said
    assert "only decode on 1 GPU with median errors of 5 %" in said
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[-2:] == ["SGLang, decode only (d: 7)", "vLLM, decode only (d: 14)"]


def test_the_time_of_every_recording_is_divided_by_what_limits_it(monkeypatch):
    kernels = pd.DataFrame({"share_percent": [70.0, 28.0, 2.0], "bound": ["dram", "latency", "fp32"]})
    kernels["achieved_percent"] = [90.0, 20.0, 80.0]
    monkeypatch.setattr(kernel_profile, "kernel_table", lambda data: data)
    empty = kernels.assign(bound=None)
    cases = [result(kernels, "d", "a", "recorded", gpu="G"), result(empty, "d", "b", "published")]
    drawn = kernel_profile.choose(cases)
    assert drawn == cases[:1]
    figure = kernel_profile.draw(drawn)
    assert "In 1 of 1 recordings most of the time goes to kernels at 60 % of a roof or more" in words(figure)
    bars, dots = figure.axes
    assert [bar.get_width() for bar in bars.patches] == [70, 2, 28]
    # Kernels of less than 5 % of the time are in the bar only.
    assert list(dots.collections[0].get_offsets()[:, 0]) == [90, 20]


def test_recorded_steps_have_their_prediction_below_and_simulated_ones_are_not_measured():
    launches = {"kind": "kernel", "kernel_class": ["gemm", "elementwise"], "operator": "", "role": ["qkv_proj", "act"]}
    rows = pd.DataFrame({**launches, "duration_s": [0.003, 0.001], "predicted_s": [0.0015, 0.0005], "launches": 1})
    times = {"phase": "decode", "kind": ["gemm", "attention"], "hardware": "h100", "time_s": [0.001, 0.002]}
    model = pd.DataFrame({**times, "count": [3, 1]})
    cases = [result(join_parts(kernels=model), "published", "m", "predicted")]
    for kind, scale in (("downloaded", 1), ("simulated", 2)):
        step = join_parts(launches=rows.assign(predicted_s=scale * rows["predicted_s"]))
        cases.append(result(step, kind, "step", kind, hardware="G"))
    figure = kernel_breakdown.draw(cases)
    assert "The model predicts 50 % of the kernel time of 1 measured step" in words(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0] == "downloaded: step (G)" and labels[-1] == "predicted: m, decode"
    bars = [bar for bar in figure.axes[0].patches if bar.get_width() and bar.get_height() == 0.75]
    assert [round(bar.get_width()) for bar in bars] == [75, 25, 38, 12, 75, 25, 75, 25, 60, 40]
