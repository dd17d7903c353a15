"""Kernels of a pass: MACs and bytes against loops, published figures and conservation laws."""

import json
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_counts import check_products

from gpuledger.errors import InputError
from gpuledger.models.time_model.moe import expert_loads
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import (
    Attention,
    FeedForward,
    LatentAttention,
    Layers,
    Model,
    Parallel,
    Precision,
    chunk,
    decode,
    join,
    kernels,
    mixed,
    prefill,
    read_model,
)
from gpuledger.models.transformer.kernels import FUSIONS
from gpuledger.models.transformer.routing import SERVED_LOAD, Routing, choice_probability
from gpuledger.readers.gpus import find_gpu

NAMES = sorted(file.stem for file in (ROOT / "resources/models").glob("*.json"))
MODELS = {name: read_model(name) for name in NAMES}
GEMM = ["gemm", "grouped_gemm"]
#: Unfused attention computes the scores of every new token and key.
UNMASKED = {"qkv", "gate_up", "residual_norm", "experts"}
WINDOWED = Model(
    "windowed",
    "here",
    hidden=8,
    vocab=32,
    layers=(
        Layers((0, 2), Attention(4, 2, 4, window=5, rotary_dim=4), FeedForward(12)),
        Layers((1,), Attention(4, 2, 4, rotary_dim=4), FeedForward(12)),
    ),
)
LENGTH, PAST = st.integers(1, 40), st.integers(0, 40)


def passes(frame, column="macs"):
    """Sum a column over all launches of a pass on one device."""
    return int((frame["count"] * frame[column]).sum())


def attention_macs(model, work, **how):
    frame = kernels(model, work, **how)
    return passes(frame[frame["kind"] == "attention"])


# ---- attention against loops


def seen(i, past, window):
    """Keys that new token i (from 0) sees, one by one."""
    return sum(1 for j in range(past + i + 1) if window is None or past + i - j < window)


@given(new=LENGTH, past=PAST, window=st.one_of(st.none(), st.integers(1, 50)))
def test_pairs_are_those_of_a_loop(new, past, window):
    work = mixed([0], [new], [past])
    assert work.pairs(window).tolist() == [sum(seen(i, past, window) for i in range(new))]
    keys = {j for i in range(new) for j in range(past + i + 1) if window is None or past + i - j < window}
    assert work.visible(window).tolist() == [len(keys)]


@given(rows=st.lists(st.tuples(st.integers(0, 2), LENGTH, PAST, st.integers(1, 3)), min_size=1, max_size=6))
@settings(max_examples=40)
def test_ragged_batches_are_the_sum_of_their_requests(rows):
    rows += [(shape, 1, 0, 1) for shape in range(3)]
    work = mixed(*map(list, zip(*rows, strict=True)))
    frame = kernels(WINDOWED, work)
    for shape, part in frame.groupby("shape"):
        own = [row[1:] for row in rows if row[0] == shape]
        tokens = sum(new * requests for new, _, requests in own)
        expected = sum(
            requests * count * seen(i, past, window) * 4 * (4 + 4)
            for new, past, requests in own
            for window, count in ((5, 2), (None, 1))
            for i in range(new)
        )
        assert passes(part[part["kind"] == "attention"]) == expected
        gemms = part[part["kernel"].isin(["qkv_proj", "out_proj", "gate_up_proj", "down_proj"])]
        assert passes(gemms) == tokens * 3 * (8 * (16 + 2 * 8) + 16 * 8 + 3 * 8 * 12)
        assert (gemms["m"] == tokens).all()
        assert part.loc[part["kernel"] == "lm_head", "m"].tolist() == [sum(requests for *_, requests in own)]


@given(length=st.integers(1, 60), step=st.integers(1, 60))
@settings(max_examples=30)
def test_chunks_do_the_attention_of_the_whole_prompt(length, step):
    whole = attention_macs(WINDOWED, prefill(length))
    past = np.arange(0, length, step)
    assert attention_macs(WINDOWED, chunk(np.minimum(step, length - past), past)) == whole
    assert attention_macs(WINDOWED, decode(np.arange(length))) == whole
    assert whole == 4 * 8 * sum(count * seen(i, 0, w) for w, count in ((5, 2), (None, 1)) for i in range(length))


@given(new=LENGTH, past=PAST, decodes=st.integers(1, 9), context=PAST)
@settings(max_examples=30)
def test_a_mixed_batch_is_the_sum_of_its_parts(new, past, decodes, context):
    parts = [chunk(new, past), decode(context, decodes)]
    for model in (WINDOWED, MODELS["gpt2"]):
        frames = [kernels(model, work) for work in (chunk(new, past, decodes, context), *parts)]
        together, *apart = [
            frame[frame["kind"] == "gemm"].groupby("kernel", observed=True)["macs"].sum() for frame in frames
        ]
        assert together.equals(sum(apart))
        assert passes(frames[0]) == sum(map(passes, frames[1:]))
        # fused, weights are read once instead of twice
        gemms = [frame[frame["kind"] == "gemm"] for frame in frames]
        assert len({passes(frame, "weight_bytes") for frame in gemms}) == 1


