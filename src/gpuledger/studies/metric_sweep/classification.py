"""Dependence of metrics on sizes, metrics that distinguish GEMMs, and kernels that use tensor cores."""

import re
from collections.abc import Collection

import numpy as np
import pandas as pd

from gpuledger.models import scaling_laws
from gpuledger.studies.metric_sweep.measurements import VARIABLES

#: Dependence on a variable, by law.
DEPENDENCE = {
    "constant": "none",
    "proportional": "linear",
    "affine": "linear",
    "knee": "partly linear",
    "staircase": "in steps",
    "power": "power",
    "nlogn": "n·log n",
    "quadratic": "quadratic",
    "saturating": "saturating",
    "undetermined": "undetermined",
}
NOT_VARIED = "not varied"

# Counters of matrix instructions: Volta to Ada (hmma, imma, dmma), Hopper (gmma), and operations by path. Activity of
# ``pipe_tensor`` and ``hmma_type_hfma2`` are excluded: the compiler makes constants with HFMA2.MMA, which runs on the
# tensor pipe without multiplying matrices.
_MATRIX = re.compile(
    r"__(?:inst_executed_pipe_tensor_op_(?:hmma|imma|dmma|gmma)(?!_type_hfma2)"
    r"|(?:inst_executed_)?pipe_tensor_op_(?:hmma|imma|dmma|gmma)_cycles_active"
    r"|ops_path_tensor)"
)
_NO_MATRIX = re.compile(r"__inst_executed_pipe_tensor_op_hmma_type_hfma2\.sum$")
_HFMA = re.compile(r"__sass_thread_inst_executed_op_hfma_pred_on\.sum$")
_HMMA = re.compile(r"__inst_executed_pipe_tensor_op_hmma\.sum$")


def dependence(laws: pd.DataFrame) -> pd.DataFrame:
    """Return, for each class and metric, how it depends on each variable.

    Returns
    -------
    DataFrame
        ``kernel_class, metric, n_layer, hidden_dim, seq_len`` (values of :data:`DEPENDENCE`, or ``not varied``) and
        ``depends_on``: the variables that the metric depends on, ``none``, or ``unknown``.
    """
    words = laws.assign(word=laws["law"].map(DEPENDENCE))
    table = words.pivot(index=["kernel_class", "metric"], columns="variable", values="word")
    table = table.reindex(columns=list(VARIABLES)).astype(object).fillna(NOT_VARIED)
    named = [
        [name for name, word in zip(VARIABLES, row, strict=True) if word not in (NOT_VARIED, "none", "undetermined")]
        for row in table.itertuples(index=False)
    ]
    none = (table == "none").any(axis=1)
    table["depends_on"] = [
        ", ".join(names) or ("none" if is_none else "unknown") for names, is_none in zip(named, none, strict=True)
    ]
    return table.reset_index().rename_axis(columns=None)


def without_laws(laws: pd.DataFrame) -> list[str]:
    """Return the variables that have too few sizes for a law, whatever the class and metric."""
    most = laws.groupby("variable")["points"].max()
    return [name for name in VARIABLES if 1 < most.get(name, 0) < scaling_laws.MINIMUM_POINTS]


def same_counts(kernels: pd.DataFrame, variable: str) -> pd.DataFrame:
    """Compare counted instructions of each kernel over the sizes of one variable, for which no law is needed.

    Parameters
    ----------
    kernels : DataFrame
        Points of single kernels, or of classes where there are no names of kernels.

    Returns
    -------
    DataFrame
        A row per kernel and counter that was measured at several sizes of `variable` and equal sizes of the others:
        ``kernel_class, metric``, and ``same``: whether the smallest launch is the same at all sizes, and the largest.
        Medians depend on how often each shape is launched.
    """
    named = [name for name in ("kernel_class", "kernel_name", "metric") if name in kernels]
    groups = [*named, *(name for name in VARIABLES if name != variable)]
    counted = kernels[(kernels["unit"] == "inst") & kernels["metric"].str.endswith(".sum")]
    columns = [variable, "minimum", "maximum"]
    found = counted.groupby(groups, observed=True)[columns].nunique().query(f"{variable} > 1")
    same = (found[["minimum", "maximum"]] == 1).all(axis=1)
    return same.rename("same").reset_index().groupby(named)["same"].all().reset_index()


