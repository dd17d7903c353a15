"""From a ``block_sched`` trace to the cycles lost between blocks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.readers.neutrino.block_trace import Blocks, Timeline, read_blocks, timelines
from gpuledger.studies.block_scheduling.upstream import Estimate, upstream_estimate

GAP_PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
GAP_BINS = 40
#: The time of an empty kernel: what launching takes.
EMPTY = "empty"
#: How much of a timeline fits in a figure: slots, and consecutive blocks in each.
SHOWN_SLOTS, SHOWN_BLOCKS = 32, 9


def reduce(case: Case, shown_slots: int = SHOWN_SLOTS, shown_blocks: int = SHOWN_BLOCKS) -> CaseResult:
    """Reduce a trace to the cycles that SMs spend on running blocks and on replacing them.

    On each SM at most R blocks run at once, in R slots. With starts and ends each sorted, start k + R takes the slot
    that end k freed, and the time between the two is the gap. The sum of gaps does not depend on which block takes
    which slot.

    Parameters
    ----------
    case : Case
        Its ``trace`` is a ``.bin`` of the probe ``block_sched``. ``kernel`` and ``device`` are texts for titles,
        ``clock_mhz`` converts the kernel's cycles to time, ``times_ns`` has measured times of the kernel
        (``original``), of variants of it, and of an ``empty`` kernel. With times, ``gap_free_time`` is what the kernel
        would take without its gaps, predicted from the trace: to be compared with the variants.
    shown_slots, shown_blocks : int
        How much of one SM's timeline is kept for the figure: slots, and time as a multiple of the mean block's.

    Returns
    -------
    CaseResult
        Data: long, by ``part``; see :func:`parts`.

    Raises
    ------
    InputError
        See :func:`gpuledger.readers.neutrino.block_trace.read_blocks`.
    """
    blocks = read_blocks(case.path("trace"))
    with ThreadPoolExecutor(1) as pool:
        estimate = pool.submit(upstream_estimate, blocks.first)
        sms, gaps, typical = _pair(blocks)
    slots = _slots(blocks, typical, shown_slots, shown_blocks)
    frames = {"sm": sms, "gap": _histogram(gaps), "block": slots}
    result = CaseResult(pd.concat([frame.assign(part=name) for name, frame in frames.items()], ignore_index=True))
    whole = [column for column in result.data if column != "part"]
    result.data = result.data[["part", *whole]].astype(dict.fromkeys(whole, "Int64"))
    for name in ("kernel", "device"):
        if name in case.inputs:
            result.add(name, case.inputs[name], "text")
    result.add("blocks", len(blocks), "block")
    if not (recorded := blocks.recorded).all():
        result.add("blocks_without_record", len(blocks) - recorded.sum(), "block")
    if blocks.shared:
        result.add("partial_warps", "first records may be of the block before and were left out", "text")
    _summarise(result, sms, gaps)
    _compare_upstream(result, blocks, estimate.result())
    _add_times(result, case)
    what = ("In the model of " if case.dataset.made_here else "") + case.inputs.get("kernel", case.name)
    lost, each = result["lost_percent"], f"{result['scheduling_cycles_per_slot']:,.0f} of {result['slot_cycles']:,.0f}"
    finding = f"{what}: {lost:.1f} % of the slots' time goes into replacing blocks ({each} cycles per slot)"
    result.add("finding", finding, "text")
    return result


def parts(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Split the data of a reduced case.

    Returns
    -------
    sms : DataFrame
        One row per SM: ``sm, blocks, resident_blocks, running_cycles, scheduling_cycles, span_cycles, ramp_cycles,
        drain_cycles``. Ramp is the time that slots wait for their first block, drain the time from their last block to
        the end of the SM's last block: running + scheduling + ramp + drain = resident × span.
    gaps : DataFrame
        Histogram: ``low_cycles, high_cycles`` (both inclusive), ``gaps``. A wider last bin holds the longest 1 %.
    blocks : DataFrame
        The SM whose share of lost time is the median: ``sm, slot, start_cycles, end_cycles`` since its first block, and
        ``free_cycles``, when the slot had become free (missing for a slot's first block).
    """
    split = [data[data["part"] == part].drop(columns="part") for part in ("sm", "gap", "block")]
    return tuple(part.dropna(axis=1, how="all").reset_index(drop=True) for part in split)


