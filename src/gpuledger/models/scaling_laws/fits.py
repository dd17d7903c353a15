"""Fits of one series and of many."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gpuledger.models.scaling_laws.description import Description, describe
from gpuledger.models.scaling_laws.formulas import Number, law_values, rounded
from gpuledger.models.scaling_laws.prediction import Candidate, make_candidate, predict_mixture, standard_errors
from gpuledger.models.scaling_laws.selection import LAW_NAMES, LAW_OF, SHARES, Selection, quantum, select

LAWS = (*LAW_NAMES, "undetermined")
#: Distinct sizes that a law needs.
MINIMUM_POINTS = 5
#: Errors (%) above which no law fits: in total, and beyond what rounding to whole counts explains.
LARGEST_ERROR_PERCENT, LARGEST_UNEXPLAINED_PERCENT = 20.0, 5.0
#: Squares of larger sizes and values overflow.
LARGEST_NUMBER = 1e75
#: Laws with a smaller probability do not widen an interval.
LEAST_PROBABILITY = 0.01


@dataclass(frozen=True, eq=False)
class Fit:
    """One series and its law."""

    law: str  # one of :data:`LAWS`
    formula: str  # ``3·seq_len + 6``, ``129·(1 + hidden_dim/256) for hidden_dim ≥ 768``, ``not enough points``
    points: int  # distinct sizes
    #: SMAPE of the law at the points it was fitted to, %: the mean of 200·|law − value|/(|law| + |value|).
    error_percent: float
    domain: tuple[float, float]  # lowest and highest size
    #: Exact ones are Fractions, the others are rounded to 6 significant digits. Names by law: constant ``a``;
    #: proportional ``b`` (b·n); affine ``a, b`` (a + b·n); power ``a, b`` (a·n^b); nlogn ``b`` (b·n·log2 n), optionally
    #: ``a`` (+ a); quadratic ``c``, optionally ``a, b`` (a + b·n + c·n²); saturating ``a, b``: a·n/(n + b) and other
    #: forms, see the formula; knee ``a, b, c, d, knee``: a + b·n up to the knee, c + d·n beyond; staircase ``a, tile``,
    #: optionally ``b`` (a·ceil(n/tile) + b).
    coefficients: dict[str, Number] = field(default_factory=dict)
    exact: bool = False  # all points satisfy the law with Fractions as coefficients, at least two more than it needs
    knee: float | None = None  # where the slope changes, if the law is a knee
    #: Which form of the law, see :mod:`gpuledger.models.scaling_laws.families`.
    form: str = field(repr=False, default="")
    #: The laws that are compatible with the data, most probable first; empty if the law is exact or undetermined.
    mixture: tuple[Candidate, ...] = field(repr=False, default=())

    def predict(self, x, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values of the law and prediction intervals, inside or outside the range.

        The interval combines all laws compatible with the data, weighted by their probabilities, so outside the range
        it also reflects the uncertainty about the law. An exact law has an interval of zero width.

        Parameters
        ----------
        x : float or array of float64
            Sizes, positive.
        level : float
            Probability that the interval contains a new value, between 0 and 1.

        Returns
        -------
        value, low, high : arrays of float64, shape of `x`
            6 significant digits; NaN if the law is undetermined.
        """
        sizes = np.atleast_1d(np.asarray(x, float))
        if not np.all(sizes > 0):
            raise ValueError("sizes must be positive; predict at sizes > 0")
        if not 0 < level < 1:
            raise ValueError(f"level {level} is not a probability; give one between 0 and 1")
        if self.law == "undetermined":
            value = low = high = np.full(sizes.shape, np.nan)
        else:
            value = law_values(self.law, self.form, self.coefficients, sizes)
            low = high = value
            if not self.exact:
                low, high = predict_mixture(list(self.mixture), sizes.ravel(), level)
        return tuple(round_all(part.reshape(np.shape(x))) for part in (value, low, high))


