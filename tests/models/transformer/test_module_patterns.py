"""Patterns of quantised checkpoints, applied to the names of modules: bytes by hand, and what is refused or noted."""

import re
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_linear_and_parallel_hybrids import FALCON_H1_7B
from transformer_counts import sizes

from gpuledger.errors import InputError, InputWarning
from gpuledger.models.transformer import Precision, decode, kernels, prefill, read_model
from gpuledger.models.transformer.families.known import FAMILIES
from gpuledger.models.transformer.formats import module_patterns
from gpuledger.models.transformer.formats.module_names import Module, layer_prefixes, modules_of
from gpuledger.models.transformer.rules.keys import ConfigKeys

LLAMA_70B = sizes("llama", 8192, 80, 64, 8, 28672, 128256)
QWEN3_235B = sizes("qwen3_moe", 4096, 94, 64, 4, 12288, 151936, head_dim=128) | {
    **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "norm_topk_prob": True},
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False},
}
TINY_LLAMA = sizes("llama", 2048, 22, 32, 4, 5632, 32000)
EIGHT = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP8 = {"group_0": {"targets": ["Linear"], "weights": EIGHT, "input_activations": {"num_bits": 8, "type": "float"}}}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
#: Values of one matrix of the feed-forward block, of those of attention, and what is stored in 16 bits: two tables and
#: norms.
MLP, ATTENTION = 8192 * 28672, 8192 * (2 * 8192 + 2 * 1024)
TABLES = 2 * (2 * 128256 * 8192 + (2 * 80 + 1) * 8192)
#: Bytes of a value in groups of 128, each with a scale of 16 bits and a zero point of 4.
INT4 = (4 + 20 / 128) / 8


def with_fp8(content, *ignored, groups=FP8):
    settings = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head", *ignored]}
    return {**content, "quantization_config": settings}


def with_gptq(content, dynamic, **more):
    return {**content, "quantization_config": {**GPTQ, "dynamic": dynamic, **more}}


def bytes_of(config, content):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_model(config(content)).weight_bytes()


@pytest.mark.parametrize(
    ("ignored", "attention", "mlp"),
    [
        # How many of a layer's matrices, in how many layers, have two bytes a value instead of one.
        ("re:.*gate.*", 0, 80),
        ("re:.*gate", 0, 80),
        ("re:.*gate$", 0, 0),  # as of routers, which this model has none of
        ("re:.*mlp.*", 0, 3 * 80),
        ("re:.*self_attn.*", 80, 0),
        (r"re:.*layers\.[0-4]\..*", 5, 3 * 5),
        (r"re:.*layers\.(0|1|2|3|4)\..*", 5, 3 * 5),
        ("re:model.layers.[0-9].*", 80, 3 * 80),  # a point is any sign, and the end open
        (r"re:^model\.layers\.(?:0|1)\.mlp.*$", 0, 3 * 2),
        (r"re:.*\.79\..*", 1, 3),
        (r"re:.*layers\.(?!7).*down_proj", 0, 80 - 11),
        ("re:model.vision_tower.*", 0, 0),
        ("re:layers.*", 0, 0),  # names begin with model.layers
        ("re:.*lm_head", 0, 0),
        ("down_proj", 0, 80),
        ("model.layers.7.mlp", 0, 3),
        ("model.layers.7.mlp.gate_proj", 0, 1),
        ("thinker.model.layers.7.mlp.gate_proj.weight", 0, 1),
        ("*self_attn*", 80, 0),
        ("*layers.7.mlp", 0, 3),
        ("model.layers.7*", 11, 3 * 11),
        ("model.layers.7.*", 1, 3),
        ("*.mlp.down*", 0, 80),
        ("re:.*gate_up_proj$", 0, 2 * 80),  # as engines call both
    ],
)
def test_what_is_left_out_of_a_dense_model(config, ignored, attention, mlp):
    with warnings.catch_warnings():
        if ignored == "re:layers.*":
            warnings.simplefilter("ignore")
        expected = 80 * (ATTENTION + 3 * MLP) + TABLES + attention * ATTENTION + mlp * MLP
        assert read_model(config(with_fp8(LLAMA_70B, ignored))).weight_bytes() == expected


