"""From published points, traces or a pickle to tails, speeds and transitions."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.parts import join_parts, one_part
from gpuledger.ledger.passes import Passes, count_values
from gpuledger.readers.neutrino.block_trace import BlockTrace, TracedBlocks, read_blocks
from gpuledger.studies.warp_scheduling import distribution
from gpuledger.studies.warp_scheduling.distribution import PERCENTILES
from gpuledger.studies.warp_scheduling.progress import (
    Clocks,
    ends_of_older,
    find_transitions,
    match,
    read_pickled_progress,
    read_progress,
)
from gpuledger.studies.warp_scheduling.warps import Warps, put_together, read_runs

#: Blocks shown in a figure, as many as in the published one.
SHOWN_BLOCKS = 8


def reduce(case: Case, gain_percent: float = 8, tied_iterations: float = 2, passes: Passes | None = None) -> CaseResult:
    """Compute when the warps of a kernel finish, and how fast its blocks are meanwhile.

    Parameters
    ----------
    gain_percent : float
        By how much iterations must become faster to count as a transition.
    tied_iterations : float
        How many (slow) iterations a transition may be away from the end of the older block to be tied to it.
    passes : Passes, optional
        Where parts of a large ``trace`` were read apart; by default all is done here.

    Raises
    ------
    InputError
        Points that are not a CDF; traces that cannot be read, hold other records or belong to two launches; a pickle
        that is more than data.
    """
    warps = _read_warps(case.path("trace"), passes or Passes()) if "trace" in case.inputs else None
    clocks = None
    if "progress" in case.inputs:
        clocks = read_progress(case.path("progress"))
    elif "pickle" in case.inputs:
        clocks = read_pickled_progress(case.path("pickle"))
    result = CaseResult(pd.DataFrame())
    for name in ("kernel", "blocks", "device"):
        if name in case.inputs:
            result.add(name, case.inputs[name], "text")
    # What else ran on the SM matters to followed blocks, of which there are few.
    blocks = read_blocks(case.path("trace")) if warps and clocks else None
    points = _distribution(result, case, warps, clocks)
    what = case.inputs.get("kernel", case.name)
    what += f", {case.inputs['blocks']} blocks" if "blocks" in case.inputs else ""
    # Headlines of simulations say so: the tail was fitted, and the transitions were put in.
    words = "Simulated {what}: {found}" if case.dataset.made_here else "{what}: {found}"
    frames = {"point": points}
    if warps is not None:
        frames["warp"] = warps.first
    if clocks is None:
        finding = f"slowest warp {100 * result['tail_ratio']:.1f} % behind the fastest"
    else:
        if blocks is not None:
            match(clocks, blocks)
        # Without a trace of starts, a block's time counts from its first branch.
        begin = clocks.clocks[:, 0] if blocks is None else blocks.start[clocks.block]
        speeds = _summarise_speeds(result, case, clocks, begin, find_transitions(clocks, gain_percent))
        finding = _count_transitions(result, speeds)
        if blocks is not None:
            finding += _tie(result, speeds, clocks, blocks, tied_iterations)
        words = "By construction, {found} ({what})" if case.dataset.made_here else words
        frames |= {"block": speeds, "line": _lines(result, clocks, begin, speeds)}
    result.data = join_parts(**frames)
    result.add("finding", words.format(what=what, found=finding), "text")
    return result


def _read_warps(path: Path, passes: Passes) -> Warps:
    trace = BlockTrace.open(path)
    warps = passes.run("warps", trace.blocks, lambda first, end: read_runs(trace, first, end), put_together)
    if warps is None:
        raise trace.without_records()
    if not len(warps.elapsed[0]):
        problem = "every warp ended in the cycle in which it started"
        raise InputError(path, "", problem, "check which probe wrote the trace")
    return warps


def first_warps(data: pd.DataFrame) -> pd.DataFrame:
    """Return the warps whose starts and ends are kept, from the data of a reduced case; empty without a trace.

    Returns
    -------
    DataFrame
        Of one SM: ``sm, block, warp, start_cycles`` (from its first block) and ``elapsed_cycles``.
    """
    return one_part(data, "warp").reindex(columns=["sm", "block", "warp", "start_cycles", "elapsed_cycles"])


def parts(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Split the data of a reduced case. Without clocks of branches, the second and third are empty.

    Returns
    -------
    points : DataFrame
        The distribution of elapsed times: ``completed_percent, elapsed_cycles, over_fastest_ratio``.
    blocks : DataFrame
        One row per followed block: ``block, shown``; mean speed ``speed_tflops``; where the speed rises,
        ``transition_cycles`` since the block's start, ``slow_tflops`` before and ``fast_tflops`` after; and
        ``older_end_cycles``, the end of the last block that was on the SM before it.
    lines : DataFrame
        The shown blocks, sample by sample: ``block, elapsed_cycles, progress_percent, speed_tflops`` (of the
        iteration that ends there).
    """
    return tuple(one_part(data, name) for name in ("point", "block", "line"))


