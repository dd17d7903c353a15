"""How well kernels alone predict served models, of every GPU and engine side by side."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.core.groupby import SeriesGroupBy

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.models.time_model.constants.table import ENGINES
from gpuledger.studies.serving_time.figures import draw_ratios
from gpuledger.studies.serving_time.reduction import LEAST_RUNS
from gpuledger.studies.serving_time.runs import APART


def choose(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the cases that tell of times, not of choices."""
    return [result for result in results if "kernels_s" in result.data]


def draw(results: Sequence[CaseResult]) -> Figure:
    """Draw a row per GPU, dataset and engine: predicted over measured time per output token.

    Parameters
    ----------
    results : sequence of CaseResult
        Of :func:`gpuledger.studies.serving_time.reduce`.
    """
    order = sorted(results, key=lambda result: (result["gpu"], result.provenance["dataset"]))
    frames = [result.data.assign(gpu=result["gpu"], dataset=result.provenance["dataset"]) for result in order]
    runs = pd.concat(frames, ignore_index=True)
    ratio, apart = runs["kernels_s"] / runs["measured_s"], runs["mode"] == APART
    groups = ratio.groupby([runs[name] for name in ("gpu", "dataset", "mode", "engine")])
    figure, axes = plt.subplots(figsize=(7.0, 1.2 + 0.22 * groups.ngroups))
    draw_engines(axes, groups)
    errors = (100 * (ratio - 1).abs()).groupby([apart, runs["gpu"]])
    # A few runs say little about a GPU; where there are only such GPUs, they count.
    many = errors.size() >= LEAST_RUNS
    errors = errors.median()[many | ~many.any()]
    # Datasets may share runs, typed with fewer digits.
    names = ["gpu", "mode", "engine", "model", "input_tokens", "output_tokens", "requests", "gpus"]
    shared = runs.groupby([*names, runs["measured_s"].round(4)])["dataset"].transform("first") != runs["dataset"]
    words = []
    for only, own in errors.groupby(level=0):
        count = (~shared & (apart == only) & runs["gpu"].isin(own.index.get_level_values(1))).sum()
        text = "runs whose workers only decode" if only else "served runs"
        reach = f"{own.min():.0f} to {own.max():.0f} %" if len(own) > 1 else f"{own.iloc[0]:.0f} %"
        words.append(
            f"of {count:,} {text} on {len(own)} GPU{'s' * (len(own) > 1)} with median errors of {reach} per GPU"
        )
    figures.headline(figure, f"Kernels alone predict the time per output token {', and '.join(words)}")
    return figure


def draw_engines(axes: Axes, groups: SeriesGroupBy) -> None:
    """Draw the median and the middle 80 % of each group's ratios, GPUs apart from each other.

    Parameters
    ----------
    groups : SeriesGroupBy
        Ratios of predicted to measured time by GPU, dataset, mode and engine.
    """
    gpus = pd.Series([gpu for gpu, *_ in groups.groups])
    first = gpus != gpus.shift()
    y = -(gpus.index + 0.7 * (first.cumsum() - 1)).to_numpy()
    apart = [mode == APART for _, _, mode, _ in groups.groups]
    draw_ratios(axes, groups, y, [figures.ORANGE if only else figures.BLUE for only in apart], apart)
    parts = zip(groups.groups.items(), apart, strict=True)
    names = [
        f"{ENGINES.get(engine, engine)}{', decode only' * only} ({dataset}: {len(rows):,})"
        for ((_, dataset, _, engine), rows), only in parts
    ]
    axes.set_yticks(y, [figures.plain(name) for name in names], fontsize=6.5)
    for place, gpu in zip(y[first], gpus[first], strict=True):
        style = {"transform": axes.get_yaxis_transform(), "ha": "left", "va": "center", "fontsize": 7}
        axes.text(1.01, place, figures.plain(gpu.removeprefix("NVIDIA ")), fontweight="bold", **style)
    axes.set_ylim(y[-1] - 0.8, 0.8)
    axes.set_xlabel("predicted / measured time per output token (median and middle 80 % of the runs; grey: ± 20 %)")
