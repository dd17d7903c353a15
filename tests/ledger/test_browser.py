"""The pages in a real browser, where Chromium is installed: no complaint, no request, and what the scripts do."""

import base64
import os
from pathlib import Path

import browser
import nbformat
import pandas as pd
import pytest

from gpuledger.ledger import claims, documentation, gallery, pages, report, tables, viewer
from gpuledger.ledger.claims import Outcome

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed")

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
STUDY = "kernel_overhead"
#: Shortened, as labels of kernels are, and joined so that no line ends within.
LONG = "slow in distribution_elementwise_g…\u2060tride_kernel"
METRIC = "sm__inst_executed_pipe_tensor_op_hmma.sum.pct_of_peak_sustained_active"
PAPER = [{"place": "Table 3", "shows": "slowdown", "target": "table2", "study": STUDY, "case": "table2"}]


def outcome(dataset, case, kind, value):
    label = {"published": "published", "simulated": "simulated, not measured"}[kind]
    record = {"dataset": dataset, "study": STUDY, "case": case, "kind": kind, "label": label, "source": "me"}
    record |= {"inputs": [{"file": "a.csv", "sha256": "0" * 64, "device": "NVIDIA L4"}], "title": "A title"}
    finding = {"value": f"{case} is {LONG}", "unit": "text"}
    summary = {"slowdown_ratio": {"value": value, "unit": "1"}, "finding": finding}
    return Outcome(dataset, STUDY, case, summary, record)


@pytest.fixture(scope="module")
def site(tmp_path_factory, root):
    """A site of three results: two of one case, one of another."""
    folder, templates = tmp_path_factory.mktemp("site"), root / "workflow/templates"
    outcomes = [
        outcome("published", "other", "published", 3.0),
        outcome("published", "table2", "published", 1.0),
        outcome("simulated", "table2", "simulated", 2.0),
    ]
    claim = {"case": "table2", "quantity": "slowdown_ratio", "unit": "1", "source": "OSDI 2025, Table 3"}
    content = {"claims": [claim | {"id": f"a{value}", "value": value, "tolerance": 0.5} for value in (1.0, 2.0)]}
    card = claims.scorecard({STUDY: content}, outcomes)
    picture = nbformat.v4.new_output("display_data", {"image/png": base64.b64encode(PIXEL).decode()})
    table = tables.show(pd.DataFrame({"quantity": [METRIC], "value": [1]} | {f"column {n}": [n] for n in range(12)}))
    shown = nbformat.v4.new_output("display_data", {"text/html": table.to_html()})
    cells = [
        nbformat.v4.new_markdown_cell(f"# Title\n\n## Method\n\n$a_1$ and `{METRIC}`"),
        nbformat.v4.new_code_cell("x = 1", outputs=[picture, shown]),
    ]
    marks = pd.DataFrame({"x": [1, 2, 3], "y": [10, 20, 30], "group": ["slow", "slow", "fast"]})
    axes, colors = (viewer.Axis("time (µs)"), viewer.Axis("rate")), {"slow": "#a84300", "fast": "#006b50"}
    view = viewer.View(
        "points", "kernels", marks, {"kernel": ["a", "<b>", "c"], "time (µs)": marks["x"]}, colors, *axes
    )
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "a.ipynb")
    for number, each in enumerate(outcomes):
        target = folder / each.dataset / STUDY / each.case
        target.mkdir(parents=True)
        (target / "figure.png").write_bytes(PIXEL)
        around = {"claims": report.claims_of_case(content, each), "next": f"{STUDY}/table2" if not number else None}
        around["view"] = viewer.embed(view) if number else None
        pages.render(folder / "a.ipynb", target / "notebook.html", templates, "A title", each.record, around)
    (folder / "index.html").write_text(gallery.page(outcomes, card, {}, PAPER, folder, templates), "utf-8")
    (folder / "docs").mkdir()
    for name, page in documentation.build(root, outcomes, templates).items():
        (folder / "docs" / name).write_text(page, "utf-8")
    (folder / "scorecard.html").write_text(report.scorecard_page(card, {STUDY: "Overhead"}, templates, ()), "utf-8")
    return folder.as_uri()


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser.chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


AXE = Path(os.getenv("AXE_CORE", "node_modules/axe-core/axe.min.js"))


def shown(tab, selector):
    """How many elements a reader sees."""
    return tab.run(f"[...document.querySelectorAll('{selector}')].filter((one) => one.offsetHeight).length")


