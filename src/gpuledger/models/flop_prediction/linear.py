"""A recording of Linear layers against the closed form: match launches to shapes, predict them, count exact ones."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.flop_prediction.gemm import predict_gemm, predict_split_k_reduce
from gpuledger.readers.kernel_names import OTHER, PATTERNS, Pattern, classify, short_name
from gpuledger.readers.ncu.flops import counter

_COUNTERS = ("fadd", "fmul", "ffma")
_MAIN = ("gemm", "gemv")


def linear_shapes(entries: Sequence[Mapping], *, file: str | Path = "shapes") -> pd.DataFrame:
    """Read the shapes of Linear layers as PyTorch records them.

    Parameters
    ----------
    entries : sequence of mappings
        ``Input`` ``[[…, K]]``, ``Weight`` ``[[N, K]]`` or ``[[K]]`` (a vector: N = 1), ``Bias`` ``[[N]]`` or
        ``[]``.

    Returns
    -------
    pandas.DataFrame
        ``m`` (rows of the input: product of all dimensions but the last), ``n``, ``k`` (int64) and ``bias``
        (bool).
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise InputError(file, "", "is not a list of shapes", "give a list of {Input, Weight, Bias}")
    rows = []
    for number, entry in enumerate(entries, start=1):
        try:
            source, weight = entry["Input"][0], entry["Weight"][0]
            m, k, n = math.prod(source[:-1]), source[-1], weight[0] if len(weight) == 2 else 1
            whole = all(isinstance(size, int) and 0 < size < 2**31 for size in (*source, *weight))
            well_formed = whole and len(weight) in (1, 2) and weight[-1] == k and m < 2**62
        except (LookupError, TypeError, ValueError):
            well_formed = False
        if not well_formed:
            remedy = "give Input [[…, K]] and Weight [[N, K]]"
            raise InputError(file, f"shape {number}", f"{str(entry)[:120]} is not a Linear layer", remedy)
        # Bias is [[N]], or [[false]] if there is none.
        rows.append((m, n, k, bool(np.any(entry.get("Bias") or False))))
    return pd.DataFrame(rows, columns=["m", "n", "k", "bias"])


def predict_linear(
    launches: pd.DataFrame,
    shapes: pd.DataFrame | None = None,
    *,
    patterns: Sequence[Pattern] = PATTERNS,
    file: str | Path = "launches",
) -> pd.DataFrame:
    """Match launches to Linear layers in order and predict what each launch executes.

    Every shape has one matrix kernel (class ``gemm`` or ``gemv``), in the order of the shapes. A split-K reduction
    directly after it belongs to it. A copy directly before it is PyTorch's ``addmm`` putting the bias into C, which the
    GEMM then reads (beta = 1). So the epilogue follows from the launch order. The split-K factor comes from the grid;
    if the recording has no grid, it is read off the FMUL counter (``split_k_source`` is ``counters``), and FADD, FFMA
    and the reduction kernel are the independent checks.

    Parameters
    ----------
    launches : pandas.DataFrame
        In launch order. ``kernel``; optional ``launch``, ``grid_blocks`` and ncu metrics by name (counters of
        fadd, fmul, ffma on ``sm`` or ``smsp``, ``dram__bytes.sum`` in byte).
    shapes : pandas.DataFrame, optional
        ``m, n, k`` as ``linear_shapes`` returns them. Without them only FMUL and FADD are predicted, from names and
        grids.

    Returns
    -------
    pandas.DataFrame
        One row per launch: ``launch, kernel, kernel_class, role`` (gemm, split_k_reduce, bias_copy, other),
        ``shape`` (number of the shape, from 0), ``m, n, k``, the columns of ``predict_gemm``, ``fadd, fmul,
        ffma`` counted, ``flops_counted``, ``exact`` (boolean: every predicted counter equals the counted one;
        ``<NA>`` if nothing is predicted or counted), ``dram_bytes``, ``dram_bytes_predicted`` (fp32 A + B, each read
        once). For kernels outside the closed form (gemmSN, gemv, dot, largek) ``tiled`` is false and only
        ``flops_2mnk`` is filled in.

    Raises
    ------
    InputError
        If the numbers of matrix kernels and shapes differ.
    """
    launches = launches.reset_index(drop=True)
    classes = classify(launches["kernel"], patterns, file=file).reset_index(drop=True)
    main = classes.isin(_MAIN).to_numpy()
    if shapes is not None and main.sum() != len(shapes):
        problem = f"{main.sum()} matrix kernels but {len(shapes)} shapes: they cannot be matched in order"
        unknown = launches["kernel"][(classes == OTHER).to_numpy()].map(short_name).unique()
        problem += f" (no class is known for {', '.join(unknown[:5])})" if len(unknown) else ""
        raise InputError(file, "kernels", problem, "give the shapes of exactly this recording, or leave them out")

    out = pd.DataFrame({"launch": launches.get("launch", pd.Series(launches.index)), "kernel": launches["kernel"]})
    out["kernel_class"] = classes
    before, after = classes.shift(1), classes.shift(-1)
    followed = (main & (after == "split_k_reduce")).to_numpy()
    copied = (main & (before == "copy")).to_numpy()
    is_reduce = ((classes == "split_k_reduce") & before.isin(_MAIN)).to_numpy()
    is_copy = ((classes == "copy") & after.isin(_MAIN)).to_numpy()
    out["role"] = np.select([main, is_reduce, is_copy], ["gemm", "split_k_reduce", "bias_copy"], default="other")
    owned = main | is_reduce
    number = np.cumsum(main) - 1  # a reduction shares the number of the kernel before it
    out["shape"] = pd.array(np.where(owned, number, -1), dtype="Int64")
    out.loc[~owned, "shape"] = pd.NA
    for column in "mnk":
        values = pd.Series(pd.NA, index=out.index, dtype="Int64")
        if shapes is not None:
            values[owned] = shapes[column].to_numpy()[number[owned]]
        out[column] = values
    counted = {op: values for op in _COUNTERS if (values := counter(launches, op, file=file)) is not None}
    for op in _COUNTERS:
        out[op] = counted.get(op, pd.Series(pd.NA, index=out.index, dtype="Int64"))
    out["flops_counted"] = out["fadd"] + out["fmul"] + 2 * out["ffma"]

    query = out.loc[main, ["kernel", "m", "n", "k", *counted]].assign(followed_by_reduce=followed[main])
    # Without any copy in the recording, whether the bias was copied is read off the FFMA counters.
    copies_seen = bool((classes == "copy").any())
    if copies_seen:
        query["accumulates"] = copied[main]
    if "grid_blocks" in launches.columns:
        query["grid_blocks"] = launches.loc[main, "grid_blocks"]
    predicted = predict_gemm(query, file=file).drop(columns="kernel")
    owner = np.flatnonzero(main)[number[is_reduce]]
    s = predicted["s"].reindex(owner).to_numpy(dtype="float64", na_value=np.nan)
    known = ~np.isnan(s) & out.loc[is_reduce, "m"].notna().to_numpy()
    rows = out.index[is_reduce][known]
    reduction = predict_split_k_reduce(
        out.loc[rows, "kernel"],
        (out.loc[rows, "m"] * out.loc[rows, "n"]).to_numpy(dtype=np.int64),
        s[known].astype(np.int64),
        accumulates=copied[owner[known]] if copies_seen else (out.loc[rows, "ffma"].fillna(0) > 0).to_numpy(dtype=bool),
    )
    reduction["s"], reduction["split_k_source"] = (pd.array(s[known].astype(np.int64), dtype="Int64"), "launches")
    reduction["explanation"] = [f"alpha and {f} sums per output" for f in (s[known].astype(int)).tolist()]
    out = out.join(pd.concat([predicted, reduction]) if len(reduction) else predicted)
    out["tiled"] = out["tiled"].astype("boolean").fillna(False).astype(bool)
    for column in ("split_k_source", "epilogue_source", "explanation"):
        out[column] = out[column].astype(object).where(out[column].notna(), "").astype("str")
    out["exact"] = _exact(out)
    out["dram_bytes"] = pd.to_numeric(launches["dram__bytes.sum"]) if "dram__bytes.sum" in launches.columns else np.nan
    out["dram_bytes_predicted"] = (4 * out["k"] * (out["m"] + out["n"])).where(out["role"] == "gemm")
    return out


