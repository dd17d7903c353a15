"""Serving time from a benchmark's own results, in a case and on the command line."""

import json

import command_line
import pandas as pd
import pytest
from own_cases import own_case, reduced, refused
from served_runs import INFERENCEX, ONE_BATCH, SGLANG, VLLM, written

STATED = {"engine": "vllm", "model": "Llama-3.1-70B", "parallel": {"tensor": 8}}


def results_case(tmp_path, *entries, stated=STATED, **more):
    (tmp_path / "mine").mkdir(exist_ok=True)
    written(tmp_path / "mine", *entries, name="result.jsonl")
    inputs = {"gpu": "h100-sxm", "results": [{"files": "result.jsonl", **stated}], **more}
    return own_case(tmp_path / "mine", "serving_time", inputs, "first")


def table_case(tmp_path, **change):
    row = {
        **{"id": "a", "backend": "vllm", "model_path": "Llama-3.1-70B", "system": "h100_sxm", "mode": "agg"},
        **{"isl": 1023, "osl": 128, "batch_size": 50, "tp_size": 8, "silicon_ttft_ms": 1000.0, "silicon_tpot_ms": 20.0},
        **change,
    }
    (tmp_path / "table").mkdir(exist_ok=True)
    lines = [",".join(map(str, part)) for part in (row, row.values())]
    (tmp_path / "table/runs.csv").write_text("\n".join(lines), "utf-8")
    return own_case(tmp_path / "table", "serving_time", {"runs": "runs.csv", "gpu": "h100-sxm"}, "first")


def test_a_result_is_predicted_as_the_same_row_of_a_table(tmp_path):
    found = reduced(results_case(tmp_path, VLLM)).data.drop(columns="id")
    same = reduced(table_case(tmp_path, num_prompts=400)).data.drop(columns="id")
    pd.testing.assert_frame_equal(found, same)
    assert found["precision"].tolist() == ["16-bit"] and found["gpus"].tolist() == [8]


def test_the_last_requests_of_a_run_meet_fewer_prompts(tmp_path):
    endless, long, short = (
        reduced(table_case(tmp_path, **change)).data["prompts_s"][0]
        for change in ({}, {"num_prompts": 500}, {"num_prompts": 50})
    )
    # One in twenty of ten rounds, and half of a single one: each meets those after it.
    assert (long / endless, short / endless) == pytest.approx((0.95, 0.5), rel=1e-5)


def test_a_single_batch_decodes_without_other_prompts(tmp_path):
    stated = {"model": "Llama-3.1-8B", "parallel": {"tensor": 1}}
    alone, batch = reduced(
        results_case(tmp_path, ONE_BATCH | {"batch_size": 1}, ONE_BATCH, stated=stated)
    ).data.to_dict("records")
    assert (batch["engine"], batch["requests"], batch["prompts_s"]) == ("sglang", 16, 0.0)
    assert batch["given_ttft_s"] == batch["kernels_s"] == batch["decode_s"], "all of them decode all the time"
    assert 15 < batch["prompt_s"] / alone["prompt_s"] < 17, "all prompts in one pass"


def test_servers_of_their_own_share_the_requests(tmp_path):
    found = reduced(results_case(tmp_path, SGLANG, stated={"model": "Qwen/Qwen3-8B"})).data.iloc[0]
    assert (found["requests"], found["gpus"], found["parallelism"], found["precision"]) == (32, 4, "TP4", "fp8")
    copies = STATED | {"parallel": {"tensor": 4, "replicas": 2}}
    found = reduced(results_case(tmp_path, VLLM, stated=copies)).data.iloc[0]
    assert (found["requests"], found["gpus"]) == (25, 4), "replicas of a dense model are servers of their own"


