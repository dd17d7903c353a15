"""Tables of a recorded step, for the notebook."""

from typing import Any

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, brief
from gpuledger.ledger.parts import one_part
from gpuledger.readers.timelines.table import work_rates
from gpuledger.studies.kernel_breakdown.formatting import format_time
from gpuledger.studies.kernel_breakdown.parts import made, name_parts
from gpuledger.studies.kernel_breakdown.timeline.activity import mostly_waits

#: Headers of rates.
_RATES = {"tflop_per_s": "TFLOP/s", "tb_per_s": "TB/s"}
#: What is said of implementations of a training step (:data:`gpuledger.models.training.run.IMPLEMENTATIONS`).
_IMPLEMENTED = {
    "fused": "norms, rotation, activation and loss as one kernel each",
    "transformers": "norms, rotation, activation and loss operator by operator, as transformers runs them eagerly",
}


def recorded_kernels(result: CaseResult) -> pd.DataFrame:
    """Return the kernels of the step with a ``part`` each: the model's kernel, else the class and operator."""
    rows = one_part(result.data, "launches")
    filled = {"role": "", "matched_by": "", "predicted_s": np.nan, "operator": "", "shapes": ""}
    rows = rows.assign(**{name: value for name, value in filled.items() if name not in rows})
    rows = rows[rows["kind"] == "kernel"].reset_index(drop=True)
    return rows.assign(part=name_parts(rows))


def kernel_table(result: CaseResult) -> dict[str, Any]:
    """Return the step by kernel class and operator, for :func:`gpuledger.ledger.tables.write`."""
    rows = recorded_kernels(result)
    # Graph replays record no operator: the model's kernel stands for it.
    rows["operator"] = rows["operator"].where(rows["operator"] != "", rows["role"])
    groups = rows.groupby(["kernel_class", "operator"], sort=False)
    frame = groups.agg(count=("launches", "sum"), time_s=("duration_s", "sum")).assign(
        predicted_s=groups["predicted_s"].sum(min_count=1)
    )
    frame = frame.join(work_rates(rows, ["kernel_class", "operator"]))
    frame = frame.sort_values("time_s", ascending=False, kind="stable").reset_index()
    return {
        "frame": frame,
        "caption": f"Kernels of a {made(result)} step by class and operator"
        + (", and their predicted times." if frame["predicted_s"].notna().any() else "."),
        "headers": {
            **{"time_s": f"{made(result)} (ms)", "predicted_s": "predicted (ms)"},
            **_RATES,
        },
        "formats": dict.fromkeys(("time_s", "predicted_s"), lambda seconds: brief(1e3 * seconds)),
    }


def part_table(result: CaseResult) -> pd.DataFrame:
    """Return recorded (or simulated) and predicted time by part of the step, medians of one launch and sums."""
    rows = recorded_kernels(result)
    total = rows["duration_s"].sum()
    groups = rows.assign(each=rows["duration_s"] / rows["launches"]).groupby("part", sort=False)
    frame = pd.DataFrame(
        {
            "launches": groups["launches"].sum(),
            "recorded_median_us": 1e6 * groups["each"].median(),
            "predicted_median_us": 1e6 * groups["predicted_s"].median(),
            "recorded_ms": 1e3 * groups["duration_s"].sum(),
            "predicted_ms": 1e3 * groups["predicted_s"].sum(min_count=1),
            "share_percent": 100 * groups["duration_s"].sum() / total,
        }
    )
    frame = frame.join(work_rates(rows, "part").rename(columns=_RATES))
    error = 100 * (frame["predicted_ms"] - frame["recorded_ms"]) / frame["recorded_ms"]
    frame = frame.assign(error_percent=error).sort_values("recorded_ms", ascending=False, kind="stable")
    if not rows["predicted_s"].notna().any():
        frame = frame.drop(columns=["predicted_median_us", "predicted_ms", "error_percent"])
    return frame.rename(columns=lambda name: name.replace("recorded", made(result))).reset_index()


def purpose_table(result: CaseResult) -> pd.DataFrame:
    """Return what kernels of a training step take by what they are for, recorded (or simulated) and predicted.

    See :func:`gpuledger.studies.kernel_breakdown.timeline.training.compare_purposes`; times in ms.
    """
    rows = one_part(result.data, "purposes")
    whole = pd.DataFrame([{"purpose": "all", **rows.drop(columns="purpose").sum()}])
    rows = pd.concat([rows, whole], ignore_index=True)
    frame = pd.DataFrame(
        {
            "purpose": rows["purpose"],
            "kernels": rows["kernels"].astype(int),
            "recorded_ms": 1e3 * rows["recorded_s"],
            "predicted_kernels": rows["predicted_kernels"].astype(int),
            "predicted_ms": 1e3 * rows["predicted_s"],
            "recorded_over_predicted": rows["recorded_s"] / rows["predicted_s"],
            "with_known_work_ms": 1e3 * rows["shaped_s"],
            "predicted_from_its_shapes_ms": 1e3 * rows["shapes_s"],
        }
    )
    return frame.rename(columns=lambda name: name.replace("recorded", made(result)))


def attention_table(result: CaseResult) -> pd.DataFrame:
    """Return the kernels of attention by operator and the shapes of its inputs: ``operator, shapes, kernels, ms``."""
    rows = recorded_kernels(result)
    rows = rows[rows["kernel_class"] == "attention"]
    # Inputs without a shape are scalars, and tensors that were left out.
    shapes = rows["shapes"].str.replace(r"(?:, \[\])+(?=\]$)", "", regex=True)
    groups = rows.assign(shapes=shapes).groupby(["operator", "shapes", "name"], sort=False)
    frame = groups.agg(kernels=("launches", "sum"), time=("duration_s", "sum")).reset_index()
    return frame.assign(time_ms=1e3 * frame["time"]).drop(columns="time")


