"""Laws in two variables: sums of products of powers, and products of one law in each variable.

Sums have up to four of the terms 1, x1, x2, x1·x2, x1², x2², x1²·x2, x1·x2². Products are found by alternating: the
values divided by the law in one variable are a series in the other. Both are rated by evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from gpuledger.models.scaling_laws.description import natural
from gpuledger.models.scaling_laws.families import FAMILIES, POWER, make_grids
from gpuledger.models.scaling_laws.fits import (
    LARGEST_ERROR_PERCENT,
    LARGEST_NUMBER,
    MINIMUM_POINTS,
    NO_CANDIDATES,
    Fit,
    smape,
)
from gpuledger.models.scaling_laws.formulas import law_text, law_values, rounded, supported
from gpuledger.models.scaling_laws.prediction import inverse, parameter_gradient
from gpuledger.models.scaling_laws.selection import quantum, select
from gpuledger.models.scaling_laws.surfaces import (
    TERMS,
    Surface,
    find_sums,
    make_surface,
    sum_formula,
    surface_evidence,
)

#: Powers of the polynomial forms.
POWERS = {
    "a": (0,),
    "b·n": (1,),
    "a + b·n": (0, 1),
    "c·n²": (2,),
    "a + c·n²": (0, 2),
    "b·n + c·n²": (1, 2),
    "a + b·n + c·n²": (0, 1, 2),
}
#: Distinct values of each variable.
MINIMUM_DISTINCT = 3
#: Alternations between the two laws of a product.
TURNS = 6


@dataclass(frozen=True, eq=False)
class ProductFit(Fit):
    """A law in two `variables`, see :func:`fit_product`; ``law`` is ``product``.

    Coefficients are named after their term (``seq_len·hidden_dim``), or after the variable and the coefficient of its
    law (``seq_len b``; their standard errors are NaN, because both laws share a scale). `form` lists the terms of a sum
    or the laws of a product (``affine × power``). `x` has the shape (points, 2), `domain` has a pair per variable.
    """

    variables: tuple[str, str] = ("x1", "x2")
    surface: Surface | None = field(repr=False, default=None)
    covariance: np.ndarray | None = field(repr=False, default=None)
    scatter: float = 0.0

    def predict(self, x, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and prediction interval at `x`, shape (…, 2); see :meth:`Fit.predict`.

        The interval assumes that the law is right.
        """
        sizes = np.asarray(x, float)
        if sizes.shape[-1:] != (2,) or not np.all(sizes > 0):
            raise ValueError("sizes must be positive pairs; give an array of shape (…, 2)")
        if not 0 < level < 1:
            raise ValueError(f"level {level} is not a probability; give one between 0 and 1")
        if self.surface is None:
            return tuple(np.full(sizes.shape[:-1], np.nan) for _ in range(3))
        pairs = sizes.reshape(-1, 2).T
        value = self.surface.values(*pairs)
        half = np.zeros_like(value)
        if not self.exact:
            gradient = self.surface.gradient(*pairs)
            law = np.einsum("ip,ij,jp->p", gradient, self.covariance, gradient)
            freedom = max(len(self.y) - self.surface.parameters, 1)
            half = stdtrit(freedom, (1 + level) / 2) * np.sqrt(np.maximum(law, 0) + (self.scatter * value) ** 2)
        parts = (value, value - half, value + half)
        return tuple(np.array([rounded(v) for v in part]).reshape(sizes.shape[:-1]) for part in parts)