def test_what_is_missing_or_contradicts_is_one_line(tmp_path):
    with refused("results[0]", "does not say which engine served", "add engine"):
        reduced(results_case(tmp_path, VLLM, stated={"parallel": {"tensor": 8}}))
    with refused("over how many GPUs", "add parallel"):
        reduced(results_case(tmp_path, VLLM, stated={"engine": "vllm"}))
    with refused("does not say which model was served", "add model"):
        unnamed = {name: value for name, value in STATED.items() if name != "model"}
        reduced(results_case(tmp_path, VLLM | {"model_id": ""}, stated=unnamed))
    with refused("tensor is 8, but result.jsonl says 4"):
        reduced(results_case(tmp_path, SGLANG, stated={"parallel": {"tensor": 8}}))
    with refused("did not limit the requests in flight"):
        reduced(results_case(tmp_path, VLLM | {"max_concurrency": None}))
    drafting = SGLANG["server_info"] | {"speculative_algorithm": "EAGLE"}
    with refused("1 speculative decoding"):
        reduced(results_case(tmp_path, SGLANG | {"server_info": drafting}, stated={"model": "Qwen/Qwen3-8B"}))
    with refused("times longer than the sum of the kernels", "milliseconds"):
        reduced(results_case(tmp_path, VLLM | {"median_tpot_ms": 20_000.0}))


def test_a_run_without_a_first_token_is_judged_by_its_steps(tmp_path):
    single = {key: value for key, value in VLLM.items() if "ttft" not in key} | {"max_concurrency": 1}
    result = reduced(results_case(tmp_path, single))
    assert result["ttft_runs"] == 0 and result["runs_expressed"] == 1
    assert result.data[["ttft_s", "given_ttft_s"]].isna().all(axis=None)


def test_the_command_line_says_the_same(tmp_path):
    case = results_case(tmp_path, VLLM, VLLM | {"max_concurrency": 8})
    asked = ("served", case.dataset.folder / "result.jsonl", "--gpu", "h100-sxm", "--engine", "vllm", "--tp", 8)
    found = json.loads(command_line.run(*asked, "--model", "Llama-3.1-70B", "--json"))
    data = reduced(case).data
    assert [run["predicted_ms"] for run in found["runs"]] == pytest.approx(list(1e3 * data["kernels_s"]), rel=1e-5)
    assert [run["measured_ms"] for run in found["runs"]] == [20.0, 20.0]
    said = command_line.run(*asked, "--model", "Llama-3.1-70B")
    assert "TP8 on NVIDIA H100" in said and "times as long as its kernels" in said
    assert "prompts (ms)" in said and "Measured is the median time per output token" in said
    with refused("over how many GPUs", "add --tp"):
        command_line.run(*asked[:-2], "--model", "Llama-3.1-70B")
    with refused("can be expressed", "say with --model which model served if the hub lacks Foo"):
        command_line.run(*asked, "--model", "Foo")
    results_case(tmp_path, VLLM | {"model_id": ""})
    with refused("does not say which model was served", "add --model"):
        command_line.run(*asked)
    with refused("--gpu", "several GPUs"):
        command_line.run(*asked[:3], "h100-sxm,h200-sxm", *asked[4:])


def test_runs_are_listed_by_what_is_in_flight(tmp_path):
    for number in (8, 32, 1):
        written(tmp_path, VLLM | {"max_concurrency": number}, name=f"c{number}.json")
    asked = ("--gpu", "h100-sxm", "--engine", "vllm", "--tp", 8, "--model", "Llama-3.1-70B")
    said = command_line.run("served", tmp_path, *asked)
    assert [line.split()[0] for line in said.splitlines() if line.startswith("c")] == ["c1.json", "c8.json", "c32.json"]


