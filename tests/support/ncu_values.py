"""Metrics of a report as a table."""

import pandas as pd

from gpuledger.readers.ncu.values import Values


def wide(report, metrics):
    """Return a table of launches by metrics."""
    values = Values(report)
    return pd.DataFrame({name: values.get(name) for name in metrics}, report.launches.index)
