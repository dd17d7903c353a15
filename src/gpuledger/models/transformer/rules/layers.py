"""From the keys of a config.json to the kinds of its layers."""

import math
from collections.abc import Iterable
from dataclasses import replace

from gpuledger.models.transformer.blocks.cycle import Cycle
from gpuledger.models.transformer.blocks.ngrams import read_ngrams
from gpuledger.models.transformer.blocks.residuals import (
    AlternatingUpdates,
    BlockResiduals,
    GatedStreams,
    HyperConnections,
    Residuals,
)
from gpuledger.models.transformer.blocks.standard import Attention, Block, Experts, FeedForward, Nothing
from gpuledger.models.transformer.families.family import ModelFamily
from gpuledger.models.transformer.families.known import ACTIVATIONS
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.rules.keys import MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ConfigKeys
from gpuledger.models.transformer.rules.moe import routed_experts
from gpuledger.models.transformer.rules.recurrent import state_space


def read_layers(keys: ConfigKeys, family: ModelFamily, hidden: int) -> tuple[Layers, ...]:
    """Return the layers of a model, grouped by kind, in the order of their first occurrence."""
    if family.single == "hybrid_override_pattern":
        return _group(_single_blocks(keys))
    if family.single:
        return _group(_described_blocks(keys, hidden))
    if family.pairs:
        count = 2 * keys.integer("num_layers", MAX_LAYERS // 2)
        keys.fixed("num_hidden_layers", count, "not two for each of num_layers")
    else:
        count = keys.integer("num_hidden_layers", MAX_LAYERS)
    windows = family.window(keys, count)
    attentions = family.attention(keys, family, hidden, windows)
    name = "hidden_activation" if keys.content.get("hidden_activation") else "hidden_act"
    activation = keys.choice(name, ACTIVATIONS, "silu")
    keys.known |= {"hidden_act", "hidden_activation"}
    width = keys.integer("intermediate_size", MAX_WIDTH, None)
    mlp_bias = keys.flag(family.mlp_bias) if isinstance(family.mlp_bias, str) else family.mlp_bias
    block = FeedForward(width or 1, family.gated, mlp_bias, family.stored_fused, shaped=activation == "xielu")
    ffns = family.ffn(keys, count, block)
    if width is None and block in ffns:
        raise keys.error("intermediate_size", "it is missing", "use a model's complete config.json")
    parallel = _parallel_norms(keys, family)
    side = keys.integer(family.per_layer, MAX_WIDTH, 0, low=0) if family.per_layer else 0
    norms = keys.flag(family.post_norms, True) if isinstance(family.post_norms, str) else family.post_norms
    ngrams = read_ngrams(keys, count) if family.residuals == "gated" else [None] * count
    conv = keys.integer(family.out_conv, MAX_WIDTH) if family.out_conv else 0
    rank = keys.integer(family.norm_gate, MAX_WIDTH) if family.norm_gate else 0
    cycle = family.cycle(keys, count) if family.cycle else None
    more = {"scaled_sums": family.scaled_sums, "out_conv": conv, "norm_gate": rank, "cycle": cycle}
    residuals = _residuals(keys, family)
    return _group(zip(attentions, ffns, ngrams, strict=True), norms, residuals, parallel, side, **more)


def _parallel_norms(keys: ConfigKeys, family: ModelFamily) -> int:
    """Return the norms of layers whose blocks run side by side; 0: they follow each other."""
    if not family.parallel or (family.side_by_side and not keys.flag(family.side_by_side)):
        return 0
    if not keys.flag("new_decoder_architecture"):
        return family.parallel
    return keys.integer("num_ln_in_parallel_attn", 2, 2)  # Falcon-40B: one for each block


#: Hyper-connections of DeepSeek-V4, of Hunyuan 4, and of GLM-5.3.
_HYPER = {"hyper": {}, "unmixed": {"mixes": False}, "averaged": {"weighted_head": False}}


def _residuals(keys: ConfigKeys, family: ModelFamily) -> Residuals | None:
    if family.residuals == "gated":
        return GatedStreams(keys.integer("hc_count", MAX_HEADS, 4), keys.integer("hc_lowrank", MAX_WIDTH, 320))
    if family.residuals in _HYPER:
        return HyperConnections(keys.integer("hc_mult", MAX_HEADS, 4), **_HYPER[family.residuals])
    if family.residuals == "alternating":
        return AlternatingUpdates(
            keys.integer("altup_num_inputs", MAX_HEADS, low=2), keys.integer("laurel_rank", MAX_WIDTH)
        )
    every = keys.integer("attn_res_block_size", MAX_LAYERS, None) if family.residuals else None
    rank = keys.integer("loop_gate_rank", MAX_WIDTH) if family.residuals == "gated blocks" else 0
    rank = rank and keys.inner("loop_config").integer("gate_rank", MAX_WIDTH, rank)
    return BlockResiduals(every, family.residuals == "blocks", rank) if every else None


def _group(
    layers: Iterable[tuple],
    post_norms: bool = False,
    residuals: Residuals | None = None,
    parallel: int = 0,
    per_layer: int = 0,
    cycle: Cycle | None = None,
    **more: bool | int,
) -> tuple[Layers, ...]:
    """Return *layers*, each (attention, feed-forward block) and perhaps its n-grams, by kind."""
    layers, kinds = list(layers), {}
    for number, stored in enumerate(cycle.order(len(layers)) if cycle else range(len(layers))):
        attention, *others = layers[stored]
        again, own = bool(cycle) and cycle.again(number), residuals
        if rank := getattr(residuals, "gate_rank", 0):
            inside = cycle is not None and cycle.start <= stored < cycle.start + cycle.length
            own = replace(residuals, gate_rank=inside * rank)
            attention = replace(attention, own_inputs=attention.own_inputs or again)
        kinds.setdefault((again, own, attention, *others), []).append(number)
    return tuple(
        Layers(tuple(numbers), *kind[:2], post_norms, (), own, per_layer, parallel, *kind[2:], cycle=cycle, **more)
        for (_, own, *kind), numbers in kinds.items()
    )


_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
#: The names of transformers 5.
_BLOCKS |= {"linear_attention": "mamba", "full_attention": "attention"}


def _single_blocks(keys: ConfigKeys) -> list[tuple[Block, Block]]:
    """Return the layers of Nemotron-H, each of which has one block."""
    names = keys.strings("layers_block_type")
    if not names:
        pattern = keys.value("hybrid_override_pattern")
        names = list(pattern) if isinstance(pattern, str) else []
    names = [_BLOCKS.get(name, name) for name in names]
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
    makers = {"mamba": state_space, "attention": _plain_attention, "moe": _latent_experts, "mlp": _plain_ffn}
    blocks = {name: makers[name](keys) for name in dict.fromkeys(names)}
    if "moe" not in blocks:  # transformers 5 writes them all the same
        keys.known |= {"n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"}
        keys.known |= {"moe_latent_size", "moe_shared_expert_intermediate_size"}
    return [
        (blocks[name], Nothing()) if name in ("mamba", "attention") else (Nothing(), blocks[name]) for name in names
    ]


def _described_blocks(keys: ConfigKeys, hidden: int) -> list[tuple[Block, Block]]:
    """Return the layers of Nemotron-NAS, whose blocks differ in size or are left out."""
    count = keys.integer("num_hidden_layers", MAX_LAYERS)
    described = keys.value("block_configs")
    if not isinstance(described, list) or len(described) != count:
        raise keys.error("block_configs", f"not a list of {count} blocks", "correct it")
    heads, bias = keys.integer("num_attention_heads", MAX_HEADS), keys.flag("attention_bias")
    keys.choice("hidden_act", ACTIVATIONS, "silu")
    keys.known |= {"num_key_value_heads", "intermediate_size"}  # null, or those of the model that it began with
    head_dim = keys.integer("head_dim", MAX_WIDTH, None) or hidden // heads
    found: list[tuple[Block, Block]] = []
    for number, block in enumerate(described):
        if not isinstance(block, dict):
            raise keys.error("block_configs", f"block {number} is not an object", "correct it")
        parts = ConfigKeys(block, keys.file, f"block_configs[{number}]")
        attention, ffn = parts.inner("attention"), parts.inner("ffn")
        for part in (attention, ffn):
            part.fixed("replace_with_linear", False, "a block replaced by one matrix")
            part.fixed("sparsify", False, "sparse weights")
        pair: list[Block] = [Nothing(), Nothing()]
        if not attention.flag("no_op"):
            for key in ("num_sink_tokens", "window_length"):
                attention.fixed(key, 0, "attention with a window")
            share = attention.integer("n_heads_in_group", MAX_HEADS)
            if heads % share:
                raise attention.error("n_heads_in_group", f"{heads} heads are not a multiple of {share}", "correct it")
            pair[0] = Attention(heads, heads // share, head_dim, None, bias, bias, head_dim)
        if not ffn.flag("no_op"):
            pair[1] = FeedForward(_described_width(ffn, hidden))
        found.append((pair[0], pair[1]))
    return found


def _described_width(ffn: ConfigKeys, hidden: int) -> int:
    """Return the width of a block: two thirds of a multiple of *hidden*, up to the next multiple of 256."""
    multiple = ffn.number("ffn_mult", None)
    if multiple is None:
        return ffn.integer("intermediate_size", MAX_WIDTH)
    width = 256 * math.ceil(int(2 * multiple * hidden / 3) / 256)
    if not 1 <= width <= MAX_WIDTH:
        raise ffn.error("ffn_mult", f"{multiple:g} gives a width of {width:g}", "correct it")
    return width


def _plain_attention(keys: ConfigKeys) -> Attention:
    heads, kv_heads = keys.integer("num_attention_heads", MAX_HEADS), keys.integer("num_key_value_heads", MAX_HEADS)
    keys.fixed("num_query_groups", kv_heads, "differs from num_key_value_heads")
    return Attention(heads, kv_heads, keys.integer("head_dim", MAX_WIDTH))


def _plain_ffn(keys: ConfigKeys) -> FeedForward:
    return FeedForward(keys.integer("intermediate_size", MAX_WIDTH), gated=False)


def _latent_experts(keys: ConfigKeys) -> Experts:
    shared = keys.integer("n_shared_experts", MAX_EXPERTS, 0, low=0)
    width = keys.integer("moe_shared_expert_intermediate_size", MAX_WIDTH) if shared else 0
    keys.fixed("n_shared_experts", 1, "several shared experts")
    return routed_experts(
        keys,
        "n_routed_experts",
        "moe_intermediate_size",
        gated=False,
        shared=FeedForward(width, gated=False) if shared else None,
        router_bias=True,
        latent=keys.integer("moe_latent_size", MAX_WIDTH, None) or 0,
    )
