"""A map of a sweep with many metrics: by what kind of law each metric of each class grows with each size."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from gpuledger.ledger import figures
from gpuledger.studies.metric_sweep import classification

#: Most rows, and most classes of a size; the metrics with most laws stay, and the classes with most values.
SHOWN_METRICS, SHOWN_CLASSES = 24, 8
#: Names of the sizes, in the order in which they are shown.
SIZES = {"seq_len": "sequence length", "hidden_dim": "hidden size", "n_layer": "layers"}
# Colour and words by kind of law.
_KINDS = {
    "constant": (figures.PALE, "does not depend on it"),
    "linear": (figures.BLUE, "linear"),
    "bent": (figures.ORANGE, "linear with a knee, or in steps"),
    "curved": (figures.PURPLE, "power, n·log n or quadratic"),
    "saturating": (figures.SKY, "saturating"),
    "undetermined": ("white", "no law, or too few sizes"),
}
_KIND_OF = {
    **dict.fromkeys(("proportional", "affine"), "linear"),
    **dict.fromkeys(("knee", "staircase"), "bent"),
    **dict.fromkeys(("power", "nlogn", "quadratic"), "curved"),
}


def finding(laws: pd.DataFrame) -> str:
    """Return how many of the series with a law depend on each size, in one sentence."""
    known, parts = laws[laws["law"] != "undetermined"], []
    for variable, name in SIZES.items():
        own = known.loc[known["variable"] == variable, "law"]
        if len(own):
            linear, changed = int(own.isin(["proportional", "affine"]).sum()), int((own != "constant").sum())
            words = "change " if not parts else ""
            parts.append(f"{changed:,} of {len(own):,} {words}with {name}{f' ({linear:,} linearly)' if linear else ''}")
    return f"Of the counters with a law, {', '.join(parts)}" if parts else "No counter follows a law"


def choose(laws: pd.DataFrame, points: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the metrics and, of the classes with a law, those that are shown, each sorted."""
    with_law = laws.loc[laws["law"] != "undetermined", "kernel_class"].unique()
    classes = points[points["kernel_class"].isin(with_law)].groupby("kernel_class")["launches"].sum()
    classes = classes.sort_values(ascending=False, kind="stable")
    known = laws.assign(known=laws["law"] != "undetermined").groupby("metric")["known"].sum()
    metrics = known.sort_values(ascending=False, kind="stable")
    return sorted(metrics.index[:SHOWN_METRICS]), sorted(classes.index[:SHOWN_CLASSES])


def draw(axes: Axes, laws: pd.DataFrame, points: pd.DataFrame) -> None:
    """Draw a row per metric and a column per class in a block per size that has laws, with a legend below.

    Parameters
    ----------
    laws, points : DataFrame
        Of a :class:`gpuledger.studies.metric_sweep.reduction.Sweep`.
    """
    metrics, classes = choose(laws, points)
    few = classification.without_laws(laws)
    varied = [name for name in SIZES if (laws["variable"] == name).any() and name not in few]
    row = {name: place for place, name in enumerate(metrics)}
    column = {name: place for place, name in enumerate(classes)}
    block = {name: place * (len(classes) + 1) for place, name in enumerate(varied)}
    drawn = set()
    for name, metric, variable, law in laws[["kernel_class", "metric", "variable", "law"]].itertuples(index=False):
        if metric in row and name in column and variable in block:
            kind = _KIND_OF.get(law, law)
            corner = block[variable] + column[name] - 0.5, row[metric] - 0.5
            style = {"facecolor": _KINDS[kind][0], "edgecolor": _edge(kind), "zorder": 2 + (kind == "undetermined")}
            axes.add_patch(Rectangle(corner, 1, 1, linewidth=0.7, **style))
            drawn.add(kind)
    axes.set_xlim(-0.6, len(varied) * (len(classes) + 1) - 1.4)
    axes.set_ylim(len(metrics) - 0.4, -0.6)
    axes.set_yticks(range(len(metrics)), [figures.plain(name) for name in metrics], fontsize=6.2)
    places = [block[variable] + column[name] for variable in varied for name in classes]
    axes.set_xticks(places, [figures.plain(name) for _ in varied for name in classes], fontsize=6.2, rotation=90)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    for variable in varied:
        middle = block[variable] + (len(classes) - 1) / 2
        axes.text(middle, -0.8, SIZES[variable], ha="center", va="bottom", fontsize=7.5, fontweight="bold")
    if len(metrics) < laws["metric"].nunique():
        words = f"{len(metrics)} of {laws['metric'].nunique():,} metrics, those with most laws"
        axes.set_ylabel(words, fontsize=6.5)
    handles = [
        Patch(facecolor=colour, edgecolor=_edge(kind), linewidth=0.7, label=words)
        for kind, (colour, words) in _KINDS.items()
        if kind in drawn
    ]
    # Below the names of the metrics, beside those of the classes.
    axes.legend(handles=handles, loc="upper right", bbox_to_anchor=(-0.01, -0.01), ncols=2, fontsize=6.5)


def _edge(kind: str) -> str:
    return "#BBBBBB" if kind == "undetermined" else "white"
