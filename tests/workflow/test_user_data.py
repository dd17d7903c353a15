"""The workflow on a user's own data and targets: what is planned, and what is said of bad data."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import venv

import pytest
import yaml
from conftest import CONTRACT, snakemake

#: What each named target makes, as study/case.
NAMED = {
    "table2": "kernel_overhead/table2",
    "fig11": "memory_usage/fig11",
    "fig12": "exposed_latency/fig12",
    "fig13a": "warp_scheduling/fig13a",
    "fig13b": "warp_scheduling/fig13b",
    "fig13c": "warp_scheduling/fig13cd",
    "fig13d": "warp_scheduling/fig13cd",
    "sec45": "block_scheduling/zeros_4096",
    "fig1": "dmat/fig1",
    "fig10a": "dmat/fig10a",
    "fig10b": "dmat/fig10b",
    "fig10c": "dmat/fig10c",
    "flop_reconciliation": "flop_reconciliation/toy_network flop_reconciliation/gpt2 "
    "flop_reconciliation/gpt2_backward flop_reconciliation/gpt2_head_dim_64",
    "normalization_roofline": "normalization_roofline/model_h200 normalization_roofline/measured "
    "normalization_roofline/measured_bf16 normalization_roofline/measured_fp16",
    "metric_sweep": "metric_sweep/gpt2 metric_sweep/gpt2_totals metric_sweep/gpt2_backward "
    "metric_sweep/gpt2_head_dim_64 metric_sweep/llama metric_sweep/llama_backward",
    "kernel_breakdown": "kernel_breakdown/llama-3.1-8b kernel_breakdown/llama-3.1-8b-prefill-1024 "
    "kernel_breakdown/llama-3.1-8b-source kernel_breakdown/deepseek-v3 kernel_breakdown/llama_decode "
    "kernel_breakdown/llama_decode_fp8 kernel_breakdown/eager kernel_breakdown/graph "
    "kernel_breakdown/graph_instead_of_eager kernel_breakdown/autocast kernel_breakdown/bf16 kernel_breakdown/compile "
    "kernel_breakdown/recompute kernel_breakdown/compile_instead_of_eager "
    "kernel_breakdown/recompute_instead_of_keeping kernel_breakdown/qwen2_autocast kernel_breakdown/qwen2_bf16 "
    "kernel_breakdown/qwen3_recompute kernel_breakdown/qwen3_bf16 kernel_breakdown/llama3_bf16 kernel_breakdown/jax "
    "kernel_breakdown/triton kernel_breakdown/triton_sums",
}


def test_named_targets_make_only_what_they_need(unmade):
    """In the graph of all of them, the notebooks below each."""
    done = snakemake(unmade, "--dag", "dot", "--", *NAMED)
    assert done.returncode == 0, done.stderr[-3000:]
    labels = dict(re.findall(r'(\d+)\[label = "([^"]*)"', done.stdout))
    needed = {}
    for below, above in re.findall(r"(\d+) -> (\d+)", done.stdout):
        needed.setdefault(above, []).append(below)

    def drawn(job):
        """Study and case of every notebook below a job."""
        if labels[job].startswith("run_"):
            study = labels[job].split("\\n")[0].removeprefix("run_")
            below = (re.match(r"reduce_case\\ncase: ([^\\]+)", labels[name]) for name in needed[job])
            return [f"{study}/{reduced[1]}" for reduced in below if reduced]
        return [name for below in needed.get(job, ()) for name in drawn(below)]

    found = {label: set(drawn(job)) for job, label in labels.items() if label in NAMED}
    assert found == {target: set(names.split()) for target, names in NAMED.items()}


def user_dataset(checkout, **cases):
    folder = checkout / "traces/mine"
    folder.mkdir()
    table = (checkout / "traces/published/kernel_overhead/table3.csv").read_text("utf-8")
    (folder / "good.csv").write_text(table)
    (folder / "bad.csv").write_text(table.replace("0.9868", "fast"))
    (folder / "unit.csv").write_text(table.replace("slowdown_ratio", "slowdown_percent"))
    rows = [line.split(",") for line in table.splitlines()]
    (folder / "short.csv").write_text("\n".join(",".join(cells[:4] + cells[5:]) for cells in rows))
    content = {
        "title": "My kernels",
        "kind": "recorded",
        "device": {"name": "NVIDIA RTX 4090"},
        "source": "measured by me",
        "license": "CC0-1.0",
        "studies": {"kernel_overhead": cases},
    }
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content))


def test_a_folder_with_a_dataset_is_all_it_takes(checkout):
    user_dataset(checkout, night_run={"table": "good.csv"})
    folder = checkout / "results/mine/kernel_overhead/night_run"
    done = snakemake(checkout, str(folder.relative_to(checkout) / "figure.pdf"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert [name for name in CONTRACT if not (folder / name).is_file()] == []
    assert json.loads((folder / "provenance.json").read_text())["label"] == "recorded on NVIDIA RTX 4090"
    assert "recorded on NVIDIA RTX 4090" in (folder / "table.csv").read_text().splitlines()[1]
    assert "Recorded on NVIDIA RTX 4090. measured by me" in (folder / "figure.svg").read_text()
    # What a run says: it counts and sums up, in few words.
    said = done.stdout + done.stderr
    assert "[1 of 2] reduce mine/kernel_overhead/night_run" in said
    assert "[2 of 2] draw mine/kernel_overhead/night_run" in said
    assert re.search(r"^1 case made in \d+ s$", said, re.MULTILINE)
    assert len(said) < 2000


def test_bad_cases_are_one_line_each_and_the_others_finish(checkout):
    user_dataset(
        checkout,
        good={"table": "good.csv"},
        cell={"table": "bad.csv"},
        unit={"table": "unit.csv"},
        column={"table": "short.csv"},
        missing={"table": "none.csv"},
        typo={"tabel": "good.csv"},
    )
    (checkout / "traces/broken").mkdir()
    (checkout / "traces/broken/dataset.yaml").write_text("title: x\nknd: published\n")
    targets = [
        f"results/mine/kernel_overhead/{case}/summary.json"
        for case in ("good", "cell", "unit", "column", "missing", "typo")
    ]
    done = snakemake(checkout, "--keep-going", *targets, "results/broken/kernel_overhead/x/summary.json")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    for line in (
        "traces/mine/bad.csv, line 3, column slowdown_ratio: 'fast' is not a number; write digits",
        "traces/mine/unit.csv, line 1: wrong unit: column 'slowdown_percent' where 'slowdown_ratio' is needed",
        "traces/mine/short.csv, line 1: the column 'extra_registers' is missing",
        "the file traces/mine/none.csv does not exist; put it there, or correct the path",
        "traces/mine/dataset.yaml, key studies.kernel_overhead.typo: unknown key 'tabel'; did you mean 'table'?",
        "traces/broken/dataset.yaml: unknown key 'knd'; did you mean 'kind'?",
    ):
        assert line in said
    assert "Traceback" not in said
    made = {path.parent.name for path in (checkout / "results").rglob("summary.json")}
    assert made == {"good"}
    # A mended file is all that the next run needs.
    shutil.copyfile(checkout / "traces/mine/good.csv", checkout / "traces/mine/bad.csv")
    assert snakemake(checkout, targets[1]).returncode == 0


def test_other_runs_and_unclassified_kernels_are_named(checkout):
    published = checkout / "traces/published/flop_reconciliation"
    mine = checkout / "traces/mine"
    shutil.copytree(published, mine)
    network = {"layers": 10, "hidden_dim": 1024, "tokens": 128}
    runs = {"setup": "toy_network_setup.csv", "forward": "toy_network_forward.csv"}
    both = "toy_network_forward_backward.csv"
    text = (mine / both).read_text("utf-8")
    (mine / "swapped.csv").write_text(text.replace("ampere_sgemm_64x32_sliced1x4_nn", "ampere_sgemm_64x64_nn"))
    (mine / "strange.csv").write_text(text.replace("cutlass_80_simt_sgemm_64x64_8x5_nt", "zebra_v7"))
    cases = {
        "prefix": {**runs, "forward_backward": "swapped.csv", "network": network},
        "strange": {**runs, "forward_backward": "strange.csv", "network": network},
        "short": {**runs, "forward": "toy_network_forward.csv", "forward_backward": runs["setup"], "network": network},
    }
    content = {"title": "t", "kind": "local", "source": "s", "license": "CC0-1.0"}
    (mine / "dataset.yaml").write_text(yaml.safe_dump({**content, "studies": {"flop_reconciliation": cases}}))
    done = snakemake(checkout, "-k", *(f"results/mine/flop_reconciliation/{case}/summary.json" for case in cases))
    said = done.stdout + done.stderr
    assert (
        "traces/mine/swapped.csv, launch 4: the kernel is ampere_sgemm_64x64_nn, "
        "in toy_network_forward.csv it is ampere_sgemm_64x32_sliced1x4_nn; record the same program" in said
    )
    provenance = json.loads((checkout / "results/mine/flop_reconciliation/strange/provenance.json").read_text("utf-8"))
    assert any("no class is known for 1 kernel: zebra_v7" in warning for warning in provenance["warnings"])
    assert "traces/mine/toy_network_setup.csv, launch 4: the recording ends after 4 launches" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["results/publishd/kernel_overhead/table2/figure.pdf"], "no dataset 'publishd'; did you mean 'published'?"),
        (["results/my set/dmat/fig1/figure.pdf"], "there is no such target; 'my set' names no dataset or case: such"),
        (["--config", "datasets=[publishd]"], "no traces/publishd/dataset.yaml; did you mean 'published'?"),
        (["--config", "dataset=[published]"], "config/config.yaml: unknown key 'dataset'; did you mean 'datasets'?"),
        (
            ["dmat", "--config", "datasets=[published]", "datasets_online=[]"],
            "no configured dataset has a case of dmat: add ",
        ),
        (["--config", "datasets=published"], "key datasets: expected array, found 'published'"),
    ],
)
def test_wrong_targets_and_settings_name_the_nearest(unmade, arguments, message):
    done = snakemake(unmade, "-n", *arguments)
    assert done.returncode == 1
    assert message in (said := done.stdout + done.stderr) and "WorkflowError" not in said and ".smk" not in said


def test_a_folder_that_cannot_be_written_is_one_line(checkout):
    (checkout / ".snakemake").write_text("")  # permissions do not bind root
    done = snakemake(checkout, "-n")
    said = done.stdout + done.stderr
    assert ".snakemake: no file can be made here" in said and "Traceback" not in said


def test_an_environment_may_be_below_a_folder_with_a_space(checkout, monkeypatch):
    environment = checkout.parent / "mein 'schönes' Labor/.venv"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "of_the_tests.pth").write_text("\n".join(sys.path), "utf-8")
    monkeypatch.setattr(sys, "executable", str(environment / "bin/python"))
    done = snakemake(checkout, "results/published/kernel_overhead/table2/data.parquet", forked=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^1 case reduced in \d+ s$", done.stdout + done.stderr, re.MULTILINE)


def test_no_home_is_needed(checkout):
    target = "results/published/kernel_overhead/table2/summary.json"
    done = snakemake(checkout, target, forked=False, HOME="/dev/null/nobody")
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_killed_run_is_cleared_and_a_living_one_is_not(checkout):
    target = "results/published/kernel_overhead/table2/summary.json"
    # Its notebook too, so that the run lasts until it is stopped.
    command = [sys.executable, "-m", "snakemake", "--cores", "1", target.replace("summary.json", "notebook.html")]
    lock, left = checkout / ".snakemake/locks", checkout / "results/published/.a1b2c3d4.ipynb"
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            # Written as a whole: a run that is stopped before holds nothing that Snakemake knows of.
            while not any(file.stat().st_size for file in lock.glob("*.output.lock")):
                assert run.poll() is None
                time.sleep(0.01)
            run.send_signal(signal.SIGSTOP)
            assert "cannot be locked" in snakemake(checkout, target).stderr, "a living run keeps its lock"
        finally:
            run.kill()
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    done = snakemake(checkout, target)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "an earlier run was interrupted" in done.stderr and not left.exists()
    # As on a file system without locks, or where the file is another user's.
    (checkout / ".snakemake/held").unlink()
    (checkout / ".snakemake/held").mkdir()
    assert snakemake(checkout, "-n", target).returncode == 0
