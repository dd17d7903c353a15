"""Probe traces: gpuledger's own CUDA kernels with probes compiled in, recorded in Neutrino's trace formats.

* :mod:`gpuledger.record.probes.workloads` defines the kernels, their tensors and their expected results.
* :mod:`gpuledger.record.probes.launch` runs them with and without a probe; :mod:`gpuledger.record.probes.traces` writes
  the records as a trace directory.
* :mod:`gpuledger.record.probes.cases` lists the launches of each study; :mod:`gpuledger.record.probes.exposed` compares
  the waiting time with ncu's.
* :mod:`gpuledger.record.probes.steps` records the cases study by study and resumes after interruptions.
"""

from pathlib import Path

from gpuledger.record import cuda
from gpuledger.record.parts import Recorded
from gpuledger.record.probes.cases import NOTES, STEPS
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.steps import record_steps


def record_probes(folder: str | Path) -> Recorded:
    """Record all cases with probes on the first GPU; an interrupted recording resumes."""
    runner = Runner(cuda.open_device())
    cases = record_steps(Path(folder), runner, STEPS)
    return Recorded(cases, {"empty_launch_ns": round(runner.empty_ns(), 1)}, NOTES)
