"""Panels of predicted against measured training steps."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from gpuledger.ledger import figures
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.studies.training_time.explanation import OTHER, RULE_PERCENT
from gpuledger.studies.training_time.tables import of_one_length

#: Up to so many runs are drawn one by one.
FEW_RUNS = 9
#: Band of errors (%) that panels shade.
BAND_PERCENT = 20
#: Parts of a step: label, columns, colour. What no part explains is vermillion: it is lost.
SEGMENTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "GEMMs": (("gemm_s",), figures.BLUE),
    "attention": (("attention_s",), figures.PURPLE),
    "other kernels": (OTHER, figures.ORANGE),
    "communication": (("exposed_s",), figures.GREEN),
    "power limit": (("power_s",), figures.SKY),
}
#: The label of what three fitted numbers explain.
FITTED = "explained (fitted)"
#: Predictions by label: their columns, and colours.
METHODS: Mapping[str, tuple[str, str]] = {
    "kernels alone": ("kernels_s", figures.BLUE),
    "roofline": ("roofline_s", figures.GREY),
    f"{RULE_PERCENT} % MFU": ("rule_s", figures.ORANGE),
    FITTED: ("explained_s", figures.GREEN),
}


def colours(data: pd.DataFrame) -> dict[str, str]:
    """Return the colour of every model, from the fastest per token (light) to the slowest (dark)."""
    speed = data["measured_s"] / (data["sequence_tokens"] * data["micro_batch"] * data["accumulation"])
    names = speed.groupby(data["model"]).min().sort_values(kind="stable").index
    return dict(zip(names, map(to_hex, colormaps["viridis_r"](np.linspace(0.12, 1, len(names)))), strict=True))


def _short(name: str) -> str:
    return name.removeprefix("mpt-").upper() if name.startswith("mpt-") else name


def draw_times(axes: Axes, data: pd.DataFrame, of_model: dict[str, str]) -> None:
    """Draw predicted against measured time of a step, a mark per run: hollow in fp8, squares with recomputation."""
    ends = np.array([data["kernels_s"].min() / 1.3, data["measured_s"].max() * 1.3])
    figures.draw_identity(axes, ends, BAND_PERCENT)
    for name, color in of_model.items():
        for again, marker in ((False, "o"), (True, "s")):
            for narrow, face in ((False, color), (True, "none")):
                chosen = (data["model"] == name) & (data["recompute"] == again)
                part = data[chosen & ((data["precision"] == "fp8") == narrow)]
                style = {"s": 13, "linewidth": 0.8, "marker": marker, "facecolor": face, "edgecolor": color}
                axes.scatter(part["measured_s"], part["kernels_s"], **style)
        axes.scatter([], [], s=13, color=color, label=figures.plain(_short(name)))
    axes.set(xlabel="measured time of a step (s)", ylabel="predicted from kernels alone (s)")
    narrow = bool((data["precision"] == "fp8").any())
    words = f"band: within {BAND_PERCENT} %\nsquares: with recomputation" + "\nhollow: fp8" * narrow
    axes.text(0.03, 0.97, words, transform=axes.transAxes, va="top", fontsize=6.5, linespacing=1.4)
    if len(of_model) > 1:  # one mark of a legend would pass for a run
        columns = 3 if max(map(len, of_model)) < 10 else 1
        axes.legend(loc="lower right", fontsize=6.5, frameon=False, ncols=columns, handletextpad=0.1, columnspacing=0.6)


def draw_ratios_of_runs(axes: Axes, data: pd.DataFrame) -> None:
    """Draw predicted over measured time of every run in a row of its own: kernels alone, and of the baselines."""
    axes.axvspan(100 - BAND_PERCENT, 100 + BAND_PERCENT, color=figures.PALE, linewidth=0)
    axes.axvline(100, color=figures.BLACK, linewidth=0.6)
    for marker, (name, shares) in zip("^so", reversed(_shares(data).items()), strict=True):
        axes.scatter(shares, np.arange(len(data)), s=26, linewidth=0, marker=marker, color=METHODS[name][1])
    axes.set_yticks(np.arange(len(data)), run_labels(data), fontsize=6.5)
    longest = max(100 + BAND_PERCENT, *(share.max() for share in _shares(data).values()))
    label = "predicted / measured time of a step (%)"
    axes.set(xlim=(0, 1.03 * longest), ylim=(len(data) - 0.5, -0.5), xlabel=label)


def _shares(data: pd.DataFrame) -> dict[str, pd.Series]:
    """Return what each prediction without a fit gives of the measured times (%), by its label."""
    columns = {name: column for name, (column, _) in METHODS.items() if name != FITTED}
    return {name: 100 * data[column] / data["measured_s"] for name, column in columns.items()}


def varied_sizes(data: pd.DataFrame) -> dict[str, str]:
    """Return the sizes of which the runs have several, for :func:`draw_ratios`, and their labels."""
    sizes = {
        "sequence_tokens": ("tokens of a sequence", data["sequence_tokens"]),
        "tokens": ("tokens of a pass", data["sequence_tokens"] * data["micro_batch"]),
        "gpus": ("GPUs", of_one_length(data)["gpus"]),
    }
    return {size: label for size, (label, values) in sizes.items() if values.nunique() > 1}


def draw_ratios(axes: Axes, data: pd.DataFrame, column: str, label: str) -> None:
    """Draw predicted over measured time of every run over a size, and medians: kernels alone, and of the baselines.

    Parameters
    ----------
    column : str
        The size: ``sequence_tokens``, ``tokens`` (of a pass on a GPU) or ``gpus`` (of runs of one length of sequence);
        of which the runs have several.
    """
    ratios = data[[of for name, (of, _) in METHODS.items() if name != FITTED]].div(data["measured_s"], axis=0)
    size = data["sequence_tokens"] * data["micro_batch"] if column == "tokens" else data[column]
    shown = of_one_length(data).index if column == "gpus" else data.index
    axes.axhspan(1 - BAND_PERCENT / 100, 1 + BAND_PERCENT / 100, color=figures.PALE, linewidth=0)
    axes.axhline(1, color=figures.BLACK, linewidth=0.6)
    axes.scatter(size[shown], ratios["kernels_s"][shown], s=8, linewidth=0, alpha=0.35, color=figures.BLUE)
    sizes = sorted(size[shown].unique())
    medians = ratios.loc[shown].groupby(2.0 ** np.round(np.log2(size[shown]))).median()
    for name, (of, color) in METHODS.items():
        if name != FITTED:
            axes.plot(medians.index, medians[of], color=color, linewidth=1.4, label=name)
    axes.set(xscale="log", yscale="log", xlabel=label)
    # The same in all panels.
    axes.set_ylim(min(0.3, 0.9 * ratios.min(axis=None)), max(1.6, 1.1 * ratios["kernels_s"].max()))
    axes.yaxis.set_major_locator(FixedLocator([0.125, 0.25, 0.5, 1, 1.5]))
    few = sizes[:: 2 if len(sizes) > 6 else 1]
    axes.xaxis.set_major_locator(LogLocator(base=4) if column == "tokens" else FixedLocator(few))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_power_of_two)
        axis.set_minor_locator(NullLocator())


def _power_of_two(value: float, _: int) -> str:
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def sizes_finding(data: pd.DataFrame) -> str:
    """Say what share of the measured time is predicted: of few runs, else of the shortest and the longest sequences."""
    if len(data) <= FEW_RUNS:
        ends = [dict.fromkeys((f"{share.min():.0f}", f"{share.max():.0f}")) for share in _shares(data).values()]
        alone, roofline, rule = (f"{' to '.join(found)} %" for found in ends)
        return (
            f"Kernels alone predict {alone} of the measured time of a step, "
            f"a roofline {roofline}, {RULE_PERCENT} % MFU {rule}"
        )
    ratio = (data["kernels_s"] / data["measured_s"]).groupby(data["sequence_tokens"]).median()
    ends = [
        f"{100 * ratio.iloc[at]:.0f} % at {ratio.index[at]:,} tokens" for at in ((0, -1) if len(ratio) > 1 else (0,))
    ]
    return f"Of the measured time of a step, kernels alone predict {' and '.join(ends)} of a sequence (medians)"


def chosen_runs(data: pd.DataFrame) -> pd.DataFrame:
    """Return a few runs that differ in their parts: of every model the shortest, of some the longest sequence."""
    plain = data[data["precision"] == "bf16"].sort_values(["sequence_tokens", "gpus"], kind="stable")
    plain = plain if len(plain) else data
    ends = [plain.groupby("model", sort=False).head(1), plain.groupby("model", sort=False).tail(1)]
    several = plain[plain["gpus"] == plain["gpus"].max()].head(2)
    found = pd.concat([*ends, several])
    found = found[~found.index.duplicated()]
    places = np.unique(np.linspace(0, len(found) - 1, min(FEW_RUNS, len(found))).round().astype(int))
    order = found.assign(share=found["attention_s"] / found["measured_s"]).sort_values("share", kind="stable")
    return order.iloc[places].drop(columns="share")


def draw_parts(axes: Axes, data: pd.DataFrame) -> None:
    """Draw what steps consist of, in % of the measured time: predicted parts, and what they do not explain."""
    shares = {label: 100 * data[list(of)].sum(axis=1) / data["measured_s"] for label, (of, _) in SEGMENTS.items()}
    left, y = np.zeros(len(data)), np.arange(len(data))
    for label, share in shares.items():
        # Of what takes no time, a legend would have an entry without a bar.
        axes.barh(y, share, 0.66, left=left, color=SEGMENTS[label][1], label=label if share.any() else None)
        left = left + share.to_numpy()
    hatched = {"facecolor": "none", "edgecolor": figures.VERMILLION, "hatch": "////", "linewidth": 0.6}
    axes.barh(y, np.maximum(100 - left, 0), 0.66, left=left, label="not predicted", **hatched)
    axes.set_yticks(y, run_labels(data), fontsize=6.5)
    axes.set(xlim=(0, max(100.0, left.max())), ylim=(len(data) - 0.5, -0.5), xlabel="share of the measured step (%)")


def run_labels(data: pd.DataFrame) -> list[str]:
    """Name every run; of those that differ in nothing else, say which recomputes layers, and in which format."""
    runs = data.to_dict("records")
    names = [run_label(run) for run in runs]
    several = data["gathered"].nunique() > 1
    more = [["recomputed"] * run["recompute"] + [f"parameters in {run['gathered']}"] * several for run in runs]
    return [",\n".join([name, *own]) if names.count(name) > 1 else name for name, own in zip(names, more, strict=True)]


def run_label(run: Mapping) -> str:
    """Return a run's name: model, sequence, GPUs."""
    narrow = " fp8" if run["precision"] == "fp8" else ""
    length = run["sequence_tokens"]
    tokens = f"{length // 1024}k" if length % 1024 == 0 else f"{length}"
    name = run["model"] if _short(run["model"]) == run["model"] else f"MPT-{_short(run['model'])}"
    return figures.plain(f"{name}{narrow}, {tokens} × {run['micro_batch']}, {run['gpus']} GPU{'s' * (run['gpus'] > 1)}")


def draw_methods(axes: Axes, data: pd.DataFrame) -> None:
    """Draw the median error of every prediction; of the explained one, in runs that explained nothing."""
    judged = data["held_back"] & (data["precision"] == "bf16")
    rows = []
    for name, (column, color) in METHODS.items():
        part = data[judged] if name == FITTED else data
        errors = errors_percent(part[column], part["measured_s"]).abs().dropna()
        if len(errors):
            rows.append((name, errors.median(), color))
    for at, (_, error, color) in enumerate(rows):
        axes.barh(at, error, 0.62, color=color)
        axes.annotate(f"{error:.1f}", (error, at), (3, 0), textcoords="offset points", va="center", fontsize=6.5)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=7)
    longest = max(error for _, error, _ in rows)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.2 * longest), xlabel="median error (%)")
