"""What one pass works on: requests, each with new tokens and a context that is already in the cache.

A :class:`Workload` holds many shapes; each shape is one pass over a batch of requests, whose new tokens are fused into
one GEMM per weight matrix. Lengths may be ragged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from gpuledger.errors import InputError
from gpuledger.models.transformer.names import PHASES

MAX_TOKENS = 2**31
_REMEDY = f"give whole numbers from 0 to {MAX_TOKENS}"


@dataclass(frozen=True, eq=False)
class Workload:
    """Many shapes, each a batch of requests. Made by :func:`prefill`, :func:`decode` and the like.

    Attributes
    ----------
    phase : int8 array of shape (shapes,)
        Index in ``names.PHASES``.
    shape : int64 array of shape (rows,)
        Which shape a row of requests belongs to; ascending, every shape has one or more.
    requests, new_tokens, past_tokens, logits : int64 arrays of shape (rows,)
        How many requests of a kind; the new tokens and the tokens in the cache of each, and for how many of its new
        tokens logits are computed.
    """

    phase: np.ndarray
    shape: np.ndarray
    requests: np.ndarray
    new_tokens: np.ndarray
    past_tokens: np.ndarray
    logits: np.ndarray

    @property
    def shapes(self) -> int:
        return len(self.phase)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.searchsorted(self.shape, np.arange(self.shapes))

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum *values*, one a row, over the requests of each shape: int64 array of shape (shapes,)."""
        if len(self.shape) == self.shapes:
            return values
        return np.add.reduceat(values, self._starts)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the largest of *values* in each shape."""
        if len(self.shape) == self.shapes:
            return values
        return np.maximum.reduceat(values, self._starts)

    @cached_property
    def tokens(self) -> np.ndarray:
        """New tokens of each shape: the rows of its GEMMs."""
        return self.total(self.requests * self.new_tokens)

    @cached_property
    def logit_tokens(self) -> np.ndarray:
        """Tokens of each shape for which logits are computed."""
        return self.total(self.requests * self.logits)

    def pairs(self, window: int | None = None, causal: bool = True) -> np.ndarray:
        """Return how many (query, key) pairs one request of each row has.

        Token i = 1 … q of q new ones after p in the cache sees p + i keys, itself included, and at most *window* of
        them; without *causal* it sees all p + q.
        """
        q, p = self.new_tokens, self.past_tokens
        if not causal:
            return q * (p + q)
        if window is None:
            return q * p + q * (q + 1) // 2
        growing = np.clip(window - p, 0, q)  # tokens that still see everything
        return growing * p + growing * (growing + 1) // 2 + (q - growing) * window

    def visible(self, window: int | None = None) -> np.ndarray:
        """Return how many keys the new tokens of one request of each row see together."""
        context = self.new_tokens + self.past_tokens
        return context if window is None else np.minimum(context, self.new_tokens + (window - 1))


def _whole(what: str, values: npt.ArrayLike, low: int = 0) -> np.ndarray:
    array = np.asarray(values)
    if not array.size:
        raise InputError("workload", what, "there is none", "give at least one")
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise InputError("workload", what, "these are no whole numbers, or no list of them", _REMEDY)
    if not (array.min() >= low and array.max() <= MAX_TOKENS):
        raise InputError("workload", what, f"{array.min()} … {array.max()} is not within {low} … {MAX_TOKENS}", _REMEDY)
    return array.astype(np.int64)


def _together(**arrays: np.ndarray) -> list[np.ndarray]:
    try:
        return [np.ascontiguousarray(array) for array in np.broadcast_arrays(*map(np.atleast_1d, arrays.values()))]
    except ValueError as error:
        lengths = ", ".join(f"{name} {np.size(array)}" for name, array in arrays.items())
        raise InputError("workload", "", f"lists of different lengths: {lengths}", "give as many of each") from error


def _workload(phase: str, shape: np.ndarray, requests: np.ndarray, new: np.ndarray, past: np.ndarray, logits: bool):
    keep = (requests > 0) & (new > 0)
    rows = [array[keep] for array in (shape, requests, new, past)]
    shapes = int(shape.max()) + 1 if len(shape) else 0
    empty = np.setdiff1d(np.arange(shapes), rows[0])
    if not shapes or len(empty):
        which = f"shape {empty[0]}" if shapes else "the workload"
        raise InputError("workload", "", f"{which} has no new token", "give each shape a request with a new token")
    order = np.argsort(rows[0], kind="stable")
    shape, requests, new, past = (array[order] for array in rows)
    if np.any(new.astype(float) * requests > MAX_TOKENS):
        raise InputError("workload", "", f"a shape has more than {MAX_TOKENS} new tokens", "take smaller shapes")
    phases = np.full(shapes, PHASES.index(phase), np.int8)
    return Workload(phases, shape, requests, new, past, new if logits else np.ones_like(new))


def prefill(
    prompt_tokens: npt.ArrayLike,
    batch: npt.ArrayLike = 1,
    cached_tokens: npt.ArrayLike = 0,
    all_logits: bool = False,
) -> Workload:
    """Return one shape for each length: *batch* equal prompts, each in one pass.

    Parameters
    ----------
    prompt_tokens, batch, cached_tokens : int or array of int, broadcast against one another
        New tokens of each request, requests, and tokens that a prefix cache already has.
    all_logits : bool
        Logits of every token, as for scoring, not of the last one alone.

    Raises
    ------
    InputError
        Not whole, negative, too large or of different lengths.
    """
    new, requests, past = _together(
        prompt_tokens=_whole("prompt_tokens", prompt_tokens, 1),
        batch=_whole("batch", batch, 1),
        cached_tokens=_whole("cached_tokens", cached_tokens),
    )
    return _workload("prefill", np.arange(len(new)), requests, new, past, all_logits)


def decode(context_tokens: npt.ArrayLike, batch: npt.ArrayLike = 1) -> Workload:
    """Return one shape for each context: a step in which *batch* requests get one token each.

    Parameters
    ----------
    context_tokens, batch : int or array of int, broadcast against each other
        Tokens in the cache before the step (the new one sees them and itself), and requests.

    Raises
    ------
    InputError
        As for :func:`prefill`.
    """
    past, requests = _together(context_tokens=_whole("context_tokens", context_tokens), batch=_whole("batch", batch, 1))
    return _workload("decode", np.arange(len(past)), requests, np.ones_like(past), past, False)


def chunk(
    new_tokens: npt.ArrayLike,
    past_tokens: npt.ArrayLike,
    decodes: npt.ArrayLike = 0,
    decode_context_tokens: npt.ArrayLike = 0,
) -> Workload:
    """Return one shape for each chunk: a step with a piece of one prompt and *decodes* requests that get a token.

    Parameters
    ----------
    new_tokens, past_tokens : int or array of int
        Of the prompt: tokens of this chunk (0: decodes alone), and those of the chunks before it.
    decodes, decode_context_tokens : int or array of int
        Requests with one new token in the same step, and the tokens in the cache of each.

    Raises
    ------
    InputError
        As for :func:`prefill`; a step without any token.
    """
    new, past, decodes, context = _together(
        new_tokens=_whole("new_tokens", new_tokens),
        past_tokens=_whole("past_tokens", past_tokens),
        decodes=_whole("decodes", decodes),
        decode_context_tokens=_whole("decode_context_tokens", decode_context_tokens),
    )
    one, shape = np.ones_like(new), np.arange(len(new))
    rows = (np.concatenate(pair) for pair in ((shape, shape), (one, decodes), (new, one), (past, context)))
    return _workload("chunked_prefill", *rows, False)


def chunked_prefill(
    prompt_tokens: int,
    chunk_tokens: int,
    decodes: npt.ArrayLike = 0,
    decode_context_tokens: npt.ArrayLike = 0,
) -> Workload:
    """Return one shape for each chunk of a prompt, in order; the last one may be shorter.

    Together they do the attention of the whole prompt, pair for pair. ``decodes`` requests ride along in every chunk.

    Raises
    ------
    InputError
        As for :func:`prefill`.
    """
    prompt, step = int(_whole("prompt_tokens", prompt_tokens, 1)), int(_whole("chunk_tokens", chunk_tokens, 1))
    past = np.arange(0, prompt, step)
    return chunk(np.minimum(step, prompt - past), past, decodes, decode_context_tokens)


def mixed(
    shape: npt.ArrayLike,
    new_tokens: npt.ArrayLike,
    past_tokens: npt.ArrayLike,
    requests: npt.ArrayLike = 1,
    phase: str = "mixed",
) -> Workload:
    """Return batches of any requests: each row says *requests* times *new_tokens* after *past_tokens* in *shape*.

    Parameters
    ----------
    shape : array of int
        Which batch the row belongs to: 0 … n - 1, each at least once.
    new_tokens, past_tokens, requests : int or array of int, broadcast against *shape*
    phase : str
        What to call it.

    Raises
    ------
    InputError
        As for :func:`prefill`; a shape without any token; an unknown phase.
    """
    if phase not in PHASES:
        raise InputError("workload", "phase", f"{phase!r} is not known", f"use {', '.join(PHASES)}")
    rows = _together(
        shape=_whole("shape", shape),
        requests=_whole("requests", requests),
        new_tokens=_whole("new_tokens", new_tokens),
        past_tokens=_whole("past_tokens", past_tokens),
    )
    return _workload(phase, *rows, False)


def join(workloads: Sequence[Workload]) -> Workload:
    """Return the shapes of several workloads as one, numbered on, so that all of them are done at once.

    Raises
    ------
    InputError
        There is none.
    """
    if not workloads:
        raise InputError("workload", "", "there is none to join", "give at least one")
    before = np.cumsum([0, *(work.shapes for work in workloads)])
    names = ("requests", "new_tokens", "past_tokens", "logits")
    return Workload(
        np.concatenate([work.phase for work in workloads]),
        np.concatenate([work.shape + start for work, start in zip(workloads, before, strict=False)]),
        *(np.concatenate([getattr(work, name) for work in workloads]) for name in names),
    )


def spread_lengths(mean_tokens: float, requests: int, spread: str = "lognormal", cv: float = 1.0) -> np.ndarray:
    """Return lengths of *requests* requests that follow a distribution, without chance.

    Request i has the quantile (i + ½) / requests, rounded to whole tokens, at least 1.

    Parameters
    ----------
    mean_tokens : float
        Mean of the distribution.
    requests : int
    spread : str
        ``constant``, ``uniform``, ``exponential`` (its cv is 1) or ``lognormal``.
    cv : float
        Standard deviation over mean; of a uniform distribution at most 1/√3.

    Returns
    -------
    int64 array of shape (requests,), ascending

    Raises
    ------
    InputError
        An unknown distribution, or one that does not exist.
    """
    number = int(_whole("requests", requests, 1))
    if not 1 <= mean_tokens <= MAX_TOKENS or not 0 <= cv <= 100:
        raise InputError("workload", "lengths", f"a mean of {mean_tokens} and a cv of {cv}", "give a mean of 1 or more")
    quantile = (np.arange(number) + 0.5) / number
    if spread == "constant":
        lengths = np.full(number, float(mean_tokens))
    elif spread == "uniform" and cv <= 3**-0.5:
        lengths = mean_tokens * (1 + 3**0.5 * cv * (2 * quantile - 1))
    elif spread == "exponential":
        lengths = -mean_tokens * np.log1p(-quantile)
    elif spread == "lognormal":
        variance = np.log1p(cv**2)
        lengths = mean_tokens * np.exp(variance**0.5 * ndtri(quantile) - variance / 2)
    else:
        remedy = "use constant, uniform (cv at most 0.577), exponential or lognormal"
        raise InputError("workload", "lengths", f"there is no distribution {spread!r} with cv {cv}", remedy)
    return np.clip(np.rint(lengths), 1, MAX_TOKENS).astype(np.int64)
