"""The kernels of a pass: what is launched, how often, on how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.transformer.attention import add_attention
from gpuledger.models.transformer.feed_forward import add_feed_forward, first_kernel
from gpuledger.models.transformer.model import Experts, LatentAttention, Layers, Model
from gpuledger.models.transformer.parallel import Parallel, ring_bytes
from gpuledger.models.transformer.precision import Precision
from gpuledger.models.transformer.routing import as_load
from gpuledger.models.transformer.rows import Rows
from gpuledger.models.transformer.workloads import Workload

#: What may be fused into one launch.
FUSIONS = frozenset({"qkv", "gate_up", "residual_norm", "attention", "experts"})
ID_BYTES = 8  # of a token


def kernels(
    model: Model,
    workload: Workload,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    fused: bool | Iterable[str] = True,
    expert_load: float | Sequence[float] = 0.0,
    causal: bool = True,
) -> pd.DataFrame:
    """Return the kernels that each shape of *workload* launches, with their shapes, MACs and bytes.

    Parameters
    ----------
    model : Model
    workload : Workload
    parallel : Parallel, optional
        By default one device.
    precision : Precision, optional
        By default ``model.precision``: that of the checkpoint as an engine serves it.
    fused : bool or names
        What is one launch, of: ``qkv`` (projections with the same input; MLA's compressing ones too), ``gate_up``,
        ``residual_norm`` (the sum with the residual stream is part of the norm that follows), ``attention`` (scores,
        softmax and values; unfused they compute and write the whole rectangle), ``experts`` (tokens are gathered by
        the GEMM, not copied before). True: all, as engines for serving do; False: none, as eager PyTorch.
    expert_load : float or sequence of float
        How tokens choose experts: exponent of a Zipf law (0: uniform) or a weight for each expert. Tokens choose
        independently, each ``active`` different experts; a row is the device that expects the most work.
    causal : bool
        False counts every pair of a new token and a key, as if nothing were masked.

    Returns
    -------
    DataFrame
        See :mod:`gpuledger.models.transformer`; the rows of shape 0 first, in the order of a pass.

    Raises
    ------
    InputError
        The model cannot be shared out like that, an unknown fusion, a load that is none, or a kernel whose operations
        64 bits cannot count.
    """
    parallel = parallel or Parallel()
    parallel.check(model)
    fusions = FUSIONS if fused is True else frozenset(() if fused is False else fused)
    if unknown := fusions - FUSIONS:
        remedy = f"use {', '.join(sorted(FUSIONS))}"
        raise InputError("kernels", "fused", f"unknown: {', '.join(sorted(map(str, unknown)))}", remedy)
    load = as_load(expert_load)
    rows = Rows(model, workload, parallel, precision or model.precision, fusions, causal)
    for stage, numbers in enumerate(parallel.stages(model.layer_count)):
        rows.stage, last = stage, stage == parallel.pipeline - 1
        rows.layers, rows.count, rows.precision = -1, 1, precision or model.precision
        if stage == 0:
            _add_embedding(rows)
        for i, group in enumerate(model.layers):
            rows.count = sum(number in numbers for number in group.numbers)
            if rows.count:
                rows.layers, rows.precision = i, model.precision_of(group, precision)
                _add_layers(rows, group, numbers, last, load)
        rows.layers, rows.count, rows.precision = -1, 1, precision or model.precision
        if last:
            _add_head(rows)
        else:
            tokens, hidden = workload.tokens, model.hidden
            rows.collective("send", tokens, hidden, tokens * (hidden * rows.value_bytes), 2)
    return rows.frame()


def _add_embedding(rows: Rows) -> None:
    model, tokens, value, tensor = rows.model, rows.work.tokens, rows.value_bytes, rows.parallel.tensor
    stream = tokens * (model.hidden * value)

    def gather(kernel: str, table: int, devices: int, read: np.ndarray) -> None:
        weights = rows.precision.format_of(kernel)
        read_rows = -(-np.minimum(tokens, table) // devices)  # distinct rows, at most
        weight = read_rows * weights.matrix_bytes(1, model.hidden)
        rows.elementwise(kernel, tokens, model.hidden, read, stream, weight=weight, stored=weights.values)

    gather("embedding", model.vocab, tensor, tokens * ID_BYTES)
    if tensor > 1:
        rows.collective("all_reduce", tokens, model.hidden, ring_bytes(stream, tensor, 2), tensor)
    if model.scaled_embedding:
        rows.elementwise("embedding_scale", tokens, model.hidden, stream, stream)
    if model.positions:
        gather("position_embedding", model.positions, 1, tokens * ID_BYTES + stream)


def _add_norm(rows: Rows, kernel: str, reader: str, with_residual: bool, count: int) -> None:
    """Add *count* norms for the GEMM *reader*, if one follows; with the residual they read and write that too."""
    tokens, hidden = rows.work.tokens, rows.model.hidden
    stream = tokens * (hidden * rows.value_bytes)
    written = tokens * (hidden * rows.operand_bytes(reader)) if reader else stream
    weight = rows.plain_bytes(rows.model.norm_parameters)
    read, write = (2 * stream, written + stream) if with_residual else (stream, written)
    rows.elementwise(kernel, tokens, hidden, read, write, weight=weight, count=count)


def _add_residual(rows: Rows, kernel: str, count: int) -> None:
    stream = rows.work.tokens * (rows.model.hidden * rows.value_bytes)
    rows.elementwise(kernel, rows.work.tokens, rows.model.hidden, 2 * stream, stream, count=count)


def _add_layers(rows: Rows, group: Layers, numbers: range, last: bool, load: float | tuple[float, ...]) -> None:
    fused, tensor, hidden = "residual_norm" in rows.fused, rows.parallel.tensor, rows.model.hidden
    count = rows.count
    reader = "qkv_proj"
    if isinstance(group.attention, LatentAttention):
        reader = "q_proj" if group.attention.q_rank is None else "qkv_a_proj"
    # A stage begins with the sum already made, so its first norm has no residual to add.
    alone = int(numbers.start in group.numbers) if fused else count
    _add_norm(rows, "attn_norm", reader, False, alone)
    _add_norm(rows, "attn_norm", reader, True, count - alone)
    add_attention(rows, group)
    if group.post_norms:
        _add_norm(rows, "attn_post_norm", "", False, count)
    if not fused:
        _add_residual(rows, "attn_residual", count)
    _add_norm(rows, "ffn_norm", first_kernel(group.ffn), fused, count)
    add_feed_forward(rows, group, load)
    if tensor > 1:
        spread = rows.parallel.replicas > 1 and isinstance(group.ffn, Experts)
        sums = 1 if spread and not group.ffn.shared else 2
        payload = rows.work.tokens * (hidden * rows.value_bytes)
        sent = ring_bytes(payload, tensor, 2)
        rows.collective("all_reduce", rows.work.tokens, hidden, sent, tensor, count=sums * count)
    if group.post_norms:
        _add_norm(rows, "ffn_post_norm", "", False, count)
    ends_stage = int(numbers[-1] in group.numbers and not last)
    _add_residual(rows, "ffn_residual", ends_stage if fused else count)


def _add_head(rows: Rows) -> None:
    model, tokens, tensor = rows.model, rows.work.logit_tokens, rows.parallel.tensor
    _add_norm(rows, "final_norm", "lm_head", "residual_norm" in rows.fused, 1)
    rows.gemms([model.lm_head], tokens)
    part = -(-model.vocab // tensor)
    if model.logit_softcap:
        logits = tokens * (part * rows.value_bytes)
        rows.elementwise("logit_softcap", tokens, part, logits, logits)
    if tensor > 1:
        sent = ring_bytes(tokens * (tensor * part * rows.value_bytes), tensor)
        rows.collective("all_gather", tokens, tensor * part, sent, tensor)
