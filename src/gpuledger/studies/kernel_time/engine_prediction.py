"""Predictions for engines' fused kernels: fits of the law of each kind, and what it says."""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.models.time_model.constants.table import AnyConstants
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.tabular import by_value
from gpuledger.studies.kernel_time.attention_kinds import ATTENTION
from gpuledger.studies.kernel_time.kind import FittedKernel, Kind
from gpuledger.studies.kernel_time.layer_kinds import LAYERS

#: Rows that a fit uses at most, and that choosing among a kernel's discrete properties does.
FIT_ROWS, CHOICE_ROWS = 1200, 300

#: By the operator of a row (collectives: any other).
KINDS: Mapping[str, Kind] = {**ATTENTION, **LAYERS}


def kind_of(operator: str) -> Kind:
    """Return the kind of kernel that an operator is."""
    return KINDS.get(operator, KINDS["collective"])


def kind_names(operators: pd.Series) -> pd.Series:
    """Return the name of the kind of each operator."""
    return by_value(operators, lambda names: names.map(lambda name: kind_of(name).name))


def fit(gpu: Gpu, kind: Kind, rows: pd.DataFrame) -> AnyConstants:
    """Fit the constants and choose the discrete properties of one kernel.

    Parameters
    ----------
    rows : DataFrame
        Of one kernel and precision, with ``measured_s``.

    Returns
    -------
    dataclass
        With the least mean absolute logarithm of predicted over measured time among all choices.
    """

    def fitted(start: AnyConstants, part: pd.DataFrame) -> AnyConstants:
        measured = part["measured_s"].to_numpy()
        shapes, bounds = kind.shapes(gpu, part), kind.bounds
        if kind.started:
            start, bounds = kind.started(start, kernel, shapes)
        found = fit_law(lambda tried: kind.law(gpu, tried, shapes, kernel.precision)["time_s"], start, bounds, measured)
        return dataclasses.replace(found, source=f"fitted to {len(part)} measured shapes")

    def error(constants: AnyConstants, part: pd.DataFrame) -> float:
        ratio = terms(gpu, kind, constants, part)["time_s"] / part["measured_s"].to_numpy()
        return round(float(np.abs(np.log(ratio)).mean()), 6)

    few, many = (rows.iloc[:: max(1, len(rows) // count)] for count in (CHOICE_ROWS, FIT_ROWS))
    kernel = FittedKernel(gpu, *rows[["kernel", "precision"]].iloc[0], rows["measured_s"].min())
    options = itertools.product(*kind.choices.values())
    starts = [dataclasses.replace(kind.start, **dict(zip(kind.choices, option, strict=True))) for option in options]
    starts = kind.starts(starts, kernel)
    if len(starts) > 1:
        found = [fitted(start, few) for start in starts]
        starts = [min(found, key=lambda constants: error(constants, few))]
    return fitted(starts[0], many)


def terms(gpu: Gpu, kind: Kind, constants: AnyConstants, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return ``time_s`` and its terms, of rows of one kernel and precision."""
    return kind.law(gpu, constants, kind.shapes(gpu, rows), rows["precision"].iloc[0])


def predict(gpu: Gpu, kind: Kind, constants: AnyConstants, rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``predicted_s`` and ``bound``, the longest term, of one kernel's rows, with their index."""
    found = terms(gpu, kind, constants, rows)
    time_s = found.pop("time_s")
    names = np.array([name.removesuffix("_s") for name in found])
    longest = np.column_stack([np.broadcast_to(term, len(rows)) for term in found.values()]).argmax(axis=1)
    return pd.DataFrame({"predicted_s": time_s, "bound": names[longest]}, index=rows.index)
