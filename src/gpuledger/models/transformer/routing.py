"""How many tokens each expert receives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import erf

import numpy as np

from gpuledger.errors import InputError
from gpuledger.models.time_model.moe import expert_loads

#: A power law as AIConfigurator draws it for its measurements, with its exponent.
_POWER_LAW = re.compile(r"power_law_([0-9]+(?:\.[0-9]+)?)")

#: Zipf exponent of the experts' choices under random tokens, as serving benchmarks send them. The experts'
#: loads then have a Gini coefficient of 0.31 (64 experts) to 0.35 (512): the middle of the 0.29 to 0.38 that models
#: with MLA and with gated delta rules were measured to reach under such tokens. Under real text they stay above 0.24,
#: and two other models come down to 0.11 and 0.15 (Ma et al., "Diagnosing Overhead in Dispatch Operations",
#: arXiv:2605.20982, abstract).
SERVED_LOAD = 0.55

Load = float | str | tuple[float, ...]


@lru_cache(maxsize=256)
def choice_probability(experts: int, active: int, load: float | tuple[float, ...]) -> np.ndarray:
    """Return the probability that a token uses each expert; the probabilities sum to *active*.

    Parameters
    ----------
    load : float or tuple of float
        Exponent of a Zipf law (expert i has weight 1 / (i + 1)^load; 0: uniform), or one weight per expert.
        Probabilities are proportional to the weights, capped at 1; the excess is distributed over the other experts.

    Raises
    ------
    InputError
        A negative weight, a wrong number of weights, or fewer non-zero weights than experts that a token uses.
    """
    if isinstance(load, tuple):
        weights = np.array(load, float)
        if len(weights) != experts:
            problem = f"{len(weights)} weights for {experts} experts"
            raise InputError("expert_load", "", problem, "give one weight per expert")
    else:
        weights = (np.arange(experts) + 1.0) ** -float(load)
    if not np.all(np.isfinite(weights)) or np.any(weights < 0) or np.count_nonzero(weights) < active:
        problem = f"fewer than {active} experts have a positive weight, or a weight is negative"
        raise InputError("expert_load", "", problem, "give an exponent of 0 or more, or non-negative weights")
    probability = np.zeros(experts)
    full = np.zeros(experts, bool)
    while True:
        rest = weights[~full].sum()
        probability[~full] = weights[~full] * ((active - full.sum()) / rest) if rest else 0
        probability[full] = 1
        above = ~full & (probability > 1 + 1e-12)
        if not above.any():
            probability = np.minimum(probability, 1)
            probability.setflags(write=False)  # the result is cached
            return probability
        full |= above


def as_load(load: float | str | Sequence[float]) -> Load:
    """Return *load* in the hashable form that :class:`Routing` takes."""
    if isinstance(load, str) and (found := _POWER_LAW.fullmatch(load)) and 0 < float(found[1]) < 100:
        return load
    if isinstance(load, (int, float)) and not isinstance(load, bool) and 0 <= load < 100:
        return float(load)
    if isinstance(load, (Sequence, np.ndarray)) and not isinstance(load, str):
        return tuple(float(weight) for weight in load)
    remedy = "give a Zipf exponent of 0 … 100, a power law such as power_law_1.2, or one weight per expert"
    raise InputError("expert_load", "", f"{load!r} is not an expert load", remedy)


@dataclass(frozen=True)
class Routing:
    """How tokens choose experts, which are spread evenly over devices."""

    #: Number of experts, and how many a token uses.
    experts: int
    active: int
    #: See :func:`choice_probability`: with an exponent above 0, popular experts are on any device, and tokens choose at
    #: random, so that at each moment some device has more than its share. With 0 all devices have the same, and with
    #: weights what is expected where expert e is on device e mod *devices*. ``power_law_1.2``: loads are the quantiles
    #: of a power law with that exponent, as in measurements of engines' kernels
    #: (:func:`gpuledger.models.time_model.moe.expert_loads`).
    load: Load = 0.0
    devices: int = 1

    @property
    def even(self) -> bool:
        """Whether all experts are chosen equally often."""
        return not isinstance(self.load, str) and np.ptp(choice_probability(self.experts, self.active, self.load)) == 0

    @property
    def _most_experts(self) -> int:
        """Experts of a device; where they cannot be spread evenly, of one that has one more."""
        return -(-self.experts // self.devices)

    def busiest(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected load of the device with the most.

        Parameters
        ----------
        tokens : int64 array of shape (shapes,)
            Tokens of all replicas, which choose their experts independently.

        Returns
        -------
        rows : int64 array of shape (shapes,)
            Expected (token, expert) pairs on that device, rounded to the nearest; tokens · active on a single device.
        touched : float array of shape (shapes,)
            Expected number of its experts that receive at least one token, Σ 1 − (1 − p)^tokens.
        """
        each, touched, count = self._expected(tokens)
        if self.devices == 1:
            rows = tokens * self.active
        elif self.even:  # integer arithmetic, exact
            own = int(count.sum())
            rows = (2 * tokens * self.active * own + self.experts) // (2 * self.experts)
        else:
            rows = np.rint(each @ count).astype(np.int64)
        # The device with the most has at least one.
        return np.maximum(rows, (tokens > 0).astype(np.int64)), np.maximum(touched @ count, tokens > 0)

    def tiles(self, tokens: np.ndarray, heights: Sequence[int]) -> np.ndarray:
        """Return the expected tiles of each height in which the busiest device computes its rows.

        Returns
        -------
        float array of shape (heights, shapes)
        """
        each, touched, count = self._expected(tokens)
        # The rows of an expert that receives any; whole ones, as a tile more for a thousandth of a row is none.
        own = np.rint(each / np.maximum(touched, 1e-9))
        return np.array([(touched * np.ceil(own / height)) @ count for height in heights])

    def _expected(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows and the chance of any, by shape and kind of expert, and how many of each kind there are."""
        if isinstance(self.load, str):
            power = float(_POWER_LAW.fullmatch(self.load)[1])
            # At exactly 1 the law's integral has another form; the next number is as good.
            power += 1e-9 * (power == 1)
            several, again = np.unique(tokens, return_inverse=True)
            whole = np.maximum(several.astype(np.int64), 1)
            each = expert_loads(whole, self.active, self.experts, self.devices, power) * (several > 0)[:, None]
            each = each[again]
            return each, np.minimum(each, 1), np.ones(each.shape[1])
        probability = choice_probability(self.experts, self.active, self.load)
        at_random = self.devices > 1 and isinstance(self.load, float) and not self.even
        if not at_random:
            probability = max((probability[device :: self.devices] for device in range(self.devices)), key=np.sum)
        values, count = np.unique(probability, return_counts=True)
        several = tokens[:, None]
        each, touched = several * values, 1 - (1 - values) ** several
        if at_random:
            each = each * self._over_mean(each, each, count)[:, None]
            touched = np.minimum(touched * self._over_mean(touched, touched * (1 - touched), count)[:, None], 1)
            count = count * (self._most_experts / self.experts)
        return each, touched, count

    def _over_mean(self, mean: np.ndarray, variance: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Return how many times a device's mean the device with the most is expected to have, by shape.

        The sum over a device's experts varies with which they are, and with the tokens' choices (each of different
        experts). It is taken as normal; but where a device has few experts, the most popular one decides, to which an
        average share of the others is added. Rows of 64 to 512 experts with `SERVED_LOAD` on 2 to 64 devices are within
        10 % of simulated placements from 64 tokens on; with 4 tokens, on 32 and 64 devices, up to a third too few.

        Parameters
        ----------
        mean, variance : arrays of shape (shapes, kinds)
            Of one expert of a kind, over the tokens' choices.
        count : array of shape (kinds,)
            Experts of each kind.
        """
        whole = mean @ count
        between = (mean**2 @ count - whole**2 / self.experts) / (1 - 1 / self.experts)
        chosen = variance @ count * (1 - (self.active - 1) / (self.experts - 1))
        share = self._most_experts / self.experts
        spread = np.sqrt(np.maximum(between + chosen, 0) * share)  # all alike: rounding errors
        normal = whole * share + _largest_normal(self.devices) * spread
        popular = mean[:, -1]  # kinds are in ascending order
        beside = (whole - popular) * (self._most_experts - 1) / (self.experts - 1)
        most = np.maximum(normal, popular + beside)
        return np.divide(np.minimum(most, whole), whole * share, out=np.ones(len(whole)), where=whole > 0)


@lru_cache
def _largest_normal(count: int) -> float:
    """Return the expected largest of so many independent standard normal numbers."""
    x = np.linspace(-9, 9, 4000)  # not at 0, where the integrand jumps
    below = np.array([0.5 * (1 + erf(value / 2**0.5)) for value in x]) ** count
    return float(np.trapezoid((x >= 0) - below, x))
