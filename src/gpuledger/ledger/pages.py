"""Pages: executed notebooks as self-contained HTML."""

import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import nbformat
from latex2mathml.converter import convert as mathml
from nbconvert.exporters.html import Highlight2HTML, HTMLExporter, TemplateExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from gpuledger import __version__, files
from gpuledger.ledger import latex, provenance
from gpuledger.ledger.claims import BY_CONSTRUCTION
from gpuledger.ledger.report import unbroken

# $$…$$, and $…$ without white space just inside the signs (a price is not a formula).
_BLOCK = r"\$\$(?P<block>.+?)\$\$"
_INLINE = r"(?<![\\$])\$(?P<inline>[^\s$](?:(?:(?!\n\n)[^$])*[^\s$])?)\$(?!\d)"
_FORMULA = re.compile(f"{_BLOCK}|{_INLINE}", re.DOTALL)
HEADINGS = re.compile(r'<h2 id="([^"]*)">(.*?)<a class="anchor-link"', re.DOTALL)
#: Where the template wants the list of headings.
_CONTENTS = "<!-- contents -->"
_ABOVE = '<p class="meta">The figure is <a href="#figure">at the top of the page</a>.</p>'
#: Tables of more quantities are folded.
_LONGEST = 15
_QUANTITY = re.compile(r'<td id="[^"]*_col0" (class="[^"]*")\s*>([\w.-]+)</td>')
_HEADERS = re.compile(r"<th\b[^>]*>([^<]+)</th>")
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
    templates : path
        The folder that holds the template ``page``.
    record : mapping
        The ``provenance.json`` of its numbers. Its ``warnings`` go to the top of the page.
    around : mapping, optional
        What the page says besides: ``finding`` (of the case, which describes its figures), ``claims`` (rows of
        `gpuledger.ledger.report.claims_of_case`), ``previous`` and ``next`` (``<study>/<case>`` of the same dataset),
        ``view`` (of `gpuledger.ledger.viewer.embed`, for looking closer).
    """
    content = nbformat.read(notebook, as_version=4)
    about = {"finding": title, "claims": [], "exports": [], "previous": None, "next": None, "view": None}
    about |= dict(around or {})
    heading = _take_heading(content)
    _take_reading(content)
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = formulas_to_mathml(cell.source)
        for part in cell.get("outputs", []):
            _arrange(part, about["finding"])
    beginning, *sections = _sections(content.cells)
    content.cells = sum(filter(_shows, sections), start=beginning)
    exporter = _exporter(str(Path(templates).resolve()))
    metadata = {
        "name": title,
        "heading": heading or title,
        "picture": _take_picture(content, about["finding"]),
        "record": record,
        "citation": citation(record),
        "verdicts": Counter(row["verdict"] for row in about["claims"]),
        "fitted": _fitted(about["claims"]),
        "model": re.sub(r"Simulated by gpuledger[,;]? ", "", provenance.sources(record)) if "inputs" in record else "",
        **about,
    }
    page, _ = exporter.from_notebook_node(content, {"metadata": metadata})
    contents = "".join(f'<li><a href="#{name}">{words}</a></li>' for name, words in HEADINGS.findall(page))
    files.write_text(output, page.replace(_CONTENTS, contents, 1))


class _Words(IPythonRenderer):
    """Renders the Markdown that cells write, with names from files of others: HTML is text, and nothing is loaded."""

    def __init__(self) -> None:
        super().__init__(escape=False, allow_harmful_protocols=False)

    def block_html(self, text: str) -> str:
        return f"<p>{html.escape(text)}</p>\n"

    def inline_html(self, text: str) -> str:
        return html.escape(text)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return text


class _Exporter(HTMLExporter):
    """Leaves out what nbconvert does last: parsing the page to describe figures, which takes longer than all before."""

    def from_notebook_node(self, nb, resources=None, **kw):
        self.register_filter("highlight_code", Highlight2HTML(parent=self))
        self.register_filter("words2html", lambda words: MarkdownWithMath(renderer=_Words()).render(words))
        return TemplateExporter.from_notebook_node(self, nb, self._init_resources(resources), **kw)


@cache
def _exporter(templates: str) -> _Exporter:
    exporter = _Exporter(template_name="page", extra_template_basedirs=[templates])
    exporter.register_filter("unbroken", unbroken)
    return exporter


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


def _fitted(rows: Sequence[Mapping]) -> str:
    """Return the published values that a simulation was made to give, in words."""
    claims = [row["words"].removesuffix(".") for row in rows if row["verdict"] == BY_CONSTRUCTION]
    more = [f"{len(claims) - 2} more"] if len(claims) > 2 else []
    return "; ".join(claims[:2] + more) or "nothing that is published"


def _take_heading(content: nbformat.NotebookNode) -> str | None:
    """Cut the heading off the first cell: the page begins with it, above finding and figure."""
    first = content.cells[0] if content.cells else None
    found = first is not None and first.cell_type == "markdown" and re.match(r"# ([^\n`$]+)\n*", first.source)
    if not found:
        return None
    first.source = first.source[found.end() :]
    return found[1].strip()


def _main_picture(cells: Iterable[nbformat.NotebookNode]) -> nbformat.NotebookNode | None:
    """Return the output of the first figure that was saved, which has its headline; of none that was, of the first."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    saved = (picture for picture in pictures if "headline" in picture.metadata.get("image/png", {}))
    return next(saved, pictures[0] if pictures else None)


