"""Panels of block scheduling; the notebook puts them together."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult

RUNNING, WAITING, UNUSED = figures.BLUE, figures.VERMILLION, figures.PALE


def draw_slots(
    axes: Axes, blocks: pd.DataFrame, sms: pd.DataFrame, running: str = RUNNING, waiting: str = WAITING
) -> None:
    """Draw the block slots of one SM over time.

    Parameters
    ----------
    blocks, sms : DataFrame
        Blocks of one SM, and all SMs; see :func:`gpuledger.studies.block_scheduling.parts`.
    running, waiting : color
        Of a slot while a block runs in it, and while it waits for the next one.
    """
    sm = int(blocks["sm"].iloc[0])
    launched, resident = sms.loc[sms["sm"] == sm, ["blocks", "resident_blocks"]].iloc[0].astype(int)
    start, end, slot = (blocks[column].to_numpy(float) for column in ("start_cycles", "end_cycles", "slot"))
    axes.barh(slot, end - start, left=start, height=0.78, color=running, linewidth=0, label="block running")
    if "free_cycles" in blocks:
        taken = blocks[blocks["free_cycles"].notna()]
        free = taken["free_cycles"].to_numpy(float)
        gap = taken["start_cycles"].to_numpy(float) - free
        axes.barh(
            taken["slot"], gap, left=free, height=0.78, color=waiting, linewidth=0, label="slot waits for a block"
        )
    # If later blocks were left out, end at the last start: after that, blocks are missing.
    complete = len(blocks) == launched
    axes.set(xlim=(0, max(1, (end if complete else start).max())), ylim=(slot.max() + 0.6, -0.6), yticks=[])
    axes.set_xlabel(f"cycles since the first block on SM {sm}")
    shown = int(slot.max()) + 1
    if shown > 1:
        part = "" if shown == resident else f"{shown} of "
        axes.set_ylabel(f"{part}{resident} slots of SM {sm}")
    else:  # One bar is too low for it.
        of = f"the first of {resident} slots" if resident > 1 else "its one slot"
        axes.set_xlabel(f"cycles since the first block on SM {sm}, in {of}")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def draw_gaps(axes: Axes, gaps: pd.DataFrame, result: CaseResult, color: str = WAITING) -> None:
    """Draw the histogram of the gaps before blocks.

    Parameters
    ----------
    gaps : DataFrame
        See :func:`gpuledger.studies.block_scheduling.parts`.
    result : CaseResult
        Its percentiles are written beside the median.
    """
    axes.set(xlabel="gap before a block (cycles)", ylabel="gaps (%)")
    width = int(gaps["low_cycles"].diff().iloc[1]) if len(gaps) > 1 else 1
    share = 100 * gaps["gaps"].to_numpy(float) / gaps["gaps"].sum()
    # The last bin may hold everything above the 99th percentile; it is reported as text.
    rest = len(gaps) > 1 and gaps["high_cycles"].iloc[-1] - gaps["low_cycles"].iloc[-1] >= width
    beyond = f"\n {share[-1]:.1f} % longer, up to {result['gap_cycles_p100']:,} " if rest else ""
    if rest:
        gaps, share = gaps.iloc[:-1], share[:-1]
    axes.bar(gaps["low_cycles"].to_numpy(float), share, width=0.92 * width, align="edge", color=color, linewidth=0)
    median = result["gap_cycles_p50"]
    axes.axvline(median, color=figures.BLACK, linewidth=1)
    right = median < gaps["low_cycles"].iloc[0] + 0.6 * width * len(gaps)
    note = f" median {median:,} \n 5–95 %: {result['gap_cycles_p5']:,}–{result['gap_cycles_p95']:,} {beyond}"
    beside = {"transform": axes.get_xaxis_transform(), "ha": "left" if right else "right", "va": "top"}
    axes.text(median, 0.98, note, fontsize=7.5, **beside)
    # The note covers the upper half of its side, or the upper third.
    beneath = share[gaps["high_cycles"] > median] if right else share[gaps["low_cycles"] < median]
    axes.set_ylim(0, max(1.05 * share.max(), (2.3 if rest else 1.7) * beneath.max(initial=0)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5, integer=True, min_n_ticks=1)


def draw_shares(axes: Axes, result: CaseResult, running: str = RUNNING, waiting: str = WAITING) -> None:
    """Draw where the slots' time goes, summed over the slots of an SM, by pairing and by the upstream estimator."""
    ends = result["ramp_cycles_per_sm"] + result["drain_cycles_per_sm"]
    rows = [
        ("slots paired", result["running_cycles_per_sm"], result["scheduling_cycles_per_sm"], ends),
        ("oldest block\nonly (upstream)", result["neutrino_running_cycles"], result["neutrino_scheduling_cycles"], 0),
    ]
    largest = max(sum(values) for _, *values in rows)
    scales = ((1e6, "million slot-cycles"), (1e3, "thousand slot-cycles"), (1, "slot-cycles"))
    unit, name = next(scale for scale in scales if largest >= 2 * scale[0] or scale[0] == 1)
    for place, (_, run, wait, idle) in enumerate(rows):
        left = 0.0
        for value, color in ((run, running), (wait, waiting), (idle, UNUSED)):
            axes.barh(place, value / unit, left=left, color=color, height=0.42, linewidth=0)
            left += value / unit
        between = "" if figures.for_columns else " slot-cycles between blocks"
        text = f"{wait:,.0f}{between}: {100 * wait / max(run + wait, 1):.1f} %"
        axes.text(0, place - 0.27, text, va="bottom", fontsize=7.5, color=waiting, fontweight="bold")
    low = 1.5
    if ends > 0.005 * largest and not figures.for_columns:
        low = 1.75
        axes.text(0, 1.23, "pale: slots not yet or no longer needed", va="top", fontsize=7, color="#666666")
    axes.set(yticks=np.arange(len(rows)), yticklabels=[label for label, *_ in rows], ylim=(low, -0.75))
    axes.set(xlim=(0, 1.02 * largest / unit), xlabel=f"time of an SM's slots ({name})")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,g}")
