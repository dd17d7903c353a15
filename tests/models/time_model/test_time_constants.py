"""Constants of the time model: what stands in for those that nobody fitted."""

import pytest

from gpuledger.models.time_model.constants.choice import candidates
from gpuledger.models.time_model.constants.table import constants_of
from gpuledger.readers.gpus import find_gpu


@pytest.mark.parametrize(("name", "share"), [("v100-sxm2", 0.92), ("h100-sxm", 0.77), ("rtx-4090", 0.655)])
def test_constants_of_fp32_are_those_of_cuda_cores_wherever_they_are_asked_for(name, share):
    gpu = find_gpu(name)
    constants = constants_of(gpu, "fp32")
    assert (constants.tensor_share, constants.throttled) == (share, 0)
    assert {entry.constants.tensor_share for entry in candidates("gemm", gpu, ("fp32", "bf16"))} == {share}
    assert constants_of(gpu, "tf32").tensor_share == constants_of(gpu, "bf16").tensor_share
