"""Rows of InferenceX (formerly InferenceMAX), as results of the benchmark that it runs.

A row has one run's times in seconds beside what was served, how, and on which GPU; ``agg_*.json`` holds one,
``results_bmk`` a list of them. Its page's interface (``/api/v1/benchmarks``) and its supplements put the times into
``metrics``; the former calls the GPU ``hardware`` and says the parallelism of prompts and of decoding. Sources:
SemiAnalysisAI/InferenceX, ``utils/process_result.py`` and its README; SemiAnalysisAI/InferenceX-app,
``packages/db/data/supplemental-bmk.json`` and ``packages/app/cypress/fixtures/api/benchmarks.json``.
"""

from collections.abc import Callable, Mapping
from typing import Any

#: Of the lengths that a row states, the mean of those that are drawn: evenly from 80 to 100 %.
MEAN_LENGTH = 0.9
#: Requests for each one in flight.
ROUNDS = 10
#: Formats of weights that are narrower than 16 bits; of the checkpoint, or of what was made of it.
_FORMATS = ("fp8", "fp4")
_NO = ("", "none", "false", "off", "0")
#: What the page's interface calls otherwise. Its servers that do both have the same parallelism for prompts.
_RENAMED = {"hw": "hardware", "spec_decoding": "spec_method"} | {
    name: f"decode_{name}" for name in ("tp", "ep", "dp_attention")
}


def flat(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of the page's interface, or of a supplement, as the benchmark's own; any other object as it is."""
    metrics = entry.get("metrics")
    if not isinstance(metrics, Mapping) or "conc" not in entry:
        return entry
    named = {name: entry[other] for name, other in _RENAMED.items() if other in entry and name not in entry}
    return {**metrics, **entry, **named}


def is_row(entry: Mapping[str, Any]) -> bool:
    """Tell a row of InferenceX from other objects."""
    return {"hw", "conc"} <= entry.keys() and bool({"median_tpot", "mean_tpot", "scenario_type"} & entry.keys())


def as_result(row: Mapping[str, Any], refuse: Callable[[str, str, str], None]) -> dict[str, Any]:
    """Return a row in the words of ``vllm bench serve``, with the server's arguments in those of SGLang.

    Parameters
    ----------
    refuse : callable
        Takes a key, what is wrong with it and what to do, and raises.
    """
    if _is(row, "disagg") or _is(row, "is_multinode"):
        refuse("disagg", "prefill and decode on servers of their own", "give runs of single servers")
    if str(row.get("scenario_type") or row.get("benchmark_type") or "").startswith("agentic"):
        refuse("scenario_type", "conversations of agents, whose lengths differ", "give runs of one length")
    lengths = {}
    for way, key in (("input", "isl"), ("output", "osl")):
        if not isinstance(row.get(key), (int, float, str)) or not str(row[key]).isdecimal():
            refuse(key, "a whole number of tokens is missing", "give rows with isl and osl")
        lengths[f"total_{way}_tokens"] = int(row[key])
    if not str(row["conc"]).isdecimal():
        refuse("conc", f"{str(row['conc'])[:40]!r} is not a number of requests", "correct it")
    prompts = ROUNDS * int(row["conc"])
    engine = str(row.get("framework") or "").lower().removeprefix("dynamo-")
    times = {
        f"{kind}_{time}_ms": 1e3 * row[f"{kind}_{time}"]
        for kind in ("median", "mean")
        for time in ("ttft", "tpot")
        if isinstance(row.get(f"{kind}_{time}"), (int, float))
    }
    precision = str(row.get("precision") or "").lower()
    divided = _is(row, "dp_attention")
    return {
        **times,
        "backend": engine,
        "max_concurrency": int(row["conc"]),
        "completed": prompts,
        **{name: round(MEAN_LENGTH * length) * prompts for name, length in lengths.items()},
        "server_info": {
            "model_path": row.get("model"),
            "quantization": precision if precision in _FORMATS else None,
            "tp_size": row.get("tp"),
            "pp_size": row.get("pp") or 1,
            # Attention that is not split over the GPUs is in one replica on each.
            "dp_size": row.get("tp") if divided else 1,
            "enable_dp_attention": divided,
            "ep_size": row.get("ep", 1),
            "speculative_algorithm": _is(row, "spec_decoding") or _is(row, "mtp"),
        },
    }


def _is(row: Mapping[str, Any], key: str) -> bool:
    """Whether a key says yes, in any of the ways in which versions wrote it."""
    return str(row.get(key) or "").lower() not in _NO
