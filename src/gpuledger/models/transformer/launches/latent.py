"""Kernels of attention over compressed keys and values: MLA, sparse MLA, and compressed sequences (DeepSeek-V4)."""

import numpy as np

from gpuledger.models.transformer.blocks.latent import CompressedAttention, LatentAttention
from gpuledger.models.transformer.launches.attention_rows import (
    AttendedKeys,
    add_gate,
    add_index,
    add_rope,
    add_rope_and_cache,
    attend,
    few,
    row_bytes,
    split,
)
from gpuledger.models.transformer.launches.rows import KernelList
from gpuledger.models.transformer.names import PHASES

#: Keys of a step that SGLang expands at most (``get_max_chunk_capacity``).
_MOST_EXPANDED = 2**17


def add_latent(rows: KernelList, attention: LatentAttention, by_kernel: dict[str, list]) -> None:
    """Add multi-head latent attention, from the compression to the values."""
    work, value, tensor = rows.work, rows.value_bytes, rows.parallel.tensor
    tokens, heads, rank = work.tokens, attention.heads // tensor, attention.kv_rank
    if attention.q_rank is None:
        rows.gemms(by_kernel["q_proj"], tokens)
        rows.gemms(by_kernel["kv_a_proj"], tokens)
    else:
        _compress(rows, attention.q_rank, by_kernel)
    rows.norm("kv_a_norm", rank + attention.rope_norm * attention.rope_dim)
    turned = (heads + 1) * attention.rope_dim if attention.rope else 0
    add_rope_and_cache(rows, turned, attention.rope_dim, attention.cache_width, 1)
    row = row_bytes(rows, attention.cache_width)
    if attention.indexer:
        _sparse(rows, attention, by_kernel, row)
    else:
        of_form = split(rows, _fewer_macs_absorbed(rows, attention))
        _expanded(rows, attention, by_kernel, of_form[False])
        absorbed = work.total(of_form[True] * work.new_tokens)
        if absorbed.any():  # all query heads share one compressed head of keys and values
            _absorb(rows, "q_absorb", absorbed, heads, rank, attention.nope_dim, value)
            sizes = (heads, 1), (attention.cache_width, rank)
            keys = AttendedKeys.within(work, attention.window)
            attend(rows, True, of_form[True], *sizes, value, keys, cached_row=row)
            _absorb(rows, "value_absorb", absorbed, heads, attention.value_dim, rank, rows.operand_bytes("out_proj"))
    if attention.gate:
        if attention.gate != "query":
            rows.gemms(by_kernel["attn_gate_proj"], tokens)
        add_gate(rows, heads * attention.value_dim, heads * (1 if attention.gate == "head" else attention.value_dim))


def _expanded(rows: KernelList, attention: LatentAttention, by_kernel: dict[str, list], requests: np.ndarray) -> None:
    """Add attention of *requests* with separate keys and values for every head, and their expansion."""
    if not requests.any():
        return
    work, heads = rows.work, attention.heads // rows.parallel.tensor
    rows.gemms(by_kernel["kv_b_proj"], work.total(requests * work.new_tokens))
    past = work.past_tokens if attention.window is None else np.minimum(work.past_tokens, attention.window)
    _expand_context(rows, attention, by_kernel["kv_b_proj"][0], work.total(requests * past))
    expanded = heads * (attention.query_dim + attention.value_dim) * rows.value_bytes
    dims, written = (attention.query_dim, attention.value_dim), rows.operand_bytes("out_proj")
    keys = AttendedKeys.within(work, attention.window)
    attend(rows, False, requests, (heads, heads), dims, written, keys, expanded_row=expanded)


def _fewer_macs_absorbed(rows: KernelList, attention: LatentAttention) -> np.ndarray:
    """Return which requests need fewer multiplications absorbed than if the cached tokens were expanded again.

    For DeepSeek-V3, those with up to 170 new tokens behind a long context. Engines draw the line at a number of new
    tokens: vLLM at 128 (FlashMLA) or 512 (FlashAttention).
    """
    work = rows.work
    wider = attention.cache_width + attention.kv_rank - attention.query_dim - attention.value_dim
    expansion = attention.kv_rank * (attention.nope_dim + attention.value_dim)
    past = work.past_tokens if attention.window is None else np.minimum(work.past_tokens, attention.window)
    return work.pairs(attention.window) * float(wider) < past * float(expansion)


def _compress(rows: KernelList, rank: int, by_kernel: dict[str, list]) -> None:
    """Add the compression of queries, keys and values, and the expansion of queries from *rank* values."""
    tokens = rows.work.tokens
    rows.gemms(by_kernel["qkv_a_proj"], tokens, "qkv" in rows.fused)
    rows.norm("q_a_norm", rank, "q_b_proj")
    rows.gemms(by_kernel["q_b_proj"], tokens)


def _expand_context(rows: KernelList, attention: LatentAttention, linear, past: np.ndarray) -> None:
    """Add the expansion of tokens cached by earlier chunks, which are read from the cache and expanded again."""
    n, k, weight = rows.matrices([linear], rows.parallel.tensor)
    traffic = {"write": past * (n * rows.value_bytes), "cache": past * row_bytes(rows, attention.cache_width)}
    rows.gemm("context_kv_b_proj", past, n, k, weight=weight, **traffic, **rows.formats("kv_b_proj"))


