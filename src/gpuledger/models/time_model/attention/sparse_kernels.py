"""From a model's rows of sparse-attention kernels to the shapes that their law takes."""

import numpy as np

from gpuledger.models.time_model.attention.sparse_law import ROWS
from gpuledger.models.time_model.kernel_rows import KernelRows
from gpuledger.readers.gpus import Gpu

#: The kernel that selects keys.
SELECTION = "index_topk"
#: Operation of the law by kernel.
_OPERATIONS = {
    "sparse_attention": "attention",
    "decode_sparse_attention": "decode attention",
    "index_scores": "scores",
    "decode_index_scores": "decode scores",
    SELECTION: "top-k",
}
#: Wider query heads are those of absorbed or shared keys and values.
WIDEST_HEAD = 256
#: Bytes of a score, and of the scale that the fp8 values of a query's head share.
_SCORE, _SCALE = 4, 4


def is_sparse(kernel: str) -> bool:
    """Return whether :mod:`gpuledger.models.time_model.attention.sparse_law` says how long a kernel takes."""
    return kernel in _OPERATIONS


def precisions_of(operation: str, narrow_cache: bool) -> tuple[str, ...]:
    """Return how the table of constants names an operation, the nearest first."""
    if not operation.endswith("attention"):
        return (operation,)
    narrow = (f"{operation} with fp8 cache",) if narrow_cache else ()
    first = operation.split(" ")[0]
    other = precisions_of(operation.removeprefix(f"{first} "), narrow_cache) if first != "attention" else ()
    return (*narrow, operation, *other)


def sparse_parts(rows: KernelRows, gpu: Gpu) -> tuple[str, tuple[str, ...], dict[str, np.ndarray], np.ndarray]:
    """Return the operation, the names of its constants, the law's shapes and the bytes moved, of one kernel's rows."""
    kernel = rows.label("kernel")
    operation = _OPERATIONS[kernel]
    batch, m, n, k, heads, kv_heads, value_dim = rows.floats("batch", "m", "n", "k", "heads", "kv_heads", "value_dim")
    macs, read, write, cached = rows.floats("macs", "read_bytes", "write_bytes", "cache_bytes")
    one, moved = np.ones_like(m), read + write + cached
    if kernel == SELECTION:
        keys = read / (_SCORE * m)
        shapes = {"tokens": m, "heads": one, "keys": keys, "places": keys, "spread": 0 * one, "width": 0 * one}
        shapes |= {"key_bytes": _SCORE * one, "moved": moved, "peak": one}
        return operation, (operation,), shapes, moved
    values, cache = rows.label("precision"), rows.label("weight_precision")
    attends = value_dim[0] > 0
    requests = batch / heads
    value = 1 if values == "fp8" else 2
    row = heads * k * value if attends or values != "fp8" else heads * (k * value + _SCALE)
    tokens = read / row
    keys = macs / (tokens * heads * (k + value_dim))
    spread = np.where(tokens > requests, np.minimum(m - 1, keys), 0)
    if attends and value_dim[0] == k[0]:
        # Keys are the values, in all their width (DeepSeek-V4), or key/value heads have blocks each (MiniMax-M3).
        kind = "compressed" if k[0] > WIDEST_HEAD else "block"
        operation = operation.replace("attention", f"{kind} attention")
        tokens, heads = tokens * kv_heads, heads / kv_heads
    if not attends:
        # A block of several requests' tokens goes from the first key of the first to the last of the last.
        together = np.maximum(ROWS["scores"][0] // heads, 1)
        several = np.minimum(requests, np.ceil(together * requests / tokens))
        keys = keys * (several if operation == "scores" else 1)
    shapes = {
        "tokens": tokens,
        "heads": heads,
        "keys": keys,
        "places": np.where(attends, n, keys),
        "spread": spread * (not attends),
        "width": k + value_dim,
        "key_bytes": 0 * one,
        "moved": moved,
        "peak": np.full_like(m, gpu.peak_flop_per_s(values if values in gpu.precisions else "bf16")),
    }
    return operation, precisions_of(operation, cache.startswith("fp8")), shapes, moved
