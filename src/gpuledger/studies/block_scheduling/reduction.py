"""From a ``block_sched`` trace to the cycles lost between blocks."""

import numpy as np
import pandas as pd

from gpuledger.errors import warn
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.parts import join_parts, one_part
from gpuledger.ledger.passes import Passes, at_ranks
from gpuledger.readers.neutrino.block_trace import BlockTrace
from gpuledger.studies.block_scheduling.pairing import Pairs, group, pair

GAP_PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
GAP_BINS = 40
#: The time of an empty kernel: what launching takes.
EMPTY = "empty"
#: How much of a timeline fits in a figure: slots, and consecutive blocks in each.
SHOWN_SLOTS, SHOWN_BLOCKS = 32, 9
#: From this many cycles on, the 32 bits of an elapsed time start again at 0.
WRAP_CYCLES = 2**32


def reduce(
    case: Case,
    shown_slots: int = SHOWN_SLOTS,
    shown_blocks: int = SHOWN_BLOCKS,
    threads: int = 1,
    passes: Passes | None = None,
) -> CaseResult:
    """Reduce a trace to the cycles that SMs spend on running blocks and on replacing them.

    On each SM at most R blocks run at once, in R slots. With starts and ends each sorted, start k + R takes the slot
    that end k freed, and the time between the two is the gap. The sum of gaps does not depend on which block takes
    which slot. With measured times, ``gap_free_time`` is what the kernel would take without its gaps, predicted from
    the trace: to be compared with its variants.

    Parameters
    ----------
    shown_slots, shown_blocks : int
        How much of one SM's timeline is kept for the figure: slots, and time as a multiple of the mean block's.
    passes : Passes, optional
        Where parts of a large trace were grouped apart; by default all is done here.

    Returns
    -------
    CaseResult
        Data: long, by ``part``; see :func:`parts`.
    """
    trace = BlockTrace.open(case.path("trace"))
    found = (passes or Passes()).run(
        "blocks",
        trace.blocks,
        lambda first, end: group(trace, first, end, threads),
        lambda partials: pair(partials, threads),
    )
    if found is None:
        raise trace.without_records()
    sms, gaps = found.sms, found.gaps
    slots = _slots(found, shown_slots, shown_blocks)
    result = CaseResult(join_parts(sm=sms, gap=_histogram(gaps), block=slots))
    for name in ("kernel", "device"):
        if name in case.inputs:
            result.add(name, case.inputs[name], "text")
    result.add("blocks", found.blocks, "block")
    if found.recorded < found.blocks:
        result.add("blocks_without_record", found.blocks - found.recorded, "block")
    if trace.shared:
        result.add("partial_warps", "first records may be of the block before and were left out", "text")
    _warn_of_wraps(trace, sms)
    _summarise(result, sms, gaps)
    _compare_upstream(result, found)
    _add_times(result, case)
    what = ("Simulated " if case.dataset.made_here else "") + case.inputs.get("kernel", case.name)
    lost, each = result["lost_percent"], f"{result['scheduling_cycles_per_slot']:,.0f} of {result['slot_cycles']:,.0f}"
    finding = f"{what}: slots wait for their next block for {lost:.1f} % of the time ({each} cycles per slot)"
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
        Histogram: ``low_cycles, high_cycles`` (both inclusive), ``gaps``. A wider last bin holds longer ones, at most
        1 %.
    blocks : DataFrame
        The SM whose share of lost time is the median: ``sm, slot, start_cycles, end_cycles`` since its first block, and
        ``free_cycles``, when the slot had become free (missing for a slot's first block).
    """
    return tuple(one_part(data, name) for name in ("sm", "gap", "block"))


def _warn_of_wraps(trace: BlockTrace, sms: pd.DataFrame) -> None:
    """Warn if an SM ran blocks for so long that the elapsed time of one may have started again at 0.

    A start has 64 bits, an elapsed time 32. Which blocks are affected, a record does not say: after a block that looks
    short the SM looks idle until the next one starts, as it does when something else ran there.
    """
    if (longest := int(sms["span_cycles"].max())) >= WRAP_CYCLES:
        problem = f"an SM ran blocks for {longest:,} cycles, but an elapsed time has 32 bits"
        done = f"a block of {WRAP_CYCLES:,} cycles or more looks short, and the rest of its time counts as a gap"
        warn(trace.path, f"section {trace.section}", problem, done)


def _slots(found: Pairs, shown_slots: int, shown_blocks: int) -> pd.DataFrame:
    """Assign every block of the typical SM to a slot, and keep what fits in a figure."""
    line, start, end = found.typical, found.start, found.end
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


def _histogram(gaps: tuple[np.ndarray, np.ndarray]) -> pd.DataFrame:
    values, counts = gaps
    if not len(values):
        return pd.DataFrame({"low_cycles": [], "high_cycles": [], "gaps": []})
    low, high = int(values[0]), _percentile(gaps, 99)
    width = -(-(high - low + 1) // GAP_BINS)
    lows = np.arange(low, high + 1, width)
    highs = lows + width - 1
    if values[-1] > highs[-1]:
        lows, highs = np.append(lows, highs[-1] + 1), np.append(highs, max(values[-1], highs[-1] + width + 1))
    below = np.concatenate([[0], np.cumsum(counts)])[np.searchsorted(values, highs, side="right")]
    return pd.DataFrame({"low_cycles": lows, "high_cycles": highs, "gaps": np.diff(below, prepend=0)})


def _percentile(gaps: tuple[np.ndarray, np.ndarray], percent: int) -> int:
    """Return the nearest-rank percentile."""
    return int(at_ranks(gaps, max(0, -(-percent * int(gaps[1].sum()) // 100) - 1)))


def _summarise(result: CaseResult, sms: pd.DataFrame, gaps: tuple[np.ndarray, np.ndarray]) -> None:
    number = int(gaps[1].sum())
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
    result.add("gaps", number, "gap")
    if number:
        result.add("gap_cycles_mean", int((gaps[0] * gaps[1]).sum()) / number, "cycle")
        for percent in GAP_PERCENTILES:
            result.add(f"gap_cycles_p{percent}", _percentile(gaps, percent), "cycle")
    # Cycles that a slot accounts for, to be compared with the kernel's cycles by the SM's clock.
    result.add("kernel_cycles", kernel, "cycle")
    result.add("slot_cycles", per_slot.mean(), "cycle")
    result.add("slot_to_kernel_percent", 100 * per_slot.mean() / max(kernel, 1), "%")
    # How fast blocks arrive, and where: a GPU can be slower at starting blocks than SMs at running them.
    result.add("blocks_per_sm_min", sms["blocks"].min(), "block")
    result.add("blocks_per_sm_max", sms["blocks"].max(), "block")
    result.add("cycles_per_block", (sms["span_cycles"] / sms["blocks"]).mean(), "cycle")
    result.add("blocks_per_cycle", (sms["blocks"] / sms["span_cycles"].clip(lower=1)).sum(), "block/cycle")
    # Cycles per SM are summed over its slots, and so can exceed the kernel's; these are comparable with it.
    each = (sms["scheduling_cycles"] / sms["resident_blocks"]).mean()
    result.add("scheduling_cycles_per_slot", each, "cycle")
    result.add("gap_free_saving_percent", 100 * each / max(kernel, 1), "%")


def _compare_upstream(result: CaseResult, found: Pairs) -> None:
    estimate = found.estimate
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
    shorter = result["running_cycles_per_sm"] * result["sms"] - float(found.first_warps_cycles)
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
