"""A public benchmark of scaling laws: seeded series of known laws, with and without noise.

Every draw is a law with random coefficients on a random grid of 5 to 9 sizes, such that the law shows in the range:

* affine: intercept between 0.3 times the linear part at the lowest size and 1.5 times that at the highest;
* power: exponent in (-1, -0.3), (0.3, 0.8), (1.3, 1.75) or (2.3, 3), so that no other law has it;
* nlogn, power, saturating: the range spans a factor of 8 or more;
* quadratic: c·n² makes at least a third of the value at the highest size; pure c·n² is quadratic, not power;
* saturating: half-saturation between 1/2 and 1/8 of the highest size and above the lowest;
* knee: at least two sizes on each side, the line beyond at least 4 times as steep as before, and at least doubling;
* staircase: tile 16 to 256, at least 3 different heights, at least 5 % away from every line, and not flat, then on one
  line (which would be a knee).

Products in two variables are on full grids of 5 or 6 times 4 or 5 sizes: sums of 1 to 3 terms, each with a share of at
least a fifth in the middle of the grid, and products of two laws of those above.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LAWS = ("constant", "proportional", "affine", "power", "nlogn", "quadratic", "saturating", "knee", "staircase")


@dataclass(frozen=True)
class Draw:
    """One series: sizes, values with noise, and the law behind them."""

    law: str
    x: np.ndarray
    y: np.ndarray
    truth: Callable[[np.ndarray], np.ndarray]


def draw(law: str, noise: float, random: np.random.Generator, counts: bool = False) -> Draw:
    """Draw a series of `law` with multiplicative Gaussian noise; with `counts` rounded to integers."""
    while True:
        x = _grid(random)
        truth = _MAKERS[law](x, random)
        if truth is not None:
            break
    y = truth(x) * (1 + noise * random.standard_normal(len(x)))
    return Draw(law, x, np.round(y) if counts else y, truth)


def draws(law: str, noise: float, count: int, seed: int = 2026, counts: bool = False) -> list[Draw]:
    """Draw `count` series of a law; the same for the same arguments."""
    random = np.random.default_rng([seed, LAWS.index(law), round(1e6 * noise), counts])
    return [draw(law, noise, random, counts) for _ in range(count)]


def _grid(random):
    points = int(random.integers(5, 10))
    kind = random.integers(4)
    if kind == 0:  # doubling
        return float(random.choice([8, 16, 32, 64, 96, 128, 192])) * 2.0 ** np.arange(points)
    if kind == 1:  # equal steps from one step
        return float(random.choice([16, 64, 100, 128, 256, 500])) * np.arange(1, points + 1)
    if kind == 2:  # equal steps from anywhere
        start, step = random.integers(10, 400), random.integers(30, 300)
        return start + step * np.arange(points, dtype=float)
    low = random.integers(8, 200)
    return np.unique(np.round(np.geomspace(low, low * random.uniform(8, 64), points)))


def _between(random, low, high):
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def _constant(x, random):
    a = _between(random, 100, 1e8)
    return lambda n: np.full(np.shape(n), a)


def _proportional(x, random):
    b = _between(random, 1, 1e5)
    return lambda n: b * n


def _affine(x, random):
    b = _between(random, 1, 1e5)
    a = b * _between(random, 0.3 * x[0], 1.5 * x[-1])
    return lambda n: a + b * n


def _power(x, random):
    if x[-1] < 8 * x[0]:
        return None
    low, high = [(-1, -0.3), (0.3, 0.8), (1.3, 1.75), (2.3, 3)][random.integers(4)]
    b = random.uniform(low, high)
    a = _between(random, 1e3, 1e6) / min(x[0] ** b, x[-1] ** b)
    return lambda n: a * n**b


def _nlogn(x, random):
    if x[-1] < 8 * x[0]:
        return None
    a = _between(random, 1, 1e4)
    return lambda n: a * n * np.log2(n)


def _quadratic(x, random):
    c = _between(random, 0.01, 100)
    square = c * x[-1] ** 2
    a, b = square * random.uniform(0, 0.5), square / x[-1] * random.uniform(0, 1.0)
    kind = random.integers(4)
    a, b = (0 if kind == 0 or kind == 2 else a), (0 if kind in (0, 1) else b)
    return lambda n: a + b * n + c * n**2


def _saturating(x, random):
    if x[-1] < 8 * x[0]:
        return None
    a, b = _between(random, 1e3, 1e8), x[-1] * _between(random, 1 / 8, 1 / 2)
    return (lambda n: a * n / (n + b)) if b > x[0] else None


def _knee(x, random):
    k = random.uniform(x[1], x[-2])
    if np.sum(x <= k) < 2 or np.sum(x > k) < 2:
        return None
    a = _between(random, 1e3, 1e7)
    d = a / (x[-1] - k) * _between(random, 1, 10)
    b = d / _between(random, 4, 20) if random.random() < 0.3 else 0.0
    return lambda n: a + b * np.minimum(n, k) + d * np.maximum(n - k, 0)


def _staircase(x, random):
    tile = float(random.choice([16, 32, 48, 64, 96, 128, 192, 256]))
    steps = np.ceil(x / tile)
    a = _between(random, 1e2, 1e6)
    b = a * _between(random, 0.3, 3) if random.random() < 0.5 else 0.0
    beyond = x > tile
    if len(np.unique(steps)) < 3 or not np.any(x[beyond] % tile):
        return None
    y = a * steps + b
    line = np.stack([np.ones_like(x), x]) / y
    coefficients = np.linalg.lstsq(line.T, np.ones_like(x), rcond=None)[0]
    if np.sqrt(np.mean((line.T @ coefficients - 1) ** 2)) < 0.05:
        return None
    last = (y[-1] - y[-2]) / (x[-1] - x[-2])
    if np.allclose(y, np.maximum(y[0], y[-1] + last * (x - x[-1]))):
        return None
    return lambda n: a * np.ceil(n / tile) + b


_MAKERS = {
    "constant": _constant,
    "proportional": _proportional,
    "affine": _affine,
    "power": _power,
    "nlogn": _nlogn,
    "quadratic": _quadratic,
    "saturating": _saturating,
    "knee": _knee,
    "staircase": _staircase,
}


#: Products of two laws, and the terms of sums.
PRODUCTS = (
    ("power", "proportional"),
    ("power", "power"),
    ("affine", "affine"),
    ("nlogn", "proportional"),
    ("saturating", "proportional"),
    ("proportional", "knee"),
)
SUMS = (("x1·x2",), ("x1·x2", "x1"), ("x1·x2", "x2"), ("x1·x2", "x1", "1"), ("x1·x2", "x1²"))


@dataclass(frozen=True)
class ProductDraw:
    """Values over two variables and what is behind them: a set of terms, or a pair of laws."""

    form: frozenset[str] | tuple[str, str]
    x1: np.ndarray
    x2: np.ndarray
    y: np.ndarray
    truth: Callable[[np.ndarray, np.ndarray], np.ndarray]


def product_draws(noise: float, count: int, seed: int = 2026) -> list[ProductDraw]:
    """Draw `count` products and sums in two variables; the same for the same arguments."""
    random = np.random.default_rng([seed, 99, round(1e6 * noise)])
    return [_product_draw(noise, random) for _ in range(count)]


def _product_draw(noise, random):
    axes = [float(random.choice([16, 32, 64, 96])) * 2.0 ** np.arange(random.integers(low, low + 2)) for low in (5, 4)]
    x1, x2 = (grid.ravel() for grid in np.meshgrid(*axes, indexing="ij"))
    if random.random() < 0.5:
        names = SUMS[random.integers(len(SUMS))]
        form = frozenset(names)
        scales = random.uniform(0.5, 1.0, len(names))
        terms = {"x1·x2": lambda a, b: a * b, "x1": lambda a, b: a, "x2": lambda a, b: b, "x1²": lambda a, b: a**2}
        terms["1"] = lambda a, b: np.ones(np.shape(a))
        middle = [np.sqrt(axis[0] * axis[-1]) for axis in axes]
        factors = {name: scale / terms[name](*middle) for name, scale in zip(names, scales, strict=True)}
        scale = _between(random, 1e4, 1e7)

        def truth(a, b):
            return scale * sum(factor * terms[name](a, b) for name, factor in factors.items())
    else:
        form = PRODUCTS[random.integers(len(PRODUCTS))]
        laws = []
        for law, axis in zip(form, axes, strict=True):
            made = None
            while made is None:
                made = _MAKERS[law](axis, random)
            laws.append(made)

        def truth(a, b):
            return laws[0](a) * laws[1](b)

    y = truth(x1, x2) * (1 + noise * random.standard_normal(len(x1)))
    return ProductDraw(form, x1, x2, y, truth)


def is_right(draw: ProductDraw, form: str) -> bool:
    """Whether the form that was found (``x1·x2 + x1``, ``power × affine``) is that of the draw."""
    if isinstance(draw.form, frozenset):
        return frozenset(form.split(" + ")) == draw.form
    return tuple(form.split(" × ")) == draw.form
