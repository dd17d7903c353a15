"""What an architecture is: how the keys of its config.json become layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuledger.models.transformer.blocks.cycle import Cycle
from gpuledger.models.transformer.blocks.standard import Block, Experts, FeedForward
from gpuledger.models.transformer.rules import attention
from gpuledger.models.transformer.rules.keys import ConfigKeys


@dataclass(frozen=True)
class ModelFamily:
    """One architecture.

    The other attributes are those of the classes in :mod:`gpuledger.models.transformer.model`.
    """

    #: From the keys and the number of layers to the window of every layer.
    window: Callable[[ConfigKeys, int], list[int | None]]
    #: From the keys, the number of layers and the dense block to the feed-forward block of every layer.
    ffn: Callable[[ConfigKeys, int, FeedForward], list[FeedForward | Experts]]
    defaults: Mapping = field(default_factory=dict)  # values of missing keys
    fixed: Mapping = field(default_factory=dict)  # keys of which only one value is modelled
    #: Whether these projections have a bias, or the key that says so.
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = False
    qk_norm: str = ""
    sinks: bool = False
    post_norms: bool | str = False  # whether blocks have a norm behind them, or the key that says so
    stored_fused: bool = False
    gated: bool = True
    #: From the keys, the family, the width of the residual stream and the windows to the attention of every layer.
    attention: Callable[..., list[Block]] = attention.grouped
    single: str = ""  # the key that lists layers of which each is described on its own; empty: none
    #: What replaces the sum of the residual stream: ``hyper`` (DeepSeek-V4), ``unmixed`` (Hunyuan 4), ``averaged``
    #: (GLM-5.3), ``gated`` (Qwen4-Exp), ``blocks`` (Kimi-K3), ``unweighted blocks`` (Inkling 2), ``gated
    #: blocks`` (Inkling 2 Mini), ``alternating`` (Gemma 3n), or empty.
    residuals: str = ""
    per_layer: str = ""  # the key with the width of embeddings that every layer adds; empty: none
    #: Norms of a layer whose blocks read the same input and are added together; 0: they follow each other.
    parallel: int = 0
    side_by_side: str = ""  # the key that says whether they do; empty: always, if there are such norms
    positions: bool = False
    more_positions: int = 0  # rows of the table of positions beyond the longest context
    norm_bias: bool = False
    norm_weights: bool = True
    head_bias: bool | str = False  # whether the LM head has a bias, or the key that says so
    tied: bool = False
    further: int | str = 0  # rows of the embedding that the LM head lacks, or the key that says how many
    scaled_embedding: bool = False
    embedding_norm: bool = False
    scaled_sums: bool = False
    norm_gate: str = ""  # the key with the rank of the gates of norms; empty: none
    out_conv: str = ""  # the key with the span of convolutions behind every block; empty: none
    #: From the keys and the number of layers to those that a token passes several times.
    cycle: Callable[[ConfigKeys, int], Cycle | None] | None = None
    pairs: bool = False  # ``num_layers`` counts pairs of layers (LongCat-Flash)
    renamed: Mapping = field(default_factory=dict)  # the architecture's own key names, and the usual ones
    neutral: frozenset[str] = frozenset()  # keys that change no kernel
