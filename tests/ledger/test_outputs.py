"""Tables, figures and pages: provenance on all of them, the same bytes every time, nothing unescaped."""

import base64
import hashlib
import json
import re
from itertools import combinations, pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.ledger import figures, notebooks, pages, provenance, report, tables
from gpuledger.ledger.case_result import CaseResult, brief, settle
from gpuledger.ledger.claims import Outcome
from gpuledger.ledger.label_placement import place_labels, spread

RECORD = {
    "dataset": "mine",
    "study": "kernel_overhead",
    "case": "one",
    "kind": "recorded",
    "label": "recorded on NVIDIA L4",
    "source": "me",
    "inputs": [{"file": "a.csv", "source": "run 1"}, {"file": "b.csv", "source": "run 1"}],
}
NASTY = "void <unnamed>::k_1<(int)4>(float*) | 5% & $x$ # {~^} \\ [`a`]"


@pytest.mark.parametrize(
    ("kind", "device", "words"),
    [
        ("published", "NVIDIA A100", "published"),
        ("recorded", "NVIDIA A100", "recorded on NVIDIA A100"),
        ("simulated", "NVIDIA A100", "simulated, not measured"),
        ("downloaded", "NVIDIA A100", "downloaded, recorded on NVIDIA A100"),
        ("local", None, "recorded on this machine"),
        ("local", "NVIDIA L4", "recorded on this machine, NVIDIA L4"),
    ],
)
def test_labels(kind, device, words):
    assert provenance.label(kind, device) == words


def test_caption_names_each_source_once():
    assert provenance.caption(RECORD) == "Recorded on NVIDIA L4. run 1"


def test_table_in_three_formats(tmp_path):
    frame = pd.DataFrame({"kernel": [NASTY, "b"], "flops": [2**53 - 1, 3], "share_percent": [1 / 3, np.nan]})
    shown = tables.write(frame, RECORD, tmp_path, caption="50 % <of> it_all", headers={"flops": "FLOPs"})
    text = (tmp_path / "table.csv").read_text("utf-8")
    assert text.splitlines()[0] == "kernel,flops,share_percent,provenance"
    back = pd.read_csv(tmp_path / "table.csv")
    assert back["kernel"][0] == NASTY
    assert back["flops"][0] == 2**53 - 1
    assert "0.3333333333," in text
    assert back["provenance"].tolist() == [RECORD["label"]] * 2
    markdown = (tmp_path / "table.md").read_text("utf-8")
    assert "9,007,199,254,740,991" in markdown
    assert "&lt;unnamed&gt;::k\\_1" in markdown
    assert all(line.replace("\\|", "").count("|") == 5 for line in markdown.splitlines())
    latex = (tmp_path / "table.tex").read_text("utf-8")
    assert all(word in latex for word in (r"\toprule", r"\bottomrule", r"50 \% \textless{}of\textgreater{} it\_all"))
    assert r"\{\textasciitilde{}\textasciicircum{}\} \textbackslash{}" in latex
    assert latex.startswith("\\begin{table*}[tp]\n") and r"\label{tab:mine-kernel_overhead-one}" in latex
    # What the numbers are is said once, in the caption.
    assert "it\\_all Recorded on NVIDIA L4. run 1.}" in latex and latex.count("NVIDIA L4") == 1
    assert "<unnamed>" not in shown.to_html()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (14.52839336, "14.53"),
        (603_501.02, "603,500"),
        (223_289.9, "223,300"),
        (9999.6, "10,000"),
        (0.0068359375, "0.006836"),
        (-1.234567e-7, "-1.235e-07"),
        (2_727_606_586, "2,727,606,586"),
        (2_727_606_586.0, "2,727,606,586"),
        (float("inf"), "–"),
        ("inf", "–"),
        ("unknown", "unknown"),
    ],
)
def test_people_read_four_digits(value, words):
    assert brief(value) == words


