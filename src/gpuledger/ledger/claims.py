"""Claims: published values, compared with what each dataset reproduces."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger.case_result import brief, text

EXACT, HOLDS, WITHIN, DIFFERS = "exact", "holds", "within tolerance", "differs"
TYPED, BY_CONSTRUCTION = "typed", "by construction"
NEEDS_DOWNLOAD, NEEDS_GPU, UNCHECKABLE = "needs download", "needs GPU", "cannot be checked"
SOURCE_ERROR = "error in source"
TESTED, OURS, NO_TEST = "tested independently", "our own targets and numbers", "not a test"
#: Every verdict, in the order of rows and counts, by what it is worth. What a simulation has is never a test.
GROUPS = {
    TESTED: (EXACT, HOLDS, WITHIN, DIFFERS),
    OURS: (EXACT, HOLDS, WITHIN, DIFFERS),
    NO_TEST: (TYPED, BY_CONSTRUCTION, DIFFERS),
    "not tested": (NEEDS_DOWNLOAD, NEEDS_GPU, UNCHECKABLE),
    "wrong in the source documents": (SOURCE_ERROR,),
}
#: How the source of a number begins that nobody else published, and what it is called.
OWN = {
    "aim of this project": "Our own target",
    "computed for gpuledger": "Our own number",
    "this project's survey": "Our own number",
}


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

    @property
    def finding(self) -> str:
        """Its result in one sentence, or an empty text."""
        return str(self.summary.get("finding", {}).get("value", ""))

    def get(self, quantity: str) -> Mapping | None:
        """Return value and unit of a quantity; None if it is absent or unknown."""
        entry = self.summary.get(quantity)
        return None if entry is None or entry["value"] == "unknown" else entry


def load(file: str | Path) -> dict:
    """Read a claims file; its name is the study's."""
    content = schemas.load_yaml(file)
    schemas.check(content, schemas.packaged(__package__, "claims"), file)
    seen: set[str] = set()
    for claim in content["claims"] + content.get("source_errors", []):
        if claim["id"] in seen:
            raise InputError(file, f"id {claim['id']}", "two claims have this id", "give each its own")
        seen.add(claim["id"])
        for key, value in claim.items():
            if isinstance(value, float) and not math.isfinite(value):
                place = f"id {claim['id']}, key {key}"
                raise InputError(file, place, f"{value} is no number", "write the published one")
        if "decimals" in claim:
            claim["decimals"] = int(claim["decimals"])  # 2.0 is an integer, too
    return content


def compare(claim: Mapping, value: float | int | str) -> tuple[str, float | None]:
    """Compare a value with a claim, wherever the value comes from.

    Parameters
    ----------
    claim : mapping
        With ``value``, ``unit`` (``text`` for a statement) and optionally ``decimals`` (printed ones), ``tolerance``
        (absolute, in the claim's unit; 0 by default) and ``relation`` (``equal`` by default).

    Returns
    -------
    verdict : str
        ``exact`` (equal in every printed digit), ``holds`` (an inequality or a statement), ``within tolerance`` or
        ``differs``.
    relative_difference : float or None
        (reproduced − published)/published; None for texts, for an inequality that holds, and for a published zero
        that is not met.
    """
    published, relation = claim["value"], claim.get("relation", "equal")
    if isinstance(published, str) or isinstance(value, str):
        met = HOLDS if claim["unit"] == "text" else EXACT
        return (met if str(published) == str(value) else DIFFERS), None
    difference = value - published
    relative = difference / abs(published) if published else (0.0 if not difference else None)
    tolerance = claim.get("tolerance", 0)
    if relation != "equal":
        beyond = difference if relation == "at most" else -difference
        if beyond <= 0:
            return HOLDS, None
        return (WITHIN if beyond <= tolerance else DIFFERS), relative
    shown = round(value, claim["decimals"]) if "decimals" in claim else value
    if shown == published:
        return EXACT, relative
    return (WITHIN if abs(difference) <= tolerance else DIFFERS), relative


