"""Results of benchmarks of a server, as their programs write them."""

import json
import math

#: As vllm bench serve writes it.
VLLM = {
    **{"date": "20260413-092439", "endpoint_type": "openai", "backend": "openai", "label": None},
    **{"model_id": "/models/Llama-3.1-70B-Instruct", "num_prompts": 400, "request_rate": "inf", "burstiness": 1.0},
    **{"max_concurrency": 50, "duration": 40.0, "completed": 400, "failed": 0, "total_input_tokens": 409_200},
    **{"total_output_tokens": 51_200, "request_throughput": 10.0, "output_throughput": 1280.0},
    **{"mean_ttft_ms": 900.0, "median_ttft_ms": 1000.0, "mean_tpot_ms": 21.0, "median_tpot_ms": 20.0},
}
#: The same as it prints it.
PRINTED = """Namespace(num_prompts=400, max_concurrency=50, model='/models/Llama-3.1-70B-Instruct', request_rate=inf)
Traffic request rate: inf
Maximum request concurrency: 50
============ Serving Benchmark Result ============
Successful requests:                     400
Benchmark duration (s):                  40.00
Total input tokens:                      409200
Total generated tokens:                  51200
Request throughput (req/s):              10.00
---------------Time to First Token----------------
Mean TTFT (ms):                          900.00
Median TTFT (ms):                        1000.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          21.00
Median TPOT (ms):                        20.00
==================================================
"""
#: As sglang.bench_serving writes it; of the server's arguments only some.
SGLANG = {
    **{"tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": math.inf, "max_concurrency": 64},
    "server_info": {
        **{"model_path": "Qwen/Qwen3-8B", "quantization": "fp8", "kv_cache_dtype": "fp8_e4m3", "tp_size": 4},
        **{"dp_size": 2, "pp_size": 1, "ep_size": 1, "speculative_algorithm": None, "enable_dp_attention": False},
    },
    **{"duration": 9.5, "completed": 128, "total_input_tokens": 65_536, "total_output_tokens": 8_192},
    **{"output_throughput": 862.0, "mean_ttft_ms": 80.0, "mean_tpot_ms": 7.5},
}
#: As InferenceX writes a row of what it made of such a result.
INFERENCEX = {
    **{"hw": "h100-nb", "conc": 32, "image": "vllm/vllm-openai:v0.18.0", "model": "openai/gpt-oss-120b"},
    **{"infmax_model_prefix": "gptoss", "framework": "vllm", "precision": "fp4", "spec_decoding": "none"},
    **{"disagg": False, "isl": 1024, "osl": 1024, "is_multinode": False, "tp": 4, "ep": 1, "dp_attention": "false"},
    **{"tput_per_gpu": 1900.0, "output_tput_per_gpu": 950.0, "mean_ttft": 0.2, "median_ttft": 0.18},
    **{"mean_tpot": 0.0081, "median_tpot": 0.008, "median_intvty": 125.0},
}
#: As trtllm-bench reports a run, in its main parts.
TRTLLM = {
    "engine": {
        **{"model": "meta-llama/Llama-3.1-8B-Instruct", "model_path": "None", "version": "1.2.0", "backend": "Pytorch"},
        **{"dtype": "bfloat16", "kv_cache_dtype": "FP8", "quantization": "FP8"},
    },
    "machine": {"name": "NVIDIA H100 80GB HBM3", "memory.total": 79.1, "clocks.mem": 2.619},
    "world_info": {"tp_size": 2, "pp_size": 1, "ep_size": -1, "world_size": 2, "max_batch_size": 64},
    "request_info": {
        **{"num_requests": 512, "avg_num_concurrent_requests": 31.9, "avg_input_length": 1024.0},
        "avg_output_length": 511.5,
    },
    "performance": {"total_latency_ms": 6e4, "request_throughput_req_s": 8.5, "system_output_throughput_tok_s": 4369.0},
    "streaming_metrics": {
        **{"token_output_speed_tok_s": 120.0, "avg_ttft_ms": 90.0, "avg_tpot_ms": 8.4},
        **{"tpot_percentiles": {"p50": 8.25, "average": 8.4}, "ttft_percentiles": {"p50": 80.0, "average": 90.0}},
    },
    "dataset": {"isl_stats": {"minimum": 1024}},
}


def written(tmp_path, *entries, name="result.json", **change):
    lines = [json.dumps({**entry, **change}) for entry in entries]
    (tmp_path / name).write_text("\n".join(lines), "utf-8")
    return tmp_path / name