NAMES = ["index.html", "scorecard.html", f"published/{STUDY}/table2/notebook.html", "docs/reading.html"]
# Its tables are wide, and so are the formulas of the models.
WIDE = ["docs/artifact.html", "docs/models.html"]


@pytest.mark.parametrize("name", [*NAMES, *WIDE])
@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_load_without_complaint_or_request_and_fit_the_screen(tab, site, name, width, dark):
    tab.open(f"{site}/{name}", width=width, dark=dark)
    assert tab.complaints == []
    assert all(address.startswith(("file:", "data:", "about:")) for address in tab.requests)
    assert tab.run("[...document.images].every((image) => image.loading === 'lazy' || image.naturalWidth)")
    assert tab.run("document.documentElement.scrollWidth") <= width
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not here: npm install axe-core, or AXE_CORE=…/axe.min.js")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_against_accessibility(tab, site, name, dark):
    tab.open(f"{site}/{name}{'#look' if name == NAMES[2] else ''}", dark=dark)
    tab.run(f"{AXE.read_text('utf-8')};0")
    found = tab.run("axe.run().then((all) => all.violations)")
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


def test_a_value_of_the_scorecard_leads_to_its_quantity(tab, site):
    tab.open(f"{site}/{NAMES[2]}#q-slowdown_ratio")
    assert tab.run("document.querySelector('[data-quantity=slowdown_ratio]').closest('details').open")


def test_wide_tables_keep_names_whole_and_use_the_screen(tab, site):
    cell = f"document.getElementById('q-{METRIC}')"
    for width in (360, 1440):
        tab.open(f"{site}/{NAMES[2]}#q-{METRIC}", width=width)
        tab.run(f"range = new Range(); range.selectNodeContents({cell})")
        # A name that is broken has a rectangle for each of its lines.
        assert tab.run("range.getClientRects().length") == 1
    # Beside what the page says about the case it is as wide as the text, below it as the screen.
    about, table = (f"document.querySelector('{name}').getBoundingClientRect()" for name in ("#about", ".table"))
    assert tab.run(f"{table}.right <= {about}.left || {table}.top >= {about}.bottom")
    tab.run("document.getElementById('about').style.position = 'absolute'")
    assert tab.run(f"{table}.width") > 1000
    assert tab.run("document.documentElement.scrollWidth") == 1440


def test_a_printed_table_is_whole(tab, site):
    tab.open(f"{site}/{NAMES[2]}", width=718)
    tab.call("Emulation.setEmulatedMedia", media="print")
    cut_off = tab.run("getComputedStyle(document.querySelector('.table')).overflowX") != "visible"
    beyond = tab.run("document.querySelector('.table th:last-child').getBoundingClientRect().right") - 718
    tab.call("Emulation.setEmulatedMedia", media="")
    # A browser makes what is a little too wide for a sheet smaller.
    assert not cut_off and beyond < 0.3 * 718


def test_what_a_page_says_about_its_case_is_beside_the_beginning_or_at_the_end(tab, site):
    for width, place in ((1440, "previousElementSibling"), (360, "nextElementSibling")):
        tab.open(f"{site}/{NAMES[2]}", width=width)
        assert tab.run(f"document.getElementById('about').{place}") is None


def test_files_of_a_case_are_listed_on_demand(tab, site):
    tab.open(f"{site}/index.html")
    tab.run("document.querySelectorAll('.files')[1].click()")
    named = "[...document.querySelectorAll('.made a')].map((one) => one.getAttribute('href'))"
    assert f"published/{STUDY}/table2/figure.pdf" in tab.run(named)
    tab.run("[...document.querySelectorAll('.switch button')].at(-1).click()")
    assert f"simulated/{STUDY}/table2/figure.pdf" not in tab.run(named)


def test_search_and_facets_filter_the_gallery_and_are_in_its_address(tab, site):
    tab.open(f"{site}/index.html")
    assert shown(tab, ".version") == 2
    tab.press("/")
    assert tab.run("document.activeElement.name") == "q"
    for letter in "other":
        tab.press(letter)
    assert shown(tab, ".version") == 1
    assert tab.run("location.hash") == "#q=other"
    tab.open(f"{site}/index.html#kind=simulated&paper=Table+3")
    assert tab.run("document.querySelector('.shown').value") == "1 of 3"
    assert tab.run("document.querySelector('.version:not([hidden])').id") == f"simulated-{STUDY}-table2"
    tab.run("document.querySelector('.filter').reset()")
    assert tab.run("new Promise((done) => setTimeout(() => done(location.hash), 50))") == ""
    assert shown(tab, ".version") == 2


