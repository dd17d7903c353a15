"""Which ratios of two measured times are beyond the noise.

Nobody says how well a shape was measured. But neighbours tell: from one size to the next the ratio of two tables
changes little, unless one of them was measured badly, or really has a step. How far ratios are from the line between
their two neighbours is therefore at least the noise, and mostly it. Its standard deviation is estimated from the
median of these distances, so that steps and single bad measurements do not widen it. A ratio counts if it is beyond
three standard deviations, and if so are, in the same direction, the two nearest shapes along one of the sizes: of a
single slow measurement they are not.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

#: Shapes that a line needs to say something of neighbours, and distances that a class of times needs.
_LINE, _ENOUGH = 3, 30
#: Standard deviations in a median of absolute values, if these are of a normal distribution.
_NORMAL = 1.4826


def lines(sizes: pd.DataFrame, axis: str) -> Iterator[np.ndarray]:
    """Yield the rows of each line: shapes that differ in one size only, by that size; three at least.

    Returns
    -------
    arrays of int, shape (lines of one length, length)
    """
    others = [name for name in sizes if name != axis]
    code = sizes.groupby(others, sort=False, dropna=False).ngroup().to_numpy() if others else np.zeros(len(sizes), int)
    order = np.lexsort((sizes[axis].to_numpy(), code))
    starts = np.flatnonzero(np.r_[True, np.diff(code[order]) > 0, True])
    lengths = np.diff(starts)
    for length in np.unique(lengths[lengths >= _LINE]):
        first = starts[:-1][lengths == length]
        yield order[first[:, None] + np.arange(length)]


def distances(ratio: np.ndarray, sizes: pd.DataFrame, axis: str) -> np.ndarray:
    """Return how far logarithmic ratios are from the line between their neighbours along one size.

    Returns
    -------
    ndarray of float64, shape (shapes,)
        Divided by what independent errors of the three would make of one; NaN: no neighbours.
    """
    found = np.full(len(ratio), np.nan)
    place = np.log(np.maximum(sizes[axis].to_numpy(dtype=float), 1))
    for rows in lines(sizes, axis):
        before, own, after = rows[:, :-2], rows[:, 1:-1], rows[:, 2:]
        span = np.maximum(place[after] - place[before], 1e-9)
        share = (place[own] - place[before]) / span
        between = ratio[before] * (1 - share) + ratio[after] * share
        found[own] = (ratio[own] - between) / np.sqrt(1 + share**2 + (1 - share) ** 2)
    return np.abs(found)


def nearest_three(ratio: np.ndarray, sizes: pd.DataFrame, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest ratio of each shape and the two next to it along one size (NaN: none)."""
    low, high = np.full((2, len(ratio)), np.nan)
    for rows in lines(sizes, axis):
        three = np.sort(np.lib.stride_tricks.sliding_window_view(ratio[rows], _LINE, axis=1), axis=2)
        middle = np.clip(np.arange(rows.shape[1]) - 1, 0, rows.shape[1] - _LINE)
        low[rows], high[rows] = three[:, middle, 0], three[:, middle, 2]
    return low, high


def beyond(
    ratio: np.ndarray,
    time_s: np.ndarray,
    sizes: pd.DataFrame,
    axes: Sequence[str],
    *,
    least: float = 0.05,
    deviations: float = 3.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return which ratios count as different from one, and what they had to be beyond.

    Parameters
    ----------
    ratio : array of shape (shapes,)
        Logarithms of one time over another.
    time_s : array of shape (shapes,)
        The shorter one: times of one length, within a factor of 3, are taken to be equally noisy.
    sizes : DataFrame, shape (shapes, sizes)
        Without NaN.
    axes : sequence of str
        Sizes along which neighbours are looked for. Of those the one counts along which ratios are nearest to the line.
    least : float
        No ratio nearer to one counts (0.05: 5 %).
    deviations : float
        Standard deviations of the noise that a ratio has to be beyond.

    Returns
    -------
    sign : ndarray of int8, shape (shapes,)
        1: longer, -1: shorter, 0: within the noise, or without neighbours.
    threshold : ndarray of float64, shape (shapes,)
        Logarithms.
    """
    axes = [axis for axis in axes if axis in sizes and sizes[axis].nunique() > 1]
    decade = np.floor(2 * np.log10(np.maximum(time_s, 1e-12))).astype(int)
    noise = np.full(len(ratio), np.inf)
    for axis in axes:
        found = distances(ratio, sizes, axis)
        if np.isnan(found).all():
            continue
        here = pd.Series(found).groupby(decade)
        own = here.transform("median").where(here.transform("count") >= _ENOUGH, np.nanmedian(found))
        noise = np.minimum(noise, deviations * _NORMAL * own.to_numpy())
    threshold = np.maximum(noise, np.log1p(least))
    longer, shorter = np.zeros((2, len(ratio)), dtype=bool)
    for axis in axes:
        low, high = nearest_three(ratio, sizes, axis)
        with np.errstate(invalid="ignore"):
            longer |= low > threshold
            shorter |= high < -threshold
    return longer.astype(np.int8) - shorter.astype(np.int8), threshold
