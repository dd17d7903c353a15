"""Warp scheduling: when warps finish, how long the tail is, how the speed of blocks changes.

After S. Huang, C. Wu: Neutrino, OSDI 2025, Fig. 14 and 17.
"""

from gpuledger.studies.warp_scheduling.distribution import PERCENTILES
from gpuledger.studies.warp_scheduling.pickled import load_plain
from gpuledger.studies.warp_scheduling.reduction import first_warps, parts, reduce