def scorecard(
    claims: Mapping[str, Mapping], outcomes: Iterable[Outcome], downloads: Mapping[str, Iterable[str]] | None = None
) -> pd.DataFrame:
    """Compare every claim with every dataset.

    Parameters
    ----------
    claims : mapping
        By study, the content of its claims file.
    downloads : mapping, optional
        By ``study/case``, the datasets that have this case once they are downloaded.

    Returns
    -------
    DataFrame
        Columns ``study, id, case, quantity, published, unit, dataset, reproduced, relative_difference,
        verdict, source, why, provenance, relative_tolerance``, in the order of `GROUPS`. A claim that no dataset tests
        has a row that says what is needed, or why it is impossible. So has every error of the source documents
        (claimed, right, why).
    """
    outcomes = list(outcomes)
    rows = []
    for study, content in sorted(claims.items()):
        for claim in content["claims"]:
            found = [outcome for outcome in outcomes if (outcome.study, outcome.case) == (study, claim["case"])]
            present = {outcome.dataset for outcome in found}
            absent = [name for name in (downloads or {}).get(f"{study}/{claim['case']}", ()) if name not in present]
            rows += _claim_rows(study, {"gpu": content.get("gpu", []), **claim}, found, absent)
        rows += [_source_error_row(study, error, outcomes) for error in content.get("source_errors", [])]
    rows.sort(key=_place)
    columns = ["study", "id", "case", "quantity", "published", "unit", "dataset", "reproduced"]
    columns += ["relative_difference", "verdict", "source", "why", "provenance", "relative_tolerance"]
    return pd.DataFrame(rows, columns=columns)


def _place(row: Mapping) -> tuple[int, int]:
    """Return the numbers of a row's group and of its verdict in the group."""
    titles = list(GROUPS)
    first = titles.index(NO_TEST if row["provenance"].startswith("simulated") else OURS if own(row) else TESTED)
    group = next(number for number in range(first, len(titles)) if row["verdict"] in GROUPS[titles[number]])
    return group, GROUPS[titles[group]].index(row["verdict"])


def own(row: Mapping) -> str:
    """Return what a number is called that this project set or calculated itself; nothing of what others published."""
    return next((words for start, words in OWN.items() if row["source"].startswith(start)), "")


def group(row: Mapping) -> str:
    """Return the title of a scorecard row's group in `GROUPS`."""
    return list(GROUPS)[_place(row)[0]]


def for_people(card: pd.DataFrame) -> pd.DataFrame:
    """Return a scorecard whose reproduced values have four significant digits, or as many as the published ones."""
    pairs = zip(card["reproduced"], card["published"], strict=True)
    return card.assign(reproduced=[_shortened(reproduced, published) for reproduced, published in pairs])


def _shortened(reproduced: str, published: str) -> str:
    if re.fullmatch(r"-?\d+", reproduced):
        return f"{int(reproduced):,}"
    number = reproduced.replace(",", "")
    if not re.fullmatch(r"-?\d*\.\d+(?:e[-+]?\d+)?", number):
        return reproduced
    printed = re.search(r"[\d,.]*\d", published)
    digits = len(printed[0].replace(",", "").replace(".", "").lstrip("0")) if printed else 0
    return brief(float(number), max(4, digits))


def _claim_rows(study: str, claim: Mapping, outcomes: list[Outcome], absent: list[str]) -> list[dict]:
    relation, value = claim.get("relation", "equal"), text(claim["value"], claim.get("decimals"))
    base = {
        "study": study,
        **{key: claim[key] for key in ("id", "case", "quantity", "unit", "source")},
        "published": value if relation == "equal" else f"{relation} {value}",
        "why": claim.get("why", ""),
        "relative_tolerance": _relative_tolerance(claim),
    }
    having = [outcome for outcome in outcomes if outcome.get(claim["quantity"])]
    rows = [base | _compared(claim, outcome) for outcome in having]
    if all(o.record["kind"] == "simulated" or row["verdict"] == NEEDS_GPU for o, row in zip(having, rows, strict=True)):
        # A simulation settles nothing, nor does what another GPU has instead.
        opened = _open(claim, absent)
        if opened.get("verdict") == NEEDS_GPU and any(row["verdict"] == NEEDS_GPU for row in rows):
            opened = {}
        if not rows and not opened:
            names = " and ".join(outcome.dataset for outcome in outcomes)
            why = f"no {claim['quantity']} in {names}" if names else f"no dataset has a case {claim['case']}"
            opened = {"verdict": UNCHECKABLE, "why": why}
        if opened:
            rows.append(base | {"dataset": "", "reproduced": "", "provenance": "published"} | opened)
    return rows


