"""Results of benchmarks of a server: what vLLM's and SGLang's programs write, and damaged ones in one line."""

import json
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_cases import refused
from served_runs import (
    AIPERF,
    GENAI_PERF,
    GUIDELLM,
    INFERENCEX,
    LLMPERF,
    SGLANG,
    TRTLLM,
    VLLM,
    written,
)

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.served_results import read_served


def one(tmp_path, entry=VLLM, **change):
    (run,) = read_served(written(tmp_path, entry, **change))
    return run


def test_vllm_says_what_came_of_it_and_nothing_of_the_server(tmp_path):
    run = one(tmp_path)
    assert (run.place, run.engine, run.model) == ("result.json", "", "/models/Llama-3.1-70B-Instruct")
    assert (run.input_tokens, run.output_tokens, run.prompts, run.in_flight) == (1023, 128, 400, 50)
    assert (run.ttft_s, run.tpot_s) == (1.0, 0.02), "medians before means"
    assert (run.tensor, run.pipeline, run.replicas, run.expert, run.copies) == (0, 0, 0, 0, 1)
    assert one(tmp_path, backend="vllm").engine == "vllm"
    # vllm bench serve --metadata tensor_parallel_size=8 writes a text.
    assert one(tmp_path, tensor_parallel_size="8").tensor == 8


def test_sglang_says_how_the_server_was_started(tmp_path):
    run = one(tmp_path, SGLANG, name="result.jsonl")
    assert (run.engine, run.model, run.quantised, run.cache) == ("sglang", "Qwen/Qwen3-8B", "fp8", "fp8")
    assert (run.input_tokens, run.output_tokens, run.prompts, run.in_flight) == (512, 64, 128, 64)
    assert (run.ttft_s, run.tpot_s) == (0.08, 0.0075), "means where there is no median"
    assert (run.tensor, run.replicas, run.copies, run.speculative) == (4, 0, 2, False), "two servers of four GPUs"
    attention = SGLANG["server_info"] | {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "ep_size": 8}
    run = one(tmp_path, SGLANG, server_info=attention)
    assert (run.tensor, run.replicas, run.copies, run.expert) == (1, 8, 1, 8), "eight replicas of the attention"
    drafting = SGLANG["server_info"] | {"speculative_algorithm": "EAGLE"}
    assert one(tmp_path, SGLANG, server_info=drafting).speculative


def test_trtllm_bench_reports_the_server_and_medians(tmp_path):
    run = one(tmp_path, TRTLLM)
    assert (run.engine, run.model, run.quantised) == ("trtllm", "meta-llama/Llama-3.1-8B-Instruct", "fp8")
    assert (run.cache, run.tensor, run.pipeline, run.expert, run.copies) == ("fp8", 2, 1, 1, 1)
    assert (run.input_tokens, run.output_tokens, run.prompts, run.in_flight) == (1024, 512, 512, 32)
    assert (run.ttft_s, run.tpot_s, run.speculative) == (0.08, 0.00825, False)
    # More requests than places in the batch: the first token waited for one.
    run = one(tmp_path, TRTLLM, request_info=TRTLLM["request_info"] | {"avg_num_concurrent_requests": 200.4})
    assert run.in_flight == 64 and math.isnan(run.ttft_s)
    older = {"avg_tpot_ms": 8.4, "avg_ttft_ms": 90.0}
    assert one(tmp_path, TRTLLM, streaming_metrics=older).tpot_s == pytest.approx(0.0084)
    assert one(tmp_path, TRTLLM, decoding_stats={"mode": "MTP"}).speculative
    (found,) = recognise(written(tmp_path, TRTLLM))
    assert found.cases["serving_time"]["results"][0]["engine"] == "trtllm"


@pytest.mark.parametrize(
    ("group", "change", "words"),
    [
        ("streaming_metrics", None, ("streaming_metrics", "run trtllm-bench with --streaming")),
        ("request_info", {"num_requests": "many"}, ("num_requests", "'many' is not a number that a report has")),
        ("world_info", {"max_batch_size": None}, ("max_batch_size", "'None' is not a number")),
        ("world_info", {"tp_size": [2]}, ("tp_size", "is not a number of GPUs")),
    ],
)
def test_a_report_that_lacks_something_is_one_line(tmp_path, group, change, words):
    with refused("result.json", *words):
        one(tmp_path, TRTLLM, **{group: change and TRTLLM[group] | change})


