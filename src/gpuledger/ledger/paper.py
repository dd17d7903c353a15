"""A LaTeX document of two columns that includes every figure and table of a set of cases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuledger.ledger import latex
from gpuledger.ledger.claims import Outcome
from gpuledger.ledger.study import read_studies

_OPENING = r"""\documentclass[10pt,twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[letterpaper,textwidth=7in,textheight=9in,columnsep=0.33in]{geometry}
\usepackage{array,booktabs,graphicx,longtable,siunitx,textcomp}
\sisetup{group-separator={,},group-minimum-digits=4}
\extrafloats{500}
\title{gpuledger: every figure and table}
\author{}
\date{}
\begin{document}
\maketitle
"""


def document(outcomes: Iterable[Outcome], folder: Path) -> str:
    """Return the document.

    Floats first, study by study; tables that break over pages follow in one column, where LaTeX permits them.

    Parameters
    ----------
    outcomes : iterable of Outcome
    folder : path
        Of the document, ``results/paper``; figures and tables are found from there.
    """
    lines, long = [], []
    for outcome in outcomes:
        study, case = read_studies()[outcome.study], f"{outcome.dataset}/{outcome.study}/{outcome.case}"
        place = f"../{case}"
        finding = outcome.summary.get("finding", {}).get("value", study.title)
        words = latex.escape(f"{finding}. {outcome.label[:1].upper()}{outcome.label[1:]}.")
        figures = [(name, "figure*", r"\textwidth") for name in study.figures]
        figures += [("figure_column", "figure", r"\columnwidth")] * study.column
        for name, environment, width in figures:
            label = "fig:" + "-".join([*case.split("/"), *[name] * (name != "figure")])
            lines += [f"\\begin{{{environment}}}[t]", "\\centering"]
            lines += [f"\\includegraphics[width={width},height=0.8\\textheight,keepaspectratio]{{{place}/{name}.pdf}}"]
            lines += [f"\\caption{{{words}}}\\label{{{label}}}", f"\\end{{{environment}}}"]
        for name in study.tables:
            text = (folder.parent / case / f"{name}.tex").read_text("utf-8")
            (long if "longtable" in text else lines).append(f"\\input{{{place}/{name}}}")
        lines.append("\\clearpage")
    return "\n".join([_OPENING, *lines, "\\onecolumn", *long, "\\end{document}", ""])
