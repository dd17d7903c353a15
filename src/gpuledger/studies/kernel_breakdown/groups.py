"""Groups of kernels that the figures distinguish."""

import re

import numpy as np
import pandas as pd

from gpuledger.models.deployment.speculation import DRAFT
from gpuledger.models.transformer.blocks.vision import IMAGE

#: In the order in which figures stack them.
GROUPS = (
    *("attention", "projections", "feed-forward", "experts", "LM head", "norms and others", "vision tower", "drafts"),
    "communication",
)


def group_of(rows: pd.DataFrame) -> np.ndarray:
    """Return the group of every kernel.

    Parameters
    ----------
    rows : DataFrame
        With ``kernel`` and ``kind`` of :func:`gpuledger.models.transformer.kernels`.

    Returns
    -------
    array of str, shape (rows,)
    """
    pairs = rows["kernel"].astype(str) + "\t" + rows["kind"].astype(str)
    codes, names = pd.factorize(pairs)
    return np.array([_group(*name.split("\t")) for name in names], object)[codes]


def step_shares(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return each group's share of the time of a step, communication and launches included.

    Parameters
    ----------
    kernels : DataFrame
        Of one phase on one GPU: ``group, count, time_s`` and, unless launches are not modelled, ``launch_s``.

    Returns
    -------
    DataFrame
        Indexed by group, in the order of `GROUPS`: ``percent`` and, of it, ``launch_percent``.
    """
    time = kernels["time_s"] * kernels["count"]
    launch = kernels["launch_s"] * kernels["count"] if "launch_s" in kernels else 0 * time
    shares = pd.DataFrame({"percent": time, "launch_percent": launch}).groupby(kernels["group"]).sum()
    return 100 * shares.reindex([group for group in GROUPS if group in shares.index]) / time.sum()


def _group(kernel: str, kind: str) -> str:
    if kernel.startswith(DRAFT):
        return "drafts"
    if kernel.startswith(IMAGE):
        return "vision tower"
    if kind == "collective":
        return "communication"
    unfused = "(decode_)?(attention_scores|softmax|attention_values)"
    if kind in ("attention", "recurrent") or re.fullmatch(unfused, kernel):
        return "attention"
    if kernel.startswith(("expert_", "router")):
        return "experts"
    if kind == "elementwise":
        return "norms and others"
    if kernel == "lm_head":
        return "LM head"
    return (
        "feed-forward" if re.fullmatch("(shared_)?(gate_up|gate|up|down)_proj|shared_gate", kernel) else "projections"
    )
