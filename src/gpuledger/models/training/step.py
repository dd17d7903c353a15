"""The time of a training step: its kernels, and what they do not hide of the communication."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants.table import PYTORCH
from gpuledger.models.time_model.step import predict
from gpuledger.models.training.clock import settled
from gpuledger.models.training.kernels import CLASSES, HEAD, OUTER, training_kernels
from gpuledger.models.training.run import TrainingRun
from gpuledger.models.training.sharding import collective_times, exposed_s
from gpuledger.readers.gpus import Gpu

#: Numbers of a step that :func:`predict_steps` returns beside its time.
TIMES = (*(f"{name.lower()}_s" for name in CLASSES), "power_s", "exposed_s")


def predict_kernels(runs: Sequence[TrainingRun], gpu: Gpu) -> pd.DataFrame:
    """Predict the kernels of steps on one kind of GPU.

    Returns
    -------
    DataFrame
        As :func:`gpuledger.models.training.kernels.training_kernels`, with ``run`` (the place in `runs`), the columns
        of :func:`gpuledger.models.training.clock.settled`, and ``total_s``: of all launches in a step.
    """
    rows = pd.concat([training_kernels(run).assign(run=i) for i, run in enumerate(runs)], ignore_index=True)
    times = settled(rows, gpu, lambda kernels, at, throttled: predict(kernels, at, PYTORCH, throttled=throttled))
    return times.assign(total_s=times["time_s"] * times["count"])


def predict_steps(runs: Sequence[TrainingRun], gpu: Gpu) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predict the time of training steps on one kind of GPU.

    Returns
    -------
    steps : DataFrame, a row per run
        ``step_s`` and its parts `TIMES`, by purpose of the kernels at the full clock and what they take beyond that
        because power is limited; ``communication_s`` (all of it, hidden or not), ``tokens_per_s_per_gpu``, ``clock_hz``
        (see :mod:`gpuledger.models.training.clock`).
    kernels : DataFrame
        See :func:`predict_kernels`.
    """
    kernels = predict_kernels(runs, gpu)
    full = kernels.assign(full_s=kernels["full_s"] * kernels["count"])
    table = full.pivot_table("full_s", "run", "purpose", "sum", fill_value=0.0).reindex(columns=list(CLASSES))
    table = table.fillna(0.0).set_axis([f"{name.lower()}_s" for name in CLASSES], axis=1)
    units = kernels.groupby(["run", "unit", kernels["part"] == "forward"])["total_s"].sum()
    waits, moved = [], []
    for i, run in enumerate(runs):
        counts = [group.count * run.accumulation for group in run.model.layers]
        ahead, back = ([units[i, unit, side] / count for unit, count in enumerate(counts)] for side in (True, False))
        collectives = collective_times(run)
        head_s = units[i, HEAD, False] / run.accumulation
        waits.append(run.accumulation * exposed_s(run, ahead, back, head_s, collectives))
        each = [2 * gather + reduce for gather, reduce in collectives.values()]
        # What is outside layers stays where it is gathered.
        copies = [1, *(group.count for group in run.model.layers)]
        moved.append(run.accumulation * (np.dot(each, copies) - collectives[OUTER][0]))
    steps = table.assign(exposed_s=waits, communication_s=moved)
    steps["power_s"] = kernels.groupby("run")["total_s"].sum() - full.groupby("run")["full_s"].sum()
    steps["step_s"] = steps[list(TIMES)].sum(axis=1)
    steps["clock_hz"] = kernels.groupby("run")["clock_hz"].first()
    steps["tokens_per_s_per_gpu"] = [run.step_tokens for run in runs] / steps["step_s"]
    return steps.reset_index(drop=True), kernels
