"""What benchmarks of a server print: summaries of vLLM's and SGLang's programs, batches, and trtllm-bench's reports."""

import json

import pytest
from own_cases import refused
from served_runs import PRINTED, TRTLLM, VLLM, written

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputWarning
from gpuledger.readers.served_results import read_served

BATCH = """Warmup ...
Prefill. latency: 0.90000 s, throughput:   4551.11 token/s
Decode 0. Batch size: 4, latency: 0.20000 s, throughput:     20.00 token/s
Decode.  median latency: 0.02000 s, median throughput:    200.00 token/s
Total. latency:  1.500 s, throughput:   2816.00 token/s
Benchmark ...
Prefill. latency: 0.50000 s, throughput:   8192.00 token/s
Decode 0. Batch size: 4, latency: 0.01300 s, throughput:    307.69 token/s
Decode.  median latency: 0.01250 s, median throughput:    320.00 token/s
Total. latency:  2.100 s, throughput:   2194.29 token/s
"""
#: The report of `TRTLLM`.
REPORT = """
===========================================================
= PYTORCH BACKEND
===========================================================
Model:\t\t\tmeta-llama/Llama-3.1-8B-Instruct
Model Path:\t\tNone
KV Cache Dtype:\t\tFP8
Quantization:\t\tFP8
TP Size:                2
PP Size:                1
EP Size:                None
Max Runtime Batch Size: 64
Number of requests:             512
Number of concurrent requests:  31.9000
Average Input Length (tokens):  1024.0000
Average Output Length (tokens): 511.5000
===========================================================
= PERFORMANCE OVERVIEW
===========================================================
Request Throughput (req/sec):                     8.5000
Average time-to-first-token [TTFT] (ms):          90.0000
Average time-per-output-token [TPOT] (ms):        8.4000

[TPOT] P50    : 8.2500
[TTFT] P50    : 80.0000
"""


def written_run(tmp_path, entry=VLLM):
    (run,) = read_served(written(tmp_path, entry))
    return run


def printed(tmp_path, text):
    (tmp_path / "log.txt").write_text(text, "utf-8")
    (run,) = read_served(tmp_path / "log.txt")
    return run


def test_what_was_printed_says_the_same(tmp_path):
    (tmp_path / "log.txt").write_text(
        PRINTED + PRINTED.replace(": 50", ": 8").replace("Median TTFT", "P50 TTFT"), "utf-8"
    )
    first, second = read_served(tmp_path / "log.txt")
    assert first == written_run(tmp_path)._replace(place="log.txt:1")
    assert (second.place, second.in_flight, second.ttft_s) == ("log.txt:2", 8, 0.9), "the mean, not the other's median"
    (tmp_path / "only").mkdir()
    (tmp_path / "only/run.log").write_text(PRINTED.replace("Traffic", "Backend: sglang\nTraffic"), "utf-8")
    (run,) = read_served(tmp_path / "only")
    assert (run.place, run.engine) == ("run.log", "sglang")


def test_the_rate_in_the_summary_and_the_model_in_the_command_count(tmp_path):
    command = "$ vllm bench serve --backend vllm --model Qwen/Qwen3-8B --request-rate 2\n"
    summary = PRINTED[PRINTED.index("====") :]
    rate = "Request rate configured (RPS):           2.00\nBenchmark duration"
    (tmp_path / "log.txt").write_text(command + summary.replace("Benchmark duration", rate), "utf-8")
    (tmp_path / "old.txt").write_text(f"Traffic request rate: 2.00\n{summary}", "utf-8")
    (found,), (old,) = (read_served(tmp_path / name) for name in ("log.txt", "old.txt"))
    assert found.in_flight == old.in_flight < 50 and found.model == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    "before", ["# ", "2026-03-01T10:00:00Z bench | ", "\x1b[36mbench |\x1b[0m ", "(Client pid=7) "]
)
def test_every_line_of_a_log_may_have_something_in_front(tmp_path, before):
    (tmp_path / "log.txt").write_text("".join(before + line for line in PRINTED.splitlines(True)), "utf-8")
    (run,) = read_served(tmp_path / "log.txt")
    assert run == written_run(tmp_path)._replace(place="log.txt")
    (found,) = recognise(tmp_path / "log.txt")
    assert "serving_time" in found.cases


def test_powershell_writes_utf_16(tmp_path):
    (tmp_path / "log.txt").write_text(PRINTED, "utf-16")
    (run,) = read_served(tmp_path / "log.txt")
    assert run == written_run(tmp_path)._replace(place="log.txt")
    (found,) = recognise(tmp_path / "log.txt")
    assert "serving_time" in found.cases


def test_a_bar_of_progress_may_stand_before_the_title(tmp_path):
    text = PRINTED.replace("====== Serving", f"100%|{'█' * 149}| 400/400 [00:40<00:00, 10.00it/s]====== Serving", 1)
    assert printed(tmp_path, text) == written_run(tmp_path)._replace(place="log.txt")


