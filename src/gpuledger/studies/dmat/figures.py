"""Panels of the memory access timeline; the notebook puts them together."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import EngFormatter

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult, size_text
from gpuledger.studies.dmat.reduction import WITHOUT_TENSOR, prefixes

#: Names that attention kernels give their tensors.
ROLES = {
    "query": ("q", "query"),
    "key": ("k", "key"),
    "value": ("v", "value"),
    "output": ("o", "out", "output"),
    "statistics": ("m", "l", "lse", "logsumexp", "softmax", "softmax_lse", "softmax_score", "softmax_statistics"),
}
#: Colours by role, and of further tensors; close to the published ones, and told apart with any colour vision.
OWN = {
    "query": figures.BLUE,
    "key": figures.PURPLE,
    "value": figures.GREEN,
    "output": figures.ORANGE,
    "statistics": figures.SKY,
    "further": (figures.BLACK, figures.YELLOW),
}
#: The colours of OSDI 2025, Fig. 1 and 11.
PAPER = {
    "query": "#0053d6",
    "key": "#812be1",
    "value": "#00bb00",
    "output": "#b26531",
    "statistics": "#b31805",
    "further": OWN["further"],
}
#: From the least to the most accessed fifth of a tensor's cells, how much of its colour.
DEPTHS = (0.28, 0.46, 0.64, 0.82, 1.0)
#: Height of a line of a tensor's label (inches).
LINE_INCHES = 0.125
GRID = "#ebebeb"
#: What lies between a tensor's first and last touch and is not touched.
HOLE = "#e4e4e4"


def tensor_colors(tensors: Sequence[str], palette: Mapping[str, str | Sequence[str]] = OWN) -> dict[str, str]:
    """Choose a colour for every tensor, grey for memory of none; if there are many, only neighbours differ.

    Parameters
    ----------
    palette : mapping
        ``OWN`` or ``PAPER``, or one of the same keys.
    """
    every = [*(palette[role] for role in ROLES), *palette["further"]]
    found, free = {}, list(every)
    for role, names in ROLES.items():
        for tensor in tensors:
            if tensor.lower() in names and palette[role] in free:
                found[tensor] = palette[role]
                free.remove(palette[role])
    rest = itertools.chain(free, itertools.cycle(every))
    for tensor in tensors:
        if tensor not in found:
            found[tensor] = figures.GREY if tensor in WITHOUT_TENSOR.values() else next(rest)
    return found


def rows_upwards(result: CaseResult) -> pd.DataFrame:
    """Return the data with rows from bottom to top; those of the compatible grid count from the top."""
    upwards = result["compatible"] != "yes"
    return result.data if upwards else result.data.assign(row=result["rows"] - 1 - result.data["row"])


def depth_classes(accesses: pd.Series) -> np.ndarray:
    """Return the fifth, from 0 to 4, that each cell of a tensor is in by its accesses."""
    thresholds = np.percentile(accesses, [20, 40, 60, 80])
    return np.searchsorted(thresholds, accesses.to_numpy(), "left")


def draw_timeline(
    axes: Axes,
    result: CaseResult,
    colors: Mapping[str, str],
    height_inches: float = 3.2,
) -> None:
    """Draw when which page is touched, pages by address from bottom to top, with the tensors' names beside them.

    Parameters
    ----------
    colors : mapping
        By tensor; see :func:`tensor_colors`.
    height_inches : float
        About how tall the axes are, so that names do not overlap.
    """
    data = draw_grid(axes, result, colors)
    _name_tensors(axes, result, data, colors, height_inches)
    axes.grid(axis="x", color=GRID)
    axes.tick_params(axis="x", length=0, labelbottom=False)


def draw_grid(axes: Axes, result: CaseResult, colors: Mapping[str, str]) -> pd.DataFrame:
    """Draw the cells of a timeline without names, holes on grey; return the data with rows from bottom to top."""
    data = rows_upwards(result)
    _draw_cells(axes, data, colors, result)
    width = result["column_cycles"]
    columns = data.groupby("tensor", sort=False)["column"].agg(["min", "max"]).astype("int64")
    for tensor, start, end, _ in _bands(data):
        first, last = columns.loc[tensor, "min"] * width, (columns.loc[tensor, "max"] + 1) * width
        axes.add_patch(Rectangle((first, start), last - first, end - start, color=HOLE, linewidth=0, zorder=1))
    axes.set_xlim(0, result["columns"] * width)
    return data


def _draw_cells(axes: Axes, data: pd.DataFrame, colors: Mapping[str, str], result: CaseResult) -> None:
    shape = result["rows"], result["columns"]
    image = np.ones((*shape, 4))
    image[..., 3] = 0
    largest = np.zeros(shape, np.int64)
    for tensor, cells in data.groupby("tensor", sort=False):
        depth = np.array(DEPTHS)[depth_classes(cells["accesses"])][:, None]
        shade = np.hstack([depth * np.array(to_rgb(colors[tensor])) + 1 - depth, np.ones_like(depth)])
        place = cells["row"].to_numpy(), cells["column"].to_numpy()
        # Where tensors share a cell, show the one with most accesses, of equal ones the last.
        over = cells["accesses"].to_numpy() >= largest[place]
        place = place[0][over], place[1][over]
        image[place], largest[place] = shade[over], cells["accesses"].to_numpy()[over]
    extent = (0, shape[1] * result["column_cycles"], 0, shape[0])
    axes.imshow(image, aspect="auto", origin="lower", interpolation="nearest", extent=extent, zorder=2)


def _bands(data: pd.DataFrame) -> list[tuple[str, int, int, int]]:
    """Return (tensor, first row, row after its last, accesses) of every run of rows with mostly one tensor."""
    by_row = data.groupby(["row", "tensor"], sort=False)["accesses"].sum().reset_index()
    main = by_row.sort_values("accesses", kind="stable").drop_duplicates("row", keep="last").sort_values("row")
    run = ((main["tensor"] != main["tensor"].shift()) | (main["row"] != main["row"].shift() + 1)).cumsum()
    return [
        (rows["tensor"].iloc[0], int(rows["row"].min()), int(rows["row"].max()) + 1, int(rows["accesses"].sum()))
        for _, rows in main.groupby(run)
    ]


def _name_tensors(
    axes: Axes, result: CaseResult, data: pd.DataFrame, colors: Mapping[str, str], height_inches: float
) -> None:
    """Draw a bar beside the rows of every tensor, with its name, shape and size."""
    bands, prefix, rows = _bands(data), prefixes(result.data), result["rows"]
    side = axes.get_yaxis_transform()
    for tensor, start, end, _ in bands:
        style = {"color": colors[tensor], "linewidth": 0, "clip_on": False}
        axes.add_patch(Rectangle((-0.016, start), 0.011, end - start, transform=side, **style))
        if start:
            axes.axhline(start, color="#cccccc", linewidth=0.5, zorder=1)
    line = LINE_INCHES / height_inches * rows
    # A name goes to its tensor's tallest band; if there are too many, only the most accessed bands are named.
    tallest: dict[str, tuple] = {}
    for band in sorted(bands, key=lambda band: band[2] - band[1]):
        tallest[band[0]] = band
    named = sorted(tallest.values(), key=lambda band: -band[3])[: int(rows / line)]
    named.sort(key=lambda band: band[1])
    texts = []
    for tensor, start, end, _ in named:
        about = {key: result.get(f"{prefix[tensor]}_{key}", "") for key in ("shape", "address", "bytes")}
        lines = [tensor if figures.for_columns else f"{tensor}  {about['shape']}".strip()]
        if end - start >= 2 * line and about["address"] and not figures.for_columns:
            lines.append(f"{about['address']}, {size_text(about['bytes'])}")
        texts.append((lines, (start + end) / 2, colors[tensor]))
    for (lines, middle, color), place in zip(texts, _spread(texts, line, rows), strict=True):
        arrow = {"arrowstyle": "-", "color": figures.GREY, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0}
        moved = abs(place - middle) > line / 4
        anchor = {"xycoords": side, "textcoords": side, "ha": "right", "va": "center", "annotation_clip": False}
        # Text in the tensor's colour has to be dark enough to be read on white.
        name = {"fontsize": 7.2, "fontweight": "bold", "color": to_hex(0.72 * np.array(to_rgb(color)))}
        for number, text in enumerate(lines):
            style = {"fontsize": 6.5, "color": "#666666"} if number else name | {"arrowprops": arrow if moved else None}
            height = place + (len(lines) / 2 - number - 0.5) * line
            axes.annotate(text, (-0.018, middle), (-0.035, height), **anchor, **style).set_in_layout(True)
    axes.set(yticks=[])


def _spread(texts: list[tuple], line: float, rows: int) -> list[float]:
    """Move labels apart that would overlap: first up from the bottom, then down from the top."""
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


def depth_handles() -> list[Patch]:
    """Return legend entries for the depth of colours, by the share of a tensor's cells, and for holes."""
    names = ["0–20", "20–40", "40–60", "60–80", "80–100 % by accesses"]
    shades = [to_hex(1 - depth * (1 - np.array(to_rgb("#555555")))) for depth in DEPTHS]
    return [
        *(Patch(color=shade, linewidth=0, label=name) for name, shade in zip(names, shades, strict=True)),
        Patch(color=HOLE, linewidth=0, label="hole"),
    ]


