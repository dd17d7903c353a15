"""Predicted against counted instructions: published networks, held-out launches and 1,381 recorded Linear layers."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from conftest import MIRROR, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import reduced

from gpuledger.errors import InputError, InputWarning
from gpuledger.ledger.datasets import Repository
from gpuledger.models.flop_prediction import (
    linear_accuracy,
    linear_shapes,
    predict_gemm,
    predict_linear,
    predict_network,
    predict_split_k_reduce,
    predict_sum_reduction,
)

NETWORK = {"layers": 10, "hidden_dim": 1024, "tokens": 128}
# Published counters of the toy network, launches of a kernel added up.
PUBLISHED = pd.DataFrame(
    [
        ("forward", "ampere_sgemm_64x32_sliced1x4_nn", 7_864_320, 10_485_760, 1_342_177_280),
        ("forward", "splitKreduce_kernel", 2_621_440, 1_310_720, 0),
        ("forward", "vectorized_elementwise_kernel", 2_621_070, 0, 9_174_358),
        ("backward", "ampere_sgemm_32x128_tn", 0, 10_485_760, 1_342_177_280),
        ("backward", "cutlass_80_simt_sgemm_64x64_8x5_nt", 0, 9_437_184, 1_207_959_552),
        ("backward", "elementwise_kernel", 131_072, 262_144, 0),
        ("backward", "reduce_kernel", 207_344, 0, 0),
        ("backward", "splitKreduce_kernel", 9_437_184, 1_179_648, 0),
        ("backward", "vectorized_elementwise_kernel", 1_179_648, 2_359_296, 0),
    ],
    columns=["pass", "kernel", "fadd", "fmul", "ffma"],
)
LEGACY = "void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>, float const*)"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::copy_device_to_device(int)::{lambda()#3}>(int)"


def gemm(kernel, m, n, k, **columns):
    return predict_gemm(pd.DataFrame([{"kernel": kernel, "m": m, "n": n, "k": k, **columns}])).iloc[0]


XMMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize{}x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_{}__5x_cublas"
)
LARGE_K = "void sgemm_largek_lds64<{}>(float *, const float *, const float *, int, int, int)"


@pytest.mark.parametrize(
    ("kernel", "shape", "grid", "counted"),
    [  # as ncu counted them on an H200, and the last one on an A100
        (XMMA.format("128x32", "kernel"), (128, 3072, 768), (1, 96, 1), (0, 0, 302_383_104)),
        (XMMA.format("128x64", "kernel"), (128, 50257, 768), (1, 786, 1), (0, 0, 4_951_523_328)),
        (XMMA.format("128x128", "kernel"), (128, 50257, 3072), (1, 393, 2), (6_438_912, 0, 19_786_776_576)),
        (LARGE_K.format("1, 0, 5, 5, 4, 4, 4, 34"), (128, 768, 3072), (24, 4, 4), (0, 393_216, 302_383_104)),
        (LARGE_K.format("1, 0, 5, 5, 4, 4, 4, 34"), (64, 768, 3072), (24, 2, 5), (0, 245_760, 152_813_568)),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(T1::Params)",
            (128, 6144, 6144), (8, 3, 5), (0, 3_932_160, 4_835_770_368),
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(T1::Params)",
            (128, 1536, 6144), (16, 2, 11), (0, 2_162_688, 1_210_122_240),
        ),
        (LARGE_K.format("true, false, 6, 3, 4, 5, 2, 66"), (4, 4096, 25088), (64, 1, 16), (0, 524_288, 822_607_872)),
    ],
)  # fmt: skip
def test_kernels_of_newer_libraries(kernel, shape, grid, counted):
    blocks = grid[0] * grid[1] * grid[2]
    row = gemm(kernel, *shape, grid_blocks=blocks, grid=str(grid), ffma=counted[2])
    assert (row["fadd_predicted"], row["fmul_predicted"], row["ffma_predicted"]) == counted
    assert row["s"] == grid[2] and row["split_k_source"] == "grid"
    excess = [row[f"excess_{name}"] for name in ("padding", "alpha", "slices", "epilogue")]
    assert sum(excess) == row["flops_predicted"] - row["flops_2mnk"]
    assert "beyond 2·M·N·K" in row["explanation"] and "architecture" not in row["explanation"]


@pytest.mark.parametrize(
    ("kernel", "shape", "grid", "reduced", "ffma"),
    [  # counted on an H200, of backward passes
        (XMMA.format("64x64", "kernel").replace("_tn_", "_nn_"),
         (128, 1536, 1536), (2, 24, 5), True, 306_708_480),  # five parts of 312
        (XMMA.format("64x64", "kernel").replace("_tn_", "_nn_"),
         (128, 192, 50257), (2, 3, 66), True, 1_245_708_288),
        ("cutlass_80_simt_sgemm_256x128_8x4_nn_align1", (128, 3072, 50257), (8, 2, 11), True, 19_780_337_664),
        ("cutlass_80_simt_sgemm_128x128_8x4_nn_align1", (128, 384, 50257), (4, 1, 88), True, 2_487_484_416),
        ("cutlass_80_simt_sgemm_256x128_8x4_nn_align1", (128, 6144, 1536), (8, 3, 5), True, 1_207_959_552),
        ("cutlass_80_simt_sgemm_128x256_8x4_nt_align1", (768, 768, 1024), (24, 1, 7), True, 618_135_552),
        ("cutlass_80_simt_sgemm_256x128_8x4_nt_align1", (768, 3072, 2048), (48, 2, 5), False, 4_879_024_128),
    ],
)  # fmt: skip
def test_parts_of_k(kernel, shape, grid, reduced, ffma):
    blocks = grid[0] * grid[1] * grid[2]
    row = gemm(kernel, *shape, grid_blocks=blocks, grid=str(grid), followed_by_reduce=reduced, accumulates=False)
    assert (row["s"], row["ffma_predicted"]) == (grid[2], ffma)
    assert "not checked" not in row["explanation"]


def test_the_reduction_of_newer_kernels_multiplies_and_adds_in_one():
    reduction = predict_split_k_reduce(pd.Series([XMMA.format("64x64", "split_k_kernel")]), [131_072], [8]).iloc[0]
    assert reduction[["fadd_predicted", "fmul_predicted", "ffma_predicted"]].tolist() == [1_048_576, 0, 131_072]
    product = gemm(XMMA.format("64x64", "kernel"), 128, 1024, 1024, grid_blocks=256, followed_by_reduce=True)
    assert product[["fadd_predicted", "fmul_predicted", "ffma_predicted"]].tolist() == [0, 0, 128 * 1024 * 1024]


def test_a_reduction_that_adds_a_bias_says_so():
    name = "void cublasLt::splitKreduce_kernel<32, 16, int, {}, 0, float, float, float, 1, {}, 0, 0>(int)"
    for flag, sums in (("0", 6), ("1", 7)):
        kernel = pd.Series([name.format("float, float, float, float", flag)])
        assert predict_split_k_reduce(kernel, [24_576], [6])["fadd_predicted"][0] == sums * 24_576


NO_TILE = "", "1, 0", "1, 0, 5, 5", *(f"1, 0, {tile}, 5, 4" for tile in ("x", "12", "-1", "-5")), "1, 0, 99, 5, 4, 4"


@pytest.mark.parametrize("arguments", NO_TILE)
def test_a_large_k_without_a_tile_in_its_name_is_not_predicted(arguments):
    row = gemm(LARGE_K.format(arguments), 128, 768, 3072, grid_blocks=384, grid="(24, 4, 4)")
    assert row[["fmul_predicted", "ffma_predicted"]].isna().all() and not row["tiled"]
    assert "not a tiled" in row["explanation"]


# ----------------------------------------------------------------------------------------------- the toy network


def test_published_network_kernel_by_kernel():
    table = predict_network(PUBLISHED, **NETWORK)
    counted = table.set_index(["pass", "kernel"])
    inexact = counted.index[~counted["exact"]].tolist()
    assert inexact == [("forward", "vectorized_elementwise_kernel")]  # a data-dependent branch of the sigmoid
    activation = counted.loc[inexact[0]]
    assert activation["flops_predicted"] == 20_971_520
    assert activation["flops_predicted"] - activation["flops_counted"] == 1734
    assert table["s"].dropna().tolist() == [2, 1, 8]
    assert table["launches"].tolist() == [10, 10, 10, 10, 9, 1, 1, 9, 9]
    gemms = table[table["kernel_class"] == "gemm"]
    assert gemms["role"].tolist() == ["forward", "weight_gradient", "input_gradient"]
    assert gemms["split_k_source"].tolist() == ["counters"] * 3  # no grid in a published table, and said so
    assert gemms["launches_source"].tolist() == ["network"] * 3
    assert "1,835,008 FLOP (0.68%) beyond 2·M·N·K, split-K 2" in gemms["explanation"].iloc[0]


def test_published_totals():
    case = Repository.find(ROOT).dataset("published").case("flop_reconciliation", "toy_network")
    summary = reduced(case)
    expected = {
        "forward_gemm_flops": 2_702_704_640,
        "forward_split_k_flops": 3_932_160,
        "forward_activation_flops": 20_969_786,
        "forward_total_flops": 2_727_606_586,
        "forward_theoretical_gemm_flops": 2_684_354_560,
        "forward_theoretical_activation_flops": 1_310_720,
        "forward_theoretical_total_flops": 2_685_665_280,
        "backward_gemm_flops": 5_120_196_608,
        "backward_split_k_flops": 10_824_176,
        "backward_split_k_reduce_flops": 10_616_832,
        "backward_reduction_flops": 207_344,
        "backward_activation_flops": 3_932_160,
        "backward_total_flops": 5_134_952_944,
        "backward_theoretical_gemm_flops": 5_100_273_664,
        "backward_theoretical_activation_flops": 2_490_368,
        "backward_theoretical_total_flops": 5_102_764_032,
        "backward_predicted_total_flops": 5_134_952_944,
    }
    assert {key: summary[key] for key in expected} == expected
    assert summary["forward_epsilon_gemm"] == 14 / 2048
    assert summary["forward_rho"] == 3
    assert summary["forward_kappa"] == pytest.approx(14.9987, abs=5e-5)
    assert summary["backward_epsilon_gemm"] == pytest.approx(0.0039, abs=5e-5)
    assert summary["backward_rho"] == pytest.approx(4.3464, abs=5e-5)
    assert summary["backward_kappa"] == pytest.approx(0.5789, abs=5e-5)
    for phase in ("forward", "backward"):
        assert summary[f"{phase}_predicted_total_flops"] == pytest.approx(summary[f"{phase}_total_flops"], rel=1e-5)


def launch_by_launch(layers=3):
    """The same network as single launches with grids and without counters."""
    forward = ["ampere_sgemm_64x32_sliced1x4_nn", "splitKreduce_kernel", "vectorized_elementwise_kernel"] * layers
    backward = ["reduce_kernel"]
    for layer in range(layers):
        backward += ["vectorized_elementwise_kernel", "ampere_sgemm_32x128_tn"]
        backward += ["cutlass_80_simt_sgemm_64x64_8x5_nt", "splitKreduce_kernel"] if layer < layers - 1 else []
    rows = [("forward", name) for name in forward] + [("backward", name) for name in backward]
    grids = {forward[0]: 2 * 64, "ampere_sgemm_32x128_tn": 256, "cutlass_80_simt_sgemm_64x64_8x5_nt": 8 * 32}
    frame = pd.DataFrame(rows, columns=["pass", "kernel"])
    return frame.assign(grid_blocks=frame["kernel"].map(grids))


def test_single_launches_need_no_counters():
    network = {**NETWORK, "layers": 3}
    table = predict_network(launch_by_launch(), **network)
    assert table["flops_predicted"].notna().all()
    assert set(table.loc[table["kernel_class"] == "gemm", "split_k_source"]) == {"grid"}
    assert table["flops_counted"].isna().all()
    assert set(table.loc[table["kernel_class"] == "gemm", "from_counters"]) == {""}
    predicted = table.groupby(["pass", "kernel_class"])["flops_predicted"].sum()
    assert predicted["forward", "gemm"] == 3 * 270_270_464
    assert predicted["backward", "gemm"] == 5 * 269_484_032
    assert predicted["backward", "split_k_reduce"] == 2 * 9 * 131_072
    assert predicted["backward", "reduce"] == 207_344


def test_roles_by_layout_of_a_linear_layer():
    """y = x·Wᵀ is tn, its input gradient nn, its weight gradient nt, however often they are launched."""
    names = ["ampere_sgemm_32x32_sliced1x4_tn", "ampere_sgemm_64x64_nt", "ampere_sgemm_32x128_nn"]
    frame = pd.DataFrame({"pass": ["forward", *["backward"] * 2] * 4, "kernel": names * 4})
    table = predict_network(frame, layers=4, hidden_dim=256, tokens=40, activation="relu").head(3)
    assert table["role"].tolist() == ["forward", "weight_gradient", "input_gradient"]
    assert table["pad"].tolist() == [256 * 64, 256 * 256, 256 * 128]
    assert table["launches_source"].tolist() == ["given"] * 3


def test_an_elementwise_kernel_that_counts_nothing_is_no_activation():
    fill = pd.DataFrame([("forward", "vectorized_elementwise_kernel<Fill>", 0, 0, 0)], columns=PUBLISHED.columns)
    table = predict_network(pd.concat([PUBLISHED, fill], ignore_index=True), **NETWORK)
    assert table["flops_predicted"].notna().all()
    assert table["flops_predicted"].iloc[[2, 9]].tolist() == [20_971_520, 0]


def test_one_kernel_for_both_gradients_is_not_guessed():
    frame = pd.DataFrame({"pass": ["backward"], "kernel": ["ampere_sgemm_64x64_nt"], "ffma": [10**9], "fmul": [10**6]})
    row = predict_network(frame, **NETWORK).iloc[0]
    assert pd.isna(row["flops_predicted"])
    assert "input and weight gradient cannot be told apart" in row["explanation"]


def test_bias_and_other_activations():
    frame = launch_by_launch()
    network = {**NETWORK, "layers": 3}
    reduction = predict_network(frame, **network, bias=True).iloc[1]
    assert (reduction["fadd_predicted"], reduction["fmul_predicted"]) == (3 * 131_072, 131_072)
    for activation, flops in (("sigmoid", 16 * 131_072), ("relu", 0), ("identity", 0)):
        assert predict_network(frame, **network, activation=activation)["flops_predicted"][2] == flops


def test_network_input_errors():
    with pytest.raises(InputError, match="'zig' is not an integer"):
        predict_network(PUBLISHED.assign(fadd="zig"), **NETWORK)
    setup = pd.DataFrame(
        {"pass": ["setup"], "kernel": ["distribution_elementwise_grid_stride_kernel"], "fadd": [872_448]}
    )
    assert pd.isna(predict_network(setup, **NETWORK)["flops_predicted"][0])


# ------------------------------------------------------------------------------------------------ single launches


GPT2 = {"m": 64, "n": 768, "k": 768, "followed_by_reduce": True}


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        # GPT-2 attention, batch 2, 32 tokens, 768 wide, 12 heads (A100, split-K factor from the grid).
        (
            {"kernel": "ampere_sgemm_128x32_tn", **GPT2, "grid_blocks": 144},
            {"s": 12, "e": 0, "flops_predicted": 76_087_296, "fmul_predicted": 589_824, "split_k_source": "grid"},
        ),
        (
            {"kernel": "ampere_sgemm_64x32_sliced1x4_tn", **GPT2, "grid_blocks": 96},
            {"s": 4, "fmul_predicted": 786_432, "fadd_predicted": 589_824},
        ),
        # BERT: K = 20 is padded to 24. SAM: 7 to 8, and a bias through C is one more FFMA per output.
        (
            {"kernel": "ampere_sgemm_128x128_nn", "m": 40, "n": 64, "k": 20, "grid_blocks": 1},
            {"ffma_predicted": 24 * 128 * 128},
        ),
        (
            {"kernel": "ampere_sgemm_128x128_nn", "m": 7, "n": 64, "k": 7, "grid_blocks": 1},
            {"ffma_predicted": 8 * 128 * 128},
        ),
        (
            {"kernel": "ampere_sgemm_128x64_tn", "m": 64, "n": 128, "k": 256, "grid_blocks": 1, "accumulates": True},
            {"ffma_predicted": 257 * 128 * 64, "e": 1, "epilogue_source": "launches"},
        ),
    ],
)
def test_held_out_attention_launches(launch, expected):
    row = gemm(**launch)
    assert {key: row[key] for key in expected} == expected


def test_split_k_reductions():
    kernels = pd.Series(["splitKreduce_kernel", "splitKreduce_kernel", LEGACY, LEGACY])
    table = predict_split_k_reduce(kernels, [49_152] * 4, [12, 4, 3, 3], bias=[0, 1, 0, 1], accumulates=[0, 0, 0, 1])
    assert table["fadd_predicted"].tolist() == [12 * 49_152, 5 * 49_152, 4 * 49_152, 4 * 49_152]
    assert table["fmul_predicted"].tolist() == [49_152] * 4
    assert table["ffma_predicted"].tolist() == [0, 0, 0, 49_152]


def test_other_kernels_are_not_tiled():
    for name in ("gemmSN_TN_kernel_64addr", "gemv2T_kernel_val", "dot_kernel", "sgemm_largek_lds64"):
        row = gemm(name, 3, 5, 7, fmul=1)
        assert not row["tiled"]
        assert pd.isna(row["flops_predicted"])
        assert row["flops_2mnk"] == 210
        assert "not a tiled SIMT SGEMM kernel" in row["explanation"]
    assert not gemm("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn", 3, 5, 7, fmul=1)["tiled"]
    assert "not checked on such kernels" in gemm("volta_sgemm_128x64_nn", 3, 5, 7, split_k=1)["explanation"]


XMMA_TILE = "sm80_xmma_gemm_f32f32_f32f32_f32_{}_n_tilesize{}_stage3_ffma_aligna4_execute_kernel__5x_cublas"


@pytest.mark.parametrize("tile", ["", "128", "128x128", "0x128x8", "128x0x8", "128x128x0", "axbxc"])
def test_a_name_without_a_tile_predicts_nothing(tile):
    """A tile of 1 × 1 would have fitted any grid."""
    for shape in ((3, 5, 7), (None, None, None)):
        row = gemm(XMMA_TILE.format("tn", tile or "_"), *shape, grid_blocks=15)
        assert not row["tiled"] and pd.isna(row["fadd_predicted"]) and pd.isna(row["flops_predicted"])
    assert pd.isna(gemm("ampere_sgemm_0x64_tn", 3, 5, 7, grid_blocks=15)["flops_predicted"])


def test_layouts_that_no_recording_has_are_marked():
    said = {
        way: gemm(XMMA_TILE.format(way, "64x64x8"), 64, 64, 8, grid_blocks=1)["explanation"] for way in ("tn", "tt")
    }
    assert "not checked" not in said["tn"]
    assert "not checked on such kernels" in said["tt"]


@pytest.mark.parametrize(
    ("grid", "blocks", "s"),
    [
        ("(8, 1, 3)", 24, 3),
        ("(8,1,3)", 24, 3),
        ("(16, 1, 3)", 48, 3),  # swizzled
        ("(8, 1, 3)", 8, None),  # not the blocks of this grid
        ("(1, 1, 24)", 24, None),  # fewer blocks than tiles in x and y
        ("(8, 1, 0)", 24, 3),  # from here on no grid, so that the blocks tell
        ("(8, 1, 9999999)", 24, 3),
        ("(8, 1, -2)", 24, 3),
        ("8x1x2", 24, 3),
        (None, 24, 3),
    ],
)
def test_grids_of_cutlass(grid, blocks, s):
    row = gemm("cutlass_80_simt_sgemm_128x256_8x4_tn_align1", 128, 1024, 1024, grid_blocks=blocks, grid=grid)
    assert row["s"] == s if s else pd.isna(row["s"]) and pd.isna(row["flops_predicted"])


@pytest.mark.parametrize("columns", [["kernel"], ["kernel", "m", "n", "k", "grid_blocks", "grid"]])
def test_no_launch_is_no_row(columns):
    assert len(predict_gemm(pd.DataFrame(columns=columns))) == 0


def test_what_is_unknown_stays_unknown():
    kernel = "ampere_sgemm_32x128_tn"
    assert pd.isna(gemm(kernel, 8, 8, 8)["flops_predicted"])
    no_multiple = gemm(kernel, 256, 64, 8, grid_blocks=5)
    assert pd.isna(no_multiple["s"])
    assert "not a whole multiple" in no_multiple["explanation"]
    only_grid = gemm("ampere_sgemm_64x32_sliced1x4_nn", None, None, None, grid_blocks=10)
    assert (only_grid["fmul_predicted"], only_grid["fadd_predicted"]) == (10 * 2048 * 4, 10 * 2048 * 3)
    assert pd.isna(only_grid["ffma_predicted"])


@pytest.mark.parametrize(
    "bad", [{"m": 0}, {"n": 1.5}, {"k": "x"}, {"grid_blocks": -1}, {"m": 10**12}, {"split_k": 10**9}]
)
def test_impossible_launches(bad):
    with pytest.raises(InputError, match=r"^a\.csv, "):
        predict_gemm(pd.DataFrame([{"kernel": "ampere_sgemm_32x128_tn", "m": 8, "n": 8, "k": 8, **bad}]), file="a.csv")


TILES = st.sampled_from(
    [(32, 32, 4), (64, 32, 4), (128, 32, 1), (32, 128, 1), (64, 64, 1), (128, 64, 1), (128, 128, 1)]
)
SIZE = st.integers(1, 5000)


LAUNCH = st.tuples(TILES, SIZE, SIZE, SIZE, st.integers(1, 30), st.booleans(), st.booleans())


@settings(max_examples=10, deadline=None)
@given(st.lists(LAUNCH, min_size=20, max_size=60))
def test_closed_form_properties(drawn):
    launches, expected = [], []
    for (tile_m, tile_n, slices), m, n, k, s, reads_c, result in drawn:
        kernel = f"ampere_sgemm_{tile_m}x{tile_n}{f'_sliced1x{slices}' if slices > 1 else ''}_tn"
        tiles = -(-n // tile_m) * -(-m // tile_n)
        launches.append({"kernel": kernel, "m": m, "n": n, "k": k, "followed_by_reduce": result})
        launches[-1] |= {"grid_blocks": s * tiles, "accumulates": reads_c}
        # The reference, term by term.
        chunk, pad = -(-k // s), tiles * tile_m * tile_n
        steps = sum(-(-max(0, min(chunk, k - i * chunk)) // (8 * slices)) for i in range(s))
        e = 0 if result else s - 1 + reads_c
        expected.append((s, pad, e, pad * (steps * 8 * slices + e), s * pad * slices, s * pad * (slices - 1)))
    launches = pd.DataFrame(launches)
    table = predict_gemm(launches)
    columns = ["s", "pad", "e", "ffma_predicted", "fmul_predicted", "fadd_predicted"]
    assert list(table[columns].itertuples(index=False, name=None)) == expected
    parts = table[[f"excess_{part}" for part in ("padding", "alpha", "slices", "epilogue")]].sum(axis=1)
    assert (table["flops_predicted"] == table["flops_2mnk"] + parts).all()
    assert (table["flops_predicted"] > table["flops_2mnk"]).all()
    # Without the grid, the counters give the same split-K factor and epilogue back.
    counters = {op: table[f"{op}_predicted"] for op in ("fadd", "fmul", "ffma")}
    again = predict_gemm(launches.drop(columns=["grid_blocks", "accumulates"]).assign(**counters))
    assert (again["s"] == table["s"]).all() and (again["split_k_source"] == "counters").all()
    assert (again["flops_predicted"] == table["flops_predicted"]).all()


@given(st.integers(1, 2**30))
def test_reductions_need_at_least_one_addition_less_than_elements(elements):
    predicted = predict_sum_reduction(elements)
    assert elements - 1 <= predicted
    assert predicted <= elements + 3 * 512 * 2**13 * 8


def test_published_reduction():
    assert predict_sum_reduction(131_072) == 207_344
    for elements in (0, 2**31):
        with pytest.raises(ValueError, match="elements must be"):
            predict_sum_reduction(elements)


def test_thousands_of_launches_are_all_predicted():
    n, rng = 5000, np.random.default_rng(0)
    names = rng.choice(["ampere_sgemm_64x32_sliced1x4_nn", "ampere_sgemm_32x128_tn"], n)
    frame = pd.DataFrame({"kernel": names, "m": rng.integers(1, 4000, n), "n": 1024, "k": 777, "split_k": 2})
    assert predict_gemm(frame)["flops_predicted"].notna().all()


# ------------------------------------------------------------------------------------------------ Linear layers


def sequence():
    """Two Linear layers: bias copied into C with a split-K reduction; without bias, not split."""
    names = [COPY, "ampere_sgemm_128x32_tn", LEGACY, "ampere_sgemm_128x32_tn", "void gemv2T_kernel_val<int>(int)"]
    shapes = pd.DataFrame({"m": [64, 64, 1], "n": [768, 768, 9], "k": [768, 768, 9]})
    return pd.DataFrame({"kernel": names, "grid_blocks": [1, 144, 5, 12, 1]}), shapes


def test_launches_are_matched_in_order():
    launches, shapes = sequence()
    table = predict_linear(launches.astype({"kernel": "category"}), shapes)
    assert table["role"].tolist() == ["bias_copy", "gemm", "split_k_reduce", "gemm", "gemm"]
    assert table["shape"].tolist() == [pd.NA, 0, 0, 1, 2]
    assert table["s"].tolist()[1:4] == [12, 12, 1]
    assert table["e"].tolist()[1] == 0
    assert table["ffma_predicted"].tolist()[2] == 49_152  # beta = 1: the reduction reads C
    assert table["fadd_predicted"].tolist()[2] == 13 * 49_152
    assert table["exact"].isna().all()  # nothing was counted
    assert table["tiled"].tolist() == [False, True, False, True, False]
    accuracy = linear_accuracy(table)
    assert (accuracy["tiled_launches"], accuracy["reduce_launches"], accuracy["tiled_exact"]) == (2, 1, 0)
    assert np.isnan(accuracy["mape_predicted_percent"])


def test_a_copy_before_a_product_without_a_bias_is_another_kernel():
    launches, shapes = sequence()
    table = predict_linear(launches, shapes.assign(bias=[False, True, True]))
    assert table["role"].tolist() == ["other", "gemm", "split_k_reduce", "gemm", "gemm"]
    assert table["ffma_predicted"].tolist()[2] == 0  # the reduction does not read C
    assert predict_linear(launches, shapes.assign(bias=True)).equals(predict_linear(launches, shapes))


def test_without_shapes_names_and_grids_still_speak():
    table = predict_linear(sequence()[0])
    assert table["fmul_predicted"].tolist()[1] == 144 * 128 * 32
    assert table["ffma_predicted"].isna().all()


def test_a_wrong_number_of_shapes_is_an_error():
    launches, shapes = sequence()
    with pytest.raises(InputError, match=r"r\.csv, kernels: 3 matrix kernels but 2 shapes"):
        predict_linear(launches, shapes.iloc[:2], file="r.csv")
    unknown = launches.assign(kernel=launches["kernel"].str.replace("gemv2T_kernel_val", "frobnicate"))
    with (
        pytest.warns(InputWarning, match="no class is known for 1 kernel: frobnicate"),
        pytest.raises(InputError, match=r"2 matrix kernels but 3 shapes: .* \(no class is known for frobnicate\)"),
    ):
        predict_linear(unknown, shapes)


def test_shapes_as_recorded():
    entries = [
        {"Input": [[2, 3, 5]], "Weight": [[7, 5]], "Bias": [[7]]},
        {"Input": [[72, 17]], "Weight": [[17]], "Bias": []},
        {"Input": [[72, 17]], "Weight": [[17]], "Bias": [[False]]},
        {"Input": [[72, 17]], "Weight": [[17]], "Bias": [[1], 1]},
    ]
    shapes = linear_shapes(entries)
    expected = {"m": [6, 72, 72, 72], "n": [7, 1, 1, 1], "k": [5, 17, 17, 17], "bias": [True, False, False, True]}
    assert shapes.to_dict("list") == expected


@pytest.mark.parametrize(
    "entries",
    [
        {},
        [],
        "x",
        [{}],
        [None],
        [{"Input": [[2, 3]], "Weight": [[7, 5]]}],
        [{"Input": [[2, 0]], "Weight": [[7, 0]]}],
        [{"Input": [[2, 10**12]], "Weight": [[7, 10**12]]}],
        [{"Input": [[2, "3"]], "Weight": [[7, "3"]]}],
        [{"Input": [[2, 3]], "Weight": [[7, 3]], "Bias": 7}],
        [{"Input": [[[2], 10**18, 3]], "Weight": [[7, 3]]}],
    ],
)
def test_shapes_that_are_none(entries):
    with pytest.raises(InputError, match=r"^s\.json"):
        linear_shapes(entries, file="s.json")


@pytest.fixture(scope="module")
def recorded():
    """The A100 Linear set as (wide table, shapes), from the mirror of public data."""
    found = sorted((MIRROR / "raw.githubusercontent.com" / "leleucas").glob("**/nsight1381.csv.zip"))
    if not found:
        pytest.skip("the A100 Linear set is not here: set GPULEDGER_MIRROR to a mirror of the public data")
    with zipfile.ZipFile(found[0]) as archive, archive.open("nsight1381.csv") as file:
        columns = ["ID", "Kernel Name", "Metric Name", "Metric Value"]
        long = pd.read_csv(file, thousands=",", usecols=columns)
    wide = long.pivot_table(index="ID", columns="Metric Name", values="Metric Value")
    wide.insert(0, "kernel", long.drop_duplicates("ID").set_index("ID")["Kernel Name"])
    shapes = next(found[0].parent.glob("**/linear1381.json"))
    return wide, linear_shapes(json.loads(shapes.read_text()), file=shapes)


def test_every_recorded_launch_is_exact(recorded):
    wide, shapes = recorded
    table = predict_linear(wide, shapes)
    accuracy = linear_accuracy(table)
    assert {key: accuracy[key] for key in ("launches", "tiled_launches", "tiled_exact", "not_tiled_launches")} == {
        "launches": 2933,
        "tiled_launches": 1207,
        "tiled_exact": 1207,
        "not_tiled_launches": 174,
    }
    assert (accuracy["reduce_launches"], accuracy["reduce_exact"]) == (298, 298)
    assert accuracy["mape_predicted_percent"] == 0
    assert accuracy["mape_2mnk_percent"] == pytest.approx(19.3, abs=0.1)
    assert accuracy["median_2mnk_percent"] == pytest.approx(-3.4, abs=0.05)
    assert accuracy["worst_2mnk_percent"] == pytest.approx(-99.7, abs=0.05)
    tiled = table[table["tiled"]]
    assert set(tiled["split_k_source"]) == {"counters"}  # the recording has no grid
    assert set(tiled["epilogue_source"]) == {"launches"}  # a copy into C before, a reduction behind


def test_recorded_matrix_kernels_alone(recorded):
    """Without the copies in the file the epilogue is read off FFMA; FADD and FMUL are as before."""
    wide, shapes = recorded
    alone = wide[~wide["kernel"].str.contains("elementwise")]
    table = predict_linear(alone, shapes)
    accuracy = linear_accuracy(table)
    assert (accuracy["tiled_exact"], accuracy["reduce_exact"]) == (1207, 298)
    assert "counters" in set(table.loc[table["tiled"], "epilogue_source"])
    # A grid that the file could have had gives the same without any counter.
    s, area = table["s"].astype("Float64"), table["tile_m"] * table["tile_n"]
    grids = alone.filter(regex="^kernel$").assign(grid_blocks=(s * table["pad"] / area).astype("Int64").to_numpy())
    by_grid = predict_linear(grids, shapes)
    same = by_grid["fmul_predicted"] == table["fmul_predicted"]
    assert same[table["tiled"]].all()
    assert set(by_grid.loc[by_grid["tiled"], "split_k_source"]) == {"grid"}
