"""Results of programs that load any server, as results of ``vllm bench serve``: AIPerf and GenAI-Perf
(``profile_export_*.json``), GuideLLM (``benchmarks.json``), LLMPerf (``*_summary.json``), and EvalScope
(``benchmark_summary.json``); and of SGLang's
``bench_one_batch`` (``result.jsonl``), which has no server, and ``bench_one_batch_server``.

None of them knows the GPU, and only the last two the engine. All times here are those after the first token: GuideLLM's
``time_per_output_token_ms`` and LLMPerf's ``inter_token_latency`` also divide the time to the first one among the
tokens. Sources: ai-dynamo/aiperf, ``common/models/export_models.py``; triton-inference-server/perf_analyzer,
``genai_perf/export_data/json_exporter.py``; vllm-project/guidellm, ``schemas/base/request_stats.py`` and
``benchmark/schemas/metrics.py``; ray-project/llmperf, ``token_benchmark_ray.py``; modelscope/evalscope,
``perf/utils/benchmark_util.py``;
sgl-project/sglang, ``bench_one_batch.py`` and ``bench_one_batch_server.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Keys by which a file is told from others.
MARKS = (
    *("inter_token_latency_ms", "results_ttft_s_mean", "prefill_throughput"),
    r"Average time to first token \(s\)",
)
#: Milliseconds in a unit of AIPerf's.
_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_LLMPERF = "results_number_{}_tokens_mean"

Refuse = Callable[[str, str, str], None]


def runs_in(entry: Mapping[str, Any]) -> list[Any]:
    """Return the runs of an object of a file: GuideLLM's reports hold several."""
    several = entry.get("benchmarks")
    return several if isinstance(several, list) else [entry]


def reader_of(entry: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Refuse], dict[str, Any]] | None:
    """Return what makes a result of an object; None if it is of no such program.

    The function takes the object, and a callable that takes a key, what is wrong with it and what to do, and raises.
    """
    if isinstance(entry.get("request_throughput"), Mapping):
        return _of_aiperf
    if "inter_token_latency_ms" in _group(entry, "metrics"):
        return _of_guidellm
    if {"prefill_latency", "prefill_throughput", "batch_size"} <= entry.keys():
        return _of_one_batch
    if {"batch_size", "latency", "overall_throughput"} <= entry.keys():
        return _of_one_batch_server
    if "Average time to first token (s)" in entry:
        return _of_evalscope
    return _of_llmperf if "results_ttft_s_mean" in entry else None


def _of_aiperf(export: Mapping[str, Any], refuse: Refuse) -> dict[str, Any]:
    if export.get("is_complete") is False:
        refuse("is_complete", "the run ended early", "run it again")
    asked = _group(export, "input_config")
    prompts = _number(export, "request_count", "avg", refuse)
    found = {}
    for key, name in (("time_to_first_token", "ttft"), ("inter_token_latency", "tpot")):
        times = _group(export, key)
        scale = _UNITS.get(str(times.get("unit", "ms")).lower())
        if scale is None:
            refuse(key, f"unknown unit {str(times['unit'])[:40]!r}", f"known units: {', '.join(_UNITS)}")
        for kind, own in (("median", "p50"), ("mean", "avg")):
            if own in times:
                found[f"{kind}_{name}_ms"] = scale * _number(export, key, own, refuse)
    if not found.keys() & {"mean_tpot_ms", "median_tpot_ms"}:
        refuse("inter_token_latency", "it is missing", "run the benchmark with --streaming")
    # The last phase is what was measured.
    together, rate = ([one for one in _values(asked, key) if one][-1:] for key in ("concurrency", "request_rate"))
    return {
        **found,
        **_totals(prompts, *(_number(export, f"{way}_sequence_length", "avg", refuse) for way in ("input", "output"))),
        "backend": asked.get("backend"),
        "model_id": _model(asked),
        "max_concurrency": together[0] if together else None,
        "request_rate": rate[0] if rate else None,
        "duration": prompts / _number(export, "request_throughput", "avg", refuse),
    }


#: Where GuideLLM says how many requests are in flight: as it was asked, or as it measured.
_TOGETHER = (("strategy", "streams"), ("request_concurrency", "mean"))


def _of_guidellm(benchmark: Mapping[str, Any], refuse: Refuse) -> dict[str, Any]:
    measured = _group(benchmark, "metrics")
    metrics = {name: _group(_group(measured, name), "successful") for name in measured}
    totals = _group(measured, "request_totals") or _group(benchmark, "request_totals")
    prompts = _number({"request_totals": totals}, "request_totals", "successful", refuse)
    lengths = (_number(metrics, f"{way}_token_count", "mean", refuse) for way in ("prompt", "output"))
    strategy = _group(_group(benchmark, "config") or _group(benchmark, "args"), "strategy")
    counted = {"strategy": strategy, **metrics}
    named = next((pair for pair in _TOGETHER if _group(counted, pair[0]).get(pair[1])), None)
    return {
        **{
            f"median_{name}_ms": _number(metrics, key, "median", refuse)
            for name, key in (("ttft", "time_to_first_token_ms"), ("tpot", "inter_token_latency_ms"))
        },
        **_totals(prompts, *lengths),
        "model_id": _model(benchmark),
        "max_concurrency": max(1, round(_number(counted, *named, refuse))) if named else None,
    }


