"""Reconcile a network's passes: theory, prediction and measurement, kernel by kernel and part by part.

Three recordings of one program are compared: set-up; set-up and forward pass; set-up, forward and backward pass.
The launches that a longer recording has beyond a shorter one are the pass that it adds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.models.flop_prediction import predict_network, textbook_flops
from gpuledger.readers import kernel_names
from gpuledger.studies.flop_reconciliation.counters import COUNTERS, read_counters
from gpuledger.studies.flop_reconciliation.tables import PASSES, count_table, parts_table

RUNS = ("setup", "forward", "forward_backward")

#: Part of the network that a kernel of each class works for.
PARTS = {"gemm": "gemm", "split_k_reduce": "split_k", "reduce": "reduction", "elementwise": "activation"}


def read_run(path: str | Path) -> pd.DataFrame:
    """Read one recording.

    Parameters
    ----------
    path : path
        Output of Nsight Compute in any format, with the counters fadd, fmul and ffma.

    Returns
    -------
    DataFrame
        One row per launch, in order: ``launch`` (its ID less the first one, or its number from 0 if the IDs do not
        increase), ``kernel, grid, block, grid_blocks`` and the columns of :func:`read_counters`.
    """
    report, counted = read_counters(path)
    table = report.launches[["kernel", "grid", "block", "grid_blocks"]]
    table = pd.concat([table, counted], axis=1).reset_index(drop=True)
    # IDs skip launches that a grouped table does not list by themselves, and count on from run to run of one process;
    # files of several runs start anew at 0.
    ids = report.launches["id"].astype("Int64").reset_index(drop=True)
    numbered = len(ids) and ids.notna().all() and ids.is_monotonic_increasing and ids.is_unique
    table.insert(0, "launch", (ids - ids.iloc[0]).astype("int64") if numbered else table.index)
    return table


def launched_beyond(longer: pd.DataFrame, shorter: pd.DataFrame, file: str | Path, shorter_file: str | Path):
    """Return the launches of a recording that follow those of a shorter recording of the same program.

    The longer one must start with the launches of the shorter one, kernel by kernel, with the same grids and blocks if
    both state them. The counters may differ: what a kernel executes can depend on random data.

    Raises
    ------
    InputError
        At the first launch that differs or is missing.
    """
    remedy = f"record the same program, without changes, as for {Path(shorter_file).name}"
    for number, (mine, theirs) in enumerate(zip(longer.itertuples(), shorter.itertuples(), strict=False)):
        if mine.kernel != theirs.kernel:
            problem = f"the kernel is {mine.kernel}, in {Path(shorter_file).name} it is {theirs.kernel}"
            raise InputError(file, f"launch {number}", problem, remedy)
        for what in ("grid", "block"):
            ours, other = getattr(mine, what), getattr(theirs, what)
            if isinstance(ours, str) and isinstance(other, str) and ours != other:
                problem = f"the {what} of {mine.kernel} is {ours}, in {Path(shorter_file).name} it is {other}"
                raise InputError(file, f"launch {number}", problem, remedy)
    if len(longer) < len(shorter):
        problem = f"the recording ends after {len(longer)} launches, {Path(shorter_file).name} has {len(shorter)}"
        raise InputError(file, f"launch {len(longer)}", problem, remedy)
    if len(longer) == len(shorter):
        problem = f"nothing is launched beyond {Path(shorter_file).name}"
        raise InputError(file, f"launch {len(longer)}", problem, "record it with one more pass")
    return longer.iloc[len(shorter) :]


def reduce_network(case: Case, patterns: Sequence[kernel_names.Pattern]) -> CaseResult:
    """Reconcile the three recordings of a network.

    Returns
    -------
    CaseResult
        Data: one row per launch (or group of launches) of both passes, with ``pass, launch, kernel, kernel_class,
        part``, ``fadd, fmul, ffma, flops`` as counted and as predicted, and an explanation of the prediction.

    Warns
    -----
    InputWarning
        Of kernels with FLOPs whose class is unknown or does not occur in a network: they are the part ``other``.
    """
    paths = {run: case.path(run) for run in RUNS}
    runs = {run: read_run(path) for run, path in paths.items()}
    network = case.inputs["network"]
    passes = []
    for name, longer, shorter in (("forward", "forward", "setup"), ("backward", "forward_backward", "forward")):
        rest = launched_beyond(runs[longer], runs[shorter], paths[longer], paths[shorter])
        passes.append(rest.assign(**{"pass": name}))
    launches = pd.concat(passes, ignore_index=True)
    launches["kernel_class"] = kernel_names.classify(launches["kernel"], patterns, file=paths["forward_backward"])
    working = (launches["flops"] > 0).fillna(True)
    launches["part"] = launches["kernel_class"].map(PARTS).fillna(working.map({True: "other", False: "none"}))
    strange = launches[(launches["part"] == "other") & (launches["kernel_class"] != kernel_names.OTHER)]
    for kernel, mine in strange.groupby(strange["kernel"].astype(str).map(kernel_names.short_name), sort=False):
        problem = f"{kernel} is of class {mine['kernel_class'].iloc[0]}, which does not occur in a network"
        warn(paths["forward_backward"], f"launch {mine['launch'].iloc[0]}", problem, "its FLOPs are listed as other")
    predicted = predict_network(
        launches,
        layers=network["layers"],
        hidden_dim=network["hidden_dim"],
        tokens=network["tokens"],
        activation=network.get("activation", "sigmoid"),
        bias=network.get("bias", False),
        patterns=patterns,
        file=case.dataset.file,
    )
    columns = ["role", "launches", "s", "split_k_source", "from_counters", "explanation", "flops_2mnk"]
    counters = ["fadd_predicted", "fmul_predicted", "ffma_predicted", "flops_predicted"]
    data = pd.concat([launches, predicted[columns + counters]], axis=1)
    data = data.rename(columns={"s": "split_k_factor"}).drop(columns=["grid", "block"])
    first = ["pass", "launch", "kernel", "kernel_class", "part"]
    result = CaseResult(data[first + [column for column in data if column not in first]])
    setup = runs["setup"]
    # By their IDs: a grouped table states the first launch of each group.
    first = {name: int(rows["launch"].iloc[0]) for name, rows in zip(PASSES, passes, strict=True)}
    result.add("setup_launches", first["forward"] - int(setup["launch"].iloc[0]), "launch")
    result.add("forward_launches", first["backward"] - first["forward"], "launch")
    for kernel, mine in setup.groupby("kernel", sort=False, observed=True):
        for counter in COUNTERS:
            if mine[counter].nunique() == 1:
                quantity = f"setup_{slug(kernel_names.short_name(str(kernel)))}_{counter}_per_launch"
                result.add(quantity, mine[counter].iloc[0], "inst")
    _summarise(result, network)
    for name in ("forward", "backward"):
        if not 0 <= (epsilon := result[f"{name}_epsilon_gemm"]) <= 1:
            problem = f"GEMMs of the {name} pass execute {1 + epsilon:.3g} times the FLOPs of this network"
            warn(case.dataset.file, f"{case.place}.network", problem, "check layers, hidden_dim and tokens")
    return result


def _summarise(result: CaseResult, network: Mapping) -> None:
    layers, hidden_dim, tokens = (network[name] for name in ("layers", "hidden_dim", "tokens"))
    expected = textbook_flops(layers, hidden_dim, tokens)
    outputs = hidden_dim * tokens
    # The source notebook divides the split-K FLOPs by the outputs of all GEMMs.
    gemms = {"forward": layers, "backward": 2 * layers - 1}
    for quantity, unit in (("layers", "layer"), ("hidden_dim", "1"), ("tokens", "token")):
        result.add(quantity, network[quantity], unit)
    words = []
    for name in PASSES:
        table = parts_table(result.data, network).query("`pass` == @name").set_index("part")
        for part, row in table.iterrows():
            result.add(f"{name}_{part}_flops", row["measured_flops"], "FLOP")
            result.add(f"{name}_theoretical_{part}_flops", row["theory_flops"], "FLOP")
            result.add(f"{name}_predicted_{part}_flops", row["predicted_flops"], "FLOP")
            result.add(f"{name}_{part}_difference_flops", row["difference_flops"], "FLOP")
            result.add(f"{name}_{part}_difference_percent", row["difference_percent"], "%")
            result.add(f"{name}_{part}_residual_flops", row["residual_flops"], "FLOP")
        rows = result.data[result.data["pass"] == name]
        for counter in COUNTERS:
            result.add(f"{name}_{counter}", rows[counter].sum(), "inst")
        # By kernel, summed over its launches, as the source notebook lists them; and one launch as predicted.
        for kernel, mine in rows.groupby(rows["kernel"].astype(str).map(kernel_names.short_name), sort=False):
            for counter in COUNTERS:
                quantity = f"{name}_{slug(kernel)}_{counter}"
                result.add(quantity, mine[counter].sum(), "inst")
                if mine[counter].sum():
                    each = (mine[f"{counter}_predicted"] // mine["launches"]).unique()
                    result.add(f"{quantity}_predicted_per_launch", each[0] if len(each) == 1 else None, "inst")
        for part in ("split_k", "reduction"):
            label = "split_k_reduce" if part == "split_k" else "reduction"
            result.add(f"{name}_{label}_flops", rows.loc[rows["part"] == part, "flops"].sum(), "FLOP")
        gemm, split_k, activation = (table.at[part, "measured_flops"] for part in ("gemm", "split_k", "activation"))
        epsilon = gemm / expected[name]["gemm"] - 1
        kappa = activation / expected[name]["activation"] - 1
        rho = split_k / (gemms[name] * outputs)
        result.add(f"{name}_epsilon_gemm", epsilon, "1")
        result.add(f"{name}_rho", rho, "1")
        result.add(f"{name}_kappa", kappa, "1")
        # The source notebook's closed form. Its factors are fitted to the very numbers that it then reproduces.
        closed = (1 + epsilon) * expected[name]["gemm"] + (1 + kappa) * expected[name]["activation"]
        closed += rho * gemms[name] * outputs
        residual = closed - table.at["total", "measured_flops"]
        result.add(f"{name}_reconstructed_total_flops", closed, "FLOP")
        result.add(f"{name}_reconstruction_residual_flops", residual, "FLOP")
        words.append(f"{table.at['total', 'difference_percent']:.2f} % {name}")
    counts = count_table(result.data)
    predicted = counts[counts["how"] == "predicted"]
    result.add("counts", len(counts), "count")
    result.add("counts_predicted", len(predicted), "count")
    result.add("counts_predicted_exact", int(predicted["exact"].sum()), "count")
    result.add("counts_explained", int((counts["how"] == "explained").sum()), "count")
    finding = f"Counters differ from theory by {' and '.join(words)}"
    if not any(word.startswith("-") for word in words):
        finding = f"Counters exceed theory by {' and '.join(words)}"
    if len(predicted):
        exact = "all" if predicted["exact"].all() else f"{result['counts_predicted_exact']:,}"
        finding += f"; of {len(counts):,} counts the closed form predicts {len(predicted):,}, {exact} exactly"
        if result["counts_explained"]:
            finding += f", and explains {result['counts_explained']:,}"
    result.add("finding", finding, "text")
