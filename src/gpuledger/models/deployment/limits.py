"""The largest batch and the longest context that fit into the memory of a deployment's GPUs."""

from collections.abc import Callable

import numpy as np

from gpuledger.models.deployment.memory import fits
from gpuledger.models.deployment.passes import Deployment, memory_of
from gpuledger.models.transformer import decode
from gpuledger.models.transformer.workloads import MAX_TOKENS

_MOST_REQUESTS, _MOST_CONTEXT = 2**20, 2**24


def largest_batch(deployment: Deployment) -> int:
    """Return how many requests (of each pipeline stage and replica) fit at the end of their output; 0: not even one."""
    last = deployment.input_tokens + deployment.output_tokens - 1
    most = min(_MOST_REQUESTS, MAX_TOKENS // deployment.new_tokens)
    return _largest(lambda batches: _fit(deployment, np.full(len(batches), last), batches), most)


def largest_context(deployment: Deployment, batch: int = 1) -> int:
    """Return how many tokens of each of *batch* requests fit, the new one included; at most what the model supports."""
    most = deployment.model.max_positions or _MOST_CONTEXT
    return _largest(lambda tokens: _fit(deployment, tokens - 1, np.full(len(tokens), batch)), most)


def _fit(deployment: Deployment, contexts: np.ndarray, batches: np.ndarray) -> np.ndarray:
    needed = memory_of(deployment, decode(contexts, batches, deployment.new_tokens))["memory_bytes"]
    return fits(needed.to_numpy(), deployment.gpu)


def _largest(fitting: Callable[[np.ndarray], np.ndarray], most: int) -> int:
    """Return the largest number up to *most* that fits, by evaluating many between the bounds at once; 0: none."""
    low, high = 0, most + 1
    while high - low > 1:
        points = np.unique(np.geomspace(low + 1, high - 1, 48).round().astype(np.int64))
        fit = fitting(points)
        low, high = max([low, *points[fit]]), min([high, *points[~fit]])
    return int(low)
