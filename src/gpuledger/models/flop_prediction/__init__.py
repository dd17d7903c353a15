"""Executed floating-point instructions of fp32 GEMM kernels, predicted in closed form, with no fitted factor.

FLOP counters of frameworks report 2·M·N·K for a GEMM. The hardware executes more: it pads C to whole tiles
and K to whole steps, multiplies every partial result by alpha, adds up the slices inside a block and the
split-K parts between blocks. Kernel names and launch grids state all of that.

* ``gemm``: one GEMM launch, its split-K reduction, activations and full reductions.
* ``linear``: a recording of Linear layers, launch by launch, against their shapes.
* ``network``: forward and backward pass of a network of equal Linear layers with activations.
"""

from gpuledger.models.flop_prediction.gemm import (
    ACTIVATION_COSTS,
    ActivationCost,
    predict_gemm,
    predict_split_k_reduce,
    predict_sum_reduction,
)
from gpuledger.models.flop_prediction.linear import linear_accuracy, linear_shapes, predict_linear
from gpuledger.models.flop_prediction.network import predict_network

__all__ = [
    "ACTIVATION_COSTS",
    "ActivationCost",
    "linear_accuracy",
    "linear_shapes",
    "predict_gemm",
    "predict_linear",
    "predict_network",
    "predict_split_k_reduce",
    "predict_sum_reduction",
]
