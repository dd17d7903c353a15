"""The densified memory access timeline (DMAT): when which page of which tensor is touched, and by how many threads.

A probe saves clock and address of every access of every thread to global memory. Clocks count from the thread's own
start, so that all threads lie over one another. One study of the Neutrino evaluation (S. Huang, C. Wu, OSDI 2025,
Fig. 1 and 11). Its figure is in :mod:`gpuledger.studies.dmat.figures`.
"""

from gpuledger.studies.dmat.reduction import open_accesses, reduce, tensor_table

__all__ = ["open_accesses", "reduce", "tensor_table"]
