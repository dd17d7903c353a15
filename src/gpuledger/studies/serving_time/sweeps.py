"""What a table of served runs leaves out or writes in several ways: copies, sizes, speculation, lengths, caches.

Most rows of AIConfigurator's ``silicon_sample.csv`` are exports of one public benchmark, InferenceX (InferenceMAX until
2025). What is said here of its runs is in its repository (SemiAnalysisAI/InferenceX at 83fafdd and 5632483:
``.github/configs/nvidia-master.yaml``, ``perf-changelog.yaml``, ``benchmarks/``, ``utils/bench_serving/``; for workers
that only decode, ishandhanani/srt-slurm), or follows from copies of a run in the table. No prediction's error chose it.
"""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.readers.gpus import Gpu

#: What the source of the benchmark's rows begins with; others were measured by AIConfigurator's authors.
_EXPORT = re.compile(r"^(?:db-dump/|source_file=[^/]*\.csv)")
#: Exports that leave runs with speculative decoding out.
_PLAIN = "db-dump/"
#: Exports call the same network by either name.
SAME = {"deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-V3"}
#: What a run is told by where copies differ in sizes.
_TIMED = ["engine", "mode", "input_tokens", "output_tokens", "ttft_s", "tpot_s"]
#: Lengths of prompts and outputs are drawn evenly from four fifths of what is stated to all of it.
MEAN_LENGTH = 0.9
#: Sweeps with speculative decoding, by engine and model: what their rows' source says. Only ``-mtp`` entries name these
#: images; and theirs are the sizes and concurrencies of all rows of January 14, the day of the first such sweep.
_SPECULATIVE = (
    ("trtllm", "DeepSeek-", re.compile(r"release:1\.2\.0rc6\.post3|measured=2026-01-14")),
    ("sglang", "Qwen3.5-", re.compile(r"sglang:v0\.5\.9-cu130$")),
)
#: Sweeps with and without it that share an image, a day and a number of GPUs: what plain exports lack of them is with
#: it, as many rows as that sweep has, with its concurrencies (4 to 512 instead of 64).
_SHARED = ("sglang", "DeepSeek-", re.compile(r"measured=2026-03-25.*sglang:v0\.5\.9-cu130$"), 8)
#: Models whose recipes keep the cache in fp8 where the checkpoint does not ask for it: on Blackwell, and on all GPUs.
_FP8_CACHE = ("DeepSeek-", "GLM-5", "MiniMax-M2.5", "Qwen3.5-", "gpt-oss-")
_FP8_CACHE_ALWAYS = (("trtllm", "DeepSeek-"), ("sglang", "Qwen3.5-"))
#: vLLM's recipe for MiniMax did not before its version 0.19.
_NO_FP8_CACHE = re.compile(r"vllm-openai:v0\.17")


def mend_sizes(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the benchmark's sizes where an export multiplied them, and whether they are its in ``export``.

    Copies of one measurement stand in the table as tensor 8, experts over 8, and as tensor 64, experts 8 × 8 (the same
    of attention's replicas); and, of vLLM, as tensor 4, experts over 4, and as 4 replicas of tensor 4, experts over 16.
    No such run had more than a node of eight GPUs.
    """
    runs = runs.assign(export=runs["source"].str.contains(_EXPORT))
    names = ("tensor", "replicas", "expert_shards", "expert_ranks", "requests")
    tensor, replicas, shards, ranks, requests = (runs[name].to_numpy() for name in names)
    export = runs["export"].to_numpy() & (replicas > 0)
    twice = export & (shards == ranks) & (ranks > 1) & (tensor * replicas == shards * ranks)
    square = export & (runs["engine"] == "vllm").to_numpy() & (tensor == replicas) & (replicas > 1)
    square &= (ranks == tensor * replicas) & (shards <= 1)
    spread, by = twice & (replicas > 1), np.maximum(ranks, 1)
    return runs.assign(
        tensor=np.where(twice & ~spread, tensor // by, tensor),
        replicas=np.select([spread, square], [replicas // by, 1], replicas),
        requests=np.select([spread, square], [requests * by, requests * replicas], requests),
        expert_shards=np.where(twice, 1, shards),
        expert_ranks=np.where(square, tensor, ranks),
    )


def once(runs: pd.DataFrame) -> pd.DataFrame:
    """Return every measurement once, with whether it had speculative decoding in ``speculative``.

    Tables repeat runs under other ids, with digits down to a hundredth of a millisecond.
    """
    same = runs.drop(columns=["id", "source", *runs.filter(like="prefill_")]).assign(model=runs["model"].replace(SAME))
    same[["ttft_s", "tpot_s"]] = same[["ttft_s", "tpot_s"]].round(5)
    key = same.groupby(list(same.columns), sort=False).ngroup()

    def of(engine: str, model: str, words: re.Pattern) -> pd.Series:
        chosen = (runs["engine"] == engine) & runs["model"].str.contains(model, regex=False)
        return chosen & runs["source"].str.contains(words)

    *sweep, tensor = _SHARED
    shared = of(*sweep) & (runs["tensor"] == tensor) & (runs["expert_ranks"] <= 1) & (runs["quantised"] == "fp8_block")
    plain = runs["source"].str.startswith(_PLAIN).groupby(key).transform("any")
    # On a GPU without a plain run of them, there was one sweep.
    found = shared & ~plain & (shared & plain).groupby(runs["tensor"]).transform("any")
    for sweep in _SPECULATIVE:
        found |= of(*sweep)
    # Some copies of runs on GPUs of their own leave out how many decode.
    told = runs["workers"] > 0
    vague = ~told & told.groupby(same.groupby(_TIMED, sort=False).ngroup()).transform("any")
    return runs.assign(speculative=found.groupby(key).transform("any"))[~key.duplicated() & ~vague]


def mean_lengths(runs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean tokens of the runs' prompts and outputs."""
    share = np.where(runs["export"], MEAN_LENGTH, 1.0)
    new, out = (np.maximum(np.rint(share * runs[f"{way}_tokens"]), 1).astype(np.int64) for way in ("input", "output"))
    return new, out


def cache_in_fp8(run: Mapping, gpu: Gpu) -> bool:
    """Return whether the recipe that a run followed keeps the cache in fp8, whatever the checkpoint says."""
    if not run["quantised"] or not run["export"] or _NO_FP8_CACHE.search(run["source"]):
        return False
    if gpu.architecture == "blackwell":
        return any(name in run["model"] for name in _FP8_CACHE)
    return any(run["engine"] == engine and name in run["model"] for engine, name in _FP8_CACHE_ALWAYS)
