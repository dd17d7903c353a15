"""Memory usage: how much memory probes need (S. Huang, C. Wu, OSDI 2025, Fig. 12)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.ledger.case_result import CaseResult, quantity_names, slug
from gpuledger.ledger.datasets import Case, folder_files
from gpuledger.readers import tabular
from gpuledger.readers.neutrino.lines import read_lines
from gpuledger.readers.neutrino.runs import logs_by_run
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.memory_usage.tables import ORIGINAL, UNIT_BYTES, share_text, workload_text

WORKLOAD = ["model", "batch_size"]
_NEED = {"lightweight": "lightweight probes need", "iteration": "records per iteration need", "dmat": "DMAT needs"}


def reduce(
    case: Case,
    dmat_probes: Sequence[str] = ("mem_trace", "dmat"),
    iteration_probes: Sequence[str] = ("program_progress",),
) -> CaseResult:
    """Reduce the memory that probes allocate to shares of what the workload uses without them.

    Parameters
    ----------
    dmat_probes : sequence of str
        Probes that record every memory access.
    iteration_probes : sequence of str
        Probes that record every iteration of a loop. All others write once, at the end, and are lightweight.

    Returns
    -------
    CaseResult
        Data: ``model, batch_size, use, memory_bytes, ratio_to_original, probe_class``; a batch size of 0 is not
        known. The summary also holds every cell, as ``<model>_bs<batch size>_<use>_memory``.
    """
    path, spread = case.path("traces" if "traces" in case.inputs else "table"), None
    if "traces" in case.inputs:
        table, spread = measure_memory(path, case.inputs.get("names", {}))
    else:
        table = _read_memory(path)
    originals = table[table["use"] == ORIGINAL].set_index(WORKLOAD)["memory_bytes"]
    original = originals.reindex(pd.MultiIndex.from_frame(table[WORKLOAD])).to_numpy()
    table["ratio_to_original"] = table["memory_bytes"] / original
    kinds = dict.fromkeys(iteration_probes, "iteration") | dict.fromkeys(dmat_probes, "dmat")
    kinds[ORIGINAL] = ORIGINAL
    table["probe_class"] = table["use"].map(kinds).fillna("lightweight")
    table = table[[*WORKLOAD, "use", "memory_bytes", "ratio_to_original", "probe_class"]]
    if (table["use"] == ORIGINAL).all():
        raise InputError(path, "column use", "there is no probe", "add rows with the memory that probes allocate")
    result = CaseResult(table)
    _summarise_memory(result, table)
    if spread is not None:
        result.add("original_spread_percent", 100 * spread, "%")
    sizes = [f" bs{size}" if size else "" for size in table["batch_size"]]
    cells = table.assign(workload=table["model"] + sizes)
    for name, memory in zip(quantity_names(case, cells, ["workload", "use"]), table["memory_bytes"], strict=True):
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
        problem = f"no row '{ORIGINAL}' for {workload_text(table['model'][row], table['batch_size'][row])}"
        raise InputError(path, f"line {row + 2}", problem, "add the memory that it uses without a probe")
    return table


def measure_memory(folder: Path, names: Mapping[str, str]) -> tuple[pd.DataFrame, float]:
    """Measure what workloads and probes need from the logs of runs.

    A log belongs to the folder ``<model>-bs<batch size>/<probe>`` that it is in, at any depth. A folder without a batch
    size is read with a warning, and its batch size is 0. As in the notebook that
    comes with Neutrino's traces, the original use is the first ``max memory:`` of a ``stdout.log``, in bytes, and a
    probe's memory is what one launch needs, ``[exec] probe-mem`` in ``event.log``; of several, the largest. If the
    probes of one workload differ in their original use, the largest is used for all.

    Parameters
    ----------
    names : mapping of str to str
        Names of models (without their batch size) and probes in the result, which is in this order; others follow and
        keep the names of their folders.

    Returns
    -------
    table : DataFrame
        ``model, batch_size, use, memory_bytes``.
    spread : float
        The largest relative difference between the original uses of one workload.

    Warns
    -----
    InputWarning
        Of folders without a batch size.
    """
    layout = "<model>-bs<batch size>/<probe>"
    runs: dict[tuple[str, int], dict[str, list[Path]]] = {}
    found = logs_by_run(folder, folder_files(folder), ("stdout.log", "event.log"), layout)
    for (workload, probe), logs in found.items():
        named = re.fullmatch(r"(.+?)[-_]bs([1-9]\d{0,8})", workload)
        if not named:
            warn(
                folder / workload,
                "",
                "the name of the folder does not end in -bs<batch size>",
                "its batch size is unknown",
            )
        key = (named[1], int(named[2])) if named else (workload, 0)
        runs.setdefault(key, {}).setdefault(probe, []).extend(logs)
    order = {name: position for position, name in enumerate(names)}
    rows, spreads = [], []
    for model, batch in sorted(runs, key=lambda run: (order.get(run[0], len(order)), run)):
        probes = runs[model, batch]
        originals, own, called = [], [], names.get(model, model)
        for probe in sorted(probes, key=lambda probe: (order.get(probe, len(order)), probe)):
            logs = [path for path in probes[probe] if path.name == "event.log"]
            outputs = [_original(path) for path in probes[probe] if path.name == "stdout.log"]
            originals.append(max(outputs, default=0))
            if logs:
                memory = max(map(_probe_memory, logs))
                own.append((called, batch, names.get(probe, probe), memory, logs[0].parent))
                if not memory:
                    problem = f"no event.log of {workload_text(model, batch)}, {probe} states the probe's memory"
                    raise InputError(logs[0], "", problem, "give logs with lines '[exec] probe-mem'")
        if not any(originals):
            some = next(iter(probes.values()))[0].parent
            problem = f"no stdout.log of {workload_text(model, batch)} has a line 'max memory:'"
            raise InputError(some, "", problem, "add the memory that it uses without a probe, in bytes")
        # The original use comes first, as in a table.
        rows += [(called, batch, ORIGINAL, max(originals), folder), *own]
        spreads.append(max(originals) / min(filter(None, originals)) - 1)
    table = pd.DataFrame(rows, columns=[*WORKLOAD, "use", "memory_bytes", "place"])
    twice = table.duplicated([*WORKLOAD, "use"])
    if twice.any():
        row = table[twice].iloc[0]
        problem = f"a second folder for {row['model']}, {row['batch_size']}, {row['use']}"
        raise InputError(row["place"], "", problem, "give them different names")
    return table.drop(columns="place"), max(spreads)


def _original(path: Path) -> int:
    """Return the bytes of the first ``max memory:`` in a process's output; 0 without one."""
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
    """Return the bytes of the largest ``[exec] probe-mem`` in an event.log, whatever the other lines; 0 without one."""
    lines = read_lines(path, "give the event.log of a trace directory") if path.stat().st_size else []
    found = (re.match(r"\[exec\] probe-mem (\d{1,15})(?!\d)", line) for line in lines)
    return max((int(match[1]) for match in found if match), default=0)


