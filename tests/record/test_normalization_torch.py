"""The baselines in PyTorch, on a CPU build of it; without one, nothing here runs."""

import json
import os
import subprocess

import torch_python
from conftest import ROOT

python = torch_python.python
#: Arrays of the host stand in for those of the device: as_tensor takes them through NumPy's interface.
CODE = """
import json, sys
import numpy as np, torch
from gpuledger.record import normalization_kernels as kernels, normalization_torch as baselines
to_tensor = torch.as_tensor
torch.as_tensor = lambda array, device: to_tensor(array.values)
class Array:
    def __init__(self, values):
        self.values, self.address, self.shape = values, values.ctypes.data, values.shape
found = {"here": sorted(baselines.baselines())}
torch.cuda.is_available = lambda: True
found["with a GPU"] = sorted(baselines.baselines())
sys.path.insert(0, sys.argv[1])
found["with Liger"] = sorted(baselines.baselines())
x = np.random.default_rng(1).standard_normal((6, 1000)).astype(np.float32) * 3 + 7
for element in kernels.ELEMENTS:
    source = Array(kernels.to_elements(x, element))
    target = Array(np.zeros_like(source.values))
    baselines.formula(element)(source, target)
    expected = kernels.reference(kernels.from_elements(source.values, element))
    error = kernels.largest_error(kernels.from_elements(target.values, element), expected)
    found[element] = [error]
    for name in ("torch_nn", "liger_layer"):
        launch = baselines.baselines()[name](element)
        made = launch(source, target)
        found[element] += [kernels.largest_error(made.float().numpy(), expected), str(made.dtype)]
        other = Array(np.zeros_like(source.values))
        again, second = launch(source, target), launch(source, other)
        assert again.data_ptr() != second.data_ptr(), "the results of two arrays stay in memory of their own"
print(json.dumps(found))
"""


#: Liger-Kernel's function of this name, which needs Triton and a GPU.
LIGER = """
import torch
def liger_layer_norm(X, W, B, eps):
    assert W.shape == B.shape == X.shape[-1:] and W.dtype == B.dtype == X.dtype
    return torch.nn.functional.layer_norm(X, X.shape[-1:], W, B, eps)
"""


def test_baselines_normalize_in_every_type(python, tmp_path):
    package = tmp_path / "liger_kernel/transformers"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "functional.py").write_text(LIGER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([python, "-c", CODE, tmp_path], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("here") == [], "no GPU: the recording leaves the baselines out"
    assert {"torch", "torch_nn"} <= set(found.pop("with a GPU"))
    assert found.pop("with Liger") == ["liger_layer", "torch", "torch_nn"]
    for element, (error, own, dtype, liger, liger_dtype) in found.items():
        # PyTorch's operators round to 16 bits after each step; the kernels have an epsilon of 1e-5.
        most = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 1e-1}[element]
        assert error < most and own < most and liger < most, element
        expected = {"fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}[element]
        assert dtype == liger_dtype == expected
    assert found["fp16"][1] <= 2**-11 + 2e-5, "LayerNorm rounds once"
