"""From the keys of a config.json to the layers that keep a state, and to the attention between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.models.transformer.blocks.recurrent import (
    AttentionBesideMamba,
    DeltaAttention,
    LightningAttention,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from gpuledger.models.transformer.blocks.standard import Attention, Block, Indexer
from gpuledger.models.transformer.rules.attention import Windows, grouped_attention
from gpuledger.models.transformer.rules.keys import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH, ConfigKeys
from gpuledger.models.transformer.rules.latent import latent_attention, read_indexer

if TYPE_CHECKING:
    from gpuledger.models.transformer.families.family import ModelFamily


def with_delta(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Gated delta rule in the layers that are listed, full attention with a gate in the others (Qwen3.5)."""
    layers = len(windows)
    interval = keys.integer("full_attention_interval", MAX_LAYERS)
    types = keys.strings("layer_types")
    types = types or [("linear" if (i + 1) % interval else "full") + "_attention" for i in range(layers)]
    if set(types) - {"linear_attention", "full_attention"} or len(types) != layers:
        problem = f"not linear_attention or full_attention for each of {layers} layers"
        raise keys.error("layer_types", problem, "correct it")
    gate = "value" if keys.flag("attn_output_gate") else ""
    full, delta = replace(grouped_attention(keys, family, hidden), gate=gate), _delta(keys)
    return [delta if kind == "linear_attention" else full for kind in types]


