"""How prefill kernels cut queries and keys into tiles: the rules of their host code.

A kernel without a rule here has tiles of one size for all shapes, chosen by its measurements. The rules are facts from
this code:

* FlashAttention-2, ``csrc/flash_attn/src/flash_fwd_launch_template.h``: a paged cache is read by the kernels that also
  split it, with 64 queries and the keys of :func:`gpuledger.models.time_model.attention.decode_splits.flash_tile`. One
  token without a window is packed as in decode;
* FlashAttention-3, ``hopper/flash_api.cpp``: ``use_one_mma_wg``, another kernel for up to 64 packed rows;
* FlashInfer, ``include/flashinfer/attention/scheduler.cuh`` and ``prefill.cuh``: ``FA2DetermineCtaTileQ`` by the packed
  rows of a request, keys as shared memory and registers allow, and a cache split into parts of at least 128 tokens as
  long as two blocks per SM hold all; results of parts are merged by another kernel;
* SGLang, ``layers/attention/triton_ops/extend_attention.py``: ``_get_block_sizes_for_extend_attention``;
* TensorRT-LLM, ``cpp/kernels/fmha_v2/setup.py``: ``enumerate_qmma_flash_kernels``, its kernels in fp8 for GPUs without
  warp groups. Before any of its kernels another one writes q, k and v, with a block for every token and query head
  (``cpp/tensorrt_llm/kernels/unfusedAttentionKernels``: ``APPLY_BIAS_ROPE_UPDATE_KV_CACHE``);
* vLLM, ``v1/attention/ops/triton_unified_attention.py``: at least 16 packed rows, 32 keys.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpuledger.models.time_model.attention.decode_splits import flash_tile
from gpuledger.models.time_model.gemms.tiles import WARP_GROUP, generation_of
from gpuledger.readers.gpus import Gpu

#: Names of the rules; FlashAttention-3's is the same in all engines.
PATTERNS = (
    *("fixed", "flash 2", "flash 3", "sglang flash 3", "flashinfer", "sglang triton", "vllm triton"),
    *("tensorrt", "tensorrt fp8"),
)

_FLASHINFER_PART = 128  # tokens of a part at least
_LEAST_SHARED_BYTES = 100 * 1024.0  # of an SM since Ampere, where a data sheet does not say
_ONE_WARP_GROUP = 64  # packed rows
_ONE_SM = 256  # head dimensions whose results leave room for scores
# SGLang's rows and keys for head dimensions up to 128, up to 256 and above: GPUs without warp groups, Hopper, others.
_SMALL, _HOPPER, _BLACKWELL = (
    np.array([[64, 64, 32], [128, 64, 32]]),
    np.array([[128, 64, 32], [64, 64, 64]]),
    np.array([[64, 64, 16], [64, 64, 64]]),
)

Shapes = Mapping[str, np.ndarray]


class PrefillTiles(NamedTuple):
    """Tiles of each launch, arrays of shape (launches,)."""

    #: Rows of scores of a block (queries of all packed heads), and keys of a step.
    rows: np.ndarray
    keys: np.ndarray
    packed: np.ndarray  # query heads that share a block
    parts: np.ndarray  # parts of a cache, each computed by a block of its own


def pattern_of(kernel: str, gpu: Gpu, precision: str = "") -> str:
    """Return one of `PATTERNS`, by a kernel's name in measurements and the precision of operands and cache."""
    if kernel == "torch_flow":
        return "tensorrt fp8" if precision == "fp8/fp8" and generation_of(gpu) is not WARP_GROUP else "tensorrt"
    if kernel in ("flashinfer", "vllm_flashinfer_fiprefill"):
        # On GPUs with warp groups FlashInfer calls other libraries' kernels.
        return "fixed" if generation_of(gpu) is WARP_GROUP else "flashinfer"
    if kernel.endswith("fa3"):
        return "sglang flash 3" if kernel == "fa3" else "flash 3"
    names = {"vllm_flash_attn": "flash 2", "vllm_flash_attn_fa2": "flash 2", "vllm_triton_attn": "vllm triton"}
    return names.get(kernel, "sglang triton" if kernel in ("triton", "MLA triton") else "fixed")


