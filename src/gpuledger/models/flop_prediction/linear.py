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
            whole = all(isinstance(size, int) and 0 < size < 2**31 for size in (*source, *weight))
            # Of anything else the product might be a list that fills the memory.
            m, k, n = math.prod(source[:-1] if whole else []), source[-1], weight[0] if len(weight) == 2 else 1
            well_formed = whole and len(weight) in (1, 2) and weight[-1] == k and m < 2**62
            bias = (entry.get("Bias") or [[]])[0]  # [N], or [false] if there is none
        except (LookupError, TypeError, ValueError):
            well_formed = False
        if not well_formed:
            remedy = "give Input [[…, K]] and Weight [[N, K]]"
            raise InputError(file, f"shape {number}", f"{str(entry)[:120]} is not a Linear layer", remedy)
        rows.append((m, n, k, bool(bias) and bias != [False]))
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
        In launch order. ``kernel``; optional ``launch``, ``grid_blocks``, ``grid`` and ncu metrics by name (counters of
        fadd, fmul, ffma on ``sm`` or ``smsp``, ``dram__bytes.sum`` in byte).
    shapes : pandas.DataFrame, optional
        ``m, n, k`` as ``linear_shapes`` returns them; optional ``bias`` (bool): whether a bias may have been put into
        C. Without shapes only FMUL and FADD are predicted, from names and grids.

    Returns
    -------
    pandas.DataFrame
        One row per launch: ``launch, kernel, kernel_class, role`` (gemm, split_k_reduce, bias_copy, other),
        ``shape`` (number of the shape, from 0), ``m, n, k``, the columns of ``predict_gemm``, ``fadd, fmul,
        ffma`` counted, ``flops_counted``, ``exact`` (boolean: every predicted counter equals the counted one;
        ``<NA>`` if nothing is predicted or counted), ``dram_bytes``, ``dram_bytes_predicted`` (fp32 A + B, each read
        once). For kernels outside the closed form (gemmSN, gemv, dot) ``tiled`` is false and only
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
    copied = (main & (before == "copy")).to_numpy(copy=True)
    is_reduce = ((classes == "split_k_reduce") & before.isin(_MAIN)).to_numpy()
    is_copy = ((classes == "copy") & after.isin(_MAIN)).to_numpy(copy=True)
    owned = main | is_reduce
    number = np.cumsum(main) - 1  # a reduction shares the number of the kernel before it
    if shapes is not None and "bias" in shapes:
        with_bias = shapes["bias"].to_numpy(dtype=bool)
        copied[main] &= with_bias
        is_copy[:-1] &= ~main[1:] | with_bias[number[1:]]
    out["role"] = np.select([main, is_reduce, is_copy], ["gemm", "split_k_reduce", "bias_copy"], default="other")
    out["shape"] = pd.Series(number, out.index, "Int64").where(owned)
    for column in "mnk":
        values = pd.NA if shapes is None else shapes[column].reindex(number).to_numpy()
        out[column] = pd.Series(values, out.index).where(owned, pd.NA).astype("Int64")
    counted = {op: values for op in _COUNTERS if (values := counter(launches, op, file=file)) is not None}
    for op in _COUNTERS:
        out[op] = counted.get(op, pd.Series(pd.NA, index=out.index, dtype="Int64"))
    out["flops_counted"] = out["fadd"] + out["fmul"] + 2 * out["ffma"]

    query = out.loc[main, ["kernel", "m", "n", "k", *counted]].assign(followed_by_reduce=followed[main])
    # Without any copy in the recording, whether the bias was copied is read off the FFMA counters.
    copies_seen = bool((classes == "copy").any())
    if copies_seen:
        query["accumulates"] = copied[main]
    for name in ("grid_blocks", "grid"):
        if name in launches.columns:
            query[name] = launches.loc[main, name]
    predicted = predict_gemm(query, file=file).drop(columns="kernel")
    owner = np.flatnonzero(main)[number[is_reduce]]
    s = predicted["s"].reindex(owner).set_axis(out.index[is_reduce])
    known = s.notna() & out.loc[is_reduce, "m"].notna()
    s, owner = s[known], owner[known]
    own = out.loc[s.index]
    reads_c = copied[owner] if copies_seen else own["ffma"].fillna(0) > 0
    reduction = predict_split_k_reduce(own["kernel"], own["m"] * own["n"], s, accumulates=reads_c)
    explanation = [f"alpha and {factor} sums per output" for factor in s]
    reduction = reduction.assign(s=s, split_k_source="launches", explanation=explanation)
    out = out.join(pd.concat([predicted, reduction]) if len(reduction) else predicted)
    out["tiled"] = out["tiled"].eq(True)
    for column in ("split_k_source", "epilogue_source", "explanation"):
        out[column] = out[column].astype("str").fillna("")
    out["exact"] = _exact(out)
    out["dram_bytes"] = pd.to_numeric(launches["dram__bytes.sum"]) if "dram__bytes.sum" in launches.columns else np.nan
    out["dram_bytes_predicted"] = (4 * out["k"] * (out["m"] + out["n"])).where(out["role"] == "gemm")
    return out


