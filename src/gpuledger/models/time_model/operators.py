"""Time of operators without matrix work: norms, activations, additions, RoPE, softmax, copies.

A launch takes, one after the other (a block that waits for memory does not issue, and these kernels keep few loads in
flight):

    time = launch + bytes from DRAM / (share · bandwidth) + bytes from L2 / (SMs · L2 rate) + max(issue, chain)

* *Bytes*: what is read and written once. Up to half of the L2's capacity they are where the kernel before left them;
  beyond all of it they come from DRAM; in between linearly. A row that is read again comes from L2.
* *issue*: kernels that load one value at a time (``accesses`` loads and stores a value) are limited by what an SM
  issues; a row is a block, so the SM with the most rows decides: ⌈rows / SMs⌉ · values · accesses / rate.
* *chain*: steps that wait for one another within a row (a thread's loop, a pass after a reduction), each as long as a
  trip to memory.

The laws name what the kernels of vLLM and Sarathi of 2024 do (`csrc/layernorm_kernels.cu`, `activation_kernels.cu`,
`pos_encoding_kernels.cu`: one value a load, rows as blocks of at most 1024 threads), and what PyTorch's vectorised
kernels do.

PyTorch's other kernels overlap memory traffic and the rest in part: the square root of the sum of both squares stands
in place of their sum. Those that load *by value* compute the places of each value's operands: an SM takes so many
cycles for a value, however many its operands are. The form is the one that fits an H100's kernels best, and both
numbers are their medians (traces/nvidia-h100-training). Kernels of other models on an H200 are off by 9 % in the mean;
with the issue rate of vLLM's on an A100, which was taken before, by 18.
*Lists*: a block goes over 65,536 values of a tensor, 2,048 at a time; a step waits for what it reads and for what it
writes (``MultiTensorApply.cuh``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.readers.gpus import Gpu


@dataclass(frozen=True)
class OperatorConstants:
    """What the time of operators depends on beyond the data sheet: five constants of a GPU.

    The defaults are those of an A100, fitted to one half of the operators that vidur recorded (the study
    ``kernel_time`` of the dataset ``operators-vidur`` prints them, and judges them on the other half).
    """

    launch_s: float = 1.7e-6  # an empty kernel, as profilers time it
    dram_share: float = 0.877  # of the DRAM bandwidth, what a streaming kernel gets
    l2_bytes_per_cycle: float = 20.5  # what an SM gets out of L2
    accesses_per_cycle: float = 5.94  # single loads and stores (of one value by one thread) that an SM completes
    step_cycles: float = 476.0  # a dependent step: load, compute, synchronise


#: Where a fit starts.
START = OperatorConstants(2e-6, 0.85, 20.0, 6.0, 400.0)


#: Of the L2's capacity, what is surely there for the next kernel: in an A100 and an H100 each half serves its own SMs.
L2_REACH = 0.5


#: Units of the constants.
UNITS: Mapping[str, str] = {
    "launch_s": "s",
    "dram_share": "1",
    "l2_bytes_per_cycle": "byte/cycle",
    "accesses_per_cycle": "1/cycle",
    "step_cycles": "cycle",
}


@dataclass(frozen=True)
class Law:
    """How a kernel goes over a row of values."""

    accesses: float = 0.0  # loads and stores of single values, per value of the row; 0 when they are vectorised
    step_values: int = 0  # values that a dependent step covers (the threads of a block); 0: one step in all
    passes: int = 1  # times that the steps are gone through
    rereads: int = 0  # times that the row is read again
    reread_row_bytes: int = 0  # rows up to this size are read again from the SM's own memory, not from L2
    value_cycles: float = 0.0  # that an SM takes for a value
    overlapped: bool = False  # with memory traffic


#: Laws by operator. `norm`: x twice, then y. `activation`: gate and value, then y. `rope`: x, its cosine or sine, y.
#: `softmax`: PyTorch's reads a row for its maximum, for the sum, and to write. `layernorm`: torch.compile's, which
#: reads a row again, out of L1 while the rows of the blocks on an SM (about eight) fit it. PyTorch's: `by_value`, of
#: operands that are not all alike in memory or in type; `by_value_slowly`, of operands that are neither, and of halves
#: that are joined; `list`, in place; `list_read`, into one value a block; `in_turn`, one step a column.
LAWS: Mapping[str, Law] = {
    "norm": Law(accesses=3, step_values=1024, passes=2),
    "activation": Law(accesses=3, step_values=1024),
    "rope": Law(accesses=3, step_values=1024),
    "softmax": Law(rereads=2),
    "layernorm": Law(rereads=1, reread_row_bytes=16384),
    "vectorised": Law(),
    "by_value": Law(value_cycles=0.62, overlapped=True),
    "by_value_slowly": Law(value_cycles=1.17, overlapped=True),
    "list": Law(step_values=2048, passes=2, overlapped=True),
    "list_read": Law(step_values=2048, overlapped=True),
    "in_turn": Law(step_values=1),
}


def operator_times(
    gpu: Gpu,
    constants: OperatorConstants,
    operator: Iterable[str] | np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    read_bytes: np.ndarray,
    write_bytes: np.ndarray,
) -> pd.DataFrame:
    """Time of operators, launch by launch.

    Parameters
    ----------
    operator : array of str, shape (launches,)
        Keys of `LAWS`.
    rows, columns : array of int
        Rows and values of a row (of the output).
    read_bytes, write_bytes : array of float
        What is read and written once, in all rows.

    Returns
    -------
    DataFrame, shape (launches, 8)
        ``time_s``, its parts ``launch_s, dram_s, l2_s, issue_s, chain_s`` (of the last two, what memory traffic
        does not hide; the shorter one is 0), and ``dram_bytes, l2_bytes``.
    """
    codes, names = pd.factorize(np.asarray(operator))
    laws = np.array([astuple(LAWS[name]) for name in names], dtype=float).reshape(-1, len(fields(Law)))[codes]
    accesses, step_values, passes, rereads, row_bytes, value_cycles, overlapped = laws.T
    rows, columns = np.asarray(rows, dtype=float), np.asarray(columns, dtype=float)
    read_bytes, write_bytes = np.asarray(read_bytes, dtype=float), np.asarray(write_bytes, dtype=float)

    swept = read_bytes + write_bytes
    again = np.where(read_bytes > row_bytes * rows, rereads, 0) * read_bytes
    reach = L2_REACH * gpu.l2_bytes
    hit = np.clip(2 - swept / reach, 0, 1)
    dram_bytes = swept * (1 - hit)
    dram_s = dram_bytes / (constants.dram_share * gpu.dram_bytes_per_s)
    l2_s = (swept * hit + again) / (constants.l2_bytes_per_cycle * gpu.sms * gpu.clock_hz)

    cycles = accesses / constants.accesses_per_cycle + value_cycles
    issue_s = np.ceil(rows / gpu.sms) * columns * cycles / gpu.clock_hz
    steps = np.where(step_values > 0, np.ceil(columns / np.maximum(step_values, 1)), 1) * passes
    chain_s = steps * (constants.step_cycles / gpu.clock_hz)
    issued, longer_s, memory_s = issue_s > chain_s, np.maximum(issue_s, chain_s), dram_s + l2_s
    own_s = np.where(overlapped > 0, np.hypot(memory_s, longer_s) - memory_s, longer_s)
    issue_s, chain_s = own_s * issued, own_s * ~issued
    launch_s = np.full(rows.shape, constants.launch_s)
    return pd.DataFrame(
        {
            "time_s": launch_s + dram_s + l2_s + issue_s + chain_s,
            "launch_s": launch_s,
            "dram_s": dram_s,
            "l2_s": l2_s,
            "issue_s": issue_s,
            "chain_s": chain_s,
            "dram_bytes": dram_bytes,
            "l2_bytes": swept + again,
        }
    )


def fit_operator_constants(gpu: Gpu, measured: pd.DataFrame) -> OperatorConstants:
    """Fit the five constants to measured launches.

    Parameters
    ----------
    measured : DataFrame
        ``operator, rows, columns, read_bytes, write_bytes, time_s``.

    Returns
    -------
    OperatorConstants
        With the least sum of absolute logarithms of predicted over measured time (smoothed below 5 %).
    """
    columns = [measured[name].to_numpy() for name in ("operator", "rows", "columns", "read_bytes", "write_bytes")]
    # Each within a factor of eight, a share at most 1.
    bounds = {name: (value / 8, value * 8) for name, value in asdict(START).items()}
    bounds["dram_share"] = START.dram_share / 8, 1.0
    return fit_law(
        lambda tried: operator_times(gpu, tried, *columns)["time_s"].to_numpy(),
        START,
        bounds,
        measured["time_s"].to_numpy(),
    )
