"""Laws of linear attention and SSMs: known answers, growth with the shapes, and which kernels a pass takes."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.constants.fit_gemm import HOST_BOUND_S
from gpuledger.models.time_model.constants.table import read_table, transferred
from gpuledger.models.time_model.kernels import BOUNDS, KernelConstants, kernel_times
from gpuledger.models.time_model.recurrent_law import (
    CHUNKED_START,
    CONVOLUTION_START,
    UPDATE_START,
    chunked_flop,
    chunked_terms,
    convolution_bytes,
    convolution_terms,
    update_bytes,
    update_terms,
)
from gpuledger.models.transformer import Parallel, chunk, decode, kernels, prefill, read_model
from gpuledger.readers.gpus import find_gpu

H100, A100 = find_gpu("h100-sxm"), find_gpu("a100-sxm-80gb")
QWEN = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 64,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "torch_dtype": "bfloat16",
}


def arrays(**values):
    shapes = {"requests": 1, "tokens": 1, "key_heads": 16, "heads": 64, "key_dim": 128, "value_dim": 128}
    shapes |= {"decays": 64, "read_state_bytes": 4, "written_state_bytes": 4, "channels": 12288, "span": 4}
    columns = {name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in (shapes | values).items()}
    length = max(map(len, columns.values()))
    return {name: np.broadcast_to(value, length) for name, value in columns.items()}


def test_a_large_update_takes_the_time_of_reading_and_writing_its_states():
    shapes = arrays(requests=1024)
    states = 1024 * 64 * 128 * 128
    values = 1024 * (2 * 16 * 128 + 2 * 64 * 128 + 64) * 2
    assert update_bytes(shapes) == pytest.approx(states * 8 + values)
    terms = update_terms(H100, UPDATE_START, shapes)
    expected = 4e-6 + (states * 8 + values) / (0.8 * H100.dram_bytes_per_s)
    assert terms["time_s"][0] == pytest.approx(expected, rel=1e-3)
    assert terms["dram_s"][0] > 100 * terms["l2_s"][0]
    # Of a draft of four tokens, one state is read and four are written.
    assert update_bytes(arrays(requests=1024, tokens=4)) == pytest.approx(states * 4 * 5 + 4 * values)
    # A kernel that reads 16 bits and writes 32 moves three quarters of it.
    assert update_bytes(arrays(requests=1024, read_state_bytes=2)) == pytest.approx(states * 6 + values)


def test_a_small_update_comes_from_l2_unless_other_layers_lie_between():
    shapes = arrays(requests=2)
    alone, among = (update_terms(H100, UPDATE_START, shapes | {"layers": np.full(1, n)}) for n in (1.0, 32.0))
    assert alone["dram_s"] < 0.01 * alone["l2_s"] and among["dram_s"] > 10 * among["l2_s"]
    clock = H100.sms * H100.clock_hz
    assert alone["l2_s"] == pytest.approx(update_bytes(shapes) / (20 * clock), rel=0.01)
    assert among["time_s"] > alone["time_s"]


def test_a_convolution_moves_its_values_and_waits_for_the_tokens_of_a_block():
    assert convolution_bytes(arrays(requests=2, tokens=100)) == 2 * 12288 * (2 * 2 * 103 + 4)
    times = convolution_terms(H100, CONVOLUTION_START, arrays(tokens=[1, 4, 8]))["launch_s"]
    assert times == pytest.approx([2e-6 + 1e-7, 2e-6 + 4e-7, 2e-6 + 8e-7])
    channels = dataclasses.replace(CONVOLUTION_START, pattern="channels", block_s=1e-7)
    terms = convolution_terms(H100, channels, arrays(requests=3, tokens=[1, 1024, 1025]))
    # A block per channel and request, a round per 1024 tokens.
    assert terms["compute_s"] == pytest.approx(np.array([1, 1, 2]) * 3 * 12288 * 1e-7 / H100.sms)


def test_chains_of_chunks_run_in_whole_waves():
    constants = dataclasses.replace(CHUNKED_START, chunk_s=0.0, row_s=0.0, dram_share=1.0, stream_bytes_per_clock=1e9)
    one, full, more, long = chunked_terms(
        H100, constants, arrays(heads=[1, H100.sms, H100.sms + 1, 1], tokens=[64, 64, 64, 640])
    )["chain_s"]
    assert one == full == pytest.approx(4e-6) and more == pytest.approx(2 * one)
    assert long == pytest.approx(3e-6 + 10 * 1e-6)
    twice = dataclasses.replace(constants, resident=2)
    assert chunked_terms(H100, twice, arrays(heads=H100.sms + 1, tokens=64))["chain_s"] == pytest.approx(one)
    assert chunked_flop(arrays(tokens=64, heads=1)) == 2 * 64 * (3 * 128 * 128 + 64 * 5 * 128)


LAWS = (
    (convolution_terms, CONVOLUTION_START),
    (convolution_terms, dataclasses.replace(CONVOLUTION_START, pattern="channels")),
    (update_terms, dataclasses.replace(UPDATE_START, step_s=1e-6)),
    (chunked_terms, CHUNKED_START),
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LAWS),
    st.integers(1, 1024),
    st.integers(1, 2**15),
    st.integers(1, 64),
    st.sampled_from([H100, A100]),
)
def test_times_grow_with_requests_tokens_and_heads(law, requests, tokens, heads, gpu):
    terms, constants = law
    shapes = arrays(
        requests=[requests, requests + 1, requests, requests],
        tokens=[tokens, tokens, tokens + 1, tokens],
        heads=[heads, heads, heads, heads + 1],
        channels=np.array([heads, heads, heads, heads + 1]) * 128,
    )
    found = terms(gpu, constants, shapes)
    assert (found["time_s"] >= found["time_s"][0] * (1 - 1e-12)).all()
    assert all((np.asarray(term) >= 0).all() for term in found.values())
    parts = sum(term for name, term in found.items() if name != "time_s")
    assert (found["time_s"] <= parts * (1 + 1e-12)).all() and (found["time_s"] > constants.launch_s).all()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen") / "config.json"
    path.write_text(json.dumps(QWEN), "utf-8")
    return read_model(path)


def of(frame, name):
    rows = frame[frame["kernel"].astype(str) == name]
    assert len(rows) == 1, name
    return rows.iloc[0]


@pytest.mark.parametrize("engine", ["", "vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("gpu", ["h100-sxm", "b200", "h20-sxm", "l4"])
def test_a_pass_takes_the_constants_of_its_engine_and_gpu(qwen, engine, gpu):
    frame = kernel_times(kernels(qwen, chunk(2000, 0, 16, 3000)), find_gpu(gpu), KernelConstants(engine=engine))
    for name in ("delta_conv", "decode_delta_conv", "delta_rule", "decode_delta_rule"):
        row = of(frame, name)
        assert row["constants"].startswith(engine) and "KDA" not in row["constants"]
        assert ("update" in row["constants"]) == (name == "decode_delta_conv")
        assert ("transferred from" in row["constants"]) == (gpu in ("h20-sxm", "l4"))
        assert row["bound"] in BOUNDS and 1e-6 < row["launch_s"] < row["time_s"] < 1e-2
    # A state of 64 × 128 × 128 values in 32 bits is read and written: at least the time that DRAM takes.
    assert of(frame, "decode_delta_rule")["time_s"] > 16 * 64 * 128 * 128 * 8 / find_gpu(gpu).dram_bytes_per_s


def test_a_step_is_near_what_was_measured(qwen):
    """AIConfigurator's tables: vLLM 0.24.0 on an H100, 16 key and 64 value heads."""
    engine = KernelConstants(engine="vllm", weights_in_turn=1)
    for work, name, measured_s in (
        (decode(1000, 256), "decode_delta_rule", 721.3e-6),
        (decode(1000, 16), "decode_delta_rule", 50.0e-6),
        (prefill(4096, 4), "delta_rule", 408.5e-6),
        (prefill(4096, 4), "delta_conv", 358.7e-6),
    ):
        row = of(kernel_times(kernels(qwen, work), H100, engine), name)
        assert row["time_s"] == pytest.approx(measured_s, rel=0.08), name


