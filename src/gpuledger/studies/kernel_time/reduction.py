"""From measured kernel times to predictions, errors and constants."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.models.time_model.constants.fit_gemm import CONVERTED
from gpuledger.models.time_model.constants.table import describe_constants, unseen_constants
from gpuledger.models.time_model.gemms import cublas
from gpuledger.models.time_model.operators import UNITS as OPERATOR_UNITS
from gpuledger.models.time_model.operators import OperatorConstants
from gpuledger.readers.gpus import Gpu, find_gpu, known_gpus
from gpuledger.readers.kernel_tables.gemms import RATE, read_gemms
from gpuledger.studies.kernel_time import prediction
from gpuledger.studies.kernel_time.attention_runs import reduce_attention_runs
from gpuledger.studies.kernel_time.engine_reduction import LAYOUTS, reduce_engine
from gpuledger.studies.kernel_time.every_table import reduce_tables
from gpuledger.studies.kernel_time.judgement import (
    add_baselines,
    add_constants,
    add_errors,
    add_groups,
    in_percent,
    suffix_of,
)
from gpuledger.studies.kernel_time.layer_measurements import read_layers
from gpuledger.studies.kernel_time.measurements import (
    check_plausible,
    other_tables,
    read_llmcompass,
    read_vidur,
)
from gpuledger.studies.kernel_time.module_reduction import reduce_modules
from gpuledger.studies.kernel_time.prediction import GEMM_UNITS, LARGE_FLOP
from gpuledger.studies.kernel_time.products import reduce_products

#: Regions of GEMMs: by FLOP, and by the side of the roofline's ridge that they lie on.
FLOP_EDGES = (0, 1e8, 1e9, LARGE_FLOP, 1e12, np.inf)
FLOP_NAMES = ("below 0.1 GFLOP", "0.1 to 1 GFLOP", "1 to 10 GFLOP", "10 GFLOP to 1 TFLOP", "1 TFLOP and more")
#: Regions of a model's operators: by rows (tokens).
ROW_EDGES = (0, 64, 512, 4096, np.inf)
ROW_NAMES = ("up to 64 rows", "65 to 512 rows", "513 to 4,096 rows", "4,097 rows and more")


def reduce(case: Case) -> CaseResult:
    """Reduce measured kernel times to predictions and their errors.

    Constants are fitted to one half of the shapes, drawn by a hash of (m, n, k), and errors are of the other half. Of
    GEMMs all constants are fitted (nine; eleven with the conversion of activations; one for the host), of vidur's
    operators six: the sustained share of the peak, and the five of :mod:`gpuledger.models.time_model.operators`. Of
    LLMCompass's only what an empty call takes is, where it is not given. Of ``tables``, ``products`` and
    ``attention_runs`` nothing is fitted, and their data have columns of their own.

    Returns
    -------
    CaseResult
        Data: ``operator, group, precision, m, n, k, flop, bytes, held_back, region, bound, measured_s, predicted_s,
        roofline_s, derate_s``. In the summary, errors of 16-bit GEMMs have no suffix, others their type's
        (``_fp8``), those of operators the operator's name as prefix.
    """
    if case.inputs.get("unit") == RATE and "measurements" not in case.inputs:
        raise case.error("unit", f"{RATE} is for measurements of GEMMs", "give the unit of the times")
    known = known_gpus(case.path("hardware") if "hardware" in case.inputs else None)
    if "tables" in case.inputs:
        wanted = case.inputs["gpus"].items()
        gpus = {
            folder: find_gpu(name, known, case.dataset.file, f"{case.place}.gpus.{folder}") for folder, name in wanted
        }
        result = reduce_tables(case, gpus)
        result.provenance = _provenance(case, list(gpus.values()), result)
        return result
    published = {"products": reduce_products, "attention_runs": reduce_attention_runs}
    if reduce_published := next((published[key] for key in published if key in case.inputs), None):
        result, listed = reduce_published(case, known)
        result.provenance = _provenance(case, listed, result)
        return result
    gpu = find_gpu(case.inputs["gpu"], known, case.dataset.file, f"{case.place}.gpu")
    layout = next((name for name in LAYOUTS if name in case.inputs), None)
    if layout:
        result = reduce_engine(case, gpu, layout)
    elif "modules" in case.inputs:
        result = reduce_modules(case, gpu)
    elif "measurements" in case.inputs or "layers" in case.inputs:
        result = _reduce_gemms(case, gpu)
    elif "operators" in case.inputs:
        result = _reduce_vidur(case, gpu)
    else:
        result = _reduce_llmcompass(case, gpu)
    result.provenance = _provenance(case, [gpu], result)
    return result


def _provenance(case: Case, gpus: list[Gpu], result: CaseResult) -> dict:
    """Say what predicts the times, with which constants and data sheet, and what they are compared with."""
    fits = dict.fromkeys(str(result[name]) for name in result.summary if name.startswith("constants_source"))
    titles = ", ".join(gpu.title for gpu in gpus) if len(gpus) <= 12 else f"{len(gpus)} GPUs"
    return {
        "kind": "predicted",
        "label": f"predicted, compared with times ({case.label})",
        "title": f"Predicted times of kernels on {titles}, compared with: {case.dataset.content['title']}",
        "source": "gpuledger's time model, compared with the inputs",
        "inputs": [*describe_data_sheets(gpus, case.dataset.folder), describe_constants(fits)],
    }


def _reduce_gemms(case: Case, gpu: Gpu) -> CaseResult:
    unit, layers = case.inputs["unit"], "layers" in case.inputs
    path = case.path("layers" if layers else "measurements")
    frame, skipped = read_layers(case, path) if layers else read_gemms(path, unit)
    beside = [frame, *(read_gemms(other, unit)[0] for other in other_tables(case))]
    frame = _prepared(case, gpu, frame.assign(operator="gemm"), path)
    frame = frame.assign(region=_gemm_regions(gpu, frame), derated_s=np.nan, lookup_s=np.nan, corrected_s=np.nan)
    frame["region_order"] = np.searchsorted(FLOP_EDGES[1:], frame["flop"], side="right") + 0.5 * frame[
        "region"
    ].str.contains("compute")
    result = CaseResult(frame)
    result.add("gpu", gpu.name, "text")
    result.add("skipped_types", ", ".join(skipped) or "none", "text")
    unseen_s = pd.Series(np.nan, frame.index)
    for group, rows in frame.groupby("group", sort=True):
        precision = rows["precision"].mode().iloc[0]
        fits = {}
        for kernel, part in rows.groupby("kernel", sort=True):
            constants, fitted = prediction.gemm_constants(gpu, part[~part["held_back"]], precision)
            fits[str(kernel)] = constants, fitted
            found = prediction.predict_gemms(gpu, constants, part, precision)
            peak = gpu.peak_flop_per_s("fp8" if precision == "fp8_block" else precision)
            work = part["flop"].to_numpy() / peak, part["bytes"].to_numpy() / gpu.dram_bytes_per_s
            found = found.join(add_baselines(part, found["predicted_s"], *work, ["m", "n", "k"]))
            frame.loc[part.index, found.columns] = found
            # Constants of kernels that convert activations say nothing of one that does not.
            alone = precision in CONVERTED and constants.dispatch == cublas.NAME
            foreign = None if alone else unseen_constants("gemm", gpu, str(kernel), precision)
            back = part[part["held_back"]]
            if foreign is not None and len(back):
                unseen_s[back.index] = prediction.gemm_times_s(gpu, foreign, back, precision)
        _add_gemm_constants(result, fits, suffix_of(group))
    first = add_groups(result, frame, unseen_s, beside, ["m", "n", "k"])
    main = suffix_of(first)
    looked_up = f"mape_lookup_percent{main}" in result.summary
    names = ("held_back", "roofline_held_back", "lookup" if looked_up else "derate_held_back")
    model, roofline, other = (in_percent(result[f"mape_{name}_percent{main}"]) for name in names)
    count = result[f"shapes_held_back{main}"]
    gemms = "GEMM" if count == 1 else "GEMMs"
    finding = (
        f"The time model predicts {count:,} held-back {first} {gemms} on {gpu.title} with a mean error of {model} "
        f"(roofline: {roofline}, {'look-up in the fitting half' if looked_up else 'derated roofline'}: {other})"
    )
    result.add("finding", finding + _what_is_better(result, main), "text")
    return result


def _what_is_better(result: CaseResult, suffix: str) -> str:
    """Name the best of the derated rooflines if it errs less than the time model; a finding does not hide it."""
    errors = {
        what: float(result.get(f"mape_{name}_percent{suffix}") or np.inf)
        for name, what in (("derated", "fitted roofline"), ("derate_held_back", "derated roofline"))
    }
    best = min(errors, key=errors.__getitem__)
    if errors[best] >= result[f"mape_held_back_percent{suffix}"]:
        return ""
    return f"; better is a {best}: {in_percent(errors[best])}"


def _add_gemm_constants(result: CaseResult, fits: dict, suffix: str) -> None:
    for kernel, (constants, fitted) in fits.items():
        own = suffix if len(fits) == 1 else f"{suffix}_{slug(kernel)}"
        values = {name: value for name, value in asdict(constants).items() if name in GEMM_UNITS and value}
        add_constants(result, values, GEMM_UNITS, own, "fitted to the held-in half" if fitted else constants.source)


def _reduce_vidur(case: Case, gpu: Gpu) -> CaseResult:
    frame = _prepared(case, gpu, read_vidur(case), case.path("operators"))
    frame["region"] = pd.cut(frame["m"], ROW_EDGES, labels=ROW_NAMES).astype(str)
    frame["region_order"] = np.searchsorted(ROW_EDGES, frame["m"])
    gemms = frame[frame["law"] == "gemm"]
    others = frame[frame["law"] != "gemm"]
    values: dict[str, float] = {}
    units: dict[str, str] = {}
    fits = []
    if len(gemms):
        held_in = gemms[~gemms["held_back"]]
        constants, fitted = prediction.fit_tensor_share(gpu, held_in, "fp16")
        fits.append(fitted)
        predicted = prediction.predict_gemms(gpu, constants, gemms, "fp16")
        frame.loc[gemms.index, ["predicted_s", "bound"]] = predicted
        values["gemm_tensor_share"], units["gemm_tensor_share"] = constants.tensor_share, "1"
    if len(others):
        operator_constants, fitted = prediction.operator_constants(gpu, others[~others["held_back"]])
        predicted = prediction.predict_operators(gpu, operator_constants, others)
        frame.loc[others.index, ["predicted_s", "bound"]] = predicted
        fits.append(fitted)
        values |= asdict(operator_constants)
        units |= OPERATOR_UNITS
    result = CaseResult(frame.drop(columns=["read_bytes", "write_bytes"]))
    result.add("gpu", gpu.name, "text")
    add_errors(result, frame)
    source = (
        "fitted to the held-in half" if all(fits) else "as shipped" if not any(fits) else "fitted where data suffice"
    )
    add_constants(result, values, units, "", source)
    worst = _add_operators(result, frame)
    names = (f"{slug(worst)}_mape_held_back_percent", "mape_held_back_percent", "mape_roofline_held_back_percent")
    largest, mean, roofline = (in_percent(result[name]) for name in names)
    finding = (
        f"The time model's mean error is at most {largest} for held-back shapes of each operator on {gpu.title}, "
        f"with {len(values)} constant{'s' * (len(values) > 1)} for all {frame['operator'].nunique()} of them "
        f"(all shapes: {mean}, roofline: {roofline})"
    )
    result.add("finding", finding, "text")
    return result


def _reduce_llmcompass(case: Case, gpu: Gpu) -> CaseResult:
    file = case.dataset.folder / next(iter(case.inputs["throughput"].values()))
    frame = _prepared(case, gpu, read_llmcompass(case), file)
    elements = np.where(frame["law"] == "gemm", frame["flop"], frame["m"] * frame["n"])
    middle = pd.Series(elements).groupby(frame["operator"].to_numpy()).transform("median").to_numpy()
    frame["region"] = np.where(elements < middle, "smaller half", "larger half")
    frame["region_order"] = (elements >= middle).astype(int)
    calls = case.inputs.get("empty_call_us", {})
    if strange := sorted(set(calls) - set(frame["operator"])):
        place = f"empty_call_us.{strange[0]}"
        raise case.error(place, "there is no table of this operator", "remove it, or add the table")
    values = {}
    for operator, rows in frame.groupby("operator", sort=False):
        if rows["law"].iloc[0] == "gemm":
            constants = prediction.older_constants(gpu, "fp16")
            predicted = prediction.predict_gemms(gpu, constants, rows, "fp16")
        else:
            constants = OperatorConstants()
            predicted = prediction.predict_operators(gpu, constants, rows)
        # The host's clock sees a call: an empty one, in which the launch is contained, and the kernel's work.
        work = predicted["predicted_s"] - constants.launch_s
        held_in = ~rows["held_back"]
        call = (
            calls[operator] * 1e-6
            if operator in calls
            else prediction.call_s(rows["measured_s"][held_in], work[held_in])
        )
        values[f"{operator}_empty_call_s"] = call
        predicted["bound"] = np.where(work < call, "host", predicted["bound"])
        predicted["predicted_s"] = prediction.rounded(work + call)
        frame.loc[rows.index, ["predicted_s", "bound"]] = predicted
    result = CaseResult(frame.drop(columns=["read_bytes", "write_bytes"]))
    result.add("gpu", gpu.name, "text")
    add_errors(result, frame)
    source = "given in dataset.yaml" if set(calls) >= set(frame["operator"]) else "fitted to the held-in half"
    add_constants(result, values, dict.fromkeys(values, "s"), "", f"{source}; those of the GPU are as shipped")
    _add_operators(result, frame)
    mean = float(np.mean([result[f"{slug(name)}_mape_held_back_percent"] for name in frame["operator"].unique()]))
    result.add("mean_operator_mape_held_back_percent", mean, "%")
    finding = (
        f"The time model predicts {result['shapes_held_back']:,} held-back shapes of {len(values)} operators on "
        f"{gpu.title} with a mean error of {in_percent(mean)} (each operator counts alike); the GPU's constants are "
        f"from other measurements, empty calls are {source}"
    )
    result.add("finding", finding, "text")
    return result


def _prepared(case: Case, gpu: Gpu, frame: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Order the measurements, and add baselines, halves and empty predictions."""
    if "group" not in frame:
        frame = frame.assign(group="16-bit", kernel="")
    frame = prediction.baselines(gpu, frame)
    check_plausible(case, file, gpu, frame["roofline_s"].to_numpy(), frame["measured_s"].to_numpy())
    frame["held_back"] = prediction.hold_back(frame)
    if not frame["held_back"].any():
        problem = f"none of its {len(frame)} shapes falls into the half that judges"
        raise InputError(file, case.place, problem, "add more shapes")
    frame["region"], frame["bound"], frame["predicted_s"] = "", "", np.nan
    first = ["operator", "group", "kernel", "precision", "m", "n", "k", "flop", "bytes", "held_back", "region", "bound"]
    times = ["measured_s", "predicted_s", "roofline_s", "derate_s"]
    rest = [name for name in frame if name not in (*first, *times)]
    return frame[[*first, *times, *rest]].reset_index(drop=True)


def _gemm_regions(gpu: Gpu, frame: pd.DataFrame) -> pd.Series:
    sizes = pd.cut(frame["flop"], FLOP_EDGES, labels=FLOP_NAMES, right=False).astype(str)
    memory = frame["roofline_s"] * gpu.dram_bytes_per_s <= frame["bytes"] * (1 + 1e-5)
    return sizes + np.where(memory, ", memory side", ", compute side")


def _add_operators(result: CaseResult, frame: pd.DataFrame) -> str:
    """Enter the errors of every operator; return the one with the largest."""
    worst: dict[str, float] = {}
    for operator, rows in frame.groupby("operator", sort=False):
        add_errors(result, rows, f"{slug(operator)}_")
        value = result[f"{slug(operator)}_mape_held_back_percent"]
        worst[operator] = value if isinstance(value, (int, float)) else 0.0
    return max(worst, key=worst.get)
