"""LLM kernel breakdown: where the time of prefill, decode and chunked prefill goes on given hardware."""

from gpuledger.models.time_model.step import predict
from gpuledger.studies.kernel_breakdown.parts import split_parts
from gpuledger.studies.kernel_breakdown.prediction import sweep
from gpuledger.studies.kernel_breakdown.reduction import reduce

__all__ = ["predict", "reduce", "split_parts", "sweep"]
