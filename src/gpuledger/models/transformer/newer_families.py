"""Architectures since the end of 2025 by ``model_type``, most of them an existing one with other names and defaults.

Sources: the configuration and model classes of Hugging Face transformers (5.24), with which every count of parameters
in the tests was made.
"""

from gpuledger.models.transformer import attention_rules as attention
from gpuledger.models.transformer import feed_forward_rules as ffn
from gpuledger.models.transformer import recurrent_rules as recurrent
from gpuledger.models.transformer.family import ModelFamily
from gpuledger.models.transformer.feed_forward_rules import dense
from gpuledger.models.transformer.window_rules import (
    no_window,
    window_but_every_nth,
    window_every_second,
    window_listed,
    window_of_exaone,
)

_DEEPSEEK = {
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    "q_lora_rank": 1536,
}
_EXPERTS = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
_LLAMA_WITH_BIAS = ModelFamily(no_window, dense, qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias")
_GRANITE_SWA = {"window": window_listed, "attention": attention.granite_swa, "sinks": True}
_GRANITE_SWA["scaled_embedding"] = True
_LFM2 = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
_CONVOLUTIONS = {"qk_norm": "head", "attention": recurrent.with_convolutions, "tied": True}
_MAMBA = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}

#: Architectures that are refused, and what of their layers is not modelled.
NOT_MODELLED = {
    "phi4flash": "Mamba-1, and layers that share a cache",
    "zamba": "Mamba-1, and a block that several layers share",
    "zamba2": "a block that several layers share, with adapters of their own",
}

