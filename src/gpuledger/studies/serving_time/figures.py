"""Panels of the figure."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger import figures


def draw_times(axes: Axes, data: pd.DataFrame, bins: int = 20, color: str = figures.BLUE) -> None:
    """Draw the distribution of times."""
    axes.hist(data["time_us"], bins=bins, color=color)
    axes.set(xlabel="time (µs)", ylabel="measurements")
