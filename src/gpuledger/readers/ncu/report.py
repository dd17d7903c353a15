"""A report of Nsight Compute as data frames."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Report:
    """Metrics of the launches of one file."""

    path: str
    #: ``long``, ``wide`` or ``summary``: one row per launch and metric, per launch, or per kernel and metric.
    page: str
    #: One row per launch and metric, in file order. launch (int64, from 0), kernel, section, metric, unit (categories;
    #: section is ``""`` on wide pages), value (float64, NaN for text), text (category; missing for numbers that float64
    #: holds exactly). A metric may occur in several sections and with several units: the key is section, metric, unit.
    #: Summaries have value = average and the columns minimum and maximum (float64).
    metrics: pd.DataFrame
    #: One row per launch, index launch. id, process_id, context, stream (Int64, missing if absent or not a number),
    #: kernel (category), grid, block (``(x, y, z)`` or None), device, compute_capability (string or None), grid_blocks,
    #: block_threads (Int64, from the grid or from the launch metrics). Summaries have invocations.
    launches: pd.DataFrame
    errors: tuple[str, ...]  # ncu's messages after ``==ERROR==``, each once
