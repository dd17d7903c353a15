"""Reduce a case: a model, GPUs and phases to every kernel's predicted time, and times over context and batch."""

from pathlib import Path

import pandas as pd

from gpuledger import files
from gpuledger.ledger import provenance
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.parts import one_part
from gpuledger.models.power import chip_constants, describe_power
from gpuledger.models.time_model.constants.table import describe_constants
from gpuledger.models.transformer.configuration import MODELS
from gpuledger.studies.kernel_breakdown.comparison import reduce_comparison
from gpuledger.studies.kernel_breakdown.prediction_case import reduce_prediction
from gpuledger.studies.kernel_breakdown.scenario import Scenario, read_scenario
from gpuledger.studies.kernel_breakdown.source_notebook import reduce_source_notebook
from gpuledger.studies.kernel_breakdown.timeline.case import reduce_timeline

#: What predicts the times, and how they are labelled.
TIME_MODEL = ("gpuledger's time model", "predicted by a time model, not measured")
SOURCE_MODEL = (
    "The formulas of the LLM roofline notebook (source document 3)",
    "predicted by the source notebook's formulas, not measured",
)


def reduce(
    case: Case, largest_context: int = 131072, largest_batch: int = 512, mirror: str | Path | None = None
) -> CaseResult:
    """Break each phase down into kernels and predict their times.

    Parameters
    ----------
    largest_context, largest_batch : int
        Upper ends of the figures over context (tokens) and batch (requests).
    mirror : path, optional
        A folder laid out as ``huggingface.co/<id>/resolve/main/config.json`` that is searched before the hub.

    Returns
    -------
    CaseResult
        Data: see :mod:`gpuledger.studies.kernel_breakdown.parts`.
    """
    if "baseline" in case.inputs:
        return reduce_comparison(case)
    if "timeline" in case.inputs:
        return _reduce_timeline(case, mirror)
    scenario = read_scenario(case, mirror)
    if case.inputs.get("seed_compatible"):
        result, (by, label) = reduce_source_notebook(case, scenario, largest_context, largest_batch), SOURCE_MODEL
        constants = []
    else:
        result, (by, label) = reduce_prediction(scenario, largest_context, largest_batch), TIME_MODEL
        constants = [_constants(one_part(result.data, "kernels"))]
    result.provenance = {
        "kind": "predicted",
        "label": label,
        "title": f"Kernels of {scenario.model.name} and their predicted times",
        "source": f"{by}, applied to the model's configuration and the GPUs' data sheets",
        "inputs": [
            *provenance.describe_data_sheets(scenario.gpus, case.dataset.folder),
            *constants,
            *_configuration(scenario),
        ],
    }
    result.add("model", scenario.model.name, "text")
    result.add("hardware", ", ".join(gpu.title for gpu in scenario.gpus), "text")
    result.add("parameters", scenario.model.parameters, "parameter")
    result.add("active_parameters", scenario.model.active_parameters, "parameter")
    result.add("weight_bytes", scenario.model.weight_bytes(scenario.precision), "byte")
    result.add("kv_bytes_per_token", scenario.model.kv_bytes_per_token(scenario.precision), "byte")
    if tower := scenario.model.vision:
        result.add("vision_parameters", tower.parameters, "parameter")
    return result


def _reduce_timeline(case: Case, mirror: str | Path | None) -> CaseResult:
    """Break a recorded step down; what it is compared with is predicted, and the record says so."""
    result, scenario, predicted = reduce_timeline(case, mirror)
    if predicted is None:
        return result
    result.add("model", scenario.model.name, "text")
    result.add("hardware", ", ".join(gpu.title for gpu in scenario.gpus), "text")
    described = provenance.describe_data_sheets(scenario.gpus, case.dataset.folder)
    constants = _constants(predicted)
    constants["note"] = f"Predicted times beside the recorded ones are the time model's. {constants['note']}"
    label = f"{case.label} (predicted times: by a time model, not measured)"
    result.provenance = {"label": label, "inputs": [*described, constants, *_configuration(scenario)]}
    if "clock_hz" in predicted and (law := chip_constants(scenario.gpus[0])):
        result.add("predicted_clock", float(predicted["clock_hz"].min()) / 1e6, "MHz")
        result.provenance["inputs"].append(describe_power([law[0].source]))
    return result


def _constants(rows: pd.DataFrame) -> dict:
    """Describe the constants that predicted kernels used: the file, and whose they are by GPU and kind of kernel."""
    of = rows.groupby(["hardware", "kind"], sort=True)["constants"].unique()
    fits = [f"{gpu}, {kind}: {' | '.join(sorted(names))}" for (gpu, kind), names in of.items()]
    return describe_constants(fits)


def _configuration(scenario: Scenario) -> list[dict]:
    """Describe the model's configuration, unless it is a file of the dataset."""
    model = scenario.model
    if scenario.own_model:
        return []
    file = MODELS / f"{model.name}.json"
    about = {"source": f"{model.name}: {model.source}"} if model.source.startswith("http") else {}
    return [provenance.describe_file(file, files.ROOT, about) if file.is_file() else {"file": model.name, **about}]
