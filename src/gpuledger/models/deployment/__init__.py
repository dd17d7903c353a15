"""A model deployed on GPUs: the time, throughput and memory of its passes, and what a token costs."""

from gpuledger.models.deployment.disaggregation import disaggregated
from gpuledger.models.deployment.limits import largest_batch, largest_context
from gpuledger.models.deployment.memory import RESERVE, fits, memory_bytes, reserve_bytes
from gpuledger.models.deployment.notes import notes
from gpuledger.models.deployment.objectives import Objective, cheapest
from gpuledger.models.deployment.passes import Deployment, memory_of, memory_table, passes
from gpuledger.models.deployment.speculation import Speculation, speculate
