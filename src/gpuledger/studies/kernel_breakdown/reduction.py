"""Reduce a case: a model, GPUs and phases to every kernel's predicted time, and times over context and batch."""

from __future__ import annotations

from pathlib import Path

from gpuledger.ledger import provenance
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.constants import TABLE as CONSTANTS
from gpuledger.models.transformer.configuration import MODELS
from gpuledger.readers.gpus import TABLE as GPUS
from gpuledger.readers.gpus import read_gpus
from gpuledger.studies.kernel_breakdown.prediction_case import reduce_prediction
from gpuledger.studies.kernel_breakdown.scenario import Scenario, read_scenario
from gpuledger.studies.kernel_breakdown.source_notebook import reduce_source_notebook

#: What the numbers are, whatever the kind of the dataset that declares the case.
PREDICTED = "predicted by a time model, not measured"
COMPUTED = "computed with the source notebook's formulas, not measured"


def reduce(
    case: Case,
    largest_context: int = 131072,
    largest_batch: int = 512,
    mirror: str | Path | None = None,
) -> CaseResult:
    """Break each phase down into kernels and predict their times.

    Parameters
    ----------
    case : Case
        ``model``, ``hardware``, ``phases``; optionally ``parallel``, ``precision``, ``seed_compatible``.
    largest_context, largest_batch : int
        Upper ends of the figures over context (tokens) and batch (requests).
    mirror : path, optional
        A folder laid out as ``huggingface.co/<id>/resolve/main/config.json`` that is searched before the hub.

    Returns
    -------
    CaseResult
        Data: see :func:`gpuledger.studies.kernel_breakdown.parts.split_parts`.

    Raises
    ------
    InputError
        See :func:`gpuledger.studies.kernel_breakdown.scenario.read_scenario`.
    """
    scenario = read_scenario(case, mirror)
    if case.inputs.get("seed_compatible"):
        result, label = reduce_source_notebook(case, scenario, largest_context, largest_batch), COMPUTED
    else:
        result, label = reduce_prediction(scenario, largest_context, largest_batch), PREDICTED
    # The dataset's kind describes the inputs; the times are computed.
    result.provenance = {"label": label, "inputs": _inputs(scenario, label == PREDICTED)}
    result.add("model", scenario.model.name, "text")
    result.add("hardware", ", ".join(gpu.title for gpu in scenario.gpus), "text")
    result.add("parameters", scenario.model.parameters, "parameter")
    result.add("active_parameters", scenario.model.active_parameters, "parameter")
    result.add("weight_bytes", scenario.model.weight_bytes(scenario.precision), "byte")
    result.add("kv_bytes_per_token", scenario.model.kv_bytes_per_token(scenario.precision), "byte")
    return result


def _inputs(scenario: Scenario, predicted: bool) -> list[dict]:
    """Describe the inputs that are not files of the dataset."""
    root, model = GPUS.parents[1], scenario.model
    built_in = read_gpus()
    listed = [gpu.title for gpu in scenario.gpus if gpu == built_in.get(gpu.name)]
    about = {"source": f"Data sheets of {', '.join(listed)} (resources/gpus.csv)"}
    rows = [provenance.describe_file(GPUS, root, about)] if listed else []
    if predicted:
        rows.append(provenance.describe_file(CONSTANTS, root))
    if not scenario.own_model:
        file = MODELS / f"{model.name}.json"
        about = {"source": f"{model.name}: {model.source}"} if model.source.startswith("http") else {}
        rows.append(provenance.describe_file(file, root, about) if file.is_file() else {"file": model.name, **about})
    return rows
