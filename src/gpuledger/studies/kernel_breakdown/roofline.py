"""Kernels and hardware as points and roofs of a roofline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.models.deployment.speculation import DRAFT
from gpuledger.models.time_model.kernels import FUSED

#: Areas of marks (square points): the least, and how much larger one is that takes the whole step.
_LEAST_AREA, _AREA = 10, 420
#: Width and height of the smallest panel of a roofline (points), and the intensity below which none goes (FLOP/byte).
_WIDTH, _HEIGHT, _LEAST_INTENSITY = 95, 160, 1e-2


@dataclass(frozen=True)
class Roofs:
    """Limits of the GPU that the figures show."""

    peaks: Mapping[str, float]  # peak by precision (FLOP/s)
    #: NaN: not modelled.
    dram_bytes_per_s: float
    l2_bytes_per_s: float

    @classmethod
    def of(cls, result: CaseResult) -> Self:
        """Read them from a case's summary."""
        peaks = {name[5:]: float(result[name]) for name in result.summary if name.startswith("peak_")}
        l2 = float(result["l2_bytes_per_s"]) if "l2_bytes_per_s" in result.summary else np.nan
        return cls(peaks, float(result["dram_bytes_per_s"]), l2)


def roofline_points(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels of the first GPU as points of a roofline, the longest first.

    Parameters
    ----------
    kernels : DataFrame
        The part ``kernels`` of a case. Collectives have no point, but their time counts in the shares.

    Returns
    -------
    DataFrame
        With ``share`` (of the time of the whole step), ``flop_per_s``, ``dram_intensity`` and ``l2_intensity``
        (FLOP/byte). A kernel without matrix work counts one operation per value.
    """
    rows = kernels[kernels["hardware"] == kernels["hardware"].iloc[0]]
    time = rows["time_s"] * rows["count"]
    step = time.groupby(rows["phase"]).transform("sum")
    # Parts of a fused mixture of experts have no traffic of their own.
    fused = rows["kernel"].str.removeprefix(DRAFT).isin(FUSED) & ~(rows["kernel"] == "expert_permute").any()
    rows = rows[(rows["kind"] != "collective") & (rows["time_s"] > 0) & ~fused]
    values = rows[["batch", "m", "n", "k"]].astype(float).prod(axis=1)
    flop = (2.0 * rows["macs"]).where(rows["macs"] > 0, values)
    l2_bytes = rows.get("l2_bytes", pd.Series(np.nan, rows.index))
    points = rows.assign(
        share=(time / step).loc[rows.index],
        flop_per_s=flop / rows["time_s"],
        dram_intensity=flop / rows["dram_bytes"].where(rows["dram_bytes"] > 0),
        l2_intensity=flop / l2_bytes.where(l2_bytes > 0),
    )
    return points.sort_values("share", ascending=False, kind="stable")


def mark_area(share: pd.Series) -> pd.Series:
    """Return the areas of marks (square points) of kernels with this share of the step."""
    return _LEAST_AREA + _AREA * share


def roofline_limits(points: pd.DataFrame, roofs: Roofs) -> dict[str, tuple[float, float]]:
    """Return axes limits (FLOP/byte, TFLOP/s) that hold all points, with the whole marks, and the ridge of DRAM."""
    peak = max(roofs.peaks.values())
    intensities = points[["dram_intensity", "l2_intensity"]]
    left = max(intensities.min().min(), _LEAST_INTENSITY) / 1.6
    largest = intensities[points["macs"] > 0].max().max()
    right = 10 ** np.ceil(np.log10(max(min(largest, 2e4), 4 * peak / roofs.dram_bytes_per_s)))
    rate = points["flop_per_s"] / 1e12
    bottom, top = rate.min() / 2.5, 3.2 * peak / 1e12
    radius = 1.1 * np.sqrt(mark_area(points["share"])) / 2
    left = min(left, _edge(points["dram_intensity"].clip(lower=_LEAST_INTENSITY), right, radius / _WIDTH))
    return {"xlim": (left, right), "ylim": (min(bottom, _edge(rate, top, radius / _HEIGHT)), top)}


def _edge(places: pd.Series, end: float, radius: pd.Series) -> float:
    """Return where a logarithmic axis up to `end` begins, so that all marks fit; their radii are shares of the axis."""
    # log(place / edge) = radius * log(end / edge)
    edges = (places / end**radius) ** (1 / (1 - radius))
    return float(edges[places > 0].min())
