"""What an architecture is: how the keys of its config.json become layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuledger.models.transformer import attention_rules as attention
from gpuledger.models.transformer.blocks import Block, Experts, FeedForward
from gpuledger.models.transformer.keys import ConfigKeys


@dataclass(frozen=True)
class ModelFamily:
    """One architecture.

    Attributes
    ----------
    window : callable
        From the keys and the number of layers to the window of every layer.
    ffn : callable
        From the keys, the number of layers and the dense block to the feed-forward block of every layer.
    defaults : mapping
        Values of missing keys.
    fixed : mapping
        Keys of which only one value is modelled.
    qkv_bias, out_bias, mlp_bias, post_norms : bool or str
        Whether these projections have a bias, and blocks a norm behind them, or the key that says so.
    attention : callable
        From the keys, the family, the width of the residual stream and the windows to the attention of every layer.
    single : str
        The key that lists layers of which each is described on its own; empty: none.
    residuals : str
        What replaces the sum of the residual stream: ``hyper`` (DeepSeek-V4), ``blocks`` (Kimi-K3),
        ``alternating`` (Gemma 3n), or empty.
    per_layer : str
        The key with the width of embeddings that every layer adds; empty: none.
    parallel : int
        Norms of a layer whose blocks read the same input and are added together; 0: they follow each other.
    pairs : bool
        ``num_layers`` counts pairs of layers (LongCat-Flash).
    renamed : mapping
        The architecture's own key names, and the usual ones.

    The other attributes are those of the classes in :mod:`gpuledger.models.transformer.model`.
    """

    window: Callable[[ConfigKeys, int], list[int | None]]
    ffn: Callable[[ConfigKeys, int, FeedForward], list[FeedForward | Experts]]
    defaults: Mapping = field(default_factory=dict)
    fixed: Mapping = field(default_factory=dict)
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = False
    qk_norm: str = ""
    sinks: bool = False
    post_norms: bool | str = False
    stored_fused: bool = False
    gated: bool = True
    attention: Callable[..., list[Block]] = attention.grouped
    single: str = ""
    residuals: str = ""
    per_layer: str = ""
    parallel: int = 0
    positions: bool = False
    norm_bias: bool = False
    tied: bool = False
    scaled_embedding: bool = False
    pairs: bool = False
    renamed: Mapping = field(default_factory=dict)
