"""Fit laws to a few numbers: imported by the fork server, it compiles or loads the loops that forks then have."""

import numpy as np

from gpuledger.models.scaling_laws.selection import select

select(np.arange(1.0, 5.0), np.ones((1, 4)))
