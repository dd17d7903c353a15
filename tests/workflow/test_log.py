"""What a run says: short, in words, and always the one line of a case that fails."""

import subprocess

import pytest
import yaml
from conftest import ROOT, snakemake

BAD = "traces/mine/bad.csv, line 1: "


@pytest.fixture
def bad_case(checkout):
    folder = checkout / "traces/mine"
    folder.mkdir()
    (folder / "bad.csv").write_text("a,b\n1,2\n")
    (folder / "good.csv").write_bytes((ROOT / "traces/published/kernel_overhead/table3.csv").read_bytes())
    content = {"title": "t", "kind": "recorded", "source": "s", "license": "CC0-1.0"}
    content["studies"] = {"kernel_overhead": {"bad": {"table": "bad.csv"}, "good": {"table": "good.csv"}}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content))
    return checkout


def test_everything_is_said_in_few_words(finished):
    # With every job forced, a dry run names each with its reason, as a run names each with its place in the row.
    done = snakemake(finished, "-n", "--forceall")
    said = done.stdout + done.stderr
    assert len(said.encode()) < 30_000
    assert max(map(len, said.splitlines())) < 400


@pytest.mark.parametrize("quiet", [(), ("--quiet",), ("--quiet", "all")])
def test_a_failing_case_says_its_line_once(bad_case, quiet):
    done = snakemake(bad_case, "--keep-going", "results/mine/kernel_overhead/bad/summary.json", *quiet)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert said.count(BAD) == 1
    assert "Traceback" not in said and "CalledProcessError" not in said


def test_a_verdict_that_changed_is_named(checkout):
    results = checkout / "results/tables"
    results.mkdir(parents=True)
    (results / "scorecard.csv").write_text("study,id,dataset,verdict\ndmat,stripes,simulated,exact\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    for arguments in (["init", "-q"], ["add", "-f", "results"], ["commit", "-qm", "t"]):
        subprocess.run([*git, *arguments], cwd=checkout, check=True)
    (results / "scorecard.csv").write_text("study,id,dataset,verdict\ndmat,stripes,simulated,differs\n")
    from gpuledger.ledger.changes import changed_files, verdict_changes

    assert verdict_changes(checkout) == ["dmat stripes simulated: exact → differs"]
    assert changed_files(checkout) == ["results/tables/scorecard.csv"]


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("table3", "Table 3 of the published paper is table2"),
        ("fig12x", "did you mean fig12?"),
        ("published", "results/published/<study>/<case>/figure.pdf"),
        ("results/published/kernel_overhed/table2/figure.pdf", "did you mean 'kernel_overhead'?"),
        ("results/published/kernel_overhead/table2/figur.pdf", "there are figure.pdf"),
        ("results/published/kernel_overhead/nobody/figure.pdf", "no case 'nobody' is declared; known are: table2"),
        ("results/publishd/kernel_overhead/table2/figure.pdf", "did you mean 'published'?"),
    ],
)
def test_a_target_that_there_is_not_is_one_line_with_the_nearest(unmade, target, remedy):
    done = snakemake(unmade, "-n", target)
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "profile" not in line]
    assert done.returncode == 1 and remedy in line


def test_as_many_steps_are_announced_as_are_made(own):
    (own / "results/index.html").unlink()
    done = snakemake(own)
    said = done.stdout + done.stderr
    assert "1 step: 0 cases to reduce, 0 to draw, 1 across cases" in said and "[1 of 1] build the gallery" in said
