"""Kernels of attention, from the projections to the output projection."""

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
from gpuledger.models.transformer.blocks.standard import Attention
from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.launches.attention_rows import (
    AttendedKeys,
    add_gate,
    add_index,
    add_rope_and_cache,
    attend,
    few,
    row_bytes,
    split,
)
from gpuledger.models.transformer.launches.feed_forward import add_dense
from gpuledger.models.transformer.launches.latent import add_compressed, add_latent
from gpuledger.models.transformer.launches.recurrent import (
    add_convolution,
    add_delta,
    add_lightning,
    add_selective_scan,
    add_short_convolution,
    add_state_space,
)
from gpuledger.models.transformer.launches.rows import KernelList
from gpuledger.models.transformer.model import Layers, Model
from gpuledger.models.transformer.parallel import Parallel
from gpuledger.models.transformer.workloads import Workload


def attention_kernels(
    model: Model, group: Layers, workload: Workload, precision: Precision, fused: frozenset[str]
) -> pd.DataFrame:
    """Return the kernels of one layer's attention block on one device, from its projections to the output projection.

    Parameters
    ----------
    group : Layers
        One of the model's, or one that differs from it (fewer heads: one device's share).
    fused : frozenset of str
        As for :func:`gpuledger.models.transformer.kernels`.
    """
    rows = KernelList(model, workload, Parallel(), precision, fused, layers=0)
    add_attention(rows, group)
    return rows.frame()


def add_attention(rows: KernelList, group: Layers) -> None:
    """Add the kernels between the norm before attention and the residual add."""
    hidden, parts = rows.model.hidden, group.attention.parts
    for part in parts:
        by_kernel: dict[str, list] = {}
        for linear in part.linears(hidden):
            by_kernel.setdefault(linear.kernel, []).append(linear)
        _KERNELS[type(part)](rows, part, by_kernel)
        rows.gemms(by_kernel["out_proj"], rows.work.tokens)
    if len(parts) > 1:
        rows.per_token("branch_add", hidden, len(parts) * hidden, hidden)


def first_attention_kernel(attention: object) -> str:
    """Return the GEMM that reads the output of the norm before attention."""
    if isinstance(attention, LatentAttention) and attention.q_rank is None:
        return "q_proj"
    return attention.first_kernel if isinstance(attention, Attention) else _FIRST[type(attention)]


def _heads(rows: KernelList, attention: Attention, by_kernel: dict[str, list]) -> None:
    """Add multi-head, grouped-query or multi-query attention."""
    work, tokens, value, tensor = rows.work, rows.work.tokens, rows.value_bytes, rows.parallel.tensor
    fused, projections = "qkv" in rows.fused, ("qkv_proj", "index_q_proj", "index_k_proj")
    if (
        attention.indexer
        and attention.indexer.by_head
        and fused
        and len({rows.precision.format_of(name) for name in projections}) == 1
    ):
        # Engines join the indexer's projections of blocks to it, too.
        joined = [linear for name in projections for linear in by_kernel[name]]
        by_kernel |= dict(zip(projections, ([*joined], [], []), strict=True))
    for name in (attention.first_kernel, "k_proj", "v_proj"):
        if name in by_kernel:
            rows.gemms(by_kernel[name], tokens, fused or attention.stored_fused)
    heads, kv_heads, width = attention.heads // tensor, max(attention.kv_heads // tensor, 1), attention.head_dim
    if attention.query_rank:
        rows.norm("q_a_norm", attention.query_rank, "q_b_proj")
        rows.gemms(by_kernel["q_b_proj"], tokens)
    if attention.clipped:
        projected = heads * width + attention.device_key_width(tensor)
        rows.per_token("qkv_clip", projected, projected, projected)
    if attention.conv:
        kept = attention.device_key_width(tensor)
        add_convolution(rows, "ssm_conv", kept, attention.conv, attention.conv, 1, 1)
    own = attention.own_keys
    if attention.qk_norm:
        full = attention.qk_norm == "full"
        vectors = heads + own * kv_heads * (2 if attention.value_norm else 1)
        turned = vectors * width
        if full:  # the mean is taken over the heads of all devices
            rows.all_gather(tokens, (attention.heads + attention.kv_heads) * width)
        m, n = (tokens, turned) if full else (tokens * vectors, width)
        weights = {"full": turned, "heads": turned, "head": (1 + own) * width, "queries": heads * width}
        weight = rows.plain_bytes(weights.get(attention.qk_norm, 0) * (1 + attention.qk_norm_bias))
        rows.elementwise("qk_norm", m, n, tokens * (turned * value), tokens * (turned * value), weight=weight)
    cached = attention.device_cache_width(tensor)
    keys_turned = own * kv_heads
    add_rope_and_cache(rows, (heads + keys_turned) * attention.rotary_dim, attention.rotary_dim, cached, keys_turned)
    keys, places = AttendedKeys.within(work, attention.window), None
    if attention.indexer:
        add_index(rows, attention.indexer, by_kernel)
        keys, places = AttendedKeys.within(work, attention.indexer.attended), attention.indexer.attended
    if attention.relative[0]:
        k, n = attention.relative
        traffic = {"read": tokens * (heads * k * value), "write": tokens * (heads * n * value)}
        rows.gemm("relative_bias", tokens * heads, n, k, weight=rows.plain_bytes(n * k), **traffic)
    written, sizes = rows.operand_bytes("out_proj"), ((heads, kv_heads), (width, attention.value_dim))
    read = row_bytes(rows, attention.device_key_width(tensor))
    for decoding, requests in split(rows, few(rows)).items():
        attend(rows, decoding, requests, *sizes, written, keys, cached_row=read, places=places)
    if attention.out_norm:
        width = heads * attention.value_dim
        rows.norm("attn_out_norm", width, "out_proj", 0 if attention.out_norm == "head" else width)
    if attention.gate:
        if attention.gate == "head":
            rows.gemms(by_kernel["attn_gate_proj"], tokens)
        add_gate(rows, heads * attention.value_dim, heads * (attention.value_dim if attention.gate == "value" else 1))


