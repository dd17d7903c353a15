"""Gemma 3n: alternating updates of several streams, a low-rank block beside attention, embeddings of layers."""

import pytest
from transformer_counts import check_counts, check_products, sizes

from gpuledger.errors import InputError
from gpuledger.models.deployment.memory import memory_bytes
from gpuledger.models.transformer import Parallel, decode, kernels, prefill, read_model


def gemma3n(layers, width, shared):
    """Return the text part of google/gemma-3n-E4B-it or -E2B-it."""
    return {
        **sizes("gemma3n_text", 2048, layers, 8, 2, [width] * layers, 262400, head_dim=256, sliding_window=512),
        **{"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": shared},
        **{"altup_num_inputs": 4, "altup_active_idx": 0, "altup_coef_clip": 120.0, "altup_correct_scale": True},
        **{"laurel_rank": 64, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh"},
        **{"layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * (layers // 5)},
        **{"activation_sparsity_pattern": [0.95] * 10 + [0.0] * (layers - 10), "max_position_embeddings": 32768},
    }


E4B, E2B = gemma3n(35, 16384, 15), gemma3n(30, 8192, 10)


# As transformers 5.18 counts them; twenty layers have keys and values of their own.
@pytest.mark.parametrize(("content", "parameters"), [(E4B, 6835235568), (E2B, 4435182688)])
def test_parameters_cache_and_products(config, content, parameters):
    model = read_model(config(content))
    check_counts(model, parameters, 20 * 2 * 2 * 256 * 2)
    # A router is used twice in a layer; three streams are projected from the embedding, and back; layers' embeddings.
    layers = len(content["layer_types"])
    check_products(model, beside=33 * (layers * 4 * 2048 + 6 * 2048**2 + layers * 256 * 2048))


def test_a_layer_predicts_and_corrects_four_streams(config):
    frame = kernels(read_model(config(E4B)), prefill(100))
    layer = frame[frame["layers"] == 0]
    assert layer["kernel"].tolist() == [
        *("altup_norm", "altup_router", "altup_coefficients", "altup_predict", "attn_norm"),
        *("laurel_down_proj", "laurel_up_proj", "laurel_norm", "qkv_proj", "qk_norm", "rope", "kv_write", "attention"),
        *("out_proj", "attn_post_norm", "attn_residual", "ffn_norm", "gate_up_proj", "ffn_cutoff", "ffn_act"),
        *("down_proj", "ffn_post_norm", "ffn_residual", "altup_norm", "altup_router", "altup_coefficients"),
        *("altup_correct", "per_layer_gate_proj", "per_layer_act", "per_layer_proj", "per_layer_post_norm"),
        "altup_add",
    ]
    moved = layer.set_index("kernel")[["read_bytes", "write_bytes"]] // (2 * 100)
    # Four streams and their weights; with a layer's output, and the scaled first stream; three streams.
    assert moved.loc["altup_predict"].tolist() == [4 * 2048 + 16, 4 * 2048]
    assert moved.loc["altup_correct"].tolist() == [5 * 2048 + 4, 5 * 2048]
    assert moved.loc["altup_add"].tolist() == [4 * 2048, 3 * 2048]
    assert moved.loc["attn_residual"].tolist() == [3 * 2048, 2048]
    # Layers with few gates compute all of them.
    assert frame[frame["kernel"] == "ffn_cutoff"]["count"].sum() == 10
    assert frame[frame["kernel"] == "gate_up_proj"]["n"].unique().tolist() == [2 * 16384]
    # Projections of all tokens, also for the head; logits of one.
    outside = frame[frame["layers"] == -1].set_index("kernel")
    assert outside.loc["altup_proj", "m"].tolist() == [100] * 6 and outside.loc["lm_head", "m"] == 1


def test_shared_layers_have_no_keys_of_their_own(config):
    model = read_model(config(E4B))
    owners = {number for group in model.layers if group.attention.own_keys for number in group.numbers}
    assert owners == set(range(20))
    assert model.per_layer_vocab == 262144 and model.vocab == 262400
    # Without the keys, as transformers takes them: windows in four of five layers, ten layers with few gates.
    short = {key: value for key, value in E4B.items() if key not in ("layer_types", "activation_sparsity_pattern")}
    assert read_model(config({**short, "intermediate_size": 16384})).layers == model.layers


def test_several_devices_sum_the_low_rank_block_too(config):
    frame = kernels(read_model(config(E4B)), decode(100, 8), Parallel(tensor=2))
    assert frame[(frame["kernel"] == "all_reduce") & (frame["layers"] >= 0)]["count"].sum() == 3 * 35
    assert frame[frame["kernel"] == "laurel_down_proj"]["n"].unique().tolist() == [32]
    # Streams' projections are split and collected, as vLLM does; and the logits.
    assert frame[frame["kernel"] == "altup_proj"]["n"].tolist() == [1024] * 6
    assert frame[frame["kernel"] == "all_gather"]["n"].tolist() == [2048] * 6 + [262400]
    # Stages pass all streams on.
    sent = kernels(read_model(config(E4B)), decode(100, 8), Parallel(pipeline=2)).set_index("kernel").loc["send"]
    assert sent["n"] == 4 * 2048


def test_the_whole_checkpoint_has_towers_that_are_not_read(config):
    whole = {"model_type": "gemma3n", "text_config": E4B, "vision_config": {"model_type": "gemma3n_vision"}}
    whole |= {"audio_config": {"model_type": "gemma3n_audio"}, "audio_soft_tokens_per_image": 188, "boi_token_id": 1}
    model = read_model(config({**whole, "vision_soft_tokens_per_image": 256}))
    assert model.layers == read_model(config(E4B)).layers
    assert model.unread and model.towers == ("vision", "audio")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"intermediate_size": [16384] * 34}, "intermediate_size: 34 values for 35 layers"),
        ({"intermediate_size": [0] * 35}, "0 is not within 1"),
        ({"activation_sparsity_pattern": ["x"] * 35}, "'x' is not a number"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input: 0 is not within 1"),
        ({"altup_active_idx": 1}, "altup_active_idx: 1: another stream"),
        ({"altup_num_inputs": 1}, "altup_num_inputs: 1 is not within 2"),
        ({"laurel_rank": None}, "laurel_rank: null is not a whole number"),
        ({"num_kv_shared_layers": 35}, "no earlier layer has keys and values to share"),
    ],
)
def test_what_is_not_modelled_is_refused(config, change, problem):
    with pytest.raises(InputError, match=problem):
        read_model(config(E4B | change))


def test_embeddings_of_layers_are_split_like_the_vocabulary(config):
    model, step = read_model(config(E4B)), decode(1, 1)
    one, two = (
        memory_bytes(model, split, None, step, kernels(model, step, split)).loc[0, "weight_bytes"]
        for split in (Parallel(), Parallel(2))
    )
    # Of both tables, and of the rest all but projections that each device has.
    saved = (262144 * 35 * 256 + 262400 * 2048) * 2 // 2
    assert saved < one - two < one // 2
