"""LaTeX tables: what LaTeX takes, what fits a page, and that the linter finds what does not."""

import re
import shutil
import subprocess

import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger import latex, paper
from gpuledger.ledger.claims import Outcome

NASTY = "void <unnamed>::k_1<(int)4>(float*) | 5% & $x$ # {~^} \\ [`a`]"


def write(columns, numeric, caption="c"):
    return latex.table(pd.DataFrame(columns), caption, "tab:a", numeric)


def test_numbers_are_aligned_by_siunitx_and_other_cells_are_kept_from_it():
    text = write({"kernel": ["a", "b", "c"], "times": ["1,234.5", "-2.2", "–"]}, [False, True])
    assert r"\begin{tabular}{lS[table-format=+4.1]}" in text
    assert re.findall(r"& (.*) \\\\", text) == ["{times}", "1234.5", "-2.2", "{--}"]
    assert latex.lint(text) == []


def test_a_column_has_five_digits_of_its_largest_number():
    text = write({"a": ["1,234.5", "0.25", "0.00123", "0", "+12.34"], "b": ["0.1234567"] * 5}, [True, True])
    assert [row.split(" & ")[0] for row in re.findall(r"(.*) \\\\", text)[1:]] == [
        *("1234.5", "0.2", r"{\textless{}0.1}", "0", "+12.3")
    ]
    assert "0.12346" in text and latex.lint(text) == []


def test_what_all_rows_say_is_said_once():
    columns = {"phase": ["prefill", "prefill", "decode", "decode"], "type": ["bf16"] * 4, "time": ["1", "2", "3", "4"]}
    text = write(columns, [False, False, True], "Times.")
    assert r"\caption{Times. In every row type: bf16.}" in text
    body = text.split("\\midrule\n")[1].splitlines()
    assert body[:5] == [r"prefill & 1 \\", r" & 2 \\", r"\addlinespace", r"decode & 3 \\", r" & 4 \\"]
    assert latex.lint(text) == []


def test_long_headers_break_and_long_texts_wrap():
    columns = {"operator": [NASTY * 2, "b"], "note": ["word " * 40, ""]}
    columns |= {f"median error of the model {number}": ["1.5", "2"] for number in range(6)}
    text = write(columns, [False, False] + [True] * 6)
    assert r"{\shortstack[c]{median \\ error of \\ the model \\ 0}}" in text
    assert text.count(r">{\raggedright\arraybackslash}p{") == 2 and r"\allowbreak{}" in text
    assert text.startswith(r"\begin{table*}") and latex.lint(text) == []


def test_a_table_taller_than_a_page_continues_in_another_float():
    columns = {"phase": ["prefill"] * 100, "a": [str(number) for number in range(100)]}
    text = write(columns, [False, True], caption="√2")
    assert text.count(r"\begin{table}[tp]") == 3 and text.count(r"\caption{$\surd$2}\label{tab:a}") == 1
    assert text.count(r"\toprule") == 3 and text.count(r"\textit{Table~\ref{tab:a}, continued}") == 2
    assert text.count("prefill &") == 3 and latex.lint(text) == []


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
        (GOOD.replace("{table}", "{longtable}"), "longtable"),
    ],
)
def test_the_linter_finds(bad, words):
    assert latex.lint(GOOD) == []
    assert any(words in line for line in latex.lint(bad))


def test_the_linter_measures_each_table_in_its_own_size():
    wide = {"note": ["y" * 14 for _ in range(2)]} | {f"n{number}": ["y" * 14, "z"] for number in range(7)}
    small, narrow = write(wide, [False] * 8), GOOD.replace("tab:a", "tab:b")
    assert "\\scriptsize" in small and "\\small" in narrow
    assert latex.lint(narrow + small) == []


@pytest.fixture
def document(tmp_path):
    """A document of one case, whose figures are single pages."""
    import matplotlib.pyplot as plt

    folder = tmp_path / "mine/kernel_overhead/table2"
    folder.mkdir(parents=True)
    for name in ("figure", "figure_column"):
        plt.figure(figsize=(3, 2)).savefig(folder / f"{name}.pdf")
    plt.close("all")
    nasty = write({"operator": [NASTY, "é"], "slowdown (×)": ["1,234.5", "–"]}, [False, True], NASTY)
    columns = {"phase": ["prefill"] * 40 + ["decode"] * 60, "kernel": [NASTY] * 100, "note": ["word " * 30] * 99 + [""]}
    columns |= {f"time of kernel {number} (µs)": ["1,234.567", "-0.00012"] * 50 for number in range(7)}
    wide = write(columns, [False] * 3 + [True] * 7, "Wide and tall.").replace("tab:a", "tab:wide")
    (folder / "table.tex").write_text(nasty + wide, "utf-8")
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
        "mine/kernel_overhead/table2/table",
        "mine/kernel_overhead/table2/figure_column.pdf",
    ]
    assert text.count(r"\caption{5 \% of \& slow. Recorded on an L4.}") == 2


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_document_compiles_without_overfull_boxes(document):
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", document.name]
    done = subprocess.run(command, cwd=document.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout and "Float too large" not in done.stdout


def test_tracked_tables_fit_the_paper():
    tables = sorted([*ROOT.glob("results/*/*/*/*.tex"), *ROOT.glob("results/tables/**/*.tex")])
    wrong = {str(table.relative_to(ROOT)): latex.lint(table.read_text("utf-8")) for table in tables}
    assert tables and not {name: found for name, found in wrong.items() if found}
