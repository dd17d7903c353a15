"""FLOP reconciliation of Linear layers: one recording, launch by launch, against the closed form and 2·M·N·K."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.models.flop_prediction import linear_accuracy, linear_shapes, predict_linear
from gpuledger.readers import kernel_names
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.flop_reconciliation.counters import COUNTERS, read_counters

#: What a GEMM launch executes beyond 2·M·N·K, in the order in which figures stack it.
EXCESS = ("padding", "alpha", "slices", "accumulation", "split_k_sum")
#: Upper bounds of the bins of min(M, N).
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
UNKNOWN = "unknown"

_DRAM = ("dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
_EXPLAINED = {
    "bias_copy": "copies the bias into C: moves data only",
    "split_k_reduce": "follows a kernel outside the closed form: not predicted",
    "elementwise": "element by element (adds a bias that the GEMM did not): not predicted",
    "reduce": "second half of a vector product: not predicted",
}


def read_shapes(path: str | Path) -> pd.DataFrame:
    """Read shapes: a JSON list of {Input, Weight, Bias} as PyTorch records them, or a CSV of m, n, k.

    Raises
    ------
    InputError
        A file that is neither, or an entry that is no Linear layer.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        return read_csv(path, [Column(name, "integer", minimum=1, maximum=2**31) for name in "mnk"])
    try:
        entries = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        remedy = "give a JSON list of {Input, Weight, Bias}, or a CSV of m, n, k"
        raise InputError(path, "", f"cannot be read as JSON ({error})", remedy) from None
    return linear_shapes(entries, file=path)


