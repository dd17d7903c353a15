"""From the keys of a config.json to the attention of every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.errors import warn
from gpuledger.models.transformer.blocks import Attention, Block, Indexer
from gpuledger.models.transformer.keys import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH, ConfigKeys

if TYPE_CHECKING:
    from gpuledger.models.transformer.family import ModelFamily

Windows = list[int | None]


def chosen(keys: ConfigKeys, rule: bool | str) -> bool:
    return keys.flag(rule) if isinstance(rule, str) else rule


def _rotated(keys: ConfigKeys, share: float | None, head_dim: int) -> int:
    if share is not None and not 0 <= share <= 1:
        raise keys.error("partial_rotary_factor", f"{share:g} is not within 0 … 1", "correct it")
    return int(head_dim * (1 if share is None else share))


def grouped_attention(keys: ConfigKeys, family: ModelFamily, hidden: int) -> Attention:
    """Return attention with query heads in groups that share a key/value head, without a window."""
    heads = keys.integer("num_attention_heads", MAX_HEADS)
    kv_heads = divisor(keys, "num_key_value_heads", heads, heads)
    head_dim = keys.integer("head_dim", MAX_WIDTH, None)
    if head_dim is None:
        if hidden % heads:
            problem = f"hidden_size {hidden} is not divisible by {heads} heads, and there is no head_dim"
            raise keys.error("num_attention_heads", problem, "correct one of them or give head_dim")
        head_dim = hidden // heads
    share = keys.number("partial_rotary_factor", None)
    for key in ("rope_parameters", "rope_scaling"):
        inside = keys.inner(key).number("partial_rotary_factor", None)
        share = inside if share is None else share
    rotary = keys.integer("rotary_dim", MAX_WIDTH, None)
    if share is None and rotary is not None:
        share = rotary / head_dim
    return Attention(
        heads,
        kv_heads,
        head_dim,
        qkv_bias=chosen(keys, family.qkv_bias),
        out_bias=chosen(keys, family.out_bias),
        rotary_dim=0 if family.positions else _rotated(keys, share, head_dim),
        qk_norm=family.qk_norm,
        sinks=family.sinks,
        stored_fused=family.stored_fused,
    )


def divisor(keys: ConfigKeys, key: str, heads: int, *default: int) -> int:
    kv_heads = keys.integer(key, MAX_HEADS, *default)
    if heads % kv_heads:
        raise keys.error(key, f"{heads} query heads are not a multiple of {kv_heads}", "correct one of them")
    return kv_heads


def _per_window(one: Attention, windows: Windows, sliding: Attention | None = None) -> list[Block]:
    """Return attention *one* with the windows of the layers; *sliding*, if given, in those that have one."""
    return [replace(sliding or one, window=window) if window else one for window in windows]


def grouped(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    return _per_window(grouped_attention(keys, family, hidden), windows)


def optional_norm(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Queries and keys are normalised per head if ``use_qk_norm`` says so (GLM-4.5)."""
    return _per_window(
        replace(grouped_attention(keys, family, hidden), qk_norm="head" * keys.flag("use_qk_norm")), windows
    )


