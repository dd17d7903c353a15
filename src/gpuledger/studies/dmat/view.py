"""The memory access timeline for a page's viewer: every cell with its tensor, pages, cycles and accesses."""

import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import Axis, View
from gpuledger.studies.dmat.figures import DEPTHS, depth_classes, rows_upwards, tensor_colors
from gpuledger.studies.dmat.reduction import prefixes


def view(result: CaseResult) -> View:
    """Return the cells of the timeline; pages are numbered within their tensor, by address."""
    data, width = rows_upwards(result), result["column_cycles"]
    tensors = list(dict.fromkeys(data["tensor"]))
    colors = tensor_colors(tensors)
    depth = pd.concat([pd.Series(depth_classes(cells), cells.index) for _, cells in data.groupby("tensor")["accesses"]])
    # Of tensors that share a cell, the one with most accesses is drawn last.
    data = data.assign(depth=depth.map(dict(enumerate(DEPTHS)))).sort_values("accesses", kind="stable")
    edges = data.groupby("tensor")["row"].agg(["min", "max"])
    start = data["column"].astype("int64") * width
    marks = pd.DataFrame({"x": start, "x_end": start + width, "y": data["row"], "y_end": data["row"] + 1})
    fields = {
        "tensor": data["tensor"],
        "pages": _pages(result, data, edges),
        "clock (cycles)": [f"{first:,.0f} to {first + width:,.0f}" for first in start],
        "accesses": data["accesses"],
    }
    bands = [(name, int(edges.loc[name, "min"]), int(edges.loc[name, "max"]) + 1, colors[name]) for name in tensors]
    return View(
        "boxes",
        "cells",
        marks.assign(group=data["tensor"], depth=data["depth"]),
        fields,
        colors,
        Axis("clock since the thread's start (cycles)"),
        Axis("page", bands=bands),
    )


def _pages(result: CaseResult, data: pd.DataFrame, edges: pd.DataFrame) -> list[str]:
    """Return which of its tensor's pages each cell stands for: page r of P is in row floor(rR/P) of R."""
    prefix, found = prefixes(result.data), []
    for tensor, row in zip(data["tensor"], data["row"], strict=True):
        first, last = edges.loc[tensor]
        pages = result.get(f"{prefix.get(tensor)}_pages")
        rows, place = last - first + 1, row - first
        if pages is None or result["compatible"] == "yes":
            found.append(f"row {row}")
            continue
        low, high = -(-place * pages // rows), -(-(place + 1) * pages // rows) - 1
        found.append(f"{low:,} to {high:,} of {pages:,}" if high > low else f"{low:,} of {pages:,}")
    return found
