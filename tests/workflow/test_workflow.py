"""The workflow as a user runs it: on a fresh copy of the checkout, with their own data, and with bad data."""

import hashlib
import json
import re
import shutil

import pytest
import yaml
from conftest import snakemake

from gpuledger.ledger.study import read_studies

CONTRACT = [
    "data.parquet",
    "summary.json",
    "provenance.json",
    "table.csv",
    "table.md",
    "table.tex",
    "figure.pdf",
    "figure.svg",
    "figure.png",
    "notebook.ipynb",
    "notebook.html",
]


def sums(folder):
    kinds = ("csv", "json", "parquet", "pdf", "svg", "png", "md", "tex")
    files = [file for kind in kinds for file in (folder / "results").rglob(f"*.{kind}")]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def cases(folder, dataset):
    content = yaml.safe_load((folder / f"traces/{dataset}/dataset.yaml").read_text("utf-8"))
    return [(study, case) for study, found in content["studies"].items() for case in found]


def test_default_target_makes_every_file_of_the_contract(finished):
    for study, case in cases(finished, "published"):
        folder = finished / "results/published" / study / case
        assert [name for name in CONTRACT if not (folder / name).is_file()] == []
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        assert all(set(entry) == {"value", "unit"} for entry in summary.values())
    for name in (*read_studies(), "scorecard"):
        assert all((finished / f"results/tables/{name}.{kind}").is_file() for kind in ("csv", "md", "tex"))


def test_gallery_links_to_what_is_there_and_to_nothing_outside(finished):
    for page in ("index.html", "scorecard.html"):
        html = (finished / "results" / page).read_text("utf-8")
        links = set(re.findall(r'(?:href|src)="([^"#]+)', html))
        assert links
        for link in links:
            assert (finished / "results" / link).is_file(), link
    for study, case in cases(finished, "published"):
        assert f"published/{study}/{case}/figure.svg" in (finished / "results/index.html").read_text("utf-8")


def test_pages_need_no_network_and_show_formulas(finished):
    pages = list((finished / "results").rglob("notebook.html"))
    assert pages
    for page in pages:
        html = page.read_text("utf-8")
        assert not re.findall(r'(?:src|href)="https?:', html)
        assert "<script" not in html
        assert "$$" not in re.sub(r"<pre>.*?</pre>", "", html, flags=re.DOTALL)
    assert any("<math" in page.read_text("utf-8") for page in pages)


def test_no_result_names_this_machine(finished):
    for file in (finished / "results").rglob("*"):
        if file.suffix in (".csv", ".json", ".md", ".tex", ".svg", ".html"):
            assert str(finished) not in file.read_text("utf-8"), file


def test_no_claim_differs_without_a_reason(finished):
    import pandas as pd

    card = pd.read_csv(finished / "results/tables/scorecard.csv", dtype=str, keep_default_na=False)
    verdicts = ["differs", "needs download", "cannot be checked", "error in source"]
    unexplained = card[card["verdict"].isin(verdicts) & card["why"].eq("")]
    assert unexplained["id"].tolist() == []
    assert card.loc[card["verdict"] == "error in source", "why"].str.contains("but published gives").sum() == 0


def test_nothing_to_do_after_the_default_target_and_a_touched_file_changes_nothing(finished):
    (finished / "traces/published/dataset.yaml").touch()
    done = snakemake(finished, "-n")
    assert "Nothing to be done" in done.stderr + done.stdout


def test_remaking_gives_the_same_bytes(finished, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(finished, again, ignore=shutil.ignore_patterns("results", ".snakemake"))
    done = snakemake(again)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = sums(finished), sums(again)
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} == set()


