"""The distribution of the warps' elapsed times, from published points or from a trace."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.passes import at_ranks
from gpuledger.readers.tabular import Column, read_csv

CDF_COLUMNS = (
    Column("completed_percent", "number", minimum=0, maximum=100),
    Column("elapsed_cycles", "integer", minimum=1),
)
PERCENTILES = (0, 25, 50, 75, 95, 100)
#: Points kept of a measured distribution: every 0.5 %, every 0.05 % in the last 1 %.
KEPT_PERCENTS = np.unique(np.concatenate([np.arange(0, 200) / 2, np.arange(1980, 2001) / 20]))


def read_cdf(case: Case) -> pd.DataFrame:
    """Read the points of a case's CDF and check that they rise from 0 to 100 %."""
    path = case.path("cdf")
    points = read_csv(path, CDF_COLUMNS)
    percent, cycles = points["completed_percent"], points["elapsed_cycles"]
    checks = [
        (percent.diff() <= 0, "completed_percent", "does not rise", "sort the points and keep one for each percent"),
        (cycles.diff() < 0, "elapsed_cycles", "falls", "a CDF never falls: correct the cycles"),
    ]
    for bad, column, problem, remedy in checks:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            value, before = points[column][row], points[column][row - 1]
            raise InputError(path, f"line {row + 2}, column {column}", f"{value:g} {problem} after {before:g}", remedy)
    for row, end in ((0, 0), (len(points) - 1, 100)):
        if percent[row] != end:
            problem = f"the points {'end' if end else 'start'} at {percent[row]:g} %, not at {end} %"
            remedy = f"add the {'slowest' if end else 'fastest'} warp's cycles"
            raise InputError(path, f"line {row + 2}, column completed_percent", problem, remedy)
    return over_fastest(points)


def measured(elapsed: tuple[np.ndarray, np.ndarray]) -> tuple[pd.DataFrame, list[int]]:
    """Return the kept points of a distribution, and its values at ``PERCENTILES``.

    Percentiles are nearest-rank: each is the time of some warp, never interpolated.

    Parameters
    ----------
    elapsed : (ndarray, ndarray)
        The distinct elapsed times, ascending, in cycles, and how many warps took each.
    """
    warps = int(elapsed[1].sum())

    def at(percents: Sequence[float]) -> np.ndarray:
        rank = np.ceil(np.asarray(percents) * warps / 100).astype(np.int64)
        return at_ranks(elapsed, np.maximum(rank - 1, 0))

    points = pd.DataFrame({"completed_percent": KEPT_PERCENTS, "elapsed_cycles": at(KEPT_PERCENTS)})
    return over_fastest(points), at(PERCENTILES).tolist()


def over_fastest(points: pd.DataFrame) -> pd.DataFrame:
    """Add how far each point lies above the fastest warp, as a fraction of that warp's time."""
    cycles = points["elapsed_cycles"]
    return points.assign(over_fastest_ratio=cycles / max(cycles.iloc[0], 1) - 1)


def summarise(result: CaseResult, percentiles: Sequence[float]) -> None:
    """Add the elapsed cycles at ``PERCENTILES`` and the measures of the tail that follow from them."""
    for percent, cycles in zip(PERCENTILES, percentiles, strict=True):
        result.add(f"cycles_p{percent}", int(cycles) if float(cycles).is_integer() else cycles, "cycle")
    fastest, p25, median, p75, p95, slowest = percentiles
    result.add("tail_ratio", (slowest - fastest) / max(fastest, 1), "1")
    result.add("fastest_below_median_percent", 100 * (median - fastest) / max(median, 1), "%")
    result.add("slowest_above_median_percent", 100 * (slowest - median) / max(median, 1), "%")
    result.add("middle_half_percent", 100 * (p75 - p25) / max(median, 1), "%")
    result.add("after_p95_percent", 100 * (slowest - p95) / max(slowest, 1), "%")
