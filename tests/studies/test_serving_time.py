"""Serving time: which runs can be expressed, their steps, the term per engine, and bad input in one line."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from own_cases import own_case

from gpuledger.errors import InputError
from gpuledger.ledger import figures
from gpuledger.ledger.case_result import reduce_case
from gpuledger.models.deployment import Deployment, passes
from gpuledger.models.time_model.step import predict, totals
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model
from gpuledger.models.transformer.routing import SERVED_LOAD
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.serving_time import reduce, sweeps
from gpuledger.studies.serving_time.figures import colours, draw_classes, draw_runs
from gpuledger.studies.serving_time.gain import agreed, gains
from gpuledger.studies.serving_time.runs import read_runs
from gpuledger.studies.serving_time.tables import error_table, gain_table, short_name

RUN = {
    **{"id": "a", "backend": "vllm", "model_path": "Llama-3.1-8B", "system": "h200_sxm", "mode": "agg", "isl": 1024},
    **{"osl": 512, "gemm_quant_mode": "", "batch_size": 8.0, "tp_size": 1.0, "pp_size": 1.0, "attention_dp_size": 1.0},
    **{"moe_tp_size": 1.0, "moe_ep_size": 1.0, "silicon_ttft_ms": 40.0, "silicon_tpot_ms": 6.0},
}


def a_case(tmp_path, *changed, gpu="h200", drop=()):
    rows = [{**RUN, "id": str(at), **change} for at, change in enumerate(changed or [{}])]
    (tmp_path / "mine").mkdir(exist_ok=True)
    pd.DataFrame(rows).drop(columns=list(drop)).to_csv(tmp_path / "mine/runs.csv", index=False)
    return own_case(tmp_path / "mine", "serving_time", {"runs": "runs.csv", "gpu": gpu}, "first")


def reduced(*args, **more):
    return reduce_case(a_case(*args, **more), reduce)


def test_a_step_is_the_sum_of_its_kernels_and_of_other_requests_prompts(tmp_path):
    result = reduced(tmp_path)
    rows = predict(kernels(read_model("Llama-3.1-8B"), decode(1024 + 256, 8)), find_gpu("h200"), "vllm")
    whole = totals(rows, np.zeros(len(rows), int), 1)["time_s"][0]
    run = result.data.iloc[0]
    assert run["decode_s"] == pytest.approx(whole, rel=1e-5)
    # Seven other requests end in 512 steps; a prompt costs hardly more than alone.
    assert 0.5 < run["prompts_s"] / (7 / 512 * run["prompt_s"]) < 1.1
    assert run["kernels_s"] == pytest.approx(run["decode_s"] + run["prompts_s"], rel=1e-5)
    # What `gpuledger predict` says of the same deployment.
    same = Deployment(read_model("Llama-3.1-8B"), find_gpu("h200"), 1024, 512, engine="vllm")
    assert run["kernels_s"] == pytest.approx(passes(same, [8])["served_tpot_s"][1], rel=1e-5)
    assert run["predicted_s"] == run["kernels_s"], "one run is too few to fit a term to"
    error = 100 * abs(run["kernels_s"] / 6e-3 - 1)
    assert result["tpot_median_error_unfitted_percent"] == pytest.approx(error, rel=1e-4)
    assert (result["runs"], result["runs_expressed"], result["not_expressed"]) == (1, 1, "none")
    assert "output token of 1 of 1 served runs" in result.finding and "half" not in result.finding
    assert result.provenance["kind"] == "predicted" and "vllm" in json.dumps(result.provenance["inputs"])


def test_requests_that_wait_for_their_first_token_neither_decode_nor_meet_prompts(tmp_path):
    at_once, half, hardly = (
        reduced(tmp_path, {"silicon_ttft_ms": wait}).data.iloc[0] for wait in (0, 512 * 1e3 * step_s(4), 1e8)
    )
    assert at_once["given_ttft_s"] == pytest.approx(at_once["kernels_s"], rel=1e-5)
    assert hardly["given_ttft_s"] == pytest.approx(step_s(1), rel=1e-3)
    # Half of them decode, with half of the prompts among them, if they wait as long as a step of half of them takes
    # for every token; the prompts' time moves that share up a little.
    share = (half["given_ttft_s"] - step_s(4)) / at_once["prompts_s"]
    assert 0.5 < share < 0.6
    assert half["kernels_s"] == at_once["kernels_s"], "a measured time is no input of the prediction"


def test_a_single_request_waits_for_nobody(tmp_path):
    run = reduced(tmp_path, {"batch_size": 1}).data.iloc[0]
    assert run["prompts_s"] == 0 and run["kernels_s"] == run["decode_s"]


def test_runs_that_have_no_time_for_their_prompts_are_counted(tmp_path):
    prompts_ms = 8e3 * reduced(tmp_path).data["prompt_s"].iloc[0]
    # All but the first of the two tokens come after the first.
    lasting = ({"osl": 2, "silicon_ttft_ms": share * prompts_ms, "silicon_tpot_ms": 1e-3} for share in (0.9, 1.1))
    usual = ({"osl": osl} for osl in (256, 512, 1024))
    assert reduced(tmp_path, *lasting, *usual)["runs_faster_than_prompts"] == 1


def test_fewer_bits_take_less_time(tmp_path):
    modes = [{"gemm_quant_mode": mode, "system": "b200_sxm"} for mode in ("", "fp8", "nvfp4")]
    data = reduced(tmp_path, *modes, gpu="b200").data
    assert data["precision"].tolist() == ["16-bit", "fp8", "nvfp4"]
    assert (data["decode_s"].diff().dropna() < 0).all()


def test_runs_that_cannot_be_expressed_are_counted_by_reason(tmp_path):
    result = reduced(
        tmp_path,
        {},
        {"mode": "offline"},
        {"mode": "disagg"},
        {"backend": "tgi"},
        {"gemm_quant_mode": "int3"},
        {"tp_size": 16},
        {"tp_size": 3},
        {"batch_size": ""},
        {"silicon_data_source": "x; silicon_concurrency=64"},
        {"system": "b200_sxm"},
    )
    assert (result["runs"], result["other_gpus_runs"], result["runs_expressed"]) == (9, 1, 1)
    for reason in (
        "1 mode offline",
        "1 batch: how many workers share how many requests is not given",
        "1 engine tgi: no kernel of it was measured",
        "1 precision int3",
        "1 parallelism: more GPUs than share one NVLink switch",
        "1 parallelism: the model cannot be split so",
        "1 parallelism: batch or tensor parallelism is not given",
        "1 batch: not the concurrency that the run was driven with",
    ):
        assert reason in result["not_expressed"], reason


def test_sliced_experts_across_replicas_are_expressed_as_vllm_exchanges(tmp_path):
    sliced = {"model_path": "DeepSeek-V3", "attention_dp_size": 8.0, "moe_tp_size": 8.0, "gemm_quant_mode": "fp8_block"}
    result = reduced(tmp_path, sliced, {**sliced, "backend": "sglang"})
    assert result.data["parallelism"].tolist() == ["TP1 DP8"]
    assert result["not_expressed"] == (
        "1 parallelism: sliced experts across replicas, whose exchange is known of vLLM alone"
    )


#: Two workers of eight requests each, of which none waits: the batch and sizes of what processes prompts are empty.
DECODES = {
    **{"mode": "disagg", "batch_size": "", "tp_size": "", "pp_size": "", "attention_dp_size": "", "moe_tp_size": ""},
    **{"moe_ep_size": "", "decode_batch_size": 8, "decode_num_workers": 2, "decode_tp_size": 1, "decode_pp_size": 1},
    **{"decode_attention_dp_size": 1, "decode_moe_tp_size": 1, "decode_moe_ep_size": 1, "silicon_ttft_ms": 0},
    "silicon_data_source": "x; silicon_concurrency=16",
}


def step_s(requests):
    rows = predict(kernels(read_model("Llama-3.1-8B"), decode(1024 + 256, requests)), find_gpu("h200"), "vllm")
    return totals(rows, np.zeros(len(rows), int), 1)["time_s"][0]


def test_workers_that_only_decode_take_a_decode_step_per_token(tmp_path):
    result = reduced(tmp_path, {}, DECODES)
    together, apart = result.data.iloc[0], result.data.iloc[1]
    assert (apart["mode"], apart["requests"], apart["decoding"], apart["gpus"]) == ("disagg", 8, 8, 1)
    assert apart["kernels_s"] == apart["decode_s"] == pytest.approx(step_s(8), rel=1e-5)
    assert apart["prompts_s"] == 0 < together["prompts_s"]
    assert np.isnan(apart["prompt_s"]) and np.isnan(apart["first_token_s"]), "its first token is not judged"
    # Each mode has figures of its own.
    assert (result["runs"], result["runs_expressed"], result["disagg_runs_expressed"]) == (2, 2, 1)
    for name, run in (("tpot", together), ("disagg_tpot", apart)):
        error = 100 * abs(run["kernels_s"] / 6e-3 - 1)
        assert result[f"{name}_median_error_unfitted_percent"] == pytest.approx(error, rel=1e-4)
    assert "2 of 2 served runs" in result.finding and ", and 1 whose workers only decode with" in result.finding
    table = error_table(result.data)
    assert table["mode"].tolist() == ["agg"] * 3 + ["disagg"] * 3 and (table["runs"] == 1).all()
    alone = reduced(tmp_path, DECODES)
    assert "served runs on NVIDIA H200 SXM, whose workers only decode, with" in alone.finding
    assert "tpot_median_error_unfitted_percent" not in alone.summary, "there is no other run"


PROMPTS = {"prefill_num_workers": 2, "prefill_tp_size": 1, "prefill_attention_dp_size": 1}


def test_disaggregated_runs_are_served_as_fast_as_the_slower_kind_of_workers(tmp_path):
    few = {"decode_batch_size": 1, "silicon_data_source": "x; silicon_concurrency=2"}
    many = {"osl": 1, "silicon_ttft_ms": 50.0}
    runs = [{**DECODES, **PROMPTS, "silicon_ttft_ms": 40.0, **more} for more in ({}, few, many)]
    result = reduced(tmp_path, *runs, {**DECODES, "silicon_ttft_ms": 60.0})
    data = result.data
    assert data["prompts_on"].tolist() == ["2 × TP1"] * 3 + [""] and data["workers"].tolist() == [2] * 4
    assert data["all_gpus"].tolist()[:3] == [4] * 3 and np.isnan(data["all_gpus"][3])
    model, gpu = read_model("Llama-3.1-8B"), find_gpu("h200")
    rows = predict(kernels(model, prefill(1024)), gpu, "vllm")
    prompt_s = totals(rows, np.zeros(len(rows), int), 1)["time_s"][0]
    # Alone, a request takes its prompt and its steps; with one token each, prompts limit what two workers serve.
    assert data["predicted_rate"][1] == pytest.approx(2 * 512 / (prompt_s + 512 * step_s(1)) / 4, rel=1e-5)
    assert data["predicted_rate"][2] == pytest.approx(2 / prompt_s / 4, rel=1e-5)
    assert data["measured_rate"][0] == pytest.approx(16 * 512 / (0.04 + 511 * 0.006) / 4, rel=1e-5)
    assert data["measured_rate"][2] == pytest.approx(16 / 0.05 / 4, rel=1e-5)
    assert np.isnan(data["predicted_rate"][3]) and result["disagg_rate_runs"] == 3
    errors = 100 * (data["predicted_rate"] / data["measured_rate"] - 1).abs()
    assert result["disagg_rate_median_error_percent"] == pytest.approx(errors.median(), rel=1e-4)


def test_workers_that_cannot_be_expressed_leave_the_rate_open(tmp_path):
    strange = [{"prefill_num_workers": 0}, {"prefill_tp_size": 3}, {"prefill_tp_size": 16}]
    data = reduced(tmp_path, *({**DECODES, **PROMPTS, **more} for more in strange)).data
    assert data["predicted_rate"].isna().all() and data["decode_s"].notna().all()


def test_what_disaggregation_gains_is_compared_at_the_same_time_per_token(tmp_path):
    runs = [{"silicon_tpot_ms": tpot, "batch_size": size} for tpot, size in ((6, 8), (8, 16))]
    apart = {**DECODES, **PROMPTS, "silicon_tpot_ms": 7.0}
    result = reduced(tmp_path, *runs, apart)
    found = gains(result.data)
    # At 8 ms the disaggregated run serves what it does at 7; at 6 ms it serves nothing, which is not compared.
    rate = result.data.set_index("id")["measured_rate"]
    between = np.interp(7, [6, 8], rate[["0", "1"]])
    assert found["objective_s"].tolist() == pytest.approx([7e-3, 8e-3])
    assert found["measured"].tolist() == pytest.approx([rate["2"] / between, rate["2"] / rate["1"]], rel=1e-5)
    assert (result["disagg_gain_workloads"], result["disagg_gain_objectives"]) == (1, 2)
    assert result["disagg_better_percent"] == 0 and result["disagg_gain_measured"] < 1
    same = result.data.assign(kernels_s=result.data["measured_s"], predicted_rate=result.data["measured_rate"])
    assert (gains(same)["predicted"] == gains(same)["measured"]).all() and agreed(gains(same)).all()
    table = gain_table(found)
    assert table["objectives"].tolist() == [2] and "measured gain (median)" in table
    assert gains(result.data[:2]).empty and "disagg_gain_measured" not in reduced(tmp_path, *runs).summary


def test_the_numbers_in_brackets_are_named(tmp_path):
    data = reduced(tmp_path, *({"silicon_tpot_ms": 5 + number} for number in range(3))).data
    _, axes = plt.subplots()
    draw_classes(axes, data, colours(data))
    (label,) = axes.get_yticklabels()
    assert label.get_text().endswith("(3)") and axes.get_xlabel().endswith("in brackets: runs)")


def test_runs_alike_in_model_gpus_and_batch_are_told_apart_by_what_else_they_differ_in():
    data = pd.DataFrame({"parallelism": ["TP2", "TP1 PP2", "TP2"], "input_tokens": [128, 128, 4096]})
    data = data.assign(model="a", gpus=2, requests=1, output_tokens=128, precision="fp8", kernels_s=1.0, measured_s=1.1)
    figure, axes = plt.subplots()
    draw_runs(axes, data, {"a": "blue"})
    plt.close(figure)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["TP2, batch 1, 128 in", "TP1 PP2, batch 1, 128 in", "TP2, batch 1, 4,096 in"]
    assert axes.texts[0].get_text() == "a, 2 GPUs, fp8, 128 out"


def test_what_the_runs_of_a_model_share_is_said_once():
    """Lengths within a tenth are the same; TP8 on eight GPUs says nothing new."""
    data = pd.DataFrame({"model": ["me/a", "me/a", "me/b"], "gpus": 8, "requests": [4, 8, 4], "precision": "fp8"})
    data = data.assign(parallelism=["TP8", "TP8", "DP8"], input_tokens=[927, 921, 64], output_tokens=128)
    figure, axes = plt.subplots()
    draw_runs(axes, data.assign(kernels_s=1.0, measured_s=1.1), {"a": "blue", "b": "red"})
    plt.close(figure)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["batch 4", "batch 8", "batch 4"]
    assert axes.get_yticks().tolist() == [1, 2, 4]
    above = [text.get_text() for text in axes.texts if "," in text.get_text()]
    assert above == ["a, 8 GPUs, fp8, 920 in, 128 out", "b, 8 GPUs, fp8, DP8, 64 in, 128 out"]


def test_the_numbers_at_bars_stay_within_the_panel():
    data = pd.DataFrame({"requests": [1, 2], "kernels_s": [0.344, 1.436], "measured_s": 1.0, "model": "a", "gpus": 8})
    figure, axes = plt.subplots(figsize=(1.9, 2))
    draw_runs(axes, data.assign(input_tokens=1, output_tokens=1), {"a": "blue"})
    numbers, panel = [text.get_window_extent() for text in axes.texts], axes.get_window_extent()
    plt.close(figure)
    assert panel.x0 < min(box.x0 for box in numbers) and max(box.x1 for box in numbers) < panel.x1


@pytest.mark.parametrize("ends", [(5, 10.6), (31, 38), (2, 30), (0.3, 900)])
def test_an_axis_of_times_has_ticks_to_read_them_by(ends):
    figure, axes = plt.subplots()
    figures.draw_identity(axes, np.array(ends), 20)
    ticks = [tick for tick in axes.get_xticks() if ends[0] <= tick <= ends[1]]
    plt.close(figure)
    assert 3 <= len(ticks) <= 8


def test_a_model_has_one_colour_whatever_else_was_served_and_a_new_one_has_none_of_theirs():
    known = ["deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b"]
    alone = {name: colour for model in known for name, colour in colours(pd.DataFrame({"model": [model]})).items()}
    found = colours(pd.DataFrame({"model": ["me/Mine-7B"] * 9 + known}))
    assert next(iter(found)) == "Mine-7B" and found.items() >= alone.items()
    assert len(set(found.values())) == 4
    many = colours(pd.DataFrame({"model": [f"me/{letter}" for letter in "abcdefghijklmnop"]}))
    assert set(list(many.values())[-3:]) == {figures.GREY}


def test_requests_that_wait_for_their_first_token_do_not_decode(tmp_path):
    """By Little's law: with a wait as long as the output takes, half of the requests decode."""
    generated_s = 512 * step_s(4)
    run = reduced(tmp_path, {**DECODES, "silicon_ttft_ms": 1e3 * generated_s}).data.iloc[0]
    assert (run["requests"], run["decoding"]) == (8, 4)
    assert run["decode_s"] == pytest.approx(step_s(4), rel=1e-5) and run["full_s"] == pytest.approx(step_s(8), rel=1e-5)
    endless = reduced(tmp_path, {**DECODES, "silicon_ttft_ms": 1e9}).data.iloc[0]
    assert endless["decoding"] == 1, "a step has a request"