def _distribution(result: CaseResult, case: Case, warps: Warps | None, clocks: Clocks | None) -> pd.DataFrame:
    if "cdf" in case.inputs:
        points = distribution.read_cdf(case)
        given = "published" if case.dataset.content["kind"] == "published" else "given"
        result.add("warps", f"not {given}", "warp")
        cycles = np.interp(PERCENTILES, points["completed_percent"], points["elapsed_cycles"])
        distribution.summarise(result, cycles)
        return points
    if warps is not None:
        elapsed = warps.elapsed
        result.add("elapsed", "from the start to the end of every warp", "text")
        if BlockTrace.open(case.path("trace")).shared:
            result.add("partial_warps", "their records and those of first warps are mixed", "text")
    else:
        elapsed = count_values(clocks.elapsed)
        result.add("elapsed", "from the first to the last branch of one warp of each block", "text")
    points, cycles = distribution.measured(elapsed)
    result.add("warps", elapsed[1].sum(), "warp")
    distribution.summarise(result, cycles)
    return points


def _summarise_speeds(
    result: CaseResult, case: Case, clocks: Clocks, begin: np.ndarray, found: pd.DataFrame
) -> pd.DataFrame:
    per_iteration, clock = case.inputs["flop_per_iteration"], case.inputs["clock_mhz"]
    result.add("flop_per_iteration", per_iteration, "FLOP")
    result.add("clock", clock, "MHz")
    result.add("blocks_followed", len(clocks.block), "block")
    if clocks.left_out:
        result.add("blocks_left_out", clocks.left_out, "block")
    if clocks.full:
        result.add("blocks_with_full_records", clocks.full, "block")
    result.add("samples_per_block", clocks.counts.max(), "sample")
    # From FLOP per cycle to TFLOP/s.
    scale = per_iteration * clock * 1e6 / 1e12
    speeds = pd.DataFrame({"block": clocks.block, "speed_tflops": scale * (clocks.counts - 1) / clocks.elapsed})
    rises = found["found"]
    speeds["transition_cycles"] = (found["clock"] - begin).astype("Int64").where(rises)
    for name in ("slow", "fast"):
        speeds[f"{name}_tflops"] = scale / found[f"{name}_cycles"].where(rises)
    up = speeds[rises]
    result.add("block_speed_median_tflops", speeds["speed_tflops"].median(), "TFLOP/s")
    result.add("sped_up_blocks", len(up), "block")
    result.add("sped_up_percent", 100 * len(up) / len(speeds), "%")
    # The figure shows kinks if more than a stray block has one.
    result.add("progress_kink", "yes" if len(up) >= max(1, 0.05 * len(speeds)) else "no", "text")
    if len(up):
        result.add("block_speed_slow_tflops", up["slow_tflops"].median(), "TFLOP/s")
        result.add("block_speed_fast_tflops", up["fast_tflops"].median(), "TFLOP/s")
        result.add("speed_gain_percent", 100 * (up["fast_tflops"] / up["slow_tflops"] - 1).median(), "%")
    return speeds


