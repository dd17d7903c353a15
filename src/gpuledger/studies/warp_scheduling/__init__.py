"""When warps finish, how long the tail is, and how the speed of blocks changes.

One study of the Neutrino evaluation (S. Huang, C. Wu, OSDI 2025): ``warp_scheduling`` (Fig. 14 and 17). Figures, tables
and words are in :mod:`gpuledger.studies.warp_scheduling.figures`, which a reduction does not need.
"""

from gpuledger.studies.warp_scheduling.distribution import PERCENTILES
from gpuledger.studies.warp_scheduling.pickled import load_plain
from gpuledger.studies.warp_scheduling.reduction import parts, reduce

__all__ = ["PERCENTILES", "load_plain", "parts", "reduce"]
