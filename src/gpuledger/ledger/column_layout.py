"""Figures for one column of a paper: the same drawing at 3.33 inches, panels below one another, without a headline."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text
from matplotlib.ticker import AutoLocator, MaxNLocator

#: Width of a column in inches, and the smallest and the largest text in it in points.
WIDTH, SMALLEST, LARGEST = 3.33, 6.5, 7.5
# Inches that the title, the ticks and the label of a panel take beside its plot.
_AROUND = 0.55


def apply(figure: Figure) -> None:
    """Give a figure the size, panels, texts and legends of a column; its layout engine then does the rest."""
    axes = [ax for ax in figure.axes if ax.get_subplotspec() is not None]
    above = max((_narrow_legend(ax) for ax in axes if ax.get_legend()), default=0)
    # The layout does not know what is above the topmost panel: an empty headline keeps room for it.
    figure.suptitle("\n".join([" "] * above), fontsize=SMALLEST)
    figure.set_size_inches(WIDTH, _stack(figure, axes))
    for text in figure.findobj(Text):
        text.set_fontsize(min(LARGEST, max(SMALLEST, 0.85 * text.get_fontsize())))
    # Characters of plain and of bold text that fit across.
    plain, bold = 52, 40
    for ax in axes:
        for text in (ax.title, ax._left_title, ax._right_title, ax.xaxis.label):
            across = plain if text is ax.xaxis.label else bold
            text.set_text("\n".join(textwrap.fill(line, across) for line in text.get_text().splitlines()))
        legend = ax.get_legend()
        if legend and legend.get_in_layout() and legend.get_window_extent().y0 >= ax.bbox.y1:
            # A legend beside the title goes below it.
            ax._left_title.set_text(f"{ax._left_title.get_text()}\n")
        if isinstance(ax.xaxis.get_major_locator(), AutoLocator):
            ax.xaxis.set_major_locator(MaxNLocator(4))


def _narrow_legend(ax: Axes) -> int:
    """Give an axes with a legend above it a narrow one; return the rows that it has there."""
    legend = ax.get_legend()
    if legend.get_in_layout():
        return 0
    labels = [text.get_text() for text in legend.get_texts()]
    columns = 2 if max(map(len, labels)) > 12 else 3
    narrow = ax.legend(
        legend.legend_handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        borderaxespad=0.2,
        fontsize=SMALLEST,
        handletextpad=0.4,
        columnspacing=1.2,
        borderpad=0.2,
    )
    narrow.set_in_layout(False)
    return -(-len(labels) // columns)


def _stack(figure: Figure, axes: list[Axes]) -> float:
    """Put panels below one another if some are beside one another; return the height in inches."""
    specs = [ax.get_subplotspec() for ax in axes]
    heights = [ax.get_position().height * figure.get_figheight() for ax in axes]
    if all(spec.get_gridspec().ncols == 1 for spec in specs):
        return min(figure.get_figheight(), sum(heights) + _AROUND * len(axes))
    order = sorted(range(len(axes)), key=lambda number: (specs[number].rowspan.start, specs[number].colspan.start))
    heights = [max(1.3, min(height, 2.2)) for height in heights]
    for ax in axes:
        ax.tick_params(labelleft=True, labelbottom=True)
    grid = GridSpec(len(axes), 1, figure=figure, height_ratios=[heights[number] for number in order])
    for row, number in enumerate(order):
        axes[number].set_subplotspec(grid[row])
    return sum(heights) + _AROUND * len(axes)
