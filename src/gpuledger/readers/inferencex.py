"""Rows of InferenceX (formerly InferenceMAX), as results of the benchmark that it runs.

A row has one run's times in seconds beside what was served, how, and on which GPU; ``agg_*.json`` holds one,
``results_bmk`` a list of them. Its page's interface (``/api/v1/benchmarks``) and its supplements put the times into
``metrics``; the former calls the GPU ``hardware`` and says the parallelism of prompts and of decoding. Sources:
SemiAnalysisAI/InferenceX, ``utils/process_result.py`` and its README; SemiAnalysisAI/InferenceX-app,
``packages/db/data/supplemental-bmk.json``, ``packages/app/cypress/fixtures/api/benchmarks.json`` and
``packages/db/src/etl/benchmark-mapper.ts`` and ``normalizers.ts``.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

#: Of the lengths that a row states, the mean of those that are drawn: evenly from 80 to 100 %.
MEAN_LENGTH = 0.9
#: Requests for each one in flight.
ROUNDS = 10
#: Formats of weights that are narrower than 16 bits; of the checkpoint, or of what was made of it.
_FORMATS = ("fp8", "fp4", "nvfp4", "mxfp4")
#: Checkpoints by key and precision on NVIDIA's GPUs, where a row has no name of the hub (``MODEL_TO_KEY``).
_CHECKPOINTS = {
    ("dsr1", "fp8"): "deepseek-ai/DeepSeek-R1-0528",
    ("dsr1", "fp4"): "nvidia/DeepSeek-R1-0528-FP4-V2",
    ("gptoss", "fp4"): "openai/gpt-oss-120b",
    ("gptoss120b", "fp4"): "openai/gpt-oss-120b",
    ("llama70b", "fp8"): "nvidia/Llama-3.3-70B-Instruct-FP8",
    ("llama70b", "fp4"): "nvidia/Llama-3.3-70B-Instruct-FP4",
    ("qwen3.5", "bf16"): "Qwen/Qwen3.5-397B-A17B",
    ("qwen3.5", "fp8"): "Qwen/Qwen3.5-397B-A17B-FP8",
    ("kimik2.5", "int4"): "moonshotai/Kimi-K2.5",
    ("minimaxm2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("glm5", "fp8"): "zai-org/GLM-5-FP8",
}
#: Lengths in the names of files, in units of 1024 tokens, before rows stated them.
_LENGTHS = re.compile(r"[_-](\d{1,4})k(\d{1,4})k(?=[_.-]|$)", re.IGNORECASE)
_NO = ("", "none", "false", "off", "0")
#: What the page's interface calls otherwise. Its servers that do both have the same parallelism for prompts.
_RENAMED = {"hw": "hardware", "spec_decoding": "spec_method"} | {
    name: f"decode_{name}" for name in ("tp", "pp", "ep", "dp_attention", "dcp_size", "pcp_size")
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


def as_result(row: Mapping[str, Any], file: str, refuse: Callable[[str, str, str], None]) -> dict[str, Any]:
    """Return a row in the words of ``vllm bench serve``, with the server's arguments in those of SGLang.

    Parameters
    ----------
    file : str
        The file's name, which has the lengths where old rows do not.
    refuse : callable
        Takes a key, what is wrong with it and what to do, and raises.
    """
    engine = str(row.get("framework") or "").lower()
    # Dynamo serves with and without division; before rows said which, only with it.
    apart = engine.startswith("mori-") or engine.endswith("-disagg")
    apart |= engine.startswith("dynamo-") and "disagg" not in row
    apart |= _is(row, "disagg")
    if not apart and _is(row, "is_multinode"):
        refuse("is_multinode", "one server on several nodes, whose links are not known", "give runs of single nodes")
    workers = {kind: _workers(row, kind) if apart else {} for kind in ("prefill", "decode")}
    if apart and not all(one["workers"] for one in workers.values()):
        problem = "prompts and decoding on servers of their own, whose numbers and GPUs are missing"
        refuse("disagg", problem, "give rows with prefill_tp, prefill_num_workers, decode_tp and decode_num_workers")
    if str(row.get("scenario_type") or row.get("benchmark_type") or "").startswith("agentic"):
        refuse("scenario_type", "conversations of agents, whose lengths differ", "give runs of one length")
    if any(str(row.get(name) or 1) != "1" for name in ("dcp_size", "pcp_size")):
        refuse("dcp_size", "context parallelism, which is not predicted", "give runs without it")
    named = _LENGTHS.search(file)
    lengths = {}
    for at, (way, key) in enumerate((("input", "isl"), ("output", "osl")), 1):
        length = str(row[key]) if row.get(key) is not None else str(1024 * int(named[at])) if named else ""
        if not _is_count(length):
            refuse(key, "a whole number of tokens is missing", "give rows with isl and osl")
        lengths[f"total_{way}_tokens"] = int(length)
    if not _is_count(str(row["conc"])):
        refuse("conc", f"{str(row['conc'])[:40]!r} is not a number of requests", "correct it")
    outcome = row.get("benchmark_outcome")
    stated = str(outcome.get("completed")) if isinstance(outcome, Mapping) else ""
    prompts = int(stated) if _is_count(stated) else ROUNDS * int(row["conc"])
    times = {
        f"{kind}_{time}_ms": 1e3 * row[f"{kind}_{time}"]
        for kind in ("median", "mean")
        for time in ("ttft", "tpot")
        if isinstance(row.get(f"{kind}_{time}"), (int, float))
    }
    precision = str(row.get("precision") or "").lower()
    model = str(row.get("model") or "")
    if ("/" not in model or model.startswith("/")) and not str(row["hw"]).startswith("mi"):
        # A key, or a folder of the server.
        model = _CHECKPOINTS.get((str(row.get("infmax_model_prefix") or model).lower(), precision), model)
    return {
        **times,
        "backend": engine.removeprefix("dynamo-").removeprefix("mori-"),
        "max_concurrency": int(row["conc"]),
        "completed": prompts,
        **{name: round(MEAN_LENGTH * length) * prompts for name, length in lengths.items()},
        "server_info": {
            "model_path": model,
            "quantization": precision if precision in _FORMATS else None,
            **(workers["decode"] or _server(row, "")),
            "speculative_algorithm": _is(row, "spec_decoding") or _is(row, "mtp"),
        },
        "prefill_info": workers["prefill"],
    }


def _server(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the parallelism of servers of a kind (``prefill_, decode_``, or "": both) in the words of SGLang."""
    tensor, divided = row.get(f"{kind}tp"), _is(row, f"{kind}dp_attention")
    return {
        "tp_size": tensor,
        "pp_size": row.get(f"{kind}pp") or row.get(f"{kind}pp_size") or 1,
        # Attention that is not split over the GPUs is in one replica on each, unless the row says otherwise.
        "dp_size": (row.get("attn_dp_size") or tensor) if divided else 1,
        "enable_dp_attention": divided,
        "ep_size": row.get(f"{kind}ep") or 1,
    }


def _workers(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the parallelism of workers that do one thing, and how many there are; 0: the row does not say."""
    count, known = str(row.get(f"{kind}_num_workers") or ""), row.get(f"{kind}_tp")
    return {**_server(row, f"{kind}_"), "workers": int(count) if known and re.fullmatch("[0-9]{1,5}", count) else 0}


def _is(row: Mapping[str, Any], key: str) -> bool:
    """Whether a key says yes, in any of the ways in which versions wrote it."""
    return str(row.get(key) or "").lower() not in _NO


def _is_count(text: str) -> bool:
    return bool(re.fullmatch("[0-9]{1,12}", text))
