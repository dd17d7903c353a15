"""Kernel times: how well the time model predicts measured kernels."""

from gpuledger.studies.kernel_time.every_table import class_table
from gpuledger.studies.kernel_time.figures import draw_errors, draw_map, draw_regions, noise_floor, panels, worst_cell
from gpuledger.studies.kernel_time.judgement import error_table, predictor_table, worst_region
from gpuledger.studies.kernel_time.published_figures import draw_best, draw_published_errors
from gpuledger.studies.kernel_time.published_runs import best_runs, bias_sentence, groups_of, published_table
from gpuledger.studies.kernel_time.reduction import reduce
from gpuledger.studies.kernel_time.table_figures import draw_error_map, row_labels
