"""Panels of predicted against measured kernel times; each draws into the given axes, of the held-back half."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, NullFormatter

from gpuledger.ledger import figures

#: What predicts a time: its name, colour and marker. The simplest first.
PREDICTORS = {
    "roofline_s": ("roofline", figures.GREY, "o"),
    "derate_s": ("derated roofline", figures.ORANGE, "s"),
    "derated_s": ("fitted roofline", figures.GREEN, "D"),
    "lookup_s": ("look-up", figures.PURPLE, "^"),
    "predicted_s": ("time model", figures.BLUE, "o"),
}
#: Ratios of predicted to measured time are clipped to this range.
RATIOS = (0.4, 2.2)
#: Error (%) at which the colour of a map is darkest.
DARKEST_PERCENT = 30
#: With more kernels than this, a panel shows how many fall into a cell instead of dots.
MOST_DOTS = 300


def panels(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the held-back rows of each panel by title: per operator, or per data type of a single one."""
    back = data[data["held_back"]]
    column = "group" if back["operator"].nunique() == 1 else "operator"
    return {name: back[back[column] == name] for name in dict.fromkeys(back[column])}


def mape_percent(part: pd.DataFrame, predictor: str = "predicted_s") -> float:
    """Return the mean absolute percentage error of a predictor, a column of times; NaN where it predicts none."""
    return 100 * float((part[predictor] / part["measured_s"] - 1).abs().mean())


def draw_errors(axes: Axes, part: pd.DataFrame, title: str) -> None:
    """Draw predicted over measured time by size, and above it a strip with the mean error of every predictor.

    The time model is drawn as dots, or as cells that are darker where more kernels fall into them; of the rooflines
    only the median by size.

    Parameters
    ----------
    part : DataFrame, shape (kernels, …)
        One of :func:`panels`. The x axis is GFLOP for GEMMs and MB for other operators.
    """
    x = (part["flop"] / 1e9 if (part["operator"] == "gemm").all() else part["bytes"] / 1e6).to_numpy(float)
    ratios = {name: (part[name] / part["measured_s"]).to_numpy(float) for name in PREDICTORS if name in part}
    model, color = np.clip(ratios["predicted_s"], *RATIOS), PREDICTORS["predicted_s"][1]
    for limit, beyond, words in zip(RATIOS, (np.less, np.greater), ("less", "more"), strict=True):
        if beyond(ratios["predicted_s"], limit).any():
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
            halo = [withStroke(linewidth=2, foreground="white")]
            style = {"color": "#555555", "fontsize": 6.5, "zorder": 5, "path_effects": halo}
            axes.annotate(f"{limit} or {words}", (0.99, limit), (0, 3), **style, **place)
    edges = np.geomspace(x.min(), max(1.001 * x.max(), 2 * x.min()), 37)
    axes.axhspan(0.9, 1.1, color=figures.PALE, linewidth=0, zorder=0)
    if len(part) > MOST_DOTS:
        heights = np.geomspace(*RATIOS, 41)
        count = np.histogram2d(x, model, bins=(edges, heights))[0].T
        shades = LinearSegmentedColormap.from_list("", [(*to_rgb(color), 0.12), (*to_rgb(color), 1.0)])
        style = {"cmap": shades, "norm": LogNorm(1, max(2, count.max())), "rasterized": True, "zorder": 2}
        axes.pcolormesh(edges, heights, np.where(count > 0, count, np.nan), **style)
    else:
        axes.scatter(x, model, color=color, s=12, linewidth=0, zorder=2)
    bins = np.searchsorted(edges[::3], x, side="right")
    for name in ("roofline_s", "derate_s" if "derate_s" in ratios else "derated_s"):
        medians = pd.DataFrame({"x": x, "ratio": ratios.get(name, np.nan)}).groupby(bins).median()
        line = {"color": PREDICTORS[name][1], "linewidth": 1.3, "zorder": 3}
        axes.plot(medians["x"], medians["ratio"], **line)
    axes.axhline(1, color=figures.BLACK, linewidth=0.6, zorder=3)
    axes.set(xscale="log", yscale="log")
    axes.set_yticks([0.5, 1, 2])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.text(0.02, 0.975, figures.plain(title), transform=axes.transAxes, va="top", fontweight="bold", fontsize=7.5)
    _draw_strip(axes, {name: mape_percent(part, name) for name in ratios})


