"""Anomalies: contradictory counters, classes of different kernels, changes of algorithm, and outliers."""

import re

import numpy as np
import pandas as pd

from gpuledger.models import scaling_laws
from gpuledger.studies.metric_sweep import unit_switches
from gpuledger.studies.metric_sweep.measurements import PLACE, VARIABLES
from gpuledger.studies.metric_sweep.sweeps import SERIES
from gpuledger.studies.metric_sweep.unit_switches import shown

COLUMNS = ("kernel_class", "metric", "kind", "where", "evidence")
KINDS = ("unit_switch", "outlier", "split_class", "algorithm_switch", "contradiction")

#: Fewest points without the outlier: they must determine a law.
OUTLIER_REST = scaling_laws.MINIMUM_POINTS + 1
#: Distance of an outlier from the law of the rest: in errors of that law, relative, and relative if the law is exact.
OUTLIER_ERRORS, OUTLIER_DISTANCE, OUTLIER_EXACT = 6.0, 0.25, 0.005
#: Logarithms take a zero as this fraction of the smallest value.
ZERO = 1e-3
#: Least difference between the kernels of a split class: relative, and in spreads of their launches.
SPLIT_DISTANCE, SPLIT_SPREADS = 0.05, 1.5
#: Shares above 100 % are impossible, but counters from different passes may differ slightly.
PERCENT_LIMIT = 105.0

# Counters that cannot exceed another counter times a factor.
# NVIDIA, Nsight Compute documentation, Metrics Guide: a warp has 32 threads, some of which are predicated on.
_LIMITS = (
    (r"^(smsp?)__thread_inst_executed_pred_on\.sum$", r"\1__thread_inst_executed.sum", 1),
    (r"^(smsp?)__thread_inst_executed\.sum$", r"\1__inst_executed.sum", 32),
    (r"^(smsp?)__sass_inst_executed_op_\w+\.sum$", r"\1__inst_executed.sum", 1),
    (r"^(smsp?)__inst_executed\.sum$", r"\1__inst_issued.sum", 1),
    (r"^dram__(bytes|sectors)_(?:op_)?(?:read|write)\.sum$", r"dram__\1.sum", 1),
)


def _frame(rows: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*COLUMNS, *VARIABLES]).astype(dict.fromkeys(VARIABLES, "Int64"))


def _at(point: dict, kind: str, evidence: str) -> dict:
    """Return the row of an anomaly at a point, which its sizes name."""
    where = ", ".join(f"{name} = {point[name]:,}" for name in VARIABLES)
    return {**point, "kind": kind, "where": where, "evidence": evidence}


def contradictions(points: pd.DataFrame) -> pd.DataFrame:
    """Find counters that cannot both be right: bytes that disagree with sectors, parts larger than their whole."""
    rows = []
    proven = unit_switches.with_proofs(points)
    known = proven[proven["proof"].notna()]
    spread = (known["maximum"] - known["minimum"]).fillna(0)
    allowed = known["last_digit"].fillna(0) * 1.0001 + unit_switches.AGREEMENT * known["proof"] + spread
    for point in known[(known["value"] - known["proof"]).abs() > allowed].to_dict("records"):
        sectors = unit_switches.sectors_of(point["metric"])
        counted = point["proof"] / unit_switches.SECTOR_BYTES
        evidence = (
            f"{shown(point['value'], point['unit'])}, but {sectors} = {counted:,.0f} × "
            f"{unit_switches.SECTOR_BYTES} byte = {shown(point['proof'], point['unit'])}"
        )
        rows.append(_at(point, "contradiction", evidence))
    values = points.set_index(PLACE)["value"]
    rows_of = points.groupby("metric", sort=False).indices
    for metric in rows_of:
        for pattern, other, times in _LIMITS:
            partner = re.sub(pattern, other, metric)
            if partner == metric or partner not in rows_of or not re.match(pattern, metric):
                continue
            mine = points.iloc[rows_of[metric]]
            keys = pd.MultiIndex.from_frame(mine.assign(metric=partner)[PLACE])
            limit = values.reindex(keys).to_numpy() * times
            above = mine["value"].to_numpy() > limit * (1 + unit_switches.AGREEMENT)
            for point, most in zip(mine[above].to_dict("records"), limit[above], strict=True):
                factor = "" if times == 1 else f"{times} × "
                evidence = f"{point['value']:,.0f} is more than {factor}{partner}, {most:,.0f}"
                rows.append(_at(point, "contradiction", evidence))
    above = points[(points["unit"] == "%") & (points["value"] > PERCENT_LIMIT)]
    for point in above.to_dict("records"):
        evidence = f"a share of {point['value']:.4g} %, above 100 %"
        rows.append(_at(point, "contradiction", evidence))
    return _frame(rows)