def gemm_separation(points: pd.DataFrame, gemm_classes: Collection[str]) -> pd.DataFrame:
    """Rank metrics by how well they distinguish GEMMs from all other kernels.

    Returns
    -------
    DataFrame
        Best first: ``metric, sizes`` (number of sizes where both were measured)``, gemm_is`` (``higher`` or ``lower``
        than every other class at every size, or ``overlapping``)``, smallest_ratio, mean_ratio`` (geometric mean; GEMM
        over the nearest other class, inverted if GEMMs are lower; infinite if one of them is zero), ``unit``, and at
        the smallest ratio ``gemm_value, other_value``.
    """
    is_gemm = points["kernel_class"].isin(list(gemm_classes))
    keys = ["metric", "unit", *VARIABLES]
    gemm, rest = (points[mask].groupby(keys)["value"].agg(["min", "max"]) for mask in (is_gemm, ~is_gemm))
    both = gemm.add_suffix("_gemm").join(rest.add_suffix("_rest"), how="inner")
    rows = []
    for (metric, unit), own in both.groupby(level=["metric", "unit"], sort=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            higher, lower = own["min_gemm"] / own["max_rest"], own["min_rest"] / own["max_gemm"]
        word, ratio, *values = (
            ("higher", higher, own["min_gemm"], own["max_rest"])
            if higher.min() >= lower.min()
            else ("lower", lower, own["max_gemm"], own["min_rest"])
        )
        ratio = ratio.fillna(1.0)
        nearest = int(ratio.to_numpy().argmin())
        word = word if ratio.min() > 1 else "overlapping"
        mean = float(np.exp(np.log(ratio).mean())) if ratio.min() > 0 else 0.0
        rows.append((metric, len(own), word, float(ratio.min()), mean, unit, *(part.iloc[nearest] for part in values)))
    columns = ["metric", "sizes", "gemm_is", "smallest_ratio", "mean_ratio", "unit", "gemm_value", "other_value"]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values(["smallest_ratio", "metric"], ascending=[False, True], ignore_index=True)


def tensor_core_kernels(kernels: pd.DataFrame, observations: pd.DataFrame, model: str) -> pd.DataFrame:
    """Find out which kernels multiply matrices on tensor cores.

    Only counters of matrix instructions are evidence. Activity of the tensor pipe is not: HFMA2.MMA, with which the
    compiler makes constants, runs on it too. If it is counted separately, it is subtracted.

    Parameters
    ----------
    kernels : DataFrame
        Points of single kernels.

    Returns
    -------
    DataFrame
        ``model, kernel_class, kernel_name, tensor_cores`` (``yes`` or ``no``)``, metric, evidence``.
    """
    columns = ["model", "kernel_class", "kernel_name", "tensor_cores", "metric", "evidence"]
    parts = []
    matrix = kernels[kernels["metric"].map({name: bool(_MATRIX.search(name)) for name in kernels["metric"].unique()})]
    if len(matrix):
        keys = ["kernel_class", "kernel_name", *VARIABLES]
        points = pd.MultiIndex.from_frame(matrix[keys])
        made, halves = (
            kernels[kernels["metric"].str.contains(pattern)].groupby(keys)["value"].max().reindex(points).fillna(0)
            for pattern in (_NO_MATRIX, _HFMA)
        )
        count = matrix["value"].to_numpy()
        is_count = matrix["metric"].str.contains(_HMMA).to_numpy()
        # HFMA instructions of 32 threads account for all warp instructions: none is left for matrices.
        made = np.where(halves == 32 * count, count, made)
        counted = matrix.assign(value=np.where(is_count, count - made, count))
        # If all of a kernel's tensor instructions make constants, its shares of the peak come from those too.
        idle = is_count & (count > 0) & (count <= made)
        counted.loc[points.isin(points[idle]), "value"] = 0
        largest = counted.sort_values(["value", "metric"], ascending=[False, True], kind="stable")
        largest = largest.drop_duplicates(["kernel_class", "kernel_name"])
        parts.append(
            largest.assign(
                model=model,
                tensor_cores=np.where(largest["value"] > 0, "yes", "no"),
                evidence=[
                    f"up to {value:.4g} {unit}" for value, unit in zip(largest["value"], largest["unit"], strict=True)
                ],
            )
        )
    seen = observations[observations["observation"].isin(["zero", "nonzero"])]
    seen = seen[seen["metric"].map({name: bool(_MATRIX.search(name)) for name in seen["metric"].unique()}).astype(bool)]
    uses = np.where(seen["observation"] == "nonzero", "yes", "no")
    parts.append(seen.assign(tensor_cores=uses, evidence=seen["observation"]))
    table = pd.concat([part[columns] for part in parts if len(part)] or [pd.DataFrame(columns=columns)])
    order = ["model", "tensor_cores", "kernel_class", "kernel_name"]
    return table.sort_values(order, ascending=[True, False, True, True], ignore_index=True)
