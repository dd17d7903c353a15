"""The source notebook's model of an LLM on a chip with one cache, number for number (``seed_compatible: true``).

It is wrong in places (see :mod:`gpuledger.studies.kernel_breakdown.corrections`), and it is here so that what it
printed can be compared with what is right. Written anew from its formulas: a kernel is a product of m × k by k × n, of
which ``batch`` are computed; its time is the longer of m·k·n·batch over the chip's multiply-accumulates a second and of
the bytes of the tiles of A and B (see :mod:`gpuledger.studies.kernel_breakdown.tiling`) over the bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuledger.models.transformer import Attention, FeedForward, Model
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_breakdown.tiling import batch_to_square, theoretical_tile

#: What a value takes everywhere in the notebook.
BYTES_PER_VALUE = 2
#: The notebook's approximation of √3, by which it divides the input for the mean context of a chunk.
ROOT_3 = 1.73

#: Whole numbers, of one shape or an array of shape (shapes,).
Size = int | np.ndarray
#: What it breaks down.
PHASES = ("prefill", "decode", "chunked_prefill")

#: A product with weights, one of activations with the cache, a read of the cache, and one that costs no time.
WEIGHTS, ATTENTION, CACHE, ASYNC = "weights", "attention", "cache", "cache, asynchronous"


@dataclass(frozen=True)
class SourceModel:
    """What the notebook reads of a ``config.json``; every layer is the same, every head ``hidden / heads`` wide."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int

    @classmethod
    def of(cls, model: Model) -> SourceModel | None:
        """Read it as the notebook would; None where a model has layers of several kinds, experts or MLA."""
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
        """Outputs of the product that makes queries, keys and values."""
        return self.head_dim * (self.heads + 2 * self.kv_heads)


@dataclass(frozen=True)
class SourceChip:
    """What the notebook knows of a chip.

    Attributes
    ----------
    macs_per_s, bandwidth_bytes_per_s, clock_hz : float
    cache_bytes : float
    """

    macs_per_s: float
    bandwidth_bytes_per_s: float
    clock_hz: float
    cache_bytes: float

    @classmethod
    def of(cls, gpu: Gpu, precision: str) -> SourceChip:
        """Read it off a GPU: its peak in a precision, its L2 as the cache."""
        return cls(gpu.peak_flop_per_s(precision) / 2, gpu.dram_bytes_per_s, gpu.clock_hz, gpu.l2_bytes)


@dataclass(frozen=True)
class Chunk:
    """A chunk of prefill and decode together, as the notebook makes it from requests of one kind.

    Attributes
    ----------
    tokens : int
        Tokens of the chunk, prefill and decode in the proportion of input and output.
    input, output : int
        Tokens of every request.
    """

    tokens: int
    input: int
    output: int

    @property
    def decode_tokens(self) -> int:
        """Tokens that decode, one of each request."""
        return self.tokens * self.output // (self.input + self.output)

    @property
    def decode_context(self) -> int:
        """Tokens in the cache half way through the output."""
        return self.input + self.output // 2

    @property
    def prefill_tokens(self) -> int:
        return self.tokens - self.decode_tokens

    @property
    def prefill_context(self) -> int:
        """Tokens in the cache before a chunk of prefill, as the notebook approximates their mean."""
        return int(self.input / ROOT_3 - self.prefill_tokens // 2)

    @property
    def mean_prefill_context(self) -> float:
        """The mean of 0, p, 2p, … tokens before a chunk of p of them, up to the last chunk of the input."""
        return (self.input - self.prefill_tokens) / 2

    @property
    def right_context(self) -> int:
        """The same in whole tokens."""
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


def prefill_layers(model: SourceModel, batch: Size, tokens: Size) -> pd.DataFrame:
    """Break one layer of prefill down; see :func:`_layers`."""
    kernels = [
        ("qkv", WEIGHTS, tokens, model.hidden, model.qkv, batch),
        *_attention("attention_", tokens, tokens, batch, model),
        *_weights(tokens, batch, model),
        ("kv_store", ASYNC, tokens, model.head_dim, 2 * model.kv_heads, batch),
    ]
    return _layers("prefill", kernels)


def decode_layers(model: SourceModel, batch: Size, context: Size) -> pd.DataFrame:
    """Break one layer of decoding one token down; see :func:`_layers`."""
    kernels = [
        ("qkv", WEIGHTS, 1, model.hidden, model.qkv, batch),
        ("kv_read", CACHE, context, model.head_dim, 2 * model.kv_heads, batch),
        *_attention("attention_", 1, context, batch, model),
        *_weights(1, batch, model),
    ]
    return _layers("decode", kernels)


def chunk_layers(model: SourceModel, chunk: Chunk) -> pd.DataFrame:
    """Break one layer of a chunk down; see :func:`_layers`."""
    kv = (model.head_dim, 2 * model.kv_heads)
    kernels = [
        ("qkv", WEIGHTS, chunk.tokens, model.hidden, model.qkv, 1),
        ("decode_kv_read", CACHE, chunk.decode_context, *kv, chunk.decode_tokens),
        # An error of the notebook: the context of the requests that decode should stand here.
        *_attention("decode_attention_", 1, model.head_dim * model.kv_heads, chunk.decode_tokens, model),
        ("prefill_kv_read", ASYNC, chunk.prefill_context, *kv, 1),
        *_attention("prefill_attention_", chunk.prefill_tokens, chunk.prefill_context, 1, model),
        ("kv_store", ASYNC, chunk.prefill_tokens, *kv, 1),
        *_weights(chunk.tokens, 1, model),
    ]
    return _layers("chunked_prefill", kernels)


def layers_of(model: SourceModel, phases: Mapping[str, Mapping[str, int]]) -> pd.DataFrame:
    """Break one layer of every phase down; `phases` have the keys of a case's declaration."""
    made = {
        "prefill": lambda batch, input: prefill_layers(model, batch, input),
        "decode": lambda batch, context: decode_layers(model, batch, context),
        "chunked_prefill": lambda **chunk: chunk_layers(model, Chunk(**chunk)),
    }
    return pd.concat([made[phase](**given) for phase, given in phases.items()], ignore_index=True)


def _layers(phase: str, kernels: list[tuple]) -> pd.DataFrame:
    """Make a table of kernels, of one or of many shapes (sizes are whole numbers or arrays of shape (shapes,)).

    ``shape, phase, kernel, kind, m, k, n, batch`` and, per layer, ``macs``, ``weight_values`` and ``kv_values``
    (integers; 0 where the notebook counts none).
    """
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
    """Add what a kernel takes on a chip with the theoretical tiles.

    Parameters
    ----------
    layers : DataFrame
        Of :func:`prefill_layers`, :func:`decode_layers` or :func:`chunk_layers`, or several below one another.
    chip : SourceChip

    Returns
    -------
    DataFrame
        With further columns, per layer: ``tile_m, tile_k, tile_n`` (values, not whole), ``compute_cycles``,
        ``memory_cycles``, ``cycles`` (the longer one; none for what the notebook lets run beside the rest),
        ``bound`` (``compute``, ``memory`` or ``none``) and ``dram_bytes`` (what the memory cycles move).
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