def test_people_read_four_digits_and_programs_all(tmp_path):
    tables.write(pd.DataFrame({"running_cycles": [603_501.02]}), RECORD, tmp_path, caption="c")
    for suffix, words in (("csv", "603501.02,"), ("md", "603,500 "), ("tex", "603500 ")):
        assert words in (tmp_path / f"table.{suffix}").read_text("utf-8")
    result = CaseResult(pd.DataFrame(), {"share_percent": {"value": 14.52839336, "unit": "%"}})
    assert result.summary_table()["value"].tolist() == ["14.53"]


def test_only_the_csv_has_a_column_without_values(tmp_path):
    frame = pd.DataFrame({"kernel": ["a", "b"], "predicted_s": [np.nan] * 2, "count": [1, 2]})
    shown = tables.write(frame, RECORD, tmp_path, caption="c").to_html()
    found = [(tmp_path / f"table.{suffix}").read_text("utf-8") for suffix in ("csv", "md", "tex")]
    assert ["predicted" in text for text in [*found, shown]] == [True, False, False, False]
    assert found[1].splitlines()[1] == "|:---------|--------:|:----------------------|"
    assert "predicted" in tables.show(frame.iloc[:0]).to_html(), "headers say what a table without rows would have"


def test_a_page_says_which_columns_it_leaves_to_the_csv(tmp_path):
    frame = pd.DataFrame({"shape": ["a"], "time_us": [1.0], "noise_percent": [5.0], "none": [None]})
    rest = ["noise_percent", "none", "of_other_cases"]
    shown = tables.write(frame, RECORD, tmp_path, caption="c", headers={"noise_percent": "<noise>"}, csv_only=rest)
    html = shown.to_html()
    assert "Only the CSV has: &lt;noise&gt;." in html and "5.0" not in html and "time (µs)" in html
    assert (tmp_path / "table.csv").read_text("utf-8").splitlines()[0] == "shape,time_us,noise_percent,none,provenance"
    for name in ("table.md", "table.tex"):
        assert "noise" not in (tmp_path / name).read_text("utf-8")


def test_table_without_provenance_is_refused(tmp_path):
    with pytest.raises(ValueError, match="every table row must say what its numbers are"):
        tables.write(pd.DataFrame({"a": [1]}), None, tmp_path, caption="")


def draw(folder, record=RECORD):
    figures.use_style()
    figure, axes = plt.subplots()
    axes.plot([1, 2], [3, 4], label="a")
    figures.headline(figure, "A finding", legend=axes)
    return figures.save(figure, record, folder)


@pytest.mark.parametrize("number", ["80 GB", "5.2 µs", "14 %", "3.4 TFLOP/s"])
def test_a_headline_keeps_a_number_with_its_unit(number):
    figure = plt.figure(figsize=(7, 3))
    for before in range(30):
        figures.headline(figure, f"{'a' * before} NVIDIA H100 {number} " + "and more words " * 9)
        title = figure._suptitle.get_text()
        assert "\n" in title and number in title.replace("\u00a0", " ")


def test_a_headline_of_wide_letters_does_not_widen_its_figure():
    figures.use_style()
    figure = plt.figure(figsize=(7, 3))
    words = "Predicted: gemma-3-27b-it on NVIDIA A100-SXM4-80GB runs decode at 71 % of DRAM bandwidth"
    figures.headline(figure, words)
    assert figure._suptitle.get_text().count("\n") == 1
    assert figure._suptitle.get_window_extent().x1 < figure.bbox.x1


def test_a_headline_breaks_no_word_at_its_hyphen():
    figure = plt.figure(figsize=(7, 3))
    for before in range(30):
        figures.headline(figure, f"{'a' * before} held-back mixture-of-experts layers " + "and more words " * 9)
        assert not any(line.endswith("-") for line in figure._suptitle.get_text().split("\n"))


def test_an_address_longer_than_a_line_is_cut_at_a_sign():
    address = "https://huggingface.co/deepseek-ai/DeepSeek-V3/resolve/main/config.json"
    lines = figures._balanced(f"Predicted. DeepSeek-V3: {address}", 54).split("\n")
    assert max(map(len, lines)) <= 54 and "".join(lines[1:]).endswith(address)
    assert lines[1][-1] in "/-."