def test_requests_in_flight_are_the_limit_or_follow_from_littles_law(tmp_path):
    assert one(tmp_path, max_concurrency=None).in_flight == 0, "no limit, and all at once"
    assert one(tmp_path, max_concurrency=1000).in_flight == 400, "no more than there are"
    # Ten requests a second, each of which takes 1 s + 127 · 20 ms.
    assert one(tmp_path, request_rate=10, max_concurrency=None).in_flight == 35
    assert one(tmp_path, request_rate=10, max_concurrency=20).in_flight == 20
    assert one(tmp_path, request_rate=10, duration=1e-320, max_concurrency=None).in_flight == 400


def test_a_file_may_hold_several_runs_and_a_folder_several_files(tmp_path):
    written(tmp_path, VLLM, VLLM | {"max_concurrency": 8}, name="many.jsonl")
    (tmp_path / "list.json").write_text(json.dumps([VLLM, {"another": 1}, VLLM]), "utf-8")
    (tmp_path / "deeper").mkdir()
    written(tmp_path / "deeper", SGLANG, name="one.jsonl")
    written(tmp_path, {"architectures": ["LlamaForCausalLM"]}, name="config.json")
    places = [run.place for run in read_served(tmp_path)]
    assert places == ["deeper/one.jsonl", "list.json:1", "list.json:3", "many.jsonl:1", "many.jsonl:2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"completed": 0}, ("completed", "no request")),
        ({"completed": None}, ("completed", "it is missing")),
        ({"completed": 1.5}, ("completed", "is not a count")),
        ({"total_input_tokens": -4}, ("total_input_tokens", "not a count")),
        ({"total_output_tokens": 10**400}, ("total_output_tokens", "is not a number")),
        ({"median_tpot_ms": 0, "mean_tpot_ms": 0}, ("tpot", "missing")),
        ({"median_tpot_ms": "20 ms"}, ("median_tpot_ms", "is not a number")),
        ({"median_tpot_ms": 1e12}, ("median_tpot_ms", "more than a day")),
        ({"median_ttft_ms": True}, ("median_ttft_ms", "is not a number")),
        ({"max_concurrency": [1]}, ("max_concurrency", "is not a number")),
        ({"tp": "eight"}, ("tp", "not a number of GPUs")),
        ({"request_rate": "fast"}, ("request_rate", "is not a number")),
    ],
)
def test_what_a_run_cannot_say_is_refused(tmp_path, change, words):
    with refused(*words):
        read_served(written(tmp_path, VLLM, **change))


def test_files_without_a_result_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"mean_ttft_ms": 1}', "utf-8")
    with refused("no result of vllm bench serve"):
        read_served(tmp_path / "a.json")
    with refused("no result of vllm bench serve"):
        read_served(tmp_path)
    (tmp_path / "b.jsonl").write_text(json.dumps(VLLM) + "\n{cut", "utf-8")
    with refused("line 2", "not valid JSON"):
        read_served(tmp_path / "b.jsonl")
    (tmp_path / "c.json").write_bytes(b"\xff\xfe{")
    with refused("not text in UTF-8"):
        read_served(tmp_path / "c.json")


def test_a_table_of_runs(tmp_path):
    """As vllm bench sweep writes it, with the index of a data frame."""
    rows = [VLLM | {"tensor_parallel_size": 8.0}, VLLM | {"max_concurrency": None, "request_rate": 2.5}]
    path = tmp_path / "summary.csv"
    pd.DataFrame(rows).to_csv(path)
    first, second = read_served(path)
    assert first == one(tmp_path, tensor_parallel_size=8)._replace(place="summary.csv:2")
    assert (second.place, second.in_flight, second.tensor) == ("summary.csv:3", 35, 0)
    (found,) = recognise(path)
    assert (found.content, list(found.cases)) == ("2 runs", ["serving_time"])
    path.write_text(f"{path.read_text()},{'9' * 200_000}\n")
    with refused("summary.csv", "not a CSV table"):
        read_served(path)


