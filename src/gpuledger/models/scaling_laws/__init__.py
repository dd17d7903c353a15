"""Scaling laws: by which law a counter grows with a size, chosen by evidence, with exact coefficients where they exist.

A law is one of `LAWS`: constant, proportional, affine, power, n·log n, quadratic, saturating, knee (one line up to a
size, another beyond), staircase (whole tiles), or undetermined.

**Criterion.** Each law is a family of curves, or a few. A curve f with parameters θ is weighed by its *evidence*, the
probability of the values with its parameters integrated out by Laplace's method [1]_:

    E = Σ_σ p(σ) · Π 1/s_i · exp(−½ Σ (y_i − f(x_i))²/s_i²) · det(1 + JᵀJ)^(−½),   s_i² = (σ·y_i)² + q²/12

Errors are relative (the noise of counters is multiplicative), and counts, or decimals, are rounded to their step q as
well; J are the derivatives of f/s by parameters in units of what is expected of them: linear coefficients contribute
to the values within a factor of 2, exponents are 1 ± 1.2, knees and half-saturations lie anywhere in the range on a
logarithmic scale, tiles are powers of two rather than any number. The determinant is the penalty for complexity; unlike
that of AICc it does not need many more points than parameters. p(σ): a quarter none, a quarter up to 0.1 %, a half
0.2 to 20 %. Laws are equally likely beforehand, but a staircase 4.5 times less so; a coefficient against the sign of
the data costs the same factor. ``criterion`` is −2·log E.

**What is alike.** A pure c·n² is quadratic; a power has any other exponent. A staircase that its sizes cannot tell
from flat-then-linear is a knee.

**Exactness.** Decimals with a law that all points meet exactly, in rational arithmetic, with at least two points to
spare are given that law with Fractions for coefficients. A knee may be exact on one branch only; the formula says so.

**Formulas.** Coefficients that are not exact are written with the digits that their standard errors support: two of
the error. ``Fit.coefficients`` has six digits.

**Limits.** Fewer than 5 distinct sizes, or a best law that is off by more than 20 % (small counts: by more than their
rounding explains), are undetermined. Exponents near
1 and 2, or near 1.2 over a short range, are told from the laws there only as far as the noise lets them.

Modules, low ones first: ``families``, ``engine`` (compiled), ``selection``; ``formulas``, ``exact``,
``description``; ``prediction``, ``fits``, ``surfaces``, ``product``, ``expected``.

References
----------
.. [1] D. J. C. MacKay, "Bayesian interpolation", Neural Computation 4 (1992) 415–447.
"""

from gpuledger.models.scaling_laws.exact import SPARE
from gpuledger.models.scaling_laws.expected import Comparison, compare, evaluate
from gpuledger.models.scaling_laws.fits import LAWS, MINIMUM_POINTS, Fit, fit, fit_many
from gpuledger.models.scaling_laws.product import ProductFit, fit_product

__all__ = [
    "LAWS",
    "MINIMUM_POINTS",
    "SPARE",
    "Comparison",
    "Fit",
    "ProductFit",
    "compare",
    "evaluate",
    "fit",
    "fit_many",
    "fit_product",
]
