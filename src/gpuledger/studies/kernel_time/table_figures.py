"""A map of errors: kinds of kernels by GPU and framework."""

import re
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable

from gpuledger.ledger import figures
from gpuledger.models.time_model.constants.table import ENGINES
from gpuledger.readers.gpus import read_gpus

#: Error (%) at which the colour is lightest.
MOST_PERCENT = 20
#: Libraries that no framework compiles itself: they have the width of all of a GPU's columns.
COMMON = ("nccl", "oneccl")


def row_labels(table: pd.DataFrame) -> list[str]:
    """Return the rows of a map from top to bottom: kinds of kernels, where told apart with their number format."""
    return list(dict.fromkeys(_label(row) for row in table.itertuples()))


def draw_error_map(axes: Axes, table: pd.DataFrame, column: str) -> None:
    """Draw the errors of kinds of kernels (rows) on GPUs, framework by framework (columns).

    In a column of a paper, cells are too small for numbers and for the names of frameworks, which are below the map.

    Parameters
    ----------
    table : DataFrame
        Of :func:`gpuledger.studies.kernel_time.every_table.class_table`.
    """
    frameworks = sorted(set(table["framework"]).difference(COMMON)) or COMMON[:1]
    known, width, narrow = read_gpus(), len(frameworks), figures.for_columns
    rows, gpus = row_labels(table), list(table["gpu"].unique())
    values = np.full((len(rows), width * len(gpus)), np.nan)
    for row in table.itertuples():
        y, x = rows.index(_label(row)), width * gpus.index(row.gpu)
        own = frameworks.index(row.framework) if row.framework in frameworks else None
        value = getattr(row, column)
        values[y, slice(x, x + width) if own is None else x + own] = value
        if not (np.isnan(value) or narrow):
            shade = figures.BLACK if value > MOST_PERCENT / 2 else "white"
            place = (x + (width / 2 if own is None else own + 0.5), y + 0.52)
            said = f"{value:.0f}"
            # Three digits of the usual size would touch those of the next cell.
            axes.text(*place, said, ha="center", va="center", color=shade, fontsize=6 if len(said) < 3 else 5.5)
    mesh = axes.pcolormesh(values, cmap="cividis", vmin=0, vmax=MOST_PERCENT)
    said = [figures.plain(ENGINES.get(name, name)) for name in frameworks]
    _draw_key(axes, mesh, f"columns of a GPU: {', '.join(said)}" if narrow else "")
    axes.vlines(width * np.arange(1, len(gpus)), 0, len(rows), color="white", linewidth=1.5 if narrow else 3.0)
    own = sorted({rows.index(_label(row)) for row in table.itertuples() if row.framework in frameworks})
    for line in range(1, values.shape[1]):
        axes.vlines([line] * len(own), own, np.add(own, 1), color="white", linewidth=0.6)
    # Rows of one kind of kernel are closer to one another than to those of the next.
    first = [re.split("[ ,]", row)[0] for row in rows]
    wide = [3.0 if above != below else 0.6 for above, below in pairwise(first)]
    axes.hlines(np.arange(1, len(rows)), 0, values.shape[1], color="white", linewidth=wide)
    axes.set_xticks([] if narrow else np.arange(values.shape[1]) + 0.5, [] if narrow else said * len(gpus))
    axes.tick_params(axis="x", rotation=90, labelsize=6)
    if narrow:
        axes.set_yticks([])
        for place, row in enumerate(rows):
            axes.text(-0.4, place + 0.52, row.replace(" attention,", ","), ha="right", va="center", fontsize=6.5)
    else:
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=6.5)
    for place, gpu in enumerate(gpus):
        title = known[gpu].title.removeprefix("NVIDIA ").removeprefix("Intel ") if gpu in known else gpu
        # A number ends the name of a product; what follows is its form.
        short = re.match(r"\D*\d\w*|.*", title)[0]
        short = "\n".join(short.rsplit(" ", 1)) if len(short) > 8 and not narrow else short
        turned = {"ha": "center", "va": "bottom", "rotation": 90 if narrow else 0}
        axes.text(width * (place + 0.5), -0.3, figures.plain(short), fontsize=6.5, **turned)
    axes.set_ylim(len(rows), 0)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_key(axes: Axes, mesh: ScalarMappable, columns: str) -> None:
    """Draw the scale of colours where nothing else is: above the names of the rows, or below with what columns are."""
    key = axes.inset_axes([0, -0.03, 1, 0.015] if columns else [-0.16, 1.03, 0.15, 0.015])
    key.set_in_layout(bool(columns))
    bar = axes.figure.colorbar(mesh, cax=key, orientation="horizontal", extend="max", ticks=range(0, 21, 10))
    bar.outline.set_visible(False)
    key.tick_params(length=0, pad=1.5, labelsize=6.5)
    what = "mean absolute error (%)"
    if columns:
        key.set_xlabel(f"{what}\n{columns}", fontsize=6.5)
    else:
        key.set_ylabel(what, rotation=0, ha="right", va="center", fontsize=6.5)


def _label(row: tuple) -> str:
    return f"{row.kind}, {row.type}" if row.type else row.kind
