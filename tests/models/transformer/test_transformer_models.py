"""Models from config.json: parameters as published, the traps of real files, and one line for what is wrong."""

import json
from dataclasses import replace

import huggingface_hub
import pytest
from conftest import ROOT
from huggingface_hub import errors
from transformer_counts import check_products, sizes

from gpuledger.errors import InputError
from gpuledger.models.transformer import (
    Attention,
    Experts,
    LatentAttention,
    Parallel,
    Precision,
    chunk,
    configuration,
    decode,
    join,
    kernels,
    prefill,
    read_model,
)
from gpuledger.models.transformer.formats.precision import number_format
from gpuledger.models.transformer.kernels import FUSIONS

# Exact counts of the checkpoints. Sources, each found in public repositories that quote them: `hub`: safetensors.total
# of the hub's API for the model (huggingface.co/api/models/<id>); `gguf`: general.parameter_count of its GGUF file,
# which llama.cpp and Ollama print; `headers`: a recount of the headers of all shards; `code`: the library that trained
# or serves it prints it.
PUBLISHED = {
    "Llama-3.1-8B": 8_030_261_248,  # hub
    "Llama-3.1-70B": 70_553_706_496,  # hub
    "Llama-3.1-405B": 405_853_388_800,  # hub
    "Mixtral-8x7B-v0.1": 46_702_792_704,  # hub
    "DeepSeek-V3": 671_026_419_200,  # headers, without the layer of multi-token prediction
    "Qwen3-8B": 8_190_735_360,  # hub
    "Qwen3-30B-A3B": 30_532_122_624,  # gguf
    "Qwen2.5-7B-Instruct": 7_615_616_512,  # gguf
    "Qwen2.5-VL-7B-Instruct": 8_292_166_656 - 676_550_144,  # hub, with the vision tower
    "gpt2": 124_439_808,  # code (Hugging Face transformers, KerasHub)
    "gemma-2-9b": 9_241_705_984,  # hub
    "gpt-oss-20b": 20_914_757_184,  # gguf
    "Phi-3-mini-4k-instruct": 3_821_079_552,  # hub
}
LLAMA = sizes("llama", 2048, 16, 32, 8, 8192, 128256, tie_word_embeddings=True)
QWEN3 = {
    **LLAMA,
    **{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    **{"num_attention_heads": 16, "head_dim": 128, "vocab_size": 151936},
}
V2_LITE = {
    **sizes("deepseek_v2", 2048, 27, 16, 16, 10944, 102400),
    **{"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"aux_loss_alpha": 0.001, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2},
    **{"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "greedy"},
    **{"auto_map": {"AutoConfig": "x"}},
}
OLMOE = {
    **sizes("olmoe", 2048, 16, 16, 16, 1024, 50304),
    **{"clip_qkv": None, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
    **{"router_aux_loss_coef": 0.01},
}
QWEN15_MOE = {
    **sizes("qwen2_moe", 2048, 24, 16, 16, 5632, 151936),
    **{"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408},
    **{"shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1, "max_window_layers": 21},
    **{"sliding_window": 32768, "use_sliding_window": False},
}
PHI4_MINI = {
    **sizes("phi3", 3072, 32, 24, 8, 8192, 200064),
    **{"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "sliding_window": 262144},
    **{"max_position_embeddings": 131072, "lm_head_bias": False, "full_attn_mod": 1, "interpolate_factor": 1},
    **{"rope_scaling": {"type": "longrope", "long_factor": [1.0]}},
}
GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {
        **{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        **{"sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    **{"boi_token_index": 255999, "mm_tokens_per_image": 256, "torch_dtype": "bfloat16"},
}
GPT_OSS_120B = {
    **{"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36},
    **{"num_attention_heads": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "experts_per_token": 4},
    **{"vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4"}},
}
MISTRAL = sizes("mistral", 4096, 32, 32, 8, 14336, 32000, max_position_embeddings=32768)
# MiniMaxAI/MiniMax-M2.5
MINIMAX = {
    **sizes("minimax_m2", 3072, 62, 48, 8, 1536, 200064),
    **{"head_dim": 128, "rotary_dim": 64, "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": True},
    **{"qk_norm_type": "per_layer", "attn_type_list": [1] * 62, "use_routing_bias": True, "use_mtp": True},
    **{"num_mtp_modules": 3},
}
OTHERS = {
    1_235_814_400: {**LLAMA, "head_dim": 64},  # hub: meta-llama/Llama-3.2-1B
    596_049_920: QWEN3,  # code: Qwen/Qwen3-0.6B
    15_706_484_224: V2_LITE,  # code: deepseek-ai/DeepSeek-V2-Lite in chatllm.cpp
    6_919_161_856: OLMOE,  # headers: allenai/OLMoE-1B-7B-0924
    14_315_784_192: QWEN15_MOE,  # code: Qwen/Qwen1.5-MoE-A2.7B in KerasHub
    3_836_021_760: PHI4_MINI,  # hub: microsoft/Phi-4-mini-instruct
    7_241_732_096: MISTRAL,  # hub: mistralai/Mistral-7B-v0.1
    116_829_156_672: GPT_OSS_120B,  # gguf
    228_689_764_864: MINIMAX,  # gguf and hub: MiniMaxAI/MiniMax-M2 and M2.7
    # hub: google/gemma-3-4b-it has 4,300,079,472 with the vision tower (416,866,032) and its projector (2,950,272).
    4_300_079_472 - 416_866_032 - 2_950_272: GEMMA3_4B,
}

GLM5 = {
    **sizes("glm_moe_dsa", 6144, 78, 64, 64, 12288, 154880),
    **{"kv_lora_rank": 512, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256},
    **{"v_head_dim": 256, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1},
    **{"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_rope_interleave": True},
}
GLM52 = {
    **GLM5,
    **{"indexer_types": ["full" if i < 3 or i % 4 == 2 else "shared" for i in range(78)], "index_topk_freq": 4},
    **{"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75, "layer_types": ["deepseek_sparse_attention"] * 78},
}
V32 = {
    **sizes("deepseek_v32", 7168, 61, 128, 128, 18432, 129280),
    **{"kv_lora_rank": 512, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "index_head_dim": 128, "index_n_heads": 64},
    **{"index_topk": 2048},
}
QWEN35_27B = {
    "model_type": "qwen3_5",
    "text_config": {
        **sizes("qwen3_5_text", 5120, 64, 24, 4, 17408, 248320),
        **{"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16},
        **{"linear_num_value_heads": 48, "linear_value_head_dim": 128, "full_attention_interval": 4},
        **{"attn_output_gate": True, "mtp_num_hidden_layers": 1, "rope_parameters": {"partial_rotary_factor": 0.25}},
    },
}
QWEN35_397B = {
    **{"model_type": "qwen3_5_moe_text", "hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32},
    **{"num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "num_experts": 512, "num_experts_per_tok": 10},
    **{"moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "linear_conv_kernel_dim": 4},
    **{"linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64},
    **{"linear_value_head_dim": 128, "mamba_ssm_dtype": "float32"},
}
LLAMA4 = {
    **sizes("llama4_text", 5120, 48, 40, 8, 8192, 202048),
    **{"intermediate_size_mlp": 16384, "head_dim": 128, "num_experts_per_tok": 1, "attention_chunk_size": 8192},
    **{"use_qk_norm": True},
}
SCOUT = {**LLAMA4, "num_local_experts": 16, "interleave_moe_layer_step": 1}
MAVERICK = {**LLAMA4, "num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False}
CODER = {
    **sizes("qwen3_moe", 6144, 62, 96, 8, 8192, 151936),
    **{"head_dim": 128, "num_experts": 160, "num_experts_per_tok": 8, "moe_intermediate_size": 2560},
    **{"use_qk_norm": True},
}
MIMO = {
    **sizes("mimo", 4096, 36, 32, 8, 11008, 151680),
    **{"head_dim": 128, "attention_bias": True, "use_mrope": False, "num_nextn_predict_layers": 1},
}
NEMOTRON3_NANO = {
    **sizes("nemotron_h", 2688, 52, 32, 2, 1856, 131072),
    **{"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "head_dim": 128},
    **{"mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4},
    **{"mlp_hidden_act": "relu2", "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856},
    **{"n_shared_experts": 1, "moe_shared_expert_intermediate_size": 3712, "chunk_size": 128},
}
NEMOTRON3_SUPER = {
    **NEMOTRON3_NANO,
    **{"hidden_size": 4096, "num_hidden_layers": 88, "hybrid_override_pattern": None, "mamba_num_heads": 128},
    "layers_block_type": [
        {"M": "mamba", "E": "moe", "*": "attention"}[sign]
        for sign in "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    ],
    **{"n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_latent_size": 1024},
    **{"moe_shared_expert_intermediate_size": 5376, "num_nextn_predict_layers": 1},
}
NEMOTRON_H_56B = {
    **sizes("nemotron_h", 8192, 118, 64, 8, 32768, 131072),
    **{"hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-", "attention_head_dim": 128},
    **{"mamba_num_heads": 256, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 256, "conv_kernel": 4},
}
KIMI_K2 = {
    **sizes("kimi_k2", 7168, 61, 64, 64, 18432, 163840),
    **{"first_k_dense_replace": 1, "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"moe_intermediate_size": 2048, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
}
GLM45_AIR = {
    **sizes("glm4_moe", 4096, 46, 96, 8, 10944, 151552),
    **{"head_dim": 128, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "attention_bias": True, "use_qk_norm": False},
    **{"partial_rotary_factor": 0.5},
}
OLMO2 = sizes("olmo2", 4096, 32, 32, 32, 11008, 100352)
GLM47_FLASH = {
    **{"model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10240, "num_hidden_layers": 47},
    **{"num_attention_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192},
    **{"qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 64, "num_experts_per_tok": 4},
    **{"n_shared_experts": 1, "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "vocab_size": 154880},
}
QWEN3_NEXT = {
    **sizes("qwen3_next", 2048, 48, 16, 2, 5120, 151936),
    **{"head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512},
    **{"shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32},
    **{"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
}
SEED_OSS = {
    **sizes("seed_oss", 5120, 64, 80, 8, 27648, 155136),
    **{"head_dim": 128, "attention_bias": True, "attention_out_bias": False},
}
QWEN25_VL = {
    **sizes("qwen2_5_vl", 3584, 28, 28, 4, 18944, 152064),
    **{"tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 32768},
    **{"vision_start_token_id": 151652, "vision_config": {"depth": 32, "hidden_size": 1280}},
}
PHI2 = {
    **sizes("phi", 2560, 32, 32, 32, 10240, 51200),
    **{"hidden_act": "gelu_new", "partial_rotary_factor": 0.4, "qk_layernorm": False, "tie_word_embeddings": False},
}
STARCODER2 = {
    **sizes("starcoder2", 4608, 32, 36, 4, 18432, 49152),
    **{"use_bias": True, "activation_function": "gelu", "hidden_act": "gelu_pytorch_tanh", "mlp_type": "default"},
    **{"norm_type": "layer_norm", "norm_epsilon": 1e-5, "sliding_window": 4096, "attention_softmax_in_fp32": True},
}
INTERNLM2 = sizes("internlm2", 4096, 32, 32, 8, 14336, 92544, bias=False, tie_word_embeddings=False)
LLAVA = {
    **{"model_type": "llava", "image_token_index": 32000, "projector_hidden_act": "gelu", "vision_feature_layer": -2},
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    **{"tie_word_embeddings": False, "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024}},
}
OTHERS |= {
    6_738_415_616 + 2 * 64 * 4096: LLAVA,  # llava-hf/llava-1.5-7b-hf: Llama-2-7B (hub) and 64 tokens more
    # hub: Qwen/Qwen2.5-VL-7B-Instruct has 8,292,166,656 with the vision tower and its projector (676,550,144).
    8_292_166_656 - 676_550_144: QWEN25_VL,
    2_779_683_840: PHI2,  # hub: microsoft/phi-2
    7_173_923_840: STARCODER2,  # hub: bigcode/starcoder2-7b
    7_737_708_544: INTERNLM2,  # hub: internlm/internlm2-chat-7b
    29_943_393_920: GLM47_FLASH,  # gguf: zai-org/GLM-4.7-Flash
    79_674_391_296: QWEN3_NEXT,  # gguf and hub: Qwen/Qwen3-Coder-Next
    36_151_104_512: SEED_OSS,  # hub: ByteDance-Seed/Seed-OSS-36B-Instruct
    7_298_617_344: OLMO2,  # hub: allenai/OLMo-2-1124-7B
    743_911_218_432: GLM5,  # Fireworks' catalogue of models: zai-org/GLM-5
    26_895_998_464: QWEN35_27B,  # gguf: Qwen/Qwen3.5-27B
    396_346_350_336: QWEN35_397B,  # headers: Qwen/Qwen3.5-397B-A17B, text
    480_154_875_392: CODER,  # hub: Qwen/Qwen3-Coder-480B-A35B-Instruct
    31_577_940_288: NEMOTRON3_NANO,  # gguf: nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B
    120_668_707_840: NEMOTRON3_SUPER,  # gguf: nvidia/NVIDIA-Nemotron-3-Super-120B-A12B
    1_026_408_232_448: KIMI_K2,  # headers: moonshotai/Kimi-K2-Instruct
}
# Billions of parameters, and of them active, as model cards, reports and the hub give them. What the checkpoints hold
# besides is subtracted: multi-token prediction (MiMo: a layer and a projection, 0.21; DeepSeek-V3.2: 13.5; GLM-5.2: a
# layer with an indexer, and a projection, 9.9). Where the tables of the vocabulary are not counted as active, they are
# added: 1.9 each for GLM-5 and DeepSeek.
ROUNDED = {
    "GLM-5": (GLM5, 744, 40 + 1.9),  # zai-org/GLM-5, model card
    "GLM-5.2": (GLM52, 743.377, 40 + 1.9),  # hub: 753,329,940,480, with 9.953 (tested below); report of GLM-5
    "DeepSeek-V3.2": (V32, 685.4 - 13.5, 37 + 1.9),  # hub: 685,396,921,376; report of DeepSeek-V3
    "Qwen3.5-397B-A17B": (QWEN35_397B, 396.35, 17),  # model card
    "Llama-4-Scout": (SCOUT, 107.77, 17),  # llama.cpp: 107.77 B; model card
    "Llama-4-Maverick": (MAVERICK, 401.58 - 0.87, 17),  # hub: 401,583,781,376, with the vision tower; model card
    "Qwen3-Coder-480B-A35B": (CODER, 480.15, 35),  # model card
    "Nemotron-3-Nano": (NEMOTRON3_NANO, 31.58, 3.6),  # model card
    "Nemotron-3-Super": (NEMOTRON3_SUPER, 120.67, 12.7),  # model card
    "Nemotron-H-56B": (NEMOTRON_H_56B, 56.3, 56.3),  # its name and report round to 56; no exact count was found
    "MiMo-7B": (MIMO, 7.83 - 0.21, 7.83 - 0.21),  # XiaomiMiMo/MiMo-7B-Base: hub, as its page shows it
}


def unquantised(group):
    """Kernels whose weights a quantised checkpoint leaves as they were in these layers."""
    return {kernel for kernel, weights, _ in group.formats if not weights}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name):
    assert read_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("parameters", OTHERS)
def test_parameters_of_others_of_the_families(config, parameters):
    model = read_model(config(OTHERS[parameters]))
    assert model.parameters == parameters
    check_products(model)


def test_gpt_2_with_the_keys_of_its_time(config):
    content = {
        **{"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "n_ctx": 1024},
        **{"vocab_size": 50257, "activation_function": "gelu_new", "output_past": True},
        **{"predict_special_tokens": True, "n_special": 1},
    }
    model = read_model(config(content))
    assert model.parameters == 1_557_611_200 and model.kv_bytes_per_token() == 48 * 2 * 1600 * 2


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_counts_of_families_without_exact_ones(config, name):
    content, billions, active = ROUNDED[name]
    model = read_model(config(content))
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    assert model.active_parameters / 1e9 == pytest.approx(active, abs=0.7)
    check_products(model)


@pytest.mark.parametrize(
    ("content", "on_the_hub", "tables"), [(GLM45_AIR, 110_468_824_832, 2), (GLM52, 753_329_940_480, 0)]
)
def test_counts_of_the_hub_with_a_layer_of_multi_token_prediction(config, content, on_the_hub, tables):
    """zai-org/GLM-4.5-Air and GLM-5.3: one more of the last layers, which has a projection, three norms and tables."""
    model = read_model(config(content))
    further = tables * model.vocab * model.hidden
    assert model.parameters + model.draft_layer().parameters + further == on_the_hub


def test_an_indexer_limits_what_latent_attention_reads(config):
    model = read_model(config(V32))
    assert model.kv_bytes_per_token() == 61 * (2 * 576 + 132)
    frame = kernels(model, decode([1000, 100_000], 4)).query("layers == 0").set_index(["shape", "kernel"])
    for shape, context in enumerate((1001, 100_001)):
        seen = min(context, 2048)
        assert frame.loc[shape, "decode_sparse_attention"]["cache_bytes"] == 4 * seen * 1152
        assert frame.loc[shape, "decode_sparse_attention"]["macs"] == 4 * seen * 128 * (576 + 512)
        assert frame.loc[shape, "decode_sparse_attention"]["n"] == 2048
        scores = frame.loc[shape, "decode_index_scores"]
        assert (scores["macs"], scores["cache_bytes"]) == (4 * context * 64 * 128, 4 * context * 132)
    # Layers that share an indexer's selection launch none of its kernels, and cache no keys of it.
    shared = read_model(config(GLM52))
    own = sum(kind == "full" for kind in GLM52["indexer_types"])
    assert shared.kv_bytes_per_token() == 78 * 1152 + own * 132
    rows = kernels(shared, prefill(4096))
    assert rows.loc[rows["kernel"] == "index_scores", "count"].sum() == own
    assert rows.loc[rows["kernel"] == "sparse_attention", "count"].sum() == 78


def test_prompts_within_an_indexers_selection_attend_to_everything(config):
    model = read_model(config(V32))
    work = join([prefill([2048, 2049]), prefill(1500, 100), chunk(100, 0, 3, 5000)])
    frame = kernels(model, work).query("layers == 0").set_index(["shape", "kernel"])

    def launched(shape: int) -> set[str]:
        return set(frame.loc[shape].index)

    # Separate keys and values for every head, no scores; the indexer's keys are kept for later.
    assert {"kv_b_proj", "attention", "index_k_proj"} <= launched(0)
    assert not launched(0) & {"q_absorb", "sparse_attention", "index_q_proj", "index_scores", "index_topk"}
    assert frame.loc[(0, "attention"), "macs"] == 2048 * 2049 // 2 * 128 * (192 + 128)
    assert {"q_absorb", "sparse_attention", "index_scores", "index_topk"} <= launched(1)
    assert not launched(1) & {"kv_b_proj", "attention"}
    # More than 2^17 keys are not expanded at once.
    assert "attention" not in launched(2) and "sparse_attention" in launched(2)
    # In a mixed step, the short prompt and the decoding requests go separate ways.
    assert {"attention", "decode_sparse_attention", "decode_index_scores"} <= launched(3)
    assert frame.loc[(3, "q_absorb"), "m"] == 3 == frame.loc[(3, "index_q_proj"), "m"]
    assert frame.loc[(3, "index_k_proj"), "m"] == 103
    always, sparse = (
        set(kernels(model, prefill(100), fused={*FUSIONS, way})["kernel"]) for way in ("index_always", "sparse_prompts")
    )
    assert {"attention", "index_scores", "index_topk"} <= always and "sparse_attention" not in always
    assert {"sparse_attention", "index_scores", "index_topk"} <= sparse and "kv_b_proj" not in sparse


def test_the_delta_rule_keeps_a_state_instead_of_a_cache(config):
    model = read_model(config(QWEN35_27B))
    assert model.kv_bytes_per_token() == 16 * 2 * 4 * 256 * 2
    state = 48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert model.state_bytes == 48 * state
    assert model.kv_bytes([0, 10]).tolist() == [48 * state, 48 * state + 10 * 65536]
    frame = kernels(model, decode([1000, 100_000], 4)).set_index(["shape", "kernel"])
    rule = frame.loc[0, "decode_delta_rule"]
    assert rule["count"] == 48 and rule["read_bytes"] > 4 * 48 * 128 * 128 * 4
    assert frame.loc[0, "decode_delta_rule"].equals(frame.loc[1, "decode_delta_rule"])
    assert frame.loc[0, "attn_gate"]["count"] == 16
    halves = kernels(model, decode(1000, 4), Parallel(tensor=2)).set_index("kernel").loc["decode_delta_rule"]
    assert 2 * halves["read_bytes"] == rule["read_bytes"]


def test_layers_with_one_block_have_one_norm_and_one_sum(config):
    model = read_model(config(NEMOTRON3_SUPER))
    assert [group.count for group in model.layers] == [40, 40, 8]
    assert model.kv_bytes_per_token() == 8 * 2 * 2 * 128 * 2
    assert model.state_bytes == 40 * (128 * 64 * 128 * 4 + 3 * (128 * 64 + 2 * 8 * 128) * 2)
    for fused in (True, False):
        rows = kernels(model, decode(1000, 4), Parallel(tensor=2), fused=fused)
        counts = rows.groupby("kernel", observed=True)["count"].sum()
        assert counts["attn_norm"] == 48 and counts["ffn_norm"] == 40
        assert counts["all_reduce"] == 88 + 1  # the embedding's too
        assert counts["decode_ssm_scan"] == 40 and counts["decode_attention" if fused else "decode_softmax"] == 8
        assert fused or counts["ffn_residual"] == 88
    with pytest.raises(InputError, match="not a sequence of mamba"):
        read_model(config({**NEMOTRON3_NANO, "hybrid_override_pattern": "MEX"}))


def test_llama_4_attends_within_chunks(config):
    model = read_model(config(SCOUT))
    assert [group.attention.window for group in model.layers] == [8192, None]
    assert [group.count for group in model.layers] == [36, 12]
    rows = kernels(model, decode(100, 1))
    assert rows.loc[rows["kernel"].isin(["rope", "qk_norm"]), "count"].to_list() == [36, 36]


def test_kernels_that_only_some_families_have(config):
    def names(content, **how):
        return set(kernels(read_model(config(content)), decode(10, 4), **how)["kernel"])

    olmoe = names(OLMOE, parallel=Parallel(tensor=2))
    assert {"qk_norm", "all_gather", "router", "expert_combine"} <= olmoe and "shared_add" not in olmoe
    assert {"shared_gate", "shared_scale", "shared_add", "shared_down_proj"} <= names(QWEN15_MOE)
    assert {"q_proj", "kv_a_proj", "kv_a_norm", "q_absorb"} <= names(V2_LITE) and "q_a_norm" not in names(V2_LITE)
    gemma = names(GEMMA3_4B)
    assert {"embedding_scale", "qk_norm", "attn_post_norm", "ffn_post_norm"} <= gemma and "logit_softcap" not in gemma
    assert "logit_softcap" in set(kernels(read_model("gemma-2-9b"), decode(10))["kernel"])
    gpt2 = kernels(read_model("gpt2"), decode(10)).set_index("kernel")
    assert {"position_embedding", "up_proj"} <= set(gpt2.index) and not {"rope", "gate_up_proj"} & set(gpt2.index)
    rope = kernels(read_model(config(PHI4_MINI)), decode(10)).set_index("kernel").loc["rope"]
    assert rope["n"] == (24 + 8) * 96
    assert "expert_permute" in names(OLMOE, fused=False) and "expert_permute" not in names(OLMOE)


def test_resources_say_what_the_published_files_say(mirror):
    # Not in the mirror: aiconfigurator's package has the first, a recording in tracelens shows the sizes of the second,
    # and the parameters of the third are the checkpoint's.
    unmirrored = {"gpt-oss-120b", "Qwen1.5-0.5B-Chat", "Qwen2.5-VL-7B-Instruct"}
    for file in sorted((ROOT / "resources/models").glob("*.json")):
        if file.stem in unmirrored:
            continue
        ours = read_model(file.stem)
        hub_id = ours.source.removeprefix("https://huggingface.co/").removesuffix("/resolve/main/config.json")
        theirs = read_model(hub_id, mirror=mirror)
        assert str(mirror) in theirs.source and theirs.name == hub_id
        assert replace(theirs, name="", source="") == replace(ours, name="", source="")


def test_a_hub_id_is_found_among_the_resources_without_network():
    model = read_model("meta-llama/Llama-3.1-8B")
    assert (model.name, model.parameters) == ("meta-llama/Llama-3.1-8B", 8_030_261_248)
    assert read_model("llama-3.1-8b").name == "Llama-3.1-8B"


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("DeepSeek-V3", 70_272),  # (512 + 64) · 2 B · 61 layers, from its report
        ("Llama-3.1-8B", 131_072),
        ("Llama-3.1-405B", 516_096),
        ("Qwen2.5-7B-Instruct", 57_344),
        ("gpt2", 36_864),
        ("gpt-oss-20b", 49_152),
    ],
)
def test_kv_bytes_per_token(name, bytes_per_token):
    model = read_model(name)
    assert model.kv_bytes_per_token(Precision(cache="bf16")) == bytes_per_token
    assert model.kv_bytes_per_token(Precision(cache="fp8")) == bytes_per_token // 2
    assert model.kv_bytes_per_token(Precision(cache="int4")) == bytes_per_token // 4


def test_windows_bound_the_cache():
    gemma = read_model("gemma-2-9b")  # 42 layers, 2 · 8 heads · 256 · 2 B each, every second one with a window of 4096
    assert gemma.kv_bytes([1, 4096, 8192]).tolist() == [344_064, 4096 * 344_064, 21 * 8192 * (4096 + 8192)]
    assert gemma.kv_bytes(10**6).shape == ()


def test_active_parameters():
    assert read_model("Llama-3.1-8B").active_parameters == 8_030_261_248
    mixtral = read_model("Mixtral-8x7B-v0.1")
    assert mixtral.parameters - mixtral.active_parameters == 32 * 6 * 3 * 4096 * 14336
    assert mixtral.active_parameters == 12_879_925_248
    # published roundings: 37 B, 3.3 B, 3.6 B (without the embedding, as OpenAI counts)
    assert round(read_model("DeepSeek-V3").active_parameters / 1e9, 1) == 37.6
    assert round(read_model("Qwen3-30B-A3B").active_parameters / 1e9, 2) == 3.35
    oss = read_model("gpt-oss-20b")
    assert round((oss.active_parameters - oss.vocab * oss.hidden) / 1e9, 1) == 3.6


def test_bytes_of_quantised_checkpoints(config):
    # metadata.total_size of openai/gpt-oss-20b and -120b
    assert read_model("gpt-oss-20b").weight_bytes() == 13_761_264_768
    assert read_model(config(GPT_OSS_120B)).weight_bytes() == 65_248_815_744
    # The files of deepseek-ai/DeepSeek-V3 have 688,586,727,753 bytes: besides the model the MTP layer (one more with
    # experts, its own embedding and head, a 16-bit projection of 2 · 7168 to 7168, three norms) and 91,991 headers.
    v3 = read_model("DeepSeek-V3")
    further = sum(linear.stored_bytes(v3.precision) for linear in v3.layers[1].linears(7168)) + 2 * (
        2 * 7168 + 1536 + 512 + 2 * 129280 * 7168 + 2 * 7168 * 7168 + 3 * 7168
    )
    headers = 688_586_727_753 - v3.weight_bytes() - further
    assert 100 < headers / 91_991 < 150
    # The tensors of moonshotai/Kimi-K2-Instruct have 1,029,173,256,720 bytes (headers): router biases are in 32 bits.
    k2 = 1_029_173_256_720 - read_model(config(KIMI_K2)).weight_bytes()
    assert 60 * 384 * 2 <= k2 < 60_000
    assert read_model("Llama-3.1-8B").weight_bytes() == 2 * 8_030_261_248
    assert read_model("Llama-3.1-8B").weight_bytes(Precision("fp32", "fp32")) == 4 * 8_030_261_248
    layer = {"num_hidden_layers": 1, "tie_word_embeddings": False}
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    model = read_model(config({**LLAMA, **layer, "quantization_config": awq}))
    matrices = 2048 * (2048 + 2 * 512 + 2048) + 3 * 2048 * 8192
    # a 16-bit scale and a 4-bit zero point for each 128 values of 4 bits
    assert model.weight_bytes() == matrices * 4 // 8 + matrices // 128 * 20 // 8 + 2 * (2 * 128256 * 2048 + 3 * 2048)
    assert model.precision.activations == "bf16" and model.precision.math_of("qkv_proj") == "bf16"
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    model = read_model(config({**LLAMA, **layer, "quantization_config": fp8}))
    assert model.weight_bytes() == matrices + matrices // 128**2 * 4 + 2 * (2 * 128256 * 2048 + 3 * 2048)
    assert model.precision.math_of("qkv_proj") == "fp8" and model.precision.math_of("lm_head") == "bf16"


def test_model_optimizer_writes_the_precision_beside_the_configuration(tmp_path):
    """As nvidia/DeepSeek-V3.1-NVFP4 and nvidia/Llama-3.1-70B-Instruct-FP8 do."""
    file = tmp_path / "nvidia--Llama_config.json"
    file.write_text(json.dumps(LLAMA))
    assert read_model(file).precision == Precision()
    settings = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
    beside = tmp_path / "nvidia--Llama_hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {**settings, "exclude_modules": ["lm_head", "model.layers.0*"]}}))
    model = read_model(file)
    assert model.precision == Precision("nvfp4", "bf16", "fp8", "fp4")
    assert model.precision.math_of("qkv_proj") == "fp4" and model.precision.math_of("lm_head") == "bf16"
    assert [group.count for group in model.layers] == [1, 15] and unquantised(model.layers[0]) >= {"down_proj"}
    rows = kernels(model, decode(100, 8)).set_index(["kernel", "layers"])
    act, down = rows.loc[("ffn_act", 1)], rows.loc[("down_proj", 1)]
    assert act["write_bytes"] == 8 * 8192 // 2 and (down["precision"], down["weight_precision"]) == ("fp4", "nvfp4")
    assert down["weight_bytes"] == 2048 * 8192 // 2 + 2048 * 8192 // 16
    beside.write_text(json.dumps({"quantization": {**settings, "quant_algo": "W4A8"}}))
    with pytest.raises(InputError, match="quant_algo: unknown value 'W4A8'"):
        read_model(file)
    beside.write_text("{}")
    with pytest.raises(InputError, match=r"hf_quant_config\.json, key quantization: it is missing"):
        read_model(file)


def test_minimax_has_experts_in_every_layer_and_no_other_attention(config):
    model = read_model(config(MINIMAX))
    (group,) = model.layers
    assert (group.ffn.experts, group.attention.rotary_dim, group.attention.qk_norm) == (256, 64, "full")
    with pytest.raises(InputError, match=r"attn_type_list: .*another kind of attention"):
        read_model(config({**MINIMAX, "attn_type_list": [0] + [1] * 61}))


def test_modules_left_unquantised(config):
    names = [f"model.layers.{i}.mlp.{part}_proj" for i in (0, 15) for part in ("gate", "up", "down")]
    names += [f"model.layers.{i}.self_attn.{part}_proj" for i in range(16) for part in "qkvo"]
    names += ["lm_head", "model.layers.3.input_layernorm"]
    fbgemm = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": names}
    model = read_model(config({**LLAMA, "quantization_config": fbgemm}))
    assert [(group.numbers, sorted(unquantised(group))) for group in model.layers] == [
        ((0, 15), ["down_proj", "gate_up_proj", "out_proj", "qkv_proj"]),
        (tuple(range(1, 15)), ["out_proj", "qkv_proj"]),
    ]
    plain = read_model(config(LLAMA))
    assert model.parameters == plain.parameters
    assert plain.weight_bytes() - model.weight_bytes() == 14 * 3 * 2048 * 8192
    scheme = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": True}}
    packed = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": scheme},
        "ignore": ["re:.*self_attn.*"],
    }
    model = read_model(config({**LLAMA, "quantization_config": packed}))
    assert model.precision.weights == "int4_g64" and unquantised(model.layers[0]) == {"qkv_proj", "out_proj"}
    # As moonshotai/Kimi-K2.5.
    packed["ignore"] = ["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    assert read_model(config({**LLAMA, "quantization_config": packed})).layers[0].formats == (
        ("down_proj", "", None),
        ("gate_up_proj", "", None),
    )


def test_number_formats():
    assert number_format("bf16").matrix_bytes(3, 5) == 30
    assert number_format("int4").matrix_bytes(3, 5) == 8
    assert number_format("mxfp4").matrix_bytes(2, 64) == (2 * 64 * 4 + 4 * 8) // 8
    assert number_format("fp8_block128").matrix_bytes(129, 1) == 129 + 2 * 4
    assert number_format("int8_g32_zero").matrix_bytes(1, 33) == 33 + 2 * 3


def test_heads_have_the_width_that_the_file_says(config):
    assert read_model(config(QWEN3)).layers[0].attention.head_dim == 128
    assert read_model("Qwen3-30B-A3B").layers[0].attention.head_dim == 128
    assert read_model("gemma-2-9b").layers[0].attention.head_dim == 256
    assert read_model("gpt-oss-20b").layers[0].attention.head_dim == 64
    assert read_model("Llama-3.1-8B").layers[0].attention.head_dim == 128
    assert read_model(config(PHI4_MINI)).layers[0].attention.rotary_dim == 96


def test_gemma_3_takes_omitted_keys_from_its_architecture(config):
    model = read_model(config(GEMMA3_4B))
    sliding, full = model.layers
    assert (sliding.attention.heads, sliding.attention.kv_heads, sliding.attention.head_dim) == (8, 4, 256)
    assert (sliding.count, sliding.attention.window, full.attention.window) == (29, 1024, None)
    assert full.numbers == (5, 11, 17, 23, 29) and model.tied and model.vocab == 262_208


def test_windows_count_only_where_they_are_used(config):
    def windows(content):
        return {group.attention.window: group.count for group in read_model(config(content)).layers}

    assert windows(MISTRAL) == {4096: 32}  # v0.1: absent means 4096
    assert windows({**MISTRAL, "sliding_window": None}) == {None: 32}  # v0.2
    assert windows(PHI4_MINI) == {None: 32}  # longer than any context
    qwen = {**QWEN3, "sliding_window": 4096, "max_window_layers": 20, "max_position_embeddings": 40960}
    assert windows({**qwen, "use_sliding_window": False}) == {None: 28}
    assert windows({**qwen, "use_sliding_window": True}) == {None: 20, 4096: 8}
    assert [group.numbers[0] for group in read_model("gpt-oss-20b").layers] == [0, 1]
    assert read_model("gpt-oss-20b").layers[0].attention.window == 128
    assert read_model("Mixtral-8x7B-v0.1").layers[0].attention.window is None


def test_kinds_of_layers(config):
    dense, routed = read_model("DeepSeek-V3").layers
    assert isinstance(dense.attention, LatentAttention) and dense.numbers == (0, 1, 2) and routed.count == 58
    assert isinstance(routed.ffn, Experts) and (routed.ffn.experts, routed.ffn.active) == (256, 8)
    assert routed.ffn.expert.width == routed.ffn.shared.width == 2048 and routed.ffn.router_bias

    lite = read_model(config(V2_LITE)).layers[1]
    assert lite.attention.q_rank is None and lite.ffn.shared.width == 2816 and not lite.ffn.router_bias
    every_second = {**QWEN15_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    layers = read_model(config(every_second)).layers
    assert layers[1].numbers == (1, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23) and layers[0].ffn.width == 5632
    assert read_model("Qwen3-30B-A3B").layers[0].ffn.expert.width == 768
    assert isinstance(read_model("gpt2").layers[0].attention, Attention)
    assert not read_model("gpt2").layers[0].ffn.gated and read_model("gpt2").positions == 1024


HOSTILE = [
    ("", "line 1: not valid JSON"),
    ("[1]", "not a JSON object"),
    ('{"model_type": "llama", "model_type": "gpt2"}', "'model_type' appears twice"),
    ("[" * 100_000, "not valid JSON"),
    ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "not valid JSON: .*digits"),
    ({**LLAMA, "hidden_size": 10**400}, "hidden_size: a number of more than 18 digits is not within 1"),
    ({}, "the key model_type is missing"),
    ({"model_type": ["llama"]}, "unknown architecture"),
    ({"model_type": "llama"}, "key hidden_size: it is missing"),
    ({**LLAMA, "hidden_size": "2048"}, "key hidden_size: '2048' is not a whole number"),
    ({**LLAMA, "hidden_size": True}, "is not a whole number"),
    ({**LLAMA, "hidden_size": 0}, "0 is not within 1"),
    ({**LLAMA, "num_hidden_layers": 10**9}, "is not within 1 … 10000"),
    # Each expert is a module by itself, to which names in the file may apply: as many took seconds.
    ({**QWEN15_MOE, "num_experts": 32128}, "32128 is not within 1 … 4096"),
    ({**LLAMA, "num_attention_heads": 31}, "not divisible by 31 heads|not a multiple"),
    ({**LLAMA, "num_attention_heads": 24, "num_key_value_heads": 24}, "not divisible by 24 heads"),
    ({**LLAMA, "num_key_value_heads": 5}, "32 query heads are not a multiple of 5"),
    ({**LLAMA, "tie_word_embeddings": "yes"}, "neither true nor false"),
    ({**LLAMA, "hidden_act": "mish"}, "key hidden_act: unknown value 'mish'"),
    ({**LLAMA, "residual_order": 0.22}, "keys residual_order: unknown keys for the architecture llama"),
    ({**LLAMA, "torch_dtype": "float4"}, "key torch_dtype"),
    ({**LLAMA, "is_encoder_decoder": True}, "another kind of layer"),
    ({**LLAMA, "rope_scaling": "yarn"}, "is not an object"),
    ({**PHI4_MINI, "partial_rotary_factor": 7}, "not within 0 … 1"),
    ({**OLMOE, "num_experts_per_tok": 65}, "a token uses 65 of 64 experts"),
    ({**GPT_OSS_120B, "experts_per_token": 5}, "differs from num_experts_per_tok"),
    ({**GPT_OSS_120B, "layer_types": ["full_attention"]}, "1 types for 36 layers"),
    ({**GPT_OSS_120B, "layer_types": ["linear_attention"] * 36}, "unknown layer types: linear_attention"),
    ({**LLAMA, "quantization_config": {"quant_method": "vptq"}}, "quant_method: unknown value 'vptq'"),
    ({**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 3}}, "only 4 and 8 bits"),
    ({**LLAMA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [1, 2]}}, "not a square block"),
    (
        {**LLAMA, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mixer"]}},
        "unknown module",
    ),
    ({**GEMMA3_4B, "text_config": {"model_type": "llama9_text"}}, "unknown architecture 'llama9_text'"),
    (
        {"model_type": "qwen9_next", "hidden_size": 2048, "linear_conv_kernel_dim": 4, "full_attention_interval": 4},
        "unknown architecture 'qwen9_next', and none of the known ones can read its keys",
    ),
    # It was to be read as gemma3_text.
    (
        {
            "model_type": "unheard_of",
            "hidden_size": 2560,
            "num_hidden_layers": 64,
            "state_size": 16,
            "vocab_size": 50280,
        },
        "unknown architecture 'unheard_of', and none of the known ones can read its keys",
    ),
    (
        {**LLAMA, "quantization_config": {"quant_method": "spqr", "bits": 3}},
        "unknown value 'spqr' .known: .*; remove quantization_config from a copy of the file, and state the",
    ),
    ({"model_type": "gpt2", "n_embd": 768.5, "vocab_size": 1}, "key n_embd: 768.5 is not a whole number"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_wrong_is_said_in_one_line(config, content, message):
    with pytest.raises(InputError, match=rf"config\.json.*({message})"):
        read_model(config(content))


def test_keys_that_change_no_kernel_are_accepted(config):
    content = {**LLAMA, "unsloth_fixed": True, "_note": 1, "use_logn": False, "num_nextn_predict_layers": 1}
    assert read_model(config(content)).layer_count == 16


def test_a_file_that_is_not_there_or_not_text(config, tmp_path):
    with pytest.raises(InputError, match="did you mean Llama-3"):
        read_model("Llama-3.1-8")
    with pytest.raises(InputError, match="not a file"):
        read_model("missing/config.json")
    with pytest.raises(InputError, match="not a hub id"):
        read_model("../x")
    with pytest.raises(InputError, match="cannot be read"):
        read_model(tmp_path)  # a folder without a config.json
    (tmp_path / "weights.json").write_bytes(b"\xff" * 100)
    with pytest.raises(InputError, match="not valid JSON"):
        read_model(tmp_path / "weights.json")
    (tmp_path / "weights.json").write_bytes(b" " * 2**24)
    with pytest.raises(InputError, match="more than"):
        read_model(tmp_path / "weights.json")
    config({**LLAMA})
    assert read_model(tmp_path).parameters == 1_235_814_400


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "the model is gated"),
        (errors.RepositoryNotFoundError, "no such model"),
        (errors.LocalEntryNotFoundError, "cannot be reached"),
        (errors.EntryNotFoundError, "no config.json"),
        (errors.OfflineModeIsEnabled, "could not be downloaded"),
        (errors.HFValidationError, "could not be downloaded"),
    ],
)
def test_what_the_hub_says_is_said_in_one_line(monkeypatch, tmp_path, kind, message):
    monkeypatch.setattr(configuration, "_hub_answers", lambda: True)

    def refuse(*_):
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(InputError, match=message):
        read_model("nobody/nothing", mirror=tmp_path)


@pytest.mark.parametrize("cached", [False, True])
def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch, config, caplog, cached):
    """The hub's own library asks six times within 23 seconds and prints a line each time."""
    asked = []

    class Session:
        def head(self, address, timeout):
            asked.append(address)
            raise OSError("no route to host")

    def download(hub_id, name, local_files_only=False):
        assert local_files_only
        if not cached:
            raise errors.LocalEntryNotFoundError("not there")
        return config(LLAMA)

    monkeypatch.setattr(huggingface_hub.utils, "get_session", Session)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    if cached:
        assert read_model("nobody/nothing").layer_count == LLAMA["num_hidden_layers"]
    else:
        with pytest.raises(InputError, match="the hub cannot be reached and the model is not cached"):
            read_model("nobody/nothing")
    assert len(asked) == 1 and not caplog.records
    if not cached:
        with pytest.raises(InputError, match=r"if it has the layers of Llama-3\.1-8B, give that, which is here; else"):
            read_model("meta-llama/Llama-3.1-8B-Instruct")


def test_the_hub_is_asked_last(monkeypatch, tmp_path, config):
    monkeypatch.setattr(configuration, "_hub_answers", lambda: True)
    file = config(LLAMA, "downloaded.json")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda hub_id, name: str(file))
    assert read_model("unsloth/Llama-3.2-1B", mirror=tmp_path).name == "unsloth/Llama-3.2-1B"
    folder = tmp_path / "huggingface.co/unsloth/Llama-3.2-1B/resolve/main"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}), "utf-8")
    assert read_model("unsloth/Llama-3.2-1B", mirror=tmp_path).layer_count == 2


@pytest.mark.parametrize(
    ("folder", "stated", "name"),
    [
        ("my-run", {"_name_or_path": "meta-llama/Llama-3.2-1B"}, "my-run (Llama-3.2-1B)"),
        ("llama_3.2 1b-mine", {"_name_or_path": "meta-llama/Llama-3.2-1B"}, "llama_3.2 1b-mine"),
        ("my-run", {"_name_or_path": "/home/me/checkpoint-100"}, "my-run (llama)"),
        ("my-run", {"_name_or_path": 7}, "my-run (llama)"),
        ("tiny-llama", {}, "tiny-llama"),
        (f"models--unsloth--Llama-3.2-1B/snapshots/{'0a' * 20}", {}, "unsloth/Llama-3.2-1B"),
        ("huggingface.co/unsloth/Llama-3.2-1B/resolve/main", {}, "unsloth/Llama-3.2-1B"),
    ],
)
def test_a_config_json_is_named_after_its_folder_and_what_it_says(tmp_path, monkeypatch, folder, stated, name):
    file = tmp_path / folder / "config.json"
    file.parent.mkdir(parents=True)
    # The hub's cache holds links to files that are called by their digest.
    (tmp_path / "blob").write_text(json.dumps(LLAMA | stated), "utf-8")
    file.symlink_to(tmp_path / "blob")
    assert read_model(file).name == read_model(file.parent).name == name
    monkeypatch.chdir(file.parent)
    assert read_model("config.json").name == read_model(".").name == name


def test_a_folder_of_another_machines_hub_cache_is_the_models_id():
    known = read_model("openai/gpt-oss-20b")
    assert read_model(f"/models/models--openai--gpt-oss-20b/snapshots/{'0a' * 20}/", paths=False) == known


def test_the_hub_is_asked_for_model_optimizers_file(monkeypatch, config):
    monkeypatch.setattr(configuration, "_hub_answers", lambda: True)
    file = config(LLAMA)
    asked = []

    def download(hub_id, name):
        asked.append(name)
        if name != "config.json":
            config({"quantization": {"quant_algo": "FP8"}}, name)
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert read_model("nvidia/Llama-FP8").precision.weights == "fp8"
    assert asked == ["config.json", "hf_quant_config.json"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": "fp7"}, "no number format 'fp7'"),
        ({"weights": "fp8_block0"}, "no number format"),
        ({"weights": {"softmax": "fp8"}}, "no kernel with weights is named 'softmax'"),
        ({"activations": "int4"}, "do not compute in 'int4'"),
        ({"cache": "int4_g128"}, "no number format"),
    ],
)
def test_precisions_that_do_not_exist(settings, message):
    with pytest.raises(InputError, match=message):
        Precision(**settings)
