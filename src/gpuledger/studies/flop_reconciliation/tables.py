"""Tables of both kinds of case: the parts of a network's passes, and the launches of Linear layers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.models.flop_prediction import textbook_flops
from gpuledger.readers import kernel_names

PASSES = ("forward", "backward")
#: The parts under which theory, prediction and measurement are compared, by the part that a kernel works for. Like
#: the source notebook, a sum over a tensor is booked with the sums over split-K parts.
BOOKED = {"gemm": "gemm", "split_k": "split_k", "reduction": "split_k", "activation": "activation", "other": "other"}
#: What a GEMM launch executes beyond 2·M·N·K, in the order in which figures stack it.
EXCESS = ("padding", "alpha", "slices", "accumulation", "split_k_sum")
#: Upper bounds of the bins of min(M, N).
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


def parts_table(data: pd.DataFrame, network: Mapping) -> pd.DataFrame:
    """Return theory, prediction and measurement: one row per pass and part, and one per pass for the total.

    Parameters
    ----------
    data : DataFrame
        The data of a network's case.
    network : mapping
        ``layers, hidden_dim, tokens``.

    Returns
    -------
    DataFrame
        ``pass, part, theory_flops, predicted_flops, measured_flops, difference_flops, difference_percent``
        (measured minus theory) and ``residual_flops`` (measured minus predicted); Int64, ``<NA>`` if a kernel of
        the part is not predicted.
    """
    expected = textbook_flops(*(network[name] for name in ("layers", "hidden_dim", "tokens")))
    rows = []
    for name in PASSES:
        mine = data[data["pass"] == name]
        booked = mine["part"].map(BOOKED)
        parts = ("gemm", "split_k", "activation", *(["other"] if (booked == "other").any() else []))
        for part in (*parts, "total"):
            chosen = mine[booked.isin(parts) if part == "total" else booked == part]
            theory = sum(expected[name].values()) if part == "total" else expected[name].get(part, 0)
            rows.append(
                (name, part, theory, *(chosen[column].sum(skipna=False) for column in ("flops_predicted", "flops")))
            )
    flops = ["theory_flops", "predicted_flops", "measured_flops"]
    table = pd.DataFrame(rows, columns=["pass", "part", *flops]).astype(dict.fromkeys(flops, "Int64"))
    table["difference_flops"] = table["measured_flops"] - table["theory_flops"]
    relative = 100 * table["difference_flops"].astype("float64") / table["theory_flops"].astype("float64")
    table["difference_percent"] = relative
    table["residual_flops"] = table["measured_flops"] - table["predicted_flops"]
    return table


def steps(data: pd.DataFrame, network: Mapping) -> pd.DataFrame:
    """Return the steps from theory to measurement.

    Returns
    -------
    DataFrame
        ``pass, part, step, flops``; the steps of a pass add up to measured minus theory. Steps without FLOPs are left
        out.
    """
    expected = textbook_flops(*(network[name] for name in ("layers", "hidden_dim", "tokens")))
    rows = []
    for name in PASSES:
        mine = data[data["pass"] == name]
        gemm = mine[mine["part"] == "gemm"]
        beyond_products = int((gemm["flops"] - gemm["fadd"] - gemm["fmul"]).sum()) - expected[name]["gemm"]
        activation = mine[mine["part"] == "activation"]
        beyond = int(activation["flops"].sum()) - expected[name]["activation"]
        parts = [
            ("gemm", "GEMM: multiply partial sums by alpha", int(gemm["fmul"].sum())),
            ("gemm", "GEMM: add up slices of K", int(gemm["fadd"].sum())),
            ("gemm", "GEMM: multiply-adds beyond M·N·K", beyond_products),
            ("split_k", "split-K: add up the parts of K", int(mine.loc[mine["part"] == "split_k", "flops"].sum())),
            ("reduction", "sum of the loss", int(mine.loc[mine["part"] == "reduction", "flops"].sum())),
            ("activation", "activation: what it really executes", beyond),
            ("other", "other kernels", int(mine.loc[mine["part"] == "other", "flops"].sum())),
        ]
        rows += [(name, *part) for part in parts if part[2]]
    return pd.DataFrame(rows, columns=["pass", "part", "step", "flops"])


def percent_text(percent: float) -> str:
    """Return a percentage with two decimals, or ``–`` from 1000 on, where the numbers beside it say more."""
    return f"{percent:.2f}" if abs(percent) < 1000 else "–"


def count_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return every counter that is not zero, and whether its prediction is one.

    Returns
    -------
    DataFrame
        ``pass, kernel, launches, counter, counted, predicted, exact`` and ``how``: ``predicted``; ``explained`` if the
        count itself, or a published count of the same kernel, was used to derive it; ``not predicted``.
    """
    rows = []
    for row in data.itertuples():
        for counter in ("fadd", "fmul", "ffma"):
            counted, predicted = getattr(row, counter), getattr(row, f"{counter}_predicted")
            if counted == 0 and (pd.isna(predicted) or predicted == 0):
                continue
            how = "explained" if counter in row.from_counters.split() else "predicted"
            how = "not predicted" if pd.isna(predicted) else how
            rows.append((row[1], kernel_names.short_name(row.kernel), row.launches, counter, counted, predicted, how))
    columns = ["pass", "kernel", "launches", "counter", "counted", "predicted", "how"]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("launches", "counted", "predicted"), "Int64"))
    return table.assign(exact=(table["counted"] == table["predicted"]).fillna(False).astype(bool))


def launch_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return one row per launch: what it is, theory, prediction, measurement, explanation."""
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
    """Return one row per kernel: launches, how many are predicted and how many exactly, the errors of 2·M·N·K."""
    names = data["kernel"].map(kernel_names.short_name)
    groups, error = data.groupby(names, sort=False), data["error_2mnk_percent"]
    table = pd.DataFrame(
        {
            "rank": groups["kernel_class"].first().map({"gemm": 0, "gemv": 1, "split_k_reduce": 2}).fillna(3),
            "launches": groups.size(),
            "predicted_launches": groups["exact"].count(),
            "exact_launches": groups["exact"].sum().astype("int64"),
            "median_2mnk_percent": groups["error_2mnk_percent"].median(),
            "worst_2mnk_percent": error.groupby(names).agg(lambda own: own.loc[own.abs().fillna(-1).idxmax()]),
        }
    ).reset_index()
    table = table.sort_values(["rank", "launches", "kernel"], ascending=[True, False, True], ignore_index=True)
    return table.drop(columns="rank")


def by_size(data: pd.DataFrame) -> pd.DataFrame:
    """Return what tiled GEMMs and their reductions execute, by the smaller of M and N.

    Returns
    -------
    DataFrame
        ``size`` (text), ``launches``, ``useful_percent`` and the parts of the excess, as shares of the executed FLOPs
        averaged over the launches of a size.
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
    """Work out one launch: of those with most kinds of excess, the one whose error is nearest to the average.

    Returns
    -------
    launch : Series
        Its row of the data.
    steps : DataFrame
        ``launch`` (GEMM, reduction), ``what, calculation, counter, instructions, flops``; also each launch's totals,
        predicted and counted.
    """
    gemm = data[data["tiled"] & data["flops_predicted"].notna() & data["flops_2mnk"].notna()]
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
        (name, "products needed", f"{m:,} · {n:,} · {k:,}", "ffma", m * n * k),
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
        more = " and another operand" if sums > s else ""
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
