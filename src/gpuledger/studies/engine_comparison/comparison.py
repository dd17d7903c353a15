"""What the joined times say: who is fastest, by how much, where, and beyond which noise."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.studies.engine_comparison.noise import beyond
from gpuledger.studies.engine_comparison.shapes import LAYOUTS, kernel_column, time_column

#: Shapes that a region needs.
LEAST_SHAPES = 20
#: Columns of the data that are no size.
_WORDS = ("panel", "operator", "group", "fastest")
#: Sizes that follow from others and from the type of number.
_DERIVED = ("cache_values", "value_bytes", "cache_bytes", "foreign")
#: Rows of the table of the largest differences, by panel and table.
LARGEST = 5


def names_of(result: CaseResult) -> list[str]:
    """Return the names of the compared tables, in the order of the case."""
    return str(result["tables"]).split("; ")


def panels_of(result: CaseResult) -> list[str]:
    """Return the types of number (with operators) that any table has."""
    return str(result["panels"]).split("; ")


def statistics(result: CaseResult) -> pd.DataFrame:
    """Return :func:`table_of` a reduced case."""
    about, notes = [], {}
    for panel in panels_of(result):
        if (note := result[f"{slug(panel)}_unlike"]) != "none":
            notes[panel] = str(note)
        for name in names_of(result):
            word = f"{slug(panel)}_{slug(name)}"
            if f"{word}_measured" in result.summary:
                row = {"panel": panel, "table": name, "kernels": result[f"{word}_kernels"]}
                about.append(row | {"host_bound": result[f"{word}_host_bound"] == "yes"})
    versions = result["baseline"] != "none"
    return table_of(result.data, pd.DataFrame(about), str(result["layout"]), versions, notes)


def remarks_of(result: CaseResult) -> list[str]:
    """Return what the case says of large differences."""
    return [str(entry["value"]) for name, entry in result.summary.items() if name.startswith("remark_")]


def sizes_of(data: pd.DataFrame) -> list[str]:
    """Return the columns of the data that are sizes of the shapes."""
    own = ("_s", "_kernel", "_ratio", "_beyond", "noise")
    return [name for name in data if name not in _WORDS and not name.endswith(own)]


def compare(shapes: pd.DataFrame, tables: Sequence[str], layout: str, versions: bool, least: float) -> pd.DataFrame:
    """Add to every shape by how much each table differs, and whether beyond the noise.

    Parameters
    ----------
    shapes : DataFrame
        Of :func:`gpuledger.studies.engine_comparison.shapes.read_shapes`.
    versions : bool
        Compare the second table with the first; else each with the fastest of the others.
    least : float
        No difference below this counts.

    Returns
    -------
    DataFrame
        With ``fastest`` (a table), and by table ``<table>_ratio`` (its time over the fastest other one; of versions the
        second's over the first's), ``<table>_beyond`` (1: slower, -1: faster, 0: within the noise) and
        ``<table>_noise`` (a ratio has to be beyond 1 + noise).
    """
    columns = [time_column(name) for name in tables]
    shapes = shapes.assign(fastest=np.array(tables)[np.nanargmin(shapes[columns].to_numpy(), axis=1)])
    compared = tables[1:] if versions else tables
    sizes = [name for name in sizes_of(shapes) if pd.api.types.is_numeric_dtype(shapes[name])]
    for name in compared:
        own = shapes[time_column(name)].to_numpy()
        others = shapes[[column for column in columns if column != time_column(name)]].to_numpy()
        other = others[:, 0] if versions else _least(others)
        ratio = np.log(own / other)
        sign, noise = np.zeros(len(shapes), np.int8), np.full(len(shapes), np.nan)
        for rows in shapes.groupby(["panel", "operator"]).indices.values():
            rows = rows[np.isfinite(ratio[rows])]
            if len(rows):
                part = shapes.iloc[rows][sizes]
                time_s = np.minimum(own[rows], other[rows])
                sign[rows], noise[rows] = beyond(ratio[rows], time_s, part, LAYOUTS[layout].axes, least=least)
        found = {"ratio": np.exp(ratio), "beyond": sign, "noise": np.expm1(noise)}
        shapes = shapes.assign(**{f"{slug(name)}_{word}": values for word, values in found.items()})
    return shapes


def _least(others: np.ndarray) -> np.ndarray:
    return np.where(
        np.isfinite(others).any(axis=1), np.nanmin(np.where(np.isnan(others), np.inf, others), axis=1), np.nan
    )


def table_of(
    data: pd.DataFrame, about: pd.DataFrame, layout: str, versions: bool, notes: Mapping[str, str]
) -> pd.DataFrame:
    """Return the statistics of every panel and table; of versions those of the second.

    Returns
    -------
    DataFrame
        ``panel, table, shapes`` (that all tables have), ``faster_percent, within_percent,
        slower_percent`` (of the shapes: than the fastest other table beyond the noise, and within), ``mean_ratio,
        median_ratio, p90_ratio`` (of its times over the fastest table's; of versions over the first's; the mean is
        geometric), ``noise_percent`` (median), ``slowest_where, slowest_ratio`` (the region, by decade of two sizes,
        where it loses most), ``compared`` (yes; no: no shape is in all tables of the panel; host: it holds the host's
        calls), ``kernels, note``.
    """
    rows = []
    for row in about.itertuples():
        found = {"panel": row.panel, "table": row.table, "kernels": row.kernels, "shapes": 0}
        name = slug(row.table)
        if versions and f"{name}_ratio" not in data:
            continue
        part = data[data["panel"] == row.panel]
        part = part[part[f"{name}_ratio"].notna()]
        found["compared"] = "host" if row.host_bound else "yes" if len(part) else "no"
        if len(part):
            ratio = over(part, row.table, versions)
            found |= _statistics(ratio, part, name) | _slowest(ratio, part, layout)
        rows.append(found | {"note": note_of(row.panel, part, notes)})
    order = ["panel", "table", "compared", "shapes", "faster_percent", "within_percent", "slower_percent"]
    order += [
        *("mean_ratio", "median_ratio", "p90_ratio", "noise_percent"),
        *("slowest_where", "slowest_ratio", "kernels", "note"),
    ]
    return pd.DataFrame(rows).reindex(columns=order)


def note_of(panel: str, part: pd.DataFrame, notes: Mapping[str, str]) -> str:
    """Return what a case says of a panel: of its type of number, or of all."""
    groups = {panel, *(part["group"].unique() if "group" in part else ())}
    return next((notes[name] for name in (*sorted(groups), "all") if name in notes), "")


def over(part: pd.DataFrame, table: str, versions: bool) -> pd.Series:
    """Return the times of a table over those of the fastest one; of versions over those of the first."""
    ratio = part[f"{slug(table)}_ratio"]
    return ratio if versions else ratio.clip(lower=1)


def _statistics(ratio: pd.Series, part: pd.DataFrame, name: str) -> dict:
    sign, noise = part[f"{name}_beyond"], part[f"{name}_noise"]
    shares = {"faster": (sign < 0).mean(), "within": (sign == 0).mean(), "slower": (sign > 0).mean()}
    found = {"shapes": len(part)} | {f"{word}_percent": round(100 * float(share), 4) for word, share in shares.items()}
    found["mean_ratio"] = round(float(np.exp(np.log(ratio).mean())), 6)
    found["median_ratio"], found["p90_ratio"] = (round(float(ratio.quantile(share)), 6) for share in (0.5, 0.9))
    known = noise[np.isfinite(noise)]
    return found | {"noise_percent": round(100 * float(known.median()), 4) if len(known) else np.nan}


def regions(part: pd.DataFrame, layout: str) -> tuple[pd.Series, pd.Series, tuple[str, str]]:
    """Return the decades (powers of ten) of the two sizes that shapes are mapped over, and what these are called."""
    (down, rows), (across, columns) = LAYOUTS[layout].map(part)
    decades = (np.floor(np.log10(np.maximum(values, 1)) + 1e-9).astype(int) for values in (rows, columns))
    return *decades, (down, across)


def _slowest(ratio: pd.Series, part: pd.DataFrame, layout: str) -> dict:
    down, across, words = regions(part, layout)
    cells = np.log(ratio).groupby([down.to_numpy(), across.to_numpy()]).agg(["mean", "size"])
    cells = cells[cells["size"] >= min(LEAST_SHAPES, cells["size"].max())]
    (row, column), worst = cells["mean"].idxmax(), float(np.exp(cells["mean"].max()))
    where = f"{words[0]} {_decade(row)}, {words[1]} {_decade(column)}"
    return {"slowest_where": where, "slowest_ratio": round(worst, 6)}


def _decade(power: int) -> str:
    if power < 3:
        return f"{10**power} to {10 ** (power + 1) - 1}"
    return f"{figures.magnitude(10.0**power)} to {figures.magnitude(10.0 ** (power + 1))}"


def largest(data: pd.DataFrame, tables: Sequence[str], versions: bool) -> pd.DataFrame:
    """Return the shapes that every table loses most at, beyond the noise; of versions those that gained most, too.

    Returns
    -------
    DataFrame
        ``panel, table, shape, kernel, time_us, other, other_kernel, other_us, ratio, noise_percent``.
    """
    rows = []
    sizes = [name for name in sizes_of(data) if data[name].nunique() > 1 and name not in _DERIVED]
    for panel, part in data.groupby("panel", sort=False):
        for name in tables[1:] if versions else tables:
            ratio, sign = part[f"{slug(name)}_ratio"], part[f"{slug(name)}_beyond"]
            slower = ratio[sign > 0].sort_values(ascending=False, kind="stable").index[:LARGEST]
            faster = ratio[sign < 0].sort_values(kind="stable").index[: LARGEST if versions else 0]
            rows += [_row(panel, part.loc[at], name, tables, versions, sizes) for at in (*slower, *faster)]
    columns = ["panel", "table", "shape", "kernel", "time_us", "other", "other_kernel", "other_us", "ratio"]
    return pd.DataFrame(rows, columns=[*columns, "noise_percent"])


def _row(panel: str, row: pd.Series, name: str, tables: Sequence[str], versions: bool, sizes: list[str]) -> dict:
    others = [other for other in tables if other != name and np.isfinite(row[time_column(other)])]
    other = tables[0] if versions else min(others, key=lambda table: row[time_column(table)])
    shape = ", ".join(f"{size.replace('_', ' ')} {_value(row[size])}" for size in sizes if row[size] not in (-1, ""))
    return {
        "panel": panel,
        "table": name,
        "shape": shape,
        "kernel": row[kernel_column(name)],
        "time_us": float(f"{1e6 * row[time_column(name)]:.5g}"),
        "other": other,
        "other_kernel": row[kernel_column(other)],
        "other_us": float(f"{1e6 * row[time_column(other)]:.5g}"),
        "ratio": round(float(row[f"{slug(name)}_ratio"]), 4),
        "noise_percent": round(100 * float(row[f"{slug(name)}_noise"]), 4),
    }


def _value(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    return f"{value:,g}" if isinstance(value, (int, float, np.number)) and abs(value) < 1e6 else str(value)