def read_recording(path: str | Path) -> pd.DataFrame:
    """Read a recording: a row a launch with ``launch, kernel, grid_blocks``, counters and bytes of DRAM.

    Raises
    ------
    InputError
        A file that is no recording, or lacks one of the counters fadd, fmul and ffma.
    """
    report, _ = read_counters(path)
    collected = report.metrics["metric"].cat.categories
    names = [f"{unit}__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in COUNTERS for unit in ("sm", "smsp")]
    wide = report.wide([name for name in (*names, *_DRAM) if name in collected]).reset_index(drop=True)
    if _DRAM[0] not in wide and set(_DRAM[1:]) <= set(wide):
        wide[_DRAM[0]] = wide[_DRAM[1]] + wide[_DRAM[2]]
    launches = report.launches[["kernel", "grid_blocks"]].reset_index(names="launch")
    launches["kernel"] = launches["kernel"].astype(str)
    return launches.join(wide)


def reduce_launches(case: Case, kernel_patterns: Sequence[Mapping[str, str]] = ()) -> CaseResult:
    """Reconcile a recording of Linear layers launch by launch.

    Parameters
    ----------
    case : Case
        File ``launches`` (output of Nsight Compute); optional file ``shapes`` and ``l2_reach_bytes``.
    kernel_patterns : sequence of mappings
        Further kernel patterns.

    Returns
    -------
    CaseResult
        Data: a row a launch; see :func:`gpuledger.models.flop_prediction.predict_linear`, and ``excess_split_k_sum``
        (of the reduction that follows), ``residual_flops`` (counted less predicted), ``error_2mnk_percent``,
        ``dram_ab_bytes, dram_c_bytes, reads_c, dram_expected_bytes`` (A and B, and C where it is read).

    Raises
    ------
    InputError
        See :func:`read_recording`, :func:`read_shapes` and :func:`gpuledger.models.flop_prediction.predict_linear`.
    """
    path = case.path("launches")
    shapes = read_shapes(case.path("shapes")) if "shapes" in case.inputs else None
    patterns = kernel_names.extend_patterns(kernel_patterns, file="config/config.yaml")
    data = predict_linear(read_recording(path), shapes, patterns=patterns, file=path)
    accuracy = linear_accuracy(data)
    data = data.rename(columns={"excess_epilogue": "excess_accumulation", "dram_bytes_predicted": "dram_ab_bytes"})
    idle = data["kernel_class"].isin(["copy", "fill"])
    data.loc[idle, ["fadd_predicted", "fmul_predicted", "ffma_predicted", "flops_predicted"]] = 0
    data.loc[idle, "exact"] = data.loc[idle, "flops_counted"] == 0
    blank = data["explanation"] == ""
    words = data["role"].where(data["role"] != "other", data["kernel_class"]).map(_EXPLAINED)
    data.loc[blank, "explanation"] = words.fillna("not a part of the closed form: not predicted")[blank]

    gemm = data["role"] == "gemm"
    reductions = data[data["role"] == "split_k_reduce"].drop_duplicates("shape").set_index("shape")
    followed = gemm & data["shape"].isin(reductions.index)
    sums = data["shape"].map(reductions["flops_counted"]).fillna(0)
    summed = data["role"].eq("split_k_reduce") & data["flops_predicted"].notna()
    outputs = (data["m"] * data["n"])[summed]
    adds, reads = (data.loc[summed, f"{name}_predicted"] // outputs for name in ("fadd", "ffma"))
    data.loc[summed, "explanation"] = [
        f"each output: alpha, {count} additions for {parts} parts{', and C' if read else ''}"
        for count, parts, read in zip(adds, data.loc[summed, "s"], reads, strict=True)
    ]
    data["excess_split_k_sum"] = sums.where(gemm & data["tiled"]).astype("Int64")
    data["residual_flops"] = data["flops_counted"] - data["flops_predicted"]
    data["error_2mnk_percent"] = _error_percent(data["flops_2mnk"], data["flops_counted"])
    # C is read by the GEMM when something was put there before, unless a reduction kernel does it.
    copies = (data["role"] == "bias_copy").any()
    put = (data["role"].shift(1) == "bias_copy") if copies else (data["e"] == data["s"]).fillna(False)
    data["reads_c"] = (gemm & put & ~followed).astype(bool)
    data["dram_c_bytes"] = (4 * data["m"] * data["n"]).where(gemm)
    data["dram_expected_bytes"] = data["dram_ab_bytes"] + data["dram_c_bytes"].where(data["reads_c"], 0)
    data["kernel"] = data["kernel"].astype("str")
    result = CaseResult(data)
    _summarise(result, accuracy, shapes is not None, case.inputs.get("l2_reach_bytes"))
    return result


def _error_percent(value: pd.Series, reference: pd.Series) -> pd.Series:
    value, reference = (series.astype("float64") for series in (value, reference))
    return 100 * (value - reference) / reference.where(reference != 0)


def _summarise(result: CaseResult, accuracy: Mapping, shaped: bool, l2_reach_bytes: int | None) -> None:
    data = result.data
    gemm, tiled = data[data["role"] == "gemm"], data[(data["role"] == "gemm") & data["tiled"]]

    def add(quantity: str, value: object, unit: str) -> None:
        result.add(quantity, UNKNOWN if isinstance(value, float) and np.isnan(value) else value, unit)

    add("launches", accuracy["launches"], "launch")
    add("matrix_launches", len(gemm), "launch")
    for name in ("tiled_launches", "tiled_exact", "not_tiled_launches", "reduce_launches", "reduce_exact"):
        add(name, accuracy[name], "launch")
    reductions = data[(data["role"] == "split_k_reduce") & data["shape"].isin(tiled["shape"])]
    outputs = reductions["m"] * reductions["n"]
    one_more = reductions["fadd"] == (reductions["s"] + 1) * outputs
    add("reduce_adds_one_more", int(one_more.fillna(False).sum()), "launch")
    add("reduce_reads_c", int((reductions["ffma"] == outputs).fillna(False).sum()), "launch")
    add("split_k_launches", int((tiled["s"] > 1).fillna(False).sum()), "launch")
    add("split_k_from_counters", accuracy["split_k_from_counters"], "launch")
    add("bias_copies", int((data["role"] == "bias_copy").sum()), "launch")
    for name in ("mape_2mnk_percent", "median_2mnk_percent", "worst_2mnk_percent", "mape_predicted_percent"):
        add(name, accuracy[name], "%")
    if shaped:
        add("tiled_off_by_10_percent", int((tiled["error_2mnk_percent"].abs() > 10).sum()), "launch")
        add("tiled_counted_flops", tiled["flops_counted"].sum(), "FLOP")
        add("tiled_2mnk_flops", tiled["flops_2mnk"].sum(), "FLOP")
        for name in EXCESS:
            add(f"{name}_flops", tiled[f"excess_{name}"].sum(), "FLOP")
    if shaped and gemm["dram_bytes"].notna().any():
        expected = {"ab": gemm["dram_ab_bytes"], "abc": gemm["dram_ab_bytes"] + gemm["dram_c_bytes"]}
        expected["read"] = gemm["dram_expected_bytes"]
        errors = {name: _error_percent(bytes_, gemm["dram_bytes"]) for name, bytes_ in expected.items()}
        for name, error in errors.items():
            add(f"dram_{name}_median_error_percent", float(error.abs().median()), "%")
            add(f"dram_{name}_median_percent", float(error.median()), "%")
            add(f"dram_{name}_mape_percent", float(error.abs().mean()), "%")
        if l2_reach_bytes:
            reach = expected["abc"] <= l2_reach_bytes
            add("l2_reach_bytes", l2_reach_bytes, "byte")
            for name, mine in (("within_l2", reach), ("beyond_l2", ~reach)):
                error = errors["read"][mine.fillna(False)].abs()
                add(f"dram_{name}_launches", len(error), "launch")
                add(f"dram_{name}_mape_percent", float(error.mean()), "%")
                add(f"dram_{name}_close_launches", int((error <= 1).sum()), "launch")
    exact, kernels = accuracy["tiled_exact"] + accuracy["reduce_exact"], accuracy["tiled_launches"]
    kernels += accuracy["reduce_launches"]
    if not shaped:
        tiled_exact, launches = accuracy["tiled_exact"], accuracy["tiled_launches"]
        finding = f"Names and grids alone give FADD and FMUL of {tiled_exact:,} of {launches:,} tiled GEMMs exactly"
    elif not kernels:
        finding = "No launch is a tiled GEMM that the closed form describes"
    else:
        finding = (
            f"2·M·N·K misses {accuracy['mape_2mnk_percent']:.1f} % of a layer's FLOPs on average, "
            f"at worst {abs(accuracy['worst_2mnk_percent']):.1f} %; "
            f"the closed form is exact for {exact:,} of {kernels:,} launches"
        )
    result.add("finding", finding, "text")


def launch_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the table of results, a row a launch: what it is, theory, prediction, measurement, explanation."""
    columns = ["launch", "kernel", "kernel_class", "role", "shape", "m", "n", "k", "s", "slices", "flops_2mnk"]
    columns += ["flops_predicted", "flops_counted", "residual_flops", "error_2mnk_percent", "exact", "dram_bytes"]
    columns += ["dram_ab_bytes", "dram_expected_bytes", "explanation"]
    table = data[columns].rename(
        columns={
            "s": "split_k_factor",
            "flops_2mnk": "theory_2mnk_flops",
            "flops_predicted": "predicted_flops",
            "flops_counted": "counted_flops",
            "dram_bytes": "counted_dram_bytes",
        }
    )
    table["kernel"] = table["kernel"].map(kernel_names.short_name)
    table["exact"] = table["exact"].map({True: "yes", False: "no"}).fillna("")
    table["counted_dram_bytes"] = table["counted_dram_bytes"].astype("Int64")
    return table


def by_kernel(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row a kernel: launches, how many are predicted and exact, and the errors of 2·M·N·K."""
    rows = []
    ranks = {"gemm": 0, "gemv": 1, "split_k_reduce": 2}
    for name, mine in data.groupby(data["kernel"].map(kernel_names.short_name), sort=False):
        error = mine["error_2mnk_percent"]
        predicted = int(mine["exact"].notna().sum())
        rows.append(
            {
                "rank": ranks.get(mine["kernel_class"].iloc[0], 3),
                "kernel": name,
                "launches": len(mine),
                "predicted_launches": predicted,
                "exact_launches": int(mine["exact"].fillna(False).sum()),
                "median_2mnk_percent": error.median(),
                "worst_2mnk_percent": error.loc[error.abs().idxmax()] if error.notna().any() else np.nan,
            }
        )
    by = ["rank", "launches", "kernel"]
    table = pd.DataFrame(rows).sort_values(by, ascending=[True, False, True], ignore_index=True)
    return table.drop(columns="rank")


def by_size(data: pd.DataFrame) -> pd.DataFrame:
    """Return what tiled GEMMs and their reductions execute, by the smaller of M and N.

    Returns
    -------
    DataFrame
        ``size`` (text), ``launches``, ``useful_percent`` and the parts of the excess: shares of the executed
        FLOPs, averaged over the launches of a size.
    """
    gemm = data[(data["role"] == "gemm") & data["tiled"] & data["flops_2mnk"].notna() & data["flops_predicted"].notna()]
    executed = (gemm["flops_predicted"] + gemm["excess_split_k_sum"]).astype("float64")
    shares = pd.DataFrame({"useful_percent": 100 * gemm["flops_2mnk"].astype("float64") / executed})
    for name in EXCESS:
        shares[f"{name}_percent"] = 100 * gemm[f"excess_{name}"].astype("float64") / executed
    edges = [0, *SIZES, np.inf]
    lows = [1, *(size + 1 for size in SIZES)]
    labels = [f"{low}–{high}" for low, high in zip(lows, SIZES, strict=False)] + [f"> {SIZES[-1]}"]
    bins = pd.cut(gemm[["m", "n"]].min(axis=1).astype("float64"), edges, labels=labels).rename("size")
    groups = shares.groupby(bins, observed=True)
    table = groups.mean().assign(launches=groups.size()).reset_index()
    return table.assign(size=table["size"].astype(str))[["size", "launches", *shares.columns]]


def worked_example(data: pd.DataFrame) -> tuple[pd.Series, pd.DataFrame]:
    """Pick a launch with as many kinds of excess as there are, off by as much as the average, and compute it.

    Returns
    -------
    launch : Series
        Its row of the data.
    steps : DataFrame
        ``launch`` (GEMM, reduction), ``what, calculation, counter, instructions, flops``; for each launch
        also the sums predicted and counted.

    Raises
    ------
    ValueError
        When no launch is predicted.
    """
    gemm = data[data["tiled"] & data["flops_predicted"].notna() & data["flops_2mnk"].notna()]
    if gemm.empty:
        raise ValueError("no launch is predicted")
    kinds = sum((gemm[f"excess_{name}"] > 0).astype(int) for name in EXCESS)
    error = gemm["error_2mnk_percent"].abs()
    ranked = gemm.assign(split=gemm["excess_split_k_sum"] > 0, kinds=kinds, off=-(error - error.mean()).abs())
    ranked = ranked.sort_values(["split", "kinds", "off", "launch"], ascending=[False, False, False, True])
    row = data.loc[ranked.index[0]]
    names = ("m", "n", "k", "tile_m", "tile_n", "s", "slices", "pad", "e")
    m, n, k, tile_m, tile_n, s, slices, pad, e = (int(row[name]) for name in names)
    k_padded = (int(row["excess_padding"]) // 2 + m * n * k) // pad
    tiles = pad // (tile_m * tile_n)
    name, other = "GEMM", "reduction"
    whole = f"{tiles:,} tiles · {tile_m} · {tile_n} · {k_padded:,}"
    steps = [
        (name, "products that are needed", f"{m:,} · {n:,} · {k:,}", "ffma", m * n * k),
        (name, "padding to whole tiles and steps of K", f"{whole} − above", "ffma", pad * k_padded - m * n * k),
        (name, "alpha × every partial result", f"{s} · {slices} · {pad:,}", "fmul", s * slices * pad),
        (name, "sum of the slices", f"{s} · ({slices} − 1) · {pad:,}", "fadd", s * (slices - 1) * pad),
        (name, "sums in C", f"{e} · {pad:,}", "ffma", e * pad),
        (name, "predicted", "", "", None, row["flops_predicted"]),
        (name, "counted", "", "", None, row["flops_counted"]),
    ]
    reduction = data[(data["role"] == "split_k_reduce") & (data["shape"] == row["shape"])]
    if len(reduction):
        after = reduction.iloc[0]
        sums, reads = int(after["fadd_predicted"]) // (m * n), int(after["ffma_predicted"]) // (m * n)
        more = " and one more operand" if sums > s else ""
        steps += [
            (other, f"sum of {s} parts{more}", f"{sums} · {m:,} · {n:,}", "fadd", sums * m * n),
            (other, "alpha × every result", f"{m:,} · {n:,}", "fmul", m * n),
            (other, "adds C, which holds the bias", f"{m:,} · {n:,}", "ffma", reads * m * n),
            (other, "predicted", "", "", None, after["flops_predicted"]),
            (other, "counted", "", "", None, after["flops_counted"]),
        ]
    rows = [(*step, step[4] * (2 if step[3] == "ffma" else 1)) if len(step) == 5 else step for step in steps]
    table = pd.DataFrame(rows, columns=["launch", "what", "calculation", "counter", "instructions", "flops"])
    table = table[table["flops"] > 0].reset_index(drop=True)
    return row, table.astype({"instructions": "Int64", "flops": "Int64"})
