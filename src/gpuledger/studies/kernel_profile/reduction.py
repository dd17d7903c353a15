"""Reduce a report of Nsight Compute to what each launch did and how near it came to which roof."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.ledger.case_result import CaseResult, brief, time_unit
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.models.flop_prediction import predict_half_reduction, predict_tensor
from gpuledger.readers import ncu
from gpuledger.readers.gpu_identity import another_gpu
from gpuledger.readers.gpus import Gpu, read_gpus
from gpuledger.readers.kernel_names import labels, parse
from gpuledger.readers.ncu.quantities import launch_quantities, missing_options
from gpuledger.studies.kernel_profile.roofs import RESOURCES, find_roofs, gpu_of, shares
from gpuledger.studies.kernel_profile.tables import kernel_table

#: A share of a roof (percent) that only another GPU, or a wrong number, explains.
_IMPOSSIBLE_PERCENT = 120


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
        `gpuledger.models.flop_prediction.predict_tensor`.
    """
    data, summary = _launches(report, gpu, shapes, place, decimal)
    data.insert(0, "recording", "report")
    data["baseline_time_s"] = np.nan
    if baseline is not None:
        before, _ = _launches(baseline, gpu, (), place, decimal)
        before.insert(0, "recording", "baseline")
        # The n-th launch of a kernel is compared with the n-th one of the same full name.
        keys = [list(zip(rows["kernel"], rows.groupby("kernel").cumcount(), strict=True)) for rows in (data, before)]
        times = dict(zip(keys[1], before["time_s"], strict=True))
        data["baseline_time_s"] = [times.get(key, np.nan) for key in keys[0]]
        data = pd.concat([data, before], ignore_index=True)
    result = CaseResult(data)
    _summarise(result, summary)
    return result


def _launches(
    path: str | Path, gpu: Gpu | None, shapes: Sequence[dict[str, int]], place: tuple[str, str], decimal: str | None
) -> tuple[pd.DataFrame, dict[str, tuple[Any, str]]]:
    """Return one row per launch, and quantities of the recording, with their units."""
    parts, device, unnumbered, capabilities = [], None, True, set()
    for report in ncu.read_parts(path, decimal):
        parts.append(launch_quantities(report))
        device = device or _device(report)
        capabilities |= set(report.launches["compute_capability"].dropna().astype(str))
        unnumbered = unnumbered and report.launches["id"].isna().all()
    launches = pd.concat(parts)
    if gpu is not None and (other := another_gpu(gpu, [device] if device else [], sorted(capabilities))):
        warn(path, "", f"it was recorded on {other}, not on {gpu.title}", f"the roofs are those of {gpu.title}")
    gpu = gpu or gpu_of(None, device, place)
    if (launches["kernel"].str.strip() == "").any():
        raise InputError(path, "", "a launch has no kernel name", "profile again with --print-kernel-base demangled")
    query = launches[["kernel", "grid_blocks", "tensor_instructions"]].copy()
    query["tensor_instructions"] = query["tensor_instructions"].fillna(_from_operations(launches))
    for column in ("m", "n", "k", "batch"):
        query[column] = pd.array([pd.NA] * len(query), dtype="Int64")
    for shape in shapes:
        if shape["launch"] not in query.index:
            problem = f"the report has no launch {shape['launch']}"
            raise InputError(*place, problem, f"it has the launches 0 to {len(query) - 1}")
        for column in set(shape) - {"launch"}:
            query.loc[shape["launch"], column] = shape[column]
    tensor = predict_tensor(query, file=path).rename(columns={"predicted": "predicted_instructions"})
    _explain_reductions(launches, tensor)
    roofs = find_roofs(launches, gpu)
    near = shares(launches, roofs)
    if gpu is not None and (most := near.max().max()) > _IMPOSSIBLE_PERCENT:
        problem = f"a kernel reaches {most:.0f} % of the {RESOURCES[near.max().idxmax()]} roof of {gpu.title}"
        warn(path, "", problem, "the number is kept: check that this GPU was recorded")
    near = near.add_suffix("_share_percent")
    data = pd.concat([launches, near, tensor.drop(columns="recorded")], axis=1).reset_index(names="launch")
    if report.page == "summary":
        problem = "this is a summary (--print-summary): values are averages over a kernel's launches"
        warn(path, "", problem, "they are multiplied by the number of launches")
    if report.page == "wide" and unnumbered:
        problem = "a column per metric without ID and units: not ncu's own page"
        warn(path, "", problem, "base units are assumed (ns, byte)")
    if report.errors:
        warn(path, "", f"ncu reported: {report.errors[0][:200]}", "what it recorded is used")
    about: dict[str, tuple[Any, str]] = {"page": (report.page, "text")}
    for name, roof in roofs.max().dropna().items():
        unit = ("bytes_per_s", "byte/s") if name in ("dram", "l2") else ("flop_per_s", "FLOP/s")
        about[f"roof_{name}_{unit[0]}"] = roof, unit[1]
    if gpu is not None:
        about["gpu"] = gpu.title, "text"
    return data, about | {
        f"missing_{name}": (f"ncu {option}", "text") for name, option in missing_options(launches).items()
    }


