"""Architectures that transformers 5.24 knows: parameters as it counts them, beside buffers; cache, states by hand."""

import numpy as np
import pytest
from hostile_values import check_hostile_values
from own_cases import refused
from transformer_counts import check_counts, check_products, sizes

from gpuledger.errors import InputError
from gpuledger.models.deployment.memory import memory_bytes
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model

LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
HYBRID = {"linear_num_heads": 64, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
INDEXED = {"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}
QWEN4 = {
    **sizes("qwen4_exp_text", 2048, 8, 16, 2, None, 248320, head_dim=256, moe_intermediate_size=512),
    **{"num_experts": 512, "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512},
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128},
    **{"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "hc_count": 4, "hc_lowrank": 320},
    **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048},
    **{"indexer_compress_ratio": 16, "ple_layer_ids": [2, 6], "ple_embed_dim": 2048, "ngram_size": 3},
    **{"heads_per_ngram": 8, "ngram_vocab_size_base": 20_000_000, "eos_token_id": 1, "output_gate_type": "silu"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
GLM53 = {
    **sizes("glm5_next_text", 4096, 45, 64, 64, 12288, 154880, q_lora_rank=1536, **LATENT),
    **{"qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, **INDEXED, **HYBRID},
    **{"moe_intermediate_size": 2048, "n_routed_experts": 288, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"layer_types": [("indexed" if i % 4 == 3 else "linear") + "_attention" for i in range(45)]},
    **{"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42, "indexer_types": ["full"] * 45, "index_kpool": 16},
    **{"hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "linear_lower_bound": -5.0, "swiglu_limit": 10.0},
}
HUNYUAN4 = {
    **sizes("hy_v4", 2816, 34, 32, 32, 6912, 120832, q_lora_rank=1536, **LATENT),
    **{"qk_nope_head_dim": 192, "v_head_dim": 256, **INDEXED, "index_n_heads": 16},
    **{"moe_intermediate_size": 768, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"mlp_layer_types": ["dense"] + ["sparse"] * 33, "layer_types": ["indexed_attention"] * 34},
    **{"hc_mult": 4, "hc_magnitude": 2.0, "hc_eps": 1e-6, "learnable_sink_init": 0.0},
}
LING3 = {
    **sizes("bailing_hybrid", 2560, 42, 32, 32, 6144, 157184, q_lora_rank=None, head_dim=128, **LATENT),
    **{"num_experts": 512, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 768},
    **{"first_k_dense_replace": 2, "layer_group_size": 6, "short_conv_kernel_size": 4, "num_nextn_predict_layers": 1},
    **{"kda_safe_gate": True, "kda_lower_bound": -5.0, "moe_renormalize": True, "num_expert_group": 8},
}
AXK2 = {
    **sizes("axk2", 2048, 48, 32, 32, 5120, 163840, q_lora_rank=384, **INDEXED, gated_norm_rank=16),
    **{"kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "index_n_heads": 16},
    **{"moe_intermediate_size": 512, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"mlp_layer_types": ["dense"] + ["sparse"] * 47, "layer_types": ["indexed_attention"] * 48},
}
SPARK = {
    **sizes("muse_spark_text", 8192, 62, 128, 16, 16384, 202048, head_dim=64, sliding_window=2048),
    **{"moe_intermediate_size": 4096, "num_local_experts": 256, "num_experts_per_tok": 8, "moe_hidden_size": 4096},
    **{"layer_types": [("full" if i % 4 == 1 else "sliding") + "_attention" for i in range(62)]},
    **{"layer_rope_theta": [0 if i % 4 == 1 else 5e5 for i in range(62)], "mlp_layer_types": ["sparse"] * 62},
    **{"final_logit_softcapping": 20.0, "qk_scale_factor": 5.47, "output_multiplier": 0.18, "post_norm_eps": 1e-8},
    "residual_gate_temperature": 0.3,
}
INKLING = {
    **sizes("inkling_text", 6144, 66, 64, 8, 24576, 201024, head_dim=128, unpadded_vocab_size=200058),
    **{"swa_num_attention_heads": 64, "swa_num_key_value_heads": 16, "swa_head_dim": 128, "sliding_window_size": 512},
    **{"d_rel": 16, "rel_extent": 1024, "sconv_kernel_size": 4, "model_max_length": 131072, "route_scale": 8.0},
    **{"layer_types": ["hybrid" if i % 6 == 5 else "hybrid_sliding" for i in range(66)]},
    **{"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 64, "moe_intermediate_size": 3072, "shared_expert_sink": True},
    **{"n_routed_experts": 256, "num_experts_per_tok": 6, "n_shared_experts": 2, "logits_mup_width_multiplier": 24.0},
}
INKLING2 = {
    **sizes("inkling2_text", 4608, 48, 48, 8, None, 201024, head_dim=128, unpadded_vocab_size=200058),
    **{"swa_num_attention_heads": 48, "swa_num_key_value_heads": 8, "swa_head_dim": 128, "sliding_window_size": 1024},
    **{"d_rel": 16, "rel_extent": 1024, "conv_kernel_size": 4, "n_layers_per_attn_res_block": 6, "route_scale": 8.0},
    **{"layer_types": ["hybrid" if i % 6 == 5 else "hybrid_sliding" for i in range(48)], "mlp_up_softcap": 25.0},
    **{"moe_intermediate_size": 2304, "n_routed_experts": 384, "num_experts_per_tok": 8, "qk_l2_clip_threshold": 22.6},
    **{"rel_l2_clip_threshold": 8.0, "mlp_gate_softcap": 4.0, "final_logit_softcapping": 30.0},
}
MAMBA = {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "vocab_size": 50280}
MAMBA |= {"conv_kernel": 4, "expand": 2, "time_step_rank": 160, "use_bias": False, "use_conv_bias": True}
MAMBA |= {"layer_norm_epsilon": 1e-5, "residual_in_fp32": True, "intermediate_size": 5120, "time_step_floor": 1e-4}
CONVERTED = {"d_inner": 5120, "d_model": 2560, "n_layer": 64, "fused_add_norm": True, "rms_norm": True}
CONVERTED |= {"pad_vocab_size_multiple": 8, "ssm_cfg": {}}
CODESTRAL = {"model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128, "n_groups": 8}
CODESTRAL |= {"num_heads": 128, "head_dim": 64, "expand": 2, "conv_kernel": 4, "vocab_size": 32768, "chunk_size": 256}
CODESTRAL |= {"use_conv_bias": True, "tie_word_embeddings": False}
GPT = {"n_positions": 2048, "n_inner": None, "activation_function": "gelu_new"}
DOTS3 = {
    **sizes("dots3_note_text", 5120, 46, 128, 128, 13824, 152064, q_lora_rank=1024, **LATENT),
    **{**INDEXED, "index_n_heads": 64, "moe_intermediate_size": 1536, "n_routed_experts": 256, "n_group": 1},
    **{"num_experts_per_tok": 8, "n_shared_experts": 1, "mlp_layer_types": ["dense"] + ["sparse"] * 45},
    **{"sliding_window_size": 512, "swa_num_attention_heads": 64, "swa_kv_lora_rank": 1024},
    **{"swa_qk_nope_head_dim": 192, "swa_head_dim": 256, "swa_rope_theta": 5e4},
}
BEAM = {
    **sizes("beam", 5120, 52, 48, 8, 20480, 151936, head_dim=128, sliding_window=512, n_group=8, topk_group=4),
    **{"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2560, "final_logit_softcapping": 30.0},
    **{"layer_types": [("sliding" if (i + 1) % 6 and i < 51 else "full") + "_attention" for i in range(52)]},
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 49,
}
LARA = {
    **sizes("lara_mini", 1024, 34, 16, 4, None, 151936, head_dim=128, sliding_window=512, moe_intermediate_size=512),
    **{"num_experts": 128, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 512},
    **{"linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 128},
    **{"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "tie_word_embeddings": True},
    "layer_types": [
        {0: "linear", 1: "sliding", 2: "linear", 3: "full", 4: "sliding", 5: "linear"}[i % 6] + "_attention"
        for i in range(34)
    ],
}
OCR2 = {
    **sizes("deepseek_ocr2_text", 1280, 12, 10, 10, 6848, 129280, head_dim=128, topk_method="greedy"),
    **{"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 896},
    "mlp_layer_types": ["dense"] + ["sparse"] * 11,
}
COMPASS = sizes("cohere_compass_text", 8192, 4, 64, 64, 22528, 256000, sliding_window=4096, pooling=None)
COMPASS |= {
    "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": None}
}
COMPASS |= {"layer_types": ["sliding_attention", "full_attention"] * 2}
ARIA = sizes("aria_text", 4096, 32, 32, 32, 4096, 32000, moe_num_experts=8, moe_topk=2, moe_num_shared_experts=2)
#: Settings, parameters, bytes per token and of states.
COUNTED = {
    # Routers' selection biases are buffers; two tables of n-grams with 320,001,536 and 320,005,120 rows of 128.
    "qwen4_exp": (QWEN4, 96247753344, 2 * 2 * 2 * 256 * 2 + 2 * 2 * 128 // 16, None),
    "glm5_next": (GLM53, 313326816766 + 42 * 288, 11 * (2 * 512 + 132 / 16), None),
    "hy_v4": (HUNYUAN4, 58278193133 + 33 * 256, 34 * 2 * 576 + 10 * 132, 0),
    "bailing_hybrid": (LING3, 124414191072 + 40 * 512, 7 * 2 * 576, None),
    "axk2": (AXK2, 20314494976 + 47 * 128, 48 * (2 * 160 + 132), 0),
    # 62 norms behind attention have no weights.
    "muse_spark": (SPARK, 819990536192 + 62 * (256 + 8192), 62 * 2 * 2 * 16 * 64, 0),
    "inkling": (INKLING, 947025547842 + 64 * 256, 11 * 2 * 2 * 8 * 128 + 55 * 2 * 2 * 16 * 128, None),
    # transformers drops the rows of the LM head that stand for no token.
    "inkling2": (INKLING2, 593718478848 + 48 * 384 + (201024 - 200058) * 4608, 48 * 2 * 2 * 8 * 128, None),
    # 13 layers select; 33 have a window, with 1024 + 64 compressed values.
    "dots3_note": (DOTS3, 278773150336 + 152064 * 5120 + 45 * 256, 13 * (2 * 576 + 132) + 33 * 2 * 1088, 0),
    "beam": (BEAM, 501267599808 + 49 * 256, 52 * 2 * 2 * 8 * 128, 0),
    # Two of four layers have a window, and RoPE.
    "cohere_compass": (COMPASS, 5385527296, 4 * 2 * 2 * 8192, 0),
    "emu3": (sizes("emu3_text_model", 4096, 32, 32, 8, 14336, 184622), 7735799808 + 184622 * 4096, 131072, 0),
    "deepseek_ocr2": (OCR2, 2769255680 + 129280 * 1280, 12 * 2 * 2 * 1280, 0),
    "aria": (ARIA, 18517069824, 32 * 2 * 2 * 4096, 0),
    "lara_mini": (LARA, 7291269024, 17 * 2 * 2 * 4 * 128, None),
    "mamba-2.8b": (MAMBA, 2768345600, 0, 64 * 5120 * (16 * 2 + 3 * 2)),
    "mamba-2.8b-hf": (MAMBA | CONVERTED, 2768345600, 0, 64 * 5120 * (16 * 2 + 3 * 2)),
    "falcon-mamba": (
        {**MAMBA, "model_type": "falcon_mamba", "mixer_rms_eps": 1e-6},
        2768345600,
        0,
        64 * 5120 * (16 * 2 + 3 * 2),
    ),
    "codestral-mamba": (CODESTRAL, 7285403648, 0, 64 * (128 * 64 * 128 * 2 + 10240 * 3 * 2)),
    "bloom": (
        {
            **{"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32, "vocab_size": 250880},
            **{"apply_residual_connection_post_layernorm": False, "offset_alibi": 100, "seq_length": 2048},
            **{"masked_softmax_fusion": True, "bias_dropout_fusion": True, "skip_bias_add": True},
        },
        7069016064,
        30 * 2 * 2 * 4096,
        0,
    ),
    "mpt": (
        {
            **{"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432},
            **{"max_seq_len": 2048, "expansion_ratio": 4, "no_bias": True, "learned_pos_emb": True},
            **{"attn_config": {"attn_type": "multihead_attention", "alibi": True, "alibi_bias_max": 8}},
        },
        6649286656,
        32 * 2 * 2 * 4096,
        0,
    ),
    "gpt_neo": (
        {
            **{"model_type": "gpt_neo", "hidden_size": 2048, "num_layers": 24, "num_heads": 16, "vocab_size": 50257},
            **{"max_position_embeddings": 2048, "attention_types": [[["global", "local"], 12]], "window_size": 256},
            **{"activation_function": "gelu_new", "intermediate_size": None, "resid_dropout": 0, "embed_dropout": 0},
        },
        1315575808,
        24 * 2 * 2 * 2048,
        0,
    ),
    "codegen": (
        {
            **{"model_type": "codegen", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400, **GPT},
            **{"rotary_dim": 64, "tie_word_embeddings": False},
        },
        6050882784,
        28 * 2 * 2 * 4096,
        0,
    ),
    "gpt-sw3": (
        {"model_type": "gpt-sw3", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, **GPT},
        125226240,
        12 * 2 * 2 * 768,
        0,
    ),
    "bitnet": (sizes("bitnet", 2560, 30, 20, 5, 6912, 128256, hidden_act="relu2"), 2741155840, 30 * 2 * 2 * 640, 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_cache_and_states(config, name):
    content, parameters, cached, state = COUNTED[name]
    model = read_model(config(content))
    check_counts(model, parameters, int(cached))
    assert state is None or model.state_bytes == state


@pytest.mark.parametrize("name", COUNTED)
def test_every_weight_is_multiplied_once_per_token(config, name):
    model = read_model(config(COUNTED[name][0]))
    # Biases by distance: of 11 layers with 1024 distances and 55 with 512, 16 values a head. The last sum of streams.
    beside = {"inkling": 64 * 16 * (11 * 1024 + 55 * 512), "hy_v4": 4 * 4 * 2816, "qwen4_exp": 2 * 320 * 4 * 2048}
    beside["inkling2"] = 48 * 48 * 16 * 1024
    check_products(model, 33 * beside.get(name, 0))


@pytest.mark.parametrize(
    "name",
    [
        *("qwen4_exp", "glm5_next", "bailing_hybrid", "inkling", "inkling2", "muse_spark", "dots3_note"),
        *("mamba-2.8b", "gpt_neo"),
    ],
)
def test_any_value_of_any_key_is_read_or_refused(config, name):
    check_hostile_values(config, COUNTED[name][0], share=2)


def test_states_of_hybrids(config):
    """A matrix in 32 bits per head, three tokens of the convolutions, and what waits for a block to fill."""
    delta = 32 * 128 * 128 * 4 + 3 * 2 * (2 * 16 * 128 + 32 * 128)
    # Two layers select; two add n-grams, whose convolution spans 4 of every third token, and keep two tokens.
    qwen4 = 6 * delta + 2 * 16 * 128 * 2 + 2 * (2 * 4 * 2048 * 3 * 3 + 2 * 8)
    assert read_model(config(QWEN4)).state_bytes == qwen4
    kimi = 64 * 128 * 128 * 4 + 3 * 2 * 3 * 64 * 128
    # Keys and their weights of 16 tokens.
    assert read_model(config(GLM53)).state_bytes == 34 * kimi + 11 * 16 * 128 * 2 * 2
    assert read_model(config(LING3)).state_bytes == 35 * (32 * 128 * 128 * 4 + 3 * 2 * 3 * 32 * 128)
    # Keys and values, and the outputs of both blocks: three tokens each.
    inkling = 3 * 2 * (11 * 2 * 8 * 128 + 55 * 2 * 16 * 128 + 66 * 2 * 6144)
    assert read_model(config(INKLING)).state_bytes == inkling
    assert read_model(config(INKLING2)).state_bytes == 48 * 3 * 2 * (2 * 8 * 128 + 2 * 4608)


def test_a_token_uses_some_experts_and_rows_of_tables(config):
    model = read_model(config(QWEN4))
    idle = 8 * 502 * 3 * 2048 * 512 + 128 * (320_001_536 + 320_005_120 - 2 * 16)
    assert model.parameters - model.active_parameters == idle
    frame = kernels(model, decode(100, batch=3)).set_index("kernel")
    # 16 rows of 128 values in 16 bits for each token and layer.
    assert frame.loc["ngram_embedding", "weight_bytes"].tolist() == [3 * 16 * 128 * 2] * 2
    assert frame.loc["ngram_proj", ["n", "k"]].to_numpy().tolist() == [[5 * 2048, 2048]] * 2


def test_blocks_of_keys_have_one_score(config):
    """MACs of the indexer and of attention, by hand."""
    for content, layers, heads in ((QWEN4, 2, 4), (GLM53, 11, 32)):
        frame = kernels(read_model(config(content)), decode(10_000)).set_index("kernel")
        scores = frame.loc["decode_index_scores"]
        # 10,001 tokens have 625 whole blocks of 16.
        assert scores["macs"] == 625 * heads * 128 and scores["count"] == layers
        assert scores["cache_bytes"] == 625 * (256 if heads == 4 else 132)
    # 128 blocks and the tail, 64 heads of 512 + 512 compressed values.
    assert frame.loc["decode_sparse_attention", "macs"] == (2048 + 15) * 64 * 1024
    qwen = kernels(read_model(config(QWEN4)), decode(10_000)).set_index("kernel")
    assert qwen.loc["decode_sparse_attention", "macs"] == (2048 + 15) * 16 * 512
    assert qwen.loc["index_topk", "n"] == 625


def test_what_gates_the_output_of_latent_attention(config):
    def sizes_of(content, kernel):
        frame = kernels(read_model(config(content)), decode(100))
        return frame[frame["kernel"] == kernel].iloc[0][["n", "k"]].tolist()

    assert sizes_of(HUNYUAN4, "attn_gate_proj") == [32 * 256, 2816]
    assert sizes_of(LING3, "attn_gate_proj") == [32, 2560]
    # With the queries, from the compressed ones before and behind their norm.
    assert sizes_of(AXK2, "q_b_proj") == [32 * (96 + 64), 2 * 384]


def test_kinds_of_layers_without_a_base_have_no_rotation(config):
    sliding, full = (group.attention for group in read_model(config(COMPASS)).layers)
    assert (sliding.rotary_dim, full.rotary_dim, sliding.window, full.window) == (128, 0, 4096, None)
    everywhere = COMPASS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    assert {group.attention.rotary_dim for group in read_model(config(everywhere)).layers} == {128}


def test_latent_attention_within_a_window(config):
    model = read_model(config(DOTS3))
    assert [(group.attention.heads, group.attention.window) for group in model.layers] == [
        *[(128, None)] * 2,
        (64, 512),
    ]
    frame = kernels(model, decode(10_000)).set_index("kernel")
    # 64 heads of 1024 + 64 and 1024 values, and 512 keys, each of which is cached once.
    assert frame.loc["decode_attention", "macs"] == 512 * 64 * (1088 + 1024)
    assert frame.loc["decode_attention", "cache_bytes"] == 512 * 1088 * 2
    # The cache of 33 layers ends with their window.
    assert model.kv_bytes(10_000) == 13 * 10_000 * (2 * 576 + 132) + 33 * 512 * 2 * 1088
    # A prompt of 4,096 tokens, expanded: 512 keys for all but the first 511.
    pairs = 512 * 513 // 2 + (4096 - 512) * 512
    prompt = kernels(model, prefill(4096)).set_index("kernel")
    assert prompt.loc["attention", "macs"] == pairs * 64 * (256 + 128)
    # As transformers writes it.
    sliding = {"num_attention_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "qk_nope_head_dim": 192}
    types = [("indexed" if i < 2 or i % 4 == 1 else "sliding") + "_attention" for i in range(46)]
    written = {key: value for key, value in DOTS3.items() if not key.startswith("swa_")} | {"layer_types": types}
    written["per_layer_config"] = {str(i): sliding for i in range(46) if i > 1 and i % 4 != 1}
    assert read_model(config(written)).layers == model.layers


@pytest.mark.parametrize(
    ("kind", "version", "text"), [("minicpmv", 2.6, "qwen2"), ("minicpmv", 4.5, "qwen3"), ("minicpmo", 2.6, "qwen2")]
)
def test_minicpm_v_has_the_keys_of_its_text_part_at_the_top(config, kind, version, text):
    plain = sizes(text, 3584, 28, 28, 4, 18944, 151700, head_dim=128)
    if text == "qwen2":
        del plain["head_dim"]
    whole = plain | {"model_type": kind, "version": version, "query_num": 64, "slice_mode": True, "init_vision": True}
    whole |= {"vision_config": {"image_size": 980, "model_type": "siglip"}, "batch_vision_input": True}
    whole |= {"drop_vision_last_layer": False, "slice_config": {"patch_size": 14}, "use_image_id": True}
    assert read_model(config(whole)).parameters == read_model(config(plain)).parameters
    with pytest.raises(InputError, match="unknown architecture 'minicpmv 9"):
        read_model(config(whole | {"model_type": "minicpmv", "version": 9.1}))


def test_groups_of_layers_end_with_full_attention(config):
    delta, routed, full = read_model(config(LING3)).layers
    assert delta.numbers == (0, 1) and full.numbers == tuple(range(5, 42, 6)) and len(routed.numbers) == 33
    content = LING3 | {"layer_types": ["full_attention"] * 42}
    with pytest.raises(InputError, match="layer_types: differs from layer_group_size 6"):
        read_model(config(content))


def test_narrower_tokens_are_normalised_before_and_behind_every_expert(config):
    frame = kernels(read_model(config(SPARK)), prefill(64)).set_index("kernel")
    # 64 tokens, each with 8 experts, in 4,096 values of 16 bits.
    assert frame.loc["expert_post_norm", "read_bytes"].tolist() == [64 * 8 * 4096 * 2] * 2
    assert frame.loc["latent_down_proj", "n"].tolist() == [4096] * 2


def test_dense_layers_of_inkling_have_a_width_of_their_own(config):
    """As in checkpoints, where intermediate_size is that of experts."""
    stated = INKLING | {"intermediate_size": 3072, "dense_intermediate_size": 24576, "mlp_layer_types": None}
    stated |= {"dense_mlp_idx": 2, "layer_types": None, "local_layer_ids": [i for i in range(66) if i % 6 != 5]}
    del stated["moe_intermediate_size"]
    assert read_model(config(stated)).parameters == read_model(config(INKLING)).parameters


def test_queries_keys_and_values_of_inkling_2_have_inputs_of_their_own(config):
    """In every sixth layer, each with a norm and with weights for what earlier layers made."""
    frame = kernels(read_model(config(INKLING2)), decode(4096))
    full = frame[frame["layers"].eq(frame.loc[frame["kernel"] == "k_proj", "layers"].iloc[0])].set_index("kernel")
    # With queries: their gate, 16 values of biases by distance, and a sink for each of 48 heads.
    assert full.loc["q_proj", ["n", "k", "count"]].tolist() == [48 * (2 * 128 + 16 + 1), 4608, 8]
    # With keys: four weights of the convolution for each of 8 heads.
    assert full.loc["k_proj", "n"] == full.loc["v_proj", "n"] == 8 * (128 + 4)
    assert full.loc["attn_norm", "count"] == 3 * 8
    before_attention = full.loc["residual_sum"].iloc[:8]
    # Layer 5 reads the embedding and its own input, layer 47 eight snapshots and its own.
    assert before_attention["read_bytes"].tolist() == [2 * n * 4608 for n in range(2, 10)]
    assert set(before_attention["write_bytes"]) == {2 * 3 * 4608}
    sliding = frame[frame["kernel"] == "qkv_proj"].iloc[0]
    assert sliding["n"] == 48 * (2 * 128 + 16 + 1) + 2 * 8 * 128


@pytest.mark.parametrize("content", [QWEN4, GLM53, LING3, MAMBA, CODESTRAL, INKLING, INKLING2, AXK2])
def test_devices_share_what_can_be_shared(config, content):
    """The weights of two devices are those of one and what each has in full; states of an indexer are in full."""
    model, work = read_model(config(content)), decode(4096)
    whole, half = (
        memory_bytes(model, Parallel(tensor=tensor), None, work, kernels(model, work, Parallel(tensor=tensor))).iloc[0]
        for tensor in (1, 2)
    )
    assert whole["weight_bytes"] < 2 * half["weight_bytes"] < 1.2 * whole["weight_bytes"]
    assert whole["weight_bytes"] == model.weight_bytes()


def test_layers_that_share_an_indexer_cache_no_keys(config):
    shared = GLM53 | {"indexer_types": ["full"] * 4 + ["shared"] * 41}
    model = read_model(config(shared))
    assert np.isclose(model.kv_bytes_per_token(), 11 * 2 * 512 + 132 // 16, atol=1)
    with refused("indexer_types: the first layer with sparse attention has no indexer"):
        read_model(config(GLM53 | {"indexer_types": ["shared"] * 45}))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (QWEN4 | {"indexer_n_heads": None}, "indexer_n_heads: null is not a whole number"),
        (QWEN4 | {"indexer_budget": 2047}, "indexer_budget: 2047 is not a multiple of 16"),
        (QWEN4 | {"indexer_kv_heads": 2}, "indexer_kv_heads: 2: an indexer with several keys"),
        (QWEN4 | {"ple_layer_ids": [9]}, "ple_layer_ids: not a list of layer numbers within 1 … 8"),
        (QWEN4 | {"heads_per_ngram": 7}, "heads_per_ngram: 14 heads for 2048 values"),
        (QWEN4 | {"ngram_vocab_size_base": 2**31}, "is not within 1 … 1073741824"),
        (GLM53 | {"layer_types": ["conv"] * 45}, "layer_types: not linear_attention or indexed_attention for each"),
        (INKLING | {"shared_expert_sink": False}, "shared_expert_sink: false: shared experts without a score"),
        (INKLING | {"layer_types": ["hybrid"]}, "layer_types: not hybrid or hybrid_sliding for each of 66 layers"),
        (MAMBA | {"use_bias": True}, "use_bias: true: another kind of layer"),
        (COUNTED["gpt_neo"][0] | {"attention_types": [[["global"], "x"]]}, "attention_types: not global or local for"),
        (COUNTED["mpt"][0] | {"attn_config": {"alibi": False}}, "alibi: false: another kind of attention"),
    ],
)
def test_what_is_not_modelled_is_refused(config, content, problem):
    with pytest.raises(InputError, match=problem):
        read_model(config(content))
