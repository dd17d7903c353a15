"""Labels that cover neither one another nor what is drawn."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

#: Points closer than this (printer's points) share a label.
_NEAR = 13
#: Distances of a label from its point to try (printer's points).
_DISTANCES = (1.5, 7, 14, 22, 31, 42, 55)
#: Labels farther away than this get a leader line.
_LINE = 7
#: Directions from the point to the label to try, best first.
_DIRECTIONS = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)]
_DIRECTIONS += [(1, 0.4), (1, -0.4), (-1, 0.4), (-1, -0.4), (0.4, 1), (0.4, -1), (-0.4, 1), (-0.4, -1)]
_SIDES = {-1: "right", 0: "center", 1: "left"}
_HEIGHTS = {-1: "top", 0: "center", 1: "bottom"}
#: Font size (printer's points).
_SIZE = 6.8


def place_labels(axes: Axes, points: np.ndarray, labels: Sequence[str], radii: np.ndarray, joint: str = "\n") -> None:
    """Write a label beside each point; points that nearly coincide share one label.

    Parameters
    ----------
    axes : Axes
        With its final limits, in a figure with its final layout. Labels avoid what is drawn in it: points, lines,
        texts and the legend.
    points : array of shape (labels, 2)
        In data coordinates; earlier ones choose first.
    radii : array of shape (labels,)
        Of the points' markers (printer's points).
    joint : str
        Between the parts of a shared label.
    """
    renderer = axes.figure.canvas.get_renderer()
    scale = axes.figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    drawn = [np.asarray(dots.get_offsets()) for dots in axes.collections if isinstance(dots, PathCollection)]
    paths = [line.get_xydata() for line in axes.lines]
    paths += [path for lines in axes.collections if isinstance(lines, LineCollection) for path in lines.get_segments()]
    centres = axes.transData.transform(points)
    others = [axes.transData.transform(dots) for dots in drawn]
    others = np.concatenate(others + [_along(axes.transData.transform(path), frame) for path in paths])
    boxes = [tuple(text.get_window_extent(renderer).extents) for text in axes.texts]
    if axes.get_legend():
        boxes.append(tuple(axes.get_legend().get_window_extent(renderer).padded(4).extents))
    leaders, ends = np.empty((0, 2)), []
    for members in _clusters(centres, _NEAR * scale):
        label = joint.join(labels[member] for member in members)
        centre, radius = centres[members[0]], radii[members[0]]
        probe = axes.text(0, 0, label, fontsize=_SIZE, transform=None)
        extent = probe.get_window_extent(renderer)
        probe.remove()
        choices = []
        for distance in _DISTANCES:
            for rank, (across, up) in enumerate(_DIRECTIONS):
                away = (radius * (0.75 if across and up else 1) + distance) * scale
                x, y = centre[0] + across * away, centre[1] + up * away
                left = x - extent.width * (1 - np.sign(across)) / 2
                low = y - extent.height * (1 - np.sign(up)) / 2
                box = (left, low, left + extent.width, low + extent.height)
                line = np.linspace(centre, (x, y), 24) if distance > _LINE else leaders[:0]
                cost = _cost(box, boxes, others, frame) + 0.9 * distance + 0.2 * rank
                cost += 40 * _inside(box, leaders) + 400 * sum(_inside(other, line) for other in boxes)
                if len(line):
                    cost += 900 * sum(_cross(centre, np.array([x, y]), *end) for end in ends)
                    foreign = np.delete(np.arange(len(centres)), members)
                    gaps = np.hypot(*(line[:, None] - centres[foreign]).T).min(axis=1)
                    cost += 600 * int((gaps < radii[foreign] * scale).sum())
                choices.append((cost, distance, rank, box, (x, y)))
        _, distance, rank, box, place = min(choices)
        if distance > _LINE:
            leaders = np.vstack([leaders, np.linspace(centre, place, 24)])
            ends.append((centre, np.array(place)))
        across, up = np.sign(_DIRECTIONS[rank])
        boxes.append(box)
        # The leader starts at the side of the label that faces the point.
        side = ((1 - across) / 2, (1 - up) / 2)
        arrow = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": side}
        note = axes.annotate(
            label,
            axes.transData.inverted().transform(centre),
            axes.transData.inverted().transform(place),
            fontsize=_SIZE,
            ha=_SIDES[across],
            va=_HEIGHTS[up],
            zorder=8,
            linespacing=1.05,
            arrowprops=arrow if distance > _LINE else None,
        )
        note.set_path_effects([withStroke(linewidth=2, foreground="white")])
        note.set_in_layout(False)


def _cross(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> bool:
    """Whether the segments from a to b and from c to d cross."""

    def side(start: np.ndarray, end: np.ndarray, point: np.ndarray) -> float:
        (x, y), (u, v) = end - start, point - start
        return x * v - y * u

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def _along(path: np.ndarray, frame: Bbox) -> np.ndarray:
    """Return points on a line through the given ones, about four pixels apart, within the frame."""
    path = np.reshape(path, (-1, 2))
    path = path[np.isfinite(path).all(axis=1)]
    if not len(path):
        return np.empty((0, 2))
    low, high = np.array([frame.x0, frame.y0]) - 50, np.array([frame.x1, frame.y1]) + 50
    path = np.clip(path, low, high)
    length = np.r_[0.0, np.hypot(*np.diff(path, axis=0).T).cumsum()]
    at = np.linspace(0, length[-1], int(length[-1] / 4) + 2)
    return np.column_stack([np.interp(at, length, path[:, side]) for side in (0, 1)])


def _clusters(centres: np.ndarray, near: float) -> list[list[int]]:
    """Group points that are close to the first point of their cluster."""
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
    """Rate a position: outside the axes, over another label or over points costs most."""
    left, low, right, high = box
    outside = max(frame.x0 - left, right - frame.x1, frame.y0 - low, high - frame.y1, 0)
    areas = [max(0, min(right, r) - max(left, a) + 3) * max(0, min(high, t) - max(low, b) + 2) for a, b, r, t in boxes]
    points = _inside((left - 3, low - 2, right + 3, high + 2), others)
    return 20 * outside + 1e5 * (outside > 0) + sum(5000 + 2 * area for area in areas if area) + 60 * points


def _inside(box: Sequence[float], points: np.ndarray) -> int:
    """Count the points in a box."""
    left, low, right, high = box
    x, y = points.T
    return int(((x > left) & (x < right) & (y > low) & (y < high)).sum())