def test_batches_of_workers_that_only_decode_are_those_of_a_replica(tmp_path):
    spread = {**DECODES, "model_path": "Qwen3-30B-A3B", "decode_attention_dp_size": 4, "decode_moe_ep_size": 4}
    result = reduced(tmp_path, {**spread, "silicon_data_source": "x; silicon_concurrency=64"})
    assert result.data["gpus"].tolist() == [4] and result.data["requests"].tolist() == [8]


def test_workers_that_only_decode_must_say_how_many_share_the_requests(tmp_path):
    unsaid = ({"decode_num_workers": 0}, {"decode_num_workers": ""}, {"decode_batch_size": 0})
    others = [{**DECODES, **more, "silicon_ttft_ms": at} for at, more in enumerate(unsaid, 1)]
    others += [{**DECODES, "silicon_data_source": ""}, {**DECODES, "silicon_data_source": "silicon_concurrency=99"}]
    result = reduced(tmp_path, {}, *others)
    assert result["disagg_runs_expressed"] == 0 and "half" not in result.finding
    assert "4 batch: how many workers share how many requests is not given" in result["not_expressed"]
    assert "1 batch: not the concurrency that the run was driven with" in result["not_expressed"]
    missing = reduced(tmp_path, {}, DECODES, drop=[name for name in DECODES if name.startswith("decode_")])
    assert "1 batch: how many workers share how many requests is not given" in missing["not_expressed"]
    no_size = reduced(tmp_path, {}, {**DECODES, "decode_tp_size": 0})
    assert "1 parallelism: batch or tensor parallelism is not given" in no_size["not_expressed"]


