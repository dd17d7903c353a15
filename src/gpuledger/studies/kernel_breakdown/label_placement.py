"""Labels of points that neither cover one another nor the points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

#: Points nearer than this (printer's points) share a label.
_NEAR = 13
#: How far a label may be from its point (printer's points).
_DISTANCES = (1.5, 7, 14, 22, 31, 42, 55)
#: From so far on, a line leads to it.
_LINE = 7
#: Directions in which a label may stand beside its point, the best ones first.
_DIRECTIONS = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)]
_SIDES = {-1: "right", 0: "center", 1: "left"}
_HEIGHTS = {-1: "top", 0: "center", 1: "bottom"}


def place_labels(
    axes: Axes,
    points: np.ndarray,
    words: Sequence[str],
    radii: np.ndarray,
    taken: np.ndarray,
    covered: Sequence[Sequence[float]] = (),
    size: float = 6.8,
) -> None:
    """Write a label beside each point; points that nearly coincide have one label of several lines.

    Parameters
    ----------
    axes : Axes
        Laid out (its limits and its place in the figure no longer change).
    points : array of shape (labels, 2)
        In data coordinates; the first ones choose first.
    words : sequence of str
    radii : array of shape (labels,)
        Of the points' markers, in printer's points.
    taken : array of shape (others, 2)
        Points, in data coordinates, that labels had better not cover.
    covered : sequence of (left, low, right, high)
        Places, in pixels, that something else covers.
    size : float
        Of the type, in printer's points.
    """
    renderer = axes.figure.canvas.get_renderer()
    scale = axes.figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    centres, others = axes.transData.transform(points), axes.transData.transform(taken)
    boxes = [tuple(box) for box in covered]
    # Points on the lines from labels to their points, and on those of other points' markers.
    drawn = np.empty((0, 2))
    for members in _clusters(centres, _NEAR * scale):
        label = "\n".join(words[member] for member in members)
        centre, radius = centres[members[0]], radii[members[0]]
        probe = axes.text(0, 0, label, fontsize=size, transform=None)
        extent = probe.get_window_extent(renderer)
        probe.remove()
        choices = []
        for distance in _DISTANCES:
            for rank, (across, up) in enumerate(_DIRECTIONS):
                away = (radius * (0.75 if across and up else 1) + distance) * scale
                x, y = centre[0] + across * away, centre[1] + up * away
                left, low = x - extent.width * (1 - across) / 2, y - extent.height * (1 - up) / 2
                box = (left, low, left + extent.width, low + extent.height)
                line = np.linspace(centre, (x, y), 24) if distance > _LINE else drawn[:0]
                cost = _cost(box, boxes, others, frame) + 0.9 * distance + 0.2 * rank
                cost += 40 * _inside(box, drawn) + 40 * sum(_inside(other, line) for other in boxes)
                choices.append((cost, distance, rank, box, (x, y)))
        _, distance, rank, box, place = min(choices)
        if distance > _LINE:
            drawn = np.vstack([drawn, np.linspace(centre, place, 24)])
        across, up = _DIRECTIONS[rank]
        boxes.append(box)
        # From the side of the label that is nearest to its point.
        side = ((1 - across) / 2, (1 - up) / 2)
        arrow = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": side}
        note = axes.annotate(
            label,
            axes.transData.inverted().transform(centre),
            axes.transData.inverted().transform(place),
            fontsize=size,
            ha=_SIDES[across],
            va=_HEIGHTS[up],
            zorder=8,
            linespacing=1.05,
            arrowprops=arrow if distance > _LINE else None,
        )
        note.set_path_effects([withStroke(linewidth=2, foreground="white")])
        note.set_in_layout(False)


def _clusters(centres: np.ndarray, near: float) -> list[list[int]]:
    """Put points together that are near the first one of their cluster."""
    clusters: list[list[int]] = []
    for number, centre in enumerate(centres):
        for members in clusters:
            if np.hypot(*(centre - centres[members[0]])) < near:
                members.append(number)
                break
        else:
            clusters.append([number])
    return clusters


def _cost(box: tuple, boxes: list[tuple], others: np.ndarray, frame: Bbox) -> float:
    """Say how bad a place is: outside the axes, over another label, over points."""
    left, low, right, high = box
    outside = max(frame.x0 - left, right - frame.x1, frame.y0 - low, high - frame.y1, 0)
    areas = [max(0, min(right, r) - max(left, a) + 3) * max(0, min(high, t) - max(low, b) + 2) for a, b, r, t in boxes]
    points = _inside((left - 3, low - 2, right + 3, high + 2), others)
    return 20 * outside + 2000 * (outside > 0) + sum(600 + 2 * area for area in areas if area) + 60 * points


def _inside(box: Sequence[float], points: np.ndarray) -> int:
    """Count points in a box."""
    left, low, right, high = box
    x, y = points.T
    return int(((x > left) & (x < right) & (y > low) & (y < high)).sum())