def test_a_switch_chooses_between_versions_of_a_case(tab, site):
    tab.open(f"{site}/index.html#simulated-{STUDY}-table2")
    visible = "[...document.querySelectorAll('.version')].filter((one) => one.offsetHeight).map((one) => one.id)"
    assert f"simulated-{STUDY}-table2" in tab.run(visible)
    tab.run("document.querySelector('.switch button').click()")
    assert f"published-{STUDY}-table2" in tab.run(visible)
    assert tab.run("document.querySelector('.switch [aria-pressed=true]').textContent") == "published"


def test_arrow_keys_walk_through_the_cards_and_enter_opens_one(tab, site):
    tab.open(f"{site}/index.html")
    tab.run("document.querySelector('.version').focus()")
    tab.press("ArrowRight")
    tab.press("Enter")
    tab.wait_for(f"location.pathname.endsWith('published/{STUDY}/table2/notebook.html')")


def test_the_scorecard_filters_sorts_and_leads_to_a_row(tab, site):
    tab.open(f"{site}/scorecard.html#verdict=differs")
    assert shown(tab, ".scorecard tbody tr") == 2
    column = "[...document.querySelectorAll('.scorecard tbody td:nth-child(2)')].map((one) => one.textContent)"
    tab.open(f"{site}/scorecard.html")
    for ordered in (["1", "1", "2", "2"], ["2", "2", "1", "1"]):
        tab.run("document.querySelectorAll('.scorecard thead button')[1].click()")
        assert tab.run(column) == ordered
    tab.open(f"{site}/scorecard.html#published--table2--a1.0")
    assert tab.run("document.querySelector(':target').id") == "published--table2--a1.0"


def test_a_table_is_one_tab_stop_in_which_arrow_keys_move(tab, site):
    tab.open(f"{site}/scorecard.html")
    stops = "[...document.querySelectorAll('.scorecard tbody :is(a, summary)')].filter((one) => one.tabIndex === 0)"
    assert tab.run(f"{stops}.length") == 1
    row = "document.activeElement.closest('tr').rowIndex"
    link = "[...document.activeElement.closest('tr').querySelectorAll('a')].indexOf(document.activeElement)"
    tab.run(f"{stops}[0].focus()")
    for key, there in (("ArrowDown", [2, 0]), ("ArrowUp", [1, 0]), ("ArrowUp", [1, 0])):
        tab.press(key)
        assert tab.run(f"[{row}, {link}]") == there
    # Out of the table with one key, and back to where it was left.
    tab.press("ArrowDown")
    tab.press("Tab")
    assert not tab.run("document.activeElement.closest('.scorecard')")
    assert tab.run(f"{stops}[0].closest('tr').rowIndex") == 2
    # A row that is filtered out is no stop.
    tab.run("document.querySelector('[name=q]').value = 'table2'")
    tab.run("document.querySelector('.filter').dispatchEvent(new Event('input'))")
    assert tab.run(f"{stops}.map((one) => one.closest('tr').hidden)") == [False]
    tab.open(f"{site}/index.html")
    assert tab.run("document.querySelectorAll('.counts a').length") > 2
    assert tab.run("[...document.querySelectorAll('.counts a')].filter((one) => one.tabIndex === 0).length") == 1
    reachable = (
        "[...document.querySelectorAll('article')].filter((one) => one.querySelector('[tabindex=\"0\"]')).length"
    )
    assert tab.run(reachable) == 1


def test_keys_turn_the_pages_of_cases_and_buttons_copy(tab, site):
    tab.open(f"{site}/published/{STUDY}/other/notebook.html")
    assert shown(tab, "button[data-copy]") == 2
    # What a click copies where copying is allowed, and selects where it is not.
    for write, told in (("copied = text", "copied"), ("throw 0", "getSelection().toString()")):
        tab.run(f"navigator.clipboard.writeText = async (text) => {{ {write} }}; copied = ''; 0")
        tab.run("document.querySelector('button[data-copy=cite]').click()")
        tab.wait_for(f"{told}.startsWith('@misc{{gpuledger-published')")
    tab.press("j")
    tab.wait_for(f"location.pathname.endsWith('published/{STUDY}/table2/notebook.html')")


