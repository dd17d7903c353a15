"""The kernels of a forward pass: what is launched, how often, and at which sizes."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.transformer.blocks.cycle import Cycle
from gpuledger.models.transformer.blocks.residuals import (
    AlternatingUpdates,
    BlockResiduals,
    GatedStreams,
    HyperConnections,
)
from gpuledger.models.transformer.blocks.standard import Experts, Linear, Nothing
from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.launches.alternating import (
    add_block_output,
    add_correction,
    add_low_rank,
    add_prediction,
    add_stream_projections,
)
from gpuledger.models.transformer.launches.attention import add_attention, first_attention_kernel
from gpuledger.models.transformer.launches.feed_forward import add_feed_forward, first_kernel
from gpuledger.models.transformer.launches.ngrams import add_ngrams
from gpuledger.models.transformer.launches.recurrent import add_convolution
from gpuledger.models.transformer.launches.rows import KernelList
from gpuledger.models.transformer.launches.vision import add_vision
from gpuledger.models.transformer.model import Layers, Model
from gpuledger.models.transformer.parallel import Parallel
from gpuledger.models.transformer.routing import Load, as_load
from gpuledger.models.transformer.workloads import Workload

#: Groups of operations that may be fused into one launch.
FUSIONS = frozenset({"qkv", "gate_up", "residual_norm", "attention", "experts"})
#: Those that only some engines fuse.
FURTHER = frozenset({"rope_kv", "index_always", "sparse_prompts"})
TOKEN_ID_BYTES = 8


def kernels(
    model: Model,
    workload: Workload,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    fused: bool | Iterable[str] = True,
    expert_load: float | str | Sequence[float] = 0.0,
) -> pd.DataFrame:
    """Return the kernels that each shape of *workload* launches, with their sizes, MACs and bytes.

    Parameters
    ----------
    parallel : Parallel, optional
        Default: one device.
    precision : Precision, optional
        Default: ``model.precision``, the checkpoint's precision as an inference engine serves it.
    fused : bool or names
        Operations that share a launch: ``qkv`` (projections with the same input, also MLA's compressions),
        ``gate_up``, ``residual_norm`` (the residual add is part of the following norm), ``attention`` (scores,
        softmax and values; unfused, the unmasked score matrix is computed and written), ``experts`` (the grouped GEMM
        gathers its tokens instead of reading a permuted copy). True: these, as in all serving engines; False: none, as
        in eager PyTorch. In a list also ``rope_kv``: RoPE writes the rotated keys, and the values, into the cache
        (TensorRT-LLM; kernels of their own in vLLM and SGLang); ``index_always``: prompts with no more keys than an
        indexer selects have it select all the same (TensorRT-LLM); ``sparse_prompts``: and attend to the selection as
        longer ones do (vLLM).
    expert_load : float, str or sequence of float
        How tokens choose experts: exponent of a Zipf law (0: uniform), one weight per expert, or a power law such as
        ``power_law_1.2``, with which engines' kernels were measured. Tokens choose independently, each ``active``
        different experts; rows describe the device with the largest expected load.

    Returns
    -------
    DataFrame
        See :mod:`gpuledger.models.transformer`; rows of shape 0 first, in execution order.

    Raises
    ------
    InputError
        The model cannot be split across the devices, a fusion or expert load is invalid, or an operation count
        exceeds 64 bits.
    """
    parallel = parallel or Parallel()
    parallel.check(model)
    fusions = FUSIONS if fused is True else frozenset(() if fused is False else fused)
    if unknown := fusions - FUSIONS - FURTHER:
        remedy = f"use {', '.join(sorted(FUSIONS | FURTHER))}"
        raise InputError("kernels", "fused", f"unknown fusion: {', '.join(sorted(map(str, unknown)))}", remedy)
    load = as_load(expert_load)
    rows = KernelList(model, workload, parallel, precision or model.precision, fusions)
    for stage, numbers in enumerate(parallel.stages(model.layer_count)):
        rows.stage, last = stage, stage == parallel.pipeline - 1
        rows.layers, rows.count, rows.precision = -1, 1, precision or model.precision
        if stage == 0:
            if model.vision and workload.images:
                add_vision(rows, model.vision)
            _add_embedding(rows)
        for i, group in enumerate(model.layers):
            rows.count = sum(number in numbers for number in group.numbers)
            if rows.count and not group.idle:
                rows.layers, rows.precision = i, model.precision_of(group, precision)
                _add_layers(rows, group, numbers, last, load)
        rows.layers, rows.count, rows.precision = -1, 1, precision or model.precision
        if model.cycles > 1 and model.layers[0].cycle.normed:
            _add_norm(rows, "cycle_norm", "", "residual_norm" in fusions, model.cycles - 1)
        if last:
            _add_head(rows)
        else:
            tokens, hidden = workload.tokens, model.hidden
            # With other residuals than one sum, all of their streams or snapshots travel.
            width = hidden * (model.residuals.sent(numbers.stop) if model.residuals else 1)
            rows.collective("send", tokens, width, tokens * (width * rows.value_bytes), 2)
    return rows.frame()


def _add_embedding(rows: KernelList) -> None:
    model, tokens, value, tensor = rows.model, rows.work.tokens, rows.value_bytes, rows.parallel.tensor
    stream = tokens * (model.hidden * value)

    def gather(kernel: str, table: int, devices: int, read: np.ndarray) -> None:
        weights = rows.precision.format_of(kernel)
        read_rows = -(-np.minimum(tokens, table) // devices)  # upper bound: every token reads a different row
        weight = read_rows * weights.matrix_bytes(1, model.hidden)
        rows.elementwise(kernel, tokens, model.hidden, read, stream, weight=weight, stored=weights.values)

    gather("embedding", model.vocab, tensor, tokens * TOKEN_ID_BYTES)
    rows.all_reduce(model.hidden)
    if model.embedding_norm:
        _add_norm(rows, "embedding_norm", "", False, 1)
    if model.scaled_embedding:
        rows.per_token("embedding_scale", model.hidden, model.hidden, model.hidden)
    if model.positions:
        gather("position_embedding", model.positions, 1, tokens * TOKEN_ID_BYTES + stream)
    if width := model.layers[0].per_layer * model.layer_count:
        _add_layer_embeddings(rows, width)
    if isinstance(model.residuals, AlternatingUpdates) and not model.drafts:
        add_stream_projections(rows, model.residuals)
    if model.drafts:
        _add_norm(rows, "draft_norm", "draft_proj", False, 2)
        rows.gemms([model.embeddings[0]], tokens)


def _add_layer_embeddings(rows: KernelList, width: int) -> None:
    """Add the embeddings of all layers, *width* values per token: from a table, and projected from the token's own."""
    model, tokens, value = rows.model, rows.work.tokens, rows.value_bytes
    stream = tokens * (width * value)
    table, projection = (linear for linear in model.embeddings if linear.kernel.startswith("per_layer"))
    weights = rows.precision.format_of(table.kernel)
    weight = -(-np.minimum(tokens, table.outputs) // rows.parallel.tensor) * weights.matrix_bytes(1, width)
    read = tokens * TOKEN_ID_BYTES
    rows.elementwise(table.kernel, tokens, width, read, stream, weight=weight, stored=weights.values)
    rows.all_reduce(width)
    rows.gemms([projection], tokens)
    own = model.layers[0].per_layer
    rows.per_token("per_layer_norm", width, 2 * width, width, weight=rows.plain_bytes(own))


def _add_layer_embedding(rows: KernelList, group: Layers) -> None:
    """Add what a layer does with its embeddings: a gate, which reads the finished sum, scales them; then back."""
    tokens, width = rows.work.tokens, group.per_layer
    gate, projection = list(group.linears(rows.model.hidden))[-2:]
    _add_residual(rows, "ffn_residual", rows.count)
    if isinstance(group.residuals, AlternatingUpdates):
        add_correction(rows, group.residuals)
    rows.gemms([gate], tokens)
    rows.per_token("per_layer_act", width, 2 * width, width, projection.kernel)
    rows.gemms([projection], tokens)
    _add_norm(rows, "per_layer_post_norm", "", False, rows.count)


def _add_norm(rows: KernelList, kernel: str, reader: str, with_residual: bool, count: int) -> None:
    """Add *count* norms whose output the GEMM *reader* reads (empty: none); optionally fused with the residual add."""
    tokens, hidden = rows.work.tokens, rows.model.hidden
    stream = tokens * (hidden * rows.value_bytes)
    written = tokens * (hidden * rows.operand_bytes(reader)) if reader else stream
    weight = rows.plain_bytes(rows.model.norm_parameters)
    read, write = (2 * stream, written + stream) if with_residual else (stream, written)
    rows.elementwise(kernel, tokens, hidden, read, write, weight=weight, count=count)


def _add_norm_gate(rows: KernelList, group: Layers, block: str) -> None:
    if block in group.gated_norms:
        hidden = rows.model.hidden
        for linear in group.norm_gate_linears(hidden, block):
            rows.gemms([linear], rows.work.tokens)
        rows.per_token("norm_gate", hidden, 2 * hidden, hidden)


def _add_residual(rows: KernelList, kernel: str, count: int) -> None:
    hidden = rows.model.hidden
    rows.per_token(kernel, hidden, 2 * hidden, hidden, count=count)


def _add_layers(rows: KernelList, group: Layers, numbers: range, last: bool, load: Load) -> None:
    fused, count, plain = "residual_norm" in rows.fused, rows.count, group.residuals is None
    # The previous stage sends the sum, so the first norm of a stage has no residual to add; nor has that of a cycle.
    first = sum(number == numbers.start or _begins(group.cycle, number) for number in group.numbers)
    alone = (first if fused else count) if plain else count
    feeds = not isinstance(group.ffn, Nothing)
    attends = 0 if isinstance(group.attention, Nothing) else len(group.attention.parts)
    gated = isinstance(group.residuals, GatedStreams)
    if group.ngrams:
        add_ngrams(rows, group.ngrams)
    if attends:
        reader = first_attention_kernel(group.attention)
        _add_input(rows, group, numbers, 0)
        if not gated:
            _add_norm(rows, "attn_norm", reader, False, alone * (3 if group.attention.own_inputs else 1))
            _add_norm(rows, "attn_norm", reader, True, count - alone)
        _add_norm_gate(rows, group, "attention")
        if isinstance(group.residuals, AlternatingUpdates):
            add_low_rank(rows, group.residuals)
        add_attention(rows, group)
        if group.out_conv:
            add_convolution(rows, "attn_out_conv", rows.model.hidden, group.out_conv, group.out_conv, 1, 1)
        if group.post_norms:
            _add_norm(rows, "attn_post_norm", "", False, count)
        # In parallel layers, this is the sum of both blocks' outputs.
        _add_output(rows, group, "attn_residual", count * (bool(group.parallel) or (not fused and feeds)))
    if feeds:
        first = 0 if attends or not fused else alone
        _add_input(rows, group, numbers, 1)
        if group.parallel:
            _add_norm(rows, "ffn_norm", first_kernel(group.ffn), False, count * (group.parallel - 1))
        elif not gated:  # the sum of gated streams is normalised
            _add_norm(rows, "ffn_norm", first_kernel(group.ffn), False, first if plain else count)
            _add_norm(rows, "ffn_norm", first_kernel(group.ffn), fused, count - first if plain else 0)
        _add_norm_gate(rows, group, "ffn")
        add_feed_forward(rows, group, load)
        if group.out_conv:
            add_convolution(rows, "ffn_out_conv", rows.model.hidden, group.out_conv, group.out_conv, 1, 1)
    spread = rows.parallel.exchanges and isinstance(group.ffn, Experts)
    sums = attends + (feeds and not (spread and not group.ffn.shared))
    sums = min(sums, 1) if group.parallel else sums
    # Norms of their own cannot read the partial sums of shared and routed experts; a shortcut parts the two.
    sums += isinstance(group.ffn, Experts) and (group.ffn.own_norms or group.ffn.shortcut) and not spread
    sums += isinstance(group.residuals, AlternatingUpdates)
    rows.all_reduce(rows.model.hidden, sums * count)
    if feeds and (group.post_norms or (isinstance(group.ffn, Experts) and group.ffn.post_norm)):
        _add_norm(rows, "ffn_post_norm", "", False, count)
    if group.per_layer:
        _add_layer_embedding(rows, group)
    ends_stage = int(numbers[-1] in group.numbers and not last)
    _add_output(rows, group, "ffn_residual", ends_stage if fused else count)


def _add_input(rows: KernelList, group: Layers, numbers: range, block: int) -> None:
    """Add what makes the input of a block, 0 (attention) or 1 (feed-forward), of something else than one sum."""
    hidden, residuals = rows.model.hidden, group.residuals
    if isinstance(residuals, AlternatingUpdates) and not block:
        add_prediction(rows, residuals)
    elif isinstance(residuals, GatedStreams):
        _add_gated_sum(rows, residuals, ("attention", "ffn")[block])
    elif isinstance(residuals, HyperConnections):
        _add_streams_sum(rows, residuals, [list(residuals.linears(hidden))[block]])
    elif isinstance(residuals, BlockResiduals):
        stored = [group.stored(number) for number in group.numbers if number in numbers]
        read = [residuals.snapshots(number)[block] + 1 for number in stored]
        sums = 3 if group.attention.own_sums and not block else 1
        weights = (sums + residuals.weighted) * hidden
        for sources in sorted(set(read) - {1}):
            more = {"weight": rows.plain_bytes(weights), "count": read.count(sources)}
            rows.per_token("residual_sum", hidden, sources * hidden, sums * hidden, **more)
        if group.again and residuals.gate_rank:
            _add_messages(rows, group, block)


def _add_messages(rows: KernelList, group: Layers, block: int) -> None:
    """Add what mixes the sums of the cycle before into the inputs of a block: into three of attention, or one."""
    hidden, gates = rows.model.hidden, group.residuals.gates(rows.model.hidden)
    if not block:
        # One for each block of the residuals, the last of which is the cycle's output.
        sources = group.cycle.length // group.residuals.every
        rows.per_token("message_sum", hidden, sources * hidden, 4 * hidden, weight=rows.plain_bytes(4 * hidden))
    for down, *up in gates[3:] if block else gates[:3]:
        rows.per_token("message_norm", 2 * hidden, 2 * hidden, 2 * hidden)
        rows.gemms([down], rows.work.tokens)
        rows.gemms(up, rows.work.tokens)
        rows.per_token("message_mix", hidden, 4 * hidden, hidden)


def _begins(cycle: Cycle | None, number: int) -> bool:
    return bool(cycle) and cycle.normed and not (number - cycle.start) % cycle.length


def _add_streams_sum(rows: KernelList, residuals: HyperConnections, linears: list[Linear]) -> None:
    """Add the sum of all streams, whose weights *linears* give, if any."""
    hidden, weights = rows.model.hidden, sum(linear.outputs for linear in linears)
    if linears:
        rows.gemms(linears, rows.work.tokens)
    rows.per_token("hyper_sum", hidden, residuals.streams * hidden + weights, hidden)


def _add_gated_sum(rows: KernelList, residuals: GatedStreams, block: str) -> None:
    """Add the norm of all streams, the gates, and the mean."""
    hidden, wide = rows.model.hidden, residuals.streams * rows.model.hidden
    *first, up = residuals.block_linears(hidden, block)
    rows.norm("hyper_norm", wide)
    rows.gemms(first, rows.work.tokens)
    rows.per_token("hyper_act", residuals.rank, residuals.rank, residuals.rank)
    rows.gemms([up], rows.work.tokens)
    rows.per_token("hyper_sum", hidden, 2 * wide, hidden)


def _add_output(rows: KernelList, group: Layers, kernel: str, count: int) -> None:
    """Add a block's output to the residual stream: *count* plain sums, if no other scheme replaces them."""
    if isinstance(group.residuals, HyperConnections | GatedStreams):
        hidden = rows.model.hidden
        streams = group.residuals.streams * hidden
        rows.per_token("hyper_add", hidden, streams + hidden + group.residuals.width, streams)
    elif isinstance(group.residuals, AlternatingUpdates):
        add_block_output(rows, group.residuals, kernel)
    else:
        _add_residual(rows, kernel, rows.count if group.residuals else count)


def _add_head(rows: KernelList) -> None:
    model, tokens, tensor = rows.model, rows.work.logit_tokens, rows.parallel.tensor
    if isinstance(model.residuals, HyperConnections):
        _add_streams_sum(rows, model.residuals, model.residuals.final_linears(model.hidden))
    elif isinstance(model.residuals, GatedStreams):
        _add_gated_sum(rows, model.residuals, "head")
    elif isinstance(model.residuals, AlternatingUpdates):
        add_stream_projections(rows, model.residuals)
        rows.per_token("altup_sum", model.hidden, model.residuals.streams * model.hidden, model.hidden)
    elif model.residuals:
        last = model.layers[0].stored(model.layer_count - 1)
        sources = -(-(last + 1) // model.residuals.every) + 1
        read = tokens * (sources * model.hidden * rows.value_bytes)
        rows.elementwise("residual_sum", tokens, model.hidden, read, tokens * (model.hidden * rows.value_bytes))
    if not isinstance(model.residuals, GatedStreams):
        _add_norm(rows, "final_norm", "lm_head", "residual_norm" in rows.fused and not model.residuals, 1)
    rows.gemms([model.lm_head], tokens)
    part = -(-model.vocab // tensor)
    if model.logit_softcap:
        logits = tokens * (part * rows.value_bytes)
        rows.elementwise("logit_softcap", tokens, part, logits, logits)
    rows.all_gather(tokens, tensor * part)
