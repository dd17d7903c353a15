"""Probe traces: gpuledger's own CUDA kernels with probes compiled in, recorded in Neutrino's trace formats.

* :mod:`gpuledger.record.probes.workloads`: the kernels, their tensors and what they must compute.
* :mod:`gpuledger.record.probes.launch` runs them with and without a probe, :mod:`gpuledger.record.probes.traces` writes
  what it saved as a trace directory.
* :mod:`gpuledger.record.probes.cases` says what each study needs, :mod:`gpuledger.record.probes.exposed` how long ncu
  takes for the same.
"""

from __future__ import annotations

from pathlib import Path

from gpuledger.record import cuda
from gpuledger.record.probes.cases import STEPS, Sizes
from gpuledger.record.probes.launch import Runner


def record(folder: str | Path) -> dict[str, dict[str, dict]]:
    """Record every case that probes answer on the first GPU.

    Parameters
    ----------
    folder : path
        Of the dataset.

    Returns
    -------
    dict
        Cases by study and name, as ``dataset.yaml`` has them, with paths in `folder`.

    Raises
    ------
    InputError
        CuPy or GPU missing, too little memory, a kernel that computes something wrong.
    """
    runner = Runner(cuda.open_device())
    cases: dict[str, dict[str, dict]] = {}
    for study, record_cases in STEPS.values():
        cases.setdefault(study, {}).update(record_cases(Path(folder), runner, Sizes()))
    return cases
