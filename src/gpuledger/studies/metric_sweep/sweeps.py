"""Series: points along which one variable grows and the others are fixed."""

import pandas as pd

from gpuledger.studies.metric_sweep.measurements import VARIABLES

#: Key of a series; a class and metric may have several along one variable, at different sizes of the others.
SERIES = ("kernel_class", "metric", "variable", "at")
UNITS = {"n_layer": "layer", "hidden_dim": "feature", "seq_len": "token"}


def all_series(points: pd.DataFrame) -> pd.DataFrame:
    """Arrange points in series.

    Returns
    -------
    DataFrame
        Every point once per variable that varies, with ``variable, size`` (its value) and ``at`` (the sizes of the
        others as text); sorted by series and size. Only series with at least two sizes.
    """
    parts = []
    for variable in VARIABLES:
        others = [name for name in VARIABLES if name != variable]
        groups = points.groupby(["kernel_class", "metric", *others], observed=True)[variable]
        mine = points[groups.transform("nunique") > 1]
        words = [f"{name} = " + mine[name].astype(str) for name in others]
        at = words[0].str.cat(words[1:], sep=", ") if len(mine) else pd.Series(dtype="str")
        parts.append(mine.assign(variable=variable, size=mine[variable], at=at))
    series = pd.concat(parts, ignore_index=True)
    return series.sort_values([*SERIES, "size"], ignore_index=True)


def main_series(series: pd.DataFrame) -> pd.DataFrame:
    """Keep one series per class, metric and variable: the longest, of equals that at the most common other sizes."""
    sizes = series.groupby(list(SERIES))["size"].agg(["size"]).reset_index()
    shared = series.groupby("at").size()
    sizes["shared"] = sizes["at"].map(shared)
    sizes = sizes.sort_values(["size", "shared", "at"], ascending=[False, False, True], kind="stable")
    chosen = sizes.drop_duplicates(["kernel_class", "metric", "variable"])[list(SERIES)]
    return series.merge(chosen, on=list(SERIES), how="inner").sort_values([*SERIES, "size"], ignore_index=True)
