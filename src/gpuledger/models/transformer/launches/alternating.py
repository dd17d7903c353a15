"""Kernels of alternating updates and of the low-rank block beside attention (Gemma 3n)."""

from gpuledger.models.transformer.blocks.residuals import AlternatingUpdates
from gpuledger.models.transformer.launches.rows import KernelList


def add_stream_projections(rows: KernelList, residuals: AlternatingUpdates) -> None:
    """Add the projections of all streams but the first, scaled to its size: from the embedding, or for the head."""
    hidden, others = rows.model.hidden, residuals.streams - 1
    for linear in residuals.final_linears(hidden)[:others]:
        rows.gemms([linear], rows.work.tokens)
        rows.all_gather(rows.work.tokens, hidden)
    rows.per_token("altup_scale", hidden, 2 * hidden, hidden, count=others)


def _add_router(rows: KernelList, residuals: AlternatingUpdates, step: int) -> None:
    """Add the weights of a prediction (1) or correction (2)."""
    linears = list(residuals.linears(rows.model.hidden))
    rows.norm("altup_norm", rows.model.hidden)
    rows.gemms([linears[0]], rows.work.tokens)
    rows.gemms([linears[step]], rows.work.tokens)


def add_prediction(rows: KernelList, residuals: AlternatingUpdates) -> None:
    """Add the prediction of all streams before a layer."""
    _add_router(rows, residuals, 1)
    wide = residuals.streams * rows.model.hidden
    rows.per_token("altup_predict", wide, wide + residuals.streams**2, wide)


def add_correction(rows: KernelList, residuals: AlternatingUpdates) -> None:
    """Add the correction of all streams by a layer's output; the first is also written scaled."""
    _add_router(rows, residuals, 2)
    hidden = rows.model.hidden
    wide = residuals.streams * hidden
    rows.per_token("altup_correct", wide, wide + hidden + residuals.streams, wide + hidden)


def add_low_rank(rows: KernelList, residuals: AlternatingUpdates) -> None:
    """Add the low-rank block, to whose normalised output its input is added."""
    hidden = rows.model.hidden
    *_, down, up = residuals.linears(hidden)
    rows.gemms([down], rows.work.tokens)
    rows.gemms([up], rows.work.tokens)
    rows.per_token("laurel_norm", hidden, 2 * hidden, hidden, weight=rows.plain_bytes(hidden))


def add_block_output(rows: KernelList, residuals: AlternatingUpdates, kernel: str) -> None:
    """Add the sum of stream, attention and low-rank block; at a layer's end, its embedding to the other streams."""
    hidden = rows.model.hidden
    if kernel == "attn_residual":
        rows.per_token(kernel, hidden, 3 * hidden, hidden)
    else:
        others = (residuals.streams - 1) * hidden
        rows.per_token("altup_add", others, others + hidden, others)
