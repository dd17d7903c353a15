"""Architectures by ``model_type``: how the keys of a config.json become layers.

Sources: the configuration and model classes of Hugging Face transformers (4.57 and 5), which define the defaults of
missing keys, which layers have a window, and where biases and norms are; for Kimi-K3 and Nemotron-NAS, those of SGLang
and vLLM.
"""

from gpuledger.models.transformer import attention_rules as attention
from gpuledger.models.transformer import feed_forward_rules as ffn
from gpuledger.models.transformer import recurrent_rules as recurrent
from gpuledger.models.transformer.family import ModelFamily
from gpuledger.models.transformer.feed_forward_rules import dense
from gpuledger.models.transformer.newer_families import NEWER
from gpuledger.models.transformer.window_rules import (
    no_window,
    window_but_every_nth,
    window_every_second,
    window_everywhere,
    window_if_used,
    window_of_chunks,
    window_of_exaone,
    window_of_last,
    window_of_mimo_v2,
)

ACTIVATIONS = frozenset(
    {"silu", "swish", "relu", "relu2", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu"}
    | {"swigluoai", "situ", "xielu"}
)


_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}
_GEMMA3 = {
    **{"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "max_position_embeddings": 131_072,
}
_DEEPSEEK = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_NO_BIAS = {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}
_MISTRAL = ModelFamily(
    window_everywhere, dense, {"num_key_value_heads": 8, "sliding_window": 4096}, _NO_BIAS, False, False
)
_GLM = {
    "defaults": {"attention_bias": True, "num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5},
    **{"out_bias": False, "stored_fused": True},
}
_APERTUS = {"qk_norm": True, "post_norm": False, "mlp_bias": False}
_NEMOTRON = {"hidden_act": "relu2", "partial_rotary_factor": 0.5}
_ERNIE = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias") | {"tied": True}
_QWEN = {
    "defaults": {"num_key_value_heads": 32, "sliding_window": 4096},
    "window": window_if_used(lambda i, first: i >= first),
}
_QWEN3 = ModelFamily(**_QWEN, ffn=dense, qk_norm="head")
_QWEN3_MOE = ModelFamily(
    window_if_used(lambda i, first: True),
    ffn.sparse_steps(shared=False),
    {"num_key_value_heads": 4, "sliding_window": 4096},
    {"use_qk_norm": True},
    qk_norm="head",
    renamed={"num_local_experts": "num_experts"},  # transformers 5
)
_QWEN35 = {"attn_output_gate": True, "full_attention_interval": 4}
_GEMMA = {"tied": True, "scaled_embedding": True}
_GEMMA4 = {
    **{"head_dim": 256, "global_head_dim": 512, "num_key_value_heads": 4, "sliding_window": 512},
    "hidden_activation": "gelu_pytorch_tanh",
}
_STEP_NAMES = {
    **{"moe_num_experts": "num_experts", "moe_top_k": "num_experts_per_tok", "share_expert_dims": "share_expert_dim"},
    **{"n_routed_experts": "num_experts", "num_attention_groups": "num_key_value_heads"},
}
_BAMBA = {
    **{"num_key_value_heads": 8, "partial_rotary_factor": 0.5, "mamba_n_heads": 128, "mamba_n_groups": 1},
    **{"mamba_d_state": 256, "mamba_d_conv": 4},
}
_MLA = {"defaults": _DEEPSEEK, "window": no_window, "fixed": {"mlp_bias": False}}

_FALCON_NAMES = {
    **{"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"},
    **{"num_kv_heads": "num_key_value_heads", "n_head_kv": "num_key_value_heads", "bias": "attention_bias"},
    **{"ffn_hidden_size": "intermediate_size", "activation": "hidden_act"},
}
_COHERE = {"tied": True, "parallel": 1}
_MINIMAX_M3 = ModelFamily(
    no_window, ffn.minimax_m3, {"attention_bias": False}, qk_norm="head", attention=attention.minimax_m3
)
_STEP = ModelFamily(
    window_every_second,
    ffn.step,
    {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 11264},
    {"use_qkv_bias": False},
    qk_norm="head",
    attention=attention.step,
    renamed=_STEP_NAMES,
)
_DEEPSEEK_V4 = ModelFamily(
    no_window, ffn.deepseek_v4, attention=attention.compressed, residuals="hyper", fixed={"attention_bias": False}
)

FAMILIES = {
    "llama": ModelFamily(no_window, dense, mlp_bias="mlp_bias"),
    **dict.fromkeys(("mistral", "ministral", "ministral3"), _MISTRAL),
    "seed_oss": ModelFamily(no_window, dense, out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "mixtral": ModelFamily(
        window_everywhere, ffn.all_routed("num_local_experts"), {"num_key_value_heads": 8}, _NO_BIAS, False, False
    ),
    "qwen2": ModelFamily(**_QWEN, ffn=dense, qkv_bias=True, out_bias=False),
    "qwen2_moe": ModelFamily(
        window_if_used(lambda i, first: i % 2 == 0 and i < first),
        ffn.sparse_steps(shared=True),
        {"num_key_value_heads": 16, "sliding_window": 4096, "qkv_bias": True},
        qkv_bias="qkv_bias",
        out_bias=False,
    ),
    # MiMo-7B: Qwen2 with multi-token prediction.
    "mimo": ModelFamily(**_QWEN, ffn=dense, fixed={"use_mrope": False}, qkv_bias="attention_bias", out_bias=False),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_5_text": ModelFamily(no_window, dense, _QWEN35, qk_norm="head", attention=recurrent.with_delta),
    "qwen3_5_moe_text": ModelFamily(
        no_window, ffn.sparse_steps(shared=True), _QWEN35, qk_norm="head", attention=recurrent.with_delta
    ),
    "qwen3_next": ModelFamily(
        no_window,
        ffn.sparse_steps(shared=True),
        {**_QWEN35, "partial_rotary_factor": 0.25},
        qk_norm="head",
        attention=recurrent.with_delta,
    ),
    "llama4_text": ModelFamily(window_of_chunks, ffn.llama4, {"num_key_value_heads": 8}, attention=attention.llama4),
    "gpt2": ModelFamily(
        no_window,
        dense,
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
    ),
    "gemma": ModelFamily(no_window, dense, {"num_key_value_heads": 16, "head_dim": 256}, **_GEMMA),
    "gemma2": ModelFamily(
        window_every_second,
        dense,
        {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        post_norms=True,
        **_GEMMA,
    ),
    "gemma3_text": ModelFamily(window_but_every_nth, dense, _GEMMA3, post_norms=True, qk_norm="head", **_GEMMA),
    "gpt_oss": ModelFamily(
        window_every_second,
        ffn.all_routed("num_local_experts", bias=True),
        {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "attention_bias": True},
        sinks=True,
    ),
    "phi3": ModelFamily(
        window_everywhere,
        dense,
        fixed={**_NO_BIAS, "full_attn_mod": 1, "interpolate_factor": 1},
        qkv_bias=False,
        out_bias=False,
        stored_fused=True,
    ),
    "deepseek_v2": ModelFamily(**_MLA, ffn=ffn.deepseek(router_bias=False), attention=attention.latent),
    "deepseek_v3": ModelFamily(**_MLA, ffn=ffn.deepseek(router_bias=True), attention=attention.latent),
    "glm4_moe_lite": ModelFamily(**_MLA, ffn=ffn.deepseek(router_bias=True), attention=attention.latent),
    "deepseek_v32": ModelFamily(**_MLA, ffn=ffn.deepseek(router_bias=True), attention=attention.sparse_latent),
    "glm_moe_dsa": ModelFamily(**_MLA, ffn=ffn.deepseek(router_bias=True), attention=attention.sparse_latent),
    # GLM-4.5: experts as DeepSeek-V3's.
    "glm4_moe": ModelFamily(
        no_window,
        ffn.deepseek(router_bias=True),
        {"partial_rotary_factor": 0.5, "num_key_value_heads": 8},
        out_bias=False,
        attention=attention.optional_norm,
    ),
    "nemotron_h": ModelFamily(
        no_window,
        dense,
        {"norm_eps": 1e-5},
        {"use_bias": False, "mamba_proj_bias": False, "mlp_bias": False, "attention_bias": False},
        gated=False,
        single="hybrid_override_pattern",
        renamed={"mlp_hidden_act": "hidden_act", "attention_head_dim": "head_dim"},
    ),
    "kimi_k2": ModelFamily(**_MLA, ffn=ffn.deepseek(router_bias=True), attention=attention.latent),
    "minimax_m2": ModelFamily(no_window, ffn.minimax, {"attention_bias": False}, qk_norm="full"),
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_vl_text": _MINIMAX_M3,
    "gemma4_text": ModelFamily(
        window_but_every_nth,
        ffn.gemma4,
        _GEMMA4,
        post_norms=True,
        qk_norm="head",
        attention=attention.gemma4,
        per_layer="hidden_size_per_layer_input",
        renamed={"top_k_experts": "num_experts_per_tok"},
        **_GEMMA,
    ),
    "mimo_v2_flash": ModelFamily(
        window_of_mimo_v2,
        ffn.mimo_v2,
        {"head_dim": 192, "v_head_dim": 128, "sliding_window": 128},
        out_bias=False,
        attention=attention.mimo_v2,
    ),
    "step3p5": _STEP,
    "step3p7": _STEP,
    "deepseek_v4": _DEEPSEEK_V4,
    "deepseek_ref": _DEEPSEEK_V4,
    "kimi_linear": ModelFamily(
        no_window,
        ffn.kimi_linear,
        {"num_expert_group": 1},
        attention=recurrent.kimi_linear,
        residuals="blocks",
        renamed={
            **{"num_experts": "n_routed_experts", "num_experts_per_token": "num_experts_per_tok"},
            "num_shared_experts": "n_shared_experts",
        },
    ),
    # Nemotron-NAS: Llama with layers of different sizes.
    "nemotron-nas": ModelFamily(no_window, dense, fixed={"mlp_bias": False}, single="block_configs"),
    # Their norms follow the blocks, which takes the same kernels.
    "olmo2": ModelFamily(no_window, dense, qk_norm="full"),
    "olmo3": ModelFamily(
        window_but_every_nth, dense, {"sliding_window": 4096, "sliding_window_pattern": 4}, qk_norm="full"
    ),
    "falcon": ModelFamily(
        no_window,
        ffn.dense_falcon,
        {"multi_query": True, "hidden_act": "gelu"},
        {"alibi": False, "parallel_attn": True},
        mlp_bias="attention_bias",
        stored_fused=True,
        gated=False,
        attention=attention.falcon,
        parallel=1,
        norm_bias=True,
        tied=True,
        renamed=_FALCON_NAMES,
    ),
    "cohere": ModelFamily(no_window, dense, attention=attention.cohere, **_COHERE),
    # Command-A: only layers with a window have RoPE.
    "cohere2": ModelFamily(
        window_but_every_nth,
        dense,
        {"sliding_window": 4096, "sliding_window_pattern": 4},
        attention=attention.cohere,
        **_COHERE,
    ),
    "granite": ModelFamily(no_window, dense, mlp_bias="mlp_bias", tied=True, scaled_embedding=True),
    "internlm2": ModelFamily(no_window, dense, qkv_bias="bias", out_bias="bias"),
    "starcoder2": ModelFamily(
        window_everywhere,
        dense,
        {"use_bias": True},
        {"activation_function": "gelu", "mlp_type": "default", "norm_type": "layer_norm"},
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias"),
        gated=False,
        norm_bias=True,
        tied=True,
    ),
    # Phi-1 to Phi-2; the bias of the LM head is not counted.
    "phi": ModelFamily(
        no_window,
        dense,
        {"hidden_act": "gelu_new"},
        {"qk_layernorm": False},
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True),
        gated=False,
        norm_bias=True,
        parallel=1,
    ),
    "smollm3": ModelFamily(no_window, dense, mlp_bias="mlp_bias", attention=attention.smollm3, tied=True),
    "dots1": ModelFamily(window_of_last, ffn.deepseek(router_bias=True), qk_norm="head"),
    # The bias of its LM head is not counted.
    "phimoe": ModelFamily(window_everywhere, ffn.all_routed("num_local_experts"), norm_bias=True),
    **dict.fromkeys(("olmoe", "flex_olmo"), ModelFamily(no_window, ffn.all_routed("num_experts"), qk_norm="full")),
    "mistral4": ModelFamily(**_MLA, ffn=ffn.deepseek(router_bias=False), attention=attention.latent),
    "cwm": ModelFamily(window_everywhere, dense, mlp_bias="mlp_bias"),
    "arcee": ModelFamily(no_window, dense, {"hidden_act": "relu2"}, mlp_bias="mlp_bias", gated=False),
    "apertus": ModelFamily(no_window, dense, {"hidden_act": "xielu"}, _APERTUS, qk_norm="head", gated=False),
    # Nemotron-4 and Minitron.
    "nemotron": ModelFamily(no_window, dense, _NEMOTRON, mlp_bias="mlp_bias", gated=False, norm_bias=True),
    "glm": ModelFamily(no_window, dense, **_GLM),
    "glm4": ModelFamily(no_window, dense, post_norms=True, **_GLM),
    "solar_open": ModelFamily(
        no_window, ffn.deepseek(router_bias=True), {"num_key_value_heads": 8}, attention=attention.optional_norm
    ),
    # Its norms follow the blocks, which takes the same kernels; with windows, only those layers have RoPE.
    "exaone4": ModelFamily(window_of_exaone, dense, qk_norm="head", attention=attention.rope_with_window),
    **dict.fromkeys(
        ("hunyuan_v1_dense", "hunyuan_v1_moe"),
        ModelFamily(no_window, ffn.hunyuan, fixed=_NO_BIAS, qk_norm="head", attention=attention.hunyuan),
    ),
    "ernie4_5": ModelFamily(no_window, dense, **_ERNIE),
    "ernie4_5_moe": ModelFamily(
        no_window,
        ffn.ernie,
        **_ERNIE,
        renamed={"moe_num_experts": "n_routed_experts", "moe_k": "num_experts_per_tok"},
    ),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), ModelFamily(no_window, ffn.granite, scaled_embedding=True)),
    "granitemoehybrid": ModelFamily(no_window, ffn.granite, attention=recurrent.granite, scaled_embedding=True),
    "bamba": ModelFamily(
        no_window, dense, _BAMBA, {"attention_bias": False, "mlp_bias": False}, attention=recurrent.bamba
    ),
    # Ling and Ring.
    **dict.fromkeys(
        ("bailing_moe", "bailing_moe_v2"),
        ModelFamily(
            no_window,
            ffn.bailing,
            qkv_bias="use_qkv_bias",
            out_bias="use_bias",
            attention=attention.optional_norm,
            renamed={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
        ),
    ),
    # Pythia.
    "gpt_neox": ModelFamily(
        no_window,
        dense,
        {"attention_bias": True, "hidden_act": "gelu"},
        {"use_parallel_residual": True},
        mlp_bias=True,
        stored_fused=True,
        gated=False,
        parallel=2,
        norm_bias=True,
        renamed={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    ),
} | NEWER
