"""Training steps: kernels and their shapes, communication, memory and utilisation, against closed forms."""

import dataclasses

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.models.time_model.attention.backward_law import PRODUCTS
from gpuledger.models.training import TrainingRun, hfu_percent, mfu_percent, predict_steps, training_memory
from gpuledger.models.training.kernels import HEAD, OUTER, training_kernels
from gpuledger.models.training.memory import fits
from gpuledger.models.training.sharding import collective_times, exposed_s
from gpuledger.models.training.utilisation import model_flops_per_token
from gpuledger.models.transformer import read_model
from gpuledger.readers.gpus import find_gpu

MODELS = ROOT / "traces/published/training_time/models"
A100, H100 = find_gpu("a100-sxm-80gb"), find_gpu("h100-sxm")


def mpt(size, sequence=2048):
    return dataclasses.replace(read_model(MODELS / f"mpt-{size}.json"), positions=sequence)


def a_run(size="125m", sequence=2048, micro_batch=2, gpu=A100, **more):
    return TrainingRun(mpt(size, sequence), gpu, sequence, micro_batch, **more)


@given(
    size=st.sampled_from(["125m", "350m"]),
    sequence=st.sampled_from([128, 512, 1024]),
    micro_batch=st.integers(1, 5),
    accumulation=st.integers(1, 3),
    recompute=st.booleans(),
)
def test_products_are_those_of_the_usual_formula(size, sequence, micro_batch, accumulation, recompute):
    run = a_run(size, sequence, micro_batch, accumulation=accumulation, recompute=recompute)
    rows = training_kernels(run)
    flops = 2 * rows["macs"] * rows["count"]
    model, tokens = run.model, run.tokens * accumulation
    in_layers = sum(linear.outputs * linear.inputs for linear in model.layers[0].linears(model.hidden))
    matrices = model.layer_count * in_layers
    head = model.vocab * model.hidden
    # Two FLOPs for each weight and token, in three passes, and a fourth of the layers with recomputation.
    expected = 2 * tokens * ((3 + recompute) * matrices + 3 * head)
    assert flops[rows["purpose"] == "GEMM"].sum() == expected
    attention = rows[rows["kind"] == "attention"]
    done = flops[attention.index].sum()
    causal = model_flops_per_token(model, sequence, causal=True) - 6 * model.parameters
    assert done == pytest.approx(causal / 3 * tokens * (1 + recompute + PRODUCTS))


def test_the_backward_pass_has_two_products_for_each_of_the_forward_pass():
    rows = training_kernels(a_run("760m"))
    up = rows[rows["kernel"] == "up_proj"].groupby("part")[["m", "n", "k"]].apply(lambda part: part.to_numpy().tolist())
    assert up["forward"] == [[4096, 6144, 1536]]
    assert up["backward"] == [[4096, 1536, 6144], [6144, 1536, 4096]]
    assert rows[rows["kernel"] == "lm_head"]["macs"].unique() == [4096 * 50368 * 1536], "of every token"
    assert not rows["kernel"].eq("kv_write").any(), "training has no cache"


def test_parameters_in_32_bits_move_more_bytes_and_travel_twice_as_far():
    wide, narrow = (training_kernels(a_run(gathered=gathered)) for gathered in ("fp32", "bf16"))

    def moved(rows):
        return ((rows["read_bytes"] + rows["write_bytes"]) * rows["count"]).groupby(rows["purpose"]).sum()

    assert (moved(wide)[["elementwise", "weights"]] > moved(narrow)[["elementwise", "weights"]]).all()
    assert (
        moved(wide)[["GEMM", "attention", "loss", "update"]] == moved(narrow)[["GEMM", "attention", "loss", "update"]]
    ).all()
    times = [collective_times(a_run("7b", gathered=gathered))[0] for gathered in ("fp32", "bf16")]
    assert 1.8 < times[0][0] / times[1][0] < 2.1 and times[0][1] == times[1][1]


def test_fp8_is_for_the_products_of_layers_only():
    rows = training_kernels(a_run(gpu=H100, precision="fp8"))
    products = rows[rows["kind"] == "gemm"]
    assert set(products[products["kernel"] == "lm_head"]["precision"]) == {"bf16"}
    assert set(products[products["kernel"] != "lm_head"]["precision"]) == {"fp8"}
    assert {"operand_fp8", "gradient_fp8"} <= set(rows["kernel"])


def test_a_step_is_the_sum_of_its_parts_and_grows_with_passes():
    one, two = a_run("350m"), a_run("350m", accumulation=2)
    steps, kernels = predict_steps([one, two], A100)
    parts = steps[[name for name in steps if name.endswith("_s") and name not in ("step_s", "communication_s")]]
    assert parts.sum(axis=1).to_numpy() == pytest.approx(steps["step_s"].to_numpy())
    assert steps["update_s"][0] == steps["update_s"][1], "once in a step"
    rest = steps["step_s"] - steps["update_s"]
    assert rest[1] == pytest.approx(2 * rest[0])
    own = kernels[(kernels["run"] == 0) & (kernels["purpose"] == "attention")]
    assert own["total_s"].sum() == pytest.approx(steps["attention_s"][0])
    assert (steps["exposed_s"] <= steps["communication_s"]).all()
    assert steps["tokens_per_s_per_gpu"][0] == pytest.approx(4096 / steps["step_s"][0])


