"""Sums of products of powers of two variables, and the evidence of a law in two variables."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np

from gpuledger.models.scaling_laws.description import as_fractions
from gpuledger.models.scaling_laws.exact import SPARE
from gpuledger.models.scaling_laws.families import COEFFICIENT_SPREAD
from gpuledger.models.scaling_laws.formulas import rounded, sum_text, supported, term_text
from gpuledger.models.scaling_laws.prediction import inverse
from gpuledger.models.scaling_laws.selection import LOG_NOISES, NOISES

#: Exponents of x1 and x2.
TERMS = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 1), (1, 2))
MOST_TERMS = 4


@dataclass(frozen=True)
class Surface:
    """A law in two variables, and its values at two arrays of sizes.

    `form` lists the terms of a sum or the laws of a product (``affine × power``). Coefficients are named after their
    term (``seq_len·hidden_dim``), or after the variable and the coefficient of its law (``seq_len b``).
    """

    formula: str
    form: str
    coefficients: dict[str, float | Fraction]
    values: Callable[[np.ndarray, np.ndarray], np.ndarray]
    exact: bool = False


@dataclass(frozen=True)
class Sum:
    """A sum of products of powers: exponents of its terms, coefficients, whether they are exact, log evidence."""

    terms: list[tuple[int, int]]
    coefficients: list[float | Fraction]
    exact: bool
    evidence: float


def _term_name(powers, variables) -> str:
    """``seq_len²·hidden_dim``; the empty text for 1."""
    return "·".join(name + ("²" if power == 2 else "") for name, power in zip(variables, powers, strict=True) if power)


def find_sums(x1, x2, y, relative, step) -> list[Sum]:
    """Fit every sum of up to `MOST_TERMS` terms that leaves points to spare.

    The search stops at the exact sum with the fewest terms, because larger ones can only contain it.
    """
    weights = 1 / np.maximum(np.abs(y), max(step, 1e-3 * np.abs(y).max(), 1e-300))
    all_columns = _columns(TERMS, x1, x2)
    pairs = _exact_pairs(x1, x2, y, step)
    found, exact_found = [], False
    for count in range(1, min(MOST_TERMS, len(y) - SPARE) + 1):
        chosen = np.array(list(combinations(range(len(TERMS)), count)))
        columns = all_columns[chosen]
        norms = np.linalg.norm(columns * weights, axis=2)
        u, scales, vt = np.linalg.svd((columns * weights / norms[:, :, None]).swapaxes(1, 2), full_matrices=False)
        determined = scales[:, -1] > 1e-12 * scales[:, 0]
        if not determined.any():
            break
        chosen, columns, norms, u, scales, vt = (part[determined] for part in (chosen, columns, norms, u, scales, vt))
        betas = np.einsum("ckt,ck->ct", vt, np.einsum("cnk,n->ck", u, y * weights) / scales) / norms
        met = np.abs((np.einsum("ct,ctn->cn", betas, columns) - y) * weights).max(axis=1) < 1e-7
        terms = [[TERMS[i] for i in members] for members in chosen]
        coefficients = [[rounded(value) for value in beta] for beta in betas]
        exact = [False] * len(terms)
        for i in np.flatnonzero(met) if pairs else ():
            if not exact_found and (solution := _solve_exactly(terms[i], pairs)):
                coefficients[i], exact[i], exact_found = solution, True, True
        fitted = np.einsum("ct,ctn->cn", np.array(coefficients, float), columns)
        evidence = surface_evidence(columns, fitted, np.zeros(columns.shape[:2]), y, relative, step)
        # All sums together have the prior of all products; a sum with many terms is one of many.
        evidence -= np.log(len(TERMS)) * count
        found += [Sum(*parts) for parts in zip(terms, coefficients, exact, evidence.tolist(), strict=True)]
        if exact_found:
            break
    return found


def make_surface(law: Sum, variables, x1, x2, y, relative, step) -> Surface:
    """The surface of a sum that was fitted to these values."""
    columns = _columns(law.terms, x1, x2)
    floats = [float(value) for value in law.coefficients]
    errors = np.zeros(len(floats))
    if not law.exact:
        freedom = max(len(y) - len(floats), 1)
        squares = np.sum(((y - floats @ columns) * relative) ** 2) / freedom
        # At least the scatter that rounding alone causes.
        variance = max(squares, np.mean((step / np.sqrt(12) * relative) ** 2))
        errors = np.sqrt(np.maximum(np.diag(variance * inverse((columns * relative**2) @ columns.T)), 0))
    names = [_term_name(powers, variables) for powers in law.terms]
    said = [supported(value, float(f"{error:.2e}")) for value, error in zip(law.coefficients, errors, strict=True)]
    formula = sum_text(sorted(zip(said, names, strict=True), key=lambda term: -len(term[1])))
    if law.exact and law.terms == [(0, 0), (1, 0), (0, 1), (1, 1)]:
        one, first, second, both = law.coefficients
        if one * both == first * second:
            factors = [
                sum_text([(Fraction(1), name), (value / both, "")])
                for name, value in zip(variables, (second, first), strict=True)
            ]
            formula = term_text(both, "·".join(f"({factor})" for factor in factors))
    by_name = {name or "1": value for name, value in zip(names, law.coefficients, strict=True)}
    form = " + ".join(by_name)
    return Surface(formula, form, by_name, lambda x1, x2: floats @ _columns(law.terms, x1, x2), law.exact)


def _columns(terms, x1, x2) -> np.ndarray:
    return np.stack([x1**p * x2**q for p, q in terms])


def _exact_pairs(x1, x2, y, step):
    """Pairs and values as Fractions; None if values are not decimals or replicates differ."""
    seen = {}
    for index, pair in enumerate(zip(x1.tolist(), x2.tolist(), strict=True)):
        if y[seen.setdefault(pair, index)] != y[index]:
            return None
    kept = np.array(list(seen.values()))
    first = as_fractions(np.arange(len(kept), dtype=float), y[kept], step)
    if not first:
        return None
    exactly = [[Fraction(repr(size)) for size in x[kept].tolist()] for x in (x1, x2)]
    return list(zip(*exactly, first[1], strict=True))


def _solve_exactly(terms, pairs) -> list[Fraction] | None:
    """Rational coefficients that satisfy all pairs, by elimination; None if there are none."""
    rows = [[a**p * b**q for p, q in terms] + [value] for a, b, value in pairs]
    if len(rows) - len(terms) < SPARE:
        return None
    for column in range(len(terms)):
        pivot = next((r for r in range(column, len(rows)) if rows[r][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column][column]
        rows[column] = [value / lead for value in rows[column]]
        for r, row in enumerate(rows):
            if r != column and row[column]:
                factor = row[column]
                rows[r] = [value - factor * base for value, base in zip(row, rows[column], strict=True)]
    if any(row[-1] for row in rows[len(terms) :]):
        return None
    solution = [rows[i][-1] for i in range(len(terms))]
    return solution if all(solution) else None


def surface_evidence(gradient, fitted, spreads, y, relative, step) -> np.ndarray:
    """As :func:`gpuledger.models.scaling_laws.engine.log_evidence`, for one or many laws in two variables.

    Parameters
    ----------
    gradient : array of float64, shape (..., parameters, points)
    fitted : array of float64, shape (..., points)
    spreads : array of float64, shape (..., parameters)
    y, relative : arrays of float64, shape (points,)
    """
    gradient = gradient * relative
    norms = np.sqrt(np.mean(gradient**2, axis=-1))
    expected = np.where(spreads > 0, spreads, COEFFICIENT_SPREAD / np.where(norms > 0, norms, 1.0))
    jacobian = gradient * expected[..., None]
    squares = np.sum(((y - fitted) * relative) ** 2, axis=-1)
    variances = NOISES**2 + np.mean((step / np.sqrt(12) * relative) ** 2)
    # A direction without effect (the shared scale of two laws) has no weight.
    weights = np.linalg.eigvalsh(jacobian @ jacobian.swapaxes(-1, -2))
    weights = np.where(weights > 1e-12 * weights.max(axis=-1, keepdims=True), weights, 0.0)
    complexity = np.log1p(weights[..., None, :] / variances[:, None]).sum(axis=-1)
    terms = LOG_NOISES - 0.5 * (len(y) * np.log(variances) + squares[..., None] / variances + complexity)
    return np.logaddexp.reduce(terms, axis=-1)
