"""Labels that cover neither one another nor what is drawn."""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

#: Points closer than this (printer's points) share a label.
_NEAR = 13
#: Distances of a label from its point to try (printer's points).
_DISTANCES = (1.5, 7, 14, 22, 31, 42, 55, 70, 88, 110, 135)
#: Labels farther away than this get a leader line.
_LINE = 7
#: Directions from the point to the label to try, best first.
_DIRECTIONS = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)]
_DIRECTIONS += [(1, 0.4), (1, -0.4), (-1, 0.4), (-1, -0.4), (0.4, 1), (0.4, -1), (-0.4, 1), (-0.4, -1)]
_DIRECTIONS += [(0.15, 1), (0.15, -1), (-0.15, 1), (-0.15, -1)]
#: Also which share of a label is left of the leader's end: above and below its point, a label may slide.
_PLACES = [(across, up, (1 - np.sign(across)) / 2) for across, up in _DIRECTIONS]
_PLACES += [(0, up, share) for share in (0.25, 0.75) for up in (1, -1)]
#: What a label costs for each point of a line that it covers: less than to be far away for one that crosses it.
_LINES = 6
#: A label that covers something costs this much, and so many places are tried for it while another makes room.
_BAD, _TRIED = 100, 20
#: Optional labels are not farther away than this (printer's points), and cover nothing.
_OPTIONAL = 14
#: Font size (printer's points).
_SIZE = 6.8


def spread(heights: Sequence[float], apart: float = 0.15, low: float = 0.07, high: float = 0.94) -> list[float]:
    """Move descending heights (shares of the axes) apart, as little as keeps them in order between `low` and `high`."""
    places, ceiling = [], high
    for height in heights:
        # No label higher than its line's end allows the next one room for.
        places.append(min(height, ceiling))
        ceiling = places[-1] - apart
    floor = low
    for number in reversed(range(len(places))):
        places[number] = max(places[number], floor)
        floor = places[number] + apart
    return places


def place_labels(
    axes: Axes,
    points: np.ndarray,
    labels: Sequence[str],
    radii: np.ndarray,
    joint: str = "\n",
    near: float = _NEAR,
    needed: int | None = None,
    most: int | None = None,
) -> None:
    """Write a label beside each point; points that nearly coincide share one label.

    Parameters
    ----------
    axes : Axes
        With its final limits, in a figure with its final layout. Labels avoid what is drawn in it: marks, with their
        whole area, lines, texts and the legend.
    points : array of shape (labels, 2)
        In data coordinates; earlier ones choose first.
    radii : array of shape (labels,)
        Of the points' markers (printer's points).
    joint : str
        Between the parts of a shared label.
    near : float
        Points closer than this share a label (printer's points).
    needed : int, optional
        How many of the labels must be there (default: all). The others are written where there is room beside their
        points, and share no label.
    most : int, optional
        How many parts a shared label has at most; the last one counts the points that it does not name.
    """
    renderer = axes.figure.canvas.get_renderer()
    scale = axes.figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    paths = [line.get_xydata() for line in axes.lines]
    paths += [path for lines in axes.collections if isinstance(lines, LineCollection) for path in lines.get_segments()]
    others = np.concatenate([np.empty((0, 2)), *(_along(axes.transData.transform(path), frame) for path in paths)])
    boxes = [tuple(text.get_window_extent(renderer).extents) for text in axes.texts]
    if axes.get_legend():
        boxes.append(tuple(axes.get_legend().get_window_extent(renderer).padded(4).extents))
    drawn = _Drawn(frame, boxes, others, _marks(axes, scale))
    centres = axes.transData.transform(points)
    needed = len(labels) if needed is None else needed

    def choices(members: list[int]) -> list[_Place]:
        shown = members if most is None or len(members) <= most else members[: most - 1]
        text = joint.join(labels[member] for member in shown)
        if hidden := len(members) - len(shown):
            text += f"{joint}and {hidden} more"
        probe = axes.text(0, 0, text, fontsize=_SIZE, transform=None)
        extent = probe.get_window_extent(renderer)
        probe.remove()
        mark, size = (centres[members[0]], radii[members[0]]), (extent.width, extent.height)
        return _choices(text, mark, size, scale, drawn)

    found = _settle([choices(members) for members in _clusters(centres[:needed], near * scale)])
    alone = (np.hypot(*(centres[:, None] - centres).T) < near * scale).sum(axis=0) == 1
    for other in range(needed, len(labels)):
        if alone[other]:
            fitting = [place for place in choices([other]) if place.covers == 0 and place.distance <= _OPTIONAL]
            fitting = [place for place in fitting if not sum(place.disturbs(one) for one in found)]
            found += sorted(fitting, key=lambda place: place.far)[:1]
    for place in found:
        _write(axes, place)