def _spread(unit, median, mean=None):
    return {"unit": unit, "avg": mean or median, "p50": median, "p99": 2 * median}


#: As AIPerf exports a run, in its main parts: after a phase of 4 requests at a time, 100 at 32.
AIPERF = {
    **{"schema_version": "1.4", "aiperf_version": "0.13.0", "is_complete": True, "was_cancelled": False},
    **{"request_throughput": {"unit": "requests/sec", "avg": 5.0}, "request_count": {"unit": "requests", "avg": 100.0}},
    **{"time_to_first_token": _spread("ms", 180.0, 200.0), "inter_token_latency": _spread("ms", 9.0, 9.5)},
    **{"input_sequence_length": _spread("tokens", 1000.0), "output_sequence_length": _spread("tokens", 250.0)},
    "input_config": {
        "models": {"items": [{"name": "Qwen/Qwen3-8B"}], "strategy": "round_robin"},
        "phases": [{"name": "warmup", "concurrency": 4}, {"name": "profiling", "concurrency": 32}],
    },
}
#: As GenAI-Perf does, which says which engine its Triton server ran.
GENAI_PERF = {
    **{key: AIPERF[key] for key in ("request_throughput", "input_sequence_length", "output_sequence_length")},
    **{"request_count": {"unit": "count", "avg": 100}, "time_to_first_token": _spread("us", 180e3)},
    "inter_token_latency": _spread("ns", 9e6),
    "input_config": {"model": ["llama"], "backend": "vllm", "concurrency": None, "request_rate": 5.0},
}


def _guidellm(strategy, together):
    done = {
        **{"prompt_token_count": 512.0, "output_token_count": 128.0, "request_concurrency": together},
        **{"time_to_first_token_ms": 50.0, "time_per_output_token_ms": 10.0, "inter_token_latency_ms": 9.7},
    }
    metrics = {name: {"successful": {"mean": value + 0.1, "median": value}} for name, value in done.items()}
    return {
        "config": {"strategy": strategy, "backend": {"target": "http://localhost:8000", "model": "Qwen/Qwen3-8B"}},
        "metrics": {"request_totals": {"successful": 60, "errored": 1, "total": 61}, "slo_attainment": 0.9, **metrics},
    }


#: As GuideLLM reports two runs, in their main parts.
GUIDELLM = {
    "metadata": {"version": 2},
    "benchmarks": [
        _guidellm({"type_": "concurrent", "streams": 16}, 15.2),
        _guidellm({"type_": "poisson", "rate": 4.0}, 7.0),
    ],
}
#: As LLMPerf sums a run up.
LLMPERF = {
    **{"version": "2023-08-31", "model": "llama", "num_concurrent_requests": 5},
    **{"results_ttft_s_mean": 0.25, "results_inter_token_latency_s_mean": 0.012, "results_num_completed_requests": 40},
    **{"results_end_to_end_latency_s_mean": 2.25, "results_number_input_tokens_mean": 1024.0},
    "results_number_output_tokens_mean": 201.0,
}
#: As a line of what sglang.bench_one_batch writes.
ONE_BATCH = {
    **{"run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 128, "prefill_latency": 0.5},
    **{"prefill_throughput": 32768.0, "median_decode_latency": 0.012, "median_decode_throughput": 1333.3},
    **{"total_latency": 2.03, "overall_throughput": 9079.8},
}
#: As sglang.bench_one_batch_server writes it.
ONE_BATCH_SERVER = {
    **{"model_path": "Qwen/Qwen3-8B", "run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 128},
    **{"latency": 2.024, "input_throughput": 32768.0, "output_throughput": 1343.8, "overall_throughput": 9106.7},
    **{"last_ttft": 0.5, "last_gen_throughput": 1333.3, "acc_length": -1.0},
}
#: As EvalScope writes it.
EVALSCOPE = {
    **{"Time taken for tests (s)": 100.0, "Number of concurrency": 16, "Total requests": 80, "Succeed requests": 80},
    **{"Failed requests": 0, "Output token throughput (tok/s)": 160.0, "Request throughput (req/s)": 0.8},
    **{"Average latency (s)": 2.25, "Average time to first token (s)": 0.25, "Average time per output token (s)": 0.01},
    **{"Average input tokens per request": 1024.0, "Average output tokens per request": 201.0},
}