def _of_llmperf(summary: Mapping[str, Any], refuse: Refuse) -> dict[str, Any]:
    whole = {"summary": summary}
    first, latency = (
        1e3 * _number(whole, "summary", f"results_{name}_s_mean", refuse) for name in ("ttft", "end_to_end_latency")
    )
    lengths = [_number(whole, "summary", _LLMPERF.format(way), refuse) for way in ("input", "output")]
    return {
        "mean_ttft_ms": first,
        # A single token has no time after it.
        "mean_tpot_ms": (latency - first) / (lengths[1] - 1) if lengths[1] > 1 else None,
        **_totals(_number(whole, "summary", "results_num_completed_requests", refuse), *lengths),
        "model_id": summary.get("model"),
        "max_concurrency": summary.get("num_concurrent_requests"),
    }


def _of_evalscope(summary: Mapping[str, Any], refuse: Refuse) -> dict[str, Any]:
    whole = {"summary": summary}
    prompts, first, latency, *lengths = (
        _number(whole, "summary", name, refuse)
        for name in (
            *("Succeed requests", "Average time to first token (s)", "Average latency (s)"),
            *(f"Average {way} tokens per request" for way in ("input", "output")),
        )
    )
    return {
        # The time per output token follows: what is written beside them was another time in older versions.
        **{"mean_ttft_ms": 1e3 * first, "mean_e2e_latency_ms": 1e3 * latency, **_totals(prompts, *lengths)},
        "max_concurrency": summary.get("Number of concurrency"),
    }


def _of_one_batch(result: Mapping[str, Any], refuse: Refuse) -> dict[str, Any]:
    if "median_decode_latency" not in result:
        refuse("median_decode_latency", "no token was decoded", "run the benchmark with --output-len 2 or more")
    names = ("batch_size", "input_len", "output_len", "prefill_latency", "median_decode_latency")
    batch, *lengths, prompts_s, step_s = (_number({"result": result}, "result", name, refuse) for name in names)
    return {
        **{"backend": "sglang", "one_batch": True, "max_concurrency": batch, **_totals(batch, *lengths)},
        **{"median_ttft_ms": 1e3 * prompts_s, "median_tpot_ms": 1e3 * step_s},
    }


def _of_one_batch_server(result: Mapping[str, Any], refuse: Refuse) -> dict[str, Any]:
    names = ("batch_size", "input_len", "output_len", "last_ttft", "latency")
    batch, *lengths, first, latency = (_number({"result": result}, "result", name, refuse) for name in names)
    if lengths[1] < 2 or latency <= first:
        refuse("output_len", "no token was decoded", "run the benchmark with --output-len 2 or more")
    accepted = result.get("acc_length")
    return {
        **{"backend": "sglang", "one_batch": True, "max_concurrency": batch, **_totals(batch, *lengths)},
        # That of the last request: after it, all decode.
        **{"median_ttft_ms": 1e3 * first, "median_tpot_ms": 1e3 * (latency - first) / (lengths[1] - 1)},
        "model_id": result.get("model_path"),
        "server_info": {"speculative_algorithm": isinstance(accepted, int | float) and accepted > 1},
    }


def _totals(prompts: float, inputs: float, outputs: float) -> dict[str, Any]:
    totals = {"total_input_tokens": round(inputs * prompts), "total_output_tokens": round(outputs * prompts)}
    return {"completed": prompts, **totals}


def _model(asked: Mapping[str, Any]) -> str:
    """Return the only model that was asked for, wherever it is written."""
    named: set[str] = set()
    for key in ("model", "model_names", "models", "backend_model"):
        for value in _values(asked, key):
            value = value.get("items", value) if isinstance(value, Mapping) else value
            for one in value if isinstance(value, list) else [value]:
                one = one.get("name") if isinstance(one, Mapping) else one
                named |= {one} if isinstance(one, str) else set()
    return named.pop() if len(named) == 1 else ""


def _values(group: Any, key: str, depth: int = 6) -> Iterator[Any]:
    """Yield what objects within *group* have under *key*, in the order of the file."""
    inside = group.items() if isinstance(group, Mapping) else enumerate(group) if isinstance(group, list) else ()
    for name, value in inside:
        if name == key:
            yield value
        elif depth and name not in ("requests", "metrics"):
            yield from _values(value, key, depth - 1)


def _group(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = entry.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(entry: Mapping[str, Any], group: str, name: str, refuse: Refuse) -> float:
    value = _group(entry, group).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e12:
        problem = "it is missing" if value is None else f"{str(value)[:40]!r} is not a positive number"
        refuse(f"{group}.{name}", problem, "give the file as the benchmark wrote it")
    return value
