"""The law of every series, laws in two variables, and comparison with expected formulas."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.ledger.datasets import Case
from gpuledger.models import scaling_laws
from gpuledger.studies.metric_sweep.measurements import PLACE, VARIABLES
from gpuledger.studies.metric_sweep.sweeps import SERIES

#: Columns of the law table.
LAW_TABLE = ("kernel_class", "metric", "variable", "law", "formula", "points", "error_percent")
LAWS = (*LAW_TABLE, "largest_error_percent", "unit", "at", "exact", "knee")
_ERRORS = ("error_percent", "largest_error_percent")
PRODUCTS = ("kernel_class", "metric", "unit", "variable", "at", "formula", "points", *_ERRORS, "exact")
EXPECTED = ("kernel_class", "metric", "unit", *VARIABLES, "value", "expected", "formula", "slope_ratio")

#: Least grid for a law in two variables: sizes of each variable, and points off the two axes.
GRID_SIZES, GRID_INNER = 3, 4


def fit_laws(series: pd.DataFrame, points: pd.DataFrame, left_out: pd.DataFrame | None = None) -> pd.DataFrame:
    """Fit the law of every series.

    Parameters
    ----------
    series : DataFrame
        One series of each class, metric and variable.
    points : DataFrame
        All points of classes; a class and metric without a series gets an ``undetermined`` row.
    left_out : DataFrame, optional
        Outliers (``kernel_class, metric`` and sizes), which are excluded from the fits.

    Returns
    -------
    DataFrame
        :data:`LAWS`, sorted by class, metric and variable.
    """
    kept = series
    if left_out is not None and len(left_out):
        kept = series[~_at_points(series, left_out.astype(dict.fromkeys(VARIABLES, "int64")))]
    keys = list(SERIES[:3])
    fitted = [
        scaling_laws.fit_many(own, ["kernel_class", "metric"], variable)
        for variable in VARIABLES
        if len(own := kept[kept["variable"] == variable])
    ]
    about = series.drop_duplicates(keys)[[*keys, "unit", "at"]]
    found = pd.concat(fitted, ignore_index=True).merge(about, on=keys, validate="one_to_one")
    found = pd.concat([found, _without_series(series, points)], ignore_index=True)
    found = found.astype({"points": "int64", "exact": "bool", "knee": "float64"} | dict.fromkeys(_ERRORS, "float64"))
    return found[list(LAWS)].sort_values(keys, ignore_index=True)


def _without_series(series: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Return rows for classes and metrics that were measured at one size only."""
    alone = points.drop_duplicates(["kernel_class", "metric"])[["kernel_class", "metric", "unit"]]
    has = pd.MultiIndex.from_frame(series[["kernel_class", "metric"]])
    alone = alone[~pd.MultiIndex.from_frame(alone[["kernel_class", "metric"]]).isin(has)]
    varied = series[["variable"]].drop_duplicates()
    nothing = {"law": "undetermined", "formula": "not enough points", "points": 1, "at": "", "exact": False}
    return alone.merge(varied, how="cross").assign(**nothing, **dict.fromkeys(["knee", *_ERRORS], np.nan))


