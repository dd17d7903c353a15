"""Probe traces: gpuledger's own CUDA kernels with probes compiled in, recorded in Neutrino's trace formats.

* :mod:`gpuledger.record.probes.workloads`: the kernels, their tensors and what they must compute.
* :mod:`gpuledger.record.probes.launch` runs them with and without a probe, :mod:`gpuledger.record.probes.traces` writes
  what it saved as a trace directory.
* :mod:`gpuledger.record.probes.cases` says what each study needs, :mod:`gpuledger.record.probes.exposed` how long ncu
  takes for the same.
* :mod:`gpuledger.record.probes.steps` records what is not recorded yet, each study's cases apart.
"""

from __future__ import annotations

from pathlib import Path

from gpuledger.record import cuda
from gpuledger.record.probes.cases import STEPS
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.steps import record_steps


def record_probes(folder: str | Path) -> dict[str, dict[str, dict]]:
    """Record every case that probes answer on the first GPU.

    What is done is kept in ``<folder>/parts`` until all of it is: a recording that was interrupted goes on where it
    stopped. See :func:`gpuledger.record.probes.steps.record_steps`.

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
        CuPy or GPU missing; what failed, when nothing could be recorded or the GPU does not go on after it.
    """
    return record_steps(Path(folder), Runner(cuda.open_device()), STEPS)
