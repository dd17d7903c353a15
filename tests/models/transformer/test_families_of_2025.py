"""Architectures of 2023 and later: parameters as transformers counts them, and bytes of the KV cache per token."""

import pytest
from transformer_counts import check_counts, check_products, sizes

from gpuledger.errors import InputError
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model
from gpuledger.models.transformer.families.known import FAMILIES, NOT_MODELLED


def experts(count, active, width, **more):
    return {"num_experts": count, "num_experts_per_tok": active, "moe_intermediate_size": width, **more}


def kinds(layers, full, other="sliding_attention"):
    return {"layer_types": ["full_attention" if i in full else other for i in range(layers)]}


def granite(*heads, layers=40, attention=(5, 15, 25, 35), **more):
    types = ["attention" if i in attention else "mamba" for i in range(layers)]
    return {
        **sizes("granitemoehybrid", *heads, tie_word_embeddings=True, layer_types=types),
        **{"position_embedding_type": "nope", "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4},
        **{"mamba_d_head": 64, "mamba_expand": 2, "mamba_chunk_size": 256, "normalization_function": "rmsnorm", **more},
    }


GRANITE_SMALL = granite(
    *(4096, 40, 32, 8, 768, 100352),
    **{"shared_intermediate_size": 1536, "num_local_experts": 72, "num_experts_per_tok": 10, "mamba_n_heads": 128},
)
GRANITE_MICRO = granite(
    *(2048, 40, 32, 8, 8192, 100352),
    **{"shared_intermediate_size": 8192, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_heads": 64},
)
ERNIE = {
    **sizes("ernie4_5_moe", 2560, 28, 20, 4, 12288, 103424, tie_word_embeddings=True, use_bias=False),
    **{"moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2},
    **{"moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_capacity": [64, 64, 64], "moe_gate": "topk"},
}
HUNYUAN = {
    **sizes("hunyuan_v1_moe", 4096, 32, 32, 8, 3072, 128167, head_dim=128, attention_head_dim=128, use_qk_norm=True),
    **{"num_experts": 64, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "moe_intermediate_size": [3072] * 32},
    **{"tie_word_embeddings": True, "use_mixed_mlp_moe": True, "use_cla": False, "cla_share_factor": 2, "pad_id": 1},
}
EXAONE = sizes(
    *("exaone4", 5120, 64, 40, 8, 27392, 102400),
    **{"head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "max_position_embeddings": 131072},
)
PYTHIA = sizes("gpt_neox", 4096, 32, 32, 32, 16384, 50432, rotary_pct=0.25, hidden_act="gelu", rotary_emb_base=10000)
MINITRON = sizes("nemotron", 4096, 32, 48, 8, 16384, 256000, head_dim=128, hidden_act="relu2", norm_eps=1e-5)
GLM4 = sizes("glm4", 4096, 40, 32, 2, 13696, 151552, attention_bias=True, head_dim=128, partial_rotary_factor=0.5)
GLM45V = {
    "text_config": sizes(
        *("glm4v_moe_text", 4096, 46, 96, 8, 10944, 151552),
        **{"attention_bias": True, "head_dim": 128, "n_routed_experts": 128, "n_shared_experts": 1, "topk_group": 1},
        **{"num_experts_per_tok": 8, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "use_qk_norm": False},
    ),
    **{"model_type": "glm4v_moe", "vision_config": {"hidden_size": 1536}, "tie_word_embeddings": False},
}
MINISTRAL3 = {
    "text_config": sizes("ministral3", 4096, 34, 32, 8, 14336, 131072, head_dim=128, sliding_window=None),
    **{"model_type": "mistral3", "vision_config": {"hidden_size": 1024}, "image_token_index": 10},
}
OMNI = {
    "thinker_config": {
        "text_config": sizes(
            *("qwen3_omni_moe_text", 2048, 48, 32, 4, 768, 152064),
            **{"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        ),
        **{"model_type": "qwen3_omni_moe_thinker", "audio_config": {"d_model": 1280}, "position_id_per_seconds": 13},
    },
    **{"model_type": "qwen3_omni_moe", "talker_config": {}, "code2wav_config": {}, "transformers_version": "4.57.0"},
}
INTERNVL = {
    "llm_config": sizes("qwen2", 3584, 28, 28, 4, 18944, 151674, tie_word_embeddings=False),
    **{"model_type": "internvl_chat", "vision_config": {}, "hidden_size": 3584, "downsample_ratio": 0.5},
    **{"force_image_size": 448, "max_dynamic_patch": 12, "ps_version": "v2", "select_layer": -1, "template": "x"},
}
LING_MINI = {
    **sizes("bailing_moe_v2", 2048, 20, 16, 4, 5120, 157184, head_dim=128, first_k_dense_replace=1, use_qk_norm=True),
    **{"num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 512},
    **{"moe_router_enable_expert_bias": True, "score_function": "sigmoid", "router_dtype": "fp32", "use_bias": False},
}
# Its pattern, and a name of Megatron's for the key/value heads.
NANO_9B = {
    **sizes("nemotron_h", 4480, 56, 40, 8, 15680, 131072, head_dim=128, num_query_groups=8, mlp_hidden_act="relu2"),
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    **{"mamba_num_heads": 128, "mamba_head_dim": 80, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4},
}
# ibm-ai-platform/Bamba-9B-v1.
BAMBA = {
    **sizes("bamba", 4096, 32, 32, 8, 14336, 128256, attn_layer_indices=[9, 18, 27], attn_rotary_emb=64),
    **{"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4},
    **{
        **{"mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True},
        **{"mamba_dt_rank": 256, "mamba_proj_bias": False},
    },
    **{"num_logits_to_keep": 1, "use_mamba_kernels": True, "tie_word_embeddings": False, "rms_norm_eps": 1e-5},
}
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
    "granite-4.0-h-small": (GRANITE_SMALL, 32207337984, 16384),
    "granite-4.0-h-micro": (GRANITE_MICRO, 3191396096, 8192),
    # 9.78 billion (transformers' documentation); its four files of safetensors have 19.56 GB.
    "Bamba-9B": (BAMBA, 9780235392, 3 * 2 * 8 * 128 * 2),
    "ERNIE-4.5-21B-A3B": (ERNIE, 21825437888, 57344),
    "Hunyuan-A13B": (HUNYUAN, 80393183232, 131072),
    "EXAONE-4.0-32B": (EXAONE, 32003216384, 262144),
    "pythia-6.9b": (PYTHIA, 6857302016, 524288),
    "Minitron-8B": (MINITRON, 8271699968, 131072),
    "GLM-4-9B-0414": (GLM4, 9400279040, 40960),
    "GLM-4.5V": (GLM45V, 106852245504 + 45 * 128, 188416),
    "Ministral-3-8B": (MINISTRAL3, 8489553920, 139264),
    "Qwen3-Omni-30B-A3B": (OMNI, 30532646912, 98304),
    "InternVL3-8B": (INTERNVL, 7612820992, 57344),
    "AFM-4.5B": (sizes("arcee", 2560, 36, 20, 4, 18432, 128004, head_dim=128, hidden_act="relu2"), 4619184640, 73728),
    # 16.26 billion; norms of heads, and a bias of each expert's choice.
    "Nemotron-Nano-9B-v2": (NANO_9B, 8888227328, 16384),
    "Ling-mini-2.0": (LING_MINI, 16255643392, 40960),
    # Two constants of each layer's activation are not counted.
    "Apertus-8B": (
        sizes("apertus", 4096, 32, 32, 8, 21504, 131072, hidden_act="xielu", qk_norm=True),
        8053338176,
        131072,
    ),
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
    "granite_docling_text": "granite",
    "cosmos3_edge_text": "arcee",
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
    contents = {"EXAONE-4.0-32B": EXAONE, "Trinity": TRINITY, "K-EXAONE": K_EXAONE}
    contents["granite_swa"] = COUNTED["granite_swa"][0] | {"layer_rope_theta": [0, 1e4, 1e4, 1e4] * 6}
    for name, content in contents.items():
        groups = read_model(config(content)).layers
        found = {(bool(group.attention.window), group.attention.rotary_dim) for group in groups}
        assert found == {(True, 128), (False, 0)}, name


@pytest.mark.parametrize(("pattern", "windows"), [(4, 48), (2, 32), (None, 48), ("LG", 32), ("LLGL", 48)])
def test_a_pattern_of_windows_is_a_number_or_signs(config, pattern, windows):
    model = read_model(config({**EXAONE, "sliding_window_pattern": pattern}))
    assert sum(group.count for group in model.layers if group.attention.window) == windows


def test_a_state_of_granite_has_16_bits(config):
    # 36 layers: 128 heads of 64 × 128, and three tokens of 8,192 + 2 · 128 values.
    assert read_model(config(GRANITE_SMALL)).state_bytes == 36 * (128 * 64 * 128 * 2 + 3 * (8192 + 256) * 2)


def test_bamba_lists_its_attention(config):
    model = read_model(config(BAMBA))
    mamba, attention = model.layers
    assert attention.numbers == (9, 18, 27) and attention.attention.rotary_dim == 64
    # 29 layers: 128 heads of 64 × 128, and three tokens of 8,192 + 2 · 128 values.
    assert model.state_bytes == 29 * (128 * 64 * 128 * 2 + 3 * (8192 + 256) * 2)
    # The shapes of modeling_bamba.py: in_proj, out_proj, the convolution with its bias, three vectors of heads, a norm.
    hidden, inner, mixed, heads = 4096, 8192, 8192 + 2 * 128, 128
    layer = hidden * (inner + mixed + heads) + inner * hidden + 5 * mixed + 3 * heads + inner
    full = 2 * hidden * hidden + 2 * hidden * 8 * 128
    around = 3 * hidden * 14336 + 2 * hidden
    assert model.parameters == 29 * layer + 3 * full + 32 * around + 2 * 128256 * hidden + hidden
    assert mamba.count == 29
    assert len(read_model(config({**BAMBA, "attn_layer_indices": None})).layers) == 1


@pytest.mark.parametrize(
    ("content", "ignored", "plain"),
    [
        (GRANITE_SMALL, "re:.*mamba.*", {("StateSpace", "out_proj"), ("StateSpace", "ssm_in_proj")}),
        (GRANITE_SMALL, "re:.*self_attn.*", {("Attention", "out_proj"), ("Attention", "qkv_proj")}),
        (
            GRANITE_SMALL,
            "re:.*shared_mlp.output_linear",
            {("Attention", "shared_down_proj"), ("StateSpace", "shared_down_proj")},
        ),
        (
            GRANITE_MICRO,
            "re:.*shared_mlp.input_linear",
            {("Attention", "gate_up_proj"), ("StateSpace", "gate_up_proj")},
        ),
        (HUNYUAN, "re:.*shared_mlp.*", {("Attention", f"shared_{name}_proj") for name in ("down", "gate_up")}),
        (HUNYUAN, "model.layers.3.mlp.shared_mlp.down_proj", {("Attention", "shared_down_proj")}),
        (LING_MINI, "re:.*attention.query_key_value", {("Attention", "qkv_proj")}),
    ],
)
def test_modules_that_are_not_quantised(config, content, ignored, plain):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}
    settings = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head", ignored]}
    model = read_model(config({**content, "quantization_config": settings}))
    found = {(type(group.attention).__name__, kernel) for group in model.layers for kernel, *_ in group.formats}
    assert found == plain


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({**GRANITE_SMALL, "layer_types": ["mamba"] * 39}, "layer_types: not mamba or attention for each of 40 layers"),
        ({**BAMBA, "attn_layer_indices": [9, 32]}, "attn_layer_indices: not a list of numbers within 0 … 31"),
        ({**BAMBA, "attn_layer_indices": 9}, "attn_layer_indices: not a list of numbers within 0 … 31"),
        ({**BAMBA, "attn_rotary_emb": 128}, "attn_rotary_emb: 128: differs from partial_rotary_factor"),
        ({**BAMBA, "mamba_proj_bias": True}, "mamba_proj_bias: true: projections with a bias"),
        ({**GRANITE_SMALL, "mamba_d_head": 32}, "mamba_n_heads: 128 heads of 32 are not 8192 wide"),
        ({**GRANITE_SMALL, "mamba_n_groups": 3}, "mamba_n_groups: 128 heads are not a multiple of 3"),
        ({**GRANITE_SMALL, "position_embedding_type": "alibi"}, "position_embedding_type: unknown value 'alibi'"),
        ({**HUNYUAN, "moe_topk": [8] * 31 + [4]}, "moe_topk: .*not a whole number"),
        ({**HUNYUAN, "moe_topk": 65}, "moe_topk: a token uses 65 of 64 experts"),
        ({**HUNYUAN, "use_cla": True}, "use_cla: true: another kind of attention"),
        ({**EXAONE, "sliding_window_pattern": "LLX"}, "sliding_window_pattern: 'LLX' is not a sequence of L and G"),
        ({**ERNIE, "moe_k": 65}, "moe_k: a token uses 65 of 64 experts"),
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
def test_what_is_not_modelled_is_refused(config, content, problem):
    with pytest.raises(InputError, match=problem):
        read_model(config(content))


@pytest.mark.parametrize("kind", NOT_MODELLED)
def test_an_architecture_that_is_not_modelled_says_which_part(config, kind):
    with pytest.raises(InputError) as raised:
        read_model(config({**BAMBA, "model_type": kind}))
    assert f"'{kind}' is not modelled: {NOT_MODELLED[kind]}" in str(raised.value)
    assert "treat_as" not in str(raised.value) and kind not in FAMILIES
    # As released checkpoints that see nest it.
    with pytest.raises(InputError, match=f"'{kind}' is not modelled"):
        read_model(config({"model_type": "any", "text_config": {**BAMBA, "model_type": kind}}))
