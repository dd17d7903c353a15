"""How long products take that run all the time: the time model at the clock that the law of power allows.

The time model's constants are of benchmarks that launch a shape a few times, before the clock has fallen far; they hold
a term for how far it falls meanwhile. Here that term is replaced by the clock at which the GPU's power settles.
"""

import numpy as np
import pandas as pd

from gpuledger.models.power import FULL_CLOCK, PowerConstants
from gpuledger.models.sustained import IN_TURN, sustained_products
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.models.time_model.constants.table import read_table
from gpuledger.models.time_model.gemms.law import gemm_time_s
from gpuledger.readers.gpus import Gpu

#: What readings call a product, the kernel whose constants tell its time, and its type. In fp8, the engines' kernels
#: were measured together with what scales their operands.
KERNEL, LINEAR, PRECISION = "gemm", "torch.nn.functional.linear", "bf16"
_SIZES = r"(?P<m>\d+)[x×](?P<n>\d+)[x×](?P<k>\d+)"


def add_sustained(
    frame: pd.DataFrame, gpu: Gpu, constants: PowerConstants, others: PowerConstants
) -> tuple[pd.DataFrame, dict[str, tuple[float, str]]]:
    """Predict the times of products that run all the time.

    Parameters
    ----------
    frame : DataFrame
        Steady readings; see :func:`gpuledger.studies.kernel_power.readings.read_steady`.
    constants, others : PowerConstants
        Fitted to the readings that are not held back, and to those that are: each judges the other half.

    Returns
    -------
    frame : DataFrame
        If its products have sizes and clocks, and the GPU's own were measured, also ``nominal_s`` (the time model as it
        is), ``sustained_s`` and ``sustained_mhz``; NaN for all else.
    sums : dict of str to (float, str)
        Quantities of the summary and their units; none without such products.
    """
    found = [entry for entry in read_table("gemm") if (entry.gpu, entry.kernel) == (gpu.name, LINEAR)]
    entry = next((entry for entry in found if entry.precision == PRECISION), None)
    if entry is None or "sizes" not in frame or frame["clock_share"].isna().any():
        return frame, {}
    sizes = frame["sizes"].str.fullmatch(_SIZES).fillna(False).astype(bool)
    ours = sizes & frame["steady"] & (frame["kernel"] == KERNEL) & (frame["precision"] == PRECISION)
    if not ours.any() or not np.isfinite([constants.clock_exponent, others.clock_exponent]).all():
        return frame, {}
    frame = frame.assign(nominal_s=np.nan, sustained_s=np.nan, sustained_mhz=np.nan)
    for law, half in ((constants, frame["held_back"]), (others, ~frame["held_back"])):
        rows = frame[ours & half]
        m, n, k = rows["sizes"].str.extract(_SIZES).astype(np.int64).to_numpy().T
        clock_hz, time_s = sustained_products(gpu, entry.constants, m, n, k, PRECISION, law)
        nominal_s = gemm_time_s(gpu, entry.constants, m, n, k, precision=PRECISION, weights_in_turn=IN_TURN)
        frame.loc[rows.index, "nominal_s"] = nominal_s
        frame.loc[rows.index, ["sustained_s", "sustained_mhz"]] = np.column_stack([time_s, clock_hz / 1e6])
    return frame, _sums(frame[ours])


def _sums(rows: pd.DataFrame) -> dict[str, tuple[float, str]]:
    slow = rows["clock_share"] < FULL_CLOCK
    clock = rows["clock_mhz"][slow]
    right = (rows["sustained_mhz"] < FULL_CLOCK * rows["clock_mhz"] / rows["clock_share"]) == slow
    sums = {
        "products": (len(rows), "kernel"),
        "slowed_products": (int(slow.sum()), "kernel"),
        "slowing_predicted": (int(right.sum()), "kernel"),
        "fastest_product": (rows["flop_per_s"].max(), "FLOP/s"),
    }
    errors = {name: errors_percent(rows[f"{name}_s"], rows["measured_s"]) for name in ("nominal", "sustained")}
    if slow.any():
        sums |= {"least_clock": (clock.min(), "MHz"), "slowed_clock": (clock.median(), "MHz")}
        clock_error = errors_percent(rows["sustained_mhz"][slow], clock)
        sums |= {f"{name}_mape_slowed_percent": (error[slow].abs().mean(), "%") for name, error in errors.items()}
        sums |= {"nominal_bias_slowed_percent": (errors["nominal"][slow].mean(), "%")}
        sums |= {"clock_mape_slowed_percent": (clock_error.abs().mean(), "%")}
    if not slow.all():
        sums |= {f"{name}_mape_others_percent": (error[~slow].abs().mean(), "%") for name, error in errors.items()}
    return sums
