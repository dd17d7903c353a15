"""From a trace of memory accesses to a grid of pages and clocks, and to when each tensor is touched."""

from __future__ import annotations

from math import ceil, floor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.passes import Passes
from gpuledger.readers import neutrino
from gpuledger.studies.dmat import bursts, tensors

if TYPE_CHECKING:
    from gpuledger.studies.dmat.grid import GridLayout
    from gpuledger.studies.dmat.scan import Accesses, Counts, Survey

PAGE_BYTES = neutrino.PAGE_BYTES
#: Unit by quantity of a tensor. Not every tensor has all of them.
QUANTITIES = {
    "shape": "text",
    "address": "text",
    "bytes": "B",
    "pages": "page",
    "accesses": "access",
    "reuse": "access/page",
    "first_touch": "%",
    "last_touch": "%",
    "holes": "%",
    "empty_columns": "column",
    "bursts": "burst",
    "first_burst": "%",
    "last_burst": "%",
    "denser_from": "%",
    "denser_ratio": "1",
}
#: Where tensors are known from.
LOGS = {"event_log": "event.log", "tensor_trace": "tensor.trace"}
DECLARED, GAPS = "dataset.yaml", "gaps between pages"
INFERRED = "inferred from how often and when pages are touched"
#: Tensors of these names would clash with other quantities.
RESERVED = frozenset({"neutrino", "pages"})
#: At most this many tensors are kept apart; the least used others are summed up.
MOST_TENSORS = 24
OTHERS = -2
WITHOUT_TENSOR = {-1: tensors.UNKNOWN, OTHERS: "others"}
REMEDY = "give a .bin of a trace directory's result folder, or a .dmat"


def reduce(
    case: Case, rows: int = 100, columns: int = 160, threads: int | None = None, passes: Passes | None = None
) -> CaseResult:
    """Reduce a trace of memory accesses to a grid of pages and clocks.

    Parameters
    ----------
    rows, columns : int
        Of the grid: approximate number of rows, largest number of columns. The compatible grid has 101 and 161.
    threads : int, optional
        That read a ``.bin``; by default as many as there are processors, up to 8.
    passes : Passes, optional
        Where parts of a large ``.bin`` were read apart; by default all is done here.

    Returns
    -------
    CaseResult
        Data: ``tensor, row, column, accesses``, a row for each cell that is touched. Row 0 has the lowest addresses;
        in the compatible grid that is row 100. A column is ``column_cycles`` wide. Summary: totals, and for each
        tensor the quantities of ``QUANTITIES``.
    """
    # Only here: it compiles loops, and figures do without.
    from gpuledger.studies.dmat import grid

    if min(rows, columns) < 1:
        problem = f"a grid cannot have {rows} rows and {columns} columns"
        raise InputError("config/config.yaml", "key knobs.dmat", problem, "give at least one of each")
    path = tensors.find_trace(case.path("trace"))
    result = CaseResult(pd.DataFrame())
    log_path, trace_path = (
        case.path(key) if key in case.inputs else case.beside("trace", name) for key, name in LOGS.items()
    )
    log = neutrino.read_event_log(log_path) if log_path else None
    trace = neutrino.read_tensor_trace(trace_path) if trace_path else None
    kernel = case.inputs.get("kernel") or tensors.kernel_name(log, path)
    if kernel:
        result.add("kernel", kernel, "text")
    accesses = open_accesses(path, threads, passes)
    survey = accesses.survey()
    if not survey.records:
        raise InputError(path, "", "no access was saved: every slot is empty", "trace a kernel that accesses memory")
    upstream = _as_counted_upstream(survey)
    if case.inputs.get("compatible", False):
        known, known_from = [], ""
        if "tensors" in case.inputs:
            known, known_from = tensors.declared(case, survey.pages), DECLARED
        elif trace is not None:
            known, known_from = tensors.newest(trace), LOGS["tensor_trace"]
        try:
            layout = grid.compatible(upstream, known)
        except ZeroDivisionError:
            size = f"{upstream.pages.size} pages and {upstream.max_clock} cycles"
            problem = f"the compatible grid divides by zero on {size}"
            raise case.error("compatible", problem, "leave out compatible: it needs 99 pages and 159 cycles") from None
        counts = accesses.count(upstream, layout.plan)
        if survey.unsaved:
            counts.cells[layout.plan.lines_of[0], 0] += survey.unsaved
            counts.first[layout.plan.lines_of[0]] = 0
        shown = grid.SHOWN
    else:
        known, known_from = _known_tensors(case, trace, log, path, accesses, survey)
        layout = grid.by_tensor(survey, tensors.divide(known), rows, columns)
        counts = accesses.count(survey, layout.plan)
        shown = None
    frame, owned = _frames(layout, counts, known, shown)
    result.data = frame
    _summarise(result, survey, upstream, layout, counts)
    _summarise_tensors(result, owned, survey.max_clock)
    result.add("tensors_from", known_from or "nothing", "text")
    result.add("compatible", case.inputs.get("compatible", False), "text")
    result.add("finding", _finding(result, case), "text")
    return result


