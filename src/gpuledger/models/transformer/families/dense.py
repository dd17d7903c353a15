"""Architectures in which every layer attends and has one dense feed-forward block, by ``model_type``."""

from gpuledger.models.transformer.families.family import ModelFamily
from gpuledger.models.transformer.rules import attention, by_layer, cycles, ffn, latent, window
from gpuledger.models.transformer.rules.ffn import dense

_GEMMA3 = {
    **{"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "max_position_embeddings": 131_072,
}
#: DeepSeek's sizes of latent attention.
LATENT = {
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    "q_lora_rank": 1536,
}
NO_BIAS = {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}
_MISTRAL = ModelFamily(
    window.everywhere, dense, {"num_key_value_heads": 8, "sliding_window": 4096}, NO_BIAS, False, False
)
_GLM = {
    "defaults": {"attention_bias": True, "num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5},
    **{"out_bias": False, "stored_fused": True},
}
_APERTUS = {"qk_norm": True, "post_norm": False, "mlp_bias": False}
_NEMOTRON = {"hidden_act": "relu2", "partial_rotary_factor": 0.5}
ERNIE = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias") | {"tied": True}
_QWEN = {
    "defaults": {"num_key_value_heads": 32, "sliding_window": 4096},
    "window": window.if_used(lambda i, first: i >= first),
}
_QWEN3 = ModelFamily(**_QWEN, ffn=dense, qk_norm="head")
GEMMA = {"tied": True, "scaled_embedding": True}
_COHERE = {"tied": True, "parallel": 1}
_LLAMA_WITH_BIAS = ModelFamily(window.none, dense, qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias")
GRANITE_SWA = dict(window=window.listed, attention=attention.granite_swa, sinks=True, scaled_embedding=True)

DENSE = {
    **dict.fromkeys(
        ("llama", "helium", "aquila", "xverse", "Yi"),
        ModelFamily(window.none, dense, neutral=frozenset({"max_tokenizer_truncation"}), mlp_bias="mlp_bias"),
    ),
    # Llama 3.2 Vision.
    "mllama_text_model": ModelFamily(
        window.none, dense, {"num_key_value_heads": 8}, attention=attention.mllama, further=8
    ),
    "molmo": ModelFamily(
        window.none, ffn.halved, qkv_bias="qkv_bias", out_bias=False, attention=attention.molmo, further=128
    ),
    "molmo2_text": ModelFamily(
        window.none,
        dense,
        {"use_qk_norm": True, "additional_vocab_size": 128},
        qkv_bias="attention_bias",
        out_bias=False,
        attention=attention.molmo,
        further="additional_vocab_size",
        renamed={"qkv_bias": "attention_bias"},
    ),
    "orion": ModelFamily(window.none, dense, norm_bias=True),
    "olmo": ModelFamily(window.none, dense, norm_weights=False),
    "nanochat": ModelFamily(
        window.none, dense, {"hidden_act": "relu2"}, qk_norm="unweighted", gated=False, norm_weights=False
    ),
    "stablelm": ModelFamily(
        window.none,
        dense,
        qkv_bias="use_qkv_bias",
        out_bias=False,
        attention=attention.stablelm,
        parallel=1,
        side_by_side="use_parallel_residual",
        norm_bias=True,
    ),
    # MiniCPM 1, 2 and 4.
    "minicpm": ModelFamily(
        window.none, dense, fixed={"num_experts": 0}, attention=attention.minicpm, tied=True, scaled_embedding=True
    ),
    **dict.fromkeys(("mistral", "ministral", "ministral3"), _MISTRAL),
    "seed_oss": ModelFamily(window.none, dense, out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "qwen2": ModelFamily(**_QWEN, ffn=dense, fixed={"attention_bias": True}, qkv_bias=True, out_bias=False),
    # Its last norm also ends every cycle; tokens that stop earlier are not modelled.
    "ouro": ModelFamily(
        _QWEN["window"],
        dense,
        _QWEN["defaults"],
        {"attention_bias": False, "early_exit_threshold": 1.0},
        qkv_bias=False,
        out_bias=False,
        post_norms=True,
        cycle=cycles.of_ouro,
        neutral=frozenset({"early_exit_step"}),
    ),
    # MiMo-7B: Qwen2 with multi-token prediction.
    "mimo": ModelFamily(**_QWEN, ffn=dense, fixed={"use_mrope": False}, qkv_bias="attention_bias", out_bias=False),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "bitnet": ModelFamily(
        window.none, ffn.bitnet, {"hidden_act": "relu2"}, {"attention_bias": False}, attention=attention.bitnet
    ),
    "gemma": ModelFamily(
        window.none, dense, {"num_key_value_heads": 16, "head_dim": 256}, **GEMMA, attention=attention.gemma
    ),
    "gemma2": ModelFamily(
        window.every_second,
        dense,
        {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        post_norms=True,
        attention=attention.gemma,
        **GEMMA,
    ),
    "gemma3_text": ModelFamily(window.but_every_nth, dense, _GEMMA3, post_norms=True, qk_norm="head", **GEMMA),
    "phi3": ModelFamily(
        window.everywhere,
        dense,
        fixed={**NO_BIAS, "full_attn_mod": 1, "interpolate_factor": 1},
        qkv_bias=False,
        out_bias=False,
        stored_fused=True,
    ),
    # Nemotron-NAS: Llama with layers of different sizes.
    "nemotron-nas": ModelFamily(window.none, dense, fixed={"mlp_bias": False}, single="block_configs"),
    # Their norms follow the blocks, which takes the same kernels.
    "olmo2": ModelFamily(window.none, dense, qk_norm="full"),
    "olmo3": ModelFamily(
        window.but_every_nth, dense, {"sliding_window": 4096, "sliding_window_pattern": 4}, qk_norm="full"
    ),
    "cohere": ModelFamily(window.none, dense, attention=attention.cohere, **_COHERE),
    # Command-A: only layers with a window have RoPE.
    "cohere2": ModelFamily(
        window.but_every_nth,
        dense,
        {"sliding_window": 4096, "sliding_window_pattern": 4},
        attention=attention.cohere,
        **_COHERE,
    ),
    "cohere_compass_text": ModelFamily(
        window.listed, dense, {"sliding_window": 4096}, attention=attention.compass, **_COHERE
    ),
    "granite": ModelFamily(window.none, dense, mlp_bias="mlp_bias", tied=True, scaled_embedding=True),
    **dict.fromkeys(
        ("internlm", "internlm2"),
        ModelFamily(window.none, dense, neutral=frozenset({"rotary"}), qkv_bias="bias", out_bias="bias"),
    ),
    "starcoder2": ModelFamily(
        window.everywhere,
        dense,
        {"use_bias": True},
        {"activation_function": "gelu", "mlp_type": "default", "norm_type": "layer_norm"},
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias"),
        gated=False,
        norm_bias=True,
        tied=True,
    ),
    "smollm3": ModelFamily(window.none, dense, mlp_bias="mlp_bias", attention=attention.smollm3, tied=True),
    "cwm": ModelFamily(window.everywhere, dense, mlp_bias="mlp_bias"),
    "arcee": ModelFamily(window.none, dense, {"hidden_act": "relu2"}, mlp_bias="mlp_bias", gated=False),
    "apertus": ModelFamily(window.none, dense, {"hidden_act": "xielu"}, _APERTUS, qk_norm="head", gated=False),
    # Nemotron-4 and Minitron.
    "nemotron": ModelFamily(window.none, dense, _NEMOTRON, mlp_bias="mlp_bias", gated=False, norm_bias=True),
    "glm": ModelFamily(window.none, dense, **_GLM),
    "glm4": ModelFamily(window.none, dense, post_norms=True, **_GLM),
    "glm_ocr_text": ModelFamily(
        window.none, dense, {"num_key_value_heads": 8, "attention_bias": False}, stored_fused=True, post_norms=True
    ),
    # Its norms follow the blocks, which takes the same kernels; with windows, only those layers have RoPE.
    "exaone4": ModelFamily(window.of_exaone, dense, qk_norm="head", attention=attention.rope_with_window),
    "ernie4_5": ModelFamily(window.none, dense, **ERNIE),
    "iquestcoder": ModelFamily(
        window.none,
        dense,
        {"num_key_value_heads": 8, "head_dim": 128},
        {"use_sliding_window": False, "clip_qkv": None},
        mlp_bias="mlp_bias",
    ),
    "exaone": ModelFamily(
        window.none,
        dense,
        {"num_key_value_heads": 8},
        renamed={"num_layers": "num_hidden_layers", "activation_function": "hidden_act"},
    ),
    "hyperclovax": ModelFamily(
        window.none, dense, mlp_bias="mlp_bias", post_norms="use_post_norm", scaled_embedding=True
    ),
    "internlm3": _LLAMA_WITH_BIAS,
    "jais2": ModelFamily(
        window.none,
        dense,
        {"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True},
        mlp_bias="mlp_bias",
        gated=False,
        norm_bias=True,
    ),
    "vaultgemma": ModelFamily(
        window.every_second,
        dense,
        {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        tied=True,
        scaled_embedding=True,
    ),
    "granite_swa": ModelFamily(**GRANITE_SWA, ffn=dense, mlp_bias="mlp_bias", tied=True),
    "muse_glimmer_text": ModelFamily(
        window.listed, dense, qk_norm="unweighted", post_norms=True, scaled_embedding=True, attention=attention.muse
    ),
    # Youtu-LLM and MiniCPM3: dense layers behind latent attention.
    "youtu": ModelFamily(window.none, dense, LATENT, attention=latent.latent, tied=True),
    "minicpm3": ModelFamily(
        window.none,
        dense,
        {**LATENT, "q_lora_rank": 768, "kv_lora_rank": 256},
        attention=latent.latent,
        tied=True,
        scaled_embedding=True,
    ),
    "gemma3n_text": ModelFamily(
        window.but_every_nth,
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
        attention=by_layer.gemma3n,
        residuals="alternating",
        per_layer="hidden_size_per_layer_input",
        renamed={"intermediate_size": "intermediate_sizes"},
    ),
}
