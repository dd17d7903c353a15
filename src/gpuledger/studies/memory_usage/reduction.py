"""Memory usage: how much memory probes need (S. Huang, C. Wu, OSDI 2025, Fig. 12)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, quantity_names, slug
from gpuledger.ledger.datasets import Case, folder_files
from gpuledger.readers import tabular
from gpuledger.readers.neutrino.lines import read_lines
from gpuledger.readers.tabular import Column, read_csv

#: The words of the paper's Fig. 12 stand for powers of 1024. It follows from its numbers: per warp of 32 threads
#: gmem_bytes stores 8 B a thread and block_sched 16 B, a factor of 16; 3.5 MB are 16 times 224 KB only in these units.
UNIT_BYTES = {"KB": 2**10, "MB": 2**20, "GB": 2**30}

#: The use that all others are compared with.
ORIGINAL = "original"
WORKLOAD = ["model", "batch_size"]


def reduce(case: Case, dmat_probes: Sequence[str] = ("mem_trace", "dmat")) -> CaseResult:
    """Reduce the memory that probes allocate to shares of what the workload uses without them.

    Parameters
    ----------
    case : Case
        Its ``table`` has the columns ``model, batch_size, use`` and either ``memory, unit`` (``KB``, ``MB`` or
        ``GB``, all binary) or ``memory_bytes``; `use` is ``original`` or the name of a probe. Or ``traces`` is a folder
        of runs, see :func:`measure_memory`, and ``names`` says what its folders are called.
    dmat_probes : sequence of str
        Probes that record every memory access; all others are lightweight.

    Returns
    -------
    CaseResult
        Data: ``model, batch_size, use, memory_bytes, ratio_to_original, probe_class``. The summary also holds
        every cell, as ``<model>_bs<batch size>_<use>_memory``.

    Raises
    ------
    InputError
        See :func:`gpuledger.readers.tabular.read_csv` and :func:`measure_memory`; a workload without its original use,
        a table without a probe.
    """
    path, spread = case.path("traces" if "traces" in case.inputs else "table"), None
    if "traces" in case.inputs:
        table, spread = measure_memory(path, case.inputs.get("names", {}))
    else:
        table = _read_memory(path)
    originals = table[table["use"] == ORIGINAL].set_index(WORKLOAD)["memory_bytes"]
    original = originals.reindex(pd.MultiIndex.from_frame(table[WORKLOAD])).to_numpy()
    table["ratio_to_original"] = table["memory_bytes"] / original
    kinds = np.where(table["use"].isin(list(dmat_probes)), "dmat", "lightweight")
    table["probe_class"] = np.where(table["use"] == ORIGINAL, ORIGINAL, kinds)
    table = table[[*WORKLOAD, "use", "memory_bytes", "ratio_to_original", "probe_class"]]
    if (table["use"] == ORIGINAL).all():
        raise InputError(path, "column use", "there is no probe", "add rows with the memory that probes allocate")
    result = CaseResult(table)
    _summarise_memory(result, table)
    if spread is not None:
        result.add("original_spread_percent", 100 * spread, "%")
    cells = table.assign(batch_size="bs" + table["batch_size"].astype(str))
    for name, memory in zip(quantity_names(case, cells, [*WORKLOAD, "use"]), table["memory_bytes"], strict=True):
        result.add(f"{name}_memory", memory, "B")
    return result


def _read_memory(path: Path) -> pd.DataFrame:
    columns = [Column("model"), Column("batch_size", "integer", minimum=1), Column("use")]
    if "memory_bytes" in tabular.header(path):
        columns.append(Column("memory_bytes", "integer", minimum=1))
    else:
        columns += [Column("memory", "number", minimum=1e-3, maximum=1e6), Column("unit", choices=tuple(UNIT_BYTES))]
    table = read_csv(path, columns, key=["model", "batch_size", "use"])
    if "unit" in table:
        table["memory_bytes"] = (table["memory"] * table["unit"].map(UNIT_BYTES)).round().astype("int64")
    known = pd.MultiIndex.from_frame(table.loc[table["use"] == ORIGINAL, WORKLOAD])
    without = ~pd.MultiIndex.from_frame(table[WORKLOAD]).isin(known)
    if without.any():
        row = int(np.flatnonzero(without)[0])
        problem = f"no row '{ORIGINAL}' for {table['model'][row]}, batch size {table['batch_size'][row]}"
        raise InputError(path, f"line {row + 2}", problem, "add the memory that it uses without a probe")
    return table


def measure_memory(folder: Path, names: Mapping[str, str]) -> tuple[pd.DataFrame, float]:
    """Measure what workloads and probes need from the logs of runs.

    A log counts for ``<model>-bs<batch size>/<probe>``, wherever it lies below that folder. As in the notebook that
    comes with Neutrino's traces, the original use is the first ``max memory:`` of a ``stdout.log``, in bytes, and a
    probe's memory is what one launch needs, ``[exec] probe-mem`` of ``event.log``; of several, the largest. The folders
    of one workload can differ in their original use: the largest counts for all.

    Parameters
    ----------
    folder : Path
    names : mapping of str to str
        What models (without their batch size) and probes are called in the result, which is in this order; others
        follow and keep the names of their folders.

    Returns
    -------
    table : DataFrame
        ``model, batch_size, use, memory_bytes``.
    spread : float
        By how much the original uses of one workload differ at most, relative to the smallest.

    Raises
    ------
    InputError
        A log that cannot be read or lies in no such folder; a workload without its original use; a probe's event logs
        without its memory.
    """
    runs: dict[tuple[str, int], dict[str, list[Path]]] = {}
    for path in folder_files(folder):
        if path.name in ("stdout.log", "event.log"):
            parts = path.relative_to(folder).parts
            found = re.fullmatch(r"(.+?)[-_]bs([1-9]\d{0,8})", parts[0])
            if not found or len(parts) < 3:
                problem = "lies in no folder <model>-bs<batch size>/<probe>"
                raise InputError(path, "", problem, "rename the folders so, or move the log")
            runs.setdefault((found[1], int(found[2])), {}).setdefault(parts[1], []).append(path)
    if not runs:
        raise InputError(folder, "", "holds no stdout.log or event.log", "give the folder of the models' runs")
    order = {name: position for position, name in enumerate(names)}
    rows, spreads = [], []
    for model, batch in sorted(runs, key=lambda run: (order.get(run[0], len(order)), run)):
        probes = runs[model, batch]
        originals, called = [], names.get(model, model)
        for probe in sorted(probes, key=lambda probe: (order.get(probe, len(order)), probe)):
            logs = [path for path in probes[probe] if path.name == "event.log"]
            outputs = [_original(path) for path in probes[probe] if path.name == "stdout.log"]
            originals.append(max(outputs, default=0))
            if logs:
                memory = max(map(_probe_memory, logs))
                rows.append((called, batch, names.get(probe, probe), memory, logs[0].parent))
                if not memory:
                    problem = f"no event.log of {model}, batch size {batch}, {probe} says what the probe's memory is"
                    raise InputError(logs[0], "", problem, "give logs with lines '[exec] probe-mem'")
        if not any(originals):
            some = next(iter(probes.values()))[0].parent
            problem = f"no stdout.log of {model}, batch size {batch} has a line 'max memory:'"
            raise InputError(some, "", problem, "add the memory that it uses without a probe, in bytes")
        rows.append((called, batch, ORIGINAL, max(originals), folder))
        spreads.append(max(originals) / min(filter(None, originals)) - 1)
    table = pd.DataFrame(rows, columns=[*WORKLOAD, "use", "memory_bytes", "place"])
    twice = table.duplicated([*WORKLOAD, "use"])
    if twice.any():
        row = table[twice].iloc[0]
        problem = f"a second folder for {row['model']}, {row['batch_size']}, {row['use']}"
        raise InputError(row["place"], "", problem, "give them different names")
    # The original use comes first, as in a table.
    first = table["use"].ne(ORIGINAL)
    group = table.groupby(WORKLOAD, sort=False).ngroup()
    table = table.iloc[np.lexsort((np.arange(len(table)), first, group))].reset_index(drop=True)
    return table.drop(columns="place"), max(spreads)


def _original(path: Path) -> int:
    """Bytes of the first ``max memory:`` of a process's output; 0 without one."""
    if not path.stat().st_size:
        return 0
    for number, line in enumerate(read_lines(path, "give what the workload printed"), 1):
        if line.startswith("max memory:"):
            word = (line.split() or [""])[-1]
            if not re.fullmatch(r"\d{1,15}", word):
                raise InputError(path, f"line {number}", f"{word[:40]!r} is not a number of bytes", "correct it")
            return int(word)
    return 0


