"""Figures: one style, three formats, provenance below each, byte-identical when made again."""

import logging
import re
import textwrap
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import resources
from math import ceil
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import text_to_path
from matplotlib.ticker import LogFormatter, LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox, blended_transform_factory
from matplotlib.typing import ColorType

from gpuledger import files
from gpuledger.ledger import column_layout, provenance

#: Okabe and Ito's palette, which readers with any colour vision can tell apart.
#: https://jfly.uni-koeln.de/color/ (Color Universal Design, 2008).
#: In every figure vermillion is what is lost, wrong or not measured. Where colours are kernels or probes, purple is
#: attention or a probe that records every access; where they are limits, compute is blue, DRAM orange, L2 sky blue.
BLACK, ORANGE, SKY, GREEN = "#222222", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#888888", "#D9D9D9"

FORMATS = ("pdf", "svg", "png")
#: Size of the finding above a figure (printer's points).
HEADLINE_POINTS = 9.5
#: Size of the provenance below a figure (printer's points).
CAPTION_POINTS = 6.5
#: Inches of a figure across both columns of a paper.
WIDTH = 7.0
#: Wider figures are for a page of their own, and keep their width.
WIDEST = 7.6

#: Whether :func:`save` lays figures out for one column of a paper, as ``<name>_column``; for the rule that draws those.
for_columns = False

#: Tables of a font that its glyphs are drawn from.
_GLYPH_TABLES = {"head", "hhea", "hmtx", "maxp", "loca", "glyf", "CFF ", "cvt ", "fpgm", "prep"}

_saved: WeakKeyDictionary[Figure, bytes] = WeakKeyDictionary()
_settled: WeakSet[Figure] = WeakSet()


def use_style() -> None:
    """Use the project's style; in Jupyter, also show figures at twice the resolution, and saved ones as they are."""
    mpl.style.use(str(resources.files("gpuledger.ledger").joinpath("gpuledger.mplstyle")))
    _use_own_fonts()
    if "inline" in mpl.get_backend():
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")
        formatter = get_ipython().display_formatter.formatters["image/png"]
        draw = formatter.for_type(Figure)
        formatter.for_type(Figure, lambda figure: _saved_picture(figure) or draw(figure))


@cache
def _use_own_fonts() -> None:
    """Draw with the fonts that come with matplotlib.

    A system may have other versions of them, and matplotlib's cache of fonts, which all its installations share, may
    know only those. Glyphs would then have other numbers, and the files other bytes.
    """
    fontManager.ttflist.clear()
    for file in sorted(Path(mpl.get_data_path(), "fonts", "ttf").glob("*.ttf")):
        fontManager.addfont(file)


