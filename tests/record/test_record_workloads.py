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
        toy_network.run(cpu, passes, 10, 1024, 128)
    found[passes] = counter.get_total_flops()
models = ("gpt2", gpt2.GPT2Block, 192, torch.float32), ("llama", llama.LlamaBlock, 1024, torch.bfloat16)
for name, block, hidden_dim, dtype in models:
    with FlopCounterMode(display=False) as counter:
        states = transformer.run(block, dtype, cpu, 3, hidden_dim, 32)
    linear = {k: v for k, v in counter.get_flop_counts()["Global"].items() if "mm" in str(k)}
    found[name] = [sum(linear.values()), list(states.shape), str(states.dtype), bool(states.isfinite().all())]
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
    hidden = 192
    flops, shape, dtype, finite = found["gpt2"]
    assert flops == runs * layers * 2 * tokens * (3 + 1 + 4 + 4) * hidden**2
    assert (shape, dtype, finite) == ([1, tokens, hidden], "torch.float32", True)
    hidden, narrow = 1024, 2 * 128
    flops, shape, dtype, finite = found["llama"]
    assert flops == runs * layers * 2 * tokens * (2 * hidden**2 + 2 * hidden * narrow + 3 * hidden * 7 * hidden // 2)
    assert (shape, dtype, finite) == ([1, tokens, hidden], "torch.bfloat16", True)
    # A rotation keeps lengths, and turns nothing at position 0.
    assert found["rotation"] < 1e-4
    assert found["first"] == 0


@pytest.mark.parametrize("passes", counters.PASSES)
def test_the_toy_network_runs_as_it_is_called(python, passes):
    done = run(python, "-m", "gpuledger.record.workloads.toy_network", f"--passes={passes}", "--device=cpu")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", sweeps.SWEEPS)
def test_blocks_run_as_they_are_called(python, model):
    options = ["--n-layer=1", "--hidden-dim=512", "--seq-len=16"]
    done = run(python, "-m", f"gpuledger.record.workloads.{model}", *options, "--device=cpu")
    assert done.returncode == 0, done.stderr
    done = run(python, "-m", f"gpuledger.record.workloads.{model}", "--hidden-dim=100", "--seq-len=16", "--device=cpu")
    assert "not a multiple" in done.stderr
