"""Metric sweeps: from a table of counters to a law, and anomalies explained.

Figures and tables are in :mod:`gpuledger.metric_sweep.drawing`, which a reduction does not need.
"""

from gpuledger.metric_sweep.reduction import Sweep, reduce_sweep

__all__ = ["Sweep", "reduce_sweep"]
