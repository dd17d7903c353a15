"""The families of curves behind the laws: bases, shape parameters, their search grids and priors.

Every family is linear in at most three coefficients once its shape parameter (an exponent, a half-saturation size, a
knee, a tile) is fixed. A law has one or more families, whose prior probabilities add up to one.
"""

from dataclasses import dataclass

import numpy as np

LARGEST_TILE = 1 << 16
#: Tiles to try: all up to 256, multiples of 8 up to 2048, of 64 up to 8192, then powers of two.
TILES = np.concatenate([np.arange(2, 256), np.arange(256, 2048, 8), np.arange(2048, 8192, 64), 2 ** np.arange(13, 17)])
#: The largest side of a GEMM tile in common libraries; larger ones are unlikely unless powers of two.
LARGEST_KNOWN_TILE = 256
#: Relative deviation from a line below which a staircase cannot be seen.
SMALLEST_STEP = 0.005
#: Prior of powers of two, three times those, other multiples of 32, of 8, and of all other tiles.
TILE_SHARES = (0.6, 0.15, 0.1, 0.08, 0.07)
_POWERS, _THREES = (np.log2(TILES / factor) % 1 == 0 for factor in (1, 3))
TILE_KINDS = np.select([_POWERS, _THREES, TILES % 32 == 0, TILES % 8 == 0], [0, 1, 2, 3], 4)
TILE_WEIGHTS = np.array(TILE_SHARES)[TILE_KINDS] * np.where(
    _POWERS, 1.0, np.minimum(1.0, (LARGEST_KNOWN_TILE / TILES) ** 8)
)


@dataclass(frozen=True)
class LawFamily:
    """One family of curves: its law, its form, and the names of its coefficients in the order of the basis.

    `share` is its prior probability within its law; `shape` names the shape parameter.
    """

    law: str
    form: str
    names: tuple[str, ...]
    share: float
    shape: str | None = None


# In the order of the branches of `engine.basis`.
FAMILIES = (
    LawFamily("constant", "a", ("a",), 1.0),
    LawFamily("proportional", "b·n", ("b",), 1.0),
    LawFamily("affine", "a + b·n", ("a", "b"), 1.0),
    LawFamily("nlogn", "b·n·log2 n", ("b",), 0.7),
    LawFamily("nlogn", "a + b·n·log2 n", ("a", "b"), 0.3),
    LawFamily("quadratic", "c·n²", ("c",), 0.25),
    LawFamily("quadratic", "a + c·n²", ("a", "c"), 0.2),
    LawFamily("quadratic", "b·n + c·n²", ("b", "c"), 0.15),
    LawFamily("quadratic", "a + b·n + c·n²", ("a", "b", "c"), 0.4),
    LawFamily("power", "a·n^b", ("a",), 1.0, "b"),
    LawFamily("saturating", "a·n/(n + b)", ("a",), 0.5, "b"),
    LawFamily("saturating", "a·(1 − exp(−n/b))", ("a",), 0.2, "b"),
    LawFamily("saturating", "c + a·n/(n + b)", ("c", "a"), 0.2, "b"),
    LawFamily("saturating", "a + b/n", ("a", "b"), 0.1),
    LawFamily("knee", "a, then a + d·(n − knee)", ("a", "d"), 0.5, "knee"),
    LawFamily("knee", "a + b·n, then steeper or flatter by d", ("a", "b", "d"), 0.35, "knee"),
    LawFamily("knee", "b·n, then flat", ("b",), 0.1, "knee"),
    LawFamily("knee", "a + b·n, then flat", ("a", "b"), 0.05, "knee"),
    LawFamily("staircase", "a·ceil(n/tile)", ("a",), 0.5, "tile"),
    LawFamily("staircase", "a·ceil(n/tile) + b", ("b", "a"), 0.5, "tile"),
)
KNEES = tuple(i for i, family in enumerate(FAMILIES) if family.shape == "knee")
STAIRCASES = tuple(i for i, family in enumerate(FAMILIES) if family.shape == "tile")
POWER = next(i for i, family in enumerate(FAMILIES) if family.law == "power")

#: Prior standard deviation of a coefficient, in units of its contribution to the values.
COEFFICIENT_SPREAD = 2.0
#: Cost in nats of a coefficient whose sign contradicts the data (a negative intercept, a falling slope).
UNLIKELY = 1.5
#: Exponents to try.
EXPONENTS = np.linspace(-3, 4, 43)
#: Mean and standard deviation of the prior of exponents.
EXPONENT_CENTRE, EXPONENT_SPREAD = 1.0, 1.2


@dataclass(frozen=True)
class Grids:
    """Shape parameters to try: `values` of all families one after another, with the `starts` of each family.

    `log_weights` is the log prior of each value (tiles; 0 elsewhere). `spreads` is the prior standard deviation of each
    family's shape parameter (of its logarithm, except for exponents; 0 for tiles).
    """

    values: np.ndarray
    log_weights: np.ndarray
    starts: np.ndarray
    spreads: np.ndarray


