"""Time of the kernel that converts a GEMM's activations into its precision.

It moves `conversion_bytes` a value, out of L2 if the values stay there from use to use, and a thread block converts a
row at a time (`conversion_row_s`), the longer ones in several passes, or what the kernel's dispatch says. The kernels
before FlashInfer's nvfp4 GEMM are known (:mod:`gpuledger.models.time_model.gemms.flashinfer_fp4`): values that L2 does
not hold are 2 bytes out of DRAM, and threads wait for rows, not for passes.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gpuledger.models.time_model.gemms.dispatch import Candidates
from gpuledger.models.time_model.l2 import L2

_CONVERTED = 2048  # values of a row that a block converts at once: 256 threads of 8 values


class ConversionRates(Protocol):
    """What of a GPU and its constants a conversion needs, in base units."""

    dram: float
    sms: float
    operand: float
    result: float
    conversion: float
    conversion_row: float


def conversion_s(
    machine: ConversionRates,
    l2: L2,
    flat: Sequence[np.ndarray],
    weights: np.ndarray,
    in_turn: np.ndarray | float,
    found: Candidates,
) -> np.ndarray:
    """Return the time (s) of the conversion before each multiplication.

    Parameters
    ----------
    flat : four float arrays of shape (shapes,)
        m, n, k and batch.
    weights : float array of shape (shapes,)
        Bytes.
    in_turn : float array of shape (shapes,), or float
        Of how many activations, used in turn, these are one.
    found : Candidates
        What the kernel's dispatch says of the blocks that convert.
    """
    if not machine.conversion and not machine.conversion_row:
        return np.zeros(len(weights))
    rows, columns, depth, many = flat
    values = rows * depth * many
    # Between two conversions pass the values of 2 bytes, what they become, the weights and the results.
    cold = l2.cold_share(in_turn * (weights + (2 + machine.operand) * values) + machine.result * rows * columns * many)
    if persistent := found.persistent:
        moved = 2 * values * cold / machine.dram
        busy = machine.conversion * rows * many * persistent.columns * (1 - cold) / l2.bytes_per_s
        by_row = machine.conversion_row * persistent.rows * many
        return np.where(persistent.copied, np.maximum(by_row, moved + busy), by_row + moved + busy)
    blocks, fetches, longer = found.converting or (rows, (1 + np.ceil(depth / _CONVERTED)) / 2, 0.0)
    by_row = machine.conversion_row * np.ceil(blocks * many / machine.sms) * fetches * (1 + longer * cold)
    second = cold / machine.dram + (1 - cold) / l2.bytes_per_s
    return machine.conversion * values * second + by_row