def _saved_picture(figure: Figure) -> tuple[str, dict[str, int | str]] | None:
    """Return the PNG that :func:`save` wrote, for Jupyter; None if the figure has been changed since.

    The lines of its headline go with it, for pages that say the same above it.
    """
    if figure.stale or figure not in _saved:
        return None
    png = _saved[figure]
    width, height = (int.from_bytes(png[at : at + 4], "big") // 2 for at in (16, 20))
    said = figure.get_suptitle().strip().replace(r"\$", "$")
    return b64encode(png).decode(), {"width": width, "height": height, "headline": said}


def ink_on(color: ColorType) -> str:
    """Return white for text on dark colours, by their luminance (ITU-R BT.601), otherwise black."""
    return "white" if np.dot(to_rgb(color), (0.299, 0.587, 0.114)) < 0.5 else BLACK


def plain(text: str) -> str:
    """Escape ``$`` in a text from data, which matplotlib would take for the start of a formula."""
    return text.replace("$", r"\$")


def headline(figure: Figure, finding: str, legend: Axes | None = None, columns: int = 4) -> None:
    """Put the finding above a figure, and the legend of `legend` between them.

    Parameters
    ----------
    figure : Figure
        With constrained layout, which the style sets.
    finding : str
        What the figure shows, in one sentence.
    legend : Axes, optional
        The axes whose labels go into the legend.
    columns : int
        Columns of the legend.
    """
    # About 12.8 characters of the bold title fit into an inch, fewer where many are wide.
    width = figure.get_figwidth() if figure.get_figwidth() > WIDEST else WIDTH
    most = int(width * 12.7)
    lines = _balanced(plain(finding), most)
    while most > width * 10 and _widest(lines) > 0.995 * width:
        most -= 1
        lines = _balanced(plain(finding), most)
    # The legend goes onto empty lines below: as a part of the layout, its width would squeeze its own axes.
    rows = 0 if legend is None else -(-len(legend.get_legend_handles_labels()[0]) // columns)
    figure.suptitle(lines + "\n" * rows, x=0.005, ha="left", fontsize=HEADLINE_POINTS, fontweight="bold")
    if legend is not None:
        anchor = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
        box = legend.legend(**anchor, ncols=columns, handletextpad=0.4, columnspacing=1.4, borderpad=0.2)
        box.set_in_layout(False)


def _widest(lines: str, points: float = HEADLINE_POINTS) -> float:
    """Return the width of the longest of some lines in bold (inches)."""
    font = FontProperties(size=points, weight="bold")
    widths = [text_to_path.get_text_width_height_descent(line, font, False)[0] for line in lines.split("\n")]
    return max(widths) / 72


#: Units that follow a number in findings.
_UNITS = "[nµm]?s|[kMGT]i?B|[MGT]?FLOP|[MG]Hz|W"


def _balanced(text: str, most: int) -> str:
    """Break a text into as few lines as possible of about the same length; a number stays with its sign or unit."""
    kept = re.sub(rf"(?<=[=≤≥<>]) | (?=[=≤≥<>%])|(?<=\d) (?=(?:{_UNITS})\b)", "\u00a0", text)
    fitting = " ".join(piece for word in kept.split(" ") for piece in _pieces(word, most))
    style = {"break_long_words": False, "break_on_hyphens": False}
    layouts = [textwrap.wrap(fitting, width, **style) for width in range(most // 2, most + 1)]
    return "\n".join(next(lines for lines in layouts if len(lines) == len(layouts[-1])))


def _pieces(word: str, most: int) -> Iterator[str]:
    """Cut a word that is longer than a line, such as an address, where a sign ends a part of it."""
    while len(word) > most:
        at = max(word.rfind(sign, 0, most) for sign in "/-_.") + 1 or most
        yield word[:at]
        word = word[at:]
    yield word


def magnitude(value: float) -> str:
    """Return a tick of a logarithmic axis: 0.01, 1, 100, 10k, 1M; exponents would print smaller than any text may."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * (1 - 1e-9):
            return f"{value / size:g}{prefix}"
    return f"{value:.12f}".rstrip("0").rstrip(".") if value < 1e-4 else f"{value:g}"


def set_magnitudes(axis: Axis, low: float, high: float, most: int) -> None:
    """Set the ticks of a logarithmic axis: powers of ten, and where it spans few, also 2 and 5 times these."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 20 * low else (1,), numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: magnitude(value))


def draw_identity(axes: Axes, ends: np.ndarray, percent: float) -> None:
    """Draw the diagonal of logarithmic axes from and to the same ends, and around it a band of errors."""
    low, high = (ends * (1 + sign * percent / 100) for sign in (-1, 1))
    axes.fill_between(ends, low, high, color=PALE, linewidth=0)
    axes.plot(ends, ends, color=BLACK, linewidth=0.6)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        # Of less than a decade, powers of ten would be too few; with less than two ticks, LogLocator sets many more.
        few = LogLocator(subs=(1, 2, 5) if ends[1] < 20 * ends[0] else (1,))
        axis.set_major_locator(few if ends[1] >= 5 * ends[0] else MaxNLocator(4, steps=[1, 2, 5, 10]))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


class _Magnitudes(LogFormatter):
    def __call__(self, value: float, position: int | None = None) -> str:
        return magnitude(value) if super().__call__(value, position) else ""


def _write_magnitudes(figure: Figure) -> None:
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        for get, put in (
            (axis.get_major_formatter, axis.set_major_formatter),
            (axis.get_minor_formatter, axis.set_minor_formatter),
        ):
            if isinstance(get(), LogFormatterSciNotation):
                put(_Magnitudes(labelOnlyBase=get().labelOnlyBase))


@contextmanager
def _fonts_found_once() -> Iterator[None]:
    """Look each font up once: matplotlib does for every text, each time that it is measured or drawn."""
    fontManager.findfont = cache(fontManager.findfont)
    try:
        yield
    finally:
        del fontManager.findfont


@_fonts_found_once()
def settle(figure: Figure) -> None:
    """Lay a figure out as :func:`save` will, for labels that are placed among what is drawn; add nothing else later."""
    _write_magnitudes(figure)
    if for_columns:
        column_layout.apply(figure)
        _settled.add(figure)
    elif figure.get_figwidth() <= WIDEST:
        figure.set_figwidth(WIDTH)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


@_fonts_found_once()
def save(figure: Figure, record: Mapping, folder: str | Path | None, name: str = "figure") -> Figure:
    """Put the provenance below a figure and write it as PDF, SVG and PNG.

    Parameters
    ----------
    record : mapping
        The ``provenance.json`` of its numbers. That they are simulated or predicted is said in colour.
    folder : path or None
        Where to write ``<name>.pdf``, ``.svg`` and ``.png``; None writes nothing.
    name : str
        ``figure``, or ``figure_<what>`` for further ones.
    """
    _write_magnitudes(figure)
    if for_columns:
        (column_layout.limit_texts if figure in _settled else column_layout.apply)(figure)
        name = f"{name}_column"
    elif figure.get_figwidth() <= WIDEST and isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        # A layout that is finished, with labels placed in it, keeps its size.
        figure.set_figwidth(WIDTH)
    box = _lay_out(figure, record)
    if folder is not None:
        described = {"Title": f"{record['dataset']}/{record['study']}/{record['case']}"}
        caption = provenance.caption(record)
        # No dates: a figure made again must be byte-identical.
        metadata = {
            "pdf": {**described, "Subject": caption, "CreationDate": None},
            "svg": {**described, "Description": caption, "Date": None},
            "png": {**described, "Description": caption, "Software": None},
        }
        _embed_glyphs_only()
        with mpl.rc_context({"figure.constrained_layout.use": False}):
            figure.set_layout_engine(None)
            for suffix in FORMATS:
                with files.replacing(Path(folder) / f"{name}.{suffix}") as temporary:
                    figure.savefig(temporary, metadata=metadata[suffix], bbox_inches=box)
        _saved[figure] = (Path(folder) / f"{name}.png").read_bytes()
        figure.stale = False
    plt.close(figure)
    return figure


@cache
def _embed_glyphs_only() -> None:
    """Leave out of embedded fonts all but what a PDF, which places each glyph by its number, needs to draw them.

    The tables of characters and names take longest to read (ISO 32000-1, 9.9: which are needed).
    """
    from fontTools import subset, ttLib

    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it lists every glyph
    load = subset.load_font

    def load_glyphs(*arguments: Any, **options: Any) -> ttLib.TTFont:
        font = load(*arguments, **options)
        for table in set(font.reader.keys()) - _GLYPH_TABLES:
            del font[table]
        return font

    subset.load_font = load_glyphs


def _lay_out(figure: Figure, record: Mapping) -> Bbox:
    """Lay a figure out at its width, put the provenance below it, and return the region to save."""
    # Once and measured here; savefig would do so once more for each format.
    engine, width, pad = figure.get_layout_engine(), figure.get_figwidth(), mpl.rcParams["savefig.pad_inches"]
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        left = right = 0.0
        for _ in range(6 if for_columns else 1):
            drawn = figure.get_tightbbox()
            more = max(0, pad - drawn.x0), max(0, drawn.x1 + pad - width)
            if sum(more) <= 0.02 or left + right + sum(more) > 0.7 * width:
                break
            # What the engine does not know of (legends and texts beside axes) gets room.
            left, right = left + more[0], right + more[1]
            engine.set(rect=(left / width, 0, 1 - (left + right) / width, 1))
            engine.execute(figure)
            engine.set(rect=(0, 0, 1, 1))
    figure.set_layout_engine("none")
    for axes in figure.axes:
        # The layout's last digits depend on the order of sets, and identifiers in SVG on every digit.
        if axes.get_in_layout():
            axes.set_position(np.round(axes.get_position(original=True).bounds, 7), which="original")
            axes.set_in_layout(True)
    for legend in figure.legends:
        # A legend outside the axes is anchored to the saved region, which the caption extends: keep it where it is.
        legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
    drawn = figure.get_tightbbox()
    _keep_labels(figure)
    low = _write_caption(figure, record, width, drawn.y0 / figure.get_figheight() - 0.02)
    # Exactly as wide as the figure, unless something sticks out.
    left, right = min(0, drawn.x0), max(width, drawn.x1)
    return Bbox([[left, low - pad], [right, drawn.y1 + pad]])


def _keep_labels(figure: Figure) -> None:
    """Leave the labels of axes where they are: each format would measure the ticks beside them once more."""
    for axes in figure.axes:
        for axis, side in ((axes.xaxis, 1), (axes.yaxis, 0)):
            place, transforms = list(axis.label.get_position()), [axes.transAxes, axes.transAxes]
            place[side] /= figure.bbox.size[side]
            transforms[side] = figure.transFigure
            axis.set_label_coords(*place, blended_transform_factory(*transforms))


def _write_caption(figure: Figure, record: Mapping, width: float, top: float) -> float:
    """Write the provenance below a figure, first in colour if nothing was measured; return where it ends, in inches."""
    head, rest = provenance.caption_parts(record)
    style = {"y": top, "va": "top", "fontsize": CAPTION_POINTS, "linespacing": 1.25}
    grey, most, left = style | {"color": "#666666"}, int(width * 19), 0.005
    if record["kind"] in provenance.NOT_MEASURED:
        said = _filled(head, int(width * 16.5))
        *above, last = said.split("\n")
        # What follows begins behind it, in the same line: as wide as in a PDF, and on the screen to a few pixels.
        indent = _widest(last, CAPTION_POINTS) + 0.08
        first, _, others = _filled(rest, most, "\0" * ceil(19 * indent)).partition("\n")
        if len(first) > most:  # not even a word fits there
            first, others = "", _filled(rest, most)
        notes = [figure.text(left, s="\n" * (len(above) + 1) + others, **grey)] if others else []
        beside = "\n" * len(above) + first.lstrip("\0")
        notes.append(figure.text(left + indent / width, s=beside, **grey))
        notes.append(figure.text(left, s=said, **style, color=VERMILLION, fontweight="bold"))
    else:
        notes = [figure.text(left, s=_filled(f"{head} {rest}", most), **grey)]
    inches = figure.dpi_scale_trans.inverted()
    return min(note.get_window_extent().transformed(inches).y0 for note in notes)


def _filled(text: str, most: int, indent: str = "") -> str:
    """Break a text into lines that are as full as they can be."""
    fitting = " ".join(piece for word in plain(text).split(" ") for piece in _pieces(word, most))
    return textwrap.fill(fitting, most, initial_indent=indent, break_long_words=False, break_on_hyphens=False)
