"""How encoder attention kernels cut queries and keys into tiles, and keys into parts: the rules of their host code.

Kernels without a rule here (TensorRT-LLM's) have tiles of one size, chosen by their measurements. The rules are facts
from this code:

* FlashAttention-2, ``csrc/flash_attn/src/flash_fwd_launch_template.h``: 128 queries; 128 keys of up to 64 dimensions,
  64 of more;
* FlashAttention-3, ``hopper/tile_size.h``: 192 queries; 192 keys of up to 64 dimensions, 144 of up to 96, without a
  mask. ``hopper/heuristics.h``: parts of the keys where less than 0.8 blocks per SM would start and there are more than
  four tiles of keys, as few as fill the SMs to 0.85 of the best; for requests of variable length, decided as if there
  were one. ``hopper/flash_prepare_scheduler.cu`` then gives each request as many as are worth it, and the kernel that
  merges parts runs in any case;
* FlashAttention-4, ``flash_attn/cute/interface.py``: two tiles of 128 queries a block, one up to 128 tokens; 128 keys;
  parts of more than four tiles of keys as long as the SMs have room for them;
* SGLang, ``layers/attention/triton_ops/prefill_attention.py``: tiles of 64 up to compute capability 8, of 128 above,
  dimensions padded to a power of two, and the grid begins with the requests and heads.

That up to 64 tokens of 64 dimensions FlashAttention-3 has a shorter block is read from its times on an H100.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpuledger.readers.gpus import Gpu

#: Names of the rules.
PATTERNS = ("fixed", "flash 2", "flash 3", "flash 4", "triton")

_NARROW = 64  # dimensions of a head
_SHORT = 64  # tokens
_FEW = 4  # tiles of keys that are never parted
_ENOUGH, _FULL = 0.8, 0.85  # blocks per SM; share of the best filling
_MOST = 128  # parts

Shapes = Mapping[str, np.ndarray]


class EncoderTiles(NamedTuple):
    """Tiles of each launch, arrays of shape (launches,)."""

    #: Queries of a block and keys of a step.
    rows: np.ndarray
    keys: np.ndarray
    parts: np.ndarray  # parts of the keys, each computed by a block of its own
    merged: np.ndarray  # 1 where a kernel that merges parts follows, else 0
    resident: np.ndarray  # blocks that share an SM, if the first tiles of all heads are computed first; else 0


def pattern_of(kernel: str) -> str:
    """Return one of `PATTERNS`, by a kernel's name in measurements."""
    name = kernel.split(" ")[0]
    ends = {"fa2": "flash 2", "fa3": "flash 3", "_v3": "flash 3", "fa4": "flash 4", "_v4": "flash 4"}
    return "triton" if name == "triton" else ends.get(name[-3:], "fixed")


def tiles_of(pattern: str, gpu: Gpu, shapes: Shapes, rows: int, keys: int) -> EncoderTiles:
    """Return the tiles of each launch; *rows* and *keys* are those of a kernel without a rule."""
    tokens, dim = shapes["tokens"], shapes["head_dim"]
    one = np.ones_like(tokens)
    if pattern == "flash 2":
        return EncoderTiles(128 * one, np.where(dim <= _NARROW, 128.0, 64.0), one, 0 * one, 0 * one)
    if pattern == "triton":
        size = (64 if gpu.architecture in ("volta", "turing", "ampere", "ada") else 128) * one
        # Queries, and keys and values of two steps, in shared memory.
        held = 5 * size * 2 ** np.ceil(np.log2(dim)) * shapes["value_bytes"]
        memory = gpu.shared_memory_bytes_per_sm if gpu.shared_memory_bytes_per_sm > 0 else 0.0
        return EncoderTiles(size, size, one, 0 * one, np.maximum(1, np.floor(memory / held)))
    if pattern == "flash 3":
        rows = np.where((tokens <= _SHORT) & (dim <= _NARROW), 64.0, 192.0)
        keys = np.where(dim <= _NARROW, 192.0, 144.0)
        tiles, steps = np.ceil(tokens / rows), np.ceil(tokens / keys)
        most = _parts_of_one(shapes["heads"] * tiles, steps, gpu.sms)
        a_block = np.ceil(1.1 * shapes["requests"] * shapes["heads"] * tiles * steps / gpu.sms)
        return EncoderTiles(rows, keys, np.clip(np.ceil(steps / a_block), 1, most), (most > 1) * one, 0 * one)
    if pattern == "flash 4":
        rows, keys = np.where(tokens <= 128, 128.0, 256.0), 128 * one
        blocks = shapes["requests"] * shapes["heads"] * np.ceil(tokens / rows)
        steps = np.ceil(tokens / keys)
        parts = np.where(steps > _FEW, np.clip(np.floor(gpu.sms / blocks), 1, np.minimum(steps, _MOST)), 1.0)
        return EncoderTiles(rows, keys, parts, (parts > 1) * one, 0 * one)
    return EncoderTiles(rows * one, keys * one, one, 0 * one, 0 * one)


def share_of_block(pattern: str, shapes: Shapes, rows: np.ndarray) -> np.ndarray:
    """Return what share of the fixed time of a full block a block takes."""
    return np.where((pattern == "flash 3") & (shapes["head_dim"] <= _NARROW), rows / 192, 1.0)


def _parts_of_one(blocks: np.ndarray, steps: np.ndarray, sms: int) -> np.ndarray:
    """Return the number of parts of a single request's keys: the least that fills the SMs nearly as well as any."""
    parts = np.arange(1, min(int(steps.max(initial=1)), _MOST, sms) + 1)
    waves = blocks[:, None] * parts / sms
    full = np.where(parts <= steps[:, None], waves / np.ceil(waves), 0.0)
    found = parts[np.argmax(full >= _FULL * full.max(axis=1, keepdims=True), axis=1)]
    return np.where((blocks >= _ENOUGH * sms) | (steps <= _FEW), 1, found)
