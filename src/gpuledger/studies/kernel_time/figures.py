"""Figures of predicted against measured kernel times, of the held-back half."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from gpuledger.ledger import figures

#: What a prediction is bounded by: name for people and colour.
BOUNDS = {
    "compute": ("matrix units", figures.BLUE),
    "issue": ("issue", figures.SKY),
    "latency": ("steps", figures.ORANGE),
    "l2": ("L2", figures.GREEN),
    "dram": ("DRAM", figures.VERMILLION),
    "launch": ("launch", figures.PURPLE),
    "host": ("host", figures.BLACK),
}
_RATIOS = (0.4, 2.2)
#: Above them is room for a panel's title.
_TOP = 3.1
#: Error (%) at which the colour of a map is darkest.
_DARKEST_PERCENT = 30


def draw_errors(data: pd.DataFrame) -> Figure:
    """Draw predicted over measured time of every held-back shape, the roofline's behind it in grey.

    Parameters
    ----------
    data : DataFrame
        Of :func:`gpuledger.studies.kernel_time.reduce`.

    Returns
    -------
    Figure
        A panel a type of GEMM over FLOP, or a panel an operator over the bytes that it moves.
    """
    back = data[data["held_back"]]
    panels, by_operator = _panels(back)
    columns = min(3, len(panels)) if len(panels) != 4 else 2
    rows = -(-len(panels) // columns)
    size = (6.6 if rows == 1 else 7.4, 2.9 if rows == 1 else 0.7 + 1.75 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    shown = [name for name in BOUNDS if (back["bound"] == name).any()]
    first = grid.flat[0]
    many = max(map(len, panels.values())) > 300
    dots = {"s": 4 if many else 12, "linewidth": 0, "rasterized": many}
    for axes, (title, part) in zip(grid.flat, panels.items(), strict=False):
        x = part["bytes"] / 1e6 if by_operator else part["flop"] / 1e9
        axes.axhspan(0.9, 1 / 0.9, color=figures.PALE, linewidth=0, zorder=0)
        ratio = np.clip(part["roofline_s"] / part["measured_s"], *_RATIOS)
        axes.scatter(x, ratio, color="#AAAAAA", zorder=1, **dots)
        for bound in shown:
            chosen = (part["bound"] == bound).to_numpy()
            ratio = np.clip(part["predicted_s"] / part["measured_s"], *_RATIOS)[chosen]
            axes.scatter(x[chosen], ratio, color=BOUNDS[bound][1], zorder=2, **dots)
        axes.axhline(1, color=figures.BLACK, linewidth=0.6, zorder=3)
        axes.set(xscale="log", yscale="log", ylim=(_RATIOS[0], _TOP))
        axes.set_yticks([0.5, 1, 2])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        mape = 100 * (part["predicted_s"] / part["measured_s"] - 1).abs().mean()
        words = figures.plain(f"{title}: {mape:.1f} %")
        axes.text(0.02, 0.97, words, transform=axes.transAxes, va="top", fontweight="bold", fontsize=7.5)
    # One legend for all panels.
    for bound in shown:
        first.scatter([], [], color=BOUNDS[bound][1], s=16, label=BOUNDS[bound][0])
    first.scatter([], [], color="#AAAAAA", s=16, label="roofline")
    first.fill_between([], [], color=figures.PALE, label="within 10 %")
    figure.supxlabel("bytes moved (MB)" if by_operator else "operations (GFLOP)", fontsize=8.5)
    figure.supylabel("predicted / measured time (1)", fontsize=8.5)
    return figure


def draw_map(data: pd.DataFrame) -> Figure:
    """Draw where the model is right and where it is not: mean absolute percentage error of the held-back shapes.

    Parameters
    ----------
    data : DataFrame
        Of :func:`gpuledger.studies.kernel_time.reduce`.

    Returns
    -------
    Figure
        Of GEMMs over tokens m and weights n·k, a panel a type; of operators over their regions, a row an operator.
    """
    back = data[data["held_back"]]
    back = back.assign(error_percent=100 * (back["predicted_s"] / back["measured_s"] - 1).abs())
    panels, by_operator = _panels(back)
    if by_operator:
        return _draw_cells(back)
    figure, grid = plt.subplots(1, len(panels), figsize=(2.0 + 2.1 * len(panels), 3.0), sharey=True, squeeze=False)
    mesh = None
    for axes, (title, part) in zip(grid.flat, panels.items(), strict=True):
        m = np.unique(part["m"])
        weights = part["n"] * part["k"]
        edges = np.geomspace(weights.min(), max(weights.max() * 1.001, weights.min() * 2), 13)
        column = np.searchsorted(edges, weights, side="right") - 1
        if len(m) > 24:
            m = np.unique(2 ** np.floor(np.log2(m)).astype(int))
        row = np.searchsorted(m, part["m"], side="right") - 1
        cells = part.groupby([row, column])["error_percent"].mean()
        grid_values = np.full((len(m), len(edges) - 1), np.nan)
        grid_values[cells.index.get_level_values(0), cells.index.get_level_values(1)] = cells
        mesh = axes.pcolormesh(
            edges / 1e6,
            np.arange(len(m) + 1),
            grid_values,
            cmap="cividis",
            vmin=0,
            vmax=_DARKEST_PERCENT,
            rasterized=True,
        )
        axes.set(xscale="log", title=title)
        step = max(1, len(m) // 8)
        axes.set_yticks(np.arange(len(m))[::step] + 0.5, [f"{value:,}" for value in m[::step]])
    grid.flat[0].set_ylabel("tokens m")
    figure.supxlabel("weights n·k (10⁶)", fontsize=8.5)
    bar = figure.colorbar(mesh, ax=list(grid.flat), extend="max", pad=0.02)
    bar.set_label("mean absolute error (%)")
    return figure


def _draw_cells(back: pd.DataFrame) -> Figure:
    cells = back.pivot_table(index="operator", columns="region", values="error_percent", sort=False)
    order = back.groupby("region")["bytes"].median().sort_values().index
    cells = cells.reindex(index=list(dict.fromkeys(back["operator"])), columns=order)
    figure, axes = plt.subplots(figsize=(6.0, 0.9 + 0.33 * len(cells)))
    mesh = axes.pcolormesh(cells.to_numpy(), cmap="cividis", vmin=0, vmax=_DARKEST_PERCENT, edgecolors="white")
    axes.set_xticks(np.arange(cells.shape[1]) + 0.5, [name.replace(" rows", "\nrows") for name in cells.columns])
    axes.set_yticks(np.arange(len(cells)) + 0.5, cells.index)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    for row, column in np.ndindex(cells.shape):
        value = cells.iloc[row, column]
        if not np.isnan(value):
            shade = figures.BLACK if value > 0.55 * _DARKEST_PERCENT else "white"
            axes.text(column + 0.5, row + 0.5, f"{value:.1f}", ha="center", va="center", color=shade, fontsize=8)
    bar = figure.colorbar(mesh, ax=axes, extend="max", pad=0.02)
    bar.set_label("mean absolute error (%)")
    return figure


def _panels(data: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], bool]:
    """By title, the rows of each panel; and whether panels are operators (else they are types of GEMM)."""
    by_operator = data["operator"].nunique() > 1 or not (data["operator"] == "gemm").all()
    column = "operator" if by_operator else "group"
    return {name: data[data[column] == name] for name in dict.fromkeys(data[column])}, by_operator
