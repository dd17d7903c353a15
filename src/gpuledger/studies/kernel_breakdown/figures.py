"""Figures of the kernel breakdown: the roofline, time over context and batch, and what bounds a pass."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.ndimage import distance_transform_edt

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.kernel_breakdown import formatting as quantities
from gpuledger.studies.kernel_breakdown.groups import GROUPS
from gpuledger.studies.kernel_breakdown.label_placement import place_labels
from gpuledger.studies.kernel_breakdown.reduction import parts

#: Colour and marker of each group of kernels.
COLOURS = dict(
    zip(
        GROUPS,
        (
            figures.VERMILLION,
            figures.SKY,
            figures.BLUE,
            figures.GREEN,
            figures.ORANGE,
            figures.GREY,
            figures.PURPLE,
        ),
        strict=True,
    )
)
#: Roofs of bandwidth, by the quantity of the summary: words, colour, line.
BANDWIDTHS = {
    "l2_bytes_per_s": ("L2", figures.GREY, (0, (4, 2))),
    "dram_bytes_per_s": ("DRAM", figures.BLACK, "-"),
}
#: Groups whose colour takes white type.
DARK = frozenset({"attention", "feed-forward", "experts"})
#: What bounds a pass: words and colour.
BOUNDS = {
    "compute": ("compute", figures.BLUE),
    "issue": ("issue of instructions", figures.SKY),
    "dram": ("DRAM bandwidth", figures.VERMILLION),
    "l2": ("L2 bandwidth", figures.ORANGE),
    "launch": ("launches and latency", figures.GREY),
    "link": ("links between GPUs", figures.PURPLE),
}
#: Kernels with a label in a panel of the roofline.
LABELLED = 6
#: Of a phase's time, what a kernel with a label takes at least.
LEAST_SHARE = 0.015
_HALO = [withStroke(linewidth=2.2, foreground="white")]


def draw_roofline(result: CaseResult) -> Figure:
    """Draw every kernel of every phase under the roofs of L2 and DRAM; a panel a phase."""
    rows = parts(result.data)["kernels"]
    rows = rows[(rows["hardware"] == rows["hardware"].iloc[0]) & (rows["kind"] != "collective") & (rows["time_s"] > 0)]
    points = _points(rows)
    phases = list(dict.fromkeys(rows["phase"]))
    known = [name for name in result.summary if name.startswith("peak_")]
    roofs = {name: float(result[name]) for name in known}
    roofs |= {name: float(result[name]) for name in BANDWIDTHS if name in result.summary}
    # Four panels in a line would be too narrow.
    across = 2 if len(phases) == 4 else len(phases)
    size = (7.2, 3.9) if len(phases) in (2, 3) else (5.2, 3.9) if len(phases) == 1 else (7.2, 6.6)
    figure, grid = plt.subplots(len(phases) // across, across, figsize=size, sharex=True, sharey=True, squeeze=False)
    panels = grid.ravel()
    limits = _limits(points, roofs)
    for axes in panels:
        axes.set(xscale="log", yscale="log", **limits)
        axes.yaxis.set_major_formatter(FuncFormatter(quantities.decimal))
        axes.xaxis.set_major_formatter(FuncFormatter(quantities.decimal))
        axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="achieved (TFLOP/s)")
        axes.label_outer()
    legend = _legend(panels[-1], points)
    figures.headline(figure, quantities.unbroken(result.finding))
    figure.draw_without_rendering()
    covered = [legend.get_window_extent().padded(4).extents]
    for number, (axes, phase) in enumerate(zip(panels, phases, strict=True)):
        own = points[points["phase"] == phase]
        lines, written = _roofs(axes, roofs, words=number == 0)
        _kernels(axes, own, lines, [*written, *(covered if axes is panels[-1] else [])])
        time = float(result[f"{phase}_time"])
        axes.set_title(f"{phase.replace('_', ' ')}: {quantities.seconds(time)}", fontsize=9)
    return figure


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return every kernel's intensity at DRAM and at L2, what it achieves, and its share of the phase's time."""
    time = rows["time_s"] * rows["count"]
    # Kernels without matrix work count one operation a value, so that they have a place.
    values = rows[["batch", "m", "n", "k"]].astype(float).prod(axis=1)
    flop = (2.0 * rows["macs"]).where(rows["macs"] > 0, values)
    l2_bytes = rows.get("l2_bytes", pd.Series(np.nan, rows.index))
    kept = rows.assign(
        time=time,
        share=time / time.groupby(rows["phase"]).transform("sum"),
        tflops=flop / rows["time_s"] / 1e12,
        dram=flop / rows["dram_bytes"].where(rows["dram_bytes"] > 0),
        l2=flop / l2_bytes.where(l2_bytes > 0),
    )
    return kept.sort_values("share", ascending=False, kind="stable")


