"""Figures for one column of a paper: the same drawing at 3.33 inches, panels below one another, without a headline."""

import math
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.text import Annotation, Text
from matplotlib.ticker import AutoLocator, FixedLocator, MaxNLocator
from matplotlib.transforms import blended_transform_factory

#: Width of a column in inches, and the smallest and the largest text in it in points.
WIDTH, SMALLEST, LARGEST = 3.33, 6.5, 7.5
#: Inches that panels may take on a page, and the most panels that are below one another, without and with others on
#: top of them; more are two in a row.
TALLEST, MOST, MOST_TOPPED = 7.2, 5, 3
#: Characters that fit across: of plain text, of bold text, of a label beside a plot, and of a note in one.
PLAIN, BOLD, BESIDE, NOTE = 52, 40, 24, 32
# Those of a legend's labels, with five for each handle, and within axes, without these.
_LEGEND, _WITHIN = 50, 42
# Inches that the title, the ticks and the label of a panel take beside its plot, and of one and two lines of text.
_AROUND, _LINE, _LINES = 0.55, 0.13, 0.24


def apply(figure: Figure) -> None:
    """Give a figure the size, panels, texts and legends of a column; its layout engine then does the rest."""
    axes = [ax for ax in figure.axes if ax.get_subplotspec() is not None]
    above = max((_narrow_legend(ax) for ax in axes if ax.get_legend()), default=0)
    below = sum(_narrow_figure_legend(figure, legend) for legend in list(figure.legends))
    # The layout does not know what is above the topmost panel: an empty headline, whose lines are lower than a legend's
    # rows, keeps room for it.
    figure.suptitle("\n".join([" "] * math.ceil(1.3 * above)), fontsize=SMALLEST)
    figure.set_size_inches(WIDTH, _stack(figure, axes) + _LINE * below)
    limit_texts(figure)
    for ax in axes:
        for text in (ax.title, ax._left_title, ax._right_title, ax.xaxis.label):
            across = PLAIN if text is ax.xaxis.label else BOLD
            text.set_text("\n".join(_fill(line, across) for line in text.get_text().split("\n")))
        for text in ax.texts:
            # An annotation that points away from its place stays in one line.
            if not isinstance(text, Annotation) or len(text.get_text()) > NOTE:
                across = PLAIN if "\n" in text.get_text() else NOTE
                text.set_text("\n".join(_fill(line, across) for line in text.get_text().split("\n")))
        _wrap_ticks(ax.yaxis)
        _thin_ticks(ax.xaxis)
        legend = ax.get_legend()
        if legend and legend.get_in_layout() and legend.get_window_extent().y0 >= ax.bbox.y1:
            # A legend beside the title goes below it.
            ax._left_title.set_text(f"{ax._left_title.get_text()}\n")
        if isinstance(ax.xaxis.get_major_locator(), AutoLocator):
            ax.xaxis.set_major_locator(MaxNLocator(3))


def limit_texts(figure: Figure) -> None:
    """Give every text of a figure a size that a column has."""
    for text in figure.findobj(Text):
        text.set_fontsize(min(LARGEST, max(SMALLEST, 0.85 * text.get_fontsize())))


