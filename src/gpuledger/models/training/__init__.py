"""Training steps of dense transformers on GPUs that share their state: kernels, communication, memory, utilisation."""

from gpuledger.models.training.memory import training_memory
from gpuledger.models.training.run import TrainingRun
from gpuledger.models.training.step import predict_steps
from gpuledger.models.training.utilisation import hfu_percent, mfu_percent

__all__ = ["TrainingRun", "hfu_percent", "mfu_percent", "predict_steps", "training_memory"]