def tiles_of(pattern: str, gpu: Gpu, shapes: Shapes, packed: np.ndarray, rows: int) -> PrefillTiles:
    """Return the tiles of each launch.

    Parameters
    ----------
    packed, rows
        Heads that share a block, and its rows, where the pattern does not say.
    """
    s = shapes
    one = np.ones(len(packed))
    group, dim = s["heads"] / s["kv_heads"], s["head_dim"]
    if pattern == "flash 2":
        return PrefillTiles(64 * one, flash_tile(s), np.where((s["tokens"] == 1) & (s["window"] == 0), group, 1), one)
    if pattern == "vllm triton":
        return PrefillTiles(np.maximum(16, 2 ** np.ceil(np.log2(group))), 32 * one, group, one)
    if pattern == "sglang triton":
        large = _HOPPER if gpu.architecture == "hopper" else _BLACKWELL
        table = large if generation_of(gpu) is WARP_GROUP else _SMALL
        size = (dim > 128).astype(int) + (dim > 256)
        return PrefillTiles(table[0, size].astype(float), table[1, size].astype(float), one, one)
    if pattern == "flashinfer":
        return _flashinfer(gpu, s, group)
    if pattern == "tensorrt fp8":
        return PrefillTiles(np.where(dim <= 64, 128.0, 64.0), np.where(dim <= 64, 128.0, 32.0), one, one)
    return PrefillTiles(rows * one, np.maximum(rows, 32) * one, packed, one)


def late(pattern: str, shapes: Shapes, packed: np.ndarray) -> np.ndarray:
    """Whether a launch starts later than the kernel's others.

    FlashAttention-2 copies packed queries and results of several requests and KV heads; FlashAttention-3 has another
    kernel for few rows; behind a window, SGLang looks up where its smaller cache has the tokens.
    """
    if pattern == "sglang triton":
        return shapes["window"] > 0
    if pattern == "flash 2":
        return (packed > 1) & (shapes["requests"] > 1) & (shapes["kv_heads"] > 1)
    return pattern.endswith("flash 3") & (shapes["tokens"] * packed > _ONE_WARP_GROUP)


def sms_of_block(pattern: str, gpu: Gpu, shapes: Shapes) -> np.ndarray | float:
    """Return how many SMs share a tile of queries.

    On data centre Blackwell two do where the results of a tile (128 rows of 512 float32) would fill all tensor memory
    of one: of a single head, 64 tiles take 192 µs on a B200's 148 SMs, 80 tiles 340 µs.
    """
    paired = pattern == "fixed" and gpu.architecture == "blackwell" and generation_of(gpu) is WARP_GROUP
    return np.where(shapes["head_dim"] > _ONE_SM, 2.0, 1.0) if paired else 1.0


def copying_blocks(pattern: str, shapes: Shapes) -> np.ndarray | float:
    """Return the blocks for a new token in the kernel that writes the cache."""
    return shapes["heads"] if pattern.startswith("tensorrt") else 1.0


def _flashinfer(gpu: Gpu, s: Shapes, group: np.ndarray) -> PrefillTiles:
    dim, queries = s["head_dim"], s["tokens"] * group
    rows = np.where((queries > 64) & (dim < 256), 128, np.where(queries > 16, 64, 16))
    # Sixteen rows leave three of four warps to the keys. Two blocks share an SM if each can hold a step of 16 keys.
    warps = np.where(rows == 16, 4, 1)
    query_bytes, step_bytes = dim * rows * s["value_bytes"], 2 * dim * 16 * warps * s["cache_bytes"]
    held = gpu.shared_memory_bytes_per_sm if gpu.shared_memory_bytes_per_sm > 0 else _LEAST_SHARED_BYTES
    memory = held / np.where(held >= 2 * (query_bytes + step_bytes), 2, 1)
    steps = np.clip(np.floor((memory - query_bytes) / step_bytes), 1, np.where(rows == 128, 4, 8))
    keys = 2 ** np.floor(np.log2(steps)) * 16 * warps
    # As many parts as fit; none is shorter than the least.
    seen = s["context"] + s["tokens"]
    seen = np.minimum(seen, np.where(s["window"] > 0, s["window"] + rows, np.inf))
    fit = np.floor(np.floor(2 * gpu.sms / s["kv_heads"]) / (s["requests"] * np.ceil(queries / rows)))
    part = seen / np.clip(fit, 1, np.ceil(seen / _FLASHINFER_PART))
    parts = np.ceil(seen / np.maximum(np.ceil(part), _FLASHINFER_PART))
    return PrefillTiles(rows.astype(float), keys, group, parts)
