"""Metric sweeps: from a table of counters to a law, and anomalies explained.

Figures and tables are in :mod:`gpuledger.studies.metric_sweep.figures`, which a reduction does not need.
"""

from gpuledger.studies.metric_sweep.reduction import Sweep, reduce

__all__ = ["Sweep", "reduce"]
