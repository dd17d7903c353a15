"""The blocks of a layer: attention and feed-forward, their weight matrices and what they cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.models.transformer.precision import BITS, Precision


@dataclass(frozen=True)
class Linear:
    """A weight matrix of *outputs* × *inputs*, stored as one module of the checkpoint.

    ``kernel`` is the GEMM that may process it together with others, ``part`` its own name. Tensor parallelism splits
    the outputs (``columns``) or inputs (``rows``) in whole *units* (heads). Key and value heads may be ``replicable``
    when there are more devices than heads.
    """

    kernel: str
    part: str
    outputs: int
    inputs: int
    bias: bool = False
    split: str = ""
    units: int = 1
    replicable: bool = False
    copies: int = 1

    @property
    def parameters(self) -> int:
        return self.copies * (self.outputs * self.inputs + self.bias * self.outputs)

    def stored_bytes(self, precision: Precision) -> int:
        """Return the bytes of all copies, with scales and biases."""
        bias = self.bias * self.outputs * BITS[precision.plain] // 8
        return self.copies * (precision.format_of(self.kernel).matrix_bytes(self.outputs, self.inputs) + bias)


@dataclass(frozen=True)
class Attention:
    """Multi-head, grouped-query or multi-query attention.

    Attributes
    ----------
    heads, kv_heads, head_dim : int
        Number of query heads and of key/value heads, and width of a head.
    window : int or None
        Keys that a token attends to at most, itself included; None: no limit.
    qkv_bias, out_bias : bool
    rotary_dim : int
        Width of the part of a head that RoPE rotates; 0 without RoPE.
    qk_norm : str
        ``head`` (normalised per head), ``unweighted`` (so, without weights), ``full`` (over all heads together), or
        empty.
    sinks : bool
        The softmax has a learned logit per head (gpt-oss).
    stored_fused : bool
        The checkpoint stores queries, keys and values as one matrix (GPT-2, Phi-3).
    gate : bool
        A sigmoid gate per value, projected with the queries, scales the output (Qwen3.5).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    rotary_dim: int = 0
    qk_norm: str = ""
    sinks: bool = False
    stored_fused: bool = False
    gate: bool = False
    side_cache_bytes = 0
    state_bytes = 0

    @property
    def cache_width(self) -> int:
        """Values per token in the cache of one layer."""
        return 2 * self.kv_heads * self.head_dim

    def linears(self, hidden: int) -> Iterator[Linear]:
        width = self.heads * self.head_dim
        queries = width * (2 if self.gate else 1)
        yield Linear("qkv_proj", "q_proj", queries, hidden, self.qkv_bias, "columns", self.heads)
        for part in ("k_proj", "v_proj"):
            outputs = self.kv_heads * self.head_dim
            yield Linear("qkv_proj", part, outputs, hidden, self.qkv_bias, "columns", self.kv_heads, replicable=True)
        yield Linear("out_proj", "out_proj", hidden, width, self.out_bias, "rows", self.heads)

    def vectors(self) -> int:
        """Return the number of parameters outside matrices."""
        widths = {"": 0, "unweighted": 0, "head": 2, "full": self.heads + self.kv_heads}
        return widths[self.qk_norm] * self.head_dim + self.sinks * self.heads


