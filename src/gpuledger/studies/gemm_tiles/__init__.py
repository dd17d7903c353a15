"""GEMM tiles: which tile, grid and split of k does cuBLAS launch, and how often does the time model agree?"""

from gpuledger.studies.gemm_tiles.figures import draw_agreement, draw_map
from gpuledger.studies.gemm_tiles.reduction import groups_of, reduce
from gpuledger.studies.gemm_tiles.tables import row_table, tile_table
