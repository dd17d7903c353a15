"""Results of programs that load any server: AIPerf, GenAI-Perf, GuideLLM and LLMPerf."""

import pytest
from own_cases import refused
from served_runs import AIPERF, EVALSCOPE, GENAI_PERF, GUIDELLM, LLMPERF, ONE_BATCH, ONE_BATCH_SERVER, written

from gpuledger.cli.recognise import recognise
from gpuledger.readers.served_results import read_served


def shape(run):
    return run.input_tokens, run.output_tokens, run.prompts, run.in_flight


def times(run):
    return pytest.approx((run.ttft_s, run.tpot_s))


def one(tmp_path, entry, **change):
    (run,) = read_served(written(tmp_path, entry, **change))
    return run


def test_aiperf_measured_the_last_phase(tmp_path):
    run = one(tmp_path, AIPERF)
    assert (run.place, run.engine, run.model, shape(run)) == ("result.json", "", "Qwen/Qwen3-8B", (1000, 250, 100, 32))
    assert times(run) == (0.18, 0.009), "medians before means"
    older = {"endpoint": {"model_names": ["a/b", "c/d"]}, "loadgen": {"concurrency": 8, "request_rate": None}}
    run = one(tmp_path, AIPERF, input_config=older)
    assert (run.model, run.in_flight) == ("", 8), "two models are none that is known"


def test_genai_perf_names_units_and_a_rate(tmp_path):
    run = one(tmp_path, GENAI_PERF)
    assert (run.engine, run.model) == ("vllm", "llama")
    assert times(run) == (0.18, 0.009)
    # Five requests a second, each of which takes 180 + 249 · 9 ms.
    assert shape(run) == (1000, 250, 100, 12)


def test_guidellm_reports_several_runs(tmp_path):
    first, second = read_served(written(tmp_path, GUIDELLM))
    assert (first.place, second.place, first.model) == ("result.json:1", "result.json:2", "Qwen/Qwen3-8B")
    assert shape(first) == (512, 128, 60, 16)
    assert second.in_flight == 7, "so many as were measured"
    assert times(first) == (0.05, 0.0097), "not the time that has the first token in it"
    alone = one(tmp_path, {"benchmarks": GUIDELLM["benchmarks"][:1]})
    assert alone == first._replace(place="result.json")


def test_llmperf_has_the_first_token_in_its_times(tmp_path):
    run = one(tmp_path, LLMPERF)
    assert (run.model, shape(run)) == ("llama", (1024, 201, 40, 5))
    assert times(run) == (0.25, 0.01), "the rest of 2.25 s for 200 tokens"


def test_evalscope_has_means_of_which_the_time_per_token_follows(tmp_path):
    run = one(tmp_path, EVALSCOPE)
    assert (run.engine, run.model, shape(run)) == ("", "", (1024, 201, 80, 16))
    assert times(run) == (0.25, 0.01), "200 tokens in 2 s"
    table = "".join(f"| {name:35} | {value:9.4f} |\n+---+---+\n" for name, value in EVALSCOPE.items())
    path = tmp_path / "log.txt"
    path.write_text(f"Benchmarking summary:\n{table}\n| Percentiles | TTFT (s) |\n| 10% | 0.1 |\n{table}", "utf-8")
    assert [found._replace(place="result.json") for found in read_served(path)] == [run, run]
    (found,) = recognise(path)
    assert found.content == "2 runs"


def test_one_batch_of_sglang_has_no_other_prompts(tmp_path):
    run = one(tmp_path, ONE_BATCH)
    assert (run.engine, run.model, shape(run), run.one_batch) == ("sglang", "", (1024, 128, 16, 16), True)
    assert times(run) == (0.5, 0.012)
    assert not one(tmp_path, LLMPERF).one_batch
    first, second = read_served(written(tmp_path, ONE_BATCH, ONE_BATCH | {"batch_size": 1}, name="result.jsonl"))
    assert (first.place, first.in_flight, second.in_flight) == ("result.jsonl:1", 16, 1)


def test_one_batch_of_a_server_decodes_after_its_last_first_token(tmp_path):
    run = one(tmp_path, ONE_BATCH_SERVER)
    assert (run.engine, run.model, shape(run)) == ("sglang", "Qwen/Qwen3-8B", (1024, 128, 16, 16))
    assert times(run) == (0.5, 0.012), "127 tokens in 1.524 s"
    assert run.one_batch and not run.speculative
    assert one(tmp_path, ONE_BATCH_SERVER, acc_length=2.8).speculative


@pytest.mark.parametrize(
    ("entry", "runs"),
    [
        (AIPERF, "1 run"),
        (GENAI_PERF, "1 run"),
        (GUIDELLM, "2 runs"),
        (LLMPERF, "1 run"),
        (ONE_BATCH, "1 run"),
        (ONE_BATCH_SERVER, "1 run"),
        (EVALSCOPE, "1 run"),
    ],
)
def test_such_a_file_is_recognised(tmp_path, entry, runs):
    (found,) = recognise(written(tmp_path, entry))
    assert (found.content, list(found.cases)) == (runs, ["serving_time"])


@pytest.mark.parametrize(
    ("entry", "change", "words"),
    [
        (AIPERF, {"is_complete": False}, ("is_complete", "the run ended early")),
        (AIPERF, {"inter_token_latency": None}, ("inter_token_latency", "run the benchmark with --streaming")),
        (AIPERF, {"inter_token_latency": {"unit": "h", "avg": 1}}, ("unknown unit 'h'", "known units: ns")),
        (AIPERF, {"request_count": {"avg": "many"}}, ("request_count.avg", "'many' is not a positive number")),
        (GUIDELLM["benchmarks"][0], {"metrics": {"inter_token_latency_ms": {}}}, ("request_totals", "it is missing")),
        (GUIDELLM["benchmarks"][0], {"config": {"strategy": {"streams": 1e999}}}, ("strategy.streams", "'inf' is not")),
        (GUIDELLM["benchmarks"][0], {"config": {"strategy": {"streams": "16"}}}, ("strategy.streams", "'16' is not")),
        (LLMPERF, {"results_number_output_tokens_mean": 1}, ("total_output_tokens", "no token follows")),
        (ONE_BATCH, {"prefill_latency": "fast"}, ("result.prefill_latency", "'fast' is not a positive number")),
        (ONE_BATCH_SERVER, {"last_ttft": -1.0}, ("result.last_ttft", "'-1.0' is not a positive number")),
        (ONE_BATCH_SERVER, {"output_len": 1}, ("output_len", "no token was decoded")),
    ],
)
def test_what_a_run_cannot_say_is_one_line(tmp_path, entry, change, words):
    with refused("result.json", *words):
        one(tmp_path, entry, **change)


def test_a_batch_that_only_processed_prompts_is_one_line(tmp_path):
    prompts = {key: value for key, value in ONE_BATCH.items() if "decode" not in key}
    with refused("result.json", "no token was decoded", "--output-len 2"):
        one(tmp_path, prompts)
