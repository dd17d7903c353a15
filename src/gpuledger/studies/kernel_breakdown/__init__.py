"""Kernel breakdown: where the time of a model or of a recorded program goes, kernel by kernel."""

from gpuledger.studies.kernel_breakdown.reduction import reduce
