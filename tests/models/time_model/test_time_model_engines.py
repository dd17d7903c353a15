"""Laws of engines' fused kernels: attention, mixture of experts and collectives, their fits and their table."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.models.time_model.attention import decode_splits, prefill_tiles
from gpuledger.models.time_model.attention.decode_law import RANGES as DECODE_RANGES
from gpuledger.models.time_model.attention.decode_law import START as DECODE_START
from gpuledger.models.time_model.attention.decode_law import DecodeConstants, decode_terms
from gpuledger.models.time_model.attention.prefill_law import START as PREFILL_START
from gpuledger.models.time_model.attention.prefill_law import PrefillConstants, prefill_terms
from gpuledger.models.time_model.collectives import START as LINK_START
from gpuledger.models.time_model.collectives import CollectiveConstants, bounds_of, collective_terms, sent_bytes, starts
from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.models.time_model.constants.table import ENGINES, KINDS, TABLE, read_table, transferred, unseen_constants
from gpuledger.models.time_model.kernels import KernelConstants, kernel_times
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import Parallel, Precision, decode, kernels, prefill, read_model
from gpuledger.readers.gpus import find_gpu

H100, A100 = find_gpu("h100-sxm"), find_gpu("a100-sxm-80gb")
PREFILL = PrefillConstants(1e-5, 0.0, 0.75, 1e9, 1.0)
DECODE = DecodeConstants(8e-6, 0.0, 1e9, 0.9, 2e-6, 0.0, 0.0)


def attention(**values):
    """Shapes of attention of a Llama-3.1-8B layer in 16 bit, with other values where given."""
    shapes = {"requests": 1, "tokens": 1, "context": 0, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    shapes |= {"value_bytes": 2, "cache_bytes": 2, "peak": H100.peak_flop_per_s("bf16")} | values
    arrays = {name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in shapes.items()}
    arrays["cache_values"] = 2.0 * arrays["head_dim"] * arrays["kv_heads"]
    length = max(map(len, arrays.values()))
    return {name: np.broadcast_to(value, length) for name, value in arrays.items()}


def test_a_long_prompt_runs_at_the_tensor_share():
    time_s = prefill_terms(H100, PREFILL, attention(tokens=65536))["time_s"][0]
    flop = 32 * 4 * 128 * 65536**2 / 2
    assert time_s == pytest.approx(flop / (0.75 * 989.4e12), rel=0.02)


def test_exponentials_bound_small_heads():
    slow = dataclasses.replace(PREFILL, exp_per_clock=8.0)
    found = [prefill_terms(H100, slow, attention(tokens=32768, head_dim=d))["time_s"][0] for d in (32, 64)]
    exponentials = 32 * 32768**2 / 2 / (8 * H100.sms * H100.clock_hz)
    assert found[0] == pytest.approx(exponentials, rel=0.03) and found[1] < 1.15 * found[0]


def test_a_window_makes_the_work_linear():
    times = prefill_terms(H100, PREFILL, attention(tokens=[32768, 65536, 131072], window=1024))["time_s"]
    assert times[2] / times[1] == pytest.approx(2, rel=0.05)
    whole = prefill_terms(H100, PREFILL, attention(tokens=[1024]))["time_s"]
    assert prefill_terms(H100, PREFILL, attention(tokens=[1024], window=1024))["time_s"] == whole


def test_cached_tokens_are_attended_to():
    # The second half of a prompt takes three quarters of the whole one's work.
    whole, half = (
        prefill_terms(H100, PREFILL, attention(**s))["compute_s"][0]
        for s in ({"tokens": 65536}, {"tokens": 32768, "context": 32768})
    )
    assert half / whole == pytest.approx(0.75, rel=0.02)


def test_packing_saves_blocks_of_short_prompts():
    shapes = attention(requests=256, tokens=[1, 16], heads=32, kv_heads=4)
    blocks = {}
    for packing in ("never", "one token", "always"):
        constants = dataclasses.replace(PREFILL, block_s=1e-6, packing=packing)
        blocks[packing] = prefill_terms(H100, constants, shapes)["block_s"]
    assert (blocks["never"] == 256 * 32 * 1e-6 / 132).all()
    assert (blocks["one token"] == blocks["never"] / [8, 1]).all()
    assert (blocks["always"] == blocks["never"] / 8).all()


def test_decode_of_many_requests_is_as_long_as_reading_the_cache():
    time_s = decode_terms(H100, DECODE, attention(requests=64, context=32767))["time_s"][0]
    cache = 64 * 32768 * 8 * 2 * 128 * 2
    assert time_s == pytest.approx(cache / (0.9 * 3.35e12), rel=0.03)
    # What L2 keeps is read faster, but not for nothing.
    small = decode_terms(H100, DECODE, attention(requests=4, context=1023))["dram_s"][0]
    assert pytest.approx(small, rel=0.05) == 4 * 1024 * 8 * 2 * 128 * 2 / (20 * 132 * 1.98e9)


def test_long_contexts_of_few_requests_are_split():
    slow = dataclasses.replace(DECODE, cache_bytes_per_clock=10.0, block_s=1e-6)
    one = decode_terms(H100, slow, attention(context=131071, heads=1, kv_heads=1))["time_s"][0]
    assert one < 131072 * 2 * 128 * 2 / (10 * 1.98e9) / 20


def test_heads_that_share_no_block_read_the_cache_again():
    shapes = attention(requests=64, context=8191, heads=32, kv_heads=1)
    rate = dataclasses.replace(DECODE, cache_bytes_per_clock=20.0)
    shared, own = (
        decode_terms(H100, dataclasses.replace(rate, packing=p), shapes)["time_s"][0] for p in ("always", "never")
    )
    assert own > 5 * shared


RULED = dataclasses.replace(
    DECODE, block_s=1e-6, packing="enough blocks", single_s=3e-6, single_bytes_per_clock=10.0, single_combine_s=5e-6
)


def test_tensorrt_llm_packs_heads_where_a_quarter_of_the_sms_has_a_block():
    shapes = attention(requests=[4, 5, 5, 5], context=63, heads=[32, 32, 512, 8])
    launch = decode_terms(H100, RULED, shapes)["launch_s"]
    # 8 KV heads of 4 requests are 32 blocks, of 5 requests 40, and 132 SMs; neither 64 heads each nor one are packed.
    assert launch == pytest.approx([11e-6, 8e-6, 11e-6, 11e-6])
    # A cache of fewer bits is XQA's, however few blocks there are; single heads are not.
    assert decode_terms(H100, RULED, shapes | {"cache_bytes": np.ones(4)})["launch_s"] == pytest.approx(
        [8e-6, 8e-6, 11e-6, 11e-6]
    )


def test_tensorrt_llm_splits_by_the_whole_context_behind_a_window():
    shapes = attention(requests=[64, 64, 16], context=[254, 65535, 65535], window=128)
    whole, twice, eight = decode_terms(H100, RULED, shapes)["block_s"]
    # 512 parts of 128 tokens are too many: of 64 requests two make eight blocks per SM, of 16 requests eight.
    assert twice == pytest.approx(2 * whole, rel=0.01) and eight == pytest.approx(twice, rel=0.01)
    # The new token belongs to the context.
    assert decode_splits.xqa_parts(H100, shapes | {"context": np.full(3, 255.0)}).tolist() == [2, 2, 2]
    # Hopper's kernel for an 8-bit cache counts the two tiles in the window: not more than two parts.
    narrow = shapes | {"cache_bytes": np.ones(3)}
    assert decode_splits.xqa_parts(H100, narrow).tolist() == [1, 2, 2]
    assert decode_splits.xqa_parts(A100, narrow)[2] > 2


def test_hoppers_xqa_fills_an_sm_with_wide_queries():
    # Rows are padded to eight: 8 heads of 256 are 2048 values, of which an SM holds two blocks, nine are 4096.
    few, many = (
        decode_terms(H100, dataclasses.replace(RULED, block_s=1e-5), attention(requests=2048, **sizes))["block_s"][0]
        for sizes in (
            {"heads": heads, "kv_heads": 1, "head_dim": 256, "cache_bytes": 1, "context": 0} for heads in (8, 9)
        )
    )
    assert many == pytest.approx(2 * few, rel=0.1)


def test_tensorrt_llm_splits_single_heads_until_each_sm_has_a_block():
    shapes = attention(requests=[1, 1, 1], context=[511, 131071, 131071], heads=[1, 1, 132], kv_heads=1)
    rounds, many, one = decode_terms(H100, RULED, shapes)["time_s"]
    token_s = 2 * 128 * 2 / (10.0 * 1.98e9)
    # One round of 512 tokens is not split, nor what fills the GPU; one head is, in 128 parts of 1024 tokens.
    assert rounds == pytest.approx(12e-6 + 512 * token_s, rel=0.02)
    # A block waits twice as long for what does not stay in L2.
    assert one == pytest.approx(12e-6 + 2 * 131072 * token_s, rel=0.2)
    assert many == pytest.approx(12e-6 + 5e-6 + 2 * 1024 * token_s, rel=0.2)


def test_parts_follow_the_rules_of_the_host_code():
    shapes = attention(requests=[1, 220, 1], context=[16383, 16383, 63], heads=8, kv_heads=1)
    found = {
        pattern: decode_splits.parts_of(pattern, H100, shapes, shapes["requests"]).tolist()
        for pattern in decode_splits.PATTERNS
        if pattern not in ("best", "flashinfer", "widened", "whole", "latent", "flash 3", "flash 3 ordered")
    }
    assert found == {
        # 128 tiles of 128 tokens on 264 places: 128 splits fill most; one tile is not split, nor what fills the GPU.
        "tiles": [128, 1, 1],
        "graph": [32, 32, 32],
        # 128 blocks and more fill the GPU without segments.
        "segments": [16, 1, 16],
        # 132 · log2(16384 / 64) / 220 requests are 5 splits; 64 tokens make two of 32.
        "splits": [8, 5, 2],
        "splits per SM": [256, 5, 2],
    }
    assert decode_splits.parts_of("best", H100, shapes, shapes["requests"]) is None
    one, windowed = (attention(requests=1, context=16383, **more) for more in ({"heads": 8}, {"window": 128}))
    assert all(decode_splits.parts_of("tiles", H100, s, np.array([8.0])) == [1] for s in (one, windowed))


def test_kernels_are_known_by_the_names_in_measurements():
    l40s = find_gpu("l40s")
    for kernel, gpu, precision, wanted in (
        ("triton", H100, "bf16/bf16", ("splits", 16)),
        ("MLA triton", l40s, "bf16/bf16", ("splits per SM", 16)),
        ("vllm_flash_attn_fa2", l40s, "bf16/bf16", ("tiles", 64)),
        ("vllm_flash_attn_fa3", H100, "bf16/bf16", ("flash 3 ordered", 64)),
        ("fa3", H100, "bf16/bf16", ("flash 3", 64)),
        ("vllm_flash_attn_fa4", H100, "bf16/bf16", ("graph", 64)),
        ("vllm_triton_attn", l40s, "bf16/fp8", ("segments", 64)),
        ("MLA default", A100, "bf16/bf16", ("whole", 64)),
        ("MLA default", H100, "bf16/bf16", ("best", 64)),
        ("MLA default", find_gpu("b200"), "bf16/fp8", ("latent", 64)),
        ("MLA default", find_gpu("rtx-pro-6000"), "bf16/fp8", ("whole", 64)),
        ("MLA flash_attention", H100, "bf16/fp8", ("widened", 64)),
        ("MLA flash_attention", H100, "bf16/bf16", ("best", 64)),
    ):
        assert decode_splits.pattern_of(kernel, gpu, precision) == wanted
    assert all(entry.constants.pattern in decode_splits.PATTERNS for entry in read_table("decode"))


def test_a_cache_that_is_widened_first_is_read_twice():
    shapes = attention(requests=64, context=131071, kv_heads=1) | {"cache_bytes": np.ones(1)}
    widened = dataclasses.replace(DECODE, pattern="widened", conversion_bytes=6.0)
    values_s = 64 * 131072 * 256 / (0.9 * H100.dram_bytes_per_s)
    narrow, wide = (decode_terms(H100, constants, shapes)["time_s"][0] for constants in (DECODE, widened))
    assert narrow - 8e-6 == pytest.approx(values_s, rel=0.1)
    assert wide - 8e-6 == pytest.approx((2 + 6) * values_s, rel=0.1)


def latent_time(gpu, pattern, requests, context, heads, cache_bytes=2, **constants):
    shapes = attention(requests=requests, context=context, heads=heads, kv_heads=1, head_dim=544)
    shapes |= {
        "cache_values": np.full_like(shapes["heads"], 576),
        "cache_bytes": np.full_like(shapes["heads"], cache_bytes),
    }
    none = DecodeConstants(1e-6, 0.0, 1e6, 1.0, 0.0, 0.0, 0.0, pattern=pattern)
    return decode_terms(gpu, dataclasses.replace(none, **constants), shapes)["time_s"] - 1e-6


def test_latent_attention_before_hopper_runs_in_waves_of_two_blocks_per_sm():
    # A request has two blocks for up to 64 heads, and four for 128: 108 SMs have 1, 2, 3 and 5 waves.
    constants = {"block_s": 1e-3, "step_s": 1e-4}
    times = latent_time(A100, "whole", [32, 128, 256, 256], 127, [16, 64, 64, 128], **constants)
    assert (times / 1.2e-3).tolist() == pytest.approx([1, 2, 3, 5], rel=0.01)
    # 64 blocks leave SMs of a pair free, 128 do not, and 256 share SMs; the rest of a wave that follows has none.
    steps = latent_time(A100, "whole", [16, 54, 108, 128], 63, 64, several_s=1e-3, split_s=1e-2)
    assert steps.tolist() == pytest.approx([0, 1e-3, 11e-3, 12e-3], abs=1e-4)
    # A cache in 8 bits is kept in 16.
    long = {"requests": 256, "context": 65535, "heads": 16}
    assert latent_time(A100, "whole", cache_bytes=1, **long) == latent_time(A100, "whole", **long)


def test_latent_attention_on_blackwell_has_a_kernel_for_few_heads_and_one_for_many():
    b200 = find_gpu("b200")
    # 148 SMs: 16 heads are one block, 32 two, 64 one of the other kernel, 128 a pair.
    waves = latent_time(b200, "latent", 1024, 0, [16, 32, 64, 128], block_s=1e-3) / 1e-3
    assert waves.round().tolist() == [7, 14, 7, 14]
    # Of 64 heads, four blocks of 16 per request, where all have their SM and 1,024 tokens each at most.
    rows = latent_time(b200, "latent", [37, 38, 37], [1023, 1023, 1024], 64, row_s=1e-3) / 1e-3
    assert rows.round().tolist() == [16, 64, 64]
    # Parts of at least 512 tokens, or 256; up to 16 of the first kernel are merged by their cluster.
    parts = latent_time(b200, "latent", [1, 2, 1, 64], [4095, 8191, 65535, 4095], [16, 16, 64, 64], split_s=1e-3) / 1e-3
    assert parts.round().tolist() == [8, 16, 148, 2]
    merged = latent_time(b200, "latent", [1, 2, 1, 148], [4095, 8191, 65535, 4095], [16, 16, 64, 64], combine_s=1e-3)
    assert (merged / 1e-3).round().tolist() == [0, 1, 1, 0]


def test_latent_attention_on_blackwell_computes_in_the_bits_of_its_cache():
    shapes = attention(requests=1024, context=16383, heads=[64, 128], kv_heads=1, head_dim=544)
    narrow = shapes | {"cache_bytes": np.ones(2)}
    latent = dataclasses.replace(DECODE, pattern="latent")
    wide_s, narrow_s = (decode_terms(find_gpu("b200"), latent, s)["compute_s"] for s in (shapes, narrow))
    assert (narrow_s / wide_s).tolist() == pytest.approx([0.5] * 2)
    # 64 heads leave half of the units' rows empty.
    assert wide_s[0] == pytest.approx(wide_s[1])


def test_flash_attention_4_always_has_32_parts_in_graphs_and_searches_its_request():
    shapes = attention(requests=[256, 512, 1024], context=0, heads=1, kv_heads=1, head_dim=128)
    graph = dataclasses.replace(DECODE, block_s=1e-6, combine_s=0.0, pattern="graph")
    fixed_s, search_s = np.array([256 * 32, 512 * 32, 1024]) / 132 * 1e-6, 1e-8 / 132
    searched_s = search_s * np.array([256 * 256 * 33, 512 * 512 * 33, 1024 * 1024])
    found = decode_terms(H100, graph, shapes)["time_s"] - 8e-6
    assert found == pytest.approx(fixed_s + searched_s, rel=0.1)


def test_flash_attention_3_has_the_tiles_of_its_host_code():
    shapes = attention(head_dim=[64, 128, 160, 256, 256], window=[0, 0, 128, 0, 128])
    assert decode_splits.tile_of("flash 3", shapes).tolist() == [192, 128, 96, 80, 64]
    narrow = shapes | {"cache_bytes": np.ones(5)}
    assert decode_splits.tile_of("flash 3 ordered", narrow).tolist() == [160, 160, 128, 128, 64]
    assert decode_splits.tile_of("segments", narrow).tolist() == [32] * 5
    assert decode_splits.tile_of("best", shapes).tolist() == [64] * 5


def test_flash_attention_3_combines_rows_where_vllm_orders_it_to_split():
    shapes = attention(requests=[512, 513], context=0)
    ordered = dataclasses.replace(DECODE, block_s=1e-6, split_s=1e-7, single_s=2e-6, pattern="flash 3 ordered")
    free = dataclasses.replace(ordered, pattern="flash 3")
    more = decode_terms(H100, ordered, shapes)["time_s"] - decode_terms(H100, free, shapes)["time_s"]
    # 512 requests of 32 rows, each head a block of its own here or one of four.
    blocks = 512 * 32 / {"always": 4, "never": 1}[DECODE.packing]
    assert more == pytest.approx([(512 * 32 * 1e-7 + blocks * 2e-6) / 132, 0])


def test_sglang_writes_unequal_keys_and_values_by_kernels_of_their_own():
    equal, unequal = (attention(head_dim=dim, requests=1) for dim in (159, 160))
    for pattern, more in (("flash 3", 6e-6), ("flash 3 ordered", 0), ("best", 0)):
        times = (
            decode_terms(H100, dataclasses.replace(DECODE, pattern=pattern), s)["time_s"] for s in (unequal, equal)
        )
        assert np.subtract(*times) == pytest.approx(more, abs=1e-7)
    for pattern, more in (("sglang flash 3", 6e-6), ("flash 3", 0)):
        times = (
            prefill_terms(H100, dataclasses.replace(PREFILL, pattern=pattern), s)["time_s"] for s in (unequal, equal)
        )
        assert np.subtract(*times) == pytest.approx(more, abs=1e-7)


def test_other_blocks_of_an_sm_hide_latency_in_triton_kernels():
    shapes = attention(requests=[1, 5280], context=4095, heads=8, kv_heads=1)
    splits = dataclasses.replace(DECODE, step_s=4e-6, several_s=1e-6, pattern="splits", query_tile=16)
    alone, crowded = decode_terms(H100, splits, shapes)["block_s"]
    # Eight parts of eight steps; 40 blocks of 64 steps on each SM.
    assert alone == pytest.approx(8 * 4e-6, rel=0.05) and crowded == pytest.approx(40 * 64 * 1e-6, rel=0.05)


def test_a_block_per_query_head_merges_parts():
    shapes = attention(requests=[1, 660], context=65535, heads=2, kv_heads=1)
    splits = dataclasses.replace(DECODE, combine_s=1e-6, split_s=1e-5, pattern="splits", query_tile=16)
    merged = decode_terms(H100, splits, shapes)["time_s"] - decode_terms(H100, DECODE, shapes)["time_s"]
    # Eight parts of a head; two parts each of ten heads on an SM.
    assert merged == pytest.approx([81e-6, 210e-6], rel=0.05)


def test_prefill_that_visits_all_tiles_takes_longer_behind_a_window():
    shapes = attention(tokens=[4096, 8192], window=128)
    visits = dataclasses.replace(PREFILL, step_s=1e-6)
    skipped, visited = (prefill_terms(H100, constants, shapes)["compute_s"] for constants in (PREFILL, visits))
    # Tiles of 128 queries see half of all tiles of 128 keys, for each of 32 heads.
    assert visited - skipped == pytest.approx([32 * n * (n + 1) / 2 / 132 * 1e-6 for n in (32, 64)])
    unwindowed = attention(tokens=4096)
    assert (
        prefill_terms(H100, visits, unwindowed)["time_s"] == prefill_terms(H100, PREFILL, unwindowed)["time_s"]
    ).all()


def test_prefill_tiles_follow_the_rules_of_the_host_code():
    l40s, b200 = find_gpu("l40s"), find_gpu("b200")
    shapes = attention(requests=1, tokens=[1, 4, 512, 512], heads=32, kv_heads=8, head_dim=[64, 128, 128, 256])
    windowed = attention(tokens=1, window=128)
    one = np.ones(4)

    def cut(pattern, gpu, s=shapes):
        return [array.tolist() for array in prefill_tiles.tiles_of(pattern, gpu, s, np.ones(len(s["tokens"])), 128)]

    assert cut("fixed", l40s) == [[128] * 4, [128] * 4, [1] * 4, [1] * 4]
    # One token without a window is packed; tiles of keys are those of decode.
    assert cut("flash 2", l40s) == [[64] * 4, [256, 128, 128, 64], [4, 1, 1, 1], [1] * 4]
    assert cut("flash 2", l40s, windowed)[2] == [1]
    assert cut("tensorrt", l40s) == cut("fixed", l40s)
    assert cut("tensorrt fp8", l40s) == [[128, 64, 64, 64], [128, 32, 32, 32], [1] * 4, [1] * 4]
    assert cut("vllm triton", l40s) == [[16] * 4, [32] * 4, [4] * 4, [1] * 4]
    assert cut("vllm triton", l40s, attention(heads=80, kv_heads=2))[0] == [64]
    assert cut("sglang triton", l40s)[:2] == [[64] * 4, [128, 128, 128, 64]]
    assert cut("sglang triton", H100)[:2] == [[128, 128, 128, 64], [64] * 4]
    assert cut("sglang triton", b200, attention(head_dim=512))[:2] == [[16], [64]]
    # 4 and 16 packed rows take tiles of 16, 2048 take 128, of wide heads 64. Of 100 KiB, two blocks have half each:
    # 18 KiB beside 128 queries are two steps of 8 KiB, and 18 KiB beside 64 wide ones is one of 16 KiB. On 35 places
    # of a KV head, 16 tiles have two parts each, but no part is shorter than 128 tokens.
    assert cut("flashinfer", l40s) == [[16, 16, 128, 64], [128, 64, 32, 16], [4] * 4, [1, 1, 2, 1]]
    assert cut("flashinfer", dataclasses.replace(l40s, shared_memory_bytes_per_sm=np.nan)) == cut("flashinfer", l40s)
    assert prefill_tiles.late("flash 2", attention(requests=2, tokens=1), 4 * one[:1]).all()
    assert not prefill_tiles.late("flash 2", attention(requests=1, tokens=1), 4 * one[:1]).any()
    assert prefill_tiles.late("flash 3", shapes, 4 * one).tolist() == [False, False, True, True]
    assert prefill_tiles.late("sglang triton", windowed, one[:1]).all()
    assert not prefill_tiles.late("sglang triton", shapes, one).any()
    for kernel, gpu, wanted in (
        ("flashinfer", l40s, "flashinfer"),
        ("flashinfer", b200, "fixed"),
        ("vllm_flash_attn_fa2", l40s, "flash 2"),
        ("fa3", H100, "sglang flash 3"),
        ("vllm_flash_attn_fa3", H100, "flash 3"),
        ("triton", H100, "sglang triton"),
        ("vllm_triton_attn", l40s, "vllm triton"),
        ("torch_flow", H100, "tensorrt"),
        ("torch_flow_flashinfer", b200, "fixed"),
    ):
        assert prefill_tiles.pattern_of(kernel, gpu, "bf16/fp8") == wanted
    assert prefill_tiles.pattern_of("torch_flow", l40s, "fp8/fp8") == "tensorrt fp8"
    assert prefill_tiles.pattern_of("torch_flow", H100, "fp8/fp8") == "tensorrt"
    assert all(entry.constants.pattern in prefill_tiles.PATTERNS for entry in read_table("prefill"))


def test_tensorrt_llm_writes_the_cache_with_a_block_for_each_query_head():
    shapes = attention(requests=8, tokens=4096, heads=[8, 32], kv_heads=8)
    each = [
        prefill_terms(H100, dataclasses.replace(PREFILL, pattern=pattern, row_s=1e-7), shapes)["time_s"]
        - prefill_terms(H100, dataclasses.replace(PREFILL, pattern=pattern, row_s=0.0), shapes)["time_s"]
        for pattern in ("fixed", "tensorrt")
    ]
    assert each[0] == pytest.approx([8 * 4096 * 1e-7 / H100.sms] * 2)
    assert each[1] == pytest.approx(each[0] * [8, 32])


def test_the_cache_of_a_prompt_is_written_by_a_kernel_of_its_own():
    shapes = attention(requests=8, tokens=4096, kv_heads=32)
    copied = {"copy_factor": 3.0, "row_s": 2e-7}
    found, plain = (
        prefill_terms(H100, dataclasses.replace(PREFILL, **more), shapes)["time_s"][0]
        for more in (copied, {"copy_factor": 0.0})
    )
    tokens = 8 * 4096
    bytes_s = tokens * 2 * 128 * 32 * (2 + 2) / H100.dram_bytes_per_s
    assert found - plain == pytest.approx(3 * bytes_s + tokens * 2e-7 / 132, rel=0.01)
    nothing = shapes | {"copied_values": np.zeros(1)}
    assert prefill_terms(H100, dataclasses.replace(PREFILL, **copied), nothing)["time_s"][0] == pytest.approx(plain)


def test_memory_overlaps_and_wide_heads_are_slower():
    shapes = attention(requests=64, tokens=512, head_dim=256)

    def time_s(**more):
        return prefill_terms(H100, dataclasses.replace(PREFILL, copy_factor=0.0, **more), shapes)["time_s"][0] - 1e-5

    alone = prefill_terms(H100, dataclasses.replace(PREFILL, copy_factor=0.0), shapes)
    compute_s, dram_s = alone["compute_s"][0], alone["dram_s"][0]
    assert time_s() == pytest.approx(compute_s + dram_s, rel=0.01)
    assert time_s(overlap=4.0) == pytest.approx((compute_s**4 + dram_s**4) ** 0.25, rel=0.01)
    assert time_s(wide_factor=0.5) == pytest.approx(2 * compute_s + dram_s, rel=0.01)
    assert time_s(widest_factor=0.5) == time_s()
    shapes = attention(requests=64, tokens=512, head_dim=512)
    assert time_s(wide_factor=0.5) == pytest.approx(8 * compute_s + 2 * dram_s, rel=0.01)
    assert time_s(widest_factor=0.5) == pytest.approx(4 * compute_s + 2 * dram_s, rel=0.01)


def test_two_sms_share_a_tile_of_the_widest_heads_on_data_centre_blackwell():
    """Of a single head, the last tile is alone: with two SMs it takes half as long; many tiles take as long."""

    alone = {"launch_s": 0.0, "block_s": 1e-12, "dram_share": 1e6, "copy_factor": 0.0, "exp_per_clock": 1e6}

    def widened(gpu, **shape):
        """What doubling heads of 256 does to the time of computing alone."""
        constants = dataclasses.replace(PREFILL, **alone)
        narrow, wide = (attention(tokens=8192, head_dim=dim, **shape) for dim in (256, 512))
        return prefill_terms(gpu, constants, wide)["time_s"] / prefill_terms(gpu, constants, narrow)["time_s"]

    for name, of_one in (("b200", 1.0), ("h100-sxm", 2.0), ("rtx-pro-6000", 2.0)):
        gpu = find_gpu(name)
        assert prefill_tiles.pattern_of("trtllm_mha", gpu) == PREFILL.pattern == "fixed"
        assert widened(gpu, heads=1, kv_heads=1)[0] == pytest.approx(of_one, rel=0.05), name
        assert widened(gpu, requests=64, heads=64, kv_heads=64)[0] == pytest.approx(2.0, rel=0.05), name


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 256),
    st.integers(1, 20000),
    st.sampled_from([1, 2, 8, 64]),
    st.sampled_from([64, 128, 256]),
    st.sampled_from([0, 128, 4096]),
)
def test_attention_takes_at_least_a_launch_and_more_for_more(requests, tokens, group, head_dim, window):
    shapes = {"requests": requests, "heads": 8 * group, "kv_heads": 8, "head_dim": head_dim, "window": window}
    for terms, constants, name in ((prefill_terms, PREFILL_START, "tokens"), (decode_terms, DECODE_START, "context")):
        once, twice = (
            terms(H100, constants, attention(**shapes, **{name: n}))["time_s"][0] for n in (tokens, 2 * tokens)
        )
        more = terms(H100, constants, attention(**shapes | {"requests": 2 * requests}, **{name: tokens}))["time_s"][0]
        assert constants.launch_s < once <= twice * (1 + 1e-9) and once <= more * (1 + 1e-9)


def test_a_fit_finds_the_constants_that_made_the_times():
    rng = np.random.default_rng(1)
    shapes = attention(
        requests=2 ** rng.integers(0, 9, 400),
        context=2 ** rng.integers(0, 15, 400),
        head_dim=rng.choice([64, 128], 400),
        heads=rng.choice([8, 16, 64], 400),
    )
    true = DecodeConstants(7e-6, 1.5e-6, 12.0, 0.8, 3e-6, 1e-6, 1e-7)
    times = decode_terms(A100, true, shapes)["time_s"]
    found = fit_law(
        lambda constants: decode_terms(A100, constants, shapes)["time_s"], DECODE_START, DECODE_RANGES, times
    )
    assert dataclasses.astuple(found)[:7] == pytest.approx(dataclasses.astuple(true)[:7], rel=0.02)


def test_short_messages_take_the_latency_and_long_ones_the_link():
    constants = CollectiveConstants(3e-6, 0.1, 8e-6, 0.4, 2e-5, 0.8, 1e-6)
    found = collective_terms(H100, constants, "all_reduce", np.array([256.0, 2.0**30]), np.array([8.0, 8.0]))
    assert found["time_s"][0] == pytest.approx(6e-6, rel=0.01)
    assert found["time_s"][1] == pytest.approx(2 * 7 / 8 * 2**30 / (0.8 * 450e9), rel=0.02)
    assert sent_bytes("all_gather", np.array([800.0]), np.array([8.0])) == [700.0]
    # In one shot everybody reads everything.
    shot = dataclasses.replace(constants, pattern="one shot", middle_s=1.0, long_s=1.0)
    assert collective_terms(H100, shot, "all_reduce", np.array([1e6]), np.array([8.0]))["link_s"] == pytest.approx(
        7e6 / 45e9
    )


def test_calls_without_a_graph_take_as_long_as_the_host_or_the_kernel():
    eager = CollectiveConstants(3e-6, 0.1, 8e-6, 0.4, 2e-5, 0.8, 1e-6, host_s=5e-5)
    found = collective_terms(H100, eager, "all_reduce", np.array([256.0, 2.0**30]), np.array([8.0, 8.0]))["time_s"]
    kernel = dataclasses.replace(eager, host_s=0.0)
    times = collective_terms(H100, kernel, "all_reduce", np.array([256.0, 2.0**30]), np.array([8.0, 8.0]))["time_s"]
    # Three doublings of the GPUs; the long message hides the host.
    assert found == pytest.approx([53e-6, times[1]], rel=0.01)
    begun = starts(LINK_START, "vLLM_custom_eager", 4e-5)
    assert {start.host_s for start in begun} == {4e-5} and "host_s" in bounds_of(begun[0])
    assert {start.host_s for start in starts(LINK_START, "vLLM_custom_graph", 4e-5)} == {0.0}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2**34), st.sampled_from(["all_reduce", "all_gather", "alltoall"]))
def test_collectives_grow_with_the_message_and_the_gpus(message, operation):
    sizes, devices = np.array([message, 2 * message, message], dtype=float), np.array([4.0, 4.0, 8.0])
    times = collective_terms(H100, LINK_START, operation, sizes, devices)["time_s"]
    assert times[0] <= times[1] and times[0] <= times[2]


def test_every_shipped_constant_is_within_its_meaning():
    for kind, of in KINDS.items():
        entries = read_table(kind)
        assert entries and all(isinstance(entry.constants, of) for entry in entries)
        for entry in entries:
            shares = {
                name: value for name, value in dataclasses.asdict(entry.constants).items() if name.endswith("_share")
            }
            # Of kernels of sparse attention, 0 stands for what one does not do.
            assert all(0 < share <= 1.5 or (kind, share) == ("sparse", 0) for share in shares.values()), entry
            assert entry.constants.source.startswith("fitted to ")


@pytest.mark.parametrize("gpu", ["b200", "gb200", "b300", "gb300"])
@pytest.mark.parametrize(
    ("kind", "precision"),
    [("gemm", "fp4"), ("prefill", "bf16/bf16"), ("decode", "bf16/fp8"), ("moe", "nvfp4"), ("collective", "all_reduce")],
)
def test_data_centre_blackwell_has_constants_of_its_own(gpu, kind, precision):
    for engine in ("trtllm", "vllm", "sglang"):
        found = choice.candidates(kind, find_gpu(gpu), (precision,), engine)
        own = [entry for entry in found if entry.constants.source.startswith("fitted")]
        assert {entry.framework for entry in own} == {entry.framework for entry in found} == {engine}
        assert kind == "moe" or own == list(found)
        assert not any("across nodes" in entry.kernel for entry in found)


@pytest.mark.parametrize(
    ("gpu", "engine", "kind", "head_dim", "kernels"),
    [
        # Measured with heads of 256 and 512 only, which others are predicted to be fastest with.
        ("b200", "trtllm", "prefill", 128, {"torch_flow"}),
        ("b200", "trtllm", "decode", 512, {"torch_flow_flashinfer"}),
        ("b200", "trtllm", "decode", 0, {"torch_flow", "torch_flow_flashinfer"}),
        # No default for other heads, but what vLLM and SGLang run on these.
        ("h100-sxm", "vllm", "prefill", 512, {"vllm_flash_attn_fa4"}),
        ("h100-sxm", "vllm", "prefill", 256, {"vllm_flash_attn_fa3"}),
        ("h100-sxm", "sglang", "decode", 512, {"triton"}),
        # Heads that nobody measured are between others.
        ("b200", "trtllm", "prefill", 96, {"torch_flow"}),
        ("b200", "trtllm", "prefill", 1024, {"torch_flow", "torch_flow_flashinfer"}),
        # Another GPU's kernels: those of an L40S.
        ("rtx-4090", "sglang", "prefill", 128, {"flashinfer"}),
    ],
)
def test_attention_takes_kernels_that_were_measured_with_such_heads(gpu, engine, kind, head_dim, kernels):
    found = choice.candidates(kind, find_gpu(gpu), ("bf16/bf16",), engine, shape=(float(head_dim),) if head_dim else ())
    assert {entry.kernel for entry in found} == kernels


@pytest.mark.parametrize(
    ("gpu", "engine", "precision", "shape", "kernels"),
    [
        # Mixtral-8x7B and Qwen3-30B-A3B run in different kernels of one engine.
        ("b200", "sglang", "bf16", (8, 4096, 2), {"sglang_fused_moe_triton"}),
        ("b200", "sglang", "bf16", (128, 2048, 8), {"sglang_flashinfer_trtllm_moe"}),
        # Nemotron's experts have no gate; no kernel is known for other models that nobody measured.
        ("h100-sxm", "trtllm", "bf16", (128, 2688, 6), {"moe_torch_flow_nongated"}),
        ("b200", "sglang", "bf16", (7, 4096, 2), {"sglang_fused_moe_triton", "sglang_flashinfer_trtllm_moe"}),
        # Served runs are a third faster than the kernel that was measured with DeepSeek-V3 there.
        ("b200", "trtllm", "fp8_block", (256, 7168, 8), None),
    ],
)
def test_experts_take_kernels_that_were_measured_with_such_a_model(gpu, engine, precision, shape, kernels):
    found = choice.candidates("moe", find_gpu(gpu), (precision,), engine, shape=tuple(map(float, shape)))
    names = {entry.kernel for entry in found}
    assert names == kernels if kernels else "deepgemm" not in names


@pytest.mark.parametrize(("engine", "kernel"), [("sglang", "triton"), ("trtllm", "moe_torch_flow_cutlass")])
def test_a_models_experts_are_those_that_its_engine_runs(engine, kernel):
    frame = kernels(read_model("Mixtral-8x7B-v0.1"), decode(8, 4096))
    found = kernel_times(frame, find_gpu("b200"), KernelConstants(engine))
    assert {kernel in words for words in found.loc[found["kind"] == "grouped_gemm", "constants"]} == {True}


def test_shapes_of_constants_are_numbers(tmp_path):
    table = pd.read_csv(TABLE, dtype=str, keep_default_na=False)
    table = table[table["kind"] == "decode"].head(1).assign(shapes="64 wide")
    table.to_csv(path := tmp_path / "constants.csv", index=False)
    with pytest.raises(InputError, match=r"line 2, column shapes: '64 wide' is no list of shapes"):
        read_table("decode", path)
    table.drop(columns="shapes").to_csv(path := tmp_path / "older.csv", index=False)
    assert read_table("decode", path)[0].shapes == ()


def test_experts_that_a_gpus_table_lacks_come_from_a_gpu_that_runs_the_same_code():
    """TensorRT-LLM's for few tokens in nvfp4 were measured on B200 and GB200; a GB300 runs them, a desktop does not."""

    def of(gpu):
        return {
            entry.kernel: entry.constants for entry in choice.candidates("moe", find_gpu(gpu), ("nvfp4",), "trtllm")
        }

    few = "moe_torch_flow_min_latency"
    assert of("gb200")[few].source.startswith("fitted")
    assert of("gb300")[few].source.startswith("transferred from") and few not in of("rtx-pro-6000")
    assert of("gb300").keys() == of("gb200").keys()


