"""Tables of a metric sweep, and sentences that depend on the case."""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.ledger import tables
from gpuledger.ledger.case_result import CaseResult, brief
from gpuledger.models import scaling_laws
from gpuledger.readers import kernel_names
from gpuledger.studies.metric_sweep import anomalies, classification
from gpuledger.studies.metric_sweep.laws import LAW_TABLE, law_of
from gpuledger.studies.metric_sweep.measurements import LEFT_OUT, VARIABLES
from gpuledger.studies.metric_sweep.reduction import Sweep
from gpuledger.studies.metric_sweep.unit_switches import shown

_HEADERS = {"kernel_class": "class"}
_NEAREST = {"gemm_value": "GEMM, at the smallest ratio", "other_value": "nearest other class"}
#: Larger errors (%) say no more than that the law does not hold there.
_LARGEST_PERCENT = 1000.0


def law_table(sweep: Sweep) -> dict[str, Any]:
    """Return the law table, for :func:`gpuledger.ledger.tables.write`."""
    people = sweep.laws[[*LAW_TABLE, "largest_error_percent"]]
    headers = {"points": "sizes", "error_percent": "mean error (%)", "largest_error_percent": "worst error (%)"}
    formats = dict.fromkeys(["error_percent", "largest_error_percent"], _percent)
    return {"frame": sweep.laws[list(LAW_TABLE)], "people": people, "headers": _HEADERS | headers, "formats": formats}


def anomaly_table(sweep: Sweep) -> dict[str, Any]:
    """Return the anomalies, for :func:`gpuledger.ledger.tables.write`."""
    return {"frame": sweep.anomalies[list(anomalies.COLUMNS)], "headers": _HEADERS}


def dependence_table(sweep: Sweep) -> dict[str, Any]:
    """Return how each metric depends on each size, for :func:`gpuledger.ledger.tables.show`."""
    return {"frame": classification.dependence(sweep.laws), "headers": _HEADERS}


def separation_table(sweep: Sweep, result: CaseResult) -> dict[str, Any]:
    """Return the metrics that distinguish GEMMs from the rest, for :func:`gpuledger.ledger.tables.show`."""
    classes = result.provenance["knobs"].get("gemm_classes", ("gemm",))
    table = classification.gemm_separation(sweep.points, classes)
    frame = table.assign(
        **{name: [shown(*pair) for pair in zip(table[name], table["unit"], strict=True)] for name in _NEAREST}
    )
    order = ["metric", "sizes", "gemm_is", *_NEAREST, "smallest_ratio", "mean_ratio"]
    return {"frame": frame[order], "headers": _NEAREST}


def tensor_core_table(sweep: Sweep, result: CaseResult) -> dict[str, Any]:
    """Return which kernels use tensor cores, for :func:`gpuledger.ledger.tables.show`."""
    kernels = classification.tensor_core_kernels(sweep.kernels, sweep.observations, str(result["model"]))
    names = kernels["kernel_name"].map(_distinct_names(kernels["kernel_name"]))
    columns = ["model", "kernel_class", "kernel", "tensor_cores", "evidence"]
    return {"frame": kernels.assign(kernel=names)[columns], "headers": _HEADERS}


def _distinct_names(names: pd.Series) -> dict[str, str]:
    """Return short names where they are unique; otherwise add the words that differ, or keep full names."""
    found = {}
    for short, own in names.drop_duplicates().groupby(names.map(kernel_names.short_name)):
        words = anomalies.difference(*own) if len(own) == 2 else tuple(own)
        found |= {name: short if len(own) == 1 else f"{short} … {word}" for name, word in zip(own, words, strict=True)}
    return found


def expected_table(sweep: Sweep) -> dict[str, Any]:
    """Return measured values beside the expected formulas, for :func:`gpuledger.ledger.tables.show`."""
    table = sweep.expected
    varied = [name for name in VARIABLES if table[name].nunique() > 1]
    frame = table[["kernel_class", "metric", "formula", *varied]].assign(
        measured=[shown(value, unit) for value, unit in zip(table["value"], table["unit"], strict=True)],
        expected=[shown(value, unit) for value, unit in zip(table["expected"], table["unit"], strict=True)],
        ratio=(table["value"] / table["expected"]).astype("float64"),
        slope_ratio=table["slope_ratio"].astype("float64"),
    )
    return {"frame": frame, "headers": _HEADERS}


