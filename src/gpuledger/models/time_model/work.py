"""FLOP that fused kernels cannot do without, and bytes that they cannot but move."""

from collections.abc import Mapping

import numpy as np


def attention_work(shapes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Count the work of causal attention.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests, tokens, context, heads, head_dim, cache_values, window, value_bytes, cache_bytes``, as
        :func:`gpuledger.models.time_model.attention.prefill_law.prefill_terms` describes them.

    Returns
    -------
    flop, moved_bytes : ndarray of float64, shape (launches,)
        The two products under the mask; queries in, results out, keys and values once.
    """
    s = shapes
    window = np.where(s["window"] > 0, s["window"], np.inf)
    before, seen = np.minimum(s["context"], window), np.minimum(s["context"] + s["tokens"], window)
    # Causal: the first new token sees all before it, the last all; a window cuts both.
    short = np.minimum(s["tokens"], np.maximum(window - s["context"], 0))
    pairs = short * (before + seen + 1) / 2 + (s["tokens"] - short) * np.minimum(window, seen)
    flop = s["requests"] * s["heads"] * 4 * s["head_dim"] * pairs
    moved = s["requests"] * s["tokens"] * 2 * s["head_dim"] * s["heads"] * s["value_bytes"]
    # Each new token but the first sees a key that none before it did, window or not.
    keys = np.minimum(s["context"], window - 1) + s["tokens"]
    return flop, moved + s["requests"] * keys * s["cache_values"] * s["cache_bytes"]


def expert_work(
    shapes: Mapping[str, np.ndarray], weight_bytes: np.ndarray, activation_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count the work of a rank's experts.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``hidden, inter, gates, rows, active``, as :func:`gpuledger.models.time_model.moe.moe_terms` describes them.
    weight_bytes, activation_bytes : arrays of shape (launches,)
        Of an element (:data:`gpuledger.models.time_model.moe.DTYPES`).

    Returns
    -------
    flop, moved_bytes : ndarray of float64, shape (launches,)
        All products; the weights of experts with a row once, rows in and out.
    """
    s = shapes
    weights = (s["gates"] + 1) * s["inter"] * s["hidden"]
    moved = s["active"] * weights * weight_bytes + 2 * s["rows"] * s["hidden"] * activation_bytes
    return 2 * s["rows"] * weights, moved
