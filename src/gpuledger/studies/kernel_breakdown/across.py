"""What the steps of all cases consist of, recorded and predicted ones side by side."""

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.parts import split_parts
from gpuledger.studies.kernel_breakdown.timeline.figures import colour_of
from gpuledger.studies.kernel_breakdown.timeline.tables import recorded_kernels

#: Classes of kernels in a timeline, by the kind of a model's kernels.
CLASSES = {
    "gemm": "gemm",
    "weights": "gemm",
    "grouped_gemm": "moe",
    "attention": "attention",
    "recurrent": "attention",
    "elementwise": "norm",
    "collective": "communication",
    "cache": "attention",
    "cache, asynchronous": "attention",
}
#: How classes are called; norms and element-wise kernels are one class here, as the model has one kind for both.
NAMES = {"gemm": "GEMM", "moe": "experts", "attention": "attention", "communication": "communication"}
NAMES |= {"norm": "norms and element-wise", "other": "others"}
#: The form of bars that are predicted.
_HATCHED = {"facecolor": "white", "hatch": "//////"}


def choose(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the steps that are drawn: not those of two recordings that are compared."""
    return [result for result in results if "before_time" not in result.summary]


def draw(results: Sequence[CaseResult]) -> Figure:
    """Draw a bar per step: its kernels by class, in percent of the recorded or, without a recording, predicted time.

    Below the bar of a recorded step, a hatched one shows what the model predicts for the same kernels.

    Parameters
    ----------
    results : sequence of CaseResult
        Of :func:`gpuledger.studies.kernel_breakdown.reduce`.
    """
    order = sorted(results, key=lambda result: (not _is_recorded(result), result.provenance["dataset"]))
    drawn = [(result, bar) for result in order for bar in _bars(result)]
    bars = [bar for _, bar in drawn]
    figure, axes = plt.subplots(figsize=(7.0, 1.4 + 0.2 * len(bars)))
    place, places = 0.0, []
    for label, seconds, whole, predicted in bars:
        # A prediction of a recorded step follows its bar closely.
        place -= 0.8 if label is None else 1.25
        places.append(place)
        left = 0.0
        for name in NAMES:
            width = 100 * float(seconds.get(name, 0)) / whole
            style = {**_HATCHED, "edgecolor": colour_of(name)} if predicted else {"color": colour_of(name)}
            axes.barh(place, width, 0.75, left, linewidth=0.6, **style)
            left += width
        axes.text(left + 1, place, f"{1e3 * seconds.sum():.3g} ms", va="center", fontsize=6.5)
    axes.set_yticks(places, [figures.plain(label or "the same, predicted") for label, *_ in bars], fontsize=6.5)
    axes.set(
        xlabel="kernel time (% of the recorded step; without one, of the prediction)",
        xlim=(0, None),
        ylim=(places[-1] - 0.8, 0),
    )
    found = [
        100 * seconds.sum() / whole
        for result, (label, seconds, whole, _) in drawn
        if label is None and result.provenance["kind"] != "simulated"
    ]
    finding = "Where the time of a step goes, by the model"
    if found:
        reach = "" if len(found) == 1 else f"{min(found):.0f} to "
        steps = f"{len(found)} measured step{'s' * (len(found) > 1)}"
        finding = f"The model predicts {reach}{max(found):.0f} % of the kernel time of {steps}"
    for name in NAMES:
        if any(seconds.get(name, 0) > 0 for _, seconds, *_ in bars):
            axes.bar(0, 0, color=colour_of(name), label=NAMES[name])
    axes.bar(0, 0, **_HATCHED, edgecolor=figures.GREY, label="predicted")
    figures.headline(figure, finding, legend=axes, columns=3)
    return figure


def _is_recorded(result: CaseResult) -> bool:
    return "duration_s" in result.data


def _bars(result: CaseResult) -> Iterator[tuple[str | None, pd.Series, float, bool]]:
    """Yield label, time by class (s), time of the whole bar (s), and whether it is predicted."""
    about = result.provenance
    name = f"{about['dataset']}: {about['case']}"
    if _is_recorded(result):
        rows = recorded_kernels(result)
        known = rows["kernel_class"].replace({"elementwise": "norm"})
        groups = rows.groupby(known.where(known.isin(list(NAMES)), "other"))
        seconds = groups["duration_s"].sum()
        yield f"{name} ({result['hardware']})", seconds, seconds.sum(), False
        if rows["predicted_s"].notna().any():
            yield None, groups["predicted_s"].sum(), seconds.sum(), True
        return
    rows = split_parts(result.data)["kernels"]
    rows = rows[rows["hardware"] == rows["hardware"].iloc[0]]
    seconds = rows["time_s"].astype(float) * rows["count"].astype(float)
    for phase, times in seconds.groupby(rows["phase"], sort=False, observed=True):
        by_class = times.groupby(rows["kind"].astype(str).map(CLASSES).fillna("other")).sum()
        yield f"predicted: {about['case']}, {str(phase).replace('_', ' ')}", by_class, by_class.sum(), True
