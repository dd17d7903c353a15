"""Time of the attention kernels in a model's pass: from their rows to what the laws of attention take."""

import numpy as np

from gpuledger.models.time_model.attention.backward_law import PRODUCTS, around_bytes, backward_terms
from gpuledger.models.time_model.attention.decode_law import decode_terms
from gpuledger.models.time_model.attention.encoder_law import encoder_terms
from gpuledger.models.time_model.attention.prefill_law import prefill_terms
from gpuledger.models.time_model.attention.sparse_kernels import WIDEST_HEAD, is_sparse, sparse_parts
from gpuledger.models.time_model.attention.sparse_law import sparse_terms
from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.kernel_rows import KernelRows
from gpuledger.readers.gpus import Gpu

#: A vision tower's kernel whose tokens attend to all others.
ENCODER = "image_attention"
#: The backward pass over whole sequences, with all of its kernels. Where none like it was measured, it takes
#: :data:`gpuledger.models.time_model.attention.backward_law.PRODUCTS` times as long as the forward kernel, at its rate.
BACKWARD = "attention_backward"
#: Bits of a cached value, by format; others have 16.
VALUE_BITS = {"fp8": 8, "int8": 8, "fp8_block": 8, "fp4": 4, "int4": 4, "mxfp4": 4, "nvfp4": 4, "fp32": 32, "tf32": 32}


def sparse_times(rows: KernelRows, gpu: Gpu, engine: str) -> dict[str, np.ndarray]:
    """Return the terms of one kernel of sparse attention, as :func:`attention_times` does."""
    operation, precisions, shapes, moved = sparse_parts(rows, gpu)
    found = choice.candidates("sparse", gpu, precisions, engine)
    terms = choice.fastest(found, lambda entry: sparse_terms(gpu, entry.constants, shapes, operation))
    return terms | {"fixed_s": terms["launch_s"], "dram_bytes": moved, "l2_bytes": moved}


def _encoder(rows: KernelRows, gpu: Gpu, engine: str) -> dict[str, np.ndarray]:
    """Attention between all tokens of a sequence, as in vision towers."""
    heads, k, macs, read, write = rows.floats("heads", "k", "macs", "read_bytes", "write_bytes")
    values = rows.label("precision")
    value_bytes = VALUE_BITS.get(values, 16) / 8
    # Sequences of different lengths stand for as many of their mean length, weighted by their tokens.
    every = write / (heads * k * value_bytes)
    tokens = macs / (2 * heads * k) / every
    shapes = {
        "requests": every / tokens,
        "tokens": tokens,
        "heads": heads,
        "head_dim": k,
        "value_bytes": np.full_like(k, value_bytes),
        "peak": np.full_like(k, gpu.peak_flop_per_s(values)),
    }
    found = choice.encoder_candidates(gpu, engine, float(k[0]))
    terms = choice.fastest(found, lambda entry: encoder_terms(gpu, entry.constants, shapes))
    moved = read + write
    return terms | {"fixed_s": terms["launch_s"], "dram_bytes": moved, "l2_bytes": moved}


