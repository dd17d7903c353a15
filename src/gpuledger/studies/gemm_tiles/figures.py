"""Panels: which tile for which m × n, and how often the model has the same one."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap

from gpuledger.ledger import figures
from gpuledger.studies.gemm_tiles.reduction import COMPARED
from gpuledger.studies.gemm_tiles.tables import tile_names

#: From no shape with the model's tile to all.
_SHADES = LinearSegmentedColormap.from_list("agreement", ["#FFFFFF", figures.BLUE])
#: Colours of what is compared; a line is drawn for so many shapes at least.
_COLOURS = {
    "same_choice": figures.GREY,
    "same_waves": figures.SKY,
    "same_tile": figures.BLUE,
    "ruled_tile": figures.GREEN,
}
_LEAST, _APART = 20, 7  # and names beside its end are so far apart (%)


def draw_map(axes: Axes, rows: pd.DataFrame) -> QuadMesh:
    """Write the tile that is launched most often for each power of two of m and n; shaded where the model has the same.

    Parameters
    ----------
    rows : DataFrame
        Of one type of number; any k.

    Returns
    -------
    QuadMesh
        For a colour bar: per cent of a cell's shapes for which the model has the tile that was launched.
    """
    down, across = (np.floor(np.log2(rows[size])).astype(int) for size in ("n", "m"))
    cells = rows.assign(down=down, across=across, tile=tile_names(rows)).groupby(["down", "across"])
    share = 100 * cells["same_tile"].mean().unstack()
    share = share.reindex(range(down.min(), down.max() + 1)).reindex(columns=range(across.min(), across.max() + 1))
    most = cells["tile"].agg(lambda tiles: tiles.value_counts().index[0])
    mesh = axes.pcolormesh(
        np.arange(across.min(), across.max() + 2),
        np.arange(down.min(), down.max() + 2),
        share,
        cmap=_SHADES,
        vmin=0,
        vmax=100,
        edgecolors="white",
        linewidth=0.5,
    )
    for (row, column), tile in most.items():
        color = "white" if share.loc[row, column] > 60 else figures.BLACK
        label = tile.replace("×", "\n×")
        axes.text(column + 0.5, row + 0.5, label, ha="center", va="center", fontsize=5.2, color=color, linespacing=0.9)
    axes.set(xlabel="m, rows of x (from … on)", ylabel="n, columns of y (from … on)")
    for axis, values in ((axes.xaxis, share.columns), (axes.yaxis, share.index)):
        axis.set_ticks([value + 0.5 for value in values], [figures_of(value) for value in values])
        axis.set_tick_params(length=0, labelsize=6)
    axes.spines[:].set_visible(False)
    return mesh


def figures_of(power: int) -> str:
    """Return a power of two in short: 512, 4k."""
    return f"{2**power}" if power < 10 else f"{2 ** (power - 10)}k"


def draw_agreement(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw how often the model agrees, and the rule, over m."""
    powers = 2.0 ** np.round(np.log2(rows["m"]))
    ends = {}
    for name, color in _COLOURS.items():
        means = rows[name].groupby(powers).agg(["mean", "count"])
        means = means[means["count"] >= min(_LEAST, max(means["count"].max(), 1))]
        if len(means):
            axes.plot(means.index, 100 * means["mean"], color=color, linewidth=1.5, marker="o", markersize=2.5)
            ends[name] = means.index[-1], 100 * means["mean"].iloc[-1]
    low = -np.inf
    for name, (at, last) in sorted(ends.items(), key=lambda end: end[1][1]):
        low = max(last, low + _APART)
        place = {"xytext": (1.6 * at, low), "va": "center", "fontsize": 7}
        axes.annotate(COMPARED[name], (at, last), **place, color=_COLOURS[name])
    axes.set(xscale="log", ylim=(0, 103), xlabel="m, rows of x", ylabel="shapes (%)")
    axes.set_xlim(right=rows["m"].max() * 1.5)