def _exact(out: pd.DataFrame) -> pd.Series:
    result = pd.Series(pd.NA, index=out.index, dtype="boolean")
    for op in _COUNTERS:
        same = out[f"{op}_predicted"] == out[op]
        result = (result.fillna(True) & same).where(same.notna(), result)
    return result


def _percent_errors(predicted: pd.Series, counted: pd.Series) -> np.ndarray:
    both = predicted.notna() & counted.notna() & (counted != 0)
    p, c = (values[both].to_numpy(dtype=np.float64) for values in (predicted, counted))
    return 100 * (p - c) / c


def linear_accuracy(table: pd.DataFrame) -> dict[str, float | int]:
    """Summarise a table of ``predict_linear``.

    Returns
    -------
    dict
        ``launches``; ``tiled_launches`` and ``tiled_exact`` (GEMM launches with a closed form, and those where every
        counter agrees), ``reduce_launches`` and ``reduce_exact`` (reductions after tiled launches),
        ``not_tiled_launches``, ``split_k_from_counters``; over the tiled launches ``mape_2mnk_percent`` and
        ``mape_predicted_percent`` (mean absolute error against counted FLOPs), ``median_2mnk_percent`` and
        ``worst_2mnk_percent`` (signed). NaN without counters.
    """
    gemm = table[table["role"] == "gemm"]
    tiled = gemm[gemm["tiled"]]
    of_tiled = table["shape"].isin(tiled["shape"]) & (table["role"] == "split_k_reduce")
    naive = _percent_errors(tiled["flops_2mnk"], tiled["flops_counted"])
    model = _percent_errors(tiled["flops_predicted"], tiled["flops_counted"])

    def mean(values: np.ndarray) -> float:
        return float(np.abs(values).mean()) if len(values) else float("nan")

    return {
        "launches": len(table),
        "tiled_launches": len(tiled),
        "tiled_exact": int(tiled["exact"].fillna(False).sum()),
        "not_tiled_launches": len(gemm) - len(tiled),
        "reduce_launches": int(of_tiled.sum()),
        "reduce_exact": int(table.loc[of_tiled, "exact"].fillna(False).sum()),
        "split_k_from_counters": int((tiled["split_k_source"] == "counters").sum()),
        "mape_2mnk_percent": mean(naive),
        "median_2mnk_percent": float(np.median(naive)) if len(naive) else float("nan"),
        "worst_2mnk_percent": float(naive[np.argmax(np.abs(naive))]) if len(naive) else float("nan"),
        "mape_predicted_percent": mean(model),
    }
