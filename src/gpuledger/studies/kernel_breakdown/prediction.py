"""Predicted times of many models, GPUs and shapes at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from gpuledger.models.time_model.step import predict, totals
from gpuledger.models.transformer import Model, Parallel, Precision, Workload, kernels
from gpuledger.readers.gpus import Gpu


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
    workload : Workload
        One or many shapes; :func:`gpuledger.models.transformer.join` joins those of several phases.
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
