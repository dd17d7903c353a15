"""The workflow on a machine with a GPU, which stand-ins for its tools pretend, and on one without."""

import json
import os
import re

import conftest
import pytest
import record_fakes
import yaml

TOY = "results/local-gpu/flop_reconciliation/toy_network"


def snakemake(folder, *arguments, path="", **settings):
    """Run snakemake with the settings; `path` comes first on the PATH, which has no other GPU tools."""
    tools = [directory for directory in os.environ["PATH"].split(os.pathsep) if not _has_gpu_tools(directory)]
    given = [f"{name}={value}" for name, value in {"datasets": "[]", "gpu": "auto", **settings}.items()]
    done = conftest.snakemake(
        folder, *arguments, "--config", *given, PATH=os.pathsep.join(filter(None, [path, *tools]))
    )
    return done.returncode, done.stdout + done.stderr


def _has_gpu_tools(directory):
    return os.access(os.path.join(directory, "nvidia-smi"), os.X_OK)


def jobs(said):
    """What a dry run would make."""
    return re.findall(r"^(.+)  \(", said, re.MULTILINE)


def test_without_a_gpu_nothing_changes(unmade):
    plans = {}
    for gpu in ("auto", "off"):
        status, said = snakemake(unmade, "-n", datasets="[published]", gpu=gpu)
        assert status == 0, said
        plans[gpu] = sorted(jobs(said))
    assert plans["auto"] == plans["off"] != []
    assert not any("local-gpu" in job or "record" in job for job in plans["auto"])


def test_a_gpu_that_is_required_is_missed_in_one_line(unmade):
    status, said = snakemake(unmade, "-n", gpu="require")
    assert status != 0
    without_driver = r"there is no NVIDIA driver \(libcuda cannot be loaded\); install the NVIDIA driver"
    assert re.search(f"{without_driver}|the driver finds no GPU; check nvidia-smi", said)
    status, said = snakemake(unmade, "-n", gpu="automatic")
    assert "key gpu: 'automatic' is not one of auto, require, off" in said


@pytest.fixture
def gpu(tmp_path):
    return record_fakes.install(tmp_path / "bin")


def test_one_call_records_and_analyses(checkout, gpu):
    missing = {"nvrtc": "gpuledger.errors.InputError: GPU: NVRTC is not installed; install PyTorch with CUDA"}
    (gpu / "python_says").write_text(json.dumps([record_fakes.VERSIONS, missing]))
    python = f"{{python: {gpu}/torch-python}}"
    targets = [f"{TOY}/summary.json", "results/local-gpu/metric_sweep/gpt2/summary.json"]
    status, said = snakemake(checkout, *targets, path=str(gpu), record=python)
    assert status == 0, said[-4000:]
    dataset = yaml.safe_load((checkout / "traces/local-gpu/dataset.yaml").read_text("utf-8"))
    assert dataset["kind"] == "local"
    assert {study: list(cases) for study, cases in dataset["studies"].items()} == {
        "flop_reconciliation": ["gpt2", "gpt2_backward", "gpt2_head_dim_64", "toy_network"],
        "metric_sweep": [
            *("gpt2", "gpt2_backward", "gpt2_head_dim_64", "gpt2_totals", "llama", "llama_backward"),
        ],
    }
    # Published counters went in, so published results come out, said to be of this machine.
    summary = yaml.safe_load((checkout / TOY / "summary.json").read_text("utf-8"))
    assert summary["forward_total_flops"]["value"] == 2_727_606_586
    assert summary["backward_total_flops"]["value"] == 5_134_952_944
    provenance = yaml.safe_load((checkout / TOY / "provenance.json").read_text("utf-8"))
    assert provenance["label"] == "recorded on this machine, NVIDIA H200"
    log = (checkout / "results/logs/record_gpu/local-gpu.log").read_text("utf-8")
    assert len(re.findall(r"(normalization|blocks|latency|probes) is left out: GPU, nvrtc: NVRTC, CUDA", log)) == 4
    calls = (gpu / "ncu_calls").read_text()
    # Nothing to do again; the default target has its cases; without the GPU it is a dataset as any other.
    status, said = snakemake(checkout, "-n", *targets, path=str(gpu), record=python)
    assert "Nothing to be done" in said
    status, said = snakemake(checkout, "-n", path=str(gpu), record=python)
    assert {"draw local-gpu/flop_reconciliation/toy_network", "build the gallery"} <= set(jobs(said))
    status, said = snakemake(checkout, "-n", *targets, datasets="[local-gpu]", gpu="off")
    assert "Nothing to be done" in said
    assert (gpu / "ncu_calls").read_text() == calls


def test_what_cannot_be_recorded_stops_the_call_in_one_line(checkout, gpu):
    (gpu / "apps").write_text("77, 900 MiB, /usr/bin/train\n")
    status, said = snakemake(checkout, f"{TOY}/summary.json", path=str(gpu), record=f"{{python: {gpu}/torch-python}}")
    assert status != 0
    assert "another process is on the GPU: train (pid 77, 900 MiB); wait for it to end or stop it" in said
    assert not (checkout / "traces/local-gpu/dataset.yaml").exists()
