"""The scorecard and its page, as the default target makes them."""

import re
from collections import Counter

import pandas as pd
import pytest
import yaml
from conftest import ROOT

from gpuledger.ledger import claims, report


@pytest.fixture(scope="module")
def card(finished):
    return pd.read_csv(finished / "results/tables/scorecard.csv", dtype=str, keep_default_na=False)


@pytest.fixture(scope="module")
def page(finished):
    return (finished / "results/scorecard.html").read_text("utf-8")


def test_every_row_of_the_page_has_an_id_of_its_own(card, page):
    ids = re.findall(r'<tr id="([^"]*)"', page)
    assert len(ids) == len(set(ids)) == len(card)
    assert "published--fig12--fig13-attn-block-sched-ncu-ratio" in ids
    assert len(page.encode()) < 900 * len(card)


def test_page_tables_and_counts_use_the_same_words(finished, card, page):
    expected = Counter(card["verdict"])
    assert set(expected) <= {verdict for verdicts in claims.GROUPS.values() for verdict in verdicts}
    rows = page.split('<table class="scorecard">', 1)[1]
    assert Counter(re.findall(r'class="badge [^"]*">([^<]*)</a>', rows)) == expected
    for name in ("scorecard.html", "index.html"):
        head = (finished / "results" / name).read_text("utf-8").split("<h2 id=")[0]
        counted = Counter()
        for count, verdict in re.findall(r'<span class="badge [^"]*">([0-9]+) ([^<]*)</span>', head):
            counted[verdict] += int(count)
        assert counted == expected
    exported = Counter()
    for file in (finished / "results/tables/scorecard").glob("*.csv"):
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
        assert list(table) == ["claim", "published", "reproduced", "verdict", "provenance"]
        exported.update(table["verdict"])
    assert exported == expected


def test_the_gallery_has_a_square_for_every_row_but_of_what_is_no_test(finished, card, page):
    gallery = (finished / "results/index.html").read_text("utf-8")
    squares = re.findall(r'<a href="scorecard.html#([^"=]*)" title="[^"]+"></a>', gallery)
    rows = report.rows_for_pages(card, dict.fromkeys(card["study"], ""))
    shown = [row["anchor"] for row in rows if row["group"] != "not a test"]
    assert sorted(squares) == sorted(shown) and set(shown) < set(re.findall(r'<tr id="([^"]*)"', page))
    assert len(gallery.encode()) < 300_000


def test_what_is_tested_independently_comes_first(card):
    tested = pd.Series([claims.group(row) == claims.TESTED for row in card.to_dict("records")])
    assert tested.sum() > 100
    assert tested.tolist() == sorted(tested, reverse=True)


def test_no_simulation_passes_for_a_reproduction(card):
    simulated = card[card["provenance"].str.startswith("simulated")]
    assert set(simulated["verdict"]) == {claims.BY_CONSTRUCTION, claims.DIFFERS}


def test_only_datasets_with_downloads_need_one(card):
    reasons = card.loc[card["verdict"] == claims.NEEDS_DOWNLOAD, "why"]
    for name in {name for why in reasons for name in why.removeprefix("not downloaded: ").split(", ")}:
        content = yaml.safe_load((ROOT / f"traces/{name}/dataset.yaml").read_text("utf-8"))
        assert content["download"] and name not in set(card["dataset"])


def test_what_can_never_be_checked_says_why(card):
    rows = card[card["verdict"] == claims.UNCHECKABLE].set_index("id")["why"]
    assert not rows.str.startswith(("no dataset has", "no ")).any(), "give the reason in resources/claims"
    never = ["docs-pages", "docs-max-clock", "fig15-pages", "gemm-block-speed-slow", "gemm-block-speed-fast"]
    never += ["fa2-block-speed-slow", "fa2-block-speed-fast", "docs-running", "paper-running"]
    assert set(never) <= set(rows.index)


def test_markdown_and_latex_list_every_claim(finished, card):
    markdown = (finished / "results/tables/scorecard.md").read_text("utf-8")
    sections = re.split(r"^## .+\n", markdown, flags=re.MULTILINE)[1:]
    # A header and a rule above each study's rows.
    assert sum(section.count("\n|") - 2 for section in sections) == len(card)
    latex = (finished / "results/tables/scorecard.tex").read_text("utf-8")
    for study in card["study"].unique():
        assert (finished / f"results/tables/scorecard/{study}.tex").read_text("utf-8") in latex
