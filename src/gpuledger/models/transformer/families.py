"""Architectures by ``model_type``: how the keys of a config.json become layers.

Sources: the configuration and model classes of Hugging Face transformers (4.57 and 5.0), which define the defaults of
missing keys, which layers have a window, and where biases and norms are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuledger.models.transformer.blocks import (
    Experts,
    FeedForward,
)
from gpuledger.models.transformer.keys import Keys

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
    sparse : bool
        Latent attention to tokens that an indexer selects.
    delta : bool
        Layers of linear attention among those of full attention.
    rope_in_windows : bool
        Only layers with a window have RoPE, and a norm of queries and keys without weights.
    single : bool
        Layers that have either attention, a state space, or a feed-forward block.
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
    sparse: bool = False
    delta: bool = False
    rope_in_windows: bool = False
    single: bool = False
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


def window_of_chunks(keys: Keys, layers: int) -> list[int | None]:
    """Llama 4: three of four layers attend within chunks, taken as windows of that length, which is an upper bound."""
    chunk = keys.integer("attention_chunk_size", MAX_POSITIONS, 8192)
    local = keys.value("no_rope_layers", None) or [(i + 1) % 4 != 0 for i in range(layers)]
    if not isinstance(local, list) or len(local) != layers or any(value not in (0, 1) for value in local):
        raise keys.error("no_rope_layers", f"not a list of {layers} zeros and ones", "correct it")
    keys.known |= {"use_qk_norm", "attn_temperature_tuning", "attn_scale", "floor_scale", "for_llm_compressor"}
    return [chunk if value else None for value in local]


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
        # Newer files say the same once more, layer by layer.
        types = ["sparse" if i >= first and i % step == 0 else "dense" for i in range(layers)]
        keys.fixed("mlp_layer_types", types, "differs from first_k_dense_replace and moe_layer_freq")
        routed = _routed(keys, "n_routed_experts", "moe_intermediate_size")
        routed = Experts(
            routed.experts,
            routed.active,
            routed.expert,
            FeedForward(shared * width) if shared else None,
            router_bias=router_bias and keys.choice("topk_method", TOP_K, "noaux_tc") == "noaux_tc",
        )
        return [routed if kind == "sparse" else block for kind in types]

    return ffns


def llama4(keys: Keys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every n-th layer has experts beside a shared one, all of the width of ``block``; the others are wider."""
    step = keys.integer("interleave_moe_layer_step", MAX_LAYERS, 1)
    routed = _routed(keys, "num_local_experts", "intermediate_size", shared=block)
    wide = FeedForward(keys.integer("intermediate_size_mlp", MAX_WIDTH))
    sparse = [i for i in range(layers) if (i + 1) % step == 0]
    keys.fixed("moe_layers", sparse, "differs from interleave_moe_layer_step")
    return [routed if i in sparse else wide for i in range(layers)]


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
_QWEN3 = ModelFamily(**_QWEN, ffn=dense, qk_norm="head")
_QWEN3_MOE = ModelFamily(
    window_if_used(lambda i, first: True),
    sparse_steps(shared=False),
    {"num_key_value_heads": 4, "sliding_window": 4096},
    {"use_qk_norm": True},
    qk_norm="head",
)
_QWEN35 = {"attn_output_gate": True, "full_attention_interval": 4}
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
    # MiMo-7B: Qwen2 with multi-token prediction.
    "mimo": ModelFamily(**_QWEN, ffn=dense, fixed={"use_mrope": False}, qkv_bias="attention_bias", out_bias=False),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_5_text": ModelFamily(no_window, dense, _QWEN35, qk_norm="head", delta=True),
    "qwen3_5_moe_text": ModelFamily(no_window, sparse_steps(shared=True), _QWEN35, qk_norm="head", delta=True),
    "llama4_text": ModelFamily(window_of_chunks, llama4, {"num_key_value_heads": 8}, rope_in_windows=True),
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
    "deepseek_v32": ModelFamily(**_MLA, ffn=deepseek(router_bias=True), sparse=True),
    "glm_moe_dsa": ModelFamily(**_MLA, ffn=deepseek(router_bias=True), sparse=True),
    "nemotron_h": ModelFamily(
        no_window,
        dense,
        {"norm_eps": 1e-5},
        {"use_bias": False, "mamba_proj_bias": False, "mlp_bias": False, "attention_bias": False},
        gated=False,
        single=True,
        renamed={"mlp_hidden_act": "hidden_act", "attention_head_dim": "head_dim"},
    ),
    "kimi_k2": ModelFamily(**_MLA, ffn=deepseek(router_bias=True)),
    "minimax_m2": ModelFamily(no_window, minimax, {"attention_bias": False}, qk_norm="full"),
    "olmoe": ModelFamily(no_window, all_routed("num_experts"), qk_norm="full"),
}