def test_tensorrt_llm_converts_before_each_product_with_scales_of_blocks():
    gpu = find_gpu("b200")
    of = {name: choice.gemm_entries(gpu, name, "trtllm")[0].constants for name in ("fp8", "fp8_block")}
    assert of["fp8_block"].conversion_bytes > 0 == of["fp8"].conversion_bytes


def test_experts_in_fp8_under_tensorrt_llm_are_those_of_the_other_engines():
    found = choice.candidates("moe", find_gpu("b200"), ("fp8_block",), "trtllm")
    assert {entry.framework for entry in found} == {"sglang", "vllm"}
    found = choice.candidates("moe", find_gpu("h200"), ("fp8_block",), "trtllm")
    assert {entry.kernel for entry in found} == {"moe_torch_flow_cutlass"}


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200"])
@pytest.mark.parametrize("model", ["Qwen3-30B-A3B", "Mixtral-8x7B-v0.1"])
def test_vllms_experts_in_fp8_on_hopper_are_not_those_of_modelopt(gpu, model):
    """These take three to six times as long; they run only where a checkpoint has static scales of whole tensors."""

    def experts_s(weights):
        frame = kernels(read_model(model), decode(2048, 64), precision=Precision(weights, "bf16", "bf16", "fp8"))
        found = kernel_times(frame, find_gpu(gpu), KernelConstants("vllm"))
        assert not found["constants"].astype(str).str.contains("modelopt").any()
        return found.loc[found["kind"] == "grouped_gemm", "time_s"].sum()

    assert 0.5 < experts_s("fp8") / experts_s("fp8_block128") < 1.5


