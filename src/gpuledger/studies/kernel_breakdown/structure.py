"""The structure of a model, for a table: kinds of layers, their blocks, parameters and what a token caches."""

from collections.abc import Iterable
from dataclasses import fields

import numpy as np
import pandas as pd

from gpuledger.models.transformer.blocks.latent import CompressedAttention, LatentAttention
from gpuledger.models.transformer.blocks.recurrent import (
    AttentionBesideMamba,
    DeltaAttention,
    LightningAttention,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from gpuledger.models.transformer.blocks.shared import SharedBlock
from gpuledger.models.transformer.blocks.standard import Attention, Experts, FeedForward, Linear, Nothing
from gpuledger.models.transformer.formats.precision import BITS, Precision
from gpuledger.models.transformer.model import Layers, Model


def structure_rows(model: Model, precision: Precision) -> pd.DataFrame:
    """List the parts of a model in the order of a pass.

    Returns
    -------
    DataFrame
        ``component, layers`` (how many have it), ``description, parameters, weight_bytes`` (of all of them) and
        ``cache_bytes`` (per token, of all of them; states of fixed size are not counted).
    """
    rows = []
    for table in model.embeddings:
        size = f"{table.outputs:,} × {table.inputs:,}"
        size += ", also the LM head" if model.tied and table.kernel == "embedding" else ""
        name = "sum of streams" if table.kernel == "hyper_proj" else table.part.replace("_", " ")
        rows.append((name, 1, size, table.parameters, table.stored_bytes(precision), 0))
    head = [rows.pop()] if rows[-1][0] == "lm head" else []
    for group in model.layers:
        rows += _of_layers(model, group, precision)
    frame = pd.DataFrame([*rows, *head], columns=_COLUMNS)
    norms = model.parameters - int(frame["parameters"].sum())
    stored = model.weight_bytes(precision) - int(frame["weight_bytes"].sum())
    kind = "LayerNorm" if model.norm_bias else "RMSNorm"
    frame.loc[len(frame)] = ("norms and vectors", model.layer_count, kind, norms, stored, 0)
    if tower := model.vision:
        words = f"{tower.heads} heads of {tower.head_dim}, width {tower.hidden:,}, {_describe(tower.ffn)}"
        words += f", windows of {tower.window} × {tower.window} patches" if tower.window else ""
        size = tower.weight_bytes(precision)
        frame.loc[len(frame)] = ("vision tower", tower.layers, words, tower.parameters, size, 0)
    return frame


_COLUMNS = ["component", "layers", "description", "parameters", "weight_bytes", "cache_bytes"]


def _of_layers(model: Model, group: Layers, precision: Precision) -> list[tuple]:
    formats, rows = model.precision_of(group, precision), []

    def add(name: str, words: str, linears: Iterable[Linear], cache: int = 0) -> None:
        # Layers that a token passes again have no weights of their own.
        linears = [] if group.again else list(linears)
        words = f"again, {words}" if group.again else words
        parameters = group.count * sum(linear.parameters for linear in linears)
        stored = group.count * sum(linear.stored_bytes(formats) for linear in linears)
        rows.append((name, group.count, words, parameters, stored, cache))

    for name, block in (("residuals", group.residuals), ("attention", group.attention), ("feed-forward", group.ffn)):
        if block is None or isinstance(block, Nothing):
            continue
        cache = 0
        if name == "attention":
            cache = group.count * int(block.cache_bytes(np.int64(block.period), BITS[formats.cache])) // block.period
        add(name, _describe(block), block.linears(model.hidden), cache)
    if group.ngrams:
        words = f"n-grams: {group.ngrams.heads} rows of {group.ngrams.head_dim} per token of {group.ngrams.rows:,}"
        add("n-gram embedding", words, group.ngrams.linears(model.hidden))
    if group.per_layer:
        add("per-layer embedding", f"{group.per_layer} wide, gated", list(group.linears(model.hidden))[-2:])
    return rows


def _describe(block: object) -> str:
    if isinstance(block, Attention):
        kind = "grouped-query" if 1 < block.kv_heads < block.heads else "multi-query" if block.kv_heads == 1 else ""
        words = [
            f"{kind or 'multi-head'}: {block.heads} query and {block.kv_heads} key/value heads of {block.head_dim}"
        ]
        words += [f"window of {block.window:,} tokens"] if block.window else []
        words += [f"RoPE over {block.rotary_dim}"] if block.rotary_dim else ["no RoPE"]
        words += [f"queries compressed to {block.query_rank:,}"] if block.query_rank else []
        words += ["queries, keys and values clipped"] if block.clipped else []
        words += ["queries and keys normalised"] if block.qk_norm else []
        words += ["biases"] if block.qkv_bias or block.out_bias else []
        words += ["gated output"] if block.gate else []
        words += [f"values of {block.value_dim}"] if block.value_dim != block.head_dim else []
        words += [f"indexer selects {block.indexer.selected:,} tokens"] if block.indexer else []
        words += [f"keys and values convolved over {block.conv} tokens"] if block.conv else []
        words += [f"biases by distance up to {block.relative[1]:,}"] if block.relative[0] else []
        words += [] if block.own_keys else ["keys and values of an earlier layer"]
        return ", ".join(words)
    if isinstance(block, LatentAttention):
        queries = f"queries compressed to {block.q_rank:,}" if block.q_rank else "queries not compressed"
        words = f"latent: {block.heads} heads of {block.nope_dim} + {block.rope_dim} (RoPE), values of "
        words += f"{block.value_dim}, keys and values compressed to {block.kv_rank} + {block.rope_dim}, {queries}"
        words += f", window of {block.window:,} tokens" if block.window else ""
        words += ", gated output" if block.gate else ""
        if block.indexer:
            own = "indexer selects" if block.indexer.own else "a former layer's indexer selects"
            words += f", {own} {block.indexer.selected:,} tokens"
        return words
    if isinstance(block, CompressedAttention):
        words = f"compressed: {block.heads} query heads and one of keys and values of {block.head_dim}, window of "
        words += f"{block.window:,} tokens"
        words += f", an entry per {block.ratio} tokens before" if block.ratio else ""
        return words + (f", indexer selects {block.indexer.selected:,} of them" if block.indexer else "")
    if isinstance(block, DeltaAttention):
        return (
            f"gated delta rule: {block.key_heads} key heads of {block.key_dim}, {block.value_heads} value heads of "
            f"{block.value_dim}, {block.state_bytes:,} bytes of state per request"
        )
    if isinstance(block, LightningAttention):
        return (
            f"lightning attention: {block.heads} heads of {block.head_dim}, "
            f"{block.state_bytes:,} bytes of state per request"
        )
    if isinstance(block, SharedBlock):
        words = "" if block.own else " of an earlier layer"
        return f"a block{words}: {_describe(block.attention)}; {_describe(block.ffn)}; adapters of rank {block.rank}"
    if isinstance(block, AttentionBesideMamba):
        return " beside ".join(_describe(part) for part in block.parts)
    if isinstance(block, StateSpace):
        return (
            f"Mamba-2: {block.heads} heads of {block.head_dim}, {block.groups} groups, state of {block.state}, "
            f"{block.state_bytes:,} bytes of state per request"
        )
    if isinstance(block, SelectiveScan):
        return (
            f"Mamba-1: {block.width:,} channels, state of {block.state}, "
            f"{block.state_bytes:,} bytes of state per request"
        )
    if isinstance(block, ShortConvolution):
        return f"convolution over {block.conv} tokens between two gates, {block.width:,} channels"
    if isinstance(block, Experts):
        shared = f", shared expert of {block.shared.width:,}" if block.shared else ""
        latent = f", in {block.latent:,} dimensions" if block.latent else ""
        zero = f" (mean of {block.choices} choices, also among {block.zero} that pass it on)" if block.zero else ""
        return f"{block.active} of {block.experts} experts{zero}, each {_describe(block.expert)}{latent}{shared}"
    if isinstance(block, FeedForward):
        return f"{'gated, ' if block.gated else ''}{block.width:,} wide" + (", biases" if block.bias else "")
    # A kind without words of its own: the sizes that it is made of.
    sizes = ", ".join(f"{part.name.replace('_', ' ')} {getattr(block, part.name)}" for part in fields(block))
    return f"{type(block).__name__}: {sizes}"