def _shared(rows: KernelList, block: SharedBlock, by_kernel: dict[str, list]) -> None:
    """Add a block whose weights other layers use, too, up to the projection of its output."""
    hidden, tensor = rows.model.hidden, rows.parallel.tensor
    rows.per_token("block_concat", 2 * hidden, 2 * hidden, 2 * hidden)
    rows.norm("block_norm", 2 * hidden, "qkv_proj")
    _adapters(rows, by_kernel, "qkv_proj", block.attention.heads // tensor * block.attention.head_dim)
    _heads(rows, block.attention, by_kernel)
    rows.gemms(by_kernel["block_out_proj"], rows.work.tokens)
    rows.all_reduce(hidden)
    rows.norm("ffn_norm", hidden, "gate_up_proj")
    _adapters(rows, by_kernel, "gate_up_proj", 2 * block.ffn.width // tensor)
    add_dense(rows, block.ffn, "")


def _adapters(rows: KernelList, by_kernel: dict[str, list], kernel: str, width: int) -> None:
    """Add the adapters of a GEMM, each of which is added to *width* of its outputs."""
    for down, up in _pairs(by_kernel.get(f"adapter_{kernel}", []), by_kernel.get(f"adapter_{kernel}_up", [])):
        rows.gemms([down], rows.work.tokens)
        rows.gemms(up, rows.work.tokens)
        rows.per_token("adapter_add", width, 2 * width, width)


def _pairs(downs: list, ups: list) -> list[tuple]:
    """Return each adapter's first matrix, and those behind it: one each, or all behind the only one."""
    return [(downs[0], ups)] if len(downs) == 1 else [(down, [up]) for down, up in zip(downs, ups, strict=True)]


_KERNELS = {
    Attention: _heads,
    LatentAttention: add_latent,
    CompressedAttention: add_compressed,
    DeltaAttention: add_delta,
    LightningAttention: add_lightning,
    StateSpace: add_state_space,
    SelectiveScan: add_selective_scan,
    ShortConvolution: add_short_convolution,
    SharedBlock: _shared,
}
_FIRST = {
    **dict.fromkeys((AttentionBesideMamba, LightningAttention), "qkv_proj"),
    LatentAttention: "qkv_a_proj",
    CompressedAttention: "qkv_a_proj",
    DeltaAttention: "delta_in_proj",
    **dict.fromkeys((StateSpace, SelectiveScan, ShortConvolution), "ssm_in_proj"),
}