def test_recomputation_adds_a_forward_pass_of_the_layers_and_saves_memory():
    plain, again = (a_run("1b", micro_batch=8, recompute=recompute) for recompute in (False, True))
    steps, kernels = predict_steps([plain, again], A100)
    forward = kernels[(kernels["run"] == 0) & (kernels["part"] == "forward") & (kernels["unit"] >= 0)]["total_s"].sum()
    gained = steps["step_s"] - steps["exposed_s"]
    assert gained[1] - gained[0] == pytest.approx(forward)
    assert training_memory(again)["activation_bytes"] < training_memory(plain)["activation_bytes"] / 4


def test_what_is_longer_than_a_layers_kernels_is_exposed():
    run = a_run("125m")
    layers = run.model.layer_count
    times = {OUTER: (3.0, 2.0), 0: (1.0, 0.5)}
    # Everything else is hidden: what is outside layers, the first layer, and the last gradients.
    assert exposed_s(run, [10.0], [10.0], 10.0, times) == 3 + 1 + 0.5 + 2
    # Nothing is hidden: all of it, but what is outside layers is gathered once.
    assert exposed_s(run, [0.0], [0.0], 0.0, times) == 3 + layers + layers * 1.5 + 1 + 0.5 + 2


def test_the_network_of_a_node_counts_where_it_is_slower():
    fast, slow = (a_run("7b", gpus=64, network_bytes_per_s=rate) for rate in (1e15, 200e9))
    inside = collective_times(a_run("7b"))[0]
    assert collective_times(fast)[0] == inside
    layer = slow.layer_parameters(slow.model.layers[0])
    assert collective_times(slow)[0][0] == pytest.approx(layer * 2 * 63 / 64 / 200e9)
    alone = a_run(gpus=1)
    assert set(collective_times(alone).values()) == {(0.0, 0.0)}
    assert predict_steps([alone], A100)[0]["exposed_s"][0] == 0


def test_memory_is_what_its_parts_are():
    run = a_run("7b", micro_batch=6, gathered="fp32")
    memory, model = training_memory(run), run.model
    assert memory["state_bytes"] == 16 * model.parameters / 8
    tokens, hidden = 6 * 2048, 4096
    # 16 values of the width for each token and layer: norms 4, projections 4, activation 8; and the stream in 32 bits.
    assert memory["activation_bytes"] == tokens * hidden * (2 * 16 * 32 + 4)
    assert memory["largest_bytes"] == 2 * tokens * 50368 * 2
    assert memory["saved_weight_bytes"] == 2 * 32 * run.layer_parameters(model.layers[0])
    assert training_memory(a_run("7b", gathered="bf16"))["saved_weight_bytes"] == 0
    assert memory["memory_bytes"] == sum(value for name, value in memory.items() if name != "memory_bytes")


@pytest.mark.parametrize(
    ("size", "sequence", "micro_batch", "gpus"), [("7b", 512, 64, 8), ("13b", 512, 20, 8), ("7b", 2048, 32, 16)]
)
def test_what_the_source_tried_without_a_result_does_not_fit(size, sequence, micro_batch, gpus):
    """Configurations of llm-foundry's sweep.sh (2542a2e), without recomputation, that no table has."""
    more = {"gpus": gpus, "network_bytes_per_s": 200e9}
    memory = training_memory(a_run(size, sequence, micro_batch, **more))["memory_bytes"]
    assert not fits(memory, A100, gpus)


def test_utilisation_counts_what_the_mask_hides_unless_told_otherwise():
    model = mpt("7b", 65536)
    assert model_flops_per_token(model, 65536) == 6 * 6918905856 + 12 * 32 * 4096 * 65536
    counted, done = (model_flops_per_token(model, 65536, causal) for causal in (False, True))
    assert counted - done == 12 * 32 * 4096 * (65536 - 65537 / 2)
    # The first row of that length in the source's table: 15,654 tokens per second on eight GPUs, 28.59 and 38.13 %.
    mfu = mfu_percent(model, 65536, 15654 / 8, 989.5e12)
    assert (round(mfu, 2), round(hfu_percent(mfu, True), 2)) == (28.59, 38.12)
    assert hfu_percent(mfu, False) == mfu


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"gpus": 16}, "the network between nodes is not given"),
        ({"gpus": 12, "network_bytes_per_s": 1e9}, "no whole nodes"),
        ({"precision": "fp8"}, "a100-sxm-80gb: it has no peak of fp8; it has .*bf16"),
        ({"micro_batch": 2**21}, "4,294,967,296 tokens in a pass"),
    ],
)
def test_runs_that_are_not_modelled_are_refused_in_one_line(more, match):
    with pytest.raises(InputError, match=match):
        a_run(**more)


def test_experts_are_refused():
    with pytest.raises(InputError, match="attention and feed-forward layers only"):
        TrainingRun(read_model("Mixtral-8x7B-v0.1"), H100, 2048, 1)


def test_a_gated_model_with_grouped_queries_trains_too():
    model = read_model("Llama-3.1-8B")
    run = TrainingRun(model, H100, 4096, 1, recompute=True)
    (step,) = predict_steps([run], H100)[0].to_dict("records")
    mfu = mfu_percent(model, 4096, step["tokens_per_s_per_gpu"], H100.peak_flop_per_s("bf16"))
    assert 30 < mfu < 75
    rows = training_kernels(run)
    assert {"rope", "gate_up_proj"} <= set(rows["kernel"]) and rows[rows["unit"] == HEAD]["count"].eq(1).all()
    assert np.isfinite(rows[["macs", "read_bytes", "write_bytes"]]).all().all()
