"""Pages: executed notebooks as self-contained HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import nbformat
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter

from gpuledger import files

# $$…$$, and $…$ without white space just inside the signs (a price is not a formula).
_BLOCK = r"\$\$(?P<block>.+?)\$\$"
_INLINE = r"(?<![\\$])\$(?P<inline>[^\s$](?:(?:(?!\n\n)[^$])*[^\s$])?)\$(?!\d)"
_FORMULA = re.compile(f"{_BLOCK}|{_INLINE}", re.DOTALL)
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def render(
    notebook: str | Path,
    output: str | Path,
    templates: str | Path,
    title: str,
    record: Mapping,
    around: Mapping | None = None,
) -> None:
    """Render an executed notebook to one HTML page.

    Images are embedded, formulas are MathML, and the page loads nothing from elsewhere.

    Parameters
    ----------
    notebook : path
        An executed notebook.
    output : path
        The page.
    templates : path
        The folder that holds the template ``page``.
    title : str
    record : mapping
        The ``provenance.json`` of its numbers. Its ``warnings`` go to the top of the page.
    around : mapping, optional
        What the page says besides: ``finding`` (of the case, which describes its figures), ``claims`` (rows of
        `gpuledger.ledger.report.claims_of_case`), ``previous`` and ``next`` (``<study>/<case>`` of the same dataset).
    """
    content = nbformat.read(notebook, as_version=4)
    about = {"finding": title, "claims": [], "previous": None, "next": None} | dict(around or {})
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = formulas_to_mathml(cell.source)
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    for number, picture in enumerate(pictures):
        of_all = f" (figure {number + 1} of {len(pictures)})" if len(pictures) > 1 else ""
        picture.metadata.setdefault("image/png", {})["alt"] = about["finding"] + of_all
    exporter = HTMLExporter(template_name="page", extra_template_basedirs=[str(templates)])
    metadata = {
        "name": title,
        "record": record,
        "verdicts": Counter(row["verdict"] for row in about["claims"]),
        **about,
    }
    html, _ = exporter.from_notebook_node(content, {"metadata": metadata})
    files.write_text(output, html)


def formulas_to_mathml(markdown: str) -> str:
    """Replace the TeX formulas of a Markdown text by MathML, except inside code."""
    parts = _CODE.split(markdown)
    parts[::2] = [_FORMULA.sub(_formula, part) for part in parts[::2]]
    return "".join(parts)


def _formula(match: re.Match) -> str:
    display = "block" if match["block"] else "inline"
    # Markdown could end the paragraph, and with it the formula, at a line break.
    return mathml((match["block"] or match["inline"]).strip(), display=display).replace("\n", " ")
