"""The quantities of a sweep's summary."""

import math
from collections.abc import Collection
from fractions import Fraction

import pandas as pd

from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.models import scaling_laws
from gpuledger.studies.metric_sweep import anomalies, classification, sweeps, unit_switches
from gpuledger.studies.metric_sweep.laws import fit_series, outlying_sizes
from gpuledger.studies.metric_sweep.measurements import VARIABLES

#: Most series whose laws are named in the summary, even if their coefficients are not.
NAMED_LAWS = 500


def series_name(row: pd.Series | dict) -> str:
    """Return the name of a series in the summary, such as ``fmha_dram__sectors_read_sum_by_seq_len``."""
    return f"{_metric_name(row)}_by_{row['variable']}"


def _metric_name(row: pd.Series | dict) -> str:
    return f"{slug(row['kernel_class'])}_{slug(row['metric'])}"


def summarise(result: CaseResult, sweep, case: Case, gemm_classes: Collection[str], summarised_series: int) -> None:
    """Add the quantities of a sweep to its summary.

    Parameters
    ----------
    summarised_series : int
        A sweep with more series gets no values and coefficients of single series; the law of each is named up to
        :data:`NAMED_LAWS`.
    """
    laws, wrong = sweep.laws, sweep.anomalies
    result.add("kernel_classes", sweep.points["kernel_class"].nunique(), "1")
    result.add("metrics", sweep.points["metric"].nunique(), "1")
    result.add("values", int(sweep.points["launches"].sum()), "1")
    result.add("series", len(laws), "1")
    result.add("exact_series", int(laws["exact"].sum()), "1")
    for law in scaling_laws.LAWS:
        result.add(f"{law}_series", int((laws["law"] == law).sum()), "1")
    result.add("anomalies", len(wrong), "1")
    for kind in anomalies.KINDS:
        result.add(f"anomalies_{kind}", int((wrong["kind"] == kind).sum()), "1")
    if len(laws) <= max(summarised_series, NAMED_LAWS):
        _add_laws(result, sweep, case)
    if len(laws) <= summarised_series:
        _add_coefficients(result, sweep)
        _add_values(result, sweep)
    proven = _add_switches(result, sweep)
    _add_expected(result, sweep)
    _add_same_counts(result, sweep)
    _add_classes(result, sweep, case, gemm_classes, summarised_series)
    result.add("finding", _finding(laws, wrong, proven), "text")


def _whole(value: float) -> int | float:
    """Turn whole floats back into integers."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(value)


def _add_laws(result: CaseResult, sweep, case: Case) -> None:
    """Add the law of every series, and the variables that each metric depends on in any class."""
    for row in sweep.laws.to_dict("records"):
        name = f"{series_name(row)}_law"
        if name in result.summary:
            problem = f"two series would both be called '{series_name(row)}' in summary.json"
            raise case.error("", problem, "tell kernel classes and metrics apart by letters and digits")
        result.add(name, row["law"], "text")
    depends = classification.dependence(sweep.laws)
    for metric, own in depends.groupby("metric", sort=True):
        named = [name for name in VARIABLES if own["depends_on"].str.contains(name, regex=False).any()]
        nothing = "none" if (own["depends_on"] == "none").any() else "unknown"
        result.add(f"{slug(metric)}_depends_on", ", ".join(named) or nothing, "text")


def _add_coefficients(result: CaseResult, sweep) -> None:
    series = sweeps.main_series(sweeps.all_series(sweep.points))
    groups = dict(list(series.groupby(list(sweeps.SERIES[:3]))))
    for row in sweep.laws.to_dict("records"):
        name = series_name(row)
        for quantity, unit in {"formula": "text", "error_percent": "%", "largest_error_percent": "%"}.items():
            result.add(f"{name}_{quantity}", row[quantity], unit)
        own = groups.get((row["kernel_class"], row["metric"], row["variable"]))
        if own is None:
            continue
        (first, last), (low, high) = own["size"].iloc[[0, -1]], own["value"].iloc[[0, -1]]
        if low > 0 and high > 0:
            result.add(f"{name}_growth_per_doubling", 2 ** (math.log(high / low) / math.log(last / first)), "1")
        if row["law"] == "undetermined":
            continue
        fit = fit_series(own, outlying_sizes(sweep.anomalies, own))
        for quantity, (value, unit) in coefficients(fit, row["unit"], row["variable"]).items():
            result.add(f"{name}_{quantity}", value, unit)


def _add_values(result: CaseResult, sweep) -> None:
    points = sweep.points
    for row in points.to_dict("records"):
        name = f"{_metric_name(row)}_{point_name(row, points)}"
        result.add(name, _whole(row["value"]), row["unit"])


def coefficients(fit: scaling_laws.Fit, unit: str, variable: str) -> dict[str, tuple[float, str]]:
    """Return the coefficients of a fit by name, with units; ``slope`` is that of the law's last segment."""
    step = sweeps.UNITS[variable]
    slope = f"{unit}/{step}"
    names = {
        "constant": {"a": ("value", unit)},
        "proportional": {"b": ("slope", slope)},
        "affine": {"a": ("intercept", unit), "b": ("slope", slope)},
        "knee": {
            "a": ("intercept_below", unit),
            "b": ("slope_below", slope),
            "c": ("intercept", unit),
            "d": ("slope", slope),
            "knee": ("knee", step),
        },
        "staircase": {"a": ("step", unit), "b": ("intercept", unit), "tile": ("tile", step)},
    }.get(fit.law, {})
    found = {}
    for key, value in fit.coefficients.items():
        name, of = names.get(key, (f"coefficient_{key}", "1"))
        if isinstance(value, Fraction):
            value = int(value) if value.denominator == 1 else float(value)
        found[name] = (value, of)
    return found


