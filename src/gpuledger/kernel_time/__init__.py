"""Kernel times: how well the time model predicts kernels that others measured."""

from gpuledger.kernel_time.drawing import draw_errors, draw_map
from gpuledger.kernel_time.reduction import error_table, predictor_table, reduce_kernel_time, worst_region

__all__ = ["draw_errors", "draw_map", "error_table", "predictor_table", "reduce_kernel_time", "worst_region"]