@pytest.mark.parametrize("pattern", [r"re:.*[qkv]_proj$", r"re:.*(q|k|v)_proj$", "re:.*qkv_proj"])
def test_queries_keys_and_values_are_named(config, pattern):
    expected = 80 * (ATTENTION + 3 * MLP + 8192 * (8192 + 2 * 1024)) + TABLES
    assert bytes_of(config, with_fp8(LLAMA_70B, pattern)) == expected


@pytest.mark.parametrize(
    ("pattern", "matrices"),
    [
        ("re:.*down_proj$", 1),
        ("re:.*experts.*down_proj$", 1),
        (r"re:.*mlp\.experts\.[0-9]+\.down_proj$", 1),
        (r"re:.*mlp\.experts\.\d+\.down_proj", 1),
        ("re:.*layers.*experts.*down_proj$", 1),
        ("re:.*gate", 1),  # matches from the beginning, so that gate_proj is among them
        ("re:.*mlp.gate$", 0),
        ("re:.*experts.*", 3),
        ("experts", 3),
        ("re:.*router.*", 0),
    ],
)
def test_what_is_left_out_of_experts(config, pattern, matrices):
    # Of a layer: attention, router in 16 bits, and three matrices of each expert; norms of layers, heads and the end.
    attention, expert = 4096 * (2 * 8192 + 2 * 512), 128 * 4096 * 1536
    plain = 2 * (94 * (4096 * 128 + 2 * 4096 + 2 * 128) + 4096 + 2 * 151936 * 4096)
    expected = 94 * (attention + (3 + matrices) * expert) + plain
    assert bytes_of(config, with_fp8(QWEN3_235B, pattern)) == expected
    if pattern == "re:.*down_proj$":
        assert expected == 312_087_174_144


def test_one_of_two_matrices_that_engines_join(config):
    model = read_model(config(with_gptq(LLAMA_70B, {"-:.*gate.*": {}})))
    # Of three matrices, one has 16 bits.
    assert model.weight_bytes() == 80 * (ATTENTION * INT4 + MLP * (2 + 2 * INT4)) + TABLES
    assert model.layers[0].formats == (("gate_up_proj", "", None), ("gate_up_proj.up_proj", "int4_g128_zero", None))
    for work in (prefill(64), decode(100, 8)):
        frame = kernels(model, work).set_index("kernel")
        assert "gate_up_proj" not in frame.index
        assert frame.loc[["gate_proj", "up_proj"], "weight_bytes"].tolist() == [2 * MLP, MLP * INT4]
        assert frame.loc[["gate_proj", "up_proj"], "weight_precision"].tolist() == ["bf16", "int4"]
    assert kernels(model, decode(100, 8), precision=Precision("fp8")).set_index("kernel").loc["gate_up_proj", "n"]


@pytest.mark.parametrize(
    ("dynamic", "attention", "mlp"),
    [
        # Bytes of a value, summed over layers: of the matrices of attention, and of each of the feed-forward block.
        ({"-:.*down.*": {}}, 80 * INT4, 80 * (2 + 2 * INT4)),
        ({r"-:.*\.20\..*gate.*": {}}, 80 * INT4, 240 * INT4 + 2 - INT4),
        ({r"-:.*\.[0-9]\..*": {}}, 10 * 2 + 70 * INT4, 3 * (10 * 2 + 70 * INT4)),
        ({r"-:.*\.(1|2)\..*": {}}, 2 * 2 + 78 * INT4, 3 * (2 * 2 + 78 * INT4)),
        ({".*down_proj.*": {"bits": 8, "group_size": 64}}, 80 * INT4, 80 * (2 * INT4 + 1 + 3 / 64)),
        (
            {r".*\.19\..*gate.*": {"bits": 8, "group_size": 64}, r"+:.*\.18\..*gate.*": {"group_size": 32}},
            80 * INT4,
            238 * INT4 + 1 + 3 / 64 + (4 + 20 / 32) / 8,
        ),
        # The first that matches counts.
        ({"-:.*down.*": {}, ".*": {"bits": 8}}, 80 * (1 + 3 / 128), 80 * (2 + 2 * (1 + 3 / 128))),
        ({".*": {"bits": 8}, "-:.*down.*": {}}, 80 * (1 + 3 / 128), 240 * (1 + 3 / 128)),
        ({"-:.*_proj": {}}, 160, 480),
        ({"-:lm_head": {}}, 80 * INT4, 240 * INT4),
    ],
)
def test_what_dynamic_rules_store_otherwise(config, dynamic, attention, mlp):
    assert bytes_of(config, with_gptq(LLAMA_70B, dynamic)) == ATTENTION * attention + MLP * mlp + TABLES


