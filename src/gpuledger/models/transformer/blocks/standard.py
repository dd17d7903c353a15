"""The blocks of a layer, attention and feed-forward: their weight matrices and what they cache."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpuledger.models.transformer.formats.precision import BITS, Precision


@dataclass(frozen=True)
class Linear:
    """A weight matrix of *outputs* × *inputs*, stored as one module of the checkpoint.

    ``kernel`` is the GEMM that may process it together with others, ``part`` its own name. Tensor parallelism splits
    the outputs (``columns``) or inputs (``rows``) in whole *units* (heads). Key and value heads may be ``replicable``
    when there are more devices than heads. The *copies* of a matrix are experts or, if ``grouped``, groups of heads,
    each of which has a matrix of its own (DeepSeek-V4).
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
    grouped: bool = False
    for_images: bool = False  # only the tokens of images use it (ERNIE-4.5-VL)
    reused: bool = False  # it is the matrix of an earlier layer, and is stored with that one (Zamba2)

    @property
    def parameters(self) -> int:
        return 0 if self.reused else self.copies * (self.outputs * self.inputs + self.bias * self.outputs)

    def stored_bytes(self, precision: Precision) -> int:
        """Return the bytes of all copies, with scales and biases."""
        if self.reused:
            return 0
        bias = self.bias * self.outputs * BITS[precision.plain] // 8
        stored = precision.format_of(self.kernel, self.part)
        return stored.copies_bytes(self.outputs, self.inputs, self.copies) + self.copies * bias


