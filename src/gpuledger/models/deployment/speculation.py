"""Speculative decoding: a cheap model drafts tokens, one step of the large model verifies them all."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.errors import InputError
from gpuledger.models.transformer import Model

MAX_DRAFTED = 64


@dataclass(frozen=True)
class Speculation:
    """Tokens drafted before each step, one after the other, and how many of them are kept.

    Attributes
    ----------
    draft : Model
        :meth:`gpuledger.models.transformer.Model.draft_layer` of the model itself, or a smaller model.
    drafted : int
        Tokens drafted for each request before a step, which verifies them.
    acceptance : float
        Probability that a drafted token is accepted if all before it were, 0 … 1.
    """

    draft: Model
    drafted: int = 1
    acceptance: float = 0.8

    def __post_init__(self):
        if not 1 <= self.drafted <= MAX_DRAFTED:
            remedy = f"draft 1 … {MAX_DRAFTED} tokens"
            raise InputError("speculative decoding", "drafted tokens", f"{self.drafted} is out of range", remedy)
        if not 0 <= self.acceptance <= 1:
            problem = f"{self.acceptance} is no probability"
            raise InputError("speculative decoding", "acceptance", problem, "give a number from 0 to 1")

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens that a step adds to a request: 1 + a + a² + … (Leviathan et al., ICML 2023, eq. 1)."""
        return sum(self.acceptance**i for i in range(self.drafted + 1))
