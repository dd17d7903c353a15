"""Architectures by ``model_type``: how the keys of a config.json become layers.

Sources: the configuration and model classes of Hugging Face transformers (4.57 and 5.0), which define the defaults of
missing keys, which layers have a window, and where biases and norms are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuledger.models.transformer.keys import Keys
from gpuledger.models.transformer.model import Attention, Experts, FeedForward, LatentAttention, Layers

MAX_WIDTH, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_EXPERTS = 2**20, 2**14, 10_000, 2**26, 2**16
MAX_POSITIONS = 2**31
ACTIVATIONS = frozenset(
    {"silu", "swish", "relu", "relu2", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu"}
)


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
    qkv_bias, out_bias, mlp_bias : bool or str
        Whether these projections have a bias, or the key that says so.
    renamed : mapping
        The architecture's own key names, and the usual ones.

    The other attributes are those of the classes in :mod:`gpuledger.models.transformer.model`.
    """

    window: Callable[[Keys, int], list[int | None]]
    ffn: Callable[[Keys, int, FeedForward], list[FeedForward | Experts]]
    defaults: Mapping = field(default_factory=dict)
    fixed: Mapping = field(default_factory=dict)
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = False
    qk_norm: str = ""
    sinks: bool = False
    post_norms: bool = False
    stored_fused: bool = False
    gated: bool = True
    latent: bool = False
    positions: bool = False
    norm_bias: bool = False
    tied: bool = False
    scaled_embedding: bool = False
    renamed: Mapping = field(default_factory=dict)


def _layer_types(keys: Keys, layers: int) -> list[bool] | None:
    """Return which layers have a window according to ``layer_types``; None without that key."""
    types = keys.strings("layer_types")
    if not types:
        return None
    if strange := sorted(set(types) - {"sliding_attention", "full_attention"}):
        remedy = "only sliding_attention and full_attention are modelled"
        raise keys.error("layer_types", f"unknown layer types: {', '.join(strange)}", remedy)
    if len(types) != layers:
        raise keys.error("layer_types", f"{len(types)} types for {layers} layers", "correct one of them")
    return [name == "sliding_attention" for name in types]


def _windows(keys: Keys, layers: int, slides: Callable[[int], bool]) -> list[int | None]:
    window = keys.integer("sliding_window", MAX_POSITIONS, None)
    types = _layer_types(keys, layers)
    if types is None:
        types = [slides(i) for i in range(layers)]
    longest = keys.integer("max_position_embeddings", MAX_POSITIONS, None)
    if window is not None and longest is not None and window >= longest:
        window = None  # never takes effect
    return [window if slide else None for slide in types]


def no_window(keys: Keys, layers: int) -> list[int | None]:
    return [None] * layers


def window_everywhere(keys: Keys, layers: int) -> list[int | None]:
    return _windows(keys, layers, lambda i: True)


def window_every_second(keys: Keys, layers: int) -> list[int | None]:
    size = keys.integer("sliding_window_size", MAX_POSITIONS, None)
    if size not in (None, keys.integer("sliding_window", MAX_POSITIONS, None)):
        raise keys.error("sliding_window_size", f"{size} differs from sliding_window", "correct one of them")
    return _windows(keys, layers, lambda i: i % 2 == 0)


def window_but_every_nth(keys: Keys, layers: int) -> list[int | None]:
    period = keys.integer("_sliding_window_pattern", MAX_LAYERS, None)
    period = keys.integer("sliding_window_pattern", MAX_LAYERS, period or 6)
    return _windows(keys, layers, lambda i: (i + 1) % period != 0)


def window_if_used(slides: Callable[[int, int], bool]) -> Callable[[Keys, int], list[int | None]]:
    """Windows of Qwen models: ``sliding_window`` only applies with ``use_sliding_window``."""

    def windows(keys: Keys, layers: int) -> list[int | None]:
        first = keys.integer("max_window_layers", MAX_LAYERS, 28, low=0)
        if not keys.flag("use_sliding_window"):
            keys.known |= {"sliding_window", "layer_types"}
            return [None] * layers
        return _windows(keys, layers, lambda i: slides(i, first))

    return windows