def test_figures_have_the_fonts_of_matplotlib_not_of_the_system():
    figures.use_style()
    for name in ("DejaVu Sans", "DejaVu Sans:bold", "DejaVu Sans Mono", "STIXGeneral"):
        assert font_manager.findfont(name).startswith(mpl.get_data_path())


def test_figures_are_the_same_bytes_and_say_what_they_are(tmp_path):
    for name in ("one", "two"):
        draw(tmp_path / name)
    sums = [
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    ]
    assert set(sums[0]) == {"figure.pdf", "figure.svg", "figure.png"}
    assert sums[0] == sums[1]
    assert "Recorded on NVIDIA L4. run 1" in (tmp_path / "one/figure.svg").read_text("utf-8")


def width_points(file):
    return float(re.search(r'width="([\d.]+)pt"', file.read_text("utf-8"))[1])


def test_figures_are_exactly_as_wide_as_a_page_or_a_column(tmp_path, monkeypatch):
    draw(tmp_path)
    assert width_points(tmp_path / "figure.svg") == 504
    monkeypatch.setattr(figures, "for_columns", True)
    figure = draw(tmp_path)
    assert width_points(tmp_path / "figure_column.svg") == pytest.approx(3.33 * 72)
    assert "A finding" not in [text.get_text() for text in figure.findobj(plt.Text)]
    assert min(text.get_fontsize() for text in figure.findobj(plt.Text)) >= 6.5
    box = figure.axes[0].get_legend().get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    assert 0 <= box.x0 < box.x1 <= 3.33


def test_logarithmic_axes_have_no_exponents(tmp_path):
    figures.use_style()
    figure, panels = plt.subplots(1, 2)
    panels[0].loglog([2e-6, 3e7], [1, 2])
    panels[1].semilogx([2, 5], [1, 2])
    figures.save(figure, RECORD, tmp_path)
    long, short = ([label.get_text() for label in axes.get_xticklabels(which="both")] for axes in panels)
    assert {"0.0001", "100", "1M"} <= set(long)
    assert {"2", "3", "4"} <= set(short)
    assert not any("$" in text.get_text() for text in figure.findobj(plt.Text))


@pytest.mark.parametrize("seed", [39, 43])  # two crowds whose shortest leader lines would cross
def test_leader_lines_do_not_cross(seed):
    axes = plt.figure(figsize=(3.5, 2.5)).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    points = 0.5 + 0.13 * np.random.default_rng(seed).standard_normal((7, 2))
    axes.scatter(*points.T, s=200)
    place_labels(axes, points, [f"a kernel of a longer name, {place}" for place in range(7)], np.full(7, 7.0))
    lines = []
    for note in axes.texts:
        if note.arrow_patch is not None:
            box = note.get_window_extent()
            end = box.p0 + np.array(note.arrowprops["relpos"]) * box.size
            lines.append(np.array([note.xy, axes.transData.inverted().transform(end)]))
    assert lines
    for (a, b), (c, d) in combinations(lines, 2):
        directions = np.column_stack([b - a, c - d])
        if abs(np.linalg.det(directions)) < 1e-9:  # parallel
            continue
        at = np.linalg.solve(directions, c - a)
        assert not ((at > 0) & (at < 1)).all()


def test_labels_cover_no_mark_and_optional_ones_only_where_there_is_room():
    axes = plt.figure(figsize=(6, 4)).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    points = np.array([[0.5, 0.5], [0.6, 0.55], [0.2, 0.2], [0.62, 0.56], [0.1, 0.9]])
    radii = np.array([30.0, 8, 4, 4, 4])
    axes.scatter(*points.T, s=(2 * radii) ** 2)
    place_labels(axes, points, [f"kernel {place}" for place in range(5)], radii, needed=2)
    assert [note.get_text() for note in axes.texts] == ["kernel 0", "kernel 1", "kernel 2", "kernel 4"]
    scale = axes.figure.dpi / 72
    for note in axes.texts:
        box = note.get_window_extent()
        for (x, y), radius in zip(axes.transData.transform(points), scale * radii, strict=True):
            near = np.clip([x, y], (box.x0, box.y0), (box.x1, box.y1))
            assert np.hypot(*(near - (x, y))) > radius


