"""Measured times of whole attention blocks, from input to output, of models that attend to selected keys."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.models.transformer import Model, read_model
from gpuledger.models.transformer.blocks.latent import CompressedAttention, LatentAttention
from gpuledger.models.transformer.blocks.standard import Attention, Block
from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.model import Layers
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable, median_of_equal

#: Blocks that are read, by the benchmark's name: the kind of attention, and whether an indexer selects keys.
_BLOCKS = {
    "dsa": (LatentAttention, True),
    "dsv4_csa": (CompressedAttention, True),
    "dsv4_hca": (CompressedAttention, False),
    "msa": (Attention, True),
}
#: How the table of constants calls their attention.
_ATTENTION = {"dsv4_csa": "compressed attention", "dsv4_hca": "compressed attention", "msa": "block attention"}
#: Formats of the weights and operands of the projections, by `gemm_type`.
FORMATS = {"bfloat16": ("bf16", None), "fp8_block": ("fp8_block128", "fp8"), "nvfp4": ("nvfp4", "fp4")}
_CACHES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8"}
#: Phases, as the benchmark and as the study calls them.
_PHASES = {"context": "prefill block", "generation": "decode block"}
_MOST_HEADS = 1024
#: A step takes so many times as long as one of half as many requests would allow: the host has begun to launch it.
_JUMP = 1.25
#: What the benchmark calls blocks whose keys another layer has selected.
_REUSE = "_skip_indexer"


def read_modules(case: Case, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read measured attention blocks.

    Parameters
    ----------
    case : Case
        Its ``unit`` is the latency's; ``configs`` a folder of the models' config.json, each named as the model, with
        ``--`` in the place of the slash, and ``_config.json``.
    path : path
        A table of ``framework, op_name`` (a key of `_BLOCKS` and ``_context_module`` or ``_generation_module``, either
        perhaps with ``_skip_indexer``), ``kernel_source, model, gemm_type, kv_cache_dtype, num_heads`` (of one device),
        ``batch_size, isl`` (new tokens), ``step`` (cached ones), ``latency``.

    Returns
    -------
    frame : DataFrame
        ``operator`` (a phase), ``block``, ``group`` (the projections' type, and whether the host launches kernel by
        kernel, ``eager``), ``kernel``, ``precision`` (how the table of constants
        calls its attention), ``framework, model, cache, selects`` (the block's own indexer runs), ``heads, requests,
        tokens, context`` and ``measured_s``; the median of equal rows.
    skipped : list of str
        Blocks and types that are not modelled; their rows are left out.
    """
    names = ["framework", "op_name", "kernel_source", "model", "gemm_type", "kv_cache_dtype"]
    sizes = ["num_heads", "batch_size", "isl", "step"]
    table = MeasuredTable(path, [*names, *sizes, "latency"], unit=case.inputs["unit"])
    operation, gemm = table.texts("op_name"), table.texts("gemm_type")
    cache = table.texts("kv_cache_dtype").map(_CACHES)
    parts = operation.str.removesuffix(_REUSE).str.removesuffix("_module").str.rsplit("_", n=1)
    block, phase = parts.str[0], parts.str[1].map(_PHASES)
    known = block.isin(list(_BLOCKS)) & phase.notna() & gemm.isin(list(FORMATS)) & cache.notna()
    skipped = sorted({f"{name} {kind}" for name, kind in zip(operation[~known], gemm[~known], strict=True)})
    if not known.any():
        remedy = f"known are context_module and generation_module of {', '.join(_BLOCKS)} in {', '.join(FORMATS)}"
        raise InputError(path, "column op_name", f"no known block (found {', '.join(skipped)})", remedy)
    heads = table.whole_numbers("num_heads", most=_MOST_HEADS)
    requests, tokens = (table.whole_numbers(name) for name in ("batch_size", "isl"))
    context = table.whole_numbers("step", 0)
    many = requests.astype(float) * (tokens + context) > 2**31
    table.refuse(many, "batch_size", "makes more than 2^31 tokens", "correct it")
    decode = (phase == _PHASES["generation"]).to_numpy()
    table.refuse(decode & (tokens > 1), "isl", "new tokens in a decode step of one", "correct it")
    attention = block.map(_ATTENTION).fillna("attention").to_numpy(object)
    attention = np.where(decode, "decode ", "") + attention
    frame = pd.DataFrame(
        {
            "operator": phase,
            "block": block,
            "group": gemm.replace({"bfloat16": "16-bit"}),
            "kernel": table.texts("kernel_source"),
            "precision": attention + np.where(cache == "fp8", " with fp8 cache", ""),
            "framework": table.texts("framework").str.lower(),
            "model": table.texts("model"),
            "cache": cache,
            "selects": ~operation.str.endswith(_REUSE),
            "heads": heads,
            "requests": requests,
            "tokens": tokens,
            "context": context,
            "measured_s": table.seconds(),
        }
    )[known.to_numpy()]
    frame = median_of_equal(frame)
    frame["eager"] = _eager(frame)
    frame["group"] += np.where(frame["eager"], ", eager", "")
    return frame, skipped


