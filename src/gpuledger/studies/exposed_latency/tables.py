"""Exposed latency for people."""

import numpy as np
import pandas as pd

from gpuledger.studies.exposed_latency.reduction import READ_OFF


def ratio_text(ratio: float) -> str:
    """Return a ratio with two decimals, or from 100 on with none: ``1.39×``, ``11,214×``."""
    return f"{ratio:.2f}×" if ratio < 100 else f"{ratio:,.0f}×"


def latency_table(data: pd.DataFrame, tool: str) -> pd.DataFrame:
    """Return the ratios for people: ``1.39×``, with ``≈`` before those read off a figure.

    Parameters
    ----------
    tool : str
        Whose probes they are.
    """
    people = data[["workload", "probe"]].copy()
    for name in ("ncu", "probed", "kernel", "epilogue", "prologue", "other", "speedup"):
        about = (data["parts"] == READ_OFF) & (name in ("kernel", "other"))
        cells = zip(data[f"{name}_ratio"], about, strict=True)
        people[name] = ["" if np.isnan(ratio) else f"{'≈' * read_off}{ratio_text(ratio)}" for ratio, read_off in cells]
    return people.rename(columns={"probed": tool})
