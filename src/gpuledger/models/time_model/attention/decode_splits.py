"""How decode kernels split the caches of requests into parts: the rules of their host code.

A kernel without a rule here is taken to run with the best number of parts. The rules are facts from this code:

* TensorRT-LLM, ``cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention``: ``decoderXQARunner.cpp``,
  ``decoderXQAImplJIT/kernelUtils.cpp``, ``decoderMaskedMultiheadAttentionLaunch.h``; ``cpp/kernels/xqa/mha_sm90.cu``;
* FlashAttention-2, ``csrc/flash_attn/flash_api.cpp``: ``num_splits_heuristic`` on tiles of 64 to 256 tokens and two
  blocks per SM; without packed heads nothing is split;
* FlashAttention-3, ``hopper/tile_size.h``: ``tile_size_fwd_sm90`` of a paged cache without TMA;
* vLLM, ``v1/attention/backends``: ``flash_attn.py`` allows 32 splits for the batches of CUDA graphs (up to 512
  requests), which FlashAttention-4 takes as an order and FlashAttention-3 as a limit (both then run the kernel that
  combines parts), and ``triton_attn.py`` cuts a context in 16 segments, whatever its length, where these do not fill
  the GPU anyway;
* SGLang, ``layers/attention/triton_backend.py``: ``get_num_kv_splits_triton``, at most 8 splits, with latent attention
  one per SM. That many blocks are launched, with or without a part.
"""

from collections.abc import Callable, Mapping

import numpy as np

from gpuledger.models.time_model.gemms.tiles import WARP_GROUP, generation_of
from gpuledger.readers.gpus import Gpu

#: Names of the rules, and of two kernels that split as is best but differ otherwise: FlashInfer computes fewer than
#: four heads in 16 bits by a kernel of its own; SGLang widens an 8-bit latent cache for FlashAttention-3 first. The
#: patterns "whole" and "latent" are told by :mod:`gpuledger.models.time_model.attention.decode_latent`; "flash 3" is as
#: SGLang calls it, "ordered" as vLLM does.
PATTERNS = (
    *("best", "whole", "tiles", "graph", "segments", "splits", "splits per SM", "flashinfer", "widened", "latent"),
    *("flash 3", "flash 3 ordered"),
)

# XQA: heads and tokens of a part, blocks of an SM from which there is enough work, and at most; parts of all requests.
_XQA_HEADS, _XQA_PART, _XQA_LEAST, _XQA_MOST, _XQA_PARTS = 32, 128, 0.25, 8, 6000
# Hopper's XQA for an 8-bit cache: tokens of a tile.
_HOPPER_TILE = 64
_SINGLE_ROUND = 65536  # values of keys that 1,024 threads of the kernel for single heads read in one round
#: And those that an A100's, an L40S's and an H100's times of contexts of 16 to 511 tokens go up in steps of.
SINGLE_STEP = 8192
_PART = 64  # tokens of a step of all other kernels
_GRAPH_REQUESTS, _GRAPH_PARTS = 512, 32
# FlashAttention-3: head dimensions up to which tiles are alike, and tokens of a tile of a paged cache without and with
# a window, in 16 and in 8 bits.
_FLASH_3_DIMS = (64, 128, 192)
_FLASH_3 = np.array([[192, 128, 96, 80], [192, 128, 96, 64]], dtype=float)
_FLASH_3_NARROW = np.array([[160, 160, 160, 128], [160, 160, 128, 64]], dtype=float)
# vLLM's Triton kernel: segments of a context, blocks from which there are none, tokens of a step in 16 bits.
_SEGMENTS, _SEGMENTED_BLOCKS, _SEGMENT_STEP = 16, 128, 16
_SPLITS, _SPLIT_TOKENS = 8, 32
_FLASH_SPLITS = 128
# Heads of a block of SGLang's kernels, and of all others.
_SPLIT_HEADS, _HEADS = 16, 64

Shapes = Mapping[str, np.ndarray]


