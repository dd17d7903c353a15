"""Selection of a law: the evidence of every family, for many series with the same sizes at once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gpuledger.models.scaling_laws.engine import fit_families
from gpuledger.models.scaling_laws.families import FAMILIES, make_grids

LAW_NAMES = tuple(dict.fromkeys(family.law for family in FAMILIES))
LAW_OF = np.array([LAW_NAMES.index(family.law) for family in FAMILIES])

SHARES = np.log([family.share for family in FAMILIES])
#: Number of series above which a second thread pays off.
WORTH_A_THREAD = 64
#: Relative noise that counts as no noise.
NO_NOISE = 1e-9
EXPECTED_NOISE_FREE, EXPECTED_SMALL, EXPECTED_USUAL = 0.25, 0.25, 0.5
SMALL_NOISES = np.geomspace(1e-8, 1e-3, 11)
USUAL_NOISES = np.geomspace(2e-3, 0.2, 13)
NOISES = np.concatenate([[NO_NOISE], SMALL_NOISES, USUAL_NOISES])
LOG_NOISES = np.log(
    [EXPECTED_NOISE_FREE]
    + [EXPECTED_SMALL / len(SMALL_NOISES)] * len(SMALL_NOISES)
    + [EXPECTED_USUAL / len(USUAL_NOISES)] * len(USUAL_NOISES)
)
#: Prior cost of a staircase against the other laws, in nats.
UNLIKELY_STAIRCASE = 0.7
#: Relative noise below which the rounding of a counter outweighs the noise.
ROUNDED_BELOW = 0.01


@dataclass(frozen=True)
class Selection:
    """Evidence and best parameters of every family, for series with the same sizes.

    `evidence`, `shapes`: shape (series, families); `betas`: (series, families, 3); `law_evidence`: (series, laws).
    """

    evidence: np.ndarray
    shapes: np.ndarray
    betas: np.ndarray
    law_evidence: np.ndarray
    family: np.ndarray  # best family of the best law


def quantum(ys: np.ndarray) -> np.ndarray:
    """Decimal step to which each series is rounded (1 for counts; 0: not rounded); shape (series,)."""
    found = np.zeros(len(ys))
    open_ = np.ones(len(ys), bool)
    for digits in range(7):
        rounded = np.round(ys, digits)
        fits = open_ & np.all(np.abs(rounded - ys) <= 4e-16 * np.abs(ys), axis=1)
        found[fits] = 10.0**-digits
        open_ &= ~fits
    return found


def select(x: np.ndarray, ys: np.ndarray) -> Selection:
    """Fit all families to series `ys` (series, points) at the sizes `x` (points,), sorted and positive."""
    # Copies, because numba would compile the loops again for the read-only arrays of pandas.
    x, ys = np.array(x, float), np.array(ys, float)
    grids = make_grids(x)
    step = quantum(ys)[:, None] / np.sqrt(12)
    size = np.abs(ys)
    typical = np.maximum(np.median(size, axis=1), 1e-3 * size.max(axis=1))[:, None]
    typical = np.where(typical > 0, typical, 1.0)
    relative = 1 / np.maximum(np.maximum(size, 1e-3 * typical), step)
    floors = np.sqrt(1 / relative**2 + (step / ROUNDED_BELOW) ** 2)
    weights = 1 / floors
    rounding = np.mean((step * weights) ** 2, axis=1, keepdims=True)
    noises = np.sqrt(NOISES**2 + rounding)
    noise = np.stack([noises, np.broadcast_to(LOG_NOISES, noises.shape)], axis=1)
    evidence, shapes, betas, squares = _run(x, ys, weights, relative, noise, grids)
    # Rounding alone leaves errors of at most half a step, which bounds the sum of squares of a least-squares fit.
    possible = squares.min(axis=1) <= 3.1 * len(x) * rounding[:, 0]
    counts = np.flatnonzero((rounding[:, 0] > NO_NOISE**2) & possible)
    if len(counts):
        fine = 1 / np.maximum(step[counts], NO_NOISE * size[counts])
        none = np.tile([[1.0], [LOG_NOISES[0]]], (len(counts), 1, 1))
        again = _run(x, ys[counts], fine, relative[counts], none, grids)
        better = again[0] > evidence[counts]
        evidence[counts] = np.logaddexp(evidence[counts], again[0])
        shapes[counts] = np.where(better, again[1], shapes[counts])
        betas[counts] = np.where(better[:, :, None], again[2], betas[counts])
    law_evidence = np.full((len(ys), len(LAW_NAMES)), -np.inf)
    for index, law in enumerate(LAW_OF):
        law_evidence[:, law] = np.logaddexp(law_evidence[:, law], evidence[:, index] + SHARES[index])
    law_evidence[:, LAW_NAMES.index("staircase")] -= UNLIKELY_STAIRCASE
    best = law_evidence.argmax(axis=1)
    family = np.where(LAW_OF[None, :] == best[:, None], evidence + SHARES, -np.inf).argmax(axis=1)
    return Selection(evidence, shapes, betas, law_evidence, family)


def _run(x, ys, weights, relative, noise, grids):
    """Fit every family to every series, on two threads if there are many series."""
    series, families = len(ys), len(FAMILIES)
    evidence, shapes, squares = (np.zeros((series, families)) for _ in range(3))
    betas = np.zeros((series, families, 3))

    def run(part):
        fit_families(
            x, ys[part], weights[part], relative[part], noise[part], grids.values, grids.log_weights, grids.starts,
            grids.spreads, evidence[part], shapes[part], betas[part], squares[part],
        )  # fmt: skip

    middle = series // 2
    if series < WORTH_A_THREAD:
        run(slice(None))
    else:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, [slice(0, middle), slice(middle, None)]))
    evidence += np.sum(np.log(weights), axis=1, keepdims=True)
    return evidence, shapes, betas, squares
