"""Claims and the scorecard: verdicts, and nothing hidden."""

import math

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.ledger import claims
from gpuledger.ledger.claims import (
    BY_CONSTRUCTION,
    DIFFERS,
    EXACT,
    HOLDS,
    NEEDS_DOWNLOAD,
    NEEDS_GPU,
    SOURCE_ERROR,
    TYPED,
    UNCHECKABLE,
    WITHIN,
    Outcome,
    compare,
)


@pytest.mark.parametrize(
    ("claim", "value", "word"),
    [
        ({"value": 1.04, "decimals": 2}, 1.0402, EXACT),
        ({"value": 1.04, "decimals": 2}, 1.0451, DIFFERS),
        ({"value": 1.04}, 1.0402, DIFFERS),
        ({"value": 1.04, "tolerance": 0.001}, 1.0402, WITHIN),
        ({"value": 2702704640}, 2702704640, EXACT),
        ({"value": 2702704640}, 2702704641, DIFFERS),
        ({"value": "inf"}, "inf", EXACT),
        ({"value": "inf"}, 3, DIFFERS),
        ({"value": 0}, 0, EXACT),
        ({"value": 0}, 1, DIFFERS),
        ({"value": "yes", "unit": "text"}, "yes", HOLDS),
        ({"value": "yes", "unit": "text"}, "no", DIFFERS),
        ({"value": 0.1, "relation": "at most"}, 0.1, HOLDS),
        ({"value": 0.1, "relation": "at most"}, 0.17, DIFFERS),
        ({"value": 0.1, "relation": "at most", "tolerance": 0.1}, 0.17, WITHIN),
        ({"value": 2, "relation": "at least"}, 1.9, DIFFERS),
    ],
)
def test_verdicts(claim, value, word):
    assert compare({"unit": "1", **claim}, value)[0] == word


def test_an_inequality_that_holds_has_no_difference():
    claim = {"value": 5, "unit": "%", "relation": "at most"}
    assert compare(claim, 1.753) == (HOLDS, None)
    assert compare(claim, 6) == (DIFFERS, 0.2)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.floats(0, 1e6), st.integers(0, 6))
def test_what_differs_lies_beyond_the_tolerance(value, tolerance, decimals):
    claim = {"value": 1000.0, "unit": "1", "tolerance": tolerance, "decimals": decimals}
    word, relative = compare(claim, value)
    assert (word == DIFFERS) == (round(value, decimals) != 1000.0 and abs(value - 1000.0) > tolerance)
    assert math.isclose(relative, (value - 1000.0) / 1000.0)


def outcome(dataset="published", case="one", kind="published", **quantities):
    summary = {name: {"value": value, "unit": "1"} for name, value in quantities.items()}
    record = {"label": f"{kind}, by {dataset}", "kind": kind}
    return Outcome(dataset, "study", case, summary, record)


def test_people_read_as_many_digits_as_are_published():
    content = {"claims": [claim(value=14.9987, decimals=4, quantity="a"), claim(id="d", value=20, quantity="b")]}
    rows = card(content, [outcome(a=14.998675346374512, b=14.52839336)])
    assert dict(zip(rows["published"], rows["reproduced"], strict=True)) == {
        "14.9987": "14.99867535",
        "20": "14.52839336",
    }
    people = claims.for_people(rows)
    assert dict(zip(people["published"], people["reproduced"], strict=True)) == {"14.9987": "14.9987", "20": "14.53"}
    counted = card({"claims": [claim(value=2_727_606_586)]}, [outcome(q=2_727_606_586)])
    assert claims.for_people(counted)["reproduced"].tolist() == ["2,727,606,586"]


def claim(**changes):
    return {"id": "c", "case": "one", "quantity": "q", "value": 3, "unit": "1", "source": "S", **changes}


def card(content, outcomes, downloads=None):
    return claims.scorecard({"study": content}, outcomes, downloads)


ERROR = {"id": "e", "claimed": 5, "right": 3, "why": "W", "source": "S", "case": "one", "quantity": "q"}


def test_every_dataset_with_the_case_has_a_row():
    rows = card({"claims": [claim()]}, [outcome(q=3), outcome("mine", q=4), outcome("mine", case="two", q=5)])
    assert rows[["dataset", "reproduced", "verdict", "provenance"]].values.tolist() == [
        ["published", "3", EXACT, "published, by published"],
        ["mine", "4", DIFFERS, "published, by mine"],
    ]


def verdicts(claim, *outcomes, **downloads):
    rows = card({"claims": [claim]}, outcomes, {"study/one": list(downloads)} if downloads else None)
    return rows[["dataset", "verdict", "why"]].values.tolist()


