"""Panels: who is the fastest where, how far each table is from the fastest, and what a version changed."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, NullLocator

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.studies.engine_comparison.comparison import names_of, over
from gpuledger.studies.engine_comparison.shapes import LAYOUTS

#: Colours of engines, by the first word of a table's name; others take the rest in order.
ENGINES = {"TensorRT-LLM": figures.GREEN, "vLLM": figures.BLUE, "SGLang": figures.ORANGE, "NCCL": figures.GREY}
_OTHERS = (figures.PURPLE, figures.SKY, figures.BLACK, figures.GREY, figures.GREEN, figures.BLUE)
#: By how much the second takes longer in a cell whose winner is drawn so strongly.
SHADES = ((0.25, 1.0), (0.10, 0.6), (0.05, 0.3))
#: Most panels of a figure, and of a map's columns.
MOST_PANELS, _COLUMNS = 4, 14
#: Times over the fastest are drawn up to this one; ratios of versions within these.
FAR, RATIOS = 4.0, (0.4, 2.5)


def colours(tables: Sequence[str]) -> dict[str, str]:
    """Return a colour by table; of two tables of one engine the second has the next free one."""
    found, free = {}, [color for color in _OTHERS]
    for name in tables:
        color = ENGINES.get(name.split(" ")[0])
        if color is None or color in found.values():
            color = next(one for one in free if one not in found.values())
        found[name] = color
    return found


def panels(result: CaseResult) -> dict[str, pd.DataFrame]:
    """Return the shapes of each panel by its title: those measured alike first, of each those with the most shapes."""
    parts = dict(list(result.data.groupby("panel", sort=False)))
    unlike = {panel: result.get(f"{slug(panel)}_unlike", "none") != "none" for panel in parts}
    order = sorted(parts, key=lambda panel: (unlike[panel], -len(parts[panel]), panel))[:MOST_PANELS]
    return {f"{panel}{' (not measured alike)' * unlike[panel]}": parts[panel] for panel in order}


def cells(part: pd.DataFrame, layout: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[str, str]]:
    """Sort shapes into cells of two sizes.

    Returns
    -------
    tuple
        Row and column of each shape; the smallest first size of every row (its values if these are few, else powers of
        two) and the edges of the columns; what the sizes are called.
    """
    (down, first), (across, second) = LAYOUTS[layout].map(part)
    first, second = first.to_numpy(float), np.asarray(second, dtype=float)
    starts = np.unique(first)
    if len(starts) > 12:
        starts = np.unique(2.0 ** np.floor(np.log2(first)))
    edges = np.geomspace(second.min(), max(second.max() * 1.001, second.min() * 2), _COLUMNS + 1)
    row = np.searchsorted(starts, first, side="right") - 1
    column = np.clip(np.searchsorted(edges, second, side="right") - 1, 0, _COLUMNS - 1)
    return row, column, starts, edges, (down, across)


def draw_winners(axes: Axes, part: pd.DataFrame, result: CaseResult) -> None:
    """Draw the fastest table in cells of two sizes, paler where it is less far ahead in the geometric mean."""
    tables = [name for name in names_of(result) if part[f"{slug(name)}_s"].notna().any()]
    row, column, starts, edges, words = cells(part, str(result["layout"]))
    logs = (
        pd.DataFrame({name: np.log(over(part, name, versions=False)) for name in tables}).groupby([row, column]).mean()
    )
    shade = np.ones((len(starts), len(edges) - 1, 3))
    own = colours(names_of(result))
    for (at, across), means in logs.iterrows():
        order = means.sort_values(kind="stable")
        ahead = float(np.expm1(order.iloc[1] - order.iloc[0]))
        strength = next((strength for least, strength in SHADES if ahead >= least), None)
        color = np.array(to_rgb(own[order.index[0]] if strength else figures.PALE))
        shade[at, across] = 1 - (strength or 1) * (1 - color)
    axes.pcolormesh(edges, np.arange(len(starts) + 1), shade, rasterized=True)
    _name_sizes(axes, starts, edges, words)


def draw_changes(axes: Axes, part: pd.DataFrame, result: CaseResult) -> ScalarMappable:
    """Draw the geometric mean of the second version's time over the first's in cells of two sizes."""
    name = names_of(result)[1]
    row, column, starts, edges, words = cells(part, str(result["layout"]))
    means = np.exp(np.log(part[f"{slug(name)}_ratio"]).groupby([row, column]).mean())
    values = np.full((len(starts), len(edges) - 1), np.nan)
    for (at, across), mean in means.items():
        values[at, across] = mean
    shades = LinearSegmentedColormap.from_list("", [figures.BLUE, "white", figures.VERMILLION])
    mesh = axes.pcolormesh(
        edges, np.arange(len(starts) + 1), values, cmap=shades, norm=LogNorm(*RATIOS), rasterized=True
    )
    axes.set_facecolor(figures.PALE)
    _name_sizes(axes, starts, edges, words)
    return mesh


def _name_sizes(axes: Axes, starts: np.ndarray, edges: np.ndarray, words: tuple[str, str]) -> None:
    axes.set(xscale="log", xlim=edges[[0, -1]], ylabel=words[0], xlabel=words[1])
    figures.set_magnitudes(axes.xaxis, *edges[[0, -1]], most=3 if figures.for_columns else 5)
    step = max(1, -(-len(starts) // 6))
    axes.set_yticks(np.arange(len(starts))[::step] + 0.5, [f"{value:,.0f}" for value in starts[::step]])
    axes.tick_params(length=2)


def draw_profile(axes: Axes, part: pd.DataFrame, result: CaseResult) -> None:
    """Draw, by table, the share of shapes that it computes within so many times the fastest table's time."""
    own = colours(names_of(result))
    for name in names_of(result):
        if part[f"{slug(name)}_s"].notna().any():
            ratio = np.sort(over(part, name, versions=False).to_numpy())
            share = 100 * np.arange(1, len(ratio) + 1) / len(ratio)
            first = 100 * float((ratio <= 1).mean())
            axes.step(
                [1, *ratio[ratio > 1], max(FAR, ratio[-1])],
                [first, *share[ratio > 1], 100],
                where="post",
                color=own[name],
                linewidth=1.5,
            )
    axes.set(xscale="log", xlim=(1, FAR), ylim=(0, 103), xlabel="time / fastest time", ylabel="shapes within (%)")
    ticks = [1, 2, 4] if figures.for_columns else [1, 1.2, 1.5, 2, 3, 4]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x")


