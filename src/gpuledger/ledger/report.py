"""Reports across cases: tables of all quantities, the scorecard page and the gallery."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpuledger import __version__
from gpuledger.ledger import claims, provenance
from gpuledger.ledger.case_result import Value, text
from gpuledger.ledger.claims import Outcome
from gpuledger.ledger.study import read_studies


def read_outcomes(summaries: Iterable[str | Path]) -> list[Outcome]:
    """Read each case's ``summary.json`` and the ``provenance.json`` next to it, in the given order."""
    outcomes = []
    for file in map(Path, summaries):
        record = json.loads(file.with_name("provenance.json").read_text("utf-8"))
        summary = json.loads(file.read_text("utf-8"))
        outcomes.append(Outcome(record["dataset"], record["study"], record["case"], summary, record))
    return outcomes


def ledger(outcomes: Iterable[Outcome], form: Callable[[Value], str] = text) -> pd.DataFrame:
    """Return one row per quantity: ``dataset, case, quantity, value, unit, provenance``; `form` formats the values."""
    rows = [
        (outcome.dataset, outcome.case, quantity, form(entry["value"]), entry["unit"], outcome.label)
        for outcome in outcomes
        for quantity, entry in outcome.summary.items()
    ]
    return pd.DataFrame(rows, columns=["dataset", "case", "quantity", "value", "unit", "provenance"])


def _environment(templates: Path) -> Environment:
    # Kernel names and sources are data, so everything is escaped.
    loader = FileSystemLoader([templates, templates / "page"])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def scorecard_page(card: pd.DataFrame, titles: Mapping[str, str], templates: Path) -> str:
    """Return the HTML page of a scorecard; `titles` are the studies' titles by name."""
    rows = _rows(card, titles)
    tested: dict[str, list[dict]] = {}
    for row in rows:
        if row["group"] == "tested independently":
            tested.setdefault(row["title"], []).append(row)
    words = {
        "headline": _headline(rows),
        "counts": claims.counts(card),
        "squares": None,
        "tested": sorted(tested.items()),
        "differing": [row for row in rows if row["verdict"] == claims.DIFFERS],
        "errors": [row for row in rows if row["verdict"] == claims.SOURCE_ERROR],
        "rows": rows,
        "facets": [_facet(rows, "verdict"), _facet(rows, "kind", "provenance"), _facet(rows, "study", words=titles)],
    }
    return _environment(templates).get_template("scorecard.html.j2").render(words)


def gallery_page(outcomes: Iterable[Outcome], card: pd.DataFrame, root: Path, templates: Path) -> str:
    """Return the HTML page of all claims and figures.

    Parameters
    ----------
    outcomes : iterable of Outcome
    card : DataFrame
        The scorecard.
    root : path
        The page's folder, ``results/``.
    templates : path
    """
    studies = read_studies()
    titles = {name: study.title for name, study in studies.items()}
    cards = sorted((_card(outcome, root) for outcome in outcomes), key=lambda card: card["study"])
    rows = _rows(card, titles)
    squares: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        squares.setdefault((row["group"], row["verdict"]), []).append(row)
    words = {
        "version": __version__,
        "headline": _headline(rows),
        "counts": claims.counts(card),
        "squares": squares,
        "cards": cards,
        "studies": [study for study in studies.values() if study.name in {card["study"] for card in cards}],
        "facets": [_facet(cards, "kind", "provenance"), _facet(cards, "study", words=titles), _facet(cards, "dataset")],
    }
    return _environment(templates).get_template("gallery.html.j2").render(words)


def claims_of_case(content: Mapping, outcome: Outcome) -> list[dict]:
    """Return what a case's own page says of its claims: anchor, words, reproduced value and verdict of each."""
    card = claims.scorecard({outcome.study: content}, [outcome])
    return _rows(card[card["dataset"] == outcome.dataset], {outcome.study: ""})


def _rows(card: pd.DataFrame, titles: Mapping[str, str]) -> list[dict]:
    """Return the rows of a scorecard with the words and names that pages need."""
    rows = claims.for_people(card).to_dict("records")
    for row in rows:
        difference = row["relative_difference"]
        known = difference != "" and not pd.isna(difference)
        row["difference"] = (f"{100 * float(difference):+.2g} %" if float(difference) else "0") if known else ""
        row["anchor"] = f"{row['dataset'] or 'none'}--{row['case'] or 'none'}--{row['id']}"
        row["kind"] = row["provenance"].split(",")[0].split(" ")[0]
        row["group"], row["title"] = claims.group(row), titles[row["study"]]
        row["name"], row["measure"] = claims.in_words(row)
        row["words"] = f"{row['name']}: {row['published']}{row['measure']}."
        row["said"] = f"{row['words']} {row['verdict'].capitalize()}"
        if row["dataset"]:
            row["said"] += f": {row['reproduced']} ({row['dataset']})"
    return rows


def _headline(rows: list[dict]) -> str:
    verdicts = [row["verdict"] for row in rows if row["group"] == "tested independently"]
    differ = verdicts.count(claims.DIFFERS)
    wrong = sum(row["verdict"] == claims.SOURCE_ERROR for row in rows)
    return (
        f"Of {len(verdicts)} independent tests of claims, {len(verdicts) - differ} agree and {differ} differ; "
        f"{wrong} error{'s' * (wrong != 1)} found in the source documents"
    )


def _facet(rows: list[dict], name: str, title: str = "", words: Mapping[str, str] | None = None) -> dict:
    """Return a facet of the pages' filter: few choices are chips, many a list."""
    values = list(dict.fromkeys(row[name] for row in rows))
    if name != "verdict":
        values.sort()
    choices = [(value, (words or {}).get(value, value)) for value in values]
    return {"name": name, "title": title or name, "choices": choices, "chips": name in ("verdict", "kind")}


def _card(outcome: Outcome, root: Path) -> dict:
    folder = Path(outcome.dataset, outcome.study, outcome.case)
    figures = sorted(file.stem for file in (root / folder).glob("figure*.svg"))
    finding = outcome.summary.get("finding", {}).get("value", "")
    return {
        "study": outcome.study,
        "title": read_studies()[outcome.study].title,
        "case": outcome.case,
        "dataset": outcome.dataset,
        "folder": folder.as_posix(),
        "kind": outcome.record["kind"],
        "label": outcome.label,
        "finding": finding,
        # Of the figure's headline, which says the same: thumbnails are cropped by so much.
        "lines": len(textwrap.wrap(finding, 88)),
        "caption": provenance.caption(outcome.record),
        "notes": list(dict.fromkeys(entry["note"] for entry in outcome.record["inputs"] if "note" in entry)),
        "figures": figures,
    }