def test_unseen_constants_come_from_another_gpu():
    entry = next(e for e in read_table("prefill") if e.gpu == "h100-sxm" and e.framework == "vllm")
    found = unseen_constants("prefill", H100, entry.kernel, entry.precision)
    assert found.source.startswith("transferred from h200-sxm: fitted to ")
    assert unseen_constants("prefill", H100, entry.kernel, "fp3/fp3") is None
    assert unseen_constants("prefill", H100, "unheard of", entry.precision) is None
    assert unseen_constants("gemm", H100, "unheard of", "bf16").source.startswith("transferred from h200-sxm")
    # Latencies are as many cycles; shares and launches stay.
    slow = transferred(entry.constants, H100, A100)
    assert slow.block_s == pytest.approx(entry.constants.block_s * 1980 / 1410, rel=1e-3)
    assert (slow.launch_s, slow.tensor_share) == (entry.constants.launch_s, entry.constants.tensor_share)


def test_tables_with_holes_are_refused(tmp_path):
    table = pd.read_csv(TABLE, dtype=str, keep_default_na=False)
    row = table.index[table["kind"] == "decode"][0]
    for column, cell, message in (
        ("packing", "", "packing of a decode kernel is missing"),
        ("launch_s", "-1", f"line {row + 2}"),
        ("gpu", "", f"line {row + 2}"),
        ("kind", "sort", "is not one of"),
    ):
        spoilt = table.copy()
        spoilt.loc[row, column] = cell
        spoilt.to_csv(tmp_path / f"{column}.csv", index=False)
        with pytest.raises(InputError, match=message):
            read_table("decode", tmp_path / f"{column}.csv")