def _take_reading(content: nbformat.NotebookNode) -> None:
    """Move the paragraph below the main figure, which says how to read it, to the top of the page, too.

    A formula, or a heading, begins something else.
    """
    picture = _main_picture(content.cells)
    shown = (any(output is picture for output in cell.get("outputs", [])) for cell in content.cells)
    at = next((number for number, has_picture in enumerate(shown) if has_picture), len(content.cells))
    below = content.cells[at + 1 : at + 2]
    if below and below[0].cell_type == "markdown":
        words, _, rest = below[0].source.partition("\n\n")
        if not words.startswith("#") and "$" not in words:
            below[0].source = rest
            content.cells.insert(0, nbformat.from_dict({**below[0], "id": "reading", "source": words}))


def _take_picture(content: nbformat.NotebookNode, finding: str) -> dict | None:
    """Move the main figure to the top of the page, leave a link in its place, and describe the other ones.

    ``lines`` of it are a headline that says the finding once more.
    """
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    for number, picture in enumerate(pictures):
        of_all = f" (figure {number + 1} of {len(pictures)})" if len(pictures) > 1 else ""
        picture.metadata.setdefault("image/png", {})["alt"] = finding + of_all
    if not pictures:
        return None
    first = _main_picture(content.cells)
    taken = {"png": "".join(first.data["image/png"].split()), "headline": "", **first.metadata["image/png"]}
    same = taken["headline"].split() == finding.split()
    taken["lines"] = len(taken["headline"].splitlines()) if same else 0
    first.data, first.metadata = nbformat.NotebookNode({"text/html": _ABOVE}), nbformat.NotebookNode()
    return taken


def _sections(cells: Iterable[nbformat.NotebookNode]) -> list[list[nbformat.NotebookNode]]:
    """Divide cells where one begins with a heading."""
    sections: list[list[nbformat.NotebookNode]] = [[]]
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            sections.append([])
        sections[-1].append(cell)
    return sections


def _shows(section: Sequence[nbformat.NotebookNode]) -> bool:
    """Whether a section is text only, or its code shows something; it does not where a case has no such thing."""
    code = [cell for cell in section if cell.cell_type == "code" and cell.source.strip()]
    outputs = [output for cell in code for output in cell.outputs]
    data = [{"text": output.get("text"), **output.get("data", {}), "text/plain": ""} for output in outputs]
    return not code or any(any(each.values()) for each in data)


def _arrange(output: nbformat.NotebookNode, finding: str) -> None:
    """Drop a repetition of the finding, which the page begins with, and tables without rows.

    Rows of quantities are named, and many of them folded.
    """
    data = output.get("data", {})
    words = data.get("text/markdown", "")
    if words.startswith("**") and re.sub(r"[\\*]", "", html.unescape(words)).strip() == finding:
        data["text/markdown"] = ""
    table = data.get("text/html", "")
    headers = _HEADERS.findall(table)
    if not headers:
        return
    # The scorecard leads to a claim's quantity.
    table = _QUANTITY.sub(r'<td id="q-\2" \1>\2</td>', table) if "quantity" in headers else table
    # Wide tables scroll by themselves, also by keys.
    table = f'<div class="table" tabindex="0" role="group" aria-label="Table: {", ".join(headers[:3])}">{table}</div>'
    rows = table.count("<tr>") - 1
    fold = "quantity" in headers and rows > _LONGEST
    data["text/html"] = (
        f"<details><summary>{rows} quantities</summary>{table}</details>" if fold else table * (rows > 0)
    )


def formulas_to_mathml(markdown: str) -> str:
    """Replace TeX formulas in Markdown by MathML and keep percent signs with their numbers, except inside code."""
    parts = _CODE.split(markdown)
    parts[::2] = [_FORMULA.sub(_formula, unbroken(part)) for part in parts[::2]]
    return "".join(parts)


def _formula(match: re.Match) -> str:
    display = "block" if match["block"] else "inline"
    # Markdown could end the paragraph, and with it the formula, at a line break.
    formula = mathml((match["block"] or match["inline"]).strip(), display=display).replace("\n", " ")
    # On a phone a wide formula scrolls, also by keys.
    return formula.replace('display="block"', 'display="block" tabindex="0"')