def _relative_tolerance(claim: Mapping) -> float | None:
    """Return a claim's tolerance, or half a unit of the last printed digit if that is more, over its value."""
    value = claim["value"]
    if isinstance(value, str) or not value:
        return None
    printed = 0.5 * 10.0 ** -claim["decimals"] if "decimals" in claim else 0
    return max(claim.get("tolerance", 0), printed) / abs(value)


def _compared(claim: Mapping, outcome: Outcome) -> dict:
    """Return what a row says of a dataset that has the quantity."""
    entry = outcome.get(claim["quantity"])
    row = {"dataset": outcome.dataset, "reproduced": text(entry["value"]), "provenance": outcome.label}
    if entry["unit"] != claim["unit"]:
        why = f"the unit is {entry['unit']}, the claim's is {claim['unit']}"
        return row | {"verdict": DIFFERS, "why": why}
    verdict, relative = compare(claim, entry["value"])
    kind = outcome.record["kind"]
    if verdict == DIFFERS and (there := _other_gpu(claim, outcome.record)):
        why = f"recorded on {there}; published of {' or '.join(claim['gpu'])}"
        return row | {"verdict": NEEDS_GPU, "relative_difference": relative, "why": why}
    chosen = kind in ("recorded", "local") and claim.get("chosen")
    if verdict != DIFFERS and (kind == "simulated" or chosen or claim.get("by_construction")):
        verdict = BY_CONSTRUCTION
    elif verdict != DIFFERS and kind == "published" and claim.get("input"):
        verdict = TYPED
    return row | {"verdict": verdict, "relative_difference": relative}


def _other_gpu(claim: Mapping, record: Mapping) -> str:
    """Return the GPU of a recording if it is none of those that a claim is of: it can confirm, but not contradict."""
    devices = {(record.get("device") or {}).get("name"), *(entry.get("device") for entry in record.get("inputs", ()))}
    names = sorted(filter(None, devices))
    if not claim.get("gpu") or record["kind"] in ("published", "simulated"):
        return ""
    known = any(re.search(rf"\b{re.escape(gpu)}\b", name) for gpu in claim["gpu"] for name in names)
    return "" if known else ", ".join(names)


def _open(claim: Mapping, absent: list[str]) -> dict:
    """Return verdict and reason of a claim that no dataset tests; empty if it is not known what would."""
    if "cannot_be_checked" in claim:
        return {"verdict": UNCHECKABLE, "why": claim["cannot_be_checked"]}
    if absent:
        return {"verdict": NEEDS_DOWNLOAD, "why": f"not downloaded: {', '.join(absent)}"}
    return {"verdict": NEEDS_GPU} if claim.get("needs") == "GPU" else {}


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
            entry = outcome.get(error.get("quantity"))
            # The right value is computed where that is possible: what is said of an error may be wrong as well.
            expected = {"value": error["right"], "unit": error.get("unit", "")}
            if entry is not None and compare(expected, entry["value"])[0] == DIFFERS:
                row["why"] += f" (but {outcome.dataset} gives {text(entry['value'])})"
    return row


def counts(card: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Count the rows of a scorecard by group and verdict, in the order of `GROUPS`."""
    found: dict[str, dict[str, int]] = {title: dict.fromkeys(words, 0) for title, words in GROUPS.items()}
    for row in card.to_dict("records"):
        found[group(row)][row["verdict"]] += 1
    return {title: {word: count for word, count in words.items() if count} for title, words in found.items()}
