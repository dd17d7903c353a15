"""What a user may bring by mistake or malice, found in review: each gives one line, or a page that shows it as text."""

import json
import os

import nbformat
import pandas as pd
import pytest
import yaml
from conftest import ROOT, snakemake
from own_cases import own_case, reduced, refused

from gpuledger import schemas
from gpuledger.errors import HIDDEN, InputError
from gpuledger.ledger import latex, pages, tables
from gpuledger.ledger.datasets import Dataset

PUBLISHED = ROOT / "traces/published"
RUNS = ("setup", "forward", "forward_backward")


def network(tmp_path, changes=lambda text: text, **shape):
    folder = tmp_path / "mine"
    folder.mkdir(parents=True)
    for run in RUNS:
        text = (PUBLISHED / f"flop_reconciliation/toy_network_{run}.csv").read_text("utf-8")
        (folder / f"{run}.csv").write_text(changes(text), "utf-8")
    case = {run: f"{run}.csv" for run in RUNS} | {"network": {"layers": 10, "hidden_dim": 1024, "tokens": 128} | shape}
    return own_case(folder, "flop_reconciliation", case, "toy")


def test_another_network_is_reconciled_and_what_is_not_known_is_said(tmp_path):
    case = network(tmp_path, lambda text: text.replace("ampere_sgemm_64x32_sliced1x4_nn", "ampere_sgemm_fancy_nn"))
    result = reduced(case)
    assert result["forward_gemm_flops"] == 2702704640
    assert result["forward_predicted_gemm_flops"] == "unknown"
    assert result["backward_predicted_gemm_flops"] == 5120196608
    result = reduced(network(tmp_path / "b", layers=5))
    assert result["forward_theoretical_gemm_flops"] == 2684354560 // 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"inst"',
            '"byte"',
            r"setup\.csv, launch 0, smsp__sass\w+_fadd_pred_on\.sum: the unit is 'byte' where inst is expected",
        ),
        ('"872448"', '"872448x"', r"setup\.csv, launch 0, smsp__\S+: '872448x' is not a number"),
        ("_fmul_", "_imul_", "the counter fmul was not collected; collect smsp__"),
    ],
)
def test_wrong_counters_are_one_line(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        reduced(network(tmp_path, lambda text: text.replace(old, new)))


def test_a_run_that_adds_nothing_is_refused(tmp_path):
    case = network(tmp_path)
    (tmp_path / "mine/forward.csv").write_text((tmp_path / "mine/setup.csv").read_text())
    with pytest.raises(InputError, match=r"forward\.csv, launch 4: nothing is launched beyond setup\.csv"):
        reduced(case)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{last}'] * 9)}]\n" for last, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{k{number}: {{<<: *{last}}}, {', '.join(f'l{i}: *{last}' for i in range(9))}}}\n"
    for number, (last, name) in enumerate(zip("abcdefgh", "bcdefghi", strict=True))
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("? [a, b]\n: 1", "not valid YAML"),
        ("a: *b", "not valid YAML"),
        ("a: !!python/object:os.system {}", "not valid YAML"),
        ("a: !!timestamp x", "line 1: not valid YAML: the tag tag:yaml.org,2002:timestamp asks for a type"),
        ("a: !!bool x", "not valid YAML"),
        ("a: [!!set {x}]", "not valid YAML"),
        ("title: " + "[" * 100_000, "line 1: nested deeper than 64 levels"),
        ("- " * 5000, "line 1: nested deeper than 64 levels"),
        ("".join("\n" + " " * depth + "a:" for depth in range(200)), "line 66: nested deeper than 64 levels"),
        (BOMB, "line 6: aliases expand to more than 200,000 values"),
        (MERGED, "aliases expand to more than 200,000 values"),
        ("a: " + "x" * 2**23, "more than the 4,194,304 that are read"),
        ("a: &a " + "x" * 2**20 + "\nb: [" + "*a, " * 50 + "]", "line 2: aliases expand to more than 200,000 values"),
        ("title: 0x" + "f" * 6000, "line 1, column 8: not valid YAML: a number of more than 64 bits"),
    ],
)
def test_hostile_yaml_is_one_line(tmp_path, text, message):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        schemas.load_yaml(file)
    assert len(str(raised.value)) < 1000


def test_a_line_stays_one_line_whatever_it_names():
    line = str(InputError("a\x1b[31m.csv", "line\n2", "x" * 10**6 + "\u202e", "say\udc80 it\rotherwise"))
    assert line.isprintable() and len(line) < 1000
    assert line.startswith("a\\x1b[31m.csv, line 2: xxx") and line.endswith("…; say\\udc80 it otherwise")
    line = str(InputError("a", "\x1b" * 500, "\u202e" * 500, "one of " + "x" * 2000))
    assert line.isprintable() and len(line) == 1000


def test_headers_are_text_on_a_page():
    page = tables.show(pd.DataFrame({"<img src=x onerror=alert(1)>": [1], "b": ["<b>"]})).to_html()
    assert "<img" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page and "&lt;b&gt;" in page