def pauses(result: CaseResult) -> pd.DataFrame:
    """Return the times without a kernel: ``start_s, duration_s, activity, call``; no rows if there was always one."""
    columns = ["start_s", "duration_s", "activity", "call"]
    idle = one_part(result.data, "idle").reindex(columns=columns)
    return idle.assign(call=idle["call"].fillna("").astype(object))


def idle_table(result: CaseResult) -> pd.DataFrame:
    """Return the time without a kernel by what went on then, and the calls that took most of it."""
    idle = pauses(result)
    groups = idle.groupby("activity")["duration_s"]
    frame = pd.DataFrame({"pauses": groups.size(), "time_ms": 1e3 * groups.sum(), "longest_ms": 1e3 * groups.max()})
    frame["share_of_span_percent"] = 100 * groups.sum() / float(result["span"]) if len(idle) else 0.0
    calls = idle[idle["call"] != ""].groupby(["activity", "call"])["duration_s"].sum()
    calls = calls.sort_values(ascending=False, kind="stable")
    most = [", ".join(calls[name].index[:3]) if name in calls else "" for name in frame.index]
    return frame.assign(mostly=most).sort_values("time_ms", ascending=False, kind="stable").reset_index()


def communication_table(result: CaseResult) -> pd.DataFrame:
    """Return the collectives by kernel and size: how long they take, how much is waiting, how many mostly wait."""
    rows = recorded_kernels(result)
    rows = rows[rows["kernel_class"] == "communication"]
    rows = rows.assign(mostly_waiting=mostly_waits(rows))
    groups = rows.groupby(["name", "shapes"], sort=False)
    frame = pd.DataFrame(
        {
            "launches": groups["launches"].sum(),
            "shortest_us": 1e6 * groups["duration_s"].min(),
            "median_us": 1e6 * groups["duration_s"].median(),
            "longest_us": 1e6 * groups["duration_s"].max(),
            "time_ms": 1e3 * groups["duration_s"].sum(),
            "waiting_ms": 1e3 * groups["waiting_s"].sum(),
            "mostly_waiting": groups["mostly_waiting"].sum(),
        }
    )
    return frame.sort_values("time_ms", ascending=False, kind="stable").reset_index()


def unmatched_table(result: CaseResult) -> pd.DataFrame:
    """Return the model's kernels that no launch was matched with."""
    rows = one_part(result.data, "unmatched")
    rows = rows if len(rows) else pd.DataFrame(columns=["kernel", "count", "predicted_s"])
    frame = rows.assign(kernel=rows["kernel"].str.replace("_", " "), predicted_ms=1e3 * rows["predicted_s"])
    return frame[["kernel", "count", "predicted_ms"]]


def repeated(result: CaseResult) -> str:
    """Return what repeats within the step, in a word: ``layer`` where a model says so, otherwise ``repetition``."""
    return result.summary["repetitions"]["unit"]


def describe_step(result: CaseResult) -> str:
    """Describe in Markdown what was recorded, how the step was found, and what was left out."""
    found = {
        "annotation": f"by its annotation `{result['step']}`",
        "repetition": f"by repetition (one of {result['steps']} alike)",
        "whole recording": "as the whole recording, in which nothing repeats"
        if result["span"] != "unknown"
        else "as the whole recording, of which there are only sums",
    }[str(result["step_found_by"])]
    device = f", {result['recorded_device']}" if result["recorded_device"] != "unknown" else ""
    recording = str(result["recording"])
    lines = [f"{recording[:1].upper()}{recording[1:]}{device}. The step is found {found}."]
    if gpu := result.get("analysed_gpu"):
        lines.append(f"All numbers are of {gpu}.")
    if dropped := int(result["dropped_kernels"]):
        lines.append(f"{dropped:,} kernels of the recording belong to no whole step and are left out.")
    if times := int(result.get("repetitions", 0)):
        each = format_time(float(result["repetition_kernel_time_median"]))
        rows = one_part(result.data, "launches")
        back = rows.loc[rows["repetition"] >= 0, "operator"].str.contains("backward").any()
        layers = f": its layers{' in the backward pass' * bool(back)}" * (repeated(result) == "layer")
        kernels = f"{result['kernels_per_repetition']} kernels"
        lines.append(f"In it {kernels} repeat {times} times{layers}, {each} each (median kernel time).")
    if "recompute" in result.summary:
        lines.append(
            f"Predicted are the kernels of a training step of {result['model']} with {result['batch']} sequences of "
            f"{result['sequence']:,} tokens, parameters in {result['gathered']}"
            f"{', and layers computed again for the backward pass' * (result['recompute'] == 'yes')}, "
            f"{_IMPLEMENTED[result['implementation']]}."
        )
    if "matched_percent" in result.summary:
        lines.append(
            f"{float(result['matched_percent']):.1f} % of the kernel time is matched with a prediction: "
            f"{float(result['matched_by_model_percent']):.1f} % with kernels of {result['model']}, "
            f"{float(result['matched_by_shapes_percent']):.1f} % by operators' shapes alone. As a serving engine would "
            f"run it, the model is predicted to take {format_time(float(result['model_kernel_time']))}."
        )
    return " ".join(lines)
