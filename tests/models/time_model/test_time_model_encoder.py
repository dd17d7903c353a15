"""Encoders' attention, quantisation kernels and latent products: known answers, properties, what tiles rules say."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.models.time_model import quantise
from gpuledger.models.time_model.attention import encoder_law, encoder_tiles, latent_products
from gpuledger.models.time_model.attention.encoder_law import EncoderConstants, encoder_terms
from gpuledger.models.time_model.constants.table import read_table
from gpuledger.models.time_model.gemms.law import gemm_plan
from gpuledger.models.time_model.quantise import QuantiseConstants, quantise_terms
from gpuledger.readers.gpus import find_gpu

A100, H100, B200, L40S = (find_gpu(name) for name in ("a100-sxm-80gb", "h100-sxm", "b200", "l40s"))
PEAK = H100.peak_flop_per_s("bf16")


def shapes(requests, tokens, heads, dim=64, peak=PEAK):
    sizes = {"requests": requests, "tokens": tokens, "heads": heads, "head_dim": dim, "value_bytes": 2, "peak": peak}
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value, dtype=float)) for value in sizes.values()))
    return dict(zip(sizes, arrays, strict=True))


def test_a_large_encoder_takes_the_products_of_all_pairs():
    constants = EncoderConstants(1e-6, 1e-12, 1.0, 1000.0, 1.0, 1.0)
    # 132 heads of 128 x 64 queries: whole rounds. A causal prompt would have half of the pairs.
    given_shapes = shapes(1, 8192, 132)
    flop = 4 * 132 * 8192**2 * 64
    assert encoder_terms(H100, constants, given_shapes)["time_s"] == pytest.approx(1e-6 + flop / PEAK, rel=1e-2)


def test_the_busiest_sm_decides():
    constants = EncoderConstants(1e-6, 1e-6, 0.5, 50.0, 0.7, 1.0)
    one, full, more = encoder_terms(H100, constants, shapes(1, 128, [1, 132, 133]))["compute_s"]
    assert one == full and more == pytest.approx(2 * full)
    alone = dataclasses.replace(constants, alone_share=0.5)
    assert encoder_terms(H100, alone, shapes(1, 128, 1))["compute_s"] == pytest.approx(2 * one)


@pytest.mark.parametrize(
    ("pattern", "gpu", "shape", "expected"),
    [
        # rows, keys, parts, merged
        ("flash 2", L40S, (1, 512, 16, 64), (128, 128, 1, 0)),
        ("flash 2", L40S, (1, 512, 16, 80), (128, 64, 1, 0)),
        ("flash 3", H100, (1, 64, 16, 64), (64, 192, 1, 0)),
        ("flash 3", H100, (1, 64, 16, 72), (192, 144, 1, 0)),
        # 96 blocks of 132 SMs and 6 tiles of keys: up to 4 parts (97 % of 3 waves); 2 keep a block at half the tiles.
        ("flash 3", H100, (1, 1024, 16, 64), (192, 192, 2, 1)),
        # Many requests are never cut, but merged as if they could be.
        ("flash 3", H100, (64, 1024, 16, 64), (192, 192, 1, 1)),
        ("flash 3", H100, (1, 1296, 16, 64), (192, 192, 1, 0)),
        ("flash 4", B200, (1, 128, 16, 64), (128, 128, 1, 0)),
        ("flash 4", B200, (1, 512, 1, 64), (256, 128, 1, 0)),
        # 8 blocks of 16 tiles of keys: 18 would fit the SMs, but there are 16.
        ("flash 4", B200, (1, 2048, 1, 64), (256, 128, 16, 1)),
        ("flash 4", B200, (1, 2048, 16, 64), (256, 128, 1, 0)),
        ("triton", L40S, (1, 512, 16, 64), (64, 64, 1, 0)),
        ("triton", B200, (1, 512, 16, 64), (128, 128, 1, 0)),
        ("fixed", H100, (1, 512, 16, 64), (96, 48, 1, 0)),
    ],
)
def test_tiles_follow_the_host_code(pattern, gpu, shape, expected):
    found = encoder_tiles.tiles_of(pattern, gpu, shapes(*shape), 96, 48)
    assert tuple(float(part[0]) for part in found[:4]) == expected


def test_names_say_whose_rules_hold():
    names = (
        *("vllm_vit_flash_attn_fa2 64", "flash_attention_v3 72"),
        *("vllm_vit_flash_attn_fa4", "triton 80", "torch_flow"),
    )
    assert [encoder_tiles.pattern_of(name) for name in names] == ["flash 2", "flash 3", "flash 4", "triton", "fixed"]
    assert len(encoder_law.starts([encoder_law.START] * 6, "torch_flow 64")) == 6
    (only,) = encoder_law.starts([encoder_law.START] * 6, "triton 64")
    start, bounds = encoder_law.started(only)
    assert start.together == 2.0 and "together" in bounds and "merge_s" not in bounds


def test_heads_at_once_need_all_of_their_keys_in_l2():
    constants = EncoderConstants(1e-6, 1e-9, 0.5, 200.0, 0.8, 1.0, pattern="triton")
    small, large = shapes(1, 8192, 16, peak=L40S.peak_flop_per_s("bf16")), shapes(16, 8192, 16)
    large["peak"] = small["peak"]
    ratio = encoder_terms(L40S, constants, large)["time_s"] / encoder_terms(L40S, constants, small)["time_s"]
    assert ratio > 1.5 * 16, "33 MB of keys and values stay in L2, 537 MB do not"
    queries_first = dataclasses.replace(constants, pattern="fixed", query_tile=64, key_tile=64)
    steady = encoder_terms(L40S, queries_first, large)["time_s"] / encoder_terms(L40S, queries_first, small)["time_s"]
    assert steady < 1.1 * 16


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 64),
    st.integers(1, 65536),
    st.integers(1, 32),
    st.sampled_from([64, 72, 80]),
    st.sampled_from(encoder_tiles.PATTERNS),
    st.sampled_from([A100, H100, B200, L40S]),
)
def test_encoders_take_longer_with_more_of_everything(requests, tokens, heads, dim, pattern, gpu):
    constants = EncoderConstants(5e-6, 1e-6, 0.5, 30.0, 0.7, 0.9, pattern=pattern, merge_s=4e-6, merge_row_s=1e-9)
    base = shapes(requests, tokens, heads, dim)
    time_s = encoder_terms(gpu, constants, base)["time_s"]
    assert np.isfinite(time_s).all() and (time_s > 0).all()
    more = encoder_terms(gpu, constants, shapes(2 * requests, tokens, heads, dim))["time_s"]
    # Parts of the keys end where SMs are full: a kernel with fewer of them and no merging may be faster.
    assert more >= 0.999 * time_s if pattern in ("fixed", "flash 2", "triton") else more > 0.3 * time_s
    work = 4 * requests * heads * tokens**2 * dim / PEAK
    assert time_s >= work or gpu is not H100, "never faster than the peak"


def test_quantising_takes_rows_then_traffic():
    constants = QuantiseConstants(2e-6, 1e-7, 1e-12, 1e-12, 30.0, 3.5)
    rows, columns = np.array([1.0, 65536.0, 65536.0]), np.array([1.0, 1.0, 65536.0])
    of = {"tokens": rows, "columns": columns, "live_bytes": np.full(3, 3.0), "second_reads": np.zeros(3)}
    found = quantise_terms(H100, constants, of)["time_s"]
    assert found[0] == pytest.approx(2e-6, rel=0.01), "a launch"
    assert found[1] == pytest.approx(2e-6 + 65536 * 1e-7 / 132, rel=0.01), "rows of an SM"
    assert found[2] == pytest.approx(3.5 * 65536**2 / H100.dram_bytes_per_s, rel=0.01), "traffic"
    again = quantise_terms(H100, constants, of | {"second_reads": np.ones(3)})["time_s"]
    extra = 2 * 65536**2 / H100.dram_bytes_per_s
    assert (again[:2] == found[:2]).all() and again[2] - found[2] == pytest.approx(extra, rel=0.01), "138 MB in flight"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2**17), st.integers(1, 2**17), st.sampled_from([A100, H100, B200, L40S]))
def test_quantising_more_takes_longer(rows, columns, gpu):
    of = {"tokens": np.array([rows, 2 * rows, rows]), "columns": np.array([columns, columns, 2 * columns])}
    of = {name: values.astype(float) for name, values in of.items()}
    of |= {"live_bytes": np.full(3, 3.0), "second_reads": np.ones(3)}
    # DRAM must not be faster than L2.
    found = quantise_terms(gpu, dataclasses.replace(quantise.START, moved_bytes=6.0), of)["time_s"]
    assert np.isfinite(found).all() and found[1] >= found[0] > 0 and found[2] >= found[0]


def test_the_conversion_found_in_gemms_is_the_kernel_measured_alone():
    """Two laws, fitted to different tables of TensorRT-LLM's on an H100: fp8 GEMMs, and quantisation by itself."""
    (gemm,) = (
        entry.constants
        for entry in read_table("gemm")
        if (entry.gpu, entry.framework, entry.precision) == ("h100-sxm", "trtllm", "fp8")
    )
    (alone,) = (
        entry.constants
        for entry in read_table("quantise")
        if (entry.gpu, entry.framework, entry.kernel) == ("h100-sxm", "trtllm", "torch_ops dynamic")
    )
    rows, columns = np.array([4096, 16384]), np.full(2, 7168)
    within = gemm_plan(H100, gemm, rows, columns, columns, precision="fp8")["conversion_s"].to_numpy()
    of = {"tokens": rows.astype(float), "columns": columns.astype(float)}
    terms = quantise_terms(H100, alone, of | {"live_bytes": np.full(2, 3.0), "second_reads": np.zeros(2)})
    assert within == pytest.approx(terms["time_s"] - terms["launch_s"], rel=0.05)


def test_products_of_heads_are_a_batch():
    sizes = {"tokens": [64.0, 64.0], "columns": [512.0, 512.0], "depth": [128.0, 128.0], "heads": [1.0, 128.0]}
    of = {name: np.array(values) for name, values in sizes.items()}
    constants, bounds = latent_products.started(latent_products.START, "bf16")
    one, many = latent_products.product_terms(H100, constants, of, "bf16")["time_s"]
    assert constants.launch_s < one < many and "conversion_bytes" not in bounds
    fast = dataclasses.replace(constants, stream_bytes_per_clock=60.0)
    # 84 MB do not stay in L2, 9 MB do.
    wide = of | {"tokens": np.array([512.0, 4.0]), "heads": np.array([128.0, 64.0])}
    slow_s, fast_s = (latent_products.product_terms(H100, c, wide, "bf16")["time_s"] for c in (constants, fast))
    assert slow_s[0] == pytest.approx(fast_s[0], rel=0.02) and slow_s[1] > fast_s[1]
    narrow, bounds = latent_products.started(latent_products.START, "fp8")
    assert narrow.conversion_bytes > 0 and "conversion_row_s" in bounds
    assert (latent_products.product_terms(H100, narrow, of, "fp8")["time_s"] > 0).all()
