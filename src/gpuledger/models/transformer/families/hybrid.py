"""Architectures of which some layers keep a state or convolve instead of attending, by ``model_type``."""

from gpuledger.models.transformer.families.dense import LATENT
from gpuledger.models.transformer.families.family import ModelFamily
from gpuledger.models.transformer.rules import ffn, moe, recurrent, shared, window
from gpuledger.models.transformer.rules.ffn import dense

_QWEN35 = {"attn_output_gate": True, "full_attention_interval": 4}
_LFM2 = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
_CONVOLUTIONS = {"qk_norm": "head", "attention": recurrent.with_convolutions, "tied": True}
_MAMBA = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}
_BAMBA = {"num_key_value_heads": 8, "partial_rotary_factor": 0.5, **_MAMBA}

_LING = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
#: Checkpoints of mamba_ssm that were converted keep its keys, which say the same sizes again.
_CONVERTED = frozenset({"d_inner", "d_model", "n_layer", "fused_add_norm", "pad_vocab_size_multiple", "rms_norm"})
_PURE = {"fixed": {"use_bias": False}, "defaults": {"conv_kernel": 4}}

HYBRID = {
    "qwen3_5_text": ModelFamily(window.none, dense, _QWEN35, qk_norm="head", attention=recurrent.with_delta),
    "qwen3_5_moe_text": ModelFamily(
        window.none, moe.sparse_steps(shared=True), _QWEN35, qk_norm="head", attention=recurrent.with_delta
    ),
    "qwen3_next": ModelFamily(
        window.none,
        moe.sparse_steps(shared=True),
        {**_QWEN35, "partial_rotary_factor": 0.25},
        qk_norm="head",
        attention=recurrent.with_delta,
    ),
    "qwen4_exp_text": ModelFamily(
        window.none,
        moe.sparse_steps(shared=True),
        {**_QWEN35, "num_key_value_heads": 2, "head_dim": 256},
        qk_norm="head",
        attention=recurrent.qwen4_exp,
        residuals="gated",
    ),
    "lara_mini": ModelFamily(
        window.none,
        moe.sparse_steps(shared=True, gate=False),
        {"full_attention_interval": 4, "num_key_value_heads": 4, "head_dim": 128},
        qk_norm="head",
        attention=recurrent.lara,
        tied=True,
    ),
    "nemotron_h": ModelFamily(
        window.none,
        dense,
        {"norm_eps": 1e-5},
        {"use_bias": False, "mamba_proj_bias": False, "mlp_bias": False, "attention_bias": False},
        gated=False,
        single="hybrid_override_pattern",
        renamed={"mlp_hidden_act": "hidden_act", "attention_head_dim": "head_dim"},
    ),
    "kimi_linear": ModelFamily(
        window.none,
        moe.kimi_linear,
        {"num_expert_group": 1},
        attention=recurrent.kimi_linear,
        residuals="blocks",
        renamed={
            **{"num_experts": "n_routed_experts", "num_experts_per_token": "num_experts_per_tok"},
            "num_shared_experts": "n_shared_experts",
        },
    ),
    # Ling and Ring 2.5 to 3.
    "bailing_hybrid": ModelFamily(
        window.none,
        moe.bailing,
        {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 2, "moe_router_enable_expert_bias": True},
        {"use_bias": False, "use_qkv_bias": False},
        attention=recurrent.bailing_hybrid,
        renamed={
            **_LING,
            "num_experts_per_token": "num_experts_per_tok",
            "model_max_length": "max_position_embeddings",
        },
        neutral=frozenset({"moe_renormalize", "num_expert_group"}),
    ),
    # Ring-linear 2.
    "bailing_moe_linear": ModelFamily(
        window.none,
        moe.bailing,
        fixed={"use_bias": False, "use_qkv_bias": False},
        attention=recurrent.ring_linear,
        renamed=_LING,
    ),
    # GLM-5.3.
    "glm5_next_text": ModelFamily(
        window.none,
        moe.deepseek(router_bias=True),
        {"linear_num_heads": 64, "linear_head_dim": 128, "linear_conv_kernel_dim": 4},
        attention=recurrent.glm5_next,
        residuals="averaged",
    ),
    # Without attention. Codestral Mamba is a Mamba-2.
    "mamba": ModelFamily(
        window.none, ffn.nothing, attention=recurrent.mamba(norm=""), **_PURE, tied=True, neutral=_CONVERTED
    ),
    "falcon_mamba": ModelFamily(
        window.none, ffn.nothing, attention=recurrent.mamba(norm="unweighted"), **_PURE, tied=True
    ),
    "mamba2": ModelFamily(
        window.none,
        ffn.nothing,
        attention=recurrent.mamba2,
        **_PURE,
        renamed={"num_heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "state_size": "ssm_state_size"},
    ),
    "zamba2": ModelFamily(
        window.none,
        ffn.nothing,
        {"hidden_act": "gelu", "mamba_ngroups": 1},
        {"add_bias_linear": False},
        attention=shared.zamba2,
        tied=True,
    ),
    "granitemoehybrid": ModelFamily(window.none, moe.granite, attention=recurrent.granite, scaled_embedding=True),
    "bamba": ModelFamily(
        window.none, dense, _BAMBA, {"attention_bias": False, "mlp_bias": False}, attention=recurrent.bamba
    ),
    "lfm2": ModelFamily(window.none, ffn.dense_lfm2, renamed=_LFM2, **_CONVOLUTIONS),
    "lfm2_moe": ModelFamily(
        window.none,
        moe.lfm2_moe,
        renamed={
            **_LFM2,
            "num_experts": "n_routed_experts",
            "num_local_experts": "n_routed_experts",
            "num_dense_layers": "first_k_dense_replace",
        },
        **_CONVOLUTIONS,
    ),
    "lfm3": ModelFamily(
        window.none, dense, {"use_attention_gate": True}, post_norms="use_sandwich_norm", renamed=_LFM2, **_CONVOLUTIONS
    ),
    "falcon_h1": ModelFamily(
        window.none,
        dense,
        {"num_key_value_heads": 8, "mamba_d_ssm": 1024, **_MAMBA},
        {"attention_bias": False, "mlp_bias": False, "sliding_window": None},
        attention=recurrent.falcon_h1,
        scaled_embedding=True,
    ),
    "jamba": ModelFamily(
        window.none,
        moe.jamba,
        # Without the keys of its layers a file is none of this architecture.
        {"num_key_value_heads": 8},
        {"attention_bias": False},
        attention=recurrent.jamba,
    ),
    # MiniMax-Text-01 and MiniMax-M1.
    **dict.fromkeys(
        ("minimax", "minimax_text_01", "minimax_m1"),
        ModelFamily(
            window.none,
            moe.all_routed("num_local_experts"),
            {"num_key_value_heads": 8},
            {"attention_bias": False},
            attention=recurrent.lightning,
        ),
    ),
    # OLMo Hybrid.
    "olmo_hybrid": ModelFamily(
        window.none, dense, {"full_attention_interval": 4}, qk_norm="full", attention=recurrent.olmo_hybrid
    ),
}