def _draw_strip(axes: Axes, errors: Mapping[str, float]) -> None:
    """Draw a bar per predictor with its mean error (%) into the upper right corner, 100 % half as wide as the axes."""
    shown = [(name, error) for name, error in errors.items() if not np.isnan(error)]
    # Of many panels the titles are operators, which may be as wide as a panel.
    narrow = figures.for_columns or axes.get_subplotspec().get_gridspec().get_geometry() >= (2, 3)
    for place, (name, error) in enumerate(shown):
        top = 0.97 - 0.075 * (place + 1.4 * narrow)
        width = 0.36 * min(error, 100) / 100
        axes.add_patch(
            Rectangle((0.45, top - 0.05), width, 0.05, transform=axes.transAxes, color=PREDICTORS[name][1], linewidth=0)
        )
        words = f"{error:.1f} %" if error < 9.95 else f"{error:.0f} %"
        halo = [withStroke(linewidth=2, foreground="white")]
        style = {"va": "center", "fontsize": 6.5, "zorder": 5, "path_effects": halo}
        axes.text(0.465 + width, top - 0.027, words, transform=axes.transAxes, **style)


def label_predictors(axes: Axes, data: pd.DataFrame) -> None:
    """Enter the predictors that `data` has into the legend of `axes`."""
    for name, (label, color, _) in PREDICTORS.items():
        if name in data and data[name].notna().any():
            axes.fill_between([], [], color=color, linewidth=0, label=label)
    axes.fill_between([], [], color=figures.PALE, linewidth=0, label="within 10 %")
    axes.plot([], [], linestyle="none", label="bars: mean error")


def draw_map(axes: Axes, part: pd.DataFrame, data: pd.DataFrame) -> ScalarMappable:
    """Draw the mean absolute percentage error of GEMMs over tokens m and weights n·k.

    Parameters
    ----------
    part : DataFrame, shape (kernels, …)
        One of :func:`panels`.
    data : DataFrame
        The case's, whose sizes all maps of a figure share.
    """
    error = 100 * (part["predicted_s"] / part["measured_s"] - 1).abs()
    back = data[data["held_back"]]
    m, weights = np.unique(back["m"]), back["n"] * back["k"]
    edges = np.geomspace(weights.min(), max(weights.max() * 1.001, weights.min() * 2), 13)
    column = np.searchsorted(edges, part["n"] * part["k"], side="right") - 1
    if len(m) > 24:
        m = np.unique(2 ** np.floor(np.log2(m)).astype(int))
    row = np.searchsorted(m, part["m"], side="right") - 1
    cells = error.groupby([row, column]).mean()
    values = np.full((len(m), len(edges) - 1), np.nan)
    values[cells.index.get_level_values(0), cells.index.get_level_values(1)] = cells
    shades = {"cmap": "cividis", "vmin": 0, "vmax": DARKEST_PERCENT, "rasterized": True}
    mesh = axes.pcolormesh(edges / 1e6, np.arange(len(m) + 1), values, **shades)
    axes.set(xscale="log", xlim=edges[[0, -1]] / 1e6)
    step = max(1, len(m) // 8)
    axes.set_yticks(np.arange(len(m))[::step] + 0.5, [f"{value:,}" for value in m[::step]])
    return mesh


def draw_regions(axes: Axes, data: pd.DataFrame) -> ScalarMappable:
    """Draw the mean absolute percentage error of the held-back rows, per operator and region."""
    back = data[data["held_back"]]
    back = back.assign(error_percent=100 * (back["predicted_s"] / back["measured_s"] - 1).abs())
    row = "operator" if back["operator"].nunique() > 1 else "group"
    cells = back.pivot_table(index=row, columns="region", values="error_percent", sort=False)
    order = back.groupby("region")["region_order"].min().sort_values().index
    cells = cells.reindex(index=list(dict.fromkeys(back[row])), columns=order)
    mesh = axes.pcolormesh(cells.to_numpy(), cmap="cividis", vmin=0, vmax=DARKEST_PERCENT, edgecolors="white")
    axes.set_xticks(
        np.arange(cells.shape[1]) + 0.5,
        [re.sub(" (rows|tokens|cached tokens)", r"\n\1", name) for name in cells.columns],
    )
    axes.set_yticks(np.arange(len(cells)) + 0.5, cells.index)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    for row, column in np.ndindex(cells.shape):
        value = cells.iloc[row, column]
        if not np.isnan(value):
            shade = figures.BLACK if value > 0.55 * DARKEST_PERCENT else "white"
            axes.text(column + 0.5, row + 0.5, f"{value:.1f}", ha="center", va="center", color=shade, fontsize=8)
    return mesh
