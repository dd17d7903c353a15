"""Kernel names: facts, classes, user patterns, hostile input."""

import re
import warnings

import pandas as pd
import pytest
import yaml
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.kernel_names import (
    OTHER,
    PATTERNS,
    classify,
    extend_patterns,
    labels,
    parse,
    short_name,
    template_arguments,
)

FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 64, 64, 4, 0, 0, "
    "cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<128, 64, 64, 4, cutlass::bfloat16_t>>, 0, 1>"
    "(pytorch_flash::Flash_fwd_params)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::copy_device_to_device(at::TensorIterator&, bool)"
    "::{lambda()#3}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2>>(int, float)"
)
SPLIT_K = "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, float, float, float, (bool)1>(T1 *)"

_NUMBERS, _POINTERS = ", ".join(["unsigned int"] * 17), ", ".join(["const void *"] * 5)
DOT_DO_O = (
    "void cudnn::compute_dot_do_o_specialized<1, 128>(const void *, const void *, void *, void *, "
    f"{_NUMBERS}, float, {_POINTERS}, bool, const void *, void *, const void *, {', '.join(['int'] * 9)})"
)
CONVERT_DQ = (
    f"void cudnn::convert_dq_to_16bits<1>(const void *, void *, {', '.join(['unsigned int'] * 10)}, "
    "const float *, const float *, const float *, float *, const void *, void *, void *, bool, bool)"
)


@pytest.mark.parametrize(
    ("name", "kernel_class", "tile", "slices", "transpose", "stages", "tensor_core"),
    [
        ("ampere_sgemm_64x32_sliced1x4_nn", "gemm", (64, 32, None), 4, "nn", None, False),
        ("ampere_sgemm_32x128_tn", "gemm", (32, 128, None), 1, "tn", None, False),
        ("volta_sgemm_128x64_nt", "gemm", (128, 64, None), 1, "nt", None, False),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn", "gemm", (64, 64, 64), 1, "tn", 5, True),
        ("ampere_s16816gemm_bf16_64x64_sliced1x2_ldg8_stages_64x6_nn", "gemm", (64, 64, 64), 2, "nn", 6, True),
        ("volta_h884gemm_64x128_ldg8_nn", "gemm", (64, 128, None), 1, "nn", None, True),
        ("cutlass_80_simt_sgemm_64x64_8x5_nt", "gemm", (64, 64, 8), 1, "nt", 5, False),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8>(T1::Params)",
            *("gemm", (64, 64, 32), 1, "tn", 6, True),
        ),
        (
            "void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(T1::Params)",
            *("gemm", (16, 16, 128), 1, "tn", 2, True),
        ),
        (
            "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
            *("gemm", (128, 128, 32), 1, "tn", 4, True),
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_execute_kernel",
            *("gemm", (256, 128, 8), 1, "nn", 3, False),
        ),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "gemm", (128, 256, 64), 1, "nn", 4, True),
        ("nvjet_sm100_tst_64x8_64x16_4x1_v_bz_TNN", "gemm", (64, 8, 64), 1, "tn", 16, True),
        (
            "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_sm100f",
            *("gemm", (128, 16, 256), 1, None, None, None),
        ),
        (
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80(MemEffAttention::AttentionKernel<float, arch::Sm80>::Params)",
            *("attention", (64, 64, None), 1, None, None, None),
        ),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "attention", (64, 64, None), 1, None, None, True),
        (FLASH, "attention", (None, None, None), 1, None, None, True),
        ("gemmSN_TN_kernel_64addr", "gemm", (None, None, None), 1, None, None, False),
        ("reduce_kernel", "reduce", (None, None, None), 1, None, None, False),
    ],
)
def test_facts(name, kernel_class, tile, slices, transpose, stages, tensor_core):
    fact = parse(name)
    assert fact.name == name
    assert fact.kernel_class == kernel_class
    assert (fact.tile_m, fact.tile_n, fact.tile_k) == tile
    assert (fact.slices, fact.transpose, fact.stages) == (slices, transpose, stages)
    assert fact.tensor_core is tensor_core


