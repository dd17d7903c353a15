"""From a model, hardware and phases to every kernel with its predicted time, and to how times change with shapes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from gpuledger.ledger import provenance
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.constants import TABLE as CONSTANTS
from gpuledger.models.transformer.configuration import MODELS
from gpuledger.readers.gpus import TABLE as GPUS
from gpuledger.readers.gpus import read_gpus
from gpuledger.studies.kernel_breakdown.case import Question, read_question
from gpuledger.studies.kernel_breakdown.prediction_case import reduce_as_it_is
from gpuledger.studies.kernel_breakdown.source_notebook import reduce_as_the_source
from gpuledger.studies.kernel_breakdown.tidy import apart

#: What the numbers are, in place of the kind of the dataset that the case stands in.
PREDICTED = "predicted by a time model, not measured"
COMPUTED = "computed with the source notebook's formulas, not measured"


def reduce(
    case: Case,
    largest_context: int = 131072,
    largest_batch: int = 512,
    mirror: str | Path | None = None,
) -> CaseResult:
    """Break the phases of a model down into kernels and predict their times.

    Parameters
    ----------
    case : Case
        ``model``, ``hardware``, ``phases``; optionally ``parallel``, ``precision``, ``seed_compatible``.
    largest_context, largest_batch : int
        Of the figures over context and batch (tokens, requests).
    mirror : path, optional
        A folder laid out as ``huggingface.co/<id>/resolve/main/config.json`` that is looked up before the hub.

    Returns
    -------
    CaseResult
        Data: see :func:`parts`.

    Raises
    ------
    InputError
        See :func:`gpuledger.studies.kernel_breakdown.case.read_question`.
    """
    question = read_question(case, mirror)
    if case.inputs.get("seed_compatible"):
        result, label = reduce_as_the_source(case, question, largest_context, largest_batch), COMPUTED
    else:
        result, label = reduce_as_it_is(question, largest_context, largest_batch), PREDICTED
    # The dataset's kind says what the inputs are; the times are nobody's measurement.
    result.provenance = {"label": label, "inputs": _inputs(question, label == PREDICTED)}
    result.add("model", question.model.name, "text")
    result.add("hardware", ", ".join(gpu.title for gpu in question.gpus), "text")
    result.add("parameters", question.model.parameters, "parameter")
    result.add("active_parameters", question.model.active_parameters, "parameter")
    result.add("weight_bytes", question.model.weight_bytes(question.precision), "byte")
    result.add("kv_bytes_per_token", question.model.kv_bytes_per_token(question.precision), "byte")
    return result


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Take the data apart by what they are about.

    Returns
    -------
    dict of str to DataFrame
        ``kernels``: every kernel on every GPU (see :func:`gpuledger.models.transformer.kernels`) with ``hardware,
        group, time_s, dram_bytes, l2_bytes, bound``, of one launch. As the source notebook has it, the columns of
        :func:`gpuledger.studies.kernel_breakdown.source_model.source_times`, of one layer.
        ``stack``: predicted time of each group of kernels, on the first GPU: ``axis, tokens, requests, group, time_s``.
        ``map``: what bounds a pass: ``phase, tokens, requests, time_s, compute_percent, …`` by bound, ``fits``.
        ``tiles``: see :func:`gpuledger.studies.kernel_breakdown.tiling.compare_tiles`.
        ``corrections``: see :func:`gpuledger.studies.kernel_breakdown.corrections.corrections`.
    """
    return apart(data)


def _inputs(question: Question, predicted: bool) -> list[dict]:
    """Describe what the numbers come from beside the dataset's own files."""
    root, model = GPUS.parents[1], question.model
    built_in = read_gpus()
    listed = [gpu.title for gpu in question.gpus if gpu == built_in.get(gpu.name)]
    about = {"source": f"Data sheets of {', '.join(listed)} (resources/gpus.csv)"}
    rows = [provenance.describe_file(GPUS, root, about)] if listed else []
    if predicted:
        rows.append(provenance.describe_file(CONSTANTS, root))
    if not question.own_model:
        file = MODELS / f"{model.name}.json"
        about = {"source": f"{model.name}: {model.source}"} if model.source.startswith("http") else {}
        rows.append(provenance.describe_file(file, root, about) if file.is_file() else {"file": model.name, **about})
    return rows
