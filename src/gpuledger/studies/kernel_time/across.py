"""How well the time model predicts kernels, of every dataset and GPU side by side."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.readers.gpus import read_gpus
from gpuledger.studies.kernel_time.figures import PREDICTORS, mape_percent


def choose(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the cases of single shapes, not the one that judges all tables of a package."""
    return [result for result in results if "measured_s" in result.data]


def draw(results: Sequence[CaseResult]) -> Figure:
    """Draw a line per GPU, operator and data type: the errors of the roofline, the derated roofline and the model."""
    errors = pd.DataFrame([row for result in results for row in _rows(result)])
    errors = errors.sort_values(["gpu", "operator", "predicted_s"], kind="stable")
    figure, axes = plt.subplots(figsize=(7.0, max(2.6, 1.2 + 0.155 * len(errors))))
    draw_dumbbells(axes, errors)
    medians = {column: errors[column].median() for column in ("predicted_s", "roofline_s")}
    words = "mean error is {predicted_s:.0f} %, the roofline's {roofline_s:.0f} %".format(**medians)
    gpus = errors["gpu"].nunique()
    on = f"{gpus} GPU{'s' * (gpus > 1)}"
    finding = f"On {on} the time model's {words} (medians of {len(errors)} sets of held-back kernels)"
    if "lookup_s" in errors and (known := errors["lookup_s"].count()):
        finding += f"; a look-up is better in {(errors['lookup_s'] < errors['predicted_s']).sum()} of {known}"
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=4)
    figures.headline(figure, finding)
    return figure


def _rows(result: CaseResult) -> list[dict]:
    """Return the errors (%) of every predictor by operator and data type, on the held-back shapes."""
    back = result.data[result.data["held_back"]]
    rows = []
    for (operator, group), own in back.groupby(["operator", "group"], sort=False):
        errors = {column: mape_percent(own, column) for column in PREDICTORS if column in own}
        rows.append(
            {
                "gpu": result["gpu"],
                "case": result.provenance["case"],
                "operator": operator,
                "group": group,
                "shapes": len(own),
                **errors,
            }
        )
    return rows


def draw_dumbbells(axes: Axes, errors: pd.DataFrame) -> None:
    """Draw a row of markers per line of `errors`, one marker a predictor, GPUs apart from each other.

    Parameters
    ----------
    errors : DataFrame
        Columns ``gpu, case, operator, group, shapes`` and, by predictor, mean absolute percentage errors.
    """
    first = errors["gpu"] != errors["gpu"].shift()
    y = (np.arange(len(errors)) + 1.2 * (first.cumsum() - 1)).to_numpy()
    columns = [column for column in PREDICTORS if column in errors]
    axes.hlines(y, errors[columns].min(axis=1), errors[columns].max(axis=1), color="#cccccc", linewidth=0.9, zorder=1)
    for column in columns:
        label, color, marker = PREDICTORS[column]
        axes.plot(errors[column], y, marker, color=color, label=label, markersize=4.2, linestyle="none", zorder=3)
    names = [f"{row.operator}, {row.group} ({row.case}: {row.shapes:,})" for row in errors.itertuples()]
    axes.set_yticks(y, map(figures.plain, names), fontsize=6.5)
    known = read_gpus()
    for place, gpu in zip(y[first], errors["gpu"][first], strict=True):
        style = {"transform": axes.get_yaxis_transform(), "ha": "left", "va": "bottom", "fontsize": 7}
        title = known[gpu].title.removeprefix("NVIDIA ") if gpu in known else gpu
        axes.text(0, place - 0.55, figures.plain(title), fontweight="bold", **style)
    axes.set(xscale="log", ylim=(y[-1] + 0.8, -1.8), xlabel="mean absolute error on held-back shapes (%, log scale)")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
