"""Tables of steady readings by type and number of tokens, and of readings by how long the benchmark ran."""

import numpy as np
import pandas as pd

from gpuledger.studies.kernel_power.readings import kernels_share
from gpuledger.studies.kernel_power.reduction import AT_LIMIT

#: Upper ends of the classes of tokens.
_TOKENS = (0, 64, 512, 4096, 2**40)
#: Shares of the DRAM's bandwidth between which kernels read memory alike.
BANDWIDTH = (0.6, 0.95)


def layer_table(data: pd.DataFrame, limit_w: float) -> pd.DataFrame:
    """Return what steady readings of experts are, by type and tokens.

    Returns
    -------
    DataFrame
        ``precision, tokens, readings, at_limit_percent, power_w`` (median), ``energy_pj_per_flop`` and
        ``energy_pj_per_byte`` (medians of all energy over all FLOP, or bytes), and of the held-back ones
        ``median_error_percent, bias_percent``.
    """
    data = data[data["steady"]]
    classes = pd.cut(data["tokens"], _TOKENS, labels=False)
    rows = []
    for (precision, place), part in data.groupby([data["precision"], classes], sort=True):
        low, high = _TOKENS[place] + 1, _TOKENS[place + 1]
        error = 100 * (part["predicted_w"] / part["power_w"] - 1)[part["held_back"]]
        rows.append(
            {
                "precision": precision,
                "tokens": f"{low:,} and more" if high == _TOKENS[-1] else f"{low:,} to {high:,}",
                "readings": len(part),
                "at_limit_percent": 100 * (part["power_w"] > AT_LIMIT * limit_w).mean(),
                "power_w": part["power_w"].median(),
                "energy_pj_per_flop": 1e12 * (part["power_w"] / part["flop_per_s"]).median(),
                "energy_pj_per_byte": 1e12 * (part["power_w"] / part["bytes_per_s"]).median(),
                "median_error_percent": error.abs().median(),
                "bias_percent": error.median(),
            }
        )
    return pd.DataFrame(rows)


def settling_table(data: pd.DataFrame, dram_bytes_per_s: float) -> pd.DataFrame:
    """Return readings of kernels that read memory at `BANDWIDTH`, by kind and samples.

    Returns
    -------
    DataFrame
        ``kind, samples, readings, low_w, power_w, high_w`` (quartiles), ``kernels_percent`` (share of the reading that
        is the kernel's).
    """
    share = data["bytes_per_s"] / dram_bytes_per_s
    rows = data[share.between(*BANDWIDTH)]
    found = rows.groupby(["kind", "samples"])["power_w"].describe(percentiles=[0.25, 0.5, 0.75]).reset_index()
    found = found[found["count"] >= 5]
    return pd.DataFrame(
        {
            "kind": found["kind"],
            "samples": found["samples"],
            "readings": found["count"].astype(int),
            "low_w": found["25%"],
            "power_w": found["50%"],
            "high_w": found["75%"],
            "kernels_percent": np.round(100 * kernels_share(found["samples"]), 1),
        }
    ).reset_index(drop=True)
