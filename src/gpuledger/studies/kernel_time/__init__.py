"""Kernel times: how well the time model predicts kernels that others measured."""

from gpuledger.studies.kernel_time.figures import draw_errors, draw_map
from gpuledger.studies.kernel_time.reduction import error_table, predictor_table, reduce, worst_region

__all__ = ["draw_errors", "draw_map", "error_table", "predictor_table", "reduce", "worst_region"]
