"""The workflow as a user runs it: on a fresh copy of the checkout, with their own data, and with bad data."""

import hashlib
import json
import re
import shutil

import yaml
from conftest import CONTRACT, snakemake

from gpuledger.ledger.study import read_studies

REMADE = "simulated/block_scheduling/zeros_4096_persistent"


def sums(folder):
    kinds = ("csv", "json", "parquet", "pdf", "svg", "png", "md", "tex")
    files = [file for kind in kinds for file in folder.rglob(f"*.{kind}")]
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
        assert f"published/{study}/{case}/figure.png" in (finished / "results/index.html").read_text("utf-8")


def test_pages_need_no_network_and_show_formulas(finished):
    pages = list((finished / "results").rglob("notebook.html"))
    assert pages
    for page in pages:
        html = page.read_text("utf-8")
        assert not re.findall(r'(?:src|href)="https?:', html)
        # The data of a viewer and its script come after the page's own.
        viewer = ['<script type="application/json" id="view">', "<script>"]
        assert re.findall(r"<script[^>]*>", html) in (["<script>"], ["<script>", *viewer])
        # Links leave the folder for the gallery, the scorecard and the dataset's other cases.
        for link in re.findall(r'<a [^>]*href="([^"#]+)', html.split("<script>")[0]):
            assert (page.parent / link).is_file(), link
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


def test_remaking_gives_the_same_bytes(finished, tmp_path):
    """Trace, reduced data, figures and tables of a case; test_house compares those of notebooks and all traces."""
    again = tmp_path / "again"
    left_out = shutil.ignore_patterns("results", ".snakemake", "__pycache__", "simulated")
    shutil.copytree(finished, again, ignore=left_out)
    content = yaml.safe_load((finished / "traces/simulated/dataset.yaml").read_text("utf-8"))
    study = REMADE.split("/")[1]
    content["studies"] = {study: content["studies"][study]}
    (again / "traces/simulated").mkdir()
    (again / "traces/simulated/dataset.yaml").write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    done = snakemake(again, f"results/{REMADE}/notebook.html")
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = sums(finished / "results" / REMADE), sums(again / "results" / REMADE)
    assert {"figure.pdf", "data.parquet", "provenance.json"} < set(first)
    assert second == first


def reductions(said):
    """Cases that a dry run would reduce."""
    return set(re.findall(r"^reduce (\S+)", said, re.MULTILINE))


def test_a_changed_knob_runs_its_study_again_and_no_other(finished):
    changed = 'knobs={"kernel_overhead": {"dmat_probes": ["mem_trace", "gmem_bytes"]}}'
    done = snakemake(finished, "-n", "--config", changed)
    every = {f"{name}/kernel_overhead/table2" for name in ("published", "nvidia-h200", "nvidia-h100")}
    every.add("nvidia-h200-neutrino/kernel_overhead/neutrino")
    assert reductions(done.stdout + done.stderr) == every


def test_an_override_runs_its_case_again_and_no_other(finished):
    changed = 'overrides={"published/kernel_breakdown/llama-3.1-8b": {"hardware": ["l40s"]}}'
    done = snakemake(finished, "-n", "--config", changed)
    assert reductions(done.stdout + done.stderr) == {"published/kernel_breakdown/llama-3.1-8b"}


def test_an_override_that_cannot_be_reduced_fails_each_time_although_the_page_of_before_is_there(own):
    page = "results/published/kernel_breakdown/llama-3.1-8b/notebook.html"
    wrong = 'overrides={"published/kernel_breakdown/llama-3.1-8b": {"batch": 4}}'
    for _ in range(2):
        done = snakemake(own, "--config", wrong, "--", page)
        assert done.returncode == 1 and "unknown key 'batch'" in done.stdout + done.stderr


def test_what_changed_runs_again_and_nothing_else(own):
    file = own / "traces/published/dataset.yaml"
    file.touch()
    done = snakemake(own, "-n")
    assert "Nothing to be done" in done.stderr + done.stdout, "a touched file changes nothing"

    # A case declared otherwise.
    text = file.read_text("utf-8")
    content = yaml.safe_load(text)
    content["studies"]["kernel_breakdown"]["llama-3.1-8b"]["phases"]["decode"]["batch"] += 1
    file.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    done = snakemake(own, "-n")
    assert reductions(done.stdout + done.stderr) == {"published/kernel_breakdown/llama-3.1-8b"}

    # Other code.
    file.write_text(text, "utf-8")
    module = own / "src/gpuledger/studies/memory_usage/reduction.py"
    module.write_text(module.read_text("utf-8") + "\n# a change\n", "utf-8")
    done = snakemake(own, "-n")
    every = {f"{name}/memory_usage/fig11" for name in ("published", "nvidia-h200", "nvidia-h100")}
    assert reductions(done.stdout + done.stderr) == every


def test_the_paper_and_the_figures_across_datasets_are_planned(finished):
    done = snakemake(finished, "-n", "across", "paper")
    assert done.returncode == 0, done.stderr[-3000:]