def _eager(frame: pd.DataFrame) -> np.ndarray:
    """Return which blocks the host launched kernel by kernel instead of replaying a graph of them.

    AIConfigurator's collectors do so with prompts of DSA in SGLang and vLLM, of MSA in SGLang, and with SGLang's decode
    steps of DSA of more requests than it captures. Twice as many requests take at most twice as long otherwise.
    """
    launched = {"dsa": ["sglang", "vllm"], "msa": ["sglang"]}
    eager = np.zeros(len(frame), dtype=bool)
    for block, frameworks in launched.items():
        prompts = (frame["block"] == block) & (frame["operator"] == "prefill block")
        eager |= (prompts & frame["framework"].isin(frameworks)).to_numpy()
    steps = frame[(frame["framework"] == "sglang") & (frame["operator"] == "decode block") & (frame["block"] == "dsa")]
    for _, rows in steps.groupby(["kernel", "precision", "heads", "model"]):
        least = rows.groupby("requests")["measured_s"].min()
        counts, times = least.index.to_numpy(), least.to_numpy()
        jumps = np.flatnonzero(times[1:] > _JUMP * times[:-1] * counts[1:] / counts[:-1])
        if len(jumps):
            eager[rows.index[rows["requests"] >= counts[jumps[0] + 1]]] = True
    return eager


def read_models(case: Case, path: Path, frame: pd.DataFrame) -> dict[tuple[str, str], tuple[Model, Layers]]:
    """Return the models by their name and the block's, and of each the first layers whose blocks were measured."""
    models = {}
    for name, block in frame[["model", "block"]].drop_duplicates().itertuples(index=False):
        file = case.path("configs") / f"{str(name).replace('/', '--')}_config.json"
        if not file.is_file():
            raise InputError(path, "column model", f"no configuration of {name}", f"put it at {file}")
        model = read_model(file)
        group = next((group for group in model.layers if _has(group.attention, block)), None)
        if group is None:
            raise InputError(path, "column model", f"{name} has no layer with {block}", "remove its rows")
        models[name, block] = model, group
    return models


def _has(attention: Block, block: str) -> bool:
    kind, selects = _BLOCKS[block]
    past = getattr(attention, "ratio", 1) > 0
    return isinstance(attention, kind) and past and (attention.indexer is not None) == selects


def block_of(group: Layers, heads: int, selects: bool) -> Layers:
    """Return the layers with one device's heads, whose own indexer selects the keys or does not."""
    attention = group.attention
    share, changed = attention.heads / heads, {"heads": heads}
    if attention.indexer:
        changed["indexer"] = replace(attention.indexer, own=selects)
    if isinstance(attention, CompressedAttention):
        changed["out_groups"] = max(1, round(attention.out_groups / share))
    if isinstance(attention, Attention):
        changed["kv_heads"] = max(1, round(attention.kv_heads / share))
        changed["indexer"] = replace(changed["indexer"], heads=changed["kv_heads"])
    return replace(group, attention=replace(attention, **changed))


def precision_of(gemm: str, cache: str) -> Precision:
    weights, operands = FORMATS["bfloat16" if gemm.startswith("16-bit") else gemm.removesuffix(", eager")]
    return Precision(weights, "bf16", cache, operands)


#: Edges of the regions, in tokens.
_EDGES = (0, 16, 128, 1023, 8192, 2**40)


def add_regions(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the blocks with ``region``, by their tokens, and ``region_order``."""
    names = [f"{low + 1:,} to {high:,} tokens" for low, high in itertools.pairwise(_EDGES[:-1])]
    names = np.array(["", *names, f"{_EDGES[-2] + 1:,} tokens and more"])
    order = np.searchsorted(_EDGES, frame["requests"] * frame["tokens"], side="left")
    return frame.assign(region=names[order], region_order=order)
