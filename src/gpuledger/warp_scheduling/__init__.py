"""When warps finish, how long the tail is, and how the speed of blocks changes.

One study of the Neutrino evaluation (S. Huang, C. Wu, OSDI 2025): ``warp_scheduling`` (Fig. 14 and 17). Figures, tables
and words are in :mod:`gpuledger.warp_scheduling.drawing`, which a reduction does not need.
"""

from gpuledger.warp_scheduling.distribution import PERCENTILES
from gpuledger.warp_scheduling.pickled import load_plain
from gpuledger.warp_scheduling.reduction import parts, reduce_warps

__all__ = ["PERCENTILES", "load_plain", "parts", "reduce_warps"]