def pattern_of(kernel: str, gpu: Gpu, precision: str) -> tuple[str, int]:
    """Return one of `PATTERNS` and the query heads of a block at most.

    Parameters
    ----------
    kernel, precision : str
        As measurements call them, such as ``vllm_flash_attn_fa2`` and ``bf16/fp8``.
    """
    if kernel in ("triton", "MLA triton"):
        return ("splits" if kernel == "triton" else "splits per SM"), _SPLIT_HEADS
    name = "best"
    if kernel in ("vllm_flash_attn", "vllm_flash_attn_fa2"):
        name = "tiles"
    elif kernel == "MLA default" and generation_of(gpu) is not WARP_GROUP:
        # Only GPUs with warp groups have a kernel of their own for latent attention.
        name = "whole"
    elif kernel in ("MLA default", "MLA trtllm_mla") and gpu.architecture == "blackwell":
        # TensorRT-LLM's kernels, which SGLang calls as well.
        name = "latent"
    elif kernel == "MLA flash_attention" and precision == "bf16/fp8":
        name = "widened"
    names = {
        "vllm_flash_attn_fa4": "graph",
        "vllm_flash_attn_fa3": "flash 3 ordered",
        "vllm_triton_attn": "segments",
        "flashinfer": "flashinfer",
        "fa3": "flash 3",
    }
    return names.get(kernel, name), _HEADS


def parts_of(pattern: str, gpu: Gpu, shapes: Shapes, blocks: np.ndarray) -> np.ndarray | None:
    """Return the parts of a sequence, of each launch; None: as many as are best.

    Parameters
    ----------
    blocks : ndarray
        Of a launch that splits nothing.
    """
    return _PARTS[pattern](gpu, shapes, blocks) if pattern in _PARTS else None


def launched_of(pattern: str, gpu: Gpu) -> int:
    """Return the parts of a sequence that are launched, empty or not; 0: those that it has."""
    return {"splits": _SPLITS, "splits per SM": _per_sm(gpu)}.get(pattern, 0)


def single_heads(pattern: str, shapes: Shapes) -> np.ndarray:
    """Whether another kernel than for packed heads runs, without matrix units, of each launch."""
    group = shapes["heads"] / shapes["kv_heads"]
    if pattern == "flashinfer":
        return (group < 4) & ~narrow(shapes)
    return (group < 2) & (pattern == "splits")


def copies(pattern: str, shapes: Shapes, packed: np.ndarray) -> np.ndarray:
    """Whether FlashAttention-2 copies queries and results, to pack heads of several requests and KV heads."""
    return (pattern == "tiles") & (shapes["requests"] > 1) & (shapes["kv_heads"] > 1) & (packed > 1)


def flash_tile(shapes: Shapes) -> np.ndarray:
    """Tokens of a tile in FlashAttention-2: about as many bytes for each head dimension."""
    return np.where(shapes["head_dim"] <= 64, 256.0, np.where(shapes["head_dim"] <= 128, 128.0, 64.0))


def tile_of(pattern: str, shapes: Shapes) -> np.ndarray:
    """Tokens of a step of each launch."""
    if pattern == "tiles":
        return flash_tile(shapes)
    if pattern == "segments":
        return np.where(shapes["cache_bytes"] < 2, 2.0, 1.0) * _SEGMENT_STEP
    if not pattern.startswith("flash 3"):
        return np.full(len(shapes["context"]), float(_PART))
    size, window = np.searchsorted(_FLASH_3_DIMS, shapes["head_dim"]), (shapes["window"] > 0).astype(int)
    return np.where(shapes["cache_bytes"] < 2, _FLASH_3_NARROW[window, size], _FLASH_3[window, size])


def ordered(shapes: Shapes) -> np.ndarray:
    """Whether vLLM orders FlashAttention to split, as it does in CUDA graphs."""
    return shapes["requests"] <= _GRAPH_REQUESTS


def narrow(shapes: Shapes) -> np.ndarray:
    """Whether the cache has fewer bits than the queries."""
    return shapes["cache_bytes"] < shapes["value_bytes"]


