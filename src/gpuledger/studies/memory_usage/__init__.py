"""Memory usage: how much memory probes need (S. Huang, C. Wu, OSDI 2025, Fig. 12)."""

from gpuledger.studies.memory_usage.reduction import reduce
