"""Executed instructions of GEMM and attention kernels, predicted in closed form without fitted factors.

Frameworks report 2·M·N·K FLOPs for a GEMM. The hardware executes more: it pads C to whole tiles and K to whole steps,
multiplies every partial result by alpha, and adds up the slices within a block and the split-K parts of several
blocks. Kernel names and launch grids determine all of these.

* ``gemm``: one GEMM launch, its split-K reduction, and full reductions.
* ``linear``: a recording of Linear layers, launch by launch, against their shapes.
* ``tensor``: matrix instructions of GEMM, convolution and attention kernels on tensor cores.
* ``network``: forward and backward pass of a network of identical Linear layers with activations.
"""

from gpuledger.models.flop_prediction.gemm import predict_gemm, predict_split_k_reduce, predict_sum_reduction
from gpuledger.models.flop_prediction.linear import linear_accuracy, linear_shapes, percent_errors, predict_linear
from gpuledger.models.flop_prediction.network import predict_network, textbook_flops
from gpuledger.models.flop_prediction.tensor import predict_half_reduction, predict_tensor
