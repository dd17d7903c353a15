"""Normalization roofline: how close kernels that normalize rows come to what the GPU can do at most."""

from gpuledger.normalization_roofline.reduction import COPY, LARGE, OPTIMISED, flops_of, intensity, reduce_roofline

__all__ = ["COPY", "LARGE", "OPTIMISED", "flops_of", "intensity", "reduce_roofline"]