def attention_times(rows: KernelRows, gpu: Gpu, engine: str) -> dict[str, np.ndarray]:
    """Predict attention kernels of one name, of the same formats and sizes of heads.

    Parameters
    ----------
    engine : str
        See :class:`gpuledger.models.time_model.kernels.KernelConstants`.

    Returns
    -------
    dict of str to arrays of shape (rows,)
        ``time_s``, its terms, ``fixed_s``, ``dram_bytes``, ``l2_bytes``, ``constants`` and ``error_percent``.
    """
    if rows.label("kernel") == ENCODER:
        return _encoder(rows, gpu, engine)
    if is_sparse(rows.label("kernel")):
        return sparse_times(rows, gpu, engine)
    backward = rows.label("kernel") == BACKWARD
    values, cache = map(rows.label, ("precision", "weight_precision"))
    decode = rows.label("kernel").startswith("decode")
    batch, heads, kv_heads, value_dim = rows.floats("batch", "heads", "kv_heads", "value_dim")
    m, n, k, macs = rows.floats("m", "n", "k", "macs")
    read, write, cached = rows.floats("read_bytes", "write_bytes", "cache_bytes")
    value_bytes, cache_bytes = (VALUE_BITS.get(name, 16) / 8 for name in (values, cache))
    requests = batch / heads
    # The requests of a launch stand for as many of their mean length, with as many pairs of query and key.
    pairs = macs / (requests * heads * (k + value_dim)) / (PRODUCTS if backward else 1)
    # Decoding latent attention, keys and values share what is cached; expanded, every head has its own. An indexer's
    # scores have no values.
    scores = value_dim[0] == 0
    width = k if scores else kv_heads * (k + value_dim)
    if decode and not scores:
        # Of requests that differ and have several tokens, this is less than the width.
        kept = np.rint(cached / (requests * np.where(m == 1, pairs, n) * cache_bytes))
        latent = _shares(kept, k, width, kv_heads)
        width = k if latent else width
    else:
        latent = bool(scores or (value_dim[0] != k[0] and (heads[0] == kv_heads[0] or k[0] > WIDEST_HEAD)))
    # Keys that latent attention expands are read, too.
    tokens = m if latent and not decode else np.minimum(m, read / (requests * heads * k * value_bytes))
    context = np.maximum((pairs - tokens * (tokens + 1) / 2) / tokens, 0)
    short = pairs < 0.999 * tokens * (tokens + 1) / 2
    shapes = {
        "requests": requests,
        "tokens": tokens,
        "context": context,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": (k + value_dim) / 2,
        "cache_values": np.broadcast_to(width, k.shape),
        "copied_values": np.zeros_like(k),  # the cache is written by a kernel of its own
        "window": np.where(short, np.ceil(pairs / tokens), 0),
        "value_bytes": np.full_like(k, value_bytes),
        "cache_bytes": np.full_like(k, cache_bytes),
        "peak": np.full_like(k, gpu.peak_flop_per_s(values)),
    }
    moved = read + write + cached
    if backward and (found := choice.backward_candidates(gpu)):
        terms = choice.fastest(found, lambda entry: backward_terms(gpu, entry.constants, shapes))
        return terms | {"fixed_s": terms["launch_s"], "dram_bytes": moved, "l2_bytes": moved}
    kind, law = ("decode", decode_terms) if decode else ("prefill", prefill_terms)
    narrow = ("bf16/fp8", "fp8/fp8", "bf16/bf16")
    formats = narrow if cache_bytes <= 1 else ("bf16/bf16",)
    found = choice.candidates(kind, gpu, formats, engine, latent, (float(shapes["head_dim"][0]),))
    terms = choice.fastest(found, lambda entry: law(gpu, entry.constants, shapes))
    terms["fixed_s"] = terms["launch_s"]
    # A block of decoding waits for its part of the cache; one of prefill computes.
    waits = "launch_s" if decode else "compute_s"
    terms[waits] = terms[waits] + terms["block_s"] * (terms["block_s"] > terms["dram_s"])
    if backward:
        terms |= {name: PRODUCTS * values for name, values in terms.items() if name.endswith("_s")}
        around_s = around_bytes(shapes) / gpu.dram_bytes_per_s
        terms |= {name: terms[name] + around_s for name in ("time_s", "dram_s")} | {"error_percent": np.nan}
    return terms | {"dram_bytes": moved, "l2_bytes": moved}


def _shares(kept: np.ndarray, k: np.ndarray, width: np.ndarray, kv_heads: np.ndarray) -> bool:
    """Return whether keys and values are the same *k* values, instead of *width*, if at least *kept* are cached."""
    most = kept.max()
    shared = most == k[0] or (k[0] > WIDEST_HEAD and most < (k[0] + width[0]) / 2)
    return bool(shared and kv_heads.max() == 1)
