"""Laws in two variables: sums of products of powers, and products of one law in each variable.

Sums have up to four of the terms 1, x1, x2, x1·x2, x1², x2², x1²·x2, x1·x2². Products are found by alternating: the
values divided by the law in one variable are a series in the other. Both are rated by evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from gpuledger.models.scaling_laws.description import natural
from gpuledger.models.scaling_laws.families import FAMILIES, POWER, make_grids
from gpuledger.models.scaling_laws.fits import (
    LARGEST_ERROR_PERCENT,
    MINIMUM_POINTS,
    check,
    largest_error,
    round_all,
    smape,
)
from gpuledger.models.scaling_laws.formulas import law_text, law_values, rounded
from gpuledger.models.scaling_laws.prediction import parameter_gradient
from gpuledger.models.scaling_laws.selection import quantum, select
from gpuledger.models.scaling_laws.surfaces import TERMS, Surface, find_sums, make_surface, surface_evidence

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


@dataclass(frozen=True)
class ProductFit:
    """A law in two variables, see :func:`fit_product`."""

    law: str  # ``product`` or ``undetermined``
    formula: str  # ``3·seq_len·hidden_dim/32``, ``no law fits``, ``not enough points``
    points: int  # distinct pairs of sizes
    error_percent: float = np.nan  # as :class:`gpuledger.models.scaling_laws.Fit` has it
    largest_error_percent: float = np.nan  # the largest error at a point (%)
    surface: Surface | None = field(repr=False, default=None)  # the law itself; None if it is undetermined

    @property
    def exact(self) -> bool:
        return self.surface is not None and self.surface.exact

    def predict(self, x) -> np.ndarray:
        """Values at `x`, shape (…, 2), with 6 significant digits; NaN if the law is undetermined."""
        sizes = np.asarray(x, float)
        if sizes.shape[-1:] != (2,) or not np.all(sizes > 0):
            raise ValueError("sizes must be positive pairs; give an array of shape (…, 2)")
        if self.surface is None:
            return np.full(sizes.shape[:-1], np.nan)
        return round_all(self.surface.values(*sizes.reshape(-1, 2).T)).reshape(sizes.shape[:-1])


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
    y, x1, x2 = check(y, x1, x2)
    points = len(np.unique(np.stack([x1, x2]), axis=1).T)
    if points < MINIMUM_POINTS or min(len(np.unique(x1)), len(np.unique(x2))) < MINIMUM_DISTINCT:
        return ProductFit("undetermined", "not enough points", points)
    step = float(quantum(y[None])[0])
    relative = 1 / np.maximum(np.abs(y), max(step / np.sqrt(12), 1e-3 * np.abs(y).max(), 1e-300))
    # The likeliest sum; an exact one ranks first.
    sums = max(find_sums(x1, x2, y, relative, step), key=lambda law: (law.exact, law.evidence))
    surface = None if sums.exact else _separable(x1, x2, y, relative, step, variables, sums.evidence)
    surface = surface or make_surface(sums, variables, x1, x2, y, relative, step)
    fitted = surface.values(x1, x2)
    error = 0.0 if surface.exact else smape(y, fitted)
    if error > LARGEST_ERROR_PERCENT:
        return ProductFit("undetermined", "no law fits", points, error)
    largest = 0.0 if surface.exact else largest_error(y, round_all(fitted))
    return ProductFit("product", surface.formula, points, error, largest, surface)


def _separable(x1, x2, y, relative, step, variables, least) -> Surface | None:
    """The product of a law in `x1` and one in `x2`; None if values change sign or its evidence is not above `least`."""
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
    # The leading coefficient of the law with fewer coefficients becomes 1.
    counts = [len(FAMILIES[law[0]].names) for law in laws]
    plain = 0 if counts[0] < counts[1] else 1
    scale = laws[plain][2][counts[plain] - 1]
    laws = [(f, s, b / scale if axis == plain else b * scale) for axis, (f, s, b) in enumerate(laws)]
    (own, first), (other, second) = (
        (parameter_gradient(*law, x), _law_at(law, x)) for law, x in zip(laws, xs, strict=True)
    )
    gradient = np.concatenate([own * second, other * first])
    spreads = np.concatenate([_spreads(law, x) for law, x in zip(laws, xs, strict=True)])
    if surface_evidence(gradient, first * second, spreads, y, relative, step) <= least:
        return None
    return _product_surface(laws, variables)


def _law_at(law, x) -> np.ndarray:
    family, shape, beta = law
    kind = FAMILIES[family]
    return law_values(kind.law, kind.form, natural(family, shape, beta), x)


def _spreads(law, x) -> list[float]:
    """Prior standard deviations of a law's parameters; 0 for coefficients."""
    kind, spread = FAMILIES[law[0]], make_grids(np.unique(x)).spreads[law[0]]
    of_shape = [] if kind.shape in (None, "tile") else [spread if law[0] == POWER else spread * law[1]]
    return [0.0] * len(kind.names) + of_shape


def _product_surface(laws, variables) -> Surface:
    coefficients, texts = {}, []
    for law, variable in zip(laws, variables, strict=True):
        kind = FAMILIES[law[0]]
        named = {name: rounded(value) for name, value in natural(*law).items()}
        coefficients |= {f"{variable} {name}": value for name, value in named.items()}
        # A leading coefficient of 1 is not printed, as if it were exact.
        text = {name: Fraction(1) if value == 1 else value for name, value in named.items()}
        texts.append(law_text(kind.law, kind.form, text, variable))
    texts = [text if set(text).isdisjoint("+− ") else f"({text})" for text in texts if text != "1"]
    form = " × ".join(FAMILIES[law[0]].law for law in laws)
    formula = "·".join(texts) or "1"
    return Surface(formula, form, coefficients, lambda x1, x2: _law_at(laws[0], x1) * _law_at(laws[1], x2))
