"""Reduce a case of either kind: a network in three recordings, or Linear layers in one.

* ``network``: the passes of a network, with totals by pass and part.
* ``launches``: a recording of Linear layers, launch by launch, against their shapes.
"""

from collections.abc import Mapping, Sequence

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import CONFIG, Case
from gpuledger.readers.kernel_names import extend_patterns
from gpuledger.studies.flop_reconciliation.launches import reduce_launches
from gpuledger.studies.flop_reconciliation.network import reduce_network


def reduce(case: Case, kernel_patterns: Sequence[Mapping[str, str]] = ()) -> CaseResult:
    """Reconcile a case: see :func:`reduce_launches` if it has ``launches``, else :func:`reduce_network`.

    Parameters
    ----------
    kernel_patterns : sequence of mappings
        Further kernel patterns, see :func:`gpuledger.readers.kernel_names.extend_patterns`. The case's own come first.
    """
    patterns = extend_patterns(kernel_patterns, file=CONFIG)
    patterns = extend_patterns(case.inputs.get("kernel_patterns", ()), file=case.dataset.file, patterns=patterns)
    return (reduce_launches if "launches" in case.inputs else reduce_network)(case, patterns)
