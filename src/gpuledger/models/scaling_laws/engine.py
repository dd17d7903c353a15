"""The inner loops of the fit: weighted least squares of every family, its shape parameter, its evidence.

They are compiled, because 10,000 series times a thousand shapes would take an interpreter too long. Series are
independent and the order of operations is fixed, so results are reproducible.
"""

import numpy as np
from numba import njit

from gpuledger.models.scaling_laws.families import COEFFICIENT_SPREAD, EXPONENT_CENTRE, FAMILIES, KNEES, POWER, UNLIKELY

FIRST_KNEE = KNEES[0]
#: Coefficients of each family beside its shape parameter.
COEFFICIENTS = tuple(len(family.names) for family in FAMILIES)

#: Golden-section steps that refine a shape parameter to 1e-10 of a grid step.
STEPS = 48
#: Terms smaller than the largest by this many nats are neglected.
NEGLIGIBLE = 40.0
GOLDEN = 0.6180339887498949
#: Local minima of a knee that are refined, on both sides; smooth shapes have one.
STARTS = 2


@njit(cache=True, nogil=True)
def basis(family, shape, x, columns):
    """Write the columns of a family (its place in `FAMILIES`) into `columns`; return the number of its coefficients."""
    for i in range(x.size):
        n = x[i]
        if family == 0:
            columns[0, i] = 1.0
        elif family == 1:
            columns[0, i] = n
        elif family == 2:
            columns[0, i], columns[1, i] = 1.0, n
        elif family == 3:
            columns[0, i] = n * np.log2(n)
        elif family == 4:
            columns[0, i], columns[1, i] = 1.0, n * np.log2(n)
        elif family == 5:
            columns[0, i] = n * n
        elif family == 6:
            columns[0, i], columns[1, i] = 1.0, n * n
        elif family == 7:
            columns[0, i], columns[1, i] = n, n * n
        elif family == 8:
            columns[0, i], columns[1, i], columns[2, i] = 1.0, n, n * n
        elif family == 9:
            columns[0, i] = n**shape
        elif family == 10:
            columns[0, i] = n / (n + shape)
        elif family == 11:
            columns[0, i] = -np.expm1(-n / shape)
        elif family == 12:
            columns[0, i], columns[1, i] = 1.0, n / (n + shape)
        elif family == 13:
            columns[0, i], columns[1, i] = 1.0, 1.0 / n
        elif family == 14:
            columns[0, i], columns[1, i] = 1.0, max(n - shape, 0.0)
        elif family == 15:
            columns[0, i], columns[1, i], columns[2, i] = 1.0, n, max(n - shape, 0.0)
        elif family == 16:
            columns[0, i] = min(n, shape)
        elif family == 17:
            columns[0, i], columns[1, i] = 1.0, min(n, shape)
        elif family == 18:
            columns[0, i] = np.ceil(n / shape)
        else:
            columns[0, i], columns[1, i] = 1.0, np.ceil(n / shape)
    return COEFFICIENTS[family]


@njit(cache=True, nogil=True)
def solve(count, columns, y, weights, work, beta):
    """Solve weighted least squares by modified Gram–Schmidt into `beta`; return the sum of squares.

    The sum is infinite if the columns do not determine the coefficients.
    """
    points = y.size
    residual = work[3]
    if count == 1:
        norm, dot, squares = 0.0, 0.0, 0.0
        for i in range(points):
            value = columns[0, i] * weights[i]
            norm += value * value
            dot += value * y[i] * weights[i]
        if not norm > 0:
            return np.inf
        beta[0] = dot / norm
        for i in range(points):
            squares += ((y[i] - beta[0] * columns[0, i]) * weights[i]) ** 2
        return squares
    triangle, projected = work[5:, :3], work[4]
    for i in range(points):
        residual[i] = y[i] * weights[i]
    for j in range(count):
        before = 0.0
        for i in range(points):
            work[j, i] = columns[j, i] * weights[i]
            before += work[j, i] ** 2
        for k in range(j):
            dot = 0.0
            for i in range(points):
                dot += work[k, i] * work[j, i]
            triangle[k, j] = dot
            for i in range(points):
                work[j, i] -= dot * work[k, i]
        norm = 0.0
        for i in range(points):
            norm += work[j, i] ** 2
        if not norm > 1e-20 * before:
            return np.inf
        norm = np.sqrt(norm)
        triangle[j, j] = norm
        dot = 0.0
        for i in range(points):
            work[j, i] /= norm
            dot += work[j, i] * residual[i]
        projected[j] = dot
        for i in range(points):
            residual[i] -= dot * work[j, i]
    for j in range(count - 1, -1, -1):
        value = projected[j]
        for k in range(j + 1, count):
            value -= triangle[j, k] * beta[k]
        beta[j] = value / triangle[j, j]
    squares = 0.0
    for i in range(points):
        squares += residual[i] ** 2
    return squares


