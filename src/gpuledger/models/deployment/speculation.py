"""Speculative decoding: a cheap model drafts tokens, one step of the large model verifies them all."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.transformer import Model, Workload
from gpuledger.models.transformer.names import PHASES

MAX_DRAFTED = 64
#: What the names of a draft's kernels begin with, beside those of the model that verifies.
DRAFT = "draft_"


@dataclass(frozen=True)
class Speculation:
    """Tokens drafted before each step, one after the other, and how many of them are kept."""

    draft: Model  # :meth:`gpuledger.models.transformer.Model.draft_layer` of the model itself, or a smaller model
    drafted: int = 1  # tokens drafted for each request before a step, which verifies them
    acceptance: float = 0.8  # probability that a drafted token is accepted if all before it were, 0 … 1

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

    def passes(self, work: Workload) -> Workload:
        """Return the passes that draft: of a decode step, one new token of each request."""
        decoding = work.phase[work.shape] == PHASES.index("decode")
        return replace(work, new_tokens=np.where(decoding, 1, work.new_tokens))

    def join(self, rows: pd.DataFrame, drafts: pd.DataFrame) -> pd.DataFrame:
        """Return the kernels of passes with those of all drafts before a step; prompts go through the draft model, too.

        Drafts are in the last pipeline stage, which has the LM head.
        """
        kernel = drafts["kernel"].astype(str)
        often = np.where(drafts["phase"] == "decode", self.drafted, 1)
        return pd.concat(
            [
                rows.astype({"kernel": str}),
                drafts.assign(
                    kernel=kernel.where(kernel.str.startswith(DRAFT), DRAFT + kernel),
                    count=drafts["count"] * often,
                    stage=rows["stage"].max(),
                ),
            ],
            ignore_index=True,
        )


def speculate(model: Model, draft: str | Model, drafted: int, acceptance: float, place: tuple[str, str]) -> Speculation:
    """Return speculative decoding of a model with its own layer of multi-token prediction (``mtp``) or a smaller model.

    Raises
    ------
    InputError
        A number out of range, or another vocabulary than the model's; *place* says where that is written.
    """
    # A draft reads tokens alone: the tower of a multimodal one is not loaded.
    draft = model.draft_layer() if draft == "mtp" else draft.without_vision()
    if draft.vocab != model.vocab:
        problem = f"{draft.name} has {draft.vocab:,} tokens in its vocabulary, {model.name} {model.vocab:,}"
        raise InputError(*place, problem, "draft with a model of the same vocabulary")
    return Speculation(draft, drafted, acceptance)
