"""LaTeX tables: what LaTeX takes, what fits a page, and that the linter finds what does not."""

import re
import shutil
import subprocess

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger import latex, paper
from gpuledger.ledger.claims import Outcome

NASTY = "void <unnamed>::k_1<(int)4>(float*) | 5% & $x$ # {~^} \\ [`a`]"


def write(columns, numeric, caption="c"):
    return latex.table(pd.DataFrame(columns), caption, "tab:a", numeric)


def test_numbers_are_aligned_by_siunitx_and_other_cells_are_kept_from_it():
    text = write({"kernel": ["a", "b", "c"], "times": ["1,234.5", "-2.25", "–"]}, [False, True])
    assert r"\begin{tabular}{lS[table-format=+4.2]}" in text
    assert re.findall(r"& (.*) \\\\", text) == ["{times}", "1234.5", "-2.25", "{--}"]
    assert latex.lint(text) == []


def test_long_headers_break_and_long_texts_wrap():
    columns = {"operator": [NASTY * 2, "b"], "note": ["word " * 40, ""]}
    columns |= {f"median error of the model {number}": ["1.5", "2"] for number in range(6)}
    text = write(columns, [False, False] + [True] * 6)
    assert r"{\shortstack[l]{median \\ error of \\ the model \\ 0}}" in text
    assert text.count(r">{\raggedright\arraybackslash}p{") == 2 and r"\allowbreak{}" in text
    assert latex.lint(text) == []


def test_a_table_of_more_than_50_rows_breaks_over_pages():
    text = write({"a": [str(number) for number in range(51)]}, [True], caption="√2")
    assert r"\begin{longtable}{S[table-format=2]}" in text and r"\caption{$\surd$2}\label{tab:a} \\" in text
    assert text.count(r"\toprule") == 2 and latex.lint(text) == []


@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), min_size=1, max_size=5), st.text(max_size=20))
def test_whatever_the_cells_hold_the_linter_finds_nothing(rows, header):
    frame = pd.DataFrame(rows, columns=[f"{header}a", f"{header}b"])
    assert latex.lint(latex.table(frame, header, "tab:a", [False, True])) == []


GOOD = write({"a": ["x"], "b": ["1"]}, [False, True])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GOOD.replace("x & 1", "x & 1 & 2"), "3 cells in 2 columns"),
        (GOOD.replace("x &", "x }&"), "closing"),
        (GOOD.replace("x &", "π &"), "'π' is unknown"),
        (GOOD.replace("x &", "y" * 150 + " &"), "pt wide"),
    ],
)
def test_the_linter_finds(bad, words):
    assert latex.lint(GOOD) == []
    assert any(words in line for line in latex.lint(bad))


@pytest.fixture
def document(tmp_path):
    """A document of one case, whose figures are single pages."""
    import matplotlib.pyplot as plt

    folder = tmp_path / "mine/kernel_overhead/table2"
    folder.mkdir(parents=True)
    for name in ("figure", "figure_column"):
        plt.figure(figsize=(3, 2)).savefig(folder / f"{name}.pdf")
    plt.close("all")
    table = write({"operator": [NASTY, "é"], "slowdown (×)": ["1,234.5", "–"]}, [False, True], NASTY)
    (folder / "table.tex").write_text(table, "utf-8")
    summary = {"finding": {"value": "5 % of & slow", "unit": "text"}}
    outcome = Outcome("mine", "kernel_overhead", "table2", summary, {"label": "recorded on an L4"})
    file = tmp_path / "paper/paper.tex"
    file.parent.mkdir()
    file.write_text(paper.document([outcome], file.parent), "utf-8")
    return file


def test_the_document_has_every_figure_and_table_once(document):
    text = document.read_text("utf-8")
    assert re.findall(r"\{\.\./([^}]*)\}", text) == [
        "mine/kernel_overhead/table2/figure.pdf",
        "mine/kernel_overhead/table2/figure_column.pdf",
        "mine/kernel_overhead/table2/table",
    ]
    assert text.count(r"\caption{5 \% of \& slow. Recorded on an L4.}") == 2


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_document_compiles_without_overfull_boxes(document):
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", document.name]
    done = subprocess.run(command, cwd=document.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
