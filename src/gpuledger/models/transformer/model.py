"""The structure of a decoder-only transformer: kinds of layers, parameters, and the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger.models.transformer.blocks import (
    Attention,
    DeltaAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Linear,
    Nothing,
    StateSpace,
)
from gpuledger.models.transformer.precision import BITS, Precision


@dataclass(frozen=True)
class Layers:
    """All layers of one kind; ``numbers`` are their positions in the model, from 0.

    ``unconverted`` names kernels whose weights a quantised checkpoint leaves unquantised in these layers.
    """

    numbers: tuple[int, ...]
    attention: Attention | LatentAttention | DeltaAttention | StateSpace | Nothing
    ffn: FeedForward | Experts | Nothing
    post_norms: bool = False  # further norms after attention and after the feed-forward block (Gemma 2 and 3)
    unconverted: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def norms(self) -> int:
        """Norms of the residual stream in one layer."""
        blocks = 2 - isinstance(self.attention, Nothing) - isinstance(self.ffn, Nothing)
        return blocks * (2 if self.post_norms else 1)

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
    drafts : bool
        This is the layer of another model that drafts its next tokens (:meth:`draft_layer`).
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
    drafts: bool = False

    def draft_layer(self) -> Model:
        """Return a layer of multi-token prediction (DeepSeek-V3; EAGLE's drafts are alike) as a model of its own.

        It is a layer as the model's last one, after a projection that joins the hidden state before it and the next
        token's embedding; embedding and LM head are the model's own and do not count again.
        """
        last = max(self.layers, key=lambda group: group.numbers[-1])
        layer = Layers((0,), last.attention, last.ffn, last.post_norms, last.unconverted)
        return replace(self, name=f"{self.name} (draft layer)", layers=(layer,), drafts=True)

    @property
    def layer_count(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the residual stream."""
        return self.hidden * (2 if self.norm_bias else 1)

    @property
    def final_norms(self) -> int:
        """Parameters of the norms outside layers: a draft layer also normalises its two inputs."""
        return self.norm_parameters * (3 if self.drafts else 1)

    def _vectors(self, group: Layers) -> int:
        return group.norms * self.norm_parameters + group.attention.vectors()

    @property
    def lm_head(self) -> Linear:
        return Linear("lm_head", "lm_head", self.vocab, self.hidden, split="columns", units=self.vocab)

    @property
    def embeddings(self) -> tuple[Linear, ...]:
        """The token and position tables and, unless it is tied, the LM head; of a draft layer, its projection."""
        if self.drafts:
            return (Linear("draft_proj", "draft_proj", self.hidden, 2 * self.hidden),)
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
        return layers + sum(table.parameters for table in self.embeddings) + self.final_norms

    @property
    def active_parameters(self) -> int:
        """Parameters used per token: all but the unused experts, with embeddings and LM head."""
        idle = sum(
            group.count * linear.parameters // linear.copies * (linear.copies - group.ffn.active)
            for group in self.layers
            if isinstance(group.ffn, Experts)
            for linear in group.ffn.expert_linears(self.hidden)
        )
        return self.parameters - idle

    def weight_bytes(self, precision: Precision | None = None) -> int:
        """Return the bytes of all weights and their scales, by default in the checkpoint's precision."""
        vectors = sum(group.count * self._vectors(group) for group in self.layers) + self.final_norms
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
        return int(self.kv_bytes(1, precision)) - self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes that one request keeps whatever its length: states of linear attention."""
        return sum(group.count * group.attention.state_bytes for group in self.layers)

    def kv_bytes(self, context_tokens: int | np.ndarray, precision: Precision | None = None) -> np.ndarray:
        """Return the cache bytes of one request, states of linear attention included.

        A layer with a window caches at most that many tokens.

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
        total = np.full(context.shape, self.state_bytes, np.int64)
        for group in self.layers:
            kept = context if group.attention.window is None else np.minimum(context, group.attention.window)
            row = -(-group.attention.cache_width * bits // 8) + group.attention.side_cache_bytes
            total += group.count * row * kept
        return total