def dense(keys: Keys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    return [block] * layers


def _routed(keys: Keys, experts: str, width: str, bias: bool = False, **more: object) -> Experts:
    count = keys.integer(experts, MAX_EXPERTS)
    active = keys.integer("num_experts_per_tok", MAX_EXPERTS)
    if active > count:
        raise keys.error("num_experts_per_tok", f"a token uses {active} of {count} experts", "correct one of them")
    keys.fixed("experts_per_token", active, "differs from num_experts_per_tok")
    expert = FeedForward(keys.integer(width, MAX_WIDTH), bias=bias)
    return Experts(count, active, expert, router_bias=bias, **more)


def all_routed(experts: str, bias: bool = False) -> Callable:
    """Every layer has experts of width ``intermediate_size``."""

    def ffns(keys: Keys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        return [_routed(keys, experts, "intermediate_size", bias)] * layers

    return ffns


def sparse_steps(shared: bool) -> Callable:
    """Every ``decoder_sparse_step``-th layer has experts, except those in ``mlp_only_layers`` (Qwen)."""

    def ffns(keys: Keys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        step = keys.integer("decoder_sparse_step", MAX_LAYERS, 1)
        only = keys.value("mlp_only_layers", None) or []
        if not isinstance(only, list) or not all(type(i) is int for i in only):
            raise keys.error("mlp_only_layers", "not a list of layer numbers", "correct it")
        more = {}
        if shared:
            width = keys.integer("shared_expert_intermediate_size", MAX_WIDTH, low=0)
            more = {"shared": FeedForward(width), "shared_gate": True} if width else {}
        routed = _routed(keys, "num_experts", "moe_intermediate_size", **more)
        return [routed if (i + 1) % step == 0 and i not in only else block for i in range(layers)]

    return ffns


def deepseek(router_bias: bool) -> Callable:
    """The first layers are dense, then every ``moe_layer_freq``-th layer has routed and shared experts."""

    def ffns(keys: Keys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        first = keys.integer("first_k_dense_replace", MAX_LAYERS, 0, low=0)
        step = keys.integer("moe_layer_freq", MAX_LAYERS, 1)
        if keys.value("n_routed_experts", None) is None:
            return [block] * layers
        width = keys.integer("moe_intermediate_size", MAX_WIDTH)
        shared = keys.integer("n_shared_experts", MAX_EXPERTS, 0, low=0)
        routed = _routed(keys, "n_routed_experts", "moe_intermediate_size")
        routed = Experts(
            routed.experts,
            routed.active,
            routed.expert,
            FeedForward(shared * width) if shared else None,
            router_bias=router_bias and keys.choice("topk_method", TOP_K, "noaux_tc") == "noaux_tc",
        )
        return [routed if i >= first and i % step == 0 else block for i in range(layers)]

    return ffns


def minimax(keys: Keys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer has experts; full attention and one norm over all heads are what the keys must say."""
    for key, wanted in {"qk_norm_type": "per_layer", "use_qk_norm": True, "attn_type_list": [1] * layers}.items():
        keys.fixed(key, wanted, "another kind of attention")
    # Multi-token prediction layers are left out.
    keys.known |= {"use_mtp", "mtp_transformer_layers", "num_mtp_modules"}
    return all_routed("num_local_experts", bias=keys.flag("use_routing_bias"))(keys, layers, block)


TOP_K = frozenset({"noaux_tc", "greedy", "group_limited_greedy"})
_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}
_GEMMA3 = {
    **{"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "max_position_embeddings": 131_072,
}
_DEEPSEEK = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_NO_BIAS = {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}
_QWEN = {
    "defaults": {"num_key_value_heads": 32, "sliding_window": 4096},
    "window": window_if_used(lambda i, first: i >= first),
}
_GEMMA = {"tied": True, "scaled_embedding": True}
_MLA = {"latent": True, "defaults": _DEEPSEEK, "window": no_window, "fixed": {"mlp_bias": False}}

FAMILIES = {
    "llama": ModelFamily(no_window, dense, mlp_bias="mlp_bias"),
    "mistral": ModelFamily(
        window_everywhere, dense, {"num_key_value_heads": 8, "sliding_window": 4096}, _NO_BIAS, False, False
    ),
    "mixtral": ModelFamily(
        window_everywhere, all_routed("num_local_experts"), {"num_key_value_heads": 8}, _NO_BIAS, False, False
    ),
    "qwen2": ModelFamily(**_QWEN, ffn=dense, qkv_bias=True, out_bias=False),
    "qwen2_moe": ModelFamily(
        window_if_used(lambda i, first: i % 2 == 0 and i < first),
        sparse_steps(shared=True),
        {"num_key_value_heads": 16, "sliding_window": 4096, "qkv_bias": True},
        qkv_bias="qkv_bias",
        out_bias=False,
    ),
    "qwen3": ModelFamily(**_QWEN, ffn=dense, qk_norm="head"),
    "qwen3_moe": ModelFamily(
        window_if_used(lambda i, first: True),
        sparse_steps(shared=False),
        {"num_key_value_heads": 4, "sliding_window": 4096},
        qk_norm="head",
    ),
    "gpt2": ModelFamily(
        no_window,
        dense,
        fixed={"add_cross_attention": False},
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        stored_fused=True,
        gated=False,
        positions=True,
        norm_bias=True,
        tied=True,
        renamed=_GPT2_NAMES,
    ),
    "gemma": ModelFamily(no_window, dense, {"num_key_value_heads": 16, "head_dim": 256}, **_GEMMA),
    "gemma2": ModelFamily(
        window_every_second,
        dense,
        {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        post_norms=True,
        **_GEMMA,
    ),
    "gemma3_text": ModelFamily(window_but_every_nth, dense, _GEMMA3, post_norms=True, qk_norm="head", **_GEMMA),
    "gpt_oss": ModelFamily(
        window_every_second,
        all_routed("num_local_experts", bias=True),
        {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "attention_bias": True},
        sinks=True,
    ),
    "phi3": ModelFamily(
        window_everywhere,
        dense,
        fixed={**_NO_BIAS, "full_attn_mod": 1, "interpolate_factor": 1},
        qkv_bias=False,
        out_bias=False,
        stored_fused=True,
    ),
    "deepseek_v2": ModelFamily(**_MLA, ffn=deepseek(router_bias=False)),
    "deepseek_v3": ModelFamily(**_MLA, ffn=deepseek(router_bias=True)),
    "kimi_k2": ModelFamily(**_MLA, ffn=deepseek(router_bias=True)),
    "minimax_m2": ModelFamily(no_window, minimax, {"attention_bias": False}, qk_norm="full"),
    "olmoe": ModelFamily(no_window, all_routed("num_experts"), qk_norm="full"),
}


def _bias(keys: Keys, rule: bool | str) -> bool:
    return keys.flag(rule) if isinstance(rule, str) else rule


def _attention(
    keys: Keys, family: ModelFamily, hidden: int, windows: list[int | None]
) -> list[Attention | LatentAttention]:
    heads = keys.integer("num_attention_heads", MAX_HEADS)
    if family.latent:
        rank = keys.integer("q_lora_rank", MAX_WIDTH, None)
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        sizes = [keys.integer(name, MAX_WIDTH) for name in names]
        # Latent attention caches one vector for all heads; these keys do not apply to it.
        keys.known |= {"num_key_value_heads", "head_dim", "qk_head_dim"}
        return [LatentAttention(heads, rank, *sizes, _bias(keys, family.out_bias))] * len(windows)
    kv_heads = keys.integer("num_key_value_heads", MAX_HEADS, heads)
    if heads % kv_heads:
        problem = f"{heads} query heads are not a multiple of {kv_heads} key/value heads"
        raise keys.error("num_key_value_heads", problem, "correct one of them")
    head_dim = keys.integer("head_dim", MAX_WIDTH, None)
    if head_dim is None:
        if hidden % heads:
            problem = f"hidden_size {hidden} is not divisible by {heads} heads, and there is no head_dim"
            raise keys.error("num_attention_heads", problem, "correct one of them or give head_dim")
        head_dim = hidden // heads
    share = keys.number("partial_rotary_factor", None)
    for key in ("rope_parameters", "rope_scaling"):
        inner = Keys(keys.mapping(key), keys.file, key)
        share = inner.number("partial_rotary_factor", None) if share is None else share
    rotary = keys.integer("rotary_dim", MAX_WIDTH, None)
    if share is None and rotary is not None:
        share = rotary / head_dim
    if share is not None and not 0 <= share <= 1:
        raise keys.error("partial_rotary_factor", f"{share} is not within 0 … 1", "correct it")
    of_window = {
        window: Attention(
            heads,
            kv_heads,
            head_dim,
            window,
            _bias(keys, family.qkv_bias),
            _bias(keys, family.out_bias),
            0 if family.positions else int(head_dim * (1 if share is None else share)),
            family.qk_norm,
            family.sinks,
            family.stored_fused,
        )
        for window in set(windows)
    }
    return [of_window[window] for window in windows]


def read_layers(keys: Keys, family: ModelFamily, hidden: int) -> tuple[Layers, ...]:
    """Return the layers of a model, grouped by kind, in the order of their first occurrence."""
    count = keys.integer("num_hidden_layers", MAX_LAYERS)
    windows = family.window(keys, count)
    attentions = _attention(keys, family, hidden, windows)
    keys.choice("hidden_activation" if keys.content.get("hidden_activation") else "hidden_act", ACTIVATIONS, "silu")
    keys.known |= {"hidden_act", "hidden_activation"}
    width = keys.integer("intermediate_size", MAX_WIDTH, 4 * hidden if family.positions else None)
    block = FeedForward(width or 1, family.gated, _bias(keys, family.mlp_bias), family.stored_fused)
    ffns = family.ffn(keys, count, block)
    if width is None and block in ffns:
        raise keys.error("intermediate_size", "it is missing", "use a model's complete config.json")
    kinds: dict[tuple, list[int]] = {}
    for number, kind in enumerate(zip(attentions, ffns, strict=True)):
        kinds.setdefault(kind, []).append(number)
    return tuple(Layers(tuple(numbers), *kind, family.post_norms) for kind, numbers in kinds.items())
