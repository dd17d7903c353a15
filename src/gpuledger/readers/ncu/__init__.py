"""Reader of Nsight Compute output: every CSV dialect, and reports by means of an installed ``ncu``.

>>> from gpuledger.readers import ncu
>>> from gpuledger.readers.ncu.values import Values
>>> report = ncu.read("profile.csv")  # doctest: +SKIP
>>> Values(report).get("dram__bytes.sum")  # doctest: +SKIP

Classes of kernels come from their names, see `gpuledger.readers.kernel_names`.
"""

from gpuledger.readers.ncu.labels import raw_name, raw_names
from gpuledger.readers.ncu.reader import read, read_parts
from gpuledger.readers.ncu.report import Report
from gpuledger.readers.ncu.units import base_unit