def test_inferencex_says_all_of_the_server_and_times_in_seconds(tmp_path):
    run = one(tmp_path, INFERENCEX)
    assert (run.gpu, run.engine, run.model, run.quantised) == ("h100", "vllm", "openai/gpt-oss-120b", "fp4")
    assert (run.ttft_s, run.tpot_s) == pytest.approx((0.18, 0.008))
    # Lengths are drawn from 80 to 100 % of those stated; ten requests for each in flight.
    assert (run.input_tokens, run.output_tokens, run.prompts, run.in_flight) == (922, 922, 320, 32)
    assert (run.tensor, run.replicas, run.expert, run.copies, run.speculative) == (4, 0, 1, 1, False)
    divided = one(tmp_path, INFERENCEX, framework="dynamo-sglang", tp=8, ep=8, dp_attention="true", precision="fp8")
    assert (divided.engine, divided.tensor, divided.replicas, divided.expert) == ("sglang", 1, 8, 8)
    assert one(tmp_path, INFERENCEX, framework="trt").engine == "trtllm"
    assert (
        one(tmp_path, INFERENCEX, spec_decoding="mtp").speculative and one(tmp_path, INFERENCEX, mtp="on").speculative
    )
    (tmp_path / "results_bmk.json").write_text(json.dumps([INFERENCEX, INFERENCEX | {"conc": 4}]), "utf-8")
    assert [run.in_flight for run in read_served(tmp_path / "results_bmk.json")] == [32, 4]


def test_a_row_of_conversations_alone_is_refused_for_that(tmp_path):
    row = {"hw": "cluster:h100-dgxc", "conc": 4, "scenario_type": "agentic-coding", "request_metrics": {"latency": {}}}
    with refused("scenario_type: conversations of agents"):
        one(tmp_path, row)


def test_rows_of_inferencex_of_every_age_are_read(tmp_path):
    now = one(tmp_path, INFERENCEX)
    assert one(tmp_path, INFERENCEX, pp=1, dcp_size=1, pcp_size=1, benchmark_type="single_turn") == now
    halves = one(tmp_path, INFERENCEX, tp=8, ep=8, dp_attention="true", attn_dp_size=2)
    assert (halves.tensor, halves.replicas, halves.expert) == (4, 2, 8)
    outcome = {"status": "passed", "requested": 100, "completed": 98, "failed": 2}
    assert one(tmp_path, INFERENCEX, benchmark_outcome=outcome).prompts == 98
    # The oldest have the lengths in the file's name: 1k8k are 1024 and 8192 tokens.
    oldest = {name: value for name, value in INFERENCEX.items() if name not in ("isl", "osl", "disagg", "is_multinode")}
    (run,) = read_served(written(tmp_path, oldest, name="agg_gptoss_1k8k_fp4_vllm_tp4_conc32.json"))
    assert (run.input_tokens, run.output_tokens) == (922, 7373)
    with refused("servers of their own"):
        one(tmp_path, oldest, framework="dynamo-sglang", isl=1024, osl=1024)
    # Other precisions than 16 bits are the server's, unless only a checkpoint has them.
    formats = {name: one(tmp_path, INFERENCEX, precision=name).quantised for name in ("bf16", "int4", "nvfp4", "mxfp4")}
    assert formats == {"bf16": "", "int4": "", "nvfp4": "nvfp4", "mxfp4": "mxfp4"}
    assert one(tmp_path, INFERENCEX, framework="atom").engine == "atom", "an engine that nothing else writes"
    folder = {"model": "/mnt/models/r1", "infmax_model_prefix": "dsr1", "precision": "fp8"}
    assert one(tmp_path, INFERENCEX, **folder).model == "deepseek-ai/DeepSeek-R1-0528"
    assert one(tmp_path, INFERENCEX, model="gptoss120b", infmax_model_prefix=None).model == "openai/gpt-oss-120b"
    assert one(tmp_path, INFERENCEX, model="kimik3", infmax_model_prefix=None).model == "kimik3", "not known"


