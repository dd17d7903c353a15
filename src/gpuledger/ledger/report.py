"""Reports across cases: tables of all quantities, the scorecard page and the gallery."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

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
    anchors = [f"{row.dataset or 'none'}--{row.case or 'none'}--{row.id}" for row in card.itertuples()]
    differences = [
        "" if pd.isna(value) else f"{100 * value:+.2g} %" if value else "0" for value in card["relative_difference"]
    ]
    kinds = [label.split(",")[0].split(" ")[0] for label in card["provenance"]]
    card = claims.for_people(card).assign(anchor=anchors, difference=differences, kind=kinds)
    groups = [(titles[study], rows.to_dict("records")) for study, rows in card.groupby("study", sort=True)]
    template = _environment(templates).get_template("scorecard.html.j2")
    return template.render(groups=groups, counts=claims.counts(card))


def gallery_page(
    outcomes: Iterable[Outcome],
    counts: Mapping[str, Mapping[str, int]],
    root: Path,
    templates: Path,
) -> str:
    """Return the HTML page of all figures.

    Parameters
    ----------
    outcomes : iterable of Outcome
    counts : mapping
        Of the scorecard's rows, by group and verdict.
    root : path
        The page's folder, ``results/``.
    templates : path
    """
    groups = []
    for study in read_studies().values():
        cards = [_card(outcome, root) for outcome in outcomes if outcome.study == study.name]
        if cards:
            groups.append({"name": study.name, "title": study.title, "question": study.question, "cards": cards})
    return _environment(templates).get_template("gallery.html.j2").render(groups=groups, counts=counts)


def _card(outcome: Outcome, root: Path) -> dict:
    folder = Path(outcome.dataset, outcome.study, outcome.case)
    figures = sorted(file.stem for file in (root / folder).glob("figure*.svg"))
    return {
        "case": outcome.case,
        "dataset": outcome.dataset,
        "folder": folder.as_posix(),
        "kind": outcome.record["kind"],
        "label": outcome.label,
        "finding": outcome.summary.get("finding", {}).get("value", ""),
        "caption": provenance.caption(outcome.record),
        "notes": list(dict.fromkeys(entry["note"] for entry in outcome.record["inputs"] if "note" in entry)),
        "figures": figures,
    }