def _device(report: ncu.Report) -> str | None:
    """Return the name of the GPU, if the report holds it."""
    rows = report.metrics[report.metrics["metric"] == "device__attribute_display_name"]
    names = [*rows["text"].dropna().astype(str).unique(), *report.launches["device"].dropna().unique()]
    return next((name for name in names if not name.isdecimal()), None)


def _from_operations(launches: pd.DataFrame) -> pd.Series:
    """Return matrix instructions from operations of the tensor path, where the name states the instruction."""
    sizes = {name: 2 * prod(parse(name).mma or (0,)) for name in launches["kernel"].unique()}
    size = launches["kernel"].map(sizes).astype("Int64")
    operations = launches["tensor_flops"].where((launches["tensor_flops"] > 0) & (size > 0))
    whole = operations % size.where(size > 0) == 0
    return (operations // size.where(size > 0)).where(whole)


def _explain_reductions(launches: pd.DataFrame, tensor: pd.DataFrame) -> None:
    """Say how split-K reductions after tensor-core GEMMs come by their counts."""
    classes = {name: parse(name).kernel_class for name in launches["kernel"].unique()}
    is_reduction = (launches["kernel"].map(classes) == "split_k_reduce").to_numpy()
    after = tensor["tensor"].shift(1, fill_value=False).to_numpy()
    blocks = launches["grid_blocks"].shift(1)
    known = blocks.notna() & launches["fmul_instructions"].notna() & launches["fadd_instructions"].notna()
    counts = [blocks, launches["fmul_instructions"], launches["fadd_instructions"]]
    texts = tensor["explanation"].to_numpy(dtype=object, copy=True)
    for at in np.flatnonzero(is_reduction & after & known.to_numpy()):
        found = predict_half_reduction(*(int(count.iat[at]) for count in counts))
        texts[at] = "split-K reduction: its counts match no split of the GEMM before it"
        if found:
            bias = " and a bias" if found[1] else ""
            texts[at] = f"split-K reduction: each output is the sum of {found[0]} parts{bias}"
    tensor["explanation"] = texts.astype(str)


def _summarise(result: CaseResult, about: dict[str, tuple[Any, str]]) -> None:
    data = result.data
    own, before = (data[data["recording"] == name] for name in ("report", "baseline"))
    result.add("launches", int(own["launches"].sum()), "launch")
    result.add("kernels", own["kernel"].nunique(), "kernel")
    result.add("time", _total(own), "s")
    tensor = own[own["tensor"]]
    weights = tensor["launches"]
    result.add("tensor_launches", int(weights.sum()), "launch")
    result.add("tensor_predicted", int(weights[tensor["step_instructions"].notna()].sum()), "launch")
    result.add("tensor_exact", int(weights[tensor["exact"].fillna(False).astype(bool)].sum()), "launch")
    for name, (value, unit) in about.items():
        result.add(name, value, unit)
    if len(before):
        result.add("baseline_time", _total(before), "s")
        result.add("baseline_launches", int(before["launches"].sum()), "launch")
    table = kernel_table(data)
    if len(before):
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


def _total(launches: pd.DataFrame) -> float:
    return float((launches["time_s"] * launches["launches"]).sum(min_count=1))


def _finding(result: CaseResult, table: pd.DataFrame) -> str:
    launches, kernels, time = result["launches"], result["kernels"], result["time"]
    take = "take" if launches != 1 else "takes"
    own = table[table["launches"] > 0]
    name = labels(own["kernel"]).iloc[0]
    words = f"{launches:,} launch{'es' if launches != 1 else ''} of {f'{kernels:,} kernels' if kernels != 1 else name}"
    report = result.data[result.data["recording"] == "report"]
    untimed = int(report.loc[report["time_s"].isna(), "launches"].sum())
    timed = report.loc[report["time_s"].notna(), "kernel"]
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
        whole = pd.notna(top["share_percent"]) and not own.loc[own["time_s"].isna(), "kernel"].isin(timed).any()
        words += f"; {top['share_percent']:.0f} % go to {name}" if whole else f"; {name}"
    if isinstance(top["bound"], str) and top["bound"]:
        near = f"{top['achieved_percent']:.0f} % of the nearest roof, {top['nearest_roof']}"
        words += f", bound by latency (at {near})" if top["bound"] == "latency" else f", at {near}"
    elif pd.notna(top["achieved_percent"]):
        words += f", at {top['achieved_percent']:.0f} % of the nearest roof that is known, {top['nearest_roof']}"
    return words


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