def _limits(points: pd.DataFrame, roofs: Mapping[str, float]) -> dict:
    left = max(points[["dram", "l2"]].min().min(), 1e-2) / 1.6
    peak = max(value for name, value in roofs.items() if name.startswith("peak_"))
    ridge = peak / roofs["dram_bytes_per_s"]
    largest = points.loc[points["macs"] > 0, ["dram", "l2"]].max().max()
    right = 10 ** np.ceil(np.log10(max(min(largest, 2e4), 4 * ridge)))
    low = points["tflops"].min() / 2.5
    return {"xlim": (left, right), "ylim": (low, 3.2 * peak / 1e12)}


def _roofs(axes: Axes, roofs: Mapping[str, float], words: bool) -> tuple[np.ndarray, list]:
    """Draw the roofs; return points on them, and the places (pixels) of their names."""
    left, right = axes.get_xlim()
    peaks = sorted((value / 1e12, name[5:]) for name, value in roofs.items() if name.startswith("peak_"))
    peak = peaks[-1][0]
    intensity = np.geomspace(left, right, 60)
    lines, written = [], []
    halo = {"fontsize": 7.2, "path_effects": _HALO, "zorder": 6}
    for name, (label, colour, style) in BANDWIDTHS.items():
        if name not in roofs:
            continue
        slope = roofs[name] / 1e12
        roof = np.minimum(slope * intensity, peak)
        lines.append(np.column_stack([intensity, roof]))
        axes.plot(intensity, roof, color=colour, linewidth=1.3, linestyle=style, zorder=2)
        if words:
            at = left * 1.35
            start, end = axes.transData.transform([(at, at * slope), (10 * at, 10 * at * slope)])
            angle = np.degrees(np.arctan2(end[1] - start[1], end[0] - start[0]))
            turned = {"rotation": angle, "rotation_mode": "anchor", "color": colour}
            written.append(
                axes.text(at, at * slope * 1.25, f"{label} {quantities.rate(roofs[name])}", **turned, **halo)
            )
    for value, _ in peaks[:-1]:
        begin = value / roofs["dram_bytes_per_s"] * 1e12
        axes.plot([begin, right], [value, value], color=figures.BLACK, linewidth=0.9, linestyle=":", zorder=2)
    if words:
        # Above all of them: what is under the roofs is for the kernels.
        text = ", ".join(f"{precision.upper()} {value:,.0f}" for value, precision in reversed(peaks)) + " TFLOP/s"
        written.append(axes.text(right / 1.2, peak * 1.15, text, ha="right", va="bottom", **halo))
    axes.grid(which="major", linewidth=0.4)
    return np.concatenate(lines), [text.get_window_extent().extents for text in written]


