"""What nearby measured shapes say about a shape: their times, and what a law's errors at them have in common.

A law's error at a shape is in part the kernel's (a tile that the library takes there, an alignment) and so about the
same at the next shapes, in part noise of the one measurement. How much of it is shared is fitted: kriging with a
nugget, with distances' inverses in place of a fitted covariance (D. Shepard, ACM National Conference, 1968; N. Cressie,
Statistics for Spatial Data, 1993).
"""

from typing import NamedTuple

import numpy as np

#: Steps of a logarithm in which distances are measured: exact sums, so that what is as near is so on every processor.
STEPS = 2.0**20
#: Numbers of neighbours, and shares of what they have in common, that are tried.
COUNTS = (4, 8, 16)
SHARES = np.linspace(0, 1, 11)


class Sharing(NamedTuple):
    """What a law's errors at neighbouring shapes have in common."""

    neighbours: int
    #: Of the neighbours' mean error (a logarithm), what a shape has as well: 0 where errors are noise, 1 where they are
    #: the kernel's.
    share: float
    error_percent: float  # mean absolute, of each shape corrected by the others


class Near:
    """The known shapes near each wanted one.

    Parameters
    ----------
    known, wanted : arrays of shape (shapes, sizes)
        At least 0; distances are between their logarithms (of size + 1).
    most : int
        Neighbours that will be asked for at most.
    apart : bool
        `wanted` is `known`, and no shape is its own neighbour.
    scales : ndarray of shape (sizes,), optional
        How often the logarithm of each size counts.
    """

    def __init__(
        self,
        known: np.ndarray,
        wanted: np.ndarray,
        most: int,
        apart: bool = False,
        scales: np.ndarray | float = 1.0,
    ):
        # Only here: importing it takes a third of a second.
        from scipy.spatial import cKDTree

        self._apart = apart
        logarithms, asked = (np.round(STEPS * scales * np.log1p(sizes)) for sizes in (known, wanted))
        looked_at = min(self._looked_at(most), len(known))
        self._distance, self._places = cKDTree(logarithms).query(asked, k=range(1, looked_at + 1))
        if apart:
            self._distance[self._places == np.arange(len(known))[:, None]] = np.inf

    def _looked_at(self, count: int) -> int:
        """Return how many to look at for so many: several may be as near as the last."""
        return max(16, 2 * count) + self._apart

    def weigh(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Weigh the nearest of them, and those as near as the last.

        Parameters
        ----------
        count : int
            Neighbours, at least 1.

        Returns
        -------
        weights, places : arrays of shape (wanted shapes, candidates)
            Inverse distances, summing to 1 (0: too far), and the rows of `known`.
        """
        looked_at = self._looked_at(count)
        distance, places = self._distance[:, :looked_at], self._places[:, :looked_at]
        last = np.sort(distance, axis=1)[:, [min(count, distance.shape[1] - self._apart) - 1]]
        weights = 1 / np.maximum(distance, 1e-9 * STEPS)
        weights[distance > last] = 0
        return weights / weights.sum(axis=1, keepdims=True), places


def shared(errors: np.ndarray, weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the weighted means of neighbours' values: of `errors`, shape (known shapes, …); see :meth:`Near.weigh`."""
    return np.einsum("ij,ij...->i...", weights, errors[places])


def fit_sharing(shapes: np.ndarray, ratios: np.ndarray, scales: np.ndarray | float = 1.0) -> Sharing:
    """Fit how much neighbours share, by predicting each shape's error from the others'.

    Parameters
    ----------
    shapes : ndarray of shape (shapes, sizes)
        Two or more.
    ratios : ndarray of shape (shapes,)
        Measured over predicted times.
    scales : ndarray of shape (sizes,), optional
        As of :class:`Near`.

    Returns
    -------
    Sharing
        With the least mean absolute percentage error; of those that are as good, fewer neighbours and a smaller share.
    """
    errors, found = np.log(ratios), []
    near = Near(shapes, shapes, max(COUNTS), True, scales)
    for count in COUNTS:
        mean = shared(errors, *near.weigh(count))
        for share in SHARES:
            # Of the measured time, as all errors here. Rounded, so that last bits decide nothing.
            off = 100 * np.abs(np.exp(share * mean - errors) - 1).mean()
            found.append(Sharing(count, round(float(share), 1), round(float(off), 5)))
    return min(found, key=lambda sharing: sharing.error_percent)


def correction(sharing: Sharing, near: Near, ratios: np.ndarray) -> np.ndarray:
    """Return the factor by which predictions of wanted shapes are corrected.

    Parameters
    ----------
    near : Near
        The shapes of the errors, and the wanted ones.
    ratios : ndarray of shape (known shapes,)
        As of :func:`fit_sharing`.
    """
    return np.exp(sharing.share * shared(np.log(ratios), *near.weigh(sharing.neighbours)))
