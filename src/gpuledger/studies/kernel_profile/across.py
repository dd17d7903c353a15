"""What limits the kernels of every recording, side by side."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.kernel_profile.figures import COLOURS, LABELLED_PERCENT, bound_in_words
from gpuledger.studies.kernel_profile.tables import kernel_table


def choose(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the recordings that have times and roofs, which are drawn."""
    return [result for result in results if len(_kernels(result))]


def _kernels(result: CaseResult) -> pd.DataFrame:
    kernels = kernel_table(result.data)
    return kernels[kernels["share_percent"].notna() & kernels["bound"].notna()]


def draw(results: Sequence[CaseResult]) -> Figure:
    """Draw a row per recording: its time by limit, and how near its kernels come to the nearest roof."""
    named = {}
    for result in results:
        where = result.provenance
        name = f"{where['dataset']}: {where['case']}\n{result.get('gpu', '')}"
        named[name] = _kernels(result)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.0, 1.2 + 0.42 * len(named)), sharey=True, width_ratios=(1.25, 1)
    )
    draw_limits(left, named)
    draw_nearness(right, named)
    shares = [kernels.loc[kernels["bound"] != "latency", "share_percent"].sum() for kernels in named.values()]
    most = sum(share >= 50 for share in shares)
    finding = f"In {most} of {len(shares)} recordings most of the time goes to kernels at 60 % of a roof or more"
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=7)
    figures.headline(figure, finding)
    return figure


def draw_limits(axes: Axes, named: dict[str, pd.DataFrame]) -> None:
    """Draw a bar per recording: the share of its time by what its kernels come near to.

    Parameters
    ----------
    named : dict of str to DataFrame
        Rows of `kernel_table` by the recording's name.
    """
    by_bound = pd.DataFrame({name: kernels.groupby("bound")["share_percent"].sum() for name, kernels in named.items()})
    left = pd.Series(0.0, by_bound.columns)
    for bound in (bound for bound in COLOURS if bound in by_bound.index):
        widths = by_bound.loc[bound].fillna(0)
        axes.barh(range(len(left)), widths, left=left, height=0.55, color=COLOURS[bound], label=bound_in_words(bound))
        left += widths
    axes.set_yticks(range(len(named)), [figures.plain(name) for name in named], fontsize=7)
    axes.set(xlim=(0, 100), ylim=(len(named) - 0.5, -0.5), xlabel="share of the time (%)", title="All kernels")
    axes.tick_params(axis="y", length=0)


def draw_nearness(axes: Axes, named: dict[str, pd.DataFrame]) -> None:
    """Draw a dot per kernel of 5 % of the time or more, as large as its time, over its share of the nearest roof."""
    for row, kernels in enumerate(named.values()):
        large = kernels[kernels["share_percent"] >= LABELLED_PERCENT]
        colours = [COLOURS[bound] for bound in large["bound"]]
        areas = 12 + 1.6 * large["share_percent"]
        axes.scatter(large["achieved_percent"], [row] * len(large), s=areas, color=colours, alpha=0.85, zorder=3)
    axes.set(xlim=(-3, 103), xlabel="share of the nearest roof (%)")
    axes.set_title(f"Kernels with ≥ {LABELLED_PERCENT} % of the time")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
