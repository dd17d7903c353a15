"""The figure and the table of block scheduling."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.block_scheduling.reduction import parts

RUNNING, LOST, ENDS = figures.BLUE, figures.VERMILLION, figures.PALE


def draw(result: CaseResult) -> Figure:
    """Draw one SM's slots over time, the distribution of gaps, and where the slots' time goes by either estimator."""
    sms, gaps, blocks = parts(result.data)
    slots = blocks["slot"].max() + 1
    figure = plt.figure(figsize=(7.0, 3.2 + 0.08 * min(slots, 24)))
    axes = figure.subplot_mosaic("AA;BC", height_ratios=[1.0 + 0.03 * slots, 1], width_ratios=[1, 1.15])
    _slots(axes["A"], blocks, sms)
    _gaps(axes["B"], gaps, result)
    _shares(axes["C"], result)
    figures.headline(figure, result.finding)
    return figure


def _slots(axes: Axes, blocks: pd.DataFrame, sms: pd.DataFrame) -> None:
    sm, resident = int(blocks["sm"].iloc[0]), int(sms.loc[sms["sm"] == blocks["sm"].iloc[0], "resident_blocks"].iloc[0])
    start, end, slot = (blocks[column].to_numpy(float) for column in ("start_cycles", "end_cycles", "slot"))
    axes.barh(slot, end - start, left=start, height=0.78, color=RUNNING, linewidth=0, label="block running")
    if "free_cycles" in blocks:
        taken = blocks[blocks["free_cycles"].notna()]
        free = taken["free_cycles"].to_numpy(float)
        gap = taken["start_cycles"].to_numpy(float) - free
        axes.barh(taken["slot"], gap, left=free, height=0.78, color=LOST, linewidth=0, label="slot waits for a block")
    # Where blocks were left out, the window ends with the last start: what follows is not all there.
    whole = len(blocks) == sms.loc[sms["sm"] == sm, "blocks"].iloc[0]
    axes.set(xlim=(0, max(1, (end if whole else start).max())), ylim=(slot.max() + 0.6, -0.6), yticks=[])
    axes.set_xlabel(f"cycles since the first block on SM {sm}")
    axes.set_ylabel(f"{resident} slot{'s' * (resident > 1)} of SM {sm}")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.1, handlelength=1.2)
    axes.set_title("A  One SM: every slot, every gap", loc="left")


def _gaps(axes: Axes, gaps: pd.DataFrame, result: CaseResult) -> None:
    axes.set_title("B  How long a slot waits", loc="left")
    axes.set(xlabel="gap before a block (cycles)", ylabel="gaps (%)")
    if gaps.empty:
        axes.text(0.5, 0.5, "no slot was taken twice", transform=axes.transAxes, ha="center", color=figures.GREY)
        return
    width = int(gaps["low_cycles"].diff().iloc[1]) if len(gaps) > 1 else 1
    share = 100 * gaps["gaps"].to_numpy(float) / gaps["gaps"].sum()
    # The last bin holds what is longer than 99 % of the gaps.
    rest = len(gaps) > 1 and gaps["high_cycles"].iloc[-1] - gaps["low_cycles"].iloc[-1] >= width
    if rest:
        beyond = f"\n {share[-1]:.1f} % more up to {result['gap_cycles_p100']:,}"
        gaps, share = gaps.iloc[:-1], share[:-1]
    axes.bar(gaps["low_cycles"].to_numpy(float), share, width=0.92 * width, align="edge", color=LOST, linewidth=0)
    median = result["gap_cycles_p50"]
    axes.axvline(median, color=figures.BLACK, linewidth=1)
    right = median < gaps["low_cycles"].iloc[0] + 0.6 * width * len(gaps)
    note = f" median {median:,} \n 5–95 %: {result['gap_cycles_p5']:,}–{result['gap_cycles_p95']:,} "
    note += beyond if rest else ""
    beside = {"transform": axes.get_xaxis_transform(), "ha": "left" if right else "right", "va": "top"}
    axes.text(median, 0.98, note, fontsize=7.5, **beside)
    axes.set_ylim(0, (1.6 if rest else 1.45) * share.max())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5, integer=True)


def _shares(axes: Axes, result: CaseResult) -> None:
    ends = result["ramp_cycles_per_sm"] + result["drain_cycles_per_sm"]
    rows = [
        ("slots paired", result["running_cycles_per_sm"], result["scheduling_cycles_per_sm"], ends),
        ("oldest block\nonly (upstream)", result["neutrino_running_cycles"], result["neutrino_scheduling_cycles"], 0),
    ]
    largest = max(sum(values) for _, *values in rows)
    scales = ((1e6, "million cycles"), (1e3, "thousand cycles"), (1, "cycles"))
    unit, name = next(scale for scale in scales if largest >= 2 * scale[0] or scale[0] == 1)
    for place, (_, running, lost, idle) in enumerate(rows):
        left = 0.0
        for value, color in ((running, RUNNING), (lost, LOST), (idle, ENDS)):
            axes.barh(place, value / unit, left=left, color=color, height=0.42, linewidth=0)
            left += value / unit
        share = 100 * lost / max(running + lost, 1)
        text = f"{lost:,.0f} cycles between blocks: {share:.1f} %"
        axes.text(0, place - 0.27, text, va="bottom", fontsize=7.5, color=LOST, fontweight="bold")
    if ends > 0.005 * largest:
        axes.text(0, 0.25, "pale: slots not yet or no longer needed", va="top", fontsize=7, color="#666666")
    axes.set(yticks=np.arange(len(rows)), yticklabels=[label for label, *_ in rows], ylim=(1.5, -0.75))
    axes.set_xlabel(f"time of an SM's slots ({name})")
    axes.set_xlim(0, 1.02 * largest / unit)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_title("C  Two ways to count", loc="left")


def estimates_table(result: CaseResult) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return a row an estimator, with headers and formats for people."""
    rows = [
        ("slots paired", "", result["resident_blocks_max"]),
        ("oldest block only (upstream)", "neutrino_", result["neutrino_longest_list"]),
    ]
    suffix = {"": "_per_sm", "neutrino_": ""}
    frame = pd.DataFrame(
        [
            {
                "estimator": name,
                "running_cycles": float(result[f"{prefix}running_cycles{suffix[prefix]}"]),
                "scheduling_cycles": float(result[f"{prefix}scheduling_cycles{suffix[prefix]}"]),
                "lost_percent": float(result[f"{prefix}lost_percent"]),
                "scheduling_to_running_percent": float(result[f"{prefix}scheduling_to_running_percent"]),
                "resident_blocks_at_most": resident,
            }
            for name, prefix, resident in rows
        ]
    )
    headers = {
        "running_cycles": "running (cycles/SM)",
        "scheduling_cycles": "between blocks (cycles/SM)",
        "lost_percent": "lost, of both (%)",
        "scheduling_to_running_percent": "between blocks, of running (%)",
        "resident_blocks_at_most": "blocks at once, at most",
    }
    cycles = dict.fromkeys(("running_cycles", "scheduling_cycles"), "{:,.2f}")
    percents = dict.fromkeys(("lost_percent", "scheduling_to_running_percent"), "{:.2f}")
    return frame, headers, cycles | percents