def open_accesses(path: Path, threads: int | None = None, passes: Passes | None = None) -> Accesses:
    """Open a trace of memory accesses.

    Parameters
    ----------
    path : path
        A ``.bin``, which stays in its file, or a ``.dmat``.
    """
    from gpuledger.studies.dmat.scan import RECORD_BYTES, RecordedAccesses, SummedAccesses, processors

    if path.suffix == ".dmat":
        return SummedAccesses(neutrino.read_dmat(path))
    if path.suffix != ".bin":
        raise InputError(path, "", f"a file {path.suffix or 'without a suffix'} is not a trace", REMEDY)
    section = neutrino.open_trace(path).section(0)
    if section.level != "thread" or section.bytes_per_unit % RECORD_BYTES:
        problem = f"{section.bytes_per_unit} bytes per {section.level} are not accesses of every thread"
        raise InputError(path, "section 0", problem, "give a trace of the probe dmat")
    return RecordedAccesses(path, section.offset, section.bytes, threads or processors(), passes or Passes())


def _as_counted_upstream(survey: Survey) -> Survey:
    """Add the page and the clock that slots which were not saved look like."""
    from gpuledger.studies.dmat.scan import Survey

    if not survey.unsaved:
        return survey
    pages = survey.pages if survey.pages[0] == 0 else np.concatenate([np.zeros(1, np.uint64), survey.pages])
    return Survey(**vars(survey) | {"pages": pages, "clocks": survey.clocks + (not survey.zero_clock)})


def _known_tensors(
    case: Case,
    trace: pd.DataFrame | None,
    log: neutrino.EventLog | None,
    path: Path,
    accesses: Accesses,
    survey: Survey,
) -> tuple[list[tensors.Tensor], str]:
    """Return the tensors whose memory may be touched, and where they are known from."""
    if "tensors" in case.inputs:
        return tensors.declared(case, survey.pages), DECLARED
    if trace is not None and (found := tensors.of_launch(trace, log, path)):
        return found, LOGS["tensor_trace"]
    if trace is None and log is not None and (found := tensors.of_allocations(log, path)):
        return found, LOGS["event_log"]
    from gpuledger.studies.dmat import inference

    regions = tensors.regions(survey.pages)
    found = inference.divide_regions(regions, accesses, survey)
    return found, GAPS if len(found) == len(regions) else INFERRED


