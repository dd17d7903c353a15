"""Checkpoints of MLX, torchao, HQQ, AQLM, ExLlamaV3 and BitNet: bytes by hand, as their packages lay matrices out."""

import json

import pytest
from hostile_values import check_hostile_values
from transformer_counts import sizes

from gpuledger.errors import InputError
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import decode, kernels, prefill, read_model
from gpuledger.models.transformer.formats.number_formats import number_format
from gpuledger.readers.gpus import find_gpu

LLAMA_8B = sizes("llama", 4096, 32, 32, 8, 14336, 128256)
#: Values of one matrix of the feed-forward block, of attention, of all linear layers, and of a table; of norms.
MLP, ATTENTION = 4096 * 14336, 4096 * (2 * 4096 + 2 * 1024)
LINEAR, TABLE, NORMS = 32 * (3 * MLP + ATTENTION), 128256 * 4096, 2 * 65 * 4096
#: Outputs, and inputs, of all linear layers.
OUTPUTS, INPUTS = 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096), 32 * (6 * 4096 + 14336)
AFFINE = {"group_size": 64, "bits": 4}
HQQ = {"nbits": 4, "group_size": 64, "axis": 1, "channel_wise": True}
PLAIN = {"scale_quant_params": None, "zero_quant_params": None}
INT4 = {"_type": "Int4WeightOnlyConfig", "_version": 2, "_data": {"group_size": 128}}


