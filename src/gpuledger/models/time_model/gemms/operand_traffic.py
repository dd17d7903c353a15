"""What of a GEMM's operands and results comes from DRAM, what from L2, and how long its beginning takes.

Kernels with cold weights wait longer for their first bytes than `launch_s` says, which is fitted to small products that
L2 holds; and results leave L2 earlier than what is only read. Both were chosen on bf16 tables of vLLM and TensorRT-LLM
of A100, H100, H200, B200, B300 and L40S, errors of the held-back halves in sight; products with a batch show neither.
Few blocks begin sooner than many on all of these GPUs, by a tenth of a launch: chosen on the same tables.
CUTLASS's kernels with a dispatch table, which start whole clusters, do not, nor does TensorRT-LLM's copy of DeepGEMM.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gpuledger.models.time_model.l2 import L2

LATER_S = 2.5e-7  #: By how much later many blocks begin than one.
CROWD = 0.4  #: Blocks over SMs that are many.
_DIRTY = 1.3  # room that results need in L2, over that of what is only read


class Operands(Protocol):
    """Bytes of an operand's element and of a result's, and how much later (s) the first come from DRAM than from L2."""

    operand: float
    result: float
    first: float


def traffic(
    machine: Operands,
    l2: L2,
    flat: Sequence[np.ndarray],
    weights: np.ndarray,
    in_turn: np.ndarray,
    own: bool,
    passes: np.ndarray | float,
    waited: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return DRAM's bytes, those that are waited for, the time (s) of the rest in L2, and the wait (s) for the first.

    All write their results to the same place.

    Parameters
    ----------
    flat : four float arrays of shape (shapes,)
        m, n, k and batch.
    weights, in_turn : float arrays of shape (shapes,)
        Bytes of weights, and of how many equal ones these are one.
    own : bool
        Whether each of the weights in turn has its own activations.
    passes : float array of shape (shapes,), or float
        How often activations pass: they are fetched again where L2 does not keep them from pass to pass.
    waited : float
        Share of the results on their way to DRAM that are waited for.
    """
    rows, columns, depth, many = flat
    single = many == 1.0
    activations, results = (size * rows * many for size in (depth * machine.operand, columns * machine.result))
    cold = l2.cold_share(in_turn * weights + (in_turn if own else 1.0) * activations + results)
    soon = l2.cold_share(weights + activations + results)
    written = l2.cold_share(np.where(single, _DIRTY, 1.0) * (weights + activations + results))
    moved = cold * weights + (cold if own else soon) * activations + written * results
    held = moved - (1.0 - waited) * written * results
    warm = (weights + activations + results - held) / l2.bytes_per_s
    again = (passes - 1.0) * activations * l2.cold_share(activations + results / passes)
    return moved + again, held + again, warm, machine.first * cold * single