def fit_product(
    x1: Sequence[float], x2: Sequence[float], y: Sequence[float], variables: tuple[str, str] = ("seq_len", "hidden_dim")
) -> ProductFit:
    """Find the law of values over two variables: a sum of products of powers, or the product of a law in each.

    Parameters
    ----------
    x1, x2, y : arrays of float64, shape (observations,)
        Positive sizes on a full or partial grid, and values.

    Returns
    -------
    ProductFit
        ``undetermined`` with fewer than 5 pairs or 3 distinct values of either variable.

    Raises
    ------
    ValueError
        Different shapes, sizes that are not positive, values that are not finite.
    """
    x1, x2, y = _check(x1, x2, y)
    points = len(np.unique(np.stack([x1, x2]), axis=1).T)
    common = {"variable": ", ".join(variables), "variables": tuple(variables), "points": points, "knee": None}
    common |= {"x": np.stack([x1, x2], axis=1), "y": y}
    common["domain"] = tuple((float(x.min()), float(x.max())) if len(x) else (np.nan, np.nan) for x in (x1, x2))
    nothing = {"coefficients": {}, "standard_errors": {}, "exact": False}
    if points < MINIMUM_POINTS or min(len(np.unique(x1)), len(np.unique(x2))) < MINIMUM_DISTINCT:
        unknown = {"error_percent": np.nan, "criterion": np.nan, "probability": np.nan, "candidates": NO_CANDIDATES}
        return ProductFit("undetermined", "not enough points", **common, **nothing, **unknown)
    step = float(quantum(y[None])[0])
    relative = 1 / np.maximum(np.abs(y), max(step / np.sqrt(12), 1e-3 * np.abs(y).max(), 1e-300))
    sums = find_sums(x1, x2, y, relative, step)
    separable = None if any(law.exact for law in sums) else _separable(x1, x2, y, variables)
    best, table = _rank(sums, separable, x1, x2, y, relative, step, variables)
    common |= {name: float(table[name].iloc[0]) for name in ("criterion", "probability", "error_percent")}
    common["candidates"] = table
    if common["error_percent"] > LARGEST_ERROR_PERCENT:
        return ProductFit("undetermined", "no law fits", **common, **nothing)
    gradient = best.gradient(x1, x2)
    squares = np.sum(((y - best.values(x1, x2)) * relative) ** 2) / max(len(y) - best.parameters, 1)
    scatter = float(np.sqrt(max(squares, np.mean((step / np.sqrt(12) * relative) ** 2))))
    covariance = scatter**2 * inverse((gradient * relative**2) @ gradient.T)
    deviations = np.sqrt(np.maximum(np.diag(covariance), 0)) if best.terms else np.full(len(best.coefficients), np.nan)
    errors = {
        name: 0.0 if best.exact else float(f"{error:.2e}")
        for name, error in zip(best.coefficients, deviations, strict=True)
    }
    formula = best.formula
    if best.terms and not best.exact:
        said = [(supported(value, errors[name]), name) for name, value in best.coefficients.items()]
        formula = sum_formula([(value, "" if name == "1" else name) for value, name in said])
    return ProductFit(
        "product",
        formula,
        coefficients=best.coefficients,
        standard_errors=errors,
        exact=best.exact,
        form=best.form,
        surface=best,
        covariance=covariance,
        scatter=scatter,
        **common,
    )


def _check(x1, x2, y):
    """Sizes and values as arrays, in order of `x1`, then `x2`."""
    x1, x2, y = (np.asarray(part, float) for part in (x1, x2, y))
    if x1.ndim != 1 or not x1.shape == x2.shape == y.shape:
        raise ValueError(f"shapes {x1.shape}, {x2.shape}, {y.shape} differ; give one value per pair of sizes")
    if not (np.all(np.isfinite([x1, x2, y])) and np.all(x1 > 0) and np.all(x2 > 0)):
        raise ValueError("a size is not positive or a value not finite; leave that row out")
    if len(y) and np.abs([x1, x2, y]).max() > LARGEST_NUMBER:
        raise ValueError(f"a size or a value exceeds {LARGEST_NUMBER:g}; give all of them in a larger unit")
    order = np.lexsort((x2, x1))
    return x1[order], x2[order], y[order]


def _rank(sums, separable, x1, x2, y, relative, step, variables) -> tuple[Surface, pd.DataFrame]:
    """The best law (an exact one ranks first) and a table of the best ten."""
    evidence = np.array([law.evidence for law in sums])
    exact = [law.exact for law in sums]
    if separable:
        about = separable.gradient(x1, x2), separable.values(x1, x2), separable.spreads
        evidence, exact = np.append(evidence, surface_evidence(*about, y, relative, step)), [*exact, False]
    probabilities = np.exp(evidence - evidence.max()) / np.exp(evidence - evidence.max()).sum()
    ranks = np.lexsort((-evidence, [not is_exact for is_exact in exact]))[:10]
    ranked = [make_surface(sums[i], variables) if i < len(sums) else separable for i in ranks]
    table = pd.DataFrame(
        {
            "law": "product",
            "formula": [surface.formula for surface in ranked],
            "criterion": np.round(-2 * evidence[ranks], 2),
            "probability": np.round(probabilities[ranks], 4),
            "error_percent": [0.0 if law.exact else smape(y, law.values(x1, x2)) for law in ranked],
        }
    )
    return ranked[0], table


