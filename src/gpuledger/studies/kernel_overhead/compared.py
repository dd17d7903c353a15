"""Probes of both kinds on the same kernels: compiled into their source, and added to the compiled kernel."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, quantity_names
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.parts import one_part
from gpuledger.readers.tabular import Column, read_csv

#: By probe, what its value is: the median cycles of a warp, or a sum over all threads.
UNITS = {"block_sched": "cycle", "gmem_bytes": "byte", "tensorop_count": "operation"}
COLUMNS = (
    Column("workload"),
    Column("probe", choices=tuple(UNITS)),
    Column("records_source", "integer", minimum=0, maximum=1e15),
    Column("records_binary", "integer", minimum=0, maximum=1e15),
    Column("value_source", "number", minimum=0, maximum=1e18),
    Column("value_binary", "number", minimum=0, maximum=1e18),
    Column("registers_source", "integer", minimum=-1e4, maximum=1e4),
    Column("registers_binary", "integer", minimum=-1e4, maximum=1e4),
)


def parts(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the data of a reduced case.

    Returns
    -------
    cells : DataFrame
        One row per operator and probe, with its costs.
    compared : DataFrame
        What :func:`read_compared` returns; empty if the case has no such table.
    """
    if "part" not in data:
        return data, pd.DataFrame()
    return one_part(data, "cell"), one_part(data, "compared")


def read_compared(path: str | Path) -> pd.DataFrame:
    """Read a table of source-level and binary probes.

    Returns
    -------
    DataFrame
        With the columns of the table, by workload and probe, and ``records_ratio`` and ``value_ratio``, binary to
        source: 1 if both are 0, infinite if only the source-level one is.
    """
    table = read_csv(path, COLUMNS, key=["workload", "probe"])
    for name in ("records", "value"):
        source, binary = (table[f"{name}_{kind}"].to_numpy(float) for kind in ("source", "binary"))
        with np.errstate(all="ignore"):
            table[f"{name}_ratio"] = np.where(source == binary, 1.0, binary / source)
    return table


def add_compared(result: CaseResult, case: Case, table: pd.DataFrame) -> str:
    """Add the quantities of a table of both kinds of probes; return what it shows, as a part of a sentence."""
    timed = table["probe"].map(UNITS) == "cycle"
    counted, cycles = table[~timed], table.loc[timed, "value_ratio"]
    agreeing = int((table["records_ratio"] == 1).sum())
    same = int((counted["value_ratio"] == 1).sum())
    result.add("compared", len(table), "pair")
    result.add("compared_with_equal_records", agreeing, "pair")
    result.add("compared_counts", len(counted), "pair")
    result.add("compared_counts_equal", same, "pair")
    for kind in ("source", "binary"):
        result.add(f"compared_registers_{kind}_mean", table[f"registers_{kind}"].mean(), "register")
    words = f"binary probes save as many records as source-level ones in {agreeing} of {len(table)} pairs"
    if len(counted):
        words += f", count the same in {same} of {len(counted)}"
    if len(cycles):
        result.add("compared_cycles_ratio_min", cycles.min(), "1")
        result.add("compared_cycles_ratio_max", cycles.max(), "1")
        words += f", and see warps take {cycles.min():.2f} to {cycles.max():.2f} times as many cycles"
    for name, row in zip(quantity_names(case, table, ["workload", "probe"]), table.itertuples(), strict=True):
        result.add(f"{name}_value_source", row.value_source, UNITS[row.probe])
        result.add(f"{name}_value_binary", row.value_binary, UNITS[row.probe])
    return words
