"""Served runs: what a row of the table says, and which rows the models can express."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.constants.table import ENGINES
from gpuledger.models.transformer import Model, Parallel, Precision, read_model
from gpuledger.models.transformer.blocks.standard import Experts
from gpuledger.readers.gpus import Gpu, rows_on
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.serving_time import sweeps

#: Columns that are read, and those that are ignored.
_SIZES = ("batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_TEXTS = ("backend", "model_path", "system", "mode")
#: The same of the GPUs that only decode, and of those that process their prompts, and how many such workers there are.
_DECODE, _PREFILL = (tuple(f"{kind}_{name}" for name in (*_SIZES, "num_workers")) for kind in ("decode", "prefill"))
_IGNORED = ("backend_version", "precision")
#: What a run's sizes are called; of workers that process prompts, behind `PREFILL`.
_NAMES = ("requests", "tensor", "pipeline", "replicas", "expert_shards", "expert_ranks", "workers")
PREFILL = "prefill_"
#: What a row's ``mode`` says of prompts and decoding: on the same GPUs, or not.
TOGETHER, APART = "agg", "disagg"
#: No size is larger, and no time (ms).
_MOST = 2**31
#: GPUs that share one switch of NVLink; all others have nodes of eight.
_NODE = {"gb200": 72, "gb300": 72}
_USUAL_NODE = 8

#: Published checkpoints of a model in a precision, where they have a name of their own.
CHECKPOINTS = {
    **dict.fromkeys(
        [(name, "nvfp4") for name in ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3")],
        "nvidia/DeepSeek-V3.1-NVFP4",
    ),
    ("nvidia/DeepSeek-R1-NVFP4", "nvfp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("meta-llama/Llama-3.1-70B", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("moonshotai/Kimi-K2.5", "nvfp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("MiniMaxAI/MiniMax-M2.5", "nvfp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("Qwen/Qwen3.5-397B-A17B", "nvfp4"): "nvidia/Qwen3.5-397B-A17B-NVFP4",
    ("zhipuai/GLM-5", "fp8"): "zai-org/GLM-5-FP8",
    ("zhipuai/GLM-5", "nvfp4"): "nvidia/GLM-5-NVFP4",
}
#: Models whose configuration goes by another name.
CONFIGURATIONS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
#: Number formats of `gemm_quant_mode` for a checkpoint that does not say its own: weights and operands. NVIDIA's
#: quantised checkpoints hold scales for a cache in fp8, and engines use it.
_MODES = {
    "fp8": Precision("fp8", "bf16", "fp8", "fp8"),
    "fp8_block": Precision("fp8_block128", "bf16", "bf16", "fp8"),
    "nvfp4": Precision("nvfp4", "bf16", "fp8", "fp4"),
}


def read_runs(case: Case, gpu: Gpu) -> tuple[pd.DataFrame, int]:
    """Read the runs on one GPU.

    Returns
    -------
    frame : DataFrame
        ``id, engine, model, precision`` and ``quantised`` (the number formats' name, "": as the checkpoint says),
        ``mode, cache`` (fp8, or ""), ``input_tokens, output_tokens, requests`` (in flight, of a
        replica), ``prompts`` (of the whole run, 0: not given), ``one_batch`` (whether all of them begin and end
        together), ``tensor, pipeline, replicas, expert_shards,
        expert_ranks``, ``workers`` (that decode, each of so many replicas), ``concurrency``, the same sizes of the
        workers that process the prompts behind `PREFILL`, ``ttft_s, tpot_s``,
        ``source``, ``export`` (see :mod:`gpuledger.studies.serving_time.sweeps`); sizes are 0 where they are not given.
        Of runs whose prompts are processed elsewhere (`APART`), they are those of the workers that decode.
    ignored : int
        Rows of other GPUs.
    """
    path = case.path("runs")
    columns = [
        Column("id"),
        *(Column(name) for name in _TEXTS),
        *(Column(f"{part}_quant_mode", optional=True) for part in ("gemm", "moe")),
        *(Column(name, "integer", minimum=1, maximum=_MOST) for name in ("isl", "osl")),
        *(
            Column(name, "integer", minimum=0, maximum=_MOST, optional=True)
            for name in (*_SIZES, *_DECODE, *_PREFILL, "num_prompts")
        ),
        Column("silicon_ttft_ms", "number", minimum=0, maximum=_MOST),
        Column("silicon_tpot_ms", "number", minimum=1e-3, maximum=_MOST),
        *(Column(name, optional=True) for name in ("silicon_data_source", *_IGNORED)),
    ]
    table = read_csv(path, columns)
    own = rows_on(gpu, table, "system", path)
    rows = table[own].reset_index(drop=True)
    absent = pd.Series("", rows.index)
    quantised, of_experts = (rows.get(f"{part}_quant_mode", absent).fillna("") for part in ("gemm", "moe"))
    # A model whose experts are scaled by blocks is so as a whole: checkpoints in fp8 have one method.
    quantised = quantised.replace("bfloat16", "").mask((quantised == "fp8") & (of_experts == "fp8_block"), "fp8_block")
    apart, none = rows["mode"] == APART, pd.Series(0, rows.index, dtype="Int64")

    def sizes(named: Sequence[str]) -> list[pd.Series]:
        # A column that is missing is as one that is empty.
        return [_counts(rows.get(name, none)) for name in named]

    decoding = {
        name: own.mask(apart, of_decode)
        for name, own, of_decode in zip(_NAMES, [*sizes(_SIZES), pd.Series(1, rows.index)], sizes(_DECODE), strict=True)
    }
    prompts = {PREFILL + name: own.where(apart, 0) for name, own in zip(_NAMES, sizes(_PREFILL), strict=True)}
    frame = pd.DataFrame(
        {
            "id": rows["id"],
            "engine": rows["backend"].str.lower().replace({"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm"}),
            "model": rows["model_path"],
            "precision": quantised,
            "mode": rows["mode"],
            "quantised": quantised,
            "cache": "",
            "input_tokens": rows["isl"].astype(np.int64),
            "output_tokens": rows["osl"].astype(np.int64),
            "prompts": _counts(rows.get("num_prompts", none)),
            "one_batch": False,
            **decoding,
            **prompts,
            "concurrency": _concurrency(rows),
            "ttft_s": rows["silicon_ttft_ms"] / 1e3,
            "tpot_s": rows["silicon_tpot_ms"] / 1e3,
            "source": rows.get("silicon_data_source", absent).fillna("").astype(str),
        }
    )
    return sweeps.mend_sizes(frame), int((~own).sum())


def _concurrency(rows: pd.DataFrame) -> pd.Series:
    if "silicon_data_source" not in rows:
        return pd.Series(0, rows.index)
    found = rows["silicon_data_source"].astype(str).str.extract(r"silicon_concurrency=([0-9]+)")[0]
    # As many digits as an exact integer may have: no run has more requests in flight.
    return found.fillna("0").str[:15].astype(np.int64)


def _counts(cells: pd.Series) -> pd.Series:
    return cells.fillna(0).astype(np.int64)


class NotExpressedError(Exception):
    """A run that the models cannot express; its text is the reason."""


class Expressed(NamedTuple):
    """A run in the models' terms."""

    model: Model
    precision: Precision | None  # None: that of the checkpoint
    parallel: Parallel
    prompts: Parallel | None = None  # of workers that process the prompts, if others do and they can be expressed


def express(folder: Path | None, gpu: Gpu) -> Callable[[Mapping], Expressed]:
    """Return a function from a run to what it is in the models' terms; it raises `NotExpressedError`.

    Configurations of models are looked for in `folder`, then in ``resources/models`` and on the hub.
    """
    read: dict[str, Model | str] = {}

    def model_of(name: str) -> Model:
        if name not in read:
            try:
                read[name] = read_model(file) if (file := _file(folder, name)) else read_model(name, paths=False)
            except InputError as error:
                read[name] = f"model: {error.problem.partition(' with the')[0]}"
        if isinstance(read[name], str):
            raise NotExpressedError(read[name])
        return read[name]

    def one(run: Mapping) -> Expressed:
        if run["mode"] not in (TOGETHER, APART):
            raise NotExpressedError(f"mode {run['mode']}")
        if run["export"] and run["mode"] == TOGETHER and gpu.name in _NODE:
            # The benchmark's runs on them have workers of both kinds; of these rows the sizes are sums.
            raise NotExpressedError("mode: GPUs that process prompts and those that decode are not told apart")
        if run["speculative"]:
            raise NotExpressedError("speculative decoding, of which the table does not say how much")
        if run["engine"] not in ENGINES:
            raise NotExpressedError(f"engine {run['engine']}: no kernel of it was measured")
        name, quantised = run["model"], run["quantised"]
        model = model_of(_checkpoint(folder, name, quantised))
        # A checkpoint that is published in one precision only says best what is quantised in it.
        precision = None if model.precision != Precision() or not quantised else _MODES.get(quantised)
        if precision is None and quantised and model.precision == Precision():
            raise NotExpressedError(f"precision {quantised}")
        if precision and not name.startswith("nvidia/") and quantised == "fp8":
            precision = replace(precision, cache="bf16")
        if run["cache"] or sweeps.cache_in_fp8(run, gpu):
            precision = replace(precision or model.precision, cache="fp8")
        return Expressed(model, precision, _parallel(run, model, gpu), _prompts_parallel(run, model, gpu))

    return one


def _checkpoint(folder: Path | None, name: str, quantised: str) -> str:
    """Return the published checkpoint that a run served, if its configuration is available."""
    known = (CHECKPOINTS.get((name, quantised)), CONFIGURATIONS.get(name))
    return next((found for found in known if found and _file(folder, found)), name)


def _file(folder: Path | None, name: str) -> Path | None:
    file = folder / f"{name.replace('/', '--')}_config.json" if folder else None
    return file if file is not None and os.path.isfile(file) else None


def _parallel(run: Mapping, model: Model, gpu: Gpu) -> Parallel:
    if run["mode"] == APART and not (run["requests"] and run["workers"] and run["concurrency"]):
        # What is then given as the batch is what the workers are configured for, not what they are driven with.
        raise NotExpressedError("batch: how many workers share how many requests is not given")
    if run["prompts"] and not run["requests"]:
        raise NotExpressedError("batch: the benchmark did not limit the requests in flight")
    if not run["requests"] or not run["tensor"]:
        raise NotExpressedError("parallelism: batch or tensor parallelism is not given")
    if run["concurrency"] not in (0, run["requests"] * _replicas(run, model) * run["workers"]):
        raise NotExpressedError("batch: not the concurrency that the run was driven with")
    return _split(run, model, gpu)


def _prompts_parallel(run: Mapping, model: Model, gpu: Gpu) -> Parallel | None:
    if run["mode"] != APART or not (run[PREFILL + "workers"] and run[PREFILL + "tensor"]):
        return None
    try:
        return _split({**run, **{name: run[PREFILL + name] for name in _NAMES[1:]}}, model, gpu)
    except NotExpressedError:
        return None


def _replicas(run: Mapping, model: Model) -> int:
    """Return a worker's replicas. Those of a dense model do not meet: each is a server of its own."""
    sharing = max(run["expert_shards"], 1) * max(run["expert_ranks"], 1) // run["tensor"] if _experts(model) else 1
    return run["replicas"] or max(1, sharing)


def _experts(model: Model) -> bool:
    return any(isinstance(group.ffn, Experts) for group in model.layers)


def _split(run: Mapping, model: Model, gpu: Gpu) -> Parallel:
    experts, replicas = _experts(model), _replicas(run, model)
    tensor, pipeline = run["tensor"], max(run["pipeline"], 1)
    shards, ranks = max(run["expert_shards"], 1), max(run["expert_ranks"], 1)
    if tensor * replicas * pipeline > _NODE.get(gpu.name, _USUAL_NODE):
        raise NotExpressedError("parallelism: more GPUs than share one NVLink switch")
    if experts and shards * ranks != tensor * replicas:
        raise NotExpressedError("parallelism: sizes that contradict each other")
    if experts and replicas > 1 and shards > 1 and run["engine"] != "vllm":
        raise NotExpressedError("parallelism: sliced experts across replicas, whose exchange is known of vLLM alone")
    try:
        parallel = Parallel(tensor, pipeline, ranks, replicas) if experts else Parallel(tensor, pipeline)
        parallel.check(model)
    except InputError:
        raise NotExpressedError("parallelism: the model cannot be split so") from None
    return parallel
