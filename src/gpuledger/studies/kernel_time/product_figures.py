"""Measured products of many GPUs beside their predictions: the fastest of each, and the errors of all."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger import figures
from gpuledger.readers.gpus import read_gpus
from gpuledger.studies.kernel_time.products import (
    FITTED,
    OTHER_FORMAT,
    OTHER_GPU,
    OWN,
    best_products,
    large_products,
)

_COLORS = {OWN: figures.BLUE, OTHER_FORMAT: figures.SKY, OTHER_GPU: figures.ORANGE, FITTED: figures.GREY}
_WORDS = {OWN: "its own constants", OTHER_FORMAT: "of another format", OTHER_GPU: "another GPU's", FITTED: FITTED}
#: Errors (%) beyond which a mark is at the edge.
_MOST_PERCENT = 60


def draw_best(axes: Axes, data: pd.DataFrame, group: str = "16-bit") -> None:
    """Draw the fastest measured product of each GPU, and what is predicted for it, as shares of the data sheet's peak.

    Parameters
    ----------
    data : DataFrame
        Of :func:`gpuledger.studies.kernel_time.products.reduce_products`.
    """
    best = best_products(data, group)
    y = np.arange(len(best))
    measured, predicted = (100 * best[f"{name}_tflop_per_s"] / best["peak_tflop_per_s"] for name in _PAIR)
    axes.hlines(y, measured, predicted, color=figures.GREY, linewidth=1)
    axes.scatter(measured, y, s=26, color=figures.BLACK, label="measured", zorder=3)
    for constants, color in _COLORS.items():
        if (rows := (best["constants"] == constants).to_numpy()).any():
            label = f"predicted with {_WORDS[constants]}"
            axes.scatter(predicted[rows], y[rows], s=34, facecolor="none", edgecolor=color, linewidth=1.5, label=label)
    axes.axvline(100, color=figures.BLACK, linewidth=0.6, linestyle=(0, (4, 3)))
    axes.set(ylim=(len(best) - 0.5, -0.5), xlim=(40, 125), xlabel="speed, of the data sheet's peak (%)")
    axes.set_yticks(y, short_titles(best["gpu"]))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    for place, (tflop_per_s, row) in enumerate(zip(best["measured_tflop_per_s"], best.itertuples(), strict=True)):
        said = f"{tflop_per_s:,.0f} TFLOP/s at {row.m:,} × {row.n:,} × {row.k:,}"
        axes.text(126, place, said, va="center", fontsize=6.5)


_PAIR = ("measured", "predicted")


def groups_of(data: pd.DataFrame) -> list[str]:
    """Return the groups of number formats, those with most products first."""
    return list(large_products(data)["group"].value_counts(sort=True).index)


def draw_product_errors(panels: Sequence[Axes], data: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the errors of large products by GPU, one panel for each group of formats."""
    large = large_products(data)
    gpus = [gpu for gpu in best_order(large) if gpu in set(large["gpu"])]
    for axes, group in zip(panels, groups, strict=True):
        axes.axvspan(-10, 10, color=figures.PALE, linewidth=0)
        axes.axvline(0, color=figures.BLACK, linewidth=0.6)
        for place, gpu in enumerate(gpus):
            rows = large[(large["gpu"] == gpu) & (large["group"] == group)]
            if rows.empty:
                continue
            errors = rows["error_percent"].clip(-_MOST_PERCENT, _MOST_PERCENT)
            color = _COLORS[rows["constants"].iloc[0]]
            axes.scatter(errors, np.full(len(rows), place), s=9, color=color, alpha=0.5, linewidth=0)
            axes.plot([errors.median()] * 2, [place - 0.36, place + 0.36], color=color, linewidth=1.8)
        axes.set(xlim=(-_MOST_PERCENT - 4, _MOST_PERCENT + 4), ylim=(len(gpus) - 0.4, -0.6), title=group)
        axes.set_xticks([-50, 0, 50])
        axes.set_xlabel("error of time (%)")
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(np.arange(len(gpus)), short_titles(gpus))
    for constants, color in _COLORS.items():
        panels[0].scatter([], [], s=16, color=color, label=_WORDS[constants])
    panels[0].plot([], [], color=figures.GREY, linewidth=1.8, label="median")


def best_order(large: pd.DataFrame) -> list[str]:
    """Return GPUs: with constants of their own first, each kind from the shortest prediction to the longest."""
    bias = large.groupby("gpu")["error_percent"].median()
    own = large.assign(own=large["constants"] != OTHER_GPU).groupby("gpu")["own"].any()
    return list(pd.DataFrame({"own": ~own, "bias": bias}).sort_values(["own", "bias"], kind="stable").index)


def short_titles(gpus: Sequence[str]) -> list[str]:
    """Return the names of GPUs without their makers'."""
    known = read_gpus()
    titles = [known[gpu].title if gpu in known else gpu for gpu in gpus]
    shorter = {"NVIDIA ": "", "GeForce ": "", "AMD ": "", " (one of its GPUs)": "", " (HGX)": "", " Edition": ""}
    for long, short in shorter.items():
        titles = [title.replace(long, short) for title in titles]
    return [figures.plain(title) for title in titles]