def test_prompts_behind_a_cached_prefix_read_it():
    model, work = read_model("Llama-3.1-8B"), prefill(65536 + 17, cached_tokens=65536)
    row = predict(kernels(model, work), H100).query("kernel == 'attention'").iloc[0]
    token = 2 * 8 * 128 * 2
    assert row["dram_bytes"] == (65536 + 17) * token + 17 * 2 * 32 * 128 * 2
    # The law alone, with and without a cache to read; what writes the new keys into it is another kernel.
    shapes = {**attention(tokens=17, context=65536), "copied_values": np.zeros(1)}
    nothing = {**shapes, "cache_values": np.zeros(1)}
    read_s, other_s = (prefill_terms(H100, PREFILL, one)["time_s"][0] for one in (shapes, nothing))
    assert read_s - other_s == pytest.approx(65536 * token / H100.dram_bytes_per_s, rel=0.05)


def test_nvfp4_is_widened_where_the_gpu_has_no_fp4():
    model = read_model("Llama-3.1-8B")
    rows = kernels(model, prefill(8192), precision=Precision("nvfp4", operands="fp4"))
    on_hopper, on_blackwell = (predict(rows, find_gpu(name)) for name in ("h200-sxm", "b200"))
    assert "fp4" in set(on_blackwell["precision"]) and "fp4" not in set(on_hopper["precision"])
    # As with other weights of four bits and activations of 16.
    widened = predict(kernels(model, prefill(8192), precision=Precision("int4_g128")), find_gpu("h200-sxm"))
    times = [(frame["time_s"] * frame["count"]).sum() for frame in (on_hopper, widened)]
    assert times[0] == pytest.approx(times[1], rel=0.05)
    products = on_hopper[on_hopper["kind"] == "gemm"]
    assert (2 * products["macs"] / products["time_s"]).max() < find_gpu("h200-sxm").peak_flop_per_s("bf16")


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-30B-A3B"])
def test_fp8_on_a_gpu_without_it_saves_bytes_and_no_arithmetic(name):
    times = {}
    for formats in (Precision(), Precision("fp8", operands="fp8"), Precision("int4_g128")):
        rows = kernels(read_model(name), prefill(8192), precision=formats)
        found = predict(rows, find_gpu("a100"))
        assert set(found["precision"]) == {"bf16"}
        times[formats.weights] = (found["time_s"] * found["count"]).sum()
        # Kernels that widen weights were not measured, but for experts in four bits.
        widened = found[(found["weight_precision"] != "bf16") & (found["kind"] == "gemm")]
        assert widened["error_percent"].isna().all()
    assert times["fp8"] == pytest.approx(times["bf16"], rel=0.1)
    one = [
        (found["time_s"] * found["count"]).sum()
        for formats in (Precision(), Precision("fp8", operands="fp8"))
        for found in [predict(kernels(read_model(name), decode(1024, 64), precision=formats), find_gpu("a100"))]
    ]
    assert one[1] < 0.8 * one[0]


