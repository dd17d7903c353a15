"""Layers that a token passes several times, of Ouro and Inkling 2 Mini: weights once, kernels and cache every time."""

import pytest
from hostile_values import check_hostile_values
from transformer_counts import check_counts, check_products, sizes

from gpuledger.errors import InputError
from gpuledger.models.deployment.memory import memory_bytes
from gpuledger.models.training import TrainingRun
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_breakdown.structure import structure_rows

OURO = {
    **sizes("ouro", 2048, 48, 16, 16, 5632, 49152, max_position_embeddings=65536, sliding_window=None),
    **{"total_ut_steps": 4, "early_exit_threshold": 1.0, "use_sliding_window": False, "max_window_layers": 48},
    "tie_word_embeddings": False,
}
MINI = {
    **sizes("inkling2_loop_text", 2304, 24, 24, 8, None, 201024, head_dim=128, unpadded_vocab_size=200058),
    **{"swa_num_attention_heads": 24, "swa_num_key_value_heads": 8, "sliding_window_size": 1024},
    **{"moe_intermediate_size": 1152, "n_routed_experts": 128, "num_experts_per_tok": 8, "conv_kernel_size": 4},
    "loop_config": {"core_start": 6, "core_end": 18, "num_passes": 3, "gate_rank": 64},
}
#: Weights of a gate, of which a layer in the cycle has four.
GATE = 2 * 2304 * 64 + 2 * 64 * 2304


@pytest.mark.parametrize(
    "layers, parameters",
    # As the checkpoint's safetensors count Ouro-2.6B; of Ouro-1.4B half of the layers, of 51,388,416 parameters each.
    [(48, 2_667_974_657), (24, 2_667_974_657 - 24 * 51_388_416)],
)
def test_weights_count_once_and_each_cycle_caches(config, layers, parameters):
    model = read_model(config(OURO | {"num_hidden_layers": layers}))
    check_counts(model, parameters, 4 * layers * 2 * 2 * 2048)
    check_products(model)
    assert model.active_parameters == parameters and model.weight_bytes() == 2 * parameters
    work = decode(4096)
    memory = memory_bytes(model, Parallel(), None, work, kernels(model, work)).iloc[0]
    assert memory["weight_bytes"] == 2 * parameters


def test_each_cycle_runs_all_kernels_and_ends_with_the_last_norm(config):
    frame = kernels(read_model(config(OURO)), prefill(128))
    counts = frame.groupby("kernel", observed=True)["count"].sum()
    assert counts[["qkv_proj", "attention", "down_proj", "ffn_post_norm"]].tolist() == [4 * 48] * 4
    assert counts["cycle_norm"] == 3 and counts["final_norm"] == 1
    assert frame.set_index("kernel").loc[["cycle_norm", "final_norm"], "m"].tolist() == [128, 128]
    # The first norm of a cycle has no sum to read.
    alone = frame[(frame["kernel"] == "attn_norm") & (frame["read_bytes"] == 128 * 2048 * 2)]
    assert alone["count"].tolist() == [1, 3]
    once = kernels(read_model(config(OURO | {"total_ut_steps": 1})), prefill(128))
    assert "cycle_norm" not in set(once["kernel"]) and set(once["layers"]) == {-1, 0}


def test_a_quantised_layer_is_quantised_in_every_cycle(config):
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    for number in (0, 7):
        quantised["modules_to_not_convert"].append(f"model.layers.{number}.self_attn.o_proj")
    model = read_model(config(OURO | {"quantization_config": quantised}))
    frame = kernels(model, decode(100))
    plain = frame[(frame["kernel"] == "out_proj") & (frame["weight_precision"] == "bf16")]
    assert plain["count"].tolist() == [2, 6]
    assert frame[frame["kernel"] == "out_proj"]["count"].sum() == 4 * 48


def test_parts_of_the_model_count_once(config):
    model = read_model(config(OURO))
    parts = structure_rows(model, model.precision)
    assert parts["parameters"].sum() == model.parameters and parts["weight_bytes"].sum() == model.weight_bytes()
    again = parts[parts["description"].str.startswith("again, ")]
    assert again["layers"].tolist() == [3 * 48] * 2 and not again["parameters"].any()
    assert parts["cache_bytes"].sum() == model.kv_bytes_per_token()


def test_what_is_not_modelled_is_refused(config):
    model = read_model(config(OURO))
    with pytest.raises(InputError, match="a token passes layers several times; use one stage"):
        kernels(model, decode(100), Parallel(pipeline=2))
    with pytest.raises(InputError, match="early_exit_threshold"):
        read_model(config(OURO | {"early_exit_threshold": 0.5}))
    with pytest.raises(InputError, match="layers only, each passed once"):
        TrainingRun(model, find_gpu("h100-sxm"), 1, 4096, 1)


def test_inkling_2_mini_passes_half_of_its_layers_three_times(config):
    model = read_model(config(MINI))
    # As transformers 5.24 counts them, beside its buffers and the rows of the LM head that stand for no token.
    parameters = 26_068_156_416 + 24 * 128 + (201024 - 200058) * 2304
    check_counts(model, parameters, (24 + 2 * 12) * 2 * 2 * 8 * 128)
    # Biases by distance. The first cycle has no messages.
    check_products(model, 33 * (48 * 24 * 16 * 1024 - 12 * 4 * GATE))
    assert model.active_parameters == parameters - 24 * 120 * 3 * 2304 * 1152
    narrower = read_model(config(MINI | {"loop_config": MINI["loop_config"] | {"gate_rank": 32}}))
    assert narrower.parameters == parameters - 12 * 4 * GATE // 2
    stored = [group.stored(number) for group in model.layers for number in group.numbers]
    assert sorted(stored) == sorted([*range(24), *range(6, 18), *range(6, 18)])


def test_later_cycles_take_messages_and_begin_where_the_first_did(config):
    model = read_model(config(MINI))
    frame = kernels(model, decode(4096))
    counts = frame.groupby("kernel", observed=True)["count"].sum()
    assert counts["message_sum"] == 2 * 12 and counts["message_down_proj"] == counts["message_up_proj"] == 2 * 12 * 4
    # Layers with a window join queries, keys and values in the first cycle only.
    assert counts["qkv_proj"] == 20 and counts["k_proj"] == 4 + 2 * 12
    later = frame[frame["layers"].isin([i for i, group in enumerate(model.layers) if group.again])]
    sums = later[later["kernel"] == "residual_sum"].groupby("read_bytes")["count"].sum()
    # Twice: the first attention reads the embedding and its own input, which is a snapshot for all that follows. The
    # input of the seventh, and six layers of experts before it, make three; it is a snapshot for the rest.
    assert dict(sums) == {2 * 2304 * 2: 2, 3 * 2304 * 2: 2 * (6 + 6), 4 * 2304 * 2: 2 * (5 + 6)}
    assert frame[frame["kernel"] == "residual_sum"]["read_bytes"].iloc[-1] == 5 * 2304 * 2


@pytest.mark.parametrize("change", [{"core_end": 17}, {"core_start": 20}, {"num_passes": 10**4}, {"core_end": 30}])
def test_cycles_that_cannot_be_are_refused(config, change):
    with pytest.raises(InputError, match=r"loop_layer_index_end|(?:loop_)?num_passes"):
        read_model(config(MINI | {"loop_config": MINI["loop_config"] | change}))


@pytest.mark.parametrize("content", [OURO, MINI])
def test_any_value_of_any_key_is_read_or_refused(config, content):
    check_hostile_values(config, content, share=2)
