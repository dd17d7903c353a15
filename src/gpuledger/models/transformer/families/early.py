"""Dense architectures of the years before their names and layers became alike, by ``model_type``."""

from dataclasses import replace

from gpuledger.models.transformer.families.family import ModelFamily
from gpuledger.models.transformer.rules import attention, ffn, window
from gpuledger.models.transformer.rules.ffn import dense

_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}
_GPT2 = ModelFamily(
    window.none,
    ffn.dense_or_four_times,
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
)
_OPT = ModelFamily(
    window.none,
    dense,
    {"enable_bias": True, "hidden_act": "relu"},
    {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True},
    **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "enable_bias"),
    gated=False,
    attention=attention.opt,
    positions=True,
    more_positions=2,
    norm_bias=True,
    tied=True,
    renamed={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
)
_FALCON_NAMES = {
    **{"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"},
    **{"num_kv_heads": "num_key_value_heads", "n_head_kv": "num_key_value_heads", "bias": "attention_bias"},
    **{"ffn_hidden_size": "intermediate_size", "activation": "hidden_act"},
}

EARLY = {
    "baichuan": ModelFamily(window.none, dense, attention=attention.baichuan),
    # Qwen, the first.
    "qwen": ModelFamily(
        window.none,
        ffn.halved,
        fixed={"no_bias": True},
        neutral=frozenset(
            {"attn_dropout_prob", "emb_dropout_prob", "bf16", "fp16", "fp32", "softmax_in_fp32", "onnx_safe"}
            | {"use_cache_quantization", "use_cache_kernel", "use_flash_attn", "use_dynamic_ntk", "use_logn_attn"}
            | {"rotary_emb_base", "seq_length"}
        ),
        qkv_bias=True,
        out_bias=False,
        attention=attention.packed,
        renamed={"kv_channels": "head_dim", "rotary_pct": "partial_rotary_factor"},
    ),
    # Also of Fuyu.
    "persimmon": ModelFamily(
        window.none,
        dense,
        {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
        **{"qkv_bias": True, "out_bias": True, "mlp_bias": True, "stored_fused": True, "gated": False},
        norm_bias=True,
        attention=attention.persimmon,
    ),
    # ChatGLM 2 and 3, and GLM-4 as it was published first.
    "chatglm": ModelFamily(
        window.none,
        dense,
        {"partial_rotary_factor": 0.5},
        {
            **{"multi_query_attention": True, "rmsnorm": True, "post_layer_norm": True, "add_bias_linear": False},
            **{"apply_residual_connection_post_layernorm": False, "pre_seq_len": None, "quantization_bit": 0},
        },
        neutral=frozenset(
            {"apply_query_key_layer_scaling", "bias_dropout_fusion", "fp32_residual_connection", "layernorm_epsilon"}
            | {"original_rope", "prefix_projection"}
        ),
        qkv_bias="add_qkv_bias",
        out_bias=False,
        stored_fused=True,
        renamed={
            **{"num_layers": "num_hidden_layers", "padded_vocab_size": "vocab_size", "kv_channels": "head_dim"},
            **{"ffn_hidden_size": "intermediate_size", "multi_query_group_num": "num_key_value_heads"},
            "seq_length": "max_position_embeddings",
        },
    ),
    "gpt2": _GPT2,
    "gpt-sw3": _GPT2,
    "gpt_neo": replace(
        _GPT2,
        window=window.of_gpt_neo,
        qkv_bias=False,
        stored_fused=False,
        attention=attention.biased_by_distance,
        renamed={**_GPT2_NAMES, "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"},
    ),
    "bloom": ModelFamily(
        window.none,
        ffn.dense_or_four_times,
        {"hidden_act": "gelu"},
        {"apply_residual_connection_post_layernorm": False},
        **{"qkv_bias": True, "out_bias": True, "mlp_bias": True, "stored_fused": True, "gated": False},
        **{"norm_bias": True, "tied": True, "embedding_norm": True},
        attention=attention.biased_by_distance,
        renamed={**_GPT2_NAMES, "n_embed": "hidden_size"},
    ),
    "mpt": ModelFamily(
        window.none,
        ffn.mpt,
        {"hidden_act": "gelu"},
        {"no_bias": True},
        stored_fused=True,
        gated=False,
        tied=True,
        attention=attention.mpt,
        renamed={
            **{"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"},
            "max_seq_len": "max_position_embeddings",
        },
    ),
    # StarCoder: one key/value head for all queries.
    "gpt_bigcode": replace(_GPT2, attention=attention.falcon, defaults={"multi_query": True}),
    **dict.fromkeys(
        ("gptj", "codegen"),
        ModelFamily(
            window.none,
            ffn.dense_or_four_times,
            fixed={"rotary": True},
            mlp_bias=True,
            gated=False,
            parallel=1,
            norm_bias=True,
            head_bias=True,
            renamed=_GPT2_NAMES,
        ),
    ),
    "opt": _OPT,
    "biogpt": replace(
        _OPT,
        defaults={"enable_bias": True, "hidden_act": "gelu", "scale_embedding": True},
        fixed={"scale_embedding": True},
        scaled_embedding=True,
        neutral=frozenset({"attention_probs_dropout_prob", "hidden_dropout_prob"}),
    ),
    "falcon": ModelFamily(
        window.none,
        ffn.dense_or_four_times,
        {"multi_query": True, "hidden_act": "gelu", "parallel_attn": True},
        neutral=frozenset({"ff_factor"}),
        mlp_bias="attention_bias",
        stored_fused=True,
        gated=False,
        attention=attention.falcon,
        parallel=1,
        side_by_side="parallel_attn",
        norm_bias=True,
        tied=True,
        renamed=_FALCON_NAMES,
    ),
    # Phi-1 to Phi-2.
    "phi": ModelFamily(
        window.none,
        dense,
        {"hidden_act": "gelu_new"},
        {"qk_layernorm": False},
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True),
        gated=False,
        norm_bias=True,
        head_bias=True,
        parallel=1,
    ),
    # Pythia.
    "gpt_neox": ModelFamily(
        window.none,
        dense,
        {"attention_bias": True, "hidden_act": "gelu", "use_parallel_residual": True},
        mlp_bias=True,
        stored_fused=True,
        gated=False,
        parallel=2,
        side_by_side="use_parallel_residual",
        norm_bias=True,
        renamed={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    ),
}