def test_means_of_latency_and_first_token_tell_the_mean_time_per_output_token(tmp_path):
    old = {name: value for name, value in SGLANG.items() if "tpot" not in name} | {"mean_e2e_latency_ms": 584.0}
    # 128 requests of 64 tokens: (584 - 80) / 63 ms.
    assert one(tmp_path, old).tpot_s == pytest.approx(0.008, rel=1e-12)
    assert one(tmp_path, old, total_output_tokens=128 * 43).tpot_s == pytest.approx(0.012, rel=1e-12)
    with refused("result.json", "total_output_tokens: no token follows the first ones; benchmark longer outputs"):
        one(tmp_path, old, total_output_tokens=128)
    changes = ({"mean_e2e_latency_ms": None}, {"mean_e2e_latency_ms": 1e12})
    for change in (*changes, {"mean_ttft_ms": None}, {"mean_ttft_ms": 600.0}):
        with refused("result.json", "the time per output token is missing; add tpot to --percentile-metrics, or"):
            one(tmp_path, old, **change)


#: As ``utils/process_result.py`` writes runs on several nodes: GPUs of a worker, and how many workers there are.
APART = {
    **{
        "prefill_tp": 8,
        "prefill_ep": 8,
        "prefill_dp_attention": "true",
        "prefill_num_workers": 3,
        "num_prefill_gpu": 24,
    },
    **{"decode_tp": 16, "decode_ep": 16, "decode_dp_attention": "true", "decode_num_workers": 2, "num_decode_gpu": 32},
}


def test_disaggregated_rows_of_inferencex_say_what_both_kinds_of_workers_are(tmp_path):
    row = {name: value for name, value in INFERENCEX.items() if name not in ("tp", "ep", "dp_attention")}
    row |= {"framework": "dynamo-sglang", "precision": "fp8", "disagg": True, "is_multinode": True, "conc": 512}
    run = one(tmp_path, row | APART)
    assert (run.engine, run.in_flight, run.workers) == ("sglang", 512, 2)
    assert (run.tensor, run.replicas, run.expert) == (1, 16, 16) and run.prefill == (3, 1, 1, 8, 8)
    whole = one(tmp_path, row | APART | {"decode_dp_attention": "false", "decode_ep": 1, "prefill_pp": 2})
    assert (whole.tensor, whole.replicas, whole.expert) == (16, 0, 1) and whole.prefill == (3, 1, 2, 8, 8)
    together = one(tmp_path, INFERENCEX)
    assert together.workers == 0 and together.prefill == ()


