"""Readers and writers of Neutrino's files: what probes recorded inside GPU kernels.

>>> from gpuledger.readers import neutrino
>>> trace = neutrino.open_trace("trace/result/0.611403.bin")  # doctest: +SKIP
>>> trace.records()["elapsed"].mean()  # doctest: +SKIP

Source: Neutrino trace format, as written by its driver, in all its versions.

The format is ambiguous in places:

* Files do not state their version. The one whose sections fill the file exactly is taken, V3 before V1 before V2.
* V1 and V2 do not say whether a section is per thread or per warp. For V2 the length tells. A V1 section that fits both
  is read at thread level and marked `assumed`, unless ``probe=`` or ``levels=`` say otherwise; `TraceDirectory.open`
  looks them up.
* Files do not state their record type. The probe does, or it is that of the only shipped tool with slices of this size
  (16 bytes per warp: block_sched; a multiple of 16 per thread: dmat); otherwise ``records(dtype=)`` is needed.
* Empty slots are zeros, or all ones in the first builds; `saved` recognises both.
* If blocks are not a multiple of 32 threads, the probes stride by full warps, so that partial warps overwrite others:
  see `Section.ragged` and `TraceWarning`.
* For such blocks, V3 states offsets of later sections that are too small. `Section.offset` is where the records really
  are.
"""

from gpuledger.readers.neutrino.directory import TraceDirectory, open_trace_directory
from gpuledger.readers.neutrino.dmat import PAGE_BYTES, read_dmat, write_dmat
from gpuledger.readers.neutrino.event_log import EventLog, read_event_log
from gpuledger.readers.neutrino.kernel_info import KernelInfo, read_kernel_info, write_kernel_info
from gpuledger.readers.neutrino.layout import LaunchShape
from gpuledger.readers.neutrino.probe import Probe, read_probe
from gpuledger.readers.neutrino.process_log import Build, ProcessLog, read_process_log, write_process_log
from gpuledger.readers.neutrino.records import (
    BLOCK_SCHED,
    DMAT_ACCESS,
    GMEM_BYTES,
    PROGRAM_PROGRESS,
    TENSOROP_COUNT,
    TOOLS,
    ProbeMap,
    saved,
)
from gpuledger.readers.neutrino.tensor_trace import read_tensor_trace, write_tensor_trace
from gpuledger.readers.neutrino.trace import TraceWarning, open_trace
from gpuledger.readers.neutrino.write import write_trace
from gpuledger.readers.neutrino.write_event_log import log_of_launch, write_event_log