@dataclass(frozen=True)
class Indexer:
    """What selects the tokens that sparse latent attention attends to (DeepSeek-V3.2, GLM-5).

    Attributes
    ----------
    heads, dim : int
        Heads of the indexer's queries, and their width; all heads share one key.
    selected : int
        Tokens that a token attends to at most.
    own : bool
        False: the layer reuses the selection of the nearest layer before it that has an indexer (GLM-5.2).
    """

    heads: int
    dim: int
    selected: int
    own: bool = True


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2): the cache holds one compressed vector per token for all heads.

    Requests with several new tokens expand the keys and values of every head (``kv_b_proj``; cached tokens are
    expanded again by ``context_kv_b_proj``). Requests with one new token attend to the compressed vectors: the
    expansion is absorbed into the query (``q_absorb``) and the output (``value_absorb``), and attention has one head
    with keys of width kv_rank + rope_dim and values of width kv_rank.

    Attributes
    ----------
    heads : int
    q_rank : int or None
        Width of the compressed query; None: queries are not compressed.
    kv_rank, nope_dim, rope_dim, value_dim : int
        Width of the compressed keys and values; of a query head's parts without and with RoPE; of a value head.
    bias : bool
        Whether the compressing and output projections have one.
    indexer : Indexer or None
        With one, every request attends to the compressed vectors of the selected tokens.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False
    indexer: Indexer | None = None
    window = None
    state_bytes = 0

    @property
    def side_cache_bytes(self) -> int:
        """Bytes per token and layer beside the compressed keys: the indexer's key in fp8 and its 32-bit scale."""
        return self.indexer.dim + 4 if self.indexer and self.indexer.own else 0

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def cache_width(self) -> int:
        """Values per token in the cache of one layer."""
        return self.kv_rank + self.rope_dim

    def linears(self, hidden: int) -> Iterator[Linear]:
        queries = self.heads * self.query_dim
        if self.q_rank is None:
            yield Linear("q_proj", "q_proj", queries, hidden, False, "columns", self.heads)
            yield Linear("kv_a_proj", "kv_a_proj", self.cache_width, hidden, self.bias)
        else:
            yield Linear("qkv_a_proj", "q_a_proj", self.q_rank, hidden, self.bias)
            yield Linear("qkv_a_proj", "kv_a_proj", self.cache_width, hidden, self.bias)
            yield Linear("q_b_proj", "q_b_proj", queries, self.q_rank, False, "columns", self.heads)
        expanded = self.heads * (self.nope_dim + self.value_dim)
        yield Linear("kv_b_proj", "kv_b_proj", expanded, self.kv_rank, False, "columns", self.heads)
        yield Linear("out_proj", "out_proj", hidden, self.heads * self.value_dim, self.bias, "rows", self.heads)
        if self.indexer and self.indexer.own:
            heads, dim = self.indexer.heads, self.indexer.dim
            yield Linear("index_q_proj", "index_q_proj", heads * dim, self.q_rank or hidden)
            yield Linear("index_k_proj", "index_k_proj", dim, hidden)
            yield Linear("index_weights_proj", "index_weights_proj", heads, hidden)

    def vectors(self) -> int:
        # The indexer's key has a LayerNorm.
        index = 2 * self.indexer.dim if self.indexer and self.indexer.own else 0
        return self.kv_rank + (self.q_rank or 0) + index


@dataclass(frozen=True)
class DeltaAttention:
    """Linear attention by the gated delta rule (Qwen3.5): a state of fixed size per request instead of a cache.

    Attributes
    ----------
    key_heads, key_dim, value_heads, value_dim : int
        Heads of queries and of keys, of values, and their widths; the state has one matrix per value head.
    conv : int
        Tokens that the causal convolution over queries, keys and values spans.
    state_bits : int
        Bits of a value of the state.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv: int
    state_bits: int = 32
    cache_width = 0
    side_cache_bytes = 0
    window = None

    @property
    def heads(self) -> int:
        return self.key_heads

    @property
    def mixed(self) -> int:
        """Width of queries, keys and values together, over which the convolution runs."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes per request and layer: the state, and the last tokens of the convolution in 16 bits."""
        state = self.value_heads * self.key_dim * self.value_dim * self.state_bits // 8
        return state + 2 * self.mixed * (self.conv - 1)

    def linears(self, hidden: int) -> Iterator[Linear]:
        width = self.value_heads * self.value_dim
        keys = 2 * self.key_heads * self.key_dim
        yield Linear("delta_in_proj", "delta_in_proj", keys, hidden, False, "columns", self.key_heads)
        for part in ("values", "gate"):
            yield Linear("delta_in_proj", part, width, hidden, False, "columns", self.value_heads)
        for part in ("decay", "beta"):
            yield Linear("delta_gates_proj", part, self.value_heads, hidden, False, "columns", self.value_heads)
        yield Linear("out_proj", "out_proj", hidden, width, False, "rows", self.value_heads)

    def vectors(self) -> int:
        # The convolution's weights; per head a decay and its bias; the norm of the output.
        return self.mixed * self.conv + 2 * self.value_heads + self.value_dim