class Block:
    """What the attention blocks of all architectures have in common."""

    window: int | None = None  # keys that a token attends to at most, itself included; None: no limit
    cache_width = 0  # values per cached token of one layer
    #: Bytes per *period* cached tokens of one layer besides, whatever the format of the cache (keys of an indexer).
    side_cache_bytes = 0
    state_bytes = 0  # bytes per request of one layer, whatever its length
    period = 1  # tokens after which the growth of the cache repeats
    own_inputs = own_sums = False  # as those of :class:`Attention`

    @property
    def parts(self) -> tuple["Block", ...]:
        """Blocks side by side that it is made of: most often itself."""
        return (self,)

    def cache_bytes(self, context: np.ndarray, bits: int, tensor: int = 1) -> np.ndarray:
        """Return the cache of one request on one of *tensor* devices, without its state.

        Parameters
        ----------
        context : int64 array
            Tokens of the request.
        """
        kept = context if self.window is None else np.minimum(context, self.window)
        side = kept // self.period * self.side_cache_bytes
        return kept * -(-self.device_cache_width(tensor) * bits // 8) + side

    def device_cache_width(self, tensor: int) -> int:
        """Return the values that one of *tensor* devices caches per token."""
        return self.cache_width

    def device_state_bytes(self, tensor: int) -> int:
        return self.state_bytes // tensor

    def linears(self, hidden: int) -> Iterator[Linear]:
        yield from ()

    def vectors(self, hidden: int) -> int:
        """Return the number of parameters outside matrices."""
        return 0


@dataclass(frozen=True)
class Nothing(Block):
    """In place of the attention or the feed-forward block of layers that have only one of them."""


@dataclass(frozen=True)
class Indexer:
    """What selects the keys that sparse attention reads."""

    #: Heads of the indexer's queries, and their width; all heads share one key.
    heads: int
    dim: int
    selected: int  # keys that a token attends to at most
    #: False: the layer reuses the selection of the nearest layer before it that has an indexer (GLM-5.2).
    own: bool = True
    #: Keys are selected in blocks of this many, for each head of the indexer on its own (MiniMax-M3); else one by one,
    #: by a sum over heads whose weights are a projection (DeepSeek-V3.2, GLM-5).
    block: int = 1
    #: A block has one key, for all heads: the plain ``mean`` of its keys, scored by a plain sum over heads (Qwen4-Exp),
    #: or a mean whose weights are a projection, ``weighted`` (GLM-5.3); empty: every key has a score.
    pool: str = ""

    @property
    def weighted(self) -> bool:
        """Whether heads are summed with weights that are a projection."""
        return self.block == 1 or self.pool == "weighted"

    @property
    def by_head(self) -> bool:
        """Whether every head selects on its own."""
        return self.block > 1 and not self.pool

    @property
    def attended(self) -> int:
        """Keys that a token attends to at most: those selected, and those whose block is not complete."""
        return self.selected + (self.block - 1 if self.pool else 0)

    @property
    def period(self) -> int:
        """Tokens per cached key."""
        return self.block if self.pool else 1

    @property
    def key_bytes(self) -> int:
        """Bytes of a cached key: fp8 with a 32-bit scale, as engines store it; without weights in 16 bits."""
        return self.dim + 4 if self.weighted else 2 * self.dim

    @property
    def state_bytes(self) -> int:
        """Bytes of the keys, and of their weights, that wait for their block to fill, in 16 bits."""
        return self.block * self.dim * 2 * (1 + self.weighted) if self.pool else 0

    def linears(self, hidden: int, query_inputs: int) -> Iterator[Linear]:
        # Heads that select on their own are split as key/value heads are.
        split = {"split": "columns", "units": self.heads, "replicable": True} if self.by_head else {}
        yield Linear("index_q_proj", "index_q_proj", self.heads * self.dim, query_inputs, **split)
        # One matrix with that of the queries in Qwen4-Exp.
        yield Linear("index_q_proj" if self.pool == "mean" else "index_k_proj", "index_k_proj", self.dim, hidden)
        if self.pool == "weighted":
            yield Linear("index_compress_proj", "index_compress_proj", self.dim, hidden)
        if self.weighted:
            yield Linear("index_weights_proj", "index_weights_proj", self.heads, hidden)

    def vectors(self) -> int:
        # A LayerNorm of the key; without weights, RMSNorms of query and key; what is added to weights, by position.
        return self.dim * (2 + (self.block if self.pool == "weighted" else 0))


@dataclass(frozen=True)
class Attention(Block):
    """Multi-head, grouped-query or multi-query attention."""

    #: Number of query heads and of key/value heads, and width of a head.
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    rotary_dim: int = 0  # width of the part of a head that RoPE rotates; 0 without RoPE
    #: ``head`` (normalised per head), ``heads`` (so, each with weights of its own), ``queries`` (so, with weights of
    #: queries only, Inkling 2), ``unweighted`` (so, without weights), ``full`` (over all heads together), or empty.
    qk_norm: str = ""
    qk_norm_bias: bool = False  # its norms are LayerNorms with a bias (Persimmon)
    sinks: bool = False  # the softmax has a learned logit per head (gpt-oss)
    projected_sinks: bool = False  # it has one that is projected with the queries (Inkling 2)
    stored_fused: bool = False  # the checkpoint stores queries, keys and values as one matrix (GPT-2, Phi-3)
    query_rank: int = 0  # width of what all queries are projected from, behind a norm; 0: the token itself (Step 3)
    clipped: bool = False  # projected queries, keys and values are limited to a range (DBRX)
    #: Keys and values are those of images: without any, the layer does not run. Two gates scale it (Mllama).
    for_images: bool = False
    #: A sigmoid gate scales the output: ``value`` (one per value, projected with the queries, Qwen3.5), ``head`` (one
    #: per head, Step-3.5), or empty.
    gate: str = ""
    value_width: int = 0  # width of a value head, if it differs from *head_dim* (MiMo-V2); else 0
    #: Values are the projected keys, without a projection of their own (Gemma 4); both are cached.
    shared_value: bool = False
    value_norm: bool = False  # values are normalised per head, without weights (Gemma 4)
    indexer: Indexer | None = None  # with one, a token attends to the keys that it selects
    #: False: the layer reads the keys and values that an earlier one has cached (Gemma 4's small models).
    own_keys: bool = True
    #: The output is normalised: ``head`` (per head, without weights, Muse Spark), ``full`` (over all heads, with
    #: weights, BitNet), or empty.
    out_norm: str = ""
    gate_bias: bool = False  # the gate per value has a bias per head (Beam)
    conv: int = 0  # tokens that a causal convolution over the projected keys and values spans; 0: none (Inkling)
    #: A bias per head and distance, up to the second, is a product of so many values that are projected with the
    #: queries (Inkling).
    relative: tuple[int, int] = (0, 0)
    own_inputs: bool = False  # queries, keys and values are projected from inputs of their own (Inkling 2)
    #: These are sums of their own, and from those of keys and values, weights of the convolution are projected, too,
    #: for a head and token.
    own_sums: bool = False

    @property
    def value_dim(self) -> int:
        return self.value_width or self.head_dim

    @property
    def side_cache_bytes(self) -> int:
        return self.indexer.key_bytes if self.indexer else 0

    @property
    def period(self) -> int:
        return self.indexer.period if self.indexer else 1

    @property
    def state_bytes(self) -> int:
        """Bytes per request and layer: the last tokens of the convolution in 16 bits, and those of an indexer."""
        return self.device_state_bytes(1)

    def device_state_bytes(self, tensor: int) -> int:
        convolved = 2 * self.device_key_width(tensor) * max(self.conv - 1, 0)
        return convolved + (self.indexer.state_bytes if self.indexer else 0)

    @property
    def first_kernel(self) -> str:
        """The GEMM of the queries."""
        return "q_proj" if self.own_inputs else "qkv_proj"

    def device_cache_width(self, tensor: int) -> int:
        return (self.own_keys and not self.for_images) * self.device_key_width(tensor)

    def device_key_width(self, tensor: int) -> int:
        """Return the cached values per token that one of *tensor* devices reads, whichever layer cached them."""
        return max(self.kv_heads // tensor, 1) * (self.head_dim + self.value_dim)

    def linears(self, hidden: int) -> Iterator[Linear]:
        queries = self.heads * self.head_dim * (2 if self.gate == "value" else 1)
        if self.query_rank:
            yield Linear("qkv_proj", "q_a_proj", self.query_rank, hidden)
            yield Linear("q_b_proj", "q_b_proj", queries, self.query_rank, False, "columns", self.heads)
        else:
            yield Linear(self.first_kernel, "q_proj", queries, hidden, self.qkv_bias, "columns", self.heads)
        widths = {"k_proj": self.head_dim, **({} if self.shared_value else {"v_proj": self.value_dim})}
        for part, width in widths.items() if self.own_keys else ():
            kernel, outputs = part if self.own_inputs else "qkv_proj", self.kv_heads * width
            yield Linear(kernel, part, outputs, hidden, self.qkv_bias, "columns", self.kv_heads, replicable=True)
            if self.own_sums:
                taps = (self.kv_heads * self.conv, hidden, False, "columns", self.kv_heads)
                yield Linear(kernel, f"{part[0]}_conv_proj", *taps, replicable=True)
        for part, width in {"relative_proj": self.relative[0], "sink_proj": int(self.projected_sinks)}.items():
            if width:
                yield Linear(self.first_kernel, part, self.heads * width, hidden, False, "columns", self.heads)
        if self.gate == "head":
            yield Linear("attn_gate_proj", "attn_gate_proj", self.heads, hidden, False, "columns", self.heads)
        inputs = self.heads * self.value_dim
        yield Linear("out_proj", "out_proj", hidden, inputs, self.out_bias, "rows", self.heads)
        if self.indexer:
            yield from self.indexer.linears(hidden, hidden)

    def vectors(self, hidden: int) -> int:
        all_heads = self.heads + self.kv_heads
        widths = {"": 0, "unweighted": 0, "head": 1 + self.own_keys, "heads": all_heads, "full": all_heads}
        widths["queries"] = self.heads
        index = self.query_rank + (self.indexer.vectors() if self.indexer else 0)
        others = (self.out_norm == "full") * self.heads * self.value_dim + self.sinks * self.heads + 2 * self.for_images
        others += (
            self.gate_bias * self.heads + self.conv * self.device_key_width(1) + self.relative[0] * self.relative[1]
        )
        # What biases are projected from is normalised like the queries. Each sum has a norm and a vector of its own.
        others += (self.qk_norm == "queries") * self.heads * self.relative[0] + self.own_sums * 2 * 2 * hidden
        return widths[self.qk_norm] * (1 + self.qk_norm_bias) * self.head_dim + index + others


@dataclass(frozen=True)
class FeedForward(Block):
    """A feed-forward block of *width*; gated: down(act(gate(x)) · up(x)), else down(act(up(x)))."""

    width: int
    gated: bool = True
    bias: bool = False
    stored_fused: bool = False
    sparse: bool = False  # gates below a cut-off, which follows from their mean and deviation, are 0 (Gemma 3n)
    norm: bool = False  # what the last matrix reads is normalised (BitNet)
    scaled: bool = False  # one learned number scales the output (Inkling)
    shaped: bool = False  # two learned numbers shape the activation (Apertus)

    def vectors(self, hidden: int) -> int:
        return self.norm * self.width + self.scaled + 2 * self.shaped

    def linears(self, hidden: int, prefix: str = "", copies: int = 1) -> Iterator[Linear]:
        kernel = prefix + ("gate_up_proj" if self.gated else "up_proj")
        for part in ("gate_proj", "up_proj") if self.gated else ("up_proj",):
            outputs = (self.width, hidden, self.bias, "columns", self.width)
            yield Linear(kernel, prefix + part, *outputs, copies=copies)
        inputs = (hidden, self.width, self.bias, "rows", self.width)
        yield Linear(prefix + "down_proj", prefix + "down_proj", *inputs, copies=copies)


@dataclass(frozen=True)
class Experts(Block):
    """A mixture of experts: routed experts, of which a token uses some, and shared experts, which every token uses."""

    #: Number of routed experts, and how many of them a token uses.
    experts: int
    active: int
    expert: FeedForward  # one routed expert
    shared: FeedForward | None = None  # all shared experts as one block
    shared_gate: bool = False  # a sigmoid gate scales the output of the shared experts (Qwen2-MoE)
    router_bias: bool = False  # the router, or only its top-k selection, has a bias per expert
    latent: int = 0  # width to which tokens are projected for the routed experts; 0: none
    latent_norm: bool = False  # the routed experts' output is normalised before it is projected back (Kimi-K3)
    own_norms: bool = False  # router, shared and routed experts have norms of their own (Gemma 4)
    post_norm: bool = False  # the sum of shared and routed experts is normalised (A.X-K1)
    #: Experts among which the router chooses, too, and which pass a token on as it is; *active* is then the mean of
    #: those that compute (LongCat-Flash).
    zero: int = 0
    #: The routed experts' output is added behind the next layer, so that it is no part of the shared block's sum.
    shortcut: bool = False
    inner_norms: bool = False  # the routed experts' input, and the output of each of them, is normalised (Muse Spark)
    #: Shared experts that the router scores, too, and whose output it scales; there is a scale for all (Inkling).
    scored: int = 0
    #: One of as many experts again, among which another router chooses for the tokens of images (ERNIE-4.5-VL).
    image_expert: FeedForward | None = None

    @property
    def choices(self) -> int:
        """Experts that the router chooses for a token, with those that pass it on."""
        return self.active * (self.experts + self.zero) // self.experts

    def expert_linears(self, hidden: int) -> Iterator[Linear]:
        return self.expert.linears(self.latent or hidden, "expert_", self.experts)

    def linears(self, hidden: int) -> Iterator[Linear]:
        scores = self.experts + self.zero + self.scored
        yield Linear("router", "router", scores, hidden, self.router_bias and not self.scored)
        if self.shared:
            yield from self.shared.linears(hidden, "shared_")
        if self.shared_gate:
            yield Linear("shared_gate", "shared_gate", 1, hidden)
        if self.latent:
            yield Linear("latent_down_proj", "latent_down_proj", self.latent, hidden)
            yield Linear("latent_up_proj", "latent_up_proj", hidden, self.latent)
        yield from self.expert_linears(hidden)
        if self.image_expert:
            yield Linear("router", "image_router", scores, hidden, self.router_bias, for_images=True)
            for linear in self.image_expert.linears(hidden, "expert_", self.experts):
                yield replace(linear, part=f"image_{linear.part}", for_images=True)

    def vectors(self, hidden: int) -> int:
        # Gemma 4: a norm after the shared expert, before and after the routed ones, and scales of the router's input
        # and of every expert.
        norms = self.own_norms * (4 * hidden + self.experts) + self.post_norm * hidden
        # A selection bias of routed experts alone.
        scale = (1 + self.router_bias * self.experts) if self.scored else 0
        return (self.latent_norm + 2 * self.inner_norms) * (self.latent or hidden) + norms + scale
