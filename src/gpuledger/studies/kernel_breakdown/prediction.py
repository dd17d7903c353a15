"""Predicted times of a workload's kernels on GPUs, also of many models, GPUs and shapes at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuledger.models.time_model import Constants, constants_of
from gpuledger.models.time_model.kernels import KernelConstants, kernel_times
from gpuledger.models.transformer import Model, Parallel, Precision, Workload, kernels
from gpuledger.readers.gpus import Gpu

#: What can bound a kernel. What the time model calls compute is instruction issue in kernels without matrix work,
#: far below the peak of the matrix units.
BOUNDS = ("compute", "issue", "dram", "l2", "launch", "link")
#: Bounds that more memory bandwidth would relax.
MEMORY = ("dram", "l2")
#: GEMM kernels, whose constants were fitted to measurements that include the conversion of the activations.
GEMMS = ("gemm", "grouped_gemm")


def predict(rows: pd.DataFrame, gpu: Gpu) -> pd.DataFrame:
    """Predict the time and traffic of kernels on a GPU.

    Parameters
    ----------
    rows : DataFrame
        From :func:`gpuledger.models.transformer.kernels`.
    gpu : Gpu

    Returns
    -------
    DataFrame
        The same rows with ``hardware`` and, per launch, ``time_s``, of it ``launch_s`` (the fixed cost of a launch;
        a collective's latency counts as communication), ``dram_bytes``, ``l2_bytes`` and ``bound``.
    """
    precisions = rows.loc[rows["kind"].isin(GEMMS), "precision"].astype(str).unique()
    constants = KernelConstants(gemm={precision: gemm_constants(gpu, precision) for precision in precisions})
    times = kernel_times(rows, gpu, constants)
    bound = times["bound"].astype(pd.CategoricalDtype(BOUNDS))
    bound[((rows["kind"] == "elementwise") & (bound == "compute")).to_numpy()] = "issue"
    columns = {column: times[column].array for column in ("time_s", "dram_bytes", "l2_bytes")}
    launch = {precision: own.launch_s for precision, own in constants.gemm.items()}
    kind = rows["kind"]
    launch_s = np.where(kind.isin(GEMMS), rows["precision"].astype(str).map(launch), constants.operators.launch_s)
    launch_s[kind == "collective"] = 0.0
    return rows.assign(hardware=gpu.name, **columns, launch_s=launch_s, bound=bound.array)


def gemm_constants(gpu: Gpu, precision: str) -> Constants:
    """Return the constants of a GEMM whose activations already have its precision.

    The kernel before it (norm, activation or attention) writes them in that precision and pays for it. Where the
    constants were fitted to measurements that include a separate conversion, its traffic is removed, and its launches
    are replaced by those of a GEMM in bf16.
    """
    own = constants_of(gpu, precision)
    if not own.conversion_bytes:
        return own
    return replace(own, conversion_bytes=0.0, launch_s=min(own.launch_s, constants_of(gpu, "bf16").launch_s))


def sweep(
    models: Mapping[str, Model] | Iterable[Model],
    gpus: Sequence[Gpu],
    workload: Workload,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
) -> pd.DataFrame:
    """Predict every shape of a workload for every model on every GPU.

    Parameters
    ----------
    models : mapping of str to Model, or iterable of Model
        By name; an iterable goes by the models' own names.
    gpus : sequence of Gpu
    workload : Workload
        One or many shapes; :func:`gpuledger.models.transformer.join` joins those of several phases.
    parallel : Parallel, optional
    precision : Precision, optional
        By default that of each checkpoint.

    Returns
    -------
    DataFrame
        One row per model, GPU and shape: ``model, hardware, phase, shape``, and per pass and device ``time_s``
        (pipeline stages in sequence), ``macs``, ``dram_bytes``, ``l2_bytes``, ``comm_bytes``,
        ``memory_bound_percent`` (of the time).
    """
    named = dict(models) if isinstance(models, Mapping) else {model.name: model for model in models}
    parallel = parallel or Parallel()
    parts = [kernels(model, workload, parallel=parallel, precision=precision) for model in named.values()]
    rows = pd.concat(parts, ignore_index=True)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    passes = owner * workload.shapes + rows["shape"].to_numpy()
    phase = _phases(rows, passes, len(parts) * workload.shapes)
    found = [
        pd.DataFrame(
            {
                "model": np.repeat(np.array(list(named), object), workload.shapes),
                "hardware": gpu.name,
                "phase": phase,
                "shape": np.tile(np.arange(workload.shapes), len(parts)),
                **totals(predict(rows, gpu), passes, len(phase)),
            }
        )
        for gpu in gpus
    ]
    return pd.concat(found, ignore_index=True)


def _phases(rows: pd.DataFrame, passes: np.ndarray, count: int) -> np.ndarray:
    codes = np.zeros(count, np.int64)
    phase = rows["phase"].astype("category").cat
    codes[passes] = phase.codes
    return phase.categories.to_numpy(object)[codes]


def totals(rows: pd.DataFrame, group: np.ndarray, groups: int) -> dict[str, np.ndarray]:
    """Sum kernels of :func:`predict` over all their launches, by group.

    Parameters
    ----------
    rows : DataFrame
    group : int array of shape (rows,)
        0 … groups - 1.
    groups : int

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
    memory = count * np.where(rows["bound"].isin(MEMORY), rows["time_s"], 0.0)
    found["memory_bound_percent"] = 100 * np.bincount(group, memory, groups) / found["time_s"]
    return found