def test_more_devices_and_fewer_requests_take_less_time(qwen):
    def times(work, tensor=1):
        frame = kernel_times(kernels(qwen, work, Parallel(tensor=tensor)), H100, KernelConstants(engine="sglang"))
        return frame[frame["kernel"].astype(str).str.contains("delta_(?:rule|conv)")]["time_s"].sum()

    assert times(decode(1000, 64), 4) < times(decode(1000, 64), 2) < times(decode(1000, 64))
    assert times(decode(1000, 32)) < times(decode(1000, 64)) < times(decode(1000, 64, 4))
    assert times(prefill(1000, 1)) < times(prefill(2000, 1)) < times(prefill(2000, 2))
    assert times(decode([1000, 100_000], 8)) == pytest.approx(2 * times(decode(1000, 8))), "the context costs nothing"


def test_candidates_leave_out_what_is_no_kernel_of_its_own():
    for kind, named in (("convolution", "_fn"), ("convolution", "update"), ("chunked_rule", ""), ("state_update", "")):
        for family in ("", "KDA "):
            found = choice.recurrent_candidates(kind, H100, "", family, named)
            assert found and all(entry.kernel.startswith("KDA ") == bool(family) for entry in found)
            assert all(entry.constants.launch_s < HOST_BOUND_S and named in entry.kernel for entry in found)
            assert not any("fused_kda_decode" in entry.kernel for entry in found)
    slow = [entry for entry in read_table("convolution") if entry.constants.launch_s > HOST_BOUND_S]
    assert slow and {entry.framework for entry in slow} == {"vllm"}, "vLLM's convolutions of Kimi-K3 run eagerly"