def test_an_engine_leaves_long_messages_to_its_library():
    constants = CollectiveConstants(3e-6, 0.5, 8e-6, 0.5, 2e-5, 0.5, 1e-6, own_bytes=2**23 - 1)
    times = collective_terms(H100, constants, "all_reduce", np.array([2.0**23 - 1, 2.0**23]), np.array([2.0, 2.0]))
    link = 2**23 / (0.5 * H100.link_bytes_per_s)
    assert times["time_s"] == pytest.approx([3e-6 + 1e-6 + link, 2e-5 + 4e-6 + link])
    limits = [start.own_bytes for start in starts(constants, "vLLM_custom_graph", 5e-6)]
    assert limits == sorted(limits) and set(limits) == {0.0, 2**23 - 1} and limits.count(0.0) == len(limits) / 2
    assert {start.own_bytes for start in starts(constants, "NCCL", 5e-6)} == {0.0}


def test_gpus_behind_pcie_switches_share_their_links():
    shared = CollectiveConstants(1e-9, 0.5, 1e-3, 0.5, 1e-3, 0.5, 1e-12, doubling=0.25)
    message, devices = np.full(4, 2.0**20), np.array([2.0, 4.0, 8.0, 16.0])
    link = collective_terms(H100, shared, "all_gather", message, devices)["link_s"]
    alone = collective_terms(H100, dataclasses.replace(shared, doubling=1.0), "all_gather", message, devices)["link_s"]
    assert link / alone == pytest.approx([1, 4, 16, 16])


