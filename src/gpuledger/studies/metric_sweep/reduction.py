"""Reduce a sweep to its laws and anomalies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import CONFIG, Case
from gpuledger.ledger.parts import join_parts, one_part
from gpuledger.readers import kernel_names
from gpuledger.studies.metric_sweep import anomalies, laws, sweeps, unit_switches
from gpuledger.studies.metric_sweep.measurements import (
    POINT,
    VARIABLES,
    of_classes,
    of_kernels,
    read_launches,
    read_observations,
    to_points,
)
from gpuledger.studies.metric_sweep.summary import summarise

_SPREAD = ("launches", "value", "minimum", "lower_quartile", "upper_quartile", "maximum", "last_digit")


@dataclass(frozen=True)
class Sweep:
    """The parts of a reduced sweep."""

    #: One row per class, metric and sizes: :data:`gpuledger.studies.metric_sweep.measurements.POINT`, the median
    #: ``value`` of the launches and their spread, and ``value_as_given`` before a unit was repaired.
    points: pd.DataFrame
    kernels: pd.DataFrame  # the same per kernel, by ``kernel_name``
    observations: pd.DataFrame  # qualitative observations: ``model, kernel_class, kernel_name, metric, observation``
    #: See :mod:`gpuledger.studies.metric_sweep.laws` and :mod:`gpuledger.studies.metric_sweep.anomalies`.
    laws: pd.DataFrame
    products: pd.DataFrame
    expected: pd.DataFrame
    anomalies: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """Return all parts as one frame, with their names in the column ``part``."""
        return join_parts(**vars(self))

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Self:
        """Undo :meth:`to_frame`."""
        return cls(**{name: one_part(frame, name).reindex(columns=columns) for name, columns in _COLUMNS.items()})


_COLUMNS = {
    "points": (*POINT, *_SPREAD, "value_as_given"),
    "kernels": (*POINT, "kernel_name", *_SPREAD, "value_as_given"),
    "observations": ("model", "kernel_class", "kernel_name", "metric", "observation"),
    "laws": laws.LAWS,
    "products": laws.PRODUCTS,
    "expected": laws.EXPECTED,
    "anomalies": (*anomalies.COLUMNS, *VARIABLES),
}


def reduce(
    case: Case,
    kernel_patterns: Sequence[Mapping[str, str]] = (),
    gemm_classes: tuple[str, ...] = ("gemm",),
    summarised_series: int = 100,
) -> CaseResult:
    """Find the law by which each metric of each class grows, and anomalies in the measurements.

    Parameters
    ----------
    kernel_patterns : sequence of mappings
        Additional patterns that classify the kernels of ``ncu_csv``; the case's own come first.
    gemm_classes : sequence of str
        Classes that are GEMMs.
    summarised_series : int
        The summary of a sweep with more series has no values and coefficients; the law table has all series.
    """
    patterns = kernel_names.extend_patterns(kernel_patterns, file=CONFIG)
    patterns = kernel_names.extend_patterns(case.inputs.get("kernel_patterns", ()), patterns, file=case.dataset.file)
    measured = read_launches(case, patterns)
    sweep = find_laws(case, to_points(measured.launches), read_observations(case))
    result = CaseResult(sweep.to_frame())
    for reason, count in measured.left_out.items():
        result.add(f"columns_left_out_{reason}", count, "1")
    summarise(result, sweep, case, gemm_classes, summarised_series)
    return result


def find_laws(case: Case, points: pd.DataFrame, observations: pd.DataFrame) -> Sweep:
    """Repair units, find anomalies and fit laws."""
    points = unit_switches.with_units(points)
    series = sweeps.all_series(unit_switches.with_proofs(of_classes(points)))
    if series.empty:
        problem = f"no two points differ in one of {', '.join(VARIABLES)} alone"
        raise case.error("", problem, "measure at several sizes of one of them")
    switches = unit_switches.find(series)
    points = unit_switches.repair(points, switches)
    classes, kernels = of_classes(points).drop(columns="kernel_name"), of_kernels(points)
    series = sweeps.main_series(sweeps.all_series(classes))
    found = laws.fit_laws(series, classes)
    outliers = anomalies.outliers(series, found)
    if len(outliers):
        found = laws.fit_laws(series, classes, outliers)
    wrong = [
        switches,
        outliers,
        anomalies.split_classes(kernels, observations),
        anomalies.algorithm_switches(kernels),
        anomalies.contradictions(classes),
    ]
    rows = pd.concat([part for part in wrong if len(part)] or [switches], ignore_index=True)
    rows = rows.reindex(columns=[*anomalies.COLUMNS, *VARIABLES])
    rank = rows["kind"].map({kind: rank for rank, kind in enumerate(anomalies.KINDS)})
    order = ["rank", "metric", "kernel_class", *VARIABLES, "where"]
    rows = rows.assign(rank=rank).sort_values(order, kind="stable")
    return Sweep(
        points=classes,
        kernels=kernels,
        observations=observations,
        laws=found,
        products=laws.fit_products(classes),
        expected=laws.compare_expected(classes, case),
        anomalies=rows.drop(columns="rank").reset_index(drop=True),
    )
