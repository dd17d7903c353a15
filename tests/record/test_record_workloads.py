"""The recorded programs on a CPU, where a Python with PyTorch is at hand."""

import json

import pytest
import torch_python

from gpuledger.record import designs

python, run = torch_python.python, torch_python.run
COUNT = """
import json, sys, torch
from torch.utils.flop_counter import FlopCounterMode
from gpuledger.record.workloads import gpt2, llama, toy_network, transformer
cpu, found = torch.device("cpu"), {}
for passes in toy_network.PASSES:
    with FlopCounterMode(display=False) as counter:
        toy_network.run_network(cpu, passes, 10, 1024, 128)
    found[passes] = counter.get_total_flops()
for module, hidden_dim, heads, dtype in (gpt2, 192, 12, torch.float32), (llama, 256, 8, torch.bfloat16):
    model = module.make_model(3, hidden_dim, heads, 4, cpu).to(dtype)
    for direction in transformer.DIRECTIONS:
        with FlopCounterMode(display=False) as counter:
            logits = transformer.run_passes(model, module.VOCABULARY, cpu, 4, direction)
        linear = {k: v for k, v in counter.get_flop_counts()["Global"].items() if "mm" in str(k)}
        found[f"{module.__name__.rpartition('.')[2]} {direction}"] = [
            sum(linear.values()), list(logits.shape), str(logits.dtype), bool(logits.isfinite().all())
        ]
    found[f"{module.__name__.rpartition('.')[2]} parameters"] = sum(p.numel() for p in model.parameters())
states = torch.randn(1, 2, 8, 128)
found["rotation"] = (llama.rotate(states).norm(dim=-1) - states.norm(dim=-1)).abs().max().item()
found["first"] = (llama.rotate(states)[..., 0, :] - states[..., 0, :]).abs().max().item()
print(json.dumps(found))
"""
#: Operators that launch a kernel: those that are not views or empty tensors.
OPERATORS = """
import json, torch
from torch.utils._python_dispatch import TorchDispatchMode
from gpuledger.record.workloads import toy_network
class Count(TorchDispatchMode):
    number = 0
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.__name__.partition(".")[0]
        self.number += name not in ("t", "view", "detach", "expand", "empty", "transpose", "_unsafe_view")
        return function(*arguments, **(options or {}))
found = {}
for passes in toy_network.PASSES:
    with Count() as count:
        toy_network.run_network(torch.device("cpu"), passes, 10, 64, 8)
    found[passes] = count.number
print(json.dumps(found))
"""
#: Sizes of the products of a pass, in order.
PRODUCTS = """
import json, torch
from torch.utils._python_dispatch import TorchDispatchMode
from gpuledger.record import designs
from gpuledger.record.workloads import gpt2
class Collect(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.__name__.partition(".")[0] in ("mm", "addmm"):
            (m, k), (_, n) = (matrix.shape for matrix in arguments[-2:])
            found.append([m, n, k])
        return function(*arguments, **(options or {}))
assert gpt2.VOCABULARY == designs.GPT2_VOCABULARY
model, every = gpt2.make_model(2, 192, 12, 4, torch.device("cpu")), {}
found = every["forward"] = []
with Collect():
    logits = model(torch.randint(gpt2.VOCABULARY, (1, 4)))
found = every["backward"] = []
with Collect():
    logits.backward(torch.randn_like(logits))
print(json.dumps(every))
"""


def test_workloads_do_the_flops_that_they_are_said_to(run):
    done = run("-c", COUNT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Theory of the source notebook: 10 · 2 · 1024² · 128 forward, and 19 GEMMs more backward.
    assert found["setup"] == 0
    assert found["forward"] == 2_684_354_560
    assert found["forward_backward"] == 2_684_354_560 + 5_100_273_664
    # Few tokens: without instructions for bf16, a product with the vocabulary takes seconds.
    runs, layers, tokens = 2, 3, 4
    hidden, narrow = 256, 2 * 32
    weights = {
        "gpt2": layers * (3 + 1 + 4 + 4) * 192**2 + 50_257 * 192,
        "llama": layers * (2 * hidden**2 + 2 * hidden * narrow + 3 * hidden * 7 * hidden // 2) + 128_256 * hidden,
    }
    for model, dtype in (("gpt2", "torch.float32"), ("llama", "torch.bfloat16")):
        vocabulary = 50_257 if model == "gpt2" else 128_256
        flops, *rest = found[f"{model} forward"]
        assert flops == runs * 2 * tokens * weights[model]
        assert rest == [[1, tokens, vocabulary], dtype, True]
        # Of each product, backward takes the gradients of both factors.
        assert found[f"{model} backward"][0] == 3 * flops
    # 3 layers: 12 hidden² of weights and 13 hidden of biases and norms; token and position embeddings; last norm.
    assert found["gpt2 parameters"] == layers * (12 * 192**2 + 13 * 192) + (50_257 + 1024) * 192 + 2 * 192
    # A rotation keeps lengths, and turns nothing at position 0.
    assert found["rotation"] < 1e-4
    assert found["first"] == 0


def test_the_training_step_has_the_launches_of_the_source(run):
    """Of the 81 launches on an A100, 19 reduce split-K GEMMs; all others are operators."""
    done = run("-c", OPERATORS)
    assert done.returncode == 0, done.stderr
    reductions = {"setup": 0, "forward": 10, "forward_backward": 10 + 9}
    found = {passes: count + reductions[passes] for passes, count in json.loads(done.stdout).items()}
    assert found == designs.NETWORK_LAUNCHES == {"setup": 11, "forward": 41, "forward_backward": 81}


def test_the_products_of_a_pass_are_those_of_its_design(run):
    done = run("-c", PRODUCTS)
    assert done.returncode == 0, done.stderr
    point = designs.Point(2, 192, 4)
    for name, found in json.loads(done.stdout).items():
        design = designs.SWEEPS["gpt2" if name == "forward" else f"gpt2_{name}"]
        assert found == [list(product) for product in design.products(point)]


def test_the_toy_network_runs_as_it_is_called(python, run):
    done = run(*designs.TOY_NETWORK.command(python)[1:], "--point=setup", "--point=forward", "--device=cpu")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", designs.SWEEPS)
def test_models_run_as_they_are_called(python, run, name):
    design = designs.SWEEPS[name]
    command = design.counting("").command(python)[1:]
    points = [designs.Point(1, 192 if design.n_head else 256, tokens) for tokens in (2, 3)]
    done = run(*command, *(f"--point={design.sizes(point)}" for point in points), "--device=cpu")
    assert done.returncode == 0, done.stderr
