"""FLOP reconciliation: theory, prediction and measurement, kernel by kernel.

* ``network``: the passes of a network, from three recordings of one program, with totals by pass and part.
* ``launches``: one recording of Linear layers, launch by launch, against their shapes.
"""

from collections.abc import Mapping, Sequence

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.studies.flop_reconciliation.launches import (
    by_kernel,
    by_size,
    launch_table,
    reduce_launches,
    worked_example,
)
from gpuledger.studies.flop_reconciliation.network import (
    launched_beyond,
    parts_table,
    read_run,
    reduce_network,
    steps,
    theory,
)

__all__ = [
    "by_kernel",
    "by_size",
    "launch_table",
    "launched_beyond",
    "parts_table",
    "read_run",
    "reduce",
    "reduce_launches",
    "reduce_network",
    "steps",
    "theory",
    "worked_example",
]


def reduce(case: Case, kernel_patterns: Sequence[Mapping[str, str]] = ()) -> CaseResult:
    """Reconcile a case of either kind: with ``launches`` launch by launch, else the passes of a network."""
    return (reduce_launches if "launches" in case.inputs else reduce_network)(case, kernel_patterns)
