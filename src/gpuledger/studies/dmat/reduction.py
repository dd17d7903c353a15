"""From a trace of memory accesses to a grid of pages and clocks, and to when each tensor is touched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.readers import neutrino
from gpuledger.studies.dmat import tensors

if TYPE_CHECKING:
    from gpuledger.studies.dmat.grid import Layout
    from gpuledger.studies.dmat.scan import Accesses, Counts, Survey

PAGE_BYTES = neutrino.PAGE_BYTES
#: By quantity of a tensor: unit, header and format for people.
QUANTITIES = {
    "shape": ("text", "shape", str),
    "address": ("text", "address", str),
    "bytes": ("B", "size (B)", None),
    "pages": ("page", "pages", None),
    "accesses": ("access", "accesses", None),
    "reuse": ("access/page", "accesses per page", None),
    "first_touch": ("%", "first touch (%)", "{:.1f}"),
    "last_touch": ("%", "last touch (%)", "{:.1f}"),
    "holes": ("%", "holes (%)", "{:.1f}"),
    "empty_columns": ("column", "empty columns", None),
}
#: Tensors of these names would clash with other quantities.
RESERVED = frozenset({"neutrino", "pages"})
#: At most this many tensors are kept apart; the least used others are summed up.
MOST_TENSORS = 24
OTHERS = -2
WITHOUT_TENSOR = {-1: tensors.UNKNOWN, OTHERS: "others"}
REMEDY = "give a .bin of a trace directory's result folder, or a .dmat"


def reduce(case: Case, rows: int = 100, columns: int = 160, threads: int | None = None) -> CaseResult:
    """Reduce a trace of memory accesses to a grid of pages and clocks.

    Parameters
    ----------
    case : Case
        ``trace``: a ``.bin`` of the probe dmat, or a ``.dmat``. ``tensor_trace`` and ``event_log`` say whose memory is
        touched; without them pages are told apart by the gaps between them. ``compatible``: make the grid of the
        script that comes with the traces, count for count. ``kernel``: a text for titles.
    rows, columns : int
        Of the grid: about so many rows, and at most so many columns. The compatible grid has 101 and 161.
    threads : int, optional
        That read a ``.bin``; by default as many as there are processors, up to 8.

    Returns
    -------
    CaseResult
        Data: ``tensor, row, column, accesses``, a row for each cell that is touched. Row 0 has the lowest addresses;
        in the compatible grid that is row 100. A column is ``column_cycles`` wide. Summary: totals, and for each
        tensor the quantities of ``QUANTITIES``.

    Raises
    ------
    InputError
        A file that is missing or not what it should be, a trace without accesses, a compatible grid of too few pages or
        clocks.
    """
    # Only here: it compiles loops, and figures do without.
    from gpuledger.studies.dmat import grid

    if min(rows, columns) < 1:
        problem = f"{rows} rows and {columns} columns are no grid"
        raise InputError("config/config.yaml", "key studies.dmat.knobs", problem, "give at least one of each")
    path = case.path("trace")
    result = CaseResult(pd.DataFrame())
    log = neutrino.read_event_log(case.path("event_log")) if "event_log" in case.inputs else None
    kernel = case.inputs.get("kernel") or tensors.kernel_name(log, path)
    if kernel:
        result.add("kernel", kernel, "text")
    accesses = open_accesses(path, threads)
    survey = accesses.survey()
    if not survey.records:
        raise InputError(path, "", "no access was saved: every slot is empty", "trace a kernel that accesses memory")
    upstream = _as_counted_upstream(survey)
    if case.inputs.get("compatible", False):
        known = tensors.newest(_tensor_trace(case)) if "tensor_trace" in case.inputs else []
        try:
            layout = grid.compatible(upstream, known)
        except ZeroDivisionError:
            size = f"{upstream.pages.size} pages and {upstream.max_clock} cycles"
            problem = f"the compatible grid divides by zero on {size}"
            remedy = "leave out compatible: it needs 99 pages and 159 cycles"
            raise InputError(case.dataset.file, f"{case.place}.compatible", problem, remedy) from None
        counts = accesses.count(upstream, layout.plan)
        if survey.unsaved:
            counts.cells[layout.plan.lines_of[0], 0] += survey.unsaved
            counts.first[layout.plan.lines_of[0]] = 0
        shown = grid.SHOWN
    else:
        known = _known_tensors(case, log, path, survey)
        layout = grid.by_tensor(survey, tensors.divide(known), rows, columns)
        counts = accesses.count(survey, layout.plan)
        shown = None
    frame, owned = _frames(layout, counts, known, shown)
    result.data = frame
    _summarise(result, survey, upstream, layout, counts)
    _summarise_tensors(result, owned, survey.max_clock)
    result.add("compatible", case.inputs.get("compatible", False), "text")
    result.add("finding", _finding(result, case.name), "text")
    return result


def open_accesses(path: Path, threads: int | None = None) -> Accesses:
    """Open a trace of memory accesses.

    Parameters
    ----------
    path : path
        A ``.bin``, which stays in its file, or a ``.dmat``.
    threads : int, optional
    """
    from gpuledger.studies.dmat.scan import RECORD_BYTES, RecordedAccesses, SummedAccesses, processors

    if path.suffix == ".dmat":
        return SummedAccesses(neutrino.read_dmat(path))
    if path.suffix != ".bin":
        raise InputError(path, "", f"a file {path.suffix or 'without a suffix'} is no trace", REMEDY)
    section = neutrino.open_trace(path).section(0)
    if section.level != "thread" or section.bytes_per_unit % RECORD_BYTES:
        problem = f"{section.bytes_per_unit} bytes for each {section.level} are no accesses of each thread"
        raise InputError(path, "section 0", problem, "give a trace of the probe dmat")
    return RecordedAccesses(path, section.offset, section.bytes, threads or processors())


def _as_counted_upstream(survey: Survey) -> Survey:
    """Add the page and the clock that slots which were not saved look like."""
    from gpuledger.studies.dmat.scan import Survey

    if not survey.unsaved:
        return survey
    pages = survey.pages if survey.pages[0] == 0 else np.concatenate([np.zeros(1, np.uint64), survey.pages])
    return Survey(**vars(survey) | {"pages": pages, "clocks": survey.clocks + (not survey.zero_clock)})


def _tensor_trace(case: Case) -> pd.DataFrame:
    return neutrino.read_tensor_trace(case.path("tensor_trace"))


def _known_tensors(case: Case, log: neutrino.EventLog | None, path: Path, survey: Survey) -> list[tensors.Tensor]:
    found = []
    if "tensor_trace" in case.inputs:
        found = tensors.of_launch(_tensor_trace(case), log, path)
    elif log is not None:
        found = tensors.of_allocations(log, path)
    return found or tensors.regions(survey.pages, PAGE_BYTES)


def _frames(
    layout: Layout, counts: Counts, known: list[tensors.Tensor], shown: int | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the grid, and of each tensor what the lines say of it.

    Parameters
    ----------
    layout : Layout
    counts : Counts
    known : list of Tensor
    shown : int or None
        Keep the first so many tensors of the list, and leave rows as they are: as the script of the traces does.
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
            }
        )
    owned = pd.DataFrame(about).set_index("owner")
    owned["name"] = _distinct(owned["name"])
    frame = pd.concat(parts, ignore_index=True)
    # In the compatible grid the order of tensors is that in which the script draws them over one another.
    frame = frame if shown is not None else frame.sort_values(["row", "column", "owner"], ignore_index=True)
    frame.insert(0, "tensor", owned["name"].reindex(frame["owner"]).to_numpy())
    return frame[["tensor", "row", "column", "accesses"]].astype({"row": "int32", "column": "int32"}), owned


def _distinct(names: Iterable[str]) -> list[str]:
    """Number the names that occur more than once."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    again: dict[str, int] = {}
    named = []
    for name in names:
        again[name] = again.get(name, 0) + 1
        named.append(name if seen[name] == 1 else f"{name} ({again[name]})")
    return named


