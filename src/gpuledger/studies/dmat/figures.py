"""The picture of a memory access timeline: pages over clocks, and the pressure on memory below."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.dmat.reduction import QUANTITIES, WITHOUT_TENSOR, prefixes

#: Colours by what attention kernels call their tensors, near the published ones; others take what is left.
ROLES = {
    figures.BLUE: ("q", "query"),
    figures.PURPLE: ("k", "key"),
    figures.GREEN: ("v", "value"),
    figures.ORANGE: ("o", "out", "output"),
    figures.VERMILLION: ("m", "l", "lse", "logsumexp", "softmax", "softmax_lse", "softmax_score", "softmax_statistics"),
}
PALETTE = (*ROLES, figures.SKY, figures.YELLOW)
#: From the least to the most accessed fifth of a tensor's cells, how much of its colour.
DEPTHS = (0.28, 0.46, 0.64, 0.82, 1.0)
#: Height of a line of a name, and about that of the axes, in inches.
LINE_INCHES, AXES_INCHES = 0.125, 3.2
DETAIL = {"fontsize": 6, "color": "#666666"}


def colours(tensors: Sequence[str]) -> dict[str, str]:
    """Return the colour of every tensor, grey for what is none; of many tensors only neighbours differ."""
    found, free = {}, list(PALETTE)
    for colour, names in ROLES.items():
        for tensor in tensors:
            if tensor.lower() in names and colour in free:
                found[tensor] = colour
                free.remove(colour)
    rest = itertools.chain(free, itertools.cycle(PALETTE))
    for tensor in tensors:
        if tensor not in found:
            found[tensor] = figures.GREY if tensor in WITHOUT_TENSOR.values() else next(rest)
    return found


def depth_classes(accesses: pd.Series) -> np.ndarray:
    """Return the fifth, from 0 to 4, that each cell of a tensor is in by its accesses."""
    thresholds = np.percentile(accesses, [20, 40, 60, 80])
    return np.searchsorted(thresholds, accesses.to_numpy(), "left")


def draw_timeline(result: CaseResult) -> Figure:
    """Draw when which page is touched.

    Parameters
    ----------
    result : CaseResult
        Of :func:`gpuledger.studies.dmat.reduce`.

    Returns
    -------
    Figure
        To be given to :func:`gpuledger.ledger.figures.save`.
    """
    data = result.data
    if result["compatible"] == "yes":  # whose rows count from the top
        data = data.assign(row=result["rows"] - 1 - data["row"])
    colour = colours(list(prefixes(data)))
    figure, (pages, pressure) = plt.subplots(2, 1, sharex=True, figsize=(7.0, 4.9), height_ratios=[5, 1])
    figure.get_layout_engine().set(h_pad=0.015, hspace=0)
    extent = result["columns"] * result["column_cycles"]
    _draw_cells(pages, data, colour, (result["rows"], result["columns"]), extent)
    _name_rows(pages, result, data, colour)
    _draw_depths(pages)
    pages.set_title(f"{result['pages']:,} pages of 64 KiB by address", fontsize=7.5, fontweight="normal", pad=5)
    _draw_pressure(pressure, data, colour, result["columns"], extent)
    pressure.set(xlabel=f"clock since the thread's start (cycles; {result['column_cycles']:,} a column)")
    pressure.set(xlim=(0, extent))
    pressure.xaxis.set_major_formatter("{x:,.0f}")
    # A number and its unit stay on one line.
    figures.headline(figure, result.finding.replace(" %", "\u00a0%"))
    return figure


def _draw_cells(axes: Axes, data: pd.DataFrame, colour: dict[str, str], shape: tuple[int, int], extent: int) -> None:
    image = np.ones((*shape, 4))
    image[..., 3] = 0
    largest = np.zeros(shape, np.int64)
    for tensor, cells in data.groupby("tensor", sort=False):
        depth = np.array(DEPTHS)[depth_classes(cells["accesses"])][:, None]
        shade = np.hstack([depth * np.array(to_rgb(colour[tensor])) + 1 - depth, np.ones_like(depth)])
        place = cells["row"].to_numpy(), cells["column"].to_numpy()
        # Where tensors share a cell, the one with most accesses is seen, of equal ones the last.
        over = cells["accesses"].to_numpy() >= largest[place]
        place = place[0][over], place[1][over]
        image[place], largest[place] = shade[over], cells["accesses"].to_numpy()[over]
    axes.imshow(
        image, aspect="auto", origin="lower", interpolation="nearest", extent=(0, extent, 0, shape[0]), zorder=2
    )
    axes.grid(axis="x", color="#ebebeb")
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _bands(data: pd.DataFrame) -> list[tuple[str, int, int, int]]:
    """Return (tensor, first row, row after its last, accesses) of every run of rows that is mostly one tensor's."""
    by_row = data.groupby(["row", "tensor"], sort=False)["accesses"].sum().reset_index()
    main = by_row.sort_values("accesses", kind="stable").drop_duplicates("row", keep="last").sort_values("row")
    run = ((main["tensor"] != main["tensor"].shift()) | (main["row"] != main["row"].shift() + 1)).cumsum()
    return [
        (rows["tensor"].iloc[0], int(rows["row"].min()), int(rows["row"].max()) + 1, int(rows["accesses"].sum()))
        for _, rows in main.groupby(run)
    ]