def experiment_table(experiment: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return the rows of :func:`spread_experiment` with headers and formats for people."""
    headers = {
        "spread_percent": "spread of run times (%)",
        "true_cycles": "true (cycles/SM)",
        "paired_cycles": "slots paired (cycles/SM)",
        "upstream_cycles": "oldest block only (cycles/SM)",
        "upstream_longest_list": "blocks in its list, at most",
    }
    return experiment, headers, {"true_cycles": "{:,.2f}", "paired_cycles": "{:,.2f}", "spread_percent": "{:g}"}


def account(result: CaseResult) -> str:
    """Say in a sentence how the slots' time and the kernel's compare."""
    slots, slot, kernel = (result[name] for name in ("resident_blocks_max", "slot_cycles", "kernel_cycles"))
    share = result["slot_to_kernel_percent"]
    idle = result["ramp_cycles_per_sm"] + result["drain_cycles_per_sm"]
    return (
        f"Here {slots} slots at most account for {slot:,.0f} cycles each; the SM that took longest took {kernel:,}. "
        f"That is {share:.1f} % of it. Ramp and drain, {idle:,.0f} cycles for all slots of an SM, and SMs that were "
        "done earlier are the rest."
    )


def difference(result: CaseResult) -> str:
    """Say by how much the estimators differ here, and why."""
    paired, printed = result["scheduling_cycles_per_sm"], result["neutrino_scheduling_cycles"]
    first, oldest = (result[f"neutrino_excess_by_{what}"] for what in ("first_warps", "oldest_only"))
    return (
        f"Here pairing gives {paired:,.0f} cycles per SM and the script's rule {printed:,}. Of the difference, about "
        f"{first:+,.0f} come from taking first warps for blocks, and {oldest:+,.0f} from looking at the oldest block "
        f"only. Its longest list has {result['neutrino_longest_list']:,} blocks, where at most "
        f"{result['resident_blocks_max']:,} ran at once."
    )


def saving(result: CaseResult) -> str:
    """Say how much less time the kernel would take without gaps, and how much less measured variants take."""
    words = (
        f"Without its gaps this kernel would take {result['gap_free_saving_percent']:.1f} % less time, all else equal."
    )
    if "original_time" in result.summary:
        names = [name.removesuffix("_saving_percent") for name in result.summary if name.endswith("_saving_percent")]
        measured = [
            f"{name} {result[f'{name}_time']:,.0f} ns ({result[f'{name}_saving_percent']:.1f} % less)"
            for name in names
            if f"{name}_time" in result.summary
        ]
        words += f" Measured: {result['original_time']:,.0f} ns; {'; '.join(measured) or 'no variant'}."
    return words


def origin(result: CaseResult) -> str:
    """Say where the trace comes from, and what a simulated one can and cannot tell."""
    if result.provenance["kind"] != "simulated":
        return f"The trace is {result.provenance['label']}: {result.provenance['source']}."
    return (
        "**The trace is simulated, not measured.** It shows that the method finds what was put in. Where it comes near "
        "a published number, it was given parameters that lead there: that reproduces nothing."
    )
