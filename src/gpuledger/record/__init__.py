"""Recording on a machine with an NVIDIA GPU: its measurements become a dataset like any other.

Importing these modules does not need a GPU. This file imports nothing, because the workloads run in a Python that may
have little more than PyTorch.

* :mod:`gpuledger.record.device` finds and describes the GPU; :mod:`gpuledger.record.plan` decides what can be recorded.
* :mod:`gpuledger.record.parts` lists the parts of a recording, each of which has its own module.
* :mod:`gpuledger.record.recording` manages the folder of a recording: resumable, consistent, with provenance.
* :mod:`gpuledger.record.profiler` runs ``ncu``; :mod:`gpuledger.record.failures` explains the error messages of tools.

``python -m gpuledger.record`` records a dataset for ``traces/``.
"""
