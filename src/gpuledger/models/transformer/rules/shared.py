"""From the keys of a config.json to layers that share a block (Zamba2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.models.transformer.blocks.recurrent import AttentionBesideMamba, StateSpace
from gpuledger.models.transformer.blocks.shared import SharedBlock
from gpuledger.models.transformer.blocks.standard import Block, FeedForward
from gpuledger.models.transformer.rules.attention import Windows, grouped_attention
from gpuledger.models.transformer.rules.keys import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ConfigKeys

if TYPE_CHECKING:
    from gpuledger.models.transformer.families.family import ModelFamily

#: Names of layers, those of transformers 5 included; whether a shared block stands in front.
_ZAMBA2 = {"mamba": False, "linear_attention": False, "hybrid": True}


def zamba2(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Mamba-2, and in the layers that are listed one of a few shared blocks in front, in turn (Zamba2)."""
    layers, types = len(windows), keys.strings("layers_block_type")
    if len(types) != layers or set(types) - _ZAMBA2.keys():
        raise keys.error("layers_block_type", f"not mamba or hybrid for each of {layers} layers", "correct it")
    keys.fixed(
        "hybrid_layer_ids", [i for i, kind in enumerate(types) if _ZAMBA2[kind]], "differs from layers_block_type"
    )
    # The same sizes once more, a step's limits, and what changes no kernel.
    keys.known |= {"kv_channels", "num_query_groups", "ffn_hidden_size", "mamba_expand", "chunk_size", "rope_theta"}
    keys.known |= {"time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "num_logits_to_keep"}
    keys.known |= {"use_long_context", "use_mamba_kernels", "use_mem_eff_path", "head_dim"}
    heads = keys.integer("num_attention_heads", MAX_HEADS)
    keys.fixed("attention_hidden_size", 2 * hidden, "differs from two times hidden_size")
    keys.content["head_dim"] = keys.integer("attention_head_dim", MAX_WIDTH, 2 * hidden // heads)
    attention = grouped_attention(keys, family, hidden)
    if not keys.flag("use_mem_rope"):
        attention = replace(attention, rotary_dim=0)
    width = keys.integer("intermediate_size", MAX_WIDTH, None) or 4 * hidden
    rank, adapted = keys.integer("adapter_rank", MAX_WIDTH, 128), keys.flag("use_shared_attention_adapter")
    block = SharedBlock(attention, FeedForward(width, stored_fused=True), rank, adapted)
    count, mamba = keys.integer("num_mem_blocks", MAX_LAYERS, 1), _mamba(keys, hidden)
    found: list[Block] = []
    for kind in types:
        own = sum(isinstance(one, AttentionBesideMamba) for one in found) < count
        found.append(AttentionBesideMamba(replace(block, own=own), mamba) if _ZAMBA2[kind] else mamba)
    return found


def _mamba(keys: ConfigKeys, hidden: int) -> StateSpace:
    heads = keys.integer("n_mamba_heads", MAX_HEADS)
    inner = keys.integer("mamba_expand", MAX_HEADS, 2) * hidden
    dim = keys.integer("mamba_headdim", MAX_WIDTH, max(inner // heads, 1))
    groups, state = keys.integer("mamba_ngroups", MAX_HEADS), keys.integer("mamba_d_state", MAX_WIDTH)
    if heads * dim != inner or heads % groups:
        problem = f"{heads} heads of {dim} in {groups} groups are not {inner} wide"
        raise keys.error("n_mamba_heads", problem, "correct one of them")
    keys.fixed("use_conv_bias", True, "a convolution without a bias")
    # Its state has the type of the activations, as in vLLM.
    return StateSpace(heads, dim, groups, state, keys.integer("mamba_d_conv", MAX_WIDTH), True, 16)
