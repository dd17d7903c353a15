"""Synthetic blocks with known gaps, to compare the estimators on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.readers.neutrino.block_trace import TracedBlocks
from gpuledger.readers.neutrino.records import BLOCK_SCHED
from gpuledger.studies.block_scheduling.pairing import timelines
from gpuledger.studies.block_scheduling.upstream import upstream_estimate

#: The shape of the published trace: blocks of the grid, SMs, blocks that an SM holds at once, mean run time of a block
#: (cycles), and smallest and largest gap, which are drawn uniformly between the two (cycles).
BLOCKS, SMS, SLOTS, RUN_CYCLES, GAP_CYCLES = 32768, 108, 16, 1985, (200, 380)


def spread_experiment(
    spreads_percent: Sequence[float] = (0, 2, 5, 10, 30), run_cycles: float = RUN_CYCLES, seed: int = 0
) -> pd.DataFrame:
    """Compare both estimators on synthetic blocks whose run times vary more and more.

    Parameters
    ----------
    spreads_percent : sequence of float
        Standard deviation of the blocks' run time, in percent of its mean.
    run_cycles : float
        Mean run time of a block.

    Returns
    -------
    DataFrame
        One row per spread: ``spread_percent``; cycles per SM between blocks, ``true_cycles``, ``paired_cycles`` and
        ``upstream_cycles``; and ``upstream_longest_list``, to be compared with ``SLOTS``.
    """
    rows = []
    for spread in spreads_percent:
        made, true = make_blocks(spread / 100, BLOCKS, SMS, SLOTS, run_cycles, GAP_CYCLES, seed)
        estimate = upstream_estimate(made.first)
        rows.append(
            {
                "spread_percent": spread,
                "true_cycles": true,
                "paired_cycles": float(np.mean([line.gaps.sum() for line in timelines(made)])),
                "upstream_cycles": estimate.scheduling_cycles,
                "upstream_longest_list": estimate.longest_list,
            }
        )
    return pd.DataFrame(rows)


def make_blocks(
    spread: float, blocks: int, sms: int, slots: int, run_cycles: float, gap_cycles: tuple[int, int], seed: int
) -> tuple[TracedBlocks, float]:
    """Make blocks that take the first free slot of their SM; also return the true gap cycles per SM."""
    random = np.random.default_rng(seed)
    rounds = -(-blocks // sms)
    run = np.maximum(1, random.normal(run_cycles, spread * run_cycles, (rounds, sms))).round().astype(np.int64)
    gap = random.integers(gap_cycles[0], gap_cycles[1], (rounds, sms), endpoint=True)
    every, free = np.arange(sms), np.zeros((sms, slots), np.int64)
    start = np.empty((rounds, sms), np.int64)
    for turn in range(rounds):
        slot = free.argmin(axis=1)
        start[turn] = free[every, slot] + gap[turn]
        free[every, slot] = start[turn] + run[turn]
    sm = np.broadcast_to(every.astype(np.int32), start.shape)
    begun, run, sm = start.ravel()[:blocks], run.ravel()[:blocks], sm.ravel()[:blocks]
    # The first blocks wait for a launch, not for another block.
    later = np.broadcast_to(np.arange(rounds)[:, None] >= slots, gap.shape).ravel()[:blocks]
    true = int(gap.ravel()[:blocks][later].sum()) / sms
    # Blocks are dispatched in the order of the grid.
    order = np.lexsort((np.arange(blocks), begun))
    begun, run, sm = begun[order], run[order], sm[order]
    first = np.zeros(blocks, BLOCK_SCHED)
    first["start"], first["elapsed"], first["cuid"] = begun, run, sm
    return TracedBlocks(Path("synthetic"), first, np.empty((blocks, 0), np.uint32), sm, begun, begun + run, False), true
