"""Architectures since the end of 2025: parameters as transformers counts them, and bytes of the KV cache per token."""

import pytest
from transformer_counts import check_counts, check_products

from gpuledger.errors import InputError
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model


def sizes(kind, hidden, layers, heads, kv_heads, inner, vocab, **more):
    return {
        **{"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads},
        **{"num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": vocab, **more},
    }


def experts(count, active, width, **more):
    return {"num_experts": count, "num_experts_per_tok": active, "moe_intermediate_size": width, **more}


def kinds(layers, full, other="sliding_attention"):
    return {"layer_types": ["full_attention" if i in full else other for i in range(layers)]}


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
TRINITY = {
    **sizes("afmoe", 1024, 56, 8, 2, 3072, 200192, head_dim=128, sliding_window=2048, mup_enabled=True),
    **experts(128, 8, 256, num_shared_experts=1, num_dense_layers=2, route_norm=True, score_func="sigmoid"),
    **{"global_attn_every_n_layers": 4, "max_position_embeddings": 131072, "num_expert_groups": 1},
}
HY3 = {
    **sizes("hy_v3", 4096, 80, 64, 8, 13312, 120832, head_dim=128, qk_norm=True, num_nextn_predict_layers=1),
    **experts(192, 8, 1536, num_shared_experts=1, first_k_dense_replace=1, expert_hidden_dim=1536),
    **{"router_scaling_factor": 2.826, "moe_router_enable_expert_bias": True, "enable_lm_head_fp32": True},
}
K_EXAONE = {
    **sizes("exaone_moe", 6144, 48, 64, 8, 18432, 153600, head_dim=128, sliding_window=128, topk_method="noaux_tc"),
    **experts(128, 8, 2048, num_shared_experts=1, first_last_k_dense_replace=1, is_moe_layer=[False] + [True] * 47),
    **{"sliding_window_pattern": "LLLG", "max_position_embeddings": 262144, **kinds(48, range(3, 48, 4))},
}
LFM2 = {
    **{"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_heads": 32},
    **{"num_key_value_heads": 8, "block_ff_dim": 12288, "vocab_size": 65536, "conv_L_cache": 3, "conv_dim": 2048},
    **{"full_attn_idxs": [2, 5, 8, 10, 12, 14], "block_use_swiglu": True, "block_mlp_init_scale": 1.0},
    **{"block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0},
}
LFM2_MOE = {
    **sizes("lfm2_moe", 2048, 24, 32, 8, 7168, 65536, conv_L_cache=3, use_expert_bias=True),
    **experts(32, 4, 1792, num_dense_layers=2, **kinds(24, (2, 6, 10, 14, 18, 21), "conv")),
}
LFM3 = {
    **sizes("lfm3", 2048, 24, 16, 4, 7680, 128000, head_dim=128, sliding_window=256, conv_L_cache=7),
    "layer_types": [
        ("conv", "sliding_attention", "full_attention")[2 if i % 4 == 2 else (not i % 4 and i > 0)] for i in range(24)
    ],
    **{"use_sandwich_norm": True, "use_attention_gate": True, "max_position_embeddings": 128000},
    "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}, "sliding_attention": {}},
}
LAGUNA = {
    **sizes("laguna", 2048, 8, 48, 8, 8192, 100352, head_dim=128, sliding_window=512, gating="per-head"),
    **experts(256, 8, 512, shared_expert_intermediate_size=512, mlp_layer_types=["dense"] + ["sparse"] * 7),
    **{"num_attention_heads_per_layer": [48, 64, 64, 64] * 2, **kinds(8, (0, 4))},
}
OLMO_HYBRID = {
    **sizes("olmo_hybrid", 3840, 32, 30, 30, 11008, 100352, linear_num_key_heads=30, linear_num_value_heads=30),
    **{"linear_key_head_dim": 96, "linear_value_head_dim": 192, "linear_conv_kernel_dim": 4, "linear_dt_max": 0.1},
    **{"linear_allow_neg_eigval": True, **kinds(32, range(3, 32, 4), "linear_attention")},
}

#: Content, parameters and bytes of the cache per token. Biases of the choice of experts are counted here alone.
COUNTED = {
    "Trinity-Nano": (TRINITY, 6120003328, 57344),
    "Hy3": (HY3, 295033528320 + 79 * 192, 327680),
    "K-EXAONE-236B-A23B": (K_EXAONE, 236571150336 + 47 * 128, 196608),
    "LFM2-1.2B": (LFM2, 1170340608, 12288),
    "LFM2-8B-A1B": (LFM2_MOE, 8339929856 + 22 * 32, 12288),
    "LFM3": (LFM3, 1728801536, 22528),
    "Laguna": (LAGUNA, 6410442496, 32768),
    "OLMo-Hybrid-7B": (OLMO_HYBRID, 7430870688, 122880),
    "EXAONE-3.0-7.8B": (
        {
            **sizes("exaone", 4096, 32, 32, 8, 14336, 102400, num_layers=32, activation_function="silu"),
            "num_hidden_layers": 32,
        },
        7818448896,
        131072,
    ),
    "HyperCLOVAX": (sizes("hyperclovax", 4096, 32, 32, 32, 11008, 32000, use_post_norm=True), 6738677760, 524288),
    "IQuest-Coder-40B": (sizes("iquestcoder", 5120, 80, 40, 8, 27648, 76800, head_dim=128), 39794283520, 327680),
    "Jais-2-8B": (sizes("jais2", 3328, 32, 26, 26, 26624, 150272, hidden_act="relu2"), 8090401280, 425984),
    "VaultGemma-like": (sizes("vaultgemma", 2304, 26, 8, 4, 9216, 256000, head_dim=256), 2614222080, 106496),
    "granite_swa": (
        sizes("granite_swa", 2560, 24, 20, 4, 8192, 100352, sliding_window=128, **kinds(24, range(0, 24, 4))),
        2144463840,
        49152,
    ),
    "Youtu-LLM-2B": (
        sizes("youtu", 2048, 32, 16, 16, 6144, 128256, q_lora_rank=1536, embedding_initializer_range=0.1, **LATENT),
        1961560064,
        36864,
    ),
    "MiniCPM3-4B": (
        {
            **sizes(
                "minicpm3", 2560, 62, 40, 40, 6400, 73448, q_lora_rank=768, scale_depth=1.4, tie_word_embeddings=True
            ),
            **{"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "scale_emb": 12},
        },
        4073875968,
        35712,
    ),
    "A.X-K1": (
        {
            **sizes("axk1", 7168, 61, 64, 64, 18432, 163840, q_lora_rank=1536, first_k_dense_replace=1, **LATENT),
            **{"n_routed_experts": 192, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1},
        },
        518983052288 + 60 * 192,
        70272,
    ),
    "sarvam-105b": (
        {
            **sizes("sarvam_mla", 4096, 32, 64, 64, 16384, 262144, q_lora_rank=None, first_k_dense_replace=1, **LATENT),
            **experts(128, 8, 2048, num_shared_experts=1),
        },
        106031763456 + 31 * 128,
        36864,
    ),
    "sarvam-30b": (
        {
            **sizes("sarvam_moe", 4096, 19, 64, 4, 8192, 262144, head_dim=64, first_k_dense_replace=1),
            **experts(128, 6, 1024, num_shared_experts=1),
        },
        32152648064 + 18 * 128,
        19456,
    ),
    "Mellum2-12B": (
        {
            **sizes("mellum", 2304, 28, 32, 4, 7168, 98304, head_dim=128, sliding_window=1024, **kinds(28, range(28))),
            **experts(64, 8, 896, mlp_layer_types=["sparse"] * 28),
        },
        12149923072,
        57344,
    ),
    "kolibri1": (
        {
            **sizes("kolibri1", 2560, 50, 48, 4, 6144, 128000, head_dim=128, sliding_window=513),
            **experts(384, 6, 512, shared_expert_intermediate_size=512, **kinds(50, range(4, 50, 5))),
        },
        78103055360 + 50 * 384,
        102400,
    ),
    "flint": (
        {
            **sizes("flint", 2048, 49, 32, 4, 6144, 150144, head_dim=128, sliding_window=513),
            **experts(256, 6, 512, shared_expert_intermediate_size=1024, **kinds(49, (0, *range(1, 49, 4), 48))),
        },
        39785287456,
        100352,
    ),
}


#: Text parts of multimodal models, and what they are.
TEXTS = {
    "apertus1p5_text": "apertus",
    "granite4_vision_text": "granite",
    "hunyuan_vl_text": "hunyuan_v1_dense",
    "paddleocr_vl_text": "ernie4_5",
}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_cache(config, name):
    content, parameters, cached = COUNTED[name]
    check_counts(read_model(config(content)), parameters, cached)


@pytest.mark.parametrize("name", COUNTED)
def test_every_weight_is_multiplied_once_per_token(config, name):
    check_products(read_model(config(COUNTED[name][0])))


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_part_with_a_name_of_its_own_is_another_architecture(config, kind):
    text = sizes(kind, 1024, 18, 16, 2, 3072, 103424, head_dim=128, max_position_embeddings=131072)
    whole = {"model_type": kind.removesuffix("_text"), "text_config": text, "vision_config": {"hidden_size": 1152}}
    model = read_model(config(whole))
    assert model.layers == read_model(config(text | {"model_type": TEXTS[kind]})).layers


def test_a_short_convolution_keeps_a_state_and_no_cache(config):
    model = read_model(config(LFM2))
    # Ten layers keep two tokens of 2,048 channels.
    assert model.state_bytes == 10 * 2 * 2048 * 2
    frame = kernels(model, decode(4096, batch=8))
    conv = frame[frame["kernel"] == "decode_ssm_conv"].iloc[0]
    assert (conv["count"], conv["batch"], conv["n"], conv["k"]) == (10, 8, 2048, 3)
    # Two products with gates, each of two values and one result.
    gates = frame[frame["kernel"] == "attn_gate"]
    assert gates["count"].sum() == 20 and (gates["read_bytes"] == 8 * 2 * 2048 * 2).all()
    halves = kernels(model, decode(4096, batch=8), Parallel(tensor=2))
    assert halves[halves["kernel"] == "decode_ssm_conv"]["n"].tolist() == [1024]
    with pytest.raises(InputError, match="channels of the convolution"):
        kernels(model, decode(16), Parallel(tensor=3))


def test_a_norm_behind_the_experts_is_a_kernel_of_its_own(config):
    frame = kernels(read_model(config(COUNTED["A.X-K1"][0])), prefill(16))
    assert frame[frame["kernel"] == "ffn_post_norm"]["count"].sum() == 60
    assert "attn_post_norm" not in set(frame["kernel"])


def test_only_layers_with_a_window_have_a_rotation(config):
    for content in (TRINITY, K_EXAONE):
        groups = read_model(config(content)).layers
        assert {(bool(group.attention.window), bool(group.attention.rotary_dim)) for group in groups} == {
            (True, True),
            (False, False),
        }
    layers = read_model(config(COUNTED["granite_swa"][0] | {"layer_rope_theta": [0, 1e4, 1e4, 1e4] * 6})).layers
    assert {(group.attention.window, group.attention.rotary_dim) for group in layers} == {(None, 0), (128, 128)}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (LFM2 | {"full_attn_idxs": None}, "layer_types: not conv, full_attention, sliding_attention for each of 16"),
        (LFM2 | {"conv_dim": 1024}, "conv_dim: 1024: differs from hidden_size"),
        (LFM2 | {"block_ffn_dim_multiplier": 1e20}, "block_ffn_dim_multiplier: .* gives a width of"),
        (LAGUNA | {"num_attention_heads_per_layer": [48] * 7}, "not a number for each of 8 layers"),
        (LAGUNA | {"num_attention_heads_per_layer": [50] * 8}, "not multiples of 8 key/value heads"),
        (LAGUNA | {"moe_apply_router_weight_on_input": True}, "experts whose input is scaled"),
        (K_EXAONE | {"is_moe_layer": [True] * 48}, "differs from first_k_dense_replace"),
        (HY3 | {"expert_hidden_dim": 1}, "expert_hidden_dim: 1: differs from"),
        (COUNTED["granite_swa"][0] | {"layer_rope_theta": [1]}, "not a base for each of 24 layers"),
    ],
)
def test_what_contradicts_itself_is_refused(config, content, problem):
    with pytest.raises(InputError, match=problem):
        read_model(config(content))
