"""From the keys of a config.json to attention whose sizes, or whose selection of keys, differ from layer to layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.errors import warn
from gpuledger.models.transformer.blocks.standard import Attention, Block, Indexer
from gpuledger.models.transformer.rules.attention import Windows, divisor, grouped_attention, per_window, rotated
from gpuledger.models.transformer.rules.keys import MAX_HEADS, MAX_POSITIONS, MAX_WIDTH, ConfigKeys

if TYPE_CHECKING:
    from gpuledger.models.transformer.families.family import ModelFamily


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
        rotary_dim=rotated(keys, share, dim),
    )
    return _sharing(keys, per_window(full, windows, sliding), windows)


def gemma3n(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """All layers are alike but for the window; the last ones share keys and values."""
    one = replace(grouped_attention(keys, family, hidden), value_norm=True)
    keys.integer("hidden_size_per_layer_input", MAX_WIDTH)
    keys.fixed("altup_active_idx", 0, "another stream that layers read")
    keys.fixed("altup_correct_scale", True, "no scale of the corrected stream")
    # A limit while training.
    keys.known |= {"altup_coef_clip", "altup_lr_multiplier", "vocab_size_per_layer_input"}
    return _sharing(keys, per_window(one, windows), windows)


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
    return per_window(replace(full, sinks=keys.flag("add_full_attention_sink_bias")), windows, sliding)


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
    found = per_window(full, windows, sliding)
    if not shares:
        return found
    listed = ConfigKeys({str(i): share for i, share in enumerate(shares)}, keys.file, "partial_rotary_factors")
    turned = [rotated(keys, listed.number(str(i), None), one.head_dim) for i, one in enumerate(found)]
    return [replace(one, rotary_dim=dim) for one, dim in zip(found, turned, strict=True)]


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