def test_constants_carry_over_by_cycles():
    entry = next(entry for entry in read_table("chunked_rule") if entry.gpu == "h100-sxm")
    found = transferred(entry.constants, H100, A100)
    slower = H100.clock_hz / A100.clock_hz
    for name in ("step_s", "block_s", "chunk_s"):
        assert getattr(found, name) == pytest.approx(slower * getattr(entry.constants, name), rel=1e-3)
    assert found.stream_bytes_per_clock == entry.constants.stream_bytes_per_clock


def test_drafts_and_ends_of_prompts_are_decoded_and_keep_a_state_for_every_token(qwen):
    one, four = (of(kernels(qwen, decode(1000, 8, n)), "decode_delta_rule") for n in (1, 4))
    state = 8 * 64 * 128 * 128 * 4
    assert one[["batch", "m", "k", "heads", "kv_heads", "choices"]].tolist() == [512, 1, 128, 64, 16, 64]
    assert one["write_bytes"] == state + 8 * 64 * 128 * 2 and four["write_bytes"] == 4 * one["write_bytes"]
    assert four["read_bytes"] - state == 4 * (one["read_bytes"] - state)
    frame = kernels(qwen, prefill([500, 5000], 2, [0, 4990]))
    assert set(frame.loc[frame["shape"] == 0, "kernel"]) >= {"delta_conv", "delta_rule"}
    assert set(frame.loc[frame["shape"] == 1, "kernel"]) >= {"decode_delta_conv", "decode_delta_rule"}
    convolution = of(kernels(qwen, chunk(2000, 0, 16, 3000)), "decode_delta_conv")
    assert (convolution["batch"], convolution["m"], convolution["n"], convolution["k"]) == (16, 1, 12288, 4)
    assert convolution["read_bytes"] == convolution["write_bytes"] == 16 * 4 * 12288 * 2