def _kernels(axes: Axes, points: pd.DataFrame, lines: np.ndarray, covered: list) -> None:
    size = 10 + 420 * points["share"].to_numpy()
    colours = np.array([COLOURS[group] for group in points["group"]], object)
    # What stays in L2 has no point at DRAM.
    seen = (points["dram"] < axes.get_xlim()[1]).to_numpy()
    for at, other, level, colour in zip(
        points["dram"][seen], points["l2"][seen], points["tflops"][seen], colours[seen], strict=True
    ):
        axes.plot([other, at], [level, level], color=colour, linewidth=0.6, alpha=0.55, zorder=3)
    hollow = {"facecolor": "white", "edgecolor": list(colours), "linewidth": 0.8, "zorder": 4}
    axes.scatter(points["l2"], points["tflops"], s=11, **hollow)
    filled = {"color": list(colours[seen]), "alpha": 0.85, "edgecolor": "white", "linewidth": 0.6, "zorder": 5}
    axes.scatter(points["dram"][seen], points["tflops"][seen], s=size[seen], **filled)
    # Layers of several kinds launch a kernel of one name: its label stands at the largest of them, for all.
    whole = points.groupby("kernel")["share"].sum()
    named = points.drop_duplicates("kernel")
    named = named.assign(share=named["kernel"].map(whole)).sort_values("share", ascending=False, kind="stable")
    named = named[named["share"] >= LEAST_SHARE].head(LABELLED)
    words = [
        f"{kernel.replace('_', ' ')} {100 * share:.0f} %" for kernel, share in named[["kernel", "share"]].to_numpy()
    ]
    at = np.column_stack([points["dram"].where(seen, points["l2"]).loc[named.index], named["tflops"]])
    taken = np.concatenate(
        [points.loc[seen, ["dram", "tflops"]].to_numpy(), points[["l2", "tflops"]].to_numpy(), lines]
    )
    place_labels(axes, at, words, np.sqrt(10 + 420 * named["share"].to_numpy()) / 2, taken, covered)


def _legend(axes: Axes, points: pd.DataFrame) -> Legend:
    present = [group for group in GROUPS if (points["group"] == group).any()]
    point = {"marker": "o", "linestyle": "none"}
    handles = [Line2D([], [], color=COLOURS[group], label=group, **point) for group in present]
    handles.append(Line2D([], [], color=figures.BLACK, label="at DRAM (area: time)", **point))
    if points["l2"].notna().any():
        hollow = {"color": figures.BLACK, "markerfacecolor": "white", "markersize": 3.5}
        handles.append(Line2D([], [], label="the same at L2", **hollow, **point))
    small = {"fontsize": 6.8, "handletextpad": 0.1, "labelspacing": 0.25, "borderaxespad": 0.1, "markerscale": 0.8}
    return axes.legend(handles=handles, loc="lower right", **small)


def draw_time(result: CaseResult) -> Figure:
    """Stack the predicted time of each group of kernels over context and over batch."""
    rows = parts(result.data)["stack"]
    axes_of = {
        "decode context": ("decode step, batch {requests}", "context (tokens)", "tokens"),
        "decode batch": ("decode step, context {tokens}", "batch (requests)", "requests"),
        "prefill context": ("prefill, batch {requests}", "input (tokens)", "tokens"),
    }
    figure, panels = plt.subplots(1, 3, figsize=(7.2, 3.1))
    for axes, (axis, (title, label, column)) in zip(panels, axes_of.items(), strict=True):
        own = rows[rows["axis"] == axis]
        table = own.pivot_table(index=column, columns="group", values="time_s", fill_value=0.0)
        table = table.reindex(columns=[group for group in GROUPS if group in table])
        share = 100 * table.div(table.sum(axis=1), axis=0)
        axes.stackplot(
            share.index, share.T, colors=[COLOURS[group] for group in share], edgecolor="white", linewidth=0.5
        )
        axes.set_xscale("log", base=2)
        axes.set(xlim=(share.index[0], share.index[-1]), ylim=(0, 100), xlabel=label)
        given = {name: quantities.binary(float(own[name].iloc[0])) for name in ("tokens", "requests")}
        axes.set_title(title.format(**given), fontsize=8.8, pad=17)
        axes.xaxis.set_major_locator(FixedLocator(_octaves(*share.index[[0, -1]])))
        axes.xaxis.set_major_formatter(FuncFormatter(quantities.binary))
        axes.xaxis.set_minor_locator(NullLocator())
        _totals(axes, table.sum(axis=1))
        _name_bands(axes, share, _full(axes, own.groupby(column)["fits"].all()))
    panels[0].set_ylabel("share of the time (%)")
    for axes in panels[1:]:
        axes.set_yticklabels([])
    figures.headline(figure, quantities.unbroken(time_finding(result)))
    return figure


