"""Unit switches: values of one series that were printed in different units, and their repair.

A profiler that scales each value separately prints 999 Kbyte next to 1.02 Mbyte. In a table without units, the series
then falls by a factor of 1000 although the counter rises.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuledger.studies.metric_sweep.measurements import PLACE, UNKNOWN_UNIT, VARIABLES
from gpuledger.studies.metric_sweep.sweeps import SERIES

#: Bytes of a sector of L2 and DRAM. NVIDIA, Nsight Compute documentation, Metrics Guide.
SECTOR_BYTES = 32
#: Factors between units; Nsight Compute's units are decimal, so those come first.
FACTORS = (10.0**3, 10.0**6, 10.0**9, 2.0**10, 2.0**20, 2.0**30)
#: Ratios of binary to decimal kilo, mega and giga.
BINARY = (1.024, 1.024**2, 1.024**3)
#: How far a slope (of logarithms) may lie outside the range of the other steps' slopes.
SLOPE_MARGIN = 0.5
#: Relative difference allowed between two counters of a launch, beyond the printed digits.
AGREEMENT = 0.02
_VALUES = ("value", "minimum", "lower_quartile", "upper_quartile", "maximum", "last_digit")
_PARTNER = re.compile(r"^((?:dram|lts|l1tex)__\w*?)bytes(\w*\.(?:sum|avg|min|max))$")


def sectors_of(metric: str) -> str | None:
    """Return the metric that counts the sectors of a metric that counts bytes; None if there is none."""
    match = _PARTNER.match(metric)
    return f"{match[1]}sectors{match[2]}" if match else None


def with_proofs(points: pd.DataFrame) -> pd.DataFrame:
    """Add ``proof``: the bytes of the sectors counted at the same point; NaN if none were counted."""
    sectors = points.set_index(PLACE)["value"] * SECTOR_BYTES
    partner = points["metric"].map({name: sectors_of(name) for name in points["metric"].unique()})
    partner = partner.where(points["unit"] != UNKNOWN_UNIT)
    wanted = pd.MultiIndex.from_frame(points.assign(metric=partner)[PLACE])
    return points.assign(proof=sectors.reindex(wanted).to_numpy())


def with_units(points: pd.DataFrame) -> pd.DataFrame:
    """Give bytes without a unit the one in which most of them agree with the sectors counted at the same point.

    If at most half of a metric's values agree in every unit, its unit stays unknown.
    """
    unknown = points["unit"] == UNKNOWN_UNIT
    if not unknown.any():
        return points
    proven = with_proofs(points.assign(unit=points["unit"].mask(unknown, "byte")))
    for metric in points.loc[unknown, "metric"].unique():
        mine = (points["metric"] == metric) & unknown
        known = proven[mine & (proven["kernel_name"] == "") & proven["proof"].notna()]
        value, proof, digit = (known[name].to_numpy(float) for name in ("value", "proof", "last_digit"))
        agreeing = [int(agree(value * unit, proof, digit * unit).sum()) for unit in (1.0, *FACTORS)]
        if 2 * max(agreeing) <= max(len(known), 1):
            continue
        unit = (1.0, *FACTORS)[int(np.argmax(agreeing))]
        factor = np.where(mine, unit, 1.0)
        points = points.assign(
            unit=points["unit"].mask(mine, "byte"),
            **{name: _product(points[name].to_numpy(float), factor) for name in _VALUES},
        )
    return points


def agree(value: np.ndarray, proof: np.ndarray, last_digit: np.ndarray) -> np.ndarray:
    """Return which values are the proven ones, up to their last printed digits, which may be truncated."""
    return np.abs(value - proof) <= np.nan_to_num(last_digit) * 1.0001 + AGREEMENT * proof


@dataclass(frozen=True)
class _Series:
    size: np.ndarray
    value: np.ndarray
    proof: np.ndarray
    last_digit: np.ndarray

    def factors(self) -> np.ndarray | None:
        """Return the factor that repairs each value, or None without evidence that units changed."""
        for candidates in (FACTORS[:3], FACTORS[3:]):
            factors = self._factors(candidates)
            if factors is not None:
                return factors
        if np.isnan(self.proof).any():
            return None
        # Only sectors can reveal powers of 1024 that are labelled with a decimal unit.
        found = (self._factors(FACTORS[3:], scale) for scale in BINARY)
        return next((factors for factors in found if factors is not None), None)

    def _factors(self, candidates: tuple[float, ...], scale: float = 1.0) -> np.ndarray | None:
        x, y = np.log(self.size), np.log(self.value)
        width, jump = np.diff(x), np.diff(y)
        slope = jump / width
        broken = np.abs(jump - np.median(slope) * width) > 0.6 * math.log(FACTORS[0])
        others = slope[~broken]
        if not broken.any() or len(others) < 2:
            return None
        low, high = others.min() - SLOPE_MARGIN, others.max() + SLOPE_MARGIN
        steps = np.zeros(len(jump))
        for step in np.flatnonzero(broken):
            logs = [sign * math.log(factor) for factor in candidates for sign in (1, -1)]
            fitting = [log for log in logs if low <= (jump[step] + log) / width[step] <= high]
            if not fitting:
                return None
            steps[step] = fitting[0]
        relative = np.exp(np.r_[0.0, np.cumsum(steps)])
        return self._checked(relative, scale)

    def _checked(self, relative: np.ndarray, scale: float) -> np.ndarray | None:
        kinds, counts = np.unique(relative.round(9), return_counts=True)
        # The declared unit is the one that the sectors confirm, or else that of most points.
        agreeing = [self._agree(relative / kind * scale).sum() for kind in kinds]
        best = max(range(len(kinds)), key=lambda kind: (agreeing[kind], counts[kind], -kind))
        factors = _clean(relative / kinds[best]) * scale
        repaired, changed = self.value * factors, factors != 1
        if not changed.any():
            return None
        known = ~np.isnan(self.proof)
        if (known & changed).any():
            if not self._agree(factors)[known].all():
                return None
        elif np.all(self.value % 1 == 0) and np.all(self.last_digit == 1):
            return None  # integers with all their digits were not scaled
        # Values printed in a larger unit must be larger.
        for factor in np.unique(factors)[:-1]:
            if repaired[factors > factor].min() < 0.9 * repaired[factors == factor].max():
                return None
        return factors

    def _agree(self, factors: np.ndarray) -> np.ndarray:
        return agree(self.value * factors, self.proof, self.last_digit * factors)


def _clean(factors: np.ndarray) -> np.ndarray:
    """Return the exact factors between units, without the rounding error of logarithms."""
    exact = np.array([1.0, *FACTORS, *(1 / factor for factor in FACTORS)])
    return exact[np.abs(np.log(factors[:, None] / exact)).argmin(axis=1)]


def find(series: pd.DataFrame) -> pd.DataFrame:
    """Find points that were printed in a unit other than the declared one.

    Parameters
    ----------
    series : DataFrame
        See :func:`gpuledger.studies.metric_sweep.sweeps.all_series`, with ``proof``.

    Returns
    -------
    DataFrame
        One row per point: ``kernel_class, metric, kind, where, evidence``, its sizes and ``factor``.
    """
    positive = (series["value"] > 0).groupby([series[name] for name in SERIES]).transform("all")
    mine = series[positive]
    groups = mine.groupby(list(SERIES), sort=False)
    jump = np.log(mine["value"]).groupby([mine[name] for name in SERIES]).diff().abs()
    suspected = jump.groupby([mine[name] for name in SERIES]).transform("max") > 0.3 * math.log(FACTORS[0])
    rows = []
    for key, own in mine[suspected & (groups["size"].transform("size") >= 4)].groupby(list(SERIES), sort=False):
        one = _Series(*(own[name].to_numpy(float) for name in ("size", "value", "proof", "last_digit")))
        factors = one.factors()
        if factors is None:
            continue
        for position in np.flatnonzero(factors != 1):
            point, factor = own.iloc[position], factors[position]
            rows.append(_row(dict(zip(SERIES, key, strict=True)), point, own, factor))
    columns = ["kernel_class", "metric", "kind", "where", "evidence", *VARIABLES, "factor"]
    return pd.DataFrame(rows, columns=columns).drop_duplicates(PLACE)


def _row(key: dict, point: pd.Series, own: pd.DataFrame, factor: float) -> dict:
    unit = point["unit"]
    sizes = own["size"].to_numpy()
    nearest = own.iloc[np.argsort(np.abs(np.log(sizes / point["size"])), kind="stable")[1]]
    evidence = (
        f"given as {shown(point['value'], unit)} next to {shown(nearest['value'], unit)} at {key['variable']} = "
        f"{nearest['size']:,}; × {power(factor)} = {shown(point['value'] * factor, unit)}, it fits the series"
    )
    if np.isnan(point["proof"]):
        counter = "sectors were" if sectors_of(point["metric"]) else "other counter of it was"
        evidence += f"; not proven, because no {counter} recorded at this size"
    else:
        counted = point["proof"] / SECTOR_BYTES
        evidence += f"; proven by {counted:,.0f} sectors × {SECTOR_BYTES} byte = {shown(point['proof'], unit)}"
    return {
        **{name: key[name] for name in ("kernel_class", "metric")},
        "kind": "unit_switch",
        "where": f"{key['variable']} = {point['size']:,} ({key['at']})",
        "evidence": evidence,
        **{name: point[name] for name in VARIABLES},
        "factor": factor,
    }


def power(factor: float) -> str:
    """Write a factor between units."""
    if factor < 1:
        return f"1/{power(1 / factor)}"
    return f"{factor:,.10g}"


def shown(value: float, unit: str) -> str:
    """Write a value with its unit and a suitable prefix."""
    if unit in ("byte", "byte/s", "hz") and value >= 1000:
        step = min(int(math.log10(value)) // 3, 4)
        return f"{value / 1000**step:.4g} {'KMGT'[step - 1]}{unit}"
    whole = float(value).is_integer() or abs(value) >= 1000
    number = f"{value if float(value).is_integer() else float(f'{value:.4g}'):,.0f}" if whole else f"{value:.4g}"
    return f"{number} {unit}".removesuffix(" 1")


def repair(points: pd.DataFrame, switches: pd.DataFrame) -> pd.DataFrame:
    """Repair values that were printed in another unit; ``value_as_given`` keeps the original."""
    factor = switches.set_index(PLACE)["factor"].reindex(pd.MultiIndex.from_frame(points[PLACE])).fillna(1.0).to_numpy()
    repaired = {name: _product(points[name].to_numpy(), factor) for name in _VALUES}
    return points.assign(value_as_given=points["value"], **repaired)


def _product(values: np.ndarray, factor: np.ndarray) -> np.ndarray:
    # Fifteen digits: 0.0079 Mbyte times 1000 are 7,900,000 byte.
    changed = factor != 1
    out = values.copy()
    out[changed] = [float(f"{value:.15g}") for value in values[changed] * factor[changed]]
    return out