def smollm3(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Layers that ``no_rope_layers`` marks with 1 have RoPE; without it, all but every fourth."""
    one, layers = grouped_attention(keys, family, hidden), len(windows)
    every = keys.integer("no_rope_layer_interval", MAX_LAYERS, 4)
    rotated = keys.flags("no_rope_layers", layers) or [(i + 1) % every != 0 for i in range(layers)]
    keys.fixed("use_sliding_window", False, "attention with a window")
    keys.known |= {"layer_types", "sliding_window"}
    return [one if turned else replace(one, rotary_dim=0) for turned in rotated]


def llama4(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Only layers with a window have RoPE, and a norm of queries and keys without weights."""
    one = grouped_attention(keys, family, hidden)
    norm = "unweighted" if keys.flag("use_qk_norm", True) else ""
    return _per_window(replace(one, rotary_dim=0), windows, replace(one, qk_norm=norm))


def biased_by_distance(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Without RoPE: a fixed bias per head and distance, or learned positions (BLOOM, MPT, GPT-Neo)."""
    # How attention is computed; tokens that a model was trained with.
    keys.known |= {"slow_but_exact", "masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add", "offset_alibi"}
    keys.known |= {"skip_bias_add_qkv", "seq_length", "attention_layers", "attention_types"}
    return [replace(one, rotary_dim=0) for one in grouped(keys, family, hidden, windows)]


def gemma(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    keys.known.add("use_bidirectional_attention")  # of a prompt's images (PaliGemma)
    return grouped(keys, family, hidden, windows)


def mpt(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    settings = keys.inner("attn_config")
    for key, wanted in {"alibi": True, "qk_ln": False, "attn_type": "multihead_attention", "prefix_lm": False}.items():
        settings.fixed(key, wanted, "another kind of attention")
    keys.known |= {"attn_config", "learned_pos_emb", "emb_pdrop", "init_device", "logit_scale", "embedding_fraction"}
    keys.known |= {"norm_type", "init_config", "tokenizer_name", "verbose", "expansion_ratio"}
    return biased_by_distance(keys, family, hidden, windows)


def bitnet(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    return [replace(one, out_norm="full") for one in grouped(keys, family, hidden, windows)]


def opt(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    keys.fixed("word_embed_proj_dim", hidden, "embeddings of another width")
    return grouped(keys, family, hidden, windows)


def falcon(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """One key/value head for all queries, but in the newer architecture, which says how many."""
    one = grouped_attention(keys, family, hidden)
    single = keys.flag("multi_query") and not keys.flag("new_decoder_architecture")
    return [replace(one, kv_heads=1) if single else one] * len(windows)


def cohere(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Heads may be normalised, each with weights of its own; with windows, only those layers have RoPE."""
    one = replace(grouped_attention(keys, family, hidden), qk_norm="heads" if keys.flag("use_qk_norm") else "")
    keys.known |= {"logit_scale", "use_parallel_block", "use_parallel_embedding", "use_gated_activation"}
    keys.known |= {"use_embedding_sharing", "position_embedding_type", "rotary_pct"}
    # The order of layers with a window, once more.
    keys.known |= {"layer_switch", "order_of_interleaved_layers"}
    if any(windows):
        return _per_window(replace(one, rotary_dim=0), windows, one)
    return _per_window(one, windows)


def compass(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Kinds of layers that ``rope_parameters`` does not name have no RoPE, if it names any (Cohere Compass)."""
    one, turned = grouped_attention(keys, family, hidden), keys.mapping("rope_parameters")
    plain, named = replace(one, rotary_dim=0), {"full_attention", "sliding_attention"} & turned.keys()
    keys.known |= {"logit_scale", "pooling"}
    full, sliding = (
        one if turned.get(kind) or not named else plain for kind in ("full_attention", "sliding_attention")
    )
    return _per_window(full, windows, sliding)


def rope_with_window(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """If some layers have a window, only those have RoPE (EXAONE 4)."""
    one = grouped_attention(keys, family, hidden)
    return _per_window(replace(one, rotary_dim=0), windows, one) if any(windows) else _per_window(one, windows)


def granite_swa(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Layers whose base of the rotation is 0 or null have no RoPE."""
    found, bases = grouped(keys, family, hidden, windows), keys.value("layer_rope_theta", None)
    if bases is None:
        return found
    if not isinstance(bases, list) or len(bases) != len(windows):
        raise keys.error("layer_rope_theta", f"not a base for each of {len(windows)} layers", "correct it")
    return [one if base else replace(one, rotary_dim=0) for one, base in zip(found, bases, strict=True)]


def muse(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """A gate per value scales the output (Muse Glimmer)."""
    keys.known |= {"output_multiplier", "post_norm_eps", "qk_scale_factor"}
    return [replace(one, gate="value") for one in granite_swa(keys, family, hidden, windows)]


def muse_spark(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """As Muse Glimmer, with a norm of the output (Muse Spark)."""
    keys.known.add("residual_gate_temperature")
    return [replace(one, out_norm="head") for one in muse(keys, family, hidden, windows)]


def inkling(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Convolved keys and values, and biases by distance; layers with a window have heads of their own (Inkling)."""
    conv, extent = keys.integer("conv_kernel_size", MAX_WIDTH), keys.integer("rel_extent", MAX_WIDTH)
    dim, window = keys.integer("d_rel", MAX_WIDTH), next(filter(None, windows), None)
    full = replace(grouped_attention(keys, family, hidden), rotary_dim=0, conv=conv, relative=(dim, extent))
    heads = keys.integer("swa_num_attention_heads", MAX_HEADS)
    sliding = replace(
        full,
        heads=heads,
        kv_heads=divisor(keys, "swa_num_key_value_heads", heads),
        head_dim=keys.integer("swa_head_dim", MAX_WIDTH),
        relative=(dim, min(window or 1, MAX_WIDTH)),
    )
    # Scales of logits and of the output; how states are kept; multi-token prediction is left out.
    keys.known |= {"log_scaling_n_floor", "log_scaling_alpha", "logits_mup_width_multiplier", "number_of_conv_states"}
    keys.known |= {"num_mtp_layers", "chain_hidden_post_norm", "mtp_hidden_states_first", "mtp_local_layer_ids"}
    keys.known |= {"unpadded_vocab_size", "rms_norm_eps_moe_gate", "route_scale"}
    return _per_window(full, windows, sliding)


def afmoe(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """A gate per value scales the output; only layers with a window have RoPE (Trinity)."""
    one = replace(grouped_attention(keys, family, hidden), gate="value")
    # Scales and groups of the router's scores; which kernels are used.
    keys.known |= {
        *("route_scale", "route_norm", "score_func", "num_expert_groups", "num_limited_groups", "use_grouped_mm"),
    }
    keys.known |= {"mup_enabled", "load_balance_coeff"}
    return _per_window(replace(one, rotary_dim=0), windows, one)


def beam(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """A gate per value, with a bias per head, scales the output; only layers with a window have RoPE (Beam)."""
    one = replace(grouped_attention(keys, family, hidden), gate="value", gate_bias=True)
    return _per_window(replace(one, rotary_dim=0), windows, one)


def laguna(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Layers differ in query heads; a gate per head or per value scales the output (Laguna)."""
    one, layers = grouped_attention(keys, family, hidden), len(windows)
    counts = keys.value("num_attention_heads_per_layer", None) or [one.heads] * layers
    if not isinstance(counts, list) or len(counts) != layers:
        raise keys.error("num_attention_heads_per_layer", f"not a number for each of {layers} layers", "correct it")
    gating = keys.value("gating", True)
    one = replace(one, gate="" if gating is False else "head" if gating in (True, "per-head") else "value")
    listed = ConfigKeys({str(i): count for i, count in enumerate(counts)}, keys.file, "num_attention_heads_per_layer")
    heads = [listed.integer(str(i), MAX_HEADS) for i in range(layers)]
    if any(count % one.kv_heads for count in heads):
        problem = f"not multiples of {one.kv_heads} key/value heads"
        raise keys.error("num_attention_heads_per_layer", problem, "correct one of them")
    return [replace(one, heads=count, window=window) for count, window in zip(heads, windows, strict=True)]


def hunyuan(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    for key in ("use_cla", "use_mla"):
        keys.fixed(key, False, "another kind of attention")
    keys.fixed("use_qk_norm", True, "no norm of queries and keys")
    # Tokens, the same sizes once more, and parts in front of and behind the model that are not in use.
    keys.known |= {"attention_head_dim", "cla_share_factor", "dense_list", "enable_lm_head_fp32", "norm_type"}
    keys.known |= {"org_vocab_size", "pool_type", "use_rotary_pos_emb", "use_mixed_mlp_moe"}
    keys.known |= {key for key in keys.content if key.endswith(("_id", "_ids"))}
    return grouped(keys, family, hidden, windows)


def gemma4(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Layers without a window have wider and fewer key/value heads, whose keys are the values too."""
    sliding = replace(grouped_attention(keys, family, hidden), value_norm=True)
    dim, fewer = _of_full_layers(keys, sliding, windows)
    shared = keys.flag("attention_k_eq_v")
    share = keys.inner("rope_parameters").inner("full_attention").number("partial_rotary_factor", None)
    full = replace(
        sliding,
        head_dim=dim,
        kv_heads=fewer if shared else sliding.kv_heads,
        shared_value=shared,
        rotary_dim=_rotated(keys, share, dim),
    )
    return _sharing(keys, _per_window(full, windows, sliding), windows)


def gemma3n(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """All layers are alike but for the window; the last ones share keys and values."""
    one = replace(grouped_attention(keys, family, hidden), value_norm=True)
    keys.integer("hidden_size_per_layer_input", MAX_WIDTH)
    keys.fixed("altup_active_idx", 0, "another stream that layers read")
    keys.fixed("altup_correct_scale", True, "no scale of the corrected stream")
    # A limit while training.
    keys.known |= {"altup_coef_clip", "altup_lr_multiplier", "vocab_size_per_layer_input"}
    return _sharing(keys, _per_window(one, windows), windows)


def _sharing(keys: ConfigKeys, every: list[Block], windows: Windows) -> list[Block]:
    """Let the last layers read what the last layer of their kind before them has cached."""
    first = len(windows) - keys.integer("num_kv_shared_layers", len(windows), 0, low=0)
    if first < len(windows) and not {*every[first:]} <= {*every[:first]}:
        raise keys.error("num_kv_shared_layers", "no earlier layer has keys and values to share", "correct it")
    return every[:first] + [replace(one, own_keys=False) for one in every[first:]]


def _of_full_layers(keys: ConfigKeys, one: Attention, windows: Windows) -> tuple[int, int]:
    """Return the width and the number of key/value heads in Gemma 4's layers without a window."""
    described = keys.mapping("per_layer_config")  # as transformers 5.10 writes it, by number of the layer
    if not described:
        dim = keys.integer("global_head_dim", MAX_WIDTH, one.head_dim)
        return dim, divisor(keys, "num_global_key_value_heads", one.heads, one.kv_heads)
    full = [i for i, window in enumerate(windows) if not window]
    same = all(value == next(iter(described.values())) for value in described.values())
    if not same or sorted(key.lstrip("0") or "0" for key in described) != sorted(map(str, full)):
        raise keys.error("per_layer_config", "not the same for the layers without a window alone", "correct it")
    inner = keys.inner("per_layer_config").inner(next(iter(described)))
    dim = inner.integer("head_dim", MAX_WIDTH, one.head_dim)
    fewer = divisor(inner, "num_key_value_heads", one.heads, one.kv_heads)
    if strange := inner.unknown():
        raise inner.error(strange[0], "it differs between layers", "only sizes of heads may")
    return dim, fewer


def mimo_v2(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Layers with a window have more key/value heads, and sinks; values are narrower than keys."""
    full = replace(grouped_attention(keys, family, hidden), value_width=keys.integer("v_head_dim", MAX_WIDTH))
    heads = keys.integer("swa_num_attention_heads", MAX_HEADS, full.heads)
    sliding = replace(
        full,
        heads=heads,
        kv_heads=divisor(keys, "swa_num_key_value_heads", heads, 2 * full.kv_heads),
        head_dim=keys.integer("swa_head_dim", MAX_WIDTH, full.head_dim),
        value_width=keys.integer("swa_v_head_dim", MAX_WIDTH, full.value_dim),
        sinks=keys.flag("add_swa_attention_sink_bias", True),
    )
    # A scale of the values; the length of the window once more.
    keys.known |= {"attention_value_scale", "attention_chunk_size", "swa_rope_theta", "layernorm_epsilon"}
    return _per_window(replace(full, sinks=keys.flag("add_full_attention_sink_bias")), windows, sliding)


def step(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Layers with a window have more query heads; a gate per head scales the output."""
    gate = "head" if keys.flag("use_head_wise_attn_gate", True) else ""
    full = replace(grouped_attention(keys, family, hidden), gate=gate)
    other = keys.inner("attention_other_setting")
    heads = keys.integer("num_sliding_attention_heads", MAX_HEADS, None)
    if heads is None and (heads := other.integer("num_attention_heads", MAX_HEADS, None)) is None:
        heads = _STEP_SLIDING_HEADS if any(windows) else full.heads
        if any(windows):
            done = f"{heads} query heads in layers with a window, as in the published checkpoints"
            warn(keys.file, "key attention_other_setting", "it is missing", done)
    kv_heads = divisor(other, "num_attention_groups", heads, full.kv_heads)
    sliding = replace(full, heads=heads, kv_heads=kv_heads)
    shares = keys.value("partial_rotary_factors", None)
    if shares is not None and not (isinstance(shares, list) and len(shares) >= len(windows)):
        raise keys.error("partial_rotary_factors", "not a list with a number per layer", "correct it")
    keys.known |= {"use_qk_norm", "att_impl_type", "use_rope_layers", "yarn_only_types", "sink", "zero_centered"}
    keys.known |= {"mtp_layer_types", "mtp_mlp_layer_types"}  # multi-token prediction is left out
    # transformers 5.10 says the same once more, layer by layer.
    described = {key.lstrip("0") or "0": value for key, value in keys.mapping("per_layer_config").items()}
    more = {str(i): {"num_attention_heads": heads} for i, window in enumerate(windows) if window}
    if described and described != more:
        raise keys.error("per_layer_config", "differs from num_sliding_attention_heads", "correct one of them")
    found = _per_window(full, windows, sliding)
    if not shares:
        return found
    listed = ConfigKeys({str(i): share for i, share in enumerate(shares)}, keys.file, "partial_rotary_factors")
    rotated = [_rotated(keys, listed.number(str(i), None), one.head_dim) for i, one in enumerate(found)]
    return [replace(one, rotary_dim=dim) for one, dim in zip(found, rotated, strict=True)]


#: Of every published checkpoint of Step-3.5-Flash and 3.7 (Megatron Bridge's Step35ModelProvider describes them).
_STEP_SLIDING_HEADS = 96


def minimax_m3(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """An indexer selects blocks of keys in the layers that are listed."""
    one, layers = grouped_attention(keys, family, hidden), len(windows)
    for key, wanted in {"qk_norm_type": "per_head", "use_qk_norm": True, "attention_output_gate": False}.items():
        keys.fixed(key, wanted, "another kind of attention")
    keys.known.add("use_gemma_norm")
    settings = keys.inner("sparse_attention_config")
    if not settings.content and keys.content.get("layer_types"):
        settings = _flat_selection(keys, layers)
    if not settings.flag("use_sparse_attention"):
        return [one] * layers
    for key, wanted in {"sparse_score_type": "max", "sparse_init_block": 0}.items():
        settings.fixed(key, wanted, "another selection of blocks")
    settings.fixed("sparse_num_index_heads", one.kv_heads, "not one head per key/value head")
    heads, dim = one.kv_heads, settings.integer("sparse_index_dim", MAX_WIDTH)
    block, blocks = settings.integer("sparse_block_size", MAX_WIDTH), settings.integer("sparse_topk_blocks", MAX_WIDTH)
    if block < 2:
        raise settings.error("sparse_block_size", "blocks of one key", "correct it")
    sparse = settings.flags("sparse_attention_freq", layers) or [True] * layers
    no_values = settings.flags("sparse_disable_index_value", layers) or [True] * layers
    if any(one and not none for one, none in zip(sparse, no_values, strict=True)):
        raise settings.error("sparse_disable_index_value", "an indexer with values", "only one without is modelled")
    indexed = replace(one, indexer=Indexer(heads, dim, min(block * blocks, MAX_POSITIONS), block=block))
    return [indexed if chosen else one for chosen in sparse]


_FLAT_SELECTION = {
    **{"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim"},
    **{"index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks"},
}


def _flat_selection(keys: ConfigKeys, layers: int) -> ConfigKeys:
    """Return MiniMax-M3's selection of keys, which transformers 5 writes beside the other keys."""
    types = keys.strings("layer_types")
    if set(types) - {"full_attention", "minimax_m3_sparse"} or len(types) != layers:
        problem = f"not full_attention or minimax_m3_sparse for each of {layers} layers"
        raise keys.error("layer_types", problem, "correct it")
    chosen = [int(kind == "minimax_m3_sparse") for kind in types]
    content = {key: keys.content[key] for key in _FLAT_SELECTION if key in keys.content}
    content |= {"use_sparse_attention": any(chosen), "sparse_attention_freq": chosen}
    keys.known |= {*_FLAT_SELECTION, "index_local_blocks"}
    return ConfigKeys(content, keys.file, keys.inside, renamed=_FLAT_SELECTION)