def test_a_claim_that_nothing_tests_says_what_would():
    assert verdicts(claim(needs="GPU")) == [["", NEEDS_GPU, ""]]
    assert verdicts(claim(), web=1) == [["", NEEDS_DOWNLOAD, "not downloaded: web"]]
    assert verdicts(claim(cannot_be_checked="lost"), web=1) == [["", UNCHECKABLE, "lost"]]
    assert verdicts(claim()) == [["", UNCHECKABLE, "no dataset has a case one"]]


def test_what_is_downloaded_needs_no_download():
    web = outcome("web", kind="downloaded", z=3)
    assert verdicts(claim(), web, web=1) == [["", UNCHECKABLE, "no q in web"]]
    assert verdicts(claim(), outcome("web", q="unknown"), web=1) == [["", UNCHECKABLE, "no q in web"]]
    assert verdicts(claim(), outcome("web", kind="downloaded", q=3), web=1) == [["web", EXACT, ""]]


def test_a_simulation_is_by_construction_and_settles_nothing():
    model = outcome("model", kind="simulated", q=3)
    assert verdicts(claim(), model) == [["model", BY_CONSTRUCTION, ""]]
    assert verdicts(claim(relation="at most", value=5), model) == [["model", BY_CONSTRUCTION, ""]]
    assert verdicts(claim(), outcome("model", kind="simulated", q=9)) == [["model", DIFFERS, ""]]
    found = verdicts(claim(cannot_be_checked="lost"), model)
    assert found == [["model", BY_CONSTRUCTION, ""], ["", UNCHECKABLE, "lost"]]
    assert verdicts(claim(), model, outcome(q=3), web=1) == [["published", EXACT, ""], ["model", BY_CONSTRUCTION, ""]]


def recorded(name, **quantities):
    made = outcome("mine", kind="recorded", **quantities)
    made.record["device"] = {"name": name}
    return made


def test_another_gpu_can_confirm_but_not_contradict():
    of = claim(gpu=["A100"], needs="GPU")
    why = "recorded on NVIDIA H200; published of A100"
    assert verdicts(of, recorded("NVIDIA H200", q=4)) == [["mine", NEEDS_GPU, why]]
    assert verdicts(of, recorded("NVIDIA H200", q=3)) == [["mine", EXACT, ""]]
    assert verdicts(of, recorded("NVIDIA A100-SXM4-80GB", q=4)) == [["mine", DIFFERS, ""]]
    assert verdicts(of, recorded("NVIDIA RTX A1000", q=4))[0][1] == NEEDS_GPU
    assert verdicts(claim(), recorded("NVIDIA H200", q=4)) == [["mine", DIFFERS, ""]]
    unnamed = outcome("mine", kind="recorded", q=4)
    assert verdicts(of, unnamed) == [["mine", DIFFERS, ""]], "of no known GPU: nothing excuses it"
    found = verdicts(claim(gpu=["A100"], cannot_be_checked="lost"), recorded("NVIDIA H200", q=4))
    assert found == [["mine", NEEDS_GPU, why], ["", UNCHECKABLE, "lost"]]
    unnamed.record["inputs"] = [{"device": "NVIDIA A100 80GB"}, {}]
    assert verdicts(of, unnamed) == [["mine", DIFFERS, ""]]
    unnamed.record["inputs"][0]["device"] = "NVIDIA H200"
    assert verdicts(of, unnamed) == [["mine", NEEDS_GPU, why]]


def test_a_gpu_of_the_file_holds_for_claims_that_name_none():
    mine = recorded("NVIDIA H200", q=4)
    content = {"gpu": ["A100"], "claims": [claim(), claim(id="any", gpu=[])]}
    assert card(content, [mine])[["id", "verdict"]].values.tolist() == [["any", DIFFERS], ["c", NEEDS_GPU]]


def test_what_is_fitted_to_a_value_does_not_reproduce_it():
    assert verdicts(claim(by_construction=True), outcome(q=3)) == [["published", BY_CONSTRUCTION, ""]]
    assert verdicts(claim(by_construction=True), outcome(q=4)) == [["published", DIFFERS, ""]]


def test_another_unit_never_agrees():
    rows = card({"claims": [claim(unit="ms")]}, [outcome(q=3)])
    assert rows["verdict"].tolist() == [DIFFERS]
    assert rows["why"].tolist() == ["the unit is 1, the claim's is ms"]


def test_errors_of_the_sources_are_rows_and_are_checked():
    rows = card({"claims": [], "source_errors": [ERROR]}, [outcome(q=3)])
    assert rows[["published", "reproduced", "verdict", "why"]].values.tolist() == [["5", "3", SOURCE_ERROR, "W"]]
    rows = card({"claims": [], "source_errors": [ERROR]}, [outcome(q=4)])
    assert rows["why"].tolist() == ["W (but published gives 4)"]


