"""The source notebook's model of a case, number for number."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.studies.kernel_breakdown import source_model
from gpuledger.studies.kernel_breakdown.case import Question
from gpuledger.studies.kernel_breakdown.shapes import Model, map_bounds, stack_times
from gpuledger.studies.kernel_breakdown.source_model import SourceChip, SourceModel
from gpuledger.studies.kernel_breakdown.tidy import settled, together

#: The notebook's bounds under the names of the time model's.
BOUNDS = {"compute": "compute", "memory": "dram", "none": "none"}


def reduce_as_the_source(case: Case, question: Question, largest_context: int, largest_batch: int) -> CaseResult:
    """Compute the phases of a case as the source notebook does; :func:`gpuledger.studies.kernel_breakdown.parts` says
    what.

    Raises
    ------
    InputError
        A model or a phase that the notebook does not know.
    """
    model = SourceModel.of(question.model)
    if model is None:
        problem = f"the source notebook cannot read {question.model.name}: it knows dense layers of one kind"
        raise InputError(
            case.dataset.file, f"{case.place}.seed_compatible", problem, "take another model, or remove it"
        )
    strange = sorted(set(question.phases) - set(source_model.PHASES))
    if strange:
        problem = f"the source notebook has no phase '{strange[0]}'"
        raise InputError(case.dataset.file, f"{case.place}.phases", problem, f"it has {', '.join(source_model.PHASES)}")
    layers = source_model.layers_of(model, question.phases)
    gpu = question.gpus[0]
    chip = SourceChip.of(gpu, question.precision.activations)
    times = _as_kernels(source_model.source_times(layers, chip), model, chip).assign(hardware=gpu.name)
    result = CaseResult(
        together(
            kernels=settled(times),
            stack=stack_times(question, _model(model, chip), largest_context, largest_batch),
            map=map_bounds(question, _model(model, chip), largest_context, largest_batch),
        )
    )
    result.add("layers", model.layers, "layer")
    result.add("chip_macs_per_s", int(chip.macs_per_s), "MAC/s")
    result.add("clock", chip.clock_hz, "Hz")
    result.add(f"peak_{question.precision.activations}", 2 * chip.macs_per_s, "FLOP/s")
    result.add("dram_bytes_per_s", chip.bandwidth_bytes_per_s, "byte/s")
    for phase, rows in times.groupby("phase", sort=False):
        for column, unit in (("macs", "MAC"), ("weight_values", "value"), ("kv_values", "value")):
            result.add(f"{phase}_{column}_per_layer", int(rows[column].sum()), unit)
        for bound in ("compute", "memory"):
            cycles = rows.loc[rows["bound"] == BOUNDS[bound], "cycles"].sum()
            result.add(f"{phase}_{bound}_bound_cycles", cycles, "cycle")
        result.add(f"{phase}_time", model.layers * rows["cycles"].sum() / chip.clock_hz, "s")
        for key, value in question.phases[str(phase)].items():
            result.add(f"{phase}_{key}", value, "request" if key == "batch" else "token")
        for row in rows[rows["bound"] != "none"].to_dict("records"):
            result.add(f"{phase}_{row['kernel']}_cycles", row["cycles"], "cycle")
            if row["compute_cycles"]:
                tile = " × ".join(f"{row[f'tile_{side}']:.1f}" for side in "mkn")
                result.add(f"{phase}_{row['kernel']}_tile", tile, "value")
                ratio = row["memory_cycles"] / row["compute_cycles"]
                result.add(f"{phase}_{row['kernel']}_memory_to_compute_ratio", ratio, "1")
    each = ", ".join(
        f"{phase.replace('_', ' ')} {1e3 * result[f'{phase}_time']:.3g} ms" for phase in times["phase"].unique()
    )
    finding = f"{question.model.name} on {gpu.title} as the source notebook has it: {each}"
    result.add("finding", finding, "text")
    return result


def _as_kernels(times: pd.DataFrame, model: SourceModel, chip: SourceChip) -> pd.DataFrame:
    """Add the columns by which figures and tables know a kernel: of one launch, which is one layer."""
    group = np.select(
        [times["kernel"].str.startswith("ffn"), times["kernel"].isin(["qkv", "out"])],
        ["feed-forward", "projections"],
        "attention",
    )
    return times.assign(
        count=model.layers, group=group, time_s=times["cycles"] / chip.clock_hz, bound=times["bound"].map(BOUNDS)
    )


def _model(model: SourceModel, chip: SourceChip) -> Model:
    make = {"prefill": source_model.prefill_layers, "decode": source_model.decode_layers}

    def kernels(phase: str, shapes: pd.DataFrame) -> pd.DataFrame:
        layers = make[phase](model, shapes["requests"].to_numpy(), shapes["tokens"].to_numpy())
        rows = _as_kernels(source_model.source_times(layers, chip), model, chip)
        return rows.assign(time_s=rows["time_s"] * rows["count"])

    return kernels
