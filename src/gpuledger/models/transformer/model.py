"""The structure of a decoder-only transformer: kinds of layers, parameters, and the KV cache."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Self

import numpy as np

from gpuledger.errors import InputError
from gpuledger.models.transformer.blocks.cycle import Cycle
from gpuledger.models.transformer.blocks.image_sizes import Images
from gpuledger.models.transformer.blocks.latent import CompressedAttention, LatentAttention
from gpuledger.models.transformer.blocks.ngrams import NGrams
from gpuledger.models.transformer.blocks.recurrent import (
    AttentionBesideMamba,
    DeltaAttention,
    LightningAttention,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from gpuledger.models.transformer.blocks.residuals import (
    AlternatingUpdates,
    GatedStreams,
    Residuals,
)
from gpuledger.models.transformer.blocks.standard import Attention, Experts, FeedForward, Linear, Nothing
from gpuledger.models.transformer.blocks.vision import VisionTower
from gpuledger.models.transformer.formats.precision import BITS, Precision


@dataclass(frozen=True)
class Layers:
    """All layers of one kind; ``numbers`` are their positions in a pass of the model, from 0.

    ``formats`` names the kernels whose weights the checkpoint stores in another format than those of the model, with
    the format and that of the operands (see :class:`Precision`); an empty format: unquantised. Of a kernel that joins
    matrices of several formats, it has the widest, and the others for single matrices (``qkv_proj.k_proj``).
    """

    numbers: tuple[int, ...]
    attention: (
        Attention
        | LatentAttention
        | CompressedAttention
        | DeltaAttention
        | LightningAttention
        | StateSpace
        | SelectiveScan
        | AttentionBesideMamba
        | ShortConvolution
        | Nothing
    )
    ffn: FeedForward | Experts | Nothing
    post_norms: bool = False  # further norms after attention and after the feed-forward block (Gemma 2 to 4)
    formats: tuple[tuple[str, str, str | None], ...] = ()
    residuals: Residuals | None = None
    per_layer: int = 0  # width of the embeddings that a layer adds after its blocks (Gemma 4's small models)
    parallel: int = 0  # norms of layers whose blocks read the same input and are added together (Falcon, Cohere)
    ngrams: NGrams | None = None  # embeddings that the layer adds before its blocks (Qwen4-Exp)
    #: Learned vectors scale the residual stream and the output of each block before they are added (Muse Spark).
    scaled_sums: bool = False
    out_conv: int = 0  # tokens that a causal convolution behind each block spans; 0: none (Inkling)
    #: Rank of the projections that gate the output of the norms before attention and experts; 0: none (A.X-K2).
    norm_gate: int = 0
    cycle: Cycle | None = None  # layers of the model that a token passes several times

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def again(self) -> bool:
        """Whether these are no layers of their own, but those of an earlier cycle."""
        return self.cycle is not None and self.cycle.again(self.numbers[0])

    def stored(self, number: int) -> int:
        """Return which layer of the checkpoint is the one of a number."""
        return self.cycle.stored(number) if self.cycle else number

    @property
    def idle(self) -> bool:
        """Whether these layers do not run, as they attend to images alone, which are not read."""
        return isinstance(self.attention, Attention) and self.attention.for_images

    @property
    def norms(self) -> int:
        """Norms of the residual stream in one layer."""
        if self.parallel or isinstance(self.residuals, GatedStreams):
            return self.parallel
        blocks = 2 - isinstance(self.attention, Nothing) - isinstance(self.ffn, Nothing)
        return blocks * (2 if self.post_norms else 1)

    def linears(self, hidden: int) -> Iterator[Linear]:
        own = (self.attention.linears(hidden), self.ffn.linears(hidden), self.other_linears(hidden))
        for linear in chain(*own):
            yield replace(linear, reused=True) if self.again else linear

    def other_linears(self, hidden: int) -> Iterator[Linear]:
        """Yield the matrices outside attention and feed-forward block."""
        if self.residuals:
            yield from self.residuals.linears(hidden)
        if self.ngrams:
            yield from self.ngrams.linears(hidden)
        for block in self.gated_norms:
            yield from self.norm_gate_linears(hidden, block)
        if self.per_layer:
            yield Linear("per_layer_gate_proj", "per_layer_gate_proj", self.per_layer, hidden)
            yield Linear("per_layer_proj", "per_layer_proj", hidden, self.per_layer)

    @property
    def gated_norms(self) -> tuple[str, ...]:
        """Blocks whose norm is gated."""
        blocks = ("attention", "ffn") if isinstance(self.ffn, Experts) else ("attention",)
        return blocks if self.norm_gate else ()

    def norm_gate_linears(self, hidden: int, block: str) -> list[Linear]:
        return [
            Linear("norm_gate_proj", f"{block}_gate_down", self.norm_gate, hidden),
            Linear("norm_gate_up_proj", f"{block}_gate_up", hidden, self.norm_gate),
        ]

    def side_state_bytes(self, hidden: int) -> int:
        """Return the bytes that one request keeps in one layer beside those of attention."""
        convolved = 2 * 2 * hidden * max(self.out_conv - 1, 0)
        return convolved + (self.ngrams.state_bytes(hidden) if self.ngrams else 0)

    def vectors(self, hidden: int) -> int:
        """Return the parameters of one layer outside matrices, but those of the norms of the residual stream."""
        own = self.residuals.vectors(hidden) if self.residuals else 0
        side = (hidden if self.per_layer else 0) + (self.ngrams.vectors(hidden) if self.ngrams else 0)
        side += 2 * hidden * (self.scaled_sums + self.out_conv)
        return own + self.attention.vectors(hidden) + self.ffn.vectors(hidden) + side


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer, read from a config.json (:func:`gpuledger.models.transformer.read_model`)."""

    name: str
    source: str  # where its configuration comes from
    hidden: int  # width of the residual stream
    vocab: int  # rows of the embedding
    layers: tuple[Layers, ...]  # kinds of layers, in the order of their first occurrence
    tied: bool = False  # the LM head shares the embedding's weights
    further: int = 0  # rows of the embedding beside those of `vocab`, which the LM head lacks (Molmo, Mllama)
    norm_bias: bool = False  # norms are LayerNorms with a bias; otherwise RMSNorms
    norm_weights: bool = True  # norms have weights (not in OLMo 1 and nanochat)
    head_bias: bool = False  # the LM head has a bias (GPT-J, Phi-2)
    per_layer_vocab: int = 0  # rows of the embeddings that layers add, if not `vocab`; else 0
    positions: int = 0  # number of learned position embeddings; 0: none
    max_positions: int | None = None  # the longest context that the model supports
    scaled_embedding: bool = False  # the embedding is multiplied by a constant (Gemma)
    embedding_norm: bool = False  # the embedding is normalised (Inkling, BLOOM)
    logit_softcap: bool = False  # logits are capped by a tanh (Gemma)
    #: Precision of the checkpoint as an engine serves it: quantised weights as stored, 32-bit weights as bf16.
    precision: Precision = field(default_factory=Precision)
    drafts: bool = False  # this is the layer of another model that drafts its next tokens (:meth:`draft_layer`)
    #: What encodes images. It does not count among the model's own parameters and weights.
    vision: VisionTower | None = None
    #: Parts for other inputs than text that the checkpoint has and this does not: ``vision``, ``audio``.
    towers: tuple[str, ...] = ()
    unread: str = ""  # why the vision tower was not read; empty: it was, or there is none

    def without_vision(self) -> Self:
        """Return the model as engines load it for text alone."""
        return replace(self, vision=None, towers=("vision", *self.towers)) if self.vision else self

    def draft_layer(self) -> Self:
        """Return a layer of multi-token prediction (DeepSeek-V3; EAGLE's drafts are alike) as a model of its own.

        It is a layer as the model's last one, after a projection that joins the hidden state before it and the next
        token's embedding; embedding and LM head are the model's own and do not count again. MLA that reuses a
        selection has an indexer of its own there (GLM-5.2), and DeepSeek-V4's has no compressed past.
        """
        last = max(self.layers, key=lambda group: group.numbers[-1])
        attention, indexer = last.attention, getattr(last.attention, "indexer", None)
        if isinstance(attention, CompressedAttention):
            attention = replace(attention, ratio=0, overlap=False, indexer=None)
        elif indexer and not indexer.own:
            attention = replace(attention, indexer=replace(indexer, own=True))
        elif isinstance(attention, Attention):
            attention = replace(attention, own_keys=True)
        residuals = None if isinstance(last.residuals, AlternatingUpdates) else last.residuals
        more = {"per_layer": 0, "residuals": residuals, "ngrams": None, "cycle": None}
        layer = replace(last, numbers=(0,), attention=attention, **more)
        return replace(self, name=f"{self.name} (draft layer)", layers=(layer,), drafts=True, vision=None)

    @property
    def residuals(self) -> Residuals | None:
        """What replaces the sum of the residual stream, if anything."""
        return self.layers[0].residuals

    @property
    def layer_count(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def cycles(self) -> int:
        """How often a token passes some layers of the checkpoint."""
        return self.layers[0].cycle.times if self.layers[0].cycle else 1

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the residual stream."""
        return self.hidden * (self.norm_weights + self.norm_bias)

    def vectors(self, group: Layers) -> int:
        """Return the parameters of one layer of *group* outside matrices."""
        return 0 if group.again else group.norms * self.norm_parameters + group.vectors(self.hidden)

    @property
    def final_vectors(self) -> int:
        """Parameters outside layers and matrices: the last norm; a draft layer also normalises its two inputs.

        A gate that may end cycles early counts; engines do not compute it.
        """
        own = self.residuals.final_vectors(self.hidden) if self.residuals else 0
        own += (self.hidden + 1) * (self.cycles > 1 and self.layers[0].cycle.normed)
        norms = (2 if self.drafts else self.embedding_norm) + (not isinstance(self.residuals, GatedStreams))
        return self.norm_parameters * norms + own + self.layers[0].per_layer

    @property
    def lm_head(self) -> Linear:
        return Linear("lm_head", "lm_head", self.vocab, self.hidden, self.head_bias, "columns", self.vocab)

    @property
    def embeddings(self) -> tuple[Linear, ...]:
        """The matrices outside layers: token and position tables and, unless it is tied, the LM head.

        A draft layer has its projection instead.
        """
        sums = self.residuals.final_linears(self.hidden) if self.residuals else []
        if self.drafts:
            return (Linear("draft_proj", "draft_proj", self.hidden, 2 * self.hidden), *sums)
        tables = [Linear("embedding", "embedding", self.vocab + self.further, self.hidden), *sums]
        if width := self.layers[0].per_layer * self.layer_count:
            tables.append(
                Linear("per_layer_embedding", "per_layer_embedding", self.per_layer_vocab or self.vocab, width)
            )
            tables.append(Linear("per_layer_model_proj", "per_layer_model_proj", width, self.hidden))
        if self.positions:
            tables.append(Linear("position_embedding", "position_embedding", self.positions, self.hidden))
        return (*tables, *(() if self.tied else (self.lm_head,)))

    def precision_of(self, group: Layers, precision: Precision | None = None) -> Precision:
        """Return *precision* (default: the checkpoint's) with the exceptions of these layers.

        They do not apply where *precision* has other formats of weights or operands than the checkpoint.
        """
        chosen, stored = precision or self.precision, self.precision
        if (chosen.weights, chosen.operands) != (stored.weights, stored.operands):
            return chosen
        return chosen.with_formats(group.formats)

    def image_tokens(self, images: Images | None) -> int:
        """Return the tokens that images add to a prompt.

        Raises
        ------
        InputError
            The model has no vision tower, or none that is known here; a size that it refuses.
        """
        if not images:
            return 0
        if not self.vision:
            problem = "it has no vision tower" if "vision" not in self.towers else "its vision tower was not read"
            problem += f": {self.unread}" if self.unread else ""
            raise InputError(self.name, "images", problem, "leave images out")
        return images.count * self.vision.image.grid(images).tokens

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied LM head counts once, multi-token prediction layers do not count."""
        layers = sum(
            group.count * (self.vectors(group) + sum(linear.parameters for linear in group.linears(self.hidden)))
            for group in self.layers
        )
        return layers + sum(table.parameters for table in self.embeddings) + self.final_vectors

    @property
    def active_parameters(self) -> int:
        """Parameters used per token of text: all but the unused experts and n-grams, with embeddings and LM head."""
        idle = sum(
            group.count * linear.parameters // linear.copies * (linear.copies - group.ffn.active)
            for group in self.layers
            if isinstance(group.ffn, Experts) and not group.again
            for linear in group.ffn.expert_linears(self.hidden)
        )
        idle += sum(group.ngrams.idle for group in self.layers if group.ngrams)
        idle += sum(
            group.count * linear.parameters
            for group in self.layers
            for linear in group.linears(self.hidden)
            if linear.for_images or group.idle
        )
        idle += sum(group.count * self.vectors(group) for group in self.layers if group.idle)
        return self.parameters - idle

    def weight_bytes(self, precision: Precision | None = None) -> int:
        """Return the bytes of all weights and their scales, by default in the checkpoint's precision."""
        vectors = sum(group.count * self.vectors(group) for group in self.layers) + self.final_vectors
        layers = sum(
            group.count * linear.stored_bytes(self.precision_of(group, precision))
            for group in self.layers
            for linear in group.linears(self.hidden)
        )
        precision = precision or self.precision
        tables = sum(table.stored_bytes(precision) for table in self.embeddings)
        return layers + tables + vectors * BITS[precision.plain] // 8

    def kv_bytes_per_token(self, precision: Precision | None = None, full: bool = False) -> int:
        """Return the cache bytes of one token over all layers while no window is full, or when all are *full*.

        An entry that several tokens share (DeepSeek-V4) counts with its share.
        """
        period = math.lcm(*(group.attention.period for group in self.layers))
        before, after = self.kv_bytes(period * np.arange(2) + full * period * 2**31, precision)
        return int(after - before) // period

    @property
    def state_bytes(self) -> int:
        """Bytes that one request keeps whatever its length: states of linear attention."""
        return sum(
            group.count * (group.attention.state_bytes + group.side_state_bytes(self.hidden)) for group in self.layers
        )

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
            total += group.count * group.attention.cache_bytes(context, bits)
        return total
