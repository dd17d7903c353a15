"""FLOPs from counters: weights, tensor cores, packed instructions, and everything that must not pass for zero."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.readers.ncu.flops import count_flops, counter

SGEMM = "ampere_sgemm_32x128_tn"
HGEMM = "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::sigmoid_kernel_cuda(float)>(int)"


def wide(kernel=SGEMM, unit="sm", **counters):
    """One launch; ``ffma=…`` is a thread counter, any other key a metric without unit."""
    columns = {}
    for key, value in counters.items():
        body = key if "_" in key else f"sass_thread_inst_executed_op_{key}_pred_on"
        columns[f"{unit}__{body}.sum"] = [value]
    return pd.DataFrame({"kernel": [kernel], **columns})


def one(**counters):
    return count_flops(wide(**counters)).iloc[0]


@pytest.mark.parametrize(
    ("counters", "column", "flops"),
    [
        ({"fadd": 7864320, "fmul": 10485760, "ffma": 1342177280}, "fp32_flops", 2702704640),
        ({"fadd": 2621070, "fmul": 0, "ffma": 9174358}, "fp32_flops", 20969786),
        ({"dadd": 1, "dmul": 10, "dfma": 100}, "fp64_flops", 211),
        ({"hadd": 1, "hmul": 10, "hfma": 100}, "fp16_flops", 422),
        ({"fadd": 1, "fmul": 10, "ffma": 100, "fadd2": 1000, "fmul2": 10000, "ffma2": 100000}, "fp32_flops", 422211),
    ],
)
@pytest.mark.parametrize("unit", ["sm", "smsp"])
def test_weights(counters, column, flops, unit):
    row = one(unit=unit, kernel="k<__half>", **counters)
    assert row[column] == flops
    assert row["total_flops"] == flops


def test_counts_stay_integers():
    table = count_flops(wide(fadd=2.0**40, fmul=1.0, ffma=2**61))
    assert table["fp32_flops"].dtype == "Int64"
    assert table["fp32_flops"][0] == 2**62 + 2**40 + 1
    assert {str(table[column].dtype) for column in table.columns if column != "note"} == {"Int64"}


@given(st.lists(st.tuples(*[st.integers(0, 2**50)] * 3), min_size=1, max_size=20))
def test_fp32_is_the_weighted_sum(rows):
    frame = pd.concat([wide(fadd=a, fmul=m, ffma=f) for a, m, f in rows], ignore_index=True)
    assert count_flops(frame)["total_flops"].tolist() == [a + m + 2 * f for a, m, f in rows]


def test_kinds_that_were_not_collected_are_unknown_and_named():
    row = one(fadd=1, fmul=2, ffma=3)
    assert pd.isna(row["fp64_flops"])
    assert pd.isna(row["tensor_flops"])
    assert row["total_flops"] == 9
    assert row["note"] == "not collected: fp64, fp16, tensor"


def test_an_incomplete_set_of_counters_is_unknown():
    row = one(ffma=3, dadd=0, dmul=0, dfma=0)
    assert pd.isna(row["fp32_flops"])
    assert pd.isna(row["total_flops"])
    assert "fadd, fmul not collected" in row["note"]
    frame = pd.concat([wide(fadd=1, fmul=2, ffma=3), wide(fadd=1, fmul=2, ffma=None)], ignore_index=True)
    assert count_flops(frame)["total_flops"].isna().tolist() == [False, True]


def test_no_flop_counter_at_all():
    with pytest.raises(InputError, match=r"a\.csv, metrics: no FLOP counter was collected; collect smsp__sass"):
        count_flops(pd.DataFrame({"kernel": [SGEMM], "gpu__time_duration.sum": [1.0]}), file="a.csv")


@pytest.mark.parametrize("value", [1.5, -1, "n/a"])
def test_a_counter_is_a_count(value):
    with pytest.raises(InputError, match=r"is not a count; give \.sum counters"):
        count_flops(wide(fadd=value, fmul=0, ffma=0))


def test_units_complete_each_other():
    frame = pd.concat([wide(unit="sm", ffma=1), wide(unit="smsp", ffma=2)], ignore_index=True)
    assert counter(frame, "ffma").tolist() == [1, 2]
    assert counter(frame, "fadd") is None


def test_constants_through_the_tensor_pipe_are_no_matrix_work():
    row = one(kernel=ELEMENTWISE, fadd=10, fmul=0, ffma=5, hadd=0, hmul=0, hfma=221184, inst_executed_pipe_tensor=6912)
    assert row["fp16_flops"] == 0
    assert row["tensor_flops"] == 0
    assert row["total_flops"] == 20
    assert "HFMA2.MMA constants" in row["note"]
    bare = one(kernel="vectorized_elementwise_kernel", fadd=10, fmul=0, ffma=5, hadd=0, hmul=0, hfma=221184)
    assert bare["fp16_flops"] == 0


def test_half_precision_arithmetic_is_counted():
    half = ELEMENTWISE.replace("float", "c10::Half")
    row = one(kernel=half, fadd=10, fmul=0, ffma=5, hadd=0, hmul=0, hfma=32, inst_executed_pipe_tensor=1)
    assert row["fp16_flops"] == 128
    assert row["tensor_flops"] == 0
    assert row["total_flops"] == 148
    assert one(kernel=ELEMENTWISE, fadd=1, fmul=0, ffma=5, hadd=2, hmul=0, hfma=32)["fp16_flops"] == 132


@pytest.mark.parametrize(("instructions", "m", "n", "k"), [(55_296, 64, 2304, 768), (18_432, 64, 768, 768)])
def test_matrix_instructions_of_a_known_shape(instructions, m, n, k):
    zeros = dict.fromkeys(("fadd", "fmul", "ffma", "hadd", "hmul", "hfma"), 0)
    row = one(kernel=HGEMM, inst_executed_pipe_tensor=instructions, **zeros)
    assert row["tensor_flops"] == row["total_flops"] == 2 * m * n * k
    assert "matrix instructions" in row["note"]


def test_a_tensor_core_kernel_is_never_silently_zero():
    for counters in ({}, {"ops_path_tensor_src_fp16_dst_fp32": 0}, {"inst_executed_pipe_tensor": 0}):
        row = one(kernel=HGEMM, fadd=1, fmul=2, ffma=3, **counters)
        assert pd.isna(row["tensor_flops"])
        assert pd.isna(row["total_flops"])
        assert row["fp32_flops"] == 9
        assert "tensor-core kernel without a usable tensor counter" in row["note"]
    # Volta's instruction has no fixed size per warp here, and an unnamed kernel has no known one.
    for kernel in ("volta_h884gemm_64x128_ldg8_nn", "my_kernel"):
        assert pd.isna(one(kernel=kernel, fadd=0, fmul=0, ffma=0, inst_executed_pipe_tensor=10)["total_flops"])


def test_operations_of_the_tensor_path_win_over_instructions():
    row = one(kernel=HGEMM, fadd=1, fmul=0, ffma=0, ops_path_tensor_src_fp16_dst_fp16=4096, inst_executed_pipe_tensor=7)
    assert (row["tensor_flops"], row["total_flops"]) == (4096, 4097)


@pytest.mark.parametrize(
    ("counters", "flops"),
    [
        ({"src_fp16_dst_fp32": 5, "src_bf16_dst_fp32": 7}, 12),
        ({"src_fp16_dst_fp32": 5, "src_fp16_dst_fp32_sparsity_on": 2, "src_fp16_dst_fp32_sparsity_off": 3}, 5),
        ({"src_fp16_dst_fp32_sparsity_on": 2, "src_fp16_dst_fp32_sparsity_off": 3}, 5),
        # Hopper: the total of a source type contains what HMMA and HGMMA executed.
        ({"src_bf16_dst_fp32": 9, "op_hmma_src_bf16_dst_fp32": 4, "op_hgmma_src_bf16_dst_fp32": 5}, 9),
        ({"op_hmma_src_bf16_dst_fp32": 4, "op_hgmma_src_bf16_dst_fp32": 5}, 9),
        ({"src_fp16": 9, "op_hmma_src_fp16": 4, "op_hmma_src_fp16_dst_fp16": 1, "op_hmma_src_fp16_dst_fp32": 3}, 9),
        ({"op_hmma_src_fp16": 4, "op_hmma_src_fp16_dst_fp16": 1, "op_hmma_src_fp16_dst_fp32": 3}, 4),
        ({"op_utcqmma_src_fp8_fp6_fp4_dst_fp32": 6}, 6),
    ],
)
def test_overlapping_tensor_counters_are_counted_once(counters, flops):
    row = one(
        kernel="nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", **{f"ops_path_tensor_{k}": v for k, v in counters.items()}
    )
    assert row["tensor_flops"] == row["total_flops"] == flops


def test_integer_operations_are_no_flops():
    row = one(kernel="ampere_i16832gemm_int8_128x128_tn", fadd=1, fmul=0, ffma=0, ops_path_tensor_src_int8=64)
    assert (row["tensor_int_ops"], row["total_flops"]) == (64, 1)


def test_transcendentals_are_apart():
    row = one(kernel=ELEMENTWISE, fadd=1, fmul=0, ffma=0, inst_executed_pipe_xu=3)
    assert (row["transcendental_ops"], row["total_flops"]) == (96, 1)
    assert "XU pipe" in row["note"]
    assert one(fadd=1, fmul=0, ffma=0, thread_inst_executed_pipe_xu=3)["transcendental_ops"] == 3
    assert pd.isna(one(fadd=1, fmul=0, ffma=0)["transcendental_ops"])


def test_names_may_come_apart_and_rows_keep_their_index():
    frame = wide(kernel=SGEMM, fadd=1, fmul=0, ffma=0).drop(columns="kernel").set_index(pd.Index([17]))
    assert pd.isna(count_flops(frame, [HGEMM]).loc[17, "total_flops"])
    assert count_flops(frame).loc[17, "total_flops"] == 1


def test_more_instructions_than_an_integer_holds_are_no_count():
    wide = pd.DataFrame({"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": [1.0, 3.3e24]})
    with pytest.raises(InputError, match=r"launch 1, metric smsp__.*fadd.*: 3\.3e\+24 is not a count"):
        counter(wide, "fadd")
