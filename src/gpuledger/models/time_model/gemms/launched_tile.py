"""Which tile cuBLAS launches on Hopper where it leaves k whole: a rule of two numbers, read off recorded launches.

Nine of ten such launches have the tile that is most frequent for their m and n. It is mostly the one with the least

    waves · (T_m T_n + sides · (T_m + T_n) + start)

of :func:`gpuledger.models.time_model.gemms.tiles.nvjet_tiles`: what the matrix units multiply in a step along k, the
operands that have to be there before, and what each tile costs beside, all counted in products of the matrix units.
`_COSTS` was chosen by the fitting half of an H200's 34,169 launches in bf16 and 20,000 in fp8 (dataset
nvidia-h200-gemm), whose other half the study gemm_tiles judges. The time model does not choose so: it takes the tile
with the shortest time of its own. (With this tile wherever k is whole, held-back errors of the tables of an H100 and an
H200 are 0.03 to 0.07 percentage points larger.)
"""

import numpy as np

from gpuledger.models.time_model.gemms.tiles import nvjet_tiles

# By bytes of an operand's element: sides, start.
_COSTS = {2.0: (24.0, 2048.0), 1.0: (64.0, 512.0)}


def launched_tile(m: np.ndarray, n: np.ndarray, operand_bytes: float, sms: int) -> np.ndarray:
    """Return the tile that the rule names.

    Parameters
    ----------
    m, n : integer arrays of shape (shapes,)
    operand_bytes : float
        2 or 1.

    Returns
    -------
    int64 array of shape (shapes, 2)
        Rows, columns.
    """
    tiles = nvjet_tiles(operand_bytes)
    sides, start = _COSTS[operand_bytes]
    cost = tiles.prod(axis=1) + sides * tiles.sum(axis=1) + start
    pairs, place = np.unique(np.column_stack([m, n]), axis=0, return_inverse=True)
    count = (-(-pairs[:, None] // tiles)).prod(axis=2)
    return tiles[(-(-count // sms) * cost).argmin(axis=1)[place.reshape(-1)]]