def torchao(kind, version=2, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_version": version, "_data": data}}}


BYTES = {
    # MLX: a scale and a minimum of 16 bits per group, tables and head, too.
    "mlx": ({"quantization": AFFINE}, (LINEAR + 2 * TABLE) * 4.5 / 8 + NORMS),
    "mlx twice": (
        {"quantization": AFFINE | {"bits": 3}, "quantization_config": AFFINE | {"bits": 3}},
        (LINEAR + 2 * TABLE) * 3.5 / 8 + NORMS,
    ),
    "mlx tied": ({"quantization": AFFINE, "tie_word_embeddings": True}, (LINEAR + TABLE) * 4.5 / 8 + NORMS),
    "mlx mxfp4": (
        {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
        (LINEAR + 2 * TABLE) * 4.25 / 8 + NORMS,
    ),
    "mlx mixed": (
        {
            "quantization": {
                **AFFINE,
                "model.layers.0.self_attn.v_proj": {"group_size": 64, "bits": 6},
                "model.layers.1.mlp.down_proj": False,
                "model.embed_tokens": {"group_size": 32, "bits": 8},
                "lm_head": {"group_size": 64, "bits": 6},
            }
        },
        ((LINEAR - 4096 * 1024 - MLP) * 4.5 + (4096 * 1024 + TABLE) * 6.5 + MLP * 16 + TABLE * 9) / 8 + NORMS,
    ),
    "hqq": (
        {"quantization_config": {"quant_method": "hqq", "quant_config": {"weight_quant_params": HQQ, **PLAIN}}},
        LINEAR * 4.5 / 8 + 4 * TABLE + NORMS,
    ),
    "hqq by module": (
        {
            "quantization_config": {
                "quant_method": "hqq",
                "quant_config": {"self_attn.q_proj": {"weight_quant_params": HQQ | {"nbits": 2}, **PLAIN}},
            }
        },
        32 * 4096**2 * 2.5 / 8 + 2 * (LINEAR - 32 * 4096**2) + 4 * TABLE + NORMS,
    ),
    # One codebook of 65,536 entries of 8 values per matrix; a code of 16 bits for 8 values; a scale per output.
    "aqlm 1x16": (
        {
            "quantization_config": {
                **{"quant_method": "aqlm", "num_codebooks": 1, "nbits_per_codebook": 16, "in_group_size": 8},
                **{"out_group_size": 1, "linear_weights_not_to_quantize": ["model.norm.weight", "lm_head.weight"]},
            }
        },
        LINEAR * 2 / 8 + 32 * 7 * 65536 * 8 * 2 + 2 * OUTPUTS + 4 * TABLE + NORMS,
    ),
    "aqlm 2x8": (
        {
            "quantization_config": {
                **{"quant_method": "aqlm", "num_codebooks": 2, "nbits_per_codebook": 8, "in_group_size": 8},
                "linear_weights_not_to_quantize": None,
            }
        },
        LINEAR * 2 / 8 + 32 * 7 * 2 * 256 * 8 * 2 + 2 * OUTPUTS + 4 * TABLE + NORMS,
    ),
    # Signs and scales of 16 bits per output and input; the head in 6 bits.
    "exl3": (
        {"quantization_config": {"quant_method": "exl3", "bits": 4.0, "head_bits": 6}},
        LINEAR * 4 / 8 + 2 * (OUTPUTS + INPUTS + 4096 + 128256) + TABLE * (6 / 8 + 2) + NORMS,
    ),
    "bitnet": ({"quantization_config": {"quant_method": "bitnet"}}, LINEAR / 4 + 4 * TABLE + NORMS),
    "bitnet unpacked": (
        {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"}},
        2 * LINEAR + 4 * TABLE + NORMS,
    ),
    # A scale and a zero point of 16 bits; with the tiles of the first version 4096 and 14336 are whole multiples.
    "torchao": (
        {"quantization_config": torchao("Int4WeightOnlyConfig", group_size=128)},
        LINEAR * 4.25 / 8 + 4 * TABLE + NORMS,
    ),
    "torchao 1": (
        {"quantization_config": torchao("Int4WeightOnlyConfig", 1, group_size=128)},
        LINEAR * 4.25 / 8 + 4 * TABLE + NORMS,
    ),
    "torchao by name": (
        {
            "quantization_config": {
                **{"quant_method": "torchao", "quant_type": "int4_weight_only"},
                "quant_type_kwargs": {"group_size": 64},
            }
        },
        LINEAR * 4.5 / 8 + 4 * TABLE + NORMS,
    ),
    "torchao fp8": (
        {"quantization_config": torchao("Float8DynamicActivationFloat8WeightConfig")},
        LINEAR + 4 * TABLE + NORMS,
    ),
    # Four bits in a byte each.
    "torchao intx": (
        {
            "quantization_config": torchao(
                "Int8DynamicActivationIntxWeightConfig", weight_granularity={"_data": {"group_size": 32}}
            )
        },
        LINEAR * (8 + 24 / 32) / 8 + 4 * TABLE + NORMS,
    ),
    "torchao by module": (
        {
            "quantization_config": torchao(
                "FqnToConfig", 1, fqn_to_config={"_default": INT4, "model.layers.0.mlp.down_proj": None}
            )
        },
        (LINEAR - MLP) * 4.25 / 8 + 2 * MLP + 4 * TABLE + NORMS,
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_weights(config, name):
    settings, expected = BYTES[name]
    model = read_model(config(LLAMA_8B | settings))
    assert model.weight_bytes() == expected
    for step in (prefill(64), decode(512)):
        assert predict(kernels(model, step), find_gpu("h100-sxm"))["time_s"].gt(0).all()


@pytest.mark.parametrize(
    "name", ["mlx mixed", "hqq by module", "aqlm 1x16", "exl3", "torchao intx", "torchao by module"]
)
def test_any_value_of_any_key_is_read_or_refused(config, name):
    settings = LLAMA_8B | {"num_hidden_layers": 2} | BYTES[name][0]
    check_hostile_values(config, settings, share=2)


def test_bytes_of_odd_matrices():
    assert number_format("int3_g64_affine").bits == 3 and number_format("aqlm_1x16_8").bits == 2
    # Rows of ten groups, in 32 bits.
    assert number_format("hqq3_g64").matrix_bytes(11, 64) == 2 * 64 * 4 + 11 * 4
    # Outputs up to a multiple of 8, inputs to one of 1024.
    assert number_format("int4_tiled_g128").matrix_bytes(9, 1025) == 16 * 2048 // 2 + 16 * 16 * 4
    # An entry for 8 values of two outputs, which share a scale.
    assert number_format("aqlm_1x8_8x2").matrix_bytes(4, 16) == 4 + 256 * 16 * 2 + 2 * 2
    assert number_format("3*int4 1*bf16").copies_bytes(2, 8, 4) == 3 * 8 + 32
    assert number_format("3*int4 1*bf16").matrix_bytes(2, 8) == 14


def test_what_does_not_fill_whole_groups_stays_as_it_was(config):
    """MLX leaves a matrix alone whose depth is no multiple of the group: here that of 3,040 values."""
    model = read_model(config(sizes("llama", 1024, 2, 8, 8, 3040, 1000) | {"quantization": AFFINE}))
    converted = 2 * (4 * 1024**2 + 2 * 1024 * 3040) + 2 * 1000 * 1024
    assert model.weight_bytes() == converted * 4.5 / 8 + 2 * (2 * 1024 * 3040 + 5 * 1024)


def test_tables_that_layers_add_are_converted_too(config):
    """Gemma 4's small models: a table of 128 values for each of two layers."""
    content = sizes("gemma4_text", 1024, 2, 4, 1, 4096, 1000, head_dim=256, hidden_size_per_layer_input=128)
    content |= {"layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True}
    plain, stored = (read_model(config(content | more)) for more in ({}, {"quantization": AFFINE}))
    # Scales, minima and values have 4.5 bits in all matrices; 16 stay in norms and other vectors.
    vectors = sum(group.count * plain.vectors(group) for group in plain.layers) + plain.final_vectors
    assert stored.weight_bytes() == (plain.parameters - vectors) * 4.5 / 8 + 2 * vectors


@pytest.mark.parametrize(("kind", "converted"), [("qwen3_moe", True), ("deepseek_v3", False)])
def test_routers_of_mlx_are_converted_where_they_are_linear_layers(config, kind, converted):
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    content = sizes(kind, 1024, 2, 8, 8, 3072, 1000, moe_intermediate_size=512, num_experts_per_tok=2)
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    content |= {"num_experts": 8} if converted else {"n_routed_experts": 8, "q_lora_rank": None, **latent}
    model = read_model(config(content | {"quantization": AFFINE}))
    assert (model.precision.format_of("router").bits == 4) == converted
    # Experts are one module of MLX; routers have a format of their own.
    other = AFFINE | {"model.layers.1.mlp.switch_mlp.up_proj": {"group_size": 64, "bits": 8}}
    other |= {"model.layers.1.mlp.gate": {"group_size": 64, "bits": 8}} if converted else {}
    more = read_model(config(content | {"quantization": other})).weight_bytes() - model.weight_bytes()
    assert more == (8 * 1024 * 512 + converted * 8 * 1024) // 2


@pytest.mark.parametrize(
    ("kind", "experts", "router"),
    [
        ("mixtral", "block_sparse_moe.switch_mlp", "block_sparse_moe.gate"),
        ("gpt_oss", "mlp.experts", "mlp.router"),
        ("bailing_moe", "mlp.switch_mlp", "mlp.gate.gate_proj"),
    ],
)
def test_names_of_mlx_are_those_of_modules(config, kind, experts, router):
    content = sizes(kind, 1024, 2, 8, 8, 512, 1000, num_local_experts=8, num_experts_per_tok=2, head_dim=128)
    if kind == "bailing_moe":
        content |= {"num_experts": 8, "moe_intermediate_size": 512, "num_shared_experts": 1}
        del content["num_local_experts"]
    layer, eight = "model.layers.1.", {"group_size": 64, "bits": 8}
    other = AFFINE | {f"{layer}{experts}.up_proj": eight, f"{layer}{router}": eight}
    usual, more = (read_model(config(content | {"quantization": one})).weight_bytes() for one in (AFFINE, other))
    assert more - usual == (8 * 1024 * 512 + 8 * 1024) // 2


def test_bits_of_each_matrix_lie_beside_a_trellis(tmp_path):
    """ExLlamaV3 writes them into quantization_config.json."""
    stated = {"quant_method": "exl3", "bits": 3.5, "head_bits": 6}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"quantization_config": stated}))
    with pytest.raises(InputError, match="bits are a mean: matrices differ; put the checkpoint"):
        read_model(tmp_path)
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    names += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    stored = {
        f"model.layers.{i}.{name}": {"quant_format": "exl3", "bits_per_weight": 3} for i in range(32) for name in names
    }
    stored["model.layers.0.mlp.down_proj"]["bits_per_weight"] = 2.5
    stored |= {"model.norm": {"stored_tensors": {}}, "lm_head": {"quant_format": "exl3", "bits_per_weight": 6}}
    (tmp_path / "quantization_config.json").write_text(json.dumps(stated | {"tensor_storage": stored}))
    expected = (LINEAR * 3 - MLP / 2) / 8 + 2 * (OUTPUTS + INPUTS + 4096 + 128256) + TABLE * (6 / 8 + 2) + NORMS
    assert read_model(tmp_path).weight_bytes() == expected


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"quantization": AFFINE | {"bits": 7}}, "quantization_config.bits: 7 bits"),
        ({"quantization": AFFINE | {"mode": "ternary"}}, "quantization_config.mode: unknown value 'ternary'"),
        ({"quantization_config": {"quant_method": "exl2", "bits": 4.0}}, "only in its weights"),
        ({"quantization_config": {"quant_method": "exl3", "bits": 9}}, "9 bits; ExLlamaV3 has 1 to 8"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_config: it is missing or empty"),
        (
            {"quantization_config": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 7}}}},
            "nbits: 7 bits; only 2, 3, 4, 5, 6 and 8",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "hqq",
                    "quant_config": {"weight_quant_params": HQQ, "scale_quant_params": {"nbits": 8}},
                }
            },
            "quantised scales; only null is modelled",
        ),
        ({"quantization_config": {"quant_method": "aqlm"}}, "num_codebooks: it is missing"),
        ({"quantization_config": torchao("Float8DynamicActivationInt4WeightConfig")}, "unknown scheme 'Float8Dynamic"),
        (
            {"quantization_config": torchao("Int4WeightOnlyConfig", int4_packing_format="PRESHUFFLED")},
            "layout 'preshuffled'",
        ),
        (
            {"quantization_config": torchao("Int8WeightOnlyConfig") | {"include_input_output_embeddings": True}},
            "quantised embeddings",
        ),
    ],
)
def test_layouts_that_are_not_known_are_refused(config, settings, problem):
    with pytest.raises(InputError, match=problem):
        read_model(config(LLAMA_8B | settings))