def test_a_label_stays_at_its_point_though_it_covers_a_line_and_counts_what_it_does_not_name():
    """In a corner, with lines on all sides: far away, where there is nothing, nobody would know whose it is."""
    axes = plt.figure(figsize=(6, 4)).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    points = np.array([[0.9, 0.8]] * 4)
    axes.scatter(*points.T, s=100)
    for height in (0.55, 0.7, 0.9, 0.98):
        axes.plot([0, 1], [height - 0.2, height])
    labels = [f"a kernel with a long name, {number}" for number in range(4)]
    place_labels(axes, points, labels, np.full(4, 5.0), most=3)
    (note,) = axes.texts
    assert note.get_text() == "\n".join([*labels[:2], "and 2 more"])
    assert note.arrow_patch is None, "beside its point"
    box, frame = note.get_window_extent(), axes.get_window_extent()
    assert frame.x0 < box.x0 < box.x1 < frame.x1


def test_panels_of_a_column_are_below_one_another(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "for_columns", True)
    figures.use_style()
    figure, panels = plt.subplots(1, 3, figsize=(7, 2))
    panels[1].set_title("A title of so many words that it does not fit into the width of a column of a paper")
    figures.save(figure, RECORD, tmp_path)
    boxes = [panel.get_position() for panel in panels]
    assert all(upper.y0 > lower.y1 and upper.x0 == lower.x0 for upper, lower in pairwise(boxes))
    assert "\n" in panels[1].get_title("left") + panels[1].get_title()


def test_crowded_panels_fit_a_column(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "for_columns", True)
    figures.use_style()
    figure, grid = plt.subplots(2, 2, figsize=(7, 4))
    for axes in grid[1]:
        axes.axis("off")
    names = ["a kernel whose name needs two lines of text", "another"]
    grid[0, 0].barh([0, 1], [1, 2])
    grid[0, 0].set_yticks([0, 1], names)
    grid[0, 1].plot(range(12))
    grid[0, 1].set_xticks(range(12), [f"{1000 * size:,}" for size in range(12)])
    grid[0, 1].set_xlim(2.5, 8.5)
    handles = [plt.Rectangle((0, 0), 1, 1, label=f"one of many labels, number {place}") for place in range(6)]
    figure.legend(handles=handles, loc="outside lower center", ncols=6)
    figures.settle(figure)
    grid[0, 0].annotate("placed later", (1, 0), fontsize=4)
    figures.save(figure, RECORD, tmp_path)
    assert width_points(tmp_path / "figure_column.svg") == pytest.approx(3.33 * 72)
    assert min(text.get_fontsize() for text in figure.findobj(plt.Text)) >= 6.5
    assert [label.get_text().count("\n") for label in grid[0, 0].get_yticklabels()] == [1, 0]
    shown = [label.get_text() for label in grid[0, 1].get_xticklabels()]
    assert shown[0] == "0" and 0 < shown.count("") < 11
    assert grid[0, 1].get_xlim() == (2.5, 8.5), "ticks beyond the limits do not widen them"
    tops = [axes.get_position().y1 for axes in (grid[0, 0], grid[1, 0], grid[0, 1], grid[1, 1])]
    assert tops == sorted(tops, reverse=True), "each panel's key is below it"


@pytest.mark.parametrize(
    "label",
    [
        "simulated, not measured",
        "predicted by a time model, beside measured served runs",
        "predicted, compared with times (downloaded, recorded on NVIDIA RTX PRO 6000 Blackwell Server Edition)",
    ],
)
def test_the_source_begins_behind_what_the_numbers_are(label):
    """In a PDF the coloured words are wider than on the screen, and ran into the source."""
    figure = draw(None, RECORD | {"kind": "predicted", "label": label})
    source, words = figure.texts[-2:]
    bold = FontProperties(size=figures.CAPTION_POINTS, weight="bold")
    last = words.get_text().split("\n")[-1]
    points = text_to_path.get_text_width_height_descent(last, bold, False)[0]
    between = 72 * figure.get_figwidth() * (source.get_position()[0] - words.get_position()[0]) - points
    assert 4 < between < 8 and source.get_text().count("\n") == words.get_text().count("\n")


