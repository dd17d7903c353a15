"""Reader and writer of Neutrino's traces: what probes recorded inside of GPU kernels.

>>> from gpuledger import neutrino
>>> trace = neutrino.open_trace("trace/result/0.611403.bin")  # doctest: +SKIP
>>> trace.records()["elapsed"].mean()  # doctest: +SKIP

Source: Neutrino trace format, as written by its driver, in all its versions.

What the format leaves open, and how it is decided:

* The version is not in the file: that one whose sections fill the file exactly, V3 before V1 before V2; ``version=``.
* V1 and V2 do not say whether a section is of threads or of warps. The length tells V2; a V1 section that fits both is
  read as of threads and marked `assumed`; ``probe=`` or ``levels=``, or `TraceDirectory.open`, which looks it up.
* The records are not in the file: what the probe says, else the only shipped tool that writes slices of this size (16
  bytes of a warp: block_sched; a multiple of 16 of a thread: dmat), else an error; ``records(dtype=)``.
* Empty slots are zeros, in the first builds all ones: `saved` takes both, or those that it is told.
* In blocks that are not whole warps the probes stride by whole warps, and partial warps overwrite others:
  `Section.ragged`, a `TraceWarning`; ``warp_stride="ceil"`` for traces that do better.
* V3 states offsets of later sections that are too small for such blocks: records are taken from where they were
  written, `Section.offset`; what the table says is `Section.stated_offset`.
"""

from gpuledger.readers.neutrino.directory import Kernel, TraceDirectory, open_trace_directory
from gpuledger.readers.neutrino.dmat import PAGE_BYTES, Dmat, read_dmat, write_dmat
from gpuledger.readers.neutrino.event_log import EventLog, read_event_log
from gpuledger.readers.neutrino.kernel_info import KernelInfo, read_kernel_info, write_kernel_info
from gpuledger.readers.neutrino.layout import Section, Version
from gpuledger.readers.neutrino.probe import Probe, ProbeMap, Snippet, read_probe
from gpuledger.readers.neutrino.process_log import Build, ProcessLog, read_process_log, write_process_log
from gpuledger.readers.neutrino.records import (
    BLOCK_SCHED,
    DMAT_ACCESS,
    GMEM_BYTES,
    PROGRAM_PROGRESS,
    TENSOROP_COUNT,
    TOOLS,
    Tool,
    saved,
)
from gpuledger.readers.neutrino.tensor_trace import read_tensor_trace, write_tensor_trace
from gpuledger.readers.neutrino.trace import Trace, TraceWarning, open_trace
from gpuledger.readers.neutrino.write import write_trace
from gpuledger.readers.neutrino.write_event_log import write_event_log

__all__ = [
    "BLOCK_SCHED",
    "DMAT_ACCESS",
    "GMEM_BYTES",
    "PAGE_BYTES",
    "PROGRAM_PROGRESS",
    "TENSOROP_COUNT",
    "TOOLS",
    "Build",
    "Dmat",
    "EventLog",
    "Kernel",
    "KernelInfo",
    "Probe",
    "ProbeMap",
    "ProcessLog",
    "Section",
    "Snippet",
    "Tool",
    "Trace",
    "TraceDirectory",
    "TraceWarning",
    "Version",
    "open_trace",
    "open_trace_directory",
    "read_dmat",
    "read_event_log",
    "read_kernel_info",
    "read_probe",
    "read_process_log",
    "read_tensor_trace",
    "saved",
    "write_dmat",
    "write_event_log",
    "write_kernel_info",
    "write_process_log",
    "write_tensor_trace",
    "write_trace",
]
