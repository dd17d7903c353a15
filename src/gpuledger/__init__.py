"""gpuledger: a reproducible ledger of GPU kernel performance."""

__version__ = "0.1.0"
