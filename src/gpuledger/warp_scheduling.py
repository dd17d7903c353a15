"""When warps finish: the distribution of their elapsed times, and how long its tail is.

One study of the Neutrino evaluation (S. Huang, C. Wu, OSDI 2025): ``warp_scheduling`` (Fig. 14 and 17).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuledger.datasets import Case
from gpuledger.errors import InputError
from gpuledger.reduced import Reduced
from gpuledger.tabular import Column, read_csv

CDF_COLUMNS = (
    Column("completed_percent", "number", minimum=0, maximum=100),
    Column("elapsed_cycles", "integer", minimum=1),
)
PERCENTILES = (0, 25, 50, 75, 95, 100)


def reduce_warps(case: Case) -> Reduced:
    """Reduce the elapsed times of a kernel's warps to their percentiles and tail.

    Parameters
    ----------
    case : Case
        Its ``cdf`` has the columns of ``CDF_COLUMNS``: how many per cent of the warps needed at most so many cycles.
        ``kernel``, ``blocks`` and ``device`` are texts for titles.

    Returns
    -------
    Reduced
        Data: ``completed_percent, elapsed_cycles, over_fastest_ratio``. A percentile that is not among the points is
        interpolated linearly.

    Raises
    ------
    InputError
        See :func:`gpuledger.tabular.read_csv`; percents that do not rise from 0 to 100, cycles that fall.
    """
    points = read_cdf(case)
    cycles = points["elapsed_cycles"]
    reduced = Reduced(points.assign(over_fastest_ratio=cycles / cycles.iloc[0] - 1))
    for name in ("kernel", "blocks", "device"):
        if name in case.inputs:
            reduced.add(name, case.inputs[name], "text")
    given = "published" if case.dataset.content["kind"] == "published" else "given"
    reduced.add("warps", f"not {given}", "warp")
    summarise(reduced, *(np.interp(PERCENTILES, points["completed_percent"], cycles)))
    what = f"{case.inputs.get('kernel', case.name)}"
    what += f", {case.inputs['blocks']} blocks" if "blocks" in case.inputs else ""
    finding = f"{what}: slowest warp {100 * reduced['tail_ratio']:.1f} % behind the fastest"
    reduced.add("finding", finding, "text")
    return reduced


def summarise(
    reduced: Reduced, fastest: float, p25: float, median: float, p75: float, p95: float, slowest: float
) -> None:
    """Enter percentiles of elapsed cycles and the measures of the tail that follow from them."""
    for percent, cycles in zip(PERCENTILES, (fastest, p25, median, p75, p95, slowest), strict=True):
        reduced.add(f"cycles_p{percent}", int(cycles) if float(cycles).is_integer() else cycles, "cycle")
    reduced.add("tail_ratio", (slowest - fastest) / fastest, "1")
    reduced.add("fastest_below_median_percent", 100 * (median - fastest) / median, "%")
    reduced.add("slowest_above_median_percent", 100 * (slowest - median) / median, "%")
    reduced.add("middle_half_percent", 100 * (p75 - p25) / median, "%")
    reduced.add("after_p95_percent", 100 * (slowest - p95) / slowest, "%")


def read_cdf(case: Case) -> pd.DataFrame:
    """Read the published points of a case's CDF and check that they are one."""
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
    return points


def points_table(data: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return the points with headers and formats for people."""
    headers = {
        "completed_percent": "warps finished (%)",
        "elapsed_cycles": "elapsed time (cycles)",
        "over_fastest_ratio": "over the fastest (%)",
    }
    formats = {"completed_percent": "{:g}", "over_fastest_ratio": lambda ratio: f"{100 * ratio:+.2f}"}
    return data, headers, formats
