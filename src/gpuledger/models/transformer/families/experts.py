"""Architectures with a mixture of experts behind attention, by ``model_type``."""

from dataclasses import replace

from gpuledger.models.transformer.families.dense import DENSE, ERNIE, GEMMA, GRANITE_SWA, LATENT, NO_BIAS
from gpuledger.models.transformer.families.family import ModelFamily
from gpuledger.models.transformer.rules import attention, by_layer, cycles, gated, latent, moe, window

_QWEN3_MOE = ModelFamily(
    window.if_used(lambda i, first: True),
    moe.sparse_steps(shared=False),
    {"num_key_value_heads": 4, "sliding_window": 4096},
    {"use_qk_norm": True},
    qk_norm="head",
    renamed={"num_local_experts": "num_experts"},  # transformers 5
)
_GEMMA4 = {
    **{"head_dim": 256, "global_head_dim": 512, "num_key_value_heads": 4, "sliding_window": 512},
    "hidden_activation": "gelu_pytorch_tanh",
}
_STEP_NAMES = {
    **{"moe_num_experts": "num_experts", "moe_top_k": "num_experts_per_tok", "share_expert_dims": "share_expert_dim"},
    **{"n_routed_experts": "num_experts", "num_attention_groups": "num_key_value_heads"},
}
_MLA = {"defaults": LATENT, "window": window.none, "fixed": {"mlp_bias": False}}
_MINIMAX_M3 = ModelFamily(
    window.none, moe.minimax_m3, {"attention_bias": False}, qk_norm="head", attention=by_layer.minimax_m3
)
_STEP = ModelFamily(
    window.every_second,
    moe.step,
    {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 11264},
    {"use_qkv_bias": False},
    qk_norm="head",
    attention=by_layer.step,
    renamed=_STEP_NAMES,
)
_DEEPSEEK_V4 = ModelFamily(
    window.none, moe.deepseek_v4, attention=latent.compressed, residuals="hyper", fixed={"attention_bias": False}
)
_INKLING2 = ModelFamily(
    window.of_inkling,
    moe.all_routed("n_routed_experts", width="moe_intermediate_size", router_bias=True),
    {
        **{"conv_kernel_size": 4, "d_rel": 16, "rel_extent": 1024, "sliding_window": 1024},
        **{"swa_num_attention_heads": 48, "swa_num_key_value_heads": 8, "swa_head_dim": 128},
        **{"num_key_value_heads": 8, "head_dim": 128, "attn_res_block_size": 6},
    },
    qkv_bias=False,
    out_bias=False,
    qk_norm="queries",
    attention=attention.inkling2,
    residuals="unweighted blocks",
    embedding_norm=True,
    out_conv="conv_kernel_size",
    renamed={
        **{"sliding_window_size": "sliding_window", "sconv_kernel_size": "conv_kernel_size"},
        **{"model_max_length": "max_position_embeddings", "n_layers_per_attn_res_block": "attn_res_block_size"},
    },
)
_EXPERTS = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}

