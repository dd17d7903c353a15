"""The block timeline of one SM for a page's viewer: blocks and the gaps before them, slot by slot."""

import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import Axis, View
from gpuledger.studies.block_scheduling.figures import RUNNING, WAITING
from gpuledger.studies.block_scheduling.reduction import parts

_RUNS, _WAITS = "block running", "slot waits for a block"


def view(result: CaseResult) -> View | None:
    """Return the blocks of the SM whose share of lost time is the median."""
    blocks = parts(result.data)[2]
    if blocks.empty:
        return None
    rows = [blocks.assign(what=_RUNS, x=blocks["start_cycles"], x_end=blocks["end_cycles"])]
    if "free_cycles" in blocks:
        later = blocks[blocks["free_cycles"].notna()]
        rows.append(later.assign(what=_WAITS, x=later["free_cycles"], x_end=later["start_cycles"]))
    spans = pd.concat(rows, ignore_index=True)
    slots = int(blocks["slot"].max()) + 1
    # The first slot is at the top, as in the figure.
    low = slots - 1 - spans["slot"].astype(int) + 0.1
    marks = pd.DataFrame(
        {"x": spans["x"], "x_end": spans["x_end"], "y": low, "y_end": low + 0.8, "group": spans["what"]}
    )
    fields = {
        "what": spans["what"],
        "SM": spans["sm"],
        "slot": spans["slot"],
        "from (cycles)": spans["x"],
        "to (cycles)": spans["x_end"],
        "cycles": spans["x_end"] - spans["x"],
    }
    bands = [(f"slot {slot}", slots - 1 - slot, slots - slot, RUNNING) for slot in range(slots)]
    x = Axis(f"cycles since the first block on SM {int(blocks['sm'].iloc[0])}")
    return View("boxes", "spans", marks, fields, {_RUNS: RUNNING, _WAITS: WAITING}, x, Axis("slot", bands=bands))
