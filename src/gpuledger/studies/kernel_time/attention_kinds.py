"""Kinds of attention: prefill, decode, encoders, selected keys, and the products around latent attention."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuledger.models.time_model import work
from gpuledger.models.time_model.attention import (
    backward_law,
    decode_latent,
    decode_law,
    decode_splits,
    encoder_law,
    latent_products,
    prefill_law,
    prefill_tiles,
    sparse_law,
)
from gpuledger.models.time_model.attention.decode_law import DecodeConstants
from gpuledger.models.time_model.attention.prefill_law import PrefillConstants
from gpuledger.models.time_model.constants.table import AnyConstants
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.kernel_tables.engines import PYTORCH
from gpuledger.readers.tabular import numbers_of
from gpuledger.studies.kernel_time.benchmark_loops import ticked
from gpuledger.studies.kernel_time.kind import FittedKernel, Kind, Shapes, peak_of

_ATTENTION = ("requests", "tokens", "context", "heads", "kv_heads", "head_dim", "cache_values", "window")
_BYTES = ("value_bytes", "cache_bytes")


def _attention_shapes(gpu: Gpu, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    peak = rows["value_bytes"].map({2: gpu.peak_flop_per_s("bf16"), 1: peak_of(gpu, "fp8")}).to_numpy(dtype=float)
    copied = rows["cache_values"].where(~rows["kernel"].isin(PYTORCH), 0).to_numpy(dtype=float)
    return numbers_of(rows, (*_ATTENTION, *_BYTES)) | {"peak": peak, "copied_values": copied}


def _attention_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shapes = _attention_shapes(gpu, rows)
    return *work.attention_work(shapes), shapes["peak"]


def _backward_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shapes = _attention_shapes(gpu, rows)
    flop, _ = work.attention_work(shapes)
    return backward_law.PRODUCTS * flop, backward_law.moved_bytes(shapes), shapes["peak"]


_ENCODER = ("requests", "tokens", "heads", "head_dim")
_PRODUCT = ("tokens", "columns", "depth", "heads")


def _encoder_shapes(gpu: Gpu, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    two = np.full(len(rows), 2.0)
    return numbers_of(rows, _ENCODER) | {"value_bytes": two, "peak": gpu.peak_flop_per_s("bf16") * two / 2}


def _encoder_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    requests, tokens, heads, dim = numbers_of(rows, _ENCODER).values()
    # All pairs: no mask hides any.
    values = requests * heads * tokens * dim
    return 4 * values * tokens, 2 * 4 * values, np.full(len(rows), gpu.peak_flop_per_s("bf16"))


def _product_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, columns, depth, heads = numbers_of(rows, _PRODUCT).values()
    peaks = rows["precision"].map({name: peak_of(gpu, name) for name in ("bf16", "fp8")}).to_numpy(dtype=float)
    weights = np.where(rows["precision"] == "fp8", 1, 2) * columns * depth
    return 2 * tokens * columns * depth * heads, heads * (2 * tokens * (columns + depth) + weights), peaks


def _product_terms(gpu: Gpu, constants: AnyConstants, shapes: Shapes, precision: str) -> dict[str, np.ndarray]:
    terms = latent_products.product_terms(gpu, constants, shapes, precision)
    return terms | {"time_s": ticked(gpu, terms["time_s"])}


#: Bytes of a score, of a cached key of an indexer with its scale, and of one of attention.
_SCORE, _INDEX_KEY, _KEY = 4, 132, 1152


def _sparse_shapes(gpu: Gpu, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    requests, tokens, context, heads, width, places, ratio = numbers_of(
        rows, ("requests", "tokens", "context", "heads", "width", "places", "ratio")
    ).values()
    operation = rows["operator"].iloc[0]
    queries, behind = requests * tokens, np.maximum((context + tokens) // ratio, 1)
    if operation.endswith("attention"):
        # Benchmarks let every token attend to as many keys as there are, later ones included.
        keys = np.minimum(behind, places)
        moved = 2 * queries * heads * width + requests * np.minimum(behind, tokens * places) * _KEY
    elif operation == "top-k":
        keys, moved = behind, queries * _SCORE * (behind + places)
    else:
        keys = np.maximum((context + (tokens + 1) / 2) // ratio, 1)
        moved = queries * (keys * _SCORE + heads * _INDEX_KEY) + requests * behind * _INDEX_KEY
    one = np.ones_like(queries)
    shapes = {
        "tokens": queries,
        "heads": heads,
        "keys": keys,
        "places": np.where(places > 0, places, keys) if operation.endswith("attention") else keys,
        "spread": 0 * one,
        "width": width,
        "key_bytes": _SCORE * one,
        "moved": moved,
        "peak": one * peak_of(gpu, "bf16" if operation.endswith("attention") else "fp8"),
    }
    if operation == "scores":
        together = np.maximum(sparse_law.ROWS["scores"][0] // heads, 1)
        shapes["keys"] = keys * np.minimum(requests, np.ceil(together / tokens))
        shapes["spread"] = (tokens - 1) / ratio
    return shapes


def _sparse_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    s = _sparse_shapes(gpu, rows)
    pairs = s["tokens"] * np.maximum((rows["context"] + (rows["tokens"] + 1) / 2) / rows["ratio"], 1).to_numpy()
    pairs = np.minimum(pairs, s["tokens"] * s["keys"])
    return 2 * pairs * s["heads"] * s["width"], s["moved"], s["peak"]


_SHAPE = ("requests", "tokens", "context", "heads", "kv_heads", "head_dim", "window")


def _sparse(operation: str) -> Kind:
    start = sparse_law.starts(operation)[0]
    shape = ("requests", "tokens", "context", "heads")
    return Kind(
        "sparse",
        _sparse_shapes,
        sparse_law.sparse_terms,
        start,
        sparse_law.bounds_of(operation),
        sparse_law.CHOICES[operation],
        _sparse_work,
        shape,
        ("context", (-1, 255, 2047, 16383, 2**20)),
    )


#: Kernels of TensorRT-LLM, as its tables name them; theirs are the rules of `decode_law.PACKING` that begin so.
_RULED, _RULE = "torch_flow", "enough"


def _prefill_starts(starts: list[PrefillConstants], kernel: FittedKernel) -> list[PrefillConstants]:
    """Return starts with a rule for tiles, which leaves nothing to choose but whether it holds."""
    pattern = prefill_tiles.pattern_of(kernel.name, kernel.gpu, kernel.precision)
    if pattern in ("fixed", "tensorrt"):
        return [replace(start, pattern=pattern) for start in starts]
    if pattern.endswith("flash 3"):
        return [replace(starts[-1], pattern=pattern)]
    if pattern == "tensorrt fp8":
        return [replace(starts[0], pattern=pattern)]
    return [replace(starts[0], pattern=pattern), replace(starts[0], query_tile=64)]


def _decode_starts(starts: list[DecodeConstants], kernel: FittedKernel) -> list[DecodeConstants]:
    ruled = kernel.name.startswith(_RULED)
    pattern, heads = decode_splits.pattern_of(kernel.name, kernel.gpu, kernel.precision)
    starts = [start for start in starts if ruled or not start.packing.startswith(_RULE)]
    starts = [replace(start, pattern=pattern, query_tile=heads) for start in starts]
    # Whose rules say all.
    return starts[:1] if pattern in decode_latent.STARTS else starts


#: By the operator of a row.
ATTENTION: Mapping[str, Kind] = {
    "prefill": Kind(
        "prefill",
        _attention_shapes,
        lambda gpu, constants, shapes, _: prefill_law.prefill_terms(gpu, constants, shapes),
        prefill_law.START,
        prefill_law.RANGES,
        {"packing": ("never", "one token", "up to 32", "always"), "query_tile": (16, 32, 64, 128)},
        _attention_work,
        _SHAPE,
        ("tokens", (0, 64, 512, 4096, 2**20)),
        starts=_prefill_starts,
        started=lambda start, kernel, shapes: prefill_law.started(start, kernel.name, shapes["head_dim"]),
    ),
    "decode": Kind(
        "decode",
        _attention_shapes,
        lambda gpu, constants, shapes, _: decode_law.decode_terms(gpu, constants, shapes),
        decode_law.START,
        decode_law.RANGES,
        {"packing": ("never", "no window", "up to 32", "always", "enough blocks", "enough blocks, whole")},
        _attention_work,
        _SHAPE,
        ("context", (-1, 255, 2047, 16383, 2**20)),
        starts=_decode_starts,
        started=lambda start, *_: decode_law.started(start),
    ),
    "backward": Kind(
        "backward",
        _attention_shapes,
        lambda gpu, constants, shapes, _: backward_law.backward_terms(gpu, constants, shapes),
        backward_law.START,
        backward_law.RANGES,
        {},
        _backward_work,
        _SHAPE,
        ("tokens", (0, 512, 1024, 4096, 2**20)),
        starts=lambda starts, kernel: backward_law.starts(starts, kernel.name),
        started=lambda start, kernel, shapes: backward_law.started(start, shapes),
    ),
    "encoder": Kind(
        "encoder",
        _encoder_shapes,
        lambda gpu, constants, shapes, _: encoder_law.encoder_terms(gpu, constants, shapes),
        encoder_law.START,
        encoder_law.RANGES,
        {"query_tile": (64, 128, 256), "key_tile": (64, 128)},
        _encoder_work,
        _ENCODER,
        ("tokens", (0, 64, 512, 4096, 2**20)),
        starts=lambda starts, kernel: encoder_law.starts(starts, kernel.name),
        started=lambda start, *_: encoder_law.started(start),
    ),
    "bmm": Kind(
        "bmm",
        lambda gpu, rows: numbers_of(rows, _PRODUCT),
        _product_terms,
        latent_products.START,
        latent_products.RANGES,
        {},
        _product_work,
        _PRODUCT,
        ("tokens", (0, 64, 512, 4096, 2**20)),
        started=lambda start, kernel, _: latent_products.started(start, kernel.precision),
    ),
    **{operation: _sparse(operation) for operation in sparse_law.CHOICES},
}
