"""Normalization roofline: how close kernels that normalize rows come to what the GPU can do at most."""

from gpuledger.studies.normalization_roofline.reduction import (
    COPY,
    LARGE,
    OPTIMISED,
    flops_of,
    intensity,
    reduce,
)

__all__ = ["COPY", "LARGE", "OPTIMISED", "flops_of", "intensity", "reduce"]