def test_seventy_two_gpus_share_a_switch_of_nvl72(tmp_path):
    sizes = {"decode_attention_dp_size": 32, "decode_moe_ep_size": 32, "model_path": "Qwen3-30B-A3B"}
    sizes |= {"backend": "sglang", "silicon_data_source": "silicon_concurrency=512"}
    for gpu, system, count in (("gb200", "gb200", 1), ("gb300", "gb300", 1), ("h200", "h200_sxm", 0)):
        result = reduced(tmp_path, {"system": system}, {**DECODES, **sizes, "system": system}, gpu=gpu)
        assert result["disagg_runs_expressed"] == count


def test_a_measurement_under_two_ids_counts_once(tmp_path):
    result = reduced(tmp_path, {}, {}, {"silicon_tpot_ms": 6.1})
    assert (result["runs"], result["repeated_rows"], result["runs_expressed"]) == (2, 1, 2)
    assert 0 < result["repeats_mape_percent"] < 1


EXPERTS = {"model_path": "Qwen3-30B-A3B", "batch_size": 16}
EXPORT = "db-dump/2026-04-27; silicon_concurrency=16"


def test_copies_with_sizes_counted_twice_are_the_run_that_was_measured(tmp_path):
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "batch_size", "backend")
    copies = [(4, 1, 1, 4, 16, "sglang"), (16, 1, 4, 4, 16, "sglang"), (1, 4, 1, 4, 4, "trtllm")]
    copies += [(1, 16, 4, 4, 1, "trtllm"), (4, 1, 1, 4, 16, "vllm"), (4, 4, 1, 16, 4, "vllm")]
    rows = [{**EXPERTS, **dict(zip(names, sizes, strict=True)), "silicon_data_source": EXPORT} for sizes in copies]
    # Others give fewer digits.
    rows[1] |= {"silicon_tpot_ms": 6.004, "silicon_data_source": "source_file=a.csv; silicon_concurrency=16"}
    result = reduced(tmp_path, *rows)
    assert (result["runs"], result["repeated_rows"], result["not_expressed"]) == (3, 3, "none")
    assert result.data["gpus"].tolist() == [4, 4, 4] and result.data["requests"].tolist() == [16, 4, 16]
    measured = [{**row, "silicon_data_source": "source_file=/home/a.csv"} for row in rows]
    assert reduced(tmp_path, *measured)["runs"] == 6, "only exports are mended"


