"""The densified memory access timeline (DMAT): when each page of each tensor is accessed, and by how many threads.

A probe saves clock and address of every access of every thread to global memory. Clocks count from the thread's own
start, so all threads are superimposed. After S. Huang, C. Wu: Neutrino, OSDI 2025, Fig. 1 and 11.
"""

from gpuledger.studies.dmat.reduction import open_accesses, reduce
