"""The panel of a precision: rates over the rows of an expert, with tuned and with default tiles."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger import figures
from gpuledger.studies.expert_tiles.reduction import LEAST_COLUMNS, gain

#: Colours of tuned and of default tiles: these are what others are compared with.
TUNED, DEFAULT = figures.BLUE, figures.GREY


def draw_rates(axes: Axes, rows: pd.DataFrame, peak: float = np.nan) -> None:
    """Draw what launches reach over the rows of an expert, with the medians of each power of two.

    Layers with tuned tiles are others than those without: what tuning gains, of layers that are nearly alike, is
    written above.

    Parameters
    ----------
    rows : DataFrame
        Of one precision. Narrower experts than `LEAST_COLUMNS` are left out, and so is less than a row for each expert.
    peak : float
        The data sheet's rate (FLOP/s), which is written: drawn, it would press all launches together.
    """
    rows = rows[(rows["inter"] >= LEAST_COLUMNS) & (rows["expert_rows"] >= 1)]
    for tuned, color, name in ((False, DEFAULT, "default tiles"), (True, TUNED, "tuned tiles")):
        part = rows[rows["tuned"] == tuned]
        if part.empty:
            continue
        rate = part["flop_per_s"] / 1e12
        axes.scatter(part["expert_rows"], rate, s=5, color=color, alpha=0.35, linewidth=0, rasterized=True)
        medians = rate.groupby(2.0 ** np.round(np.log2(part["expert_rows"]))).median()
        axes.plot(medians.index, medians, color=color, linewidth=1.3, label=name)
    said = [f"data sheet's peak: {peak / 1e12:,.0f} TFLOP/s"] * bool(np.isfinite(peak))
    if np.isfinite(times := gain(rows)):
        said.append(f"tuned: {times:.2f} times the next widths' rate")
    axes.text(0.03, 0.99, "\n".join(said), transform=axes.transAxes, va="top", fontsize=6.8, linespacing=1.5)
    axes.set(xscale="log", xlabel="rows of an expert (mean)", ylabel="TFLOP/s")
    axes.set_xlim(1, 1.3 * rows["expert_rows"].max())
    axes.set_ylim(0, 1.3 * (rows["flop_per_s"] / 1e12).max())