def make_grids(x: np.ndarray) -> Grids:
    """Shape parameters to try for the sizes `x` (sorted, positive; repeats allowed)."""
    sizes = np.unique(x)
    low, high = np.log(sizes[0] / 8), np.log(sizes[-1] * 8)
    knee_spread = max(np.log(sizes[-1] / sizes[0]), 0.1) / np.sqrt(12)
    none, one = np.zeros(0), np.zeros(1)
    grids = [(one, one, 0.0)] * len(FAMILIES)
    halves = (np.exp(np.linspace(low, high, 30)), np.zeros(30), (high - low) / np.sqrt(12))
    for index, family in enumerate(FAMILIES):
        if family.law == "saturating" and family.shape:
            grids[index] = halves
    grids[POWER] = (EXPONENTS, np.zeros(len(EXPONENTS)), EXPONENT_SPREAD)
    # A flat branch may consist of the first size alone if the knee lies clearly beyond it.
    inner = _knees(sizes[1:-1])
    outer = _knees(np.append(sizes[0] + (sizes[1] - sizes[0]) / 4, sizes[1:-1])) if len(sizes) > 3 else none
    for index in KNEES:
        knees = outer if index == KNEES[0] else inner
        grids[index] = (knees, np.zeros(len(knees)), knee_spread)
    for index, tiles in zip(STAIRCASES, _tiles(sizes), strict=True):
        grids[index] = (*tiles, 0.0)
    values, weights, spreads = zip(*grids, strict=True)
    starts = np.concatenate([[0], np.cumsum([len(grid) for grid in values])])
    return Grids(np.concatenate(values), np.concatenate(weights), starts, np.array(spreads))


def _knees(ends: np.ndarray) -> np.ndarray:
    """Eight knees to try within each interval of `ends`, and the last end."""
    if len(ends) < 2:
        return np.zeros(0)
    return np.append((ends[:-1, None] + np.diff(ends)[:, None] * np.arange(8) / 8).ravel(), ends[-1])


def _tiles(sizes: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tiles to try and their log priors, without and with an offset.

    Tiles are skipped if these sizes cannot distinguish them from a line, or from flat-then-proportional (without
    offset) or flat-then-linear (with offset).
    """
    nothing = np.zeros(0), np.zeros(0)
    count = np.searchsorted(TILES, min(sizes[-1], LARGEST_TILE + 1))
    if count == 0 or len(sizes) < 2 or not np.all(sizes == np.floor(sizes)):
        return [nothing, nothing]
    heights = np.ceil(sizes[None, :] / TILES[:count, None])
    steps = ~_is_nearly_line(sizes, heights)
    # Tiles with the same heights are merged under the likeliest of them.
    keys = np.round(heights @ np.sqrt(np.arange(2.0, 2.0 + len(sizes))), 6)
    found = []
    for hinge in _hinges(sizes, heights):
        told = np.flatnonzero(steps & ~hinge)
        if not len(told):
            found.append(nothing)
            continue
        kinds = TILE_KINDS[told]
        weights = TILE_WEIGHTS[told] / np.bincount(kinds)[kinds]
        _, group = np.unique(keys[told], return_inverse=True)
        likeliest = np.lexsort((-weights, group))
        first = likeliest[np.searchsorted(group[likeliest], np.arange(group.max() + 1))]
        found.append((TILES[told][first].astype(float), np.log(np.bincount(group, weights))))
    return found


def _hinges(sizes: np.ndarray, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of `heights` (rows, sizes) are flat up to some size and linear beyond it; two arrays of shape (rows,).

    The first one only has rows whose line passes through zero.
    """
    slope = (heights[:, -1] - heights[:, -2]) / (sizes[-1] - sizes[-2])
    line = heights[:, -1:] + slope[:, None] * (sizes - sizes[-1])
    hinge = np.all(np.abs(heights - np.maximum(line, heights[:, :1])) < 1e-9 * heights, axis=1)
    return hinge & (np.abs(heights[:, -1] - slope * sizes[-1]) < 1e-9 * heights[:, -1]), hinge


def _is_nearly_line(sizes: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Which rows of `heights` (rows, sizes) are a line within `SMALLEST_STEP` (relative, root mean square).

    The least squares of relative deviations regress 1 on the columns 1/height and size/height.
    """
    first, second = 1 / heights, sizes / heights
    aa, ab, bb = (np.einsum("rs,rs->r", *pair) for pair in ((first, first), (first, second), (second, second)))
    a, b = first.sum(axis=1), second.sum(axis=1)
    determinant = aa * bb - ab**2
    intercept, slope = (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant
    deviations = intercept[:, None] * first + slope[:, None] * second - 1
    return np.sqrt(np.mean(deviations**2, axis=1)) < SMALLEST_STEP
