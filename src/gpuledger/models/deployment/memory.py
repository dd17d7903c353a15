"""Memory that a pass needs on each GPU, and the GPUs on which it fits.

A pass fits if ``weights + KV cache + activations ≤ (1 − RESERVE) · DRAM`` on the GPU that holds most:

* *weights*: the GPU's share of every matrix; what is not split (norms, router, MLA's compression) is on every GPU;
  those of a vision tower are in the first pipeline stage, and loaded whether or not a prompt has images;
* *KV cache*: of every request, for the GPU's own key/value heads; heads that cannot be split further, and MLA's
  compressed cache, are on every GPU;
* *activations*: the largest input and output of a kernel, and the residual stream; of the vision tower or the text
  model, whichever is larger.

What the reserve is for, by :func:`reserve_bytes`: *communication* buffers, the CUDA *context* and loaded kernels, and
the *rest* (workspaces of libraries and of attention, CUDA graphs, fragmentation).
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from gpuledger.models.transformer import Model, Parallel, Precision, Workload
from gpuledger.models.transformer.blocks.standard import Linear
from gpuledger.models.transformer.formats.precision import BITS
from gpuledger.models.transformer.launches.vision import VISION
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.parallel import share
from gpuledger.readers.gpus import Gpu

#: Share of a GPU's DRAM that is left to what is not counted: CUDA context, workspaces of libraries and of attention,
#: CUDA graphs, communication buffers, fragmentation. As much as vLLM leaves by default (``gpu_memory_utilization``
#: 0.9; docs.vllm.ai, Engine Arguments) and TensorRT-LLM (``free_gpu_memory_fraction`` 0.9; KvCacheConfig).
RESERVE = 0.1
#: Columns of :func:`memory_bytes`.
PARTS = ("weight_bytes", "cache_bytes", "activation_bytes")
#: NCCL's buffers on a GPU in a group of two, and of more; the CUDA context with loaded kernels. As AIConfigurator 0.12
#: observed them (``nccl_mem``, and ``other_mem`` before its safety margin, in its systems/*.yaml).
NCCL_BYTES = (342 * 2**20, 392 * 2**20)
CONTEXT_BYTES = 551 * 2**20


def memory_bytes(
    model: Model, parallel: Parallel, precision: Precision | None, work: Workload, rows: pd.DataFrame
) -> pd.DataFrame:
    """Return what each shape of a workload needs on the GPU that holds most.

    Parameters
    ----------
    precision : Precision or None
        None: the checkpoint's.
    rows : DataFrame
        The workload's kernels, from :func:`gpuledger.models.transformer.kernels`.

    Returns
    -------
    DataFrame, one row per shape
        ``weight_bytes, cache_bytes, activation_bytes`` and their sum ``memory_bytes``.
    """
    weights, cache = _by_stage(model, parallel, precision, work)
    activations, _ = _activations(model, precision or model.precision, work, rows)
    fullest = (weights + cache).argmax(axis=0), np.arange(work.shapes)
    held = np.broadcast_to(weights, cache.shape)[fullest], cache[fullest], activations
    return pd.DataFrame(dict(zip(PARTS, held, strict=True))).assign(memory_bytes=sum(held))


def _by_stage(
    model: Model, parallel: Parallel, precision: Precision | None, work: Workload
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and the caches on a GPU of each stage: arrays of shape (stages, 1) and (stages, shapes)."""
    stages = parallel.stages(model.layer_count)
    weights = np.array(
        [[_weight_bytes(model, parallel, precision, stage, numbers)] for stage, numbers in enumerate(stages)]
    )
    bits = BITS[(precision or model.precision).cache]
    return weights, np.array([_cache_bytes(model, parallel, bits, numbers, work) for numbers in stages])


