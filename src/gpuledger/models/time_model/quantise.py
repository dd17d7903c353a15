"""Time of kernels that quantise activations to fp8, rows of values in bf16.

    launch + ‖ step_s · ⌈values of a row / 4096⌉, rows of an SM · row, bytes / rate ‖
    row = row_s + long_row_s · min(values of a row / 512, 1)

‖ ‖ is the 2-norm: blocks at different places of their rows overlap, though not fully. A block takes a row: an SM spends
`row` on it, however fast memory is, and a long row takes its block several steps that wait for each other. Values that
L2 still holds are handed out at its rate; beyond, `moved_bytes` a value go through DRAM. A kernel that finds the scale
of a row first reads it a second time, out of L2 as long as the rows of all blocks fit there.

The norm was chosen with the held-back errors of an H100, an L40S and a B200 in sight, not an RTX PRO 6000's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu

#: Values that a block converts at once (256 threads of 16), values of a row that need all of its warps, and blocks of
#: 256 threads that share an SM.
STEP_VALUES, LONG_ROW, BLOCKS = 4096, 512, 8


@dataclass(frozen=True)
class QuantiseConstants:
    """Constants of one quantising kernel on one GPU."""

    launch_s: float  # least time (s), of all launches that belong to it
    row_s: float  # what an SM takes for a row, however short (s)
    #: What it takes longer for a row of `LONG_ROW` values or more: all warps of a block must agree on its scale (s).
    long_row_s: float
    step_s: float  # what a block takes for `STEP_VALUES` values of its row (s)
    l2_bytes_per_clock: float  # bytes of values and results that an SM moves in a cycle while L2 holds them
    #: Bytes of DRAM's full bandwidth that a value beyond L2 takes: 3 for a value read and its result written once.
    moved_bytes: float
    source: str = field(default="", compare=False)  # what they were fitted to


#: Where fits start, and the bounds within which a constant has its meaning.
START = QuantiseConstants(2e-6, 5e-8, 1e-8, 2e-7, 20.0, 4.0)
RANGES = {
    "launch_s": (5e-7, 1e-4),
    "row_s": (1e-11, 1e-5),
    "long_row_s": (1e-11, 1e-5),
    "step_s": (1e-10, 1e-5),
    "l2_bytes_per_clock": (0.5, 500.0),
    "moved_bytes": (1.0, 100.0),
}


def quantise_terms(gpu: Gpu, constants: QuantiseConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of quantising activations: ``time_s`` and the terms ``launch_s, step_s, row_s, l2_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``tokens``, the rows; ``columns``, the values of a row; ``live_bytes``, what a launch needs in L2 of a value at
        once: it and its result, and what a chain of operators leaves in between; ``second_reads``, 1 where a row is
        read again after its scale was found, else 0.
    """
    c = constants
    values = shapes["tokens"] * shapes["columns"]
    l2 = l2_of(gpu)
    cold = l2.cold_share(shapes["live_bytes"] * values)
    l2_s = shapes["live_bytes"] * values * (1 - cold) / (c.l2_bytes_per_clock * gpu.sms * gpu.clock_hz)
    dram_s = c.moved_bytes * values * cold / gpu.dram_bytes_per_s
    # The second time a block reads its row, the other blocks have read theirs.
    second = l2.cold_share(BLOCKS * gpu.sms * 2 * shapes["columns"]) * shapes["second_reads"]
    dram_s = dram_s + 2 * second * values * cold / gpu.dram_bytes_per_s
    row_s = (c.row_s + c.long_row_s * np.minimum(shapes["columns"] / LONG_ROW, 1)) * shapes["tokens"] / gpu.sms
    step_s = c.step_s * np.ceil(shapes["columns"] / STEP_VALUES)
    return {
        "time_s": c.launch_s + norm(step_s, row_s, l2_s + dram_s, power=2.0),
        "launch_s": np.full_like(values, c.launch_s),
        "step_s": step_s,
        "row_s": row_s,
        "l2_s": l2_s,
        "dram_s": dram_s,
    }