def _probe_memory(path: Path) -> int:
    """Bytes of the largest ``[exec] probe-mem`` of an event.log; 0 without one. All other lines are passed over."""
    lines = read_lines(path, "give the event.log of a trace directory") if path.stat().st_size else []
    found = (re.match(r"\[exec\] probe-mem (\d{1,15})(?!\d)", line) for line in lines)
    return max((int(match[1]) for match in found if match), default=0)


def _summarise_memory(result: CaseResult, table: pd.DataFrame) -> None:
    result.add("workloads", len(table.drop_duplicates(WORKLOAD)), "workload")
    words = []
    for name in ("lightweight", "dmat"):
        rows = table[table["probe_class"] == name]
        if rows.empty:
            continue
        ratio = rows["ratio_to_original"]
        largest = rows.loc[ratio.idxmax()]
        worst = rows.groupby(WORKLOAD)["ratio_to_original"].max()
        for measure in ("min", "median", "max"):
            result.add(f"{name}_ratio_{measure}", ratio.agg(measure), "1")
        result.add(f"{name}_ratio_max_of", f"{largest['model']}, batch size {largest['batch_size']}", "text")
        result.add(f"{name}_above_tenth", (worst > 0.1).sum(), "workload")
        result.add(f"{name}_above_original", (worst > 1).sum(), "workload")
        words.append(f"{name} {share_text(ratio.median(), 2)} (≤ {share_text(ratio.max(), 2)})")
    result.add("finding", f"Probe memory against the original use, median: {', '.join(words)}", "text")
    wide = table.pivot(index=WORKLOAD, columns="use", values="memory_bytes")
    if {"gmem_bytes", "block_sched"} <= set(wide):
        quotient = wide["gmem_bytes"] / wide["block_sched"]
        for measure in ("min", "median", "max"):
            result.add(f"gmem_to_block_sched_{measure}", quotient.agg(measure), "1")
    for family, falls in _share_falls(table).items():
        result.add(f"{family}_share_falls_with_size", falls, "text")


