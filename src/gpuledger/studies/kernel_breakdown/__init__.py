"""LLM kernel breakdown: where the time of prefill, decode and chunked prefill goes on given hardware."""

from gpuledger.studies.kernel_breakdown.reduction import reduce
