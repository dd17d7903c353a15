"""Transformers as kernels: from a config.json to the launches of a pass, with exact shapes, MACs and bytes.

Four steps, each a value of its own:

>>> model = read_model("Llama-3.1-8B")                  # resources/models/, a file, or a hub id
>>> model.parameters
8030261248
>>> work = decode(context_tokens=[1024, 8192], batch=16)   # two shapes
>>> rows = kernels(model, work, parallel=Parallel(tensor=2))

**Rows.** :func:`kernels` returns a frame with one row per (shape, stage, kind of layer, kernel), and a second one where
launches of a kernel differ (norms with and without a residual to add, the two ways of an all-to-all). Everything is of
one launch on one device; multiply by ``count`` for a pass, and by ``devices`` too for the devices of a stage that share
the launch. Those that each do the whole of it (norms, router, MLA's compression) are counted so as well.

=================  ========  ==========================================================================================
column             dtype     meaning
=================  ========  ==========================================================================================
shape              int64     index of the shape in the workload, 0 … ``workload.shapes - 1``
phase              category  prefill, decode, chunked_prefill or mixed
stage              int64     pipeline stage, 0 … ``parallel.pipeline - 1``
layers             int64     index of the kind of layer in ``model.layers``; −1 outside the layers
kernel             category  see below
kind               category  gemm, grouped_gemm, attention, elementwise or collective
count              int64     launches in a pass on one device of the stage (never 0: rows without work are left out)
devices            int64     devices that launch it together: the tensor group; those that share the experts
batch              int64     independent problems in one launch
m, n, k            int64     rows (tokens), columns and depth of one of them
macs               int64     multiply-accumulates of matrix work (FLOP = 2 × macs); 0 for elementwise and collective
weight_bytes       int64     weights read, with their scales and biases
read_bytes         int64     activations read
write_bytes        int64     activations written (kv_write: to the cache)
cache_bytes        int64     KV cache read
comm_bytes         int64     bytes that one device sends; 0 unless collective
precision          category  of the math: fp32, tf32, bf16, fp16, fp8 or int8
weight_precision   category  of the weights' values (attention: of the cache), before scales: also int4, mxfp4
=================  ========  ==========================================================================================

DRAM traffic of a launch that reads each tensor once is ``weight_bytes + read_bytes + write_bytes + cache_bytes``.

**gemm**: ``macs = batch·m·n·k``; batch is 1 but for the two products per head that MLA's decoding absorbs (whose
weights are unquantised, as engines prepare them) and for unfused attention.

**grouped_gemm** (routed experts): ``macs`` = rows·n·k, rows = tokens × experts a token uses (under expert parallelism
those of the busiest device, to the nearest row). Batch is the expected number of experts of the device that get a
token, Σ 1 − (1 − pₑ)^tokens, rounded, m the rows per such expert, rounded up, so that ``batch·m·n·k ≥ macs``;
``weight_bytes`` are those of that expected number, not rounded before.

**attention** (one launch of a fused kernel: scores, softmax, values): batch = requests × query heads of the device,
m = new tokens and n = context (past and new tokens; at most ``window + m − 1``) of the *longest* request, k = width of
a query. ``macs = pairs · heads · (k + width of a value)``, pairs = Σ over requests and new tokens of the keys that the
token may see (itself, and at most window − 1 before it), an exact integer. ``cache_bytes`` reads each visible key and
value once per KV head, new tokens included; ``read_bytes`` is the queries, ``write_bytes`` the output. Requests with
one new token are ``decode_attention``, those with more are ``attention``: two launches in a mixed batch. MLA's
``decode_attention`` has one compressed head of keys (k = kv_rank + rope_dim wide) for all query heads; its
``attention`` reads expanded keys and values, which count as ``read_bytes``.

**elementwise**: m rows of n values, k = 1. What a following GEMM converts (``Precision.operands``) is written so.
**collective**: m rows of n values are exchanged among ``devices``.

**Kernels** in the order of a pass: embedding, embedding_scale, position_embedding; per layer attn_norm, qkv_proj
(q_proj, k_proj, v_proj), qk_norm, rope, kv_write, attention, decode_attention, out_proj, attn_post_norm, attn_residual,
ffn_norm, gate_up_proj (gate_proj, up_proj), ffn_act, down_proj, ffn_post_norm, ffn_residual; for MLA qkv_a_proj
(q_a_proj, kv_a_proj), q_a_norm, kv_a_norm, q_b_proj (or q_proj, kv_a_proj), kv_b_proj, context_kv_b_proj, q_absorb,
value_absorb; with experts router, router_topk, shared_gate_up_proj (…), shared_act, shared_down_proj, shared_gate,
shared_scale, expert_permute, expert_gate_up_proj (…), expert_act, expert_down_proj, expert_combine, shared_add;
final_norm, lm_head, logit_softcap; all_reduce, all_gather, all_to_all, send. Not fused, attention is attention_scores,
softmax, attention_values (decode_attention_scores, decode_softmax, …), where ``batch·m·n·k ≥ macs`` of ragged requests.

**Not modelled**: sampling, dropout, the temporary results of split-K, what several launches leave in a cache, vision
towers and layers for further tokens (``Model.omitted`` names those).
"""

from gpuledger.models.transformer.configuration import read_model
from gpuledger.models.transformer.kernels import kernels
from gpuledger.models.transformer.model import Attention, Experts, FeedForward, LatentAttention, Layers, Model
from gpuledger.models.transformer.parallel import Parallel
from gpuledger.models.transformer.precision import Precision
from gpuledger.models.transformer.workloads import (
    Workload,
    chunk,
    chunked_prefill,
    decode,
    join,
    mixed,
    prefill,
    spread_lengths,
)

__all__ = [
    "Attention",
    "Experts",
    "FeedForward",
    "LatentAttention",
    "Layers",
    "Model",
    "Parallel",
    "Precision",
    "Workload",
    "chunk",
    "chunked_prefill",
    "decode",
    "join",
    "kernels",
    "mixed",
    "prefill",
    "read_model",
    "spread_lengths",
]
