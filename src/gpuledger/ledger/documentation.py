"""Documentation: the Markdown files of a checkout as a small offline site, with the pages' style."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from nbconvert.filters import markdown2html

from gpuledger import __version__, schemas
from gpuledger.ledger import report
from gpuledger.ledger.claims import Outcome
from gpuledger.ledger.pages import HEADINGS, formulas_to_mathml

#: In a checkout: the files that are pages, and their names.
LIST = "resources/documentation.yaml"
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_CASE = re.compile(r"results/([^/]+/[^/]+/[^/]+)")
_STUDY = re.compile(r"^## .+ \(`(\w+)`\)$", re.MULTILINE)
_CELL = re.compile(r"(?<=<code>)[^<]+(?=</code>[^\n]*</td>)")


def build(root: Path, outcomes: Iterable[Outcome], templates: Path) -> dict[str, str]:
    """Return the pages of the documentation by file name, for a folder ``results/docs``.

    Parameters
    ----------
    root : path
        The checkout, which holds `LIST` and the files that it names.
    outcomes : iterable of Outcome
        Cases: below the heading of a study comes the figure of its first one that lacks no quantity.
    """
    first: dict[str, Outcome] = {}
    for outcome in sorted(outcomes, key=lambda outcome: sum(outcome.get(name) is None for name in outcome.summary)):
        first.setdefault(outcome.study, outcome)
    pages = schemas.load_yaml(root / LIST)
    sources = {name: (root / file).read_text("utf-8") for file, name in pages.items()}
    titles = {name: re.match(r"# (.+)", text)[1] for name, text in sources.items()}
    leads = {name: re.split(r"\n\s*\n", text)[1] for name, text in sources.items()}
    found = {}
    template = report.environment(templates).get_template("docs.html.j2")
    for file, name in pages.items():
        text = _relinked(sources[name], file, pages)
        body = _html(_STUDY.sub(lambda heading: _with_figure(heading, first), text))
        about = {
            "name": name,
            "titles": titles,
            "body": body,
            "contents": HEADINGS.findall(body),
            "version": __version__,
        }
        found[f"{name}.html"] = template.render(about)
    listed = "\n".join(
        f"## [{titles[name]}]({name}.html)\n\n{_relinked(leads[name], file, pages)}\n"
        for file, name in pages.items()
        if not leads[name].startswith(("#", "|"))
    )
    body = _html(f"# Documentation\n\n{listed}")
    about = {"name": "index", "titles": titles, "body": body, "contents": [], "version": __version__}
    return found | {"index.html": template.render(about)}


def _with_figure(heading: re.Match, first: Mapping[str, Outcome]) -> str:
    """Return a study's heading with its name as an anchor, and with a figure of it, which leads to its page."""
    anchored = f'<a id="{heading[1]}"></a>\n\n{heading[0]}'
    outcome = first.get(heading[1])
    if outcome is None:
        return anchored
    folder = f"../{outcome.dataset}/{outcome.study}/{outcome.case}"
    # Findings are made of names that others gave.
    words = re.sub(r"[^\w\s.,:;%×()+-]", "", outcome.finding or outcome.case)
    return f"{anchored}\n\n[![{words}]({folder}/figure.png)]({folder}/notebook.html)"


def _relinked(text: str, file: str, pages: Mapping[str, str]) -> str:
    """Let links to other pages and to cases lead to pages, and those to other files from ``results/docs`` to them."""

    def moved(link: re.Match) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(file), link[1])).replace(os.sep, "/")
        if case := _CASE.fullmatch(target):  # its folder is for readers of the checkout
            return f"](../{case[1]}/notebook.html)"
        place = f"{pages[target]}.html" if target in pages else f"../../{target}"
        return f"]({place}{link[2] or ''})"

    return _LINK.sub(moved, text)


def _html(text: str) -> str:
    """Render Markdown; wide tables and code scroll by themselves, also by keys."""
    body = markdown2html(formulas_to_mathml(text))
    head = '<div class="table" tabindex="0" role="group" aria-label="Table">'
    body = body.replace("<table>", f"{head}<table>").replace("</table>", "</table></div>")
    # Paths in tables break behind a slash or an underscore.
    body = _CELL.sub(lambda cell: re.sub(r"(?<=[/_])(?=\w)", "<wbr>", cell[0]), body)
    return body.replace("<pre>", '<pre tabindex="0">')
