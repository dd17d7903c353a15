"""Attention over compressed keys and values: MLA (DeepSeek-V2, V3) and compressed sequences (DeepSeek-V4)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuledger.models.transformer.blocks.standard import Block, Indexer, Linear


@dataclass(frozen=True)
class LatentAttention(Block):
    """Multi-head latent attention (MLA, DeepSeek-V2): the cache holds one compressed vector per token for all heads.

    Requests are in the form that takes fewer multiplications. Prompts expand the keys and values of every head
    (``kv_b_proj``; cached tokens are expanded again by ``context_kv_b_proj``). Requests with one new token, or few
    behind a long context, attend to the compressed vectors: the expansion is absorbed into the query (``q_absorb``) and
    the output (``value_absorb``), and attention has one head with keys of width kv_rank + rope_dim and values of width
    kv_rank.
    """

    heads: int
    q_rank: int | None  # width of the compressed query; None: queries are not compressed
    #: Width of the compressed keys and values; of a query head's parts without and with RoPE; of a value head.
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False  # whether the compressing and output projections have one
    indexer: Indexer | None = None  # with one, every request attends to the compressed vectors of the selected tokens
    rope: bool = True  # RoPE rotates the part of width *rope_dim* (not in Kimi-K3)
    #: A sigmoid gate scales the output: ``value`` (one per value, projected from the layer's input, Kimi-K3), ``head``
    #: (so, one per head, Ling 3), ``query`` (one per value, with the queries, from the compressed query before and
    #: behind its norm, A.X-K2), or empty.
    gate: str = ""
    sinks: bool = False  # the softmax has a learned logit per head (Hunyuan 4)
    window: int | None = None  # keys that a token attends to at most, itself included; None: no limit (dots3-note)
    rope_norm: bool = False  # the key's part with RoPE is normalised, too (dots3-note)

    @property
    def own_indexer(self) -> Indexer | None:
        return self.indexer if self.indexer and self.indexer.own else None

    @property
    def side_cache_bytes(self) -> int:
        return self.own_indexer.key_bytes if self.own_indexer else 0

    @property
    def period(self) -> int:
        return self.own_indexer.period if self.own_indexer else 1

    @property
    def state_bytes(self) -> int:
        return self.own_indexer.state_bytes if self.own_indexer else 0

    def device_state_bytes(self, tensor: int) -> int:
        return self.state_bytes

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def cache_width(self) -> int:
        return self.kv_rank + self.rope_dim

    def linears(self, hidden: int) -> Iterator[Linear]:
        queries = self.heads * self.query_dim
        if self.q_rank is None:
            yield Linear("q_proj", "q_proj", queries, hidden, False, "columns", self.heads)
            yield Linear("kv_a_proj", "kv_a_proj", self.cache_width, hidden, self.bias)
        else:
            yield Linear("qkv_a_proj", "q_a_proj", self.q_rank, hidden, self.bias)
            yield Linear("qkv_a_proj", "kv_a_proj", self.cache_width, hidden, self.bias)
            gates, twice = (self.heads * self.value_dim, 2) if self.gate == "query" else (0, 1)
            yield Linear("q_b_proj", "q_b_proj", queries + gates, twice * self.q_rank, False, "columns", self.heads)
        expanded = self.heads * (self.nope_dim + self.value_dim)
        yield Linear("kv_b_proj", "kv_b_proj", expanded, self.kv_rank, False, "columns", self.heads)
        yield Linear("out_proj", "out_proj", hidden, self.heads * self.value_dim, self.bias, "rows", self.heads)
        if self.gate in ("value", "head"):
            gates = self.heads * (self.value_dim if self.gate == "value" else 1)
            yield Linear("attn_gate_proj", "attn_gate_proj", gates, hidden, False, "columns", self.heads)
        if self.own_indexer:
            yield from self.own_indexer.linears(hidden, self.q_rank or hidden)

    def vectors(self, hidden: int) -> int:
        index = self.own_indexer.vectors() if self.own_indexer else 0
        return self.kv_rank + (self.q_rank or 0) + index + self.sinks * self.heads + self.rope_norm * self.rope_dim


@dataclass(frozen=True)
class CompressedAttention(Block):
    """Attention to the last tokens and to a compressed past (DeepSeek-V4); one head is keys and values of all queries.

    Every *ratio* tokens are pooled into one entry of the cache, with weights that a second projection gives; a short
    ratio pools overlapping windows of twice as many. An indexer, if any, pools keys of its own likewise and selects
    the entries that a token attends to; without one, it attends to all of them.
    """

    #: Query heads, their width, and its part that RoPE rotates, in the output too.
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int  # width of the compressed query
    #: Groups of heads, each with a matrix that projects its output to *out_rank* before the common projection.
    out_groups: int
    out_rank: int
    window: int
    ratio: int = 0  # tokens per compressed entry; 0: only the window
    overlap: bool = False
    indexer: Indexer | None = None

    @property
    def period(self) -> int:
        return self.ratio or 1

    @property
    def pools(self) -> dict[str, int]:
        """Width of an entry of each pool: of keys and values, and of the indexer's keys."""
        index = {"index_compress_proj": self.indexer.dim} if self.indexer else {}
        return {"compress_proj": self.head_dim, **index} if self.ratio else {}

    def cache_bytes(self, context: np.ndarray, bits: int, tensor: int = 1) -> np.ndarray:
        row = -(-self.head_dim * bits // 8)
        entries = context // self.ratio if self.ratio else 0 * context
        index = self.indexer.key_bytes if self.indexer else 0
        return row * np.minimum(context, self.window) + (row + index) * entries

    @property
    def state_bytes(self) -> int:
        """Bytes of the projected tokens that wait for their window to fill, in 32 bits (values and weights)."""
        return sum(2 * 4 * (1 + self.overlap) ** 2 * width * self.ratio for width in self.pools.values())

    def device_state_bytes(self, tensor: int) -> int:
        return self.state_bytes

    def linears(self, hidden: int) -> Iterator[Linear]:
        queries, outputs = self.heads * self.head_dim, self.out_groups * self.out_rank
        yield Linear("qkv_a_proj", "q_a_proj", self.q_rank, hidden)
        yield Linear("qkv_a_proj", "kv_a_proj", self.head_dim, hidden)
        yield Linear("q_b_proj", "q_b_proj", queries, self.q_rank, False, "columns", self.heads)
        for kernel, width in self.pools.items():
            for part in ("values", "weights"):
                yield Linear(kernel, part, (1 + self.overlap) * width, hidden)
        if self.indexer:
            heads, dim = self.indexer.heads, self.indexer.dim
            yield Linear("index_q_proj", "index_q_proj", heads * dim, self.q_rank)
            yield Linear("index_weights_proj", "index_weights_proj", heads, hidden)
        groups = {"copies": self.out_groups, "grouped": True}
        yield Linear("out_a_proj", "out_a_proj", self.out_rank, queries // self.out_groups, **groups)
        yield Linear("out_proj", "out_proj", hidden, outputs, False, "rows", self.out_groups)

    def vectors(self, hidden: int) -> int:
        # Norms of the compressed query, of keys and of every pool, whose weights depend on the position; a sink a head.
        pools = sum(width * (1 + (1 + self.overlap) * self.ratio) for width in self.pools.values())
        return self.q_rank + self.head_dim + self.heads + pools
