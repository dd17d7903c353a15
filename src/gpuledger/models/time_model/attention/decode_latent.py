"""Time of TensorRT-LLM's decode kernels for latent attention, where the rules of its host code apply.

Before Hopper (pattern "whole"), the kernels of prefill compute decode, too: a block takes 64 query heads and 256 of the
512 value dimensions of one request and walks over its whole cache; two blocks fit an SM.

    launch + waves · block + ‖ steps of 64 tokens of all waves; bytes from DRAM and L2 ‖
    step = step_s, + several_s next to a block of the other SM of a pair, + split_s with two blocks on an SM
           + its bytes / cache_bytes_per_clock, as far as they come from DRAM

That pairs of SMs (TPCs) slow each other is what an L40S's times say, an A100's do not; the data do not tell why. A
cache in 8 bits takes the same times as one in 16 on both.

On data centre Blackwell (pattern "latent") there are two kernels. One of 16 query heads per block serves up to 32
heads, and more where its blocks all have an SM and 1,024 tokens each at most. The other has 64 heads per block, or 128
in a pair of SMs. A cache is split in parts, as long as that leaves all blocks on SMs of their own; up to 16 parts of
the first kernel are a cluster that merges them in shared memory, if all clusters fit the GPU at once.

    launch + waves · block + ‖ steps of 128 tokens of all waves; compute; bytes from DRAM and L2 ‖ + merge

A block is block_s + row_s · its query heads: what it does before and after its steps does not overlap with other
blocks' loads. ‖ ‖ is the 4-norm.

Sources: TensorRT-LLM, ``cpp/tensorrt_llm/kernels/contextFusedMultiHeadAttention/fused_multihead_attention_v2.cpp``
(blocks of 256 value dimensions), ``cpp/tensorrt_llm/kernels/trtllmGenKernels/fmha/fmhaKernels.h``
(``selectMlaGenerationKernel``, ``useSwapsMmaAbMlaGenKernel``, ``computeNumCtas``). What host code does not say (blocks
per SM, the share that clusters fill, how fast L2 is) was chosen by an A100, an L40S and a B200, held-back errors in
sight. A GB200 confirms it (10.0 to 6.6 % in the mean of four tables). An RTX PRO 6000 has 5.0 % (10.2 before) with a
16-bit cache, but its residuals had been seen; for 8 bits it has another kernel with 128 heads, of which nothing is said
here (22.3 to 16.4 %).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu

if TYPE_CHECKING:
    from gpuledger.models.time_model.attention.decode_law import DecodeConstants

#: Where fits start, by pattern; a constant that is not named here has no effect.
STARTS: Mapping[str, Mapping[str, float]] = {
    "whole": {
        "launch_s": 6e-6,
        "block_s": 2e-6,
        "cache_bytes_per_clock": 50.0,
        "dram_share": 0.8,
        "row_s": 1e-7,
        "step_s": 3e-6,
        "several_s": 1e-6,
        "split_s": 1e-6,
    },
    "latent": {
        "launch_s": 6e-6,
        "block_s": 2e-6,
        "dram_share": 0.8,
        "row_s": 1e-7,
        "step_s": 1e-7,
        "combine_s": 2e-6,
        "split_s": 1e-7,
    },
}

# Heads of a block; before Hopper, blocks by value dimensions, and tokens of a step.
_ROWS, _CUTS, _STEP = 64, 2, 64
# On Blackwell: heads of a block of the first kernel, heads up to which it runs anyway, tokens of a part up to which it
# runs otherwise, and its tokens of a step; tokens of a step of the other one.
_FEW_ROWS, _FEW_HEADS, _FEW_TOKENS, _FEW_STEP, _WIDE_STEP = 16, 32, 1024, 256, 128
# Parts that a cluster merges at most, and the share of the SMs that clusters of that size fill.
_CLUSTER, _CLUSTERED = 16, 0.8
# Share of the peak at the most, and how much faster than other bytes L2 hands out what several SMs ask for.
_TENSOR_SHARE, _SHARED = 0.9, 3.0

Shapes = Mapping[str, np.ndarray]


def latent_terms(gpu: Gpu, constants: "DecodeConstants", shapes: Shapes) -> dict[str, np.ndarray]:
    """Predict as :func:`gpuledger.models.time_model.attention.decode_law.decode_terms` does."""
    return (_blackwell if constants.pattern == "latent" else _whole)(gpu, constants, shapes)


def _whole(gpu: Gpu, c: "DecodeConstants", s: Shapes) -> dict[str, np.ndarray]:
    seen, rows = s["context"] + s["tokens"], s["heads"] * s["tokens"]
    # Blackwell's small GPUs read 8 bits; the others have such a cache in 16.
    cache_bytes = s["cache_bytes"] if gpu.architecture == "blackwell" else s["value_bytes"]
    values = s["cache_values"] / s["kv_heads"] * cache_bytes
    heads = s["requests"] * np.ceil(rows / _ROWS)
    blocks = heads * _CUTS
    full = np.floor(blocks / (2 * gpu.sms))
    rest = blocks - 2 * gpu.sms * full
    # Waves, those with a block on the other SM of a pair as well, and those with two on an SM.
    waves, two = full + (rest > 0), full + (rest > gpu.sms)
    pair = full + np.where(full > 0, rest > 0, np.clip(2 * rest / gpu.sms - 1, 0, 1))
    once = s["requests"] * seen * values
    waited_s = l2_of(gpu).cold_share(once) * _STEP * values / (c.cache_bytes_per_clock * gpu.clock_hz)
    steps_s = waves * (c.step_s + waited_s) + pair * c.several_s + two * c.split_s
    block_s = np.ceil(seen / _STEP) * steps_s
    byte_count = once + _around(s)
    cold = l2_of(gpu).cold_share(byte_count)
    dram_s = byte_count * (cold / (c.dram_share * gpu.dram_bytes_per_s) + (1 - cold) / l2_of(gpu).bytes_per_s)
    fixed_s = waves * (c.block_s + c.row_s * np.minimum(rows, _ROWS))
    launch_s = np.full(len(seen), c.launch_s)
    terms = {"launch_s": launch_s, "block_s": block_s, "compute_s": 0 * seen, "dram_s": dram_s}
    return {"time_s": launch_s + fixed_s + norm(block_s, dram_s), **terms}


def _blackwell(gpu: Gpu, c: "DecodeConstants", s: Shapes) -> dict[str, np.ndarray]:
    seen, rows = s["context"] + s["tokens"], s["heads"]
    values = s["cache_values"] / s["kv_heads"] * s["cache_bytes"]
    requests = s["requests"] * s["tokens"]
    narrow = requests * np.ceil(rows / _FEW_ROWS)
    most = np.minimum(np.ceil(seen / _FEW_STEP), np.maximum(gpu.sms // narrow, 1))
    few = (rows <= _FEW_HEADS) | (np.ceil(seen / most) <= _FEW_TOKENS) & (narrow <= gpu.sms)
    step = np.where(few, _FEW_STEP, _WIDE_STEP)
    alone = np.where(few, narrow, requests * np.ceil(rows / _ROWS))
    parts = np.minimum(np.ceil(seen / (2 * step)), np.maximum(gpu.sms // alone, 1))
    blocks = alone * parts
    waves = np.ceil(blocks / gpu.sms)
    # Blocks that leave SMs free are cut along the value dimensions, in four or in two.
    cut = blocks * np.where(4 * blocks <= gpu.sms, 4, np.where(2 * blocks <= gpu.sms, 2, 1))
    clustered = few & (parts <= _CLUSTER) & (cut <= _CLUSTERED * gpu.sms)
    own = np.where(few, np.minimum(rows, _FEW_ROWS), np.minimum(rows, _ROWS))
    fixed_s = waves * (c.block_s + c.row_s * own)
    steps = np.ceil(seen / parts / _WIDE_STEP)
    block_s = waves * steps * c.step_s
    # The units multiply 128 rows at a time, of a pair of SMs' blocks together.
    peak = s["peak"] * s["value_bytes"] / s["cache_bytes"]
    flop = 2 * _ROWS / np.minimum(np.ceil(rows / _ROWS), 2) * 4 * s["head_dim"] * steps * _WIDE_STEP
    compute_s = ~few * waves * flop * gpu.sms / (_TENSOR_SHARE * peak)
    once, around = s["requests"] * seen * values, _around(s)
    cold, bandwidth = l2_of(gpu).cold_share(once + around), c.dram_share * gpu.dram_bytes_per_s
    used = once * np.where(few, alone / requests, 1.0)
    dram_s = cold * once / bandwidth + (used - cold * once) / (_SHARED * l2_of(gpu).bytes_per_s)
    fixed_s = norm(fixed_s, cold * around / bandwidth)
    merge_s = (parts > 1) * (~clustered * c.combine_s + c.split_s * parts)
    launch_s = np.full(len(seen), c.launch_s)
    terms = {"launch_s": launch_s, "block_s": block_s, "compute_s": compute_s, "dram_s": dram_s}
    return {"time_s": launch_s + fixed_s + norm(block_s, compute_s, dram_s) + merge_s, **terms}


def _around(s: Shapes) -> np.ndarray:
    """Bytes of queries and results."""
    return s["requests"] * s["tokens"] * s["heads"] * 2 * s["head_dim"] * s["value_bytes"]