def lara(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """As Qwen3.5, with a window in some layers with attention (Lara)."""
    types = keys.strings("layer_types")
    window = keys.integer("sliding_window", MAX_POSITIONS)
    keys.content["layer_types"] = ["full_attention" if kind == "sliding_attention" else kind for kind in types]
    found = with_delta(keys, family, hidden, windows)
    slides = [kind == "sliding_attention" for kind in types] or [False] * len(found)
    return [replace(one, window=window) if slide else one for one, slide in zip(found, slides, strict=True)]


def qwen4_exp(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """As Qwen3.5, with full attention to the blocks of tokens that an indexer selects by their mean (Qwen4-Exp)."""
    names = {"indexed_attention": "full_attention"}
    if types := keys.strings("layer_types"):
        keys.content["layer_types"] = [names.get(kind, kind) for kind in types]
    keys.fixed("indexer_kv_heads", 1, "an indexer with several keys")
    keys.known.add("number_of_conv_states")
    block, selected = keys.integer("indexer_compress_ratio", MAX_WIDTH), keys.integer("indexer_budget", MAX_POSITIONS)
    if selected % block:
        raise keys.error("indexer_budget", f"{selected} is not a multiple of {block}", "correct one of them")
    heads, dim = keys.integer("indexer_n_heads", MAX_HEADS), keys.integer("indexer_head_dim", MAX_WIDTH)
    indexer = Indexer(heads, dim, selected, block=block, pool="mean")
    found = with_delta(keys, family, hidden, windows)
    return [replace(one, indexer=indexer) if isinstance(one, Attention) else one for one in found]


def _delta(keys: ConfigKeys) -> DeltaAttention:
    key_heads, value_heads = (keys.integer(f"linear_num_{part}_heads", MAX_HEADS) for part in ("key", "value"))
    key_dim, value_dim = (keys.integer(f"linear_{part}_head_dim", MAX_WIDTH) for part in ("key", "value"))
    if value_heads % key_heads:
        problem = f"{value_heads} value heads are not a multiple of {key_heads} key heads"
        raise keys.error("linear_num_value_heads", problem, "correct one of them")
    # Multi-token prediction is left out.
    keys.known |= {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}
    if keys.value("output_gate_type", None) is not None:
        keys.choice("output_gate_type", {"swish", "silu", "sigmoid"}, "swish")
    conv = keys.integer("linear_conv_kernel_dim", MAX_WIDTH)
    bits = 32 if keys.choice("mamba_ssm_dtype", {"float32", "bfloat16", "float16"}, "float32") == "float32" else 16
    return DeltaAttention(key_heads, key_dim, value_heads, value_dim, conv, bits)


_FLAT_DELTA = {
    **{"linear_num_heads": "num_heads", "linear_head_dim": "head_dim"},
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}


def _flat_delta(keys: ConfigKeys) -> ConfigKeys:
    """Return the settings of Kimi Delta Attention, which transformers 5 writes beside the other keys."""
    types = keys.strings("layer_types")
    content = {key: keys.content[key] for key in _FLAT_DELTA if key in keys.content}
    if types or content:
        for own, kind in {"kda_layers": "linear_attention", "full_attn_layers": "full_attention"}.items():
            content[own] = [i + 1 for i, name in enumerate(types) if name == kind]
    return ConfigKeys(content, keys.file, "" if content else "linear_attn_config", renamed=_FLAT_DELTA)


def kimi_linear(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Kimi Delta Attention in the layers that are listed, latent attention in the others; numbers are from 1."""
    layers, settings, flat = len(windows), keys.inner("linear_attn_config"), not keys.content.get("linear_attn_config")
    keys.known |= {"layer_types", *_FLAT_DELTA}
    if flat:
        settings = _flat_delta(keys)
    rope = not keys.flag("mla_use_nope", flat)
    full = replace(latent_attention(keys, family), rope=rope, gate="value" * keys.flag("mla_use_output_gate"))
    listed = {}
    for key in ("kda_layers", "full_attn_layers"):
        numbers = settings.value(key)
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise settings.error(key, "not a list of layer numbers", "correct it")
        listed[key] = set(numbers)
    linear, others = listed.values()
    if linear & others or linear | others != set(range(1, layers + 1)):
        raise settings.error("kda_layers", f"with full_attn_layers, not the layers 1 … {layers}", "correct it")
    heads, dim = settings.integer("num_heads", MAX_HEADS), settings.integer("head_dim", MAX_WIDTH)
    conv = settings.integer("short_conv_kernel_size", MAX_WIDTH)
    gate_rank = 0 if settings.flag("use_full_rank_gate") else dim
    delta = DeltaAttention(heads, dim, heads, dim, conv, decay_rank=dim, gate_rank=gate_rank)
    return [delta if i + 1 in linear else full for i in range(layers)]


def bailing_hybrid(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Kimi Delta Attention, and in the last layer of a group latent attention with a gate per head (Ling 3).

    Lightning attention, and latent attention without a gate, where the file names no convolution (Ling 2.5 and 2.6).
    """
    full = latent_attention(keys, family)
    keys.known |= {"partial_rotary_factor", "rotary_dim"}  # that of latent attention has a key of its own
    if not {"short_conv_kernel_size", "linear_conv_kernel_dim"} & keys.content.keys():
        return _with_lightning(keys, full, len(windows))
    linear = _linear_of_groups(keys, len(windows))
    keys.fixed("no_kda_lora", True, "projections of low rank")
    keys.fixed("gated_attention_proj_granularity_type", "head_wise", "another gate")
    keys.known.add("use_qk_norm")  # of queries and keys of the delta rule, always
    full = replace(full, gate="head")
    # transformers 5 writes the part of a head that is rotated as head_dim.
    dim = keys.integer("linear_head_dim", MAX_WIDTH, None) or keys.integer("head_dim", MAX_WIDTH)
    conv = keys.integer("short_conv_kernel_size", MAX_WIDTH)
    keys.fixed("linear_num_heads", full.heads, "differs from num_attention_heads")
    keys.fixed("linear_conv_kernel_dim", conv, "differs from short_conv_kernel_size")
    keys.known |= {"kda_safe_gate", "kda_lower_bound"}
    delta = DeltaAttention(full.heads, dim, full.heads, dim, conv, channel_decays=True)
    return [delta if one else full for one in linear]


def _linear_of_groups(keys: ConfigKeys, layers: int) -> list[bool]:
    """Return which layers have no full attention: all but the last of each group, and those behind whole groups."""
    group, types = keys.integer("layer_group_size", MAX_LAYERS), keys.strings("layer_types")
    linear = [(i + 1) % group != 0 and i < layers // group * group for i in range(layers)]
    if types and types != [("linear" if one else "full") + "_attention" for one in linear]:
        raise keys.error("layer_types", f"differs from layer_group_size {group}", "correct one of them")
    return linear


def _with_lightning(keys: ConfigKeys, full: Block, layers: int) -> list[Block]:
    """Return lightning attention for all layers but the last of each group (Ling 2.5 and 2.6, Ring-linear)."""
    heads, dim = keys.integer("num_attention_heads", MAX_HEADS), keys.integer("head_dim", MAX_WIDTH)
    keys.fixed("linear_silu", False, "an activation besides")
    keys.fixed("linear_rope", True, "no RoPE")
    share = keys.number("partial_rotary_factor", 1.0) or 1.0
    if not 0 <= share <= 1:
        raise keys.error("partial_rotary_factor", f"{share:g} is not within 0 … 1", "correct it")
    grouped = keys.integer("group_norm_size", MAX_HEADS, 1) > 1
    norm = keys.flag("use_qk_norm")
    linear = LightningAttention(heads, dim, rotary_dim=int(dim * share), qk_norm=norm, grouped_norm=grouped)
    return [linear if one else full for one in _linear_of_groups(keys, layers)]


def ring_linear(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Lightning attention, and in the last layer of a group grouped-query attention (Ring-linear 2)."""
    norm = "head" * keys.flag("use_qk_norm")
    return _with_lightning(keys, replace(grouped_attention(keys, family, hidden), qk_norm=norm), len(windows))


def glm5_next(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Kimi Delta Attention in the layers that are listed, sparse latent attention in the others (GLM-5.3)."""
    layers, types = len(windows), keys.strings("layer_types")
    types = types or [("linear" if (i + 1) % 4 else "indexed") + "_attention" for i in range(layers)]
    types = ["indexed_attention" if kind == "full_attention" else kind for kind in types]
    if set(types) - {"linear_attention", "indexed_attention"} or len(types) != layers:
        problem = f"not linear_attention or indexed_attention for each of {layers} layers"
        raise keys.error("layer_types", problem, "correct it")
    block = keys.integer("index_kpool", MAX_POSITIONS, 16)
    indexer = replace(read_indexer(keys), block=block, pool="weighted")
    owners = keys.strings("indexer_types") or ["full"] * layers
    if len(owners) != layers or set(owners) - {"full", "shared"}:
        raise keys.error("indexer_types", f"not full or shared for each of {layers} layers", "correct it")
    if not keys.content.get("indexer_types"):
        keys.fixed("index_topk_freq", 1, "layers share an indexer, but indexer_types does not say which")
    keys.known |= {"index_topk_freq", "index_topk_pattern", "index_skip_topk_offset", "index_kpool_always_select_tail"}
    keys.known |= {"hc_eps", "hc_sinkhorn_iters", "linear_lower_bound"}
    sparse, settings = latent_attention(keys, family), keys.inner("linear_attn_config")
    heads = settings.integer("num_heads", MAX_HEADS, None) or keys.integer("linear_num_heads", MAX_HEADS)
    dim = settings.integer("head_dim", MAX_WIDTH, None) or keys.integer("linear_head_dim", MAX_WIDTH)
    conv = settings.integer("short_conv_kernel_size", MAX_WIDTH, None)
    conv = conv or keys.integer("linear_conv_kernel_dim", MAX_WIDTH)
    delta = DeltaAttention(heads, dim, heads, dim, conv, decay_rank=dim, gate_rank=dim)
    found = [
        delta if kind == "linear_attention" else replace(sparse, indexer=replace(indexer, own=owner == "full"))
        for kind, owner in zip(types, owners, strict=True)
    ]
    if "shared" in owners and not next(one.indexer.own for one in found if one is not delta):
        raise keys.error("indexer_types", "the first layer with sparse attention has no indexer", "correct it")
    return found


#: Granite's names of layers, and those of transformers 5.
_POSITIONS = "position_embedding_type", ("nope", "rope"), "nope"
_GRANITE = {"mamba": True, "linear_attention": True, "attention": False, "full_attention": False}


def granite(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Mamba-2 in the layers that are listed, attention in the others (Granite 4)."""
    full, types = grouped_attention(keys, family, hidden), keys.strings("layer_types")
    if len(types) != len(windows) or set(types) - _GRANITE.keys():
        raise keys.error("layer_types", f"not mamba or attention for each of {len(windows)} layers", "correct it")
    if keys.value("position_embedding_type", None) is None or keys.choice(*_POSITIONS) == "nope":
        full = replace(full, rotary_dim=0)
    return _with_mamba(keys, hidden, full, [_GRANITE[kind] for kind in types])


def bamba(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Attention in the layers whose numbers are listed, Mamba-2 in the others (Bamba)."""
    layers, listed = len(windows), keys.value("attn_layer_indices", None) or []
    if not isinstance(listed, list) or not all(type(i) is int and 0 <= i < layers for i in listed):
        raise keys.error("attn_layer_indices", f"not a list of numbers within 0 … {layers - 1}", "correct it")
    full = grouped_attention(keys, family, hidden)
    keys.fixed("attn_rotary_emb", full.rotary_dim, "differs from partial_rotary_factor")
    # What changes no kernel; Mamba-2 has no rank of the step.
    keys.known |= {"mamba_dt_rank", "num_logits_to_keep", "use_mamba_kernels", "z_loss_coefficient"}
    return _with_mamba(keys, hidden, full, [i not in listed for i in range(layers)])


def _with_mamba(keys: ConfigKeys, hidden: int, full: Attention, recurrent: list[bool]) -> list[Block]:
    """Return Mamba-2 for the layers that are *recurrent*, and *full* for the others."""
    # A step's limits, what changes no kernel, and the sizes of layers that there are none of.
    keys.known |= {"mamba_chunk_size", "mamba_expand", "time_step_limit", "normalization_function", "init_method"}
    keys.known |= {"time_step_min", "time_step_max"}
    if not any(recurrent):
        keys.known |= {key for key in keys.content if key.startswith("mamba_")}
        return [full] * len(recurrent)
    mamba = _mamba(keys, hidden)
    return [mamba if one else full for one in recurrent]


def _mamba(keys: ConfigKeys, hidden: int) -> StateSpace:
    keys.fixed("mamba_proj_bias", False, "projections with a bias")
    heads, dim = keys.integer("mamba_n_heads", MAX_HEADS), keys.content.get("mamba_d_head")
    inner = keys.integer("mamba_d_ssm", MAX_WIDTH, None) or keys.number("mamba_expand", 2) * hidden
    keys.known.add("mamba_d_head")
    dim = int(inner // heads) if dim in (None, "auto") else keys.integer("mamba_d_head", MAX_WIDTH)
    if heads * dim != inner:
        raise keys.error("mamba_n_heads", f"{heads} heads of {dim} are not {inner:g} wide", "correct one of them")
    groups, state = keys.integer("mamba_n_groups", MAX_HEADS), keys.integer("mamba_d_state", MAX_WIDTH)
    if heads % groups:
        raise keys.error("mamba_n_groups", f"{heads} heads are not a multiple of {groups}", "correct one of them")
    conv, bias = keys.integer("mamba_d_conv", MAX_WIDTH), keys.flag("mamba_conv_bias", True)
    # Its state has the type of the activations, unless the file says otherwise.
    kinds = {"float32", "bfloat16", "float16"}
    bits = 32 if keys.choice("mamba_ssm_cache_dtype", kinds, "bfloat16") == "float32" else 16
    return StateSpace(heads, dim, groups, state, conv, bias, bits)


def state_space(keys: ConfigKeys, usual: str = "float32") -> StateSpace:
    """Return Mamba-2 by Nemotron-H's names, with states of the type *usual* if the file does not say."""
    heads, head_dim = keys.integer("mamba_num_heads", MAX_HEADS), keys.integer("mamba_head_dim", MAX_WIDTH)
    groups, state = keys.integer("n_groups", MAX_HEADS), keys.integer("ssm_state_size", MAX_WIDTH)
    if heads % groups:
        raise keys.error("n_groups", f"{heads} heads are not a multiple of {groups} groups", "correct one of them")
    kinds = {"float32", "bfloat16", "float16"}
    bits = 32 if keys.choice("mamba_ssm_cache_dtype", kinds, usual) == "float32" else 16
    conv = keys.integer("conv_kernel", MAX_WIDTH)
    return StateSpace(heads, head_dim, groups, state, conv, keys.flag("use_conv_bias", True), bits)


#: What changes no kernel of Mamba: how weights begin, a step's limits, which implementation runs.
_OF_MAMBA = frozenset(
    {"expand", "rescale_prenorm_residual", "residual_in_fp32", "time_step_rank", "use_mambapy", "use_associative_scan"}
    | {"time_step_scale", "time_step_min", "time_step_max", "time_step_floor", "time_step_init_scheme"}
    | {"time_step_limit", "chunk_size", "mixer_rms_eps", "intermediate_size"}
)


def mamba(norm: str) -> Callable[..., list[Block]]:
    """Every layer is one of Mamba-1, with or without norms inside."""

    def attentions(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
        keys.known |= _OF_MAMBA
        width = keys.integer("intermediate_size", MAX_WIDTH, None) or keys.integer("expand", MAX_HEADS, 2) * hidden
        given = keys.content.get("time_step_rank", "auto")
        rank = -(-hidden // 16) if given == "auto" else keys.integer("time_step_rank", MAX_WIDTH)
        conv, bias = keys.integer("conv_kernel", MAX_WIDTH), keys.flag("use_conv_bias", True)
        scan = SelectiveScan(width, keys.integer("state_size", MAX_WIDTH), rank, conv, bias, norm=norm)
        return [scan] * len(windows)

    return attentions


def mamba2(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Every layer is one of Mamba-2, whose state has the type of the activations as in vLLM."""
    keys.known |= _OF_MAMBA
    return [state_space(keys, "bfloat16")] * len(windows)


def falcon_h1(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Attention and Mamba-2 side by side in every layer (Falcon-H1)."""
    full = grouped_attention(keys, family, hidden)
    keys.fixed("attn_layer_indices", None, "layers without attention")
    keys.fixed("mamba_use_mlp", True, "layers without a feed-forward block")
    keys.fixed("projectors_bias", False, "projections with a bias")
    # Scales; the order of norm and gate; what changes no kernel; the same sizes once more.
    keys.known |= {key for key in keys.content if key.endswith(("_multiplier", "_multipliers"))}
    keys.known |= {"mamba_chunk_size", "mamba_expand", "mamba_norm_before_gate", "num_logits_to_keep"}
    keys.known |= {"time_step_limit", "expansion_factor", "mlp_expansion_factor"}
    mamba = replace(_mamba(keys, hidden), norm=keys.flag("mamba_rms_norm"), scaled=True)
    return [AttentionBesideMamba(full, mamba)] * len(windows)


def jamba(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Attention without RoPE in one layer of a period, Mamba-1 in the others (Jamba)."""
    period = keys.integer("attn_layer_period", MAX_LAYERS)
    offset = keys.integer("attn_layer_offset", period - 1, low=0)
    full = replace(grouped_attention(keys, family, hidden), rotary_dim=0)
    keys.fixed("mamba_proj_bias", False, "projections with a bias")
    keys.fixed("mamba_inner_layernorms", True, "Mamba-1 without norms")
    keys.fixed("sliding_window", None, "attention with a window")
    # Which implementation runs.
    keys.known |= {"use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep"}
    keys.known |= {"calc_logits_for_entire_prompt", "mamba_dt_rank"}
    given = keys.content.get("mamba_dt_rank", "auto")
    rank = -(-hidden // 16) if given == "auto" else keys.integer("mamba_dt_rank", MAX_WIDTH)
    width, state = keys.integer("mamba_expand", MAX_HEADS) * hidden, keys.integer("mamba_d_state", MAX_WIDTH)
    scan = SelectiveScan(
        width, state, rank, keys.integer("mamba_d_conv", MAX_WIDTH), keys.flag("mamba_conv_bias", True)
    )
    return [full if i % period == offset else scan for i in range(len(windows))]


def lightning(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Lightning attention but in the layers that are listed as full (MiniMax-Text-01)."""
    full, types, layers = grouped_attention(keys, family, hidden), keys.strings("layer_types"), len(windows)
    if types and (len(types) != layers or set(types) - {"linear_attention", "full_attention"}):
        problem = f"not linear_attention or full_attention for each of {layers} layers"
        raise keys.error("layer_types", problem, "correct it")
    listed = [kind == "full_attention" for kind in types] if types else keys.flags("attn_type_list", layers)
    if listed is None:
        raise keys.error("attn_type_list", "it is missing", "use a model's complete config.json")
    # Scales of the two summands of a residual; a norm's output may be one of them, so that a fused norm would write one
    # stream less than is counted. Tokens of a chunk.
    keys.known |= {key for key in keys.content if key.endswith(("_alpha", "_beta", "_alpha_factor", "_beta_factor"))}
    keys.known |= {"postnorm", "shared_moe_mode", "block_size"}
    keys.fixed("shared_intermediate_size", 0, "shared experts")
    keys.fixed("sliding_window", None, "attention with a window")
    linear = LightningAttention(full.heads, full.head_dim)
    return [full if one else linear for one in listed]


def olmo_hybrid(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Gated delta rule in three of four layers, attention in the others (OLMo Hybrid)."""
    # Where the parameters of the decays start; a range of the step.
    keys.known |= {"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"}
    keys.known |= {"linear_allow_neg_eigval"}
    layers = with_delta(keys, family, hidden, windows)
    turned = keys.content.get("rope_theta") or keys.inner("rope_parameters").number("rope_theta", None)
    return [replace(one, rotary_dim=0) if isinstance(one, Attention) and not turned else one for one in layers]


_CONVOLUTIONS = {"conv", "full_attention", "sliding_attention"}


def with_convolutions(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Short convolutions in the layers that are listed, attention in the others (LFM2)."""
    layers, types = len(windows), keys.strings("layer_types")
    listed = keys.value("full_attn_idxs", None)
    if not types and isinstance(listed, list):
        types = ["full_attention" if i in listed else "conv" for i in range(layers)]
    if len(types) != layers or set(types) - _CONVOLUTIONS:
        problem = f"not {', '.join(sorted(_CONVOLUTIONS))} for each of {layers} layers"
        raise keys.error("layer_types", problem, "correct it")
    for key in ("block_dim", "conv_dim", "conv_dim_out"):
        keys.fixed(key, hidden, "differs from hidden_size")
    # The same once more; how weights begin; what changes no kernel.
    keys.known |= {"num_heads", "use_pos_enc"} | {key for key in keys.content if key.endswith(("_init", "_init_scale"))}
    full = replace(grouped_attention(keys, family, hidden), gate="head" * keys.flag("use_attention_gate"))
    kinds: dict[str, Block] = {"full_attention": full}
    share = keys.inner("rope_parameters").inner("full_attention").number("partial_rotary_factor", None)
    if share is not None:
        kinds["full_attention"] = replace(full, rotary_dim=int(full.head_dim * min(max(share, 0.0), 1.0)))
    if "sliding_attention" in types:
        kinds["sliding_attention"] = replace(full, window=keys.integer("sliding_window", MAX_POSITIONS))
    keys.known.add("sliding_window")
    kinds["conv"] = ShortConvolution(hidden, keys.integer("conv_L_cache", MAX_WIDTH, 3), keys.flag("conv_bias"))
    return [kinds[name] for name in types]
