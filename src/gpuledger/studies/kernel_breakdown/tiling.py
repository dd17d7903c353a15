"""The theoretical tile of a matrix product, as the source notebook has it, and what a kernel does instead.

In theory the best tile is the largest one that a cache holds. A tile of A (m × k), one of B (k × n) and one of C
(m × n) share the cache. The best tile is a square one; a dimension that is shorter than the square's side is taken
whole, and the other two use what it leaves free. What the tiles of A and B cost to load then follows; C is never
counted (one of the errors of the notebook).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuledger.models.time_model import gemm_plan
from gpuledger.models.time_model.gemm import OPERAND_BYTES
from gpuledger.models.time_model.kernels import KernelConstants
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_breakdown.prediction import product_constants

Dimensions = np.ndarray


def batch_to_square(m: Dimensions, n: Dimensions, batch: Dimensions) -> tuple[np.ndarray, np.ndarray]:
    """Fold a batch into the outputs of a product so that they come nearest to a square.

    Parameters
    ----------
    m, n, batch : array of shape (kernels,)

    Returns
    -------
    m, n : array of float64
        Their product is ``batch * m * n``. One dimension alone grows when it stays the shorter one; otherwise both
        become the square root.
    """
    m, n, batch = (np.asarray(values, float) for values in (m, n, batch))
    tall, wide = m > n * batch, n > m * batch
    # Written as the source notebook computes it, whose last digit this has to match.
    side = m * np.sqrt(batch / (m / n))
    single = batch <= 1
    return (
        np.select([single | tall, wide], [m, m * batch], side),
        np.select([single | wide, tall], [n, n * batch], side),
    )


def theoretical_tile(m: Dimensions, k: Dimensions, n: Dimensions, cache_values: float) -> np.ndarray:
    """Return the largest tile of each product that a cache holds.

    Parameters
    ----------
    m, k, n : array of shape (kernels,)
    cache_values : float
        Values that the cache holds: its bytes over the bytes of a value.

    Returns
    -------
    array of shape (kernels, 3), float64
        The tile along m, k and n. Not whole numbers, as no real kernel would have it.
    """
    sizes = np.stack([np.asarray(values, float) for values in (m, k, n)], axis=1)
    order = np.argsort(sizes, axis=1, kind="stable")
    small, middle, large = np.take_along_axis(sizes, order, axis=1).T
    cube = np.sqrt(cache_values / 3)
    # The shortest dimension s whole: x² + 2·s·x = cache.
    square = (-2 * small + np.sqrt((2 * small) ** 2 + 4 * cache_values)) / 2
    # The two shorter ones whole: s·t + (s + t)·x = cache.
    rest = (cache_values - small * middle) / (small + middle)
    free, flat = small >= cube, middle >= square
    tile = np.stack(
        [
            np.where(free, cube, small),
            np.select([free, flat], [cube, square], middle),
            np.select([free, flat], [cube, square], np.minimum(large, rest)),
        ],
        axis=1,
    )
    back = np.empty_like(tile)
    np.put_along_axis(back, order, tile, axis=1)
    return back


def compare_tiles(rows: pd.DataFrame, gpu: Gpu) -> pd.DataFrame:
    """Put the theoretical tile of every matrix product beside what a kernel on a GPU does.

    Parameters
    ----------
    rows : DataFrame
        Products of :func:`gpuledger.models.transformer.kernels` (``gemm``) with their predicted ``time_s``.
    gpu : Gpu
        Its L2 is the cache of the theoretical tiles, its data sheet's peak and bandwidth are reached in full by them.

    Returns
    -------
    DataFrame
        ``phase, kernel, m, n, k, batch``; ``theory_tile_m``, ``theory_tile_n``, ``theory_tile_k``,
        ``theory_time_s``; of the realistic kernel ``tile_m``, ``tile_n``, ``split_k``, ``blocks``, ``waves``,
        ``padding_percent`` (of the multiplications, those that tiles add at the edges), ``idle_percent`` (of the SMs
        over all waves), ``launch_percent`` (of its time) and ``time_s``; and ``time_ratio``, realistic over theory.
    """
    products = rows[rows["kind"] == "gemm"]
    products = products.drop_duplicates(["phase", "kernel", "m", "n", "k", "batch"]).reset_index(drop=True)
    found = [_compare(part, str(precision), gpu) for precision, part in products.groupby("precision", observed=True)]
    if not found:
        return pd.DataFrame()
    return pd.concat(found).sort_index().reset_index(drop=True)


def _compare(products: pd.DataFrame, precision: str, gpu: Gpu) -> pd.DataFrame:
    m, n, k, batch = (products[name].to_numpy(np.int64) for name in ("m", "n", "k", "batch"))
    # The notebook's way: bytes of a value from the first operand, no write of C.
    value = OPERAND_BYTES[precision]
    tall, wide = batch_to_square(m, n, batch)
    tile = theoretical_tile(tall, k, wide, gpu.l2_bytes / value)
    macs = products["macs"].to_numpy(float)
    loaded = (tile[:, 0] + tile[:, 2]) * tile[:, 1] * value * macs / tile.prod(axis=1)
    theory = np.maximum(2 * macs / gpu.peak_flop_per_s(precision), loaded / gpu.dram_bytes_per_s)
    constants = product_constants(gpu, precision)
    plan = gemm_plan(gpu, constants, m, n, k, batch, precision, KernelConstants().weights_in_turn)
    time = products["time_s"].to_numpy()
    return products[["phase", "kernel", "m", "n", "k", "batch"]].assign(
        theory_tile_m=tile[:, 0],
        theory_tile_n=tile[:, 2],
        theory_tile_k=tile[:, 1],
        theory_time_s=theory,
        **{name: plan[name].to_numpy() for name in ("tile_m", "tile_n", "split_k", "blocks", "waves")},
        padding_percent=100 * (plan["padded_flop"] / plan["flop"] - 1).to_numpy(),
        idle_percent=100 * (1 - plan["blocks"] / (plan["waves"] * gpu.sms)).to_numpy(),
        launch_percent=100 * plan["launch_s"].to_numpy() / time,
        time_s=time,
        time_ratio=time / theory,
    )