def test_a_tiny_model_of_gptqmodel(config):
    """Layer 0 has 4 bits, layer 1 has 8 in groups of 32, and the others are as they were."""
    rest = {r"-:model\.layers\.([2-9]\d*|[1-9]\d+)\..*": {}}
    layer = 2048 * (2 * 2048 + 2 * 256) + 3 * 2048 * 5632
    tables = 2 * (2 * 32000 * 2048 + 45 * 2048)
    expected = layer * (2 * INT4 + 20 * 2) + tables
    assert bytes_of(config, with_gptq(TINY_LLAMA, rest)) == expected
    both = {**rest, r".*\.1\..*": {"bits": 8, "group_size": 32, "desc_act": False}}
    assert bytes_of(config, with_gptq(TINY_LLAMA, both)) == expected + layer * (1 + 3 / 32 - INT4)


def test_the_lm_head_of_gptq(config):
    head, quantised = 128256 * 8192, bytes_of(config, with_gptq(LLAMA_70B, {}))
    assert bytes_of(config, with_gptq(LLAMA_70B, {}, lm_head=True)) == quantised - head * (2 - INT4)
    eight = bytes_of(config, with_gptq(LLAMA_70B, {"lm_head": {"bits": 8}}, lm_head=True))
    assert eight == quantised - head * (2 - 1 - 3 / 128)
    assert bytes_of(config, with_gptq(LLAMA_70B, {"-:lm_head": {}}, lm_head=True)) == quantised


def test_two_matrices_of_one_kernel(config):
    """Falcon-H1 has two output projections: of attention, and of Mamba beside it."""
    usual = read_model(config(with_fp8(FALCON_H1_7B)))
    model = read_model(config(with_fp8(FALCON_H1_7B, "re:.*mamba.out_proj")))
    (group,) = model.layers
    assert group.formats == (("out_proj", "", None), ("out_proj.out_proj", "fp8", "fp8"))
    (mamba,) = (linear for linear in group.linears(model.hidden) if linear.part == "ssm_out_proj")
    assert model.weight_bytes() - usual.weight_bytes() == group.count * mamba.parameters
    frame = kernels(model, decode(100, 4)).set_index("kernel")
    assert sorted(frame.loc["out_proj", "weight_precision"]) == ["bf16", "fp8"]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("model.layers.2.mlp.experts.700.up_proj", "unknown module 'model.layers.2.mlp.experts.700.up_proj'"),
        ("model.layers.2.mixer.in_proj", "unknown module 'model.layers.2.mixer.in_proj'"),
        ("re:(", "pattern 're:\\(' does not compile"),
        ("re:(.*)*x", "repeats what has repetitions"),
        ("re:.*a.*b.*c.*d", "more than 3 long repetitions"),
        ("re:.*a.*b.*1", "more than 2 long repetitions"),
        ("*a*b*c*d*e*", "more than 3 long repetitions"),
        ("re:" + "x" * 600, "longer than 500"),
    ],
)
def test_what_cannot_be_expressed_is_said_in_one_line(config, pattern, problem):
    with pytest.raises(InputError, match=rf"config\.json, key quantization_config: .*{problem}"):
        read_model(config(with_fp8(QWEN3_235B, pattern)))