def split_classes(kernels: pd.DataFrame, observations: pd.DataFrame) -> pd.DataFrame:
    """Find classes whose kernels, by full name, differ by more than the launches of each kernel.

    Parameters
    ----------
    observations : DataFrame
        See :func:`gpuledger.studies.metric_sweep.measurements.read_observations`.
    """
    rows = []
    groups = kernels.groupby(PLACE, sort=False)
    several = kernels[groups["kernel_name"].transform("size") > 1]
    if len(several):
        groups = several.groupby(PLACE, sort=True)
        low, high = groups["value"].min(), groups["value"].max()
        spread = (several["maximum"] - several["minimum"]).groupby([several[name] for name in PLACE]).max()
        apart = high - low > np.maximum(SPLIT_DISTANCE * high, SPLIT_SPREADS * spread)
        split = apart.groupby(level=["kernel_class", "metric"]).mean()
        distance = ((high - low) / high.where(high > 0))[apart]
        for kernel_class, metric in split[split > 0.5].index:
            where = distance.xs((kernel_class, metric), level=["kernel_class", "metric"]).idxmax()
            point = {"kernel_class": kernel_class, "metric": metric, **dict(zip(VARIABLES, where, strict=True))}
            own = groups.get_group((kernel_class, metric, *where)).sort_values("value", kind="stable")
            least, most = own.iloc[0], own.iloc[-1]
            one, other = difference(least["kernel_name"], most["kernel_name"])
            evidence = (
                f"{one}: {shown(least['value'], least['unit'])}, {other}: {shown(most['value'], most['unit'])}; "
                f"{len(own)} kernels differ by more than the spread of their launches"
            )
            rows.append(_at(point, "split_class", evidence))
    for (model, kernel_class, metric), own in observations.groupby(["model", "kernel_class", "metric"], sort=True):
        if own["observation"].nunique() < 2:
            continue
        one, other = own.drop_duplicates("observation").sort_values("observation").iloc[:2].to_dict("records")
        names = difference(one["kernel_name"], other["kernel_name"])
        evidence = f"{names[0]}: {one['observation']}, {names[1]}: {other['observation']}"
        about = {"kernel_class": kernel_class, "metric": metric, "kind": "split_class"}
        rows.append({**about, "where": f"kernels of {model}", "evidence": evidence})
    return _frame(rows)


def difference(one: str, other: str) -> tuple[str, str]:
    """Return the words in which two kernel names differ, or the full names if their structure differs."""
    words = [re.split(r"([^\w:]+)", name) for name in (one, other)]
    if len(words[0]) == len(words[1]):
        apart = [pair for pair in zip(*words, strict=True) if pair[0] != pair[1]]
        if 0 < len(apart) <= 3:
            return tuple(" … ".join(parts) for parts in zip(*apart, strict=True))
    return one, other


def algorithm_switches(kernels: pd.DataFrame) -> pd.DataFrame:
    """Find kernels that run at some sizes only, while their class runs at all sizes."""
    rows = []
    sizes = kernels[["kernel_class", "kernel_name", *VARIABLES]].drop_duplicates()
    for variable in VARIABLES:
        others = [name for name in VARIABLES if name != variable]
        for (kernel_class, *at), own in sizes.groupby(["kernel_class", *others], sort=True):
            every = own[variable].unique()
            if len(every) < 3:
                continue
            for name, mine in own.groupby("kernel_name", sort=True):
                if mine[variable].nunique() == len(every):
                    continue
                rest = ", ".join(f"{word} = {size:,}" for word, size in zip(others, at, strict=True))
                evidence = f"{name} runs at {len(mine)} of {len(every)} sizes, the class at all sizes"
                about = {"kernel_class": kernel_class, "metric": "all", "kind": "algorithm_switch"}
                where = f"{variable} {_range(mine[variable], every)} ({rest})"
                rows.append({**about, "where": where, "evidence": evidence})
    return _frame(rows)


