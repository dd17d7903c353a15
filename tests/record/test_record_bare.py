"""Recording in a Python that has little more than PyTorch and NumPy: no pandas, pyarrow, jsonschema or PyYAML."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import record_fakes
from conftest import ROOT

from gpuledger.ledger.datasets import Dataset
from gpuledger.readers import ncu as ncu_reader
from gpuledger.readers import neutrino

tools = record_fakes.tools
#: What machines for recording lack. A module that is None in sys.modules cannot be imported.
LACKING = ("pandas", "pyarrow", "jsonschema", "yaml", "tqdm", "scipy", "matplotlib", "numba", "cupy", "cuda")
#: Stand-in for PyTorch: found by the plan, but nothing of it is used to plan.
BARE = f"import sys, types\nsys.modules.update(dict.fromkeys({LACKING}))\n"


def run_bare(code, *arguments, cwd=ROOT):
    """Run code in a Python without the packages; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", BARE + code, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_the_recorder_can_be_imported():
    names = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in sorted((ROOT / "src/gpuledger/record").rglob("*.py"))
        if "workloads" not in path.parts or "probes" in path.parts  # the workloads need PyTorch itself
    ]
    assert len(names) > 25
    code = "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(*(name for name in sys.argv[1:] if name not in sys.modules))"
    assert run_bare(code, *names).split() == []


def test_what_can_be_recorded_is_planned(tools, tmp_path):
    """With PyTorch and NVRTC: everything but Neutrino."""
    stubs = tmp_path / "site"
    (stubs / "nvidia/cuda_nvrtc/lib").mkdir(parents=True)
    (stubs / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12").touch()
    (stubs / "torch.py").touch()
    code = "sys.path.insert(0, sys.argv[1])\nfrom gpuledger.record import plan\n"
    code += "plan._DRIVER = plan.Path(sys.argv[1], 'none')\n"
    code += "found = plan.make_plan('auto')\nprint(*found.parts)\nprint(found.left_out)"
    parts, left_out = run_bare(code, stubs).splitlines()
    assert "Neutrino is not installed" in left_out and "," not in left_out
    assert {"counters", "sweep_llama", "normalization", "latency", "probes"} <= set(parts.split())


def test_counters_become_a_dataset(tools, tmp_path):
    code = "from gpuledger.record import __main__ as command\n"
    code += "command._settings = lambda: {'python': sys.argv[1]}\n"
    code += "sys.exit(command.main(['counters', '--folder', sys.argv[2]]))"
    assert "counters recorded" in run_bare(code, tools / "torch-python", tmp_path / "nvidia-h200", cwd=tmp_path)
    dataset = Dataset.load(tmp_path / "nvidia-h200/dataset.yaml")
    assert dataset.cases() == [("flop_reconciliation", "toy_network")]
    path = dataset.case("flop_reconciliation", "toy_network").path("forward")
    assert len(ncu_reader.read(path).launches) > 0
    assert json.loads((tmp_path / "nvidia-h200/recording.json").read_text())["parts"].keys() == {"counters"}


def test_traces_of_probes_are_written(tmp_path):
    code = """
import numpy as np
from gpuledger.readers import neutrino
from gpuledger.record.probes import launch, traces, workloads
work = workloads.fill(256, 512)
records = {"block_sched": np.zeros((work.blocks, work.threads // 32, 1), launch.TOOLS["block_sched"].dtype)}
records["block_sched"]["start"] = np.arange(1, work.blocks + 1)[:, None, None]
records["block_sched"]["elapsed"] = 7
built = neutrino.Build("sm_90", 32, 0, 0, 0, shared_bytes=0)
addresses = {tensor.name: 0x7F0000000000 for tensor in work.tensors}
launched = launch.Launched(work, "block_sched", built, built, records, addresses, 0, 1, 0.1, 1.5, 0.2, 1500)
traces.write_directory(sys.argv[1], launched, benchmark=True)
"""
    run_bare(code, tmp_path / "trace")
    directory = neutrino.open_trace_directory(tmp_path / "trace")
    trace = neutrino.open_trace(next(Path(tmp_path, "trace/result").iterdir()))
    records = trace.records()
    assert set(records["elapsed"].ravel()) == {7} and np.unique(records["start"]).size == len(records)
    assert directory.event_log.launches["impact"].tolist() == [1.5]
    tensors = neutrino.read_tensor_trace(tmp_path / "trace/tensor.trace")
    assert tensors["address"].tolist() == [0x7F0000000000]
