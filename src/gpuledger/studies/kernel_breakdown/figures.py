"""Panels of the kernel breakdown's figures; the notebook composes them."""

from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator
from scipy.ndimage import distance_transform_edt

from gpuledger.ledger import figures
from gpuledger.ledger.label_placement import place_labels
from gpuledger.studies.kernel_breakdown.deployment_figures import COLOURS, HALO
from gpuledger.studies.kernel_breakdown.formatting import format_bandwidth, format_binary, format_decimal, format_time
from gpuledger.studies.kernel_breakdown.groups import GROUPS
from gpuledger.studies.kernel_breakdown.roofline import Roofs, mark_area

#: What bounds a pass: name and colour.
BOUNDS = {
    "compute": ("compute", figures.BLUE),
    "dram": ("DRAM bandwidth", figures.ORANGE),
    # Not sky blue as elsewhere: in the map, a smaller share of compute has that colour.
    "l2": ("L2 bandwidth", figures.GREEN),
    "launch": ("launches and latency", figures.GREY),
    "link": ("links between GPUs", figures.PURPLE),
}
#: Share of the time (%) from which the map marks links between GPUs.
LINKS = 25
#: Smallest share of the phase's time that gives a kernel a number in a roofline.
LEAST_SHARE = 0.05


def lay_out(phases: Sequence[str], bars: int, lines: int) -> tuple[Figure, Axes, dict[str, tuple[Axes, Axes]]]:
    """Make a figure with room for a bar per pass, and below, for each phase, a roofline and the key to its numbers.

    Parameters
    ----------
    bars : int
        Bars above the rooflines.
    lines : int
        Lines of the longest key.

    Returns
    -------
    figure : Figure
    above : Axes
        For the bars.
    below : dict of str to (Axes, Axes)
        By phase, for the roofline and its key.
    """
    columns = 2 if len(phases) == 4 else len(phases)
    rows = -(-len(phases) // columns)
    heights = [0.42 * bars, *[2.7, 0.13 * (lines if _has_key(columns) else 1)] * rows]
    figure = plt.figure(figsize=(7.2, 0.9 + sum(heights) + 0.5 * rows))
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    below = {}
    for place, phase in enumerate(phases):
        row, column = divmod(place, columns)
        axes, key = (figure.add_subplot(grid[1 + 2 * row + part, column]) for part in (0, 1))
        axes.set_title(phase.replace("_", " "), fontsize=9)
        axes.set_xlabel("arithmetic intensity (FLOP/byte)")
        if column == 0:
            axes.set_ylabel("achieved (TFLOP/s)")
        axes.tick_params(labelleft=column == 0)
        key.axis("off")
        below[phase] = axes, key
    return figure, figure.add_subplot(grid[0, :]), below


def _has_key(columns: int) -> bool:
    """Whether rooflines of so many columns number their kernels; a single wide one has room for their names."""
    return figures.for_columns or columns > 1


def draw_roofline(
    axes: Axes, points: pd.DataFrame, roofs: Roofs, colours: Mapping[str, str] = COLOURS, name_roofs: bool = True
) -> None:
    """Draw kernels under the roofs of compute, DRAM and L2, between the limits that the axes already have.

    Parameters
    ----------
    points : DataFrame
        Of one phase; see :func:`gpuledger.studies.kernel_breakdown.roofline.roofline_points`.
    name_roofs : bool
        Write names and values on the roofs.
    """
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(format_decimal)
        axis.set_minor_locator(NullLocator())
    axes.grid(which="major", linewidth=0.4)
    _draw_roofs(axes, roofs, name_roofs)
    level, group = points["flop_per_s"] / 1e12, points["group"].map(colours)
    hollow = {"facecolor": "white", "edgecolor": list(group), "linewidth": 0.8, "zorder": 4}
    axes.scatter(points["l2_intensity"], level, s=11, **hollow)
    # A kernel that finds everything in L2 has no point at DRAM.
    seen = _has_dram_point(axes, points)
    at_dram, at_l2 = points.loc[seen, "dram_intensity"], points.loc[seen, "l2_intensity"]
    axes.hlines(level[seen], at_l2, at_dram, color=list(group[seen]), linewidth=0.6, alpha=0.55, zorder=3)
    filled = {"color": list(group[seen]), "alpha": 0.85, "edgecolor": "white", "linewidth": 0.6, "zorder": 5}
    axes.scatter(at_dram, level[seen], s=mark_area(points.loc[seen, "share"]), **filled)


def _has_dram_point(axes: Axes, points: pd.DataFrame) -> pd.Series:
    return points["dram_intensity"] < axes.get_xlim()[1]


def _draw_roofs(axes: Axes, roofs: Roofs, named: bool) -> None:
    left, right = axes.get_xlim()
    peaks = sorted((value / 1e12, precision) for precision, value in roofs.peaks.items())
    peak = peaks[-1][0]
    intensity = np.geomspace(left, right, 60)
    style = {"fontsize": 7.2, "path_effects": HALO, "zorder": 6}
    bandwidths = {
        "L2 (fitted)": (roofs.l2_bytes_per_s, figures.GREY, (0, (4, 2))),
        "DRAM": (roofs.dram_bytes_per_s, figures.BLACK, "-"),
    }
    for name, (bandwidth, colour, line) in bandwidths.items():
        if np.isnan(bandwidth):
            continue
        slope = bandwidth / 1e12
        axes.plot(intensity, np.minimum(slope * intensity, peak), color=colour, linewidth=1.3, linestyle=line, zorder=2)
        if named:
            # Along the roof: in logarithms its slope is 1, at any point.
            x, y = left * 2, 1.5 * left * 2 * slope
            turned = {"rotation": np.degrees(np.arctan2(y, x)), "rotation_mode": "anchor"}
            text = f"{name} {format_bandwidth(bandwidth)}"
            axes.text(x, y, text, color=colour, transform_rotates_text=True, **turned, **style)
    for value, _ in peaks[:-1]:
        ridge = value * 1e12 / roofs.dram_bytes_per_s
        axes.plot([ridge, right], [value, value], color=figures.BLACK, linewidth=0.9, linestyle=":", zorder=2)
    if named:
        text = ", ".join(f"{precision.upper()} {value:,.0f}" for value, precision in reversed(peaks)) + " TFLOP/s"
        axes.text(right / 1.2, peak * 1.15, text, ha="right", va="bottom", **style)


def number_kernels(axes: Axes, key: Axes, points: pd.DataFrame) -> None:
    """Number the kernels of :func:`draw_roofline` that take at least 5 % of the time, or name them where there is room.

    Numbers are placed in the figure's final layout: finish everything else and call ``figure.draw_without_rendering()``
    first.

    Parameters
    ----------
    key : Axes
        Where to write what the numbers stand for, with shares of the phase's time.
    """
    named = numbered(points)
    at = named["dram_intensity"].where(_has_dram_point(axes, named), named["l2_intensity"])
    radii = np.sqrt(mark_area(named["share"]).to_numpy()) / 2
    places = np.column_stack([at, named["flop_per_s"] / 1e12])
    lines = [
        f"{kernel.replace('_', ' ')} {100 * share:.0f} %" for kernel, share in named[["kernel", "share"]].to_numpy()
    ]
    if not _has_key(key.get_subplotspec().get_gridspec().ncols):
        place_labels(axes, places, lines, radii)
        return
    numbers = [str(number + 1) for number in range(len(named))]
    place_labels(axes, places, numbers, radii, joint=", ")
    lines = [f"{number} {line}" for number, line in zip(numbers, lines, strict=True)]
    key.text(0, 1, "\n".join(lines), va="top", fontsize=6.8, linespacing=1.25)


def numbered(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that :func:`number_kernels` numbers: of each kernel the longest, with the share of all."""
    whole = points.groupby("kernel")["share"].sum()
    named = points.drop_duplicates("kernel")
    named = named.assign(share=named["kernel"].map(whole)).sort_values("share", ascending=False, kind="stable")
    return named[named["share"] >= LEAST_SHARE]


def roofline_handles(points: pd.DataFrame, colours: Mapping[str, str] = COLOURS) -> list[Artist]:
    """Return legend entries for :func:`draw_roofline` of `points`; kernels without FLOPs have none."""
    point = {"marker": "o", "linestyle": "none"}
    drawn = points.loc[points[["dram_intensity", "l2_intensity"]].notna().any(axis=1), "group"]
    present = [group for group in GROUPS if (drawn == group).any()]
    handles: list[Artist] = [Line2D([], [], color=colours[group], label=group, **point) for group in present]
    handles.append(Line2D([], [], color=figures.BLACK, label="at DRAM (area: time)", **point))
    if points["l2_intensity"].notna().any():
        hollow = {"color": figures.BLACK, "markerfacecolor": "white", "markersize": 3.5}
        handles.append(Line2D([], [], label="the same at L2", **hollow, **point))
    return handles


def draw_time(axes: Axes, rows: pd.DataFrame, over: str, colours: Mapping[str, str] = COLOURS) -> None:
    """Stack each group's share of the predicted time; total times stand above the axes.

    Parameters
    ----------
    rows : DataFrame
        One ``axis`` of :func:`gpuledger.studies.kernel_breakdown.shapes.stack_times`.
    over : str
        Column of the horizontal axis: ``tokens`` or ``requests``.
    """
    table = rows.pivot_table(index=over, columns="group", values="time_s", fill_value=0.0)
    table = table.reindex(columns=[group for group in GROUPS if group in table])
    total = table.sum(axis=1)
    share = 100 * table.div(total, axis=0)
    shown = [colours[group] for group in share]
    axes.stackplot(share.index, share.T, labels=share.columns, colors=shown, edgecolor="white", linewidth=0.5)
    axes.set_xscale("log", base=2)
    axes.set(xlim=(share.index[0], share.index[-1]), ylim=(0, 100))
    _mark_octaves(axes.xaxis, share.index)
    for place, side in ((0, "left"), (len(total) // 2, "center"), (-1, "right")):
        axes.text(total.index[place], 101.5, format_time(total.iloc[place]), ha=side, va="bottom", fontsize=6.8)
    _name_bands(axes, share, _mark_full(axes, rows.groupby(over)["fits"].all()), colours)


def name_the_rest(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put groups that none of several :func:`draw_time` has room to name into a legend below the figure."""
    named = {text.get_text() for axes in panels for text in axes.texts}
    bands = {band.get_label(): band for axes in panels for band in axes.collections}
    rest = {group: bands[group] for group in GROUPS if group in bands and group not in named}
    if rest:
        style = {"fontsize": 6.8, "handlelength": 1, "handleheight": 0.8, "handletextpad": 0.5, "columnspacing": 1.5}
        names = ["shares of the time:", *rest]
        figure.legend([Patch(alpha=0), *rest.values()], names, loc="outside lower left", ncols=len(names), **style)


def _mark_octaves(axis: Axis, values: pd.Index) -> None:
    """Put about five ticks at powers of two on a logarithmic axis."""
    first, last = int(np.ceil(np.log2(values[0]))), int(np.floor(np.log2(values[-1])))
    step = max(1, -(-(last - first) // 4))
    axis.set_major_locator(FixedLocator([2.0**power for power in range(first, last + 1, step)]))
    axis.set_major_formatter(format_binary)
    axis.set_minor_locator(NullLocator())


def _name_bands(axes: Axes, share: pd.DataFrame, edge: float | None, colours: Mapping[str, str]) -> None:
    """Name each group where its band is highest over the width of the name, on one side of the edge."""
    low, high = np.log2(axes.get_xlim())
    fine = np.linspace(low, high, 201)
    bands = np.array([np.interp(fine, np.log2(share.index), share[group]) for group in share])
    tops = bands.cumsum(axis=0)
    for number, group in enumerate(share):
        # A letter takes about 0.038 of the axes' width.
        half = int(len(fine) * (0.019 * len(group) + 0.01))
        centres = np.arange(half, len(fine) - half)
        if edge is not None:
            # Beyond the edge stands its own label.
            beyond = centres - np.searchsorted(fine, np.log2(edge))
            centres = centres[(beyond < -half) | (beyond > half + 0.06 * len(fine))]
            if not len(centres):
                continue
        ceiling = np.array([tops[number, at - half : at + half + 1].min() for at in centres])
        floor = np.array([(tops - bands)[number, at - half : at + half + 1].max() for at in centres])
        best = int(np.argmax(ceiling - floor))
        if ceiling[best] - floor[best] < 6:
            continue
        middle = (ceiling[best] + floor[best]) / 2
        style = {"color": figures.ink_on(colours[group]), "fontsize": 7.2}
        axes.text(2 ** fine[centres[best]], middle, group, ha="center", va="center", **style)


def _mark_full(axes: Axes, fits: pd.Series) -> float | None:
    """Hatch the sizes that do not fit into DRAM; return the first one."""
    if fits.all():
        return None
    edge = fits.index[~fits][0]
    axes.axvspan(edge, fits.index[-1], facecolor="none", edgecolor="white", hatch="////", linewidth=0, alpha=0.55)
    axes.axvline(edge, color="white", linewidth=1.2, linestyle="--")
    ground = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    style = {"fontsize": 6.5, "rotation": 90, "ha": "left", "va": "bottom", "bbox": ground}
    axes.annotate("DRAM full", (edge, 4), (4, 0), textcoords="offset points", **style)
    return float(edge)


def draw_bound_map(axes: Axes, rows: pd.DataFrame, bounds: Mapping[str, tuple[str, str]] = BOUNDS) -> set[str]:
    """Map what takes most of a pass's time over context and batch; a stronger colour means a larger share.

    Dots mark where links between GPUs take at least `LINKS` %, be it the most or not.

    Parameters
    ----------
    rows : DataFrame
        One ``phase`` of :func:`gpuledger.studies.kernel_breakdown.shapes.map_bounds`.
    bounds : mapping of str to (name, colour)

    Returns
    -------
    set of str
        The bounds that appear, for :func:`draw_bound_scale`.
    """
    tables = [rows.pivot_table(index="requests", columns="tokens", values=f"{name}_percent") for name in bounds]
    tokens, requests = tables[0].columns, tables[0].index
    shares = np.array([table.to_numpy() for table in tables])
    largest, share = shares.argmax(axis=0), shares.max(axis=0)
    colours = np.array([to_rgb(colour) for _, colour in bounds.values()])
    edges = [_cell_edges(tokens), _cell_edges(requests)]
    axes.pcolormesh(*edges, 1 - _strength(share) * (1 - colours[largest]), shading="flat", rasterized=True)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    _mark_octaves(axes.xaxis, tokens)
    _mark_octaves(axes.yaxis, requests)
    fits = rows.pivot_table(index="requests", columns="tokens", values="fits", aggfunc="all").to_numpy(bool)
    if not fits.all():
        sides = [np.r_[edge[0], values, edge[-1]] for edge, values in zip(edges, (tokens, requests), strict=True)]
        region = (*sides, np.pad(~fits, 1, mode="edge"))
        axes.contourf(*region, levels=[0.5, 1.5], colors="none", hatches=["////"])
        axes.contour(*region, levels=[0.5], colors=figures.BLACK, linewidths=1)
    if "link" in bounds and shares[list(bounds).index("link")].max() >= LINKS:
        link = shares[list(bounds).index("link")]
        dotted = axes.contourf(tokens, requests, link, levels=[LINKS, 101], colors="none", hatches=["..."])
        dotted.set(edgecolor=bounds["link"][1], linewidth=1.2)
    axes.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]])
    for number, (name, _) in enumerate(bounds.values()):
        region = (largest == number) & fits
        if region.sum() < 0.04 * region.size:
            continue
        row, column = _deepest_cell(region)
        style = {"ha": "center", "va": "center", "fontsize": 7.6, "fontweight": "bold", "color": figures.BLACK}
        text = f"{name.split(' ')[0]}\n{share[region].mean():.0f} %"
        axes.text(tokens[column], requests[row], text, path_effects=HALO, **style)
    return {name for number, name in enumerate(bounds) if (largest == number).any()}


def _strength(share: np.ndarray) -> np.ndarray:
    """Return how strong a colour is, 0.2 … 1, for the largest share (%); of five bounds it is at least 20 %."""
    return np.clip(0.2 + 0.8 * (share - 20) / 80, 0.2, 1)[..., None]


def draw_bound_scale(axes: Axes, present: Collection[str], bounds: Mapping[str, tuple[str, str]] = BOUNDS) -> None:
    """Draw the scale of :func:`draw_bound_map`: the colours of the bounds that appear, over their share of the time."""
    names = [name for name in bounds if name in present]
    share = np.linspace(20, 100, 81)
    colours = np.array([to_rgb(bounds[name][1]) for name in names])[:, None, :]
    axes.imshow(1 - _strength(share)[None] * (1 - colours), extent=(20, 100, len(names) - 0.5, -0.5), aspect="auto")
    axes.set_yticks(range(len(names)), [bounds[name][0] for name in names])
    axes.set_xticks([20, 60, 100])
    axes.set_xlabel("share of the time (%)", loc="left")
    axes.tick_params(labelsize=6.8, length=2)
    axes.xaxis.label.set_size(6.8)
    axes.yaxis.tick_right()
    for edge in range(1, len(names)):
        axes.axhline(edge - 0.5, color="white", linewidth=1.5)


def _cell_edges(values: pd.Index) -> np.ndarray:
    """Return the edges of cells around values, halfway between them on a logarithmic axis."""
    logs = np.log2(np.asarray(values, float))
    if len(logs) < 2:
        return 2 ** (logs[0] + np.array([-0.5, 0.5]))
    inner = (logs[1:] + logs[:-1]) / 2
    return 2 ** np.r_[2 * logs[0] - inner[0], inner, 2 * logs[-1] - inner[-1]]


def _deepest_cell(region: np.ndarray) -> tuple[int, int]:
    """Return the cell farthest from the region's border; of several, the one nearest to the region's centre."""
    # Beyond the edge of the map nothing belongs to the region.
    depth = distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
    offsets = [place - inside.mean() for place, inside in zip(np.indices(region.shape), region.nonzero(), strict=True)]
    return np.unravel_index((depth - 0.01 * np.hypot(*offsets)).argmax(), depth.shape)


def bound_handles(all_fit: bool, links: bool, bounds: Mapping[str, tuple[str, str]] = BOUNDS) -> list[Artist]:
    """Return legend entries for what :func:`draw_bound_map` draws over the colours, and for the point of the case."""
    handles: list[Artist] = []
    if links:
        dotted = {"facecolor": "white", "edgecolor": bounds["link"][1], "hatch": "..."}
        handles.append(Patch(**dotted, label=f"links take {LINKS} % or more"))
    if not all_fit:
        hatched = {"facecolor": "white", "edgecolor": figures.BLACK, "hatch": "////", "linewidth": 0.4}
        handles.append(Patch(**hatched, label="does not fit into DRAM"))
    point = {"marker": "o", "linestyle": "none", "color": "white", "markeredgecolor": figures.BLACK}
    return [*handles, Line2D([], [], **point, label="the case in the table")]
