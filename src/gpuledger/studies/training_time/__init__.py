"""Training time: how well do kernels alone predict a training step?"""

from gpuledger.studies.training_time.reduction import reduce

__all__ = ["reduce"]
