"""Kernel profile: what each recorded kernel did, what limited it, and what changed against a baseline."""

from gpuledger.studies.kernel_profile.reduction import profile, reduce
from gpuledger.studies.kernel_profile.tables import kernel_table, tensor_table
