"""Matrix instructions in closed form: padded tiles summed independently, reasons where names say too little."""

from math import ceil

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.models.flop_prediction import predict_half_reduction, predict_tensor

CUBLAS = "ampere_fp16_s16816gemm_fp16_{}x{}_ldg8_f2f_stages_{}x5_tn"
WMMA = "void cutlass::Kernel<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_{}_tn_align8>(T1::Params)"
XMMA = "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize{}_stage4_warpsize2x2x1_tensor16x8x16_kernel"
CONVOLUTION = (
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_"
    "tilesize64x32x64_stage5_warpsize2x2x1_g1_tensor16x8x16_kernel"
)
FMHA = (
    "void fmha_fwd_loop_kernel<FMHA_kernel_traits<(int)128, (int)32, (int)16, (int)1, (int)4, (unsigned int)8, "
    "__half>, (bool)0>(FMHA_fprop_params)"
)
FLASH = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, (int)64, (int)4, (bool)0, (bool)0, "
    "cutlass::half_t, Flash_kernel_traits<(int)64, (int)128, (int)64, (int)4, cutlass::half_t>>, (bool)0>("
    "Flash_fwd_params)"
)


def predict(kernel, **columns):
    return predict_tensor(
        pd.DataFrame({"kernel": [kernel], **{name: [value] for name, value in columns.items()}})
    ).iloc[0]


@pytest.mark.parametrize(
    ("kernel", "blocks", "recorded", "steps"),
    [
        # Recorded on an A100: BERT's QKV projection, output projection with split-K, and its FlashAttention.
        (WMMA.format("32x32_128x2"), 48, 6144, 2),
        (WMMA.format("16x16_128x1"), 192, 3072, 1),
        (FMHA, 416, 2048, 32),
        # 64×2304×768 in tiles of 64×64: 2·M·N·K / 4096.
        (CUBLAS.format(64, 64, 64), 36, 55_296, 12),
        (XMMA.format("128x128x32"), 10, 10 * 256 * 7, 7),
        (CONVOLUTION, 5, 5 * 64 * 3, 3),
        (FLASH, 12, 12 * 3 * 128 * 64 * 64 // 1024, 36),
    ],
)
def test_counter_is_a_whole_number_of_steps(kernel, blocks, recorded, steps):
    found = predict(kernel, grid_blocks=blocks, tensor_instructions=recorded)
    assert found["tensor"] and found["exact"] and found["steps"] == steps and found["steps_source"] == "counter"
    wrong = predict(kernel, grid_blocks=blocks, tensor_instructions=recorded + 1)
    assert not wrong["exact"] and pd.isna(wrong["predicted"]) and "not a whole number" in wrong["explanation"]


@given(
    m=st.integers(1, 2000),
    n=st.integers(1, 2000),
    k=st.integers(1, 5000),
    split=st.integers(1, 8),
    batch=st.integers(1, 3),
    tile=st.sampled_from([(64, 64, 64), (128, 64, 32), (256, 128, 32)]),
)
def test_shapes_predict_padding_and_split_k(m, n, k, split, batch, tile):
    """Block by block: each of the grid's blocks multiplies a whole tile for its part of K, in whole steps."""
    tile_n, tile_m, tile_k = tile  # cuBLAS is column-major: the first number tiles the columns of the output
    tiles = batch * ceil(n / tile_n) * ceil(m / tile_m)
    chunk, expected = ceil(k / split), 0
    for part in range(split):
        length = min(chunk * (part + 1), k) - min(chunk * part, k)
        expected += tiles * ceil(length / tile_k) * (2 * tile_n * tile_m * tile_k) // 4096
    shape = {"m": m, "n": n, "k": k, "batch": batch, "grid_blocks": tiles * split}
    found = predict(CUBLAS.format(*tile), **shape, tensor_instructions=expected)
    assert found["predicted"] == expected and found["exact"] and found["steps_source"] == "shape"


def test_the_recorded_projections_follow_from_their_shapes():
    """40 tokens of width 256: into 768 in one part of K, into 256 in four parts of 64, each padded to 128."""
    found = predict(WMMA.format("32x32_128x2"), m=40, n=768, k=256, grid_blocks=48, tensor_instructions=6144)
    assert found["predicted"] == 6144 and found["exact"]
    found = predict(WMMA.format("16x16_128x1"), m=40, n=256, k=256, grid_blocks=192, tensor_instructions=3072)
    assert found["predicted"] == 3072 and found["exact"] and "split by 4" in found["explanation"]


@pytest.mark.parametrize(
    ("kernel", "columns", "reason"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_kernel", {}, "warpgroup"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", {}, "warpgroup"),
        ("fmha_cutlassF_f16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::Params)", {}, "tiles and head size"),
        ("volta_h884gemm_128x64_ldg8_nn", {}, "does not state the matrix instruction"),
        (CUBLAS.format(64, 64, 64), {}, "the grid is not recorded"),
        (CUBLAS.format(64, 64, 64), {"grid_blocks": 7, "m": 128, "n": 128, "k": 64}, "not made of 4 tiles"),
        (CUBLAS.format(64, 64, 64), {"grid_blocks": 36}, "4,608 instructions per step"),
    ],
)
def test_reasons_are_named(kernel, columns, reason):
    found = predict(kernel, **columns)
    assert found["tensor"] and pd.isna(found["predicted"]) and pd.isna(found["exact"])
    assert reason in found["explanation"]


def test_kernels_without_tensor_cores_are_none():
    assert not predict("ampere_sgemm_128x64_tn", tensor_instructions=0, grid_blocks=4)["tensor"]
    assert not predict("vectorized_elementwise_kernel", tensor_instructions=5, grid_blocks=4)["tensor"]


@pytest.mark.parametrize("value", [-1, 1.5, "many"])
def test_bad_counts_are_one_line(value):
    with pytest.raises(InputError, match="is not an integer"):
        predict(CUBLAS.format(64, 64, 64), grid_blocks=36, tensor_instructions=value)


def test_split_k_reduction_of_half_types():
    """Recorded on an A100: 10,240 outputs of four parts and a bias after a GEMM of 192 blocks."""
    assert predict_half_reduction(192, 10_240, 51_200) == (4, True)
    assert predict_half_reduction(192, 10_240, 40_960) == (4, False)
    assert predict_half_reduction(192, 10_240, 51_201) is None and predict_half_reduction(7, 100, 500) is None