@pytest.mark.parametrize(
    ("name", "kernel_class"),
    [
        # The trap: a reduction of a tensor is no split-K reduction, and the other way round.
        ("reduce_kernel", "reduce"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, func_wrapper_t<float>>>(T3)", "reduce"),
        ("_ZN5aiter35fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_ps_32x512E", "gemm"),
        ("_ZN5aiter18pa_bf16_noquant_gqa8_1tg_4wE", "attention"),
        ("void wvSplitK_hf_sml_<__half, 64, 2, 16, 8, 2, 1>(int, int, __half const*)", "gemm"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("kernel_mha", "attention"),
        ("chunk_gated_delta_rule_fwd_kernel_h", "scan"),
        ("rcclGenericKernel", "communication"),
        ("splitKreduce_kernel", "split_k_reduce"),
        (SPLIT_K, "split_k_reduce"),
        ("reduce_1Block_kernel", "reduce"),
        ("vectorized_elementwise_kernel", "elementwise"),
        ("elementwise_kernel", "elementwise"),
        ("distribution_elementwise_grid_stride_kernel", "random"),
        (COPY, "copy"),
        ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>>(int, T2)", "fill"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>(float *)", "copy"),
        ("void <unnamed>::softmax_warp_forward<float, float, float, (int)8, (bool)0>(T2 *, const T1 *)", "softmax"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)", "norm"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(int)", "index"),
        ("void deep_ep::internode::dispatch<false, 4>(int4*)", "communication"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(int)", "cache"),
        ("void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<int> >(int)", "moe"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN", "gemm"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "rope"),
        ("fused_moe_kernel", "gemm"),
        ("void at::native::embedding_backward_kernel<float>(float *)", "embedding"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(int)", "gemv"),
        ("void gemv2T_kernel_val<int, int, float, (int)128>(T1)", "gemv"),
        ("void dot_kernel<float, 128, 0, cublasDotParams<float>>(float)", "gemv"),
        ("sgemm_largek_lds64", "gemm"),
        # Adds the bias after it: as an H200's cuBLAS 13.1 launched it, and under its other names.
        ("void epilogue::globalKernel<8, 32, float, float, float, 1, 1, 1>(int, int, long, T3 *)", "elementwise"),
        ("void cublasLt::epilogue::impl::globalKernel<8, 32, float, float, float, true, true, 1>(int)", "elementwise"),
        ("void cublasLt::globalKernel<8, 32, float>(int)", "elementwise"),
        ("void jacobi::globalKernel<8>(int)", "other"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "communication"),
        ("triton_poi_fused_add_mul_3", "elementwise"),
        ("triton_per_fused_native_layer_norm_0", "norm"),
        ("triton_red_fused_sum_1", "reduce"),
        ("triton_tem_fused_mm_0", "gemm"),
        ("void unnamed>::saxpy_kernel", "elementwise"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_T1_", "elementwise"),
        ("[CUDA memcpy HtoD]", "copy"),
        # llama.cpp's: a matrix product is no elementwise product, a broadcast no cast, a rotation no normalization.
        ("void mul_mat_q<(ggml_type)12, (int)64, (bool)0>(const char *, const int *)", "gemm"),
        ("void mul_mat_q_stream_k_fixup<(ggml_type)8, 16, false>(float*)", "gemm"),
        ("void mul_mat_vec_q<(ggml_type)14, 1, false, false>(void const*, int*)", "gemv"),
        ("void dequantize_mul_mat_vec<32, 1>(void const*)", "gemv"),
        ("void k_bin_bcast<&(op_add(float, float)), float>(float const*)", "elementwise"),
        ("void unary_gated_op_kernel<&(op_silu(float)), float>(float*)", "elementwise"),
        ("void rope_norm<true, false, float, __half>(float*)", "rope"),
        ("void cpy_scalar<&(void cpy_1_scalar<float, float>(char const*, char*))>(char*)", "copy"),
        ("void k_set_rows<float, long, __half>(float*)", "index"),
        ("void gated_delta_net_cuda<128>(float*)", "scan"),
        # What cuDNN launches before and after the gradient of attention, as recorded on an H100.
        (DOT_DO_O, "attention"),
        (CONVERT_DQ, "attention"),
        ("compute_dot_do_o", "attention"),
        # cuDNN's convolutions are called after what they fuse.
        ("volta_scudnn_128x64_relu_medium_nn_v1", "convolution"),
        ("turing_fp16_s1688cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "convolution"),
        # A tensor is not sorted by that it is transformed.
        ("void tensorTransformGeneric<float, float, float>(T1 *)", "copy"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(T1 *)", "copy"),
        ("gen_conv", "convolution"),
        ("__amd_rocclr_fillBufferAligned", "fill"),
        ("_chunk_state_fwd_kernel", "scan"),
        ("_bmm_chunk_fwd_kernel", "scan"),
        ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8, 16, 8>(int)", "attention"),
        ("void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<float, float>(float)", "moe"),
        ("void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<float, float>(float)", "moe"),
        ("void tensorrt_llm::kernels::threeStepBuildExpertMapsSortFirstTokenKernel<int>(int)", "moe"),
        ("userbuffers_fp16_sum_inplace_gpu_mc", "communication"),
    ],
)
def test_classes(name, kernel_class):
    assert classify([name]).tolist() == [kernel_class]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("void unnamed>::saxpy_kernel", "saxpy_kernel"),
        ("void <unnamed>::saxpy_kernel<(int)4>(float *)", "saxpy_kernel"),
        ("void at::native::(anonymous namespace)::f<float, (a > b)>(g<int>, h(int))", "f"),
        (COPY, "unrolled_elementwise_kernel"),
        (FLASH, "flash_fwd_kernel"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::Fill<float", "vectorized_elementwise_kernel"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>(T1::Params)",
            "cutlass_80_simt_sgemm_64x64_8x5_nt_align1",
        ),
        ("void f<&(float g<float>(float const&)), true>(float*) [clone .1]", "f"),
        ("_ZN12_GLOBAL__N_16kernelEv", "anonymous::kernel"),
        ("ampere_sgemm_32x128_tn", "ampere_sgemm_32x128_tn"),
    ],
)
def test_short_name(name, base):
    assert short_name(name) == base


def test_instruction_shapes():
    assert parse("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn").mma == (16, 8, 16)
    assert parse("turing_h1688gemm_128x128_ldg8_stages_32x1_nn").mma == (16, 8, 8)
    assert parse("ampere_sgemm_32x128_tn").mma is None


def test_template_arguments():
    assert template_arguments(SPLIT_K)[:3] == ["(int)32", "(int)16", "int"]
    assert template_arguments("void f<A<int, 2>, (int)4, g(int, int)>(float)") == ["A<int, 2>", "(int)4", "g(int, int)"]
    assert template_arguments("f(A<int>)") == []
    assert template_arguments("void f<a, b") == ["a", "b"]


def test_identity_is_the_full_name():
    one, other = (
        f"fmha_cutlassF_f32_aligned_64x64_rf_sm80(K<float, {space}::Sm80>::Params)" for space in ("arch", "cutlass")
    )
    assert parse(one).base == parse(other).base
    assert parse(one) != parse(other)


def test_classify_keeps_the_index_and_refuses_what_has_no_name():
    names = pd.Series(["reduce_kernel", "elementwise_kernel"], index=[7, 3])
    classes = classify(names)
    assert classes.index.tolist() == [7, 3]
    assert classes.tolist() == ["reduce", "elementwise"]
    assert classify([]).empty
    for empty in ("", "  ", None, float("nan")):
        with pytest.raises(InputError, match="no kernel name"):
            classify([empty])


def test_unknown_kernels_are_listed_once_with_the_pattern_that_names_them():
    names = ["void frobnicate<int>(int)", "reduce_kernel", "void ns::zebra<2>::run(int)", "void frobnicate<long>(long)"]
    with pytest.warns(InputWarning) as caught:
        assert classify(names, file="a.csv").tolist() == [OTHER, "reduce", OTHER, OTHER]
    (warning,) = (str(entry.message) for entry in caught)
    assert warning.startswith("a.csv: no class is known for 2 kernels: frobnicate, run; they count as class other")
    assert "\n" not in warning
    pattern = yaml.safe_load(re.search(r"kernel_patterns: \[.*?\}\]", warning)[0])["kernel_patterns"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classify(names, extend_patterns(pattern)).tolist() == ["elementwise", "reduce", *["elementwise"] * 2]


def test_a_warning_of_unknown_kernels_stays_short():
    for names in (["z" * 10**6], [f"zebra{number}'s" for number in range(1000)]):
        with pytest.warns(InputWarning) as caught:
            classify(names)
        (warning,) = caught
        assert len(str(warning.message)) < 3000


def test_every_class_is_documented():
    text = (ROOT / "traces/README.md").read_text("utf-8")
    assert {pattern.kernel_class for pattern in PATTERNS} <= set(re.findall(r"`(\w+)`", text))


def test_user_patterns_come_first():
    extra = [
        {"name": "mine", "regex": "^frobnicate", "class": "solver"},
        {"name": "all reductions", "regex": "reduce", "class": "sum"},
    ]
    patterns = extend_patterns(extra)
    assert patterns[2:] == PATTERNS
    assert extend_patterns(extra[:1], patterns=extend_patterns(extra[1:])) == patterns
    assert classify(["void frobnicate<int>(int)", "reduce_kernel"], patterns).tolist() == ["solver", "sum"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"name": "a", "regex": "x"}, "lacks"),
        ({"name": "a", "regex": "x", "class": "y", "colour": "z"}, "unknown keys"),
        ({"name": "a", "regex": "(", "class": "y"}, "does not compile"),
        ({"name": "a", "regex": "k{018446744073709551616}", "class": "y"}, "does not compile: the repetition number"),
        ({"name": "a", "regex": "(" * 5000 + "k" + ")" * 5000, "class": "y"}, "kernel pattern 1: regex"),
        ({"name": "a", "regex": ".*", "class": "y"}, "matches every name"),
        ({"name": "a", "regex": "x", "class": ""}, "empty"),
        ({"name": "a", "regex": 3, "class": "y"}, "not text"),
        ({"name": "a", "regex": "x", "class": "y", "on": "mangled"}, "unknown"),
        ("x", "mapping"),
    ],
)
def test_user_patterns_are_validated(entry, problem):
    with pytest.raises(InputError, match=problem) as error:
        extend_patterns([entry], file="config.yaml")
    assert str(error.value).startswith("config.yaml, kernel pattern 1: ")


@settings(max_examples=200)
@given(st.text(alphabet="<>()[]{}:, *&abK_0129x-#operatorvoid", max_size=80))
def test_any_name_is_read(name):
    fact = parse(name)
    assert fact.name == name
    assert isinstance(fact.base, str)
    assert fact.slices >= 1
    template_arguments(name)


@settings(max_examples=100)
@given(
    st.sampled_from([8, 16, 32, 64, 128, 256]),
    st.sampled_from([8, 16, 32, 64, 128, 256]),
    st.integers(1, 16),
    st.sampled_from(["nn", "nt", "tn", "tt"]),
    st.sampled_from(["{}", "void {}<float, (int)4>(float const*, A<int>)", "void ns::(anonymous namespace)::{}(int)"]),
)
def test_tiles_survive_decoration(tile_m, tile_n, slices, transpose, decoration):
    sliced = f"_sliced1x{slices}" if slices > 1 else ""
    fact = parse(decoration.format(f"ampere_sgemm_{tile_m}x{tile_n}{sliced}_{transpose}"))
    assert (fact.tile_m, fact.tile_n, fact.slices, fact.transpose) == (tile_m, tile_n, slices, transpose)
    assert (fact.kernel_class, fact.tensor_core) == ("gemm", False)


@pytest.mark.parametrize(
    "piece", ["<", ">", "(", ")", "]", "a", "1", "_", "a<", "<cutlass_", "gemm_", "::", "() ", "operator<", "1x"]
)
def test_hostile_names_are_parsed_and_kept_whole(piece):
    """A quadratic parser would take minutes here."""
    for front in ("", "<" * 50_000):
        name = front + piece * (100_000 // len(piece))
        assert parse(name).name == name
        assert isinstance(template_arguments(name), list)


def test_a_megabyte_is_no_problem():
    name = "void f<" + "A<int>, " * 125_000 + "int>(int)"
    assert parse(name).base == "f"
    assert len(template_arguments(name)) == 125_001


@pytest.mark.parametrize(
    ("name", "tensor_core"),
    [
        ("sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4", False),
        ("sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma", False),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", True),
    ],
)
def test_kernels_of_hopper_that_multiply_and_add_in_fp32_units_use_no_tensor_cores(name, tensor_core):
    assert parse(name).tensor_core is tensor_core


@pytest.mark.parametrize(
    "regex",
    [
        *("(a+)+b", "(?:a?){50}b", "(a|aa)+b", "((a{2})*)*b", "(?=(x+)+)y", "(?(1)x|(y+)*)", "x*?a.*b.*c", "a" * 501),
        *("a?" * 30 + "a" * 30, "a{0,99}" * 5 + "b", "(?:a|aa)" * 40 + "b", r".*(?=a{0,90})(a{1,90})\1b"),
    ],
)
def test_patterns_that_can_take_exponential_time_are_refused(regex):
    with pytest.raises(InputError, match="write it with fewer or bounded repetitions"):
        extend_patterns([{"name": "n", "regex": regex.replace("(?(1)", "(q)?(?(1)"), "class": "gemm"}])


@pytest.mark.parametrize(
    "regex",
    ["gemm", r"^foo_\w+_bar.*", r"(?:a|b)x", r"(?:sm\d{2}_){1}gemm", "(?:ab){2,5}c", r"\w+_gemm_\w+_(?:nn|nt|tn)"],
)
def test_usual_patterns_are_taken(regex):
    assert extend_patterns([{"name": "n", "regex": regex, "class": "gemm"}])[0].regex == regex


def test_what_lies_behind_64_ki_characters_is_not_searched():
    """A name of 70 MB, 70 KB in a compressed trace, took more than five seconds."""
    name = "x" * 2**16 + "_ampere_sgemm_128x64_tn"
    assert parse(name).kernel_class is None and parse(name).name == name
    assert parse(name[2**16 + 1 :]).kernel_class == "gemm"


def test_labels_tell_generated_kernels_apart_as_those_who_made_them_do():
    names = [*("gemm_fusion_dot_33", "gemm_fusion_dot_47", "loop_add_fusion_1"), "vectorized<1>", "vectorized<2>"]
    flash = "cudnn_generated_fort_native_sdpa_sm90_flash_{}prop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0"
    labelled = labels(pd.Series([*names, flash.format("f"), flash.format("b")]))
    assert labelled.tolist() == [
        *("gemm_fusion_dot_33", "gemm_fusion_dot_47", "loop_add_fusion", "vectorized", "vectorized #2"),
        *("cudnn_sdpa_sm90_flash_fpro…28x128_4x1x1", "cudnn_sdpa_sm90_flash_bpro…28x128_4x1x1"),
    ]