def test_all_experts_named_one_by_one_are_all_experts(config):
    listed = [f"model.layers.{i}.mlp.experts.{j}.down_proj" for i in range(94) for j in range(128)]
    assert bytes_of(config, with_fp8(QWEN3_235B, *listed)) == 312_087_174_144
    # But for one, of 4096 × 1536 values.
    assert bytes_of(config, with_fp8(QWEN3_235B, *listed[:-1])) == 312_087_174_144 - 4096 * 1536


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        # Of three experts in all layers; the gates of one; one matrix of one in one layer.
        (r"re:.*mlp.experts.(0|1|2)\..*", 94 * 3 * 3 * 4096 * 1536),
        (r"re:.*experts\.3\..*gate.*", 94 * 4096 * 1536),
        ("model.layers.2.mlp.experts.7.up_proj", 4096 * 1536),
    ],
)
def test_some_experts_may_be_stored_in_another_format(config, pattern, values):
    """Bytes are exact, and a pass reads the mean of a layer's experts."""
    usual, mixed = (read_model(config(with_fp8(QWEN3_235B, *names))) for names in ((), (pattern,)))
    assert mixed.weight_bytes() - usual.weight_bytes() == values
    read = [kernels(one, prefill(4096))["weight_bytes"] for one in (usual, mixed)]
    counts = [kernels(one, prefill(4096))["count"] for one in (usual, mixed)]
    # All experts are chosen.
    more = (read[1] * counts[1]).sum() - (read[0] * counts[0]).sum()
    assert more == pytest.approx(values, rel=1e-3, abs=128)
    assert mixed.precision_of(mixed.layers[-1]).math_of("expert_gate_up_proj", "expert_up_proj") == "fp8"


def test_patterns_of_layers_take_little_time(config):
    patterns = [rf"re:.*layers\.{i}\..*" for i in range(3)]
    file = config(with_fp8(QWEN3_235B, *patterns))
    start = time.process_time()
    model = read_model(file)
    assert time.process_time() - start < 5  # a tenth of a second
    assert [group.numbers for group in model.layers] == [(0, 1, 2), tuple(range(3, 94))]


def test_too_many_patterns_are_refused(config, monkeypatch):
    monkeypatch.setattr(module_patterns, "_MOST_TRIALS", 94 * 389 * 2)
    patterns = [rf"re:.*\.{i}\..*down_proj" for i in range(200, 203)]
    with pytest.raises(InputError, match="is one of too many for 389 modules"):
        read_model(config(with_fp8(QWEN3_235B, *patterns)))


@pytest.mark.parametrize(
    ("pattern", "by_digits", "by_number"),
    [
        (r"re:.*\.down_proj", False, False),
        (r"re:.*experts\.[0-9]+\.down_proj", False, False),
        (r"re:.*experts\.\d{2}\.down_proj", True, True),
        (r"re:model\.layers\.(1|[2-9]\d*)\..*", True, False),
        (r"re:.*layers.[0-4].*", True, False),
        (r"re:.*layers\.1\..*experts\.2\..*", True, True),
        (r"re:.*layers\.(1\.mlp|2\.self_attn).*", True, True),
        (r"re:.*\.19\..*", True, True),
        ("model.layers.1.mlp.experts", False, False),
        ("model.layers.1.mlp.experts.0", True, True),
    ],
)
def test_which_patterns_tell_numbers_apart(pattern, by_digits, by_number):
    found, _ = module_patterns._parsed(pattern, 94, ConfigKeys({}, "config.json"))
    assert (found.by_digits, found.by_number) == (by_digits, by_number)


@given(
    st.lists(
        st.sampled_from(
            [".*", r"\.", "layers", r"\d+", "[0-9]", "[0-4]", "1", "(1|12)", "experts", "down_proj", "mlp"]
        ),
        max_size=8,
    ).map("".join),
)
def test_names_that_are_not_compared_would_give_the_same(text):
    """All names against the pattern, one by one, as engines do."""
    pattern, _ = module_patterns._parsed(f"re:{text}", 25, ConfigKeys({}, "config.json"))
    try:
        pattern.applies("")
    except InputError:
        return
    modules = tuple(Module("k", "p", ((f"mlp.experts.{j}.down_proj",),)) for j in range(13))
    names = module_patterns._Names(modules, ("model.layers.",))
    for layer in range(25):
        hit = {i for i, _ in names.hits(pattern, layer)}
        assert hit == {i for i in range(13) if re.match(text, f"model.layers.{layer}.mlp.experts.{i}.down_proj")}


