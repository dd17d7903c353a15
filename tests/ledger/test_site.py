"""The gallery and the scorecard page: everything on them once, nothing unescaped, nothing from outside, readable."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger import schemas
from gpuledger.ledger import claim_words, claims, documentation, gallery, report
from gpuledger.ledger.claims import Outcome
from gpuledger.ledger.study import read_studies

NASTY = '<b>"5 %" & more'
CLAIM = {"case": "table2", "unit": "%", "source": NASTY}
CONTENT = {
    "claims": [
        CLAIM | {"id": "share", "quantity": "dram_share_percent", "value": 5, "why": "because <i>"},
        CLAIM | {"id": "more", "quantity": "more", "value": 6},
        CLAIM | {"id": "typed", "quantity": "more", "value": 7, "input": True},
        CLAIM | {"id": "open", "quantity": "absent", "value": 1, "needs": "GPU"},
    ],
    "source_errors": [{"id": "wrong-sign", "claimed": 1, "right": 2, "why": "it is", "source": "s"}],
}
STUDY = "kernel_overhead"
PAPER = [
    {"place": "Table 3", "shows": NASTY, "target": "table2", "study": STUDY, "case": "table2"},
    {"place": "Fig. 1", "shows": "other", "missing": "its trace is <gone>"},
]


@pytest.fixture
def outcomes():
    record = {"source": "me", "inputs": [{"file": "a.csv", "note": NASTY, "device": "NVIDIA L4"}]}
    summary = {"dram_share_percent": {"value": 5, "unit": "%"}, "more": {"value": 7, "unit": "%"}}
    summary["finding"] = {"value": NASTY, "unit": "text"}
    kinds = {"mine": ("recorded", "recorded on NVIDIA L4"), "made": ("simulated", "simulated, not measured")}
    return [
        Outcome(dataset, STUDY, "table2", summary, record | {"kind": kind, "label": label})
        for dataset, (kind, label) in kinds.items()
    ]


@pytest.fixture
def card(outcomes):
    return claims.scorecard({STUDY: CONTENT}, outcomes)


@pytest.fixture
def pages(outcomes, card, root, tmp_path):
    for outcome in outcomes:
        folder = tmp_path / outcome.dataset / STUDY / "table2"
        folder.mkdir(parents=True)
        (folder / "figure.png").touch()
    templates = root / "workflow/templates"
    return {
        "gallery": gallery.page(outcomes, card, {}, PAPER, tmp_path, templates),
        "scorecard": report.scorecard_page(card, {STUDY: "Kernel overhead"}, templates, {f"mine/{STUDY}/table2"}),
    }


@pytest.mark.parametrize("name", ["gallery", "scorecard"])
def test_pages_are_escaped_offline_and_have_unique_ids(pages, name):
    html = pages[name]
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"=]+)"', html)) <= set(ids)
    assert "<i>" not in html and "&lt;b&gt;&#34;5 %" in html
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', html)
    assert re.findall(r"<script[^>]*>|@import|url\(", html) == ["<script>"]


def test_every_claim_but_what_is_no_test_has_a_square_that_leads_to_its_row(card, pages):
    rows = re.findall(r'<tr id="([^"]*)"', pages["scorecard"])
    squares = re.findall(r'<a href="scorecard\.html#([^"=]*)" title="([^"]*)"></a>', pages["gallery"])
    assert len(card) == len(rows) == 8
    none = [row["anchor"] for row in report.rows_for_pages(card, {STUDY: ""}) if row["group"] == "not a test"]
    assert len(none) == 3 and sorted([anchor for anchor, _ in squares] + none) == sorted(rows)
    assert dict(squares)["mine--table2--share"] == "DRAM share: 5 %. Exact"
    assert dict(squares)["mine--table2--more"] == "More: 6 %. Differs: 7"
    assert dict(squares)["none--none--wrong-sign"] == "Wrong sign: 1. Error in source: 2"


def test_the_headline_counts_what_is_tested_independently(card, pages):
    tested = [row for row in card.to_dict("records") if claims.group(row) == "tested independently"]
    assert Counter(row["verdict"] for row in tested) == {"exact": 2, "differs": 1}
    own = [{"group": "our own targets and numbers", "verdict": verdict} for verdict in ("holds", "differs")]
    said = "Of 0 independent tests of claims, 0 agree and 0 differ; of 2 targets and numbers of our own, 1 are met; "
    assert report.headline(own).startswith(said)
    for html in pages.values():
        assert (
            "<h1>Of 3 independent tests of claims, 2 agree and 1 differ; 1 error found in the source documents" in html
        )


def test_what_differs_and_errors_of_sources_come_before_the_table(pages):
    before, table = pages["scorecard"].split('<table class="scorecard">')
    assert before.count('<li class="differs">') == table.count('verdict differs">') == 2
    assert before.count('<li class="error-in-source">') == 1


def test_cards_offer_their_facets(pages):
    form = r'href="(\w+)/\w+/table2/notebook.html" data-gpu="(.*?)" data-paper="(.*?)">.*?class="kind (\w+)"'
    found = re.findall(form, pages["gallery"])
    assert sorted(found) == [("made", "L4", "Table 3", "simulated"), ("mine", "L4", "Table 3", "recorded")]
    for value in ("made", "simulated", "mine", "recorded", "L4", "Table 3"):
        assert f'value="{value}"' in pages["gallery"]


def test_versions_of_a_case_share_a_card(pages):
    assert pages["gallery"].count('<article><a class="version') == 1
    assert pages["gallery"].count('<a class="version') == 2


def test_studies_come_by_topic_and_those_of_none_last(outcomes, card, root, tmp_path):
    outcomes += [replace(outcomes[0], study=study) for study in ("dmat", "memory_usage", "kernel_time")]
    topics = {"Kernels": ["kernel_time"], "Not here": ["expert_tiles"], "Probes": [STUDY, "dmat"]}
    page = gallery.page(outcomes, card, topics, PAPER, tmp_path, root / "workflow/templates")
    names = ["kernel_time", STUDY, "dmat", "memory_usage"]
    assert re.findall(r'<section class="study[^>]* id="(\w+)">', page) == names
    assert re.findall(r'<h2>(.*?)</h2>|<li><a href="#(\w+)">', page)[:7] == [
        *[("Kernels", ""), ("", names[0]), ("Probes", ""), ("", names[1]), ("", names[2])],
        *[("Other studies", ""), ("", names[3])],
    ]


def test_topics_name_each_study_once(root):
    named = [name for names in schemas.load_yaml(root / "resources/topics.yaml").values() for name in names]
    assert len(set(named)) == len(named) and set(named) <= set(read_studies())


def test_the_gallery_of_500_cases_and_640_claims_stays_small(outcomes, root, tmp_path):
    finding = {"finding": {"value": "Held-back GEMMs are predicted within a few percent. " * 2, "unit": "text"}}
    many = [Outcome("aiconfigurator", "kernel_time", f"gemm_h100_{n}", finding, outcomes[0].record) for n in range(500)]
    claim = {"source": "s", "unit": "%", "value": 5, "case": "gemm_h100_0", "quantity": "mape_held_back_percent"}
    tested = Outcome(
        "mine", "kernel_time", "gemm_h100_0", {claim["quantity"]: {"value": 5, "unit": "%"}}, many[0].record
    )
    content = {"claims": [claim | {"id": f"target-gemm-h100-vllm-{n}"} for n in range(640)]}
    card = claims.scorecard({"kernel_time": content}, [tested])
    # As in the ledger, half of them are typed or put into a simulation.
    card.loc[320:, "verdict"] = claims.TYPED
    for folder in (Path(each.dataset, each.study, each.case) for each in many):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "figure.png").touch()
    page = gallery.page(many, card, {}, PAPER, tmp_path, root / "workflow/templates")
    assert page.count('<a class="version') == 500 and page.count('<a href="scorecard.html#mine--') == 320
    assert len(page.encode()) <= 300_000


@pytest.mark.parametrize(
    ("quantity", "value", "unit", "words"),
    [
        (
            "forward_gemm_flops",
            "2,702,704,640",
            "FLOP",
            "In the forward pass, the counters show 2,702,704,640 GEMM FLOPs.",
        ),
        ("mape_held_back_percent", "at most 9", "%", "The mean error on held-back shapes is at most 9 %."),
        ("softmax_mem_trace_registers", "1", "register", "With DMAT, softmax needs 1 register more per thread."),
        ("made_up_share_percent", "at least 5", "%", "Made up share: at least 5 %."),
        ("", "the listing runs", "", "“the listing runs”."),
    ],
)
def test_claims_are_sentences(quantity, value, unit, words):
    verdict = claims.SOURCE_ERROR if not quantity else claims.EXACT
    row = {"quantity": quantity, "id": "a-b", "published": value, "unit": unit, "verdict": verdict}
    assert claim_words.sentence(row) == words


def test_names_of_corrected_values_say_the_phase():
    row = {"quantity": "right_chunk_attention_chunked_prefill", "id": "a", "unit": "MAC"}
    assert claim_words.name(row) == "Chunk attention in chunked prefill"
    assert claim_words.name(row | {"quantity": "right_bytes_prefill"}) == "Bytes in prefill"


def test_rates_are_in_units_that_people_use():
    assert claim_words.amount("6,500,000,000,000", {"unit": "byte/s"}) == "6.5 TB/s"
    assert claim_words.amount("at most 5.4e3", {"unit": "byte/s", "published": ""}) == "at most 5.4e3 byte/s"
    assert claim_words.amount("at least 12,000,000", {"unit": "FLOP/s"}) == "at least 12 MFLOP/s"


def test_every_claim_has_a_sentence_and_every_sentence_a_claim(root):
    contents = [claims.load(file) for file in sorted((root / "resources/claims").glob("*.yaml"))]
    card = claims.scorecard({str(number): content for number, content in enumerate(contents)}, [])
    stiff = [row["id"] for row in card.to_dict("records") if ": " in claim_words.sentence(row).split("“")[0]]
    stiff = [name for name in stiff if not name.startswith(("dramatic-drop", "gemm-sectors-linear"))]
    assert not stiff, "src/gpuledger/ledger/claim_sentences.yaml: add a sentence for these claims' quantities"
    keys = {row["quantity"] or row["id"].replace("-", "_") for row in card.to_dict("records")}
    unused = [pattern.pattern for pattern in claim_words.sentences() if not any(map(pattern.fullmatch, keys))]
    assert unused == []


def test_tables_across_cases_are_short_for_people(outcomes, card):
    found = report.findings(outcomes)
    assert found.to_dict("records")[0] == {
        "dataset": "mine", "case": "table2", "finding": NASTY, "quantities": 3, "provenance": "recorded on NVIDIA L4"
    }  # fmt: skip
    (row,) = report.verdicts_by_study(card, {STUDY: "Overhead"}).to_dict("records")
    assert (row["study"], row["tested independently"], row["of these differ"]) == ("Overhead", 3, 1)


def test_the_documentation_is_a_site_whose_links_lead_somewhere(outcomes, root):
    found = documentation.build(root, outcomes, root / "workflow/templates")
    pages = schemas.load_yaml(root / documentation.LIST)
    assert set(found) == {"index.html", *(f"{name}.html" for name in pages.values())}
    made = {"../index.html", *(f"../{each.dataset}/{STUDY}/table2/notebook.html" for each in outcomes)}
    for name, html in found.items():
        ids = set(re.findall(r' id="([^"]*)"', html))
        for link in re.findall(r'href="([^"]*)"', html):
            target, _, anchor = link.partition("#")
            if target.startswith("https:") or target in made:
                continue
            if target in found or not target:
                assert not anchor or f' id="{anchor}"' in (found[target] if target else html), (name, link)
            else:  # pages of cases are not tracked, their summaries are
                tracked = target.replace("notebook.html", "summary.json")
                assert (root / "results/docs" / tracked).resolve().exists(), (name, link)
        assert len(ids) == len(re.findall(r' id="([^"]*)"', html))
        assert not re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(?:https?:)?//', html)
    case = "nvidia-h200/kernel_time/attention"
    assert (
        f'href="../{case}/notebook.html"' in found["findings.html"]
        and f'"../../results/{case}' not in found["findings.html"]
    )
    reading = found["reading.html"]
    assert f'<a href="../mine/{STUDY}/table2/notebook.html"><img src="../mine/{STUDY}/table2/figure.png"' in reading
    assert "<b>" not in reading
    missing = set(read_studies()) ^ set(re.findall(r'<a id="(\w+)"></a>', reading))
    assert not missing, "docs/READING.md has a section '## Title (`study`)' for each study, and for no other"


def test_the_scorecard_leads_to_figure_and_quantity(pages):
    row = pages["scorecard"].split('<tr id="mine--table2--share"')[1].split("</tr>")[0]
    assert f'href="mine/{STUDY}/table2/notebook.html#figure"' in row
    assert f'href="mine/{STUDY}/table2/notebook.html#q-dram_share_percent"' in row
    # The other dataset has no page.
    assert f"made/{STUDY}" not in pages["scorecard"] and "made / table2" in pages["scorecard"]


def test_the_map_of_the_paper_has_a_row_for_each_place(pages):
    (table,) = re.findall(r'id="paper">.*?</table>', pages["gallery"], re.DOTALL)
    assert re.findall(r'<th scope="row">(.*?)</th>', table) == ["Table 3", "Fig. 1"]
    assert 'href="mine/kernel_overhead/table2/notebook.html">mine</a>' in table
    assert "<code>table2</code>" in table and "its trace is &lt;gone&gt;" in table


def test_verdicts_in_the_map_are_those_of_the_place_and_no_other(card, outcomes, tmp_path, root):
    card["source"] = ["OSDI 2025, Fig. 1: a", "OSDI 2025, Fig. 1A", "OSDI 2025, Fig. 11"] + ["OSDI 2025, Table 3"] * 5
    page = gallery.page(outcomes, card, {}, PAPER, tmp_path, root / "workflow/templates")
    row = page.split('<th scope="row">Fig. 1</th>')[1].split("</tr>")[0]
    assert re.findall(r'<span class="badge verdict [^"]*">([^<]*)</span>', row) == ["1 exact"]


def test_what_is_missing_says_how_to_get_it(pages):
    (card,) = re.findall(r'<div class="grid missing">.*?</article>', pages["gallery"], re.DOTALL)
    assert "An NVIDIA GPU" in card and "1 claim of 1 case" in card and "<pre>make record</pre>" in card


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA A100-SXM4-80GB", ["A100"]),
        ("rtx-pro-6000", ["RTX PRO 6000"]),
        ("AMD Instinct MI300X", ["MI300X"]),
        ("NVIDIA H200 SXM, NVIDIA B200 (HGX)", ["B200", "H200"]),
        ("a simulated GPU", []),
    ],
)
def test_gpus_have_short_names(name, short):
    outcome = Outcome("mine", STUDY, "a", {"gpu": {"value": name, "unit": "text"}}, {"inputs": [], "device": None})
    assert gallery.gpus(outcome) == short


@pytest.mark.parametrize(
    ("value", "expected", "words"),
    [(100, None, "0"), (105, 55, "+5 %"), (90, 40, "−10 %"), (1000, 95, "+900 %"), (0, 5, "−100 %")],
)
def test_the_dot_shows_the_difference_in_tolerances(outcomes, value, expected, words):
    claim = CLAIM | {"id": "a", "quantity": "more", "value": 100, "tolerance": 10}
    outcomes[0].summary["more"]["value"] = value
    (row,) = report.rows_for_pages(claims.scorecard({STUDY: {"claims": [claim]}}, outcomes[:1]), {STUDY: ""})
    assert (row["offset"], row["tolerance"], row["difference"]) == (expected, "tolerance ± 10 %", words)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_a_contrast_of_at_least_4_5(root, scheme):
    style = (root / "workflow/templates/page/style.css").read_text("utf-8")
    blocks = [dict(re.findall(r"--([a-z]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)]
    colours = blocks[["light", "dark"].index(scheme)]
    for name in set(colours) - {"line", "paper", "wash", "band"}:
        for ground in ("paper", "wash"):
            bright, dim = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, (name, ground)


def test_numbers_keep_their_units():
    assert report.unbroken("takes 10.2 ms, 5 % of 3 shapes") == "takes 10.2\u00a0ms, 5\u00a0% of 3 shapes"
    assert report.unbroken("kernel_g…tride, and so on …") == "kernel_g…\u2060tride, and so on …"