def fit_products(points: pd.DataFrame) -> pd.DataFrame:
    """Fit laws in two variables where points cover a grid, not only its axes.

    If a class, metric and pair of variables has grids at several sizes of the third variable, the one with most points
    is fitted.

    Returns
    -------
    DataFrame
        :data:`PRODUCTS`; ``variable`` names both.
    """
    rows = []
    for one, two in combinations(("seq_len", "hidden_dim", "n_layer"), 2):
        third = next(name for name in VARIABLES if name not in (one, two))
        keys = ["kernel_class", "metric", "unit", third]
        groups = points.groupby(keys)
        wide = (groups[one].transform("nunique") >= GRID_SIZES) & (groups[two].transform("nunique") >= GRID_SIZES)
        grids = points[wide]
        inner = (grids[one] != _most_common(grids, keys, one)) & (grids[two] != _most_common(grids, keys, two))
        off_axes = inner.groupby([grids[name] for name in keys]).transform("sum")
        largest: dict[tuple, tuple] = {}
        for (kernel_class, metric, unit, at), own in grids[off_axes >= GRID_INNER].groupby(keys):
            if len(own) > len(largest.get((kernel_class, metric, unit), ((), None))[0]):
                largest[kernel_class, metric, unit] = own, at
        for (kernel_class, metric, unit), (own, at) in largest.items():
            columns = (own[name].to_numpy() for name in (one, two, "value"))
            fit = scaling_laws.fit_product(*columns, variables=(one, two))
            about = (kernel_class, metric, unit, f"{one}, {two}", f"{third} = {at}")
            rows.append((*about, fit.formula, fit.points, fit.error_percent, fit.largest_error_percent, fit.exact))
    return pd.DataFrame(rows, columns=list(PRODUCTS))


def _most_common(points: pd.DataFrame, keys: list[str], name: str) -> pd.Series:
    """Return, for every point, the value of `name` that occurs most often in its group, of equals the smallest."""
    counts = points.groupby([*keys, name]).size().rename("size").reset_index()
    counts = counts.sort_values("size", ascending=False, kind="stable").drop_duplicates(keys)
    return points[keys].merge(counts, on=keys, how="left")[name].set_axis(points.index)


def compare_expected(points: pd.DataFrame, case: Case) -> pd.DataFrame:
    """Compare measured values with the formulas that the case declares.

    Returns
    -------
    DataFrame
        :data:`EXPECTED`, one row per point of a declared class and metric.
    """
    parts = []
    for position, entry in enumerate(case.inputs.get("expected", ())):
        place = f"expected[{position}]"
        own = points
        for key in ("kernel_class", "metric"):
            known = own[key].unique()
            own = own[own[key] == entry[key]]
            if own.empty:
                problem = f"there is no {key} '{entry[key]}' in the measurements"
                raise case.error(f"{place}.{key}", problem, schemas.nearest(entry[key], known))
        parts.append(_expected(own, entry, case, place))
    columns = list(EXPECTED)
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _expected(own: pd.DataFrame, entry: Mapping, case: Case, place: str) -> pd.DataFrame:
    try:
        expected, slope_ratio = scaling_laws.compare(own, entry["formula"], entry.get("constants"))
    except ValueError as error:
        problem, _, remedy = str(error).partition(";")
        remedy = remedy or f"use numbers, constants and {', '.join(VARIABLES)}"
        raise case.error(f"{place}.formula", problem, remedy) from None
    return own.assign(expected=expected, formula=entry["formula"], slope_ratio=slope_ratio)


def law_of(laws: pd.DataFrame, series: pd.DataFrame) -> pd.Series:
    """Return the row of the law table that belongs to one series."""
    keys = [laws[name] == series[name].iloc[0] for name in SERIES[:3]]
    return laws[np.logical_and.reduce(keys)].iloc[0]


def outlying_sizes(wrong: pd.DataFrame, series: pd.DataFrame) -> list[int]:
    """Return the sizes of a series that are outliers among the anomalies `wrong`."""
    outliers = wrong.loc[wrong["kind"] == "outlier", PLACE].astype(dict.fromkeys(VARIABLES, "int64"))
    return series.loc[_at_points(series, outliers), "size"].tolist()


def _at_points(series: pd.DataFrame, points: pd.DataFrame) -> np.ndarray:
    """Return which rows are at one of the points (``kernel_class, metric`` and sizes)."""
    return pd.MultiIndex.from_frame(series[PLACE]).isin(pd.MultiIndex.from_frame(points[PLACE]))


def fit_series(series: pd.DataFrame, outliers: Sequence[int]) -> scaling_laws.Fit:
    """Fit one series without the sizes that are `outliers`."""
    own = series[~series["size"].isin(list(outliers))]
    return scaling_laws.fit(own["size"].to_numpy(), own["value"].to_numpy(), series["variable"].iloc[0])
