"""Exposed latency: how long a user waits for a profile (S. Huang, C. Wu, OSDI 2025, Fig. 13)."""

import re
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.ledger.case_result import CaseResult, quantity_names, slug
from gpuledger.ledger.datasets import Case
from gpuledger.readers import tabular
from gpuledger.readers.tabular import Column, read_csv, refuse_row

#: Units of times in users' tables; all columns of a table have the same one.
TIME_UNITS = ("ns", "us", "ms", "s")
PARTS = ("prologue", "kernel", "epilogue")
#: Whose probes they are, if a case does not say.
NEUTRINO = "Neutrino"

#: Whether a row's parts were measured or printed, read off a figure, or are not known.
GIVEN, READ_OFF, UNKNOWN = "given", "read off", "unknown"


def reduce(case: Case) -> CaseResult:
    """Reduce exposed latencies to multiples of the original execution time.

    Returns
    -------
    CaseResult
        Data: ``workload, probe, ncu_ratio, probed_ratio, kernel_ratio, epilogue_ratio, prologue_ratio,
        other_ratio, parts, speedup_ratio``; `parts` is ``given``, ``read off`` (kernel and other are approximate,
        epilogue and prologue are not distinguished) or ``unknown``. The summary also holds every cell.

    Warns
    -----
    InputWarning
        Parts that differ from their total by more than 1 %: they are kept. Others are scaled to it.
    """
    if "tables" in case.inputs:
        tables = {name: case.dataset.folder / file for name, file in case.inputs["tables"].items()}
    else:
        tables = {case.path("table").stem: case.path("table")}
    frames = [_read_latency(path, name) for name, path in tables.items()]
    data = pd.concat(frames, ignore_index=True)
    data["speedup_ratio"] = data["ncu_ratio"] / data["probed_ratio"]
    result = CaseResult(data)
    result.add("workloads", data["workload"].nunique(), "workload")
    for name in ("ncu", "probed", "speedup"):
        ratio = data[f"{name}_ratio"]
        result.add(f"{name}_geometric_mean", geometric_mean(ratio), "1")
        result.add(f"{name}_min", ratio.min(), "1")
        result.add(f"{name}_max", ratio.max(), "1")
    given = data[data["parts"] == GIVEN]
    for part in PARTS if len(given) else ():
        percent = 100 * given[f"{part}_ratio"] / given["probed_ratio"]
        result.add(f"{part}_min_percent", percent.min(), "%")
        result.add(f"{part}_max_percent", percent.max(), "%")
    speedup, tool = result["speedup_geometric_mean"], case.inputs.get("probed_with", NEUTRINO)
    times = f"{speedup:,.{1 if speedup < 100 else 0}f} times as long"
    finding = f"A user waits {times} for Nsight Compute as for {tool} (geometric mean, n = {len(data)})"
    result.add("finding", finding, "text")
    result.add("probed_with", tool, "text")
    for workload, rows in data.groupby("workload", sort=False):
        result.add(f"{slug(workload)}_speedup_geometric_mean", geometric_mean(rows["speedup_ratio"]), "1")
    for name, (_, row) in zip(quantity_names(case, data, ["workload", "probe"]), data.iterrows(), strict=True):
        result.add(f"{name}_ncu_ratio", row["ncu_ratio"], "1")
        result.add(f"{name}_probed_ratio", row["probed_ratio"], "1")
    return result


