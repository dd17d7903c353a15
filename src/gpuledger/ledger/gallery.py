"""The gallery: the questions, marks of claims, a card for every case, a map of the paper, and what is still missing."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from gpuledger import __version__
from gpuledger.ledger import claims, report
from gpuledger.ledger.claims import Outcome
from gpuledger.ledger.study import read_studies

_GPU = re.compile(r"\b(RTX[ -](?:PRO[ -])?\d{4}|(?:MI|GB|GH|[ABHLV])\d{1,3}[SX]?)\b", re.IGNORECASE)
#: Characters of a ribbon.
_LABEL = 36
#: From this many cases on, the page leaves out what a script can add.
_MANY = 200
#: The topic of studies that are in none.
_OTHERS = "Other studies"
_ABSENT = "not downloaded: "


def page(
    outcomes: Iterable[Outcome],
    card: pd.DataFrame,
    topics: Mapping[str, Sequence[str]],
    paper: Iterable[Mapping],
    root: Path,
    templates: Path,
) -> str:
    """Return the HTML page of all claims and figures.

    Parameters
    ----------
    topics : mapping of str to sequence of str
        Topics and their studies in the page's order, as in ``resources/topics.yaml``.
    paper : iterable of mapping
        The figures and tables of the paper, as in ``resources/paper.yaml``.
    root : path
        The page's folder, ``results/``.
    """
    studies, paper = read_studies(), list(paper)
    titles = {name: study.title for name, study in studies.items()}
    rows = report.rows_for_pages(card, titles)
    versions = [_version(outcome, paper, root) for outcome in outcomes]
    cards: dict[str, dict[str, list[dict]]] = {}
    for version in sorted(versions, key=lambda version: version["study"]):
        cards.setdefault(version["study"], {}).setdefault(version["case"], []).append(version)
    listed = {name for names in topics.values() for name in names}
    topics = {**topics, _OTHERS: [name for name in cards if name not in listed]}
    squares: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        squares.setdefault((row["group"], row["verdict"]), []).append(row)
    places = [entry["place"] for entry in paper if any(entry["place"] in version["paper"] for version in versions)]
    words = {
        "version": __version__,
        "headline": report.headline(rows),
        "counts": claims.counts(card),
        # What is no test needs no picture.
        "squares": {key: found for key, found in squares.items() if key[0] != claims.NO_TEST},
        "many": len(versions) > _MANY,
        "topics": [
            (topic, found)
            for topic, names in topics.items()
            if (found := [(studies[name], list(cards[name].values())) for name in names if name in cards])
        ],
        "count": len(versions),
        "paper": [_place(entry, rows, versions) for entry in paper],
        "missing": _missing(rows),
        "facets": [
            report.facet(versions, "kind", "provenance"),
            report.facet(versions, "study", words=titles),
            report.facet(versions, "gpu", "GPU"),
            report.facet(versions, "paper", "paper figure", order=places),
            report.facet(versions, "dataset"),
        ],
    }
    return report.environment(templates).get_template("gallery.html.j2").render(words)


def _version(outcome: Outcome, paper: list[Mapping], root: Path) -> dict:
    """Return what a card says of a case of one dataset."""
    folder = Path(outcome.dataset, outcome.study, outcome.case)
    return {
        "study": outcome.study,
        "case": outcome.case,
        "dataset": outcome.dataset,
        "folder": folder.as_posix(),
        "kind": outcome.record["kind"],
        # A ribbon has no room for more; the case's page has it.
        "label": outcome.label if len(outcome.label) <= _LABEL else outcome.record["kind"],
        "gpu": gpus(outcome),
        "paper": [entry["place"] for entry in paper if (outcome.study, outcome.case) == _case(entry)],
        "finding": outcome.finding,
        # Of the figure's headline, which says the same: thumbnails are cropped by so much.
        "lines": min(len(textwrap.wrap(outcome.finding, 88)), 4),
        "figure": (root / folder / "figure.png").exists(),
    }


def gpus(outcome: Outcome) -> list[str]:
    """Return the short names of the GPUs that a case is about: ``A100``, ``RTX 5070``, …"""
    record, summary = outcome.record, outcome.summary
    named = [(record.get("device") or {}).get("name"), *(entry.get("device") for entry in record["inputs"])]
    named += [summary.get(name, {}).get("value") for name in ("gpu", "hardware", "recorded_device")]
    found = [match for name in named if name for match in _GPU.findall(str(name))]
    return sorted({name.upper().replace("-", " ") for name in found})


def _case(entry: Mapping) -> tuple[str | None, str | None]:
    return entry.get("study"), entry.get("case")


def _place(entry: Mapping, rows: list[dict], versions: list[dict]) -> dict:
    """Return a row of the map of the paper: a published figure or table, what is here, the verdicts on its claims."""
    source = re.compile(rf"OSDI 2025\b.*{re.escape(entry['place'])}(?![0-9A-Za-z])")
    return {
        **{name: entry.get(name, "") for name in ("place", "shows", "target", "missing")},
        "here": [version for version in versions if entry["place"] in version["paper"]],
        "verdicts": Counter(row["verdict"] for row in rows if source.search(row["source"])),
    }


def _missing(rows: list[dict]) -> list[dict]:
    """Return a card for each dataset to download, and one for a GPU: how many claims wait for it, and the command."""
    waiting: dict[str, list[dict]] = {}
    for row in rows:
        if row["verdict"] == claims.NEEDS_DOWNLOAD:
            for dataset in row["why"].removeprefix(_ABSENT).split(", "):
                waiting.setdefault(dataset, []).append(row)
    cards = []
    for dataset, found in waiting.items():
        targets = dict.fromkeys(f"results/{dataset}/{row['study']}/{row['case']}/notebook.html" for row in found)
        command = f"snakemake --cores 4 {next(iter(targets))}"
        cards.append({"name": f"Dataset {dataset}", "claims": found, "cases": len(targets), "command": command})
    found = [row for row in rows if row["verdict"] == claims.NEEDS_GPU]
    if found:
        cases = len({(row["study"], row["case"]) for row in found})
        cards.append({"name": "An NVIDIA GPU", "claims": found, "cases": cases, "command": "make record"})
    return cards
