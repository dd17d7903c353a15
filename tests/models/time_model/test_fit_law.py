"""Fits: the same constants on every processor, within their bounds, and those that made the times."""

from dataclasses import astuple, dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.models.time_model.constants.fit_law import fit_law


@dataclass(frozen=True)
class Waves:
    """A law with two constants that only their sum tells apart, one of whole waves, and one without effect."""

    launch_s: float
    host_s: float
    wave_s: float
    never_s: float

    def times(self, blocks):
        return np.maximum(self.launch_s + self.host_s + self.wave_s * np.ceil(blocks / 132), self.never_s)


START = Waves(1e-6, 3e-6, 1e-7, 1e-7)
RANGES = dict.fromkeys(("launch_s", "host_s", "wave_s", "never_s"), (1e-9, 1e-3))
BLOCKS = 2.0 ** np.random.default_rng(3).uniform(0, 12, 60)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.01, 0.1, 0.5]), st.booleans())
def test_last_bits_do_not_change_a_constant(seed, spread, relative):
    rng = np.random.default_rng(seed)
    measured = Waves(2e-6, 1e-6, 1e-8, 1e-9).times(BLOCKS) * np.exp(rng.normal(0, spread, 60))

    def other_processor(constants):
        return constants.times(BLOCKS) * (1 + np.finfo(float).eps * rng.integers(-1, 2, 60))

    found = fit_law(lambda constants: constants.times(BLOCKS), START, RANGES, measured, relative)
    assert fit_law(other_processor, START, RANGES, measured, relative) == found
    assert found.never_s == START.never_s


def test_a_fit_finds_what_made_the_times():
    true = Waves(2e-6, 0.0, 3e-7, 0.0)
    bounds = {name: RANGES[name] for name in ("launch_s", "wave_s")}
    start = Waves(9e-6, 0.0, 1e-8, 0.0)
    found = fit_law(lambda constants: constants.times(BLOCKS), start, bounds, true.times(BLOCKS))
    assert astuple(found) == pytest.approx(astuple(true), rel=2e-3)


def test_a_fit_stays_within_its_bounds():
    bounds = {"launch_s": (3e-6, 5e-6), "wave_s": (1e-8, 2e-8)}
    found = fit_law(lambda constants: constants.times(BLOCKS), START, bounds, np.full(60, 1e-4))
    assert (found.launch_s, found.wave_s) == (5e-6, 2e-8)
    found = fit_law(lambda constants: constants.times(BLOCKS), START, bounds, np.full(60, 1e-9))
    assert (found.launch_s, found.wave_s) == (3e-6, 1e-8)


def test_relative_errors_weigh_what_is_predicted_too_long():
    # Between 1 and 2 s the mean relative error is least at 1 s, that of logarithms nowhere.
    bounds = {"launch_s": (0.1, 10.0)}
    start = Waves(1.7, 0.0, 0.0, 0.0)
    found = fit_law(
        lambda constants: np.full(2, constants.launch_s), start, bounds, np.array([1.0, 2.0]), relative=True
    )
    assert found.launch_s == pytest.approx(1.0, abs=0.03)
