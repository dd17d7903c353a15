"""FLOP reconciliation: theory, prediction and measurement, kernel by kernel."""

from gpuledger.studies.flop_reconciliation.reduction import reduce
