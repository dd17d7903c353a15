"""The baselines in PyTorch, on a CPU build of it; without one, nothing here runs."""

import json
import os
import subprocess

import torch_python
from conftest import ROOT

python = torch_python.python
#: Arrays of the host stand in for those of the device: as_tensor takes them through NumPy's interface.
CODE = """
import json, types
import numpy as np, torch
from gpuledger.record import normalization_kernels as kernels, normalization_torch as baselines
to_tensor = torch.as_tensor
torch.as_tensor = lambda array, device: to_tensor(array.values)
class Array:
    def __init__(self, values):
        self.values, self.address, self.shape = values, values.ctypes.data, values.shape
found = {"available": baselines.available()}
x = np.random.default_rng(1).standard_normal((6, 1000)).astype(np.float32) * 3 + 7
for element in kernels.ELEMENTS:
    source = Array(kernels.to_elements(x, element))
    target = Array(np.zeros_like(source.values))
    baselines.formula(element)(source, target)
    expected = kernels.reference(kernels.from_elements(source.values, element))
    error = kernels.largest_error(kernels.from_elements(target.values, element), expected)
    made = baselines.BASELINES["torch_nn"](element)(source, target)
    own = kernels.largest_error(made.float().numpy(), expected)
    found[element] = [error, own, str(made.dtype)]
print(json.dumps(found))
"""


def test_baselines_normalize_in_every_type(python):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([python, "-c", CODE], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("available") is False, "no GPU: the recording leaves the baselines out"
    for element, (error, own, dtype) in found.items():
        # PyTorch's operators round to 16 bits after each step; its own kernel has an epsilon of 1e-5.
        most = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 1e-1}[element]
        assert error < most and own < most, element
        assert dtype == {"fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}[element]
    assert found["fp16"][1] <= 2**-11 + 2e-5, "LayerNorm rounds once"
