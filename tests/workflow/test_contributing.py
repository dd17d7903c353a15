"""CONTRIBUTING.md holds: the study that it describes is built from its own blocks, and runs."""

import re

import nbformat
from conftest import ROOT, snakemake

BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def notebook(percent):
    """Cells written as `# %%` blocks, as a notebook."""
    cells = []
    for head, body in re.findall(r"^# %%([^\n]*)\n(.*?)(?=^# %%|\Z)", percent, re.MULTILINE | re.DOTALL):
        if "[markdown]" in head:
            cells.append(nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            cells.append(nbformat.v4.new_code_cell(body.strip()))
            cells[-1].metadata["tags"] = re.findall(r'"(\w+)"', head)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def test_the_described_study_runs_with_nothing_else_touched(checkout):
    described = dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    assert len(described) == 7, "six files of a study and a dataset"
    for name, body in described.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "config/config.yaml":
            path.write_text(path.read_text("utf-8").rstrip("\n") + "\n" + body, "utf-8")
        elif path.suffix == ".ipynb":
            nbformat.write(notebook(body), path)
        else:
            assert not path.exists()
            path.write_text(body, "utf-8")
    (checkout / "traces/mine/launches.csv").write_text("latency_us\n2.4\n2.5\n2.6\n9.0\n")
    done = snakemake(checkout, "launch_latency", "results/tables/scorecard.csv", "--config", "datasets=[mine]")
    assert done.returncode == 0, done.stderr[-3000:]
    folder = checkout / "results/mine/launch_latency/empty_kernel"
    assert (folder / "figure.pdf").is_file()
    assert "A launch takes 2.55 µs in the median" in (folder / "summary.json").read_text("utf-8")
    card = (checkout / "results/tables/scorecard.csv").read_text("utf-8")
    assert re.search(r"launch_latency,empty-kernel-latency,.*,2.55,0.02,within tolerance", card)
    assert snakemake(checkout, "--lint").returncode == 0
