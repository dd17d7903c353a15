"""Table of the memory access timeline."""

from __future__ import annotations

import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.dmat.reduction import QUANTITIES, prefixes


def tensor_table(result: CaseResult) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return one row per tensor, from top to bottom as in the figure, with headers and formats for people."""
    rows = []
    for name, prefix in prefixes(result.data).items():
        entries = {quantity: result.summary.get(f"{prefix}_{quantity}") for quantity in QUANTITIES}
        rows.append({"tensor": name, **{key: entry["value"] if entry else None for key, entry in entries.items()}})
    columns = {
        quantity: f"{quantity}_percent" if unit == "%" else quantity for quantity, (unit, *_) in QUANTITIES.items()
    }
    frame = pd.DataFrame(rows).rename(columns=columns)
    if result["compatible"] != "yes":
        frame = frame[::-1].reset_index(drop=True)
    headers = {columns[quantity]: header for quantity, (_, header, _) in QUANTITIES.items()}
    formats = {columns[quantity]: style for quantity, (_, _, style) in QUANTITIES.items() if style}
    return frame, headers, formats