def _read_latency(path: Path, workload: str) -> pd.DataFrame:
    """Read one latency table, in any of the layouts, as ratios to the original time."""
    table, names, whole, total = _read_table(path)
    if "workload" not in table:
        table.insert(0, "workload", workload)
    parts = table.reindex(columns=names).astype("float64").set_axis(list(PARTS), axis=1)
    found = parts.sum(axis=1)
    missing = parts.isna().any(axis=1)
    some = parts.notna().any(axis=1) & missing
    refuse_row(path, some, names[0], "only some of the parts are given", "give all three")
    refuse_row(path, parts.max(axis=1) > 1.01 * total, whole, "a part exceeds the total", "correct the row")
    off = ~missing & ((found - total).abs() > 0.01 * total)
    for row in np.flatnonzero(off):
        problem = f"prologue + kernel + epilogue are {100 * found[row] / total[row]:.4g} % of their total"
        warn(path, f"line {row + 2}, column {whole}", problem, "they are kept")
    for name, what in (("ncu", "ncu"), ("probed", "a probe")):
        for row in np.flatnonzero(table[f"{name}_ratio"] < 1):
            share = 100 * table[f"{name}_ratio"].iloc[row]
            problem = f"{what} shows its profile after {share:.3g} % of the kernel's own time"
            warn(path, f"line {row + 2}", problem, "it is kept; check the columns and their units")
    # Rounded parts are scaled so that they add up to the total.
    ratios = parts.div(found.where(~off, total), axis=0).mul(table["probed_ratio"], axis=0)
    other = ratios["prologue"] + ratios["epilogue"]
    drawn = table.get("other_ratio", pd.Series(np.nan, table.index))
    too_much = drawn >= table["probed_ratio"]
    refuse_row(
        path, too_much, "other_ratio", "prologue and epilogue exceed the probe's ratio", "correct one of the two"
    )
    kernel = ratios["kernel"].fillna(table["probed_ratio"] - drawn)
    return table[["workload", "probe", "ncu_ratio", "probed_ratio"]].assign(
        kernel_ratio=kernel,
        epilogue_ratio=ratios["epilogue"],
        prologue_ratio=ratios["prologue"],
        other_ratio=other.fillna(drawn),
        parts=np.select([~missing, drawn.notna()], [GIVEN, READ_OFF], UNKNOWN),
    )


def _read_table(path: Path) -> tuple[pd.DataFrame, list[str], str, pd.Series]:
    """Return a table with ``ncu_ratio`` and ``probed_ratio``, its columns of parts, and what these add up to."""
    header = tabular.header(path)
    # The paper's artifact names its own tool.
    probed = "neutrino" if any(name.startswith("neutrino") for name in header) else "probed"
    key = [name for name in ("workload", "probe") if name in header or name == "probe"]
    named = [Column(name) for name in key]
    original = next((name for name in header if re.fullmatch("original(_.*)?", name)), None)
    if original is None:
        ratios = [Column(f"{name}_ratio", "number", minimum=1e-6, maximum=1e9) for name in ("ncu", probed)]
        names = [f"{part}_share" for part in PARTS]
        shares = [Column(name, "number", minimum=0, maximum=1, optional=True) for name in names]
        other = Column("other_ratio", "number", minimum=0, maximum=1e9, optional=True)
        table = read_csv(path, [*named, *ratios, *shares, other], key)
        table = table.rename(columns={f"{probed}_ratio": "probed_ratio"})
        return table, names, names[0], pd.Series(1.0, table.index)
    unit = original.removeprefix("original")
    if unit and unit[1:] not in TIME_UNITS:
        remedy = f"use one of {', '.join(TIME_UNITS)} for all times"
        raise InputError(path, "line 1", f"unknown unit in the column '{original}'", remedy)
    partial = any(re.fullmatch(rf"(?:{'|'.join(PARTS)})(?:_(?:{'|'.join(TIME_UNITS)}))?", name) for name in header)
    names = [f"{part}{unit}" for part in PARTS]
    times = [Column(f"{name}{unit}", "number", minimum=1e-12, maximum=1e15) for name in ("original", "ncu", probed)]
    parts = [Column(name, "number", minimum=0, maximum=1e15) for name in names] if partial else []
    table = read_csv(path, [*named, *times, *parts], key)
    for name, column in (("ncu", f"ncu{unit}"), ("probed", f"{probed}{unit}")):
        table[f"{name}_ratio"] = table[column] / table[original]
    return table, names, f"{probed}{unit}", table[f"{probed}{unit}"]