@pytest.mark.parametrize(
    ("target", "study", "case"),
    [
        ("table2", "kernel_overhead", "table2"),
        ("fig11", "memory_usage", "fig11"),
        ("fig12", "exposed_latency", "fig12"),
        ("fig13a", "warp_scheduling", "fig13a"),
        ("fig13b", "warp_scheduling", "fig13b"),
        ("fig13c", "warp_scheduling", "fig13cd"),
        ("fig13d", "warp_scheduling", "fig13cd"),
        ("sec45", "block_scheduling", "zeros_4096"),
        ("fig1", "dmat", "fig1"),
        ("fig10a", "dmat", "fig10a"),
        ("fig10b", "dmat", "fig10b"),
        ("fig10c", "dmat", "fig10c"),
        ("flop_reconciliation", "flop_reconciliation", "toy_network"),
        ("normalization_roofline", "normalization_roofline", "model_h200"),
        ("metric_sweep", "metric_sweep", "gpt2"),
        ("kernel_breakdown", "kernel_breakdown", "llama-3.1-8b llama-3.1-8b-source deepseek-v3"),
    ],
)
def test_named_targets_make_only_what_they_need(checkout, target, study, case):
    done = snakemake(checkout, "-n", target)
    planned = set(re.findall(r"draw (?:published|simulated)/(\S+)", done.stdout + done.stderr))
    assert planned == {f"{study}/{name}" for name in case.split()}


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
    assert "traces/mine/strange.csv" in said and "'zebra_v7'" in said and "add a pattern" in said
    assert "traces/mine/toy_network_setup.csv, launch 4: the recording ends after 4 launches" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["results/publishd/kernel_overhead/table2/figure.pdf"], "no dataset 'publishd'; did you mean 'published'?"),
        (["--config", "datasets=[publishd]"], "no traces/publishd/dataset.yaml; did you mean 'published'?"),
        (["--config", "dataset=[published]"], "config/config.yaml: unknown key 'dataset'; did you mean 'datasets'?"),
        (["--config", "datasets=published"], "key datasets: expected array, found 'published'"),
    ],
)
def test_wrong_targets_and_settings_name_the_nearest(checkout, arguments, message):
    done = snakemake(checkout, "-n", *arguments)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def reductions(said):
    """Cases that a dry run would reduce."""
    return set(re.findall(r"^reduce (\S+)", said, re.MULTILINE))


def test_a_changed_knob_runs_its_study_again_and_no_other(finished):
    changed = 'knobs={"kernel_overhead": {"dmat_probes": ["mem_trace", "gmem_bytes"]}}'
    done = snakemake(finished, "-n", "--config", changed)
    assert reductions(done.stdout + done.stderr) == {"published/kernel_overhead/table2"}


def test_an_override_runs_its_case_again_and_no_other(finished):
    changed = 'overrides={"published/kernel_breakdown/llama-3.1-8b": {"hardware": ["l40s"]}}'
    done = snakemake(finished, "-n", "--config", changed)
    assert reductions(done.stdout + done.stderr) == {"published/kernel_breakdown/llama-3.1-8b"}


def test_a_case_declared_otherwise_runs_again_and_its_neighbours_do_not(finished, tmp_path):
    folder = tmp_path / "checkout"
    shutil.copytree(finished, folder)
    file = folder / "traces/published/dataset.yaml"
    text = file.read_text("utf-8")
    content = yaml.safe_load(text)
    batch = content["studies"]["kernel_breakdown"]["llama-3.1-8b"]["phases"]["decode"]["batch"]
    content["studies"]["kernel_breakdown"]["llama-3.1-8b"]["phases"]["decode"]["batch"] = batch + 1
    file.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    done = snakemake(folder, "-n")
    assert reductions(done.stdout + done.stderr) == {"published/kernel_breakdown/llama-3.1-8b"}


def test_changed_code_runs_what_uses_it_again_and_nothing_else(finished, tmp_path):
    folder = tmp_path / "checkout"
    shutil.copytree(finished, folder)
    module = folder / "src/gpuledger/studies/memory_usage/reduction.py"
    module.write_text(module.read_text("utf-8") + "\n# a change\n", "utf-8")
    done = snakemake(folder, "-n")
    assert reductions(done.stdout + done.stderr) == {"published/memory_usage/fig11"}


@pytest.mark.parametrize("gone", ["dmat/fig1/event.log", "block_sched/zeros_4096/result/0.500000.bin"])
def test_a_trace_that_is_gone_is_made_again(finished, tmp_path, gone):
    folder = tmp_path / "checkout"
    shutil.copytree(finished, folder)
    file = next(path for path in (folder / "traces/simulated").rglob("*") if path.as_posix().endswith(gone[-8:]))
    file.unlink()
    record = (folder / "results/simulated/files.json").read_bytes()
    done = snakemake(folder, "results/simulated/files.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert file.is_file()
    assert (folder / "results/simulated/files.json").read_bytes() == record
    assert "Nothing to be done" in (done := snakemake(folder, "-n")).stdout + done.stderr