@dataclass(frozen=True)
class StateSpace:
    """A Mamba-2 layer (Nemotron-H): a state of fixed size per request instead of a cache.

    Attributes
    ----------
    heads, head_dim : int
    groups, state : int
        Groups of heads that share an input and an output matrix, and the width of the state.
    conv : int
        Tokens that the causal convolution spans; it has a bias if *conv_bias*.
    state_bits : int
        Bits of a value of the state.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int
    conv_bias: bool = True
    state_bits: int = 32
    cache_width = 0
    side_cache_bytes = 0
    window = None

    @property
    def mixed(self) -> int:
        """Width over which the convolution runs: values, and the input and output matrices of all groups."""
        return self.heads * self.head_dim + 2 * self.groups * self.state

    @property
    def state_bytes(self) -> int:
        """Bytes per request and layer: the state, and the last tokens of the convolution in 16 bits."""
        state = self.heads * self.head_dim * self.state * self.state_bits // 8
        return state + 2 * self.mixed * (self.conv - 1)

    def linears(self, hidden: int) -> Iterator[Linear]:
        width = self.heads * self.head_dim
        for part in ("gate", "values"):
            yield Linear("ssm_in_proj", part, width, hidden, False, "columns", self.heads)
        for part in ("input", "output"):
            groups = self.groups * self.state
            yield Linear("ssm_in_proj", part, groups, hidden, False, "columns", self.groups, replicable=True)
        yield Linear("ssm_in_proj", "step", self.heads, hidden, False, "columns", self.heads)
        yield Linear("out_proj", "out_proj", hidden, width, False, "rows", self.heads)

    def vectors(self) -> int:
        # The convolution; per head a decay, a skip and a bias of the step; the norm of the output.
        return self.mixed * (self.conv + self.conv_bias) + 3 * self.heads + self.heads * self.head_dim


@dataclass(frozen=True)
class Nothing:
    """In place of the attention or the feed-forward block of layers that have only one of them."""

    cache_width = 0
    side_cache_bytes = 0
    state_bytes = 0
    window = None

    def linears(self, hidden: int) -> Iterator[Linear]:
        yield from ()

    def vectors(self) -> int:
        return 0


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward block of *width*; gated: down(act(gate(x)) · up(x)), else down(act(up(x)))."""

    width: int
    gated: bool = True
    bias: bool = False
    stored_fused: bool = False

    def linears(self, hidden: int, prefix: str = "", copies: int = 1) -> Iterator[Linear]:
        kernel = prefix + ("gate_up_proj" if self.gated else "up_proj")
        for part in ("gate_proj", "up_proj") if self.gated else ("up_proj",):
            outputs = (self.width, hidden, self.bias, "columns", self.width)
            yield Linear(kernel, prefix + part, *outputs, copies=copies)
        inputs = (hidden, self.width, self.bias, "rows", self.width)
        yield Linear(prefix + "down_proj", prefix + "down_proj", *inputs, copies=copies)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: routed experts, of which a token uses some, and shared experts, which every token uses.

    Attributes
    ----------
    experts, active : int
        Number of routed experts, and how many of them a token uses.
    expert : FeedForward
        One routed expert.
    shared : FeedForward or None
        All shared experts as one block.
    shared_gate : bool
        A sigmoid gate scales the output of the shared experts (Qwen2-MoE).
    router_bias : bool
        The router, or only its top-k selection, has a bias per expert.
    latent : int
        Width to which tokens are projected for the routed experts; 0: none.
    """

    experts: int
    active: int
    expert: FeedForward
    shared: FeedForward | None = None
    shared_gate: bool = False
    router_bias: bool = False
    latent: int = 0

    def expert_linears(self, hidden: int) -> Iterator[Linear]:
        return self.expert.linears(self.latent or hidden, "expert_", self.experts)

    def linears(self, hidden: int) -> Iterator[Linear]:
        yield Linear("router", "router", self.experts, hidden, self.router_bias)
        if self.shared:
            yield from self.shared.linears(hidden, "shared_")
        if self.shared_gate:
            yield Linear("shared_gate", "shared_gate", 1, hidden)
        if self.latent:
            yield Linear("latent_down_proj", "latent_down_proj", self.latent, hidden)
            yield Linear("latent_up_proj", "latent_up_proj", hidden, self.latent)
        yield from self.expert_linears(hidden)
