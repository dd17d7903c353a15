"""Kernels that several kinds of attention launch: RoPE, the write to the cache, attention itself, the indexer."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from gpuledger.models.transformer.blocks.standard import Indexer
from gpuledger.models.transformer.formats.precision import BITS
from gpuledger.models.transformer.launches.rows import KernelList
from gpuledger.models.transformer.workloads import Workload


@dataclass(frozen=True)
class AttendedKeys:
    """The keys that the requests of each row of a workload attend to: int64 arrays of shape (rows,), per request."""

    pairs: np.ndarray  # (query, key) pairs
    distinct: np.ndarray  # different keys
    context: np.ndarray  # keys in the unmasked matrix of scores

    @classmethod
    def within(cls, work: Workload, window: int | None = None) -> Self:
        return cls(work.pairs(window), work.visible(window), work.new_tokens + work.past_tokens)

    def __add__(self, other: Self) -> Self:
        return AttendedKeys(self.pairs + other.pairs, self.distinct + other.distinct, self.context + other.context)


def row_bytes(rows: KernelList, width: int) -> int:
    """Return the bytes of *width* cached values of a token."""
    return -(-width * BITS[rows.precision.cache] // 8)


#: New tokens behind a longer context that engines still give to a kernel for decoding, which splits the context among
#: blocks: those of a draft that is verified, or the end of a prompt whose beginning is cached.
FEW = 16


def split(rows: KernelList, decodes: np.ndarray | bool = False) -> dict[bool, np.ndarray]:
    """Return, per workload row, the number of requests that kernels for decoding (True) and for prompts process.

    Those with one new token, and those that *decodes* tells, are decoding.
    """
    single, requests = rows.work.new_tokens == 1, rows.work.requests
    return {decoding: np.where((single | decodes) == decoding, requests, 0) for decoding in (False, True)}


def few(rows: KernelList) -> np.ndarray:
    """Return which requests have few new tokens behind a longer context."""
    work = rows.work
    return (work.new_tokens <= FEW) & (work.past_tokens > work.new_tokens)


def add_rope(rows: KernelList, width: int, table: int, kernel: str = "rope") -> None:
    """Add the rotation of *width* values per token, with a table of *table* values per position."""
    rows.per_token(kernel, width, width + table, width)


def add_rope_and_cache(rows: KernelList, turned: int, table: int, cached: int, keys: int) -> None:
    """Add RoPE over *turned* values a token, *keys* heads of them keys, and the copy of *cached* ones to the cache."""
    tokens, value, stored = rows.work.tokens, rows.value_bytes, row_bytes(rows, cached)
    if "rope_kv" in rows.fused and turned and cached:
        # Rotated keys go to the cache only, and are not read again.
        queries = turned - keys * table
        read = tokens * ((queries + cached + table) * value)
        rows.elementwise("rope_kv_write", tokens, queries + cached, read, tokens * (queries * value + stored))
        return
    if turned:
        add_rope(rows, turned, table)
    if cached:
        rows.elementwise("kv_write", tokens, cached, tokens * (cached * value), tokens * stored)


def add_gate(rows: KernelList, width: int, gates: int) -> None:
    """Add the product of *width* values of attention's output and *gates* gates per token."""
    rows.per_token("attn_gate", width, width + gates, width, "out_proj")


def attend(
    rows: KernelList,
    decoding: bool,
    requests: np.ndarray,
    heads_of: tuple[int, int],
    dims: tuple[int, int],
    written: float,
    keys: AttendedKeys,
    cached_row: int = 0,
    expanded_row: int = 0,
    places: np.ndarray | int | None = None,
) -> None:
    """Add attention of *requests* over *heads_of* = (query heads, KV heads) of *dims* = (query width, value width).

    It writes *written* bytes per output value.
    The keys and values of a token occupy *cached_row* bytes of the cache, or *expanded_row* bytes of activations.
    With *places*, every token has a list of so many keys of its own, not all of which need be taken.
    """
    work, value, (heads, kv_heads), (query_dim, value_dim) = rows.work, rows.value_bytes, heads_of, dims
    if not requests.any():
        return
    prefix = "decode_" if decoding else ""
    batch = work.total(requests) * heads
    m = work.largest(np.where(requests > 0, work.new_tokens, 0))
    n = work.largest(np.where(requests > 0, keys.distinct, 0))
    queries = work.total(requests * work.new_tokens)
    seen = work.total(rows.product(requests, keys.distinct))
    stored = {"math": rows.precision.activations, "stored": rows.precision.cache}
    # This product bounds every sum below, so that integers cannot overflow silently.
    rows.product(work.total(requests), m, work.largest(keys.context), heads, query_dim + value_dim)
    if "attention" in rows.fused:
        rows.add(
            prefix + ("attention" if places is None else "sparse_attention"),
            "attention",
            m,
            n if places is None else places,
            query_dim,
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            value_dim=value_dim,
            macs=work.total(requests * keys.pairs) * (heads * (query_dim + value_dim)),
            read=queries * (heads * query_dim * value) + seen * expanded_row,
            write=queries * (heads * value_dim * written),
            cache=seen * cached_row,
            **stored,
        )
        return
    # Unfused, the scores of all new tokens × context are computed and written; the mask is applied afterwards.
    n = work.largest(np.where(requests > 0, keys.context, 0))
    seen = work.total(requests * keys.context)
    scores = work.total(requests * work.new_tokens * keys.context) * heads
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


