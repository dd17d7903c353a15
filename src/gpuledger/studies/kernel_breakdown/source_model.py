"""The source notebook's model of an LLM on a chip with one cache, number for number (``seed_compatible: true``).

The model has errors (see :mod:`gpuledger.studies.kernel_breakdown.corrections`); it is kept to compare its output with
correct values. Reimplemented from its formulas: a kernel is a batch of products of m × k by k × n. Its time is the
larger of m·k·n·batch over the chip's MAC/s and of the bytes of the tiles of A and B (see
:mod:`gpuledger.studies.kernel_breakdown.tiling`) over the bandwidth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from gpuledger.models.transformer import Attention, FeedForward, Model
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_breakdown.tiling import batch_to_square, theoretical_tile

#: Bytes per value, throughout the notebook.
BYTES_PER_VALUE = 2
#: The notebook's approximation of √3; it takes input/√3 for the mean context of a chunk.
ROOT_3 = 1.73

#: An integer for one shape, or an integer array of shape (shapes,).
Size = int | np.ndarray

#: Kinds of kernels: a product with weights, a product with the cache, a cache read, and a cache access that is free.
WEIGHTS, ATTENTION, CACHE, ASYNC = "weights", "attention", "cache", "cache, asynchronous"


@dataclass(frozen=True)
class SourceModel:
    """What the notebook reads from a ``config.json``; all layers are identical, heads are ``hidden / heads`` wide."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int

    @classmethod
    def of(cls, model: Model) -> Self | None:
        """Take the notebook's view of a model; None if its layers differ or have experts or MLA."""
        layers = model.layers[0]
        if (
            len(model.layers) > 1
            or not isinstance(layers.attention, Attention)
            or not isinstance(layers.ffn, FeedForward)
        ):
            return None
        heads, kv_heads = layers.attention.heads, layers.attention.kv_heads
        return cls(model.hidden, layers.ffn.width, heads, kv_heads, model.layer_count)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def qkv(self) -> int:
        """Output features of the QKV projection."""
        return self.head_dim * (self.heads + 2 * self.kv_heads)


@dataclass(frozen=True)
class SourceChip:
    """What the notebook knows about a chip."""

    macs_per_s: float
    bandwidth_bytes_per_s: float
    clock_hz: float
    cache_bytes: float

    @classmethod
    def of(cls, gpu: Gpu, precision: str) -> Self:
        """Take a GPU's peak in a precision, its DRAM bandwidth, clock, and L2 as the cache."""
        return cls(gpu.peak_flop_per_s(precision) / 2, gpu.dram_bytes_per_s, gpu.clock_hz, gpu.l2_bytes)