def test_a_source_that_does_not_fit_beside_begins_below():
    label = "simulated, " + "x" * 98
    figure = draw(None, RECORD | {"kind": "simulated", "label": label, "inputs": [{"file": "a", "source": "y" * 60}]})
    below, beside, words = figure.texts[-3:]
    assert (beside.get_text().strip(), below.get_text().strip("\n")) == ("", "y" * 60)
    assert below.get_text().count("\n") == words.get_text().count("\n") + 1


@pytest.mark.parametrize("kind", provenance.NOT_MEASURED)
def test_figures_of_what_is_not_measured_announce_it_in_colour(kind):
    caption = draw(None, RECORD | {"kind": kind, "label": f"{kind}, not measured"}).texts[-1]
    assert caption.get_text().startswith(f"{kind.capitalize()}, not measured.")
    assert caption.get_color() == figures.VERMILLION
    assert draw(None).texts[-1].get_color() != figures.VERMILLION


def test_no_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(None)
    tables.write(pd.DataFrame({"a": [1]}), RECORD, None, caption="")
    assert not list(tmp_path.iterdir())


@given(st.one_of(st.integers(-(2**60), 2**60), st.floats(), st.text(max_size=5), st.booleans()))
def test_settled_values_are_json_and_stable(value):
    settled = settle(value)
    json.dumps(settled, allow_nan=False)
    assert settle(settled) == settled
    if isinstance(value, int) and not isinstance(value, bool):
        assert settled == value


def test_reduced_round_trip_is_the_same_bytes(tmp_path):
    result = CaseResult(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), provenance=dict(RECORD))
    result.add("total", np.int64(2**53 + 1), "FLOP")
    result.add("ratio", float("inf"), "1")
    result.write(tmp_path / "one")
    again = CaseResult.read(tmp_path / "one")
    assert (again["total"], again["ratio"]) == (2**53 + 1, "inf")
    again.write(tmp_path / "two")
    for name in ("data.parquet", "summary.json", "provenance.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_formulas_become_mathml_but_not_inside_code_or_prices():
    html = pages.formulas_to_mathml("costs $5 and $6; `$a$`; $x^2$; $$\\frac{1}{2}$$")
    assert html.count("<math") == 2
    assert "costs $5 and $6; `$a$`;" in html
    assert 'display="block"' in html and "<mfrac>" in html


def test_page_needs_nothing_from_outside(tmp_path, root):
    cells = [
        nbformat.v4.new_markdown_cell("# Title\n\nA formula $a_1$"),
        nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("print(x)"),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={**kernel, "language_info": {"name": "python"}})
    nbformat.write(notebook, tmp_path / "in.ipynb")
    notebooks.execute(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"x": "<b>2</b>"})
    record = {"label": "simulated & <more>", "kind": "simulated"}
    pages.render(tmp_path / "out.ipynb", tmp_path / "page.html", root / "workflow/templates", "A <title>", record)
    html = (tmp_path / "page.html").read_text("utf-8")
    assert "<math" in html and "&lt;b&gt;2&lt;/b&gt;" in html and "A &lt;title&gt;" in html
    assert '<span class="badge simulated">simulated &amp; &lt;more&gt;</span>' in html
    assert not any(word in html for word in ("<script ", 'src="http', 'href="http', "@import", "x = 1"))
    assert html.count("<script>") == 1


@pytest.mark.parametrize(
    ("dataset", "case", "words"),
    [("published", "one", "Of one. Of both. Of all."), ("mine", "one", "Of all."), ("mine", "two", "Of both. Of all.")],
)
def test_text_about_another_case_is_left_out(tmp_path, dataset, case, words):
    tags = {"Of one.": ["only:published/one"], "Of both.": ["only:published/one", "only:*/two"], "Of all.": ["other"]}
    cells = [nbformat.v4.new_markdown_cell(text, metadata={"tags": of}) for text, of in tags.items()]
    cells.append(nbformat.v4.new_code_cell("dataset = case = None", metadata={"tags": ["parameters"]}))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "a.ipynb")
    notebooks.execute(tmp_path / "a.ipynb", tmp_path / "b.ipynb", {"dataset": dataset, "case": case})
    found = nbformat.read(tmp_path / "b.ipynb", as_version=4).cells
    assert " ".join(cell.source for cell in found if cell.cell_type == "markdown") == words


