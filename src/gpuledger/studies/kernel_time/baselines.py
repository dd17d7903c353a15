"""What a prediction has to beat: a derated roofline, a table look-up, and the spread between frameworks."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.models.time_model.constants.neighbours import Near, shared

#: Neighbours that a look-up averages.
NEIGHBOURS = 4


@dataclass(frozen=True)
class Derate:
    """A derated roofline: the larger of compute and traffic at a share of the peaks, and a fixed time."""

    launch_s: float
    peak_share: float
    dram_share: float
    source: str = field(default="", compare=False)

    def time_s(self, compute_s: np.ndarray, traffic_s: np.ndarray) -> np.ndarray:
        """Return the time of kernels that take so long at the peak, and at the full bandwidth."""
        return np.maximum(compute_s / self.peak_share, traffic_s / self.dram_share) + self.launch_s


def fit_derate(compute_s: np.ndarray, traffic_s: np.ndarray, measured_s: np.ndarray) -> Derate:
    """Fit the three constants of a derated roofline."""
    bounds = {"launch_s": (1e-7, 1e-3), "peak_share": (0.02, 1.0), "dram_share": (0.02, 1.0)}
    start = Derate(float(np.clip(np.quantile(measured_s, 0.01), 2e-7, 9e-4)), 0.8, 0.8)
    return fit_law(lambda found: found.time_s(compute_s, traffic_s), start, bounds, measured_s)


def look_up(near: Near, values: np.ndarray) -> np.ndarray:
    """Interpolate as tools that ship tables do: between the nearest measured shapes.

    Parameters
    ----------
    near : Near
        The measured shapes and the wanted ones.
    values : array of shape (known shapes, …)
        Measured times.

    Returns
    -------
    ndarray of shape (wanted shapes, …)
        The geometric mean of the `NEIGHBOURS` nearest and of those as near as the last, weighted by inverse distance.
    """
    return np.exp(shared(np.log(values), *near.weigh(NEIGHBOURS)))


def noise_floor(tables: list[pd.DataFrame], keys: list[str]) -> tuple[float, int]:
    """Return the least MAPE (%) that a prediction blind to the framework can have, and over how many shapes.

    Where several frameworks measured a shape, no single number is near all of them; the one with the least mean
    absolute percentage error is their median, weighted by the inverse of each.

    Parameters
    ----------
    tables : list of DataFrame
        One per framework: `keys` and ``measured_s``.
    keys : list of str
        Columns that say what was measured.
    """
    best = [table.groupby(keys, dropna=False)["measured_s"].median() for table in tables]
    times = pd.concat(best, axis=1, join="outer").to_numpy()
    times = np.sort(times[np.isfinite(times).sum(axis=1) > 1], axis=1)
    if not len(times):
        return np.nan, 0
    known = np.isfinite(times)
    weight = np.where(known, 1 / times, 0)
    middle = (np.cumsum(weight, axis=1) >= weight.sum(axis=1, keepdims=True) / 2).argmax(axis=1)
    best_s = times[np.arange(len(times)), middle][:, None]
    error = np.where(known, np.abs(best_s / np.where(known, times, 1) - 1), 0).sum(axis=1) / known.sum(axis=1)
    return float(100 * error.mean()), len(times)