def _exact(out: pd.DataFrame) -> pd.Series:
    """Whether all known predictions are the counts; ``<NA>`` where none is known."""
    same = pd.DataFrame({op: out[f"{op}_predicted"] == out[op] for op in _COUNTERS})
    return same.all(axis=1).where(same.notna().any(axis=1)).astype("boolean")


def percent_errors(value: pd.Series, reference: pd.Series) -> pd.Series:
    """Return how far values are from a reference (%, signed); NaN where one is unknown or the reference is zero."""
    value, reference = (series.astype("float64") for series in (value, reference))
    return 100 * (value - reference) / reference.where(reference != 0)


def linear_accuracy(table: pd.DataFrame) -> dict[str, float | int]:
    """Summarise a table of ``predict_linear``.

    Returns
    -------
    dict
        ``launches``; ``tiled_launches`` and ``tiled_exact`` (GEMM launches with a closed form, and those where every
        counter agrees), ``reduce_launches`` and ``reduce_exact`` (reductions after tiled launches),
        ``large_k_launches`` and ``large_k_exact`` (of the others, those of a large K, which have a closed form, too),
        ``not_tiled_launches``, ``split_k_from_counters``; over the tiled launches ``mape_2mnk_percent`` and
        ``mape_predicted_percent`` (mean absolute error against counted FLOPs), ``median_2mnk_percent`` and
        ``worst_2mnk_percent`` (signed). NaN without counters.
    """
    gemm = table[table["role"] == "gemm"]
    tiled = gemm[gemm["tiled"]]
    large = gemm[~gemm["tiled"] & gemm["flops_predicted"].notna()]
    of_tiled = table["shape"].isin(tiled["shape"]) & (table["role"] == "split_k_reduce")
    naive = percent_errors(tiled["flops_2mnk"], tiled["flops_counted"])
    model = percent_errors(tiled["flops_predicted"], tiled["flops_counted"])
    return {
        "launches": len(table),
        "tiled_launches": len(tiled),
        "tiled_exact": int(tiled["exact"].fillna(False).sum()),
        "large_k_launches": len(large),
        "large_k_exact": int(large["exact"].fillna(False).sum()),
        "not_tiled_launches": len(gemm) - len(tiled),
        "reduce_launches": int(of_tiled.sum()),
        "reduce_exact": int(table.loc[of_tiled, "exact"].fillna(False).sum()),
        "split_k_from_counters": int((tiled["split_k_source"] == "counters").sum()),
        "mape_2mnk_percent": naive.abs().mean(),
        "median_2mnk_percent": naive.median(),
        "worst_2mnk_percent": naive[naive.abs().idxmax()] if naive.notna().any() else np.nan,
        "mape_predicted_percent": model.abs().mean(),
    }
