"""Reports across cases: tables of all quantities, the scorecard page, and what pages say of claims."""

import json
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpuledger.ledger import claim_words, claims
from gpuledger.ledger.case_result import text
from gpuledger.ledger.claims import Outcome


def read_outcomes(summaries: Iterable[str | Path]) -> list[Outcome]:
    """Read each case's ``summary.json`` and the ``provenance.json`` next to it, in the given order."""
    outcomes = []
    for file in map(Path, summaries):
        record = json.loads(file.with_name("provenance.json").read_text("utf-8"))
        summary = json.loads(file.read_text("utf-8"))
        outcomes.append(Outcome(record["dataset"], record["study"], record["case"], summary, record))
    return outcomes


def ledger(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return one row per quantity: ``dataset, case, quantity, value, unit, provenance``."""
    rows = [
        (outcome.dataset, outcome.case, quantity, text(entry["value"]), entry["unit"], outcome.label)
        for outcome in outcomes
        for quantity, entry in outcome.summary.items()
    ]
    return pd.DataFrame(rows, columns=["dataset", "case", "quantity", "value", "unit", "provenance"])


def findings(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return one row per case, for people: ``dataset, case, finding, quantities, provenance``."""
    rows = [
        (outcome.dataset, outcome.case, outcome.finding, len(outcome.summary), outcome.label) for outcome in outcomes
    ]
    return pd.DataFrame(rows, columns=["dataset", "case", "finding", "quantities", "provenance"])


def verdicts_by_study(card: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Return one row per study, for people: how many of its claims are in each group, and how many tests differ."""
    groups = [claims.group(row) for row in card.to_dict("records")]
    table = pd.DataFrame({"study": list(card["study"].map(titles)), "group": groups})
    counted = table.value_counts(["study", "group"]).unstack(fill_value=0)
    counted = counted.reindex(columns=list(claims.GROUPS), fill_value=0)
    differ = (table["group"] == claims.TESTED) & (card["verdict"].to_numpy() == claims.DIFFERS)
    counted.insert(1, "of these differ", differ.groupby(table["study"]).sum())
    return counted.rename_axis(columns=None).reset_index().assign(provenance="see the table of the study")


def environment(templates: Path) -> Environment:
    """Return the environment of the pages' templates."""
    # Kernel names and sources are data, so everything is escaped.
    loader = FileSystemLoader([templates, templates / "page"])
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    found.filters["unbroken"] = unbroken
    return found


def unbroken(words: str) -> str:
    """Keep a number with its unit or equals sign on one line, and what an ellipsis joins."""
    unit = r"%|(?:[nµm]?s|[kMGT]i?B|[kMGT]?FLOP|[MG]Hz)\b"
    kept = re.sub(rf"(?<=\d) (?={unit})|(?<=\w) (?== \d)|(?<=[=≤≥]) (?=\d)", "\N{NO-BREAK SPACE}", words)
    return re.sub(r"(?<=\w)…(?=\w)", "…\N{WORD JOINER}", kept)


def scorecard_page(card: pd.DataFrame, titles: Mapping[str, str], templates: Path, made: Container[str]) -> str:
    """Return the HTML page of a scorecard.

    Parameters
    ----------
    titles : mapping
        The studies' titles by name.
    made : container of str
        The cases that have pages to link to, as ``<dataset>/<study>/<case>``.
    """
    rows = rows_for_pages(card, titles)
    for row in rows:
        row["folder"] = row["folder"] if row["folder"] in made else ""
    tested: dict[str, list[dict]] = {}
    for row in rows:
        if row["group"] == claims.TESTED:
            tested.setdefault(row["title"], []).append(row)
    words = {
        "headline": headline(rows),
        "counts": claims.counts(card),
        "squares": None,
        "tested": sorted(tested.items()),
        "differing": [row for row in rows if row["verdict"] == claims.DIFFERS],
        "errors": [row for row in rows if row["verdict"] == claims.SOURCE_ERROR],
        "rows": rows,
        "exports": sorted({row["study"]: row["title"] for row in rows}.items()),
        "facets": [
            facet(rows, "verdict", order=list(dict.fromkeys(row["verdict"] for row in rows))),
            facet(rows, "kind", "provenance"),
            facet(rows, "study", words=titles),
        ],
    }
    return environment(templates).get_template("scorecard.html.j2").render(words)


def claims_table(card: pd.DataFrame) -> pd.DataFrame:
    """Return a study's claims as a table for people: ``claim, published, reproduced, verdict, provenance``."""
    rows = []
    for row in claims.for_people(card).to_dict("records"):
        case = f" ({row['case']})" if row["case"] else ""
        published = f"{row['published']}{claim_words.measure(row)}"
        where = ": ".join(filter(None, (row["dataset"], row["provenance"])))
        rows.append((f"{claim_words.name(row)}{case}", published, row["reproduced"], row["verdict"], where))
    return pd.DataFrame(rows, columns=["claim", "published", "reproduced", "verdict", "provenance"])


def claims_of_case(content: Mapping, outcome: Outcome) -> list[dict]:
    """Return what a case's own page says of its claims: anchor, words, reproduced value and verdict of each."""
    card = claims.scorecard({outcome.study: content}, [outcome])
    return rows_for_pages(card[card["dataset"] == outcome.dataset], {outcome.study: ""})


def rows_for_pages(card: pd.DataFrame, titles: Mapping[str, str]) -> list[dict]:
    """Return the rows of a scorecard with the words and names that pages need."""
    rows = claims.for_people(card).to_dict("records")
    for row in rows:
        difference = row["relative_difference"]
        known = difference != "" and not pd.isna(difference)
        row["difference"] = _percent(float(difference)) if known else ""
        relative = row["relative_tolerance"]
        tolerance = 0.0 if relative == "" or pd.isna(relative) else float(relative)
        row["tolerance"] = f"tolerance ± {100 * tolerance:.2g} %" if tolerance else "no tolerance"
        # Equal values need no picture of their distance.
        row["offset"] = _offset(float(difference), tolerance) if known and float(difference) else None
        row["folder"] = f"{row['dataset']}/{row['study']}/{row['case']}" if row["dataset"] else ""
        row["anchor"] = f"{row['dataset'] or 'none'}--{row['case'] or 'none'}--{row['id']}"
        row["kind"] = row["provenance"].split(",")[0].split(" ")[0]
        row["group"], row["title"] = claims.group(row), titles[row["study"]]
        row["name"], row["measure"] = claim_words.name(row), claim_words.measure(row)
        row["words"] = claim_words.sentence(row)
        if own := claims.own(row):
            row["words"] = f"{own}: {row['words'][:1].lower()}{row['words'][1:]}"
        row |= {key: row[key].replace("inf", "∞") for key in ("published", "reproduced") if row[key] == "inf"}
        row["right"] = claim_words.amount(row["reproduced"], row)
        row["here"] = row["right"] if row["dataset"] else ""
        row["said"] = f"{row['words']} {row['verdict'].capitalize()}"
        if row["verdict"] in (claims.DIFFERS, claims.WITHIN, claims.SOURCE_ERROR):
            row["said"] += f": {row['reproduced']}"
    return rows


def _percent(difference: float) -> str:
    """Write a relative difference with two digits, and without an exponent."""
    digits = f"{100 * difference:+.2g}"
    return f"{digits if 'e' not in digits else f'{float(digits):+,.0f}'} %".replace("-", "−") if difference else "0"


def _offset(difference: float, tolerance: float) -> int:
    """Return where a dot is drawn, in percent of a strip whose middle fifth is the tolerance's band."""
    bands = difference / tolerance if tolerance else difference * 1e9
    return round(50 + 10 * max(-4.5, min(4.5, bands)))


def headline(rows: list[dict]) -> str:
    """Return the one sentence that both pages begin with."""
    groups = (claims.TESTED, claims.OURS)
    tested, own = ([row["verdict"] != claims.DIFFERS for row in rows if row["group"] == name] for name in groups)
    wrong = sum(row["verdict"] == claims.SOURCE_ERROR for row in rows)
    return (
        f"Of {len(tested)} independent tests of claims, {sum(tested)} agree and {len(tested) - sum(tested)} differ; "
        f"{f'of {len(own)} targets and numbers of our own, {sum(own)} are met; ' * bool(own)}"
        f"{wrong} error{'s' * (wrong != 1)} found in the source documents"
    )


def facet(
    items: list[dict],
    name: str,
    title: str = "",
    words: Mapping[str, str] | None = None,
    order: list[str] | None = None,
) -> dict:
    """Return a facet of the pages' filter: few choices are chips, many a list. An item may have several values."""
    values = {value for item in items for value in (item[name] if isinstance(item[name], list) else [item[name]])}
    ordered = order if order is not None else sorted(values)
    choices = [(value, (words or {}).get(value, value)) for value in ordered]
    return {"name": name, "title": title or name, "choices": choices, "chips": name in ("verdict", "kind")}