def _narrow_legend(ax: Axes) -> int:
    """Give an axes with a wide legend a narrow one; return the rows that it has above the axes."""
    legend = ax.get_legend()
    if legend.get_in_layout():
        anchor, columns = {}, 2
        if legend._bbox_to_anchor is not None:
            box = legend.get_bbox_to_anchor().transformed(ax.transAxes.inverted())
            anchor = {"bbox_to_anchor": (box.x0, box.y0 - 0.05)}
        elif sum(len(text.get_text()) for text in legend.get_texts()[:2]) > _WITHIN:
            columns = 1
        if legend._ncols > columns:
            place = legend._loc if isinstance(legend._loc, int) else "best"
            _remake(ax, legend, columns=columns, loc=place, **anchor)
        return 0
    # From the left edge of the figure, which has more room than the axes.
    across = blended_transform_factory(ax.figure.transFigure, ax.transAxes)
    anchor = {"loc": "lower left", "bbox_to_anchor": (0.01, 1), "bbox_transform": across, "borderaxespad": 0.2}
    narrow = _remake(ax, legend, columns=_columns(legend), **anchor)
    narrow.set_in_layout(False)
    return -(-len(narrow.get_texts()) // narrow._ncols)


def _narrow_figure_legend(figure: Figure, legend: Legend) -> int:
    """Put a legend of the figure below it, narrow enough; return its rows."""
    legend.remove()
    narrow = _remake(figure, legend, columns=_columns(legend), loc="outside lower left")
    return -(-len(narrow.get_texts()) // narrow._ncols)


def _columns(legend: Legend) -> int:
    """Return how many columns of a legend's labels fit across."""
    lengths = [len(text.get_text()) + 5 for text in legend.get_texts()]
    for columns in range(len(lengths), 1, -1):
        if sum(map(max, np.array_split(lengths, columns))) <= _LEGEND:
            return columns
    return 1


def _remake(parent: Axes | Figure, legend: Legend, columns: int, **place: object) -> Legend:
    labels = [text.get_text() for text in legend.get_texts()]
    style = {"fontsize": SMALLEST, "handletextpad": 0.4, "columnspacing": 1.0, "handlelength": 1.4}
    return parent.legend(legend.legend_handles, labels, ncols=columns, **style, **place)


def _wrap_ticks(axis: Axis) -> None:
    """Break long labels beside a plot into two lines."""
    if isinstance(axis.get_major_locator(), FixedLocator):
        labels = [label.get_text() for label in axis.get_majorticklabels()]
        wrapped = [label if "\n" in label else _fill(label, BESIDE) for label in labels]
        if wrapped != labels:
            axis.set_ticklabels(wrapped)


def _long_labels(ax: Axes) -> int:
    """Return how many labels beside a plot there are if one of them needs two lines, otherwise 0."""
    labels = [label.get_text() for label in ax.yaxis.get_majorticklabels()]
    return len(labels) if any(len(line) > BESIDE for label in labels for line in label.split("\n")) else 0


def _thin_ticks(axis: Axis) -> None:
    """Leave out labels below a plot that would touch: every second, third, and so on."""
    if isinstance(axis.get_major_locator(), FixedLocator):
        labels = [label.get_text() for label in axis.get_majorticklabels()]
        longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
        # Of a plot about 2.2 inches wide; a digit takes 0.065.
        step = math.ceil(len(labels) * (longest + 1) * 0.065 / 2.2)
        if step > 1:
            kept = [label if place % step == 0 else "" for place, label in enumerate(labels)]
            axis.set_ticklabels(kept)  # set_ticks would widen limits that are narrower than the ticks


def _fill(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _stack(figure: Figure, axes: list[Axes]) -> float:
    """Put panels below one another if some are beside one another; return the height in inches."""
    specs = [ax.get_subplotspec() for ax in axes]
    heights = [ax.get_position().height * figure.get_figheight() for ax in axes]
    if all(spec.get_gridspec().ncols == 1 for spec in specs):
        return min(figure.get_figheight(), sum(heights) + _AROUND * len(axes))
    # An axes without axis is the key to the one above it: panels with keys go column by column.
    keyed = any(not ax.axison for ax in axes)
    rows = [(spec.rowspan.start, spec.colspan.start) for spec in specs]
    order = sorted(range(len(axes)), key=lambda number: rows[number][::-1] if keyed else rows[number])
    heights = [
        max(1.3, min(height, 2.2), _LINES * _long_labels(ax)) if ax.axison else height
        for ax, height in zip(axes, heights, strict=True)
    ]
    # Bars above panels take what the panels need.
    most = MOST_TOPPED if any(ax.child_axes for ax in axes) else MOST
    if len(axes) > most and not keyed:
        return _stack_in_pairs(figure, [axes[number] for number in order])
    for ax in axes:
        ax.tick_params(labelleft=True, labelbottom=True)
    around = _AROUND * sum(ax.axison for ax in axes)
    keys = sum(height for ax, height in zip(axes, heights, strict=True) if not ax.axison)
    # A page has room for so much; a panel of less than an inch shows nothing.
    shrink = min(1, (TALLEST - around - keys) / max(sum(heights) - keys, 1))
    heights = [max(1.0, shrink * height) if ax.axison else height for ax, height in zip(axes, heights, strict=True)]
    grid = GridSpec(len(axes), 1, figure=figure, height_ratios=[heights[number] for number in order])
    for row, number in enumerate(order):
        axes[number].set_subplotspec(grid[row])
    return sum(heights) + around


def _stack_in_pairs(figure: Figure, axes: list[Axes]) -> float:
    """Put panels two in a row; return the height in inches."""
    rows = -(-len(axes) // 2)
    grid = GridSpec(rows, 2, figure=figure)
    shared_x = len(axes[0].get_shared_x_axes().get_siblings(axes[0])) > 1
    shared_y = len(axes[0].get_shared_y_axes().get_siblings(axes[0])) > 1
    for place, ax in enumerate(axes):
        ax.set_subplotspec(grid[place // 2, place % 2])
        left, bottom = place % 2 == 0, place + 2 >= len(axes)
        ax.tick_params(labelleft=left or not shared_y, labelbottom=bottom or not shared_x)
        if shared_y:
            ax.set_ylabel(axes[0].get_ylabel() if left else "")
            for inset in ax.child_axes:
                inset.tick_params(labelleft=left)
    above = max((len(inset.get_yticks()) * _LINE for ax in axes for inset in ax.child_axes), default=0)
    return min(TALLEST + 0.4, rows * (1.1 + above + (0.2 if shared_x else _AROUND)) + 0.4)
