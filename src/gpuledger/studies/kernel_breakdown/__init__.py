"""LLM kernel breakdown: where the time of prefill, decode and chunked prefill goes on given hardware.

Figures, tables and words are in :mod:`gpuledger.studies.kernel_breakdown.figures` and ``words``, which a reduction does
not need.
"""

from gpuledger.studies.kernel_breakdown.prediction import predict, sweep
from gpuledger.studies.kernel_breakdown.reduction import parts, reduce
from gpuledger.studies.kernel_breakdown.tiling import compare_tiles, theoretical_tile

__all__ = ["compare_tiles", "parts", "predict", "reduce", "sweep", "theoretical_tile"]
