"""The clock at which a GPU can go on running a kernel, and how long the kernel takes there.

The law of power (:mod:`gpuledger.models.power`) says what a kernel draws at a clock, the time model how long it takes.
The highest clock at which it draws no more than the GPU may is where it settles after a second or two.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpuledger.models.power import PowerConstants, chip_constants, power_w
from gpuledger.models.time_model.constants.table import Constants
from gpuledger.models.time_model.gemms.law import OPERAND_BYTES, gemm_time_s
from gpuledger.readers.gpus import Gpu

#: Clocks between which :func:`sustained` interpolates, as shares of the full one.
_CLOCKS = np.arange(100, 29, -5) / 100
#: Types of numbers whose products matrix units compute; and the clock of these by the data sheet: at its peak they do a
#: power of two of FLOP per cycle and SM, in bf16 for instance 4,096 on an H100.
_MATRIX = ("tf32", "bf16", "fp16", "fp8", "int8", "fp4")
#: The type of products whose energy a precision of a GEMM has.
_ENERGIES = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}
#: Products with different weights that run in turn: more than L2 holds.
IN_TURN = 64


def at_clock(gpu: Gpu, clock_hz: float) -> Gpu:
    """Return a GPU at another clock, also that of its matrix units, which a data sheet may give at a lower one."""
    peaks = {name: gpu.flops[name] for name in _MATRIX if gpu.flops.get(name)}
    per_cycle = {name: peak / (gpu.sms * gpu.clock_hz) for name, peak in peaks.items()}
    exact = {name: gpu.sms * 2.0 ** np.ceil(np.log2(each) - 0.01) for name, each in per_cycle.items()}
    others = {name: peak and peak * clock_hz / gpu.clock_hz for name, peak in gpu.flops.items() if name not in peaks}
    return replace(gpu, clock_hz=clock_hz, flops=others | {name: each * clock_hz for name, each in exact.items()})


def sustained(
    constants: PowerConstants,
    gpu: Gpu,
    flop: np.ndarray,
    moved_bytes: np.ndarray,
    products: np.ndarray,
    time_s: Callable[[Gpu], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Predict the clock at which kernels can run all the time, and how long they take at it.

    Parameters
    ----------
    constants : PowerConstants
        With an exponent of the clock.
    flop, moved_bytes : float arrays of shape (kernels,)
        Of one launch.
    products : array of str, shape (kernels,)
        Keys of `FLOP_CONSTANTS`.
    time_s : callable
        From the GPU at a clock (:func:`at_clock`) to the times of the kernels (s), shape (kernels,).

    Returns
    -------
    clock_hz, time_s : float arrays of shape (kernels,)
        The clock is not below 30 % of the full one; NaN for FLOP of a type without an energy.
    """
    uncapped = replace(constants, most_w=np.inf)
    share = np.where(np.isnan(power_w(uncapped, flop, moved_bytes, products)), np.nan, 0.0)
    found_s, faster = share.copy(), None
    for tried in _CLOCKS:
        each = time_s(at_clock(gpu, tried * gpu.clock_hz))
        drawn = power_w(uncapped, flop / each, moved_bytes / each, products, tried)
        settled = (share == 0) & ((drawn <= constants.most_w) | (tried == _CLOCKS[-1]))
        if faster is not None:
            before, above, longer = faster
            # 0: the faster clock before, 1: this one.
            near = np.minimum((above - constants.most_w) / np.maximum(above - drawn, 1e-9), 1.0)
            at = before + near * (tried - before)
            each_s = longer + near * (each - longer)
        else:
            at, each_s = np.full(len(each), tried), each
        share[settled], found_s[settled] = at[settled], each_s[settled]
        if not (share == 0).any():
            break
        faster = tried, drawn, each
    return share * gpu.clock_hz, found_s


def sustained_products(
    gpu: Gpu,
    constants: Constants,
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    precision: str,
    law: PowerConstants | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Predict GEMMs that run all the time, with other weights each time.

    Parameters
    ----------
    constants : Constants
        Of the kernel. Theirs for how far the clock falls in a benchmark is left out.
    m, n, k : int arrays of shape (shapes,)
        Sizes.
    precision : str
        A key of :data:`gpuledger.models.time_model.gemms.law.OPERAND_BYTES`.
    law : PowerConstants, optional
        Instead of the GPU's own.

    Returns
    -------
    clock_hz, time_s : float arrays of shape (shapes,)
        NaN if the GPU's clock at its power limit, or the energy of such products, was not measured; also for a GPU of
        that name with another limit or clock.
    """
    if law is None and (found := chip_constants(gpu)) and found[1] == gpu.name:
        law = found[0]
    unknown = np.full(len(m), np.nan)
    if law is None or np.isnan(law.clock_exponent) or precision not in _ENERGIES:
        return unknown, unknown
    rows, columns, depth = (np.asarray(size, dtype=float) for size in (m, n, k))
    flop, results = 2 * rows * columns * depth, 2 * rows * columns
    moved = OPERAND_BYTES[precision] * (rows * depth + columns * depth) + results
    cool, options = replace(constants, throttled=0.0), {"precision": precision, "weights_in_turn": IN_TURN}
    names = np.full(len(m), _ENERGIES[precision])
    return sustained(law, gpu, flop, moved, names, lambda at: gemm_time_s(at, cool, m, n, k, **options))
