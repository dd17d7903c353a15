"""Times of a model's forward passes on GPUs: every kernel of every shape of a workload, and their sums."""

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.time_model.constants.choice import origin
from gpuledger.models.time_model.kernel_rows import coded
from gpuledger.models.time_model.kernels import BOUNDS, KernelConstants, kernel_times
from gpuledger.readers.gpus import STAND_INS, Gpu

__all__ = ["BOUNDS", "MEMORY", "check_peaks", "judged", "other_constants", "predict", "totals", "widened"]

#: Formats of products that not every GPU has units for; weights in them are widened elsewhere.
NARROW = ("fp8", "int8", "fp4")
#: Bounds that more memory bandwidth would relax.
MEMORY = ("dram", "l2")


def predict(
    rows: pd.DataFrame, gpu: Gpu, engine: str = "", expert_tile: int = 0, throttled: bool = True
) -> pd.DataFrame:
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
    throttled : bool
        Whether the clock falls under long products as in benchmarks (see :class:`KernelConstants`).

    Returns
    -------
    DataFrame
        The same rows, those in formats that the GPU has no units for in 16 bits (see :func:`widened`), with
        ``hardware`` and, per launch, ``time_s``, of it
        ``launch_s`` (the fixed cost of a launch; a collective's latency counts as communication), ``dram_bytes``,
        ``l2_bytes``, ``bound``, ``constants`` (whose) and ``error_percent`` (theirs; see :func:`kernel_times`).
    """
    if narrow := {name for name in widened(rows, gpu) if name in NARROW}:
        rows = rows.assign(precision=rows["precision"].where(~rows["precision"].isin(narrow), "bf16"))
    times = kernel_times(
        rows.assign(hardware=gpu.name), gpu, KernelConstants(engine, expert_tile=expert_tile, throttled=throttled)
    )
    return times.drop(columns="routing", errors="ignore")  # which nothing after the time needs


def widened(rows: pd.DataFrame, gpu: Gpu) -> dict[str, str]:
    """Return the formats of products that a GPU has no units for, each with the one that it computes in instead.

    Engines widen the weights of those in `NARROW` on their way to the matrix units, and leave the activations in 16
    bits: such checkpoints save memory there, not arithmetic.
    """
    used = rows.loc[rows["macs"] > 0, "precision"].astype(str).unique()
    known = {name: next((own for own in STAND_INS.get(name, ()) if gpu.flops.get(own)), name) for name in used}
    return {name: own for name, own in sorted(known.items()) if own != name}


def totals(rows: pd.DataFrame, group: np.ndarray, groups: int) -> dict[str, np.ndarray]:
    """Sum kernels of :func:`predict` over all their launches, by group.

    Parameters
    ----------
    group : int array of shape (rows,)
        0 … groups - 1.

    Returns
    -------
    dict of str to float64 array of shape (groups,)
        ``time_s``, ``macs``, ``dram_bytes``, ``l2_bytes``, ``comm_bytes``, ``memory_bound_percent``, and those of
        :func:`judged`.
    """
    count = rows["count"].to_numpy(float)
    found = {
        column: np.bincount(group, rows[column].to_numpy(float) * count, groups)
        for column in ("time_s", "macs", "dram_bytes", "l2_bytes", "comm_bytes")
    }
    codes, bounds = coded(rows["bound"])
    memory = count * np.where(np.isin(bounds, MEMORY)[codes], rows["time_s"].to_numpy(float), 0.0)
    found["memory_bound_percent"] = 100 * np.bincount(group, memory, groups) / found["time_s"]
    return found | judged(rows, group, groups)


def judged(rows: pd.DataFrame, group: np.ndarray, groups: int) -> dict[str, np.ndarray]:
    """Say how much of a time is that of kernels that were compared with measurements, and how near they came.

    Parameters
    ----------
    rows, group, groups
        As for :func:`totals`.

    Returns
    -------
    dict of str to float64 array of shape (groups,)
        ``judged_percent``, the share of the time in kernels whose constants' error on this GPU is known, and
        ``kernel_error_percent``, the mean of these errors, weighted by time (NaN where none is known). In a sum they
        partly cancel.
    """
    time = rows["time_s"].to_numpy(float) * rows["count"].to_numpy(float)
    error = rows["error_percent"].to_numpy(float)
    unknown = np.isnan(error)
    known = np.bincount(group, np.where(unknown, 0.0, time), groups)
    weighted = np.bincount(group, np.where(unknown, 0.0, time * error), groups)
    share = 100 * known / np.bincount(group, time, groups)
    mean = np.divide(weighted, known, out=np.full(groups, np.nan), where=known > 0)
    return {"judged_percent": share, "kernel_error_percent": mean}


def other_constants(rows: pd.DataFrame, group: np.ndarray, groups: int) -> list[str]:
    """Return, by group, where the constants of kernels come from that are not judged; the largest share first.

    Parameters
    ----------
    rows, group, groups
        As for :func:`totals`.
    """
    used = pd.Categorical(rows["constants"])
    names = sorted(set(map(origin, used.categories)))
    codes = np.array([names.index(origin(words)) for words in used.categories])[used.codes]
    time = np.where(rows["error_percent"].isna(), rows["time_s"].to_numpy(float) * rows["count"].to_numpy(float), 0.0)
    sums = np.bincount(group * len(names) + codes, time, groups * len(names)).reshape(groups, len(names))
    return [", ".join(names[i] for i in np.argsort(-row, kind="stable") if row[i] > 0) for row in sums]


def check_peaks(rows: pd.DataFrame, gpu: Gpu) -> None:
    """Raise an InputError if the data sheet lacks the peak of a precision that kernels compute in."""
    for precision in rows.loc[rows["macs"] > 0, "precision"].astype(str).unique():
        try:
            gpu.peak_flop_per_s(precision)
        except ValueError:
            problem = f"the peak of {precision} is missing; there are only {', '.join(gpu.precisions)}"
            remedy = f"add {precision}_tflop_per_s, or set another precision"
            raise InputError(gpu.file, f"GPU {gpu.name}", problem, remedy) from None
