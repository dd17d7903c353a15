"""The table of kernel classes: patterns of kernel names in order of priority, which users can extend."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.regexes import slow_regex


@dataclass(frozen=True)
class Pattern:
    """One row of the table of kernel classes."""

    name: str  # name of the pattern, for messages
    regex: str  # regular expression, searched (not anchored) in the name
    kernel_class: str  # class of the kernels that match
    family: str = ""  # library or generator of the kernel; empty: unknown
    #: {"path", "full"}: whether to search the name with namespaces but without template and call arguments, or the full
    #: name.
    on: str = "path"


_REQUIRED = {"name", "regex", "class"}


def _table(*rows: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(Pattern(*row) for row in rows)


# The first match decides, so special patterns precede general ones: a split-K reduction is not a tensor reduction, and
# an elementwise kernel that copies is a copy. No pattern has unbounded repetitions, because names may be hostile.
PATTERNS: tuple[Pattern, ...] = _table(
    ("memory operation", r"(?i)^\[?(?:CUDA )?mem(?:cpy|set)", "copy", "driver", "full"),
    ("Triton template attention", r"^triton_tem_\w{0,80}attention", "attention", "triton"),
    ("Triton template", r"^triton_(?:tem|mm)_", "gemm", "triton"),
    ("Triton pointwise", r"^triton_poi_", "elementwise", "triton"),
    ("split-K reduction", r"(?i)split_?k_?reduce|reduce_?split_?k", "split_k_reduce", "cublas", "full"),
    ("split-K reduction of xmma", r"_execute_split_k_kernel", "split_k_reduce", "cublas"),
    ("flash attention", r"(?i)flash_?(?:fwd|bwd|attn|attention)|\bflash(?:_\w{1,20})?::", "attention", "flash", "full"),
    ("fused attention of CUTLASS", r"(?i)fmha|AttentionKernel|attention_kernel", "attention", "cutlass", "full"),
    ("attention", r"(?i)attention|attn_|_attn|sdpa|Batch(?:Decode|Prefill)With|\bmha_|_mha\b|mqa_|mla_", "attention"),
    ("partial results of attention", r"MergeStates?Kernel", "attention", "flashinfer"),
    # Row sums of dO·O before the gradient, and dQ from fp32 to 16 bits after it.
    ("around cuDNN's attention", r"(?:^|::)(?:compute_dot_do_o|convert_dq_to_16bits)", "attention", "cudnn"),
    ("Triton attention of SGLang", r"^_fwd_(?:grouped_)?kernel_stage[12]", "attention", "triton"),
    ("AITER paged attention", r"(?:^|[:\d])pa_(?:bf16|fp16|fp8|a16|a8)", "attention", "aiter"),
    ("collective", r"(?i)[nr]ccl|all_?(?:reduce|gather)|reduce_?scatter|cross_device_reduce|multimem", "communication"),
    ("all-to-all", r"(?i)all_?(?:to|2)_?all|\bdeep_?ep::|nvshmem|userbuffers_", "communication"),
    ("random numbers", r"(?i)distribution_(?:elementwise|nullary)|curand|philox|dropout|random", "random"),
    ("optimizer", r"(?i)multi_tensor_apply|fused_?adam|adamw?_|sgd_", "optimizer"),
    ("mixture of experts, GEMM", r"fused_moe_kernel|moe_(?:mx)?gemm", "gemm"),
    ("AITER mixture of experts", r"(?:^|[:\d])fmoe_|moe_ck2?stages", "gemm", "aiter"),
    ("delta rule and Mamba-2", r"delta_rule|delta_net|state_passing|_chunk_state_|_bmm_chunk_", "scan"),
    ("matrix-vector product of llama.cpp", r"mul_mat_vec", "gemv", "ggml"),
    ("matrix product of llama.cpp", r"\bmul_mat_", "gemm", "ggml"),
    ("rotary embedding of llama.cpp", r"\brope_norm$", "rope", "ggml"),
    ("rows of llama.cpp", r"\bk_[gs]et_rows|\bmm_ids_helper", "index", "ggml"),
    ("copies of llama.cpp", r"\bcpy_|\bconvert_unary$", "copy", "ggml"),
    ("elementwise ones of llama.cpp", r"\bk_bin_bcast|\bunary_\w{0,6}op_kernel|\bscale_f32$", "elementwise", "ggml"),
    ("mixture of experts", r"(?i)\bmoe(?:::\w{1,30}::|_)(?:routing|finalize|align|sum|permute)|topk_?gating", "moe"),
    ("mixture of experts of TensorRT-LLM", r"MoeRouting|BuildExpertMaps|expandInputRows", "moe", "tensorrt_llm"),
    ("KV cache", r"(?i)reshape_and_cache|(?:store|write|append|set)_?\w{0,20}kv_?\w{0,10}|kv_?cache", "cache"),
    ("softmax", r"(?i)soft_?max", "softmax"),
    ("normalization", r"(?i)norm|RowwiseMoments|GammaBeta|\bbn_[fb]w|\bln_[fb]wd", "norm"),
    ("loss", r"(?i)nll_loss|cross_entropy|mse_loss|ctc_loss", "loss"),
    ("sorting and selection", r"(?i)(?<!ten)sort|top_?k|bitonic|argmax|argmin|histogram|unique", "sort"),
    ("scan", r"(?i)scan|cumsum|cumprod", "scan"),
    ("rotary embedding", r"(?i)rotary|(?:^|_|::)m?rope(?:_|$)|_sbhd_", "rope"),
    ("embedding", r"(?i)embedding", "embedding"),
    ("concatenation", r"CatArrayBatchedCopy|(?i:concat)", "copy", "aten"),
    ("indexing", r"(?i)index(?:_|select|func)|gather|scatter|take_put|masked_(?:fill|select)", "index"),
    ("elementwise kernel that copies", r"copy_device_to_device|copy_kernel(?:_cuda)?\b", "copy", "aten", "full"),
    ("elementwise kernel that fills", r"\bFillFunctor\b|fill_kernel_cuda", "fill", "aten", "full"),
    ("fill of HIP", r"_rocclr_fillBuffer", "fill", "hip"),
    ("cuDNN's convolution", r"_[sh]?\d{0,5}cudnn_\w{0,60}\d+x\d+", "convolution", "cudnn"),
    ("convolution", r"(?i)convol|conv\dd|_conv_|\bconv_|winograd|[fd]prop|[dw]grad|implicit_gemm", "convolution"),
    ("oneDNN's convolution", r"\bgen_conv$", "convolution", "onednn"),
    ("cuBLAS gemv", r"(?i)gemv", "gemv", "cublas"),
    ("cuBLAS dot product", r"\bdot_kernel\b", "gemv", "cublas"),
    ("cuBLAS scaling", r"\bscal_kernel|axpy|geam", "elementwise"),
    ("cuBLAS epilogue", r"\b(?:cublasLt|epilogue)::(?:impl::)?globalKernel$", "elementwise", "cublas"),
    ("nvjet", r"\bnvjet_", "gemm", "nvjet"),
    ("Tensile", r"\bCijk_", "gemm", "tensile"),
    ("skinny GEMM of vLLM", r"\bwvSplitK|\bLLGemm", "gemm", "vllm"),
    ("xmma", r"\bsm\d{2,3}_xmma_gemm|xmma_gemm", "gemm", "xmma"),
    ("CUTLASS", r"\bcutlass\w{0,6}_\w{0,80}gemm", "gemm", "cutlass"),
    ("CUTLASS by template", r"cutlass\w{0,6}_\w{0,80}gemm|cutlass::gemm::|GemmUniversal", "gemm", "cutlass", "full"),
    ("cuBLAS GEMM", r"\b(?:maxwell|pascal|volta|turing|ampere|ada|hopper)_\w{0,80}gemm", "gemm", "cublas"),
    ("cuBLAS GEMM, special shapes", r"\bgemm(?:SN|k1)|gemm_largek|\b[sdhcz]?gemm_kernel", "gemm", "cublas"),
    ("XLA GEMM", r"^(?:triton_gemm|gemm_fusion)_", "gemm", "xla"),
    ("repacking of weights", r"(?i)repack|dequant|quantize", "quantize"),
    ("matrix product", r"(?i)gemm|matmul|(?:^|_)b?mm(?:_|$)|marlin|gptq|awq", "gemm"),
    ("ATen reduction", r"\bat::native::reduce_kernel\b|^reduce_kernel$", "reduce", "aten"),
    ("Triton reduction", r"^triton_(?:red|per)_", "reduce", "triton"),
    ("reduction", r"(?i)reduce|reduction|lpnorm", "reduce"),
    ("ATen elementwise", r"(?:vectorized|unrolled|legacy)?_?elementwise_kernel", "elementwise", "aten"),
    ("activation", r"(?i)sigmoid|silu|swiglu|gelu|relu|tanh|act_and_mul|activation", "elementwise"),
    ("elementwise", r"(?i)elementwise|pointwise|(?:^|_)(?:v?add|mul|sub|div)(?:_|$)|vector_?add", "elementwise"),
    ("change of layout", r"tensorTransform|nchwToNhwc|nhwcToNchw", "copy", "cudnn"),
    ("transposition", r"(?i)transpose|permute|im2col|^loop_(?:dynamic_)?(?:update_)?slice_", "copy"),
    ("copy", r"(?i)copy|memcpy|memset|cast|fill", "copy"),
    ("XLA loop", r"^(?:loop|wrapped)_", "elementwise", "xla"),
    ("quantization", r"(?i)quant", "quantize"),
    ("pooling and resampling", r"(?i)pool|upsample|interpolate", "pool"),
)  # fmt: skip


def extend_patterns(
    extra: Iterable[Mapping[str, str]], patterns: Sequence[Pattern] = PATTERNS, *, file: str | Path = "kernel patterns"
) -> tuple[Pattern, ...]:
    """Put a user's patterns, in their order, before others.

    Parameters
    ----------
    extra : iterable of mappings
        Keys ``name``, ``regex``, ``class`` and optionally ``family`` and ``on`` (``path``, the default, or ``full``).

    Raises
    ------
    InputError
        A missing or unknown key, a value that is not text, a regex that does not compile, that matches everything, or
        that can take long: with repetitions or alternatives inside a repetition, more than two long ones, or many
        short ones and alternatives.
    """
    rows = []
    for number, entry in enumerate(extra, start=1):
        place = f"kernel pattern {number}"
        if not isinstance(entry, Mapping):
            raise InputError(file, place, "is not a mapping", "write name, regex and class")
        missing, unknown = _REQUIRED - set(entry), set(entry) - _REQUIRED - {"family", "on"}
        if missing or unknown:
            problem = f"lacks {sorted(missing)}" if missing else f"has unknown keys {sorted(map(str, unknown))}"
            raise InputError(file, place, problem, "give name, regex and class, and optionally family and on")
        name, regex, kernel_class = entry["name"], entry["regex"], entry["class"]
        if not all(isinstance(value, str) for value in entry.values()) or not (kernel_class and regex):
            raise InputError(file, place, "a value is empty or is not text", "quote the values")
        if entry.get("on", "path") not in ("path", "full"):
            raise InputError(file, place, f"on: {entry['on']!r} is unknown", "write path or full")
        try:
            matches_all = re.compile(regex).search("") is not None
        except (re.error, OverflowError, RecursionError) as error:  # too many repetitions, nested too deeply
            raise InputError(file, place, f"regex {regex!r} does not compile: {error}", "correct it") from error
        if fault := slow_regex(regex):
            raise InputError(file, place, f"regex {regex!r} {fault}", "write it with fewer or bounded repetitions")
        if matches_all:
            raise InputError(file, place, f"regex {regex!r} matches every name", "make it specific")
        rows.append(Pattern(name, regex, kernel_class, entry.get("family", ""), entry.get("on", "path")))
    return (*rows, *patterns)
