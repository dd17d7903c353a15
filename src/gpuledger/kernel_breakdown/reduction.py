"""From a model, hardware and phases to every kernel with its predicted time, and to how times change with shapes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from gpuledger import provenance
from gpuledger.datasets import Case
from gpuledger.gpus import TABLE as GPUS
from gpuledger.gpus import read_gpus
from gpuledger.kernel_breakdown.as_it_is import reduce_as_it_is
from gpuledger.kernel_breakdown.as_the_source import reduce_as_the_source
from gpuledger.kernel_breakdown.case import Question, overridden, read_question
from gpuledger.kernel_breakdown.tidy import apart
from gpuledger.reduced import Reduced
from gpuledger.time_model.constants import TABLE as CONSTANTS
from gpuledger.transformer.configuration import RESOURCES as MODELS

#: What the numbers are, in place of the kind of the dataset that the case stands in.
PREDICTED = "predicted by a time model, not measured"
COMPUTED = "computed with the source notebook's formulas, not measured"


def reduce_breakdown(
    case: Case,
    overrides: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    largest_context: int = 131072,
    largest_batch: int = 512,
    mirror: str | Path | None = None,
) -> Reduced:
    """Break the phases of a model down into kernels and predict their times.

    Parameters
    ----------
    case : Case
        ``model``, ``hardware``, ``phases``; optionally ``parallel``, ``precision``, ``seed_compatible``.
    overrides : mapping
        By ``<dataset>/<case>``, keys of the case and their values, in place of those that the dataset declares.
    largest_context, largest_batch : int
        Of the figures over context and batch (tokens, requests).
    mirror : path, optional
        A folder laid out as ``huggingface.co/<id>/resolve/main/config.json`` that is looked up before the hub.

    Returns
    -------
    Reduced
        Data: see :func:`parts`.

    Raises
    ------
    InputError
        See :func:`gpuledger.kernel_breakdown.case.read_question` and ``overridden``.
    """
    case = overridden(case, overrides)
    question = read_question(case, mirror)
    if case.inputs.get("seed_compatible"):
        reduced, label = reduce_as_the_source(case, question, largest_context, largest_batch), COMPUTED
    else:
        reduced, label = reduce_as_it_is(question, largest_context, largest_batch), PREDICTED
    # The dataset's kind says what the inputs are; the times are nobody's measurement.
    reduced.provenance = {"label": label, "inputs": _inputs(question, label == PREDICTED)}
    reduced.add("model", question.model.name, "text")
    reduced.add("hardware", ", ".join(gpu.title for gpu in question.gpus), "text")
    reduced.add("parameters", question.model.parameters, "parameter")
    reduced.add("active_parameters", question.model.active_parameters, "parameter")
    reduced.add("weight_bytes", question.model.weight_bytes(question.precision), "byte")
    reduced.add("kv_bytes_per_token", question.model.kv_bytes_per_token(question.precision), "byte")
    return reduced


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Take the data apart by what they are about.

    Returns
    -------
    dict of str to DataFrame
        ``kernels``: every kernel on every GPU (see :func:`gpuledger.transformer.kernels`) with ``hardware, group,
        time_s, dram_bytes, l2_bytes, bound``, of one launch. As the source notebook has it, the columns of
        :func:`gpuledger.kernel_breakdown.source_model.source_times`, of one layer.
        ``stack``: predicted time of each group of kernels, on the first GPU: ``axis, tokens, requests, group, time_s``.
        ``map``: what bounds a pass: ``phase, tokens, requests, time_s, compute_percent, …`` by bound, ``fits``.
        ``tiles``: see :func:`gpuledger.kernel_breakdown.tiling.compare_tiles`.
        ``corrections``: see :func:`gpuledger.kernel_breakdown.corrections.corrections`.
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