def _share_falls(table: pd.DataFrame) -> dict[str, bool]:
    """By family of models that differ in their number of parameters: do all shares fall from size to size?"""
    names = table["model"].str.extract(r"^(?P<family>.+)-(?P<size>\d+(?:\.\d+)?)B$")
    rows = table[table["use"] != ORIGINAL].join(names).dropna(subset="family")
    rows = rows.assign(size=rows["size"].astype(float)).sort_values("size")
    answers: dict[str, bool] = {}
    for (family, _, _), group in rows.groupby(["family", "batch_size", "use"]):
        if group["size"].nunique() > 1:
            falls = bool((group["ratio_to_original"].diff().dropna() < 0).all())
            answers[slug(family)] = answers.get(slug(family), True) and falls
    return answers


def memory_text(memory_bytes: float) -> str:
    """Put bytes in the largest binary unit that leaves a number of at least one: ``7.08 GB``."""
    unit = next((unit for unit in ("GB", "MB", "KB") if memory_bytes >= UNIT_BYTES[unit]), None)
    return f"{memory_bytes / UNIT_BYTES[unit]:.4g} {unit}" if unit else f"{memory_bytes:g} B"


def share_text(ratio: float, digits: int = 3) -> str:
    """Put a ratio in words: ``17.4 %`` below one, ``12.9×`` from one on."""
    value, unit = (ratio, "×") if ratio >= 1 else (100 * ratio, " %")
    return f"{float(f'{value:.{digits}g}'):.10g}{unit}"


def memory_series(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of every probe, by name; probes that need the same memory everywhere are one series, ``a = b``."""
    probes = dict.fromkeys(data.loc[data["use"] != ORIGINAL, "use"])
    wide = data.pivot(index=["model", "batch_size"], columns="use", values="memory_bytes").fillna(0)
    series: dict[tuple, list[str]] = {}
    for probe in probes:
        series.setdefault(tuple(wide[probe]), []).append(probe)
    return {" = ".join(equal): data[data["use"] == equal[0]] for equal in series.values()}


def memory_table(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row a workload, in the order of the input.

    Returns
    -------
    frame : DataFrame
        By use, ``<use>_bytes``, and by probe ``<probe>_ratio_to_original``.
    people : DataFrame
        By use one text, ``98 MB (17.4 %)``.
    """
    order = pd.MultiIndex.from_frame(data[["model", "batch_size"]].drop_duplicates())
    columns, texts = {}, {}
    for use in dict.fromkeys([ORIGINAL, *data["use"]]):
        rows = data[data["use"] == use].set_index(["model", "batch_size"]).reindex(order)
        columns[f"{use}_bytes"] = rows["memory_bytes"].astype("Int64")
        cells = rows["memory_bytes"].map(memory_text, na_action="ignore")
        if use != ORIGINAL:
            columns[f"{use}_ratio_to_original"] = rows["ratio_to_original"]
            cells = cells + " (" + rows["ratio_to_original"].map(share_text, na_action="ignore") + ")"
        texts[use] = cells
    return pd.DataFrame(columns).reset_index(), pd.DataFrame(texts).reset_index()
