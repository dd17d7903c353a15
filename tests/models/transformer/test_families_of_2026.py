"""Architectures of 2026 and older ones still in use: parameters as transformers counts them, and the cache."""

import pytest
from transformer_counts import check_counts, check_products, sizes

from gpuledger.errors import InputError
from gpuledger.models.transformer import read_model

LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128}
GPT = {"n_positions": 2048, "n_inner": None, "activation_function": "gelu_new"}
COUNTED = {
    "opt-125m": (
        {
            **{"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
            **{"ffn_dim": 3072, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768},
            **{"activation_function": "relu", "dropout": 0.1, "init_std": 0.02, "do_layer_norm_before": True},
        },
        125239296,
        36864,
    ),
    "gpt-j-6b": (
        {
            **{"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400, **GPT},
            **{"rotary": True, "rotary_dim": 64, "tie_word_embeddings": False},
        },
        6050882784,
        458752,
    ),
    # One key/value head of 128 for all queries.
    "starcoder": (
        {
            **{"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "vocab_size": 49152, **GPT},
            **{"n_positions": 8192, "multi_query": True, "pad_key_length": True, "validate_runner_input": True},
        },
        15517456384,
        40 * 2 * 128 * 2,
    ),
    "stablelm-2-1.6b": (
        sizes("stablelm", 2048, 24, 32, 32, 5632, 100352, partial_rotary_factor=0.25, use_qkv_bias=True),
        1644515328,
        196608,
    ),
    # Norms without weights.
    "OLMo-7B": (sizes("olmo", 4096, 32, 32, 32, 11008, 50304, clip_qkv=None), 6888095744, 524288),
    "helium-1": (sizes("helium", 2560, 24, 20, 20, 7040, 48000, head_dim=128), 2172643840, 245760),
    "nanochat": (
        sizes("nanochat", 768, 12, 6, 6, 8192, 50304, hidden_act="relu2", final_logit_softcapping=15.0),
        256573440,
        36864,
    ),
    "GLM-OCR": (sizes("glm_ocr_text", 1024, 16, 16, 8, 4096, 59392), 373359616, 32768),
    "Muse-Glimmer": (
        {
            **sizes("muse_glimmer_text", 6656, 52, 32, 2, 19968, 202048, head_dim=128, sliding_window=2048),
            "layer_types": [("full" if i % 4 == 3 else "sliding") + "_attention" for i in range(52)],
            "layer_rope_theta": [0 if i % 4 == 3 else 10000.0 for i in range(52)],
            **{"output_multiplier": 0.2, "post_norm_eps": 1e-8, "qk_scale_factor": 3.87, "hidden_activation": "silu"},
        },
        27854780928,
        53248,
    ),
    # A norm in front of each indexer is not counted, nor a scale of each head; every fourth layer has no rotation.
    "Mistral-Large-4": (
        {
            **sizes("mistral_large4_text", 6144, 72, 64, 64, 24576, 204800, q_lora_rank=None, **LATENT),
            **{"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "first_k_dense_replace": 1},
            **{"n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 6144, "n_shared_experts": 1},
            **{"kv_source_layers": list(range(72)), "no_rope_layers": [int(i % 4 != 3) for i in range(72)]},
        },
        1050118202912 - 72 * (2 * 6144 + 192) - 32,
        72 * 132 + 2 * (54 * 576 + 18 * 512),
    ),
    "cohere2_moe": (
        {
            **sizes("cohere2_moe", 8192, 40, 64, 64, 22528, 256000, head_dim=128, sliding_window=4096),
            **{"num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 0, "expert_selection_fn": "softmax"},
            **{"mlp_layer_types": ["sparse"] * 40, "prefix_dense_intermediate_size": None},
        },
        190004928512,
        1310720,
    ),
}
DEEPSEEK_OCR = {
    "model_type": "deepseek_vl_v2",
    "vision_config": {"image_size": 1024},
    "tile_tag": "2D",
    "candidate_resolutions": [[1024, 1024]],
    # Its own kind of model is left out.
    "language_config": {
        **sizes("", 1280, 12, 10, 10, 6848, 129280, kv_lora_rank=None, qk_nope_head_dim=0, qk_rope_head_dim=0),
        **{"v_head_dim": 0, "q_lora_rank": None, "use_mla": False, "lm_head": True, "topk_method": "greedy"},
        **{"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 896},
        "first_k_dense_replace": 1,
    },
}
del DEEPSEEK_OCR["language_config"]["model_type"]


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_cache(config, name):
    content, parameters, cached = COUNTED[name]
    check_counts(read_model(config(content)), parameters, cached)


@pytest.mark.parametrize("name", COUNTED)
def test_every_weight_is_multiplied_once_per_token(config, name):
    check_products(read_model(config(COUNTED[name][0])))


def test_a_dense_prefix_and_shared_experts_have_their_widths(config):
    types = ["dense"] + ["sparse"] * 39
    more = {"mlp_layer_types": types, "prefix_dense_intermediate_size": 1024, "num_shared_experts": 2}
    first, *others = read_model(config(COUNTED["cohere2_moe"][0] | more)).layers
    assert (first.numbers, first.ffn.width) == ((0,), 1024)
    assert {group.ffn.shared.width for group in others} == {2 * 22528}


def test_deepseek_ocr_attends_without_compression(config):
    """Its text part is a ``language_config``; 2.93 billion parameters, as its weights have without the encoders."""
    check_counts(read_model(config(DEEPSEEK_OCR)), 2934734080, 12 * 2 * 1280 * 2)


def test_phi_4_multimodal_has_the_keys_of_its_text_part_at_the_top(config):
    phi = sizes("phi3", 3072, 32, 24, 8, 8192, 200064, tie_word_embeddings=True, partial_rotary_factor=0.75)
    whole = phi | {"model_type": "phi4mm", "embd_layer": {"image": {}}, "speech_lora": {"r": 320}, "vision_lora": {}}
    assert read_model(config(whole)).layers == read_model(config(phi)).layers


def test_keys_beside_the_text_part_describe_other_parts(config):
    text = sizes("qwen3", 1024, 2, 8, 8, 3072, 1000)
    whole = {"model_type": "new_vl", "text_config": text, "insert_layer_id": 6, "resampler": {"queries": 64}}
    assert read_model(config(whole)).parameters == read_model(config(text)).parameters


def test_another_width_of_embeddings_is_not_modelled(config):
    with pytest.raises(InputError, match="word_embed_proj_dim: 512: embeddings of another width; only 768 is modelled"):
        read_model(config(COUNTED["opt-125m"][0] | {"word_embed_proj_dim": 512}))


def test_only_null_is_written_as_the_file_has_it(config):
    with pytest.raises(InputError, match="only null is modelled"):
        read_model(config(sizes("iquestcoder", 512, 2, 8, 8, 1024, 1000, head_dim=64, clip_qkv=8.0)))


@pytest.mark.parametrize(
    ("more", "proposed"),
    [
        # MiniCPM3's sizes of latent attention, and experts of which the file says nothing, are no part of the file.
        ({"scale_depth": 1.4}, "minicpm"),
        # A number of layers of one kind among others.
        ({"layer_group_size": 5}, ""),
    ],
)
def test_no_architecture_is_proposed_whose_layers_are_of_another_kind(config, more, proposed):
    content = sizes("minicpm5", 4096, 32, 32, 2, 16384, 73448, head_dim=128, **more)
    message = f"; {proposed} knows all of its keys and counts" if proposed else "none of the known ones can read its"
    with pytest.raises(InputError, match=message):
        read_model(config(content))


def test_what_is_proposed_says_how_many_parameters_it_would_count(config):
    """As the keys of Step 3 were those of step3p5 but for one, which projects its queries otherwise."""
    content = sizes("unheard_of", 1024, 2, 8, 8, 3072, 1000, share_q_dim=512)
    parameters = read_model(config(content | {"model_type": "llama"}), treat_as="llama").parameters
    with pytest.raises(InputError) as raised:
        read_model(config(content))
    said = f"llama ignores share_q_dim and counts {parameters / 1e9:.2f} billion parameters: only if the model has"
    assert said in str(raised.value)


def test_weights_without_their_zeros_are_not_modelled(config):
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    settings = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    content = sizes("llama", 1024, 2, 8, 8, 3072, 1000)
    read_model(config(content | {"quantization_config": settings | {"sparsity_config": {"format": "dense"}}}))
    sparse = settings | {"sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}}
    with pytest.raises(InputError, match="format: 'sparse-24-bitmask': weights without their zeros"):
        read_model(config(content | {"quantization_config": sparse}))
