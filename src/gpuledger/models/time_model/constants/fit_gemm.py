"""Fit of a GPU's constants to measured times of GEMMs."""

import dataclasses
from collections.abc import Callable

import numpy as np

from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.models.time_model.constants.table import NAMES, Constants
from gpuledger.models.time_model.gemms import cublas
from gpuledger.models.time_model.gemms.dispatch import ANY, FREE
from gpuledger.models.time_model.gemms.law import UNSPLIT, FittedTimes
from gpuledger.readers.gpus import Gpu

#: Tables whose shortest times (s) are longer than this hold the host's calls, not kernels out of a graph.
HOST_BOUND_S = 4e-5
#: Where a fit starts, and the bounds within which a constant has its meaning.
START = Constants(2.6e-6, 0.85, 0.95, 40.0, 1e-7, throttled=0.2)
RANGES = {
    "launch_s": (5e-7, HOST_BOUND_S),
    "dram_share": (0.1, 1.0),
    "tensor_share": (0.1, 1.0),
    "l2_bytes_per_clock": (4.0, 256.0),
    "step_s": (1e-8, 1e-5),
    "conversion_bytes": (1.0, 200.0),
    "conversion_row_s": (1e-9, 1e-5),
    "split_s": (1e-7, 1e-4),
    "result_factor": (0.3, 30.0),
    "throttled": (1e-3, 3.0),
    "host_s": (1e-5, 1e-2),
    "first_s": (1e-8, 2e-6),
}
#: Precisions whose measurements contain the conversion of the activations.
CONVERTED = ("fp8", "fp8_block", "fp4", "int8")


def held_back(*sizes: np.ndarray) -> np.ndarray:
    """Return which shapes are held back from fits: about every second one, by a hash of its sizes.

    The hash is SplitMix64 (G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014),
    applied to the first size, then to that XOR the second, and so on; its lowest bit decides.

    Parameters
    ----------
    *sizes : integer arrays
        Of a GEMM m, n and k; broadcast against each other.

    Returns
    -------
    ndarray of bool
    """
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for size in np.broadcast_arrays(*sizes):
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
    weights_in_turn: np.ndarray | int = 6,
    weight_bytes: np.ndarray | None = None,
    own_activations: bool = False,
    dispatch: str = ANY,
    shown: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Constants:
    """Fit the constants of a GPU to measured times.

    Least soft-L1 of the relative errors, close to their mean, which the other half is judged by. The constants are
    rounded to three significant digits.

    Parameters
    ----------
    m, n, k : integer arrays of shape (shapes,)
    time_s : float array of shape (shapes,)
        Measured; use ``~held_back(m, n, k)`` to keep a half for judging.
    weights_in_turn, weight_bytes, own_activations : integer array, array, bool
        As for :func:`gpuledger.models.time_model.gemm_time_s`.
    dispatch : str
        The kernel's dispatch table, one of :data:`gpuledger.models.time_model.gemms.dispatch.NAMES`.
    shown : callable, optional
        From the kernels' times (s) to what the benchmark's clock shows of them; the times themselves by default.

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
    shortest = float(np.quantile(time_s, 0.01))
    host_bound = shortest > HOST_BOUND_S
    # cuBLAS alone multiplies what is in fp8 already.
    converted = precision in CONVERTED and dispatch != cublas.NAME
    idle = {"host_s"} if not host_bound else set()
    idle |= set() if converted else {"conversion_bytes", "conversion_row_s"}
    idle |= {"split_s"} if precision in UNSPLIT or dispatch not in FREE else set()
    turns = np.broadcast_to(weights_in_turn, m.shape)
    # L2 holds a single copy of the weights, unless they are large: then the first bytes are too little to tell.
    idle |= {"first_s"} if (turns == 1).all() else set()
    bounds = {name: RANGES[name] for name in NAMES if name not in idle}
    start = dataclasses.replace(
        START,
        launch_s=6e-6 if host_bound else float(np.clip(shortest, *RANGES["launch_s"])),
        host_s=float(np.quantile(time_s, 0.05)) if host_bound else 0.0,
        conversion_bytes=10.0 if converted else 0.0,
        conversion_row_s=1e-7 if converted else 0.0,
        dispatch=dispatch,
    )

    times = FittedTimes(gpu, m, n, k, 1, precision, turns, weight_bytes, own_activations)
    clock = shown or np.asarray
    found = fit_law(
        lambda constants: clock(times(constants)),
        start,
        bounds,
        time_s,
        relative=True,
        near=lambda constants: clock(times.near(constants)),
    )
    return dataclasses.replace(found, source=f"fitted to {len(time_s)} measured shapes")
