"""The public benchmark of scaling laws: the right law, the error where it was fitted and at twice the range."""

import law_benchmark
import numpy as np
import pytest

from gpuledger.models.scaling_laws import fit, fit_product

#: Fewer than the 200 of benchmarks/scaling_laws.py, for the time it takes.
DRAWS = 30


@pytest.mark.parametrize(("noise", "counts", "right"), [(0.0, False, 0.95), (0.0, True, 0.95), (0.01, False, 0.85)])
def test_the_right_law_is_named(noise, counts, right):
    beyond = []
    for law in law_benchmark.LAWS:
        named = 0
        for draw in law_benchmark.draws(law, noise, DRAWS, counts=counts):
            found = fit(draw.x, draw.y)
            named += found.law == law
            truth = draw.truth(np.array(2 * draw.x[-1]))
            beyond.append(100 * abs(found.predict(2 * draw.x[-1])[0] / truth - 1))
            if noise == 0 and not counts:
                assert found.error_percent < 1
        assert named >= right * DRAWS, f"{law}: {named} of {DRAWS}"
    assert np.median(beyond) <= 5


@pytest.mark.parametrize(("noise", "right"), [(0.0, 0.95), (0.01, 0.85)])
def test_the_right_product_is_named(noise, right):
    named, beyond = 0, []
    for draw in law_benchmark.product_draws(noise, DRAWS):
        found = fit_product(draw.x1, draw.x2, draw.y, ("x1", "x2"))
        named += law_benchmark.is_right(draw, found.surface.form)
        pair = np.array([2 * draw.x1.max(), 2 * draw.x2.max()])
        beyond.append(100 * abs(found.predict(pair) / draw.truth(*pair) - 1))
    assert named >= right * DRAWS
    assert np.median(beyond) <= 5


def test_the_benchmark_is_the_same_every_time():
    once, again = (law_benchmark.draws("staircase", 0.01, 5) for _ in range(2))
    assert all(np.array_equal(a.y, b.y) for a, b in zip(once, again, strict=True))
    assert not np.array_equal(once[0].y, law_benchmark.draws("staircase", 0.01, 1, seed=1)[0].y)