def test_runs_with_speculative_decoding_are_left_out(tmp_path):
    deepseek = {"model_path": "deepseek-ai/DeepSeek-R1", "tp_size": 8, "moe_tp_size": 8, "backend": "trtllm"}
    image = "source_file=a.csv; measured=2026-02-05T00:00:00Z; image=tensorrt-llm/release:1.2.0rc6.post3"
    result = reduced(tmp_path, {}, {**deepseek, "silicon_data_source": image})
    assert result["not_expressed"].startswith("1 speculative decoding")
    # Of sweeps that share an image, plain exports tell which is which; a copy under another name is no other run.
    day = "measured=2026-03-25; silicon_concurrency=8; lmsysorg/sglang:v0.5.9-cu130"
    both = {**deepseek, "backend": "sglang", "gemm_quant_mode": "fp8_block"}
    rows = [{**both, "silicon_data_source": f"source_file=a.csv; {day}", "silicon_tpot_ms": time} for time in (9, 5)]
    copy = {**rows[0], "silicon_data_source": f"db-dump/a; {day}", "model_path": "deepseek-ai/DeepSeek-V3"}

    def speculative(*rows):
        frame, _ = read_runs(a_case(tmp_path, *rows), find_gpu("h200"))
        return sweeps.once(frame)["speculative"].tolist()

    assert speculative(*rows, copy) == [False, True]
    assert speculative(*rows) == [False, False], "nothing tells them apart"


