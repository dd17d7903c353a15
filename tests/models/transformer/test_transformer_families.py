"""Architectures of 2026: counts as others found them, what is cached, kernels, and how files differ from the usual."""

import copy
import itertools
import json
import re
import warnings
from dataclasses import replace

import pytest
from conftest import ROOT
from hostile_values import check_hostile_values
from hypothesis import given
from hypothesis import strategies as st
from test_transformer_models import GEMMA3_4B, PHI4_MINI, QWEN15_MOE
from transformer_counts import check_products, sizes

from gpuledger.errors import InputError, InputWarning
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import Parallel, decode, kernels, mixed, prefill, read_model
from gpuledger.readers.gpus import find_gpu

V4_FLASH = {
    **{"model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64},
    **{"num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_lora_rank": 1024},
    **{"o_groups": 8, "vocab_size": 129280, "sliding_window": 128, "moe_intermediate_size": 2048},
    **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6, "num_hash_layers": 3, "hc_mult": 4},
    **{"index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "num_nextn_predict_layers": 1},
    **{"compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "scoring_func": "sqrtsoftplus", "expert_dtype": "fp4"},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}
V4_PRO = {
    **V4_FLASH,
    **{"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16},
    **{"moe_intermediate_size": 3072, "n_routed_experts": 384, "index_topk": 1024},
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}
GEMMA4_26B = {
    "model_type": "gemma4",
    "text_config": {
        **sizes("gemma4_text", 2816, 30, 16, 8, 2112, 262144, num_global_key_value_heads=2, head_dim=256),
        **{"global_head_dim": 512, "attention_k_eq_v": True, "sliding_window": 1024, "enable_moe_block": True},
        **{"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "final_logit_softcapping": 30.0},
        **{"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        "layer_types": [f"{'full' if i % 6 == 5 else 'sliding'}_attention" for i in range(30)],
        "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25}, "sliding_attention": {}},
    },
    "vision_config": {"hidden_size": 1152},
    "boa_token_id": 256000,
}
GEMMA4_31B = {
    **GEMMA4_26B,
    "text_config": {
        **{**GEMMA4_26B["text_config"], "enable_moe_block": False, "num_experts": None, "top_k_experts": None},
        **{"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32},
        **{"num_key_value_heads": 16, "num_global_key_value_heads": 4},
        "layer_types": [f"{'full' if i % 6 == 5 else 'sliding'}_attention" for i in range(60)],
    },
}
# As the hub's file of google/gemma-4-E2B has it, without what changes no kernel.
GEMMA4_E2B = {
    "model_type": "gemma4",
    "text_config": {
        **sizes("gemma4_text", 1536, 35, 8, 1, 6144, 262144, num_global_key_value_heads=None, head_dim=256),
        **{"global_head_dim": 512, "attention_k_eq_v": False, "sliding_window": 512, "enable_moe_block": False},
        **{"final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20},
        **{"use_double_wide_mlp": True, "vocab_size_per_layer_input": 262144},
        "layer_types": [f"{'full' if i % 5 == 4 else 'sliding'}_attention" for i in range(35)],
    },
}
GRANITE_8B = {
    **sizes("granite", 4096, 40, 32, 8, 12800, 49159, tie_word_embeddings=True, attention_multiplier=0.0078125),
    **{"embedding_multiplier": 12.0, "logits_scaling": 16.0, "residual_multiplier": 0.22, "attention_bias": False},
    "mlp_bias": False,
}
SMOLLM3 = {
    **sizes("smollm3", 2048, 36, 16, 4, 11008, 128256, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0] * 9),
    **{"layer_types": ["full_attention"] * 36, "use_sliding_window": False},
}
DOTS1 = {
    **sizes("dots1", 4096, 62, 32, 32, 10944, 152064, n_routed_experts=128, n_shared_experts=2, num_experts_per_tok=6),
    **{"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "noaux_tc"},
    **{"n_group": 1, "topk_group": 1, "attention_bias": False},
}
PHI35_MOE = {
    **sizes("phimoe", 4096, 32, 32, 8, 6400, 32064, num_local_experts=16, num_experts_per_tok=2, attention_bias=True),
    **{"lm_head_bias": True, "sliding_window": 131072, "max_position_embeddings": 131072, "router_jitter_noise": 0.01},
}
SPARSE = [0] * 3 + [1] * 57
MINIMAX_M3 = {
    **sizes("minimax_m3", 6144, 60, 64, 4, 3072, 200064, dense_intermediate_size=12288, shared_intermediate_size=3072),
    **{"n_shared_experts": 1, "head_dim": 128, "rotary_dim": 64, "partial_rotary_factor": 0.5},
    **{"num_local_experts": 128, "num_experts_per_tok": 4, "moe_layer_freq": SPARSE, "use_routing_bias": True},
    **{"hidden_act": "swigluoai", "qk_norm_type": "per_head", "use_qk_norm": True},
    "sparse_attention_config": {
        **{"use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4},
        **{"sparse_block_size": 128, "sparse_topk_blocks": 16, "sparse_score_type": "max", "sparse_local_block": 1},
        **{"sparse_attention_freq": SPARSE, "sparse_disable_index_value": SPARSE},
    },
}
MIMO_V2 = {
    **sizes("mimo_v2_flash", 4096, 48, 64, 4, 16384, 152576, head_dim=192, v_head_dim=128, swa_num_attention_heads=64),
    **{"swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128},
    **{"hybrid_layer_pattern": [int(i > 0 and i % 6 != 5) for i in range(48)], "moe_layer_freq": [0] + [1] * 47},
    **{"moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": None, "num_experts_per_tok": 8},
    **{"sliding_window": 128, "sliding_window_size": 128, "partial_rotary_factor": 0.334, "topk_method": "noaux_tc"},
    **{"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "attention_value_scale": 0.707},
}
STEP37 = {
    **sizes("step3p7", 4096, 45, 64, 8, 11264, 128896, head_dim=128, sliding_window=512, first_k_dense_replace=3),
    **{"num_experts": 288, "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280},
    **{"n_shared_experts": 1, "use_moe_router_bias": True},
    "layer_types": [f"{'sliding' if i % 4 else 'full'}_attention" for i in range(45)],
}
# Of the hub, with a part in front and other names of the same sizes.
STEP37_HUB = {
    "model_type": "step3p7",
    "text_config": {
        **{"model_type": "step3p5", "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45},
        **{"num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "vocab_size": 128896},
        **{"sliding_window": 512, "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280},
        **{"share_expert_dim": 1280, "moe_layers_enum": ",".join(map(str, range(3, 45)))},
        **{"attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128}},
        **{"use_head_wise_attn_gate": True, "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12},
        **{"num_nextn_predict_layers": 3, "need_fp32_gate": True, "swiglu_limits": [0.0] * 48},
        "layer_types": [f"{'sliding' if i % 4 else 'full'}_attention" for i in range(48)],
    },
    "vision_config": {"hidden_size": 1536},
}
KIMI_K3 = {
    "model_type": "kimi_k3",
    "text_config": {
        **sizes("kimi_linear", 7168, 93, 96, 96, 33792, 163840, q_lora_rank=1536, kv_lora_rank=512),
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True},
        **{"mla_use_output_gate": True, "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2},
        **{"moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True},
        **{"first_k_dense_replace": 1, "moe_layer_freq": 1, "attn_res_block_size": 12, "hidden_act": "situ"},
        "topk_method": "noaux_tc",
        "linear_attn_config": {
            **{"head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4, "use_full_rank_gate": True},
            "full_attn_layers": [*range(4, 93, 4), 93],
            "kda_layers": [i for i in range(1, 93) if i % 4],
        },
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
                }
            },
            "ignore": [
                *("re:.*self_attn.*", "re:.*shared_experts.*"),
                *("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "lm_head"),
            ],
        },
    },
    "vision_config": {"vt_hidden_size": 1024},
    **{"media_placeholder_token_id": 163605, "image_placeholder": "<|x|>"},
}
KIMI_LINEAR = {
    **sizes("kimi_linear", 2304, 27, 32, 32, 9216, 163840, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128),
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "num_experts": 256, "num_experts_per_token": 8},
    **{"num_shared_experts": 1, "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "moe_layer_freq": 1},
    "moe_router_activation_func": "sigmoid",
    "linear_attn_config": {
        **{"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4},
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [i for i in range(1, 27) if i % 4],
    },
}
# nvidia/Llama-3_3-Nemotron-Super-49B-v1: blocks of 80 layers as (attention, multiple of the width), in any order.
NEMOTRON_NAS = {
    **sizes("nemotron-nas", 8192, 80, 64, None, None, 128256),
    "block_configs": [
        {
            "attention": {
                "no_op": not attends,
                "n_heads_in_group": 8 if attends else None,
                "replace_with_linear": False,
            },
            "ffn": {"no_op": False, "ffn_mult": multiple, "sparsify": None},
        }
        for attends, multiple, count in (
            *((True, 5.25, 48), (True, 2.625, 1), (False, 5.25, 1), (False, 2.625, 5), (False, 1.3125, 10)),
            *((False, 1.0, 8), (False, 0.5, 6), (False, 3.28125, 1)),
        )
        for _ in range(count)
    ],
}
# Parameters and where others found them.
EXACT = {
    # llama.cpp's llama-bench says 25,233,142,046: a scale per layer and 256 frequencies of RoPE more.
    "gemma-4-26B-A4B": (GEMMA4_26B, 25_233_142_046 - 30 - 256),
    # A recount of stepfun-ai/Step-3.7-Flash's text model, published on GitHub.
    "Step-3.7-Flash": (STEP37, 196_956_130_368),
    "Step-3.7-Flash of the hub": (STEP37_HUB, 196_956_130_368),
}
# Billions of parameters, and of them active; the latter without the tables of the vocabulary that are not counted.
ROUNDED = {
    # huggingface.co/google/gemma-4-31B-it, model card (30.7 dense, without the vision tower).
    "gemma-4-31B": (GEMMA4_31B, 30.7, 30.7),
    # huggingface.co/google/gemma-4-E2B, model card: 2.3 "effective", without the tables of all layers.
    "gemma-4-E2B": (GEMMA4_E2B, 2.28 + 35 * 256 * 262144 / 1e9, 4.6),
    # Of their safetensors on the hub: 8.17, 3.08, 142.8 and 41.9; model cards: 14 and 6.6 active.
    "granite-3.3-8b": (GRANITE_8B, 8.17, 8.17),
    "SmolLM3-3B": (SMOLLM3, 3.075, 3.075),
    "dots.llm1": (DOTS1, 142.8, 14),
    "Phi-3.5-MoE": (PHI35_MOE, 41.9, 6.6),
    # llama-bench of its GGUF files: 284.33 B; report: 284 and 13 (without the embedding).
    "DeepSeek-V4-Flash": (V4_FLASH, 284.33, 13 + 0.5),
    # Report: 1.6 trillion and 49 (without the embedding). See also test_the_tensors_of_deepseek_v4_pro.
    "DeepSeek-V4-Pro": (V4_PRO, 1573, 49 + 0.9),
    # huggingface.co/MiniMaxAI/MiniMax-M3, model card: ~428 and ~23 (without tables), of which 0.9 are the vision tower.
    "MiniMax-M3": (MINIMAX_M3, 428 - 0.9, 23 + 2.5),
    # huggingface.co/XiaomiMiMo/MiMo-V2-Flash, model card: 309 and 15.
    "MiMo-V2-Flash": (MIMO_V2, 309, 15),
    # Recount of all 96 shards' headers, published on GitHub: 2,779,931,837,184 with a vision tower of 0.45; active in
    # matrix products 104,175,432,704.
    "Kimi-K3": (KIMI_K3, 2779.93 - 0.45, 104.18 + 1.2),
    # llama-bench of its GGUF files: 49.12 B; model card: 3 (without tables).
    "Kimi-Linear-48B-A3B": (KIMI_LINEAR, 49.12, 3 + 0.4),
    # huggingface.co/nvidia/Llama-3_3-Nemotron-Super-49B-v1: 49.9.
    "Nemotron-Super-49B": (NEMOTRON_NAS, 49.9, 49.9),
}
ALL = {name: content for name, (content, *_) in (EXACT | ROUNDED).items()}


pytestmark = pytest.mark.filterwarnings("ignore:.*attention_other_setting")


def launches(frame, kernel, column="count"):
    return frame.loc[frame["kernel"] == kernel, column].sum()


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_those_that_others_counted(config, name):
    content, parameters = EXACT[name]
    assert read_model(config(content)).parameters == parameters


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_counts(config, name):
    content, billions, active = ROUNDED[name]
    model = read_model(config(content))
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    assert model.active_parameters / 1e9 == pytest.approx(active, abs=0.7)


@pytest.mark.parametrize("name", ALL)
def test_every_weight_is_multiplied_once_per_token(config, name):
    model = read_model(config(ALL[name]))
    # Hyper-connections have a projection in the head, too; embeddings of layers come from the token's.
    beside = 16 * name.startswith("DeepSeek") + 35 * 256 * (name == "gemma-4-E2B")
    check_products(model, 33 * beside * model.hidden)
    halves = kernels(model, decode(1000, 4), Parallel(tensor=2, expert=2))
    assert (halves[["macs", "weight_bytes", "read_bytes", "write_bytes", "cache_bytes"]] >= 0).all().all()


def test_a_compressed_cache_has_the_published_size(config):
    # 9.62 GiB at a million tokens in 16 bits (press on the report); that counts the indexer's keys in 16 bits, engines
    # store them in fp8 with a scale. Unfinished windows are not in it.
    model = read_model(config(V4_PRO))
    indexer = 30 * 2**18 * (2 * 128 - 132)
    assert (model.kv_bytes(2**20) - model.state_bytes + indexer) / 2**30 == pytest.approx(9.62, abs=0.005)
    per_token = 61 * 1024 + 30 * (1024 + 132) / 4 + 31 * 1024 / 128
    assert model.kv_bytes_per_token() == int(per_token)
    # What waits for the window to fill, values and weights in 32 bits: of overlapping windows two, each twice as wide.
    waiting = 30 * 2 * 4 * 4 * 4 * (512 + 128) + 31 * 2 * 4 * 128 * 512
    assert model.state_bytes == waiting


def test_the_tensors_of_deepseek_v4_pro(config):
    """The hub counts 862 billion values: two of an expert's are packed in one, and every 32 have a scale.

    The layer of multi-token prediction is one more of the model's.
    """
    model = read_model(config(V4_PRO))
    experts = 384 * 3 * 7168 * 3072
    one = next(group for group in model.layers if group.attention.ratio == 0 or group.attention.ratio == 128)
    rest = model.parameters - 61 * experts
    mtp = model.vectors(one) + sum(linear.parameters for linear in one.linears(7168)) - experts
    assert (62 * experts * (1 / 2 + 1 / 32) + rest + mtp) / 1e9 == pytest.approx(862, rel=0.001)
    assert model.layers[0].formats == (("expert_down_proj", "mxfp4", "fp8"), ("expert_gate_up_proj", "mxfp4", "fp8"))
    assert model.precision_of(model.layers[0]).math_of("expert_down_proj") == "fp8"
    # Another cache does not change how weights are stored, other weights do.
    for changed, weights in (({"cache": "fp8"}, "mxfp4"), ({"weights": "fp8"}, "fp8")):
        precision = model.precision_of(model.layers[0], replace(model.precision, **changed))
        assert precision.format_of("expert_down_proj").values == weights


@given(
    new=st.integers(1, 40),
    past=st.integers(0, 60),
    ratio=st.integers(1, 9),
    most=st.one_of(st.none(), st.integers(1, 5)),
)
def test_pairs_of_compressed_entries_are_those_of_a_loop(new, past, ratio, most):
    work = mixed([0], [new], [past])
    seen = [min(t // ratio, t if most is None else most) for t in range(past + 1, past + new + 1)]
    assert work.entry_pairs(ratio, most).tolist() == [sum(seen)]
    assert work.entries(ratio).tolist() == [(past + new) // ratio]
    assert work.new_entries(ratio).tolist() == [sum(t % ratio == 0 for t in range(past + 1, past + new + 1))]


def test_compressed_attention_reads_a_window_and_what_is_selected(config):
    model = read_model(config(V4_FLASH))
    assert [group.attention.ratio for group in model.layers] == [0, 4, 128, 4]  # with a router's bias from layer 3
    frame = kernels(model, decode(100_000, 4))
    per_layer = {0: 128, 4: 128 + 512, 128: 128 + 781}
    for i, group in enumerate(model.layers):
        row = frame[(frame["layers"] == i) & (frame["kernel"] == "decode_sparse_attention")].iloc[0]
        seen = per_layer[group.attention.ratio]
        assert (row["macs"], row["cache_bytes"]) == (4 * seen * 64 * 1024, 4 * seen * 1024)
        assert (row["k"], row["value_dim"], row["kv_heads"]) == (512, 512, 1)
    scores = frame[frame["kernel"] == "decode_index_scores"]
    assert scores["count"].sum() == 21 and set(scores["macs"]) == {4 * 25_000 * 64 * 128}
    # Each of 8 groups of heads has a matrix of its own, and both blocks of a layer mix the streams.
    out = frame[frame["kernel"] == "out_a_proj"].iloc[0]
    assert (out["batch"], out["n"], out["k"], out["macs"]) == (8, 1024, 4096, 4 * 8 * 1024 * 4096)
    assert launches(frame, "hyper_add") == 2 * 43 and launches(frame, "hyper_sum") == 2 * 43 + 1
    halves = kernels(model, decode(100_000, 4), Parallel(tensor=2))
    assert set(halves.loc[halves["kernel"] == "out_a_proj", "batch"]) == {4}
    # As the last entry of compress_ratios says, the layer of multi-token prediction has only the window.
    draft = kernels(model.draft_layer(), decode(100_000, 4)).set_index("kernel")
    assert draft.loc["decode_sparse_attention", "cache_bytes"] == 4 * 128 * 1024
    assert {"draft_proj", "hyper_sum"} <= set(draft.index) and "compress_proj" not in draft.index


@pytest.mark.parametrize("name", ["V4_FLASH", "MINIMAX_M3", "MIMO_V2"])
def test_few_tokens_behind_a_longer_context_decode_in_every_kind_of_attention(config, name):
    model = read_model(config(globals()[name]))
    for new, past, decodes in ((4, 100_000, True), (16, 17, True), (16, 16, False), (17, 100_000, False)):
        found = set(kernels(model, mixed([0], [new], [past], 3))["kernel"].astype(str))
        own = {each for each in found if each.endswith(("attention", "index_scores"))}
        assert {each.startswith("decode") for each in own} == {decodes}
    every = kernels(model, decode(100, 4), fused=["attention", "rope_kv"])["kernel"].astype(str)
    assert "rope_kv_write" in set(every) and not {"rope", "kv_write"} & set(every)


def test_blocks_of_keys_are_selected_per_head(config):
    model = read_model(config(MINIMAX_M3))
    assert model.kv_bytes_per_token() == 60 * 2 * 4 * 128 * 2 + 57 * 256
    for tensor in (1, 2):
        frame = kernels(model, decode(100_000, 4), Parallel(tensor=tensor)).set_index(["layers", "kernel"])
        dense, sparse = frame.loc[(0, "decode_attention")], frame.loc[(1, "decode_sparse_attention")]
        # The indexer's projections are joined to those of queries, keys and values.
        assert frame.loc[(1, "qkv_proj"), "n"] - frame.loc[(0, "qkv_proj"), "n"] == 4 // tensor * 128 + 128
        assert dense["cache_bytes"] == 4 * 100_001 * 4 * 256 * 2 // tensor and dense["count"] == 3
        assert sparse["cache_bytes"] == 4 * 2048 * 4 * 256 * 2 // tensor and sparse["count"] == 57
        scores = frame.loc[(1, "decode_index_scores")]
        assert scores["macs"] == 4 * 100_001 * 4 // tensor * 128 and scores["cache_bytes"] == 4 * 100_001 * 256
        assert scores["precision"] == "bf16" and (0, "index_topk") not in frame.index


def test_layers_with_a_window_have_other_heads(config):
    step = read_model(config(STEP37_HUB))
    assert [(g.attention.heads, g.attention.window, g.attention.rotary_dim) for g in step.layers] == [
        *((64, None, 64), (96, 512, 128), (96, 512, 128), (64, None, 64))
    ]
    with pytest.warns(InputWarning, match="attention_other_setting: it is missing; 96 query heads"):
        read_model(config(STEP37))
    frame = kernels(step, decode(1000, 4))
    assert set(frame.loc[frame["kernel"] == "attn_gate_proj", "n"]) == {64, 96}
    mimo = read_model(config(MIMO_V2))
    full, sliding = mimo.layers[0].attention, mimo.layers[1].attention
    assert (full.kv_heads, full.sinks, sliding.kv_heads, sliding.sinks) == (4, False, 8, True)
    assert mimo.kv_bytes_per_token() == (9 * 4 + 39 * 8) * (192 + 128) * 2
    row = kernels(mimo, decode(1000, 4)).query("kernel == 'decode_attention' and layers == 0").iloc[0]
    assert (row["k"], row["value_dim"], row["macs"]) == (192, 128, 4 * 1001 * 64 * 320)


def test_keys_that_are_values_are_projected_once_and_cached_twice(config):
    model = read_model(config(GEMMA4_26B))
    assert model.kv_bytes_per_token() == 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512)
    assert {g.attention.rotary_dim for g in model.layers} == {256, 128}
    frame = kernels(model, decode(1000, 4), Parallel(tensor=2))
    assert set(frame.loc[frame["kernel"] == "qkv_proj", "n"]) == {(16 + 16) * 256 // 2, (16 + 2) * 512 // 2}
    # Router, shared and routed experts have norms of their own, which need complete sums: three per layer.
    assert launches(frame, "all_reduce") == 3 * 30 + 1
    assert all(
        launches(frame, f"{kind}_norm") == 30 for kind in ("router", "shared", "expert", "expert_post", "ffn_post")
    )
    # Model Optimizer leaves the dense block, not the experts, as they were.
    quantised = {**GEMMA4_26B, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    quantised["quantization_config"]["ignore"] = [f"model.language_model.layers.{i}.mlp*" for i in range(30)]
    (formats,) = {group.formats for group in read_model(config(quantised)).layers}
    assert [kernel for kernel, *_ in formats] == ["shared_down_proj", "shared_gate_up_proj"]


def test_layers_that_share_keys_read_them_and_write_none(config):
    model = read_model(config(GEMMA4_E2B))
    # Of 35 layers 15 have keys of their own, three of them without a window.
    assert model.kv_bytes_per_token() == (12 * 2 * 256 + 3 * 2 * 512) * 2
    assert model.kv_bytes(100_000) == (12 * 512 * 2 * 256 + 3 * 100_000 * 2 * 512) * 2
    frame = kernels(model, decode(4095, 2))
    assert launches(frame, "kv_write") == 15 and launches(frame, "decode_attention") == 35
    attention = frame[frame["kernel"] == "decode_attention"]
    read = {(row.k, row.cache_bytes) for row in attention.itertuples()}
    assert read == {(256, 2 * 512 * 2 * 256 * 2), (512, 2 * 4096 * 2 * 512 * 2)}
    turned = frame[frame["kernel"] == "qkv_proj"].groupby("n")["count"].sum()
    assert turned.to_dict() == {2048 + 512: 12, 4096 + 1024: 3, 2048: 16, 4096: 4}
    assert frame[frame["kernel"] == "gate_up_proj"].groupby("n")["count"].sum().to_dict() == {12288: 15, 24576: 20}
    assert launches(frame, "per_layer_embedding", "weight_bytes") == 2 * 35 * 256 * 2
    assert launches(frame, "per_layer_gate_proj") == launches(frame, "per_layer_proj") == 35
    draft = kernels(model.draft_layer(), decode(100, 2))
    assert launches(draft, "kv_write") == 1 and not draft["kernel"].astype(str).str.startswith("per_layer").any()


def test_every_fourth_layer_of_smollm3_has_no_rotation(config):
    stated, implied = (
        kernels(read_model(config({key: value for key, value in SMOLLM3.items() if key != left_out})), decode(100, 2))
        for left_out in ("", "no_rope_layers")
    )
    assert launches(stated, "rope") == launches(implied, "rope") == 27 and launches(stated, "kv_write") == 36


def test_kimi_delta_attention_and_residuals_of_blocks(config):
    model = read_model(config(KIMI_K3))
    assert model.kv_bytes_per_token() == 24 * 576 * 2
    assert model.state_bytes == 69 * (96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2)
    # 1,560,860,324,864 bytes are in the 96 shards, with the vision tower (0.45 billion values in 16 bits).
    assert model.weight_bytes() / 1e9 == pytest.approx(1560.86 - 0.9, rel=0.0005)
    frame = kernels(model, decode(1000, 4))
    assert launches(frame, "decode_delta_rule") == 69 and launches(frame, "rope") == 0
    assert launches(frame, "attn_gate") == launches(frame, "decode_attention") == 24
    decay = frame[frame["kernel"] == "delta_decay_proj"].iloc[0]
    assert (decay["n"], decay["k"]) == (96 * 128, 128)
    # Attention of the first layer reads the stream alone; every other block, and the head, read snapshots too.
    assert launches(frame, "residual_sum") == 2 * 93 - 1 + 1
    read = frame[(frame["kernel"] == "residual_sum")]["read_bytes"] // (4 * 7168 * 2)
    assert (read.min(), read.max()) == (2, 9)
    halves = kernels(model, decode(1000, 4), Parallel(tensor=2)).set_index("kernel").loc["all_reduce"]
    assert halves["count"].sum() == 93 * 2 + 92 + 1  # the routed experts' sum comes before their norm


def test_blocks_that_are_left_out_or_of_another_size(config):
    model = read_model(config(NEMOTRON_NAS))
    assert model.kv_bytes_per_token() == 49 * 2 * 8 * 128 * 2
    frame = kernels(model, decode(1000, 4), Parallel(tensor=2))
    assert launches(frame, "decode_attention") == 49 and launches(frame, "all_reduce") == 80 + 49 + 1
    widths = {group.ffn.width for group in model.layers}
    assert widths == {28672, 14336, 7168, 5632, 2816, 17920}
    blocks = copy.deepcopy(NEMOTRON_NAS)
    blocks["block_configs"][3]["ffn"]["replace_with_linear"] = True
    with pytest.raises(InputError, match=r"block_configs\[3\]\.ffn\.replace_with_linear: .*one matrix"):
        read_model(config(blocks))


FALCON_7B = {
    **{"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
    **{"multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024, "alibi": False, "bias": False},
}
FALCON_40B = {
    **{**FALCON_7B, "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128},
    **{"num_kv_heads": 8, "new_decoder_architecture": True},
}
COMMAND_R = sizes("cohere", 8192, 40, 64, 64, 22528, 256000, logit_scale=0.0625)
COMMAND_R_PLUS = {
    **{**COMMAND_R, "hidden_size": 12288, "intermediate_size": 33792, "num_hidden_layers": 64},
    **{"num_attention_heads": 96, "num_key_value_heads": 8, "use_qk_norm": True},
}
COMMAND_A = {
    **{**COMMAND_R_PLUS, "model_type": "cohere2", "intermediate_size": 36864, "head_dim": 128, "use_qk_norm": False},
    **{"sliding_window": 4096, "sliding_window_pattern": 4},
}
# No source is at hand for these exact counts, which the structure gives: models of 7, 40, 35, 104 and 111 billion.
PARALLEL = {
    "falcon-7b": (FALCON_7B, 6_921_720_704, 1),
    "falcon-40b": (FALCON_40B, 41_303_293_952, 2),
    "c4ai-command-r-v01": (COMMAND_R, 34_980_831_232, 1),
    "c4ai-command-r-plus": (COMMAND_R_PLUS, 103_810_674_688, 1),
    "c4ai-command-a": (COMMAND_A, 111_057_580_032, 1),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_blocks_side_by_side_share_a_sum(config, name):
    content, parameters, norms = PARALLEL[name]
    model = read_model(config(content))
    assert model.parameters == parameters and {group.norms for group in model.layers} == {norms}
    count = model.layer_count
    check_products(model)
    for fused in (True, False):
        frame = kernels(model, prefill(11, 3), fused=fused)
        assert launches(frame, "attn_norm") == launches(frame, "attn_residual") == count
        assert launches(frame, "ffn_norm") == (norms - 1) * count
    if name != "falcon-7b":  # 71 heads
        assert launches(kernels(model, decode(10), Parallel(tensor=2)), "all_reduce") == count + 1


LLAMA = sizes("llama", 2048, 16, 32, 8, 8192, 128256)


def test_mixed_precision_names_every_module(config):
    def of_layer(i):
        return {
            **{f"model.layers.{i}.self_attn.{part}_proj": {"quant_algo": "FP8"} for part in "qkvo"},
            f"model.layers.{i}.mlp.down_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        }

    settings = {
        **{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_scheme": {"num_bits": 8}},
        "quantized_layers": {**of_layer(0), **of_layer(1), "lm_head": {"quant_algo": "MXFP8"}},
        "ignore": ["model.layers.0.mlp.gate_proj", "mtp*"],
    }
    model = read_model(config({**LLAMA, "quantization_config": settings}))
    some, rest = model.layers
    assert some.numbers == (0, 1) and not rest.formats
    assert some.formats == (("down_proj", "nvfp4", None), ("out_proj", "fp8", "fp8"), ("qkv_proj", "fp8", "fp8"))
    precision = model.precision_of(some)
    assert [precision.math_of(kernel) for kernel in ("qkv_proj", "down_proj", "gate_up_proj")] == [
        "fp8",
        "bf16",
        "bf16",
    ]
    assert model.precision.cache == "fp8" and model.precision.math_of("lm_head") == "fp8"
    plain = read_model(config(LLAMA)).weight_bytes()
    saved = 2 * (2048 * (2048 + 2 * 512 + 2048) + 2048 * 8192 * (2 - 9 / 16)) + 2048 * 128256 * (1 - 1 / 32)
    assert plain - model.weight_bytes() == saved
    # A group of compressed-tensors may be of named modules; a kernel has the widest format of its parts.
    eight = {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8, "type": "float"}}
    four = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}
    groups = {"a": {**four, "targets": ["Linear"]}, "b": {**eight, "targets": ["re:.*self_attn.q_proj"]}}
    packed = {"quant_method": "compressed-tensors", "config_groups": groups}
    (group,) = read_model(config({**LLAMA, "quantization_config": packed})).layers
    assert group.formats == (
        ("qkv_proj", "fp8", "fp8"),
        *((f"qkv_proj.{part}", "int4_g128", None) for part in ("k_proj", "v_proj")),
    )


def test_modules_that_gptq_stores_otherwise(config):
    dynamic = {"-:.*self_attn.*": {}, "+:model.layers.1.mlp.down_proj": {"bits": 8, "group_size": 64}}
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic}
    model = read_model(config({**LLAMA, "quantization_config": settings}))
    assert [(group.numbers[0], group.count) for group in model.layers] == [(0, 15), (1, 1)]
    assert model.layers[1].formats == (
        ("down_proj", "int8_g64_zero", None),
        ("out_proj", "", None),
        ("qkv_proj", "", None),
    )
    assert model.precision.weights == "int4_g128_zero"


def test_modules_that_auto_round_stores_otherwise(config):
    other = {".*self_attn.*": {"bits": 16, "data_type": "fp"}, "model.layers.1.mlp.down_proj": {"bits": 8}}
    settings = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int", "extra_config": other}
    model = read_model(config({**LLAMA, "quantization_config": settings}))
    assert [(group.numbers[0], group.count) for group in model.layers] == [(0, 15), (1, 1)]
    assert ("down_proj", "int8_g128_zero", None) in model.layers[1].formats
    assert {("out_proj", "", None), ("qkv_proj", "", None)} <= set(model.layers[0].formats)
    with pytest.raises(InputError, match="data_type: unknown value 'nv_fp'"):
        read_model(config({**LLAMA, "quantization_config": {**settings, "data_type": "nv_fp"}}))


def test_experts_alone_converted_by_model_optimizer(config):
    """As nvidia/DeepSeek-V4-Flash-NVFP4: what its list ignores stays in fp8."""
    settings = {**V4_FLASH["quantization_config"], "moe_quant_algo": "NVFP4", "ignore": ["*.attn.*", "head", "mtp.*"]}
    model = read_model(config({**V4_FLASH, "quantization_config": settings}))
    assert {name for group in model.layers for name, *_ in group.formats} == {"expert_down_proj", "expert_gate_up_proj"}
    assert model.layers[0].formats[0][1:] == ("nvfp4", "fp4")
    assert model.precision_of(model.layers[0]).math_of("qkv_a_proj") == "fp8"


def test_a_name_that_says_fp8_while_nothing_states_it_is_noted(config):
    for name in ("Llama-3.1-8B-FP8_config.json", "llama-awq.json", "x-NVFP4-y.json"):
        with pytest.warns(InputWarning, match="the name says .* states a quantisation; weights are taken as bf16"):
            read_model(config(LLAMA, name))
    fp8 = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_model(config(fp8, "Llama-FP8.json"))
        read_model(config(LLAMA, "Llama-bf16-fp32.json"))


def test_an_unknown_architecture_is_read_as_another_at_the_readers_risk(config):
    strange = config({**LLAMA, "model_type": "lama_x", "residual_order": 0.22})
    nearest = "'lama_x'; llama ignores residual_order and counts .* billion parameters: only if the model has as many, "
    nearest += "treat_as: llama .--treat-as.$"
    with pytest.raises(InputError, match=f"unknown architecture {nearest}"):
        read_model(strange)
    # An architecture without experts is not near one with them.
    routed = config({**LLAMA, "model_type": "lama_x", "moe_of_its_own": 8}, "routed.json")
    with pytest.raises(InputError, match="'lama_x', and none of the known ones can read its keys; use a"):
        read_model(routed)
    # Nor is one that would take its own sizes.
    with pytest.raises(InputError, match="'vit', and none of the known ones can read its keys; use a"):
        read_model(config({"model_type": "vit", "hidden_size": 768}, "vit.json"))
    message = "'lama_x'; read as llama, at your own risk, without its keys residual_order"
    with pytest.warns(InputWarning, match=message):
        model = read_model(strange, treat_as="llama")
    assert model.parameters == read_model(config(LLAMA, "llama.json")).parameters
    with pytest.raises(InputError, match="no known architecture is called 'lamma'"):
        read_model(strange, treat_as="lamma")


#: Downloaded by the workflow: the configurations that NVIDIA's AIConfigurator carries.
CONFIGURATIONS = ROOT / "traces/aiconfigurator/aiconfigurator_core/model_configs"
OF_FILE = {
    "deepseek-ai--DeepSeek-V4-Flash": V4_FLASH,
    "deepseek-ai--DeepSeek-V4-Pro": V4_PRO,
    "google--gemma-4-26B-A4B": GEMMA4_26B,
    "MiniMaxAI--MiniMax-M3": MINIMAX_M3,
    "XiaomiMiMo--MiMo-V2-Flash": MIMO_V2,
    "stepfun-ai--Step-3.7-Flash": STEP37,
    "moonshotai--Kimi-K3": KIMI_K3,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": NEMOTRON_NAS,
}


@pytest.mark.skipif(not CONFIGURATIONS.is_dir(), reason="the dataset aiconfigurator is not downloaded")
def test_every_configuration_of_aiconfigurator_is_read(config):
    files = [file for file in sorted(CONFIGURATIONS.glob("*_config.json")) if "hf_quant" not in file.name]
    assert len(files) >= 89
    with warnings.catch_warnings():
        # None is of quantised weights that nothing states.
        warnings.filterwarnings("error", "the name says")
        models = {file.name.removesuffix("_config.json"): read_model(file) for file in files}
    for name, content in OF_FILE.items():
        ours, theirs = read_model(config(content)), models[name]
        assert (ours.parameters, ours.active_parameters) == (theirs.parameters, theirs.active_parameters)
        assert ours.kv_bytes_per_token() == theirs.kv_bytes_per_token()
    for name, model in models.items():
        linears = [(group, linear) for group in model.layers for linear in group.linears(1)]
        formats = {model.precision_of(group).format_of(linear.kernel) for group, linear in linears}
        quantised = re.search("FP4|FP8|V3|R1|K2|K3|M2|V4|MiMo-V2|oss", name)
        assert (formats != {model.precision.format_of("router")}) == bool(quantised), name


def test_attention_is_timed_by_what_it_caches(config):
    """Of latent attention's kernels are those whose heads share one entry of the cache, whatever their widths."""
    contents = (V4_FLASH, True), (MIMO_V2, False), (GEMMA4_26B, False), (KIMI_LINEAR, True)
    # Several tokens of a request read the cache once; beside them, others have one token and another context.
    works = decode(10_000, 8), decode(10_000, 8, 4), mixed([0, 0], [16, 1], [10_000, 1000], [1, 60])
    for (content, latent), work in itertools.product(contents, works):
        rows = kernels(read_model(config(content)), work, Parallel(tensor=2))
        rows = predict(rows[rows["kernel"] == "decode_attention"].reset_index(drop=True), find_gpu("b200-sxm"))
        assert rows["constants"].str.contains("MLA").all() == latent
        # No faster than the cache can be read, nor slower than a hundred times that.
        least = rows["cache_bytes"] / find_gpu("b200-sxm").dram_bytes_per_s
        assert (rows["time_s"] >= least).all() and (rows["time_s"] < 1e-4 + 100 * least).all()


def refused(config, content, message):
    with pytest.raises(InputError, match=message):
        read_model(config(content))


def test_what_is_not_modelled_is_refused(config):
    text = GEMMA4_26B["text_config"]
    nothing_before = {**GEMMA4_26B, "text_config": {**text, "num_kv_shared_layers": 26}}
    refused(config, nothing_before, "num_kv_shared_layers: no earlier layer has keys and values to share")
    other_table = {**text, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 9}
    refused(config, {**GEMMA4_26B, "text_config": other_table}, "vocab_size_per_layer_input: .*differs from vocab_size")
    refused(config, {**V4_FLASH, "compress_ratios": [4, 8] * 22}, "compress_ratios: not a ratio of 0, 4 or 128")
    refused(config, {**V4_FLASH, "o_groups": 7}, "o_groups: .*not a multiple")
    refused(config, {**MINIMAX_M3, "moe_layer_freq": [1]}, "moe_layer_freq: not a list of 60 zeros and ones")
    sparse = {**MINIMAX_M3["sparse_attention_config"], "sparse_disable_index_value": [0] * 60}
    refused(config, {**MINIMAX_M3, "sparse_attention_config": sparse}, "an indexer with values")
    linear = {**KIMI_LINEAR["linear_attn_config"], "kda_layers": [1]}
    refused(config, {**KIMI_LINEAR, "linear_attn_config": linear}, "not the layers 1 … 27")
    mixed_up = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    refused(config, {**LLAMA, "quantization_config": mixed_up}, "quantized_layers: it is missing")


OF_FAMILY = {name: ALL[name] for name in ("DeepSeek-V4-Flash", "gemma-4-26B-A4B", "MiniMax-M3", "MiMo-V2-Flash")} | {
    **{"Qwen1.5-MoE": QWEN15_MOE, "Phi-4-mini": PHI4_MINI, "gemma-3-4b": GEMMA3_4B},
    **{
        name: json.loads((ROOT / f"resources/models/{name}.json").read_text("utf-8"))
        for name in ("DeepSeek-V3", "gpt2")
    },
    **{name: ALL[name] for name in ("Step-3.7-Flash of the hub", "Kimi-K3", "Kimi-Linear-48B-A3B")},
    "mixed precision": {
        **LLAMA,
        "quantization_config": {
            **{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8"},
            **{"exclude_modules": ["lm_head"], "producer": {"name": "modelopt"}},
            "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "NVFP4", "group_size": 16}},
        },
    },
    "Nemotron-Super-49B": {**NEMOTRON_NAS, "num_hidden_layers": 1, "block_configs": NEMOTRON_NAS["block_configs"][:1]},
}


@pytest.mark.parametrize("name", OF_FAMILY)
def test_any_value_of_any_key_is_read_or_refused(config, name):
    check_hostile_values(config, OF_FAMILY[name])