def time_finding(result: CaseResult) -> str:
    """Say how a decode step changes with its context."""
    rows = parts(result.data)["stack"]
    own = rows[(rows["axis"] == "decode context") & rows["fits"].astype(bool)]
    if own.empty:
        return f"{result['model']} does not fit into the memory of {result['hardware']} with this batch"
    total = own.groupby("tokens")["time_s"].sum()
    attention = own[own["group"] == "attention"].set_index("tokens")["time_s"]
    share = 100 * attention.reindex(total.index, fill_value=0.0) / total
    first, last = total.index[0], total.index[-1]
    return (
        f"From {quantities.binary(first)} to {quantities.binary(last)} tokens of context, attention grows from "
        f"{share[first]:.0f} % to {share[last]:.0f} % of a decode step, "
        f"and the step takes {total[last] / total[first]:.3g} times as long"
    )


def _octaves(least: float, most: float) -> list[float]:
    """Return powers of two for about five ticks."""
    first, last = int(np.ceil(np.log2(least))), int(np.floor(np.log2(most)))
    step = max(1, -(-(last - first) // 4))
    return [2.0**power for power in range(first, last + 1, step)]


def _name_bands(axes: Axes, share: pd.DataFrame, edge: float | None) -> None:
    """Write each group's name where its band is highest over the name's whole width, on one side of the edge."""
    low, high = np.log2(axes.get_xlim())
    fine = np.linspace(low, high, 201)
    bands = np.array([np.interp(fine, np.log2(share.index), share[group]) for group in share])
    tops = bands.cumsum(axis=0)
    for number, group in enumerate(share):
        # About 0.03 of the width of the axes to a letter.
        half = int(len(fine) * (0.015 * len(group) + 0.01))
        centres = np.arange(half, len(fine) - half)
        if edge is not None:
            centres = centres[abs(centres - np.searchsorted(fine, np.log2(edge))) > half]
        ceiling = np.array([tops[number, at - half : at + half + 1].min() for at in centres])
        floor = np.array([(tops - bands)[number, at - half : at + half + 1].max() for at in centres])
        best = int(np.argmax(ceiling - floor))
        if ceiling[best] - floor[best] < 6:
            continue
        colour = "white" if group in DARK else figures.BLACK
        middle = (ceiling[best] + floor[best]) / 2
        axes.text(2 ** fine[centres[best]], middle, group, color=colour, ha="center", va="center", fontsize=7.2)


def _full(axes: Axes, fits: pd.Series) -> float | None:
    """Mark from where on weights and cache do not fit into DRAM, and return it."""
    if fits.all():
        return None
    edge = fits.index[~fits][0]
    low = axes.get_xlim()[0]
    axes.axvspan(edge, fits.index[-1], facecolor="none", edgecolor="white", hatch="////", linewidth=0, alpha=0.55)
    axes.axvline(edge, color="white", linewidth=1.2, linestyle="--")
    if edge > 4 * low:
        axes.text(edge, 3, "DRAM full ", color="white", ha="right", va="bottom", fontsize=6.8)
    return float(edge)


def _totals(axes: Axes, total: pd.Series) -> None:
    """Write the time at the ends and in the middle above the axes."""
    for place, side in ((0, "left"), (len(total) // 2, "center"), (-1, "right")):
        axes.text(total.index[place], 101.5, quantities.seconds(total.iloc[place]), ha=side, va="bottom", fontsize=6.8)


def draw_bound(result: CaseResult) -> Figure:
    """Map what bounds a pass over context and batch: the colour says what, its strength for how much of the time."""
    rows = parts(result.data)["map"]
    figure, panels = plt.subplots(1, 2, figsize=(7.0, 3.4), sharey=True)
    present = set()
    for axes, phase in zip(panels, ("prefill", "decode"), strict=True):
        present |= _map(axes, rows[rows["phase"] == phase])
        if f"{phase}_batch" in result.summary:
            own = result[f"{phase}_{'input' if phase == 'prefill' else 'context'}"], result[f"{phase}_batch"]
            axes.plot(*own, "o", color="white", markeredgecolor=figures.BLACK, markersize=6, zorder=6)
        axes.set_title(phase, fontsize=9)
        axes.set_xlabel("input (tokens)" if phase == "prefill" else "context (tokens)")
    panels[0].set_ylabel("batch (requests)")
    handles = [Patch(color=colour, label=words) for name, (words, colour) in BOUNDS.items() if name in present]
    hatched = {"facecolor": "white", "edgecolor": figures.BLACK, "hatch": "////", "linewidth": 0.4}
    if not rows["fits"].all():
        handles.append(Patch(**hatched, label="does not fit into DRAM"))
    own = {"marker": "o", "linestyle": "none", "color": "white", "markeredgecolor": figures.BLACK}
    handles.append(Line2D([], [], **own, label="the case in the table"))
    figure.legend(handles=handles, loc="outside right center", fontsize=7.4, title="most of the time goes to")
    figures.headline(figure, quantities.unbroken(bound_finding(result)))
    return figure


def _map(axes: Axes, rows: pd.DataFrame) -> set[str]:
    tables = {name: rows.pivot_table(index="requests", columns="tokens", values=f"{name}_percent") for name in BOUNDS}
    shares = np.array([table.to_numpy() for table in tables.values()])
    first = next(iter(tables.values()))
    largest, share = shares.argmax(axis=0), shares.max(axis=0)
    colours = np.array([to_rgb(colour) for _, colour in BOUNDS.values()])
    # White where the largest share is a third, the full colour where it is all of the time.
    strength = np.clip((share - 33) / 67, 0.06, 1)[..., None]
    image = 1 - strength * (1 - colours[largest])
    edges = [_edges(first.columns), _edges(first.index)]
    axes.pcolormesh(*edges, image, shading="flat", rasterized=True)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis, values in ((axes.xaxis, first.columns), (axes.yaxis, first.index)):
        axis.set_major_locator(FixedLocator(_octaves(values[0], values[-1])))
        axis.set_major_formatter(FuncFormatter(quantities.binary))
        axis.set_minor_locator(NullLocator())
    fits = rows.pivot_table(index="requests", columns="tokens", values="fits", aggfunc="all").to_numpy(bool)
    if not fits.all():
        sides = [
            np.r_[edge[0], values, edge[-1]] for edge, values in zip(edges, (first.columns, first.index), strict=True)
        ]
        place = (*sides, np.pad(~fits, 1, mode="edge"))
        axes.contourf(*place, levels=[0.5, 1.5], colors="none", hatches=["////"])
        axes.contour(*place, levels=[0.5], colors=figures.BLACK, linewidths=1)
    axes.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]])
    for number, (words, _) in enumerate(BOUNDS.values()):
        region = (largest == number) & fits
        if region.sum() < 0.04 * region.size:
            continue
        depth = distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
        # Of places as deep, the one nearest to the middle.
        middle = [
            place - inside.mean() for place, inside in zip(np.indices(region.shape), region.nonzero(), strict=True)
        ]
        depth -= 0.01 * np.hypot(*middle)
        at = np.unravel_index(depth.argmax(), depth.shape)
        style = {"ha": "center", "va": "center", "fontsize": 7.6, "fontweight": "bold", "color": figures.BLACK}
        text = f"{words.split(' ')[0]}\n{share[region].mean():.0f} %"
        axes.text(first.columns[at[1]], first.index[at[0]], text, path_effects=_HALO, **style)
    return {name for number, name in enumerate(BOUNDS) if (largest == number).any()}


def _edges(values: pd.Index) -> np.ndarray:
    """Return edges of cells around values, half way between them on a logarithmic axis."""
    logs = np.log2(np.asarray(values, float))
    if len(logs) < 2:
        return 2 ** (logs[0] + np.array([-0.5, 0.5]))
    inner = (logs[1:] + logs[:-1]) / 2
    return 2 ** np.r_[2 * logs[0] - inner[0], inner, 2 * logs[-1] - inner[-1]]


def bound_finding(result: CaseResult) -> str:
    """Say for how many contexts and batches memory bounds decoding, and compute prefill."""
    rows = parts(result.data)["map"]
    rows = rows[rows["fits"].astype(bool)]
    largest = rows[[f"{name}_percent" for name in BOUNDS]].idxmax(axis=1)
    compute = 100 * (largest == "compute_percent").groupby(rows["phase"]).mean()
    memory = 100 * largest.isin(["dram_percent", "l2_percent"]).groupby(rows["phase"]).mean()
    if rows.empty:
        return f"{result['model']} does not fit into the memory of {result['hardware']}"
    return (
        f"Decoding is memory-bound at {memory['decode']:.0f} % of the contexts and batches that fit into DRAM, "
        f"prefill compute-bound at {compute['prefill']:.0f} %"
    )
