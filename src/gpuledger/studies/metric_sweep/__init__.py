"""Metric sweeps: the laws by which counters grow, and the anomalies in their measurements."""

from gpuledger.studies.metric_sweep.reduction import Sweep, reduce
