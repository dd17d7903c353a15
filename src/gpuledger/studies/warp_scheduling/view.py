"""The progress of blocks for a page's viewer, or, where no block was followed, the distribution of warps' times."""

import pandas as pd
from matplotlib.colors import to_hex

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.figures import BLUE
from gpuledger.ledger.viewer import Axis, View
from gpuledger.studies.warp_scheduling.figures import block_colors
from gpuledger.studies.warp_scheduling.reduction import parts


def view(result: CaseResult) -> View:
    """Return a line per followed block, or the points of the distribution."""
    points, blocks, lines = parts(result.data)
    if lines.empty:
        marks = pd.DataFrame({"x": points["elapsed_cycles"], "y": points["completed_percent"], "group": "warps"})
        fields = {
            "warps done (%)": points["completed_percent"],
            "after (cycles)": points["elapsed_cycles"],
            "behind the fastest (%)": 100 * points["over_fastest_ratio"],
        }
        x, y = Axis("cycles since the warp's start"), Axis("warps done (%)")
        return View("lines", "points of the distribution", marks, fields, {"warps": BLUE}, x, y)
    about = blocks.set_index("block")
    colors = {str(block): to_hex(color) for block, color in block_colors(blocks).items()}
    marks = pd.DataFrame(
        {"x": lines["elapsed_cycles"], "y": lines["progress_percent"], "group": lines["block"].astype(str)}
    )
    fields = {
        "block": lines["block"].astype(str),
        "since its start (cycles)": lines["elapsed_cycles"],
        "iterations done (%)": lines["progress_percent"],
        "speed (TFLOP/s)": lines["speed_tflops"],
    }
    for name, column in (("speeds up at (cycles)", "transition_cycles"), ("older block ends at", "older_end_cycles")):
        if column in about:
            fields[name] = lines["block"].map(about[column])
    x, y = Axis("cycles since the block's start"), Axis("iterations done (%)")
    return View("lines", "samples of blocks", marks, fields, colors, x, y)
