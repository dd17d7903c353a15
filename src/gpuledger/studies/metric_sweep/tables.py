"""Tables and words of a metric sweep, for people."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.ledger import tables
from gpuledger.ledger.case_result import CaseResult
from gpuledger.readers import kernel_names
from gpuledger.studies.metric_sweep import anomalies, classification
from gpuledger.studies.metric_sweep.laws import LAW_TABLE
from gpuledger.studies.metric_sweep.measurements import VARIABLES
from gpuledger.studies.metric_sweep.reduction import Sweep
from gpuledger.studies.metric_sweep.unit_switches import shown


def law_rows(sweep: Sweep) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return the law table with headers and formats for people."""
    headers = {"kernel_class": "class", "points": "sizes", "error_percent": "error (%)"}
    return sweep.laws[list(LAW_TABLE)], headers, {"error_percent": "{:.2g}"}


def anomaly_rows(sweep: Sweep) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the table of anomalies with headers for people."""
    return sweep.anomalies[list(anomalies.COLUMNS)], {"kernel_class": "class"}


def products_in_words(sweep: Sweep) -> str:
    """Say which metrics follow a law in two variables, where points stand on a grid of them."""
    if sweep.products.empty:
        return (
            "No two sizes vary together in these points, so nothing can be said about laws in two variables: a product "
            "and a sum look the same along each axis."
        )
    lines = [
        f"- {tables.escape_markdown(row['kernel_class'])}, `{row['metric']}`: {tables.escape_markdown(row['formula'])}"
        f"{_error(row)}"
        for row in sweep.products.to_dict("records")
    ]
    return "\n".join(["Over two variables at once, where points stand on a grid:\n", *lines])


def _error(row: Mapping) -> str:
    if row["exact"]:
        return " (exact)"
    return "" if np.isnan(row["error_percent"]) else f" (±{row['error_percent']:.2g} %)"


def separation_and_kernels(sweep: Sweep, result: CaseResult) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the metrics that tell GEMMs from the rest, and which kernels use tensor cores."""
    record = result.provenance
    gemm = classification.gemm_separation(sweep.points, record["knobs"].get("gemm_classes", ("gemm",)))
    kernels = classification.tensor_core_kernels(sweep.kernels, sweep.observations, str(result["model"]))
    names = kernels["kernel_name"].map(_distinct(kernels["kernel_name"]))
    shown_columns = ["model", "kernel_class", "kernel", "tensor_cores", "evidence"]
    return gemm, kernels.assign(kernel=names)[shown_columns].rename(columns={"kernel_class": "class"})


def _distinct(names: pd.Series) -> dict[str, str]:
    """Short names where those tell kernels apart; else with the words that do, or in full."""
    found = {}
    for short, own in names.drop_duplicates().groupby(names.map(kernel_names.short_name)):
        words = anomalies.difference(*own) if len(own) == 2 else tuple(own)
        found |= {name: short if len(own) == 1 else f"{short} … {word}" for name, word in zip(own, words, strict=True)}
    return found


def expected_rows(sweep: Sweep) -> pd.DataFrame:
    """Return measured values beside the formulas that were declared for them."""
    table = sweep.expected
    varied = [name for name in VARIABLES if table[name].nunique() > 1]
    rows = table[["kernel_class", "metric", "formula", *varied]].assign(
        measured=[shown(value, unit) for value, unit in zip(table["value"], table["unit"], strict=True)],
        expected=[shown(value, unit) for value, unit in zip(table["expected"], table["unit"], strict=True)],
        ratio=(table["value"] / table["expected"].where(table["expected"] != 0)).astype("float64").round(4),
        slope_ratio=table["slope_ratio"].astype("float64").round(4),
    )
    return rows
