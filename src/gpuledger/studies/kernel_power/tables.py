"""Tables of steady readings by type and arithmetic intensity, and of readings by how long the benchmark ran."""

import numpy as np
import pandas as pd

from gpuledger.models.power import AT_LIMIT
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.studies.kernel_power.readings import kernels_share

#: Ends of the classes of arithmetic intensity (FLOP/byte), and their names.
_INTENSITIES = (-1, 10, 100, 1000, np.inf)
_NAMES = ("up to 10", "10 to 100", "100 to 1,000", "above 1,000")
#: Shares of the DRAM's bandwidth between which kernels read memory alike.
BANDWIDTH = (0.6, 0.95)


def power_table(data: pd.DataFrame, limit_w: float) -> pd.DataFrame:
    """Return what steady readings are, by type and arithmetic intensity.

    Returns
    -------
    DataFrame
        ``precision, intensity, readings, at_limit_percent, power_w`` (median), ``energy_pj_per_flop`` and
        ``energy_pj_per_byte`` (medians of all energy over all FLOP, or bytes), and of the held-back ones
        ``median_error_percent, bias_percent``.
    """
    data = data[data["steady"]]
    # What moves nothing has the largest intensity, what computes nothing no energy of a FLOP.
    intensity = (data["flop"] / data["bytes"]).fillna(0)
    classes = pd.cut(intensity.clip(upper=1e12), _INTENSITIES, labels=False)
    rates = data[["flop_per_s", "bytes_per_s"]].replace(0, np.nan)
    rows = []
    for (precision, place), part in data.groupby([data["precision"], classes], sort=True):
        error = errors_percent(part["predicted_w"], part["power_w"])[part["held_back"]]
        rows.append(
            {
                "precision": precision,
                "intensity": _NAMES[int(place)],
                "readings": len(part),
                "at_limit_percent": 100 * (part["power_w"] > AT_LIMIT * limit_w).mean(),
                "power_w": part["power_w"].median(),
                "energy_pj_per_flop": 1e12 * (part["power_w"] / rates.loc[part.index, "flop_per_s"]).median(),
                "energy_pj_per_byte": 1e12 * (part["power_w"] / rates.loc[part.index, "bytes_per_s"]).median(),
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
    if "samples" not in data:
        return pd.DataFrame(columns=["kind", "samples", "readings", "low_w", "power_w", "high_w", "kernels_percent"])
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