def _add_switches(result: CaseResult, sweep) -> bool:
    """Add the repaired values and their proofs; return whether all are proven."""
    proofs = unit_switches.with_proofs(sweep.points)
    result.add("bytes_compared_values", int(proofs["proof"].notna().sum()), "1")
    proven = unit_switches.agree(*(proofs[name].to_numpy(float) for name in ("value", "proof", "last_digit")))
    result.add("bytes_proven_values", int(proven.sum()), "1")
    repaired = proofs[proofs["value"] != proofs["value_as_given"]]
    for row in repaired.to_dict("records"):
        name = f"{_metric_name(row)}_{point_name(row, sweep.points)}"
        result.add(f"{name}_as_given", _whole(row["value_as_given"]), row["unit"])
        result.add(name, _whole(row["value"]), row["unit"])
        result.add(f"{name}_unit_factor", _whole(row["value"] / row["value_as_given"]), "1")
        if not pd.isna(row["proof"]):
            result.add(f"{name}_from_sectors", _whole(row["proof"]), row["unit"])
    return len(repaired) > 0 and bool(repaired["proof"].notna().all())


def point_name(point: dict, points: pd.DataFrame) -> str:
    """Return the name of a point by the sizes that vary in its metric."""
    mine = points[points["metric"] == point["metric"]]
    varied = [name for name in VARIABLES if mine[name].nunique() > 1]
    return "_".join(f"{name}_{point[name]}" for name in varied)


def _add_expected(result: CaseResult, sweep) -> None:
    for _, own in sweep.expected.groupby(["kernel_class", "metric"], sort=True):
        name = _metric_name(own.iloc[0])
        result.add(f"{name}_expected_formula", own["formula"].iloc[0], "text")
        result.add(f"{name}_expected_slope_ratio", own["slope_ratio"].iloc[0], "1")
        for row in own.to_dict("records"):
            at = f"{name}_{point_name(row, sweep.points)}"
            result.add(f"{at}_expected", _whole(row["expected"]), row["unit"])
            result.add(f"{at}_ratio", row["value"] / row["expected"], "1")


def _add_same_counts(result: CaseResult, sweep) -> None:
    """Add, of variables with too few sizes for laws, how many counts of kernels are the same at all of them."""
    for variable in classification.without_laws(sweep.laws):
        counts = classification.same_counts(sweep.kernels if len(sweep.kernels) else sweep.points, variable)
        if len(counts):
            result.add(f"{variable}_compared_counts", len(counts), "1")
            result.add(f"{variable}_same_counts", int(counts["same"].sum()), "1")


def _add_classes(result: CaseResult, sweep, case: Case, gemm_classes: Collection[str], summarised_series: int) -> None:
    model = case.inputs.get("model", case.name)
    result.add("model", model, "text")
    table = classification.gemm_separation(sweep.points, gemm_classes)
    apart = table[table["gemm_is"] != "overlapping"]
    result.add("gemm_compared_metrics", len(table), "1")
    if len(table) <= summarised_series:
        for row in table.to_dict("records"):
            result.add(f"gemm_{slug(row['metric'])}_against_others", row["gemm_is"], "text")
    result.add("gemm_separating_metrics", len(apart), "1")
    if len(apart):
        result.add("gemm_best_metric", apart["metric"].iloc[0], "text")
        result.add("gemm_best_smallest_ratio", apart["smallest_ratio"].iloc[0], "1")
    kernels = classification.tensor_core_kernels(sweep.kernels, sweep.observations, model)
    for name, own in kernels.groupby("model", sort=True):
        result.add(
            f"{slug(name)}_tensor_core_kernels", own.loc[own["tensor_cores"] == "yes", "kernel_name"].nunique(), "1"
        )


def _finding(laws: pd.DataFrame, wrong: pd.DataFrame, proven: bool) -> str:
    known, exact = int((laws["law"] != "undetermined").sum()), int(laws["exact"].sum())
    words = f"{known:,} of {len(laws):,} series follow a law" + (f", {exact:,} of them exactly" if exact else "")
    counts = wrong["kind"].value_counts().to_dict()
    if switched := counts.get("unit_switch", 0):
        values, whose = ("value only seems", "its") if switched == 1 else ("values only seem", "their")
        reason = f"sectors × 32 byte prove that {whose} unit changed"
        reason = reason if proven else f"{whose} unit seems to have changed"
        words += f"; {switched:,} {values} to drop: {reason}"
    others = [f"{counts[kind]:,} {name[counts[kind] > 1]}" for kind, name in _NAMES.items() if kind in counts]
    return "; ".join([words, *others])


_NAMES = {
    "outlier": ("outlier", "outliers"),
    "split_class": ("metric differs within a class", "metrics differ within a class"),
    "algorithm_switch": ("change of algorithm", "changes of algorithm"),
    "contradiction": ("contradiction", "contradictions"),
}