@pytest.mark.parametrize("file", sorted((ROOT / "resources/claims").glob("*.yaml")), ids=lambda file: file.stem)
def test_an_error_of_a_source_is_one(file):
    for error in claims.load(file).get("source_errors", []):
        assert error["claimed"] != error["right"], error["id"]
        # √(b·m·n) is right in the source, and "relatively close" is an opinion.
        assert error["id"] not in ("source-batch-to-square", "expected-sectors")


def test_an_error_names_the_document_that_it_is_in(tmp_path):
    file = tmp_path / "study.yaml"
    entry = "{id: a, claimed: 1, right: 2, why: W, source: 'OSDI 2025, Table 4'}"
    file.write_text(f"claims: []\nsource_errors: [{entry}]\n")
    with pytest.raises(InputError, match="source document by its number, the Neutrino paper or artifact"):
        claims.load(file)
    file.write_text(file.read_text().replace("OSDI 2025", "Neutrino paper (OSDI 2025)"))
    assert len(claims.load(file)["source_errors"]) == 1


def test_whole_decimals_are_integers(tmp_path):
    (file := tmp_path / "study.yaml").write_text(
        "claims: [{id: a, case: b, quantity: q, value: 1, unit: '1', source: S, decimals: -0.0}]", "utf-8"
    )
    assert str(claims.load(file)["claims"][0]["decimals"]) == "0"


def test_printed_decimals_are_shown():
    rows = card({"claims": [claim(value=3.0, decimals=4)]}, [outcome(q=3.00001)])
    assert rows[["published", "verdict"]].values.tolist() == [["3.0000", EXACT]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claims: [{id: a, case: b}]", "is missing; add it"),
        ("claims: []\nclaim: []", "unknown key 'claim'; did you mean 'claims'"),
        (
            "claims: [{id: a, case: b, quantity: q, value: .inf, unit: '1', source: S}]",
            "id a, key value: inf is no number",
        ),
        (
            "claims:\n" + "- {id: a, case: b, quantity: q, value: 1, unit: '1', source: S}\n" * 2,
            "id a: two claims have this id; give each its own",
        ),
        (
            "claims: [{id: a, case: b, quantity: q, value: 1, unit: '1', source: S, decimals: 2147483648}]",
            "decimals: 2147483648 is greater than the maximum of 20",
        ),
        ("claims: [{id: A B, case: b, quantity: q, value: 1, unit: '1', source: S}]", "lower-case letters"),
    ],
)
def test_wrong_claims_file_is_one_line(tmp_path, text, message):
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        claims.load(file)


def test_tested_values_come_first_and_count_apart():
    content = {"claims": [claim(input=True), claim(id="d")], "source_errors": [ERROR]}
    rows = card(content, [outcome(q=3), outcome("model", kind="simulated", q=4)])
    assert rows["verdict"].tolist() == [EXACT, TYPED, DIFFERS, DIFFERS, SOURCE_ERROR]
    tested, own, untested, still_open, wrong = claims.counts(rows).values()
    assert (tested, untested, still_open, wrong) == ({EXACT: 1}, {TYPED: 1, DIFFERS: 2}, {}, {SOURCE_ERROR: 1})
    assert own == {}
    measured = card(content, [outcome("mine", kind="recorded", q=3)])
    assert claims.counts(measured)["tested independently"] == {EXACT: 2}
    mistyped = card(content, [outcome(q=4)])
    assert claims.counts(mistyped)["tested independently"] == {DIFFERS: 2}


def test_what_nobody_else_published_is_no_independent_test():
    sources = ("aim of this project: 3", "computed for gpuledger from a recording", "this project's survey: 3")
    content = {"claims": [claim(id=f"own-{number}", source=source) for number, source in enumerate(sources)]}
    counts = claims.counts(card(content, [outcome(q=3)]))
    assert counts["tested independently"] == {} and counts["our own targets and numbers"] == {EXACT: 3}


@pytest.mark.parametrize(("kind", "verdict"), [("recorded", BY_CONSTRUCTION), ("downloaded", EXACT)])
def test_what_whoever_records_chooses_is_tested_by_recordings_of_others_alone(kind, verdict):
    rows = card({"claims": [claim(chosen=True)]}, [outcome("mine", kind=kind, q=3)])
    assert rows["verdict"].tolist() == [verdict]
    differing = card({"claims": [claim(chosen=True)]}, [outcome("mine", kind=kind, q=4)])
    assert differing["verdict"].tolist() == [DIFFERS]
