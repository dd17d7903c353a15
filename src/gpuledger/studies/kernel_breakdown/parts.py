"""The tables of a case's ``data.parquet``, as :func:`gpuledger.ledger.parts.split_parts` returns them.

* ``kernels``: every kernel on every GPU (see :func:`gpuledger.models.transformer.kernels`) with ``hardware, group`` and
  per launch ``time_s, dram_bytes, l2_bytes, bound``. For the source notebook's model: the columns of
  :func:`gpuledger.studies.kernel_breakdown.source_model.source_times`, per layer.
* ``stack``, ``map``, ``throughput``, ``memory``: see :mod:`gpuledger.studies.kernel_breakdown.shapes`.
* ``tiles``: see :func:`gpuledger.studies.kernel_breakdown.tiling.compare_tiles`.
* ``memory_parts``: ``phase, held_by, bytes, formula``.
* ``structure``: see :func:`gpuledger.studies.kernel_breakdown.structure.structure_rows`.
* ``corrections``: see :func:`gpuledger.studies.kernel_breakdown.corrections.corrections`.
* ``purposes``: see :func:`gpuledger.studies.kernel_breakdown.timeline.training.compare_purposes`.
* ``components``, ``compared``, ``spans``: see :func:`gpuledger.studies.kernel_breakdown.comparison.compare`.
"""

import pandas as pd

from gpuledger.ledger.case_result import SIGNIFICANT_DIGITS, CaseResult, rounded


def settle_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Round floats to the digits that are the same on every machine; turn categories into text."""
    categories = frame.select_dtypes("category").columns
    return rounded(frame, SIGNIFICANT_DIGITS).assign(**{name: frame[name].astype(str) for name in categories})


def made(result: CaseResult) -> str:
    """Return what the times of a step are: ``recorded``, or ``simulated``, which never passes for it."""
    return "simulated" if result.provenance.get("kind") == "simulated" else "recorded"


def name_parts(rows: pd.DataFrame) -> pd.Series:
    """Name the part of a recorded step that each kernel belongs to: the model's kernel, else class and operator."""
    operator = rows["operator"].str.rpartition("::")[2].str.rpartition("/")[2]
    other = rows["kernel_class"] + (" (" + operator + ")").where(operator != "", "")
    return rows["role"].str.replace("_", " ").where(rows["role"] != "", other)
