"""Checkpoints that bitsandbytes and AMD's Quark quantised: bytes by hand, and what is refused."""

import pytest
from own_cases import refused
from transformer_counts import sizes

from gpuledger.models.transformer import read_model

LLAMA_8B = sizes("llama", 4096, 32, 32, 8, 14336, 128256)
#: Values of one matrix of the feed-forward block, of those of attention and of all linear layers; what is in 16 bits.
MLP, ATTENTION = 4096 * 14336, 4096 * (2 * 4096 + 2 * 1024)
LINEAR, REST = 32 * (3 * MLP + ATTENTION), 2 * (2 * 128256 * 4096 + 65 * 4096)
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
#: As Unsloth writes it: modules of any architecture, and some blocks of this one.
SKIPPED = ["lm_head", "multi_modal_projector", "merger", "modality_projection", "model.layers.1.mlp"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (FOUR, LINEAR * (4 + 32 / 64) / 8 + REST),
        # 5.7 GB, the size of unsloth/Meta-Llama-3.1-8B-bnb-4bit.
        (FOUR | {"bnb_4bit_use_double_quant": True}, LINEAR * (4 + 8 / 64) / 8 + REST),
        (FOUR | {"load_in_4bit": False, "load_in_8bit": True}, LINEAR + REST),
        (FOUR | {"llm_int8_skip_modules": SKIPPED}, (LINEAR - 3 * MLP) * 4.5 / 8 + 3 * MLP * 2 + REST),
        ({"quant_method": "quark", "global_quant_config": {"weight": FP8, "input_tensors": FP8}}, LINEAR + REST),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": FP4},
                "exclude": ["lm_head", "re:.*self_attn.*"],
            },
            32 * (3 * MLP * (4 + 8 / 32) / 8 + 2 * ATTENTION) + REST,
        ),
        (
            {"quant_method": "quark", "global_quant_config": {}, "layer_quant_config": {"*.mlp.*": {"weight": FP4}}},
            32 * (3 * MLP * (4 + 8 / 32) / 8 + 2 * ATTENTION) + REST,
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint4", "group_size": 128}}},
            LINEAR * (4 + 20 / 128) / 8 + REST,
        ),
    ],
)
def test_bytes_of_weights(config, settings, expected):
    assert read_model(config({**LLAMA_8B, "quantization_config": settings})).weight_bytes() == expected


def test_operands_and_cache(config):
    def precision(**more):
        settings = {"quant_method": "quark", "global_quant_config": {"weight": FP4, **more.pop("all", {})}, **more}
        return read_model(config({**LLAMA_8B, "quantization_config": settings})).precision

    assert precision().operands is None and precision().cache == "bf16"
    assert precision(all={"input_tensors": FP4}).operands == "fp4"
    assert precision(all={"input_tensors": {"is_dynamic": True}}).operands == "fp4", "as the weights"
    assert precision(kv_cache_quant_config={"*k_proj": {"output_tensors": FP8}}).cache == "fp8"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (FOUR | {"load_in_4bit": False}, ("load_in_4bit", "neither 4 nor 8 bits")),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp6_e2m3"}}}, ("dtype", "fp6_e2m3")),
        ({"quant_method": "quark", "global_quant_config": {"weight": [FP8, FP4]}}, ("weight", "is not an object")),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": FP4 | {"group_size": 16}}},
            ("group_size", "16 values of fp4"),
        ),
    ],
)
def test_what_is_not_modelled_is_one_line(config, settings, words):
    with refused("quantization_config", *words):
        read_model(config({**LLAMA_8B, "quantization_config": settings}))