def draw_ratios(axes: Axes, part: pd.DataFrame, result: CaseResult) -> None:
    """Draw how many shapes take which ratio of the first version's time, and which of them count."""
    name = slug(names_of(result)[1])
    ratio, sign = part[f"{name}_ratio"].clip(*RATIOS).to_numpy(), part[f"{name}_beyond"].to_numpy()
    edges = np.geomspace(*RATIOS, 45)
    kinds = [(sign < 0, figures.BLUE), (sign == 0, figures.GREY), (sign > 0, figures.VERMILLION)]
    weights = [np.full(own.sum(), 100 / len(ratio)) for own, _ in kinds]
    style = {"stacked": True, "color": [color for _, color in kinds], "weights": weights}
    axes.hist([ratio[own] for own, _ in kinds], edges, **style)
    axes.axvline(1, color=figures.BLACK, linewidth=0.6)
    shares = [100 * float(own.mean()) for own, _ in kinds]
    for share, word, at, side in ((shares[0], "faster", 0.02, "left"), (shares[2], "slower", 0.98, "right")):
        style = {"transform": axes.transAxes, "ha": side, "va": "top", "fontsize": 7}
        color = figures.BLUE if word == "faster" else figures.VERMILLION
        said = f"{share:.0f} %" if figures.for_columns else f"{share:.0f} % {word}"
        axes.text(at, 0.96, said, color=color, fontweight="bold", **style)
    axes.set(xscale="log", xlim=RATIOS, xlabel="new time / old time", ylabel="shapes (%)")
    axes.margins(y=0.25)
    axes.set_xticks([0.5, 1, 2])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def handles(result: CaseResult) -> list[Patch | Line2D]:
    """Return what the legend of a figure shows: the tables, and what pale cells mean; or whether a change counts."""
    if result["baseline"] != "none":
        words = {
            "faster beyond noise": figures.BLUE,
            "within noise": figures.GREY,
            "slower beyond noise": figures.VERMILLION,
            "not measured": figures.PALE,
        }
        return [Patch(color=color, label=label) for label, color in words.items()]
    shown = [Patch(color=color, label=figures.plain(name)) for name, color in colours(names_of(result)).items()]
    return [*shown, Patch(color=figures.PALE, label="less than 5 % ahead (full colour: 25 %)")]