def test_a_cut_summary_takes_nothing_from_those_around_it(tmp_path):
    first = PRINTED.rpartition("\n=====")[0]
    second = first.replace("concurrency: 50", "concurrency: 8").partition("\n-----Time per Output")[0]
    (tmp_path / "log.txt").write_text(f"{first}\n{second}\n", "utf-8")
    with pytest.warns(InputWarning, match="1 of 2 runs left out: .*the time per output token is missing"):
        (run,) = read_served(tmp_path / "log.txt")
    assert run == written_run(tmp_path)._replace(place="log.txt:1")


@pytest.mark.parametrize("word", ["None", "not set"])
def test_a_benchmark_without_a_limit_says_so(tmp_path, word):
    lines = PRINTED[PRINTED.index("Traffic") :].replace("concurrency: 50", f"concurrency: {word}")
    assert printed(tmp_path, lines).in_flight == 0


@pytest.mark.parametrize("label", ["Max request concurrency", "Max reqeuest concurrency"])
def test_sglang_misspelled_the_limit(tmp_path, label):
    lines = PRINTED[PRINTED.index("Traffic") :].replace("Maximum request concurrency", label)
    assert printed(tmp_path, lines).in_flight == 50


def test_a_remark_beside_a_number_is_none_of_it(tmp_path):
    assert printed(tmp_path, PRINTED.replace("1000.00", "1000.00      <== twice")) == printed(tmp_path, PRINTED)
    with refused("log.txt", "median_ttft_ms: '1000.00 s' is not a number"):
        printed(tmp_path, PRINTED.replace("1000.00", "1000.00 s"))


def test_thousands_may_be_grouped(tmp_path):
    assert printed(tmp_path, PRINTED.replace("409200", "409,200")).input_tokens == 1023


def test_the_limit_in_the_only_command_counts(tmp_path):
    summary = PRINTED[PRINTED.index("====") :]
    command = "vllm bench serve --max-concurrency {} \\\n"
    assert printed(tmp_path, command.format(8) + summary).in_flight == 8
    assert printed(tmp_path, command.format(8) + command.format(16) + summary).in_flight == 0, (
        "which one, it does not say"
    )


def test_sglang_printed_no_time_per_output_token_in_2025(tmp_path):
    text = "\n".join(line for line in PRINTED.splitlines() if "TPOT" not in line)
    text = text.replace("Mean TTFT", "Mean E2E Latency (ms):                   3440.00\nMean TTFT")
    # 400 requests of 128 tokens: (3440 - 900) / 127 ms.
    assert printed(tmp_path, text).tpot_s == pytest.approx(0.02)


def test_a_log_may_have_the_result_beside_the_summary(tmp_path):
    (tmp_path / "log.txt").write_text(f'start\n{PRINTED}<<<RESULT>>>\n{{"output_throughput": 1280.0}}\n', "utf-8")
    (run,) = read_served(tmp_path / "log.txt")
    assert run == written_run(tmp_path)._replace(place="log.txt")


def test_a_log_may_have_the_results_alone(tmp_path):
    result = json.dumps(VLLM | {"request_rate": "inf"})
    (tmp_path / "log.txt").write_text(f"tp: 4\n[step 1]\n{result}\nwarning: slow\n{result}\n", "utf-8")
    found = read_served(tmp_path / "log.txt")
    assert found == [written_run(tmp_path)._replace(place=f"log.txt:{line}") for line in (3, 5)]
    (seen,) = recognise(tmp_path / "log.txt")
    assert (seen.content, seen.problems) == ("2 runs", [])


def test_one_batch_tells_lengths_by_its_rates(tmp_path):
    run = printed(tmp_path, BATCH)
    assert (run.engine, run.input_tokens, run.output_tokens, run.in_flight) == ("sglang", 1024, 128, 4)
    assert (run.ttft_s, run.tpot_s, run.one_batch) == (0.5, 0.0125, True)
    with refused("log.txt", "no result of"):
        printed(tmp_path, BATCH.replace("Benchmark", "Warmup"))


def test_trtllm_bench_prints_its_report(tmp_path):
    assert printed(tmp_path, REPORT)._replace(place="", expert=1) == written_run(tmp_path, TRTLLM)._replace(place="")
    with refused("log.txt", "num_requests"):
        printed(tmp_path, REPORT[REPORT.index("= PERF") :])


@pytest.mark.parametrize("text", [PRINTED, BATCH, REPORT])
def test_such_a_text_is_recognised(tmp_path, text):
    (tmp_path / "log.txt").write_text(text, "utf-8")
    (found,) = recognise(tmp_path / "log.txt")
    assert (found.content, list(found.cases)) == ("1 run", ["serving_time"])
