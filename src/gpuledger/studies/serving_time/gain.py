"""What serves more: GPUs of their own for prompts and for decoding, or all work on the same GPUs."""

import numpy as np
import pandas as pd

from gpuledger.studies.serving_time.parallelism import frontier
from gpuledger.studies.serving_time.runs import APART, TOGETHER
from gpuledger.studies.serving_time.sweeps import SAME

#: What is served: runs that differ in mode, layout and requests only.
WORKLOAD = ["engine", "model", "precision", "input_tokens", "output_tokens"]


def gains(data: pd.DataFrame) -> pd.DataFrame:
    """Compare the most that either mode serves at the same time per output token, measured and predicted.

    Parameters
    ----------
    data : DataFrame
        Of :func:`gpuledger.studies.serving_time.reduce`, one GPU's.

    Returns
    -------
    DataFrame, one row per workload and measured time per output token that both modes meet, measured and predicted
        ``engine, model, precision, input_tokens, output_tokens, objective_s`` and, as a ratio of tokens per second and
        GPU, disaggregated over not, ``measured`` and ``predicted``.
    """
    known = data[data["predicted_rate"].notna() & data["measured_rate"].notna()]
    known = known.assign(
        predicted_s=known["kernels_s"],
        model=known["model"].replace(SAME),
        layout=known["workers"].astype(str) + known["parallelism"] + known["prompts_on"],
    )
    parts = []
    for keys, part in known.groupby(WORKLOAD):
        modes = [part[part["mode"] == mode] for mode in (APART, TOGETHER)]
        if any(mode.empty for mode in modes):
            continue
        objective_s = np.unique(part["measured_s"])
        ratios = {}
        for kind in ("measured", "predicted"):
            apart, together = (_most(mode, kind, objective_s) for mode in modes)
            ratios[kind] = np.divide(apart, together, out=np.zeros(len(apart)), where=together > 0)
        parts.append(pd.DataFrame(dict(zip(WORKLOAD, keys, strict=True)) | {"objective_s": objective_s, **ratios}))
    columns = [*WORKLOAD, "objective_s", "measured", "predicted"]
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    return found[(found["measured"] > 0) & (found["predicted"] > 0)].reset_index(drop=True)


def agreed(found: pd.DataFrame) -> pd.Series:
    """Return whether the measured and the predicted ratio are for the same mode."""
    return (found["measured"] > 1) == (found["predicted"] > 1)


def _most(runs: pd.DataFrame, kind: str, objective_s: np.ndarray) -> np.ndarray:
    """Return the highest rate of any layout within each objective (:func:`frontier`)."""
    points = (runs[[f"{kind}_s", f"{kind}_rate"]].to_numpy()[own] for own in runs.groupby("layout").indices.values())
    return np.max([frontier(*own.T, objective_s) for own in points], axis=0)
