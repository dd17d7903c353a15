"""Exact laws of counts: rational coefficients from a few points, verified on all others."""

from dataclasses import dataclass
from fractions import Fraction

#: Points required beyond those that determine a law.
SPARE = 2


#: The name of a law that every point satisfies, and its rational coefficients.
ExactLaw = tuple[str, dict[str, Fraction]]


@dataclass(frozen=True)
class Branch:
    """A line through consecutive points at one end of the range: intercept, slope, first and last size, points."""

    intercept: Fraction
    slope: Fraction
    first: Fraction
    last: Fraction
    points: int

    @property
    def spare(self) -> int:
        """Points beyond those that determine the line (one if it is flat, else two)."""
        return self.points - (1 if self.slope == 0 else 2)


def polynomial(x: list[Fraction], y: list[Fraction], degree: int) -> list[Fraction] | None:
    """Coefficients of the polynomial of this degree through all points, lowest first; None if there is none.

    Newton's divided differences on the first points, verified on the others.
    """
    nodes = degree + 1
    divided = list(y[:nodes])
    for level in range(1, nodes):
        for i in range(nodes - 1, level - 1, -1):
            divided[i] = (divided[i] - divided[i - 1]) / (x[i] - x[i - level])
    coefficients = [Fraction(0)] * nodes
    for i in range(nodes - 1, -1, -1):
        coefficients = [
            (coefficients[k - 1] if k else Fraction(0)) - x[i] * coefficients[k] + (divided[i] if k == 0 else 0)
            for k in range(nodes)
        ]
    for size, value in zip(x[nodes:], y[nodes:], strict=True):
        total = Fraction(0)
        for coefficient in reversed(coefficients):
            total = total * size + coefficient
        if total != value:
            return None
    return coefficients


def find_line(x: list[Fraction], y: list[Fraction]) -> ExactLaw | None:
    """Constant, proportional or affine law that all points satisfy, `SPARE` more than needed."""
    if len(x) < 1 + SPARE:
        return None
    if all(value == y[0] for value in y):
        return "constant", {"a": y[0]}
    line = polynomial(x, y, 1)
    if line is None:
        return None
    if line[0] == 0:
        return "proportional", {"b": line[1]}
    return ("affine", {"a": line[0], "b": line[1]}) if len(x) >= 2 + SPARE else None


def find_law(law: str, x: list[Fraction], y: list[Fraction], tile: int | None = None) -> ExactLaw | None:
    """Exact form of the selected law; None if the points do not satisfy it or are too few to prove it."""
    if law == "quadratic" and len(x) >= 3 + SPARE:
        found = polynomial(x, y, 2)
        if found and found[2] != 0:
            return law, {name: value for name, value in zip("abc", found, strict=True) if value != 0}
    if law == "power":
        for exponent in (-3, -2, -1, 3, 4):
            ratios = {value / size**exponent for size, value in zip(x, y, strict=True)}
            if len(ratios) == 1:
                return law, {"a": ratios.pop(), "b": Fraction(exponent)}
    if law == "nlogn" and all(_is_power_of_two(size) for size in x):
        products = [size * (size.numerator.bit_length() - 1) for size in x]
        found = polynomial(products, y, 1) if len(set(products)) == len(products) else None
        if found:
            return law, {"b": found[1]} | ({"a": found[0]} if found[0] else {})
    if law == "staircase" and tile:
        steps = [Fraction(-(-size // tile)) for size in x]
        levels = dict(zip(steps, y, strict=True))
        if len(levels) >= 3 and all(levels[step] == value for step, value in zip(steps, y, strict=True)):
            found = polynomial(list(levels), list(levels.values()), 1)
            if found and len(x) >= 3 + SPARE:
                offset = {"b": found[0]} if found[0] else {}
                return law, {"a": found[1]} | offset | {"tile": Fraction(tile)}
    return None


def find_branches(x: list[Fraction], y: list[Fraction]) -> tuple[Branch, Branch]:
    """The longest runs of collinear points at the low and at the high end of the range (x ascending)."""

    def run(order):
        first, second, *others = order
        slope = (y[second] - y[first]) / (x[second] - x[first])
        length = 2
        for i in others:
            if y[i] != y[first] + slope * (x[i] - x[first]):
                break
            length += 1
        members = [x[i] for i in order[:length]]
        return Branch(y[first] - slope * x[first], slope, min(members), max(members), length)

    indices = list(range(len(x)))
    return run(indices), run(indices[::-1])


def _is_power_of_two(size: Fraction) -> bool:
    return size.denominator == 1 and size.numerator > 0 and size.numerator & (size.numerator - 1) == 0
