"""Block scheduling: how many cycles are lost between blocks on an SM (S. Huang, C. Wu, OSDI 2025, Sec. 4.6)."""

from gpuledger.studies.block_scheduling.experiment import spread_experiment
from gpuledger.studies.block_scheduling.reduction import parts, reduce
from gpuledger.studies.block_scheduling.upstream import Estimate, upstream_estimate
