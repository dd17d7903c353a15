"""Memory of a training step on each of the GPUs that share a model.

* *State*: parameters, gradients and Adam's two moments in 32 bits, 16 bytes a parameter, divided among the GPUs.
* *Gathered*: what is outside layers, with its gradient, for the whole step, and two layers: one computes, the next one
  comes.
* *Saved weights*: with parameters in 32 bits, autograd keeps the bf16 copies that the products read until the backward
  pass has used them: of all layers, with recomputation of one.
* *Activations* that autograd keeps, in bf16 per token of width d and feed-forward width f, with no kernels fused but
  attention and a gated activation: inputs (as rounded to bf16) and outputs of the norms, queries, keys and values, the
  attention's output, inputs and output of the activation function. With recomputation a layer keeps its input only.
* *Largest*: the larger of two moments. At the end of the forward pass the logits and their gradient in bf16; at the
  last layer's backward pass the logits, what that layer has computed again, and the gradients of its parameters.

With the implementation of ``transformers``, autograd keeps what :mod:`gpuledger.models.training.eager` marks, operator
by operator. Gradients exist from the backward pass of their layer (with several passes, the first one) to the update,
so that *state* is without them, and nothing is gathered on one GPU. *Largest*: the largest of four moments. When the
loss is computed: the logits in 16 and in 32 bits and their log-softmax, with recomputation also the copies of
parameters, which autocast caches until the forward pass ends. When its backward pass begins: log-softmax, its gradient
and that of the logits, all in 32 bits. With recomputation, at the last layer's backward pass: what it has computed
again, and its gradients and those of the LM head. At the update: gradients, and one more value for each parameter,
without what was kept.

Not counted: workspaces, fragmentation, NCCL's buffers and the CUDA context.
"""

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from gpuledger.models.deployment.memory import CONTEXT_BYTES, NCCL_BYTES
from gpuledger.models.training import eager
from gpuledger.models.training.run import STATE_VALUES, VALUE, TrainingRun
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.workloads import MAX_TOKENS
from gpuledger.readers.gpus import Gpu

#: Columns of :func:`training_memory`, in bytes.
PARTS = ("state_bytes", "gathered_bytes", "saved_weight_bytes", "activation_bytes", "largest_bytes")
#: Layers whose parameters are gathered at the same time.
GATHERED_LAYERS = 2
#: More sequences of a pass are not asked for.
MOST_SEQUENCES = 2**16


def training_memory(run: TrainingRun) -> dict[str, float]:
    """Return the `PARTS` and their sum, ``memory_bytes``."""
    parts = _eager_parts(run) if run.eager else _parts(run)
    return parts | {"memory_bytes": sum(parts.values())}


def _parts(run: TrainingRun) -> dict[str, float]:
    layers = [(run.layer_parameters(group), group) for group in run.model.layers]
    largest = max(size for size, _ in layers)
    in_layers = sum(size * group.count for size, group in layers)
    kept = [layer_activation_bytes(run, group) for _, group in layers]
    stream = run.tokens * run.model.hidden * run.stream_bytes
    logits = run.tokens * run.model.vocab * VALUE
    again = max(kept) * run.recompute
    all_kept = sum(group.count * each for (_, group), each in zip(layers, kept, strict=True)) + stream
    return {
        "state_bytes": STATE_VALUES * run.state_value_bytes * run.model.parameters / run.gpus,
        "gathered_bytes": _gathered_bytes(run),
        "saved_weight_bytes": float(VALUE * (largest if run.recompute else in_layers) * run.wide),
        "activation_bytes": float(stream * (run.model.layer_count + 1) if run.recompute else all_kept),
        "largest_bytes": float(logits + max(logits, again + largest * run.gathered_bytes)),
    }


def _eager_parts(run: TrainingRun) -> dict[str, float]:
    layers = [(run.layer_parameters(group), group.count, eager.kept_bytes(run, group)) for group in run.model.layers]
    in_layers = sum(size * count for size, count, _ in layers)
    head = run.model.vocab * run.model.hidden
    inputs = run.tokens * run.model.hidden * run.stream_bytes * run.model.layer_count
    kept = inputs if run.recompute else sum(count * each for _, count, each in layers)
    kept += eager.outer_kept_bytes(run)
    copies = VALUE * run.wide * (head if run.recompute else head + in_layers)
    value = run.state_value_bytes * run.model.parameters / run.gpus
    logits = run.tokens * run.model.vocab
    cached = VALUE * run.wide * in_layers * run.recompute
    passed = value * (run.accumulation > 1)
    loss = max(logits * (VALUE + 4 + 4) + cached, logits * (4 + 4 + 4))
    again = max(each + size * run.gathered_bytes for size, _, each in layers) + head * run.gathered_bytes
    return {
        "state_bytes": (STATE_VALUES - 1) * value,
        "gathered_bytes": _gathered_bytes(run) if run.gpus > 1 else 0.0,
        "saved_weight_bytes": float(copies),
        "activation_bytes": float(kept),
        "largest_bytes": float(max(max(loss, again * run.recompute) + passed, 2 * value - kept - copies)),
    }


def _gathered_bytes(run: TrainingRun) -> float:
    largest = max(run.layer_parameters(group) for group in run.model.layers)
    return float((2 * run.outer_parameters + GATHERED_LAYERS * largest) * run.gathered_bytes)


def fits(needed_bytes: np.ndarray, gpu: Gpu, gpus: np.ndarray) -> np.ndarray:
    """Return whether GPUs hold so many bytes beside the CUDA context and NCCL's buffers."""
    buffers = np.where(np.asarray(gpus) > 1, NCCL_BYTES[1], 0)
    return ~(np.asarray(needed_bytes) > gpu.dram_bytes - CONTEXT_BYTES - buffers)


def largest_micro_batch(run: TrainingRun) -> int | None:
    """Return the most sequences of a pass that fit; 0 if not even one does, None if the GPU's capacity is unknown."""

    def held(sequences: int) -> bool:
        needed = training_memory(replace(run, micro_batch=sequences))["memory_bytes"]
        return bool(fits(needed, run.gpu, run.gpus))

    if np.isnan(run.gpu.dram_bytes):
        return None
    # Memory grows with the sequences.
    most = min(MOST_SEQUENCES, MAX_TOKENS // run.sequence)
    return bisect_left(range(1, most + 1), True, key=lambda sequences: not held(sequences))


def layer_activation_bytes(run: TrainingRun, group: Layers) -> int:
    """Return what one layer keeps for its backward pass, if nothing is computed again."""
    attention, ffn, hidden = group.attention, group.ffn, run.model.hidden
    heads = attention.heads * attention.value_dim
    qkv = attention.heads * attention.head_dim + attention.kv_heads * (attention.head_dim + attention.value_dim)
    values = 2 * group.norms * hidden + qkv + heads + ffn.width * (3 if ffn.gated else 2)
    return run.tokens * values * VALUE
