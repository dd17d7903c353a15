"""Scaling laws: how a counter grows with a size, selected by evidence, with exact coefficients where possible.

A law is one of `LAWS`: constant, proportional, affine, power, n·log n, quadratic, saturating, knee (one line up to a
size, another beyond it), staircase (whole tiles), or undetermined.

**Criterion.** Each law comprises one or more families of curves. A family f with parameters θ is rated by its
*evidence*, the probability of the values after integrating out the parameters by Laplace's method [1]_:

    E = Σ_σ p(σ) · Π 1/s_i · exp(−½ Σ (y_i − f(x_i))²/s_i²) · det(1 + JᵀJ)^(−½),   s_i² = (σ·y_i)² + q²/12

Errors are relative, because the noise of counters is multiplicative; counts and decimals are also rounded to their
step q. J holds the derivatives of f/s with respect to the parameters, in units of their prior widths: linear
coefficients contribute to the values within a factor of 2, exponents are 1 ± 1.2, knees and half-saturation sizes lie
anywhere in the range on a logarithmic scale, and tiles are more likely powers of two than other numbers. The
determinant penalises complexity; unlike that of AICc, the penalty does not need many more points than parameters. The
prior p(σ) is a quarter for no noise, a quarter for noise up to 0.1 % and a half for 0.2 to 20 %. All laws have the
same prior probability, except that a staircase is half as likely; a coefficient whose sign contradicts the data costs
a factor of 4.5.

**Similar laws.** A pure c·n² is quadratic; a power law has any other exponent. A staircase that the given sizes cannot
distinguish from flat-then-linear is reported as a knee.

**Exactness.** If all points (at least two more than the law needs) satisfy a law exactly in rational arithmetic, its
coefficients are Fractions. A knee may be exact on one branch only; the formula then says so.

**Formulas.** Inexact coefficients are printed with the digits that their standard errors support: two digits of the
error. ``Fit.coefficients`` has six digits.

**Limits.** The result is undetermined with fewer than 5 distinct sizes, or if the best law is off by more than 20 %
(for small counts: by more than their rounding explains). How well exponents near 1 and 2 (over a short range: near 1.2)
can be told from the affine and quadratic laws depends on the noise.

Modules, lowest first: ``families``, ``engine`` (compiled), ``selection``; ``formulas``, ``exact``, ``description``;
``prediction``, ``fits``, ``surfaces``, ``product``, ``expected``.

References
----------
.. [1] D. J. C. MacKay, "Bayesian interpolation", Neural Computation 4 (1992) 415–447.
"""

from gpuledger.models.scaling_laws.expected import compare
from gpuledger.models.scaling_laws.fits import LAWS, MINIMUM_POINTS, Fit, fit, fit_many
from gpuledger.models.scaling_laws.product import fit_product