WITH_EXPERTS = {
    "mixtral": ModelFamily(
        window.everywhere, moe.all_routed("num_local_experts"), {"num_key_value_heads": 8}, NO_BIAS, False, False
    ),
    "qwen2_moe": ModelFamily(
        window.if_used(lambda i, first: i % 2 == 0 and i < first),
        moe.sparse_steps(shared=True),
        {"num_key_value_heads": 16, "sliding_window": 4096, "qkv_bias": True},
        qkv_bias="qkv_bias",
        out_bias=False,
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "llama4_text": ModelFamily(window.of_chunks, moe.llama4, {"num_key_value_heads": 8}, attention=attention.llama4),
    "gpt_oss": ModelFamily(
        window.every_second,
        moe.all_routed("num_local_experts", bias=True),
        {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "attention_bias": True},
        sinks=True,
    ),
    "deepseek_v2": ModelFamily(**_MLA, ffn=moe.deepseek(router_bias=False), attention=latent.latent),
    # DeepSeekMoE.
    **dict.fromkeys(
        ("deepseek", "deepseek_ocr2_text"),
        ModelFamily(window.none, moe.deepseek(router_bias=False), {"head_dim": None}, {"mlp_bias": False}),
    ),
    "deepseek_v3": ModelFamily(**_MLA, ffn=moe.deepseek(router_bias=True), attention=latent.latent),
    "glm4_moe_lite": ModelFamily(**_MLA, ffn=moe.deepseek(router_bias=True), attention=latent.latent),
    "deepseek_v32": ModelFamily(**_MLA, ffn=moe.deepseek(router_bias=True), attention=latent.sparse_latent),
    "glm_moe_dsa": ModelFamily(**_MLA, ffn=moe.deepseek(router_bias=True), attention=latent.sparse_latent),
    "mistral_large4_text": ModelFamily(
        window.none,
        moe.deepseek(router_bias=False),
        {**LATENT, "q_lora_rank": None},
        attention=latent.sparse_latent,
    ),
    # GLM-4.5: experts as DeepSeek-V3's.
    "glm4_moe": ModelFamily(
        window.none,
        moe.deepseek(router_bias=True),
        {"partial_rotary_factor": 0.5, "num_key_value_heads": 8},
        out_bias=False,
        attention=attention.optional_norm,
    ),
    "cohere2_moe": replace(DENSE["cohere2"], ffn=moe.cohere2_moe),
    "kimi_k2": ModelFamily(**_MLA, ffn=moe.deepseek(router_bias=True), attention=latent.latent),
    "minimax_m2": ModelFamily(window.none, moe.minimax, {"attention_bias": False}, qk_norm="full"),
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_vl_text": _MINIMAX_M3,
    "gemma4_text": ModelFamily(
        window.but_every_nth,
        moe.gemma4,
        _GEMMA4,
        post_norms=True,
        qk_norm="head",
        attention=by_layer.gemma4,
        per_layer="hidden_size_per_layer_input",
        renamed={"top_k_experts": "num_experts_per_tok"},
        **GEMMA,
    ),
    **dict.fromkeys(
        ("mimo_v2", "mimo_v2_flash"),
        ModelFamily(
            window.of_mimo_v2,
            moe.mimo_v2,
            {"head_dim": 192, "v_head_dim": 128, "sliding_window": 128},
            {"hybrid_block_size": None},
            neutral=frozenset({"attention_projection_layout", "moe_router_dtype"}),
            out_bias=False,
            attention=by_layer.mimo_v2,
        ),
    ),
    "step3_text": ModelFamily(
        window.none,
        moe.step,
        {"num_key_value_heads": 1, "use_moe_router_bias": False},
        attention=attention.step3,
        renamed={
            **_STEP_NAMES,
            **{"max_seq_len": "max_position_embeddings", "max_position_embedding": "max_position_embeddings"},
        },
    ),
    "step3p5": _STEP,
    "step3p7": _STEP,
    "deepseek_v4": _DEEPSEEK_V4,
    "deepseek_ref": _DEEPSEEK_V4,
    "dots1": ModelFamily(window.of_last, moe.deepseek(router_bias=True), qk_norm="head"),
    "phimoe": ModelFamily(
        window.everywhere, moe.all_routed("num_local_experts"), norm_bias=True, head_bias="lm_head_bias"
    ),
    **dict.fromkeys(("olmoe", "flex_olmo"), ModelFamily(window.none, moe.all_routed("num_experts"), qk_norm="full")),
    "mistral4": ModelFamily(**_MLA, ffn=moe.deepseek(router_bias=False), attention=latent.latent),
    "solar_open": ModelFamily(
        window.none, moe.deepseek(router_bias=True), {"num_key_value_heads": 8}, attention=attention.optional_norm
    ),
    **dict.fromkeys(
        ("hunyuan_v1_dense", "hunyuan_v1_moe"),
        ModelFamily(window.none, moe.hunyuan, fixed=NO_BIAS, qk_norm="head", attention=attention.hunyuan),
    ),
    **dict.fromkeys(
        ("ernie4_5_moe", "ernie4_5_vl_moe_text"),
        ModelFamily(
            window.none,
            moe.ernie,
            **ERNIE,
            renamed={"moe_num_experts": "n_routed_experts", "moe_k": "num_experts_per_tok"},
            # Of the tokens of images, and of RoPE.
            neutral=frozenset(
                {"freq_allocation", "im_patch_id", "modality_detach", "moe_use_hard_gate", "pixel_hidden_size"}
                | {"moe_multimodal_dispatch_use_allgather", "spatial_conv_size", "temporal_conv_size", "use_rmsnorm"}
                | {"attention_probs_dropout_prob", "hidden_dropout_prob", "max_sequence_length", "moe_gate_act"}
            ),
        ),
    ),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), ModelFamily(window.none, moe.granite, scaled_embedding=True)),
    # Ling and Ring.
    **dict.fromkeys(
        ("bailing_moe", "bailing_moe_v2"),
        ModelFamily(
            window.none,
            moe.bailing,
            qkv_bias="use_qkv_bias",
            out_bias="use_bias",
            attention=attention.optional_norm,
            renamed={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
        ),
    ),
    # K-EXAONE.
    "exaone_moe": ModelFamily(
        window.of_exaone,
        moe.deepseek_with(),
        {"first_k_dense_replace": 1, "n_shared_experts": 1},
        qk_norm="head",
        attention=attention.rope_with_window,
        renamed={**_EXPERTS, "first_last_k_dense_replace": "first_k_dense_replace"},
    ),
    # Hunyuan 3.
    "hy_v3": ModelFamily(
        window.none,
        moe.deepseek_with(
            *("router_scaling_factor", "enable_moe_fp32_combine", "enable_lm_head_fp32"),
            *("moe_router_enable_expert_bias", "moe_router_use_sigmoid", "route_norm"),
        ),
        {"first_k_dense_replace": 1, "n_shared_experts": 1},
        {"qk_norm": True, "mlp_bias": False},
        qk_norm="head",
        renamed=_EXPERTS,
    ),
    "muse_spark_text": ModelFamily(
        window.listed,
        gated.muse_spark,
        qk_norm="unweighted",
        post_norms=True,
        scaled_embedding=True,
        attention=attention.muse_spark,
        scaled_sums=True,
    ),
    "inkling_text": ModelFamily(
        window.of_inkling,
        gated.inkling,
        {
            **{"conv_kernel_size": 4, "d_rel": 16, "rel_extent": 1024, "sliding_window": 512},
            **{"swa_num_attention_heads": 64, "swa_num_key_value_heads": 16, "swa_head_dim": 128},
            **{"num_key_value_heads": 8, "head_dim": 128, "n_shared_experts": 2},
        },
        qkv_bias=False,
        out_bias=False,
        qk_norm="head",
        attention=attention.inkling,
        embedding_norm=True,
        out_conv="conv_kernel_size",
        renamed={
            **{"sliding_window_size": "sliding_window", "sconv_kernel_size": "conv_kernel_size"},
            "model_max_length": "max_position_embeddings",
        },
    ),
    "inkling2_text": _INKLING2,
    # Inkling 2 Mini.
    "inkling2_loop_text": replace(
        _INKLING2,
        defaults=_INKLING2.defaults | {"swa_num_attention_heads": 24, "loop_gate_rank": 64},
        residuals="gated blocks",
        cycle=cycles.of_inkling2,
    ),
    "axk2": ModelFamily(
        window.none,
        moe.deepseek(router_bias=True),
        {**LATENT, "gated_norm_rank": 16},
        attention=latent.axk2,
        norm_gate="gated_norm_rank",
    ),
    "dots3_note_text": ModelFamily(
        window.none,
        gated.dots3,
        {**LATENT, "q_lora_rank": 1024, "n_shared_experts": 1},
        attention=latent.dots3,
    ),
    "beam": ModelFamily(
        window.listed,
        moe.marked(3, router_bias=True),
        qk_norm="head",
        post_norms=True,
        attention=attention.beam,
        renamed={"num_local_experts": "num_experts"},
    ),
    "grok": ModelFamily(
        window.none,
        moe.grok,
        {"hidden_act": "gelu"},
        {"residual_moe": True, "sliding_window_size": -1, "global_attn_every_n": 1},
        post_norms=True,
        scaled_embedding=True,
        neutral=frozenset(
            {"embedding_multiplier_scale", "output_multiplier_scale", "router_logit_softcapping", "scaling_factor"}
            | {"attn_temperature_len", "extrapolation_factor", "attn_factor", "beta_fast", "beta_slow"}
        ),
    ),
    "dbrx": ModelFamily(
        window.none,
        moe.dbrx,
        attention=attention.dbrx,
        renamed={
            **{"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"},
            "max_seq_len": "max_position_embeddings",
        },
    ),
    "aria_text": ModelFamily(
        window.none,
        moe.aria,
        fixed={"mlp_bias": False},
        renamed={"moe_num_experts": "num_local_experts", "moe_topk": "num_experts_per_tok"},
    ),
    # Hunyuan 4.
    "hy_v4": ModelFamily(
        **_MLA, ffn=moe.deepseek(router_bias=True), attention=latent.hunyuan4, residuals="unmixed", out_bias=False
    ),
    "granitemoe_swa": ModelFamily(**GRANITE_SWA, ffn=moe.granite),
    "axk1": ModelFamily(
        window.none, gated.axk1, {**LATENT, "first_k_dense_replace": 1, "n_shared_experts": 1}, attention=latent.latent
    ),
    "sarvam_mla": ModelFamily(
        window.none,
        moe.deepseek_with("moe_router_enable_expert_bias", "q_head_dim"),
        {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 1, "n_shared_experts": 1},
        attention=latent.latent,
        renamed=_EXPERTS,
    ),
    "sarvam_moe": ModelFamily(
        window.none,
        moe.deepseek_with("moe_router_enable_expert_bias"),
        {"head_dim": 64, "num_key_value_heads": 4, "use_qk_norm": True, "first_k_dense_replace": 1},
        out_bias=False,
        attention=attention.optional_norm,
        renamed={**_EXPERTS, "use_qkv_bias": "attention_bias"},
    ),
    # Mellum 2.
    "mellum": ModelFamily(
        window.listed,
        moe.marked(0, router_bias=False),
        {"num_key_value_heads": 4},
        qk_norm="head",
        renamed={"num_local_experts": "num_experts"},
    ),
    "laguna": ModelFamily(window.listed, moe.marked(1, router_bias=True), qk_norm="head", attention=by_layer.laguna),
    "kolibri1": ModelFamily(
        window.listed,
        moe.marked(0, router_bias=True),
        qk_norm="head",
        post_norms=True,
        attention=attention.rope_with_window,
        renamed={"num_local_experts": "num_experts"},
    ),
    "flint": ModelFamily(
        window.listed,
        moe.sparse_steps(shared=True, gate=False),
        {"mlp_only_layers": [0, 1]},
        qk_norm="head",
        sinks=True,
    ),
    # Trinity.
    "afmoe": ModelFamily(
        window.but_every_nth,
        moe.deepseek_with(),
        {"sliding_window_pattern": 4, "first_k_dense_replace": 1, "n_shared_experts": 2},
        qk_norm="head",
        post_norms=True,
        attention=attention.afmoe,
        scaled_embedding=True,
        renamed={
            **_EXPERTS,
            "num_dense_layers": "first_k_dense_replace",
            "global_attn_every_n_layers": "sliding_window_pattern",
        },
    ),
    "longcat_flash": ModelFamily(
        window.none,
        gated.longcat,
        {**LATENT, "zero_expert_num": 256},
        attention=latent.latent,
        pairs=True,
        renamed={
            **{"ffn_hidden_size": "intermediate_size", "expert_ffn_hidden_size": "moe_intermediate_size"},
            "moe_topk": "num_experts_per_tok",
        },
    ),
}
