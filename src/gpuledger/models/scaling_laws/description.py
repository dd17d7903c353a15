"""Description of a family's best fit: natural coefficients, exact ones where proven, and the formula."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gpuledger.models.scaling_laws.exact import SPARE, Branch, find_branches, find_law, find_line
from gpuledger.models.scaling_laws.families import FAMILIES
from gpuledger.models.scaling_laws.formulas import Number, law_text, law_values, line_text, rounded, supported


@dataclass(frozen=True)
class Description:
    """The law of one series, its coefficients and its formula."""

    law: str
    form: str
    coefficients: dict[str, Number]
    formula: str
    exact: bool
    knee: float | None


def natural(family: int, shape: float, beta: np.ndarray) -> dict[str, float]:
    """The coefficients of a law (see :class:`gpuledger.models.scaling_laws.Fit`) from those of its family."""
    kind = FAMILIES[family]
    native = dict(zip(kind.names, (float(value) for value in beta), strict=False))
    if kind.shape != "knee":
        return native | ({kind.shape: float(shape)} if kind.shape else {})
    a, b = native.get("a", 0.0), native.get("b", 0.0)
    d = b + native["d"] if "d" in native else 0.0
    c = a + (b - d) * shape
    # The rounding error of a cancellation is not a coefficient.
    c = c if abs(c) > 1e-9 * max(abs(a), abs(d * shape)) else 0.0
    return {"a": a, "b": b, "c": c, "d": d, "knee": float(shape)}


def as_fractions(x: np.ndarray, y: np.ndarray, step: float) -> tuple[list[Fraction], list[Fraction]] | None:
    """Distinct sizes and their values as Fractions; None if values are not decimals or replicates differ."""
    if not step:
        return None
    values = {}
    for size, value in zip(x.tolist(), y.tolist(), strict=True):
        if values.setdefault(size, value) != value:
            return None
    digits = round(-math.log10(step))
    return [Fraction(repr(size)) for size in values], [Fraction(f"{value:.{digits}f}") for value in values.values()]


def describe(x, y, step, family, shape, beta, variable, errors: Callable[[], dict[str, float]]) -> Description:
    """Describe the fit of the likeliest family to one series; an exact line replaces it.

    Parameters
    ----------
    x, y : arrays of float64, shape (points,)
        Sizes, ascending, and values.
    step : float
        The decimal step of the values; 0: not rounded.
    shape : float
    beta : array of float64, shape (3,)
    errors : callable
        Returns the standard errors of the natural coefficients; only called if these are not exact.
    """
    kind = FAMILIES[family]
    native = natural(family, shape, beta)
    coefficients = {name: rounded(value) for name, value in native.items()}
    # Rational arithmetic is slow; it is only tried if a line, the best fit or a branch of it may be exact.
    line = np.interp(x, x[[0, -1]], y[[0, -1]])
    least = step + 1e-9 * np.abs(y).max()
    maybe = step and (
        kind.law == "knee"
        or np.abs(line - y).max() <= least
        or np.abs(law_values(kind.law, kind.form, native, x) - y).max() <= least
    )
    fractions = as_fractions(x, y, step) if maybe else None
    if fractions:
        found = find_line(*fractions)
        if found is None and kind.law not in ("constant", "proportional", "affine", "knee", "saturating"):
            found = find_law(kind.law, *fractions, tile=int(shape) if kind.shape == "tile" else None)
        if found:
            law, exact = found
            return Description(law, kind.form, exact, law_text(law, kind.form, exact, variable), True, None)
    if kind.law == "knee":
        return _describe_knee(x, fractions, coefficients, variable, errors)
    text = law_text(kind.law, kind.form, _supported(coefficients, errors()), variable)
    return Description(kind.law, kind.form, coefficients, text, False, None)


def _supported(coefficients, errors) -> dict[str, Number]:
    return {name: supported(value, errors.get(name, 0.0)) for name, value in coefficients.items()}


def _describe_knee(x, fractions, values, variable, errors) -> Description:
    """Describe a knee; a branch is exact with `SPARE` points more than determine it."""
    form = FAMILIES[-1].form
    values = dict(values)
    low, high = find_branches(*fractions) if fractions else (None, None)
    knee = values["knee"]
    # A branch only counts on its own side of the knee; the size next to the knee may belong to either.
    left = low if low and _before(low, x, knee) else None
    right = high if high and _after(high, x, knee) else None
    whole = bool(left and right and left.spare and right.spare)
    whole = whole and left.points + right.points >= len(fractions[0])
    parameters = (2 - (left.slope == 0) + 2 - (right.slope == 0)) if whole else 0
    if whole and left.slope != right.slope and len(fractions[0]) - parameters >= SPARE:
        crossing = (left.intercept - right.intercept) / (right.slope - left.slope)
        if left.last <= crossing <= right.first or crossing in (left.last, right.first):
            exact = {"a": left.intercept, "b": left.slope, "c": right.intercept, "d": right.slope, "knee": crossing}
            return Description("knee", form, exact, law_text("knee", form, exact, variable), True, float(crossing))
    left, right = (branch if branch and branch.spare >= SPARE else None for branch in (left, right))
    if left:
        values |= {"a": left.intercept, "b": left.slope}
    if right:
        values |= {"c": right.intercept, "d": right.slope}
    if float(values["b"]) != float(values["d"]):
        knee = (float(values["a"]) - float(values["c"])) / (float(values["d"]) - float(values["b"]))
        values["knee"] = rounded(min(max(knee, x[0]), x[-1]))
    said = _supported(values, errors())
    formula = law_text("knee", form, said, variable)
    if right and not left:
        formula = f"{line_text(right.intercept, right.slope, variable)} for {variable} ≥ {right.first}"
    elif left:
        after = f"about {line_text(said['c'], said['d'], variable)}"
        if right:
            after = f"{line_text(right.intercept, right.slope, variable)} for {variable} ≥ {right.first}"
        formula = f"{line_text(left.intercept, left.slope, variable)} for {variable} ≤ {left.last}, then {after}"
    return Description("knee", form, values, formula, False, float(values["knee"]))


def _before(branch: Branch, x: np.ndarray, knee: float) -> bool:
    beyond = x[x > knee]
    return bool(len(beyond)) and float(branch.last) <= beyond[0]


def _after(branch: Branch, x: np.ndarray, knee: float) -> bool:
    before = x[x < knee]
    return bool(len(before)) and float(branch.first) >= before[-1]
