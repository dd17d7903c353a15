"""gpuledger: a reproducible ledger of GPU kernel performance."""

__version__ = "0.2.0"
