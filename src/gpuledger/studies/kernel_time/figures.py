"""Panels of predicted against measured kernel times; each draws into the given axes, of the held-back half."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.ticker import FuncFormatter, NullFormatter

from gpuledger.ledger import figures

#: What bounds a prediction: its name in the legend, and its colour.
BOUNDS = {
    "compute": ("matrix units", figures.BLUE),
    "issue": ("issue", figures.SKY),
    "latency": ("steps", figures.ORANGE),
    "l2": ("L2", figures.GREEN),
    "dram": ("DRAM", figures.VERMILLION),
    "launch": ("launch", figures.PURPLE),
    "host": ("host", figures.BLACK),
    "block": ("blocks", figures.SKY),
    "moved": ("permutation", figures.ORANGE),
    "link": ("link", figures.VERMILLION),
}
#: Ratios of predicted to measured time are clipped to this range.
RATIOS = (0.4, 2.2)
#: Error (%) at which the colour of a map is darkest.
DARKEST_PERCENT = 30
_GREY = "#AAAAAA"


def panels(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the held-back rows of each panel by title: per operator, or per data type of a single one.

    Parameters
    ----------
    data : DataFrame
        Of :func:`gpuledger.studies.kernel_time.reduce`.
    """
    back = data[data["held_back"]]
    column = "group" if back["operator"].nunique() == 1 else "operator"
    return {name: back[back[column] == name] for name in dict.fromkeys(back[column])}


def draw_errors(axes: Axes, part: pd.DataFrame, title: str) -> None:
    """Draw predicted over measured time, with the roofline's predictions in grey behind it.

    Parameters
    ----------
    axes : Axes
    part : DataFrame, shape (kernels, …)
        One of :func:`panels`. The x axis is GFLOP for GEMMs and MB for other operators.
    title : str
        Stands in the panel, followed by the mean absolute percentage error.
    """
    x = part["flop"] / 1e9 if (part["operator"] == "gemm").all() else part["bytes"] / 1e6
    many = len(part) > 300
    dots = {"s": 4 if many else 12, "linewidth": 0, "rasterized": many}
    axes.axhspan(0.9, 1 / 0.9, color=figures.PALE, linewidth=0, zorder=0)
    axes.scatter(x, np.clip(part["roofline_s"] / part["measured_s"], *RATIOS), color=_GREY, zorder=1, **dots)
    for bound, (_, color) in BOUNDS.items():
        chosen = part["bound"] == bound
        if chosen.any():
            ratio = np.clip(part["predicted_s"] / part["measured_s"], *RATIOS)[chosen]
            axes.scatter(x[chosen], ratio, color=color, zorder=2, **dots)
    axes.axhline(1, color=figures.BLACK, linewidth=0.6, zorder=3)
    axes.set(xscale="log", yscale="log")
    axes.set_yticks([0.5, 1, 2])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    mape = 100 * (part["predicted_s"] / part["measured_s"] - 1).abs().mean()
    words = figures.plain(f"{title}: {mape:.1f} %")
    axes.text(0.02, 0.97, words, transform=axes.transAxes, va="top", fontweight="bold", fontsize=7.5)


def label_bounds(axes: Axes, data: pd.DataFrame) -> None:
    """Enter the bounds that occur in the held-back rows of `data` into the legend of `axes`."""
    occurring = set(data["bound"][data["held_back"]])
    for bound, (name, color) in BOUNDS.items():
        if bound in occurring:
            axes.scatter([], [], color=color, s=16, label=name)
    axes.scatter([], [], color=_GREY, s=16, label="roofline")
    axes.fill_between([], [], color=figures.PALE, label="within 10 %")


def draw_map(axes: Axes, part: pd.DataFrame) -> ScalarMappable:
    """Draw the mean absolute percentage error of GEMMs over tokens m and weights n·k.

    Parameters
    ----------
    axes : Axes
    part : DataFrame, shape (kernels, …)
        One of :func:`panels`.

    Returns
    -------
    ScalarMappable
        For a colour bar.
    """
    error = 100 * (part["predicted_s"] / part["measured_s"] - 1).abs()
    m = np.unique(part["m"])
    weights = part["n"] * part["k"]
    edges = np.geomspace(weights.min(), max(weights.max() * 1.001, weights.min() * 2), 13)
    column = np.searchsorted(edges, weights, side="right") - 1
    if len(m) > 24:
        m = np.unique(2 ** np.floor(np.log2(m)).astype(int))
    row = np.searchsorted(m, part["m"], side="right") - 1
    cells = error.groupby([row, column]).mean()
    values = np.full((len(m), len(edges) - 1), np.nan)
    values[cells.index.get_level_values(0), cells.index.get_level_values(1)] = cells
    shades = {"cmap": "cividis", "vmin": 0, "vmax": DARKEST_PERCENT, "rasterized": True}
    mesh = axes.pcolormesh(edges / 1e6, np.arange(len(m) + 1), values, **shades)
    axes.set(xscale="log")
    step = max(1, len(m) // 8)
    axes.set_yticks(np.arange(len(m))[::step] + 0.5, [f"{value:,}" for value in m[::step]])
    return mesh


def draw_regions(axes: Axes, data: pd.DataFrame) -> ScalarMappable:
    """Draw the mean absolute percentage error of the held-back rows, per operator and region.

    Parameters
    ----------
    axes : Axes
    data : DataFrame
        Of :func:`gpuledger.studies.kernel_time.reduce`.

    Returns
    -------
    ScalarMappable
        For a colour bar.
    """
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