@dataclass(frozen=True)
class _Drawn:
    """What labels avoid, in pixels."""

    frame: Bbox
    boxes: list[tuple]  # of texts
    lines: np.ndarray  # of shape (points, 2)
    marks: np.ndarray  # of shape (marks, 3): centre and radius

    def cost(self, box: tuple) -> float:
        """Rate a position: outside the axes, over another text, over marks or over lines costs most."""
        left, low, right, high = box
        frame = self.frame
        outside = max(frame.x0 - left, right - frame.x1, frame.y0 - low, high - frame.y1, 0)
        points = _inside((left - 3, low - 2, right + 3, high + 2), self.lines)
        x, y, radii = self.marks.T
        gaps = np.hypot(np.maximum(np.maximum(left - x, x - right), 0), np.maximum(np.maximum(low - y, y - high), 0))
        covered = radii + 2 - gaps
        covered = float((200 + 20 * covered)[covered > 0].sum())
        return (
            20 * outside
            + 1e5 * (outside > 0)
            + sum(_overlap(box, other) for other in self.boxes)
            + _LINES * points
            + covered
        )


@dataclass(frozen=True, eq=False)
class _Place:
    """A place that a label may have, in pixels."""

    text: str
    centre: np.ndarray  # of the point
    end: np.ndarray  # of the leader, at the label
    leader: np.ndarray  # points along it, of shape (points, 2); none if the label is near
    box: tuple[float, float, float, float]
    side: tuple[float, float]  # shares of width and height at which the leader ends
    distance: float  # printer's points
    far: float  # cost of distance and direction
    covers: float  # cost of what the label and its leader cover

    @property
    def alone(self) -> float:
        """What the place costs if there is no other label."""
        return self.far + self.covers

    def disturbs(self, other: "_Place") -> float:
        """Rate what two labels and their leaders cover of each other."""
        cost = _overlap(self.box, other.box) + 400 * (_inside(self.box, other.leader) + _inside(other.box, self.leader))
        if len(self.leader) and len(other.leader):
            cost += 900 * _cross(self.leader[0], self.end, other.leader[0], other.end)
        return cost


def _choices(
    text: str, mark: tuple[np.ndarray, float], size: tuple[float, float], scale: float, drawn: _Drawn
) -> list[_Place]:
    """Return the places for a label of this size (pixels) beside a mark of this radius (printer's points), sorted."""
    centre, radius = mark
    foreign = drawn.marks[np.hypot(*(drawn.marks[:, :2] - centre).T) > radius * scale]
    found = []
    for distance in _DISTANCES:
        for rank, (across, up, share) in enumerate(_PLACES):
            away = (radius / np.hypot(across, up) + distance) * scale
            end = centre + away * np.array([across, up])
            left = end[0] - size[0] * share
            low = end[1] - size[1] * (1 - np.sign(up)) / 2
            box = (left, low, left + size[0], low + size[1])
            # Within its own mark, the leader is over whatever that covers. Other texts between a mark and its label
            # mislead without a leader, too.
            leader = np.linspace(centre + (end - centre) * radius / (radius + distance), end, 24)
            covers = drawn.cost(box) + 400 * sum(_inside(other, leader) for other in drawn.boxes)
            if distance > _LINE:
                gaps = np.hypot(*(leader[:, None] - foreign[:, :2]).T).min(axis=1)
                covers += 600 * int((gaps < foreign[:, 2]).sum())
            else:
                leader = leader[:0]
            side = (share, float(1 - np.sign(up)) / 2)
            far = 0.9 * distance + 0.02 * distance**2 + 0.2 * rank
            found.append(_Place(text, centre, end, leader, box, side, distance, far, covers))
    return sorted(found, key=lambda place: place.alone)