def _pair(blocks: Blocks) -> tuple[pd.DataFrame, np.ndarray, Timeline]:
    rows, lines, gaps, known = [], [], np.empty(len(blocks), np.int64), 0
    for line in timelines(blocks):
        starts, ends, resident = line.starts, line.ends, line.resident
        own = line.gaps
        gaps[known : known + len(own)] = own
        known += len(own)
        rows.append(
            {
                "sm": line.sm,
                "blocks": len(starts),
                "resident_blocks": resident,
                "running_cycles": int(ends.sum() - starts.sum()),
                "scheduling_cycles": int(own.sum()),
                "span_cycles": int(ends[-1] - starts[0]),
                "ramp_cycles": int((starts[:resident] - starts[0]).sum()),
                "drain_cycles": int((ends[-1] - ends[-resident:]).sum()),
            }
        )
        lines.append(line)
    sms = pd.DataFrame(rows)
    order = (sms["scheduling_cycles"] / sms["running_cycles"].clip(lower=1)).argsort(kind="stable")
    gaps = gaps[:known]
    if known and gaps.max() < 2**16:
        gaps = gaps.astype(np.uint16)  # sorted in linear time
    gaps.sort(kind="stable" if gaps.dtype == np.uint16 else None)
    return sms, gaps, lines[order.iloc[len(order) // 2]]


def _slots(blocks: Blocks, line: Timeline, shown_slots: int, shown_blocks: int) -> pd.DataFrame:
    """Assign every block of an SM to a slot, and keep what fits in a figure."""
    own = blocks.sm == line.sm
    start, end = blocks.start[own], blocks.end[own]
    by_start, by_end = np.lexsort((end, start)), np.lexsort((start, end))
    slot, free = np.zeros(len(start), np.int64), np.full(len(start), -1)
    slot[by_start[: line.resident]] = np.arange(line.resident)
    for taker, giver in zip(by_start[line.resident :], by_end, strict=False):
        slot[taker], free[taker] = slot[giver], end[giver]
    origin = line.starts[0]
    period = ((end - start).sum() + line.gaps.sum()) / len(start)
    kept = by_start[(start[by_start] <= origin + shown_blocks * period) & (slot[by_start] < shown_slots)]
    frame = pd.DataFrame({"slot": slot, "start_cycles": start - origin, "end_cycles": end - origin})
    frame["free_cycles"] = pd.Series(free - origin, dtype="Int64").mask(free < 0)
    return frame.iloc[kept].assign(sm=line.sm)


def _histogram(gaps: np.ndarray) -> pd.DataFrame:
    if not len(gaps):
        return pd.DataFrame({"low_cycles": [], "high_cycles": [], "gaps": []})
    low, high = int(gaps[0]), _percentile(gaps, 99)
    width = -(-(high - low + 1) // GAP_BINS)
    lows = np.arange(low, high + 1, width)
    highs = lows + width - 1
    if gaps[-1] > highs[-1]:
        lows, highs = np.append(lows, highs[-1] + 1), np.append(highs, max(gaps[-1], highs[-1] + width + 1))
    below = np.searchsorted(gaps, highs, side="right")
    return pd.DataFrame({"low_cycles": lows, "high_cycles": highs, "gaps": np.diff(below, prepend=0)})


def _percentile(ordered: np.ndarray, percent: int) -> int:
    """Return the nearest-rank percentile of sorted values."""
    return int(ordered[max(0, -(-percent * len(ordered) // 100) - 1)])


def _summarise(result: CaseResult, sms: pd.DataFrame, gaps: np.ndarray) -> None:
    running, scheduling = sms["running_cycles"].mean(), sms["scheduling_cycles"].mean()
    per_slot = (sms["running_cycles"] + sms["scheduling_cycles"]) / sms["resident_blocks"]
    kernel = int(sms["span_cycles"].max())
    result.add("sms", len(sms), "SM")
    result.add("resident_blocks_max", sms["resident_blocks"].max(), "block")
    result.add("running_cycles_per_sm", running, "cycle")
    result.add("scheduling_cycles_per_sm", scheduling, "cycle")
    result.add("ramp_cycles_per_sm", sms["ramp_cycles"].mean(), "cycle")
    result.add("drain_cycles_per_sm", sms["drain_cycles"].mean(), "cycle")
    result.add("lost_percent", 100 * scheduling / max(running + scheduling, 1), "%")
    result.add("scheduling_to_running_percent", 100 * scheduling / max(running, 1), "%")
    result.add("gaps", len(gaps), "gap")
    if len(gaps):
        result.add("gap_cycles_mean", gaps.mean(), "cycle")
        for percent in GAP_PERCENTILES:
            result.add(f"gap_cycles_p{percent}", _percentile(gaps, percent), "cycle")
    # Cycles that a slot accounts for, to be compared with the kernel's cycles by the SM's clock.
    result.add("kernel_cycles", kernel, "cycle")
    result.add("slot_cycles", per_slot.mean(), "cycle")
    result.add("slot_to_kernel_percent", 100 * per_slot.mean() / max(kernel, 1), "%")
    # Cycles per SM are summed over its slots, and so can exceed the kernel's; these are comparable with it.
    each = (sms["scheduling_cycles"] / sms["resident_blocks"]).mean()
    result.add("scheduling_cycles_per_slot", each, "cycle")
    result.add("gap_free_saving_percent", 100 * each / max(kernel, 1), "%")


def _compare_upstream(result: CaseResult, blocks: Blocks, estimate: Estimate) -> None:
    running, scheduling = estimate.running_cycles, estimate.scheduling_cycles
    result.add("neutrino_line", estimate.line, "text")
    result.add("neutrino_running_cycles", running, "cycle")
    result.add("neutrino_scheduling_cycles", scheduling, "cycle")
    result.add("neutrino_longest_list", estimate.longest_list, "block")
    result.add("neutrino_lost_percent", 100 * scheduling / max(running + scheduling, 1), "%")
    result.add("neutrino_scheduling_to_running_percent", 100 * scheduling / max(running, 1), "%")
    true = result["scheduling_cycles_per_sm"]
    if true:
        result.add("neutrino_scheduling_over_paired_ratio", scheduling / true, "1")
    # Two causes of the difference: the script looks at first warps, and only at the oldest block. Whatever time a block
    # runs on after its first warp counts as a gap: the mean of it, once per gap of an SM.
    shorter = result["running_cycles_per_sm"] * result["sms"] - float(blocks.first["elapsed"].sum(dtype=np.int64))
    by_first = shorter / result["blocks"] * result["gaps"] / result["sms"]
    result.add("neutrino_excess_by_first_warps", by_first, "cycle")
    result.add("neutrino_excess_by_oldest_only", scheduling - true - by_first, "cycle")


def _add_times(result: CaseResult, case: Case) -> None:
    if "clock_mhz" in case.inputs:
        result.add("clock", case.inputs["clock_mhz"], "MHz")
        result.add("kernel_time", 1e3 * result["kernel_cycles"] / case.inputs["clock_mhz"], "ns")
    times = case.inputs.get("times_ns", {})
    for variant, time in times.items():
        result.add(f"{variant}_time", time, "ns")
        if variant not in ("original", EMPTY):
            result.add(f"{variant}_saving_percent", 100 * (1 - time / times["original"]), "%")
    if times:
        # Launching takes its time, which no kernel saves.
        gaps_ns = (times["original"] - times.get(EMPTY, 0)) * result["gap_free_saving_percent"] / 100
        result.add("gap_free_time", times["original"] - gaps_ns, "ns")
        result.add("gap_free_time_saving_percent", 100 * gaps_ns / times["original"], "%")
