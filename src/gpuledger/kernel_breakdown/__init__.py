"""LLM kernel breakdown: where the time of prefill, decode and chunked prefill goes on given hardware.

Figures, tables and words are in :mod:`gpuledger.kernel_breakdown.drawing` and ``words``, which a reduction does not
need.
"""

from gpuledger.kernel_breakdown.prediction import predict, sweep
from gpuledger.kernel_breakdown.reduction import parts, reduce_breakdown
from gpuledger.kernel_breakdown.tiling import compare_tiles, theoretical_tile

__all__ = ["compare_tiles", "parts", "predict", "reduce_breakdown", "sweep", "theoretical_tile"]