def _activations(
    model: Model, precision: Precision, work: Workload, rows: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Return the activations of each shape (bytes), and whether those of the vision tower need most."""
    seeing = (rows["layers"] == VISION).to_numpy()
    stream = work.tokens * model.hidden * BITS[precision.activations] // 8
    own = _largest(rows[~seeing], work.shapes) + stream
    if not seeing.any():
        return own, np.zeros(work.shapes, bool)
    encoder = rows[seeing]
    residual = encoder["write_bytes"].where(encoder["kernel"] == "image_ffn_residual", 0)
    residual = residual.groupby(encoder["shape"]).max().reindex(range(work.shapes), fill_value=0).to_numpy()
    tower = _largest(encoder, work.shapes) + residual
    return np.maximum(own, tower), tower > own


def _largest(rows: pd.DataFrame, shapes: int) -> np.ndarray:
    """Return the largest input and output of a kernel of each shape (bytes)."""
    moved = (rows["read_bytes"] + rows["write_bytes"]).groupby(rows["shape"]).max()
    return moved.reindex(range(shapes), fill_value=0).to_numpy()


def fits(needed_bytes: np.ndarray, gpu: Gpu) -> np.ndarray:
    """Return whether a GPU holds so many bytes beside its reserve; yes if its capacity is unknown."""
    return ~(needed_bytes > (1 - RESERVE) * gpu.dram_bytes)


def reserve_bytes(gpu: Gpu, parallel: Parallel) -> dict[str, float]:
    """Return what the reserve of a GPU is for: ``communication``, ``context`` and ``rest``, in bytes."""
    group = max(parallel.group, parallel.pipeline)
    communication = 0 if group == 1 else NCCL_BYTES[group > 2]
    rest = max(RESERVE * gpu.dram_bytes - communication - CONTEXT_BYTES, 0.0)
    return {"communication": communication, "context": CONTEXT_BYTES, "rest": rest}


def memory_rows(
    model: Model,
    parallel: Parallel,
    precision: Precision | None,
    work: Workload,
    rows: pd.DataFrame,
    gpu: Gpu,
    in_flight: int = 1,
) -> pd.DataFrame:
    """List what fills the memory of the GPU that holds most, each part with its formula.

    Parameters
    ----------
    model, parallel, precision, work, rows
        As for :func:`memory_bytes`; the first shape of `work` counts.
    in_flight : int
        Batches that are under way at the same time, one in each pipeline stage.

    Returns
    -------
    DataFrame
        ``part, bytes, formula``: the parts that the pass needs, what is kept free for the rest, and their sum.
    """
    needed, reserve = memory_bytes(model, parallel, precision, work, rows).iloc[0], reserve_bytes(gpu, parallel)
    precision = precision or model.precision
    tokens, value = int(work.tokens[0]), BITS[precision.activations] // 8
    stream = tokens * model.hidden * value
    own = work.shape == 0
    caches = " + ".join(
        f"{requests:,} × {context:,}"
        for requests, context in zip(work.requests[own], (work.new_tokens + work.past_tokens)[own], strict=True)
    )
    cached = int(needed["cache_bytes"]) * in_flight
    tokens_held = int((work.requests * (work.new_tokens + work.past_tokens))[own].sum())
    if model.state_bytes or any(group.attention.window for group in model.layers):
        cache = f"Σ of layers: ({caches}) tokens, at most their window, × the GPU's heads × width × bits / 8 + states"
    else:
        cache = f"({caches}) tokens × {cached // tokens_held // in_flight:,} bytes"
    cache += f" × {in_flight} batches in flight" if in_flight > 1 else ""
    split = f" of {model.parameters / 1e9:.2f}·10⁹ parameters"
    split += "" if parallel.devices == 1 else f", what can be split divided among {parallel.devices} GPUs"
    group = max(parallel.group, parallel.pipeline)
    tower = model.vision.weight_bytes(precision, parallel.tensor) if model.vision else 0
    # A later pipeline stage may hold more than the first, without the tower.
    tower *= int(sum(_by_stage(model, parallel, precision, work))[:, 0].argmax() == 0)
    formulas = {
        "weights": f"Σ outputs × inputs × bits / 8{split}",
        "KV cache": cache,
        "activations": (
            "of the vision tower: largest input and output of a kernel + residual stream"
            if _activations(model, precision, work, rows)[1][0]
            else f"{int(needed['activation_bytes']) - stream:,} (largest input and output of a kernel) + "
            f"{tokens:,} × {model.hidden:,} × {value} (residual stream)"
        ),
        "communication buffers": "NCCL's, as observed with more than one GPU" if group > 1 else "",
        "CUDA context": "with loaded kernels, observed",
        "workspaces, CUDA graphs, fragmentation": (
            f"{100 * RESERVE:.0f} % of {gpu.dram_bytes / 1e9:.1f} GB, less the two above"
        ),
    }
    sizes = [needed["weight_bytes"] - tower, cached, needed["activation_bytes"], *reserve.values()]
    if tower:
        words = f"{model.vision.parameters / 1e9:.2f}·10⁹ parameters × {BITS[precision.plain]} bits / 8"
        shared = parallel.tensor if model.vision.splits(parallel.tensor) else 1
        words += f", its layers divided among {shared} GPUs" if shared > 1 else ""
        formulas = {"weights": formulas.pop("weights"), "vision tower": words, **formulas}
        sizes.insert(1, tower)
    table = pd.DataFrame({"part": list(formulas), "bytes": sizes, "formula": list(formulas.values())})
    # Of a GPU of unknown capacity, what is kept free is unknown.
    table = table.dropna().astype({"bytes": np.int64})
    whole = {"part": "sum", "bytes": table["bytes"].sum(), "formula": f"of {gpu.dram_capacity}"}
    return pd.concat([table, pd.DataFrame([whole])], ignore_index=True)


_VOCABULARIES = ("embedding", "per_layer_embedding", "lm_head")


def _weight_bytes(model: Model, parallel: Parallel, given: Precision | None, stage: int, numbers: range) -> int:
    precision = given or model.precision

    def stored(linear: Linear, precision: Precision = precision) -> int:
        if linear.kernel.startswith("expert_"):
            devices, copies = parallel.expert_width_devices, -(-linear.copies // parallel.expert)
        else:
            devices, copies = parallel.tensor, -(-linear.copies // (parallel.tensor if linear.grouped else 1))
        outputs, inputs = share(linear, devices)
        return replace(linear, outputs=outputs, inputs=inputs, copies=copies).stored_bytes(precision)

    first, last = stage == 0, stage == parallel.pipeline - 1
    tables = [
        # Vocabularies are split, learned positions and what follows a table are not.
        replace(table, split="columns", units=table.outputs) if table.kernel in _VOCABULARIES else table
        for table in model.embeddings
    ]
    kept = [table for table in tables if (last if table.kernel == "lm_head" else first)]
    if model.tied and last and not first and not model.drafts:
        kept.append(model.lm_head)
    vectors = model.final_vectors * last
    total = sum(map(stored, kept))
    if model.vision and first:
        total += model.vision.weight_bytes(precision, parallel.tensor)
    for group in model.layers:
        count = _count(group, numbers)
        of_group = model.precision_of(group, given)
        total += count * sum(stored(linear, of_group) for linear in group.linears(model.hidden))
        vectors += count * model.vectors(group)
    return total + vectors * BITS[precision.plain] // 8


def _cache_bytes(model: Model, parallel: Parallel, bits: int, numbers: range, work: Workload) -> np.ndarray:
    """Return the cache of all requests of each shape in some layers: int64 array of shape (shapes,)."""
    context, total = work.new_tokens + work.past_tokens, np.zeros(len(work.requests), np.int64)
    for group in model.layers:
        attention, tensor = group.attention, parallel.tensor
        state = attention.device_state_bytes(tensor) + group.side_state_bytes(model.hidden)
        total += _count(group, numbers) * (attention.cache_bytes(context, bits, tensor) + state)
    return work.total(total * work.requests)


def _count(group: Layers, numbers: range) -> int:
    return sum(number in numbers for number in group.numbers)
