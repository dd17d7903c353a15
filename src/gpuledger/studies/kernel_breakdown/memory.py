"""Memory that a pass needs on each GPU, and the GPUs on which it fits.

A pass fits if ``weights + KV cache + activations ≤ (1 − RESERVE) · DRAM`` on the GPU that holds most:

* *weights*: the GPU's share of every matrix; what is not split (norms, router, MLA's compression) is on every GPU;
* *KV cache*: of every request, for the GPU's own key/value heads; heads that cannot be split further, and MLA's
  compressed cache, are on every GPU;
* *activations*: the largest input and output of a kernel, and the residual stream.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from gpuledger.models.transformer import Attention, Workload
from gpuledger.models.transformer.model import Layers, Linear
from gpuledger.models.transformer.parallel import share
from gpuledger.models.transformer.precision import BITS
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_breakdown.scenario import Scenario

#: Share of a GPU's DRAM that is left to what is not counted: CUDA context, workspaces of libraries and of attention,
#: CUDA graphs, communication buffers, fragmentation. As much as vLLM leaves by default (``gpu_memory_utilization``
#: 0.9; docs.vllm.ai, Engine Arguments) and TensorRT-LLM (``free_gpu_memory_fraction`` 0.9; KvCacheConfig).
RESERVE = 0.1


def memory_bytes(scenario: Scenario, work: Workload) -> pd.DataFrame:
    """Return what each shape of a workload needs on the GPU that holds most.

    Returns
    -------
    DataFrame, one row per shape
        ``weight_bytes, cache_bytes, activation_bytes`` and their sum ``memory_bytes``.
    """
    stages = scenario.parallel.stages(scenario.model.layer_count)
    weights = np.array([[_weight_bytes(scenario, stage, numbers)] for stage, numbers in enumerate(stages)])
    cache = np.array([_cache_bytes(scenario, numbers, work) for numbers in stages])
    rows = scenario.kernels(work)
    largest = (rows["read_bytes"] + rows["write_bytes"]).groupby(rows["shape"]).max().to_numpy()
    stream = work.tokens * scenario.model.hidden * BITS[scenario.precision.activations] // 8
    fullest = (weights + cache).argmax(axis=0), np.arange(work.shapes)
    held = np.broadcast_to(weights, cache.shape)[fullest], cache[fullest], largest + stream
    names = ("weight_bytes", "cache_bytes", "activation_bytes")
    return pd.DataFrame(dict(zip(names, held, strict=True))).assign(memory_bytes=sum(held))


def fits(needed_bytes: np.ndarray, gpu: Gpu) -> np.ndarray:
    """Return whether a GPU holds so many bytes beside its reserve; yes if its capacity is unknown."""
    return ~(needed_bytes > (1 - RESERVE) * gpu.dram_bytes)


def _weight_bytes(scenario: Scenario, stage: int, numbers: range) -> int:
    model, parallel, precision = scenario.model, scenario.parallel, scenario.precision

    def stored(linear: Linear) -> int:
        if linear.kernel.startswith("expert_"):
            devices, copies = parallel.expert_width_devices, -(-linear.copies // parallel.expert)
        else:
            devices, copies = parallel.tensor, linear.copies
        outputs, inputs = share(linear, devices)
        return replace(linear, outputs=outputs, inputs=inputs, copies=copies).stored_bytes(precision)

    first, last = stage == 0, stage == parallel.pipeline - 1
    tables = [
        # The vocabulary is split, learned positions are not.
        replace(table, split="columns", units=model.vocab) if table.outputs == model.vocab else table
        for table in model.embeddings
    ]
    kept = [table for table in tables if (last if table.kernel == "lm_head" else first)]
    if model.tied and last and not first:
        kept.append(model.lm_head)
    vectors = model.norm_parameters * last
    total = sum(map(stored, kept))
    for group in model.layers:
        count = _count(group, numbers)
        total += count * sum(map(stored, group.linears(model.hidden)))
        vectors += count * ((4 if group.post_norms else 2) * model.norm_parameters + group.attention.vectors())
    return total + vectors * BITS[precision.plain] // 8


def _cache_bytes(scenario: Scenario, numbers: range, work: Workload) -> np.ndarray:
    """Return the cache of all requests of each shape in some layers: int64 array of shape (shapes,)."""
    context, total = work.new_tokens + work.past_tokens, np.zeros(len(work.requests), np.int64)
    for group in scenario.model.layers:
        attention, width = group.attention, group.attention.cache_width
        if isinstance(attention, Attention):
            width = width // attention.kv_heads * max(attention.kv_heads // scenario.parallel.tensor, 1)
        kept = context if attention.window is None else np.minimum(context, attention.window)
        total += _count(group, numbers) * -(-width * BITS[scenario.precision.cache] // 8) * kept
    return work.total(total * work.requests)


def _count(group: Layers, numbers: range) -> int:
    return sum(number in numbers for number in group.numbers)