def fit(x: Sequence[float], y: Sequence[float], variable: str = "n") -> Fit:
    """Find the law of one series.

    Parameters
    ----------
    x : array of float64, shape (observations,)
        Sizes, positive. Equal sizes are replicates, each of which counts as an observation.
    y : array of float64, shape (observations,)
        Values in base units. Whole numbers are treated as counts, which may follow an exact law.

    Raises
    ------
    ValueError
        Different shapes, sizes that are not positive, values that are not finite, numbers beyond 1e75.
    """
    y, x = check(y, x)
    sizes = np.unique(x)
    domain = (float(sizes[0]), float(sizes[-1])) if len(sizes) else (np.nan, np.nan)
    if len(sizes) < MINIMUM_POINTS:
        return Fit("undetermined", "not enough points", len(sizes), np.nan, domain)
    step, selection = float(quantum(y[None])[0]), select(x, y[None])
    law = _describe(x, y, step, selection, 0, variable)
    error, _ = _errors(x, y, law)
    if _misses(x, y, step, law, error):
        return Fit("undetermined", "no law fits", len(sizes), error, domain)
    mixture = () if law.exact else _mixture(x, y, step, selection)
    about = (law.coefficients, law.exact, law.knee, law.form, mixture)
    return Fit(law.law, law.formula, len(sizes), error, domain, *about)


def _mixture(x: np.ndarray, y: np.ndarray, step: float, selection: Selection) -> tuple[Candidate, ...]:
    """Return the best fit of every law that is probable enough, most probable first, for a single series."""
    evidence, laws = selection.evidence[0] + SHARES, selection.law_evidence[0]
    probabilities = np.exp(laws - laws.max()) / np.exp(laws - laws.max()).sum()
    candidates = []
    for law in np.argsort(-laws, kind="stable"):
        if probabilities[law] >= LEAST_PROBABILITY:
            family = int(np.where(law == LAW_OF, evidence, -np.inf).argmax())
            shape, beta = selection.shapes[0, family], selection.betas[0, family]
            candidates.append(make_candidate(x, y, step, family, shape, beta, probabilities[law]))
    return tuple(candidates)


def _describe(x, y, step, selection: Selection, series: int, variable: str) -> Description:
    """Describe the likeliest law of one of the selected series."""
    family = int(selection.family[series])
    found = x, y, step, family, selection.shapes[series, family], selection.betas[series, family]
    return describe(*found, variable, lambda: standard_errors(make_candidate(*found, probability=1.0)))


def fit_many(frame: pd.DataFrame, by: str | Sequence[str], variable: str) -> pd.DataFrame:
    """Find the law of every series of a table.

    Series with the same sizes are fitted together; 10,000 series take seconds.

    Parameters
    ----------
    frame : DataFrame
        Tidy table with the columns `by`, `variable` (sizes) and ``value``. Equal sizes of a series are replicates.
    by : str or list of str
        The columns that identify a series.

    Returns
    -------
    DataFrame
        One row per series, sorted by `by`: the columns `by`, then ``variable, law, formula, points, error_percent,
        exact, knee`` as in :class:`Fit`, and ``largest_error_percent``.
    """
    by = [by] if isinstance(by, str) else list(by)
    missing = [name for name in (*by, variable, "value") if name not in frame]
    if missing:
        raise ValueError(f"no column {missing[0]!r}; the table has {', '.join(map(str, frame.columns))}")
    check(frame["value"], frame[variable])
    ordered = frame.sort_values([*by, variable], kind="stable")
    x, y = (ordered[name].to_numpy(float) for name in (variable, "value"))
    code = ordered.groupby(by, sort=True, dropna=False).ngroup().to_numpy()
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    ends = np.append(starts[1:], len(code))[: len(starts)]
    alike: dict[bytes, list[int]] = {}
    for series, (start, end) in enumerate(zip(starts, ends, strict=True)):
        alike.setdefault(x[start:end].tobytes(), []).append(series)
    rows = [None] * len(starts)
    for members in alike.values():
        sizes = x[starts[members[0]] : ends[members[0]]]
        values = np.stack([y[starts[series] : ends[series]] for series in members])
        for series, row in zip(members, _describe_alike(sizes, values, variable), strict=True):
            rows[series] = row
    names = ["variable", "law", "formula", "points", "error_percent", "largest_error_percent", "exact", "knee"]
    found = pd.DataFrame(rows, columns=names).astype({"knee": float})
    return pd.concat([ordered.iloc[starts][by].reset_index(drop=True), found], axis=1)


