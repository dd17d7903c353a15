"""A case predicted with the time model: every kernel's time, and times over context and batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.parts import join_parts
from gpuledger.models.deployment.limits import largest_batch, largest_context
from gpuledger.models.deployment.memory import RESERVE, fits, memory_rows
from gpuledger.models.deployment.passes import Deployment, with_drafts
from gpuledger.models.time_model.step import totals
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_breakdown.corrections import corrections
from gpuledger.studies.kernel_breakdown.groups import step_shares
from gpuledger.studies.kernel_breakdown.parts import settle_frame
from gpuledger.studies.kernel_breakdown.scenario import Scenario
from gpuledger.studies.kernel_breakdown.shapes import (
    TimeShapes,
    map_bounds,
    memory_over_context,
    stack_times,
    throughput,
)
from gpuledger.studies.kernel_breakdown.source_model import SourceChip, SourceModel
from gpuledger.studies.kernel_breakdown.structure import structure_rows
from gpuledger.studies.kernel_breakdown.tiling import compare_tiles, longest_constants


def reduce_prediction(scenario: Scenario, largest_context: int, largest_batch: int) -> CaseResult:
    """Predict every kernel of a case on every GPU."""
    works = [scenario.workload(phase) for phase in scenario.phases]
    predicted = [scenario.predict(works, gpu) for gpu in scenario.gpus]
    for rows in predicted:
        cached = (rows["cache_bytes"] > 0) | rows["kernel"].isin(["kv_write", "rope_kv_write"])
        rows["cache_precision"] = np.where(cached, scenario.precision.cache, "")
    every = pd.concat([settle_frame(frame) for frame in predicted], ignore_index=True)
    first = predicted[0]
    errors = _corrections(scenario, first)
    time_shapes = _time_shapes(scenario)
    result = CaseResult(
        join_parts(
            kernels=every,
            stack=stack_times(scenario, time_shapes, largest_context, largest_batch),
            map=map_bounds(scenario, time_shapes, largest_context, largest_batch),
            tiles=settle_frame(compare_tiles(first, scenario.gpus[0])),
            corrections=errors,
            throughput=throughput(scenario, largest_batch),
            memory=memory_over_context(scenario, largest_context),
            memory_parts=_memory_parts(scenario),
            structure=structure_rows(scenario.model, scenario.precision),
        )
    )
    for gpu, frame in zip(scenario.gpus, predicted, strict=True):
        suffix = "" if gpu is scenario.gpus[0] else f"_{slug(gpu.name)}"
        for phase in scenario.phases:
            _summarise_phase(result, scenario, gpu, frame[frame["phase"] == phase], phase, suffix)
    _roofs(result, scenario, first)
    for row in errors.to_dict("records"):
        exact = row["unit"] != "s" and float(row["right_value"]).is_integer()
        right = int(row["right_value"]) if exact else row["right_value"]
        result.add(f"right_{row['name']}_{row['phase']}", right, row["unit"])
        result.add(f"source_over_right_{row['name']}_{row['phase']}", row["ratio"], "1")
    if own := scenario.speculation:
        result.add(
            "drafts", f"{own.drafted} by {own.draft.name}, each accepted with probability {own.acceptance}", "text"
        )
    result.add("finding", _finding(result, scenario), "text")
    return result


def _summarise_phase(
    result: CaseResult, scenario: Scenario, gpu: Gpu, rows: pd.DataFrame, phase: str, suffix: str
) -> None:
    """Add a phase's time, work, traffic and shares of the roofs on one GPU."""
    whole = {name: float(values[0]) for name, values in totals(rows, np.zeros(len(rows), int), 1).items()}
    time, flop = whole["time_s"], 2 * whole["macs"]
    work = scenario.workload(phase)
    stages = rows["time_s"] * rows["count"]
    slowest = stages.groupby(rows["stage"]).sum().max()
    ideal = _ideal_s(rows, gpu)

    def add(quantity: str, value: Any, unit: str) -> None:
        result.add(f"{phase}_{quantity}{suffix}", value, unit)

    add("time", time, "s")
    # Of drafted tokens, those that are expected to be accepted.
    each = scenario.tokens_per_step / scenario.new_tokens if phase == "decode" else 1.0
    add("tokens_per_s", each * int(work.tokens[0]) / slowest, "token/s")
    if scenario.speculation and phase == "decode":
        add("tokens_per_step", scenario.tokens_per_step, "token/request")
        add("tpot", scenario.parallel.pipeline * slowest / scenario.tokens_per_step, "s")
    # Per device: its share of every pipeline stage.
    if not suffix:
        add("new_tokens", int(work.tokens[0]), "token")
        if isinstance(given := scenario.phases[phase], Mapping):
            for key, value in given.items():
                if key != "images":
                    add(key, value, {"batch": "request"}.get(key, "token"))
        if images := scenario.images(phase):
            add("images", f"{images.count} of {images.width} × {images.height} pixels in each prompt", "text")
            add("image_tokens", scenario.model.image_tokens(images), "token")
            add("vision_time", float(stages[rows["group"] == "vision tower"].sum()), "s")
        add("launches", int(rows["count"].sum()), "launch")
        add("macs", int((rows["macs"] * rows["count"]).sum()), "MAC")
        add("comm_bytes", int((rows["comm_bytes"] * rows["count"]).sum()), "byte")
    add("dram_bytes", whole["dram_bytes"], "byte")
    add("l2_bytes", whole["l2_bytes"], "byte")
    add("arithmetic_intensity", flop / whole["dram_bytes"], "FLOP/byte")
    add("compute_roof_percent", 100 * ideal / time, "%")
    add("dram_roof_percent", 100 * whole["dram_bytes"] / time / gpu.dram_bytes_per_s, "%")
    add("memory_bound_percent", whole["memory_bound_percent"], "%")
    add("judged_percent", whole["judged_percent"], "%")
    add("kernel_error_percent", whole["kernel_error_percent"], "%")
    shares = step_shares(rows)
    add("communication_percent", shares["percent"].get("communication", 0.0), "%")
    add("launch_percent", shares["launch_percent"].sum(), "%")
    by_kernel = stages.groupby(rows["kernel"].astype(str)).sum().sort_values(ascending=False, kind="stable")
    add("longest_kernel", by_kernel.index[0], "text")
    add("longest_kernel_percent", 100 * by_kernel.iloc[0] / time, "%")


