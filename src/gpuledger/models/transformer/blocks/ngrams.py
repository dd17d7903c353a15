"""Embeddings of the last tokens together, which some layers add to the residual streams (Qwen4-Exp)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuledger.models.transformer.blocks.standard import Linear
from gpuledger.models.transformer.rules.keys import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ConfigKeys

#: Bounds of a table's size, and of the rows that a head has at least.
_MOST_HEADS, _MOST_ROWS = 256, 2**30


@dataclass(frozen=True)
class NGrams:
    """A token reads one row per head, by a hash of the last tokens; keys and values are projected from all of them.

    The value is added to every residual stream, scaled by how much the stream and its key are alike, and then convolved
    with earlier ones, one in *order* tokens.
    """

    rows: int  # of the table, for all heads
    heads: int
    head_dim: int
    streams: int
    conv: int  # tokens that the convolution spans
    order: int  # tokens that the longest n-gram has

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def idle(self) -> int:
        """Parameters of the table that a token does not read."""
        return (self.rows - self.heads) * self.head_dim

    def linears(self, hidden: int) -> Iterator[Linear]:
        # Devices split a row (transformers' plan for tensor parallelism, which also has the reason).
        yield Linear("ngram_embedding", "ngram_embedding", self.rows, self.head_dim, False, "rows", self.head_dim)
        yield Linear("ngram_proj", "ngram_keys", self.streams * hidden, self.width)
        yield Linear("ngram_proj", "ngram_values", hidden, self.width)

    def vectors(self, hidden: int) -> int:
        # Norms of keys, of streams and of the convolution's input; its weights.
        return self.streams * hidden * (3 + self.conv)

    def state_bytes(self, hidden: int) -> int:
        """Bytes per request and layer: the convolution's earlier inputs in 16 bits, and the last tokens."""
        return 2 * self.streams * hidden * (self.conv - 1) * self.order + 8 * (self.order - 1)


def read_ngrams(keys: ConfigKeys, layers: int) -> list[NGrams | None]:
    """Return the embeddings of every layer; those that have any are listed by number, from 1."""
    listed = keys.value("ple_layer_ids", None) or []
    if not isinstance(listed, list) or not all(type(one) is int and 1 <= one <= layers for one in listed):
        raise keys.error("ple_layer_ids", f"not a list of layer numbers within 1 … {layers}", "correct it")
    keys.known |= {key for key in keys.content if "ngram" in key or key.startswith("ple_")} | {"seed"}
    if not listed:
        return [None] * layers
    order, heads = keys.integer("ngram_size", MAX_LAYERS, 3, low=2), keys.integer("heads_per_ngram", MAX_HEADS, 8)
    hidden = keys.integer("hidden_size", MAX_WIDTH)
    heads, width = (order - 1) * heads, keys.integer("ple_embed_dim", MAX_WIDTH, None) or hidden
    if width % heads or heads * len(set(listed)) > _MOST_HEADS:
        raise keys.error("heads_per_ngram", f"{heads} heads for {width} values in {len(listed)} layers", "correct it")
    base = keys.integer("ngram_vocab_size_base", _MOST_ROWS, 20_000_000)
    multiple = keys.integer("make_ngram_vocab_size_divisible_by", 2**20, 128)
    # The rows of a head are a prime number, the next one for every further head.
    primes = _primes_from(base, heads * len(set(listed)))
    found: list[NGrams | None] = [None] * layers
    streams, conv = keys.integer("hc_count", MAX_HEADS, 4), keys.integer("ple_conv_kernel_size", MAX_WIDTH, 4)
    for at, number in enumerate(sorted(set(listed))):
        rows = multiple * -(-int(primes[at * heads : (at + 1) * heads].sum()) // multiple)
        found[number - 1] = NGrams(rows, heads, width // heads, streams, conv, order)
    return found


def _primes_from(start: int, count: int) -> np.ndarray:
    """Return the first *count* primes that are *start* or larger (below 2^31)."""
    length = 64 * count + 2048  # gaps below 2^31 are at most 336 wide, 21 in the mean
    divisors = np.arange(2, int((start + length) ** 0.5) + 2)
    prime = np.ones(length, bool)
    for divisor in divisors:
        prime[max(-start % divisor, divisor * divisor - start) :: divisor] = False
    return (start + np.flatnonzero(prime & (start + np.arange(length) > 1)))[:count].astype(np.int64)