@njit(cache=True, nogil=True)
def at(family, shape, x, y, weights, columns, work, beta):
    """Sum of squares of a family at one shape."""
    count = basis(family, shape, x, columns)
    return solve(count, columns, y, weights, work, beta)


@njit(cache=True, nogil=True)
def golden(family, low, high, x, y, weights, columns, work, beta):
    """Shape with the least sum of squares between `low` and `high`, and that sum."""
    inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_inner = at(family, inner, x, y, weights, columns, work, beta)
    at_outer = at(family, outer, x, y, weights, columns, work, beta)
    for _ in range(STEPS):
        if at_inner <= at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - GOLDEN * (high - low)
            at_inner = at(family, inner, x, y, weights, columns, work, beta)
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + GOLDEN * (high - low)
            at_outer = at(family, outer, x, y, weights, columns, work, beta)
    if at_inner <= at_outer:
        return inner, at_inner
    return outer, at_outer


@njit(cache=True, nogil=True)
def best_shape(family, grid, smooth, x, y, weights, columns, work, beta, squares):
    """Find the best continuous shape: scan the grid, then refine its lowest local minima.

    The sum of squares over the knee has kinks at the sizes, which are grid points, so each side is refined separately.
    """
    points = grid.size
    for g in range(points):
        squares[g] = at(family, grid[g], x, y, weights, columns, work, beta)
    best, least = 0.0, np.inf
    last = -1
    for _ in range(1 if smooth else STARTS):
        start = -1
        bound = np.inf
        for g in range(points):
            local = (g == 0 or squares[g] <= squares[g - 1]) and (g == points - 1 or squares[g] <= squares[g + 1])
            if local and g != last and squares[g] < bound:
                start, bound = g, squares[g]
        if start < 0:
            break
        last = start
        if squares[start] < least:
            best, least = grid[start], squares[start]
        low, high = grid[max(start - 1, 0)], grid[min(start + 1, points - 1)]
        for side in range(1 if smooth else 2):
            if not smooth:
                low = grid[max(start - 1, 0)] if side == 0 else grid[start]
                high = grid[start] if side == 0 else grid[min(start + 1, points - 1)]
            if low < high:
                shape, value = golden(family, low, high, x, y, weights, columns, work, beta)
                if value < least:
                    best, least = shape, value
    return best, least


@njit(cache=True, nogil=True)
def log_determinant(matrix, size):
    """Log determinant of a symmetric positive definite matrix of at most 4 rows (Cholesky, in place)."""
    total = 0.0
    for j in range(size):
        for k in range(j):
            matrix[j, j] -= matrix[j, k] ** 2
        if not matrix[j, j] > 1e-300:
            matrix[j, j] = 1e-300
        root = np.sqrt(matrix[j, j])
        total += 2 * np.log(root)
        for i in range(j + 1, size):
            for k in range(j):
                matrix[i, j] -= matrix[i, k] * matrix[j, k]
            matrix[i, j] /= root
    return total


