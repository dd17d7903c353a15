"""Kernel overhead: what probes cost in time and registers (S. Huang, C. Wu, OSDI 2025, Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

import numpy as np
import pandas as pd

from gpuledger.datasets import Case
from gpuledger.errors import InputError
from gpuledger.reduced import Reduced, quantity_names
from gpuledger.tabular import Column, read_csv

OVERHEAD_COLUMNS = (
    Column("group"),
    Column("operator"),
    Column("probe"),
    Column("slowdown_ratio", "number", minimum=1e-3, maximum=1e6),
    Column("extra_registers", "number", minimum=-1e4, maximum=1e4),
    Column("spilled", "flag"),
)


def reduce_overhead(case: Case, dmat_probes: Sequence[str] = ("mem_trace", "dmat")) -> Reduced:
    """Reduce a table of probe costs to its means.

    A slowdown is the probed kernel's time over the original kernel's; extra registers are those of the probed
    kernel less those of the original. Cells whose kernel spilled registers are left out of the means of
    registers, and `registers_mean` weighs every probe alike: so the published means come about.

    Parameters
    ----------
    case : Case
        Its ``table`` has the columns of ``OVERHEAD_COLUMNS``, one row an operator and probe.
    dmat_probes : sequence of str
        Probes that record every memory access; all others are lightweight.

    Returns
    -------
    Reduced
        Data: the table and ``probe_class`` (``lightweight`` or ``dmat``). The summary also holds every cell, as
        ``<operator>_<probe>_slowdown`` and ``_registers``.

    Raises
    ------
    InputError
        See :func:`gpuledger.tabular.read_csv`.
    """
    table = read_csv(case.path("table"), OVERHEAD_COLUMNS, key=["operator", "probe"])
    groups = table.groupby("operator", sort=False)["group"].nunique()
    if (groups > 1).any():
        name = groups.index[groups > 1][0]
        problem = f"the operator {name} stands in two groups"
        raise InputError(case.path("table"), "column group", problem, "give the two operators names of their own")
    table["probe_class"] = np.where(table["probe"].isin(list(dmat_probes)), "dmat", "lightweight")
    reduced = Reduced(table)
    reduced.add("operators", table["operator"].nunique(), "operator")
    reduced.add("probes", table["probe"].nunique(), "probe")
    kept = table[~table["spilled"]]
    for name, rows in table.groupby("probe_class"):
        slowdown = rows["slowdown_ratio"]
        reduced.add(f"{name}_slowdown_mean", slowdown.mean(), "1")
        reduced.add(f"{name}_slowdown_geometric_mean", geometric_mean(slowdown), "1")
        reduced.add(f"{name}_slowdown_min", slowdown.min(), "1")
        reduced.add(f"{name}_slowdown_max", slowdown.max(), "1")
        reduced.add(
            f"{name}_registers_mean",
            kept.loc[kept["probe_class"] == name, "extra_registers"].mean(),
            "register",
        )
        reduced.add(f"{name}_registers_mean_with_spilled", rows["extra_registers"].mean(), "register")
        reduced.add(f"{name}_spilled", rows["spilled"].sum(), "kernel")
    reduced.add("registers_mean", kept.groupby("probe")["extra_registers"].mean().mean(), "register")
    means = {name: reduced.summary.get(f"{name}_slowdown_mean") for name in ("lightweight", "dmat")}
    words = [f"{name} probes {mean['value']:.2f}×" for name, mean in means.items() if mean]
    finding = f"Mean slowdown over {reduced['operators']} operators: {', '.join(words)}"
    reduced.add("finding", finding, "text")
    cells = quantity_names(case, table, ["operator", "probe"])
    for name, slowdown, registers in zip(cells, table["slowdown_ratio"], table["extra_registers"], strict=True):
        reduced.add(f"{name}_slowdown", slowdown, "1")
        reduced.add(f"{name}_registers", registers, "register")
    return reduced


def overhead_table(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row an operator, in the order of the input.

    Returns
    -------
    frame : DataFrame
        By probe, ``<probe>_slowdown_ratio``, ``<probe>_extra_registers`` and ``<probe>_spilled``.
    people : DataFrame
        By probe one text, ``1.0050× +12``, as the paper prints it.
    """
    operators = list(dict.fromkeys(data["operator"]))
    groups = data.drop_duplicates("operator").set_index("operator")["group"]
    columns, texts = {}, {}
    for probe in dict.fromkeys(data["probe"]):
        rows = data[data["probe"] == probe].set_index("operator").reindex(operators)
        for name in ("slowdown_ratio", "extra_registers", "spilled"):
            columns[f"{probe}_{name}"] = rows[name]
        spilled = rows["spilled"].map({True: " (spill)"}).fillna("")
        cells = rows["slowdown_ratio"].map("{:.4f}×".format) + rows["extra_registers"].map(" {:+g}".format)
        texts[probe] = (cells + spilled).where(rows["slowdown_ratio"].notna())
    frame, people = (
        pd.DataFrame({"group": groups, **by_probe}).rename_axis("operator").reset_index()
        for by_probe in (columns, texts)
    )
    return frame, people