def test_markdown_of_cells_is_words(tmp_path):
    words = (
        "`x` <img src=x onerror=alert(1)> [k](javascript:alert(1)) ![t](http://a.invalid/p.png)\n\n<b>x</b>\n\n&lt;y"
    )
    output = nbformat.v4.new_output("display_data", data={"text/markdown": words})
    cell = nbformat.v4.new_code_cell("1", outputs=[output], execution_count=1)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "a.ipynb")
    pages.render(tmp_path / "a.ipynb", tmp_path / "a.html", ROOT / "workflow/templates", "t", {"label": "simulated"})
    page = (tmp_path / "a.html").read_text("utf-8")
    assert (
        "&lt;img src=x" in page and "<p>&lt;b&gt;x&lt;/b&gt;" in page and "<code>x</code>" in page and "&lt;y" in page
    )
    assert not any(bad in page for bad in ("<img", "javascript:", "a.invalid"))


def test_no_cell_of_a_table_is_a_formula_and_numbers_stay(tmp_path):
    texts = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "-1.5e3", "＝1+1"]
    frame = pd.DataFrame({"=cmd": texts, "n": [-1.5, 2.0, -3.0, 0.0, 1.0, 2.0, 3.0], "provenance": "simulated"})
    tables.write(frame, None, tmp_path, caption="c")
    rows = pd.read_csv(tmp_path / "table.csv")
    assert rows["'=cmd"].tolist() == ["'=1+1", "'+A1", "'-A1", "'@SUM(A1)", "'\t=1", "-1.5e3", "'＝1+1"]
    assert rows["n"].tolist() == frame["n"].tolist()


def test_dates_and_numbers_in_base_60_stay_text(tmp_path):
    file = tmp_path / "a.yaml"
    # Read as a number, the last takes minutes.
    values = {"source": "2025-13-45", "title": "12:30", "note": "1:2.5", "license": "1" + ":1" * 10**6}
    file.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    assert schemas.load_yaml(file) == values


@pytest.mark.parametrize("path", ["a{b}.csv", "x" * 300, "a\nb.csv", ""])
def test_paths_that_snakemake_could_not_hold_are_refused(folder, path):
    with refused("cannot be a path here"):
        own_case(folder, "kernel_overhead", {"table": path})


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_would_be_read_for_ever_is_refused(tmp_path, make):
    folder = tmp_path / "mine"
    folder.mkdir()
    make(folder / "a.csv")
    with pytest.raises(InputError, match=r"kernel_overhead\.mine\.table: 'a\.csv' is a pipe or a device"):
        own_case(folder, "kernel_overhead", {"table": "a.csv"})


def test_knobs_of_the_wrong_type_are_named():
    case = Dataset.load(PUBLISHED / "dataset.yaml").case("kernel_overhead", "table2")
    with pytest.raises(InputError, match=r"knobs\.kernel_overhead\.dmat_probes: 'mem_trace' is not a list"):
        reduced(case, dmat_probes="mem_trace")
    with pytest.raises(InputError, match=r"knobs\.kernel_overhead: unknown key 'dmat'; known are: dmat_probes"):
        reduced(case, dmat=[])
    case = Dataset.load(PUBLISHED / "dataset.yaml").case("kernel_breakdown", "llama-3.1-8b")
    for wrong in ("many", 50.5, True):
        with pytest.raises(InputError, match=r"knobs\.kernel_breakdown\.largest_batch: .* is not a whole number"):
            reduced(case, largest_batch=wrong)
    case = Dataset.load(PUBLISHED / "dataset.yaml").case("warp_scheduling", "fig13a")
    with pytest.raises(InputError, match=r"knobs\.warp_scheduling\.gain_percent: 'x' is not a number; write a number"):
        reduced(case, gain_percent="x")


def test_hostile_names_are_text_on_every_page(checkout):
    folder, bad = checkout / "traces/mine", checkout / "traces/bad"
    folder.mkdir()
    bad.mkdir()
    # A dataset that nobody asks for stops nothing.
    (bad / "dataset.yaml").write_text("title: " + "[" * 100_000)
    evil = "<img src=x onerror=alert(1)> op$a_{$ | *b* \u202eknil\u2066 \x9b2J"
    probes = "".join(f"=cmd(),{evil},p{i},{1 + i}.5,{i * 9},false\n" for i in range(7))
    (folder / "t.csv").write_text(f"group,operator,probe,slowdown_ratio,extra_registers,spilled\n{probes}")
    content = {
        "title": evil,
        "kind": "recorded",
        "device": {"name": f"GPU \u202e {evil}"},
        "source": "costs $5 and $6 <script>alert(1)</script>",
        "license": evil,
        "files": {"t.csv": {"source": evil, "note": evil}},
        "studies": {"kernel_overhead": {"one": {"table": "t.csv"}}},
    }
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    done = snakemake(checkout, "--config", "datasets=[mine]", "datasets_online=[]")
    assert done.returncode == 0, done.stderr[-3000:]
    results = checkout / "results"
    for page in [*results.rglob("*.html"), *results.rglob("*.svg"), *results.rglob("*.md")]:
        text = page.read_text("utf-8")
        assert "<img src=x" not in text and "<script>alert" not in text, page
    texts = [file for file in results.rglob("*") if file.suffix in {".html", ".svg", ".md", ".csv", ".tex", ".json"}]
    assert len(texts) > 20 and [file for file in texts if HIDDEN.search(file.read_text("utf-8"))] == []
    own = results / "mine/kernel_overhead/one"
    assert "costs $5 and $6" in json.loads((own / "provenance.json").read_text("utf-8"))["source"]
    assert "'=cmd()" in (own / "table.csv").read_text("utf-8")
    assert not latex.lint((own / "table.tex").read_text("utf-8"))
    assert "\u202e" not in done.stderr + done.stdout
