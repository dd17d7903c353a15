"""Claims: published values, compared with what each dataset reproduces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger.case_result import text

EXACT, WITHIN, DIFFERS, UNKNOWN = "exact", "within tolerance", "differs", "unknown quantity"
SOURCE_ERROR = "error in source"
#: Said of a claim whose value is itself an input of the dataset that it is compared with.
INPUT = "exact by input"
SIMULATED = "simulated so"
TYPED = "an input: says that the value was typed right"


@dataclass(frozen=True)
class Outcome:
    """What one dataset made of one case: its summary and its provenance record."""

    dataset: str
    study: str
    case: str
    summary: Mapping[str, Mapping]
    record: Mapping

    @property
    def label(self) -> str:
        """What its numbers are."""
        return self.record["label"]


def load(file: str | Path) -> dict:
    """Read a claims file; its name is the study's.

    Raises
    ------
    InputError
        Invalid YAML, an unknown key, an id used twice.
    """
    content = schemas.load_yaml(file)
    schemas.check(content, schemas.packaged(__package__, "claims"), file)
    seen: set[str] = set()
    for claim in content["claims"] + content.get("source_errors", []):
        if claim["id"] in seen:
            raise InputError(file, f"id {claim['id']}", "two claims have this id", "give each its own")
        seen.add(claim["id"])
    return content


def verdict(claim: Mapping, value: float | int | str) -> tuple[str, float | None]:
    """Compare a reproduced value with a claim.

    Parameters
    ----------
    claim : mapping
        With ``value`` and optionally ``decimals`` (printed ones), ``tolerance`` (absolute, in the claim's
        unit; 0 by default) and ``relation`` (``equal`` by default).
    value : number or str

    Returns
    -------
    verdict : str
        ``exact`` (every published digit), ``within tolerance`` or ``differs``.
    relative_difference : float or None
        (reproduced − published)/published; None for texts and for a published zero that is not met.
    """
    published, relation = claim["value"], claim.get("relation", "equal")
    if isinstance(published, str) or isinstance(value, str):
        return (EXACT if str(published) == str(value) else DIFFERS), None
    difference = value - published
    relative = difference / abs(published) if published else (0.0 if not difference else None)
    tolerance = claim.get("tolerance", 0)
    if relation != "equal":
        beyond = difference if relation == "at most" else -difference
        return (EXACT if beyond <= 0 else WITHIN if beyond <= tolerance else DIFFERS), relative
    shown = round(value, claim["decimals"]) if "decimals" in claim else value
    if shown == published:
        return EXACT, relative
    return (WITHIN if abs(difference) <= tolerance else DIFFERS), relative


def scorecard(claims: Mapping[str, Mapping], outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Compare every claim with every dataset.

    Parameters
    ----------
    claims : mapping
        By study, the content of its claims file.
    outcomes : iterable of Outcome
        Everything that was reproduced.

    Returns
    -------
    DataFrame
        Columns ``study, id, case, quantity, published, unit, dataset, reproduced, relative_difference,
        verdict, source, why, provenance``; a claim that nothing reproduces has a row too, and so has every
        error of the sources (claimed, right, why).
    """
    outcomes = list(outcomes)
    rows = []
    for study, content in sorted(claims.items()):
        for claim in content["claims"]:
            rows += _claim_rows(study, claim, outcomes)
        for error in content.get("source_errors", []):
            rows.append(_source_error_row(study, error, outcomes))
    columns = ["study", "id", "case", "quantity", "published", "unit", "dataset", "reproduced"]
    columns += ["relative_difference", "verdict", "source", "why", "provenance"]
    return pd.DataFrame(rows, columns=columns)


def _published(claim: Mapping) -> str:
    relation = claim.get("relation", "equal")
    words = text(claim["value"], claim.get("decimals"))
    return words if relation == "equal" else f"{relation} {words}"


def _claim_rows(study: str, claim: Mapping, outcomes: list[Outcome]) -> list[dict]:
    base = {
        "study": study,
        **{key: claim[key] for key in ("id", "case", "quantity", "unit", "source")},
        "published": _published(claim),
        "why": claim.get("why", ""),
    }
    rows = []
    for outcome in outcomes:
        if (outcome.study, outcome.case) != (study, claim["case"]):
            continue
        entry = outcome.summary.get(claim["quantity"])
        row = {**base, "dataset": outcome.dataset, "provenance": outcome.label}
        if entry is None:
            needs = claim.get("needs")
            row |= {"reproduced": "", "verdict": f"needs {needs}" if needs else UNKNOWN}
        elif entry["unit"] != claim["unit"]:
            why = f"the unit is {entry['unit']}, the claim's is {claim['unit']}"
            row |= {"reproduced": text(entry["value"]), "verdict": DIFFERS, "why": why}
        else:
            word, relative = verdict(claim, entry["value"])
            row |= {"reproduced": text(entry["value"]), "relative_difference": relative, "verdict": word}
            if claim.get("input") and outcome.record["kind"] == "published" and not row["why"]:
                row["why"] = TYPED
        rows.append(row)
    if not rows:
        needs = claim.get("needs", "download")
        row = {"dataset": "", "reproduced": "", "verdict": f"needs {needs}", "provenance": "published"}
        rows.append({**base, **row})
    return rows


def _source_error_row(study: str, error: Mapping, outcomes: list[Outcome]) -> dict:
    row = {
        "study": study,
        **{key: error.get(key, "") for key in ("id", "case", "quantity", "unit", "source", "why")},
        "published": text(error["claimed"]),
        "dataset": "",
        "reproduced": text(error["right"]),
        "verdict": SOURCE_ERROR,
        "provenance": "published",
    }
    for outcome in outcomes:
        if (outcome.study, outcome.case) == (study, error.get("case")):
            entry = outcome.summary.get(error.get("quantity"))
            # The right value is computed where it can be: a claim about an error may be wrong as well.
            if entry is not None and verdict({"value": error["right"]}, entry["value"])[0] != EXACT:
                row["why"] += f" (but {outcome.dataset} gives {text(entry['value'])})"
    return row


def counts(card: pd.DataFrame) -> dict[str, int]:
    """How many rows of a scorecard have each verdict, best first; what was only typed or simulated counts apart."""
    words = card["verdict"].mask(card["why"] == TYPED, INPUT)
    met = card["verdict"].isin([EXACT, WITHIN]) & card["provenance"].str.startswith("simulated")
    words = words.mask(met, SIMULATED)
    order = [EXACT, INPUT, WITHIN, SIMULATED, DIFFERS, UNKNOWN, SOURCE_ERROR]
    found = words.value_counts()
    return {word: int(found[word]) for word in [*order, *sorted(set(found.index) - set(order))] if word in found}
