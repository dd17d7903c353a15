"""A model deployed on GPUs: the time, throughput and memory of its passes, and what a token costs."""

from gpuledger.models.deployment.memory import RESERVE, fits, memory_bytes, reserve_bytes
from gpuledger.models.deployment.objectives import Objective, cheapest
from gpuledger.models.deployment.passes import Deployment, passes

__all__ = ["RESERVE", "Deployment", "Objective", "cheapest", "fits", "memory_bytes", "passes", "reserve_bytes"]
