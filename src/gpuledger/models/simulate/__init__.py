"""A small model of a GPU and of kernels that generates what Neutrino's probes would record. Nothing is measured.

>>> from gpuledger.models import simulate
>>> launch = simulate.simulate_launch("block_scheduling", "zeros_4096")
>>> simulate.write_launch(launch, "zeros_4096/result/0.500000.bin")  # doctest: +SKIP

:data:`ASSUMPTIONS` states in Markdown what the model assumes, what it was fitted to and what it cannot show.
``machine`` models the GPU, ``kernels`` and ``attention`` the kernels and their calibration, ``cases`` lists the
launches of the dataset ``simulated``. Times of normalization kernels have a separate model, ``normalization``.
"""

from gpuledger.models.simulate.assumptions import ASSUMPTIONS
from gpuledger.models.simulate.cases import simulate_launch
from gpuledger.models.simulate.write import simulate_dataset, write_launch