def test_joined_workloads_give_the_same_rows():
    works = [prefill([5, 9], 2), decode([3, 0, 7], 4), chunk([4, 0], [0, 8], 2, 6)]
    together = kernels(MODELS["DeepSeek-V3"], join(works))
    starts = np.cumsum([0, 2, 3])
    apart = [
        kernels(MODELS["DeepSeek-V3"], work).assign(shape=lambda frame, start=start: frame["shape"] + start)
        for work, start in zip(works, starts, strict=True)
    ]
    pd.testing.assert_frame_equal(together, pd.concat(apart, ignore_index=True))


# ---- published figures


def test_the_sources_totals_per_layer_with_its_conventions():
    """The published breakdown of Llama-3.1-8B: unmasked attention, prompt 8192; 256 decodes at a context of 8448."""
    model = MODELS["Llama-3.1-8B"]

    def layer(work, column):
        frame = kernels(model, work, fused=UNMASKED)
        return passes(frame[frame["layers"] == 0], column) / 32

    assert layer(prefill(8192), "macs") == 2_336_462_209_024
    assert layer(decode(8447, 256), "macs") == 73_551_314_944
    assert layer(decode(8447, 256), "cache_bytes") == 2 * 4_429_185_024
    frame = kernels(model, prefill(8192))
    gemms = frame[(frame["layers"] == 0) & (frame["kind"] == "gemm")]
    assert passes(gemms, "weight_bytes") == 32 * 2 * 218_103_808
    assert frame.loc[frame["kernel"] == "kv_write", "write_bytes"].tolist() == [2 * 16_777_216]
    # The causal mask keeps the diagonal and the pairs below it.
    assert attention_macs(model, prefill(8192)) == 32 * 2 * 4096 * (8192 * 8193 // 2)


VERL = {  # training FLOP of three sequences, file id 1025404803 (verl, Apache-2.0), for two sets of lengths
    "qwen2": ("Qwen2.5-7B-Instruct", 170388331954176, 622070178250752),
    "qwen3": ("Qwen3-8B", 185867930959872, 692924253732864),
    "qwen3_moe": ("Qwen3-30B-A3B", 85087060230144, 365944098521088),
    "deepseek_v3": ("DeepSeek-V3", 906535995703296, 3674028304760832),
    "llama": ({"vocab_size": 32000, "intermediate_size": 11008}, 153555818250240, 575955114393600),
}


@pytest.mark.parametrize("kind", VERL)
def test_training_flops_with_the_conventions_of_verl(kind, tmp_path):
    """Backward is twice forward, no mask, values as wide as queries, logits of every token, the embedding is a GEMM."""
    name, *expected = VERL[kind]
    if isinstance(name, dict):
        sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32}
        (tmp_path / "llama2.json").write_text(json.dumps({"model_type": "llama", **sizes, **name}), "utf-8")
        model = read_model(tmp_path / "llama2.json")
    else:
        model = MODELS[name]
    for lengths, flops in zip(([512, 1024, 2048], [4096] * 3), expected, strict=True):
        tokens = sum(lengths)
        frame = kernels(model, prefill(lengths), fused=UNMASKED)
        frame = frame[~frame["kernel"].isin(["lm_head", "attention_values"])]
        macs = passes(frame) + passes(frame[frame["kernel"] == "attention_scores"])
        assert 6 * (macs + 2 * tokens * model.vocab * model.hidden) == flops


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_multiplied_once_per_token(name):
    check_products(MODELS[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_large_batch_reads_every_weight_once(name):
    """With so many tokens that every expert gets some, the weights read are the model's (biases and scales too)."""
    model = MODELS[name]
    frame = kernels(model, prefill(4096, 64))
    read = passes(frame[~frame["kernel"].isin(["embedding", "position_embedding"])], "weight_bytes")
    tables = sum(table.stored_bytes(model.precision) for table in model.embeddings if table.kernel != "lm_head")
    assert read == model.weight_bytes() - tables + model.tied * model.lm_head.stored_bytes(model.precision) - sum(
        2 * group.count * group.attention.heads for group in model.layers if getattr(group.attention, "sinks", False)
    )


@pytest.mark.parametrize("name", NAMES)
def test_decoding_reads_the_cache_that_is_there(name):
    model = MODELS[name]
    for precision in (None, Precision(cache="fp8"), Precision(cache="int4")):
        frame = kernels(model, decode([0, 99, 9999], 3), precision=precision)
        cached = [passes(frame[frame["shape"] == shape], "cache_bytes") for shape in range(3)]
        assert cached == (3 * model.kv_bytes([1, 100, 10_000], precision)).tolist()
        written = frame[(frame["shape"] == 0) & (frame["kernel"] == "kv_write")]
        assert passes(written, "write_bytes") == 3 * model.kv_bytes_per_token(precision)


def test_latent_attention():
    model = MODELS["DeepSeek-V3"]
    frame = kernels(model, decode(999, 2)).set_index("kernel")
    absorbed = frame.loc["decode_attention"].iloc[0]
    assert absorbed[["batch", "m", "n", "k", "macs"]].tolist() == [256, 1, 1000, 576, 2000 * 128 * (576 + 512)]
    assert absorbed["cache_bytes"] == 2000 * 576 * 2
    assert frame.loc["q_absorb"].iloc[0][["batch", "m", "n", "k"]].tolist() == [128, 2, 512, 128]
    assert frame.loc["value_absorb"].iloc[0][["batch", "m", "n", "k"]].tolist() == [128, 2, 128, 512]
    assert "kv_b_proj" not in frame.index
    frame = kernels(model, chunk(300, 90)).set_index("kernel")
    assert frame.loc["context_kv_b_proj", "m"].tolist() == [90] * 2
    assert frame.loc["kv_b_proj", "m"].tolist() == [300] * 2
    expanded = frame.loc["attention"].iloc[0]
    assert expanded[["batch", "m", "n", "k"]].tolist() == [128, 300, 390, 192]
    assert expanded["macs"] == (300 * 90 + 45150) * 128 * (192 + 128) and expanded["cache_bytes"] == 0


def test_latent_attention_is_absorbed_where_that_takes_fewer_multiplications():
    model = MODELS["DeepSeek-V3"]
    two = kernels(model, mixed([0], [2], [8192], 3)).set_index("kernel")
    attention = two.loc["decode_attention"].iloc[0]
    assert attention[["batch", "m", "n", "k"]].tolist() == [384, 2, 8194, 576]
    assert attention["macs"] == 3 * (2 * 8192 + 3) * 128 * (576 + 512)
    assert attention["cache_bytes"] == 3 * 8194 * 576 * 2  # read once for both tokens
    assert two.loc["q_absorb", "m"].tolist() == [6, 6] and "context_kv_b_proj" not in two.index
    # Expanding a cached token takes 512 · (128 + 128) multiplications a head, an absorbed pair 576 + 512 - 192 - 128
    # more: as many at 170.7 new tokens behind an endless context.
    names = [set(kernels(model, chunk(new, 100_000))["kernel"]) for new in (170, 171)]
    assert ["context_kv_b_proj" in each for each in names] == [False, True]
    assert "decode_attention" not in set(kernels(model, prefill(2))["kernel"])


@pytest.mark.parametrize(("new", "past", "kernel"), [(16, 17, "decode_"), (17, 99, ""), (16, 16, ""), (2, 0, "")])
def test_few_tokens_behind_a_longer_context_go_to_the_kernel_that_splits_it(new, past, kernel):
    frame = kernels(MODELS["Llama-3.1-8B"], chunk(new, past, 1, 7)).set_index("kernel")
    own = frame.loc[f"{kernel}attention"]
    assert own["m"] == new and (("attention" in frame.index) == (kernel == ""))


# ---- fusion


def test_rope_and_the_copy_to_the_cache_in_one_kernel():
    model, work = MODELS["Llama-3.1-8B"], decode(99, 8)
    apart, fused = (kernels(model, work, fused=names).set_index("kernel") for names in (True, [*FUSIONS, "rope_kv"]))
    assert "rope_kv_write" not in apart.index and not {"rope", "kv_write"} & set(fused.index)
    one = fused.loc["rope_kv_write"]
    # Queries (32 heads), keys and values (8 each) are read, queries and the cache written; cosines for both.
    assert one["read_bytes"] == 8 * 2 * 128 * (32 + 16 + 1) and one["write_bytes"] == 8 * 2 * 128 * (32 + 16)
    saved = apart.loc[["rope", "kv_write"], ["read_bytes", "write_bytes"]].sum().sum()
    # Keys rotated are not written and read again.
    assert saved - one[["read_bytes", "write_bytes"]].sum() == 2 * 8 * 2 * 128 * 8
    latent = kernels(MODELS["DeepSeek-V3"], work, fused=[*FUSIONS, "rope_kv"]).set_index("kernel")
    assert (latent.loc["rope_kv_write", "write_bytes"] == 8 * 2 * (128 * 64 + 576)).all()


def test_every_device_has_a_part_of_the_vocabulary():
    rows = kernels(MODELS["Llama-3.1-8B"], decode(99, 8), Parallel(tensor=8)).set_index("kernel")
    assert rows.loc["lm_head", ["m", "n", "k"]].tolist() == [8, 128256 // 8, 4096]
    gathered = rows.loc["all_gather"]
    assert gathered["n"] == 128256 and gathered["comm_bytes"] == 8 * 128256 * 2 * 7 // 8


def test_fusion_changes_launches_and_traffic_but_not_the_gemms():
    model, work = MODELS["Llama-3.1-8B"], prefill(128)
    fused, eager = kernels(model, work), kernels(model, work, fused=False)
    names = ["qkv_proj", "gate_up_proj"], ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
    for column in ("macs", "weight_bytes", "write_bytes"):
        sums = [passes(f[f["kernel"].isin(n)], column) for f, n in zip((fused, eager), names, strict=True)]
        assert sums[0] == sums[1]
    assert eager[eager["kernel"].isin(["attn_residual", "ffn_residual"])]["count"].tolist() == [32, 32]
    assert fused[fused["kernel"] == "attn_norm"]["count"].tolist() == [1, 31]
    scores = eager[eager["kernel"] == "attention_scores"].iloc[0]
    assert scores[["batch", "m", "n", "k", "macs"]].tolist() == [32, 128, 128, 128, 32 * 128**3]
    assert scores["write_bytes"] == 32 * 128 * 128 * 2
    mlp = kernels(model, work, fused={"qkv", "gate_up", "attention"})
    assert {"qkv_proj", "attn_residual", "attention"} <= set(mlp["kernel"])
    # one matrix in the checkpoint stays one
    assert "qkv_proj" in set(kernels(MODELS["Phi-3-mini-4k-instruct"], work, fused=False)["kernel"])
    assert "qkv_proj" in set(kernels(MODELS["gpt2"], work, fused=False)["kernel"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parallel", [Parallel(), Parallel(pipeline=3)])
def test_residuals_are_summed_twice_a_layer_fused_or_not(name, parallel):
    model = MODELS[name]
    stream = 4 * model.hidden * 2
    for fused in (True, False):
        frame = kernels(model, prefill(4), parallel, Precision(), fused=fused)
        sums = frame[frame["kernel"].isin(["attn_norm", "ffn_norm", "final_norm", "attn_residual", "ffn_residual"])]
        assert sums.loc[sums["read_bytes"] == 2 * stream, "count"].sum() == 2 * model.layer_count
        assert sums.loc[sums["kernel"].isin(["attn_norm", "ffn_norm"]), "count"].sum() == 2 * model.layer_count


# ---- precision


def test_precision_of_each_tensor():
    model, work = MODELS["Llama-3.1-8B"], decode(1000, 8)
    mixed_precision = Precision({"*": "int4_g128", "down_proj": "fp8"}, "fp16", "int8")
    frame = kernels(model, work, precision=mixed_precision).set_index("kernel")
    assert frame.loc["qkv_proj", ["precision", "weight_precision"]].tolist() == ["fp16", "int4"]
    assert frame.loc["qkv_proj", "weight_bytes"] == 4096 * 6144 // 2 + 4096 // 128 * 6144 * 2
    assert frame.loc["down_proj", ["precision", "weight_precision", "weight_bytes"]].tolist() == [
        *("fp16", "fp8", 4096 * 14336)
    ]
    assert frame.loc["decode_attention", ["precision", "weight_precision"]].tolist() == ["fp16", "int8"]
    assert frame.loc["decode_attention", "cache_bytes"] == 8 * 1001 * 2 * 1024
    assert frame.loc["lm_head", ["precision", "weight_precision"]].tolist() == ["fp16", "fp16"]
    frame = kernels(model, work, precision=Precision("fp8", operands="fp8")).set_index("kernel")
    assert frame.loc["qkv_proj", ["precision", "read_bytes", "write_bytes"]].tolist() == ["fp8", 8 * 4096, 8 * 6144 * 2]
    assert frame.loc["decode_attention", "write_bytes"] == frame.loc["out_proj", "read_bytes"] == 8 * 4096
    frame = kernels(model, work, precision=Precision("fp32", "tf32", "fp32")).set_index("kernel")
    assert frame.loc["qkv_proj", ["precision", "weight_bytes"]].tolist() == ["tf32", 4 * 4096 * 6144]
    oss = kernels(MODELS["gpt-oss-20b"], work).set_index("kernel")
    assert oss.loc["expert_down_proj", "weight_precision"].unique().tolist() == ["mxfp4"]
    assert oss.loc["out_proj", "weight_precision"].unique().tolist() == ["bf16"]


# ---- parallel


REPLICATED = ["router", "shared_gate", "qkv_a_proj", "q_a_proj", "kv_a_proj"]


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *(("Llama-3.1-8B", 8), ("Llama-3.1-405B", 4), ("Mixtral-8x7B-v0.1", 8), ("DeepSeek-V3", 16), ("gpt2", 4)),
        *(("Qwen3-30B-A3B", 4), ("gemma-2-9b", 8), ("gpt-oss-20b", 4), ("Phi-3-mini-4k-instruct", 2)),
    ],
)
def test_tensor_parallel_devices_do_the_whole_together(name, tensor):
    model, work = MODELS[name], join([prefill([100, 7], 2), decode(50, 16), chunk(20, 30, 4, 40)])
    one, shared = (kernels(model, work, parallel, Precision()) for parallel in (Parallel(), Parallel(tensor)))
    padded = model.vocab % tensor != 0
    for column in ("macs", "cache_bytes"):
        sums = []
        for frame in (one, shared):
            own = frame[~frame["kernel"].isin([*REPLICATED, *(["lm_head"] if padded else [])])]
            if column == "cache_bytes" and isinstance(model.layers[0].attention, LatentAttention):
                continue  # the compressed cache is replicated
            parts = own["count"] * own["devices"] * own[column]
            sums.append(parts.groupby([own["shape"], own["kernel"]], observed=True).sum())
        assert len(sums) < 2 or sums[0].equals(sums[1][sums[1].index.isin(sums[0].index)])
    exchanged = shared[shared["kind"] == "collective"]
    result = exchanged[(exchanged["kernel"] == "all_reduce") & (exchanged["shape"] == 0)]
    assert result["count"].sum() == 2 * model.layer_count + 1
    assert (result["comm_bytes"] == 2 * (tensor - 1) * 200 * model.hidden * 2 // tensor).all()
    assert not len(one[one["kind"] == "collective"])


def test_heads_of_keys_are_replicated_beyond_their_number():
    model = MODELS["Llama-3.1-8B"]
    frame = kernels(model, decode(10, 4), Parallel(tensor=32)).set_index("kernel")
    assert frame.loc["qkv_proj", "n"] == (1 + 2) * 128
    assert frame.loc["decode_attention", ["batch", "cache_bytes"]].tolist() == [4, 4 * 11 * 2 * 128 * 2]


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b"])
@pytest.mark.parametrize("pipeline", [2, 5, 7])
def test_pipeline_stages_do_the_whole_together(name, pipeline):
    model, work = MODELS[name], prefill([64, 3])
    one, staged = kernels(model, work), kernels(model, work, Parallel(pipeline=pipeline))
    for column in ("macs", "cache_bytes"):
        assert passes(one, column) == passes(staged, column)
    layers = staged[(staged["kernel"] == "out_proj") & (staged["shape"] == 0)].groupby("stage")["count"].sum()
    assert layers.sum() == model.layer_count and layers.max() - layers.min() <= 1
    sent = staged[staged["kernel"] == "send"]
    assert len(sent) == 2 * (pipeline - 1) and sent["comm_bytes"].tolist()[0] == 64 * model.hidden * 2
    assert staged.loc[staged["kernel"] == "lm_head", "stage"].unique().tolist() == [pipeline - 1]


@pytest.mark.parametrize(("tensor", "expert"), [(1, 2), (1, 8), (4, 2), (4, 4), (4, 16), (8, 1)])
def test_expert_parallel_devices_do_the_whole_together(tensor, expert):
    model, parallel = MODELS["DeepSeek-V3"], Parallel(tensor=tensor, expert=expert)
    assert parallel.devices == max(tensor, expert)
    one, shared = kernels(model, prefill(256, 2)), kernels(model, prefill(256, 2), parallel)
    grouped = [frame[frame["kind"] == "grouped_gemm"] for frame in (one, shared)]
    whole, parts = ((frame["count"] * frame["devices"] * frame["macs"]).sum() for frame in grouped)
    assert parts == whole * parallel.replicas
    assert (grouped[1]["devices"] == max(tensor, expert)).all()
    exchanged = shared[shared["kernel"] == "all_to_all"]
    if expert > tensor:
        own = 512 // tensor * min(8, expert) * 7168  # to each device once
        expected = [-(-own * width * (expert - 1) // expert) for width in (1, 2)]  # fp8 there, bf16 back
        assert exchanged["comm_bytes"].tolist() == expected
    else:
        assert not len(exchanged)


@pytest.mark.parametrize(("tensor", "expert", "replicas"), [(1, 1, 8), (2, 1, 4), (4, 1, 2), (2, 4, 4), (1, 2, 4)])
def test_devices_with_slices_of_experts_do_the_whole_of_all_replicas_together(tensor, expert, replicas):
    model, parallel = MODELS["DeepSeek-V3"], Parallel(tensor=tensor, expert=expert, replicas=replicas)
    devices = tensor * replicas
    assert parallel.devices == devices and parallel.expert_width_devices * expert == devices
    one, shared = kernels(model, prefill(256, 2)), kernels(model, prefill(256, 2), parallel)
    whole, parts = (
        (frame["count"] * frame["devices"] * frame["macs"])[frame["kind"] == "grouped_gemm"].sum()
        for frame in (one, shared)
    )
    assert parts == whole * replicas
    # Everything else is that of a replica alone.
    alone = kernels(model, prefill(256, 2), Parallel(tensor))
    outside = [frame[~frame["kernel"].str.startswith("expert_")] for frame in (alone, shared)]
    gathered = outside[1]["devices"].eq(replicas) & outside[1]["kernel"].isin(["all_gather", "reduce_scatter"])
    moved, columns = outside[1][gathered], ["kernel", "count", "m", "n", "k", "macs", "read_bytes", "comm_bytes"]
    if tensor != replicas:
        assert outside[1][~gathered][columns].to_numpy().tolist() == outside[0][columns].to_numpy().tolist()
        assert moved["kernel"].tolist() == ["all_gather", "reduce_scatter"] and set(moved["count"]) == {58}
    # 512 tokens of 7168 values in bf16 of every other replica arrive, and as many sums leave.
    assert set(moved["comm_bytes"]) == {(replicas - 1) * 512 * 7168 * 2}


def test_slices_of_experts_by_hand():
    """A decode step of 16 requests on each of 4 replicas of Qwen3-30B-A3B: 128 experts, 8 of 768 for a token."""
    frame = kernels(MODELS["Qwen3-30B-A3B"], decode(100, 16), Parallel(replicas=4)).set_index("kernel")
    up, down = frame.loc["expert_gate_up_proj"], frame.loc["expert_down_proj"]
    assert (up["n"], up["k"], down["n"], down["k"]) == (2 * 768 // 4, 2048, 2048, 768 // 4)
    assert up["macs"] == 64 * 8 * 384 * 2048 and up["choices"] == up["arrived"] == 512 and up["experts"] == 128
    assert frame.loc["router", "m"] == 16 and frame.loc["expert_combine", "m"] == 64
    assert frame.loc["all_gather", "comm_bytes"] == frame.loc["reduce_scatter", "comm_bytes"] == 48 * 2048 * 2
    assert "all_reduce" not in frame.index and "all_to_all" not in frame.index


def test_replicas_follow_from_whole_experts_or_are_given():
    assert Parallel(2, 1, 8) == Parallel(2, 1, 8, 4) and Parallel(2, 1, 8).replicas == 4
    with pytest.raises(InputError, match="no divisor of tensor 2 × replicas 2"):
        Parallel(2, 1, 8, 2)
    with pytest.raises(InputError, match="is not a number of devices"):
        Parallel(replicas=-1)
    with pytest.raises(InputError, match="each is a server of its own"):
        kernels(MODELS["Llama-3.1-8B"], decode(10), Parallel(replicas=2))


# ---- experts


def test_expected_experts_are_those_of_all_choices():
    """Every choice of 2 of 4 experts by 2 tokens, counted."""
    choices = list(combinations(range(4), 2))
    touched = np.mean([len({*first, *second}) for first, second in product(choices, choices)])
    rows, expected = Routing(4, 2).busiest(np.array([2]))
    assert rows.tolist() == [4] and expected[0] == pytest.approx(touched, rel=1e-12)


@given(
    experts=st.integers(1, 64),
    share=st.floats(0, 1),
    load=st.one_of(st.floats(0, 5), st.lists(st.floats(0.01, 9), min_size=64, max_size=64)),
)
def test_choice_probabilities(experts, share, load):
    active = max(1, round(share * experts))
    load = tuple(load[:experts]) if isinstance(load, list) else load
    probability = choice_probability(experts, active, load)
    assert probability.sum() == pytest.approx(active, rel=1e-9) and probability.max() <= 1 and probability.min() >= 0
    tokens = np.array([0, 1, 7, 10**6])
    rows, touched = Routing(experts, active, load).busiest(tokens)
    assert rows.tolist() == (tokens * active).tolist()
    assert touched[0] == 0 and touched[1] == pytest.approx(active, rel=1e-9)
    assert np.all(touched <= np.minimum(experts, np.maximum(tokens * active, 0)) * (1 + 1e-9))
    rows, _ = Routing(experts, active, load, min(3, experts)).busiest(tokens)
    assert np.all(rows * min(3, experts) >= tokens * active - 3)


@pytest.mark.parametrize(("experts", "active", "devices"), [(128, 8, 2), (128, 4, 4), (256, 8, 8), (384, 8, 16)])
@pytest.mark.parametrize("tokens", [4, 16, 64, 256])
def test_the_busiest_device_of_a_random_placement(experts, active, devices, tokens):
    """Against random placements and choices: each token chooses different experts, the popular ones oftener."""
    random, logs = np.random.default_rng(7), np.log(choice_probability(experts, active, SERVED_LOAD))
    most = []
    for _ in range(100):
        keys = logs + random.gumbel(size=(tokens, experts))
        chosen = np.bincount(np.argpartition(-keys, active - 1, axis=1)[:, :active].ravel(), minlength=experts)
        place = random.permutation(experts) % devices
        most.append([np.bincount(place, rows, devices).max() for rows in (chosen, chosen > 0)])
    rows, touched = Routing(experts, active, SERVED_LOAD, devices).busiest(np.array([tokens]))
    assert [rows[0], touched[0]] == pytest.approx(np.mean(most, axis=0), rel=0.08)


@pytest.mark.parametrize(("experts", "active", "devices"), [(64, 6, 16), (256, 8, 32), (128, 8, 64), (64, 6, 64)])
@pytest.mark.parametrize("tokens", [64, 512])
def test_the_most_popular_expert_decides_where_a_device_has_few(experts, active, devices, tokens):
    """Every token chooses with the stated probabilities: equal steps from a random start through a random order."""
    random, probability = np.random.default_rng(3), choice_probability(experts, active, SERVED_LOAD)
    most = []
    for _ in range(60):
        order = random.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)
        steps = np.floor(np.cumsum(probability[order], axis=1) + random.random((tokens, 1)))
        rows = np.bincount(order[np.diff(steps, axis=1, prepend=0) > 0], minlength=experts)
        most.append(rows[random.permutation(experts)].reshape(devices, -1).sum(axis=1).max())
    rows, _ = Routing(experts, active, SERVED_LOAD, devices).busiest(np.array([tokens]))
    assert rows[0] == pytest.approx(np.mean(most), rel=0.1)


def test_a_device_with_one_expert_more_has_all_of_them_touched():
    _, touched = Routing(60, 4, SERVED_LOAD, 8).busiest(np.array([10**6]))
    assert touched[0] == pytest.approx(8, rel=1e-6)


@pytest.mark.parametrize("load", [0.0, SERVED_LOAD])
def test_a_token_reaches_some_device_whole(load):
    rows, touched = Routing(64, 2, load, 64).busiest(np.array([0, 1, 10**6]))
    assert rows[:2].tolist() == [0, 1] and touched.tolist() == pytest.approx([0, 1, 1])


def test_uneven_load_touches_fewer_experts_and_burdens_one_device():
    model, work = MODELS["Qwen3-30B-A3B"], decode(100, 32)
    frames = [kernels(model, work, Parallel(expert=8), expert_load=load).set_index("kernel") for load in (0, 1.0)]
    even, uneven = (frame.loc["expert_down_proj"] for frame in frames)
    assert even["macs"] == 8 * 32 * 8 // 8 * 768 * 2048  # 8 replicas of 32 tokens, 8 experts each, over 8 devices
    assert uneven["macs"] > 1.5 * even["macs"]
    one = [kernels(model, work, expert_load=load).set_index("kernel").loc["expert_down_proj"] for load in (0, 1.0)]
    assert one[0]["macs"] == one[1]["macs"] and one[0]["batch"] > one[1]["batch"]
    assert one[0]["batch"] == round(128 * (1 - (1 - 8 / 128) ** 32)) == 112
    assert one[0]["weight_bytes"] == round(128 * (1 - (1 - 8 / 128) ** 32) * 768 * 2048 * 2)
    given_load = kernels(model, work, expert_load=[1.0] * 128).set_index("kernel").loc["expert_down_proj"]
    assert given_load["batch"] == 112 and given_load["m"] == -(-256 // 112)


@pytest.mark.parametrize(("experts", "active"), [(64, 6), (128, 4), (256, 8), (512, 10)])
def test_served_experts_are_as_unequal_as_measured(experts, active):
    loads = np.sort(choice_probability(experts, active, SERVED_LOAD))
    gini = 1 + 1 / experts - 2 * np.mean(np.cumsum(loads) / loads.sum())
    assert 0.29 < gini < 0.38  # arXiv:2605.20982, abstract: MLA and GDN under mock tokens


@given(experts=st.integers(2, 48), load=st.floats(0.1, 3), tokens=st.integers(1, 300))
def test_tiles_of_an_uneven_load_are_counted_expert_by_expert(experts, load, tokens):
    routing, probability = Routing(experts, 2, load), choice_probability(experts, 2, load)
    expected = 0.0
    for one in probability:
        any_row = 1 - (1 - one) ** tokens
        expected += any_row * np.ceil(np.rint(tokens * one / max(any_row, 1e-9)) / 16)
    assert routing.tiles(np.array([tokens]), [16])[0, 0] == pytest.approx(expected, rel=1e-9)


def test_a_power_law_as_measured_burdens_the_busiest_device():
    even, uneven = (Routing(256, 8, load, 8) for load in (0.0, "power_law_1.2"))
    tokens = np.array([4096, 0, 4096])
    rows, touched = uneven.busiest(tokens)
    assert rows.tolist() == [expert_loads(4096, 8, 256, 8, 1.2).sum().round(), 0, rows[0]]
    assert rows[0] > 1.3 * even.busiest(tokens)[0][0] and touched.round().tolist() == [32, 0, 32]
    # Unequal rows fill more tiles than equal ones.
    assert uneven.tiles(tokens[:1], [128])[0, 0] * 128 > 1.1 * rows[0]
    # Without gaps at the exponent where the law's integral is a logarithm.
    assert Routing(256, 8, "power_law_1", 8).busiest(tokens)[0][0] == pytest.approx(
        Routing(256, 8, "power_law_1.001", 8).busiest(tokens)[0][0], rel=1e-2
    )


def test_an_uneven_load_takes_longer():
    model, gpu = MODELS["Qwen3-30B-A3B"], find_gpu("h200-sxm")
    times = [
        predict(kernels(model, prefill(1024), expert_load=load), gpu).query("kind == 'grouped_gemm'")["time_s"].sum()
        for load in (0, 0.5, "power_law_1.2")
    ]
    assert times[0] < times[1] and times[0] < times[2] < 3 * times[0]


# ---- the frame, workloads, what is refused


@pytest.mark.parametrize("name", NAMES)
def test_frame(name):
    work = join([prefill([1, 17], 2), decode([0, 40], 3), chunk([9, 0], [0, 9], 2, 5)])
    frame = kernels(MODELS[name], work, Parallel(tensor=2, pipeline=2, expert=1))
    sizes = frame.select_dtypes("number")
    assert (sizes.dtypes == np.int64).all() and len(sizes.columns) == 21
    assert frame["shape"].is_monotonic_increasing and set(frame["shape"]) == set(range(6))
    assert (frame[["count", "devices", "batch", "m", "n", "k"]] > 0).all(axis=None)
    assert (sizes.drop(columns="layers") >= 0).all(axis=None)
    traffic = frame[["weight_bytes", "read_bytes", "write_bytes", "cache_bytes"]].sum(axis=1)
    assert (traffic > 0).all()
    assert frame["phase"].astype(str).tolist() == [
        ["prefill", "decode", "chunked_prefill"][shape // 2] for shape in frame["shape"]
    ]
    gemm = frame[frame["kind"] == "gemm"]
    assert (gemm["macs"] == gemm["batch"] * gemm["m"] * gemm["n"] * gemm["k"]).all()
    grouped = frame[frame["kind"] == "grouped_gemm"]
    assert (grouped["macs"] <= grouped["batch"] * grouped["m"] * grouped["n"] * grouped["k"]).all()
    assert (frame.loc[~frame["kind"].isin([*GEMM, "attention"]), "macs"] == 0).all()
    assert ((frame["comm_bytes"] > 0) == (frame["kind"] == "collective")).all()


def test_workloads_that_are_refused():
    for make, message in (
        (lambda: prefill(0), "prompt_tokens"),
        (lambda: prefill([1.5]), "not a whole number"),
        (lambda: prefill([1, 2], [1, 2, 3]), "different lengths: prompt_tokens 2, batch 3"),
        (lambda: decode(-1), "not within 0"),
        (lambda: decode(2**40), "not within 0"),
        (lambda: prefill(2**31, 2), "more than 2147483648 new tokens"),
        (lambda: chunk(0, 5), "has no new token"),
        (lambda: mixed([0, 2], [1, 1], [0, 0]), "shape 1 has no new token"),
        (lambda: prefill([]), "the list is empty"),
        (lambda: join([]), "no workloads to join"),
    ):
        with pytest.raises(InputError, match=message):
            make()


def test_what_cannot_be_split_is_refused():
    llama, mixtral = MODELS["Llama-3.1-8B"], MODELS["Mixtral-8x7B-v0.1"]
    for make, message in (
        (lambda: kernels(llama, decode(1), Parallel(tensor=3)), r"query heads \(32\) cannot be split evenly over 3"),
        (lambda: kernels(llama, decode(1), Parallel(tensor=12)), "8 key/value heads for 12 devices; use a divisor of"),
        (lambda: kernels(llama, decode(1), Parallel(pipeline=33)), "33 stages for 32 layers"),
        (lambda: kernels(mixtral, decode(1), Parallel(expert=16)), "8 experts for 16 devices"),
        (lambda: Parallel(tensor=4, expert=6), "neither a divisor nor a multiple"),
        (lambda: Parallel(tensor=0), "not a number of devices"),
        (lambda: Parallel(tensor=True), "not a number of devices"),
        (lambda: kernels(llama, decode(1), fused={"qvk"}), "unknown fusion: qvk"),
        (lambda: kernels(mixtral, decode(1), expert_load=[1, 2]), "2 weights for 8 experts"),
        (lambda: kernels(mixtral, decode(1), expert_load=-1), "not an expert load"),
        (lambda: kernels(mixtral, decode(1), expert_load="power_law_0"), "not an expert load"),
        (lambda: kernels(mixtral, decode(1), expert_load=[1] + [0] * 7), "fewer than 2 experts"),
        (lambda: kernels(llama, prefill(2**30, 2)), "2\\^63"),
    ):
        with pytest.raises(InputError, match=message):
            make()
