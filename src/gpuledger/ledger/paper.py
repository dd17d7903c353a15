"""A LaTeX document of two columns that includes every figure and table of a set of cases."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from gpuledger.ledger import latex
from gpuledger.ledger.claims import Outcome
from gpuledger.ledger.study import Study, read_studies

_OPENING = r"""\documentclass[10pt,twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{mathptmx}
\usepackage[letterpaper,textwidth=7in,textheight=9in,columnsep=0.33in]{geometry}
\usepackage{array,booktabs,graphicx,siunitx,textcomp}
\usepackage[font=small,labelfont=bf,skip=4pt]{caption}
\sisetup{group-separator={,},group-minimum-digits=4,input-comparators={}}
\renewcommand{\topfraction}{0.95}
\renewcommand{\dbltopfraction}{0.95}
\renewcommand{\textfraction}{0.05}
\renewcommand{\floatpagefraction}{0.6}
\renewcommand{\dblfloatpagefraction}{0.6}
\setcounter{topnumber}{6}
\setcounter{dbltopnumber}{6}
\setcounter{totalnumber}{8}
\extrafloats{200}
\maxdeadcycles=1000
\hyphenpenalty=300
\emergencystretch=2em
\title{gpuledger: every figure and table}
\author{}
\date{}
\begin{document}
\maketitle
"""


def document(outcomes: Iterable[Outcome], folder: Path) -> str:
    """Return the document: a section for each study, and in it a paragraph, the figures and the tables of each case.

    Parameters
    ----------
    folder : path
        Of the document, ``results/paper``; figures and tables are found from there.
    """
    lines = []
    for name, cases in groupby(sorted(outcomes, key=lambda outcome: outcome.study), lambda outcome: outcome.study):
        study = read_studies()[name]
        lines += [f"\\section{{{latex.escape(study.title)}}}", latex.escape(study.question)]
        floats = []
        for outcome in cases:
            text, of_case = _case(study, outcome, folder)
            lines.append(text)
            floats += of_case
        # Narrow ones last, two on a page: among wide ones each would have a page for itself.
        lines += sorted(floats, key=lambda one: one.startswith("\\begin{figure}"))
        lines.append("\\clearpage")
    return "\n".join([_OPENING, *lines, "\\end{document}", ""])


def _case(study: Study, outcome: Outcome, folder: Path) -> tuple[str, list[str]]:
    """Return a case's paragraph and its floats."""
    case = f"{outcome.dataset}/{outcome.study}/{outcome.case}"
    finding = outcome.finding or study.title
    label = outcome.label[:1].upper() + outcome.label[1:]
    floats, figures, tables = [], [], []
    shown = [(name, "figure*", r"\textwidth") for name in study.figures]
    shown += [("figure_column", "figure", r"\columnwidth")]
    for name, environment, width in shown:
        figures.append("fig:" + "-".join([*case.split("/"), *[name] * (name != "figure")]))
        # At its own size, unless it would stick out.
        size = f"width={width},height=0.87\\textheight,keepaspectratio"
        lines = [f"\\begin{{{environment}}}[tp]", "\\centering"]
        lines += [f"\\includegraphics[{size}]{{../{case}/{name}.pdf}}"]
        said = finding
        if name not in ("figure", "figure_column"):
            # A further figure has a finding of its own, which stands above it.
            said = f"{outcome.dataset}, {outcome.case}: {name.removeprefix('figure_').replace('_', ' ')}"
        lines += [f"\\caption{{{latex.escape(f'{said}. {label}.')}}}\\label{{{figures[-1]}}}"]
        floats.append("\n".join([*lines, f"\\end{{{environment}}}"]))
    for name in study.tables:
        text = (folder.parent / case / f"{name}.tex").read_text("utf-8")
        if "\\midrule\n\\bottomrule" not in text:
            tables.append("tab:" + "-".join([*case.split("/"), *[name] * (name != "table")]))
            floats.append(f"\\input{{../{case}/{name}}}")
    places = [f"Figure~\\ref{{{label}}}" for label in figures] + [f"Table~\\ref{{{label}}}" for label in tables]
    text = f"{latex.escape(finding)} ({', '.join(places)}). {latex.escape(label)}."
    return f"\\paragraph{{{latex.escape(outcome.dataset)}, {latex.escape(outcome.case)}.}}\n{text}\n", floats
