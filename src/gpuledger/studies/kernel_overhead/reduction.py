"""Kernel overhead: what probes cost in time and registers (S. Huang, C. Wu, OSDI 2025, Table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, quantity_names
from gpuledger.ledger.datasets import Case, folder_files
from gpuledger.readers import neutrino
from gpuledger.readers.tabular import Column, read_csv

OVERHEAD_COLUMNS = (
    Column("group"),
    Column("operator"),
    Column("probe"),
    Column("slowdown_ratio", "number", minimum=1e-3, maximum=1e6),
    Column("extra_registers", "number", minimum=-1e4, maximum=1e4),
    Column("spilled", "flag"),
)


def reduce(case: Case, dmat_probes: Sequence[str] = ("mem_trace", "dmat")) -> CaseResult:
    """Reduce probe costs to their means.

    A slowdown is the probed kernel's time over the original kernel's; extra registers are those of the probed
    kernel less those of the original. Cells whose kernel spilled registers are left out of the means of
    registers, and `registers_mean` weighs every probe alike: so the published means come about.

    Parameters
    ----------
    case : Case
        Its ``table`` has the columns of ``OVERHEAD_COLUMNS``, one row an operator and probe; or ``traces`` is a folder
        of trace directories, see :func:`measure_overhead`, and ``names`` says what its folders are called.
    dmat_probes : sequence of str
        Probes that record every memory access; all others are lightweight.

    Returns
    -------
    CaseResult
        Data: the table and ``probe_class`` (``lightweight`` or ``dmat``). The summary also holds every cell, as
        ``<operator>_<probe>_slowdown`` and ``_registers``.

    Raises
    ------
    InputError
        See :func:`gpuledger.readers.tabular.read_csv` and :func:`measure_overhead`.
    """
    path, counts = case.path("traces" if "traces" in case.inputs else "table"), {}
    if "traces" in case.inputs:
        table, counts = measure_overhead(path, case.inputs.get("names", {}))
    else:
        table = read_csv(path, OVERHEAD_COLUMNS, key=["operator", "probe"])
    groups = table.groupby("operator", sort=False)["group"].nunique()
    if (groups > 1).any():
        name = groups.index[groups > 1][0]
        problem = f"the operator {name} stands in two groups"
        raise InputError(path, "column group", problem, "give the two operators names of their own")
    table["probe_class"] = np.where(table["probe"].isin(list(dmat_probes)), "dmat", "lightweight")
    result = CaseResult(table)
    result.add("operators", table["operator"].nunique(), "operator")
    result.add("probes", table["probe"].nunique(), "probe")
    for name, count in counts.items():
        result.add(name, count, "kernel" if name.startswith("kernels") else "launch")
    kept = table[~table["spilled"]]
    for name, rows in table.groupby("probe_class"):
        slowdown = rows["slowdown_ratio"]
        result.add(f"{name}_slowdown_mean", slowdown.mean(), "1")
        result.add(f"{name}_slowdown_geometric_mean", geometric_mean(slowdown), "1")
        result.add(f"{name}_slowdown_min", slowdown.min(), "1")
        result.add(f"{name}_slowdown_max", slowdown.max(), "1")
        result.add(
            f"{name}_registers_mean",
            kept.loc[kept["probe_class"] == name, "extra_registers"].mean(),
            "register",
        )
        result.add(f"{name}_registers_mean_with_spilled", rows["extra_registers"].mean(), "register")
        result.add(f"{name}_spilled", rows["spilled"].sum(), "kernel")
    result.add("registers_mean", kept.groupby("probe")["extra_registers"].mean().mean(), "register")
    means = {name: result.summary.get(f"{name}_slowdown_mean") for name in ("lightweight", "dmat")}
    words = [f"{name} probes {mean['value']:.2f}×" for name, mean in means.items() if mean]
    finding = f"Mean slowdown over {result['operators']} operators: {', '.join(words)}"
    result.add("finding", finding, "text")
    cells = quantity_names(case, table, ["operator", "probe"])
    for name, slowdown, registers in zip(cells, table["slowdown_ratio"], table["extra_registers"], strict=True):
        result.add(f"{name}_slowdown", slowdown, "1")
        result.add(f"{name}_registers", registers, "register")
    return result


def measure_overhead(folder: Path, names: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, int]]:
    """Measure what probes cost from the logs of benchmark runs.

    The layout ``<group>/<operator>/<probe>/…/event.log`` and ``…/process.log`` is inferred from the scripts that come
    with Neutrino's traces, not known: below a probe's folder, logs are taken wherever they are.

    Parameters
    ----------
    folder : Path
    names : mapping of str to str
        What folders are called in the result, which is in this order; other folders follow and keep their names.

    Returns
    -------
    table : DataFrame
        As of ``OVERHEAD_COLUMNS``. A slowdown is the mean of ``impact`` over all launches that were timed; extra
        registers are a mean over all kernels that were built with the probe and without; a cell spilled when ptxas
        reports spills of a probed kernel beyond those of the original.
    counts : dict
        What that was taken from: ``launches``, ``launches_left_out`` (timed, but the impact is no positive number),
        ``kernels`` and ``kernels_left_out`` (not built twice).

    Raises
    ------
    InputError
        A log that cannot be read or lies in no probe's folder; a probe without a timed launch or a kernel.
    """
    cells: dict[tuple[str, ...], list[Path]] = {}
    for path in folder_files(folder):
        if path.name in ("event.log", "process.log"):
            parts = path.relative_to(folder).parts
            if len(parts) < 4:
                raise InputError(path, "", "lies in no folder <group>/<operator>/<probe>", "move it to its probe")
            cells.setdefault(parts[:3], []).append(path)
    if not cells:
        raise InputError(folder, "", "holds no event.log or process.log", "give the folder of the benchmarks' traces")
    order = {name: position for position, name in enumerate(names)}
    rows, counts = [], dict.fromkeys(("launches", "launches_left_out", "kernels", "kernels_left_out"), 0)
    for cell in sorted(cells, key=lambda parts: [(order.get(part, len(order)), part) for part in parts]):
        place, slowdowns, registers, spilled = folder.joinpath(*cell), [], [], False
        for path in cells[cell]:
            if path.name == "event.log":
                launches = neutrino.read_event_log(path).launches
                timed = launches.loc[~launches["outcome"].isin(["failed", "backup"]), "impact"]
                timed = timed[launches["original_ms"].notna()].to_numpy()
                usable = np.isfinite(timed) & (timed > 0)
                counts["launches_left_out"] += int((~usable).sum())
                slowdowns += timed[usable].tolist()
            else:
                log = neutrino.read_process_log(path)
                if log.additional_registers is None:
                    counts["kernels_left_out"] += 1
                    continue
                registers.append(log.additional_registers)
                spilled |= (log.additional_spill_bytes or 0) > 0
        if not slowdowns:
            problem = "no launch was timed: no [benchmark] line in an event.log"
            raise InputError(place, "", problem, "record it with --benchmark, or remove the folder")
        if not registers:
            problem = "no process.log says the registers of a kernel, probed and pruned"
            raise InputError(place, "", problem, "keep kernel/*/process.log, or remove the folder")
        counts["launches"] += len(slowdowns)
        counts["kernels"] += len(registers)
        called = [names.get(part, part) for part in cell]
        rows.append((*called, float(np.mean(slowdowns)), float(np.mean(registers)), spilled))
    return pd.DataFrame(rows, columns=[column.name for column in OVERHEAD_COLUMNS]), counts


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