def xqa(gpu: Gpu, shapes: Shapes) -> np.ndarray:
    """Whether TensorRT-LLM takes its kernel XQA, of each launch."""
    blocks = shapes["requests"] * shapes["kv_heads"] * np.maximum((shapes["context"] + 1) // _XQA_PART, 1)
    group = shapes["heads"] / shapes["kv_heads"]
    return (group > 1) & (group <= _XQA_HEADS) & (narrow(shapes) | (blocks >= _XQA_LEAST * gpu.sms))


def hopper_xqa(gpu: Gpu, shapes: Shapes) -> np.ndarray:
    """Whether that is Hopper's own XQA, which has the 8-bit caches (narrow heads start as late as other kernels)."""
    return xqa(gpu, shapes) & narrow(shapes) & (gpu.architecture == "hopper")


def xqa_parts(gpu: Gpu, shapes: Shapes) -> np.ndarray:
    """Parts of a sequence in XQA, of each launch."""
    parts = np.maximum((shapes["context"] + 1) // _XQA_PART, 1)
    parts = np.minimum(parts, np.round(np.sqrt(8 * parts)))
    waves = shapes["requests"] * shapes["kv_heads"] * parts / gpu.sms
    parts = np.floor(parts / np.maximum(waves / _XQA_MOST, 1))
    seen = np.minimum(shapes["context"] + 1, _window(shapes))
    # No part is shorter than a tile.
    parts = np.where(hopper_xqa(gpu, shapes), np.minimum(parts, np.ceil(seen / _HOPPER_TILE)), parts)
    return np.maximum(np.minimum(parts, _XQA_PARTS // shapes["requests"]), 1)


def single_parts(gpu: Gpu, shapes: Shapes) -> np.ndarray:
    """Parts of a sequence in TensorRT-LLM's kernel for single heads, of each launch."""
    wave = np.ceil(gpu.sms / (shapes["requests"] * shapes["heads"]))
    tokens = _SINGLE_ROUND / 2 ** np.ceil(np.log2(shapes["head_dim"]))
    return np.minimum(wave, np.ceil((shapes["context"] + 1) / tokens))


def _window(shapes: Shapes) -> np.ndarray:
    return np.where(shapes["window"] > 0, shapes["window"], np.inf)


def _per_sm(gpu: Gpu) -> int:
    return int(2 ** np.ceil(np.log2(gpu.sms)))


def _splits(most: Callable[[Gpu], int]) -> Callable:
    def parts(gpu: Gpu, shapes: Shapes, blocks: np.ndarray) -> np.ndarray:
        seen = np.minimum(shapes["context"] + shapes["tokens"], _window(shapes))
        wanted = np.ceil(gpu.sms * np.maximum(np.log2(seen / 64), 1) / blocks)
        return np.maximum(np.minimum(np.minimum(wanted, most(gpu)), np.ceil(seen / _SPLIT_TOKENS)), 1)

    return parts


def _segments(gpu: Gpu, shapes: Shapes, blocks: np.ndarray) -> np.ndarray:
    return np.where(shapes["requests"] <= _SEGMENTED_BLOCKS // shapes["kv_heads"], _SEGMENTS, 1)


def _graph(gpu: Gpu, shapes: Shapes, blocks: np.ndarray) -> np.ndarray:
    return np.where(ordered(shapes), _GRAPH_PARTS, 1)


def _tiles(gpu: Gpu, shapes: Shapes, blocks: np.ndarray) -> np.ndarray:
    tiles = np.ceil((shapes["context"] + shapes["tokens"]) / flash_tile(shapes))
    packed = (shapes["window"] == 0) & (shapes["heads"] > shapes["kv_heads"])
    slots = 2 * gpu.sms
    # Few shapes differ in both.
    pairs, place = np.unique(np.column_stack([blocks, tiles]), axis=0, return_inverse=True)
    blocks, tiles = pairs.T
    splits = np.arange(1, _FLASH_SPLITS + 1, dtype=float)[:, None]
    waves = blocks * splits / slots
    fewer = np.ceil(tiles / splits) != np.ceil(tiles / np.maximum(splits - 1, 1))
    eligible = ((splits == 1) | fewer) & (splits <= np.minimum(slots, tiles))
    share = np.where(eligible, waves / np.ceil(waves), 0)
    first = ((share > 0) & (share >= 0.85 * share.max(axis=0))).argmax(axis=0)
    parts = np.where(blocks >= 0.8 * slots, 1, splits[first, 0])
    return np.where(packed, parts[place.ravel()], 1)


_PARTS: Mapping[str, Callable] = {
    "tiles": _tiles,
    "graph": _graph,
    "segments": _segments,
    "splits": _splits(lambda gpu: _SPLITS),
    "splits per SM": _splits(_per_sm),
}
