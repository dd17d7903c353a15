"""Normalization roofline: how close kernels that normalize rows come to the limits of the GPU."""

from gpuledger.studies.normalization_roofline.reduction import COPY, flops_of, intensity, reduce
