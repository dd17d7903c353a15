"""Fit of a GPU's constants to measured times of GEMMs."""

from __future__ import annotations

import dataclasses

import numpy as np

from gpuledger.models.time_model.constants import NAMES, Constants
from gpuledger.models.time_model.gemm import gemm_time_s
from gpuledger.readers.gpus import Gpu

#: Where a fit starts, and the bounds within which a constant has its meaning.
START = Constants(2.6e-6, 0.85, 0.95, 40.0, 1e-7, 0.0)
BOUNDS = {
    "launch_s": (5e-7, 1e-4),
    "dram_share": (0.1, 1.0),
    "tensor_share": (0.1, 1.0),
    "l2_bytes_per_clock": (4.0, 256.0),
    "step_s": (1e-8, 1e-5),
    "conversion_bytes": (1.0, 200.0),
}
#: Precisions whose measurements contain the conversion of the activations.
CONVERTED = ("fp8", "fp8_block", "fp4", "int8")


def held_back(m: np.ndarray, n: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return which shapes are held back from fits: about every second one, by a hash of (m, n, k).

    The hash is SplitMix64 (G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014),
    applied to m, then to that XOR n, then to that XOR k; its lowest bit decides. It depends on nothing else.

    Parameters
    ----------
    m, n, k : integer arrays
        Broadcast against each other.

    Returns
    -------
    ndarray of bool
    """
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for size in np.broadcast_arrays(m, n, k):
            state = _splitmix64(state ^ np.asarray(size).astype(np.uint64))
    return (state & np.uint64(1)).astype(bool)


def _splitmix64(state: np.ndarray) -> np.ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def fit_constants(
    gpu: Gpu,
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    time_s: np.ndarray,
    precision: str = "bf16",
    weights_in_turn: int = 6,
    weight_bytes: np.ndarray | None = None,
) -> Constants:
    """Fit the constants of a GPU to measured times.

    Least soft-L1 of the logarithms of predicted over measured time, so that a few disturbed measurements do not
    matter; deterministic. The constants are rounded to the three significant digits that do not depend on the start.

    Parameters
    ----------
    gpu : Gpu
    m, n, k : integer arrays of shape (shapes,)
    time_s : float array of shape (shapes,)
        Measured; use ``~held_back(m, n, k)`` to keep a half for judging.
    precision : str
    weights_in_turn, weight_bytes : int, array
        As for :func:`gpuledger.models.time_model.gemm_time_s`.

    Returns
    -------
    Constants

    Raises
    ------
    ValueError
        Fewer than 20 shapes, arrays of different length, or a time that is not positive and finite.
    """
    m, n, k, time_s = (np.asarray(array) for array in (m, n, k, time_s))
    if not len(m) == len(n) == len(k) == len(time_s) or len(m) < 20:
        raise ValueError("a fit needs at least 20 shapes, and m, n, k and time_s of one length")
    if not (np.isfinite(time_s) & (time_s > 0)).all():
        raise ValueError("measured times must be positive and finite")
    free = [name for name in NAMES if name != "conversion_bytes" or precision in CONVERTED]
    start = dataclasses.replace(START, conversion_bytes=25.0 if precision in CONVERTED else 0.0)
    start = dataclasses.replace(start, launch_s=float(np.clip(np.quantile(time_s, 0.01), *BOUNDS["launch_s"])))
    origin = np.log([getattr(start, name) for name in free])
    low, high = np.log([BOUNDS[name] for name in free]).T
    wanted = np.log(time_s)

    def at(logs: np.ndarray) -> Constants:
        return dataclasses.replace(start, **dict(zip(free, (float(f"{x:.3g}") for x in np.exp(logs)), strict=True)))

    def errors(logs: np.ndarray) -> np.ndarray:
        values = dataclasses.replace(start, **dict(zip(free, np.exp(logs), strict=True)))
        return np.log(gemm_time_s(gpu, values, m, n, k, 1, precision, weights_in_turn, weight_bytes)) - wanted

    # Only here: importing it takes a third of a second, and predictions do without.
    from scipy.optimize import least_squares

    found = least_squares(
        errors,
        np.clip(origin, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=0.01,
        x_scale=0.1,
        max_nfev=40,
        xtol=1e-6,
    )
    return dataclasses.replace(at(found.x), source=f"fitted to {len(m)} measured shapes")
