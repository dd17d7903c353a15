"""Kernel overhead: what probes cost in time and registers (S. Huang, C. Wu, OSDI 2025, Table 3)."""

from gpuledger.studies.kernel_overhead.reduction import reduce
