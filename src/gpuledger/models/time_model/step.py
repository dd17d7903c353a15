"""Times of a model's forward passes on GPUs: every kernel of every shape of a workload, and their sums."""

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.time_model.kernel_rows import coded
from gpuledger.models.time_model.kernels import BOUNDS, KernelConstants, kernel_times
from gpuledger.readers.gpus import Gpu

__all__ = ["BOUNDS", "MEMORY", "check_peaks", "predict", "totals"]

#: Bounds that more memory bandwidth would relax.
MEMORY = ("dram", "l2")


def predict(rows: pd.DataFrame, gpu: Gpu, engine: str = "", expert_tile: int = 0) -> pd.DataFrame:
    """Predict the time and traffic of kernels on a GPU.

    Parameters
    ----------
    rows : DataFrame
        From :func:`gpuledger.models.transformer.kernels`.
    engine : str
        ``trtllm``, ``vllm`` or ``sglang``: the constants of its kernels where they were measured. Empty: of every kind
        the fastest kernel.
    expert_tile : int
        Rows of a tile in a mixture of experts, where known (see :class:`KernelConstants`).

    Returns
    -------
    DataFrame
        The same rows, those in fp4 in bf16 if the GPU has no fp4, with ``hardware`` and, per launch, ``time_s``, of it
        ``launch_s`` (the fixed cost of a launch; a collective's latency counts as communication), ``dram_bytes``,
        ``l2_bytes``, ``bound`` and ``constants`` (whose).
    """
    if "fp4" not in gpu.precisions and (rows["precision"] == "fp4").any():
        # Engines widen such weights there, and leave the activations in 16 bits.
        rows = rows.assign(precision=rows["precision"].where(rows["precision"] != "fp4", "bf16"))
    times = kernel_times(rows.assign(hardware=gpu.name), gpu, KernelConstants(engine, expert_tile=expert_tile))
    return times.drop(columns="routing", errors="ignore")  # which nothing after the time needs


def totals(rows: pd.DataFrame, group: np.ndarray, groups: int) -> dict[str, np.ndarray]:
    """Sum kernels of :func:`predict` over all their launches, by group.

    Parameters
    ----------
    group : int array of shape (rows,)
        0 … groups - 1.

    Returns
    -------
    dict of str to float64 array of shape (groups,)
        ``time_s``, ``macs``, ``dram_bytes``, ``l2_bytes``, ``comm_bytes`` and ``memory_bound_percent``.
    """
    count = rows["count"].to_numpy(float)
    found = {
        column: np.bincount(group, rows[column].to_numpy(float) * count, groups)
        for column in ("time_s", "macs", "dram_bytes", "l2_bytes", "comm_bytes")
    }
    codes, bounds = coded(rows["bound"])
    memory = count * np.where(np.isin(bounds, MEMORY)[codes], rows["time_s"].to_numpy(float), 0.0)
    found["memory_bound_percent"] = 100 * np.bincount(group, memory, groups) / found["time_s"]
    return found


def check_peaks(rows: pd.DataFrame, gpu: Gpu) -> None:
    """Raise an InputError if the data sheet lacks the peak of a precision that kernels compute in."""
    for precision in rows.loc[rows["macs"] > 0, "precision"].astype(str).unique():
        try:
            gpu.peak_flop_per_s(precision)
        except ValueError:
            problem = f"the peak of {precision} is missing; there are only {', '.join(gpu.precisions)}"
            remedy = f"add {precision}_tflop_per_s, or set another precision"
            raise InputError(gpu.file, f"GPU {gpu.name}", problem, remedy) from None