def _frames(
    layout: GridLayout, counts: Counts, known: list[tensors.Tensor], shown: int | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the grid, and of each tensor what the lines say of it.

    Parameters
    ----------
    shown : int or None
        Keep only this many tensors, the first of the list, and leave rows unchanged, as the script of the traces does.
    """
    touched = counts.cells.sum(axis=1)
    lines_of: dict[int, list[int]] = {}
    for line in np.flatnonzero(touched).tolist():
        for owner in layout.owners[line]:
            lines_of.setdefault(owner, []).append(line)
    rows = layout.rows
    if shown is not None:
        lines_of = dict(sorted(lines_of.items(), key=lambda entry: (entry[0] < 0, entry[0]))[:shown])
    else:
        rows = np.searchsorted(np.unique(rows[touched > 0]), rows)
        least = sorted(lines_of, key=lambda owner: -touched[lines_of[owner]].sum())[MOST_TENSORS:]
        if least:
            lines_of[OTHERS] = [line for owner in least for line in lines_of.pop(owner)]
    parts, about = [], []
    for owner, lines in lines_of.items() if shown is not None else sorted(lines_of.items()):
        cells = pd.DataFrame(counts.cells[lines], index=rows[lines]).groupby(level=0).sum()
        row, column = np.nonzero(cells.to_numpy())
        part = pd.DataFrame({"row": cells.index.to_numpy()[row], "column": column})
        parts.append(part.assign(owner=owner, accesses=cells.to_numpy()[row, column]))
        between = cells.to_numpy()[:, column.min() : column.max() + 1]
        tensor = known[owner] if owner >= 0 else tensors.Tensor(WITHOUT_TENSOR[owner], 0, 0)
        about.append(
            {
                "owner": owner,
                "name": tensor.name,
                "shape": "×".join(map(str, tensor.shape)),
                "address": f"{tensor.address:#x}" if owner >= 0 else "",
                "bytes": tensor.bytes if owner >= 0 else "",
                "pages": layout.number_of_pages(lines),
                "accesses": int(cells.to_numpy().sum()),
                "first": int(counts.first[lines].min()),
                "last": int(counts.last[lines].max()),
                "holes": 100 * float((between == 0).mean()),
                "empty_columns": int((between == 0).all(axis=0).sum()),
                **_rhythm(cells.sum(axis=0).to_numpy(), layout.plan.width),
            }
        )
    owned = pd.DataFrame(about).set_index("owner")
    owned["name"] = _distinct(owned["name"])
    frame = pd.concat(parts, ignore_index=True)
    # In the compatible grid the order of tensors is that in which the script draws them over one another.
    frame = frame if shown is not None else frame.sort_values(["row", "column", "owner"], ignore_index=True)
    frame.insert(0, "tensor", owned["name"].reindex(frame["owner"]).to_numpy())
    return frame[["tensor", "row", "column", "accesses"]].astype({"row": "int32", "column": "int32"}), owned


def _rhythm(accesses: np.ndarray, width: int) -> dict[str, float]:
    """Return a tensor's bursts and where its accesses become denser; clocks are those of the columns' middles."""
    found = bursts.find_bursts(accesses)
    if not found:
        return {}
    rhythm = {"bursts": len(found)} | {
        f"{which}_burst": (found[place] + 0.5) * width for which, place in (("first", 0), ("last", -1))
    }
    # Stripes are denser than the gaps between them wherever one divides them.
    if len(found) == 1 and (denser := bursts.denser_from(accesses)):
        rhythm |= {"denser_from": denser[0] * width, "denser_ratio": denser[1]}
    return rhythm


def _distinct(names: pd.Series) -> pd.Series:
    """Number the names that occur more than once."""
    again = (names.groupby(names).cumcount() + 1).astype(str)
    return names.where(~names.duplicated(keep=False), names + " (" + again + ")")


def _summarise(result: CaseResult, survey: Survey, upstream: Survey, layout: GridLayout, counts: Counts) -> None:
    data = result.data
    unmatched = data.loc[data["tensor"] == tensors.UNKNOWN, "accesses"].sum()
    result.add("records", survey.records, "record")
    result.add("unsaved_slots", survey.unsaved, "record")
    result.add("pages", survey.pages.size, "page")
    result.add("pages_bytes", survey.pages.size * PAGE_BYTES, "B")
    result.add("clocks", survey.clocks, "clock")
    result.add("max_clock", survey.max_clock, "cycle")
    result.add("reuse", survey.records / survey.pages.size, "access/page")
    result.add("neutrino_pages", upstream.pages.size, "page")
    result.add("neutrino_clocks", upstream.clocks, "clock")
    result.add("neutrino_max_clock", upstream.max_clock, "cycle")
    result.add("rows", int(data["row"].max()) + 1, "row")
    result.add("columns", layout.plan.columns, "column")
    result.add("column_cycles", layout.plan.width, "cycle")
    result.add("records_beyond_axis", counts.late, "record")
    result.add("unmatched_percent", 100 * unmatched / data["accesses"].sum(), "%")
    result.add("tensors", data["tensor"].nunique() - int(bool(unmatched)), "tensor")


def _summarise_tensors(result: CaseResult, owned: pd.DataFrame, max_clock: int) -> None:
    about = owned.set_index("name")
    about["reuse"] = about["accesses"] / about["pages"]
    about = about.rename(columns={"first": "first_touch", "last": "last_touch"})
    for quantity in {quantity for quantity, unit in QUANTITIES.items() if unit == "%"} - {"holes"}:
        if quantity in about:
            about[quantity] = 100 * about[quantity] / max(max_clock, 1)
    for name, prefix in prefixes(result.data).items():
        for quantity, unit in QUANTITIES.items():
            value = about.at[name, quantity] if quantity in about else ""
            if not (isinstance(value, str) and value == "") and not pd.isna(value):
                result.add(f"{prefix}_{quantity}", int(value) if quantity == "bursts" else value, unit)


def prefixes(data: pd.DataFrame) -> dict[str, str]:
    """Return the prefix of every tensor's quantities in the summary, by tensor, in grid order."""
    found: dict[str, str] = {}
    for name in data["tensor"].unique():
        prefix = base = slug(name) or "tensor"
        number = 1
        while prefix in found.values() or prefix in RESERVED:
            number += 1
            prefix = f"{base}_{number}"
        found[name] = prefix
    return found


def _finding(result: CaseResult, case: Case) -> str:
    """Say when the most accessed tensors are touched."""
    title = result.get("kernel", case.name)
    title = title if len(title) <= 60 else f"{title[:59]}…"
    title = f"Simulated {title}" if case.dataset.made_here else title
    if result["compatible"] == "yes":
        size = f"{result['neutrino_pages']:,} pages and {result['neutrino_max_clock']:,} cycles"
        return f"{title}: {size} in the grid of the script that comes with the traces"
    found, columns = [], result.data.groupby("tensor")["column"]
    mostly = 2 * (columns.nunique() - 1) >= columns.max() - columns.min()
    for name, prefix in prefixes(result.data).items():
        values = (result[f"{prefix}_{quantity}"] for quantity in ("accesses", "first_touch", "last_touch"))
        found.append((name, *values))
    named = [entry for entry in found if entry[0] != WITHOUT_TENSOR[OTHERS]]
    most = sorted(named, key=lambda entry: -entry[1])[:5]
    kinds: dict[str, list[str]] = {"throughout": []}
    for name, _, first, last in sorted(most, key=lambda entry: entry[2:]):
        if first < 20:
            throughout = "throughout" if mostly[name] else "early, late and rarely in between"
            when = throughout if last > 80 else f"only in the first {ceil(last)} %"
        else:
            when = f"only after {floor(first)} %" if last > 80 else f"only from {floor(first)} to {ceil(last)} %"
        kinds.setdefault(when, []).append(name)
    kinds = {when: names for when, names in kinds.items() if names}
    first = next(iter(kinds))
    words = [f"{_enumerate(names)}{' touched' * (when == first)} {when}" for when, names in kinds.items()]
    unit = " of the cycles" if "%" in words[-1] else ""
    rest = f" ({result['tensors']} tensors in all)" if len(found) > 5 else ""
    return f"{title}: {', '.join(words)}{unit}{rest}"


def _enumerate(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
