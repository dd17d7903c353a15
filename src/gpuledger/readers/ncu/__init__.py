"""Reader of Nsight Compute output: every CSV dialect, and reports through an installed ``ncu``.

>>> from gpuledger import ncu
>>> report = ncu.read("profile.csv")  # doctest: +SKIP
>>> report.wide(["dram__bytes.sum", "gpu__time_duration.sum"])  # doctest: +SKIP

The class of a kernel is not read here but derived from its name, by `gpuledger.readers.kernel_names`.
"""

from gpuledger.readers.ncu.reader import read
from gpuledger.readers.ncu.report import Dialect, Report
from gpuledger.readers.ncu.units import base_unit

__all__ = ["Dialect", "Report", "base_unit", "read"]
