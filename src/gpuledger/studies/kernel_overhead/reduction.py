"""Kernel overhead: what probes cost in time and registers (S. Huang, C. Wu, OSDI 2025, Table 3)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, quantity_names
from gpuledger.ledger.datasets import Case, folder_files
from gpuledger.ledger.parts import join_parts
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.runs import logs_by_run
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.kernel_overhead.compared import add_compared, read_compared
from gpuledger.studies.kernel_overhead.tables import operator_labels

OVERHEAD_COLUMNS = (
    Column("group", optional=True),
    Column("operator"),
    Column("probe"),
    Column("slowdown_ratio", "number", minimum=1e-3, maximum=1e6),
    Column("extra_registers", "number", minimum=-1e4, maximum=1e4),
    Column("spilled", "flag"),
)


def reduce(
    case: Case,
    dmat_probes: Sequence[str] = ("mem_trace", "dmat"),
    iteration_probes: Sequence[str] = ("program_progress",),
) -> CaseResult:
    """Reduce probe costs to their means.

    A slowdown is the probed kernel's time over the original kernel's; extra registers are those of the probed kernel
    minus those of the original. Cells whose kernel spilled registers are left out of the means of registers, and
    `registers_mean` weights every probe equally: this reproduces the published means.

    Parameters
    ----------
    dmat_probes : sequence of str
        Probes that record every memory access.
    iteration_probes : sequence of str
        Probes that record every iteration of a loop. All others write once, at the end, and are lightweight.

    Returns
    -------
    CaseResult
        Data: the table and ``probe_class`` (``lightweight``, ``iteration`` or ``dmat``); with ``compared``, long by
        ``part``; see :func:`gpuledger.studies.kernel_overhead.compared.parts`. The summary also holds every cell, as
        ``<operator>_<probe>_slowdown`` and ``<operator>_<probe>_registers``; where groups share an operator's name,
        as ``<operator>_<group>_<probe>_slowdown`` and so on.
    """
    path, counts = case.path("traces" if "traces" in case.inputs else "table"), {}
    if "traces" in case.inputs:
        table, counts = measure_overhead(path, case.inputs.get("names", {}))
    else:
        table = read_csv(path, OVERHEAD_COLUMNS, key=["group", "operator", "probe"])
        table["group"] = table.get("group", "")
    kinds = dict.fromkeys(iteration_probes, "iteration") | dict.fromkeys(dmat_probes, "dmat")
    table["probe_class"] = table["probe"].map(kinds).fillna("lightweight")
    result = CaseResult(table)
    labels = operator_labels(table)
    result.add("operators", labels.nunique(), "operator")
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
        registers = kept.loc[kept["probe_class"] == name, "extra_registers"].mean()
        result.add(f"{name}_registers_mean", registers, "register")
        result.add(f"{name}_registers_mean_with_spilled", rows["extra_registers"].mean(), "register")
        result.add(f"{name}_spilled", rows["spilled"].sum(), "kernel")
    result.add("registers_mean", kept.groupby("probe")["extra_registers"].mean().mean(), "register")
    probes = {"lightweight": "a lightweight probe", "iteration": "a record per iteration", "dmat": "DMAT"}
    means = {words: result.get(f"{name}_slowdown_mean") for name, words in probes.items()}
    words = [f"{mean:.2f}× as long with {probe}" for probe, mean in means.items() if mean]
    take = "operator takes" if result["operators"] == 1 else "operators take"
    finding = f"On average, {result['operators']} {take} {', '.join(words)}"
    if "compared" in case.inputs:
        compared = read_compared(case.path("compared"))
        result.data = join_parts(cell=table, compared=compared)
        finding += f"; {add_compared(result, case, compared)}"
    result.add("finding", finding, "text")
    cells = quantity_names(case, table.assign(operator=labels), ["operator", "probe"])
    for name, slowdown, registers in zip(cells, table["slowdown_ratio"], table["extra_registers"], strict=True):
        result.add(f"{name}_slowdown", slowdown, "1")
        result.add(f"{name}_registers", registers, "register")
    return result


def measure_overhead(folder: Path, names: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, int]]:
    """Measure what probes cost from the logs of benchmark runs.

    The layout ``<group>/<operator>/<probe>/…/event.log`` and ``…/process.log`` is inferred from the scripts that come
    with Neutrino's traces; logs may be at any depth below a probe's folder.

    Parameters
    ----------
    names : mapping of str to str
        Names of folders in the result, which is in this order; other folders follow and keep their names.

    Returns
    -------
    table : DataFrame
        With ``OVERHEAD_COLUMNS``. A slowdown is the mean of ``impact`` over all timed launches; extra registers are
        the mean over all kernels built both with and without the probe; a cell has spilled if ptxas reports more
        spills for a probed kernel than for the original.
    counts : dict
        How many of what was used: ``launches``, ``launches_left_out`` (timed, but the impact is not a positive
        number), ``kernels`` and ``kernels_left_out`` (not built twice).
    """
    cells = logs_by_run(folder, folder_files(folder), ("event.log", "process.log"), "<group>/<operator>/<probe>")
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
            problem = "no process.log states the registers of a kernel, both probed and pruned"
            raise InputError(place, "", problem, "keep kernel/*/process.log, or remove the folder")
        counts["launches"] += len(slowdowns)
        counts["kernels"] += len(registers)
        called = [names.get(part, part) for part in cell]
        rows.append((*called, float(np.mean(slowdowns)), float(np.mean(registers)), spilled))
    return pd.DataFrame(rows, columns=[column.name for column in OVERHEAD_COLUMNS]), counts