def test_copies_that_leave_out_workers_are_no_runs_of_their_own(tmp_path):
    vague = {**DECODES, "decode_num_workers": "", "decode_batch_size": "", "decode_tp_size": 2}
    result = reduced(tmp_path, vague, DECODES, {**vague, "silicon_tpot_ms": 7})
    assert (result["runs"], result["repeated_rows"], result["disagg_runs_expressed"]) == (2, 1, 1)


def test_exports_of_racks_sum_gpus_of_both_kinds(tmp_path):
    rack = {"system": "gb200", "backend": "trtllm"}
    result = reduced(tmp_path, rack, {**rack, "silicon_data_source": "source_file=a.csv"}, gpu="gb200")
    assert result["runs_expressed"] == 1 and "1 mode: GPUs that process prompts" in result["not_expressed"]


def test_a_benchmark_that_draws_lengths_has_shorter_ones_on_average(tmp_path):
    result = reduced(tmp_path, {"isl": 900, "osl": 450}, {"isl": 1000, "osl": 500, "silicon_data_source": "db-dump/a"})
    stated, drawn = (result.data.iloc[at] for at in range(2))
    assert (stated["decode_s"], stated["prompt_s"]) == (drawn["decode_s"], drawn["prompt_s"])
    assert drawn["input_tokens"] == 1000


