"""How many tokens each expert receives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gpuledger.errors import InputError


@lru_cache(maxsize=256)
def choice_probability(experts: int, active: int, load: float | tuple[float, ...]) -> np.ndarray:
    """Return the probability that a token uses each expert; the probabilities sum to *active*.

    Parameters
    ----------
    load : float or tuple of float
        Exponent of a Zipf law (expert i has weight 1 / (i + 1)^load; 0: uniform), or one weight per expert.
        Probabilities are proportional to the weights, capped at 1; the excess is distributed over the other experts.

    Raises
    ------
    InputError
        A negative weight, a wrong number of weights, or fewer non-zero weights than experts that a token uses.
    """
    if isinstance(load, tuple):
        weights = np.array(load, float)
        if len(weights) != experts:
            problem = f"{len(weights)} weights for {experts} experts"
            raise InputError("expert_load", "", problem, "give one weight per expert")
    else:
        weights = (np.arange(experts) + 1.0) ** -float(load)
    if not np.all(np.isfinite(weights)) or np.any(weights < 0) or np.count_nonzero(weights) < active:
        problem = f"fewer than {active} experts have a positive weight, or a weight is negative"
        raise InputError("expert_load", "", problem, "give an exponent of 0 or more, or non-negative weights")
    probability = np.zeros(experts)
    full = np.zeros(experts, bool)
    while True:
        rest = weights[~full].sum()
        probability[~full] = weights[~full] * ((active - full.sum()) / rest) if rest else 0
        probability[full] = 1
        above = ~full & (probability > 1 + 1e-12)
        if not above.any():
            probability = np.minimum(probability, 1)
            probability.setflags(write=False)  # the result is cached
            return probability
        full |= above


def as_load(load: float | Sequence[float]) -> float | tuple[float, ...]:
    """Return *load* in the hashable form that :func:`choice_probability` takes."""
    if isinstance(load, (int, float)) and not isinstance(load, bool) and 0 <= load < 100:
        return float(load)
    if isinstance(load, (Sequence, np.ndarray)) and not isinstance(load, str):
        return tuple(float(weight) for weight in load)
    raise InputError(
        "expert_load", "", f"{load!r} is not an expert load", "give a Zipf exponent of 0 … 100, or weights"
    )


def busiest_share(probability: np.ndarray, active: int, tokens: np.ndarray, devices: int) -> tuple:
    """Return the expected load of the busiest device when expert e is on device e mod *devices*.

    Parameters
    ----------
    probability : array of shape (experts,)
    tokens : int64 array of shape (shapes,)
        Tokens of all replicas, which choose their experts independently.

    Returns
    -------
    rows : int64 array of shape (shapes,)
        Expected (token, expert) pairs on that device, rounded to the nearest; tokens · active on a single device.
    touched : float array of shape (shapes,)
        Expected number of its experts that receive at least one token, Σ 1 − (1 − p)^tokens.
    """
    on_device = [probability[device::devices] for device in range(devices)]
    busiest = max(on_device, key=np.sum)
    if devices == 1:
        rows = tokens * active
    elif np.ptp(probability) == 0:  # integer arithmetic, exact for uniform loads
        rows = (2 * tokens * active * len(busiest) + len(probability)) // (2 * len(probability))
    else:
        rows = np.rint(tokens * busiest.sum()).astype(np.int64)
    rows = np.maximum(rows, (tokens > 0).astype(np.int64))
    values, counts = np.unique(busiest, return_counts=True)
    touched = counts @ (1 - (1 - values[:, None]) ** tokens)
    return rows, touched