def test_rows_of_inferencex_need_nothing_else_and_other_gpus_are_left_out(tmp_path):
    rows = [
        INFERENCEX,
        INFERENCEX | {"conc": 4, "tp": 2},
        INFERENCEX | {"hw": "b200-trt"},
        INFERENCEX | {"hw": "mi355x"},
    ]
    case = results_case(tmp_path, *rows, stated={})
    result = reduced(case)
    (warning,) = result.provenance["warnings"]
    assert "2 of 4 runs are of other GPUs than h100-sxm (b200, mi355x); left out" in warning
    found = result.data
    assert found["requests"].tolist() == [32, 4] and found["gpus"].tolist() == [4, 2]
    assert (found["kernels_s"] > 0).all() and found["measured_s"].tolist() == [0.008, 0.008]
    with refused("hw: 1 of 1 runs are of other GPUs than h100-sxm (b200)", "name the GPU"):
        reduced(results_case(tmp_path, rows[2], stated={}))


def test_a_row_of_inferencex_page_is_recognised_and_predicted_as_the_benchmarks_own(tmp_path):
    times = {name: INFERENCEX[name] for name in ("median_tpot", "median_ttft")}
    named = {"tp": "decode_tp", "ep": "decode_ep", "dp_attention": "decode_dp_attention", "hw": "hardware"}
    rest = {named.get(name, name): value for name, value in INFERENCEX.items() if not name.startswith(("me", "tput"))}
    page = rest | {"decode_dp_attention": True, "hardware": "h100", "metrics": times}
    written(tmp_path, page, name="page.json")
    said = command_line.run("inspect", tmp_path / "page.json")
    assert "result of a benchmark of a server" in said and "gpu: h100" in said
    asked = ("--gpu", "h100-sxm", "--json")
    (run,) = json.loads(command_line.run("served", tmp_path / "page.json", *asked))["runs"]
    # Attention in one replica on each of 4 GPUs, 8 of 32 requests each; all GPUs share each expert.
    assert (run["parallelism"], run["gpus"], run["requests"], run["measured_ms"]) == ("TP1 DP4", 4, 8, 8.0)
    own = written(tmp_path, INFERENCEX | {"dp_attention": "true"}, name="own.json")
    assert json.loads(command_line.run("served", own, *asked))["runs"][0]["predicted_ms"] == run["predicted_ms"]


def test_a_disaggregated_row_of_inferencex_is_predicted_with_all_its_workers(tmp_path):
    row = {name: value for name, value in INFERENCEX.items() if name not in ("tp", "ep", "dp_attention")}
    row |= {"disagg": True, "is_multinode": True, "prefill_tp": 4, "prefill_num_workers": 3, "decode_tp": 2}
    own = written(tmp_path, row | {"decode_num_workers": 2, "conc": 31}, name="own.json")
    found = json.loads(command_line.run("served", own, "--gpu", "h100-sxm", "--json"))
    (run,) = found["runs"]
    assert run["parallelism"] == "2 × TP2, prompts on 3 × TP4" and run["gpus"] == 2 * 2 + 3 * 4
    # 31 requests on two workers are 16 at most on each; 922 tokens of output in 8 ms each.
    assert run["requests"] == 16 and run["predicted_ms"] == run["decode_ms"] and run["prompts_ms"] == 0
    rate = 32 * 922 / (INFERENCEX["median_ttft"] + 921 * 0.008) / 16
    assert run["measured_rate"] == pytest.approx(rate, rel=1e-6) and 0.5 < run["predicted_rate"] / rate < 4
    said = command_line.run("served", own, "--gpu", "h100-sxm")
    assert "2 × TP2, prompts on 3 × TP4 on NVIDIA H100" in said and "tokens/s/GPU" in said
    unknown = written(
        tmp_path,
        row | {"decode_num_workers": 2, "conc": 32, "median_ttft": None, "mean_ttft": None},
        name="unknown.json",
    )
    (without,) = json.loads(command_line.run("served", unknown, "--gpu", "h100-sxm", "--json"))["runs"]
    assert without["measured_rate"] is None and without["predicted_ms"] >= run["predicted_ms"]
    alone = reduced(results_case(tmp_path, row | {"decode_num_workers": 2, "conc": 32}, stated={}))
    assert alone["disagg_rate_runs"] == 1 and "whose workers only decode" in alone.finding
