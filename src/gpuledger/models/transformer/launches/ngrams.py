"""Kernels of embeddings of n-grams."""

import numpy as np

from gpuledger.models.transformer.blocks.ngrams import NGrams
from gpuledger.models.transformer.launches.rows import KernelList


def add_ngrams(rows: KernelList, ngrams: NGrams) -> None:
    """Add the look-up, the projections, the gates, and the convolution over earlier values."""
    hidden, tokens, tensor = rows.model.hidden, rows.work.tokens, rows.parallel.tensor
    table, *projections = ngrams.linears(hidden)
    stored = rows.precision.format_of(table.kernel)
    own = ngrams.head_dim // tensor
    read = np.minimum(tokens * ngrams.heads, ngrams.rows) * stored.matrix_bytes(1, own)
    written = tokens * (ngrams.heads * own * rows.value_bytes)
    rows.elementwise(table.kernel, tokens, ngrams.heads * own, tokens * 8, written, weight=read, stored=stored.values)
    rows.all_gather(tokens, ngrams.width)
    rows.gemms(projections, tokens)
    wide = ngrams.streams * hidden
    weight = rows.plain_bytes(3 * wide)
    # Norms of keys and streams, their products, the gated values and their norm.
    rows.per_token("ngram_gate", wide, 2 * wide + hidden, 2 * wide, weight=weight)
    before = rows.work.total(rows.work.requests) * ((ngrams.conv - 1) * ngrams.order)
    moved = (tokens + before) * (wide * rows.value_bytes)
    sums = 2 * tokens * (wide * rows.value_bytes)
    rows.elementwise("ngram_conv", tokens, wide, moved + sums, moved, weight=rows.plain_bytes(wide * ngrams.conv))
