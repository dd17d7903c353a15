"""Panels of predicted against measured time per output token."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from gpuledger.ledger import figures
from gpuledger.studies.serving_time.tables import CLASS, short_name

#: Colours of models, in the order of their number of runs; all others are grey.
COLOURS = (
    figures.BLUE,
    figures.GREEN,
    figures.ORANGE,
    figures.SKY,
    figures.PURPLE,
    figures.BLACK,
)
#: Band of errors (%) that the panels shade.
BAND_PERCENT = 20
#: Ratios of predicted to measured time are clipped to this range.
RATIOS = (0.4, 2.5)


def colours(data: pd.DataFrame) -> dict[str, str]:
    """Return the colour of every model in `data`."""
    often = data["model"].map(short_name).value_counts(sort=True).sort_index(kind="stable")
    often = often.sort_values(ascending=False, kind="stable").index
    return {name: COLOURS[at] if at < len(COLOURS) else figures.GREY for at, name in enumerate(often)}


def draw_times(axes: Axes, data: pd.DataFrame, of_model: dict[str, str]) -> None:
    """Draw predicted against measured time per output token, a dot per run, from kernels alone."""
    measured, predicted = 1e3 * data["measured_s"], 1e3 * data["kernels_s"]
    ends = np.array([min(measured.min(), predicted.min()) / 1.2, max(measured.max(), predicted.max()) * 1.2])
    axes.fill_between(
        ends, ends / (1 + BAND_PERCENT / 100), ends * (1 + BAND_PERCENT / 100), color=figures.PALE, linewidth=0
    )
    axes.plot(ends, ends, color=figures.BLACK, linewidth=0.6)
    names = data["model"].map(short_name)
    for name, color in of_model.items():
        chosen = names == name
        many = chosen.sum() > 100
        axes.scatter(measured[chosen], predicted[chosen], s=7, linewidth=0, alpha=0.75, color=color, rasterized=many)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="measured time per output token (ms)", ylabel="predicted from kernels alone (ms)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_classes(axes: Axes, data: pd.DataFrame, of_model: dict[str, str]) -> None:
    """Draw predicted over measured time of every class of runs: median, and the middle 80 %."""
    ratio = (data["kernels_s"] / data["measured_s"]).clip(*RATIOS)
    groups = ratio.groupby([data[name].map(short_name) if name == "model" else data[name] for name in CLASS])
    classes = groups.agg(["median", "size", lambda x: x.quantile(0.1), lambda x: x.quantile(0.9)])
    classes.columns = ["median", "runs", "low", "high"]
    classes = classes.sort_values("median", ascending=False, kind="stable")
    band = 1 + BAND_PERCENT / 100
    axes.axvspan(1 / band, band, color=figures.PALE, linewidth=0)
    axes.axvline(1, color=figures.BLACK, linewidth=0.6)
    y = np.arange(len(classes))
    color = [of_model[model] for _, model, _ in classes.index]
    axes.hlines(y, classes["low"], classes["high"], color=color, linewidth=1.4)
    axes.scatter(classes["median"], y, color=color, s=20, zorder=3)
    labels = [
        f"{model} {precision} · {engine} ({runs:,})"
        for (engine, model, precision), runs in zip(classes.index, classes["runs"], strict=True)
    ]
    axes.set_yticks(y, [figures.plain(label) for label in labels], fontsize=6.5)
    axes.set(xscale="log", xlim=RATIOS, xlabel="predicted / measured (1)")
    axes.set_xticks([0.5, 1, 2])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(-0.7, len(classes) - 0.3)
