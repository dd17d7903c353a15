"""From the keys of a config.json to the attention of every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.errors import warn
from gpuledger.models.transformer.blocks.standard import Attention, Block
from gpuledger.models.transformer.rules.keys import MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ConfigKeys

if TYPE_CHECKING:
    from gpuledger.models.transformer.families.family import ModelFamily

Windows = list[int | None]


def chosen(keys: ConfigKeys, rule: bool | str) -> bool:
    return keys.flag(rule) if isinstance(rule, str) else rule


def rotated(keys: ConfigKeys, share: float | None, head_dim: int) -> int:
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
        rotary_dim=0 if family.positions else rotated(keys, share, head_dim),
        qk_norm=family.qk_norm,
        sinks=family.sinks,
        stored_fused=family.stored_fused,
        clipped=keys.number("clip_qkv", None) is not None,
    )


def divisor(keys: ConfigKeys, key: str, heads: int, *default: int) -> int:
    kv_heads = keys.integer(key, MAX_HEADS, *default)
    if heads % kv_heads:
        raise keys.error(key, f"{heads} query heads are not a multiple of {kv_heads}", "correct one of them")
    return kv_heads


def per_window(one: Attention, windows: Windows, sliding: Attention | None = None) -> list[Block]:
    """Return attention *one* with the windows of the layers; *sliding*, if given, in those that have one."""
    return [replace(sliding or one, window=window) if window else one for window in windows]


def grouped(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    return per_window(grouped_attention(keys, family, hidden), windows)


def optional_norm(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Queries and keys are normalised per head if ``use_qk_norm`` says so (GLM-4.5)."""
    return per_window(
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
    return per_window(replace(one, rotary_dim=0), windows, replace(one, qk_norm=norm))


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


def dbrx(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """The sizes of attention are in an object of their own (DBRX)."""
    settings = keys.inner("attn_config")
    heads = keys.integer("num_attention_heads", MAX_HEADS)
    keys.content |= {
        "num_key_value_heads": divisor(settings, "kv_n_heads", heads),
        "clip_qkv": settings.number("clip_qkv", None),
    }
    if strange := settings.unknown():
        raise settings.error(strange[0], "an unknown key, which may change kernels", "remove it if it changes none")
    return packed(keys, family, hidden, windows)


def bitnet(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    return [replace(one, out_norm="full") for one in grouped(keys, family, hidden, windows)]


def opt(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    keys.fixed("word_embed_proj_dim", hidden, "embeddings of another width")
    return grouped(keys, family, hidden, windows)


def packed(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """The checkpoint stores queries, keys and values as one matrix, but not gates and values (Qwen 1)."""
    return [replace(one, stored_fused=True) for one in grouped(keys, family, hidden, windows)]


def baichuan(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """The models of 7 billion parameters have RoPE, those of 13 a fixed bias per head and distance."""
    keys.known.add("z_loss_weight")
    found = packed(keys, family, hidden, windows)
    return found if hidden == 4096 else [replace(one, rotary_dim=0) for one in found]


def mllama(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """The layers that are listed attend to images alone, with norms of queries and keys (Llama 3.2 Vision)."""
    layers, listed = len(windows), keys.value("cross_attention_layers")
    if not isinstance(listed, list) or not all(type(i) is int and 0 <= i < layers for i in listed):
        raise keys.error("cross_attention_layers", f"not a list of numbers within 0 … {layers - 1}", "correct it")
    one = grouped_attention(keys, family, hidden)
    crossing = replace(one, rotary_dim=0, qk_norm="head", for_images=True)
    return [crossing if i in listed else one for i in range(layers)]


def molmo(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Queries and keys may be normalised, per head or over all heads together (Molmo)."""
    kind = "head" if keys.choice("qk_norm_type", {"qwen3", "olmo"}, "olmo") == "qwen3" else "full"
    norm = kind * (keys.flag("use_qk_norm") or keys.flag("attention_layer_norm"))
    keys.fixed("layer_norm_type", "rms", "another norm")
    keys.fixed("weight_tying", False, "an LM head that is the embedding")
    keys.fixed("embedding_size", keys.integer("vocab_size", MAX_VOCAB), "differs from vocab_size")
    # Norms behind the blocks take the same kernels; which layers' RoPE is scaled.
    keys.known |= {"norm_after", "rope_scaling_layers", "use_position_ids"}
    return [replace(one, qk_norm=norm) for one in grouped(keys, family, hidden, windows)]


def persimmon(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Heads have a LayerNorm with a bias (Persimmon)."""
    norm = keys.flag("qk_layernorm", True)
    return [replace(one, qk_norm="head" * norm, qk_norm_bias=norm) for one in grouped(keys, family, hidden, windows)]


def step3(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Queries are projected from one that is narrower than the token (Step 3)."""
    rank = keys.integer("share_q_dim", MAX_WIDTH)
    return [replace(one, query_rank=rank) for one in grouped(keys, family, hidden, windows)]


def stablelm(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Heads may be normalised, each with weights of its own (StableLM 2 12B)."""
    norm = "heads" * keys.flag("qk_layernorm")
    return [replace(one, qk_norm=norm) for one in grouped(keys, family, hidden, windows)]


def minicpm(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """MiniCPM 4.1 may select blocks of keys, of which engines make no use."""
    if keys.mapping("sparse_config"):
        warn(keys.file, "key sparse_config", "a selection of blocks of keys", "left out, as vLLM does")
    return grouped(keys, family, hidden, windows)


def falcon(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """One key/value head for all queries, but in the newer architecture, which says how many.

    Instead of RoPE there may be a fixed bias per head and distance.
    """
    one = grouped_attention(keys, family, hidden)
    if keys.flag("alibi"):
        one = replace(one, rotary_dim=0)
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
        return per_window(replace(one, rotary_dim=0), windows, one)
    return per_window(one, windows)


def compass(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Kinds of layers that ``rope_parameters`` does not name have no RoPE, if it names any (Cohere Compass)."""
    one, turned = grouped_attention(keys, family, hidden), keys.mapping("rope_parameters")
    plain, named = replace(one, rotary_dim=0), {"full_attention", "sliding_attention"} & turned.keys()
    keys.known |= {"logit_scale", "pooling"}
    full, sliding = (
        one if turned.get(kind) or not named else plain for kind in ("full_attention", "sliding_attention")
    )
    return per_window(full, windows, sliding)


def rope_with_window(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """If some layers have a window, only those have RoPE (EXAONE 4)."""
    one = grouped_attention(keys, family, hidden)
    return per_window(replace(one, rotary_dim=0), windows, one) if any(windows) else per_window(one, windows)


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
    return per_window(full, windows, sliding)


def inkling2(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """As Inkling, with a gate per value and projected sinks; without a window, with three inputs (Inkling 2)."""
    # Limits of vectors and of the experts' activations; how experts are scored.
    keys.known |= {"qk_l2_clip_threshold", "rel_l2_clip_threshold", "mlp_gate_softcap", "mlp_up_softcap"}
    keys.known.add("scoring_func")
    more = {"gate": "value", "projected_sinks": True, "value_norm": True}
    whole = {"own_inputs": True, "own_sums": True}
    found = inkling(keys, family, hidden, windows)
    return [replace(one, **more, **({} if one.window else whole)) for one in found]


def afmoe(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """A gate per value scales the output; only layers with a window have RoPE (Trinity)."""
    one = replace(grouped_attention(keys, family, hidden), gate="value")
    # Scales and groups of the router's scores; which kernels are used.
    keys.known |= {
        *("route_scale", "route_norm", "score_func", "num_expert_groups", "num_limited_groups", "use_grouped_mm"),
    }
    keys.known |= {"mup_enabled", "load_balance_coeff"}
    return per_window(replace(one, rotary_dim=0), windows, one)


def beam(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """A gate per value, with a bias per head, scales the output; only layers with a window have RoPE (Beam)."""
    one = replace(grouped_attention(keys, family, hidden), gate="value", gate_bias=True)
    return per_window(replace(one, rotary_dim=0), windows, one)


def hunyuan(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    for key in ("use_cla", "use_mla"):
        keys.fixed(key, False, "another kind of attention")
    keys.fixed("use_qk_norm", True, "no norm of queries and keys")
    # Tokens, the same sizes once more, and parts in front of and behind the model that are not in use.
    keys.known |= {"attention_head_dim", "cla_share_factor", "dense_list", "enable_lm_head_fp32", "norm_type"}
    keys.known |= {"org_vocab_size", "pool_type", "use_rotary_pos_emb", "use_mixed_mlp_moe"}
    keys.known |= {key for key in keys.content if key.endswith(("_id", "_ids"))}
    return grouped(keys, family, hidden, windows)
