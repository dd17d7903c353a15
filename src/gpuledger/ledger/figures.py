"""Figures: one style, three formats, provenance below each, byte-identical when made again."""

from __future__ import annotations

import textwrap
from base64 import b64encode
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from weakref import WeakKeyDictionary

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from gpuledger import files
from gpuledger.ledger import provenance

#: Okabe and Ito's palette, which readers with any colour vision can tell apart.
#: https://jfly.uni-koeln.de/color/ (Color Universal Design, 2008)
BLACK, ORANGE, SKY, GREEN = "#222222", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#888888", "#D9D9D9"

FORMATS = ("pdf", "svg", "png")

_saved: WeakKeyDictionary[Figure, bytes] = WeakKeyDictionary()


def use_style() -> None:
    """Use the project's style; in Jupyter, also show figures at twice the resolution, and saved ones as they are."""
    mpl.style.use(str(resources.files("gpuledger.ledger").joinpath("gpuledger.mplstyle")))
    if "inline" in mpl.get_backend():
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")
        formatter = get_ipython().display_formatter.formatters["image/png"]
        draw = formatter.for_type(Figure)
        formatter.for_type(Figure, lambda figure: _saved_picture(figure) or draw(figure))


def _saved_picture(figure: Figure) -> tuple[str, dict[str, int]] | None:
    """Return the PNG that :func:`save` wrote, for Jupyter; None if the figure has been changed since."""
    if figure.stale or figure not in _saved:
        return None
    png = _saved[figure]
    width, height = (int.from_bytes(png[at : at + 4], "big") // 2 for at in (16, 20))
    return b64encode(png).decode(), {"width": width, "height": height}


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
    # About 12.8 characters of the bold title fit into an inch.
    lines = textwrap.fill(plain(finding), int(figure.get_figwidth() * 12.7))
    # The legend goes onto an empty line below: as a part of the layout, its width would squeeze its own axes.
    figure.suptitle(lines if legend is None else f"{lines}\n", x=0.005, ha="left", fontsize=9.5, fontweight="bold")
    if legend is not None:
        anchor = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
        box = legend.legend(**anchor, ncols=columns, handletextpad=0.4, columnspacing=1.4, borderpad=0.2)
        box.set_in_layout(False)


def save(figure: Figure, record: Mapping, folder: str | Path | None, name: str = "figure") -> Figure:
    """Put the provenance below a figure and write it as PDF, SVG and PNG.

    Parameters
    ----------
    figure : Figure
    record : mapping
        The ``provenance.json`` of its numbers. That they are simulated or predicted is said in colour.
    folder : path or None
        Where to write ``<name>.pdf``, ``.svg`` and ``.png``; None writes nothing.
    name : str
        ``figure``, or ``figure_<what>`` for further ones.

    Returns
    -------
    Figure
        The same figure, for a notebook to show.
    """
    # Compute and measure the layout once; savefig would draw the figure once more to do so, for each format.
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    for legend in figure.legends:
        # A legend outside the axes is anchored to the saved region, which the caption extends: keep it where it is.
        legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
    drawn = figure.get_tightbbox()
    caption = provenance.caption(record)
    measured = record["kind"] not in provenance.NOT_MEASURED
    note = figure.text(
        0.005,
        drawn.y0 / figure.get_figheight() - 0.02,
        textwrap.fill(plain(caption), int(figure.get_figwidth() * 19)),
        va="top",
        fontsize=6.5,
        color="#666666" if measured else VERMILLION,
        fontweight="normal" if measured else "bold",
    )
    if folder is not None:
        noted = note.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        box = Bbox.union([drawn, noted]).padded(mpl.rcParams["savefig.pad_inches"])
        described = {"Title": f"{record['dataset']}/{record['study']}/{record['case']}"}
        # No dates: a figure made again must be byte-identical.
        metadata = {
            "pdf": {**described, "Subject": caption, "CreationDate": None},
            "svg": {**described, "Description": caption, "Date": None},
            "png": {**described, "Description": caption, "Software": None},
        }
        with mpl.rc_context({"figure.constrained_layout.use": False}):
            figure.set_layout_engine(None)
            for suffix in FORMATS:
                with files.replacing(Path(folder) / f"{name}.{suffix}") as temporary:
                    figure.savefig(temporary, metadata=metadata[suffix], bbox_inches=box)
        _saved[figure] = (Path(folder) / f"{name}.png").read_bytes()
        figure.stale = False
    plt.close(figure)
    return figure
