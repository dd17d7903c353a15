"""Reconcile a recording of Linear layers, launch by launch, against the closed form and 2·M·N·K."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.models.flop_prediction import linear_accuracy, linear_shapes, percent_errors, predict_linear
from gpuledger.readers import kernel_names
from gpuledger.readers.ncu.values import Values
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.flop_reconciliation.counters import COUNTERS, read_counters
from gpuledger.studies.flop_reconciliation.tables import EXCESS

_DRAM = ("dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
_EXPLAINED = {
    "bias_copy": "copies the bias into C: moves data only",
    "split_k_reduce": "follows a kernel outside the closed form: not predicted",
    "elementwise": "elementwise (adds a bias that the GEMM did not): not predicted",
    "reduce": "second half of a vector product: not predicted",
}


def read_shapes(path: str | Path) -> pd.DataFrame:
    """Read shapes: a JSON list of {Input, Weight, Bias} as PyTorch records them, or a CSV of m, n, k and bias."""
    path = Path(path)
    if path.suffix.lower() == ".csv":
        sizes = [Column(name, "integer", minimum=1, maximum=2**31) for name in "mnk"]
        return read_csv(path, [*sizes, Column("bias", "flag", optional=True)])
    try:
        entries = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        remedy = "give a JSON list of {Input, Weight, Bias}, or a CSV of m, n, k"
        raise InputError(path, "", f"cannot be read as JSON ({error})", remedy) from None
    return linear_shapes(entries, file=path)


def read_recording(path: Path) -> pd.DataFrame:
    """Read a recording, or those of a folder (not of folders in it) in the order of their names, one after another.

    Returns
    -------
    DataFrame
        One row per launch: ``launch, kernel, grid, grid_blocks``, counters and DRAM bytes.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if not (file.is_dir() or file.name.startswith(".")))
        if not files:
            raise InputError(path, "", "the folder has no recording", "put the output of Nsight Compute into it")
        for file in files:
            if file.exists() and not file.is_file():  # it would be read for ever
                raise InputError(file, "", "it is a pipe or a device", "save what it gives as a file")
        launches = pd.concat([read_recording(file) for file in files], ignore_index=True)
        return launches.assign(launch=launches.index)
    report, counters = read_counters(path)
    values = Values(report)
    found = {name: values.get(name) for name in _DRAM if name in values.names()}
    wide = pd.DataFrame(found, report.launches.index).reset_index(drop=True)
    for name in COUNTERS:
        wide[f"sm__sass_thread_inst_executed_op_{name}_pred_on.sum"] = counters[name].reset_index(drop=True)
    if _DRAM[0] not in wide and set(_DRAM[1:]) <= set(wide):
        wide[_DRAM[0]] = wide[_DRAM[1]] + wide[_DRAM[2]]
    launches = report.launches[["kernel", "grid", "grid_blocks"]].reset_index(names="launch")
    launches["kernel"] = launches["kernel"].astype(str)
    return launches.join(wide)


