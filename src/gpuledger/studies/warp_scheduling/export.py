"""Followed warps, iteration by iteration, as a Chrome trace."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from gpuledger.ledger.trace_json import CYCLE_S, Trace


def export_warps(lines: pd.DataFrame) -> Trace:
    """Make a trace of the shown blocks: for the followed warp of each a track with its iterations, and their speed.

    Parameters
    ----------
    lines : DataFrame
        Of :func:`gpuledger.studies.warp_scheduling.reduction.parts`.
    """
    trace = Trace()
    for block, samples in lines.groupby("block", sort=True):
        process, track = "followed warps, each from its start (1 cycle as 1 ns)", f"block {block}"
        cycles, speed = samples["elapsed_cycles"].to_numpy(int), samples["speed_tflops"].to_numpy(float)
        for number, (begin, end) in enumerate(pairwise(cycles), start=1):
            about = {"cycles": end - begin, "speed_tflops": speed[number]}
            name = f"iteration {number}"
            trace.add(process, track, name, CYCLE_S * begin, CYCLE_S * (end - begin), "iteration", **about)
    return trace