def _count_transitions(result: CaseResult, speeds: pd.DataFrame) -> str:
    """Return the finding, without the kernel's name."""
    if not result["sped_up_blocks"]:
        return f"none of {len(speeds):,} blocks speeds up on its way"
    up, gain = result["sped_up_blocks"], result["speed_gain_percent"]
    return f"{up:,} of {len(speeds):,} blocks speed up once, by {gain:.0f} %"


def _tie(result: CaseResult, speeds: pd.DataFrame, clocks: Clocks, blocks: TracedBlocks, tied_iterations: float) -> str:
    """Compare transitions with the ends of older blocks; return what that adds to the finding."""
    start, end = blocks.start[clocks.block], blocks.end[clocks.block]
    older = ends_of_older(blocks)[clocks.block]
    beside = older >= 0
    speeds["sm"] = blocks.sm[clocks.block].astype(np.int64)
    speeds["older_end_cycles"] = pd.Series(older - start, dtype="Int64").where(beside & (older < end))
    found = speeds["transition_cycles"].notna().to_numpy()
    result.add("blocks_with_older", beside.sum(), "block")
    result.add("sped_up_without_older", (found & ~beside).sum(), "block")
    if not found.any():
        return ""
    up = speeds[found]
    distance = (up["transition_cycles"] - up["older_end_cycles"]).abs()
    # Mean cycles of a block's iterations before its transition.
    slow = result["flop_per_iteration"] * result["clock"] * 1e-6 / up["slow_tflops"]
    tied = (distance <= tied_iterations * slow).fillna(False).astype(bool)
    result.add("tied_blocks", tied.sum(), "block")
    result.add("tied_percent", 100 * tied.mean(), "%")
    # Share of blocks that would be tied if ends and transitions were unrelated.
    reach = 2 * tied_iterations * slow / (end - start)[found]
    result.add("tied_by_chance_percent", 100 * reach.clip(upper=1).mean(), "%")
    if distance.notna().any():
        result.add("tie_distance_median", float(distance.median()), "cycle")
    return f", {100 * tied.mean():.0f} % of them as the older block on their SM ends"


def _lines(result: CaseResult, clocks: Clocks, begin: np.ndarray, speeds: pd.DataFrame) -> pd.DataFrame:
    """Choose the blocks to show, mark them in `speeds`, and return their samples."""
    when = (speeds["transition_cycles"] / (clocks.elapsed + 1)).astype("Float64")
    steady = speeds.loc[when.isna(), "speed_tflops"].sort_values(ascending=False, kind="stable").index
    # Transitions from early to late, evenly in time, and up to two blocks without one.
    picked = _spread_in_time(when.dropna().sort_values(kind="stable"), SHOWN_BLOCKS - min(2, len(steady)))
    picked += _spread(steady, SHOWN_BLOCKS - len(picked))
    speeds["shown"] = speeds.index.isin(picked)
    scale = result["flop_per_iteration"] * result["clock"] * 1e-6
    frames = []
    for row in picked:
        own = clocks.clocks[row, : clocks.counts[row]]
        frame = pd.DataFrame({"elapsed_cycles": own - begin[row]})
        frame["progress_percent"] = 100 * np.arange(len(own)) / (len(own) - 1)
        frame["speed_tflops"] = scale / frame["elapsed_cycles"].diff()
        frames.append(frame.assign(block=clocks.block[row]))
    return pd.concat(frames, ignore_index=True)


def _spread_in_time(when: pd.Series, most: int) -> list:
    """Return the rows of at most `most` moments, those next to moments that are evenly spaced; `when` ascends."""
    if len(when) <= most:
        return when.index.tolist()
    moments = when.to_numpy(float)
    picked: list[int] = []
    for target in np.linspace(moments[0], moments[-1], most):
        free = np.delete(np.arange(len(moments)), picked)
        picked.append(int(free[np.abs(moments[free] - target).argmin()]))
    return when.index[sorted(picked)].tolist()


def _spread(rows: pd.Index, most: int) -> list:
    """Return at most `most` rows, evenly from the first to the last."""
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
    return rows[np.unique(places)].tolist()