def _absorb(rows: KernelList, kernel: str, m: np.ndarray, heads: int, n: int, k: int, written: float) -> None:
    """Add a per-head product with a part of ``kv_b_proj``, which engines keep unquantised for this."""
    read, write = m * (heads * k * rows.value_bytes), m * (heads * n * written)
    rows.gemm(kernel, m, n, k, heads, weight=rows.plain_bytes(heads * n * k), read=read, write=write)


def _sparse(rows: KernelList, attention: LatentAttention, by_kernel: dict[str, list], row: int) -> None:
    """Add attention to the tokens that an indexer selects, in the absorbed form.

    Prompts that end within the selection attend to everything, expanded, and select nothing, as in SGLang, unless many
    keys would have to be expanded at once; other ways are among the fusions (``index_always``, ``sparse_prompts``). The
    traffic is that of different tokens: a lower bound where the tokens of a prompt select far apart.
    """
    work, heads, rank = rows.work, attention.heads // rows.parallel.tensor, attention.kv_rank
    selected = attention.indexer.selected
    prompts = (work.new_tokens > 1) & (work.phase[work.shape] != PHASES.index("decode"))
    context = work.new_tokens + work.past_tokens
    expands = work.total(work.requests * context) <= _MOST_EXPANDED
    short = prompts & (context <= selected) & expands[work.shape]
    selects = ~(short & ("sparse_prompts" not in rows.fused))
    if attention.indexer.own:
        always = rows.fused & {"index_always", "sparse_prompts"}
        add_index(rows, attention.indexer, by_kernel, bool(always) | selects)
    _expanded(rows, attention, by_kernel, np.where(selects, 0, work.requests))
    tokens = work.total(selects * work.requests * work.new_tokens)
    if not tokens.any():
        return
    _absorb(rows, "q_absorb", tokens, heads, rank, attention.nope_dim, rows.value_bytes)
    attended = attention.indexer.attended
    dims, keys = (attention.cache_width, rank), AttendedKeys.within(work, attended)
    for decoding, requests in split(rows, few(rows)).items():
        sizes = (heads, 1), dims, rows.value_bytes, keys
        attend(rows, decoding, requests * selects, *sizes, cached_row=row, places=attended)
    _absorb(rows, "value_absorb", tokens, heads, attention.value_dim, rank, rows.operand_bytes("out_proj"))


def add_compressed(rows: KernelList, attention: CompressedAttention, by_kernel: dict[str, list]) -> None:
    """Add attention to a window and to pooled entries of the past, from the compression to the groups' projection."""
    work, value, tensor = rows.work, rows.value_bytes, rows.parallel.tensor
    tokens, heads, dim = work.tokens, attention.heads // tensor, attention.head_dim
    _compress(rows, attention.q_rank, by_kernel)
    rows.norm("kv_a_norm", dim)
    rows.norm("qk_norm", heads * dim, weights=0)
    add_rope_and_cache(rows, (heads + 1) * attention.rope_dim, attention.rope_dim, dim, 1)
    keys, places = AttendedKeys.within(work, attention.window), attention.window
    for kernel, width in attention.pools.items():
        _pool(rows, attention, kernel, width, by_kernel[kernel])
    if attention.ratio:
        entries, pairs = work.entries(attention.ratio), work.entry_pairs(attention.ratio)
        everything, index = AttendedKeys(pairs, entries, entries), attention.indexer
        if index:
            add_index(rows, index, by_kernel, keys=everything)
            some = np.minimum(entries, index.selected + work.new_tokens // attention.ratio)
            everything = AttendedKeys(work.entry_pairs(attention.ratio, index.selected), some, entries)
        keys, places = keys + everything, places + (index.selected if index else work.largest(entries))
    # Each token has a list of the keys that it attends to.
    for decoding, requests in split(rows, few(rows)).items():
        sizes = (heads, 1), (dim, dim), value, keys
        attend(rows, decoding, requests, *sizes, cached_row=row_bytes(rows, dim), places=places)
    # The rotation of the values is undone.
    add_rope(rows, heads * attention.rope_dim, attention.rope_dim, "out_rope")
    (groups,) = by_kernel["out_a_proj"]
    count, (n, k) = groups.copies // tensor, (groups.outputs, groups.inputs)
    traffic = {
        "weight": count * rows.precision.format_of("out_a_proj").matrix_bytes(n, k),
        "read": tokens * (count * k * rows.operand_bytes("out_a_proj")),
        "write": tokens * (count * n * rows.operand_bytes("out_proj")),
    }
    rows.gemm("out_a_proj", tokens, n, k, count, **traffic, **rows.formats("out_a_proj"))


def _pool(rows: KernelList, attention: CompressedAttention, kernel: str, width: int, linears: list) -> None:
    """Add the projections of values and weights, and the pooling of the windows that the new tokens complete."""
    work = rows.work
    rows.gemms(linears, work.tokens)
    projected = 2 * (1 + attention.overlap) * width
    entry = row_bytes(rows, width) if kernel == "compress_proj" else attention.indexer.key_bytes
    complete = work.total(work.requests * work.new_entries(attention.ratio))
    # Values and weights of unfinished windows are kept in 32 bits; what a pass finishes at once is not written there.
    kept = work.total(work.requests * np.minimum(work.new_tokens, (1 + attention.overlap) * attention.ratio))
    rows.elementwise(
        kernel.replace("_proj", "_pool"),
        work.tokens,
        projected,
        work.tokens * (projected * rows.value_bytes),
        kept * (projected * 4) + complete * entry,
        weight=rows.plain_bytes(width * (1 + (1 + attention.overlap) * attention.ratio)),
    )
