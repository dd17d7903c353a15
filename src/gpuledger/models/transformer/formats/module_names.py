"""The names of a layer's modules, as checkpoints have them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from gpuledger.models.transformer.blocks.latent import CompressedAttention, LatentAttention
from gpuledger.models.transformer.blocks.recurrent import (
    DeltaAttention,
    LightningAttention,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from gpuledger.models.transformer.blocks.shared import SharedBlock
from gpuledger.models.transformer.blocks.standard import Attention, Experts, FeedForward, Linear
from gpuledger.models.transformer.model import Layers


@dataclass(frozen=True)
class Module:
    """A weight matrix and its names within a layer."""

    #: As those of :class:`gpuledger.models.transformer.blocks.standard.Linear`.
    kernel: str
    part: str
    #: Of each of the modules that it is stored as, such as one per expert, the names that checkpoints give it.
    names: tuple[tuple[str, ...], ...]


_INDEXER = {
    **{"index_q_proj": "indexer.wq_b", "index_k_proj": "indexer.wk", "index_weights_proj": "indexer.weights_proj"},
    "index_compress_proj": "indexer.index_kpool_compress_gate",
}
#: What attention is called, and its parts where they are not called as here; a space between two modules of one part.
_ATTENTION = {
    Attention: (
        "self_attn",
        {"out_proj": "o_proj", "attn_gate_proj": "g_proj", "relative_proj": "r_proj"},
    ),
    LatentAttention: (
        "self_attn",
        {"kv_a_proj": "kv_a_proj_with_mqa", "out_proj": "o_proj", "attn_gate_proj": "g_proj", **_INDEXER},
    ),
    CompressedAttention: (
        "attn",
        {
            **{"q_a_proj": "wq_a", "kv_a_proj": "wkv", "q_b_proj": "wq_b", "out_a_proj": "wo_a", "out_proj": "wo_b"},
            **{"compress_proj.values": "compressor.wkv", "compress_proj.weights": "compressor.wgate"},
            "index_compress_proj.values": "indexer.compressor.wkv",
            "index_compress_proj.weights": "indexer.compressor.wgate",
            **_INDEXER,
        },
    ),
    DeltaAttention: (
        "linear_attn",
        {
            **{"delta_in_proj": "q_proj k_proj", "values": "v_proj", "gate": "g_proj", "out_proj": "o_proj"},
            **{"decay": "a_proj", "beta": "b_proj", "decay_a": "f_a_proj", "decay_b": "f_b_proj"},
            **{"gate_a": "g_a_proj", "gate_b": "g_b_proj"},
        },
    ),
    LightningAttention: ("self_attn", {"attn_gate_proj": "output_gate"}),
    SharedBlock: (
        "shared_transformer",
        {
            **{f"{part}_proj": f"self_attn.{part}_proj" for part in "qkv"},
            **{"out_proj": "self_attn.o_proj", "down_proj": "feed_forward.down_proj"},
            **dict.fromkeys(("gate_proj", "up_proj"), "feed_forward.gate_up_proj"),
        },
    ),
    StateSpace: (
        "mamba",
        {**dict.fromkeys(("gate", "values", "input", "output", "step"), "in_proj"), "ssm_out_proj": "out_proj"},
    ),
    SelectiveScan: (
        "mamba",
        {"values": "in_proj", "gate": "in_proj", "ssm_x_proj": "x_proj", "ssm_step_proj": "dt_proj"},
    ),
    ShortConvolution: ("conv", dict.fromkeys(("input_gate", "output_gate", "values"), "in_proj")),
}
_STREAMS = ("attention", "attn"), ("ffn", "mlp")
#: Names of the other matrices.
_OTHERS = {
    **{"attention": "hc_attn", "ffn": "hc_ffn", "altup_router": "altup.modality_router"},
    **{f"{block}_down": f"{name}_hyper_connection.input_mix_weight_down" for block, name in _STREAMS},
    **{f"{block}_up": f"{name}_hyper_connection.input_mix_weight_up" for block, name in _STREAMS},
    **{f"{block}_add": f"{name}_hyper_connection.block_inject_weight" for block, name in _STREAMS},
    **{"ngram_embedding": "ple.ple_embedding.ngram_embedding", "ngram_keys": "ple.key_proj"},
    "ngram_values": "ple.value_proj",
    **{"attention_gate_down": "input_layernorm.mlp.fc1", "attention_gate_up": "input_layernorm.mlp.fc2"},
    **{"ffn_gate_down": "post_attention_layernorm.mlp.fc1", "ffn_gate_up": "post_attention_layernorm.mlp.fc2"},
    **{"predict": "altup.prediction_coefs", "correct": "altup.correction_coefs"},
    **{"laurel_down_proj": "laurel.linear_left", "laurel_up_proj": "laurel.linear_right"},
    **{"per_layer_gate_proj": "per_layer_input_gate", "per_layer_proj": "per_layer_projection"},
    **{"router": "@.gate", "shared_gate": "@.shared_expert_gate"},
    **{"latent_down_proj": "@.fc1_latent_proj", "latent_up_proj": "@.fc2_latent_proj"},
}

_EXPERTS_W = "experts.#.gate_proj=experts.#.w1 experts.#.up_proj=experts.#.w3 experts.#.down_proj=experts.#.w2"
_W = "gate_proj=w1 up_proj=w3 down_proj=w2"
_QWEN = "shared_experts=shared_expert linear_attn.o_proj=linear_attn.out_proj"
_NEOX = "[qkv]_proj=query_key_value o_proj=dense up_proj=dense_h_to_4h down_proj=dense_4h_to_h"
_GRANITE = (
    "@.experts.#=block_sparse_moe @.gate=block_sparse_moe.router.layer @.shared_experts=shared_mlp "
    "mlp=shared_mlp gate_proj=input_linear up_proj=input_linear down_proj=output_linear"
)
#: What architectures call otherwise, by ``model_type``: parts of names as this module writes them (``#``: an expert's
#: number, ``@``: a feed-forward block with experts) and what to put there; ``|`` between names of which any is used.
_CHANGES = {
    **dict.fromkeys(
        ("gpt2", "gpt-sw3"),
        "self_attn.[qkv]_proj=attn.c_attn self_attn.o_proj=attn.c_proj up_proj=c_fc down_proj=c_proj",
    ),
    "phi3": "[qkv]_proj=qkv_proj",
    "gpt_neo": "self_attn=attn.attention o_proj=out_proj up_proj=c_fc down_proj=c_proj",
    "bloom": f"self_attn=self_attention {_NEOX}",
    "mpt": "self_attn.[qkv]_proj=attn.Wqkv self_attn.o_proj=attn.out_proj mlp=ffn",
    "codegen": "self_attn.[qkv]_proj=attn.qkv_proj self_attn.o_proj=attn.out_proj up_proj=fc_in down_proj=fc_out",
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2"), "mamba=mixer"),
    "phi": "o_proj=dense up_proj=fc1 down_proj=fc2",
    "falcon": f"self_attn=self_attention {_NEOX}",
    "gpt_neox": f"self_attn=attention {_NEOX}",
    "starcoder2": "up_proj=c_fc down_proj=c_proj",
    "exaone": "self_attn=attn.attention o_proj=out_proj gate_proj=c_fc_0 up_proj=c_fc_1 down_proj=c_proj",
    "internlm2": f"self_attn=attention [qkv]_proj=wqkv o_proj=wo mlp=feed_forward {_W}",
    **dict.fromkeys(
        (
            *("mixtral", "phimoe", "minimax", "minimax_text_01", "minimax_m1", "minimax_m2", "minimax_m3"),
            "minimax_m3_vl_text",
        ),
        f"@=block_sparse_moe {_EXPERTS_W}",
    ),
    "kimi_linear": f"linear_attn=self_attn @=block_sparse_moe {_EXPERTS_W}",
    "axk2": "q_b_proj=q_gate_proj",
    "aria_text": "@.gate=@.router",
    "bailing_hybrid": (
        "linear_attn.a_proj=self_attn.f_proj linear_attn=self_attn qkv_proj=query_key_value output_gate=g_proj "
        "out_proj=dense o_proj=o_proj|dense self_attn=self_attn|attention"
    ),
    "bailing_moe_linear": (
        "self_attn=attention ([qkv]|qkv)_proj=query_key_value output_gate=g_proj out_proj=dense o_proj=dense"
    ),
    "mimo_v2": "q_proj=q_proj|qkv_proj k_proj=k_proj|qkv_proj v_proj=v_proj|qkv_proj",
    "baichuan": "[qkv]_proj=W_pack",
    "qwen": ("self_attn.[qkv]_proj=attn.c_attn self_attn.o_proj=attn.c_proj gate_proj=w2 up_proj=w1 down_proj=c_proj"),
    "chatglm": (
        "self_attn=self_attention [qkv]_proj=query_key_value o_proj=dense gate_up_proj=dense_h_to_4h "
        "down_proj=dense_4h_to_h"
    ),
    "dbrx": (
        "self_attn=norm_attn_norm.attn [qkv]_proj=Wqkv o_proj=out_proj @.gate=ffn.router.layer "
        "@.experts.#=ffn.experts.mlp gate_proj=w1 up_proj=v1 down_proj=w2"
    ),
    "glm5_next_text": (
        "linear_attn.f_a_proj=self_attn.forget_gate.f_a_proj linear_attn.f_b_proj=self_attn.forget_gate.f_b_proj "
        "linear_attn=self_attn"
    ),
    "muse_spark_text": "@.fc1_latent_proj=@.pre_expert_proj @.fc2_latent_proj=@.post_expert_proj",
    "qwen2_moe": _QWEN,
    **dict.fromkeys(
        ("qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text", "lara_mini"),
        f"linear_attn.[qkv]_proj=linear_attn.in_proj_qkv linear_attn.g_proj=linear_attn.in_proj_z "
        f"linear_attn.a_proj=linear_attn.in_proj_a linear_attn.b_proj=linear_attn.in_proj_b "
        f"index_[qk]_proj=indexer.index_qk_proj {_QWEN}",
    ),
    "qwen3_next": (
        f"linear_attn.[qkvg]_proj=linear_attn.in_proj_qkvz linear_attn.[ab]_proj=linear_attn.in_proj_ba {_QWEN}"
    ),
    "llama4_text": "@.gate=@.router @=feed_forward mlp=feed_forward shared_experts=shared_expert",
    "gpt_oss": "@.gate=@.router",
    "gemma4_text": "@.experts=experts @.gate=router.proj @.shared_experts=mlp",
    "step3p5": "@.experts.#=moe @.gate=moe.gate @.shared_experts=share_expert",
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), f"@=ffn {_W}"),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), "@.gate=@.gate.wg shared_experts=shared_mlp"),
    "hy_v3": "@.gate=@.router.gate shared_experts=shared_experts|shared_mlp",
    **dict.fromkeys(("granitemoe", "granitemoeshared", "granitemoehybrid", "granitemoe_swa"), _GRANITE),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), "self_attn=attention [qkv]_proj=query_key_value o_proj=dense"),
    "afmoe": "@.gate=@.router.gate",
    # Of a pair of layers, each has attention and a dense block of its own.
    "longcat_flash": "self_attn=self_attn.$ mlp=mlps.$ @.shared_experts=mlps.$ @.gate=@.router.classifier",
    "nemotron_h": "mamba=mixer self_attn=mixer mlp=mixer @=mixer",
    **dict.fromkeys(("bamba", "falcon_h1"), "mlp=feed_forward"),
    "jamba": "mlp=feed_forward @.gate=@.router @=feed_forward",
    **dict.fromkeys(
        ("lfm2", "lfm2_moe", "lfm3"), f"self_attn.o_proj=self_attn.out_proj mlp=feed_forward @=feed_forward {_W}"
    ),
}
_CHANGES["step3p7"] = _CHANGES["step3p5"]
#: Layers here that checkpoints give one number, in place of whose parity names have a ``$``.
_OF_A_NUMBER = {"longcat_flash": 2}
#: Names that engines give to matrices that they join.
_JOINED = (
    "[qkv]_proj=qkv_proj gate_proj=gate_up_proj up_proj=gate_up_proj q_a_proj=fused_qkv_a_proj_with_mqa "
    "kv_a_proj_with_mqa=fused_qkv_a_proj_with_mqa in_proj_qkv=in_proj_qkvz in_proj_z=in_proj_qkvz "
    "in_proj_a=in_proj_ba in_proj_b=in_proj_ba"
)
#: What stands before a layer's number.
_LAYERS = {
    **{
        "gpt2": ("transformer.h.",),
        "gpt-sw3": ("transformer.h.",),
        "falcon": ("transformer.h.",),
        "exaone": ("transformer.h.",),
    },
    **{"gpt_neox": ("gpt_neox.layers.",), "nemotron_h": ("backbone.layers.", "model.layers.")},
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), ("layers.", "model.layers.")),
    **{
        "bloom": ("transformer.h.",),
        "gpt_neo": ("transformer.h.",),
        "mpt": ("transformer.blocks.",),
        "codegen": ("transformer.h.",),
        "qwen": ("transformer.h.",),
        "dbrx": ("transformer.blocks.",),
        "chatglm": ("transformer.encoder.layers.",),
    },
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2"), ("backbone.layers.",)),
}


def layer_prefixes(kind: str, nested: bool) -> tuple[str, ...]:
    """Return what names of modules begin with, before a layer's number.

    Parameters
    ----------
    kind : str
        The architecture, a ``model_type``.
    nested : bool
        The file describes other parts beside the text model.
    """
    outer = ("language_model.model.layers.", "model.language_model.layers.", "thinker.model.layers.")
    return (outer if nested else ()) + _LAYERS.get(kind, ("model.layers.",))


def layers_of_a_number(kind: str) -> int:
    """Return how many layers checkpoints of an architecture count as one."""
    return _OF_A_NUMBER.get(kind, 1)


def modules_of(group: Layers, kind: str, joined: bool = False) -> tuple[Module, ...]:
    """Return the modules of a layer with weights.

    Parameters
    ----------
    kind : str
        The architecture, a ``model_type``.
    joined : bool
        Name them as engines do that join matrices with the same input (``qkv_proj``).
    """
    within = group.numbers[0] % layers_of_a_number(kind)
    return tuple(
        Module(linear.kernel, linear.part, _members(names, linear.copies, kind, joined, within))
        for linear, names in _named(group)
    )


@lru_cache(maxsize=64)  # a thousand experts have the same names in every layer
def _members(names: str, copies: int, kind: str, joined: bool, within: int) -> tuple[tuple[str, ...], ...]:
    """Return what each module of a matrix is called: *names* of its copies, as the architecture spells them.

    The layer is that *within* those that share a number (``$``).
    """
    changes = [change.split("=") for change in f"{_CHANGES.get(kind, '')} @=mlp {_JOINED if joined else ''}".split()]
    members: list[tuple[str, ...]] = []
    for name in names.split():
        for old, new in changes:
            name = re.sub(rf"(?<!\w){old}(?!\w)", new, name)
        name = name.replace("$", str(within))
        spelt = [".".join(parts) for parts in product(*(part.split("|") for part in name.split(".")))]
        numbers = range(copies) if "#" in name else (0,)
        members += [tuple([one.replace("#", str(number)) for one in spelt]) for number in numbers]
    return tuple(dict.fromkeys(members))


def _named(group: Layers) -> Iterator[tuple[Linear, str]]:
    """Yield the matrices of a layer and their names, as most architectures have them."""
    for part in group.attention.parts:
        for linear in part.linears(1):
            within, own = _ATTENTION[type(part)]
            within = "cross_attn" if group.idle else within
            names = own.get(f"{linear.kernel}.{linear.part}") or own.get(linear.part, linear.part)
            yield linear, " ".join(f"{within}.{name}" for name in names.split())
    ffn = group.ffn
    for linear in ffn.linears(1):
        part = linear.part.removeprefix("image_")  # experts for images are called as those for text
        prefix = next((prefix for prefix in ("shared_", "expert_") if part.startswith(prefix)), "")
        if part in _OTHERS:
            yield linear, _OTHERS[part]
            continue
        block = {"shared_": ffn.shared, "expert_": ffn.expert}[prefix] if isinstance(ffn, Experts) else ffn
        name = part.removeprefix(prefix)
        if isinstance(block, FeedForward) and block.stored_fused and block.gated and name != "down_proj":
            name = "gate_up_proj"
        yield linear, {"": "mlp.", "shared_": "@.shared_experts.", "expert_": "@.experts.#."}[prefix] + name
    for linear in group.other_linears(1):
        yield linear, _OTHERS[linear.part]
