"""Reports of ``trtllm-bench`` (``--report_json``), as results of the benchmarks of servers.

A report has its values in groups: what ran (``engine``), on how many GPUs (``world_info``), what was asked of it
(``request_info``), and times, those of single tokens only with ``--streaming``. Source: NVIDIA/TensorRT-LLM,
``tensorrt_llm/bench/dataclasses/reporting.py``.
"""

from collections.abc import Callable, Mapping
from typing import Any

#: What tells a report: every one has this rate, whose name no other program's result has.
MARK = "request_throughput_req_s"
#: Algorithms of quantisation that the server applies to a model as a whole; others are the checkpoint's own.
_QUANTISED = {"FP8": "fp8", "NVFP4": "nvfp4"}


def is_report(entry: Mapping[str, Any]) -> bool:
    """Tell a report of ``trtllm-bench`` from other objects."""
    return MARK in _group(entry, "performance")


def as_result(report: Mapping[str, Any], refuse: Callable[[str, str, str], None]) -> dict[str, Any]:
    """Return a report in the words of ``vllm bench serve``, with the server's arguments in those of SGLang.

    Parameters
    ----------
    refuse : callable
        Takes a key, what is wrong with it and what to do, and raises.
    """
    engine, world, asked, times = (
        _group(report, name) for name in ("engine", "world_info", "request_info", "streaming_metrics")
    )
    if not times:
        refuse("streaming_metrics", "the times per token are missing", "run trtllm-bench with --streaming")
    prompts, together, most = (
        _number(of, name, refuse)
        for of, name in ((asked, "num_requests"), (asked, "avg_num_concurrent_requests"), (world, "max_batch_size"))
    )
    lengths = {way: _number(asked, f"avg_{way}_length", refuse) for way in ("input", "output")}
    found = {}
    # With more requests than places in the batch, the first token waits for one.
    for time in ("tpot", "ttft") if together <= most else ("tpot",):
        spread = _group(times, f"{time}_percentiles")
        found[f"median_{time}_ms"] = spread.get("p50")
        found[f"mean_{time}_ms"] = spread.get("average", times.get(f"avg_{time}_ms"))
    return {
        **found,
        "backend": "tensorrt",
        "completed": prompts,
        **{f"total_{way}_tokens": round(length * prompts) for way, length in lengths.items()},
        # Requests that wait for a place in the batch count in the mean.
        "max_concurrency": max(1, round(min(together, most))),
        "server_info": {
            "model_path": engine.get("model"),
            "quantization": _QUANTISED.get(str(engine.get("quantization")).upper()),
            "kv_cache_dtype": engine.get("kv_cache_dtype"),
            "tp_size": world.get("tp_size"),
            "pp_size": world.get("pp_size"),
            # -1: as the rest of the model.
            "ep_size": world.get("ep_size") if world.get("ep_size") != -1 else 1,
            "speculative_algorithm": "decoding_stats" in report,
        },
    }


def _group(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = entry.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(group: Mapping[str, Any], name: str, refuse: Callable[[str, str, str], None]) -> float:
    value = group.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e12:
        refuse(
            name, f"{str(value)[:40]!r} is not a number that a report has", "give the report as trtllm-bench wrote it"
        )
    return value
