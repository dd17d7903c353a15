"""Deployments: speculative decoding, prefix caches, pipelines, the host, and what fits into memory."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gpuledger.errors import InputError
from gpuledger.models.deployment import (
    Deployment,
    Objective,
    Speculation,
    cheapest,
    largest_batch,
    largest_context,
    memory_of,
    memory_table,
    passes,
)
from gpuledger.models.deployment.memory import memory_bytes
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import Parallel, chunk, decode, kernels, prefill, read_model
from gpuledger.readers.gpus import find_gpu, roofline_time_s

H100, H200 = find_gpu("h100-sxm"), find_gpu("h200-sxm")
DEEPSEEK, LLAMA = read_model("DeepSeek-V3"), read_model("Llama-3.1-70B")


def step(deployment, batch):
    return passes(deployment, [batch]).iloc[1]


def test_deepseeks_draft_layer_has_the_published_size():
    draft = DEEPSEEK.draft_layer()
    # The model card: 14 billion parameters with the shared embedding and LM head of 0.9 billion each.
    assert draft.parameters + 2 * 129280 * 7168 == pytest.approx(14e9, rel=0.05)
    # By hand: a layer of experts, the projection from twice the width, five norms of which attention has two more.
    layer = 11_507_286_272 + 2 * 7168**2 + 3 * 7168
    assert draft.parameters == layer
    assert draft.kv_bytes_per_token() == DEEPSEEK.kv_bytes_per_token() // 61
    rows = kernels(draft, decode(100, 4)).set_index("kernel")
    assert rows.loc["draft_proj", ["m", "n", "k"]].tolist() == [4, 7168, 2 * 7168]
    assert rows.loc["lm_head", "n"] == 129280 and rows.loc["decode_attention", "count"] == 1


def test_slices_of_experts_divide_their_weights_among_all_gpus():
    """Of 8 GPUs each holds an eighth of every expert, whether 8, 4 or 1 share the attention."""
    step = decode(1, 1)
    whole, *held = (
        memory_bytes(DEEPSEEK, split, None, step, kernels(DEEPSEEK, step, split)).loc[0, "weight_bytes"]
        for split in (Parallel(), Parallel(8), Parallel(4, replicas=2), Parallel(1, replicas=8), Parallel(1, 1, 8))
    )
    eighth = 58 * 256 * 3 * 2048 * 7168 // 8
    assert held[0] < held[1] < held[2] < whole - 7 * eighth + 8 * 58 * 256 * 7168
    # Whole experts on eight GPUs are as many weights as an eighth of each.
    assert held[2] == held[3]


def test_verifying_two_tokens_takes_little_longer_than_one():
    parallel = Parallel(8, 1, 8)
    one = step(Deployment(DEEPSEEK, H200, 8192, 512, parallel), 64)
    two = step(Deployment(DEEPSEEK, H200, 8192, 512, parallel, speculation=Speculation(DEEPSEEK.draft_layer())), 64)
    assert 1 < two["time_s"] / one["time_s"] < 1.35


@pytest.mark.parametrize(("drafted", "acceptance", "tokens"), [(1, 0.8, 1.8), (3, 0.5, 1.875), (4, 0, 1), (2, 1, 3)])
def test_expected_tokens_of_a_step(drafted, acceptance, tokens):
    draft = LLAMA.draft_layer()
    assert Speculation(draft, drafted, acceptance).tokens_per_step == pytest.approx(tokens)
    # The step itself does not depend on what is accepted.
    found = step(
        Deployment(LLAMA, H200, 1024, 128, Parallel(8), speculation=Speculation(draft, drafted, acceptance)), 8
    )
    assert found["tpot_s"] == pytest.approx(found["time_s"] / tokens)
    assert found["tokens_per_s"] == pytest.approx(8 * tokens / found["time_s"])


def test_drafts_take_time_and_memory():
    base = Deployment(LLAMA, H200, 1024, 128, Parallel(8))
    small = Deployment(LLAMA, H200, 1024, 128, Parallel(8), speculation=Speculation(read_model("Llama-3.1-8B"), 4))
    draft = step(Deployment(read_model("Llama-3.1-8B"), H200, 1024, 128, Parallel(8)), 8)
    verify = passes(base, [8]).iloc[1]["time_s"]
    assert step(small, 8)["time_s"] > verify + 4 * draft["time_s"]
    more = step(small, 8)["memory_bytes"] - step(base, 8)["memory_bytes"]
    assert more >= draft["weight_bytes"] + draft["cache_bytes"]
    rows = memory_table(small, 8).set_index("part")["bytes"]
    assert rows["weights for drafts"] == draft["weight_bytes"]
    assert rows["sum"] == rows.drop("sum").sum()
    for wrong in ({"drafted": 0}, {"acceptance": 1.1}):
        with pytest.raises(InputError, match="speculative decoding"):
            Speculation(LLAMA, **wrong)


def test_a_cached_prefix_is_not_computed_again():
    whole, part = (passes(Deployment(LLAMA, H200, 8192, 1, Parallel(8), cached_tokens=n), [1]) for n in (0, 6144))
    assert 0.2 < part["time_s"][0] / whole["time_s"][0] < 0.4
    assert part["cache_bytes"][0] == whole["cache_bytes"][0]
    assert part["time_s"][1] == whole["time_s"][1]
    with pytest.raises(InputError, match="leave at least one token"):
        prefill(100, cached_tokens=100)


def test_unequal_stages_leave_bubbles():
    found = passes(Deployment(LLAMA, H200, 1024, 128, Parallel(1, 3)), [4])
    rows = kernels(LLAMA, decode(1088, 4), Parallel(1, 3))
    assert rows[rows["kernel"] == "out_proj"].groupby("stage")["count"].sum().tolist() == [27, 27, 26]
    one = found.iloc[1]
    assert 0 < one["bubble_percent"] < 5
    # Three batches are under way: each request waits for all stages at the pace of the slowest.
    assert one["tokens_per_s"] == pytest.approx(3 * 4 / one["tpot_s"])
    assert one["tpot_s"] == pytest.approx(one["time_s"] / (1 - one["bubble_percent"] / 100))
    assert passes(Deployment(LLAMA, H200, 1024, 128, Parallel(3 - 1)), [4])["bubble_percent"].abs().max() < 1e-9


def test_without_graphs_the_host_limits_short_steps():
    model = read_model("Llama-3.1-8B")
    graph, eager = (passes(Deployment(model, H100, 2048, 64, host_s=host), [1, 256]) for host in (0, 2e-5))
    launches = kernels(model, decode(2080, 1))["count"].sum()
    assert eager["time_s"][1] == pytest.approx(launches * 2e-5) and eager["bound"][1] == "host"
    assert eager["time_s"][0] == graph["time_s"][0] and eager["bound"][0] == graph["bound"][0]


def test_what_fits_is_the_most_that_fits():
    parallel = Parallel(8, 1, 8)
    assert largest_batch(Deployment(DEEPSEEK, H100, 1024, 64, parallel)) == 0  # as engines find
    assert largest_context(Deployment(DEEPSEEK, H100, 1024, 64, parallel)) == 0
    one = Deployment(LLAMA, H100, 4000, 96, Parallel(4))
    most, longest = largest_batch(one), largest_context(one, 16)
    contexts, batches = np.array([4095, 4095, longest - 1, longest]), np.array([most, most + 1, 16, 16])
    needed = memory_of(one, decode(contexts, batches))["memory_bytes"]
    assert (needed <= 0.9 * H100.dram_bytes).tolist() == [True, False, True, False]
    assert largest_context(Deployment(LLAMA, H200, 64, 64, Parallel(8))) == LLAMA.max_positions


def test_memory_is_listed_with_its_formulas():
    rows = memory_table(Deployment(LLAMA, H100, 4000, 96, Parallel(4, 2)), 16).set_index("part")
    assert rows.loc["KV cache", "formula"] == "(16 × 4,096) tokens × 40,960 bytes × 2 batches in flight"
    assert rows.loc["KV cache", "bytes"] == 16 * 4096 * 40960 * 2
    reserve = ["communication buffers", "CUDA context", "workspaces, CUDA graphs, fragmentation"]
    assert rows.loc[reserve, "bytes"].sum() == pytest.approx(0.1 * H100.dram_bytes, abs=3)


def test_objectives_count_accepted_tokens():
    plain = Deployment(LLAMA, H200, 2048, 256, Parallel(8))
    drafts = Deployment(LLAMA, H200, 2048, 256, Parallel(8), speculation=Speculation(LLAMA.draft_layer(), 2, 0.9))
    objective = Objective(tpot_s=0.006)
    slow, fast = (cheapest([one], [passes(one, [1, 4, 16])], objective) for one in (plain, drafts))
    assert slow.empty and fast["batch"].tolist() == [4]


@pytest.mark.parametrize("parallel", [Parallel(8), Parallel(4, 2)])
def test_prompts_of_new_requests_delay_the_steps_of_the_others(parallel):
    """By hand: of the requests in flight, each other one brings a prompt while one gets its output."""
    found = passes(Deployment(LLAMA, H200, 2048, 256, parallel), [1, 32])
    alone, full = found.iloc[1], found.iloc[2]
    requests = 32 * parallel.pipeline
    per_prompt_s = (full["served_tpot_s"] - full["tpot_s"]) * 256 / (requests - 1)
    # In one pass with a step, a prompt takes less than alone: both read the same weights.
    prompt_s = 2048 / found["tokens_per_s"][0]
    assert 0.8 * prompt_s < per_prompt_s < prompt_s
    assert full["served_tokens_per_s"] == pytest.approx(requests / (full["served_tpot_s"] + per_prompt_s / 256))
    if parallel.pipeline == 1:
        assert alone["served_tpot_s"] == alone["tpot_s"]
        rows = predict(kernels(LLAMA, chunk(2048, 0, 31, 2048 + 128), parallel), H200)
        assert per_prompt_s == pytest.approx((rows["time_s"] * rows["count"]).sum() - full["time_s"])


#: GiB of weights and of the KV cache on a GPU, as AIConfigurator 0.12.0 states them (cli_estimate of `static_gen`,
#: TensorRT-LLM): model, tensor parallelism, batch, tokens of each request.
PEER = [
    ("Llama-3.1-70B", 8, 16, 4608, 16.4268, 2.8125),
    ("Llama-3.1-70B", 8, 64, 8704, 16.4268, 21.25),
    ("Llama-3.1-8B", 1, 64, 8704, 14.9570, 68.0),
    ("DeepSeek-V3", 8, 64, 8704, None, 18.2285),
    ("gpt-oss-120b", 1, 64, 8704, None, 19.4063),
]


@pytest.mark.parametrize("name, tensor, batch, tokens, weights, cache", PEER)
def test_memory_is_that_of_a_peer(name, tensor, batch, tokens, weights, cache):
    model = read_model(name)
    precision = replace(model.precision, cache="fp8" if name == "DeepSeek-V3" else "bf16")
    work, parallel = decode(tokens - 1, batch), Parallel(tensor=tensor)
    needed = memory_bytes(model, parallel, precision, work, kernels(model, work, parallel, precision)).iloc[0]
    assert needed["cache_bytes"] / 2**30 == pytest.approx(cache, rel=1e-5)
    if weights:
        assert needed["weight_bytes"] / 2**30 == pytest.approx(weights, rel=2e-4)


@pytest.mark.parametrize("name, size", [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_weights_of_a_published_checkpoint(name, size):
    """OpenAI, gpt-oss model card, Table 1: GiB of the checkpoint. AIConfigurator leaves the scales out (56.3)."""
    model, work = read_model(name), decode(1)
    needed = memory_bytes(model, Parallel(), None, work, kernels(model, work, Parallel(), None)).iloc[0]
    assert needed["weight_bytes"] / 2**30 == pytest.approx(size, abs=0.05)


QWEN3_32B = {
    **{"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64},
    **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}
#: Milliseconds of Qwen3-32B in bf16 on H100 SXM, 1,024 tokens in and 256 out: tensor parallelism, requests; the time
#: per output token that SGLang took, prompts of other requests between the steps included (silicon_sample.csv of
#: AIConfigurator 0.12.0, h100_sxm); a decode step as AIConfigurator 0.12.0 states it (cli_estimate, `static_gen`); and
#: as GenZ does (genz-llm 0.0.16, decode_moddeling of 1,024 + 256 tokens, `Bb=1`, on `H100_GPU`).
SIDE_BY_SIDE = [
    (1, 16, 26.843, 26.976, 19.027),
    (2, 16, 16.154, 14.748, 10.465),
    (2, 64, 25.623, 18.023, 12.871),
    (4, 16, 10.142, 8.463, 6.247),
    (4, 64, 16.348, 10.724, 7.599),
    (8, 16, 7.568, 6.067, 4.910),
    (8, 64, 12.517, 7.221, 5.734),
]


def test_decode_steps_beside_those_of_peers(tmp_path):
    """As AIConfigurator, which looks measured kernels up; GenZ, and rooflines such as LLM-Viewer's, say less."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_32B), "utf-8")
    model = read_model(file)
    for tensor, batch, measured, looked_up, genz in SIDE_BY_SIDE:
        ours = 1e3 * step(Deployment(model, H100, 1024, 256, Parallel(tensor)), batch)["time_s"]
        assert ours == pytest.approx(looked_up, rel=0.1)
        rows = kernels(model, decode(1024 + 128, batch), Parallel(tensor)).query("kind != 'collective'")
        bytes_ = rows[["weight_bytes", "read_bytes", "write_bytes", "cache_bytes"]].sum(axis=1)
        roofline = 1e3 * (roofline_time_s(H100, 2.0 * rows["macs"], bytes_) * rows["count"]).sum()
        # Other requests' prompts are not in a step; this engine processed them all before any request decoded.
        assert max(roofline, genz) < ours < 1.02 * measured
        served = 1e3 * step(Deployment(model, H100, 1024, 256, Parallel(tensor)), batch)["served_tpot_s"]
        assert served == pytest.approx(measured, rel=0.12)