def _summarise_memory(result: CaseResult, table: pd.DataFrame) -> None:
    result.add("workloads", len(table.drop_duplicates(WORKLOAD)), "workload")
    words = []
    for name, probes in _NEED.items():
        rows = table[table["probe_class"] == name]
        if rows.empty:
            continue
        ratio = rows["ratio_to_original"]
        largest = rows.loc[ratio.idxmax()]
        worst = rows.groupby(WORKLOAD)["ratio_to_original"].max()
        for measure in ("min", "median", "max"):
            result.add(f"{name}_ratio_{measure}", ratio.agg(measure), "1")
        result.add(f"{name}_ratio_max_of", workload_text(largest["model"], largest["batch_size"]), "text")
        result.add(f"{name}_above_tenth", (worst > 0.1).sum(), "workload")
        result.add(f"{name}_above_original", (worst > 1).sum(), "workload")
        usual, most = share_text(ratio.median(), 2), share_text(ratio.max(), 2)
        whole = "" if words else " of the workload's memory"
        words.append(f"{probes} {usual}{whole}{f' (at most {most})' if most != usual else ''}")
    result.add("finding", f"At the median, {', '.join(words)}", "text")
    wide = table.pivot(index=WORKLOAD, columns="use", values="memory_bytes")
    if {"gmem_bytes", "block_sched"} <= set(wide):
        quotient = wide["gmem_bytes"] / wide["block_sched"]
        for measure in ("min", "median", "max"):
            result.add(f"gmem_to_block_sched_{measure}", quotient.agg(measure), "1")
    for family, falls in _share_falls(table).items():
        result.add(f"{family}_share_falls_with_size", falls, "text")


def _share_falls(table: pd.DataFrame) -> dict[str, bool]:
    """Return by family of models (``llama3`` of ``Llama3-8B``) whether all shares fall as the model grows."""
    names = table["model"].str.extract(r"^(?P<family>.+)-(?P<size>\d+(?:\.\d+)?)B$")
    rows = table[table["use"] != ORIGINAL].join(names).dropna(subset="family")
    rows = rows.assign(size=rows["size"].astype(float)).sort_values("size", kind="stable")
    answers: dict[str, bool] = {}
    for (family, _, _), group in rows.groupby(["family", "batch_size", "use"]):
        if group["size"].nunique() > 1:
            falls = bool((group["ratio_to_original"].diff().dropna() < 0).all())
            answers[slug(family)] = answers.get(slug(family), True) and falls
    return answers
