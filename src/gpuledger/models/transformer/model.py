"""The structure of a decoder-only transformer: kinds of layers, their weights, and their KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

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
        ``head`` (normalised per head), ``full`` (over all heads together), or empty.
    sinks : bool
        The softmax has a learned logit per head (gpt-oss).
    stored_fused : bool
        The checkpoint stores queries, keys and values as one matrix (GPT-2, Phi-3).
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

    @property
    def cache_width(self) -> int:
        """Values per token in the cache of one layer."""
        return 2 * self.kv_heads * self.head_dim

    def linears(self, hidden: int) -> Iterator[Linear]:
        width = self.heads * self.head_dim
        yield Linear("qkv_proj", "q_proj", width, hidden, self.qkv_bias, "columns", self.heads)
        for part in ("k_proj", "v_proj"):
            outputs = self.kv_heads * self.head_dim
            yield Linear("qkv_proj", part, outputs, hidden, self.qkv_bias, "columns", self.kv_heads, replicable=True)
        yield Linear("out_proj", "out_proj", hidden, width, self.out_bias, "rows", self.heads)

    def vectors(self) -> int:
        """Return the number of parameters outside matrices."""
        widths = {"": 0, "head": 2, "full": self.heads + self.kv_heads}
        return widths[self.qk_norm] * self.head_dim + self.sinks * self.heads


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
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False
    window: None = None

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

    def vectors(self) -> int:
        return self.kv_rank + (self.q_rank or 0)


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
    """

    experts: int
    active: int
    expert: FeedForward
    shared: FeedForward | None = None
    shared_gate: bool = False
    router_bias: bool = False

    def linears(self, hidden: int) -> Iterator[Linear]:
        yield Linear("router", "router", self.experts, hidden, self.router_bias)
        if self.shared:
            yield from self.shared.linears(hidden, "shared_")
        if self.shared_gate:
            yield Linear("shared_gate", "shared_gate", 1, hidden)
        yield from self.expert.linears(hidden, "expert_", self.experts)


@dataclass(frozen=True)
class Layers:
    """All layers of one kind; ``numbers`` are their positions in the model, from 0.

    ``unconverted`` names kernels whose weights a quantised checkpoint leaves unquantised in these layers.
    """

    numbers: tuple[int, ...]
    attention: Attention | LatentAttention
    ffn: FeedForward | Experts
    post_norms: bool = False  # further norms after attention and after the feed-forward block (Gemma 2 and 3)
    unconverted: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        return len(self.numbers)

    def linears(self, hidden: int) -> Iterator[Linear]:
        yield from self.attention.linears(hidden)
        yield from self.ffn.linears(hidden)


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer, read from a config.json (:func:`gpuledger.models.transformer.read_model`).

    Attributes
    ----------
    name, source : str
        The model's name, and where its configuration comes from.
    hidden, vocab : int
        Width of the residual stream, and rows of the embedding.
    layers : tuple of Layers
        Kinds of layers, in the order of their first occurrence.
    tied : bool
        The LM head shares the embedding's weights.
    norm_bias : bool
        Norms are LayerNorms with a bias; otherwise RMSNorms.
    positions : int
        Number of learned position embeddings; 0: none.
    max_positions : int or None
        The longest context that the model supports.
    scaled_embedding, logit_softcap : bool
        The embedding is multiplied by a constant; logits are capped by a tanh (Gemma).
    precision : Precision
        Precision of the checkpoint as an engine serves it: quantised weights as stored, 32-bit weights as bf16.
    """

    name: str
    source: str
    hidden: int
    vocab: int
    layers: tuple[Layers, ...]
    tied: bool = False
    norm_bias: bool = False
    positions: int = 0
    max_positions: int | None = None
    scaled_embedding: bool = False
    logit_softcap: bool = False
    precision: Precision = field(default_factory=Precision)

    @property
    def layer_count(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the residual stream."""
        return self.hidden * (2 if self.norm_bias else 1)

    def _vectors(self, group: Layers) -> int:
        return (4 if group.post_norms else 2) * self.norm_parameters + group.attention.vectors()

    @property
    def lm_head(self) -> Linear:
        return Linear("lm_head", "lm_head", self.vocab, self.hidden, split="columns", units=self.vocab)

    @property
    def embeddings(self) -> tuple[Linear, ...]:
        """The token and position tables and, unless it is tied, the LM head."""
        tables = [Linear("embedding", "embedding", self.vocab, self.hidden)]
        if self.positions:
            tables.append(Linear("position_embedding", "position_embedding", self.positions, self.hidden))
        return (*tables, *(() if self.tied else (self.lm_head,)))

    def precision_of(self, group: Layers, precision: Precision | None = None) -> Precision:
        """Return *precision*; that of the checkpoint, which is the default, with the exceptions of these layers."""
        own = precision is None or precision == self.precision
        return self.precision.keeping(group.unconverted) if own else precision

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied LM head counts once, multi-token prediction layers do not count."""
        layers = sum(
            group.count * (self._vectors(group) + sum(linear.parameters for linear in group.linears(self.hidden)))
            for group in self.layers
        )
        return layers + sum(table.parameters for table in self.embeddings) + self.norm_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters used per token: all but the unused experts, with embeddings and LM head."""
        idle = sum(
            group.count * linear.parameters // linear.copies * (linear.copies - group.ffn.active)
            for group in self.layers
            if isinstance(group.ffn, Experts)
            for linear in group.ffn.expert.linears(self.hidden, "expert_", group.ffn.experts)
        )
        return self.parameters - idle

    def weight_bytes(self, precision: Precision | None = None) -> int:
        """Return the bytes of all weights and their scales, by default in the checkpoint's precision."""
        vectors = sum(group.count * self._vectors(group) for group in self.layers) + self.norm_parameters
        layers = sum(
            group.count * linear.stored_bytes(self.precision_of(group, precision))
            for group in self.layers
            for linear in group.linears(self.hidden)
        )
        precision = precision or self.precision
        tables = sum(table.stored_bytes(precision) for table in self.embeddings)
        return layers + tables + vectors * BITS[precision.plain] // 8

    def kv_bytes_per_token(self, precision: Precision | None = None) -> int:
        """Return the cache bytes of one token over all layers, while no window is full."""
        return int(self.kv_bytes(1, precision))

    def kv_bytes(self, context_tokens: int | np.ndarray, precision: Precision | None = None) -> np.ndarray:
        """Return the cache bytes of one request; a layer with a window caches at most that many tokens.

        Parameters
        ----------
        context_tokens : int or array of int
        precision : Precision, optional
            Its ``cache`` counts; default: the model's.

        Returns
        -------
        int64 array of the shape of `context_tokens`
        """
        context, bits = np.asarray(context_tokens, np.int64), BITS[(precision or self.precision).cache]
        total = np.zeros(context.shape, np.int64)
        for group in self.layers:
            kept = context if group.attention.window is None else np.minimum(context, group.attention.window)
            total += group.count * -(-group.attention.cache_width * bits // 8) * kept
        return total