def test_rows_of_inferencex_page_and_of_its_supplements_say_the_same(tmp_path):
    """The first of each is real: SemiAnalysisAI/InferenceX-app, api/benchmarks.json and supplemental-bmk.json."""
    page = {
        **{"hardware": "mi355x", "framework": "sglang", "model": "dsr1", "precision": "fp4", "spec_method": "none"},
        **{"disagg": False, "is_multinode": False, "prefill_tp": 4, "prefill_ep": 1, "prefill_dp_attention": False},
        **{"prefill_num_workers": 0, "decode_tp": 4, "decode_ep": 1, "decode_dp_attention": False, "isl": 1024},
        **{"decode_num_workers": 0, "num_prefill_gpu": 4, "num_decode_gpu": 4, "osl": 1024, "conc": 4},
        "metrics": {"median_tpot": 0.01064601337724555, "median_ttft": 0.10738262953236699, "mean_tpot": 0.0106445},
    }
    run = one(tmp_path, page)
    assert (run.gpu, run.engine, run.model, run.tensor, run.expert) == ("mi355x", "sglang", "dsr1", 4, 1)
    assert (run.tpot_s, run.ttft_s) == pytest.approx((0.01064601337724555, 0.10738262953236699), rel=1e-12)
    assert (run.in_flight, run.input_tokens, run.output_tokens, run.speculative) == (4, 922, 922, False)
    assert one(tmp_path, page, spec_method="mtp").speculative
    spread = one(tmp_path, page, decode_dp_attention=True, decode_ep=4)
    assert (spread.tensor, spread.replicas, spread.expert) == (1, 4, 4)
    supplement = {
        **{
            **{"model": "zai-org/GLM-4.7", "hw": "gaudi3", "framework": "vllm-gaudi"},
            **{"precision": "bf16", "tp": 8, "ep": 1},
        },
        **{"spec_decoding": "none", "conc": 1, "dp_attention": "false", "isl": 1024, "osl": 1024, "disagg": False},
        "metrics": {"median_ttft": 0.16441, "median_tpot": 0.05288, "tput_per_gpu": 5.83},
    }
    run = one(tmp_path, supplement, hw="cluster:h100-dgxc", pp=2)
    assert (run.gpu, run.model, run.tensor, run.pipeline) == ("h100", "zai-org/GLM-4.7", 8, 2)
    assert (run.tpot_s, run.ttft_s) == pytest.approx((0.05288, 0.16441))
    with refused("result.json", "scenario_type: conversations of agents, whose lengths differ"):
        one(tmp_path, {"hw": "cluster:h100-dgxc", "conc": 4, "scenario_type": "agentic-coding", "tput_per_gpu": 405.0})
    with refused("result.json", "no result of"):
        one(tmp_path, page, metrics=[0.01])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"disagg": True}, "disagg: prompts and decoding on servers of their own, whose numbers and GPUs are missing"),
        ({"disagg": True} | APART | {"prefill_num_workers": 0}, "give rows with prefill_tp, prefill_num_workers"),
        ({"disagg": True} | APART | {"decode_tp": None}, "servers of their own"),
        ({"disagg": True} | APART | {"prefill_tp": "all"}, "tp_size: 'all' is not a number of GPUs"),
        ({"is_multinode": "true"}, "is_multinode: one server on several nodes"),
        ({"framework": "mori-sglang"}, "servers of their own"),
        ({"framework": "sglang-disagg"}, "servers of their own"),
        ({"dcp_size": 2}, "context parallelism, which is not predicted"),
        ({"pcp_size": "4"}, "context parallelism"),
        ({"dp_attention": True, "attn_dp_size": 3}, "dp_size: 3 replicas of the attention on 4 GPUs"),
        ({"conc": "1" * 5000}, "is not a number of requests"),
        ({"isl": None}, "isl: a whole number of tokens is missing; give rows with isl and osl"),
        ({"osl": -1}, "osl: a whole number of tokens is missing"),
        ({"conc": "many"}, "conc: 'many' is not a number of requests"),
        ({"tp": "all"}, "tp_size: 'all' is not a number of GPUs"),
        ({"median_tpot": None, "mean_tpot": None}, "the time per output token is missing"),
    ],
)
def test_rows_of_inferencex_that_say_too_little_are_refused(tmp_path, change, words):
    with refused("result.json", words):
        one(tmp_path, INFERENCEX, **change)


def test_of_several_runs_the_bad_ones_are_left_out_with_a_warning_for_each_reason(tmp_path):
    slow = VLLM | {"median_tpot_ms": "slow"}
    written(tmp_path, VLLM | {"completed": 0}, VLLM, slow, slow | {"median_tpot_ms": "fast"}, name="many.jsonl")
    with pytest.warns(InputWarning) as warned:
        (run,) = read_served(tmp_path)
    said = [str(warning.message) for warning in warned]
    assert len(said) == 2
    assert said[0].startswith("1 of 4 runs left out: ") and "run 1, completed: no request" in said[0]
    assert said[1].startswith("2 of 4 runs left out: ") and "run 3, median_tpot_ms: 'slow' is not a number" in said[1]
    assert run.place == "many.jsonl:2"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


WRITTEN = [VLLM, SGLANG, INFERENCEX, AIPERF, GENAI_PERF, GUIDELLM, *GUIDELLM["benchmarks"], LLMPERF]


@given(
    st.dictionaries(st.sampled_from([key for entry in WRITTEN for key in entry]), json_values, max_size=6),
    st.sampled_from(WRITTEN),
)
def test_any_value_is_read_or_refused_in_one_line(tmp_path_factory, change, entry):
    path = written(tmp_path_factory.mktemp("any"), entry, **change)
    try:
        for run in read_served(path):
            assert run.tpot_s > 0 and run.prompts > 0 and 0 <= run.in_flight <= run.prompts
            assert run.input_tokens >= 1 and run.output_tokens >= 1
    except InputError as error:
        assert "\n" not in str(error)


def test_half_a_character_in_a_name_is_written_as_an_escape(tmp_path):
    assert one(tmp_path, INFERENCEX, model="a/\ud800").model == r"a/\ud800"
