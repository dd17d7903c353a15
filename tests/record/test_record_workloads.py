"""The recorded programs on a CPU, where a Python with PyTorch is at hand."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger.record import counters, sweeps

SOURCE = Path(__file__).resolve().parents[2] / "src"
COUNT = """
import json, sys, torch
from torch.utils.flop_counter import FlopCounterMode
from gpuledger.record.workloads import gpt2, llama, toy_network, transformer
cpu, found = torch.device("cpu"), {}
for passes in toy_network.PASSES:
    with FlopCounterMode(display=False) as counter:
        toy_network.run_network(cpu, passes, 10, 1024, 128)
    found[passes] = counter.get_total_flops()
for module, hidden_dim, heads, dtype in (gpt2, 192, 12, torch.float32), (llama, 1024, 8, torch.bfloat16):
    model = module.make_model(3, hidden_dim, heads, 32, cpu).to(dtype)
    for direction in transformer.DIRECTIONS:
        with FlopCounterMode(display=False) as counter:
            logits = transformer.run_passes(model, module.VOCABULARY, cpu, 32, direction)
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


@pytest.fixture(scope="module")
def python():
    """A Python with PyTorch: of GPULEDGER_TORCH_PYTHON, or the one in use."""
    given = os.environ.get("GPULEDGER_TORCH_PYTHON")
    if not given and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not here: set GPULEDGER_TORCH_PYTHON to a Python that has it")
    return given or sys.executable


def run(python, *arguments):
    return subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def test_workloads_do_the_flops_that_they_are_said_to(python):
    done = run(python, "-c", COUNT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Theory of the source notebook: 10 · 2 · 1024² · 128 forward, and 19 GEMMs more backward.
    assert found["setup"] == 0
    assert found["forward"] == 2_684_354_560
    assert found["forward_backward"] == 2_684_354_560 + 5_100_273_664
    runs, layers, tokens = 2, 3, 32
    hidden, narrow = 1024, 2 * 128
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


@pytest.mark.parametrize("passes", counters.PASSES)
def test_the_toy_network_runs_as_it_is_called(python, passes):
    done = run(python, "-m", "gpuledger.record.workloads.toy_network", f"--passes={passes}", "--device=cpu")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sweeps.SWEEPS)
def test_models_run_as_they_are_called(python, name):
    design = sweeps.SWEEPS[name]
    options = design.options(sweeps.Point(1, 768 if design.n_head else 256, 16))
    done = run(python, "-m", f"gpuledger.record.workloads.{design.workload}", *options, "--device=cpu")
    assert done.returncode == 0, done.stderr
    options[1] = "--hidden-dim=1001"
    done = run(python, "-m", f"gpuledger.record.workloads.{design.workload}", *options, "--device=cpu")
    assert "not a multiple" in done.stderr
