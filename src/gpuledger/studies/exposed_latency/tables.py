"""Exposed latency for people."""

import numpy as np
import pandas as pd

from gpuledger.studies.exposed_latency.reduction import READ_OFF


def latency_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the ratios for people: ``1.39×``, with ``≈`` before those read off a figure."""
    people = data[["workload", "probe"]].copy()
    for name in ("ncu", "neutrino", "kernel", "epilogue", "prologue", "other", "speedup"):
        about = (data["parts"] == READ_OFF) & (name in ("kernel", "other"))
        cells = zip(data[f"{name}_ratio"], about, strict=True)
        people[name] = ["" if np.isnan(ratio) else f"{'≈' * read_off}{ratio:.2f}×" for ratio, read_off in cells]
    return people
