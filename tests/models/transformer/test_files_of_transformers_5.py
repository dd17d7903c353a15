"""Files that transformers 5 wrote: other keys for the same model, as its ``save_pretrained`` writes them."""

import json
import warnings

import pytest
from test_transformer_families import DOTS1, GEMMA4_26B, KIMI_LINEAR, MIMO_V2, MINIMAX_M3, SPARSE, STEP37_HUB, V4_FLASH
from test_transformer_models import CODER, GLM47_FLASH, GLM52, NEMOTRON3_NANO, NEMOTRON_H_56B, SCOUT, V32

from gpuledger.errors import InputError, InputWarning
from gpuledger.models.transformer import read_model

BLOCKS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}
TYPES = ("full_attention", "minimax_m3_sparse")
QWEN3_VL = {
    "model_type": "qwen3_vl_moe",
    "text_config": {**CODER, "model_type": "qwen3_vl_moe_text"},
    **{"tie_word_embeddings": False, "vision_config": {"hidden_size": 1152}},
}
SPELT = {
    "experts": (CODER, ["num_experts"], {"num_local_experts": 160}),
    # Its default in the inner object, where nothing reads it.
    "ties": (QWEN3_VL, [], {"text_config": {"tie_word_embeddings": True}}),
    "window": (MIMO_V2, [], {"sliding_window": 129, "mlp_layer_types": ["dense"] + ["sparse"] * 47}),
    "indexers": (GLM52, [], {"layer_types": ["indexed_attention"] * 78, "head_dim": 64}),
    "layers": (
        V32,
        ["first_k_dense_replace"],
        {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58, "layer_types": ["indexed_attention"] * 61},
    ),
    "dense layers": (GLM47_FLASH, ["first_k_dense_replace"], {"mlp_layer_types": ["dense"] + ["sparse"] * 46}),
    "hashes": (
        V4_FLASH,
        ["num_hash_layers"],
        {"mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40, "partial_rotary_factor": 0.125},
    ),
    "full layers": (
        GEMMA4_26B,
        ["global_head_dim", "num_global_key_value_heads"],
        {
            "text_config": {
                "per_layer_config": {f"{i:02}": {"head_dim": 512, "num_key_value_heads": 2} for i in range(5, 30, 6)}
            }
        },
    ),
    "chunks": (
        SCOUT,
        [],
        {
            "layer_types": [f"{'full' if i % 4 == 3 else 'chunked'}_attention" for i in range(48)],
            "no_rope_layer_interval": 4,
        },
    ),
    "selection": (
        MINIMAX_M3,
        ["sparse_attention_config", "moe_layer_freq"],
        {
            **{"index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16},
            **{"index_local_blocks": 1, "layer_types": [TYPES[i] for i in SPARSE]},
            "mlp_layer_types": [("dense", "sparse")[i] for i in SPARSE],
        },
    ),
    "delta rule": (
        KIMI_LINEAR,
        ["linear_attn_config", "mla_use_nope", "first_k_dense_replace", "moe_layer_freq"],
        {
            **{"linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4},
            "layer_types": [
                f"{'full' if i in (4, 8, 12, 16, 20, 24, 27) else 'linear'}_attention" for i in range(1, 28)
            ],
            "mlp_layer_types": ["dense"] + ["sparse"] * 26,
        },
    ),
    "experts of Step": (
        STEP37_HUB,
        ["moe_layers_enum", "attention_other_setting", "moe_num_experts", "moe_top_k", "num_attention_groups"],
        {
            "text_config": {
                **{"n_routed_experts": 288, "num_experts_per_tok": 8, "num_key_value_heads": 8},
                **{"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42, "num_sliding_attention_heads": 96},
                "per_layer_config": {f"{i:02}": {"num_attention_heads": 96} for i in range(45) if i % 4},
                "mtp_layer_types": ["sliding_attention"] * 3,
            }
        },
    ),
    "no window": (DOTS1, [], {"layer_types": ["full_attention"] * 62, "sliding_window": 4096, "max_window_layers": 62}),
    "blocks": (
        NEMOTRON3_NANO,
        ["hybrid_override_pattern", "num_hidden_layers"],
        {
            "layers_block_type": [BLOCKS[sign] for sign in NEMOTRON3_NANO["hybrid_override_pattern"]],
            "mtp_layers_block_type": ["full_attention", "moe"],
        },
    ),
    "blocks without experts": (
        NEMOTRON_H_56B,
        ["hybrid_override_pattern", "num_hidden_layers"],
        {
            "layers_block_type": [BLOCKS[sign] for sign in NEMOTRON_H_56B["hybrid_override_pattern"]],
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688},
        },
    ),
}


def spelt(content, without, more):
    content = {key: value for key, value in content.items() if key not in without}
    for key, value in more.items():
        content[key] = spelt(content[key], without, value) if key == "text_config" else value
    return {**content, "transformers_version": "5.23.0"}


def read(folder, content):
    file = folder / "model.json"
    file.write_text(json.dumps(content), "utf-8")
    return read_model(file)


@pytest.mark.parametrize("name", SPELT)
def test_what_transformers_5_wrote_is_the_same_model(tmp_path, name):
    content, without, more = SPELT[name]
    usual = read(tmp_path, content)
    with warnings.catch_warnings(action="error", category=InputWarning):
        newer = read(tmp_path, spelt(content, without, more))
    assert (newer.layers, newer.tied, newer.parameters) == (usual.layers, usual.tied, usual.parameters)


def test_an_inner_tie_counts_in_older_files(tmp_path):
    text = {**QWEN3_VL["text_config"], "tie_word_embeddings": True}
    for version, tied in (("4.57.1", True), ("5.0.0.dev0", False)):
        assert read(tmp_path, {**QWEN3_VL, "text_config": text, "transformers_version": version}).tied is tied


@pytest.mark.parametrize(
    ("name", "more", "problem"),
    [
        ("window", {"sliding_window": 200}, "key sliding_window_size: 128 differs from sliding_window"),
        ("window", {"mlp_layer_types": ["sparse"] * 48}, "key moe_layer_freq: differs from mlp_layer_types"),
        ("window", {"layer_types": ["full_attention"] * 48}, "key hybrid_layer_pattern: differs from layer_types"),
        ("indexers", {"layer_types": ["full_attention"] * 78}, "key layer_types: .*another kind of attention"),
        ("chunks", {"layer_types": ["full_attention"] * 48}, "key layer_types: .*differs from no_rope_layers"),
        ("selection", {"layer_types": ["full_attention"] * 59}, "key layer_types: not full_attention or minimax"),
        ("selection", {"index_n_heads": 8}, "key index_n_heads: .*not one head per key/value head"),
        ("delta rule", {"layer_types": ["full_attention"] * 26}, "not the layers 1 … 27"),
        ("delta rule", {"linear_num_heads": None}, "key linear_num_heads: .*not a whole number"),
        ("full layers", {"text_config": {"per_layer_config": {"04": {"head_dim": 512}}}}, "key .*per_layer_config"),
        (
            "full layers",
            {"text_config": {"per_layer_config": {f"{i}": {"hidden_size": 512} for i in range(5, 30, 6)}}},
            "hidden_size: it differs between layers",
        ),
        (
            "experts of Step",
            {"text_config": {"per_layer_config": {"01": {"num_attention_heads": 32}}}},
            "per_layer_config: differs from num_sliding_attention_heads",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, name, more, problem):
    content, without, first = SPELT[name]
    with pytest.raises(InputError, match=problem):
        read(tmp_path, spelt(spelt(content, without, first), [], more))
