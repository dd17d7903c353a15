"""A report of Nsight Compute as data frames."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from gpuledger.errors import InputError


@dataclass(frozen=True)
class Dialect:
    """How a file was written.

    Attributes
    ----------
    page : {"long", "wide", "summary"}
        One row per launch and metric, per launch, or per kernel and metric.
    errors : tuple of str
        ncu's messages after ``==ERROR==``, each once.
    inexact_values : int
        Integers above 2^53 that float64 cannot hold; `Report.metrics` keeps their digits in ``text``.
    """

    page: str
    errors: tuple[str, ...] = ()
    inexact_values: int = 0


@dataclass(frozen=True)
class Report:
    """Metrics of the launches of one file.

    Attributes
    ----------
    path : str
        The file.
    metrics : pandas.DataFrame
        One row per launch and metric, in file order. launch (int64, from 0), kernel, section, metric, unit
        (categories; section is ``""`` on wide pages), value (float64, NaN for text), text (category; missing for
        numbers). A metric may occur in several sections and with several units: the key is section, metric, unit.
        Summaries have value = average and the columns minimum and maximum (float64).
    launches : pandas.DataFrame
        One row per launch, index launch. id, process_id, context, stream (Int64, missing if absent or not a
        number), kernel (category), grid, block (``(x, y, z)`` or None), device, compute_capability (string or None),
        grid_blocks, block_threads (Int64, from the grid or from the launch metrics). Summaries have invocations.
    """

    path: str
    metrics: pd.DataFrame
    launches: pd.DataFrame
    dialect: Dialect

    def wide(self, metrics: Sequence[str | tuple[str, ...]]) -> pd.DataFrame:
        """Return a table of launches by metrics.

        Parameters
        ----------
        metrics : sequence of str or tuple
            Names; or (metric, unit) or (section, metric, unit) where a name is ambiguous.

        Returns
        -------
        pandas.DataFrame of float64
            Index launch (all of them); one column per metric, named as given (tuples: ``metric [unit]``). NaN where
            a launch has no value.
        """
        frame = pd.DataFrame(index=self.launches.index)
        for wanted in metrics:
            name = wanted if isinstance(wanted, str) else f"{wanted[-2]} [{wanted[-1]}]"
            frame[name] = self._column(wanted)
        return frame

    def _column(self, wanted: str | tuple[str, ...]) -> pd.Series:
        rows, name = self.metrics, wanted if isinstance(wanted, str) else wanted[-2]
        if name not in rows["metric"].cat.categories:
            near = difflib.get_close_matches(name, rows["metric"].cat.categories, n=3, cutoff=0.4)
            remedy = f"the nearest are {', '.join(near)}" if near else "see Report.metrics for the names"
            raise InputError(self.path, "", f"no launch has the metric {name!r}", remedy)
        rows = rows[rows["metric"] == name]
        if not isinstance(wanted, str):
            for column, text in zip(("unit", "metric", "section"), reversed(wanted), strict=False):
                rows = rows[rows[column] == text]
            if rows.empty:
                problem = f"no launch has the metric {wanted!r}"
                raise InputError(self.path, "", problem, f"see Report.metrics for the sections and units of {name!r}")
        if rows["value"].notna().any():  # n/a may come without a unit
            rows = rows[rows["value"].notna()]
        units = rows["unit"].cat.remove_unused_categories().cat.categories
        if len(units) > 1:
            problem = f"the metric {name!r} has several units: {', '.join(map(repr, units))}"
            raise InputError(self.path, "", problem, "ask for (metric, unit)")
        if self.dialect.inexact_values and len(inexact := rows[(rows["value"].abs() >= 2**53) & rows["text"].notna()]):
            problem = f"{name!r} has the value {inexact['text'].iloc[0]}, which float64 cannot hold"
            raise InputError(self.path, "", problem, "take its digits from the column text of Report.metrics")
        values = rows.drop_duplicates(["launch", "value"]).set_index("launch")["value"]
        if values.index.has_duplicates:
            launch = values.index[values.index.duplicated()][0]
            problem = f"the metric {name!r} has several values"
            raise InputError(self.path, f"launch {launch}", problem, "ask for (section, metric, unit)")
        return values.reindex(self.launches.index)