def _describe_alike(x, ys, variable):
    """Rows of `fit_many` for series with the same sizes."""
    points = len(np.unique(x))
    steps = quantum(ys)
    if points < MINIMUM_POINTS:
        yield from [(variable, "undetermined", "not enough points", points, np.nan, np.nan, False, None)] * len(ys)
        return
    selection = select(x, ys)
    for i, (y, step) in enumerate(zip(ys, steps, strict=True)):
        law = _describe(x, y, step, selection, i, variable)
        error, largest = _errors(x, y, law)
        if _misses(x, y, step, law, error):
            yield variable, "undetermined", "no law fits", points, error, largest, False, None
        else:
            yield variable, law.law, law.formula, points, error, largest, law.exact, law.knee


def check(y, *sizes) -> tuple[np.ndarray, ...]:
    """Return values and sizes as arrays, in order of the first sizes, then of the next."""
    y, *sizes = (np.asarray(part, float) for part in (y, *sizes))
    if y.ndim != 1 or any(part.shape != y.shape for part in sizes):
        shapes = " and ".join(str(part.shape) for part in sizes)
        raise ValueError(f"sizes have the shape {shapes}, values {y.shape}; give one value per size or pair of sizes")
    if not np.all(np.isfinite(sizes) & (np.array(sizes) > 0)):
        raise ValueError("a size is not a positive number; leave that row out")
    if not np.all(np.isfinite(y)):
        raise ValueError("a value is not a finite number; leave that row out")
    for what, numbers in (("size", np.ravel(sizes)), ("value", y)):
        if len(numbers) and np.abs(numbers).max() > LARGEST_NUMBER:
            raise ValueError(f"a {what} exceeds {LARGEST_NUMBER:g}; give all of them in a larger unit")
    order = np.lexsort(sizes[::-1])
    return tuple(part[order] for part in (y, *sizes))


def smape(y: np.ndarray, fitted: np.ndarray) -> float:
    """Symmetric mean absolute percentage error (%), rounded to digits that are the same on every machine."""
    size = np.abs(fitted) + np.abs(y)
    return round(float(np.mean(200 * np.abs(fitted - y) / np.where(size > 0, size, 1.0))), 4)


def largest_error(y: np.ndarray, fitted: np.ndarray) -> float:
    """Largest error at a point, relative to its value (%); infinite if a zero is missed."""
    with np.errstate(divide="ignore", over="ignore"):
        relative = np.divide(np.abs(fitted - y), np.abs(y), out=np.zeros(len(y)), where=fitted != y)
    return round(100 * float(relative.max()), 4)


def _errors(x, y, law) -> tuple[float, float]:
    """The mean and the largest error of a law, in percent."""
    if law.exact:
        return 0.0, 0.0
    fitted = law_values(law.law, law.form, law.coefficients, x)
    return smape(y, fitted), largest_error(y, fitted)


def _misses(x, y, step, law, error: float) -> bool:
    """Whether a law is off by too much, and by more than rounding to `step` explains (much, for small counts)."""
    if error <= LARGEST_ERROR_PERCENT:
        return False
    fitted = law_values(law.law, law.form, law.coefficients, x)
    nearest = np.clip(fitted, y - step / 2, y + step / 2)
    return smape(nearest, fitted) > LARGEST_UNEXPLAINED_PERCENT


def round_all(values: np.ndarray) -> np.ndarray:
    """Round every value to 6 significant digits."""
    return np.array([rounded(value, 6) for value in values.ravel()]).reshape(values.shape)