def draw_depths(axes: Axes, result: CaseResult, colors: Mapping[str, str]) -> None:
    """Draw the scale of depths: of each tensor the five tints, with the largest number of accesses in each, and holes.

    Parameters as of :func:`draw_timeline`; of more than 6 tensors, the most accessed ones are shown.
    """
    accesses = result.data.groupby("tensor", sort=False)["accesses"]
    often = accesses.sum().nlargest(6).index
    for row, tensor in enumerate(tensor for tensor in colors if tensor in often):
        cells = accesses.get_group(tensor)
        largest = cells.groupby(depth_classes(cells)).max()
        for place, count in largest.items():
            color = 1 - DEPTHS[place] * (1 - np.array(to_rgb(colors[tensor])))
            axes.add_patch(Rectangle((place, row), 1, 1, facecolor=color, edgecolor="white", linewidth=0.8))
            ink = figures.ink_on(color)
            text = EngFormatter().format_data(float(f"{count:.3g}"))
            axes.text(place + 0.5, row + 0.52, text, ha="center", va="center", fontsize=6.5, color=ink)
        axes.text(-0.08, row + 0.52, tensor, ha="right", va="center", fontsize=6.5)
    axes.add_patch(Rectangle((5.15, 0), 0.6, 1, facecolor=HOLE, linewidth=0))
    axes.text(5.45, 0.52, "hole", ha="center", va="center", fontsize=6.5)
    if len(often) > 2 and not figures.for_columns:  # else there is no room below it
        axes.text(5.45, 1.15, "no access\nin between", ha="center", va="top", fontsize=6.5, color="#555555")
    axes.set(xlim=(0, 6), ylim=(len(often), 0))
    axes.set_axis_off()
    axes.set_title(
        "accesses of a cell (at most), by fifths of each tensor's cells", fontsize=6.8, fontweight="normal", pad=2
    )


def draw_accesses(axes: Axes, result: CaseResult, colors: Mapping[str, str]) -> None:
    """Draw the accesses of each column, stacked by tensor; parameters as of :func:`draw_timeline`.

    Clocks are aligned at the start of every thread, so this is not the load on memory at one moment.
    """
    data, columns = result.data, result["columns"]
    edges = np.linspace(0, columns * result["column_cycles"], columns + 1)
    below = np.zeros(columns)
    for tensor, color in colors.items():
        cells = data[data["tensor"] == tensor]
        height = np.bincount(cells["column"], cells["accesses"], columns)
        axes.stairs(below + height, edges, baseline=below, fill=True, color=color, linewidth=0)
        below = below + height
        # A line between areas, which in grey look alike.
        axes.stairs(below, edges, color=figures.BLACK, linewidth=0.4)
    axes.set(xlim=(0, edges[-1]), ylim=(0, None))
    axes.locator_params(axis="y", nbins=3, integer=True, min_n_ticks=1)
    axes.grid(axis="x", color=GRID)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if edges[-1] >= 1e7:
        axes.locator_params(axis="x", nbins=4)  # long numbers would cover one another
    axes.yaxis.set_major_formatter(EngFormatter())
