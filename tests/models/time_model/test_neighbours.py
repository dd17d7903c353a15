"""What neighbouring shapes say of a shape: known errors, noise, ties, and independence of order and last bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.models.time_model.constants.neighbours import COUNTS, Near, Sharing, correction, fit_sharing

GRID = np.array([(2.0**i, 2.0**j) for i in range(16) for j in range(16)])


def test_errors_of_a_whole_region_are_shared():
    """A kernel that is 30 % slower than the law for many rows, and 20 % faster for few."""
    ratios = np.where(GRID[:, 0] > 200, 1.3, 0.8)
    found = fit_sharing(GRID, ratios)
    assert found.share == 1.0 and found.error_percent < 2
    inside = np.array([(3.0, 3.0), (3.0, 3000.0), (5000.0, 300.0)])
    assert correction(found, Near(GRID, inside, 16), ratios) == pytest.approx([0.8, 0.8, 1.3], rel=1e-6)


def test_noise_is_not_corrected():
    ratios = np.exp(np.random.default_rng(1).normal(scale=0.1, size=len(GRID)))
    found = fit_sharing(GRID, ratios)
    alone = 100 * np.abs(1 / ratios - 1).mean()
    assert found.share <= 0.2 and found.error_percent <= alone + 1e-4
    assert np.abs(np.log(correction(found, Near(GRID, GRID + 0.3, 16), ratios))).max() < 0.05


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(0, 0.3), st.floats(0, 0.3))
def test_what_the_others_say_is_never_worse_than_nothing(seed, common, noise):
    rng = np.random.default_rng(seed)
    waves = np.sin(np.log(GRID) @ rng.normal(size=2))
    ratios = np.exp(common * waves + noise * rng.normal(size=len(GRID)))
    found = fit_sharing(GRID, ratios)
    assert found.error_percent <= 100 * np.abs(1 / ratios - 1).mean() + 1e-5
    assert found.neighbours in COUNTS and 0 <= found.share <= 1


def test_no_shape_is_its_own_neighbour_and_what_is_as_near_counts_alike():
    weights, places = Near(GRID, GRID, 4, apart=True).weigh(4)
    assert (weights[places == np.arange(len(GRID))[:, None]] == 0).all()
    assert weights.sum(axis=1) == pytest.approx(np.ones(len(GRID)))
    # In the middle, the four neighbours of a grid of powers of two are as near but for the step of log1p.
    row = 16 * 12 + 12
    assert sorted(places[row][weights[row] > 0]) == [row - 16, row - 1, row + 1, row + 16]
    # The same shape twice: each is the other's nearest.
    twice = np.array([(1.0, 1.0), (1.0, 1.0), (64.0, 64.0)])
    weights, places = Near(twice, twice, 1, apart=True).weigh(1)
    assert [places[row][weights[row].argmax()] for row in (0, 1)] == [1, 0]


def test_a_size_that_counts_more_keeps_others_away():
    known, wanted = np.array([(64.0, 1000.0), (128.0, 1500.0)]), np.array([(64.0, 1500.0)])
    for scales, nearest in ((1.0, 0), (np.array([0.1, 1]), 1)):
        weights, places = Near(known, wanted, 1, scales=scales).weigh(1)
        assert places[0][weights[0].argmax()] == nearest


def test_the_fit_depends_neither_on_order_nor_on_last_bits(monkeypatch):
    rng = np.random.default_rng(7)
    ratios = np.exp(0.1 * np.sin(np.log(GRID[:, 0])) + 0.05 * rng.normal(size=len(GRID)))
    expected = fit_sharing(GRID, ratios)
    order = rng.permutation(len(GRID))
    monkeypatch.setattr(np, "log1p", lambda x: np.log(1 + x) * (1 + np.finfo(float).eps * rng.integers(-1, 2, x.shape)))
    found = fit_sharing(GRID[order], ratios[order])
    assert found[:2] == expected[:2] and found.error_percent == pytest.approx(expected.error_percent, abs=2e-5)
    wanted = GRID * 1.4
    corrected = correction(found, Near(GRID[order], wanted, 16), ratios[order])
    assert corrected == pytest.approx(correction(Sharing(*expected), Near(GRID, wanted, 16), ratios), rel=1e-9)