NEWER = {
    "iquestcoder": ModelFamily(
        no_window,
        dense,
        {"num_key_value_heads": 8, "head_dim": 128},
        {"use_sliding_window": False, "clip_qkv": None},
        mlp_bias="mlp_bias",
    ),
    "exaone": ModelFamily(
        no_window,
        dense,
        {"num_key_value_heads": 8},
        renamed={"num_layers": "num_hidden_layers", "activation_function": "hidden_act"},
    ),
    # K-EXAONE.
    "exaone_moe": ModelFamily(
        window_of_exaone,
        ffn.deepseek_with(),
        {"first_k_dense_replace": 1, "n_shared_experts": 1},
        qk_norm="head",
        attention=attention.rope_with_window,
        renamed={**_EXPERTS, "first_last_k_dense_replace": "first_k_dense_replace"},
    ),
    # Hunyuan 3.
    "hy_v3": ModelFamily(
        no_window,
        ffn.deepseek_with(
            *("router_scaling_factor", "enable_moe_fp32_combine", "enable_lm_head_fp32"),
            *("moe_router_enable_expert_bias", "moe_router_use_sigmoid", "route_norm"),
        ),
        {"first_k_dense_replace": 1, "n_shared_experts": 1},
        {"qk_norm": True, "mlp_bias": False},
        qk_norm="head",
        renamed=_EXPERTS,
    ),
    "hyperclovax": ModelFamily(
        no_window, dense, mlp_bias="mlp_bias", post_norms="use_post_norm", scaled_embedding=True
    ),
    "internlm3": _LLAMA_WITH_BIAS,
    "jais2": ModelFamily(
        no_window,
        dense,
        {"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True},
        mlp_bias="mlp_bias",
        gated=False,
        norm_bias=True,
    ),
    "vaultgemma": ModelFamily(
        window_every_second,
        dense,
        {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        tied=True,
        scaled_embedding=True,
    ),
    "granite_swa": ModelFamily(**_GRANITE_SWA, ffn=dense, mlp_bias="mlp_bias", tied=True),
    "granitemoe_swa": ModelFamily(**_GRANITE_SWA, ffn=ffn.granite),
    # Youtu-LLM and MiniCPM3: dense layers behind latent attention.
    "youtu": ModelFamily(no_window, dense, _DEEPSEEK, attention=attention.latent, tied=True),
    "minicpm3": ModelFamily(
        no_window,
        dense,
        {**_DEEPSEEK, "q_lora_rank": 768, "kv_lora_rank": 256},
        attention=attention.latent,
        tied=True,
        scaled_embedding=True,
    ),
    "axk1": ModelFamily(
        no_window,
        ffn.axk1,
        {**_DEEPSEEK, "first_k_dense_replace": 1, "n_shared_experts": 1},
        attention=attention.latent,
    ),
    "sarvam_mla": ModelFamily(
        no_window,
        ffn.deepseek_with("moe_router_enable_expert_bias", "q_head_dim"),
        {**_DEEPSEEK, "q_lora_rank": None, "first_k_dense_replace": 1, "n_shared_experts": 1},
        attention=attention.latent,
        renamed=_EXPERTS,
    ),
    "sarvam_moe": ModelFamily(
        no_window,
        ffn.deepseek_with("moe_router_enable_expert_bias"),
        {"head_dim": 64, "num_key_value_heads": 4, "use_qk_norm": True, "first_k_dense_replace": 1},
        out_bias=False,
        attention=attention.optional_norm,
        renamed={**_EXPERTS, "use_qkv_bias": "attention_bias"},
    ),
    # Mellum 2.
    "mellum": ModelFamily(
        window_listed,
        ffn.marked(0, router_bias=False),
        {"num_key_value_heads": 4},
        qk_norm="head",
        renamed={"num_local_experts": "num_experts"},
    ),
    "laguna": ModelFamily(window_listed, ffn.marked(1, router_bias=True), qk_norm="head", attention=attention.laguna),
    "kolibri1": ModelFamily(
        window_listed,
        ffn.marked(0, router_bias=True),
        qk_norm="head",
        post_norms=True,
        attention=attention.rope_with_window,
        renamed={"num_local_experts": "num_experts"},
    ),
    "flint": ModelFamily(
        window_listed,
        ffn.sparse_steps(shared=True, gate=False),
        {"mlp_only_layers": [0, 1]},
        qk_norm="head",
        sinks=True,
    ),
    # Trinity.
    "afmoe": ModelFamily(
        window_but_every_nth,
        ffn.deepseek_with(),
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
    "lfm2": ModelFamily(no_window, ffn.dense_lfm2, renamed=_LFM2, **_CONVOLUTIONS),
    "lfm2_moe": ModelFamily(
        no_window,
        ffn.lfm2_moe,
        renamed={
            **_LFM2,
            "num_experts": "n_routed_experts",
            "num_local_experts": "n_routed_experts",
            "num_dense_layers": "first_k_dense_replace",
        },
        **_CONVOLUTIONS,
    ),
    "lfm3": ModelFamily(
        no_window, dense, {"use_attention_gate": True}, post_norms="use_sandwich_norm", renamed=_LFM2, **_CONVOLUTIONS
    ),
    "falcon_h1": ModelFamily(
        no_window,
        dense,
        {"num_key_value_heads": 8, "mamba_d_ssm": 1024, **_MAMBA},
        {"attention_bias": False, "mlp_bias": False, "sliding_window": None},
        attention=recurrent.falcon_h1,
        scaled_embedding=True,
    ),
    "longcat_flash": ModelFamily(
        no_window,
        ffn.longcat,
        {**_DEEPSEEK, "zero_expert_num": 256},
        attention=attention.latent,
        pairs=True,
        renamed={
            **{"ffn_hidden_size": "intermediate_size", "expert_ffn_hidden_size": "moe_intermediate_size"},
            "moe_topk": "num_experts_per_tok",
        },
    ),
    "gemma3n_text": ModelFamily(
        window_but_every_nth,
        ffn.gemma3n,
        {
            **{"num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 5},
            **{"hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0, "num_kv_shared_layers": 15},
        },
        {"attention_bias": False},
        qk_norm="head",
        post_norms=True,
        tied=True,
        scaled_embedding=True,
        attention=attention.gemma3n,
        residuals="alternating",
        per_layer="hidden_size_per_layer_input",
        renamed={"intermediate_size": "intermediate_sizes"},
    ),
    "jamba": ModelFamily(
        no_window,
        ffn.jamba,
        # Without the keys of its layers a file is none of this architecture.
        {"num_key_value_heads": 8},
        {"attention_bias": False},
        attention=recurrent.jamba,
    ),
    # MiniMax-Text-01 and MiniMax-M1.
    **dict.fromkeys(
        ("minimax", "minimax_text_01", "minimax_m1"),
        ModelFamily(
            no_window,
            ffn.all_routed("num_local_experts"),
            {"num_key_value_heads": 8},
            {"attention_bias": False},
            attention=recurrent.lightning,
        ),
    ),
    # OLMo Hybrid.
    "olmo_hybrid": ModelFamily(
        no_window, dense, {"full_attention_interval": 4}, qk_norm="full", attention=recurrent.olmo_hybrid
    ),
}
