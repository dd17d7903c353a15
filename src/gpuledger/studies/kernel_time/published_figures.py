"""Kernels that others measured on many GPUs, beside their predictions: the fastest of each, and the errors of all."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger import figures
from gpuledger.readers.gpus import read_gpus
from gpuledger.studies.kernel_time.published_runs import (
    FITTED,
    OTHER_FORMAT,
    OTHER_GPU,
    OTHER_KERNEL,
    OWN,
    best_runs,
)

_COLORS = {
    OWN: figures.BLUE,
    OTHER_FORMAT: figures.SKY,
    OTHER_GPU: figures.ORANGE,
    OTHER_KERNEL: figures.PURPLE,
    FITTED: figures.GREY,
}
_WORDS = {OWN: "its own constants", OTHER_FORMAT: "of another format"}
#: Errors (%) beyond which a mark is at the edge.
_MOST_PERCENT = 60
_PAIR = ("measured", "predicted")
_FASTEST = 125  # share of the peak (%) at the right edge


def draw_best(axes: Axes, data: pd.DataFrame) -> None:
    """Draw the fastest measured 16-bit kernel of each GPU, and what is predicted for it, as shares of the peak.

    Parameters
    ----------
    data : DataFrame
        As :func:`gpuledger.studies.kernel_time.published_runs.add_summary` takes it, with ``shape``, in words.
    """
    best = best_runs(data)
    y = np.arange(len(best))
    measured, predicted = (
        (100 * best[f"{name}_tflop_per_s"] / best["peak_tflop_per_s"]).clip(upper=_FASTEST) for name in _PAIR
    )
    axes.hlines(y, measured, predicted, color=figures.GREY, linewidth=1)
    axes.scatter(measured, y, s=26, color=figures.BLACK, label="measured", zorder=3)
    for constants, color in _COLORS.items():
        if (rows := (best["constants"] == constants).to_numpy()).any():
            label = f"predicted with {_WORDS.get(constants, constants)}"
            axes.scatter(predicted[rows], y[rows], s=34, facecolor="none", edgecolor=color, linewidth=1.5, label=label)
    axes.axvline(100, color=figures.BLACK, linewidth=0.6, linestyle=(0, (4, 3)))
    slowest = min(40, 10 * np.floor(min(measured.min(), predicted.min()) / 10))
    axes.set(ylim=(len(best) - 0.5, -0.5), xlim=(slowest, _FASTEST), xlabel="speed, of the data sheet's peak (%)")
    axes.set_yticks(y, short_titles(best["gpu"]))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    for place, (tflop_per_s, shape) in enumerate(zip(best["measured_tflop_per_s"], best["shape"], strict=True)):
        axes.text(_FASTEST + 1, place, f"{tflop_per_s:,.0f} TFLOP/s at {shape}", va="center", fontsize=6.5)


def draw_published_errors(panels: Sequence[Axes], data: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the errors of judged kernels by GPU, one panel for each group."""
    judged = data[data["judged"]]
    gpus = best_order(judged)
    for axes, group in zip(panels, groups, strict=True):
        axes.axvspan(-10, 10, color=figures.PALE, linewidth=0)
        axes.axvline(0, color=figures.BLACK, linewidth=0.6)
        of_group = judged[judged["group"] == group]
        for (gpu, constants), rows in of_group.groupby(["gpu", "constants"], sort=False):
            place, color = gpus.index(gpu), _COLORS[constants]
            errors = rows["error_percent"].clip(-_MOST_PERCENT, _MOST_PERCENT)
            axes.scatter(errors, np.full(len(rows), place), s=9, color=color, alpha=0.5, linewidth=0)
            axes.plot([errors.median()] * 2, [place - 0.36, place + 0.36], color=color, linewidth=1.8)
        axes.set(xlim=(-_MOST_PERCENT - 4, _MOST_PERCENT + 4), ylim=(len(gpus) - 0.4, -0.6), title=group)
        axes.set_xticks([-50, 0, 50])
        axes.tick_params(axis="y", length=0)
    panels[(len(panels) - 1) // 2].set_xlabel("error of time (%)")
    panels[0].set_yticks(np.arange(len(gpus)), short_titles(gpus))
    for constants, color in _COLORS.items():
        if (judged["constants"] == constants).any():
            panels[0].scatter([], [], s=16, color=color, label=_WORDS.get(constants, constants))
    panels[0].plot([], [], color=figures.GREY, linewidth=1.8, label="median")


def best_order(judged: pd.DataFrame) -> list[str]:
    """Return GPUs: with constants of their own first, each kind from the shortest prediction to the longest."""
    bias = judged.groupby("gpu")["error_percent"].median()
    own = judged.assign(own=~judged["constants"].isin([OTHER_GPU, OTHER_KERNEL])).groupby("gpu")["own"].any()
    return list(pd.DataFrame({"own": ~own, "bias": bias}).sort_values(["own", "bias"], kind="stable").index)


def short_titles(gpus: Sequence[str]) -> list[str]:
    """Return the names of GPUs without their makers'."""
    known = read_gpus()
    titles = [known[gpu].title if gpu in known else gpu for gpu in gpus]
    shorter = {"NVIDIA ": "", "GeForce ": "", "AMD ": "", " (one of its GPUs)": "", " (HGX)": "", " Edition": ""}
    for long, short in shorter.items():
        titles = [title.replace(long, short) for title in titles]
    return [figures.plain(title) for title in titles]
