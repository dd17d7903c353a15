"""The blocks of one SM as a Chrome trace."""

import pandas as pd

from gpuledger.ledger.trace_json import CYCLE_S, PerfettoTrace


def export_slots(blocks: pd.DataFrame) -> PerfettoTrace:
    """Make a trace of the shown blocks: a track for each slot, with arrows from the moment a slot is free to its block.

    Parameters
    ----------
    blocks : DataFrame
        Of :func:`gpuledger.studies.block_scheduling.reduction.parts`.
    """
    trace = PerfettoTrace()
    for row in blocks.sort_values(["slot", "start_cycles"]).itertuples():
        process, track = f"SM {row.sm} (1 cycle as 1 ns)", f"slot {row.slot}"
        free = getattr(row, "free_cycles", None)
        length, start = int(row.end_cycles - row.start_cycles), CYCLE_S * row.start_cycles
        if not pd.isna(free):
            waited = int(row.start_cycles - free)
            trace.add(process, track, "empty", CYCLE_S * free, CYCLE_S * waited, "gap", cycles=waited)
            trace.connect("next block", (process, track, CYCLE_S * free), (process, track, start))
        trace.add(process, track, "block", start, CYCLE_S * length, "block", cycles=length)
    return trace
