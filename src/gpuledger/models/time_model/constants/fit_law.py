"""Fit of a law's constants to measured times, to the same result on every processor.

The last bits of a logarithm, of a matrix product and of a solver differ between processors, and laws with maxima and
whole waves make other constants of them. So constants are only tried on a lattice: a step of the Levenberg-Marquardt
method (D. W. Marquardt, 1963) is rounded to it, and a constant without effect stays where it is.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np

T = TypeVar("T")

#: Distance of neighbours on the lattice of logarithms: half of the least that three significant digits tell apart.
LATTICE = 2.0**-11
#: Step of a logarithm, in lattice units, that slopes are taken over.
SLOPE = 41
#: Residuals beyond this count less: logarithms of predicted over measured time, and relative errors.
SMALL, SMALL_RELATIVE = 0.05, 0.02
#: Longest step of one iteration in a logarithm, most iterations, and the relative gain that is worth another.
LONGEST, ITERATIONS, GAIN = 1.0, 60, 1e-6
#: Share of the largest curvature that every constant is damped by at least: last bits must not move one without effect.
WEAK = 1e-3


def fit_law(
    times: Callable[[T], np.ndarray],
    start: T,
    bounds: Mapping[str, tuple],
    measured_s: np.ndarray,
    relative: bool = False,
    near: Callable[[T], np.ndarray] | None = None,
) -> T:
    """Fit the constants of a law of kernel times.

    Least soft-L1 of the logarithms of predicted over measured time, so that a few disturbed measurements do not
    matter.

    Parameters
    ----------
    times : callable
        From constants to predicted times (s).
    bounds : mapping of str to (float, float)
        Of the constants that are fitted; the others stay as they are.
    measured_s : float array
        Positive and finite.
    relative : bool
        Whether residuals are relative errors, whose mean is judged, instead of logarithms, which see a time that is
        half as long as one that is twice as long.
    near : callable, optional
        `times`, perhaps sooner, with one constant up to `SLOPE` from what it was in the last call of `times`.

    Returns
    -------
    dataclass
        As `start`, the fitted constants rounded to three significant digits.
    """
    names, wanted = list(bounds), np.log(measured_s)
    low, high = np.array(list(bounds.values()), dtype=float).T
    lowest, highest = np.rint(np.log(low) / LATTICE), np.rint(np.log(high) / LATTICE)

    def at(place: np.ndarray, digits: int = 6) -> dict[str, float]:
        values = np.clip(np.exp(LATTICE * place), low, high)
        return {name: float(f"{value:.{digits}g}") for name, value in zip(names, values, strict=True)}

    def residuals(place: np.ndarray, times: Callable[[T], np.ndarray] = times) -> np.ndarray:
        found = times(dataclasses.replace(start, **at(place)))
        return found / measured_s - 1.0 if relative else np.log(found) - wanted

    place = np.rint(np.log([getattr(start, name) for name in names]) / LATTICE)
    small = SMALL_RELATIVE if relative else SMALL
    beside = partial(residuals, times=near or times)
    place = least(residuals, np.clip(place, lowest, highest), lowest, highest, small, beside)
    return dataclasses.replace(start, **at(place, 3))


def with_own(
    constants: T, bounds: Mapping[str, tuple[float, float]], own: Mapping[str, tuple[float, float, float]]
) -> tuple[T, dict[str, tuple[float, float]]]:
    """Return where a fit starts, and its bounds, with constants of a kernel's own: their start and their bounds."""
    start = dataclasses.replace(constants, **{name: values[0] for name, values in own.items()})
    return start, bounds | {name: values[1:] for name, values in own.items()}


def least(
    residuals: Callable[[np.ndarray], np.ndarray],
    place: np.ndarray,
    lowest: np.ndarray,
    highest: np.ndarray,
    small: float = SMALL,
    beside: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Return the lattice place with the least soft-L1 sum of residuals that is reached from another.

    Parameters
    ----------
    residuals : callable
        From a place, an array of whole numbers, to an array.
    place, lowest, highest : float arrays of shape (constants,)
        Whole numbers: where to start, and the bounds.
    small : float
        Residuals beyond this count less.
    beside : callable, optional
        `residuals` of places `SLOPE` from the last that they were asked for.
    """
    beside = beside or residuals
    here = residuals(place)
    cost, damping = _cost(here, small), 1e-3
    for _ in range(ITERATIONS):
        # Away from a bound, so that what is tried has a meaning.
        ways = np.where(place + SLOPE > highest, -SLOPE, SLOPE)
        slopes = np.column_stack([(beside(place + way) - here) / way.sum() for way in np.diag(ways)])
        weights = 1 / np.sqrt(1 + (here / small) ** 2)
        pull = -slopes.T @ (weights * here)
        curvature = slopes.T @ (weights[:, None] * slopes)
        scale = np.diag(curvature) + WEAK * max(np.diag(curvature).max(), 1e-300)
        before = cost
        while damping < 1e6:
            free = ~(((place == lowest) & (pull < 0)) | ((place == highest) & (pull > 0)))
            step = np.zeros(len(place))
            if free.any():
                matrix = curvature[np.ix_(free, free)] + np.diag(damping * scale[free])
                step[free] = np.linalg.solve(matrix, pull[free])
            step = np.clip(step, -LONGEST / LATTICE, LONGEST / LATTICE)
            tried = np.clip(np.rint(place + step), lowest, highest)
            if (tried == place).all():
                return place
            found = residuals(tried)
            if (reached := _cost(found, small)) < cost * (1 - 1e-9):
                place, here, cost, damping = tried, found, reached, max(damping / 4, 1e-6)
                break
            damping *= 4
        if not cost < before * (1 - GAIN):
            break
    return place


def _cost(residuals: np.ndarray, small: float) -> float:
    return float((np.sqrt(1 + (residuals / small) ** 2) - 1).sum())