def test_a_pattern_that_matches_nothing_is_noted(config):
    """Recipes are shared by architectures, so that engines take no notice; a name must be one of the architecture."""
    with pytest.warns(InputWarning, match=r"no module of the architecture matches 're:\.\*self_atn\.\*'"):
        model = read_model(config(with_fp8(LLAMA_70B, "re:.*self_atn.*")))
    assert model.weight_bytes() == bytes_of(config, with_fp8(LLAMA_70B))
    with pytest.warns(InputWarning, match="no module of the architecture matches 'LlamaAttention'"):
        read_model(config(with_fp8(LLAMA_70B, "LlamaAttention")))
    # What is not quantised anyway, or is another part's, is not noted.
    usual = ["re:.*lm_head", "re:visual.*", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:mtp.*", "re:.*norm.*"]
    usual += ["vision_tower.encoder.layers.3.mlp.fc1", "mtp.layers.0.mlp.down_proj", "model.layers.80.mlp.down_proj"]
    usual += ["model.layers.3.input_layernorm", "*router*", "talker.model.layers.1.mlp.down_proj"]
    assert bytes_of(config, with_fp8(LLAMA_70B, *usual)) == model.weight_bytes()


def test_groups_of_compressed_tensors(config):
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    groups = {
        "a": {"targets": ["re:.*self_attn.*"], "weights": EIGHT},
        "b": {"targets": ["re:.*mlp.*"], "weights": four},
    }
    expected = 80 * (ATTENTION + 3 * MLP * (4 + 16 / 128) / 8) + TABLES
    assert bytes_of(config, with_fp8(LLAMA_70B, groups=groups)) == expected
    # What is ignored precedes targets.
    assert bytes_of(config, with_fp8(LLAMA_70B, "re:.*self_attn", groups=groups)) == expected + 80 * ATTENTION


def test_names_begin_as_in_the_file(config):
    """A file that describes a vision tower, too, calls the text model's layers otherwise."""
    vision = {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}}
    text = sizes("gemma3_text", 2560, 34, 8, 4, 10240, 262208, head_dim=256)
    usual = bytes_of(config, with_fp8({**vision, "text_config": text}))
    for start in (r"language_model\.model", r"model\.language_model", "model"):
        pattern = rf"re:{start}\.layers\.\d+\.mlp\.down_proj"
        assert bytes_of(config, with_fp8({**vision, "text_config": text}, pattern)) == usual + 34 * 2560 * 10240


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("llama", {"mlp.gate", "mlp.experts.7.down_proj", "self_attn.o_proj"}),
        ("mixtral", {"block_sparse_moe.gate", "block_sparse_moe.experts.7.w2"}),
        ("jamba", {"feed_forward.router", "feed_forward.experts.7.up_proj"}),
        ("granitemoe", {"block_sparse_moe.router.layer", "block_sparse_moe.input_linear"}),
        ("step3p5", {"moe.gate", "moe.gate_proj", "moe.down_proj"}),
        ("bailing_moe_v2", {"attention.query_key_value", "attention.dense", "mlp.experts.0.gate_proj"}),
        ("gpt2", {"attn.c_attn", "attn.c_proj"}),
    ],
)
def test_names_of_modules(config, kind, names):
    content = sizes("mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2)
    (group,) = read_model(config(content)).layers
    modules = modules_of(group, kind)
    assert names <= {name for module in modules for names in module.names for name in names}
    assert [module.part for module in modules] == [linear.part for linear in group.linears(1)]


@pytest.mark.parametrize("kind", FAMILIES)
def test_names_of_every_architecture_are_written_out(config, kind):
    contents = QWEN3_235B, sizes("llama", 4096, 2, 32, 8, 14336, 32000), {**FALCON_H1_7B, "num_hidden_layers": 1}
    for content in contents:
        for group in read_model(config(content)).layers:
            names = [name for module in modules_of(group, kind, True) for names in module.names for name in names]
            assert all(re.fullmatch(r"\w+(\.\w+)+", name) for name in names)
    assert all(prefix.endswith(("layers.", "h.")) for prefix in layer_prefixes(kind, True)[:3])
