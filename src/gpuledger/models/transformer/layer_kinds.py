"""From the keys of a config.json to the kinds of its layers."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.models.transformer.blocks import (
    Attention,
    DeltaAttention,
    Experts,
    FeedForward,
    Indexer,
    LatentAttention,
    Nothing,
    StateSpace,
)
from gpuledger.models.transformer.families import (
    ACTIVATIONS,
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_WIDTH,
    ModelFamily,
)
from gpuledger.models.transformer.keys import Keys
from gpuledger.models.transformer.model import Layers


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
        bias = _bias(keys, family.out_bias)
        indexers = _indexers(keys, len(windows)) if family.sparse else [None] * len(windows)
        return [LatentAttention(heads, rank, *sizes, bias, indexer) for indexer in indexers]
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
    gate = keys.flag("attn_output_gate") if family.delta else False
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
            gate,
        )
        for window in set(windows)
    }
    if family.rope_in_windows:
        norm = "unweighted" if keys.flag("use_qk_norm", True) else ""
        of_window = {
            window: replace(one, qk_norm=norm) if window else replace(one, rotary_dim=0)
            for window, one in of_window.items()
        }
    if family.delta:
        delta = _delta(keys)
        return [delta if linear else of_window[None] for linear in _linear_layers(keys, len(windows))]
    return [of_window[window] for window in windows]


def _indexers(keys: Keys, layers: int) -> list[Indexer]:
    heads, dim = keys.integer("index_n_heads", MAX_HEADS), keys.integer("index_head_dim", MAX_WIDTH)
    selected = keys.integer("index_topk", MAX_POSITIONS)
    keys.known |= {"indexer_rope_interleave", "moe_router_dtype"}
    keys.fixed("layer_types", ["deepseek_sparse_attention"] * layers, "another kind of attention")
    keys.fixed("num_experts", keys.integer("n_routed_experts", MAX_EXPERTS), "differs from n_routed_experts")
    types = keys.strings("indexer_types")
    if not types:
        keys.fixed("index_topk_freq", 1, "layers share an indexer, but indexer_types does not say which")
        types = ["full"] * layers
    # What indexer_types follows from; and multi-token prediction, which is left out.
    keys.known |= {"index_topk_freq", "index_topk_pattern", "index_skip_topk_offset", "index_share_for_mtp_iteration"}
    if set(types) - {"full", "shared"} or len(types) != layers or types[0] != "full":
        raise keys.error("indexer_types", f"not full or shared for each of {layers} layers", "correct it")
    return [Indexer(heads, dim, selected, kind == "full") for kind in types]


def _linear_layers(keys: Keys, layers: int) -> list[bool]:
    """Return which layers have linear attention."""
    interval = keys.integer("full_attention_interval", MAX_LAYERS)
    types = keys.strings("layer_types")
    types = types or [("linear" if (i + 1) % interval else "full") + "_attention" for i in range(layers)]
    if set(types) - {"linear_attention", "full_attention"} or len(types) != layers:
        problem = f"not linear_attention or full_attention for each of {layers} layers"
        raise keys.error("layer_types", problem, "correct it")
    return [kind == "linear_attention" for kind in types]


def _delta(keys: Keys) -> DeltaAttention:
    key_heads, value_heads = (keys.integer(f"linear_num_{part}_heads", MAX_HEADS) for part in ("key", "value"))
    key_dim, value_dim = (keys.integer(f"linear_{part}_head_dim", MAX_WIDTH) for part in ("key", "value"))
    if value_heads % key_heads:
        problem = f"{value_heads} value heads are not a multiple of {key_heads} key heads"
        raise keys.error("linear_num_value_heads", problem, "correct one of them")
    # Multi-token prediction is left out.
    keys.known |= {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}
    keys.fixed("output_gate_type", "swish", "another gate")
    conv = keys.integer("linear_conv_kernel_dim", MAX_WIDTH)
    bits = 32 if keys.choice("mamba_ssm_dtype", {"float32", "bfloat16", "float16"}, "float32") == "float32" else 16
    return DeltaAttention(key_heads, key_dim, value_heads, value_dim, conv, bits)


def read_layers(keys: Keys, family: ModelFamily, hidden: int) -> tuple[Layers, ...]:
    """Return the layers of a model, grouped by kind, in the order of their first occurrence."""
    if family.single:
        return _single_blocks(keys, family, hidden)
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


_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def _single_blocks(keys: Keys, family: ModelFamily, hidden: int) -> tuple[Layers, ...]:
    """Return the layers of Nemotron-H, each of which has one block."""
    names = keys.strings("layers_block_type")
    if not names:
        pattern = keys.value("hybrid_override_pattern")
        names = [_BLOCKS.get(sign, sign) for sign in pattern] if isinstance(pattern, str) else []
    if not names or set(names) - set(_BLOCKS.values()):
        key = "hybrid_override_pattern" if "hybrid_override_pattern" in keys.known else "layers_block_type"
        raise keys.error(key, "not a sequence of mamba, attention, moe and mlp", "correct it")
    keys.fixed("num_hidden_layers", len(names), f"{len(names)} blocks are listed")
    keys.choice("hidden_act", ACTIVATIONS, "relu2")
    # What changes no kernel; multi-token prediction is left out; a step's limits; no rotary embedding is applied.
    keys.known |= {"chunk_size", "expand", "mamba_hidden_act", "num_logits_to_keep", "rescale_prenorm_residual"}
    keys.known |= {"residual_in_fp32", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min"}
    keys.known |= {"time_step_rank", "use_mamba_kernels", "mtp_hybrid_override_pattern", "mtp_layers_block_type"}
    keys.known |= {"moe_shared_expert_overlap", "partial_rotary_factor", "intermediate_size", "sliding_window"}
    makers = {"mamba": _state_space, "attention": _plain_attention, "moe": _latent_experts, "mlp": _plain_ffn}
    blocks = {name: makers[name](keys) for name in dict.fromkeys(names)}
    found = []
    for name, block in blocks.items():
        numbers = tuple(i for i, other in enumerate(names) if other == name)
        pair = (block, Nothing()) if name in ("mamba", "attention") else (Nothing(), block)
        found.append(Layers(numbers, *pair))
    return tuple(found)


def _state_space(keys: Keys) -> StateSpace:
    heads, head_dim = keys.integer("mamba_num_heads", MAX_HEADS), keys.integer("mamba_head_dim", MAX_WIDTH)
    groups, state = keys.integer("n_groups", MAX_HEADS), keys.integer("ssm_state_size", MAX_WIDTH)
    if heads % groups:
        raise keys.error("n_groups", f"{heads} heads are not a multiple of {groups} groups", "correct one of them")
    kinds = {"float32", "bfloat16", "float16"}
    bits = 32 if keys.choice("mamba_ssm_cache_dtype", kinds, "float32") == "float32" else 16
    conv = keys.integer("conv_kernel", MAX_WIDTH)
    return StateSpace(heads, head_dim, groups, state, conv, keys.flag("use_conv_bias", True), bits)


def _plain_attention(keys: Keys) -> Attention:
    heads = keys.integer("num_attention_heads", MAX_HEADS)
    return Attention(heads, keys.integer("num_key_value_heads", MAX_HEADS), keys.integer("head_dim", MAX_WIDTH))


def _plain_ffn(keys: Keys) -> FeedForward:
    return FeedForward(keys.integer("intermediate_size", MAX_WIDTH), gated=False)


def _latent_experts(keys: Keys) -> Experts:
    count, active = keys.integer("n_routed_experts", MAX_EXPERTS), keys.integer("num_experts_per_tok", MAX_EXPERTS)
    if active > count:
        raise keys.error("num_experts_per_tok", f"a token uses {active} of {count} experts", "correct one of them")
    shared = keys.integer("n_shared_experts", MAX_EXPERTS, 0, low=0)
    width = keys.integer("moe_shared_expert_intermediate_size", MAX_WIDTH) if shared else 0
    keys.fixed("n_shared_experts", 1, "several shared experts")
    return Experts(
        count,
        active,
        FeedForward(keys.integer("moe_intermediate_size", MAX_WIDTH), gated=False),
        FeedForward(width, gated=False) if shared else None,
        router_bias=True,
        latent=keys.integer("moe_latent_size", MAX_WIDTH, None) or 0,
    )
