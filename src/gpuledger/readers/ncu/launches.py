"""Launch identity and launch attributes.

ncu gives each launch an ID within one process. But files may hold several runs of ncu one after another (each starts
at ID 0, and in a container each has the same process), rows sorted by metric, or no ID at all. Therefore:

1. a *run* is a sequence of consecutive rows with the same launch columns; it is split where its first metric repeats;
2. runs with the same launch columns are one launch as long as no metric repeats; the n-th occurrence of its metrics
   is the n-th launch of that identity (by the majority of the run's rows: a metric that a launch prints twice does
   not start a new launch);
3. a new header starts new launches, and each row of a wide page is a launch.

Launches are numbered from 0 in the order in which they first appear in the file.
"""

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa

# Metrics with the grid or the block, for tables without such a column: labels, then names.
_TOTALS = {"grid_blocks": ("Grid Size", "launch__grid_size"), "block_threads": ("Block Size", "launch__block_size")}
COUNT_METRICS = (*_TOTALS["grid_blocks"], *_TOTALS["block_threads"], "Threads", "launch__thread_count")
"""Metrics that are always whole numbers."""


def number_launches(
    identity_of_run: np.ndarray, run_of_row: np.ndarray, key_of_row: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Assign each row of a long page or summary to a launch.

    Parameters
    ----------
    identity_of_run : numpy.ndarray of int, shape (runs,)
        Equal for runs with the same launch columns below the same header.
    run_of_row : numpy.ndarray of int, shape (rows,)
        Ascending.
    key_of_row : numpy.ndarray of int, shape (rows,)
        A number for the (section, label, metric, unit) of each row.

    Returns
    -------
    launch_of_row : numpy.ndarray of int64, shape (rows,)
    run_of_launch : numpy.ndarray of int, shape (launches,)
        The first run of each launch, for its attributes.
    """
    begins = np.r_[True, run_of_row[1:] != run_of_row[:-1]]
    first_key = key_of_row[begins][np.cumsum(begins) - 1]
    begins |= key_of_row == first_key  # a stretch is a run, split where its first metric repeats
    stretch = np.cumsum(begins) - 1
    run_of_stretch = run_of_row[begins]
    identity = identity_of_run[run_of_stretch]
    if len(np.unique(identity)) == len(identity):
        return stretch, run_of_stretch
    rows = pd.DataFrame({"identity": identity[stretch], "key": key_of_row})
    times = rows.groupby(["identity", "key"], sort=False).cumcount()
    namesake = np.floor(times.groupby(stretch).median().to_numpy()).astype(np.int64)
    launch_of_stretch, _ = pd.factorize(identity * (namesake.max() + 1) + namesake)
    _, first_stretch = np.unique(launch_of_stretch, return_index=True)
    return launch_of_stretch[stretch], run_of_stretch[first_stretch]


def launch_frame(runs: pd.DataFrame, kernels: pd.Categorical, metrics: pd.DataFrame, summary: bool) -> pd.DataFrame:
    """Return the attributes of the launches.

    Parameters
    ----------
    runs : pandas.DataFrame, shape (launches, …)
        The launch columns of each launch, as strings; its index numbers the launches.
    kernels : pandas.Categorical, shape (launches,)
    metrics : pandas.DataFrame
        The report's metrics, some of which state the grid or the block.
    summary : bool
        Add ``invocations``.

    Returns
    -------
    pandas.DataFrame
        With the index of `runs`; see `gpuledger.readers.ncu.report.Report`.
    """
    columns: dict[str, object] = {"id": _integers(runs["id"]), "kernel": kernels}
    columns |= {name: _integers(runs[name]) for name in ("process_id", "context", "stream")}
    columns |= {name: _mapped(runs[name], normalise_dimensions) for name in ("grid", "block")}
    columns["device"] = _mapped(runs["device"], lambda text: text.strip() or None)
    columns["compute_capability"] = _mapped(
        runs["compute_capability"], lambda text: text.strip().replace(",", ".") or None
    )
    for column, total in (("grid", "grid_blocks"), ("block", "block_threads")):
        columns[column] = _from_dimensions(columns[column], metrics, column)
        columns[column], columns[total] = _with_total(columns[column], metrics, _TOTALS[total])
    if summary:
        columns["invocations"] = _integers(runs["invocations"])
    return pd.DataFrame(columns, index=runs.index)


def _from_dimensions(printed: pd.Series, metrics: pd.DataFrame, what: str) -> pd.Series:
    """Fill missing dimensions from ``launch__<what>_dim_x``, ``_y`` and ``_z``, which reports have."""
    names = [f"launch__{what}_dim_{axis}" for axis in "xyz"]
    if not printed.isna().any() or not set(names) <= set(metrics["metric"].cat.categories):
        return printed
    named = metrics[metrics["metric"].isin(names)].dropna(subset="value")
    sizes = named.pivot_table(index="launch", columns="metric", values="value", aggfunc="first", observed=True)
    texts = sizes.reindex(columns=names).dropna().astype("int64").astype(str).agg(", ".join, axis=1)
    texts = ("(" + texts + ")").reindex(printed.index)
    return printed.where(printed.notna(), texts).astype(object).where(printed.notna() | texts.notna(), None)


def _with_total(printed: pd.Series, metrics: pd.DataFrame, names: tuple[str, ...]) -> tuple[pd.Series, pd.Series]:
    """Return dimensions and their product, both from the named metrics where the table has no column."""
    product = _mapped(printed, lambda text: text and _product(text)).astype("float64")
    if product.isna().any() and metrics["metric"].cat.categories.isin(names).any():
        named = metrics[metrics["metric"].isin(names)]
        texts = named.dropna(subset="text").drop_duplicates("launch").set_index("launch")["text"]
        texts = texts.astype(object).map(normalise_dimensions).reindex(printed.index)
        printed = printed.where(printed.notna(), texts)
        printed = printed.astype(object).where(printed.notna(), None)
        product = _mapped(printed, lambda text: text and _product(text)).astype("float64")
        values = named.dropna(subset="value").drop_duplicates("launch").set_index("launch")["value"]
        product = product.fillna(values.reindex(printed.index))
    return printed, product.where((product == np.floor(product)) & (product < 2**53)).astype("Int64")


def normalise_dimensions(text: str) -> str | None:
    """Return a grid or block such as ``(256,1,1)``, ``256x1x1`` or ``(1.024, 1, 1)`` as ``(x, y, z)``, or None."""
    text = text.strip().strip("()[]")
    parts = text.split(", ") if ", " in text else re.split(r"[,xX× ]+", text)
    parts = [re.sub(r"[.,'\u00a0\u202f ]", "", part) for part in parts]
    if not 1 < len(parts) <= 3 or not all(re.fullmatch("[0-9]{1,10}", part) for part in parts):
        return None
    return f"({', '.join(str(int(part)) for part in [*parts, '1'][:3])})"


def _product(dimensions: str) -> float:
    return float(np.prod([float(part) for part in dimensions.strip("()").split(",")]))


def _mapped(texts: pd.Series, function: Callable[[str], object]) -> pd.Series:
    """Apply a function to texts, once per distinct text."""
    codes, distinct = pd.factorize(texts)
    values = np.empty(len(distinct) + 1, dtype=object)  # the last for missing texts
    values[:-1] = [function(text) for text in distinct]
    return pd.Series(values[codes], texts.index, dtype=object)


def _integers(texts: pd.Series) -> pd.Series:
    """Convert whole numbers to Int64, anything else to missing."""
    try:
        return pd.Series(pa.array(texts, pa.string()).cast(pa.int64()).to_numpy(), texts.index).astype("Int64")
    except pa.ArrowInvalid:
        pass
    # int() itself takes fewer signs for white space than \s and strip() do.
    numbers = _mapped(texts, lambda text: int(text.strip()) if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) else None)
    return numbers.astype("Int64")
