"""Categories of the columns of :func:`gpuledger.models.transformer.kernels`, in execution order."""

PHASES = ("prefill", "decode", "chunked_prefill", "mixed")
KINDS = ("gemm", "grouped_gemm", "attention", "recurrent", "elementwise", "collective")


def _ffn(prefix: str) -> tuple[str, ...]:
    names = ("gate_up_proj", "gate_proj", "up_proj", "act", "down_proj")
    return tuple(prefix + ("ffn_act" if name == "act" and not prefix else name) for name in names)


def _attention(prefix: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in ("attention", "attention_scores", "softmax", "attention_values"))


_LAYER_OF_IMAGE = (
    *("attn_norm", "qkv_proj", "q_proj", "k_proj", "v_proj", "qk_norm", "rope", "attention", "out_proj"),
    *("attn_post_norm", "attn_residual", "ffn_norm", "gate_up_proj", "gate_proj", "up_proj", "act", "down_proj"),
    *("ffn_post_norm", "ffn_residual", "post_norm", "pool", "merger_norm", "merger_proj", "merger_act", "insert"),
)
KERNELS = (
    *("image_patch_proj", "image_position", "image_pre_norm", *(f"image_{name}" for name in _LAYER_OF_IMAGE)),
    "image_all_reduce",
    *("embedding", "embedding_norm", "embedding_scale", "position_embedding", "draft_norm", "draft_proj"),
    *("per_layer_embedding", "per_layer_model_proj", "per_layer_norm", "altup_proj", "altup_scale"),
    *("altup_norm", "altup_router", "altup_coefficients", "altup_predict"),
    *("ngram_embedding", "ngram_proj", "ngram_gate", "ngram_conv"),
    *("norm_gate_proj", "norm_gate_up_proj", "norm_gate"),
    *("hyper_norm", "hyper_proj", "hyper_act", "hyper_up_proj", "hyper_sum", "residual_sum"),
    *("message_sum", "message_norm", "message_down_proj", "message_up_proj", "message_mix"),
    *(
        "attn_norm",
        "qkv_proj",
        "q_proj",
        "k_proj",
        "v_proj",
        "relative_proj",
        "sink_proj",
        "qkv_a_proj",
        "q_a_proj",
        "kv_a_proj",
    ),
    *("k_conv_proj", "v_conv_proj", "q_a_norm", "kv_a_norm", "q_b_proj", "kv_b_proj", "context_kv_b_proj", "q_absorb"),
    *("compress_proj", "compress_pool", "index_compress_proj", "index_compress_pool"),
    *("index_q_proj", "index_k_proj", "index_weights_proj", "index_rope", "index_scores", "decode_index_scores"),
    *("index_topk", "delta_in_proj", "delta_gates_proj", "delta_decay_proj", "delta_gate_proj"),
    *("delta_conv", "decode_delta_conv", "delta_rule", "decode_delta_rule"),
    *(
        *("ssm_in_proj", "ssm_x_proj", "ssm_step_proj", "ssm_scale", "ssm_act", "ssm_conv"),
        *("decode_ssm_conv", "ssm_scan", "decode_ssm_scan", "ssm_norm"),
    ),
    *("block_concat", "block_norm", "adapter_qkv_proj", "adapter_qkv_proj_up", "adapter_gate_up_proj"),
    *("adapter_gate_up_proj_up", "adapter_add", "block_out_proj"),
    *("qkv_clip", "qk_norm", "rope", "kv_write", "rope_kv_write", "relative_bias"),
    *(*_attention(""), *_attention("decode_")),
    *("sparse_attention", "decode_sparse_attention", "value_absorb"),
    *("delta_norm", "attn_out_norm", "attn_gate_proj", "attn_gate", "out_rope", "out_a_proj"),
    *("out_proj", "attn_out_conv", "decode_attn_out_conv", "branch_add", "attn_post_norm", "attn_residual", "ffn_norm"),
    *(
        *_ffn(""),
        "ffn_cutoff",
        "ffn_inner_norm",
        "router",
        "router_topk",
        *_ffn("shared_"),
        "shared_gate",
        "shared_scale",
    ),
    "latent_down_proj",
    *("expert_permute", *_ffn("expert_"), "expert_combine", "zero_experts", "latent_norm", "latent_up_proj"),
    *("shared_norm", "expert_norm", "expert_post_norm", "router_norm", "shared_add", "hyper_add"),
    *(
        "ffn_out_conv",
        "decode_ffn_out_conv",
        "ffn_post_norm",
        "ffn_residual",
        "per_layer_gate_proj",
        "per_layer_act",
        "per_layer_proj",
        "per_layer_post_norm",
    ),
    *("laurel_down_proj", "laurel_up_proj", "laurel_norm", "altup_correct", "altup_add", "altup_sum"),
    *("cycle_norm", "final_norm", "lm_head", "logit_softcap"),
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"),
)

#: Kernels whose weights a quantised checkpoint leaves unquantised unless it says otherwise.
UNCONVERTED = frozenset({"embedding", "position_embedding", "draft_proj", "lm_head", "router", "shared_gate"}) | {
    *("index_weights_proj", "delta_gates_proj", "delta_decay_proj", "delta_gate_proj", "ssm_x_proj", "ssm_step_proj"),
    *("compress_proj", "index_compress_proj", "hyper_proj", "hyper_up_proj", "ngram_embedding", "ngram_proj"),
    *("per_layer_embedding", "altup_proj", "norm_gate_proj", "norm_gate_up_proj"),
    *("altup_router", "altup_coefficients", "laurel_down_proj", "laurel_up_proj"),
    *("message_down_proj", "message_up_proj"),
    # Of vision towers: checkpoints leave them unquantised.
    *(f"image_{name}_proj" for name in ("patch", "qkv", "out", "gate_up", "up", "down", "merger")),
}

#: Kernels with a weight matrix, for which a precision can be set.
WEIGHTS = UNCONVERTED | {
    *("qkv_proj", "out_proj", "qkv_a_proj", "q_proj", "k_proj", "v_proj", "kv_a_proj", "q_b_proj", "kv_b_proj"),
    *("index_q_proj", "index_k_proj", "delta_in_proj", "ssm_in_proj", "latent_down_proj", "latent_up_proj"),
    *("adapter_qkv_proj", "adapter_qkv_proj_up", "adapter_gate_up_proj", "adapter_gate_up_proj_up", "block_out_proj"),
    *("attn_gate_proj", "out_a_proj", "per_layer_model_proj", "per_layer_gate_proj", "per_layer_proj"),
    *(prefix + name for prefix in ("", "shared_", "expert_") for name in ("gate_up_proj", "up_proj", "down_proj")),
}