def _summarise(result: CaseResult, survey: Survey, upstream: Survey, layout: Layout, counts: Counts) -> None:
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
    about["first_touch"], about["last_touch"] = (100 * about[end] / max(max_clock, 1) for end in ("first", "last"))
    for name, prefix in prefixes(result.data).items():
        for quantity, (unit, *_) in QUANTITIES.items():
            value = about.at[name, quantity]
            if value != "":
                result.add(f"{prefix}_{quantity}", value, unit)


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


def _finding(result: CaseResult, case: str) -> str:
    """Say when the most accessed tensors are touched."""
    title = result.summary.get("kernel", {"value": case})["value"]
    title = title if len(title) <= 60 else f"{title[:59]}…"
    if result["compatible"] == "yes":
        size = f"{result['neutrino_pages']:,} pages and {result['neutrino_max_clock']:,} cycles"
        return f"{title}: {size} in the grid of the script that comes with the traces"
    found = []
    for name, prefix in prefixes(result.data).items():
        values = (result[f"{prefix}_{quantity}"] for quantity in ("accesses", "first_touch", "last_touch"))
        found.append((name, *values))
    named = [entry for entry in found if entry[0] != WITHOUT_TENSOR[OTHERS]]
    most = sorted(named, key=lambda entry: -entry[1])[:5]
    kinds: dict[str, list[str]] = {"throughout": []}
    for name, _, first, last in sorted(most, key=lambda entry: entry[2:]):
        if first < 20:
            when = "throughout" if last > 80 else f"only until {last:.0f} %"
        else:
            when = f"only from {first:.0f} %" + ("" if last > 80 else f" to {last:.0f} %")
        kinds.setdefault(when, []).append(name)
    kinds = {when: names for when, names in kinds.items() if names}
    first = next(iter(kinds))
    words = [f"{_enumerate(names)}{' touched' * (when == first)} {when}" for when, names in kinds.items()]
    unit = " of the clocks" if "%" in words[-1] else ""
    rest = f" ({result['tensors']} tensors in all)" if len(found) > 5 else ""
    return f"{title}: {', '.join(words)}{unit}{rest}"


def _enumerate(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
