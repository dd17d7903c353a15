"""Formulas of laws as text, and values of laws from their coefficients."""

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import numpy as np

Number = Fraction | float

#: Digits of inexact coefficients, as many as are the same on every machine.
DIGITS = 6


def rounded(value: float, digits: int = DIGITS) -> float:
    """Round to significant digits."""
    return float(f"{value:.{digits - 1}e}")


def supported(value: Number, error: float) -> Number:
    """Round to the digits that a standard error supports: two of the error, and at least two of the value."""
    if isinstance(value, Fraction) or value == 0 or not 0 < error < np.inf:
        return value
    place = min(math.floor(math.log10(error)), math.floor(math.log10(abs(value)))) - 1
    return rounded(round(value, -place))


def number_text(value: Number) -> str:
    """A coefficient as text: ``6``, ``129/256``, ``240.109``, ``1.2e-07``."""
    if isinstance(value, Fraction):
        text = str(value)
    elif value == 0 or 1e-5 <= abs(value) < 1e15:
        text = format(Decimal(repr(rounded(value))), "f")
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.{DIGITS}g}"
    return text.replace("-", "−", 1) if value < 0 else text


def term_text(coefficient: Number, what: str) -> str:
    """``3·n``, ``n``, ``n/2``, ``3·n/2``; without `what` the number alone."""
    if not what:
        return number_text(coefficient)
    if not isinstance(coefficient, Fraction):
        return f"{number_text(coefficient)}·{what}"
    above = what if abs(coefficient.numerator) == 1 else f"{abs(coefficient.numerator)}·{what}"
    text = above if coefficient.denominator == 1 else f"{above}/{coefficient.denominator}"
    return f"−{text}" if coefficient < 0 else text


def sum_text(terms: list[tuple[Number, str]]) -> str:
    """A sum of terms with proper signs, without terms of coefficient 0."""
    terms = [(value, what) for value, what in terms if value != 0]
    if not terms:
        return "0"
    text = term_text(*terms[0])
    for value, what in terms[1:]:
        text += f" − {term_text(-value, what)}" if value < 0 else f" + {term_text(value, what)}"
    return text


def line_text(intercept: Number, slope: Number, variable: str) -> str:
    """A line: ``3·n + 6``, or ``129·(1 + n/256)`` instead of ``129·n/256 + 129``."""
    if (
        isinstance(intercept, Fraction)
        and isinstance(slope, Fraction)
        and abs(slope.numerator) != 1 != slope.denominator
    ):
        ratio = intercept / slope
        if ratio.denominator == 1 and ratio > 0:
            factor = number_text(intercept) if intercept.denominator == 1 else f"({intercept})"
            return f"{factor}·(1 + {variable}/{ratio})"
    return sum_text([(slope, variable), (intercept, "")])


def law_text(law: str, form: str, values: Mapping[str, Number], variable: str) -> str:
    """The formula of a law in one variable from its coefficients (see :class:`gpuledger.models.scaling_laws.Fit`)."""
    n = variable
    if law == "constant":
        return number_text(values["a"])
    if law in ("proportional", "affine"):
        return line_text(values.get("a", Fraction(0)), values["b"], n)
    if law == "nlogn":
        return sum_text([(values["b"], f"{n}·log2({n})"), (values.get("a", 0.0), "")])
    if law == "quadratic":
        return sum_text([(values["c"], f"{n}²"), (values.get("b", 0.0), n), (values.get("a", 0.0), "")])
    if law == "power":
        return term_text(values["a"], f"{n}^{number_text(values['b'])}")
    if law == "staircase":
        steps = f"ceil({n}/{number_text(values['tile'])})"
        return sum_text([(values["a"], steps), (values.get("b", 0.0), "")])
    if law == "saturating":
        a, b = number_text(values["a"]), number_text(values["b"])
        if "exp" in form:
            return f"{a}·(1 − exp(−{n}/{b}))"
        if form == "a + b/n":
            return sum_text([(values["a"], ""), (values["b"], f"1/{n}")]).replace(f"·1/{n}", f"/{n}")
        return (f"{number_text(values['c'])} + " if "c" in values else "") + f"{a}·{n}/({n} + {b})"
    below, above = line_text(values["a"], values["b"], n), line_text(values["c"], values["d"], n)
    return f"{below} for {n} ≤ {number_text(values['knee'])}, then {above}"


def law_values(law: str, form: str, values: Mapping[str, Number], x: np.ndarray) -> np.ndarray:
    """The values of a law in one variable at sizes `x`; float64 of the same shape."""
    c = {name: float(value) for name, value in values.items()}
    x = np.asarray(x, float)
    if law in ("constant", "proportional", "affine", "quadratic"):
        return c.get("a", 0.0) + c.get("b", 0.0) * x + c.get("c", 0.0) * x**2
    if law == "nlogn":
        return c.get("a", 0.0) + c["b"] * x * np.log2(x)
    if law == "power":
        return c["a"] * x ** c["b"]
    if law == "staircase":
        return c["a"] * np.ceil(x / c["tile"]) + c.get("b", 0.0)
    if law == "saturating":
        if "exp" in form:
            return -c["a"] * np.expm1(-x / c["b"])
        if form == "a + b/n":
            return c["a"] + c["b"] / x
        return c.get("c", 0.0) + c["a"] * x / (x + c["b"])
    return np.where(x <= c["knee"], c["a"] + c["b"] * x, c["c"] + c["d"] * x)
