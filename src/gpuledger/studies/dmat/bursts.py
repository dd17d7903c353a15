"""Bursts of accesses, and where they become denser, from a tensor's accesses by column of the grid."""

from itertools import pairwise

import numpy as np

#: A burst stands out from the columns beside it by this share of its height, and has this share of the accesses of the
#: largest burst.
STANDS_OUT, SHARE = 0.2, 0.1
#: Accesses are denser from a column on if the mean after it is this many times the mean before it; beyond the
#: second number they do not become denser but begin.
DENSER, BEGIN = 1.1, 4


def find_bursts(accesses: np.ndarray) -> list[int]:
    """Return the columns of the bursts' peaks, ascending.

    Parameters
    ----------
    accesses : ndarray, one-dimensional
        By column.
    """
    height = np.concatenate([[0], accesses, [0]]).astype(float)
    peaks = [
        place
        for place in range(1, len(height) - 1)
        if height[place] > height[place - 1]
        and height[place] >= height[place + 1]
        and height[place] - _higher_valley(height, place) >= STANDS_OUT * height[place]
    ]
    if not peaks:
        return []
    valleys = [left + int(height[left:right].argmin()) for left, right in pairwise(peaks)]
    sizes = np.add.reduceat(height, [0, *valleys])
    return [place - 1 for place, size in zip(peaks, sizes, strict=True) if size >= SHARE * sizes.max()]


def _higher_valley(height: np.ndarray, peak: int) -> float:
    """Return the higher one of the lowest points between a peak and what is higher on either side.

    Of peaks of one height the first counts as the higher one.
    """
    before = np.flatnonzero(height[:peak] >= height[peak])
    after = np.flatnonzero(height[peak + 1 :] > height[peak])
    left = height[before[-1] if before.size else 0 : peak].min()
    right = height[peak + 1 : peak + 1 + (after[0] if after.size else len(height))].min()
    return max(left, right)


def denser_from(accesses: np.ndarray) -> tuple[int, float] | None:
    """Return the column from which accesses are denser, and by what factor; None if they do not become denser.

    The last columns, after the accesses have fallen below half of their largest mean, do not count.
    """
    wide = max(1, len(accesses) // 16)
    smooth = np.convolve(accesses, np.ones(wide) / wide, "same")
    end = int(np.flatnonzero(smooth >= smooth.max() / 2)[-1]) + 1
    own = accesses[wide:end].astype(float)
    if len(own) < 2 * wide:
        return None
    place = np.arange(wide, len(own) - wide + 1)
    total = np.concatenate([[0], np.cumsum(own)])
    before, after = total[place] / place, (total[-1] - total[place]) / (len(own) - place)
    # The split that leaves the least squared deviations from both means.
    best = int((place * before**2 + (len(own) - place) * after**2).argmax())
    if not DENSER * before[best] <= after[best] <= BEGIN * before[best]:
        return None
    return wide + int(place[best]), float(after[best] / before[best])