def _settle(labels: list[list[_Place]]) -> list[_Place]:
    """Choose a place for each label: one by one, in pairs where one makes room for another, and again one by one."""
    chosen: dict[int, _Place] = {}
    for number, places in enumerate(labels):
        chosen[number] = _best(places, chosen.values())[0]
    # Only labels that cover something need another's room.
    for one, other in permutations(chosen, 2):
        rest = [place for number, place in chosen.items() if number not in (one, other)]
        if _cost(chosen[one], [*rest, chosen[other]]) - chosen[one].far < _BAD:
            continue
        cost = _cost(chosen[one], rest) + _cost(chosen[other], [*rest, chosen[one]])
        for place in _best(labels[one], rest, _TRIED):
            answer = _best(labels[other], [*rest, place])[0]
            if (new := _cost(place, rest) + _cost(answer, [*rest, place])) < cost:
                chosen[one], chosen[other], cost = place, answer, new
    for number, places in [*enumerate(labels)] * 2:
        chosen[number] = _best(places, [place for other, place in chosen.items() if other != number])[0]
    return list(chosen.values())


def _best(places: list[_Place], others: Iterable[_Place], count: int = 1) -> list[_Place]:
    """Return the best places of a label in view of others, from places in the order of what they cost alone."""
    others, found = list(others), []
    for place in places:
        if len(found) == count and place.alone >= found[-1][0]:
            break
        insort(found, (_cost(place, others), place), key=lambda entry: entry[0])
        del found[count:]
    return [place for _, place in found]


def _cost(place: _Place, others: Iterable[_Place]) -> float:
    return place.alone + sum(map(place.disturbs, others))


def _write(axes: Axes, place: _Place) -> None:
    arrow = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": place.side}
    across = place.side[0]
    note = axes.annotate(
        place.text,
        axes.transData.inverted().transform(place.centre),
        axes.transData.inverted().transform(place.box[:2]),
        fontsize=_SIZE,
        ha="left",
        va="bottom",
        multialignment="left" if across < 0.5 else "right" if across > 0.5 else "center",
        zorder=8,
        linespacing=1.05,
        arrowprops=arrow if len(place.leader) else None,
    )
    note.set_path_effects([withStroke(linewidth=2, foreground="white")])
    note.set_in_layout(False)


def _cross(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> bool:
    """Whether the segments from a to b and from c to d cross."""

    def side(start: np.ndarray, end: np.ndarray, point: np.ndarray) -> float:
        (x, y), (u, v) = end - start, point - start
        return x * v - y * u

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def _marks(axes: Axes, scale: float) -> np.ndarray:
    """Return an array of shape (marks, 3): centre and radius of each mark of the axes (pixels)."""
    found = [np.empty((0, 3))]
    for dots in axes.collections:
        if isinstance(dots, PathCollection):
            places = axes.transData.transform(np.asarray(dots.get_offsets(), float).reshape(-1, 2))
            sizes = dots.get_sizes()
            radii = scale * np.sqrt(np.resize(sizes if len(sizes) else 0.0, len(places))) / 2
            found.append(np.column_stack([places, radii]))
    return np.concatenate(found)


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


def _overlap(box: tuple, other: tuple) -> float:
    """Rate how much of another text a label covers."""
    left, low, right, high = box
    a, b, r, t = other
    area = max(0, min(right, r) - max(left, a) + 3) * max(0, min(high, t) - max(low, b) + 2)
    return 5000 + 2 * area if area else 0.0


def _inside(box: Sequence[float], points: np.ndarray) -> int:
    """Count the points in a box."""
    left, low, right, high = box
    x, y = points.T
    return int(((x > left) & (x < right) & (y > low) & (y < high)).sum())