@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp8_block"])
@pytest.mark.parametrize("name", ["h100-sxm", "b200", "gb300"])
def test_where_any_engine_may_compute_a_single_row_is_no_slower_than_64(name, precision):
    gpu = find_gpu(name)
    n, k = np.array([1280, 8192, 28672]), np.array([8192, 3584, 8192])
    one, many = (products_s(gpu, precision, rows, n, k) for rows in (1, 64))
    # DeepGEMM's rules on Hopper are slow for single rows: of an H100's measured shapes by up to 1.26, of every engine.
    assert (one <= (1.4 if (name, precision) == ("h100-sxm", "fp8_block") else 1.05) * many).all()


def products_s(gpu, precision, m, n, k, engine=""):
    """Return the times of products, in fp8_block or another precision."""
    m, n, k = np.broadcast_arrays(m, n, k)
    rows = pd.DataFrame({"kernel": "out_proj", "kind": "gemm", "batch": 1, "m": m, "n": n, "k": k, "macs": m * n * k})
    formats = {"precision": precision.removesuffix("_block"), "weight_precision": precision, "weight_bytes": n * k}
    return kernel_times(rows.assign(**formats), gpu, KernelConstants(engine, weights_in_turn=6))["time_s"].to_numpy()


@pytest.mark.parametrize(("name", "precision"), [("h100-sxm", "fp8_block"), ("h200-sxm", "fp8_block"), ("b200", "fp4")])
def test_where_any_engine_may_compute_no_engine_is_faster(name, precision):
    gpu = find_gpu(name)
    m, n, k = np.meshgrid([1, 16, 100, 1024, 1536, 4096], [1536, 4096, 7168], [2048, 4096, 7168])
    any_s = products_s(gpu, precision, m.ravel(), n.ravel(), k.ravel())
    for engine in ("trtllm", "sglang", "vllm"):
        assert (any_s <= 1.001 * products_s(gpu, precision, m.ravel(), n.ravel(), k.ravel(), engine)).all()


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "b200", "gb200"])
@pytest.mark.parametrize("work", [decode(1152, 64), prefill(1024)])
def test_where_any_engine_may_compute_spread_experts_no_engine_is_faster(name, work):
    rows = kernels(read_model("DeepSeek-V3"), work, Parallel(expert=32))
    experts = rows["kernel"].str.startswith("expert") | (rows["kernel"] == "router_topk")
    times = {engine: predict(rows, find_gpu(name), engine)[experts]["time_s"].sum() for engine in ("", *ENGINES)}
    assert times[""] <= 1.001 * min(times.values())


def test_gemms_of_one_library_are_those_of_one_engine():
    """The least of several fits of one kernel would be their errors'."""
    one = [("h100-sxm", "bf16"), ("gb200", "bf16"), ("h100-sxm", "fp8"), ("b200", "fp8_block"), ("l40s", "fp8_block")]
    assert {len(choice.gemm_entries(find_gpu(gpu), precision)) for gpu, precision in one} == {1}
    several = choice.gemm_entries(find_gpu("h100-sxm"), "fp8_block")
    assert {entry.framework for entry in several} == {"sglang", "trtllm"}
    assert [entry.framework for entry in choice.gemm_entries(find_gpu("h100-sxm"), "fp8_block", "sglang")] == ["sglang"]