def add_index(
    rows: KernelList,
    index: Indexer,
    by_kernel: dict[str, list],
    chosen_for: np.ndarray | bool = True,
    keys: AttendedKeys | None = None,
) -> None:
    """Add the selection among *keys* (all): scores of all pairs, then the largest of each token.

    One by one, scores are computed in fp8 and summed over heads, and every device computes all of them. Blocks are
    scored in the format of the activations, by the largest score of their keys; those with one key as keys are. Only
    the requests *chosen_for* select: of the others, which attend to everything, the keys are kept for later.
    """
    work, tokens, value = rows.work, rows.work.tokens, rows.value_bytes
    scored = work.total(chosen_for * work.requests * work.new_tokens)
    heads = max(index.heads // rows.parallel.tensor, 1) if index.by_head else index.heads
    for kernel in ("index_q_proj", "index_k_proj", "index_weights_proj"):
        if by_kernel.get(kernel):
            rows.gemms(by_kernel[kernel], tokens if kernel == "index_k_proj" else scored)
    width = (heads + ("index_k_proj" in by_kernel or index.pool == "mean")) * index.dim
    query = index.dim + 4 if index.weighted else index.dim * value
    written = width + 4 if index.weighted else width * value
    rows.elementwise("index_rope", tokens, width, tokens * (width * value), tokens * written)
    formats = {"math": "fp8", "stored": "fp8"} if index.weighted else {"math": rows.precision.activations}
    if index.pool:
        _add_index_pool(rows, index, by_kernel)
        entries = work.entries(index.block)
        keys = AttendedKeys(work.entry_pairs(index.block), entries, entries)
    keys = keys or AttendedKeys.within(work)
    # What is written per pair: one score in 32 bits, or one per head and block.
    share, block = (heads / index.block, index.block) if index.by_head else (1, 1)
    for decoding, requests in split(rows, few(rows)).items():
        requests = requests * chosen_for
        if not requests.any():
            continue
        m, n = (work.largest(np.where(requests > 0, what, 0)) for what in (work.new_tokens, keys.context))
        queries, pairs = work.total(requests * work.new_tokens), work.total(requests * keys.pairs)
        rows.product(work.total(requests), m, work.largest(keys.context), heads, index.dim)
        scores = np.rint(pairs * share).astype(np.int64) * 4
        rows.add(
            ("decode_" if decoding else "") + "index_scores",
            "attention",
            m,
            n,
            index.dim,
            batch=work.total(requests) * heads,
            heads=heads,
            kv_heads=1,
            macs=pairs * (heads * index.dim),
            read=queries * (heads * query),
            write=scores,
            cache=work.total(requests * keys.context) * index.key_bytes,
            **formats,
        )
        chosen = index.selected // index.block * (heads if index.by_head else 1)
        rows.elementwise("index_topk", queries, -(-n // block), scores, queries * (chosen * 4))


def _add_index_pool(rows: KernelList, index: Indexer, by_kernel: dict[str, list]) -> None:
    """Add the projection of the weights with which a block's keys are summed, if any, and the sum."""
    work, tokens, weights = rows.work, rows.work.tokens, by_kernel.get("index_compress_proj", [])
    if weights:
        rows.gemms(weights, tokens)
    read = (1 + len(weights)) * index.dim
    complete = work.total(work.requests * work.new_entries(index.block))
    rows.elementwise(
        "index_compress_pool", tokens, read, tokens * (read * rows.value_bytes), complete * index.key_bytes
    )
