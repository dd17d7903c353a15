"""Kernels of attention: projections, norms, RoPE, cache, scores and values."""

from __future__ import annotations

import numpy as np

from gpuledger.models.transformer.blocks import Attention, DeltaAttention, LatentAttention, StateSpace
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.parallel import ring_bytes
from gpuledger.models.transformer.precision import BITS
from gpuledger.models.transformer.rows import Rows


def add_attention(rows: Rows, group: Layers) -> None:
    """Add the kernels between the norm before attention and the residual add."""
    attention, tokens = group.attention, rows.work.tokens
    by_kernel: dict[str, list] = {}
    for linear in attention.linears(rows.model.hidden):
        by_kernel.setdefault(linear.kernel, []).append(linear)
    if isinstance(attention, LatentAttention):
        _latent(rows, attention, by_kernel)
    elif isinstance(attention, DeltaAttention):
        _delta(rows, attention, by_kernel)
    elif isinstance(attention, StateSpace):
        _state_space(rows, attention, by_kernel)
    else:
        rows.gemms(by_kernel["qkv_proj"], tokens, "qkv" in rows.fused or attention.stored_fused)
        _heads(rows, attention)
    rows.gemms(by_kernel["out_proj"], tokens)


def _row_bytes(width: int, bits: int) -> int:
    return -(-width * bits // 8)


def _heads(rows: Rows, attention: Attention) -> None:
    tokens, value, tensor = rows.work.tokens, rows.value_bytes, rows.parallel.tensor
    heads, kv_heads, width = attention.heads // tensor, max(attention.kv_heads // tensor, 1), attention.head_dim
    if attention.qk_norm:
        turned, full = (heads + kv_heads) * width, attention.qk_norm == "full"
        if full and tensor > 1:  # the mean is taken over the heads of all devices
            everything = (attention.heads + attention.kv_heads) * width
            sent = ring_bytes(tokens * (everything * value), tensor)
            rows.collective("all_gather", tokens, everything, sent, tensor)
        m, n = (tokens, turned) if full else (tokens * (heads + kv_heads), width)
        weight = rows.plain_bytes({"full": turned, "head": 2 * width}.get(attention.qk_norm, 0))
        rows.elementwise("qk_norm", m, n, tokens * (turned * value), tokens * (turned * value), weight=weight)
    cached = 2 * kv_heads * width
    _rope_and_cache(rows, (heads + kv_heads) * attention.rotary_dim, attention.rotary_dim, cached, kv_heads)
    row = _row_bytes(cached, BITS[rows.precision.cache])
    written = rows.operand_bytes("out_proj")
    for decoding, requests in _split(rows, _few(rows)).items():
        sizes = (heads, kv_heads), (width, width)
        _attend(rows, decoding, requests, *sizes, written, attention.window, cached_row=row)
    if attention.gate:
        output = tokens * (heads * width)
        rows.elementwise("attn_gate", tokens, heads * width, 2 * output * value, output * written)


def _rope_and_cache(rows: Rows, turned: int, table: int, cached: int, keys: int) -> None:
    """Add RoPE over *turned* values a token, *keys* heads of them keys, and the copy of *cached* ones to the cache."""
    tokens, value, stored = rows.work.tokens, rows.value_bytes, _row_bytes(cached, BITS[rows.precision.cache])
    if "rope_kv" in rows.fused and turned:
        # Rotated keys go to the cache only, and are not read again.
        queries = turned - keys * table
        read = tokens * ((queries + cached + table) * value)
        rows.elementwise("rope_kv_write", tokens, queries + cached, read, tokens * (queries * value + stored))
        return
    if turned:
        rows.elementwise("rope", tokens, turned, tokens * ((turned + table) * value), tokens * (turned * value))
    rows.elementwise("kv_write", tokens, cached, tokens * (cached * value), tokens * stored)


def _requests(rows: Rows, decoding: bool) -> np.ndarray:
    """Return, per workload row, the number of requests that have one new token (*decoding*) or more."""
    return np.where((rows.work.new_tokens == 1) == decoding, rows.work.requests, 0)


#: New tokens behind a longer context that engines still give to a kernel for decoding, which splits the context among
#: blocks: those of a draft that is verified, or the end of a prompt whose beginning is cached.
FEW = 16


def _split(rows: Rows, decodes: np.ndarray) -> dict[bool, np.ndarray]:
    """Return, per workload row, the number of requests that kernels for decoding (True) and for prompts process."""
    single, requests = rows.work.new_tokens == 1, rows.work.requests
    return {decoding: np.where((single | decodes) == decoding, requests, 0) for decoding in (False, True)}


def _few(rows: Rows) -> np.ndarray:
    work = rows.work
    return (work.new_tokens <= FEW) & (work.past_tokens > work.new_tokens)


def _attend(
    rows: Rows,
    decoding: bool,
    requests: np.ndarray,
    heads_of: tuple[int, int],
    dims: tuple[int, int],
    written: float,
    window: int | None = None,
    cached_row: int = 0,
    expanded_row: int = 0,
) -> None:
    """Add attention of *requests* over *heads_of* = (query heads, KV heads) of *dims* = (query width, value width).

    It writes *written* bytes per output value.
    The keys and values of a token occupy *cached_row* bytes of the cache, or *expanded_row* bytes of activations.
    """
    work, value, (heads, kv_heads), (query_dim, value_dim) = rows.work, rows.value_bytes, heads_of, dims
    if not requests.any():
        return
    prefix = "decode_" if decoding else ""
    visible = work.visible(window)
    batch = work.total(requests) * heads
    m = work.largest(np.where(requests > 0, work.new_tokens, 0))
    n = work.largest(np.where(requests > 0, visible, 0))
    queries = work.total(requests * work.new_tokens)
    seen = work.total(rows.product(requests, visible))
    stored = {"math": rows.precision.activations, "stored": rows.precision.cache}
    # This product bounds every sum below, so that integers cannot overflow silently.
    rows.product(
        work.total(requests), m, work.largest(work.new_tokens + work.past_tokens), heads, query_dim + value_dim
    )
    if "attention" in rows.fused:
        pairs = work.total(requests * work.pairs(window))
        rows.add(
            prefix + "attention",
            "attention",
            m,
            n,
            query_dim,
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            value_dim=value_dim,
            macs=pairs * (heads * (query_dim + value_dim)),
            read=queries * (heads * query_dim * value) + seen * expanded_row,
            write=queries * (heads * value_dim * written),
            cache=seen * cached_row,
            **stored,
        )
        return
    # Unfused, the scores of all new tokens × context are computed and written; the mask is applied afterwards.
    context = work.new_tokens + work.past_tokens
    n = work.largest(np.where(requests > 0, context, 0))
    seen = work.total(requests * context)
    scores = work.total(requests * work.new_tokens * context) * heads
    matrix = scores * value
    of_keys = query_dim / (query_dim + value_dim)
    key_cache, key_read = (seen * round(row * of_keys) for row in (cached_row, expanded_row))
    value_cache, value_read = seen * cached_row - key_cache, seen * expanded_row - key_read

    def product(name: str, n: np.ndarray | int, k: np.ndarray | int, width: int, **traffic: np.ndarray) -> None:
        rows.add(prefix + name, "gemm", m, n, k, batch=batch, macs=scores * width, **traffic, **stored)

    query, output = queries * (heads * query_dim * value), queries * (heads * value_dim * written)
    product("attention_scores", n, query_dim, query_dim, read=query + key_read, write=matrix, cache=key_cache)
    rows.elementwise(prefix + "softmax", m * batch, n, matrix, matrix)
    product("attention_values", value_dim, n, value_dim, read=matrix + value_read, write=output, cache=value_cache)


def _latent(rows: Rows, attention: LatentAttention, by_kernel: dict[str, list]) -> None:
    work, value, tensor = rows.work, rows.value_bytes, rows.parallel.tensor
    tokens, heads, rank = work.tokens, attention.heads // tensor, attention.kv_rank
    fuse = "qkv" in rows.fused
    if attention.q_rank is None:
        rows.gemms(by_kernel["q_proj"], tokens)
        rows.gemms(by_kernel["kv_a_proj"], tokens)
    else:
        rows.gemms(by_kernel["qkv_a_proj"], tokens, fuse)
        operand = rows.operand_bytes("q_b_proj")
        q_rank = attention.q_rank
        weight = rows.plain_bytes(q_rank)
        rows.elementwise(
            "q_a_norm", tokens, q_rank, tokens * (q_rank * value), tokens * (q_rank * operand), weight=weight
        )
        rows.gemms(by_kernel["q_b_proj"], tokens)
    weight = rows.plain_bytes(rank)
    rows.elementwise("kv_a_norm", tokens, rank, tokens * (rank * value), tokens * (rank * value), weight=weight)
    _rope_and_cache(rows, (heads + 1) * attention.rope_dim, attention.rope_dim, attention.cache_width, 1)
    row = _row_bytes(attention.cache_width, BITS[rows.precision.cache])

    if attention.indexer:
        _sparse(rows, attention, by_kernel, row)
        return
    of_form = _split(rows, _fewer_macs_absorbed(rows, attention))
    several = of_form[False]
    if several.any():  # expanded: separate keys and values for every head
        rows.gemms(by_kernel["kv_b_proj"], work.total(several * work.new_tokens))
        _expand_context(rows, attention, by_kernel["kv_b_proj"][0], work.total(several * work.past_tokens))
        expanded = heads * (attention.query_dim + attention.value_dim) * value
        dims = (attention.query_dim, attention.value_dim)
        _attend(rows, False, several, (heads, heads), dims, rows.operand_bytes("out_proj"), expanded_row=expanded)

    absorbed = work.total(of_form[True] * work.new_tokens)
    if absorbed.any():  # all query heads share one compressed head of keys and values
        _absorb(rows, "q_absorb", absorbed, heads, rank, attention.nope_dim, value)
        _attend(rows, True, of_form[True], (heads, 1), (attention.cache_width, rank), value, cached_row=row)
        _absorb(rows, "value_absorb", absorbed, heads, attention.value_dim, rank, rows.operand_bytes("out_proj"))


def _fewer_macs_absorbed(rows: Rows, attention: LatentAttention) -> np.ndarray:
    """Return which requests need fewer multiplications absorbed than if the cached tokens were expanded again.

    For DeepSeek-V3, those with up to 170 new tokens behind a long context. Engines draw the line at a number of new
    tokens: vLLM at 128 (FlashMLA) or 512 (FlashAttention).
    """
    work = rows.work
    wider = attention.cache_width + attention.kv_rank - attention.query_dim - attention.value_dim
    expansion = attention.kv_rank * (attention.nope_dim + attention.value_dim)
    return work.pairs() * float(wider) < work.past_tokens * float(expansion)


def _expand_context(rows: Rows, attention: LatentAttention, linear, past: np.ndarray) -> None:
    """Add the expansion of tokens cached by earlier chunks, which are read from the cache and expanded again."""
    n, k, weight = rows.matrices([linear], rows.parallel.tensor)
    rows.add(
        "context_kv_b_proj",
        "gemm",
        past,
        n,
        k,
        macs=rows.product(past, n, k),
        weight=weight,
        write=past * (n * rows.value_bytes),
        cache=past * _row_bytes(attention.cache_width, BITS[rows.precision.cache]),
        **rows.formats("kv_b_proj"),
    )


def _absorb(rows: Rows, kernel: str, m: np.ndarray, heads: int, n: int, k: int, written: float) -> None:
    """Add a per-head product with a part of ``kv_b_proj``, which engines keep unquantised for this."""
    rows.add(
        kernel,
        "gemm",
        m,
        n,
        k,
        batch=heads,
        macs=rows.product(m, n, k, heads),
        weight=rows.plain_bytes(heads * n * k),
        read=m * (heads * k * rows.value_bytes),
        write=m * (heads * n * written),
    )


def _sparse(rows: Rows, attention: LatentAttention, by_kernel: dict[str, list], row: int) -> None:
    """Add attention to the tokens that an indexer selects, in the absorbed form for every request.

    The traffic is that of different tokens: a lower bound where the tokens of a prompt select far apart.
    """
    tokens, heads, rank = rows.work.tokens, attention.heads // rows.parallel.tensor, attention.kv_rank
    if attention.indexer.own:
        _index(rows, attention, by_kernel)
    _absorb(rows, "q_absorb", tokens, heads, rank, attention.nope_dim, rows.value_bytes)
    dims = (attention.cache_width, rank)
    for decoding, requests in _split(rows, _few(rows)).items():
        window = attention.indexer.selected
        _attend(rows, decoding, requests, (heads, 1), dims, rows.value_bytes, window=window, cached_row=row)
    _absorb(rows, "value_absorb", tokens, heads, attention.value_dim, rank, rows.operand_bytes("out_proj"))


def _index(rows: Rows, attention: LatentAttention, by_kernel: dict[str, list]) -> None:
    """Add the selection of tokens: scores of all pairs in fp8 summed over heads, then the largest of each token.

    Every device computes it in full.
    """
    work, tokens, index = rows.work, rows.work.tokens, attention.indexer
    for kernel in ("index_q_proj", "index_k_proj", "index_weights_proj"):
        rows.gemms(by_kernel[kernel], tokens)
    width = (index.heads + 1) * index.dim
    rows.elementwise("index_rope", tokens, width, tokens * (width * rows.value_bytes), tokens * (width + 4))
    for decoding in (False, True):
        requests = _requests(rows, decoding)
        if not requests.any():
            continue
        context = work.new_tokens + work.past_tokens
        m, n = (work.largest(np.where(requests > 0, what, 0)) for what in (work.new_tokens, context))
        queries, pairs = work.total(requests * work.new_tokens), work.total(requests * work.pairs())
        rows.product(work.total(requests), m, work.largest(context), index.heads, index.dim)
        rows.add(
            ("decode_" if decoding else "") + "index_scores",
            "attention",
            m,
            n,
            index.dim,
            batch=work.total(requests) * index.heads,
            heads=index.heads,
            kv_heads=1,
            macs=pairs * (index.heads * index.dim),
            read=queries * (index.heads * (index.dim + 4)),
            write=pairs * 4,
            cache=work.total(requests * context) * attention.side_cache_bytes,
            math="fp8",
            stored="fp8",
        )
        rows.elementwise("index_topk", queries, n, pairs * 4, queries * (index.selected * 4))


#: Tokens of a chunk, within which the delta rule of several new tokens is a product of matrices (FLA, vLLM, SGLang).
_CHUNK = 64


def _delta(rows: Rows, attention: DeltaAttention, by_kernel: dict[str, list]) -> None:
    """Add the gated delta rule; its time is taken to be that of its traffic, a lower bound for long prompts."""
    work, tokens, value, tensor = rows.work, rows.work.tokens, rows.value_bytes, rows.parallel.tensor
    rows.gemms(by_kernel["delta_in_proj"], tokens)
    rows.gemms(by_kernel["delta_gates_proj"], tokens)
    mixed, heads = attention.mixed // tensor, attention.value_heads // tensor
    width, key_dim, value_dim = heads * attention.value_dim, attention.key_dim, attention.value_dim
    requests = work.total(work.requests)
    last = requests * (mixed * (attention.conv - 1) * value)  # the tokens before, kept for the convolution
    stream = tokens * (mixed * value)
    weight = rows.plain_bytes(mixed * attention.conv)
    rows.elementwise("delta_conv", tokens, mixed, stream + last, stream + last, weight=weight)
    matrix = heads * key_dim * value_dim
    state = matrix * attention.state_bits // 8
    for decoding in (False, True):
        own = _requests(rows, decoding)
        if not own.any():
            continue
        new, kept = work.total(own * work.new_tokens), work.total(own) * state
        # Every chunk's state is written once and read once.
        chunks = 0 if decoding else work.total(own * -(-work.new_tokens // _CHUNK)) * (matrix * value)
        each = 3 * key_dim * value_dim + (0 if decoding else _CHUNK * (3 * key_dim + 2 * value_dim))
        rows.elementwise(
            ("decode_" if decoding else "") + "delta_rule",
            new,
            width,
            new * ((mixed + 2 * heads) * value) + kept + chunks,
            new * (width * value) + kept + chunks,
            macs=rows.product(new, heads, each),
        )
    output = tokens * width
    rows.elementwise("delta_norm", tokens, width, 2 * output * value, output * rows.operand_bytes("out_proj"))


#: Tokens of a chunk of a Mamba-2 scan, within which several new tokens are a product of matrices.
_SCAN_CHUNK = 128


def _state_space(rows: Rows, attention: StateSpace, by_kernel: dict[str, list]) -> None:
    """Add a Mamba-2 scan; its time is taken to be that of its traffic, a lower bound for long prompts."""
    work, tokens, value, tensor = rows.work, rows.work.tokens, rows.value_bytes, rows.parallel.tensor
    rows.gemms(by_kernel["ssm_in_proj"], tokens)
    heads, groups = attention.heads // tensor, max(attention.groups // tensor, 1)
    width = heads * attention.head_dim
    mixed = width + 2 * groups * attention.state
    last = work.total(work.requests) * (mixed * (attention.conv - 1) * value)
    stream = tokens * (mixed * value)
    weight = rows.plain_bytes(mixed * (attention.conv + attention.conv_bias))
    rows.elementwise("ssm_conv", tokens, mixed, stream + last, stream + last, weight=weight)
    matrix = width * attention.state
    state = matrix * attention.state_bits // 8
    for decoding in (False, True):
        own = _requests(rows, decoding)
        if not own.any():
            continue
        new, kept = work.total(own * work.new_tokens), work.total(own) * state
        # Every chunk's state is written once and read once.
        chunks = 0 if decoding else work.total(own * -(-work.new_tokens // _SCAN_CHUNK)) * (matrix * value)
        inside = 0 if decoding else _SCAN_CHUNK * (groups * attention.state + width)
        rows.elementwise(
            ("decode_" if decoding else "") + "ssm_scan",
            new,
            width,
            new * ((mixed + heads) * value) + kept + chunks,
            new * (width * value) + kept + chunks,
            macs=rows.product(new, 2 * matrix + inside),
        )
    output = tokens * width
    rows.elementwise("ssm_norm", tokens, width, 2 * output * value, output * rows.operand_bytes("out_proj"))
