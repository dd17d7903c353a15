"""A case computed with the source notebook's model, number for number."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.parts import join_parts
from gpuledger.studies.kernel_breakdown import source_model
from gpuledger.studies.kernel_breakdown.parts import settle_frame
from gpuledger.studies.kernel_breakdown.scenario import Scenario
from gpuledger.studies.kernel_breakdown.shapes import TimeShapes, map_bounds, stack_times
from gpuledger.studies.kernel_breakdown.source_model import SourceChip, SourceModel

#: The notebook's bounds in the time model's terms.
BOUNDS = {"compute": "compute", "memory": "dram", "none": "none"}


def reduce_source_notebook(case: Case, scenario: Scenario, largest_context: int, largest_batch: int) -> CaseResult:
    """Compute a case as the source notebook does."""
    model = SourceModel.of(scenario.model)
    if model is None:
        problem = f"the source notebook cannot read {scenario.model.name}: it supports identical dense layers only"
        raise case.error("seed_compatible", problem, "choose another model, or remove this key")
    unknown = sorted(phase for phase, given in scenario.phases.items() if not source_model.has_phase(phase, given))
    if unknown:
        what = "neither prefix caches nor drafts" if unknown[0] in source_model.PHASES else f"no phase '{unknown[0]}'"
        raise case.error("phases", f"the source notebook has {what}", f"it has {', '.join(source_model.PHASES)}")
    layers = pd.concat(
        [source_model.layers_of(model, phase, **given) for phase, given in scenario.phases.items()], ignore_index=True
    )
    gpu = scenario.gpus[0]
    chip = SourceChip.of(gpu, scenario.precision.activations)
    times = _with_times(source_model.source_times(layers, chip), model, chip).assign(hardware=gpu.name)
    time_shapes = _time_shapes(model, chip)
    result = CaseResult(
        join_parts(
            kernels=settle_frame(times),
            stack=stack_times(scenario, time_shapes, largest_context, largest_batch),
            map=map_bounds(scenario, time_shapes, largest_context, largest_batch),
        )
    )
    result.add("layers", model.layers, "layer")
    result.add("chip_macs_per_s", int(chip.macs_per_s), "MAC/s")
    result.add("clock", chip.clock_hz, "Hz")
    result.add(f"peak_{scenario.precision.activations}", 2 * chip.macs_per_s, "FLOP/s")
    result.add("dram_bytes_per_s", chip.bandwidth_bytes_per_s, "byte/s")
    for phase, rows in times.groupby("phase", sort=False):
        for column, unit in (("macs", "MAC"), ("weight_values", "value"), ("kv_values", "value")):
            result.add(f"{phase}_{column}_per_layer", int(rows[column].sum()), unit)
        for bound in ("compute", "memory"):
            cycles = rows.loc[rows["bound"] == BOUNDS[bound], "cycles"].sum()
            result.add(f"{phase}_{bound}_bound_cycles", cycles, "cycle")
        result.add(f"{phase}_time", model.layers * rows["cycles"].sum() / chip.clock_hz, "s")
        for key, value in scenario.phases[str(phase)].items():
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
    finding = f"{scenario.model.name} on {gpu.title} as the source notebook computes it: {each}"
    result.add("finding", finding, "text")
    return result


def _with_times(times: pd.DataFrame, model: SourceModel, chip: SourceChip) -> pd.DataFrame:
    """Add group and time of each kernel, launched once per layer."""
    group = np.select(
        [times["kernel"].str.startswith("ffn"), times["kernel"].isin(["qkv", "out"])],
        ["feed-forward", "projections"],
        "attention",
    )
    return times.assign(
        count=model.layers, group=group, time_s=times["cycles"] / chip.clock_hz, bound=times["bound"].map(BOUNDS)
    )


def _time_shapes(model: SourceModel, chip: SourceChip) -> TimeShapes:
    def time_shapes(phase: str, shapes: pd.DataFrame) -> pd.DataFrame:
        tokens = {"input" if phase == "prefill" else "context": shapes["tokens"].to_numpy()}
        layers = source_model.layers_of(model, phase, batch=shapes["requests"].to_numpy(), **tokens)
        rows = _with_times(source_model.source_times(layers, chip), model, chip)
        return rows.assign(time_s=rows["time_s"] * rows["count"])

    return time_shapes