@dataclass(frozen=True)
class Chunk:
    """A chunk that mixes prefill and decode, as the notebook composes it from identical requests."""

    tokens: int  # tokens in the chunk; prefill and decode are in the proportion of input to output
    #: Tokens per request.
    input: int
    output: int

    @property
    def decode_tokens(self) -> int:
        """Decode tokens, one per request."""
        return self.tokens * self.output // (self.input + self.output)

    @property
    def decode_context(self) -> int:
        """Tokens in the cache halfway through the output."""
        return self.input + self.output // 2

    @property
    def prefill_tokens(self) -> int:
        return self.tokens - self.decode_tokens

    @property
    def prefill_context(self) -> int:
        """Mean tokens in the cache before a prefill chunk, as the notebook approximates it."""
        return int(self.input / ROOT_3 - self.prefill_tokens // 2)

    @property
    def mean_prefill_context(self) -> float:
        """Mean tokens in the cache before a chunk of p tokens: of 0, p, 2p, … up to the last chunk of the input."""
        return (self.input - self.prefill_tokens) / 2

    @property
    def middle_context(self) -> int:
        """Tokens in the cache before the chunk in the middle of the input."""
        return (self.input - self.prefill_tokens) // 2


def _weights(m: Size, batch: Size, model: SourceModel) -> list[tuple]:
    hidden, wide = model.hidden, model.intermediate
    return [
        ("out", WEIGHTS, m, hidden, hidden, batch),
        ("ffn_up", WEIGHTS, m, hidden, wide, batch),
        ("ffn_gate", WEIGHTS, m, hidden, wide, batch),
        ("ffn_down", WEIGHTS, m, wide, hidden, batch),
    ]


def _attention(prefix: str, m: Size, n: Size, batch: Size, model: SourceModel) -> list[tuple]:
    return [(f"{prefix}{part}", ATTENTION, m, model.hidden, n, batch) for part in ("scores", "values")]


def _prefill(model: SourceModel, batch: Size, input: Size) -> list[tuple]:
    return [
        ("qkv", WEIGHTS, input, model.hidden, model.qkv, batch),
        *_attention("attention_", input, input, batch, model),
        *_weights(input, batch, model),
        ("kv_store", ASYNC, input, model.head_dim, 2 * model.kv_heads, batch),
    ]


def _decode(model: SourceModel, batch: Size, context: Size) -> list[tuple]:
    return [
        ("qkv", WEIGHTS, 1, model.hidden, model.qkv, batch),
        ("kv_read", CACHE, context, model.head_dim, 2 * model.kv_heads, batch),
        *_attention("attention_", 1, context, batch, model),
        *_weights(1, batch, model),
    ]


def _chunked_prefill(model: SourceModel, **given: int) -> list[tuple]:
    chunk, kv = Chunk(**given), (model.head_dim, 2 * model.kv_heads)
    return [
        ("qkv", WEIGHTS, chunk.tokens, model.hidden, model.qkv, 1),
        ("decode_kv_read", CACHE, chunk.decode_context, *kv, chunk.decode_tokens),
        # The notebook's error: n should be the context of the decoding requests.
        *_attention("decode_attention_", 1, model.head_dim * model.kv_heads, chunk.decode_tokens, model),
        ("prefill_kv_read", ASYNC, chunk.prefill_context, *kv, 1),
        *_attention("prefill_attention_", chunk.prefill_tokens, chunk.prefill_context, 1, model),
        ("kv_store", ASYNC, chunk.prefill_tokens, *kv, 1),
        *_weights(chunk.tokens, 1, model),
    ]


#: Phases that it supports, and their kernels.
PHASES: Mapping[str, Callable[..., list[tuple]]] = {
    "prefill": _prefill,
    "decode": _decode,
    "chunked_prefill": _chunked_prefill,
}


def has_phase(phase: str, given: Mapping | Sequence) -> bool:
    """Return whether the notebook has a phase with these keys: it has neither prefix caches, drafts nor images."""
    return phase in PHASES and not {"cached", "new", "images"} & set(given)


def layers_of(model: SourceModel, phase: str, **given: Size) -> pd.DataFrame:
    """Return the kernels of one layer of a phase as ``dataset.yaml`` declares it, for one or many shapes.

    Columns: ``shape, phase, kernel, kind, m, k, n, batch`` and, per layer, ``macs``, ``weight_values`` and
    ``kv_values`` (integers; 0 where the notebook counts none).
    """
    kernels = PHASES[phase](model, **given)
    names, kinds, *sizes = zip(*kernels, strict=True)
    flat = np.broadcast_arrays(*(np.atleast_1d(size) for row in sizes for size in row))
    table = np.array(flat, np.int64).reshape(4, len(kernels), -1).transpose(2, 1, 0)
    layers = pd.DataFrame(table.reshape(-1, 4), columns=["m", "k", "n", "batch"])
    layers.insert(0, "shape", np.repeat(np.arange(len(table)), len(kernels)))
    layers.insert(1, "phase", phase)
    layers.insert(2, "kernel", np.tile(np.array(names, object), len(table)))
    layers.insert(3, "kind", np.tile(np.array(kinds, object), len(table)))
    volume = layers["m"] * layers["k"] * layers["n"] * layers["batch"]
    products = layers["kind"].isin([WEIGHTS, ATTENTION])
    layers["macs"] = volume.where(products, 0)
    layers["weight_values"] = (layers["k"] * layers["n"]).where(layers["kind"] == WEIGHTS, 0)
    layers["kv_values"] = volume.where(~products, 0)
    return layers


def source_times(layers: pd.DataFrame, chip: SourceChip) -> pd.DataFrame:
    """Add the time of kernels on a chip, with theoretical tiles.

    Parameters
    ----------
    layers : DataFrame
        From :func:`layers_of`, or several concatenated.

    Returns
    -------
    DataFrame
        With further columns, per layer: ``tile_m, tile_k, tile_n`` (in values, fractional), ``compute_cycles``,
        ``memory_cycles``, ``cycles`` (the larger one; 0 for what the notebook overlaps with the rest), ``bound``
        (``compute``, ``memory`` or ``none``) and ``dram_bytes`` (moved in the memory cycles).
    """
    product = layers["kind"].isin([WEIGHTS, ATTENTION]).to_numpy()
    m, n = batch_to_square(layers["m"], layers["n"], layers["batch"])
    tile = theoretical_tile(m, layers["k"], n, chip.cache_bytes / BYTES_PER_VALUE)
    macs = layers["macs"].to_numpy(float)
    tile_bytes = (tile[:, 0] + tile[:, 2]) * tile[:, 1] * BYTES_PER_VALUE
    read = layers["kind"].eq(CACHE).to_numpy()
    moved = np.where(product, tile_bytes * macs / tile.prod(axis=1), layers["kv_values"] * BYTES_PER_VALUE)
    compute = np.where(product, macs / chip.macs_per_s * chip.clock_hz, 0)
    memory = np.where(product | read, moved / chip.bandwidth_bytes_per_s * chip.clock_hz, 0)
    tile[~product] = np.nan
    return layers.assign(
        tile_m=tile[:, 0],
        tile_k=tile[:, 1],
        tile_n=tile[:, 2],
        compute_cycles=compute,
        memory_cycles=memory,
        cycles=np.maximum(compute, memory),
        bound=np.select([compute > memory, product | read], ["compute", "memory"], "none"),
        dram_bytes=np.where(product | read, moved, 0),
    )
