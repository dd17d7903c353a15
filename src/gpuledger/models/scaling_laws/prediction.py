"""Uncertainty: covariance of coefficients, and prediction intervals over all laws compatible with the data."""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from gpuledger.models.scaling_laws.description import natural
from gpuledger.models.scaling_laws.engine import basis
from gpuledger.models.scaling_laws.families import FAMILIES
from gpuledger.models.scaling_laws.formulas import law_values


@dataclass(frozen=True)
class Candidate:
    """The best fit of one law: its family, parameters, probability and scatter.

    `covariance` covers the coefficients and then the shape parameter (not a tile); `scatter` is the relative standard
    deviation of values about the law, with `freedom` degrees of freedom.
    """

    family: int
    shape: float
    beta: np.ndarray
    probability: float
    covariance: np.ndarray
    scatter: float
    freedom: int

    def values(self, x: np.ndarray) -> np.ndarray:
        """Values at sizes `x`, shape (points,)."""
        kind = FAMILIES[self.family]
        return law_values(kind.law, kind.form, natural(self.family, self.shape, self.beta), x)

    def deviation(self, x: np.ndarray) -> np.ndarray:
        """Standard deviation of a new value at sizes `x`, shape (points,)."""
        gradient = parameter_gradient(self.family, self.shape, self.beta, x)
        law = np.einsum("ip,ij,jp->p", gradient, self.covariance, gradient)
        return np.sqrt(np.maximum(law, 0.0) + (self.scatter * self.values(x)) ** 2)


def make_candidate(x, y, step, family, shape, beta, probability) -> Candidate:
    """Covariance and scatter of one family's best fit, with relative weights."""
    weights = 1 / np.maximum(np.abs(y), max(step, 1e-3 * np.abs(y).max(), 1e-300))
    gradient = parameter_gradient(family, shape, beta, x)
    freedom = max(len(x) - len(gradient), 1)
    fitted = law_values(FAMILIES[family].law, FAMILIES[family].form, natural(family, shape, beta), x)
    # At least the scatter that rounding alone causes.
    squares = np.sum(((y - fitted) * weights) ** 2) / freedom
    scatter = float(np.sqrt(max(squares, np.mean((step / np.sqrt(12) * weights) ** 2))))
    covariance = scatter**2 * inverse((gradient * weights**2) @ gradient.T)
    return Candidate(family, float(shape), np.array(beta), float(probability), covariance, scatter, freedom)


def inverse(matrix: np.ndarray) -> np.ndarray:
    """Pseudo-inverse of a small symmetric positive matrix, several times faster than numpy's."""
    values, vectors = np.linalg.eigh(matrix)
    kept = values > 1e-13 * values[-1]
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T


def standard_errors(candidate: Candidate) -> dict[str, float]:
    """Standard errors of the natural coefficients, by the delta method; 0 below 1e-9 of the coefficient."""
    kind = FAMILIES[candidate.family]
    centre = natural(candidate.family, candidate.shape, candidate.beta)
    variances = np.diag(candidate.covariance)
    if kind.shape == "tile":
        variances = np.append(variances, 0.0)
    elif kind.shape == "knee":
        slopes = _natural_slopes(candidate, centre)
        variances = np.einsum("in,ij,jn->n", slopes, candidate.covariance, slopes)
    errors = np.sqrt(np.maximum(variances, 0.0)).tolist()
    return {
        name: float(f"{error:.2e}") if error > 1e-9 * abs(centre[name]) else 0.0
        for name, error in zip(centre, errors, strict=True)
    }


def _natural_slopes(candidate: Candidate, centre: dict[str, float]) -> np.ndarray:
    """Derivatives of the natural coefficients by those of the family and its shape, shape (parameters, natural)."""
    count, slopes = len(FAMILIES[candidate.family].names), []
    for i in range(len(candidate.covariance)):
        beta, shape = candidate.beta.copy(), candidate.shape
        if i < count:
            move = 1e-6 * max(abs(beta[i]), 1e-12)
            beta[i] += move
        else:
            move = 1e-6 * max(abs(shape), 1e-6)
            shape += move
        moved = natural(candidate.family, shape, beta)
        slopes.append([(moved[name] - centre[name]) / move for name in centre])
    return np.array(slopes)


def predict_mixture(candidates: list[Candidate], x: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Interval that contains a new value with probability `level`.

    Its ends are quantiles of the laws' Student distributions, mixed with the probabilities of the laws.
    """
    total = sum(candidate.probability for candidate in candidates)
    centres = [candidate.values(x) for candidate in candidates]
    widths = [np.maximum(candidate.deviation(x), 1e-300) for candidate in candidates]

    def quantile(probability):
        spans = [width * stdtrit(c.freedom, probability) for c, width in zip(candidates, widths, strict=True)]
        ends = np.array([centre + span for centre, span in zip(centres, spans, strict=True)])
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(60):
            middle = (low + high) / 2
            mass = sum(
                c.probability / total * stdtr(c.freedom, (middle - centre) / width)
                for c, centre, width in zip(candidates, centres, widths, strict=True)
            )
            low, high = np.where(mass < probability, middle, low), np.where(mass < probability, high, middle)
        return (low + high) / 2

    return quantile((1 - level) / 2), quantile((1 + level) / 2)


def parameter_gradient(family: int, shape: float, beta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Derivatives of the law by its coefficients and its shape (not a tile), shape (parameters, points)."""
    x = np.array(x, float)
    columns, moved = np.zeros((3, x.size)), np.zeros((3, x.size))
    count = basis(family, shape, x, columns)
    if FAMILIES[family].shape in (None, "tile"):
        return columns[:count]
    step = 1e-6 * max(abs(shape), 1e-6)
    basis(family, shape + step, x, moved)
    by_shape = np.asarray(beta)[:count] @ (moved[:count] - columns[:count]) / step
    return np.vstack([columns[:count], by_shape])
