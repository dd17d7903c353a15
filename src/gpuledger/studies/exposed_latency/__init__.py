"""Exposed latency: how long a user waits for a profile (S. Huang, C. Wu, OSDI 2025, Fig. 13)."""

from gpuledger.studies.exposed_latency.reduction import reduce