def reduce_launches(case: Case, patterns: Sequence[kernel_names.Pattern]) -> CaseResult:
    """Reconcile a recording of Linear layers launch by launch.

    Returns
    -------
    CaseResult
        Data: one row per launch with the columns of :func:`gpuledger.models.flop_prediction.predict_linear`,
        ``excess_split_k_sum`` (of the reduction that follows), ``residual_flops`` (counted minus predicted),
        ``error_2mnk_percent`` and ``dram_ab_bytes, dram_c_bytes, reads_c, dram_expected_bytes`` (A and B, and C where
        it is read).
    """
    path = case.path("launches")
    shapes = read_shapes(case.path("shapes")) if "shapes" in case.inputs else None
    data = predict_linear(read_recording(path), shapes, patterns=patterns, file=path)
    accuracy = linear_accuracy(data)
    data = data.rename(columns={"excess_epilogue": "excess_accumulation", "dram_bytes_predicted": "dram_ab_bytes"})
    idle = data["kernel_class"].isin(["copy", "fill"])
    data.loc[idle, ["fadd_predicted", "fmul_predicted", "ffma_predicted", "flops_predicted"]] = 0
    data.loc[idle, "exact"] = data.loc[idle, "flops_counted"] == 0
    blank = data["explanation"] == ""
    words = data["role"].where(data["role"] != "other", data["kernel_class"]).map(_EXPLAINED)
    data.loc[blank, "explanation"] = words.fillna("outside the closed form: not predicted")[blank]

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
    data["error_2mnk_percent"] = percent_errors(data["flops_2mnk"], data["flops_counted"])
    # The GEMM reads C if something was put there before, unless a reduction kernel does.
    copies = (data["role"] == "bias_copy").any()
    put = (data["role"].shift(1) == "bias_copy") if copies else (data["e"] == data["s"]).fillna(False)
    # A kernel computes its whole product, at times with more padding, never with less.
    less = gemm & data["tiled"] & (data["flops_2mnk"] > data["flops_counted"]).fillna(False)
    if less.any():
        more = f" (as did {less.sum() - 1:,} more)" if less.sum() > 1 else ""
        problem = f"launch {data.loc[less.idxmax(), 'launch']}{more} counted less than 2·M·N·K of its shape"
        warn(path, "", problem, "it is kept; check that the shapes are in the order of the launches")
    data["reads_c"] = (gemm & put & ~followed).astype(bool)
    data["dram_c_bytes"] = (4 * data["m"] * data["n"]).where(gemm)
    data["dram_expected_bytes"] = data["dram_ab_bytes"] + data["dram_c_bytes"].where(data["reads_c"], 0)
    data["kernel"] = data["kernel"].astype("str")
    result = CaseResult(data)
    _summarise(result, accuracy, shapes is not None, case.inputs.get("l2_reach_bytes"))
    return result


def _summarise(result: CaseResult, accuracy: Mapping, shaped: bool, l2_reach_bytes: int | None) -> None:
    data = result.data
    gemm, tiled = data[data["role"] == "gemm"], data[(data["role"] == "gemm") & data["tiled"]]

    add = result.add
    add("launches", accuracy["launches"], "launch")
    add("matrix_launches", len(gemm), "launch")
    names = ("tiled_launches", "tiled_exact", "large_k_launches", "large_k_exact", "not_tiled_launches")
    for name in (*names, "reduce_launches", "reduce_exact"):
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
        errors = {name: percent_errors(bytes_, gemm["dram_bytes"]) for name, bytes_ in expected.items()}
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
    covered = ("tiled", "large_k", "reduce")
    exact = sum(accuracy[f"{name}_exact"] for name in covered)
    kernels = sum(accuracy[f"{name}_launches"] for name in covered)
    if not accuracy["tiled_launches"]:
        finding = (
            "No launch is a tiled fp32 GEMM that the closed form describes; the study kernel_profile can use this file"
        )
    elif not shaped:
        tiled_exact, launches = accuracy["tiled_exact"], accuracy["tiled_launches"]
        finding = f"Names and grids alone give FADD and FMUL of {tiled_exact:,} of {launches:,} tiled GEMMs exactly"
    else:
        # Small products are missed most, so a mean of ratios says more than their sum.
        missed = 100 * (1 - result["tiled_2mnk_flops"] / result["tiled_counted_flops"])
        finding = (
            f"2·M·N·K misses {accuracy['mape_2mnk_percent']:.1f} % of a tiled product's FLOPs on average "
            f"({missed:.1f} % of the FLOPs of all), at worst {abs(accuracy['worst_2mnk_percent']):.1f} %; "
            f"the closed form is exact for {exact:,} of {kernels:,} launches that it covers"
        )
        if accuracy["split_k_from_counters"]:
            from_counter = accuracy["split_k_from_counters"]
            finding += f", {from_counter:,} of them with the split-K factor read off the FMUL counter"
    add("finding", finding, "text")
