"""What metrics depend on, which of them tell GEMMs from other kernels, and which kernels use tensor cores."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import pandas as pd

from gpuledger.studies.metric_sweep.measurements import VARIABLES

#: How a metric depends on a variable, by its law.
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

# Counters of matrix instructions: Volta to Ada (hmma, imma, dmma), Hopper (gmma), and the operations of each path. Not
# among them are ``pipe_tensor`` as a whole and ``hmma_type_hfma2``: the compiler makes constants with HFMA2.MMA, which
# runs on the tensor pipe without multiplying a matrix.
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

    Parameters
    ----------
    laws : DataFrame
        The law table.

    Returns
    -------
    DataFrame
        ``kernel_class, metric, n_layer, hidden_dim, seq_len`` (words of :data:`DEPENDENCE`, or ``not varied``) and
        ``depends_on``: the variables that it grows or falls with, ``none``, or ``unknown``.
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


def gemm_separation(points: pd.DataFrame, gemm_classes: Collection[str] = ("gemm",)) -> pd.DataFrame:
    """Rank metrics by how well they tell GEMMs from all other kernels.

    Parameters
    ----------
    points : DataFrame
        Points of classes.
    gemm_classes : collection of str
        The classes that are GEMMs.

    Returns
    -------
    DataFrame
        ``metric, sizes`` (at how many both were measured)``, gemm_is`` (``higher`` or ``lower`` than every other
        class at every size, or ``overlapping``)``, smallest_ratio, mean_ratio`` (geometric; of GEMM to the nearest
        other class, or its inverse where GEMMs are lower), best first.
    """
    is_gemm = points["kernel_class"].isin(list(gemm_classes))
    keys = ["metric", *VARIABLES]
    gemm, rest = (points[mask].groupby(keys)["value"].agg(["min", "max"]) for mask in (is_gemm, ~is_gemm))
    both = gemm.join(rest, suffixes=("_gemm", "_rest"), how="inner")
    rows = []
    for metric, own in both.groupby(level="metric", sort=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            higher, lower = own["min_gemm"] / own["max_rest"], own["min_rest"] / own["max_gemm"]
        word, ratio = ("higher", higher) if higher.min() >= lower.min() else ("lower", lower)
        ratio = ratio.fillna(1.0)
        word = word if ratio.min() > 1 else "overlapping"
        mean = float(np.exp(np.log(ratio).mean())) if ratio.min() > 0 else 0.0
        rows.append((metric, len(own), word, float(ratio.min()), mean))
    table = pd.DataFrame(rows, columns=["metric", "sizes", "gemm_is", "smallest_ratio", "mean_ratio"])
    return table.sort_values(["smallest_ratio", "metric"], ascending=[False, True], ignore_index=True)


def tensor_core_kernels(kernels: pd.DataFrame, observations: pd.DataFrame, model: str) -> pd.DataFrame:
    """Say of each kernel that was looked at whether it multiplies matrices on tensor cores.

    Only counters of matrix instructions are evidence. The tensor pipe as a whole is not: HFMA2.MMA, with which the
    compiler makes constants, runs on it too; where that is counted by itself, it is subtracted.

    Parameters
    ----------
    kernels : DataFrame
        Points of single kernels.
    observations : DataFrame
        What was seen without a number.
    model : str
        The model that the points are of.

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
        # As many warp instructions as HFMA makes of 32 threads: none is left for matrices.
        made = np.where(halves == 32 * count, count, made)
        counted = matrix.assign(value=np.where(is_count, count - made, count))
        # Shares of the peak of a kernel whose tensor instructions all make constants are of those.
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