def _separable(x1, x2, y, variables) -> Surface | None:
    """The product of a law in `x1` and one in `x2`; None if values change sign."""
    if not (np.all(y > 0) or np.all(y < 0)):
        return None
    laws, xs = [None, None], (x1, x2)
    levels = [np.unique(x, return_inverse=True)[1].ravel() for x in xs]
    # Start with a rank-one fit of the logarithms, without laws; it also works on incomplete grids.
    dummies = np.concatenate([levels[i][:, None] == np.arange(levels[i].max() + 1) for i in (0, 1)], axis=1).astype(
        float
    )
    effects = np.linalg.lstsq(dummies, np.log(np.abs(y)), rcond=None)[0]
    other = np.exp(effects[levels[0].max() + 1 :][levels[1]])
    for turn in range(TURNS):
        axis = turn % 2
        order = np.argsort(xs[axis], kind="stable")
        series = (y / other)[order]
        found = select(xs[axis][order], series[None])
        family = int(found.family[0])
        laws[axis] = (family, float(found.shapes[0, family]), found.betas[0, family])
        other = _law_at(laws[axis], xs[axis])
        if np.any(other == 0):
            return None
    # A power times a polynomial is one of the sums.
    powers = [POWERS.get(FAMILIES[law[0]].form) for law in laws]
    plain = all(powers) and min(len(power) for power in powers) == 1
    if plain and {(p, q) for p in powers[0] for q in powers[1]} <= set(TERMS):
        return None
    return _product_surface(laws, xs, variables)


def _law_at(law, x) -> np.ndarray:
    family, shape, beta = law
    kind = FAMILIES[family]
    return law_values(kind.law, kind.form, natural(family, shape, beta), x)


def _product_surface(laws, xs, variables) -> Surface:
    """The product of two laws, scaled so that the leading coefficient of the one with fewer coefficients is 1."""
    counts = [len(FAMILIES[law[0]].names) for law in laws]
    plain = 0 if counts[0] < counts[1] else 1
    scale = laws[plain][2][counts[plain] - 1]
    laws = [(f, s, b / scale if axis == plain else b * scale) for axis, (f, s, b) in enumerate(laws)]

    def values(x1, x2):
        return _law_at(laws[0], x1) * _law_at(laws[1], x2)

    def gradient(x1, x2):
        own, other = (parameter_gradient(*law, x) for law, x in zip(laws, (x1, x2), strict=True))
        return np.concatenate([own * _law_at(laws[1], x2), other * _law_at(laws[0], x1)])

    coefficients, texts, spreads = {}, [], []
    for law, x, variable in zip(laws, xs, variables, strict=True):
        kind = FAMILIES[law[0]]
        named = {name: rounded(value) for name, value in natural(*law).items()}
        coefficients |= {f"{variable} {name}": value for name, value in named.items()}
        # A leading coefficient of 1 is not printed, as if it were exact.
        text = {name: Fraction(1) if value == 1 else value for name, value in named.items()}
        texts.append(law_text(kind.law, kind.form, text, variable))
        spread = make_grids(np.unique(x)).spreads[law[0]]
        spreads += [0.0] * len(kind.names)
        if kind.shape not in (None, "tile"):
            spreads.append(spread if law[0] == POWER else spread * law[1])
    texts = [text if set(text).isdisjoint("+− ") else f"({text})" for text in texts if text != "1"]
    form = " × ".join(FAMILIES[law[0]].law for law in laws)
    formula = "·".join(texts) or "1"
    # Both laws share their scale, so there is one parameter less.
    return Surface(formula, form, coefficients, values, gradient, np.array(spreads), len(spreads) - 1, 0)
