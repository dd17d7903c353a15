"""Notebooks: executed with papermill and rendered to self-contained HTML pages."""

from __future__ import annotations

import html
import logging
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter

from gpuledger import __version__, files
from gpuledger.errors import InputError
from gpuledger.ledger import latex, provenance

log = logging.getLogger(__name__)

# $$…$$, and $…$ without white space just inside the signs (a price is not a formula).
_STARTS = 4
_BLOCK = r"\$\$(?P<block>.+?)\$\$"
_INLINE = r"(?<![\\$])\$(?P<inline>[^\s$](?:(?:(?!\n\n)[^$])*[^\s$])?)\$(?!\d)"
_FORMULA = re.compile(f"{_BLOCK}|{_INLINE}", re.DOTALL)
_HEADINGS = re.compile(r'<h2 id="([^"]*)">(.*?)<a class="anchor-link"', re.DOTALL)
#: Where the template wants the list of headings.
_CONTENTS = "<!-- contents -->"
_ABOVE = '<p class="meta">The figure is <a href="#figure">at the top of the page</a>.</p>'
#: Tables of more quantities are folded.
_LONGEST = 15
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def execute(notebook: str | Path, output: str | Path, parameters: Mapping[str, Any]) -> None:
    """Execute a notebook with papermill and write it to `output`.

    Raises
    ------
    InputError
        A cell met bad input; with its one line.
    papermill.PapermillExecutionError
        A cell failed for another reason.
    """
    with files.replacing(output) as temporary:
        try:
            _run(notebook, temporary, parameters)
        except papermill.PapermillExecutionError as error:
            if error.ename == "InputError":
                problem = re.sub(r"\s+", " ", error.evalue)
                raise InputError(notebook, f"cell {error.cell_index}", problem, "correct the input") from None
            raise
        _drop_standard_error(temporary)


def _drop_standard_error(notebook: Path) -> None:
    """Move what cells wrote to standard error to the log: it names folders of this machine."""
    content, found = nbformat.read(notebook, as_version=4), False
    for cell in content.cells:
        outputs = cell.get("outputs", [])
        kept = [output for output in outputs if output.get("name") != "stderr"]
        if len(kept) < len(outputs):
            log.warning("".join(output.text for output in outputs if output.get("name") == "stderr").rstrip())
            cell.outputs, found = kept, True
    if found:
        nbformat.write(content, notebook)


def _run(notebook: str | Path, output: Path, parameters: Mapping[str, Any]) -> None:
    for attempt in range(_STARTS):
        try:
            papermill.execute_notebook(
                str(notebook),
                str(output),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                log_output=False,
                # Written when it is done: after each cell, the whole notebook would be validated and written again.
                request_save_on_cell_execute=False,
                autosave_cell_every=0,
                # ipykernel warns about TCP on stderr; a graceful shutdown of the kernel can stall for seconds.
                extra_arguments=["--log-level=ERROR"],
                shutdown_kernel="immediate",
            )
            return
        except RuntimeError as error:
            # Kernels that start at the same time may pick the same free ports; one of them then dies before its first
            # cell, so it is safe to start again.
            if "replying to kernel_info" not in str(error) or attempt == _STARTS - 1:
                raise


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
    heading = _take_heading(content)
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = formulas_to_mathml(cell.source)
        for part in cell.get("outputs", []):
            _arrange(part, about["finding"])
    exporter = HTMLExporter(template_name="page", extra_template_basedirs=[str(templates)])
    metadata = {
        "name": title,
        "heading": heading or title,
        "picture": _take_picture(content, about["finding"]),
        "record": record,
        "citation": citation(record),
        "verdicts": Counter(row["verdict"] for row in about["claims"]),
        **about,
    }
    page, _ = exporter.from_notebook_node(content, {"metadata": metadata})
    contents = "".join(f'<li><a href="#{name}">{words}</a></li>' for name, words in _HEADINGS.findall(page))
    files.write_text(output, page.replace(_CONTENTS, contents, 1))


def citation(record: Mapping) -> str:
    """Return a BibTeX entry for a case: what its numbers are and where they come from, by its provenance record."""
    path = [str(record[name]) for name in ("dataset", "study", "case") if name in record]
    said = f"{record['label']}; {provenance.sources(record)}" if "inputs" in record else record["label"]
    fields = {
        "author": "{The gpuledger developers}",
        "title": f"gpuledger: {'/'.join(path)}",
        "note": f"{said}; gpuledger {record.get('gpuledger', __version__)}",
    }
    lines = [f"  {name} = {{{text if name == 'author' else latex.escape(text)}}}," for name, text in fields.items()]
    return "\n".join([f"@misc{{{'-'.join(['gpuledger', *path])},", *lines, "}"])


def _take_heading(content: nbformat.NotebookNode) -> str | None:
    """Cut the heading off the first cell: the page begins with it, above finding and figure."""
    first = content.cells[0] if content.cells else None
    found = first is not None and first.cell_type == "markdown" and re.match(r"# ([^\n`$]+)\n*", first.source)
    if not found:
        return None
    first.source = first.source[found.end() :]
    return found[1].strip()


def _take_picture(content: nbformat.NotebookNode, finding: str) -> dict | None:
    """Move the first figure to the top of the page, leave a link in its place, and describe the other ones."""
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    for number, picture in enumerate(pictures):
        of_all = f" (figure {number + 1} of {len(pictures)})" if len(pictures) > 1 else ""
        picture.metadata.setdefault("image/png", {})["alt"] = finding + of_all
    if not pictures:
        return None
    first = pictures[0]
    taken = {"png": "".join(first.data["image/png"].split()), **first.metadata["image/png"]}
    first.data, first.metadata = nbformat.NotebookNode({"text/html": _ABOVE}), nbformat.NotebookNode()
    return taken


def _arrange(output: nbformat.NotebookNode, finding: str) -> None:
    """Drop a repetition of the finding, which the page begins with, and fold a long table of quantities."""
    data = output.get("data", {})
    words = data.get("text/markdown", "")
    if words.startswith("**") and re.sub(r"[\\*]", "", html.unescape(words)).strip() == finding:
        data["text/markdown"] = ""
    table = data.get("text/html", "")
    rows = table.count("<tr>") - 1
    if rows > _LONGEST and re.search(r"<th[^>]*>quantity</th>", table):
        data["text/html"] = f"<details><summary>{rows} quantities</summary>{table}</details>"


def formulas_to_mathml(markdown: str) -> str:
    """Replace the TeX formulas of a Markdown text by MathML, except inside code."""
    parts = _CODE.split(markdown)
    parts[::2] = [_FORMULA.sub(_formula, part) for part in parts[::2]]
    return "".join(parts)


def _formula(match: re.Match) -> str:
    display = "block" if match["block"] else "inline"
    # Markdown could end the paragraph, and with it the formula, at a line break.
    return mathml((match["block"] or match["inline"]).strip(), display=display).replace("\n", " ")