def test_recipes_may_keep_the_cache_in_fewer_bits_than_checkpoints_say(tmp_path):
    long = {"model_path": "gpt-oss-120b", "isl": 60000, "gemm_quant_mode": "nvfp4", "system": "b200_sxm"}
    sources = ("", "db-dump/a; vllm/vllm-openai:v0.19.0", "db-dump/a; vllm/vllm-openai:v0.17.0")
    rows = [{**long, "silicon_data_source": source, "silicon_ttft_ms": at} for at, source in enumerate(sources)]
    steps = reduced(tmp_path, *rows, gpu="b200").data["decode_s"]
    assert steps[1] < steps[2] < steps[0]


def test_experts_are_spread_as_the_run_says(tmp_path):
    sizes = [(4, 1, 4, 1), (4, 1, 1, 4), (1, 4, 1, 4), (1, 4, 4, 1), (4, 1, 2, 1)]
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    result = reduced(tmp_path, *({**EXPERTS, **dict(zip(names, size, strict=True))} for size in sizes))
    assert result.data["gpus"].tolist() == [4, 4, 4, 4]
    assert result.data["parallelism"].tolist() == ["TP4", "TP4 EP4", "TP1 DP4 EP4", "TP1 DP4"]
    assert "1 parallelism: sizes that contradict each other" in result["not_expressed"]
    assert result.data["decode_s"].nunique() == 4
    work = decode(1280, 16)
    whole = kernels(read_model("Qwen3-30B-A3B"), work, Parallel(1, 1, 4), expert_load=SERVED_LOAD)
    assert result.data.iloc[2]["decode_s"] == pytest.approx(
        totals(predict(whole, find_gpu("h200"), "vllm"), np.zeros(len(whole), int), 1)["time_s"][0], rel=1e-5
    )