@njit(cache=True, nogil=True)
def log_evidence(family, shape, spread, x, y, weights, relative, squares, beta, noise, columns, work):
    """Laplace approximation of the log evidence of a family at its best fit (see the package's docstring).

    `relative` are the weights 1/|y|, in which coefficients are expected to be of order 1. `noise` holds standard
    deviations in units of 1/weights and their log priors, shape (2, noises).
    """
    noises, log_noises = noise[0], noise[1]
    total = 0.0
    for i in range(x.size):
        total += y[i] * relative[i]
    sign = -1.0 if total < 0 else 1.0
    points = x.size
    count = basis(family, shape, x, columns)
    size = count
    penalty = 0.0
    jacobian = work
    for j in range(count):
        norm = 0.0
        for i in range(points):
            norm += (columns[j, i] * relative[i]) ** 2
        norm = np.sqrt(norm / points)
        if norm == 0:
            return -np.inf
        for i in range(points):
            jacobian[j, i] = columns[j, i] * weights[i] / norm
        contribution = beta[j] * norm
        penalty += 0.5 * (contribution / COEFFICIENT_SPREAD) ** 2
        if contribution * sign < 0:
            penalty += UNLIKELY
    if spread > 0:
        step = 1e-6 * max(abs(shape), 1e-3)
        for i in range(points):
            jacobian[count, i] = 0.0
        other = np.empty_like(columns)
        basis(family, shape + step, x, other)
        for j in range(count):
            for i in range(points):
                jacobian[count, i] += beta[j] * (other[j, i] - columns[j, i]) / step * weights[i]
        scale = spread if family == POWER else spread * shape
        for i in range(points):
            jacobian[count, i] *= scale
        size = count + 1
        if family == POWER:
            penalty += 0.5 * ((shape - EXPONENT_CENTRE) / spread) ** 2
    normal = np.zeros((4, 4))
    for j in range(size):
        for k in range(j + 1):
            dot = 0.0
            for i in range(points):
                dot += jacobian[j, i] * jacobian[k, i]
            normal[j, k] = dot
            normal[k, j] = dot
    matrix = np.zeros((4, 4))
    highest, total = -np.inf, 0.0
    # From the largest noise on. The determinant only lowers a term, so a term negligible without it can be skipped.
    for s in range(noises.size - 1, -1, -1):
        variance = noises[s] ** 2
        term = log_noises[s] - points * np.log(noises[s]) - 0.5 * squares / variance
        if term < highest - NEGLIGIBLE:
            continue
        for j in range(size):
            width_j = COEFFICIENT_SPREAD if j < count else 1.0
            for k in range(size):
                width_k = COEFFICIENT_SPREAD if k < count else 1.0
                matrix[j, k] = normal[j, k] * width_j * width_k / variance
            matrix[j, j] += 1.0
        term -= 0.5 * log_determinant(matrix, size)
        if term > highest:
            total = total * np.exp(highest - term) + 1.0
            highest = term
        else:
            total += np.exp(term - highest)
    return highest + np.log(total) - penalty


@njit(cache=True, nogil=True)
def fit_families(x, ys, weights, relative, noise, grids, grid_logs, starts, spreads, evidence, shapes, betas, squares):
    """Fit every family to every series.

    Parameters
    ----------
    x : array of float64, shape (points,)
    ys, weights, relative : arrays of float64, shape (series, points)
    noise : array of float64, shape (series, 2, noises)
        Standard deviations in units of 1/weights, and their log priors.
    grids, grid_logs, starts, spreads
        See :class:`gpuledger.models.scaling_laws.families.Grids`.
    evidence, shapes, squares : arrays of float64, shape (series, families)
        Output.
    betas : array of float64, shape (series, families, 3)
        Output.
    """
    points = x.size
    columns, work = np.empty((3, points)), np.empty((8, max(points, 4)))
    beta, scan = np.zeros(3), np.empty(grids.size)
    for s in range(ys.shape[0]):
        y, w, r = ys[s], weights[s], relative[s]
        for family in range(spreads.size):
            grid, logs = grids[starts[family] : starts[family + 1]], grid_logs[starts[family] : starts[family + 1]]
            evidence[s, family], squares[s, family] = -np.inf, np.inf
            if grid.size == 0:
                continue
            shape, extra = grid[0], logs[0]
            if spreads[family] > 0:
                shape, _ = best_shape(family, grid, family < FIRST_KNEE, x, y, w, columns, work, beta, scan)
            elif grid.size > 1:
                # Tiles are rated by profile likelihood and prior, with the smallest noise as a floor.
                floor, score = points * noise[s, 0, 0] ** 2, -np.inf
                for g in range(grid.size):
                    value = at(family, grid[g], x, y, w, columns, work, beta)
                    rated = logs[g] - 0.5 * points * np.log(value + floor)
                    if rated > score:
                        shape, extra, score = grid[g], logs[g], rated
            least = at(family, shape, x, y, w, columns, work, beta)
            shapes[s, family], squares[s, family] = shape, least
            for j in range(3):
                betas[s, family, j] = beta[j]
            if least < np.inf:
                evidence[s, family] = extra + log_evidence(
                    family, shape, spreads[family], x, y, w, r, least, beta, noise[s], columns, work
                )