def _name_rows(axes: Axes, result: CaseResult, data: pd.DataFrame, colour: dict[str, str]) -> None:
    """Draw a bar beside the rows of every tensor, with its name, shape and size."""
    bands, prefix, rows = _bands(data), prefixes(result.data), result["rows"]
    side = axes.get_yaxis_transform()
    for tensor, start, end, _ in bands:
        style = {"color": colour[tensor], "linewidth": 0, "clip_on": False}
        axes.add_patch(Rectangle((-0.016, start), 0.011, end - start, transform=side, **style))
        if start:
            axes.axhline(start, color="#cccccc", linewidth=0.5, zorder=1)
    line = LINE_INCHES / AXES_INCHES * rows
    # A tensor's name stands at its tallest band; of those too many, the most accessed ones are named.
    tallest: dict[str, tuple] = {}
    for band in sorted(bands, key=lambda band: band[2] - band[1]):
        tallest[band[0]] = band
    named = sorted(tallest.values(), key=lambda band: -band[3])[: int(rows / line)]
    named.sort(key=lambda band: band[1])
    texts = []
    for tensor, start, end, _ in named:
        about = {key: result.summary.get(f"{prefix[tensor]}_{key}", {"value": ""})["value"] for key in QUANTITIES}
        lines = [f"{tensor}  {about['shape']}".strip() if about["shape"] else tensor]
        if end - start >= 2 * line and about["address"]:
            lines.append(f"{about['address']}, {memory_text(about['bytes'])}")
        texts.append((lines, (start + end) / 2, colour[tensor]))
    for (lines, middle, shade), place in zip(texts, _spread(texts, line, rows), strict=True):
        arrow = {"arrowstyle": "-", "color": figures.GREY, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0}
        moved = abs(place - middle) > line / 4
        for number, text in enumerate(lines):
            height = place + (len(lines) / 2 - number - 0.5) * line
            style = {"fontsize": 7.2, "fontweight": "bold", "color": _dark(shade)} if number == 0 else DETAIL
            note = axes.annotate(
                text,
                (-0.018, middle),
                (-0.035, height),
                xycoords=side,
                textcoords=side,
                ha="right",
                va="center",
                arrowprops=arrow if moved and number == 0 else None,
                annotation_clip=False,
                **style,
            )
            note.set_in_layout(True)
    axes.set(yticks=[])


def _spread(texts: list[tuple], line: float, rows: int) -> list[float]:
    """Move names apart that would overlap: first up from below, then down from above."""
    places, floor = [], -line / 2
    for lines, middle, _ in texts:
        half = len(lines) * line / 2
        places.append(max(middle, floor + half))
        floor = places[-1] + half
    ceiling = rows + line / 2
    for number in reversed(range(len(places))):
        half = len(texts[number][0]) * line / 2
        places[number] = min(places[number], ceiling - half)
        ceiling = places[number] - half
    return places


def _dark(colour: str) -> str:
    """Return a colour that can be read as text on white."""
    return to_hex(0.72 * np.array(to_rgb(colour)))


def memory_text(size: int) -> str:
    """Return bytes in words, in binary units."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def _draw_depths(axes: Axes) -> None:
    """Explain the depth of colours, above the right end of the axes."""
    inches = axes.figure.get_figwidth()
    width = 0.13 / inches
    anchor = {"transform": axes.transAxes, "clip_on": False}
    for place, depth in enumerate(DEPTHS):
        shade = to_hex(1 - depth * (1 - np.array(to_rgb("#555555"))))
        axes.add_patch(Rectangle((1 - (5 - place) * width, 1.02), width, 0.026, color=shade, linewidth=0, **anchor))
    words = "each tensor's cells, fewest to most accesses"
    axes.text(1 - 5 * width - 0.008, 1.033, words, ha="right", va="center", fontsize=6.5, color="#444444", **anchor)


def _draw_pressure(axes: Axes, data: pd.DataFrame, colour: dict[str, str], columns: int, extent: int) -> None:
    edges = np.linspace(0, extent, columns + 1)
    below = np.zeros(columns)
    for tensor in colour:
        cells = data[data["tensor"] == tensor]
        height = np.bincount(cells["column"], cells["accesses"], columns)
        axes.stairs(below + height, edges, baseline=below, fill=True, color=colour[tensor], linewidth=0)
        below = below + height
    axes.stairs(below, edges, color=figures.BLACK, linewidth=0.6)
    axes.set(ylim=(0, None))
    axes.set_ylabel("GMEM pressure\n(accesses)", fontsize=6.8)
    axes.locator_params(axis="y", nbins=3)
    axes.grid(axis="x", color="#ebebeb")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, position: int | None = None) -> str:
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