def test_the_engines_term_is_found_on_one_half_and_holds_on_the_other(tmp_path):
    models = ("Llama-3.1-8B", "Llama-3.1-70B")
    shapes = [{"isl": 500 + 100 * i, "batch_size": 1 + i % 16, "model_path": models[i % 2]} for i in range(120)]
    alone = reduced(tmp_path, *shapes).data
    assert set(zip(alone["model"], alone["layers"], strict=True)) == {(models[0], 32), (models[1], 80)}
    times = alone["kernels_s"] + 6e-5 * alone["layers"]
    slower = [{**shape, "silicon_tpot_ms": 1e3 * time} for shape, time in zip(shapes, times, strict=True)]
    result = reduced(tmp_path, *slower)
    assert result["host_per_layer_vllm"] == pytest.approx(6e-5, rel=0.01)
    assert result["tpot_median_error_percent"] < 0.5 < result["tpot_median_error_unfitted_percent"]
    assert 40 <= result["held_back_runs"] <= 80
    faster = [{**shape, "silicon_tpot_ms": 900 * t} for shape, t in zip(shapes, alone["kernels_s"], strict=True)]
    alone = reduced(tmp_path, *faster)
    assert alone["host_per_layer_vllm"] == 0, "a host takes no negative time"
    table = error_table(result.data)
    back = table["median_unfitted_held_back_percent"].iloc[0]
    assert back == pytest.approx(result["tpot_median_error_unfitted_held_back_percent"])
    assert table["mode"].tolist() == ["agg"] * 4
    assert table["engine"].tolist() == ["all", *["vllm"] * 3] and table["runs"].tolist() == [120, 120, 60, 60]
    assert table["median_percent"].iloc[0] == pytest.approx(result["tpot_median_error_percent"])


