"""Table of the memory access timeline."""

import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.dmat.reduction import QUANTITIES, prefixes

#: Header and format for people by quantity of a tensor.
COLUMNS = {
    "shape": ("shape", str),
    "address": ("address", str),
    "bytes": ("size (B)", None),
    "pages": ("pages", None),
    "accesses": ("accesses", None),
    "reuse": ("accesses per page", "{:,.0f}"),
    "first_touch": ("first touch (%)", "{:.1f}"),
    "last_touch": ("last touch (%)", "{:.1f}"),
    "holes": ("holes (%)", "{:.1f}"),
    "empty_columns": ("empty columns", None),
    "bursts": ("bursts", None),
}


def tensor_table(result: CaseResult) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return one row per tensor, from top to bottom as in the figure, with headers and formats for people."""
    rows = []
    for name, prefix in prefixes(result.data).items():
        rows.append({"tensor": name, **{quantity: result.get(f"{prefix}_{quantity}") for quantity in COLUMNS}})
    columns = {quantity: f"{quantity}_percent" if QUANTITIES[quantity] == "%" else quantity for quantity in COLUMNS}
    frame = pd.DataFrame(rows).rename(columns=columns).astype({"bursts": "Int64"})
    if result["compatible"] != "yes":
        frame = frame[::-1].reset_index(drop=True)
    headers = {columns[quantity]: header for quantity, (header, _) in COLUMNS.items()}
    formats = {columns[quantity]: style for quantity, (_, style) in COLUMNS.items() if style}
    return frame, headers, formats
