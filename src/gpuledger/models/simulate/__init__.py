"""A small model of a GPU and of kernels that writes what Neutrino's probes would record. Nothing of it is measured.

>>> from gpuledger import simulate
>>> launch = simulate.simulate_launch("block_scheduling", "zeros_4096")
>>> simulate.write_launch(launch, "zeros_4096/result/0.500000.bin")  # doctest: +SKIP

What the model assumes, what it was fitted to and what it cannot show is :data:`ASSUMPTIONS`, in Markdown for notebooks.
The machine is in :mod:`gpuledger.models.simulate.gpu`, kernels and their calibration in
:mod:`gpuledger.models.simulate.kernels` and
:mod:`gpuledger.models.simulate.attention`, the cases of the dataset ``simulated`` in
:mod:`gpuledger.models.simulate.cases`. Times of normalization kernels have a model of their own,
:mod:`gpuledger.models.simulate.normalization`.
"""

from gpuledger.models.simulate.assumptions import ASSUMPTIONS
from gpuledger.models.simulate.attention import Attention, access_records
from gpuledger.models.simulate.cases import CASES, Launch, simulate_launch
from gpuledger.models.simulate.gpu import Contention, Gpu, Timeline, run_blocks
from gpuledger.models.simulate.kernels import Kernel
from gpuledger.models.simulate.scheduling import Run, block_sched_records, progress_records, run_kernel
from gpuledger.models.simulate.write import simulate_dataset, write_launch

__all__ = [
    "ASSUMPTIONS",
    "CASES",
    "Attention",
    "Contention",
    "Gpu",
    "Kernel",
    "Launch",
    "Run",
    "Timeline",
    "access_records",
    "block_sched_records",
    "progress_records",
    "run_blocks",
    "run_kernel",
    "simulate_dataset",
    "simulate_launch",
    "write_launch",
]
