"""Forward and backward pass of a network of identical Linear layers with activations, kernel by kernel."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.models.flop_prediction.gemm import (
    integer_column,
    predict_gemm,
    predict_split_k_reduce,
    predict_sum_reduction,
)
from gpuledger.readers.kernel_names import PATTERNS, Pattern, classify, parse

_OPS = ("fadd", "fmul", "ffma")
_PREDICTED = [f"{op}_predicted" for op in _OPS]
_SILENT = ("copy", "fill")  # classes that execute no floating-point arithmetic
#: FADD, FMUL, FFMA per element of each activation, forward and backward. The sigmoid's backward pass is g·(1 − y)·y;
#: its forward pass is what was counted for PyTorch's on an A100, rounded to whole instructions (some data takes a
#: shorter path, 0.008 % fewer). A ReLU compares and selects, neither of which is counted; identity has no kernel.
_ACTIVATIONS: Mapping[str, Mapping[str, tuple[int, int, int]]] = {
    "sigmoid": {"forward": (2, 0, 7), "backward": (1, 2, 0)},
    "relu": {"forward": (0, 0, 0), "backward": (0, 0, 0)},
    "identity": {"forward": (0, 0, 0), "backward": (0, 0, 0)},
}


def textbook_flops(layers: int, hidden_dim: int, tokens: int) -> dict[str, dict[str, int]]:
    """Return the FLOPs of each pass as they are usually counted.

    A GEMM of M × N × K takes 2·M·N·K. The forward pass has one per layer; the backward pass has two (gradients of
    weight and input), except for the first layer, whose input needs no gradient. Following the source notebook, an
    activation takes one FLOP per element forward and two backward (one in the last layer), and split-K takes none.

    Returns
    -------
    dict
        By pass (``forward``, ``backward``), FLOPs by part (``gemm``, ``split_k``, ``activation``).
    """
    gemm = 2 * hidden_dim * hidden_dim * tokens
    outputs = hidden_dim * tokens
    return {
        "forward": {"gemm": layers * gemm, "split_k": 0, "activation": layers * outputs},
        "backward": {"gemm": (2 * layers - 1) * gemm, "split_k": 0, "activation": (2 * layers - 1) * outputs},
    }


def predict_network(
    kernels: pd.DataFrame,
    *,
    layers: int,
    hidden_dim: int,
    tokens: int,
    activation: str = "sigmoid",
    bias: bool = False,
    patterns: Sequence[Pattern] = PATTERNS,
    file: str | Path = "kernels",
) -> pd.DataFrame:
    """Predict what every kernel of the forward and the backward pass executes.

    The network is ``layers`` × [Linear(hidden_dim, hidden_dim) + activation] on ``tokens`` rows; its loss is the sum
    of the output. A forward GEMM and an input gradient have tokens·hidden_dim outputs and K = hidden_dim, a weight
    gradient has hidden_dim² outputs and K = tokens; the first layer's input needs no gradient, so there are
    ``layers − 1`` input gradients. Rows are either single launches in order, or kernels with the counters of all
    their launches summed (one row per pass and kernel), as published tables have them.

    Grouped tables state neither grids nor numbers of launches. Then two things are read off counters: the split-K
    factor s = FMUL / (launches · pad · slices) (``split_k_source`` is ``counters``), and how the launches divide
    between two kernels that share a role or an activation (``launches_source`` is ``counters``). FADD and FFMA of
    every GEMM and both counters of the split-K reductions remain as checks.

    Parameters
    ----------
    kernels : pandas.DataFrame
        ``pass`` (``forward``, ``backward``; others are listed without a prediction), ``kernel``. Optional:
        ``kernel_class``, ``grid_blocks``, ``grid`` (of one launch), ``fadd, fmul, ffma`` (summed over the launches of
        the row).
    layers, hidden_dim, tokens : int
        Of the network, each at least 1.
    activation : {"sigmoid", "relu", "identity"}
        What follows each Linear layer.
    bias : bool
        Whether the Linear layers have a bias; it then enters through C, or through the split-K reduction.

    Returns
    -------
    pandas.DataFrame
        One row per row of ``kernels``: ``pass, kernel, kernel_class, role, launches, launches_source, s,
        split_k_source, pad, e`` (of one launch), ``fadd, fmul, ffma, flops_counted``, ``fadd_predicted,
        fmul_predicted, ffma_predicted, flops_predicted`` (of the whole row), ``flops_2mnk``, ``exact`` and
        ``explanation``, and ``from_counters``: which counters are explained rather than predicted (separated by
        spaces), because the prediction was derived from them. Counts are Int64, ``<NA>`` where unknown.
    """
    table = _NetworkRows(kernels, layers, hidden_dim, tokens, patterns, file)
    _predict_reductions(table, _predict_gemms(table, bias, file), bias)
    _predict_small(table, activation)
    return table.result()


class _NetworkRows:
    """The result under construction: input rows, roles, launches per row and predictions."""

    def __init__(self, kernels, layers, hidden_dim, tokens, patterns, file):
        self.layers, self.hidden_dim, self.tokens = layers, hidden_dim, tokens
        self.frame = frame = kernels.reset_index(drop=True)
        self.out = frame[["pass", "kernel"]].copy()
        known = "kernel_class" in frame.columns
        self.out["kernel_class"] = frame["kernel_class"] if known else classify(frame["kernel"], patterns, file=file)
        self.out["role"] = ""
        for column in ("s", "pad", "e", *_PREDICTED, "flops_2mnk"):
            self.out[column] = pd.Series(pd.NA, index=frame.index, dtype="Int64")
        self.out["split_k_source"], self.out["explanation"], self.out["from_counters"] = "", "not modelled", ""
        for op in _OPS:
            self.out[op] = integer_column(frame, op, file, 0)
        self.single = bool(frame.duplicated(["pass", "kernel"]).any())  # rows are single launches
        self.out["launches"], self.out["launches_source"] = pd.array([pd.NA] * len(frame), dtype="Int64"), "unknown"
        if self.single:
            self.out["launches"], self.out["launches_source"] = 1, "given"

    def rows(self, phase: str, *classes: str) -> pd.Index:
        return self.out.index[(self.out["pass"] == phase) & self.out["kernel_class"].isin(classes)]

    def count(self, rows: pd.Index, launches: int | None, source: str) -> None:
        if launches is not None and len(rows):
            self.out.loc[rows, "launches"], self.out.loc[rows, "launches_source"] = launches, source

    def put(self, row: int, values: Sequence[int], explanation: str) -> None:
        """Set the predicted counters of a row; they stay unknown if the number of launches is."""
        launches = self.out.at[row, "launches"]
        if pd.isna(launches):
            self.out.at[row, "explanation"] = "the number of launches is unknown: not predicted"
            return
        for column, value in zip(_PREDICTED, values, strict=True):
            self.out.at[row, column] = int(value) * int(launches)
        self.out.at[row, "explanation"] = explanation

    def result(self) -> pd.DataFrame:
        out = self.out
        out["flops_counted"] = out["fadd"] + out["fmul"] + 2 * out["ffma"]
        out["flops_predicted"] = out["fadd_predicted"] + out["fmul_predicted"] + 2 * out["ffma_predicted"]
        out["exact"] = pd.Series(True, index=out.index, dtype="boolean")
        for op in _OPS:
            out["exact"] &= out[op] == out[f"{op}_predicted"]
        order = ["pass", "kernel", "kernel_class", "role", "launches", "launches_source", "s", "split_k_source"]
        order += ["pad", "e", *_OPS, "flops_counted", *_PREDICTED, "flops_predicted", "flops_2mnk", "exact"]
        return out[[*order, "from_counters", "explanation"]]


def _gradient_roles(table: _NetworkRows, rows: pd.Index, forward: set[str | None]) -> dict[str, str]:
    """Tell input gradients from weight gradients: by their layouts if these decide, else by the number of launches."""
    names = list(table.out.loc[rows, "kernel"].unique())
    layouts = {name: parse(name).transpose for name in names}
    if table.layers == 1 and len(names) == 1:
        return {names[0]: "weight_gradient"}
    if forward == {"tn"}:  # y = x·Wᵀ, column-major; the gradients are g·W and gᵀ·x
        meaning = {"nn": "input_gradient", "nt": "weight_gradient"}
        if all(layouts[name] in meaning for name in names):
            return {name: meaning[layouts[name]] for name in names}
    if len(names) != 2:
        return {}
    launches = {}
    for name in names:
        mine = rows[table.out.loc[rows, "kernel"] == name]
        given, ffma = table.out.loc[mine, "launches"], table.out.loc[mine, "ffma"]
        useful = table.hidden_dim**2 * table.tokens
        launches[name] = given.sum() if given.notna().all() else ffma.sum() / useful if ffma.notna().all() else 0
    few, many = sorted(names, key=lambda name: launches[name])
    if round(launches[few]) != round(launches[many]):
        return {few: "input_gradient", many: "weight_gradient"}
    if forward == {"nn"} and set(layouts.values()) == {"tn", "nt"}:  # y = x·W
        return {name: "input_gradient" if layouts[name] == "tn" else "weight_gradient" for name in names}
    return {}


def _predict_gemms(table: _NetworkRows, bias: bool, file: str | Path) -> pd.DataFrame:
    """Assign roles, launches and shapes to the GEMM rows and apply the closed form."""
    out, frame = table.out, table.frame
    forward, backward = table.rows("forward", "gemm", "gemv"), table.rows("backward", "gemm", "gemv")
    layouts = {parse(name).transpose for name in out.loc[forward, "kernel"]}
    out.loc[forward, "role"] = "forward"
    roles = _gradient_roles(table, backward, layouts)
    out.loc[backward, "role"] = [roles.get(name, "") for name in out.loc[backward, "kernel"]]
    weights = out.index[out["role"] == "weight_gradient"]
    # y = W·x keeps tokens in the columns of C: forward nn with a tn weight gradient.
    columns = layouts == {"nn"} and {parse(name).transpose for name in out.loc[weights, "kernel"]} == {"tn"}
    m, n = (table.hidden_dim, table.tokens) if columns else (table.tokens, table.hidden_dim)

    rows = forward.append(backward)
    shape = pd.DataFrame({"kernel": out.loc[rows, "kernel"], "m": m, "n": n, "k": table.hidden_dim}, index=rows)
    mine = rows.intersection(weights)
    shape.loc[mine, ["m", "n", "k"]] = table.hidden_dim, table.hidden_dim, table.tokens
    _count_gemms(table, rows, shape, file)

    for name in ("grid_blocks", "grid"):
        if name in frame.columns:
            shape[name] = frame.loc[rows, name]
    for op in _OPS:
        total, launches = out.loc[rows, op], out.loc[rows, "launches"]
        shape[op] = (total // launches).where((total % launches == 0).fillna(False))
    shape["accumulates"] = bias & (out.loc[rows, "role"] == "forward")
    shape["followed_by_reduce"] = False
    splits = predict_gemm(shape, file=file)["s"] > 1
    if table.single:
        after = out["kernel_class"].shift(-1)[rows] == "split_k_reduce"
    else:
        after = out.loc[rows, "pass"].isin(set(out.loc[out["kernel_class"] == "split_k_reduce", "pass"]))
    shape["followed_by_reduce"] = (splits.fillna(False) & after).astype(bool)
    gemm = predict_gemm(shape, file=file)
    gemm["outputs"] = shape["m"] * shape["n"]
    gemm["followed_by_reduce"] = shape["followed_by_reduce"]
    for row in rows:
        out.at[row, "flops_2mnk"] = gemm.at[row, "flops_2mnk"] * out.at[row, "launches"]
        for column in ("s", "pad", "e", "split_k_source"):
            out.at[row, column] = gemm.at[row, column]
        used = {"fmul": gemm.at[row, "split_k_source"], "ffma": out.at[row, "launches_source"]}
        out.at[row, "from_counters"] = " ".join(op for op, source in used.items() if source == "counters")
        values = gemm.loc[row, _PREDICTED]
        if out.at[row, "role"] == "":
            out.at[row, "explanation"] = "input and weight gradient cannot be told apart: not predicted"
        elif values.isna().any():
            out.at[row, "explanation"] = gemm.at[row, "explanation"]
        else:
            table.put(row, values, f"each launch: {gemm.at[row, 'explanation']}")
    return gemm


def _count_gemms(table: _NetworkRows, rows: pd.Index, shape: pd.DataFrame, file: str | Path) -> None:
    """Fill in the launches of grouped GEMM rows: the network's, divided by FFMA if kernels share a role."""
    out = table.out
    if out.loc[rows, "launches"].notna().all():
        return
    once = predict_gemm(shape.assign(split_k=1), file=file)["ffma_predicted"]
    counted = (out.loc[rows, "ffma"] // once).astype("Int64")
    for role in ("forward", "input_gradient", "weight_gradient"):
        mine = rows[(out.loc[rows, "role"] == role) & out.loc[rows, "launches"].isna()]
        expected = table.layers - (role == "input_gradient")
        if len(mine) == 1:
            # One launch more if the input needs a gradient: the only case where counters overrule the network.
            more = role == "input_gradient" and (counted[mine] == table.layers).fillna(False).all()
            table.count(mine, table.layers if more else expected, "counters" if more else "network")
        else:
            for row in mine:
                table.count(pd.Index([row]), None if pd.isna(counted[row]) else int(counted[row]), "counters")


def _predict_reductions(table: _NetworkRows, gemm: pd.DataFrame, bias: bool) -> None:
    """Predict split-K reductions from the GEMM launches that they follow."""
    out = table.out
    for phase in ("forward", "backward"):
        rows = table.rows(phase, "split_k_reduce")
        owners = gemm.index[(out.loc[gemm.index, "pass"] == phase) & gemm["followed_by_reduce"] & gemm["s"].notna()]
        for row in rows:
            mine = owners[owners == row - 1] if table.single else owners
            launches = out.loc[mine, "launches"]
            if not len(mine) or (len(rows) > 1 and not table.single) or launches.isna().any():
                out.at[row, "explanation"] = "it is unclear which GEMM launches it follows: not predicted"
                continue
            each = predict_split_k_reduce(
                pd.Series([out.at[row, "kernel"]] * len(mine), index=mine, dtype=object),
                gemm.loc[mine, "outputs"].to_numpy(dtype=np.int64),
                gemm.loc[mine, "s"].to_numpy(dtype=np.int64),
                bias=bias & (out.loc[mine, "role"] == "forward").to_numpy(dtype=bool),
            )
            values = each[_PREDICTED].mul(launches, axis=0).sum()
            for column in _PREDICTED:
                out.at[row, column] = int(values[column])
            table.count(pd.Index([row]), int(launches.sum()) if pd.isna(out.at[row, "launches"]) else None, "network")
            factors = " and ".join(str(s) for s in sorted(set(gemm.loc[mine, "s"].tolist())))
            out.at[row, "explanation"] = f"each launch: {factors} sums and one multiplication by alpha per output"


def _predict_small(table: _NetworkRows, activation: str) -> None:
    """Predict activations, the reduction of the loss, and kernels that execute no arithmetic."""
    out, outputs = table.out, table.hidden_dim * table.tokens
    for phase in ("forward", "backward"):
        rows = table.rows(phase, "elementwise")
        each = _ACTIVATIONS[activation][phase]
        if any(each):  # a kernel that counts nothing may be a copy or a fill with an undecorated name
            idle = rows[(out.loc[rows, list(_OPS)].max(axis=1) == 0).fillna(False)]
            out.loc[idle, _PREDICTED], out.loc[idle, "explanation"] = 0, "executes no arithmetic: not an activation"
            rows = rows.difference(idle)
        if out.loc[rows, "launches"].isna().any():
            if len(rows) == 1:
                table.count(rows, table.layers, "network")
            else:
                for row in rows:
                    op = next((op for op, number in zip(_OPS, each, strict=True) if number), None)
                    counted = None if op is None or pd.isna(out.at[row, op]) else out.at[row, op]
                    per_launch = outputs * (each[_OPS.index(op)] if op else 0)
                    table.count(pd.Index([row]), None if counted is None else round(counted / per_launch), "counters")
                    out.at[row, "from_counters"] = op or ""
        # The cost of a sigmoid is what was counted for one, not derived.
        if (activation, phase) == ("sigmoid", "forward"):
            out.loc[rows, "from_counters"] = " ".join(op for op, number in zip(_OPS, each, strict=True) if number)
        total = out.loc[rows, "launches"].sum()
        for row in rows:
            if any(each) and total != table.layers:
                out.at[row, "explanation"] = (
                    f"{total} elementwise launches for {table.layers} activations: not predicted"
                )
            elif not any(each):
                out.loc[row, _PREDICTED] = 0
                out.at[row, "explanation"] = f"{activation} executes no counted operation"
            else:
                words = ", ".join(f"{number} {op}" for number, op in zip(each, _OPS, strict=True) if number)
                table.put(row, [number * outputs for number in each], f"{activation} {phase}: {words} per element")
        rows = table.rows(phase, "reduce")
        if len(rows) == 1 and out.loc[rows, "launches"].fillna(1).eq(1).all():
            table.count(rows, 1, "network")
            text = (
                f"sum of {outputs:,} elements: {outputs - 1:,} additions needed, the rest is the tree of the reduction"
            )
            table.put(rows[0], (predict_sum_reduction(outputs), 0, 0), text)
        rows = table.rows(phase, *_SILENT)
        out.loc[rows, _PREDICTED], out.loc[rows, "explanation"] = 0, "moves data only"