def test_a_figure_can_be_looked_at_closer_by_mouse_and_by_keys(tab, site):
    tab.open(f"{site}/{NAMES[2]}")
    assert shown(tab, "#figure img") == 1 and shown(tab, ".viewer") == 0
    tab.run("document.getElementById('closer').click()")
    assert shown(tab, "#figure img") == 0 and shown(tab, ".viewer canvas") == 1
    assert tab.run("document.activeElement.tagName") == "CANVAS" and tab.run("location.hash") == "#look"
    tab.press("]")
    tab.press("]")
    assert tab.run("document.querySelector('.viewer [aria-live]').textContent") == "kernel <b>, time (µs) 2"
    assert tab.run("document.querySelector('.tip').innerText").split() == ["kernel", "<b>", "time", "(µs)", "2"]
    # The mark in the middle of the plot answers the pointer; nothing does where no mark is.
    box = tab.run("document.querySelector('.viewer canvas').getBoundingClientRect().toJSON()")
    x, y = box["x"] + 70 + (box["width"] - 82) / 2, box["y"] + 10 + (box["height"] - 54) / 2
    tab.press("Escape")
    tab.mouse("Moved", x, y)
    assert "<b>" in tab.run("document.querySelector('.tip').textContent")
    tab.mouse("Moved", x + 60, y)
    assert tab.run("document.querySelector('.tip').hidden")
    window = "new Promise((done) => setTimeout(() => done(location.hash.split('=')[1]), 250))"
    tab.press("+")
    zoomed = [float(part) for part in tab.run(window).split(",")]
    assert zoomed[1] - zoomed[0] == pytest.approx(2.16 / 1.5, rel=1e-3)
    tab.press("ArrowRight")
    panned = [float(part) for part in tab.run(window).split(",")]
    assert panned[0] > zoomed[0] and panned[2:] == zoomed[2:]
    tab.mouse("Pressed", x, y)
    tab.mouse("Moved", x, y + 20, buttons=1)
    tab.mouse("Released", x, y + 20)
    dragged = [float(part) for part in tab.run(window).split(",")]
    assert dragged[2] > panned[2]
    tab.mouse("Wheel", x, y, deltaX=0, deltaY=-100)
    wheeled = [float(part) for part in tab.run(window).split(",")]
    assert wheeled[1] - wheeled[0] < dragged[1] - dragged[0]
    tab.open(f"{site}/{NAMES[2]}#look={','.join(map(str, wheeled))}")
    assert shown(tab, ".viewer canvas") == 1
    tab.run("document.querySelector('[data-act=whole]').click()")
    assert tab.run(window) is None
    tab.run("document.querySelector('.legend button').click()")
    tab.run("document.querySelector('.viewer canvas').focus()")
    tab.press("]")
    assert tab.run("document.querySelector('.viewer [aria-live]').textContent") == "kernel c, time (µs) 3"
    assert tab.run("document.querySelector('.viewer [aria-live]').offsetWidth") == 1
    assert tab.complaints == []


def test_two_fingers_zoom_a_figure_and_one_moves_it(tab, site):
    tab.open(f"{site}/{NAMES[2]}#look")
    tab.run("document.querySelector('.viewer canvas').scrollIntoView({block: 'center'})")
    box = tab.run("document.querySelector('.viewer canvas').getBoundingClientRect().toJSON()")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    seen = (
        "new Promise((done) => setTimeout(() => done((location.hash.split('=')[1] || '').split(',').map(Number)), 250))"
    )

    def touch(kind, *places):
        points = [{"x": at, "y": y, "id": finger} for finger, at in enumerate(places)]
        tab.call("Input.dispatchTouchEvent", type=f"touch{kind}", touchPoints=points)

    tab.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    try:
        touch("Start", x - 40, x + 40)
        for step in range(1, 5):
            touch("Move", x - 40 - 10 * step, x + 40 + 10 * step)
        touch("End")
        pinched = tab.run(seen)
        # From 80 to 160 pixels apart: half of what was seen.
        assert pinched[1] - pinched[0] == pytest.approx(2.16 / 2, rel=0.02)
        assert sum(pinched[:2]) == pytest.approx(4, rel=0.02)
        touch("Start", x)
        touch("Move", x + 30)
        touch("Move", x + 60)
        touch("End")
        moved = tab.run(seen)
        assert moved[0] < pinched[0] and moved[1] - moved[0] == pytest.approx(pinched[1] - pinched[0])
    finally:
        tab.call("Emulation.setTouchEmulationEnabled", enabled=False)
    assert tab.complaints == []


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_readable_without_scripts(tab, site, name):
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(f"{site}/{name}")
        assert shown(tab, "h1") == 1 and shown(tab, ".filter") == shown(tab, "button") == 0
        assert shown(tab, ".version") == (3 if name == "index.html" else 0)
        assert shown(tab, "#figure img") == (1 if name == NAMES[2] else 0) and shown(tab, ".viewer") == 0
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
