"""Models with lightning attention, Mamba-1, Mamba-2 beside attention, or a shortcut around layers.

MiniMax-Text-01, Jamba, Falcon-H1 and LongCat-Flash.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformer_counts import check_counts, check_products, sizes

from gpuledger.errors import InputError
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model
from gpuledger.models.transformer.blocks.recurrent import LightningAttention
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_breakdown.structure import structure_rows

# huggingface.co/MiniMaxAI/MiniMax-Text-01 and MiniMax-M1-80k, config.json, but for keys that every file has.
MINIMAX_01 = {
    **sizes("minimax_text_01", 6144, 80, 64, 8, 9216, 200064, head_dim=128, rotary_dim=64, postnorm=True),
    **{"num_local_experts": 32, "num_experts_per_tok": 2, "attn_type_list": ([0] * 7 + [1]) * 10},
    **{"shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "sliding_window": None, "rope_theta": 10000000},
    **{f"layernorm_{part}_alpha": 3.5565588200778455 for part in ("full_attention", "linear_attention", "mlp")},
    **{f"layernorm_{part}_beta": 1.0 for part in ("full_attention", "linear_attention", "mlp")},
}
SCALES = {
    **{"attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "embedding_multiplier": 5.656854249492381},
    **{"key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625, "mlp_multipliers": [0.88, 0.59]},
    **{"ssm_in_multiplier": 1.25, "ssm_multipliers": [0.35, 0.25, 0.35, 0.5, 0.35], "ssm_out_multiplier": 0.24},
}
FALCON_H1 = {
    **{"attn_layer_indices": None, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1},
    **{"mamba_chunk_size": 128, "mamba_norm_before_gate": False, "mamba_proj_bias": False, "mamba_rms_norm": False},
    **{"mamba_use_mlp": True, "mlp_expansion_factor": 8, "num_logits_to_keep": 1, "projectors_bias": False, **SCALES},
}
# tiiuae/Falcon-H1-0.5B-Instruct and -7B-Instruct.
FALCON_H1_05B = {
    **sizes("falcon_h1", 1024, 36, 8, 2, 2048, 32784, head_dim=64, **FALCON_H1),
    **{"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128},
}
FALCON_H1_7B = {
    **sizes("falcon_h1", 3072, 44, 12, 2, 12288, 130048, head_dim=128, **FALCON_H1),
    **{"mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_d_state": 256},
}
# meituan-longcat/LongCat-Flash-Chat.
LONGCAT = {
    **{"model_type": "longcat_flash", "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64},
    **{"ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "vocab_size": 131072, "attention_method": "MLA"},
    **{"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"moe_topk": 12, "n_routed_experts": 512, "zero_expert_num": 256, "zero_expert_type": "identity"},
    **{"mla_scale_kv_lora": True, "mla_scale_q_lora": True, "routed_scaling_factor": 6.0, "attention_bias": False},
}
# ai21labs/Jamba-v0.1.
JAMBA = {
    **sizes("jamba", 4096, 32, 32, 8, 14336, 65536, attn_layer_offset=4, attn_layer_period=8, sliding_window=None),
    **{"num_experts": 16, "num_experts_per_tok": 2, "expert_layer_offset": 1, "expert_layer_period": 2},
    **{"mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_conv_bias": True},
    **{"mamba_inner_layernorms": True, "mamba_proj_bias": False, "use_mamba_kernels": True, "num_logits_to_keep": 1},
}
#: Content, parameters as transformers 5.18 counts them, and bytes of the cache per token.
COUNTED = {
    "MiniMax-Text-01": (MINIMAX_01, 456089655296, 10 * 2 * 8 * 128 * 2),
    "MiniMax-M1": ({**MINIMAX_01, "model_type": "minimax_m1"}, 456089655296, 10 * 2 * 8 * 128 * 2),
    "Falcon-H1-0.5B": (FALCON_H1_05B, 521411104, 36 * 2 * 2 * 64 * 2),
    "Falcon-H1-7B": (FALCON_H1_7B, 7585513568, 44 * 2 * 2 * 128 * 2),
    # transformers has matrices for experts without any, 256 of 2 · 2,048 × 6,144, and a buffer for the choices' biases.
    "LongCat-Flash": (LONGCAT, 741053585408 - 28 * 256 * 4096 * 6144 + 28 * 768, 56 * (512 + 64) * 2),
    "Jamba": (JAMBA, 51570323328, 4 * 2 * 8 * 128 * 2),
    "Falcon-H1-7B, normalised": ({**FALCON_H1_7B, "mamba_rms_norm": True}, 7585648736, 44 * 2 * 2 * 128 * 2),
}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_cache(config, name):
    content, parameters, cached = COUNTED[name]
    check_counts(read_model(config(content)), parameters, cached)


@pytest.mark.parametrize("name", COUNTED)
def test_every_weight_is_multiplied_once_per_token(config, name):
    check_products(read_model(config(COUNTED[name][0])))


def test_minimax_has_the_sizes_of_its_card(config):
    model = read_model(config(MINIMAX_01))
    # Its model card: 456 billion, of which 45.9 are activated, the two tables not counted.
    tables = sum(table.parameters for table in model.embeddings)
    assert round(model.parameters / 1e9) == 456 and round((model.active_parameters - tables) / 1e9, 1) == 45.9
    linear, full = model.layers
    assert full.numbers == tuple(range(7, 80, 8)) and full.attention.rotary_dim == 64
    # 70 layers: 64 heads of 128 × 128, in 16 bits.
    assert model.state_bytes == 70 * 64 * 128 * 128 * 2
    assert linear.attention == LightningAttention(64, 128)


def test_minimax_of_transformers_is_the_same(config):
    kept = {key: value for key, value in MINIMAX_01.items() if not key.startswith(("layernorm", "attn", "shared"))}
    types = (["linear_attention"] * 7 + ["full_attention"]) * 10
    other = {**kept, "model_type": "minimax", "layer_types": types, "block_size": 256, "mlp_alpha_factor": 3.56}
    assert read_model(config(other)).layers == read_model(config(MINIMAX_01)).layers


def test_a_layer_of_lightning_attention(config):
    model = read_model(config(MINIMAX_01))
    frame = kernels(model, prefill(600, 2), Parallel(tensor=2))
    layer = frame[frame["layers"] == 0].set_index("kernel")
    order = ["qkv_proj", "ssm_act", "ssm_scan", "ssm_norm", "attn_gate_proj", "attn_gate", "out_proj"]
    assert [name for name in layer.index if name in order] == order
    scan, width, state = layer.loc["ssm_scan"], 32 * 128, 32 * 128 * 128
    # Three chunks of each prompt, whose states are written twice and read twice in 32 bits; the kept one has 16.
    handed_on = 2 * 3 * 2 * state * 4 + 2 * state * 2
    assert scan["read_bytes"] == 1200 * 7 * width * 4 + handed_on
    assert scan["write_bytes"] == 1200 * 2 * width * 4 + handed_on
    assert scan["macs"] == 1200 * (2 * state + 2 * 144 * width)
    # Two sums of the stream, and one number of 32 bits for the norm over all heads.
    sums = frame[(frame["layers"] == 0) & (frame["kernel"] == "all_reduce")].set_index("n")["count"]
    assert sums.to_dict() == {2: 70, 6144: 140}


@given(context=st.integers(1, 10**6), batch=st.integers(1, 512))
def test_a_step_of_lightning_attention_does_not_grow_with_the_context(tmp_path_factory, context, batch):
    scan = kernels(_small(tmp_path_factory), decode(context, batch))
    scan = scan[scan["kernel"] == "decode_ssm_scan"].iloc[0]
    state = 4 * 16 * 16
    assert scan["read_bytes"] == batch * (3 * 64 * 4 + state * 2)
    assert scan["write_bytes"] == batch * (64 * 4 + state * 2)
    assert scan["macs"] == batch * 2 * state


def _small(factory):
    file = factory.getbasetemp() / "lightning.json"
    content = {**sizes("minimax", 64, 2, 4, 2, 96, 128, head_dim=16), "num_local_experts": 4, "num_experts_per_tok": 2}
    file.write_text(json.dumps({**content, "layer_types": ["linear_attention", "full_attention"]}))
    return read_model(file)


def test_a_layer_of_falcon_h1_has_attention_and_mamba(config):
    model = read_model(config(FALCON_H1_7B))
    assert len(model.layers) == 1
    # 44 layers: 24 heads of 128 × 256, and three tokens of 3,072 + 2 · 256 values.
    assert model.state_bytes == 44 * (24 * 128 * 256 * 2 + 3 * (3072 + 512) * 2)
    assert model.kv_bytes(1000) == 1000 * 45056 + model.state_bytes
    frame = kernels(model, decode(4096, batch=8), Parallel(tensor=4))
    layer = frame[frame["layers"] == 0]
    assert layer["kernel"].tolist()[2:14] == [
        *("qkv_proj", "rope", "kv_write", "decode_attention", "out_proj", "ssm_in_proj", "ssm_scale"),
        *("decode_ssm_conv", "decode_ssm_scan", "ssm_norm", "out_proj", "branch_add"),
    ]
    # A device has 3 of 12 query heads and a copy of one of two key/value heads; 6 of 24 heads of Mamba-2.
    assert layer[layer["kernel"] == "out_proj"]["k"].tolist() == [3 * 128, 6 * 128]
    assert layer[layer["kernel"] == "qkv_proj"]["n"].tolist() == [(3 + 2) * 128]
    # Both outputs are summed over devices, and that of the feed-forward block.
    assert layer[layer["kernel"] == "all_reduce"]["count"].tolist() == [3 * 44]
    with pytest.raises(InputError, match="query heads"):
        kernels(model, decode(16), Parallel(tensor=8))
    assert " beside Mamba-2: 24 heads" in structure_rows(model, model.precision)["description"].str.cat()


def test_longcat_has_the_sizes_of_its_card(config):
    model = read_model(config(LONGCAT))
    routed, dense = model.layers
    assert (routed.count, dense.count) == (28, 28) and routed.attention == dense.attention
    assert routed.numbers == tuple(range(0, 56, 2))
    # 560 billion, of which 18.6 to 31.3 are activated and 27 in the mean: with one of the two tables.
    one = sum(linear.parameters for linear in routed.ffn.expert_linears(model.hidden)) // 512
    mean = model.active_parameters - model.vocab * model.hidden
    assert [round(count / 1e9) for count in (model.parameters, mean)] == [561, 27]
    assert mean - 8 * 28 * one == pytest.approx(18.6e9, rel=0.01)
    assert mean + 4 * 28 * one == pytest.approx(31.3e9, rel=0.01)


def test_experts_that_compute_nothing_are_chosen_too(config):
    frame = kernels(read_model(config(LONGCAT)), decode(512, 64), Parallel(tensor=8)).set_index("kernel")
    assert frame.loc["router", "n"] == 512 + 256
    assert frame.loc["router_topk", "write_bytes"] == 64 * 12 * 8
    # Of 12 choices 8 compute.
    assert frame.loc["expert_gate_up_proj", "choices"] == 64 * 8
    assert frame.loc["zero_experts", "read_bytes"].tolist() == [64 * 6144 * 2, 64 * 2 * 6144 * 2]
    # Attention, the dense block and, on its own, what the shortcut adds later; of the second layer the first two.
    sums = frame.loc["all_reduce"]
    assert sums[sums["layers"] >= 0]["count"].tolist() == [3 * 28, 2 * 28]
    plain = kernels(read_model(config(LONGCAT | {"zero_expert_num": 0})), decode(512, 64)).set_index("kernel")
    assert "zero_experts" not in plain.index and plain.loc["expert_gate_up_proj", "choices"] == 64 * 12


def test_longcat_in_fp8_keeps_its_router(config):
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    model = read_model(config(LONGCAT | {"quantization_config": fp8}))
    frame = kernels(model, prefill(64)).set_index("kernel")
    assert frame.loc["router", "weight_precision"] == "bf16"
    assert frame.loc["expert_gate_up_proj", "weight_precision"] == "fp8_block"
    # A byte each of matrices, two each of tables, router, vectors; 32 bits per block of 128 × 128.
    assert model.weight_bytes() == pytest.approx(model.parameters * (1 + 4 / 128**2) + 2 * 131072 * 6144, rel=1e-3)


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        # The second attention of layer 3 compresses 6144 values to 1536, its first block is 12,288 wide.
        ("model.layers.3.self_attn.1.q_a_proj", 6144 * 1536),
        ("model.layers.3.mlps.0", 3 * 6144 * 12288),
        (r"re:model\.layers\.3\.mlps\.[01]\.down_proj", 2 * 6144 * 12288),
        (r"re:.*layers\.(3|4)\.mlps\.1\.up_proj", 2 * 6144 * 12288),
        # All 512 experts of layer 27, the last.
        ("model.layers.27.mlp.experts", 512 * 3 * 6144 * 2048),
    ],
)
def test_longcat_counts_two_layers_as_one(config, pattern, values):
    def stored(*names):
        fp8 = {"quant_method": "fp8", "ignored_layers": list(names)}
        return read_model(config(LONGCAT | {"quantization_config": fp8})).weight_bytes()

    assert stored(pattern) - stored() == values
    with pytest.raises(InputError, match="unknown module"):
        stored("model.layers.3.self_attn.2.q_a_proj")


@pytest.mark.parametrize("content", [JAMBA, MINIMAX_01])
def test_a_few_new_tokens_are_a_prompt(config, content):
    names = set(kernels(read_model(config(content)), decode(1000, 4, new_tokens=4))["kernel"])
    assert "ssm_scan" in names and not names & {"decode_ssm_scan", "decode_ssm_conv"}


def test_a_stage_has_whole_pairs_of_layers(config):
    model = read_model(config(LONGCAT | {"num_hidden_layers": 56}))
    assert len(kernels(model, decode(16), Parallel(pipeline=4))["stage"].unique()) == 4
    with pytest.raises(InputError, match="would end between two layers"):
        kernels(model, decode(16), Parallel(pipeline=8))


def test_jamba_large_has_the_sizes_of_its_card(config):
    sizes_of_large = {"hidden_size": 8192, "intermediate_size": 24576, "num_hidden_layers": 72, "mamba_dt_rank": 512}
    model = read_model(config({**JAMBA, **sizes_of_large, "num_attention_heads": 64}))
    # 398 billion parameters, of which 94 are active.
    assert model.parameters == pytest.approx(398e9, rel=0.002)
    assert round(model.active_parameters / 1e9) == 94


def test_jamba_has_a_layer_of_attention_in_eight(config):
    model = read_model(config(JAMBA))
    kinds = {(type(group.attention).__name__, type(group.ffn).__name__): group.numbers for group in model.layers}
    assert kinds["Attention", "FeedForward"] == (4, 12, 20, 28) and len(kinds["SelectiveScan", "Experts"]) == 16
    # Its model card: 52 billion, of which 12 are active. Of 28 layers with 8,192 channels, each channel keeps 16 values
    # of state, and three tokens of the convolution.
    assert [round(count / 1e9) for count in (model.parameters, model.active_parameters)] == [52, 12]
    assert model.state_bytes == 28 * 8192 * (16 + 3) * 2
    assert {getattr(group.attention, "rotary_dim", 0) for group in model.layers} == {0}
    assert read_model(config(JAMBA | {"mamba_dt_rank": "auto"})).layers == model.layers
    one = read_model(config(JAMBA | {"num_experts": 1}))
    assert {type(group.ffn).__name__ for group in one.layers} == {"FeedForward"}


@pytest.mark.parametrize(("work", "name", "tokens"), [(prefill(100, 3), "", 300), (decode(100, 3), "decode_", 3)])
def test_a_scan_of_mamba_1_moves_its_values_and_one_state_per_request(config, work, name, tokens):
    frame = kernels(read_model(config(JAMBA)), work, Parallel(tensor=2))
    layer = frame[frame["layers"] == 0].set_index("kernel")
    scan, state = layer.loc[f"{name}ssm_scan"], 3 * 4096 * 16 * 2
    assert scan["read_bytes"] == tokens * (3 * 4096 + 2 * 16) * 2 + state
    assert scan["write_bytes"] == tokens * 4096 * 2 + state
    assert scan["macs"] == tokens * 2 * 4096 * 16
    # What steps, inputs and outputs follow from is summed over devices before its three norms.
    assert layer.loc["ssm_x_proj", ["n", "k"]].tolist() == [256 + 2 * 16, 4096]
    assert layer.loc["ssm_norm", "n"].tolist() == [256, 16, 16]
    assert layer.loc["all_reduce", "n"].tolist() == [288, 4096]


@pytest.mark.parametrize(
    ("content", "ignored", "plain"),
    [
        (MINIMAX_01, "re:.*self_attn.output_gate", {("LightningAttention", "attn_gate_proj")}),
        (MINIMAX_01, "model.layers.3.self_attn.qkv_proj", {("LightningAttention", "qkv_proj")}),
        (JAMBA, "re:.*mamba.out_proj", {("SelectiveScan", "out_proj")}),
        (JAMBA, "re:.*mamba.in_proj", {("SelectiveScan", "ssm_in_proj")}),
        (FALCON_H1_7B, "re:.*mamba.in_proj", {("AttentionBesideMamba", "ssm_in_proj")}),
        (FALCON_H1_7B, "re:.*self_attn.k_proj", {("AttentionBesideMamba", "qkv_proj")}),
    ],
)
def test_modules_that_are_not_quantised(config, content, ignored, plain):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}
    settings = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head", ignored]}
    model = read_model(config({**content, "quantization_config": settings}))
    found = {(type(group.attention).__name__, name) for group in model.layers for name, *_ in group.formats}
    assert {(kind, name) for kind, name in found if "." not in name} == plain


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (MINIMAX_01 | {"attn_type_list": None}, "attn_type_list: it is missing"),
        (MINIMAX_01 | {"attn_type_list": [1] * 79}, "attn_type_list: not a list of 80 zeros and ones"),
        (MINIMAX_01 | {"layer_types": ["conv"] * 80}, "layer_types: not linear_attention or full_attention for each"),
        (MINIMAX_01 | {"shared_intermediate_size": 9216}, "shared_intermediate_size: 9216: shared experts"),
        (MINIMAX_01 | {"sliding_window": 4096}, "sliding_window: 4096: attention with a window"),
        (LONGCAT | {"moe_topk": 10}, "moe_topk: of 10 choices, 6.67 experts compute in the mean"),
        (LONGCAT | {"num_hidden_layers": 28}, "num_hidden_layers: 28: not two for each of num_layers"),
        (LONGCAT | {"zero_expert_type": "copy"}, "zero_expert_type: 'copy': another kind of layer"),
        (LONGCAT | {"disable_quant_module": ["self_attn"]}, "disable_quant_module: unknown keys"),
        (JAMBA | {"mamba_inner_layernorms": False}, "mamba_inner_layernorms: false: Mamba-1 without norms"),
        (JAMBA | {"attn_layer_offset": 8}, "attn_layer_offset: 8 is not within 0 … 7"),
        (JAMBA | {"expert_layer_period": 0}, "expert_layer_period: 0 is not within 1"),
        (JAMBA | {"mamba_dt_rank": "half"}, "mamba_dt_rank: 'half' is not a whole number"),
        (FALCON_H1_7B | {"mamba_d_ssm": 1024}, "mamba_n_heads: 24 heads of 128 are not 1024 wide"),
        (FALCON_H1_7B | {"projectors_bias": True}, "projectors_bias: true: projections with a bias"),
        (FALCON_H1_7B | {"mamba_use_mlp": False}, "mamba_use_mlp: false: layers without a feed-forward block"),
        (FALCON_H1_7B | {"attn_layer_indices": [0]}, r"attn_layer_indices: \[0\]: layers without attention"),
    ],
)
def test_what_is_not_modelled_is_refused(config, content, problem):
    with pytest.raises(InputError, match=problem):
        read_model(config(content))


def test_a_scan_computes_no_faster_than_matrix_units(config):
    gpu = find_gpu("rtx-3090")  # of little arithmetic for its bandwidth
    rows = predict(kernels(read_model(config(FALCON_H1_7B)), prefill(8192)), gpu)
    scan = rows[rows["kernel"] == "ssm_scan"].iloc[0]
    assert 2 * scan["macs"] / scan["time_s"] < gpu.peak_flop_per_s("bf16") and scan["bound"] == "compute"
