"""Recording on a GPU: what a machine with an NVIDIA GPU can measure becomes a dataset like any other.

Nothing here needs a GPU to be imported, and nothing in this file imports anything: the workloads run in a Python that
may have little more than PyTorch.

* :mod:`gpuledger.record.device` finds the GPU and describes it, :mod:`gpuledger.record.plan` says what can be recorded.
* :mod:`gpuledger.record.parts` lists the parts of a recording; each is a module of its own.
* :mod:`gpuledger.record.recording` is the folder that they write into: resumable, never half-made, with provenance.
* :mod:`gpuledger.record.profiler` runs ``ncu``; :mod:`gpuledger.record.failures` knows what tools say when they fail.

``python -m gpuledger.record`` records a dataset for ``traces/``.
"""
