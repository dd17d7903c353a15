"""Kernels of workloads and their predicted times on GPUs; of many models, GPUs and shapes at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuledger.models.time_model import Constants, constants_of
from gpuledger.models.time_model.kernels import KernelConstants, kernel_times
from gpuledger.models.transformer import Model, Parallel, Precision, Workload, kernels
from gpuledger.readers.gpus import Gpu

#: What a kernel takes on a GPU: columns that :func:`predict` adds.
TIMES = ["time_s", "dram_bytes", "l2_bytes", "bound"]
#: What may bound a kernel: that of kernels without products which the time model calls compute is the issue of
#: instructions, far below the roof of the matrix units.
BOUNDS = ("compute", "issue", "dram", "l2", "launch", "link")
#: Bounds of which more bandwidth is the cure.
MEMORY = ("dram", "l2")
#: Products on their own, whose constants were measured with what converts the activations.
PRODUCTS = ("gemm", "grouped_gemm")


def predict(rows: pd.DataFrame, gpu: Gpu) -> pd.DataFrame:
    """Add to kernels what they take on a GPU.

    Parameters
    ----------
    rows : DataFrame
        Of :func:`gpuledger.models.transformer.kernels`.
    gpu : Gpu

    Returns
    -------
    DataFrame
        With ``hardware`` and, of one launch, ``time_s``, ``dram_bytes``, ``l2_bytes`` and ``bound``.
    """
    precisions = rows.loc[rows["kind"].isin(PRODUCTS), "precision"].astype(str).unique()
    constants = KernelConstants(gemm={precision: product_constants(gpu, precision) for precision in precisions})
    times = kernel_times(rows, gpu, constants)
    bound = times["bound"].astype(pd.CategoricalDtype(BOUNDS))
    bound[((rows["kind"] == "elementwise") & (bound == "compute")).to_numpy()] = "issue"
    return rows.assign(hardware=gpu.name, **{column: times[column].array for column in TIMES[:-1]}, bound=bound.array)


def product_constants(gpu: Gpu, precision: str) -> Constants:
    """Return the constants of a product whose activations are in its precision already.

    The kernels before it (norm, activation, attention) write them so, and pay for it. Where the measurements that the
    constants were fitted to convert them by launches of their own, these are left out: the conversion's bytes,
    and with them the launches, for which those of a product in bf16 stand.
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
    """Predict every shape of a workload, of every model on every GPU.

    Parameters
    ----------
    models : mapping of str to Model, or iterable of Model
        By name; of an iterable, the models' own names.
    gpus : sequence of Gpu
    workload : Workload
        One or many shapes; :func:`gpuledger.models.transformer.join` puts those of several phases together.
    parallel : Parallel, optional
    precision : Precision, optional
        That of each checkpoint by default.

    Returns
    -------
    DataFrame
        A row a model, GPU and shape: ``model, hardware, phase, shape``, and of one pass on one device ``time_s``
        (pipeline stages one after another), ``macs``, ``dram_bytes``, ``l2_bytes``, ``comm_bytes``,
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
    """Add up kernels of :func:`predict`, all their launches, by group.

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