def test_a_page_has_no_empty_table_and_no_section_without_results(tmp_path, root):
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    full, empty = (
        nbformat.v4.new_output("display_data", {"text/html": tables.show(frame).to_html(), "text/plain": "a Styler"})
        for frame in (pd.DataFrame({"loss": [1]}), pd.DataFrame({"pause": []}))
    )
    cells = [markdown("# T\n\nLead"), code("x = 1"), markdown("## Method\n\nWords"), markdown("## Pauses\n\nEach.")]
    cells += [code("1", outputs=[empty]), markdown("## Losses"), code("2", outputs=[empty, full])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    pages.render(tmp_path / "a.ipynb", tmp_path / "a.html", root / "workflow/templates", "T", RECORD)
    html = (tmp_path / "a.html").read_text("utf-8")
    assert pages.HEADINGS.findall(html) == [("Method", "Method"), ("Losses", "Losses")]
    assert "Lead" in html and "loss</th>" in html and "pause" not in html and "Each." not in html


def test_page_says_its_claims_its_neighbours_and_what_its_figures_show(tmp_path, root):
    picture, about = {"image/png": base64.b64encode(b"png").decode()}, {"image/png": {"headline": "A <good>\none"}}
    output = nbformat.v4.new_output("display_data", picture, metadata=about)
    cells = [nbformat.v4.new_markdown_cell("## Method"), nbformat.v4.new_code_cell("draw()", outputs=[output, output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    content = {"claims": [{"id": "a", "case": "one", "quantity": "x", "value": 5, "unit": "1", "source": "s"}]}
    outcome = Outcome("mine", "kernel_overhead", "one", {"x": {"value": 5, "unit": "1"}}, RECORD)
    around = {"finding": "A <good> one", "claims": report.claims_of_case(content, outcome), "next": "dmat/fig1"}
    pages.render(tmp_path / "a.ipynb", tmp_path / "a.html", root / "workflow/templates", "T", RECORD, around)
    html = (tmp_path / "a.html").read_text("utf-8")
    assert re.findall(r'alt="([^"]*)"', html) == [f"A &lt;good&gt; one (figure {number} of 2)" for number in (1, 2)]
    assert '<p id="figure" class="said" style="--lines: 2">' in html, "the finding is not said twice"
    assert "snakemake --cores 4 results/mine/kernel_overhead/one/notebook.html<" in html
    assert '<a href="../../../scorecard.html#mine--one--a">X: 5.</a> Here: 5,\n<span class="exact">exact</span>' in html
    assert '<a rel="next" href="../../dmat/fig1/notebook.html"' in html and ' rel="prev"' not in html
    assert '<a href="../../../index.html#mine-kernel_overhead-one">gallery</a>' in html
    assert '<a class="anchor-link" href="#Method">' in html


@pytest.mark.parametrize(
    ("below", "above_the_method"),
    [("Left: all.\n\nMore of it.", True), ("With $x$ a size", False), ("## Left\n\nLeft: all.", False)],
)
def test_what_is_said_below_the_figure_is_at_the_top_with_it(tmp_path, root, below, above_the_method):
    picture = nbformat.v4.new_output("display_data", {"image/png": base64.b64encode(b"png").decode()})
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [markdown("# T\n\nIntroduction"), markdown("## Method"), code("draw()", outputs=[picture]), markdown(below)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    pages.render(tmp_path / "a.ipynb", tmp_path / "a.html", root / "workflow/templates", "T", RECORD)
    html = (tmp_path / "a.html").read_text("utf-8")
    html, words = html[html.index("<main") :], "a size" if "$" in below else "Left: all."
    assert (html.index(words) < html.index("Introduction")) == above_the_method
    assert "More of it." not in html or html.index("More of it.") > html.index('id="Method"')


def test_the_figure_at_the_top_is_the_one_that_was_saved_not_a_sketch_before_it(tmp_path, root):
    pictures = [base64.b64encode(name).decode() for name in (b"sketch", b"main", b"more")]
    about = [{}, {"image/png": {"headline": "M"}}, {"image/png": {"headline": "N"}}]
    shown = [
        nbformat.v4.new_output("display_data", {"image/png": picture}, metadata=said)
        for picture, said in zip(pictures, about, strict=True)
    ]
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("draw()", outputs=shown)]), tmp_path / "a.ipynb"
    )
    pages.render(tmp_path / "a.ipynb", tmp_path / "a.html", root / "workflow/templates", "T", RECORD)
    html = (tmp_path / "a.html").read_text("utf-8")
    assert html.index(pictures[1]) < html.index("at the top of the page")
    assert html.index(pictures[0]) < html.index("at the top of the page") < html.index(pictures[2])
    assert html.index(pictures[1]) < html.index(pictures[0])


def test_standard_error_goes_to_the_log_and_never_into_a_notebook(tmp_path, caplog):
    source = "import sys\nprint('kept')\nprint('lost', file=sys.stderr)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "p", "language": "python"}}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    notebooks.execute(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {})
    (cell,) = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert [(output.name, output.text) for output in cell.outputs] == [("stdout", "kept\n")]
    assert "lost" in caplog.text


def test_bad_input_in_a_cell_is_one_line(tmp_path):
    source = "from gpuledger.errors import InputError\nraise InputError('a.csv', 'line 2', 'is bad', 'mend it')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "p", "language": "python"}}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    with pytest.raises(InputError, match=r"a\.csv, line 2: is bad; mend it"):
        notebooks.execute(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {})
    assert not (tmp_path / "out.ipynb").exists()


def test_jupyter_shows_the_file_that_was_written_and_draws_a_changed_figure_again(tmp_path):
    code = f"""
import matplotlib as mpl
import matplotlib.pyplot as plt
from gpuledger.ledger import figures
figures.use_style()
figure, axes = plt.subplots()
axes.plot([1, 2], [3, 4])
figures.save(figure, {RECORD!r}, {str(tmp_path)!r})
"""
    content = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in (code, "axes.set_title('changed')\nfigure")]
    )
    nbformat.write(content, tmp_path / "a.ipynb")
    notebooks.execute(tmp_path / "a.ipynb", tmp_path / "b.ipynb", {})
    cells = nbformat.read(tmp_path / "b.ipynb", as_version=4).cells
    shown = [base64.b64decode(cell.outputs[0].data["image/png"]) for cell in cells]
    assert shown[0] == (tmp_path / "figure.png").read_bytes() != shown[1]
    width = int.from_bytes(shown[0][16:20], "big")
    assert cells[0].outputs[0].metadata["image/png"]["width"] == width // 2


@pytest.mark.parametrize(("low", "high", "least"), [(4e6, 7e7, 4), (1e4, 1e9, 3), (3e6, 4e6, 0)])
def test_a_logarithmic_axis_has_labels_though_it_spans_little(low, high, least):
    axes = mpl.figure.Figure().subplots()
    axes.set(xscale="log", xlim=(low, high))
    figures.set_magnitudes(axes.xaxis, low, high, most=5)
    labels = [axes.xaxis.get_major_formatter()(tick) for tick in axes.get_xticks() if low <= tick <= high]
    assert len(labels) >= least and all(labels)


def test_labels_keep_their_order_apart_and_inside():
    assert spread([0.9, 0.5]) == [0.9, 0.5]
    for heights in ([1.2, 1.1, 1.0], [0.5] * 5, [0.01, 0.0, -3.0], [0.9, 0.02, 0.01]):
        places = spread(heights)
        assert all(one - other > 0.1499 for one, other in pairwise(places))
        assert places[-1] > 0.069 and places[0] <= 0.9401
