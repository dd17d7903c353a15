"""Batches of requests: how many new tokens each request has, and how many are already in its cache.

A :class:`Workload` holds many shapes. Each shape is one forward pass over a batch whose new tokens share one GEMM per
weight matrix; lengths may be ragged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpuledger.errors import InputError
from gpuledger.models.transformer.blocks.image_sizes import Images
from gpuledger.models.transformer.names import PHASES

MAX_TOKENS = 2**31
_REMEDY = f"give whole numbers from 0 to {MAX_TOKENS}"


@dataclass(frozen=True, eq=False)
class Workload:
    """Many shapes, each a batch of requests; see :func:`prefill`, :func:`decode`, :func:`chunk` and :func:`mixed`."""

    phase: np.ndarray  # int8, shape (shapes,): index in ``names.PHASES``
    #: int64, shape (rows,): the shape that a row belongs to, ascending; every shape has at least one row.
    shape: np.ndarray
    #: int64, shape (rows,): number of identical requests, and the new tokens and cached tokens of each of them.
    requests: np.ndarray
    new_tokens: np.ndarray
    past_tokens: np.ndarray
    images: Images | None = None  # of each prompt whose images a pass encodes
    prompts: np.ndarray | None = None  # int64, shape (shapes,): number of such prompts; None: there are no images

    @property
    def shapes(self) -> int:
        return len(self.phase)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.searchsorted(self.shape, np.arange(self.shapes))

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum *values* (one per row) within each shape: int64 array of shape (shapes,)."""
        if len(self.shape) == self.shapes:
            return values
        return np.add.reduceat(values, self._starts)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the largest of *values* (one per row) within each shape."""
        if len(self.shape) == self.shapes:
            return values
        return np.maximum.reduceat(values, self._starts)

    @cached_property
    def tokens(self) -> np.ndarray:
        """New tokens of each shape, which are the rows of its GEMMs."""
        return self.total(self.requests * self.new_tokens)

    @cached_property
    def logit_tokens(self) -> np.ndarray:
        """Tokens of each shape for which logits are computed: the last one of each request, of a decode step all."""
        decoding = self.phase[self.shape] == PHASES.index("decode")
        return self.total(self.requests * np.where(decoding, self.new_tokens, 1))

    def pairs(self, window: int | None = None) -> np.ndarray:
        """Return the number of (query, key) pairs under the causal mask, for one request of each row.

        With p cached tokens, new token i = 1 … q attends to p + i keys (itself included), but to at most *window*.
        """
        q, p = self.new_tokens, self.past_tokens
        if window is None:
            return q * p + q * (q + 1) // 2
        growing = np.clip(window - p, 0, q)  # tokens whose whole context fits into the window
        return growing * p + growing * (growing + 1) // 2 + (q - growing) * window

    def visible(self, window: int | None = None) -> np.ndarray:
        """Return how many distinct keys the new tokens attend to, for one request of each row."""
        context = self.new_tokens + self.past_tokens
        return context if window is None else np.minimum(context, self.new_tokens + (window - 1))

    def entries(self, ratio: int) -> np.ndarray:
        """Return how many complete groups of *ratio* tokens the new and cached tokens of one request make."""
        return (self.new_tokens + self.past_tokens) // ratio

    def new_entries(self, ratio: int) -> np.ndarray:
        """Return how many of them the new tokens complete."""
        return self.entries(ratio) - self.past_tokens // ratio

    def entry_pairs(self, ratio: int, most: int | None = None) -> np.ndarray:
        """Return the number of (query, group) pairs of one request of each row.

        Token t (from 1) sees the groups of *ratio* tokens that are complete with it, ⌊t / ratio⌋, but at most *most*.
        """
        last = self.new_tokens + self.past_tokens
        return _entry_sum(last, ratio, most) - _entry_sum(self.past_tokens, ratio, most)


def _entry_sum(last: np.ndarray, ratio: int, most: int | None) -> np.ndarray:
    """Return Σ min(⌊t / ratio⌋, most) over t = 1 … last."""
    growing = last if most is None else np.minimum(last, ratio * most - 1)
    groups = growing // ratio
    total = ratio * (groups * (groups - 1) // 2) + groups * (growing - ratio * groups + 1)
    return total if most is None else total + most * (last - growing)


def _whole(what: str, values: npt.ArrayLike, low: int) -> np.ndarray:
    array = np.asarray(values)
    if not array.size:
        raise InputError("workload", what, "the list is empty", "give at least one number")
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise InputError("workload", what, "not a whole number or a flat list of whole numbers", _REMEDY)
    if not (array.min() >= low and array.max() <= MAX_TOKENS):
        raise InputError("workload", what, f"{array.min()} … {array.max()} is not within {low} … {MAX_TOKENS}", _REMEDY)
    return array.astype(np.int64)


def _together(**numbers: tuple[npt.ArrayLike, int]) -> list[np.ndarray]:
    """Check whole numbers, each with its lower bound, and broadcast them against each other."""
    arrays = {name: _whole(name, *bounded) for name, bounded in numbers.items()}
    try:
        return [np.ascontiguousarray(array) for array in np.broadcast_arrays(*map(np.atleast_1d, arrays.values()))]
    except ValueError as error:
        lengths = ", ".join(f"{name} {np.size(array)}" for name, array in arrays.items())
        raise InputError("workload", "", f"lists of different lengths: {lengths}", "make them equally long") from error


def _workload(phase: str, shape: np.ndarray, requests: np.ndarray, new: np.ndarray, past: np.ndarray) -> Workload:
    keep = (requests > 0) & (new > 0)
    rows = [array[keep] for array in (shape, requests, new, past)]
    shapes = int(shape.max()) + 1 if len(shape) else 0
    empty = np.setdiff1d(np.arange(shapes), rows[0])
    if not shapes or len(empty):
        which = f"shape {empty[0]}" if shapes else "the workload"
        raise InputError("workload", "", f"{which} has no new tokens", "give each shape a request with new tokens")
    order = np.argsort(rows[0], kind="stable")
    shape, requests, new, past = (array[order] for array in rows)
    if np.any(new.astype(float) * requests > MAX_TOKENS):
        raise InputError("workload", "", f"a shape has more than {MAX_TOKENS} new tokens", "use smaller shapes")
    phases = np.full(shapes, PHASES.index(phase), np.int8)
    return Workload(phases, shape, requests, new, past)


def prefill(
    prompt_tokens: npt.ArrayLike,
    batch: npt.ArrayLike = 1,
    cached_tokens: npt.ArrayLike = 0,
    images: Images | None = None,
) -> Workload:
    """Return one shape per prompt length: *batch* equal prompts, each processed whole in one pass.

    Parameters
    ----------
    prompt_tokens, batch, cached_tokens : int or array of int, broadcast against each other
        Tokens of each prompt, number of prompts, and how many of a prompt's first tokens a prefix cache already holds.
    images : Images, optional
        Of each prompt, whose tokens count among the prompt's new ones.

    Raises
    ------
    InputError
        Numbers that are not whole, negative, too large, or lists of different lengths; a prompt that is cached whole.
    """
    prompt, requests, cached = _together(
        prompt_tokens=(prompt_tokens, 1), batch=(batch, 1), cached_tokens=(cached_tokens, 0)
    )
    if np.any(cached >= prompt):
        problem = f"{cached.max()} tokens of a prompt of {prompt.min()} are cached"
        raise InputError("workload", "cached_tokens", problem, "leave at least one token to be processed")
    work = _workload("prefill", np.arange(len(prompt)), requests, prompt - cached, cached)
    return replace(work, images=images, prompts=requests) if images else work


def decode(context_tokens: npt.ArrayLike, batch: npt.ArrayLike = 1, new_tokens: npt.ArrayLike = 1) -> Workload:
    """Return one shape per context length: a decode step of *batch* requests.

    Parameters
    ----------
    context_tokens, batch, new_tokens : int or array of int, broadcast against each other
        Tokens in the cache before the step (a new token attends to them and to itself), number of requests, and new
        tokens of each: one, or more where a step verifies drafted tokens.
    """
    past, requests, new = _together(context_tokens=(context_tokens, 0), batch=(batch, 1), new_tokens=(new_tokens, 1))
    return _workload("decode", np.arange(len(past)), requests, new, past)


def chunk(
    new_tokens: npt.ArrayLike,
    past_tokens: npt.ArrayLike,
    decodes: npt.ArrayLike = 0,
    decode_context_tokens: npt.ArrayLike = 0,
    images: Images | None = None,
) -> Workload:
    """Return one shape per chunk: a step with a piece of one prompt and *decodes* decoding requests.

    Parameters
    ----------
    new_tokens, past_tokens : int or array of int
        Prompt tokens in this chunk (0: only decodes), and in the chunks before it.
    decodes, decode_context_tokens : int or array of int
        Decoding requests in the same step, and the cached tokens of each.
    images : Images, optional
        Of the prompt, all encoded in this step.
    """
    sizes = {"new_tokens": new_tokens, "past_tokens": past_tokens, "decodes": decodes}
    sizes["decode_context_tokens"] = decode_context_tokens
    new, past, decodes, context = _together(**{name: (size, 0) for name, size in sizes.items()})
    one, shape = np.ones_like(new), np.arange(len(new))
    rows = (np.concatenate(pair) for pair in ((shape, shape), (one, decodes), (new, one), (past, context)))
    work = _workload("chunked_prefill", *rows)
    return replace(work, images=images, prompts=(new > 0).astype(np.int64)) if images else work


def mixed(
    shape: npt.ArrayLike, new_tokens: npt.ArrayLike, past_tokens: npt.ArrayLike, requests: npt.ArrayLike = 1
) -> Workload:
    """Return arbitrary batches, one group of identical requests per row.

    Parameters
    ----------
    shape : array of int
        The batch that a row belongs to: 0 … n - 1, each at least once.
    new_tokens, past_tokens, requests : int or array of int, broadcast against *shape*
        New and cached tokens of each request, and number of such requests.
    """
    sizes = {"shape": shape, "requests": requests, "new_tokens": new_tokens, "past_tokens": past_tokens}
    rows = _together(**{name: (size, 0) for name, size in sizes.items()})
    return _workload("mixed", *rows)


def join(workloads: Sequence[Workload]) -> Workload:
    """Concatenate the shapes of several workloads, renumbered, so that one call evaluates them all."""
    if not workloads:
        raise InputError("workload", "", "there are no workloads to join", "give at least one")
    before = np.cumsum([0, *(work.shapes for work in workloads)])
    names = ("requests", "new_tokens", "past_tokens")
    joined = Workload(
        np.concatenate([work.phase for work in workloads]),
        np.concatenate([work.shape + start for work, start in zip(workloads, before, strict=False)]),
        *(np.concatenate([getattr(work, name) for work in workloads]) for name in names),
    )
    seen = {work.images for work in workloads if work.images}
    if not seen:
        return joined
    if len(seen) > 1:
        raise InputError("workload", "images", "images of different sizes", "join prompts with the same images")
    prompts = [np.zeros(work.shapes, np.int64) if work.prompts is None else work.prompts for work in workloads]
    return replace(joined, images=seen.pop(), prompts=np.concatenate(prompts))
