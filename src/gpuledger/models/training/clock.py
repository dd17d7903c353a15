"""The clock at which a GPU can go on with a training step, and its kernels at that clock.

A step's mean power is that of a kernel with all of its FLOP and bytes (:mod:`gpuledger.models.power` is linear in
them). Where it is beyond the limit, the clock falls until it is not. So a step can take no less: if other kernels or
pauses make it longer, the clock falls less, but never so little that the step would be shorter than this one.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from gpuledger.models.power import FLOP_CONSTANTS, FULL_CLOCK, chip_constants
from gpuledger.models.sustained import at_clock, sustained
from gpuledger.readers.gpus import Gpu

#: The type in whose products others are counted, by their energy.
_COUNTED = "bf16"


def settled(rows: pd.DataFrame, gpu: Gpu, predict: Callable[[pd.DataFrame, Gpu, bool], pd.DataFrame]) -> pd.DataFrame:
    """Predict the kernels of steps that run one after the other for seconds.

    Parameters
    ----------
    rows : DataFrame
        Kernels of steps, with ``run`` (from 0) and ``count``.
    predict : callable
        From kernels, a GPU and whether its clock falls under long products as in benchmarks to the columns of
        :func:`gpuledger.models.time_model.step.predict`.

    Returns
    -------
    DataFrame
        What `predict` returns, ``full_s`` (a launch at the full clock) and ``clock_hz``. That is the full one on a GPU
        whose power is not known, neither its own nor that of the same chip, and for products of a type whose energy is
        not. No kernel takes less time than at the full clock.
    """
    times = predict(rows, gpu, True).assign(clock_hz=gpu.clock_hz)
    times["full_s"] = times["time_s"]
    found = chip_constants(gpu)
    if found is None or np.isnan(found[0].clock_exponent):
        return times
    law = found[0]
    run, count = rows["run"].to_numpy(), rows["count"].to_numpy(float)
    names, macs = times["precision"].astype(str).to_numpy(), times["macs"].to_numpy(float)
    own = np.select(
        [names == name for name in FLOP_CONSTANTS], [getattr(law, of) for of in FLOP_CONSTANTS.values()], np.nan
    )
    energy = np.where(macs > 0, 2 * macs * count * own / getattr(law, FLOP_CONSTANTS[_COUNTED]), 0.0)
    flop, moved = (np.bincount(run, each) for each in (energy, times["dram_bytes"].to_numpy(float) * count))

    def step_s(at: Gpu) -> np.ndarray:
        return np.bincount(run, predict(rows, at, False)["time_s"].to_numpy(float) * count)

    clock_hz, _ = sustained(law, gpu, flop, moved, np.full(len(flop), _COUNTED), step_s)
    for place in np.flatnonzero(clock_hz < FULL_CLOCK * gpu.clock_hz):
        of = run == place
        slower = predict(rows[of], at_clock(gpu, clock_hz[place]), False)["time_s"].to_numpy()
        times.loc[of, "time_s"] = np.maximum(slower, times["time_s"].to_numpy()[of])
        times.loc[of, "clock_hz"] = clock_hz[place]
    return times
