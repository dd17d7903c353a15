"""Reduce a report of Nsight Compute to what each launch did and how near it came to which roof."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, brief, time_unit
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.ledger.stored_data import Columns, collect
from gpuledger.readers.gpus import Gpu, read_gpus
from gpuledger.readers.kernel_names import labels
from gpuledger.studies.kernel_profile.profiled_launches import ProfiledLaunches
from gpuledger.studies.kernel_profile.roofs import gpu_of
from gpuledger.studies.kernel_profile.tables import kernel_table


def reduce(case: Case) -> CaseResult:
    """Reduce a report, and a baseline if the case has one.

    Raises
    ------
    InputError
        If a file is not output of Nsight Compute, or holds impossible values; an unknown GPU; a shape of a launch that
        the report does not have.
    """
    device = case.dataset.content.get("device", {}).get("name")
    gpu = gpu_of(case.inputs.get("gpu"), device, (str(case.dataset.file), f"{case.place}.gpu"))
    baseline = case.path("baseline") if "baseline" in case.inputs else None
    place = (str(case.dataset.file), f"{case.place}.shapes")
    result = profile(
        case.path("report"), baseline, gpu, case.inputs.get("shapes", ()), place, case.inputs.get("decimal")
    )
    if "gpu" in result.summary:
        gpu = next(sheet for sheet in read_gpus().values() if sheet.title == result["gpu"])
        result.provenance["inputs"] = describe_data_sheets([gpu], case.dataset.folder)
    return result


def profile(
    report: str | Path,
    baseline: str | Path | None = None,
    gpu: Gpu | None = None,
    shapes: Sequence[dict[str, int]] = (),
    place: tuple[str, str] = ("shapes", ""),
    decimal: str | None = None,
) -> CaseResult:
    """Profile the kernels of a file.

    Parameters
    ----------
    report, baseline : path
        Output of Nsight Compute.
    gpu : Gpu, optional
        Data sheet for the roofs that the report does not hold.
    shapes : sequence of mappings
        ``launch, m, n, k`` and optionally ``batch`` of GEMM launches.
    place : (str, str)
        Where the shapes come from, for messages.
    decimal : {".", ","}, optional
        Decimal sign, for files whose values leave it open.

    Returns
    -------
    CaseResult
        Data: one row per launch (of a summary: per kernel), those of the report first, with ``recording`` (report or
        baseline), ``launch``, the columns of `gpuledger.readers.ncu.quantities.launch_quantities`, shares of the
        roofs (``dram_share_percent`` …), ``baseline_time_s`` of the same launch of the same kernel, and ``tensor,
        step_instructions, steps, steps_source, predicted_instructions, exact, explanation`` of
        `gpuledger.models.flop_prediction.predict_tensor`. Of many launches it is `StoredData`.
    """
    own = ProfiledLaunches(report, decimal, gpu, shapes, place)
    if baseline is None:
        rows = own.rows("report")
    else:
        before = ProfiledLaunches(baseline, decimal, gpu, (), place)
        rows = chain(own.rows("report", _baseline_times(own.launches, before.launches)), before.rows("baseline"))
    result = CaseResult(collect(rows))
    _summarise(result, own.about)
    return result


def _baseline_times(launches: Columns, before: Columns) -> np.ndarray:
    """Return by launch the time (s) of the n-th launch of the same kernel (full name) before; NaN if there is none."""
    codes, kernels = pd.factorize(launches["kernel"].astype(object))
    earlier = pd.Index(kernels).get_indexer(before["kernel"].astype(object))
    # Launches before, kernel by kernel, and where each kernel's begin.
    order = np.argsort(earlier, kind="stable")
    starts = np.searchsorted(earlier[order], np.arange(len(kernels) + 1))
    place = starts[codes] + pd.Series(codes).groupby(codes).cumcount().to_numpy()
    known = place < starts[codes + 1]
    times = np.full(len(codes), np.nan)
    times[known] = before["time_s"].to_numpy()[order[place[known]]]
    return times


def _summarise(result: CaseResult, about: dict[str, tuple[Any, str]]) -> None:
    data = result.data
    own = data["recording"] == "report"
    counts = data["launches"]
    result.add("launches", int(counts[own].sum()), "launch")
    result.add("kernels", data["kernel"][own].nunique(), "kernel")
    result.add("time", _total(data, own), "s")
    tensor = own & data["tensor"]
    exact = data["exact"].fillna(False).astype(bool)
    result.add("tensor_launches", int(counts[tensor].sum()), "launch")
    result.add("tensor_predicted", int(counts[tensor & data["step_instructions"].notna()].sum()), "launch")
    result.add("tensor_exact", int(counts[tensor & exact].sum()), "launch")
    for name, (value, unit) in about.items():
        result.add(name, value, unit)
    if not own.all():
        result.add("baseline_time", _total(data, ~own), "s")
        result.add("baseline_launches", int(counts[~own].sum()), "launch")
    table = kernel_table(data)
    if not own.all():
        _compare(result, table)
    result.add("finding", _finding(result, table), "text")


def _compare(result: CaseResult, table: pd.DataFrame) -> None:
    """Enter what report and baseline do not share, and the times of what both have, launch by launch."""
    here, earlier = table["launches"] > 0, table["baseline_kernel"].notna()
    both = table[here & earlier]
    counts = {
        "kernels_only_here": int((here & ~earlier).sum()),
        "kernels_only_in_baseline": int((~here & earlier).sum()),
        "kernels_launched_otherwise": int((both["launches"] != both["baseline_launches"]).sum()),
    }
    for name, count in counts.items():
        result.add(name, count, "kernel")
    launched = both["launches"].astype("float64") / both["baseline_launches"].astype("float64")
    times = both["time_s"], both["baseline_time_s"] * launched
    timed = times[0].notna() & times[1].notna()
    for name, each in zip(("common_time", "common_baseline_time"), times, strict=True):
        result.add(name, float(each[timed].sum(min_count=1)), "s")


def _total(data: Columns, chosen: pd.Series) -> float:
    return float((data["time_s"][chosen] * data["launches"][chosen]).sum(min_count=1))


def _finding(result: CaseResult, table: pd.DataFrame) -> str:
    launches, kernels, time = result["launches"], result["kernels"], result["time"]
    take = "take" if launches != 1 else "takes"
    own = table[table["launches"] > 0]
    name = labels(own["kernel"]).iloc[0]
    words = f"{launches:,} launch{'es' if launches != 1 else ''} of {f'{kernels:,} kernels' if kernels != 1 else name}"
    data = result.data
    report, timed = data["recording"] == "report", data["time_s"].notna()
    untimed = int(data["launches"][report & ~timed].sum())
    if isinstance(time, str):
        known = own["flops"].notna().any()
        most = f"; most FLOPs are in {name}" if known and kernels != 1 else ""
        return f"{words}: no times were recorded{most}"
    words += f" ({untimed:,} of them without a time)" if untimed else ""
    top = own.iloc[0]
    before = result.get("baseline_time", 0)
    if before and not isinstance(before, str) and time:
        against = f"{_ratio(before, time)} the baseline ({seconds(before)})"
        return f"{words} {take} {seconds(time)}, {against}{_unshared(result)}"
    words += f" {take} {seconds(time)}"
    if kernels > 1:
        # Of kernels with a launch without a time, no share is known.
        partly = set(own.loc[own["time_s"].isna(), "kernel"]) & set(data["kernel"][report & timed].unique())
        whole = pd.notna(top["share_percent"]) and not partly
        words += f"; {top['share_percent']:.0f} % go to {name}" if whole else f"; {name}"
    if isinstance(top["bound"], str) and top["bound"]:
        near = f"{top['achieved_percent']:.0f} % of the nearest roof, {top['nearest_roof']}"
        words += f", bound by latency (at {near})" if top["bound"] == "latency" else f", at {near}"
    elif pd.notna(top["achieved_percent"]):
        words += f", at {top['achieved_percent']:.0f} % of the nearest roof that is known, {top['nearest_roof']}"
    return words + "; the baseline has no times to compare" * isinstance(before, str)


def _ratio(before: float, after: float) -> str:
    ratio = before / after
    return f"{brief(ratio, 3)}× as fast as" if ratio >= 1 else f"{brief(1 / ratio, 3)}× as long as"


def _unshared(result: CaseResult) -> str:
    """Say that totals of different kernels were compared, and how what both have compares."""
    parts = {
        "kernels_only_here": "only here",
        "kernels_only_in_baseline": "only in the baseline",
        "kernels_launched_otherwise": "launched another number of times",
    }
    said = [f"{result[name]:,} {what}" for name, what in parts.items() if result[name]]
    if not said:
        return ""
    after, before = result["common_time"], result["common_baseline_time"]
    if result["kernels_only_here"] == result["kernels"]:
        common = "no kernel is in both"
    elif isinstance(after, str) or not (after and before):
        common = "what is in both has no times to compare"
    else:
        common = f"launch by launch, the kernels in both take {seconds(after)}, {_ratio(before, after)} there"
        common += f" ({seconds(before)})"
    return f", but not for the same launches ({', '.join(said)}): {common}"


def seconds(time: float) -> str:
    """Format a time (s) in s, ms, µs or ns."""
    factor, unit = time_unit(time)
    return f"{brief(time * factor, 3)} {unit}"
