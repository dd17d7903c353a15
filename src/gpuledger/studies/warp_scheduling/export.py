"""Followed warps, iteration by iteration, as a Chrome trace."""

from itertools import pairwise

import pandas as pd

from gpuledger.ledger.trace_json import CYCLE_S, PerfettoTrace


def export_warps(warps: pd.DataFrame, lines: pd.DataFrame) -> PerfettoTrace:
    """Make a trace of warps on one SM and, where branches were recorded, of the shown blocks' iterations.

    Parameters
    ----------
    warps : DataFrame
        Of :func:`gpuledger.studies.warp_scheduling.reduction.first_warps`.
    lines : DataFrame
        Of :func:`gpuledger.studies.warp_scheduling.reduction.parts`.
    """
    trace = PerfettoTrace()
    for row in warps.itertuples():
        name, cycles = f"block {row.block}, warp {row.warp}", int(row.elapsed_cycles)
        process = f"SM {row.sm} (1 cycle as 1 ns)"
        trace.add(process, "warps", name, CYCLE_S * row.start_cycles, CYCLE_S * cycles, "warp", cycles=cycles)
    for block, samples in [] if lines.empty else lines.groupby("block", sort=True):
        process, track = "followed warps, each from its start (1 cycle as 1 ns)", f"block {block}"
        cycles, speed = samples["elapsed_cycles"].to_numpy(int), samples["speed_tflops"].to_numpy(float)
        for number, (begin, end) in enumerate(pairwise(cycles), start=1):
            about = {"cycles": end - begin, "speed_tflops": speed[number]}
            name = f"iteration {number}"
            trace.add(process, track, name, CYCLE_S * begin, CYCLE_S * (end - begin), "iteration", **about)
    return trace
