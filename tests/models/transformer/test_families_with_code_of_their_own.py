"""Architectures whose code came with their checkpoints: parameters as others count them, or by the weights' shapes."""

import pytest
from hostile_values import check_hostile_values
from own_cases import refused
from transformer_counts import check_counts, check_products, multiplied_per_token, sizes

from gpuledger.errors import InputWarning
from gpuledger.models.training import TrainingRun
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model
from gpuledger.readers.gpus import find_gpu

CHATGLM = {
    **{"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32, "kv_channels": 128},
    **{"ffn_hidden_size": 13696, "multi_query_attention": True, "multi_query_group_num": 2, "seq_length": 8192},
    **{"padded_vocab_size": 65024, "add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True},
    **{"post_layer_norm": True, "apply_residual_connection_post_layernorm": False, "bias_dropout_fusion": True},
    **{"apply_query_key_layer_scaling": True, "original_rope": True, "layernorm_epsilon": 1e-5},
}
QWEN = {
    **sizes("qwen", 4096, 32, 32, None, 22016, 151936, kv_channels=128, no_bias=True, rotary_pct=1.0, seq_length=8192),
    **{"rotary_emb_base": 10000, "use_dynamic_ntk": True, "use_flash_attn": "auto", "use_logn_attn": True},
    **{"attn_dropout_prob": 0.0, "emb_dropout_prob": 0.0, "max_position_embeddings": 32768},
}
del QWEN["num_key_value_heads"]
DBRX = {
    **{
        "model_type": "dbrx",
        "d_model": 6144,
        "n_heads": 48,
        "n_layers": 40,
        "max_seq_len": 32768,
        "vocab_size": 100352,
    },
    **{"attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000}},
    **{"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_jitter_eps": 0.01}},
}
FALCON = {"model_type": "falcon", "hidden_size": 4096, "vocab_size": 65024}
MIMO = {
    **sizes("mimo_v2", 6144, 70, 128, 8, 16384, 152576, head_dim=192, v_head_dim=128, partial_rotary_factor=0.334),
    **{"swa_num_attention_heads": 128, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128},
    **{"add_swa_attention_sink_bias": True, "attention_chunk_size": 128, "attention_value_scale": 0.612},
    **{"attention_projection_layout": "fused_qkv", "sliding_window": 128, "sliding_window_size": 128},
    "hybrid_layer_pattern": [0] + [1] * 6 + ([0] + [1] * 7) * 6 + ([0] + [1] * 6) * 2 + [0],
    **{"moe_layer_freq": [0] + [1] * 69, "moe_intermediate_size": 2048, "n_routed_experts": 384, "n_group": 1},
    **{"num_experts_per_tok": 8, "n_shared_experts": None, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    **{"vision_config": {"depth": 28}, "audio_config": {"group_size": 4}, "processor_config": {"fps": 1.0}},
}
LING = {
    **{"head_dim": 128, "num_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4},
    **{"moe_router_enable_expert_bias": True, "norm_topk_prob": True, "score_function": "sigmoid"},
    **{"use_qk_norm": True, "use_bias": False, "use_qkv_bias": False, "router_dtype": "fp32"},
}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "qk_head_dim": 192, "v_head_dim": 128}
LING3 = {
    **sizes("bailing_hybrid", 1536, 24, 16, 16, 4608, 157184, q_lora_rank=256, **LATENT, **LING),
    **{"layer_group_size": 4, "short_conv_kernel_size": 4, "no_kda_lora": True, "kda_safe_gate": True},
    **{"kda_lower_bound": -5, "gated_attention_proj_granularity_type": "head_wise", "first_k_dense_replace": 1},
    **{"num_experts": 128, "moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 512},
}
RING = {
    **sizes("bailing_hybrid", 8192, 80, 64, 64, 18432, 157184, q_lora_rank=1536, **LATENT, **LING),
    **{"layer_group_size": 8, "group_norm_size": 8, "linear_silu": False, "partial_rotary_factor": 0.5},
    **{"num_experts": 256, "moe_intermediate_size": 2048, "moe_shared_expert_intermediate_size": 2048},
    **{"first_k_dense_replace": 4, "rotary_dim": 64},
}
RING_LINEAR = {
    **sizes("bailing_moe_linear", 2048, 20, 16, 4, 5120, 157184, **LING, layer_group_size=5, group_norm_size=4),
    **{"num_experts": 256, "moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 512},
    **{"first_k_dense_replace": 1, "linear_silu": False, "partial_rotary_factor": 0.5},
}

MLLAMA = {
    "model_type": "mllama",
    "text_config": {
        **sizes("mllama_text_model", 4096, 40, 32, 8, 14336, 128256, rope_theta=500000.0, dropout=0),
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    },
    "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 1280, "num_hidden_layers": 32},
}
MOLMO2 = {
    "model_type": "molmo2",
    "text_config": {
        **sizes("molmo2_text", 4096, 36, 32, 8, 12288, 151936, head_dim=128, additional_vocab_size=128),
        **{"use_qk_norm": True, "qk_norm_type": "qwen3", "qkv_bias": False, "norm_after": False},
        "rope_scaling_layers": list(range(36)),
    },
}
MOLMO = {
    **sizes("molmo", 3584, 28, 28, 4, 37888, 152064, embedding_size=152064, qkv_bias=True, weight_tying=False),
    **{"attention_layer_norm": False, "layer_norm_type": "rms", "norm_after": False, "use_position_ids": True},
}
#: As published first; transformers writes one number of experts, and the kind of every layer.
ERNIE_VL = {
    **sizes("ernie4_5_moe_vl", 2560, 28, 20, 4, 12288, 103424, use_bias=False, tie_word_embeddings=True),
    **{"moe_num_experts": [64, 64], "moe_intermediate_size": [1536, 512], "moe_k": 6, "moe_num_shared_experts": 2},
    **{"moe_layer_start_index": [1, 1], "moe_layer_end_index": [29, 28], "moe_layer_interval": 1},
    **{"pixel_hidden_size": 1280, "rope_3d": True, "spatial_conv_size": 2, "temporal_conv_size": 2},
    **{"vision_config": {"depth": 32}, "im_patch_id": 100295, "moe_use_hard_gate": True, "freq_allocation": 20},
}

GROK2 = {
    **sizes("git", 8192, 64, 64, 8, 32768, 131072, head_dim=128, moe_intermediate_size=16384, residual_moe=True),
    **{"num_local_experts": 8, "num_experts_per_tok": 2, "embedding_multiplier_scale": 90.5, "scaling_factor": 16.0},
    **{"final_logit_softcapping": 50, "attn_logit_softcapping": 30.0, "router_logit_softcapping": 30.0},
    **{"sliding_window_size": -1, "global_attn_every_n": 1, "attn_temperature_len": 1024, "beta_fast": 8},
}
STEP3 = {
    "model_type": "step3_vl",
    "text_config": {
        **{"model_type": "step3_text", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64},
        **{"num_attention_groups": 1, "head_dim": 256, "share_q_dim": 2048, "intermediate_size": 18432},
        **{"moe_num_experts": 48, "moe_top_k": 3, "moe_intermediate_size": 5120, "share_expert_dim": 5120},
        **{"moe_layers_enum": ",".join(map(str, range(4, 60))), "vocab_size": 128815, "max_seq_len": 65536},
        "norm_expert_weight": False,
    },
    "vision_config": {"hidden_size": 1792, "output_hidden_size": 4096},
}
#: Zamba2 7B: two blocks that 13 layers share.
HYBRID = [6, *range(11, 78, 6)]
ZAMBA2 = {
    **sizes("zamba2", 3584, 81, 32, 32, 14336, 32000, adapter_rank=128, num_mem_blocks=2, use_mem_rope=True),
    **{"attention_head_dim": 224, "attention_hidden_size": 7168, "kv_channels": 112, "num_query_groups": 32},
    **{"mamba_d_conv": 4, "mamba_d_state": 64, "mamba_expand": 2, "mamba_headdim": 64, "mamba_ngroups": 2},
    **{"n_mamba_heads": 112, "use_conv_bias": True, "add_bias_linear": False, "ffn_hidden_size": 14336},
    **{"hybrid_layer_ids": HYBRID, "layers_block_type": ["hybrid" if i in HYBRID else "mamba" for i in range(81)]},
    **{"use_shared_attention_adapter": False, "chunk_size": 256, "tie_word_embeddings": True, "hidden_act": "gelu"},
}
EIGHT = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP8 = {"group_0": {"targets": ["Linear"], "weights": EIGHT, "input_activations": {"num_bits": 8, "type": "float"}}}


def lightning(hidden, heads):
    """Queries, keys, values, gate and output; norms of the output, of queries and of keys."""
    return 5 * hidden * heads * 128 + heads * 128 + 2 * 128


def latent(hidden, heads, rank):
    down = hidden * (rank + 512 + 64) + rank + 512
    return down + rank * heads * 192 + 512 * heads * 256 + heads * 128 * hidden


def routed(hidden, experts, width):
    """The router, its bias, and one shared expert besides."""
    return experts * (hidden + 1) + (experts + 1) * 3 * hidden * width


#: Files in the form of the published ones, the parameters, and the bytes of the cache that a token adds. As public
#: repositories count them: ChatGLM3-6B, Qwen-7B, DeepSeekMoE 16B, Yi-6B. As transformers does on its meta device: DBRX,
#: StableLM 2 12B, Falcon, Persimmon, BioGPT, Llama 3.2 Vision, Molmo 2, ERNIE-4.5-VL, Zamba2. By the shapes in its
#: checkpoint: MiMo-V2.5-Pro. All others by closed forms, which no checkpoint was compared with.
COUNTED = {
    "chatglm3-6b": (CHATGLM, 6243584000, 28 * 2 * 2 * 2 * 128),
    "glm-4-9b": (
        CHATGLM | {"num_layers": 40, "num_hidden_layers": 40, "padded_vocab_size": 151552, "rope_ratio": 500},
        9399951360,
        40 * 2 * 2 * 2 * 128,
    ),
    "Qwen-7B": (QWEN, 7721324544, 32 * 2 * 2 * 4096),
    "Baichuan2-7B": (
        sizes("baichuan", 4096, 32, 32, 32, 11008, 125696, max_position_embeddings=4096, z_loss_weight=0),
        7505973248,
        32 * 2 * 2 * 4096,
    ),
    "Baichuan2-13B": (
        sizes("baichuan", 5120, 40, 40, 40, 13696, 125696, model_max_length=4096, gradient_checkpointing=[False]),
        13896668160,
        40 * 2 * 2 * 5120,
    ),
    # Biases of all four projections.
    "internlm-7b": (
        sizes("internlm", 4096, 32, 32, 32, 11008, 103168, bias=True, rotary={"base": 10000, "type": "dynamic"}),
        6738415616 + 2 * (103168 - 32000) * 4096 + 32 * 4 * 4096,
        32 * 2 * 2 * 4096,
    ),
    # Norms have a bias.
    "Orion-14B": (
        sizes("orion", 5120, 40, 40, 40, 15360, 84608),
        40 * (4 * 5120**2 + 3 * 5120 * 15360 + 4 * 5120) + 2 * 84608 * 5120 + 2 * 5120,
        40 * 2 * 2 * 5120,
    ),
    "deepseek-moe-16b": (
        {
            **sizes("deepseek", 2048, 28, 16, 16, 10944, 102400, moe_intermediate_size=1408, scoring_func="softmax"),
            **{"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
        },
        16375728128,
        28 * 2 * 2 * 2048,
    ),
    "dbrx": (DBRX, 131596523520, 40 * 2 * 2 * 8 * 128),
    "Phi-3.5-vision": (
        sizes("phi3_v", 3072, 32, 32, 32, 8192, 32064, embd_layer={"x": "image"}, img_processor={"name": "clip"}),
        3821079552,
        32 * 2 * 2 * 3072,
    ),
    "Yi-6B": (sizes("Yi", 4096, 32, 32, 4, 11008, 64000), 6061035520, 32 * 2 * 2 * 512),
    # Every head has a norm of its own; blocks are side by side, behind one norm.
    "stablelm-2-12b": (
        {
            **sizes("stablelm", 5120, 40, 32, 8, 13824, 100352, partial_rotary_factor=0.25, use_qkv_bias=False),
            **{"qk_layernorm": True, "use_parallel_residual": True},
        },
        12143185920,
        40 * 2 * 2 * 8 * 160,
    ),
    "falcon-11B": (
        {
            **{**FALCON, "num_attention_heads": 32, "num_hidden_layers": 60, "num_kv_heads": 8, "bias": False},
            **{"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "parallel_attn": True, "alibi": False},
            **{"ffn_hidden_size": 16384, "ff_factor": 4, "tie_word_embeddings": False},
        },
        11102822400,
        60 * 2 * 2 * 8 * 128,
    ),
    # Blocks follow each other, and biases by distance stand for RoPE.
    "falcon-rw-7b": (
        {
            **{**FALCON, "num_attention_heads": 64, "num_hidden_layers": 36, "multi_query": False, "bias": True},
            **{"alibi": True, "parallel_attn": False, "new_decoder_architecture": False},
        },
        7516020736,
        36 * 2 * 2 * 4096,
    ),
    # Nine layers see all; 60 have sinks, one layer is dense.
    "MiMo-V2.5-Pro": (
        MIMO,
        70 * (27136 * 6144 + 6144 * 16384 + 2 * 6144)
        + (60 * 128 + 3 * 16384 * 6144)
        + 69 * (384 * 3 * 2048 * 6144 + 384 * 6144 + 384)
        + (2 * 152576 * 6144 + 6144),
        70 * 2 * 8 * 320,
    ),
    "dots.ocr": (
        sizes("dots_ocr", 1536, 28, 12, 2, 8960, 151936, attention_bias=True, vision_config={"embed_dim": 1536}),
        1543714304 + 151936 * 1536,
        28 * 2 * 2 * 256,
    ),
    # 7.9 billion; six layers attend, and the decay of the others has a width of its own.
    "Ling-3.0-tiny": (
        LING3,
        18 * (6 * 1536 * 2048 + 1536 * 16 + 3 * 2048 * 4 + 2048 + 16 + 128)
        + 6 * (latent(1536, 16, 256) + 1536 * 16)
        + 23 * routed(1536, 128, 512)
        + (3 * 1536 * 4608 + 49 * 1536 + 2 * 157184 * 1536),
        6 * 2 * 576,
    ),
    # A trillion, of which a token uses 63.6 billion.
    "Ring-2.5-1T": (
        RING,
        70 * lightning(8192, 64)
        + 10 * latent(8192, 64, 1536)
        + 76 * routed(8192, 256, 2048)
        + (4 * 3 * 8192 * 18432 + 161 * 8192 + 2 * 157184 * 8192),
        10 * 2 * 576,
    ),
    # 16.4 billion, of which a token uses 1.6.
    "Ring-mini-linear-2.0": (
        RING_LINEAR,
        16 * lightning(2048, 16)
        + 4 * (2048 * 128 * (16 + 2 * 4 + 16) + 2 * 128)
        + 19 * routed(2048, 256, 512)
        + (3 * 2048 * 5120 + 41 * 2048 + 2 * 157184 * 2048),
        4 * 2 * 2 * 4 * 128,
    ),
    # 316 billion, of which a token uses 38.
    "step3": (
        STEP3,
        61 * (7168 * (2048 + 2 * 256) + 2048 + 2048 * 64 * 256 + 64 * 256 * 7168 + 2 * 7168)
        + 56 * (48 * 7168 + 49 * 3 * 7168 * 5120)
        + (5 * 3 * 7168 * 18432 + 2 * 128815 * 7168 + 7168),
        61 * 2 * 2 * 256,
    ),
    # A LayerNorm of each head, with a bias.
    "persimmon-8b": (
        sizes("persimmon", 4096, 36, 64, 64, 16384, 262144, hidden_act="relu2", qk_layernorm=True),
        9397175296,
        36 * 2 * 2 * 4096,
    ),
    "biogpt": (
        {
            **{"model_type": "biogpt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
            **{"intermediate_size": 4096, "vocab_size": 42384, "max_position_embeddings": 1024, "hidden_act": "gelu"},
            **{"scale_embedding": True, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        },
        346763264,
        24 * 2 * 2 * 1024,
    ),
    # 270 billion; four norms, and a dense block beside the experts.
    "grok-2": (
        GROK2,
        64 * (2 * 8192**2 + 2 * 8192 * 1024 + 8 * (8192 + 3 * 8192 * 16384) + 3 * 8192 * 32768 + 4 * 8192)
        + (2 * 131072 * 8192 + 8192),
        64 * 2 * 2 * 8 * 128,
    ),
    # Eight layers attend to images alone, and eight rows of the embedding are theirs.
    "Llama-3.2-11B-Vision": (MLLAMA, 9775192080, 32 * 2 * 2 * 8 * 128),
    "Molmo2-8B": (MOLMO2, 8191259648, 36 * 2 * 2 * 8 * 128),
    # Qwen2-7B, and 128 rows of the embedding.
    "Molmo-7B-D": (MOLMO, 7615616512 + 128 * 3584, 28 * 2 * 2 * 4 * 128),
    "ERNIE-4.5-VL-28B-A3B": (ERNIE_VL, 28624635776, 28 * 2 * 2 * 4 * 128),
}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_cache(config, name):
    content, parameters, cached = COUNTED[name]
    check_counts(read_model(config(content)), parameters, cached)


@pytest.mark.parametrize("name", COUNTED)
def test_every_weight_is_multiplied_once_per_token(config, name):
    check_products(read_model(config(COUNTED[name][0])))


def test_queries_of_step_3_come_from_a_narrower_one(config):
    model = read_model(config(STEP3))
    assert round(model.active_parameters / 1e9, 1) == 38.8
    frame = kernels(model, decode(100, batch=2), Parallel(tensor=4)).set_index("kernel")
    assert set(zip(frame.loc["qkv_proj", "n"], frame.loc["q_b_proj", "n"], strict=True)) == {(2048 + 512, 16 * 256)}


def test_what_images_alone_use_does_not_run(config):
    model = read_model(config(MLLAMA))
    idle, *_ = (group for group in model.layers if group.idle)
    assert idle.numbers == (3, 8, 13, 18, 23, 28, 33, 38) and model.weight_bytes() == 2 * model.parameters
    # Llama 3.1 8B, with eight more rows.
    assert model.active_parameters == 8030261248 + 8 * 4096
    frame = kernels(model, decode(100, batch=4))
    assert frame[frame["kernel"] == "decode_attention"]["count"].tolist() == [32]
    assert {"vision"} == set(model.towers) and "mllama" in model.unread
    ernie = read_model(config(ERNIE_VL))
    of_images = 27 * (64 * (2560 + 1) + 64 * 3 * 2560 * 512)
    unused = 27 * 58 * 3 * 2560 * 1536
    assert ernie.parameters - ernie.active_parameters == of_images + unused
    listed = {"moe_num_experts": 64, "mlp_layer_types": ["dense"] + ["sparse"] * 27, "vision_config": None}
    inner = {key: value for key, value in (ERNIE_VL | listed).items() if "_layer_" not in key or key in listed}
    as_transformers_writes_it = {"model_type": "ernie4_5_vl_moe", "text_config": inner}
    inner["model_type"] = "ernie4_5_vl_moe_text"
    assert read_model(config(as_transformers_writes_it)).layers == ernie.layers


@pytest.mark.parametrize(
    "name", ("glm-4-9b", "Qwen-7B", "dbrx", "Ring-2.5-1T", "Ring-mini-linear-2.0", "stablelm-2-12b")
)
def test_any_value_of_any_key_is_read_or_refused(config, name):
    check_hostile_values(config, COUNTED[name][0], share=2)


def test_rotation_and_norms(config):
    def of(name):
        return {(group.attention.rotary_dim, group.norms) for group in read_model(config(COUNTED[name][0])).layers}

    assert of("glm-4-9b") == {(64, 2)} and of("Qwen-7B") == {(128, 2)}
    assert of("Baichuan2-7B") == {(128, 2)} and of("Baichuan2-13B") == {(0, 2)}
    assert of("falcon-rw-7b") == {(0, 2)} and of("falcon-11B") == {(128, 1)} and of("stablelm-2-12b") == {(40, 1)}
    # GPT-NeoX may have its blocks one behind the other, too.
    neox = sizes("gpt_neox", 512, 2, 8, 8, 2048, 1000, use_parallel_residual=False)
    frame = kernels(read_model(config(neox)), prefill(64), fused=False)
    assert frame[frame["kernel"].isin(["attn_residual", "ffn_residual"])]["count"].tolist() == [2, 2]


def test_projections_are_clipped_in_a_kernel_of_its_own(config):
    frame = kernels(read_model(config(DBRX)), decode(100, batch=3)).set_index("kernel")
    # 48 query heads and 8 of keys and of values, 16 bits.
    assert frame.loc["qkv_clip", ["read_bytes", "write_bytes", "count"]].tolist() == [3 * 64 * 128 * 2] * 2 + [40]
    olmo = read_model(config(sizes("olmo", 4096, 32, 32, 32, 11008, 50304, clip_qkv=8.0)))
    assert kernels(olmo, decode(100)).set_index("kernel").loc["qkv_clip", "read_bytes"] == 3 * 4096 * 2


def test_lightning_attention_with_rotation_and_norms(config):
    model = read_model(config(RING))
    linear = next(group.attention for group in model.layers if group.attention.cache_width == 0)
    assert (linear.rotary_dim, linear.qk_norm, linear.grouped_norm) == (64, True, True)
    assert model.state_bytes == 70 * 64 * 128**2 * 2
    frame = kernels(model, decode(100, batch=3), Parallel(tensor=2)).set_index("kernel")
    # Queries and keys of 32 heads, 32 bits.
    assert frame.loc["qk_norm", "read_bytes"].tolist()[0] == 3 * 2 * 32 * 128 * 4
    # Only blocks' outputs are summed, not squares for the norm.
    assert set(frame.loc["all_reduce", "n"]) == {8192}
    # Layers behind whole groups attend.
    tail = read_model(config(RING_LINEAR | {"num_hidden_layers": 22}))
    assert sum(group.count for group in tail.layers if group.attention.cache_bytes(1, 16)) == 6


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (CHATGLM | {"multi_query_attention": False}, "multi_query_attention: false: another kind of layer"),
        (CHATGLM | {"pre_seq_len": 128}, "pre_seq_len: 128: another kind of layer"),
        (QWEN | {"intermediate_size": 22017}, "intermediate_size: 22017 is not even"),
        (DBRX | {"attn_config": {"kv_n_heads": 7}}, "kv_n_heads: 48 query heads are not a multiple of 7"),
        (DBRX | {"attn_config": {"kv_n_heads": 8, "window": 9}}, "attn_config.window: an unknown key"),
        (DBRX | {"ffn_config": DBRX["ffn_config"] | {"hidden_size": 2048}}, "hidden_size: 2048: differs from d_model"),
        (DBRX | {"ffn_config": DBRX["ffn_config"] | {"parts": 2}}, "ffn_config.parts: an unknown key"),
        (DBRX | {"ffn_config": DBRX["ffn_config"] | {"ffn_act_fn": {"name": "gelu"}}}, "another activation; only"),
        (RING | {"linear_silu": True}, "linear_silu: true: an activation besides"),
        (RING | {"layer_types": ["linear_attention"] * 80}, "layer_types: differs from layer_group_size 8"),
        (LING3 | {"no_kda_lora": False}, "no_kda_lora: false: projections of low rank"),
        (MLLAMA | {"text_config": MLLAMA["text_config"] | {"cross_attention_layers": [40]}}, "within 0 … 39"),
        (MOLMO | {"embedding_size": 152192}, "embedding_size: 152192: differs from vocab_size"),
        (ERNIE_VL | {"moe_num_experts": [64, 32]}, "as many experts for images as for text"),
        (ERNIE_VL | {"moe_intermediate_size": [1, 2, 3]}, "neither a number nor two, for text and for images"),
        (ZAMBA2 | {"layers_block_type": ["mamba"] * 80}, "not mamba or hybrid for each of 81 layers"),
        (ZAMBA2 | {"hybrid_layer_ids": [6]}, ": differs from layers_block_type"),
        (ZAMBA2 | {"mamba_expand": 0}, "mamba_expand: 0 is not within 1"),
        (ZAMBA2 | {"n_mamba_heads": 111}, "111 heads of 64 in 2 groups are not 7168 wide"),
        (GROK2 | {"residual_moe": False}, "residual_moe: false: another kind of layer"),
        ({"model_type": "git", "hidden_size": 768}, "unknown architecture 'git'"),
        (MIMO | {"hybrid_block_size": 6}, "hybrid_block_size: 6: another kind of layer"),
    ],
)
def test_what_is_not_modelled_is_refused(config, content, problem):
    with refused(problem):
        read_model(config(content))


@pytest.mark.parametrize("content", [MLLAMA, COUNTED["Baichuan2-7B"][0] | {"model_type": "olmo", "clip_qkv": 8}])
def test_training_with_images_or_clipping_is_refused(config, content):
    content.pop("z_loss_weight", None)
    with refused("attention and feed-forward layers only"):
        TrainingRun(read_model(config(content)), find_gpu("h100-sxm"), 2048, 1)


def test_the_checkpoint_of_mimo_leaves_out_projections_alone(config):
    """As its index says, but for routers, which are in 32 bits there."""
    ignored = [*(f"model.layers.{i}.self_attn.o_proj" for i in range(70)), "model.decoder.self_attn.o_proj"]
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ignored}
    model = read_model(config(MIMO | {"quantization_config": blocks}))
    halves = 2 * (2 * 152576 * 6144 + 70 * 16384 * 6144 + 69 * 384 * (6144 + 1) + 60 * 128 + 141 * 6144)
    blocks = 70 * 212 * 48 + 3 * 128 * 48 + 69 * 384 * 3 * 16 * 48
    assert model.weight_bytes() == halves + blocks * (128 * 128 + 4)


@pytest.mark.parametrize(
    ("content", "names", "values"),
    [
        (CHATGLM, "transformer.encoder.layers.3.self_attention.query_key_value", (4096 + 512) * 4096),
        (CHATGLM, "transformer.encoder.layers.3.mlp.dense_h_to_4h", 2 * 13696 * 4096),
        (QWEN, "transformer.h.3.mlp.w1", 11008 * 4096),
        (DBRX, "transformer.blocks.3.norm_attn_norm.attn.Wqkv", 64 * 128 * 6144),
        (DBRX, "transformer.blocks.3.ffn.experts.mlp.v1", 16 * 10752 * 6144),
        (COUNTED["Baichuan2-7B"][0], "model.layers.3.self_attn.W_pack", 3 * 4096**2),
        (RING, "model.layers.3.attention.query_key_value", 3 * 8192**2),
        (RING, "model.layers.7.attention.q_b_proj", 64 * 192 * 1536),
        (RING_LINEAR, "model.layers.3.attention.g_proj", 2048**2),
        (ZAMBA2, "model.layers.6.shared_transformer.self_attn.q_proj", 7168**2),
        (MLLAMA, "model.language_model.layers.3.cross_attn.q_proj", 4096**2),
        # Of text, and of images.
        (ERNIE_VL, "re:.*layers.3.mlp.experts.*", 64 * 3 * 2560 * (1536 + 512)),
    ],
)
def test_names_of_modules_are_those_of_checkpoints(config, content, names, values):
    def size(*ignored):
        settings = {"quant_method": "compressed-tensors", "config_groups": FP8, "ignore": ["lm_head", *ignored]}
        return read_model(config(content | {"quantization_config": settings})).weight_bytes()

    assert size(names) - size() == values


def test_first_models_for_images_have_the_keys_of_their_text_part_at_the_top(config):
    """GLM-4V and Qwen-VL."""
    for content, more in ((CHATGLM, {"vision_config": {"hidden_size": 1792}}), (QWEN, {"visual": {"width": 1664}})):
        with_images = read_model(config(content | more | {"boi_token_id": 151339}))
        assert with_images.layers == read_model(config(content)).layers


def test_a_selection_that_engines_leave_out_is_told(config):
    content = sizes("minicpm", 4096, 32, 32, 2, 16384, 73448, sparse_config={"block_size": 64, "topk": 64})
    with pytest.warns(InputWarning, match="sparse_config: a selection of blocks of keys; left out, as vLLM does"):
        model = read_model(config(content))
    del content["sparse_config"]
    assert model.layers == read_model(config(content)).layers


def test_any_value_of_the_keys_of_shared_blocks_is_read_or_refused(config):
    check_hostile_values(config, ZAMBA2, share=2)


def test_layers_that_share_a_block(config):
    """Parameters as transformers counts them, Zamba2's of 7 and 1.2 billion, whose attention has adapters, too."""
    model = read_model(config(ZAMBA2))
    check_counts(model, 7356749648, 13 * 2 * 2 * 7168)
    assert model.weight_bytes() == 2 * model.parameters
    assert model.state_bytes == 81 * (112 * 64 * 64 * 2 + 3 * 2 * (7168 + 2 * 2 * 64))
    small = {"hidden_size": 2048, "attention_hidden_size": 4096, "attention_head_dim": 128, "intermediate_size": 8192}
    small |= {"num_hidden_layers": 38, "mamba_d_state": 128, "mamba_ngroups": 1, "n_mamba_heads": 64}
    small |= {"num_mem_blocks": 1, "use_shared_attention_adapter": True, "hybrid_layer_ids": list(range(5, 38, 6))}
    small |= {"layers_block_type": ["hybrid" if i % 6 == 5 else "linear_attention" for i in range(38)]}
    adapted = read_model(config(ZAMBA2 | small))
    check_counts(adapted, 1215064704, 6 * 2 * 2 * 4096)
    for one, head in ((model, 32000 * 3584), (adapted, 32000 * 2048)):
        for parallel in (Parallel(), Parallel(tensor=2)):
            frame = kernels(one, prefill(11, 3), parallel)
            gemms = frame[frame["kind"].isin(["gemm"])]
            done = (gemms["count"] * gemms["macs"]).sum()
            assert done == pytest.approx((33 * multiplied_per_token(one) + 3 * head) / parallel.tensor, rel=0.05)
            assert parallel.tensor > 1 or done == 33 * multiplied_per_token(one) + 3 * head
    # Attention reads the token beside its embedding; a block's output is summed twice, Mamba's once.
    sums = kernels(model, decode(100), Parallel(tensor=2)).set_index("kernel").loc["all_reduce"]
    assert sums["count"].sum() == 1 + 81 + 2 * 13
    frame = kernels(model, decode(100)).set_index("kernel")
    assert set(frame.loc["qkv_proj", "k"]) == {7168} and frame.loc["decode_attention", "count"].sum() == 13
    with refused("layers of several stages share a block"):
        kernels(model, decode(100), Parallel(pipeline=2))