def _ideal_s(rows: pd.DataFrame, gpu: Gpu) -> float:
    """Return the time of all matrix work at peak, each kernel at that of its own precision."""
    flop = (2.0 * rows["macs"] * rows["count"]).groupby(rows["precision"].astype(str)).sum()
    return sum(flop[name] / gpu.peak_flop_per_s(name) for name in flop.index[flop > 0])


def _memory_parts(scenario: Scenario) -> pd.DataFrame:
    """List what fills a GPU in each phase, each part with its formula."""
    found = []
    for phase in scenario.phases:
        work = scenario.workload(phase)
        split = scenario.model, scenario.parallel, scenario.precision
        parts = memory_rows(*split, work, scenario.kernels(work), scenario.gpus[0])
        if scenario.speculation:
            parts = with_drafts(parts, scenario.draft.memory_bytes(work).iloc[0], scenario.speculation)
        found.append(parts.rename(columns={"part": "held_by"}).assign(phase=phase))
    return pd.concat(found, ignore_index=True)


def _add_memory(result: CaseResult, scenario: Scenario, phase: str) -> None:
    """Add what a phase needs on the GPU that holds most, and the GPUs that have room for it."""
    needed = scenario.memory_bytes(scenario.workload(phase)).iloc[0]
    for name, value in needed.items():
        result.add(f"{phase}_{name}", int(value), "byte/GPU")
    held = [
        f"{gpu.name} (if its DRAM holds that: its capacity is unknown)" if np.isnan(gpu.dram_bytes) else gpu.name
        for gpu in scenario.gpus
        if fits(needed["memory_bytes"], gpu)
    ]
    result.add(f"{phase}_fits", ", ".join(held) or "none", "text")
    if phase == "decode" and not np.isnan(scenario.gpus[0].dram_bytes):
        given, gpu = scenario.phases[phase], scenario.gpus[0]
        split = scenario.parallel, scenario.precision
        deployment = Deployment(scenario.model, gpu, given["context"], 1, *split, speculation=scenario.speculation)
        result.add("decode_largest_batch", largest_batch(deployment), "request")
        result.add("decode_largest_context", largest_context(deployment, given["batch"]), "token")


def _roofs(result: CaseResult, scenario: Scenario, rows: pd.DataFrame) -> None:
    gpu, used = scenario.gpus[0], rows.loc[rows["macs"] > 0, "precision"].astype(str).unique()
    for precision in sorted(used):
        result.add(f"peak_{precision}", gpu.peak_flop_per_s(precision), "FLOP/s")
    constants = longest_constants(rows, gpu)
    result.add("dram_bytes_per_s", gpu.dram_bytes_per_s, "byte/s")
    result.add("l2_bytes_per_s", constants.l2_bytes_per_clock * gpu.sms * gpu.clock_hz, "byte/s")
    result.add("l2_capacity", gpu.l2_bytes, "byte")
    result.add("dram_capacity", gpu.dram_bytes, "byte")
    result.add("devices", scenario.parallel.devices, "GPU")
    result.add("time_constants", constants.source, "text")
    result.add("memory_reserve_percent", 100 * RESERVE, "%")
    for phase in scenario.phases:
        _add_memory(result, scenario, phase)


def _finding(result: CaseResult, scenario: Scenario) -> str:
    words = []
    for phase in scenario.phases:
        compute, memory = (float(result[f"{phase}_{roof}_roof_percent"]) for roof in ("compute", "dram"))
        roof = f"{compute:.0f} % of peak compute" if compute >= memory else f"{memory:.0f} % of DRAM bandwidth"
        held = fits(np.asarray(result[f"{phase}_memory_bytes"]), scenario.gpus[0])
        words.append(f"{phase.replace('_', ' ')}{'' if held else ' (too large for its DRAM)'} at {roof}")
    gpu = scenario.gpus[0].title
    where = f"{scenario.parallel.devices} × {gpu}" if scenario.parallel.devices > 1 else gpu
    return f"Predicted: {scenario.model.name} on {where} runs {', '.join(words)}"


def _time_shapes(scenario: Scenario) -> TimeShapes:
    """Return a function that predicts the kernels of shapes on the first GPU."""

    def time_shapes(phase: str, shapes: pd.DataFrame) -> pd.DataFrame:
        rows = scenario.predict([scenario.shapes(phase, shapes["tokens"], shapes["requests"])], scenario.gpus[0])
        return rows[["shape", "group", "bound"]].assign(time_s=rows["time_s"] * rows["count"])

    return time_shapes


def _corrections(scenario: Scenario, rows: pd.DataFrame) -> pd.DataFrame:
    """Compare with the source notebook, if it can read the model, there is one device and prompts have no images."""
    source = SourceModel.of(scenario.model)
    if source is None or scenario.parallel.devices > 1 or any(map(scenario.images, scenario.phases)):
        return pd.DataFrame()
    gpu = scenario.gpus[0]
    chip = SourceChip.of(gpu, scenario.precision.activations)
    return corrections(source, chip, scenario.phases, rows)