def describe_laws(panel: pd.DataFrame, sweep: Sweep) -> dict[str, str]:
    """Write the law of each class of a panel, in lines that fit above it."""
    found = {}
    for name, series in panel.groupby("kernel_class", sort=True):
        row = law_of(sweep.laws, series)
        law = f"{row['formula']}{_error(row)}"
        # No line ends between a number and what belongs to it.
        law = re.sub("([≥≤]|mean|worst) |(?<=[0-9]) (?=%)", "\\1\u00a0", law)
        found[str(name)] = textwrap.fill(law, 52)
    return found


def describe_columns(result: CaseResult) -> str:
    """Say which columns of Nsight Compute's output are not analysed, in Markdown; empty without such output."""
    counts = {words: result.summary.get(f"columns_left_out_{reason}") for reason, words in LEFT_OUT.items()}
    parts = [f"{count['value']:,} {words}" for words, count in counts.items() if count and count["value"]]
    if not parts:
        return ""
    return f"Columns of Nsight Compute's output that are left out: {'; '.join(parts)}. The key `metrics` names others."


def count_laws(sweep: Sweep, metric: str) -> str:
    """Count the series of a metric by law."""
    laws = sweep.laws.loc[sweep.laws["metric"] == metric, "law"]
    counts = laws.value_counts()
    return f"{len(laws)} series, " + ", ".join(f"{counts[law]} {law}" for law in scaling_laws.LAWS if law in counts)


def describe_products(sweep: Sweep) -> str:
    """List the laws in two variables, in Markdown."""
    if sweep.products.empty:
        return (
            "No two sizes vary together in these points. Laws in two variables cannot be determined: along the axes a "
            "product and a sum look the same."
        )
    lines = []
    for row in sweep.products.to_dict("records"):
        kernel_class, formula = (tables.escape_markdown(row[name]) for name in ("kernel_class", "formula"))
        metric = row["metric"].replace("`", "'")
        lines.append(f"- {kernel_class}, `{metric}`: {formula}{_error(row)}")
    return "\n".join(["Laws in two variables, where points cover a grid:\n", *lines])


def describe_few_sizes(sweep: Sweep) -> str:
    """Say what the variables with too few sizes for laws show, in Markdown; empty if there are none."""
    lines = []
    for variable in classification.without_laws(sweep.laws):
        sizes = sorted(sweep.points[variable].unique())
        words = f"`{variable}` has {len(sizes)} sizes ({', '.join(f'{size:,}' for size in sizes)}), too few for laws."
        counts = classification.same_counts(sweep.kernels if len(sweep.kernels) else sweep.points, variable)
        if len(counts):
            same = int(counts["same"].sum())
            words += f" Of {len(counts):,} counts of instructions, each of one kernel, {same:,} are the same at all of "
            words += "them (the smallest launch, and the largest)"
            others = counts[~counts["same"]].groupby("metric")["kernel_class"].unique()
            parts = [
                f"`{metric.replace('`', chr(39))}` of {tables.escape_markdown(', '.join(sorted(classes)))}"
                for metric, classes in others.items()
            ]
            words += f"; not the same: {'; '.join(parts)}." if parts else "."
        lines.append(words)
    return "\n\n".join(lines)


def _error(row: Mapping) -> str:
    if row["exact"]:
        return " (exact)"
    mean, worst = row["error_percent"], row["largest_error_percent"]
    return "" if np.isnan(mean) else f" (error: mean {brief(mean, 2)} %, worst {_percent(worst, ' %')})"


def _percent(value: float, unit: str = "") -> str:
    return f"{brief(value, 2)}{unit}" if value <= _LARGEST_PERCENT else "–"
