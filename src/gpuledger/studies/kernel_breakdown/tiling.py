"""The theoretical tile of a matrix product, as in the source notebook, compared with a real kernel's.

In theory the best tile is the largest one that fits in a cache, shared by tiles of A (m × k), B (k × n) and C (m × n).
The best tile is a cube; a dimension shorter than its side is taken whole, and the other two share the remaining space.
The traffic of the tiles of A and B follows; C is never counted (one of the notebook's errors).
"""

import numpy as np
import pandas as pd

from gpuledger.models.time_model import gemm_plan
from gpuledger.models.time_model.constants.choice import described, gemm_entries
from gpuledger.models.time_model.constants.table import Constants
from gpuledger.models.time_model.gemms.law import OPERAND_BYTES
from gpuledger.models.time_model.kernels import KernelConstants, gemm_precision
from gpuledger.readers.gpus import Gpu

Dimensions = np.ndarray


def batch_to_square(m: Dimensions, n: Dimensions, batch: Dimensions) -> tuple[np.ndarray, np.ndarray]:
    """Fold a batch into the outputs of a product so that they are as square as possible.

    Parameters
    ----------
    m, n, batch : array of shape (kernels,)

    Returns
    -------
    m, n : array of float64
        Their product is ``batch * m * n``. Only the shorter dimension grows if it stays the shorter one; otherwise
        both become the square root.
    """
    m, n, batch = (np.asarray(values, float) for values in (m, n, batch))
    tall, wide = m > n * batch, n > m * batch
    # In the order of the source notebook's operations, to match its last digit.
    side = m * np.sqrt(batch / (m / n))
    single = batch <= 1
    return (
        np.select([single | tall, wide], [m, m * batch], side),
        np.select([single | wide, tall], [n, n * batch], side),
    )


def theoretical_tile(m: Dimensions, k: Dimensions, n: Dimensions, cache_values: float) -> np.ndarray:
    """Return the largest tile of each product that fits in a cache.

    Parameters
    ----------
    m, k, n : array of shape (kernels,)
    cache_values : float
        Capacity of the cache in values.

    Returns
    -------
    array of shape (kernels, 3), float64
        The tile along m, k and n; fractional, unlike a real kernel's.
    """
    sizes = np.stack([np.asarray(values, float) for values in (m, k, n)], axis=1)
    order = np.argsort(sizes, axis=1, kind="stable")
    small, middle, large = np.take_along_axis(sizes, order, axis=1).T
    cube = np.sqrt(cache_values / 3)
    # With the shortest dimension s whole: x² + 2·s·x = cache.
    square = (-2 * small + np.sqrt((2 * small) ** 2 + 4 * cache_values)) / 2
    # With the two shorter dimensions s, t whole: s·t + (s + t)·x = cache.
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
    """Compare the theoretical tile of every matrix product with a real kernel on a GPU.

    Parameters
    ----------
    rows : DataFrame
        Kernels of :func:`gpuledger.models.transformer.kernels` with their predicted ``time_s`` and whose
        ``constants`` predicted it; only those of kind ``gemm`` are compared.
    gpu : Gpu
        The theoretical tiles fill its L2 and reach the data sheet's peak and bandwidth.

    Returns
    -------
    DataFrame
        ``phase, kernel, m, n, k, batch``; ``theory_tile_m``, ``theory_tile_n``, ``theory_tile_k``,
        ``theory_time_s``; for the real kernel ``tile_m``, ``tile_n``, ``split_k``, ``blocks``, ``waves``,
        ``padding_percent`` (extra FLOP at the tiles' edges), ``idle_percent`` (SM time idle in partial waves),
        ``launch_percent`` (of its time) and ``time_s``; and ``time_ratio``, real over theory.
    """
    products = rows[rows["kind"] == "gemm"]
    products = products.drop_duplicates(["phase", "kernel", "m", "n", "k", "batch"]).reset_index(drop=True)
    groups = products.groupby(["precision", "weight_precision", "constants"], observed=True)
    found = [_compare(part, gemm_precision(*map(str, names)), used, gpu) for (*names, used), part in groups]
    return pd.concat(found).sort_index().reset_index(drop=True)


def longest_constants(rows: pd.DataFrame, gpu: Gpu) -> Constants:
    """Return the constants of those products on which most time is spent.

    Parameters
    ----------
    rows : DataFrame
        As :func:`compare_tiles` takes them, with ``count``.
    """
    products = rows[rows["kind"] == "gemm"]
    spent = (products["time_s"] * products["count"]).groupby(products["constants"].astype(str)).sum()
    longest = products[products["constants"] == spent.idxmax()].iloc[0]
    names = str(longest["precision"]), str(longest["weight_precision"])
    return _constants(gpu, gemm_precision(*names), longest["constants"])


def _constants(gpu: Gpu, precision: str, words: str) -> Constants:
    return next(entry.constants for entry in gemm_entries(gpu, precision) if described(entry) == words)


def _compare(products: pd.DataFrame, precision: str, used: str, gpu: Gpu) -> pd.DataFrame:
    m, n, k, batch = (products[name].to_numpy(np.int64) for name in ("m", "n", "k", "batch"))
    # As in the notebook: both operands have the first one's bytes per value, and C is not written.
    value = OPERAND_BYTES[precision]
    tall, wide = batch_to_square(m, n, batch)
    tile = theoretical_tile(tall, k, wide, gpu.l2_bytes / value)
    macs = products["macs"].to_numpy(float)
    loaded = (tile[:, 0] + tile[:, 2]) * tile[:, 1] * value * macs / tile.prod(axis=1)
    peak = gpu.peak_flop_per_s("fp8" if precision == "fp8_block" else precision)
    theory = np.maximum(2 * macs / peak, loaded / gpu.dram_bytes_per_s)
    constants = _constants(gpu, precision, used)
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