def test_the_first_token_waits_for_its_engine_too(tmp_path):
    shapes = [{"isl": 500 + 100 * i, "batch_size": 1 + i % 6} for i in range(60)]
    prompts = reduced(tmp_path, *shapes).data["prompt_s"]
    slower = [{**shape, "silicon_ttft_ms": 1e3 * (time + 0.03)} for shape, time in zip(shapes, prompts, strict=True)]
    result = reduced(tmp_path, *slower)
    assert result["ttft_host_vllm"] == pytest.approx(0.03, rel=0.01) and result["ttft_runs"] == 40
    assert result["ttft_median_error_percent"] < 0.5 < result["ttft_median_error_unfitted_percent"]
    # With five requests and more it waits for others, which the term does not say.
    assert result.data["first_token_s"].isna().sum() == 20


def test_experts_scaled_by_blocks_are_not_taken_for_scaled_tensors(tmp_path):
    """SGLang's served GLM-5 and Qwen3.5 say fp8 of their products and fp8_block of their experts."""
    modes = [
        {"gemm_quant_mode": "fp8", "moe_quant_mode": mode, "silicon_ttft_ms": 40 + at}
        for at, mode in enumerate(("fp8", "fp8_block", ""))
    ]
    data = reduced(tmp_path, *({**EXPERTS, "backend": "sglang", **mode} for mode in modes)).data
    assert data["precision"].tolist() == ["fp8", "fp8_block", "fp8"]
    assert data["decode_s"].iloc[0] == data["decode_s"].iloc[2] != data["decode_s"].iloc[1]


def test_bad_input_is_one_line(tmp_path):
    with pytest.raises(InputError, match="'isl'"):
        reduced(tmp_path, drop=["isl"])
    with pytest.raises(InputError, match="column system: no run on l4; set gpu to one of h200-sxm"):
        reduced(tmp_path, gpu="l4")
    with pytest.raises(InputError, match=r"no run on h200-sxm can be expressed .1 mode offline"):
        reduced(tmp_path, {"mode": "offline"})
    with pytest.raises(InputError, match="decode_batch_size"):
        reduced(tmp_path, {**DECODES, "decode_batch_size": -1})
    with pytest.raises(InputError, match=r"column silicon_tpot_ms: times are, in the median, .* shorter than the sum"):
        reduced(tmp_path, {"silicon_tpot_ms": 0.01})
    for time in (-1, 0):
        with pytest.raises(InputError, match="silicon_tpot_ms"):
            reduced(tmp_path, {"silicon_tpot_ms": time})
    for size in ("isl", "batch_size", "decode_tp_size"):
        for word in ("1.5", "1e300", "9" * 19):
            with pytest.raises(InputError, match=rf"runs\.csv, line 2, column {size}: "):
                reduced(tmp_path, {size: word})
    with pytest.raises(InputError, match="not the concurrency that the run was driven with"):
        reduced(tmp_path, {"silicon_data_source": "silicon_concurrency=" + "9" * 400})


def test_a_table_names_no_files(tmp_path, monkeypatch):
    """A cell such as ../secret would be read, wherever the command runs."""
    monkeypatch.chdir(ROOT / "resources/models")
    for name in ("Llama-3.1-8B.json", "./gpt2.json", "../models/gpt2.json", "x" * 5000):
        with pytest.raises(InputError, match="model: not a file, not a model in resources/models and not a hub id"):
            reduced(tmp_path, {"model_path": name})


def test_names_of_models():
    assert short_name("nvidia/Llama-3.1-8B-Instruct-FP8") == "Llama-3.1-8B"
