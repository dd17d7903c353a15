"""Transformers as kernels: from a config.json to the kernel launches of a forward pass, with shapes, MACs and bytes.

>>> model = read_model("Llama-3.1-8B")                  # resources/models/, a file, or a hub id
>>> model.parameters
8030261248
>>> work = decode(context_tokens=[1024, 8192], batch=16)   # two shapes
>>> rows = kernels(model, work, parallel=Parallel(tensor=2))

**Rows.** :func:`kernels` returns one row per (shape, stage, kind of layer, kernel), and a second row where launches of
the same kernel differ (norms with and without a residual add, the two directions of an all-to-all). All sizes are per
launch and per device. Multiply by ``count`` for one pass on one device, and by ``devices`` for all devices of a stage;
kernels that every device repeats in full (norms, router, MLA's compression) also list all devices.

=================  ========  ==========================================================================================
column             dtype     meaning
=================  ========  ==========================================================================================
shape              int64     index of the shape in the workload, 0 … ``workload.shapes - 1``
phase              category  prefill, decode, chunked_prefill or mixed
stage              int64     pipeline stage, 0 … ``parallel.pipeline - 1``
layers             int64     index of the layer kind in ``model.layers``; −1 outside the layers, −2 in the vision tower
kernel             category  see below
kind               category  gemm, grouped_gemm, attention, recurrent, elementwise or collective
count              int64     launches per pass on one device of the stage (never 0: rows without work are dropped)
devices            int64     devices that launch it together: the tensor-parallel or the expert-parallel group
batch              int64     independent problems in one launch
m, n, k            int64     rows (tokens), columns and depth of one problem
heads, kv_heads    int64     attention: query and KV heads on the device; recurrent: heads of values and of keys; 0
                             otherwise
value_dim          int64     attention and recurrent: width of a value head; 0 otherwise
choices            int64     grouped_gemm: (token, expert) pairs on all devices; recurrent: decays of a token; 0
                             otherwise
arrived            int64     grouped_gemm: of them those that an all-to-all brings to the device; 0 otherwise
experts            int64     grouped_gemm: experts on the device; 0 otherwise
macs               int64     multiply-accumulates of matrix products (FLOP = 2 × macs); 0 for elementwise kernels,
                             convolutions and collectives
weight_bytes       int64     weights read, with their scales and biases
read_bytes         int64     activations read
write_bytes        int64     activations written (kv_write: to the cache)
cache_bytes        int64     KV cache read
comm_bytes         int64     bytes that one device sends; 0 unless collective
precision          category  of the arithmetic: fp32, tf32, bf16, fp16, fp8, int8 or fp4
weight_precision   category  of the stored weights (attention: of the cache), without scales: also fp8_block
                             (a scale per square block), int4, mxfp4, nvfp4
routing            category  grouped_gemm: how tokens choose experts, unless all equally often; else missing
=================  ========  ==========================================================================================

The DRAM traffic of a launch that reads each tensor once is
``weight_bytes + read_bytes + write_bytes + cache_bytes``.

**gemm**: ``macs = batch·m·n·k``. Batch is 1 except for the two per-head products of absorbed MLA decoding (whose
weights engines keep unquantised), for ``out_a_proj`` (one matrix per group of heads) and for unfused attention.

**grouped_gemm** (routed experts): ``macs`` = rows·n·k with rows = tokens × experts per token (with expert parallelism:
the rows of the busiest device, rounded to the nearest). Batch is the expected number of experts on the device that
receive a token, Σ 1 − (1 − pₑ)^tokens, rounded; m is the number of rows per such expert, rounded up, so
``batch·m·n·k ≥ macs``. ``weight_bytes`` uses the unrounded expectation.

**attention** (one fused kernel: scores, softmax, values): batch = requests × query heads on the device; m = new tokens
and n = context (past and new tokens, at most ``window + m − 1``) of the *longest* request; k = width of a query head.
``macs = pairs · heads · (k + width of a value head)``, where pairs is the exact number of (query, key) pairs under the
causal mask and the window. ``cache_bytes`` counts each visible key and value once per KV head, new tokens included;
``read_bytes`` is the queries and ``write_bytes`` the output. Requests with one new token, or with up to 16 behind a
longer context, are ``decode_attention``, the others ``attention``; a mixed batch launches both. MLA's
``decode_attention`` has one compressed key head (k = kv_rank + rope_dim) shared by all query heads; its ``attention``
reads expanded keys and values, which count as ``read_bytes``. With MLA, requests are in the form that takes fewer MACs.
With an indexer, the keys are those that it selects (blocks of keys count in full), and MLA has one key head for every
request: ``sparse_attention`` and ``decode_sparse_attention``, n the places of the selection; prompts that end within it
attend to everything, expanded. With a compressed past (DeepSeek-V4), they are those of the window and the complete
entries, one per 4 or 128 tokens.

**recurrent** (linear attention and SSMs): delta_rule, with batch = requests × value heads on the device and k = width
of a key; delta_conv and ssm_conv, with batch = requests and k = tokens that a result depends on. m = new tokens of a
request, the mean rounded up; n = values of a token. Requests with one new token, or with up to 16 behind a longer
context, are decoding (decode_delta_rule, decode_delta_conv, …), where a state is written after each token.

**vision tower** (names begin with ``image_``, :mod:`gpuledger.models.transformer.launches.vision`): m = patches of all
images of a shape; image_attention has no mask and no cache, and m and n are the tokens of its longest sequence.

**elementwise**: m rows of n values, k = 1; ``macs`` are 0 but for ssm_scan. Outputs are written in the
format that the following GEMM reads (``Precision.operands``).
**collective**: m rows of n values are exchanged among ``devices``.

**Kernels** in the order of a pass: of the vision tower image_patch_proj, image_position, image_pre_norm, per layer as
the text model's with ``image_`` before their names, image_post_norm, image_pool, image_merger_norm, image_merger_proj,
image_merger_act, image_insert, image_all_reduce; embedding, embedding_norm, embedding_scale, position_embedding,
per_layer_embedding, per_layer_model_proj, per_layer_norm (of models whose layers have embeddings of their own; after
each layer per_layer_gate_proj, per_layer_act, per_layer_proj, per_layer_post_norm), altup_proj and altup_scale (of
several streams; before each layer altup_norm, altup_router, altup_coefficients, altup_predict, laurel_down_proj,
laurel_up_proj, laurel_norm, behind it altup_norm, altup_router, altup_coefficients, altup_correct, altup_add, at the
end altup_sum), of a draft layer draft_norm and draft_proj; per layer attn_norm, qkv_proj (q_proj, k_proj, v_proj),
qkv_clip, qk_norm, rope, kv_write (rope_kv_write), relative_bias, attention, decode_attention, attn_out_norm, out_proj,
attn_out_conv, attn_post_norm, attn_residual, ffn_norm, gate_up_proj (gate_proj, up_proj), ffn_cutoff, ffn_act,
ffn_inner_norm, down_proj, ffn_out_conv, ffn_post_norm, ffn_residual; with gated norms norm_gate_proj,
norm_gate_up_proj, norm_gate; with n-grams ngram_embedding, ngram_proj, ngram_gate, ngram_conv; for MLA qkv_a_proj
(q_a_proj, kv_a_proj), q_a_norm, kv_a_norm, q_b_proj (or q_proj, kv_a_proj), kv_b_proj, context_kv_b_proj, q_absorb,
value_absorb; with an indexer index_q_proj, index_k_proj, index_weights_proj, index_rope, index_scores
(decode_index_scores), index_topk, and sparse_attention (decode_sparse_attention), which DeepSeek-V4 has in all layers;
with a compressed past compress_proj, compress_pool, index_compress_proj, index_compress_pool, out_rope, out_a_proj; for
linear attention delta_in_proj, delta_gates_proj, delta_decay_proj, delta_gate_proj, delta_conv (decode_delta_conv),
delta_rule (decode_delta_rule), delta_norm, or ssm_in_proj, ssm_scale, ssm_conv (decode_ssm_conv), ssm_scan
(decode_ssm_scan), ssm_norm, or (lightning attention, a scan with fixed decays) qkv_proj, ssm_act, ssm_scan
(decode_ssm_scan), ssm_norm, attn_gate_proj, attn_gate, or (Mamba-1) ssm_in_proj, ssm_conv, ssm_x_proj, ssm_norm,
ssm_step_proj, ssm_scan, or (LFM2) ssm_in_proj, attn_gate, ssm_conv, attn_gate; of attention beside Mamba-2 the kernels
of both, branch_add; of a block that layers share block_concat, block_norm, adapter_qkv_proj, adapter_qkv_proj_up,
adapter_add, block_out_proj, adapter_gate_up_proj, adapter_gate_up_proj_up; attn_gate_proj, attn_gate; in place of
residual adds hyper_proj, hyper_sum, hyper_add (streams of hyper-connections; with a gate per value hyper_norm,
hyper_proj, hyper_act, hyper_up_proj, hyper_sum, hyper_add), or residual_sum beside them (snapshots of the stream); with
experts router_norm, latent_down_proj, router, router_topk, shared_gate_up_proj (…), shared_act, shared_down_proj,
shared_gate, shared_scale, shared_norm, expert_norm, expert_permute, expert_gate_up_proj (…), expert_act,
expert_down_proj, expert_combine, zero_experts, latent_norm, expert_post_norm, latent_up_proj, shared_add; final_norm,
lm_head, logit_softcap; all_reduce, all_gather, reduce_scatter, all_to_all, send. Unfused attention is attention_scores,
softmax, attention_values
(decode_attention_scores, decode_softmax, …); with ragged requests ``batch·m·n·k ≥ macs``.

**Not modelled**: sampling, dropout, split-K workspaces, cache reuse between launches, the preparation of images
(decoding, resizing), videos and audio (:func:`read_model` accepts models that take them). Layers of multi-token
prediction are models of their own (:meth:`Model.draft_layer`).
"""

from gpuledger.models.transformer.blocks.image_sizes import Images
from gpuledger.models.transformer.blocks.latent import LatentAttention
from gpuledger.models.transformer.blocks.standard import Attention, Experts, FeedForward
from gpuledger.models.transformer.configuration import read_model
from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.kernels import kernels
from gpuledger.models.transformer.model import Layers, Model
from gpuledger.models.transformer.parallel import Parallel
from gpuledger.models.transformer.workloads import Workload, chunk, decode, join, mixed, prefill