def _range(sizes: pd.Series, every: np.ndarray) -> str:
    """Write sizes as ``≥ 512``, ``≤ 256`` or a list."""
    mine, rest = sorted(sizes), sorted(set(every) - set(sizes))
    if min(mine) > max(rest):
        return f"≥ {min(mine):,}"
    if max(mine) < min(rest):
        return f"≤ {max(mine):,}"
    return "= " + ", ".join(f"{size:,}" for size in mine)


def outliers(series: pd.DataFrame, laws: pd.DataFrame) -> pd.DataFrame:
    """Find points that are far from the law that all other points follow.

    A point is suspected if it is much farther than the others from the straight line (of logarithms) between its
    neighbours. It is an outlier if the law of the other points is good, misses the point by far, and is much better
    than the law of all points. First and last points cannot be distinguished from a change of law and are not tested.

    Parameters
    ----------
    series : DataFrame
        One series of each class, metric and variable.
    laws : DataFrame
        The law of each, fitted to all points.
    """
    keys = list(SERIES[:3])
    mine = series.merge(laws[[*keys, "law", "exact", "error_percent"]], on=keys, validate="many_to_one")
    groups = [mine[name] for name in keys]
    enough = mine.groupby(keys)["size"].transform("nunique") > OUTLIER_REST
    # A single zero among counts may be an outlier; several zeros follow a law.
    zeros = (mine["value"] <= 0).groupby(groups).transform("sum")
    mine = mine[enough & (zeros <= 1) & ~mine["exact"].astype(bool) & ~(mine["error_percent"] < 1)]
    least = mine["value"].where(mine["value"] > 0).groupby([mine[name] for name in keys]).transform("min")
    x, y = np.log(mine["size"].astype(float)), np.log(mine["value"].where(mine["value"] > 0, ZERO * least))
    groups = [mine[name] for name in keys]
    (x0, x1), (y0, y1) = ((v.groupby(groups).shift(1), v.groupby(groups).shift(-1)) for v in (x, y))
    off = (y - (y0 + (y1 - y0) * (x - x0) / (x1 - x0))).abs()
    worst, usual = (off.groupby(groups).transform(name) for name in ("max", "median"))
    mine = mine.assign(suspected=(off == worst) & (worst > OUTLIER_EXACT) & (worst > 1.5 * usual))
    mine = mine[mine["suspected"].groupby(groups).transform("sum") == 1]
    parts = [
        scaling_laws.fit_many(own, keys[:2], variable)
        for variable, own in mine[~mine["suspected"]].groupby("variable", sort=True)
    ]
    if not parts:
        return _frame([])
    rest = pd.concat(parts, ignore_index=True)[[*keys, "law", "exact", "error_percent"]]
    points = mine[mine["suspected"]].merge(rest, on=keys, suffixes=("", "_rest"))
    floor = (3 * points["error_percent_rest"].clip(lower=1)).where(~points["exact_rest"].astype(bool), 0)
    good = (points["law_rest"] != "undetermined") & (points["error_percent_rest"] <= 10)
    better = points["error_percent"].isna() | (points["error_percent"] > floor)
    by_series = {key: own for key, own in mine.groupby(keys, sort=False)}
    rows = [
        _outlier(point, by_series[tuple(point[name] for name in keys)]) for _, point in points[good & better].iterrows()
    ]
    return _frame([row for row in rows if row])


def _outlier(point: pd.Series, own: pd.DataFrame) -> dict | None:
    """Compare a suspected point with the law of the others; None if it is close enough."""
    rest = own[~own["suspected"]]
    law = scaling_laws.fit(rest["size"].to_numpy(), rest["value"].to_numpy(), point["variable"])
    expected = float(law.predict(np.array([float(point["size"])]))[0][0])
    distance = abs(point["value"] - expected) / abs(expected) if expected else np.inf
    least = max(OUTLIER_DISTANCE, OUTLIER_ERRORS * law.error_percent / 100)
    if distance <= (OUTLIER_EXACT if law.exact else least):
        return None
    evidence = (
        f"{shown(point['value'], point['unit'])} where {law.formula}, the law of the other {len(rest)} points, "
        f"gives {shown(float(f'{expected:.6g}'), point['unit'])}"
    )
    where = f"{point['variable']} = {point['size']:,} ({point['at']})"
    return {**point.to_dict(), "kind": "outlier", "where": where, "evidence": evidence}
