"""Times that overlap."""

import numpy as np


def norm(*terms: np.ndarray, power: float = 4.0) -> np.ndarray:
    """Return the norm of times that overlap."""
    return sum(term**power for term in terms) ** (1 / power)
